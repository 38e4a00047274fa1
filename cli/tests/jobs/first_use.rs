//! Channels between hosts that are opened at their first use: who has some, strangers at the listeners meanwhile, and ranks that die, stop, give
//! up or disagree before any channel was used.

use std::io::Write;
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use crate::ranks::{
    DEADLINE, Gates, LIMIT, MISMATCH, PEER_FAILED, State, await_gate, job, join, names_only, parameter, play,
    side_by_side, tell,
};
use shouter::{Error, Group, ReduceOp};

/// The time limit of detection: the heartbeat's two seconds, with a margin for a busy machine.
const FOUND: Duration = Duration::from_secs(15);

const TRANSPORTS: [&str; 3] = ["auto", "tcp", "kernel"];

/// The body of a rank; as a test of its own it does nothing.
#[test]
fn rank_body() {
    play(
        &[
            ("ring", ring),
            ("all", all),
            ("sums", sums),
            ("receive", receive),
            ("differ", differ),
            ("late", late),
        ],
        join,
    );
}

/// Whether this is the special rank of the scenario.
fn odd_one(group: &Group) -> bool {
    parameter("RANK").is_some_and(|rank| rank == group.rank().to_string())
}

/// Says that it is here, and waits until the test lets all go on.
fn here() {
    tell("joined");
    await_gate("go");
}

fn speak(group: &Group, to: u32, from: u32, len: usize) -> Result<(), Error> {
    let (data, mut into) = (vec![group.rank(); len], vec![u32::MAX; len]);
    group.send_receive((&data, to), (&mut into, from), 7)?;
    assert!(into.iter().all(|word| *word == from));
    Ok(())
}

/// Each rank speaks with the next and the last one only.
fn ring(group: &Group) -> Result<(), Error> {
    let (rank, size) = (group.rank(), group.size());
    tell(format_args!("before {}", group.stats().channels));
    tell("counted");
    await_gate("speak");
    for len in [1, 30_000, 3] {
        speak(group, (rank + 1) % size, (rank + size - 1) % size, len)?;
    }
    tell(format_args!("after {}", group.stats().channels));
    tell("spoken");
    await_gate("go");
    Ok(())
}

/// All pairs exchange data.
fn all(group: &Group) -> Result<(), Error> {
    let (rank, size) = (group.rank(), group.size());
    (1..size).try_for_each(|step| speak(group, (rank + step) % size, (rank + size - step) % size, 30_000))?;
    tell("spoken");
    await_gate("go");
    Ok(())
}

/// Sums, when the test lets it.
fn sums(group: &Group) -> Result<(), Error> {
    here();
    for len in [1, 5000, 200_000] {
        let mut tensor = vec![1f32; len];
        group.all_reduce(&mut tensor, ReduceOp::Sum)?;
        assert!(tensor.iter().all(|x| *x == group.size() as f32));
    }
    Ok(())
}

/// All wait for a message of one rank, which sends none.
fn receive(group: &Group) -> Result<(), Error> {
    let silent: u32 = parameter("RANK").unwrap().parse().unwrap();
    here();
    if !odd_one(group) {
        return group.receive(&mut [0u8], silent, 1).map(drop);
    }
    if parameter("CALL").as_deref() == Some("abort") {
        // The others wait by then, or find the end when they begin to.
        std::thread::sleep(Duration::from_millis(300));
        return group.abort("no channel was used").and_then(|()| group.barrier());
    }
    std::thread::sleep(Duration::from_secs(60));
    Ok(())
}

/// A broadcast whose root, no leader, comes late. It waits for the other host's credit then.
fn late(group: &Group) -> Result<(), Error> {
    here();
    if odd_one(group) {
        std::thread::sleep(Duration::from_millis(300));
    }
    group.broadcast(&mut vec![group.rank(); 1 << 18], parameter("RANK").unwrap().parse().unwrap())?;
    // The root does not wait for the others by itself.
    group.barrier()
}

/// The first operation of one rank is another one.
fn differ(group: &Group) -> Result<(), Error> {
    here();
    let len = if odd_one(group) { 2001 } else { 2000 };
    group.all_reduce(&mut vec![1f32; len], ReduceOp::Sum)
}

/// The number behind these words, of each rank.
fn numbers(state: &State, words: &str) -> Vec<u64> {
    let number = |told: &String| told.strip_prefix(words)?.parse().ok();
    state.ranks.iter().map(|rank| rank.told.iter().find_map(number).expect("each has told it")).collect()
}

/// Addresses of the sockets of this process in this state (of `/proc/net/tcp`), here and there.
fn sockets(pid: u32, wanted: &str) -> Vec<(u16, u16)> {
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let links = open.filter_map(|entry| Some(std::fs::read_link(entry.path()).ok()?.to_str()?.to_owned()));
    let own: Vec<String> = links.collect();
    let table = std::fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap();
    let port = |address: &str| u16::from_str_radix(address.split_once(':')?.1, 16).ok();
    let found = table.lines().filter_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let is_own = own.contains(&format!("socket:[{}]", fields.get(9)?));
        (is_own && fields.get(3) == Some(&wanted)).then_some((port(fields.get(1)?)?, port(fields.get(2)?)?))
    });
    found.collect()
}

/// The ports at which this process listens.
fn listening(pid: u32) -> Vec<u16> {
    sockets(pid, "0A").into_iter().map(|(here, _)| here).collect()
}

#[test]
fn only_pairs_that_speak_have_channels() {
    const RANKS: u32 = 6;
    for transport in TRANSPORTS {
        let gates = Gates::new();
        let job = job!(RANKS, RANKS, "ring").args(&["--transport", transport]).with("GATES", &gates).start();
        job.until("all have counted", LIMIT, |state| state.all_told("counted"));
        gates.open("speak");
        let state = job.until("all have spoken", LIMIT, |state| state.all_told("spoken"));
        let [before, after] = ["before ", "after "].map(|words| numbers(&state, words));
        // The measurement of costs at the join uses one pair of leaders.
        assert!(before.iter().sum::<u64>() <= 2, "{transport}: {before:?}");
        for (before, after) in before.iter().zip(&after) {
            assert!((2..=2 + before).contains(after), "{transport}: {after}, and {before} before");
        }
        if transport == "kernel" {
            // Two neighbours, ten connections for data with each and one for control messages; rank 0's own control connections, and
            // the pair of the measurement.
            for rank in &state.ranks {
                let open = sockets(rank.pid.unwrap(), "01").len();
                assert!((22..=3 * 11 + RANKS as usize).contains(&open), "{open} sockets\n{state}");
                assert_eq!(listening(rank.pid.unwrap()).len(), 1, "others can still connect");
            }
        }
        gates.open("go");
        job.finish().assert_success();
    }
}

/// The kernel then refuses unauthenticated peers, at no cost for the job.
#[test]
fn when_all_pairs_of_leaders_are_connected_no_rank_listens() {
    let gates = Gates::new();
    let job = job!(3, 3, "all").args(&["--transport", "kernel"]).with("GATES", &gates).start();
    let is_closed = |state: &State| {
        state.all_told("spoken") && state.ranks.iter().all(|rank| listening(rank.pid.unwrap()).is_empty())
    };
    job.until("nobody listens", LIMIT, is_closed);
    gates.open("go");
    job.finish().assert_success();
}

/// Until then they are refused by the handshake.
#[test]
fn strangers_at_the_listener_of_a_leader_harm_nothing() {
    let gates = Gates::new();
    let job = job!(3, 3, "sums").args(&["--transport", "kernel"]).with("GATES", &gates).start();
    let state = job.until("all have joined", LIMIT, |state| state.all_told("joined"));
    let ports: Vec<u16> = state.ranks.iter().flat_map(|rank| listening(rank.pid.unwrap())).collect();
    assert_eq!(ports.len(), 3, "channels that were not used can still be opened\n{state}");
    let says = [&b"GET / HTTP/1.0\r\n\r\n"[..], &[0; 72], &[9; 60_000], &[]];
    let callers = ports.iter().flat_map(|port| says.iter().cycle().take(200).map(move |says| (port, says)));
    let callers = callers.filter_map(|(port, says)| {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, *port)).ok()?;
        let _ = stream.write_all(says);
        Some(stream)
    });
    let callers: Vec<_> = callers.collect();
    assert!(callers.len() > 100, "{}", callers.len());
    gates.open("go");
    job.finish().assert_success();
}

/// Nobody has a channel to it, so only its control connection can show it.
#[test]
fn a_rank_that_is_killed_before_its_first_use_is_named_by_all() {
    for transport in TRANSPORTS {
        let gates = Gates::new();
        let job = job!(4, 4, "sums").args(&["--transport", transport]).with("GATES", &gates).start();
        job.until("all have joined", LIMIT, |state| state.all_told("joined"));
        job.signal(2, "KILL");
        gates.open("go");
        let state = job.finish();
        for rank in state.others(2) {
            assert!(rank.lost_its_group(), "{transport}\n{state}");
            assert!(names_only(rank.error(), 2), "{transport}: {}\n{state}", rank.error());
            assert!(rank.ended.unwrap() < FOUND, "{transport}\n{state}");
        }
    }
}

/// Its kernel answers, or its shard does not: whoever waits for it opens the channel and finds it silent.
#[test]
fn a_rank_that_is_stopped_before_its_first_use_is_named_by_those_that_wait_for_it() {
    let cases = TRANSPORTS.iter().flat_map(|transport| [(transport, "sums"), (transport, "receive")]);
    side_by_side(cases, |(transport, scenario)| {
        let gates = Gates::new();
        let job = job!(3, 3, scenario)
            .silence_is_found()
            .args(&["--transport", transport])
            .with("GATES", &gates)
            .with("RANK", 1)
            .start();
        job.until("all have joined", LIMIT, |state| state.all_told("joined"));
        job.stop(1);
        let begin = job.elapsed();
        gates.open("go");
        let state = job.until("the others have ended", LIMIT, |state| state.all_over_but(1));
        job.signal(1, "KILL");
        for rank in state.others(1) {
            assert_eq!(rank.code, Some(PEER_FAILED), "{transport} {scenario}\n{state}");
            // The error of a message names its other end as well.
            let (_, why) = rank.error().split_once(": ").unwrap();
            assert!(names_only(why, 1), "{transport} {scenario}: {}\n{state}", rank.error());
            assert!(rank.ended.unwrap() - begin < FOUND, "{transport} {scenario}\n{state}");
        }
        job.finish();
    });
}

/// The leader beside the root waits for its own host at first, and for the silent one only later.
#[test]
fn a_host_that_is_silent_before_its_first_use_is_named_though_it_is_waited_for_late() {
    side_by_side(TRANSPORTS, |transport| {
        let gates = Gates::new();
        let job = job!(4, 2, "late").args(&["--transport", transport]).with("GATES", &gates).with("RANK", 1);
        let job = job.silence_is_found().env("SHOUTER_DEADLINE", "5m").start();
        job.until("all have joined", LIMIT, |state| state.all_told("joined"));
        [2, 3].into_iter().for_each(|rank| job.stop(rank));
        let begin = job.elapsed();
        gates.open("go");
        let state = job.until("host 0 has ended", LIMIT, |state| {
            state.ranks[..2].iter().all(|rank| rank.ended.is_some())
        });
        [2, 3].iter().for_each(|rank| job.signal(*rank, "KILL"));
        for rank in &state.ranks[..2] {
            assert_eq!(rank.code, Some(PEER_FAILED), "{transport}\n{state}");
            assert!(names_only(rank.error(), 2), "{transport}: {}\n{state}", rank.error());
            assert!(rank.ended.unwrap() - begin < FOUND, "{transport}\n{state}");
        }
        job.finish();
    });
}

#[test]
fn a_rank_that_gives_up_before_any_channel_was_used_is_heard_by_all() {
    for transport in TRANSPORTS {
        let gates = Gates::new();
        let job = job!(4, 4, "receive").args(&["--transport", transport]).with("CALL", "abort");
        let job = job.with("RANK", 3).with("GATES", &gates).start();
        job.until("all have joined", LIMIT, |state| state.all_told("joined"));
        gates.open("go");
        let state = job.finish();
        for rank in &state.ranks {
            assert!(rank.lost_its_group(), "{transport}\n{state}");
            assert!(rank.error().contains("no channel was used"), "{transport}: {}\n{state}", rank.error());
        }
    }
}

/// The votes of all leaders need channels between all of them.
#[test]
fn ranks_that_differ_in_their_first_operation_get_both_views() {
    for transport in TRANSPORTS {
        let gates = Gates::new();
        let job = job!(6, 6, "differ")
            .args(&["--transport", transport])
            .with("RANK", 4)
            .with("GATES", &gates)
            .start();
        job.until("all have joined", LIMIT, |state| state.all_told("joined"));
        gates.open("go");
        let state = job.finish();
        for rank in &state.ranks {
            assert_eq!(rank.code, Some(MISMATCH), "{transport}\n{state}");
            for part in ["2000", "2001", "rank 4"] {
                assert!(rank.error().contains(part), "{transport}: {part}: {}\n{state}", rank.error());
            }
        }
    }
}

/// The deadline of an operation is no death: only messages between the leaders tell of it.
#[test]
fn the_end_of_a_group_reaches_those_that_used_no_channel() {
    side_by_side(TRANSPORTS, |transport| {
        let gates = Gates::new();
        let job = job!(5, 5, "sums").args(&["--transport", transport]).env("SHOUTER_DEADLINE", "1s");
        let job = job.with("GATES", &gates).start();
        job.until("all have joined", LIMIT, |state| state.all_told("joined"));
        // Rank 3 is stopped for less than the heartbeat's time-out: it is late, and finds the end when it goes on.
        job.stop(3);
        gates.open("go");
        let state = job.until("the others have ended", LIMIT, |state| state.all_over_but(3));
        job.signal(3, "CONT");
        for rank in state.others(3) {
            assert_eq!(rank.code, Some(DEADLINE), "{transport}\n{state}");
            assert!(names_only(rank.error(), 3), "{transport}: {}\n{state}", rank.error());
        }
        let state = job.finish();
        assert!(state.ranks[3].code != Some(0), "{transport}\n{state}");
    });
}
