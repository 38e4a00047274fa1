//! Messages from one rank to another between real processes: on one host, on several, over every transport.

#![allow(unsafe_code)]

use std::time::{Duration, Instant};

use crate::ranks::{ARGUMENT, DEADLINE, job, join, names_only, parameter, play, run_all, tell};
use shouter::{Error, Exchange, Group, Source, Tag, Tensor};

/// A time limit that no wait reaches.
const PATIENCE: Duration = Duration::from_secs(50);

/// The body of a rank; as a test of its own it does nothing.
#[test]
fn rank_body() {
    let plays: &[(&str, crate::ranks::Play)] = &[
        ("ring", ring),
        ("any", any),
        ("crossing", crossing),
        ("order", order),
        ("small", small),
        ("started", started),
        ("wrong", wrong),
        ("arguments", arguments),
        ("nobody", nobody),
        ("die", die),
        ("stream", stream),
        ("beside", beside),
    ];
    if crate::ranks::scenario().as_deref() == Some("leave") {
        // The last rank leaves without the others.
        crate::ranks::end(join().and_then(|group| leave(&group)));
    }
    play(plays, join);
}

fn neighbours(group: &Group) -> (u32, u32) {
    let size = group.size();
    ((group.rank() + size - 1) % size, (group.rank() + 1) % size)
}

/// The elements that rank `from` sends in round `round`.
fn element(from: u32, round: usize, index: usize) -> u32 {
    from.wrapping_mul(0x9e37_79b9) ^ (round as u32) << 20 ^ index as u32
}

fn elements(from: u32, round: usize, count: usize) -> Vec<u32> {
    (0..count).map(|index| element(from, round, index)).collect()
}

/// What rank `from` sends, in memory that the host shares.
fn shared(group: &Group, round: usize, count: usize) -> Result<Tensor<u32>, Error> {
    let mut tensor = group.alloc(count)?;
    tensor.copy_from_slice(&elements(group.rank(), round, count));
    Ok(tensor)
}

/// Every rank sends to the next one first, then receives: small messages wait for their receives. For large ones one
/// rank receives first.
fn ring(group: &Group) -> Result<(), Error> {
    let (left, right) = neighbours(group);
    for (round, count) in [0, 1, 2, 63, 1000, 4096, 5000, 100_003, 1 << 20].into_iter().enumerate() {
        let own = elements(group.rank(), round, count);
        let mut into = vec![0u32; count + 1];
        let waits = count * 4 > 16 << 10;
        if waits && group.size() == 1 {
            // The rank would wait for itself.
            into[..count].copy_from_slice(&own);
        } else if waits && group.rank() == 0 {
            let status = group.receive(&mut into, left, 3)?;
            group.send(&own, right, 3)?;
            assert_eq!(status.count, count as u64);
        } else {
            group.send(&own, right, 3)?;
            let status = group.receive(&mut into, left, 3)?;
            assert_eq!((status.rank, status.tag, status.count), (left, 3, count as u64));
        }
        assert!(into[..count] == elements(left, round, count) && into[count] == 0, "round {round}");
        let status = group.send_receive((&own, right), (&mut into, Source::Any), 4)?;
        assert_eq!((status.rank, status.count), (left, count as u64));
        assert!(into[..count] == elements(left, round, count), "round {round}");
        // The same from memory that the host shares, which may be changed as soon as the send has ended. Odd ranks receive first.
        let mut own = shared(group, round + 1, count)?;
        let mut send = || group.send(&own, right, 5).map(|()| own.fill(0));
        let mut receive = || {
            group.receive(&mut into, left, 5)?;
            assert!(into[..count] == elements(left, round + 1, count), "round {round}, shared");
            Ok(())
        };
        match (group.size(), group.rank() % 2) {
            (1, _) => Ok(()),
            (_, 0) => send().and_then(|()| receive()),
            _ => receive().and_then(|()| send()),
        }?;
    }
    Ok(())
}

/// Rank 0 receives from any rank, with any tag.
fn any(group: &Group) -> Result<(), Error> {
    const ROUNDS: usize = 50;
    let count = |round: usize| [1, 10, 3000, 20_000][round % 4];
    if group.rank() > 0 {
        for round in 0..ROUNDS {
            group.send(&elements(group.rank(), round, count(round)), 0, round as u32)?;
        }
        return Ok(());
    }
    let mut next = vec![0; group.size() as usize];
    for _ in 0..ROUNDS * (group.size() as usize - 1) {
        let mut into = vec![0u32; 20_000];
        let found = group.probe(Source::Any, Tag::Any, Duration::from_secs(20))?.expect("a message comes");
        assert!(found.count <= 20_000 && found.rank > 0);
        let status = group.receive(&mut into, Source::Any, Tag::Any)?;
        let round = std::mem::replace(&mut next[status.rank as usize], status.tag as usize + 1);
        assert_eq!(
            (status.tag as usize, status.count as usize),
            (round, count(round)),
            "none overtakes another"
        );
        assert!(into[..count(round)] == elements(status.rank, round, count(round)));
    }
    assert_eq!(group.probe(Source::Any, Tag::Any, Duration::ZERO)?, None);
    Ok(())
}

/// All ranks send large messages to all, each in its own order.
fn crossing(group: &Group) -> Result<(), Error> {
    let (rank, size) = (group.rank(), group.size());
    for round in 0..3 {
        let count = 300_000 + round;
        let own = shared(group, round, count)?;
        let mut into = vec![vec![0u32; count]; size as usize];
        let mut exchanges: Vec<Exchange<'_>> = (0..size).map(|to| Exchange::send(&own, to, to)).collect();
        exchanges.extend((0..).zip(&mut into).map(|(from, into)| Exchange::receive(into, from, rank)));
        let shift = (rank as usize * 3 + round) % exchanges.len();
        exchanges.rotate_left(shift);
        for ended in group.batch(&mut exchanges) {
            ended?;
        }
        drop(exchanges);
        for (from, into) in (0..).zip(&into) {
            assert!(*into == elements(from, round, count), "from {from}");
        }
    }
    Ok(())
}

/// Receives select by tag, and messages with one tag keep their order.
fn order(group: &Group) -> Result<(), Error> {
    let (left, right) = neighbours(group);
    for i in 0..200u32 {
        group.send(&[i], right, i % 2)?;
    }
    for tag in [1, 0] {
        for i in 0..100u32 {
            let mut into = [0u32];
            group.receive(&mut into, left, tag)?;
            assert_eq!(into[0], 2 * i + tag);
        }
    }
    Ok(())
}

/// Small messages, one by one and in bursts that wrap rings around, to both neighbours at once: in the group of all,
/// and in a group with the reverse order.
fn small(group: &Group) -> Result<(), Error> {
    let reversed: Vec<u32> = (0..group.size()).rev().collect();
    let other = group.group(&reversed)?;
    let mut next = 0u64;
    for burst in [1, 1, 1, 3, 900, 1, 40, 1].into_iter().cycle().take(40) {
        for group in [group, &other] {
            let (left, right) = neighbours(group);
            let one = |number: u64, from: u32| number << 32 | u64::from(from);
            for number in next..next + burst {
                let data = [one(number, group.rank()); 5];
                let len = (number % 6) as usize;
                group.send(&data[..len], right, 1)?;
                group.send(&data[..len], left, 2)?;
            }
            for number in next..next + burst {
                for (from, tag) in [(left, 1), (right, 2)] {
                    let mut into = [0u64; 5];
                    let status = group.receive(&mut into, from, tag)?;
                    let len = (number % 6) as usize;
                    assert_eq!((status.rank, status.count), (from, len as u64));
                    assert!(into[..len].iter().all(|value| *value == one(number, from)), "{number}");
                }
            }
        }
        next += burst;
    }
    other.finalize()
}

/// Started messages: cancelled, waited for with a time-out, dropped, from any rank, on other threads, hundreds at once;
/// completed through callbacks, futures and a descriptor.
fn started(group: &Group) -> Result<(), Error> {
    let (left, right) = neighbours(group);
    let mut into = [[0u64; 4]; 2];
    let receive = |from: Source, tag: u32, into: &mut [u64]| {
        // SAFETY: nothing else touches the buffer before the message has ended.
        unsafe { group.start_message(Exchange::receive(into, from, tag)) }
    };
    let from_left = Source::Rank(left);
    let cancelled = receive(from_left, 9, &mut into[0])?;
    assert!(matches!(cancelled.wait(Some(Duration::from_millis(1))), Err(Error::Timeout { .. })));
    assert!(cancelled.statuses().is_empty() && cancelled.cancel()?);
    for _ in 0..2 {
        let error = cancelled.wait(Some(PATIENCE)).unwrap_err();
        let pair = format!("from rank {left} to rank {} with tag 9", group.rank());
        assert!(matches!(error, Error::Argument(_)) && error.to_string().contains(&pair), "{error}");
    }
    group.barrier()?;
    let own = [u64::from(group.rank()); 3];
    let (receiving, also) = (receive(Source::Any, 1, &mut into[0])?, receive(from_left, 2, &mut into[1])?);
    let (say, said) = std::sync::mpsc::channel();
    receiving.on_done(move |result| say.send(result).unwrap())?;
    // SAFETY: the elements are only read.
    let sending = unsafe { group.start_message(Exchange::send(&own, right, 1)) }?;
    drop(sending.clone());
    said.recv_timeout(PATIENCE).expect("the callback runs")?;
    assert!(matches!(receiving.test(), Some(Ok(()))) && !receiving.cancel()?);
    let status = receiving.statuses()[0];
    assert_eq!((status.rank, status.tag, status.count, status.bytes()), (left, 1, 3, 24));
    let left_sends = [[u64::from(left); 3].as_slice(), &[0]].concat();
    assert_eq!(into[0][..], left_sends);
    sending.wait(Some(PATIENCE))?;
    assert_eq!(sending.statuses()[0].rank, right);
    // This thread sends the message that another thread waits for.
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| also.wait(Some(PATIENCE)));
        group.send(&own, right, 2)?;
        waiting.join().unwrap()
    })?;
    assert_eq!(into[1][..], left_sends);
    in_any_order(group)?;
    // SAFETY: nothing is started.
    let refused = unsafe { group.start_message(Exchange::send(&own, group.size(), 1)) };
    assert!(matches!(refused, Err(Error::Argument(_))));
    group.barrier()
}

/// Large sends before their receives on every rank, which would wait for each other if a start waited; each pair also
/// as one operation.
fn in_any_order(group: &Group) -> Result<(), Error> {
    const MESSAGES: usize = 100;
    let (left, right) = neighbours(group);
    let own: Vec<Vec<u32>> = (0..MESSAGES).map(|at| vec![group.rank() + at as u32; 20 * at * at]).collect();
    let mut theirs: Vec<Vec<u32>> = own.iter().map(|own| vec![0; own.len()]).collect();
    // SAFETY: nothing touches the buffers before all have ended.
    let mut works = unsafe {
        let sends =
            own.iter().zip(0..).map(|(own, tag)| group.start_message(Exchange::send(own, right, tag)));
        sends.collect::<Result<Vec<_>, _>>()?
    };
    let of_left = |at: usize, theirs: &[u32]| theirs.iter().all(|x| *x == left + at as u32);
    // The last one first.
    for (tag, theirs) in theirs.iter_mut().enumerate().rev() {
        // SAFETY: as above.
        works.push(unsafe { group.start_message(Exchange::receive(theirs, left, tag as u32)) }?);
    }
    let mut left_to_wait = works.clone();
    while !left_to_wait.is_empty() {
        let at = shouter::Work::wait_any(&left_to_wait, Some(PATIENCE))?;
        left_to_wait.swap_remove(at).wait(None)?;
    }
    assert!(theirs.iter().enumerate().all(|(at, theirs)| of_left(at, theirs)));
    let last = own.last().unwrap();
    let mut into = vec![0u32; last.len() + 5];
    let both = [Exchange::send(last, right, 3), Exchange::receive(&mut into, left, 3)];
    // SAFETY: as above.
    let work = unsafe { group.start_messages(&both) }?;
    work.wait(Some(PATIENCE))?;
    let statuses = work.statuses();
    assert_eq!([statuses[0].rank, statuses[1].rank], [right, left]);
    assert_eq!(statuses[1].count, last.len() as u64);
    assert!(of_left(MESSAGES - 1, &into[..last.len()]) && into[last.len()..] == [0; 5]);
    Ok(())
}

/// Rank 1 receives too little, and another type; both ranks get an error, and the group goes on.
fn wrong(group: &Group) -> Result<(), Error> {
    let large = vec![1f32; 100_000];
    let mismatch = |error: Error, other: u32| {
        assert!(matches!(&error, Error::Mismatch { rank: Some(rank), .. } if *rank == other), "{error}");
        error.to_string()
    };
    match group.rank() {
        0 => {
            let text = mismatch(group.send(&large, 1, 5).unwrap_err(), 1);
            assert!(text.contains("100000 x f32") && text.contains("up to 10 x f32"), "{text}");
            // A small one, sent synchronously, so that the send itself fails.
            let ended = group.batch(&mut [Exchange::send(&[1f32; 20], 1, 5).synchronous()]).remove(0);
            let text = mismatch(ended.unwrap_err(), 1);
            assert!(text.contains("20 x f32") && text.contains("up to 10 x f32"), "{text}");
            // A standard send ends at once; a later call gets the error.
            group.send(&[1f32; 20], 1, 6)?;
            group.barrier()?;
            let until = Instant::now() + Duration::from_secs(10);
            let late = loop {
                match group.send(&[0u8], 1, 7) {
                    Err(error) => break error,
                    Ok(()) => assert!(Instant::now() < until, "no error comes"),
                }
            };
            let text = mismatch(late, 1);
            assert!(text.contains("20 x f32") && text.contains("up to 20 x i32"), "{text}");
            group.send(&[0u8], 1, 8)?;
        }
        1 => {
            for count in ["100000", "20"] {
                let error = group.receive(&mut [0f32; 10], 0, 5).unwrap_err();
                let text = mismatch(error, 0);
                assert!(
                    text.contains(&format!("{count} x f32")) && text.contains("up to 10 x f32"),
                    "{text}"
                );
            }
            let error = group.receive(&mut [0i32; 20], 0, 6).unwrap_err();
            mismatch(error, 0);
            group.barrier()?;
            // Receives the messages that have arrived before the error.
            while group.receive(&mut [0u8], 0, Tag::Any)?.tag == 7 {}
        }
        _ => group.barrier()?,
    }
    let mut sum = [1i32];
    group.all_reduce(&mut sum, shouter::ReduceOp::Sum)?;
    assert_eq!(sum[0], group.size() as i32);
    Ok(())
}

fn arguments(group: &Group) -> Result<(), Error> {
    let rank = group.size();
    let errors = [
        group.send(&[1u8], rank, 0).unwrap_err(),
        group.receive(&mut [1u8], rank, 0).unwrap_err(),
        group.probe(rank, 0, Duration::ZERO).unwrap_err(),
        // SAFETY: refused before it is used.
        unsafe { Exchange::send_raw(std::ptr::null(), 1, shouter::DType::F32, 0, 0) }.map(drop).unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error, Error::Argument(_)), "{error}");
    }
    group.barrier()
}

/// Rank 0 sends a message without a receive, and rank 1 receives one without a send.
fn nobody(group: &Group) -> Result<(), Error> {
    let large = vec![1f32; 100_000];
    let error = match group.rank() {
        0 => group.send(&large, 1, 1234).unwrap_err(),
        _ => group.receive(&mut [0f32; 5], 0, 4321).unwrap_err(),
    };
    let (pair, tag) = ("from rank 0 to rank 1", if group.rank() == 0 { "tag 1234" } else { "tag 4321" });
    let text = error.to_string();
    assert!(matches!(error, Error::Deadline { .. }) && text.contains(pair) && text.contains(tag), "{text}");
    // The group goes on, and the message is gone.
    group.barrier()?;
    let (left, right) = neighbours(group);
    group.send_receive((&[7u8], right), (&mut [0u8], left), 1234).map(drop)
}

/// The last rank dies while all others wait for it, each in another call.
fn die(group: &Group) -> Result<(), Error> {
    let last = group.size() - 1;
    group.barrier()?;
    if parameter("CALL").as_deref() == Some("small") {
        return die_among_small(group, last);
    }
    if group.rank() == last {
        tell("dying");
        // Usually while the others wait.
        std::thread::sleep(Duration::from_millis(200));
        std::process::abort();
    }
    let large = group.alloc::<f32>(1 << 20)?;
    match (group.rank(), parameter("CALL").as_deref()) {
        (_, Some("any")) => group.receive(&mut [0u8; 4], Source::Any, Tag::Any).map(drop),
        (0, _) => group.send(&large, last, 0),
        (1, _) => group.receive(&mut [0u8; 4], last, 0).map(drop),
        _ => group.receive(&mut [0u8; 4], Source::Any, 0).map(drop),
    }
}

/// The last rank dies in the middle of small messages: rank 0 exchanges them with it, the others only send.
fn die_among_small(group: &Group, last: u32) -> Result<(), Error> {
    for round in 0u64.. {
        let mut into = [0u64];
        match group.rank() {
            0 => {
                group.send(&[round], last, 0)?;
                group.receive(&mut into, last, 0)?;
            }
            rank if rank == last => {
                if round == 20_000 {
                    tell("dying");
                    std::process::abort();
                }
                group.receive(&mut into, 0, 0)?;
                group.send(&into, 0, 0)?;
            }
            _ => group.send(&[round], last, 1).map(|()| into = [round])?,
        }
        assert_eq!(into, [round]);
    }
    Ok(())
}

/// Rank 0 sends from memory that the host shares until it hears of the end, and overwrites the memory then; rank 1 checks all that it
/// receives.
fn stream(group: &Group) -> Result<(), Error> {
    const COUNT: usize = 1 << 20;
    let mut own = group.alloc::<u32>(COUNT)?;
    for round in 0.. {
        if group.rank() == 1 {
            group.receive(&mut own, 0, 0)?;
            assert!(own.iter().all(|value| *value == round), "message {round} came damaged");
            if round == 20 {
                tell("receives");
            }
            continue;
        }
        own.fill(round);
        if let Err(error) = group.send(&own, 1, 0) {
            own.fill(u32::MAX);
            tell("overwritten");
            return Err(error);
        }
    }
    Ok(())
}

/// The last rank leaves in good order; a receive from it ends the group at once.
fn leave(group: &Group) -> Result<(), Error> {
    let last = group.size() - 1;
    group.barrier()?;
    if group.rank() == last {
        // The group is dropped, not finalised: sent messages still arrive.
        return group.send(&[9u8], 0, 1);
    }
    if group.rank() == 0 {
        let mut into = [0u8];
        group.receive(&mut into, last, 1)?;
        assert_eq!(into, [9]);
        return group.receive(&mut into, last, 2).map(drop);
    }
    group.receive(&mut [0u8], last, 3).map(drop)
}

/// Messages beside collectives, from two threads.
fn beside(group: &Group) -> Result<(), Error> {
    let (left, right) = neighbours(group);
    std::thread::scope(|scope| {
        let messages = scope.spawn(|| {
            for round in 0..100 {
                let own = elements(group.rank(), round, 3000);
                let mut into = vec![0u32; 3000];
                group.send_receive((&own, right), (&mut into, left), round as u32)?;
                assert!(into == elements(left, round, 3000));
            }
            Ok(())
        });
        for round in 0..100 {
            let mut data = vec![round as f32; 10_000];
            group.all_reduce(&mut data, shouter::ReduceOp::Sum)?;
            assert_eq!(data[9_999], (round * group.size()) as f32);
        }
        messages.join().expect("no panic")
    })
}

/// Ranks, hosts and transport.
const PLACES: [(u32, u32, &str); 7] = [
    (1, 1, "auto"),
    (2, 1, "auto"),
    (3, 1, "auto"),
    (2, 2, "kernel"),
    (2, 2, "rud"),
    (4, 2, "kernel"),
    (6, 3, "auto"),
];

/// Without DPDK hosts have only the kernel's sockets.
fn over(plan: crate::ranks::Plan, hosts: u32, transport: &str) -> crate::ranks::Plan {
    let has_ports = cfg!(feature = "dpdk") || hosts == 1;
    plan.env("SHOUTER_TRANSPORT", if has_ports { transport } else { "kernel" })
}

/// A job over the available transport.
fn usual(ranks: u32, hosts: u32, scenario: &str) -> crate::ranks::Plan {
    over(job!(ranks, hosts, scenario), hosts, "auto")
}

fn everywhere(scenario: &str) {
    for (ranks, hosts, transport) in PLACES {
        let state = over(job!(ranks, hosts, scenario), hosts, transport).run();
        assert!(
            state.status == Some(0),
            "{scenario} of {ranks} ranks on {hosts} hosts over {transport}\n{state}"
        );
    }
}

#[test]
fn a_ring_of_sends_brings_every_byte() {
    everywhere("ring");
}

#[test]
fn receives_from_any_rank_keep_the_order_of_each() {
    everywhere("any");
}

#[test]
fn exchanges_of_large_messages_in_any_order_end() {
    everywhere("crossing");
}

#[test]
fn small_messages_one_by_one_and_in_bursts_keep_their_order() {
    everywhere("small");
}

#[test]
fn tags_choose_and_messages_with_one_tag_keep_their_order() {
    everywhere("order");
    everywhere("started");
}

#[test]
fn messages_and_collectives_do_not_disturb_each_other() {
    everywhere("beside");
}

#[test]
fn wrong_receives_are_errors_on_both_ranks_and_the_group_goes_on() {
    run_all([usual(2, 1, "wrong"), usual(3, 1, "arguments"), usual(4, 2, "wrong"), usual(1, 1, "arguments")])
        .iter()
        .for_each(crate::ranks::State::assert_success);
}

#[test]
fn a_deadline_names_the_pair_and_the_tag_and_the_group_goes_on() {
    let plan = |ranks, hosts| usual(ranks, hosts, "nobody").env("SHOUTER_DEADLINE", "1s");
    run_all([plan(2, 1), plan(2, 2)]).iter().for_each(crate::ranks::State::assert_success);
}

#[test]
fn a_rank_that_dies_is_named_by_every_send_and_receive() {
    let plan = |ranks, hosts, call| usual(ranks, hosts, "die").with("CALL", call);
    let plans =
        [(3, 1, "each"), (3, 1, "any"), (3, 3, "each"), (4, 2, "any"), (3, 1, "small"), (2, 1, "small")];
    let states = run_all(plans.map(|(ranks, hosts, call)| plan(ranks, hosts, call)));
    for state in &states {
        let last = state.ranks.len() as u32 - 1;
        for rank in state.others(last) {
            let failed = rank.lost_its_group();
            assert!(failed && names_dead(rank.error(), last), "{state}");
        }
    }
}

fn has_told(state: &crate::ranks::State, rank: usize, what: &str) -> bool {
    state.ranks[rank].told.iter().any(|line| line == what)
}

/// A message is read where it lies in the sender's memory: also by a receiver that was stopped meanwhile, and that its sender has given up.
#[test]
fn a_receiver_that_was_stopped_never_gets_what_was_written_after_the_end() {
    let jobs: Vec<_> = (0..3).map(|_| usual(2, 1, "stream").silence_is_found().start()).collect();
    for job in &jobs {
        job.until("messages are received", PATIENCE, |state| has_told(state, 1, "receives"));
        job.signal(1, "STOP");
    }
    for job in jobs {
        job.until("the sender's memory is overwritten", PATIENCE, |state| has_told(state, 0, "overwritten"));
        job.signal(1, "CONT");
        let state = job.finish();
        for rank in &state.ranks {
            assert!(rank.lost_its_group() && names_dead(rank.error(), 1), "{state}");
        }
    }
}

/// Whether an error says that this rank is dead.
fn names_dead(text: &str, rank: u32) -> bool {
    let cause = text.split_once("was given up: ").or_else(|| text.split_once("was not started: "));
    let (_, cause) = cause.unwrap_or_default();
    names_only(cause.split(';').next().unwrap_or(""), rank)
}

#[test]
fn a_rank_that_has_left_is_not_waited_for() {
    for state in run_all([usual(3, 1, "leave"), usual(2, 2, "leave")]) {
        let last = state.ranks.len() as u32 - 1;
        for rank in state.others(last) {
            assert!(rank.lost_its_group(), "{state}");
            assert!(rank.ended < Some(Duration::from_secs(20)), "{state}");
        }
        assert!(state.ranks.iter().all(|rank| !matches!(rank.code, Some(ARGUMENT | DEADLINE))), "{state}");
    }
}
