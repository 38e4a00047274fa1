//! Messages and windows of groups of some ranks, between real processes.

use std::time::Duration;

use crate::ranks::{job, join, parameter, play, run_all};
use shouter::{DType, Error, Exchange, Group, ReduceOp, Source, Tag, TensorSpec, WindowMemory};

/// The body of a rank; as a test of its own it does nothing.
#[test]
fn rank_body() {
    // Ranks that leave without the others.
    match crate::ranks::scenario().as_deref() {
        Some("go_on") => crate::ranks::end(join().and_then(go_on)),
        Some("cut_off") => crate::ranks::end(join().and_then(cut_off)),
        Some("never_made") => crate::ranks::end(join().and_then(never_made)),
        _ => {}
    }
    play(
        &[
            ("messages", messages),
            ("windows", windows),
            ("orders", orders),
            ("errors", errors),
            ("leave", leave),
            ("last_words", last_words),
            ("die", die),
        ],
        join,
    );
}

/// Groups that share ranks, and number them differently; `None` if this rank is no member.
fn overlapping(all: &Group) -> Result<Vec<Option<Group>>, Error> {
    let lists = [&[3u32, 1, 0][..], &[1, 3], &[2, 0, 1, 3], &[2]];
    lists.iter().map(|list| list.contains(&all.rank()).then(|| all.group(list)).transpose()).collect()
}

fn neighbours(group: &Group) -> (u32, u32) {
    let size = group.size();
    ((group.rank() + size - 1) % size, (group.rank() + 1) % size)
}

/// The elements that a member sends in the group with this salt.
fn elements(salt: u32, from: u32, count: usize) -> Vec<u32> {
    (0..count as u32).map(|index| (salt << 8 | from) << 20 ^ index).collect()
}

/// Sends and receives of a group, with tags that other groups also use.
fn talk(group: &Group, salt: u32) -> Result<(), Error> {
    let ((left, right), rank) = (neighbours(group), group.rank());
    for count in [0, 1, 1000, 4097, 100_003] {
        let (own, mut into) = (elements(salt, rank, count), vec![0; count]);
        let status = group.send_receive((&own, right), (&mut into, left), 5)?;
        assert_eq!((status.rank, status.tag, status.count), (left, 5, count as u64));
        assert!(into == elements(salt, left, count));
    }
    // All to all, each rank in its own order.
    let own = elements(salt, rank, 50_000);
    let mut parts = vec![vec![0u32; 50_000]; group.size() as usize];
    let mut exchanges: Vec<Exchange<'_>> = (0..group.size()).map(|to| Exchange::send(&own, to, to)).collect();
    exchanges.extend((0..).zip(&mut parts).map(|(from, into)| Exchange::receive(into, from, rank)));
    exchanges.rotate_left(rank as usize);
    group.batch(&mut exchanges).into_iter().try_for_each(|ended| ended.map(drop))?;
    drop(exchanges);
    assert!((0..).zip(&parts).all(|(from, part)| *part == elements(salt, from, 50_000)));
    // From any rank, probed. No rank goes on to the next messages before.
    if rank > 0 {
        group.send(&elements(salt, rank, 10 * rank as usize), 0, rank)?;
        return group.barrier();
    }
    let mut seen = vec![];
    for _ in 1..group.size() {
        let found = group.probe(Source::Any, Tag::Any, Duration::from_secs(20))?.expect("a message comes");
        let mut into = vec![0u32; found.count as usize];
        assert_eq!(group.receive(&mut into, found.rank, found.tag)?, found);
        assert!(into == elements(salt, found.rank, 10 * found.rank as usize) && found.tag == found.rank);
        seen.push(found.rank);
    }
    seen.sort_unstable();
    assert_eq!(seen, (1..group.size()).collect::<Vec<_>>());
    assert_eq!(group.probe(Source::Any, Tag::Any, Duration::ZERO)?, None);
    group.barrier()
}

/// Messages of overlapping groups with the same tags, at the same time.
fn messages(all: &Group) -> Result<(), Error> {
    let groups = overlapping(all)?;
    let mut own: Vec<(u32, &Group)> =
        (1..).zip(&groups).filter_map(|(salt, group)| Some((salt, group.as_ref()?))).collect();
    own.push((0, all));
    std::thread::scope(|scope| {
        let talks: Vec<_> = own.iter().map(|&(salt, group)| scope.spawn(move || talk(group, salt))).collect();
        talks.into_iter().try_for_each(|talk| talk.join().expect("no panic"))
    })?;
    // A message of one group does not arrive in another.
    for &(salt, group) in &own {
        group.send(&[salt], neighbours(group).1, 1)?;
    }
    for &(salt, group) in own.iter().rev() {
        let mut into = [u32::MAX];
        group.receive(&mut into, Source::Any, Tag::Any)?;
        assert_eq!(into, [salt]);
    }
    groups.into_iter().flatten().try_for_each(Group::finalize)
}

/// In private memory, or in memory that the ranks of a host share.
fn windows(all: &Group) -> Result<(), Error> {
    match parameter("MEMORY").as_deref() {
        Some("shared") => windows_in(all, |len| all.alloc::<u64>(len)),
        _ => windows_in(all, |len| Ok(vec![0u64; len])),
    }
}

/// Windows of overlapping groups at the same time, each with the number 0 in its group.
fn windows_in<M: WindowMemory<Element = u64>>(
    all: &Group,
    memory: impl Fn(usize) -> Result<M, Error>,
) -> Result<(), Error> {
    let groups = overlapping(all)?;
    let own: Vec<&Group> = groups.iter().flatten().chain([all]).collect();
    let len = |group: &Group| 1 + 1000 * group.size() as usize;
    let windows = own.iter().map(|group| group.window(memory(len(group))?)).collect::<Result<Vec<_>, _>>()?;
    for (group, window) in own.iter().zip(&windows) {
        let (rank, size) = (u64::from(group.rank()), group.size());
        for target in 0..size {
            window.put(&[rank + 1; 1000], target, 1 + rank * 1000)?;
            window.accumulate(&[rank + 1], target, 1 + rank * 1000, ReduceOp::Sum)?;
        }
        window.flush(None)?;
        let mut into = vec![0u64; 1000];
        window.get(&mut into, size - 1, 1 + rank * 1000)?;
        assert!(into[0] == 2 * (rank + 1) && into[999] == rank + 1);
        for _ in 0..10 {
            window.fetch_and_op(&[1], &mut [0], 0, 0, ReduceOp::Sum)?;
        }
    }
    for (group, window) in own.iter().zip(&windows).rev() {
        window.fence()?;
        let size = u64::from(group.size());
        // The first rank to arrive sets it back.
        let before = window.compare_and_swap(10 * size, 0, 0, 0)?;
        assert!(before == 10 * size || before == 0, "{before}");
        window.fence()?;
        let mut into = vec![0u64; len(group)];
        window.get(&mut into, neighbours(group).1, 0)?;
        assert!((1..).zip(into[1..].chunks(1000)).all(|(one, part)| part[0] == 2 * one && part[1] == one));
        assert!(group.rank() != group.size() - 1 || into[0] == 0);
    }
    for window in windows {
        window.free()?;
    }
    groups.into_iter().flatten().try_for_each(Group::finalize)
}

/// Three groups of which any two share ranks: each rank starts a collective, sends and receives in each, in its own
/// order, all orders on all ranks.
fn orders(all: &Group) -> Result<(), Error> {
    const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    const MEMBERS: [&[u32]; 3] = [&[0, 1, 2], &[1, 2, 0], &[2, 0, 1]];
    const COUNT: usize = 5000;
    let mut groups = vec![];
    for members in MEMBERS {
        let group = all.group(members)?;
        let spec = TensorSpec::all_reduce("only", DType::U64, COUNT as u64, ReduceOp::Sum);
        let ids = group.register(&[spec])?;
        groups.push((group, ids[0]));
    }
    for round in 0..ORDERS.len().pow(3) {
        let order = ORDERS[round / ORDERS.len().pow(all.rank()) % ORDERS.len()];
        let value = |at: usize, rank: u32| (round + at * 1000) as u64 + u64::from(rank);
        // Rounds with small messages, and with messages that a receive has to request.
        let count = if round % 2 == 0 { 3 } else { COUNT };
        let begun = order.map(|at| {
            let (group, id) = &groups[at];
            let (left, right) = neighbours(group);
            let (own, mut into) = (vec![value(at, group.rank()); count], vec![0u64; count]);
            let exchanges = [Exchange::send(&own, right, 1), Exchange::receive(&mut into, left, 1)];
            #[allow(unsafe_code)]
            // SAFETY: both vectors are kept, untouched, until the transfers were waited for.
            let transfers = exchanges.map(|exchange| unsafe { group.start_message(exchange) });
            (at, group.lend(*id, vec![value(at, group.rank()); COUNT]), transfers, own, into)
        });
        // The waits are in yet another order.
        for (at, lent, transfers, own, into) in begun.into_iter().rev() {
            assert_eq!(lent?.wait()?, vec![3 * value(at, 1); COUNT], "round {round}");
            for transfer in transfers {
                transfer?.wait(None)?;
            }
            let (left, _) = neighbours(&groups[at].0);
            assert!(into == vec![value(at, left); count] && own.len() == count, "round {round}");
        }
    }
    Ok(())
}

/// A receive that is too short, arguments, a deadline: errors with both numbers, and the group goes on.
fn errors(all: &Group) -> Result<(), Error> {
    let group = all.group(&[2, 0, 1])?;
    let rank = group.rank();
    for refused in [
        group.send(&[1u8], 3, 0).unwrap_err(),
        group.receive(&mut [1u8], 3, 0).map(drop).unwrap_err(),
        group.probe(3, 0, Duration::ZERO).map(drop).unwrap_err(),
    ] {
        assert!(matches!(&refused, Error::Argument(text) if text.contains("group of 3")), "{refused}");
    }
    let large = vec![1f32; 100_000];
    match rank {
        0 => {
            let error = group.send(&large, 1, 5).unwrap_err();
            assert!(matches!(error, Error::Mismatch { rank: Some(1), .. }), "{error:?}");
            assert!(error.to_string().contains("rank 1 of this group is rank 0 of the job"), "{error}");
        }
        1 => {
            let error = group.receive(&mut [0f32; 10], 0, 5).unwrap_err();
            assert!(matches!(error, Error::Mismatch { rank: Some(0), .. }), "{error:?}");
            assert!(error.to_string().contains("rank 0 of this group is rank 2 of the job"), "{error}");
        }
        _ => {}
    }
    // A message that is never sent; all ranks wait, so that none is late for the others.
    let next = neighbours(&group).1;
    let error = group.receive(&mut [0f32; 10], next, 77).unwrap_err();
    assert!(matches!(&error, Error::Deadline { missing, .. } if *missing == [next]), "{error:?}");
    assert!(error.to_string().contains("tag 77"), "{error}");
    talk(&group, 3)?;
    // An access to a freed part is refused, and the numbers of windows go on.
    let window = group.window(vec![0u16; 10])?;
    group.barrier()?;
    if rank == 1 {
        drop(window);
        group.barrier()?;
    } else {
        let error = (0..10_000).find_map(|_| window.fetch_and_op(&[1], &mut [0], 1, 0, ReduceOp::Sum).err());
        let error = error.expect("the part is gone");
        assert!(matches!(error, Error::Mismatch { rank: Some(1), .. }), "{error:?}");
        group.barrier()?;
        drop(window);
    }
    let window = group.window(vec![0u8; 1])?;
    window.put(&[1], 0, 0)?;
    window.free()?;
    group.finalize()
}

/// A member drops the group: a message or an access that waits for it ends the group, and no other.
fn leave(all: &Group) -> Result<(), Error> {
    let (group, other) = (all.group(&[1, 0, 2])?, all.group(&[0, 2, 1])?);
    let last = group.size() - 1;
    let window = group.window(vec![1u32; 4])?;
    if group.rank() == last {
        group.send(&[9u8], 0, 1)?;
        std::mem::drop(window);
        drop(group);
    } else {
        let is_first = group.rank() == 0;
        if is_first {
            let mut into = [0u8];
            group.receive(&mut into, last, 1)?;
            assert_eq!(into, [9]);
        }
        let error = match parameter("CALL").as_deref() {
            Some("window") => {
                std::iter::repeat_with(|| window.fetch_and_op(&[1], &mut [0], last, 0, ReduceOp::Sum))
                    .take(10_000)
                    .find_map(|ended| ended.err().filter(|error| !matches!(error, Error::Mismatch { .. })))
                    .expect("it has left")
            }
            _ => group.receive(&mut [0u8], last, 2).unwrap_err(),
        };
        assert_eq!(error.rank(), Some(last), "{error:?}");
        assert_eq!(error.reason(), Some(shouter::Reason::Aborted), "{error:?}");
        // The other group goes on.
        drop(window);
    }
    talk(&other, 4)?;
    talk(all, 5)
}

/// Small messages arrive even if their sender drops the group at once, before others have made it.
fn last_words(all: &Group) -> Result<(), Error> {
    for round in 0..20u32 {
        // This call does not wait for the other members.
        let group = all.split(Some(0), 0)?.expect("all have a color");
        if group.rank() == 0 {
            (1..group.size()).try_for_each(|to| group.send(&[round], to, 3))?;
        } else {
            if round % 4 == 0 {
                std::thread::sleep(Duration::from_millis(20));
            }
            let mut into = [u32::MAX];
            group.receive(&mut into, 0, 3)?;
            assert_eq!(into, [round]);
        }
        drop(group);
    }
    Ok(())
}

/// A rank dies while the members of its group wait for it in a message or an access: all of them name it.
fn die(all: &Group) -> Result<(), Error> {
    let members = [2u32, 0, 1];
    let group = members.contains(&all.rank()).then(|| all.group(&members)).transpose()?;
    let window = group.as_ref().map(|group| group.window(vec![0u64; 1000])).transpose()?;
    all.barrier()?;
    if all.rank() == 2 {
        std::process::exit(1);
    }
    let (Some(group), Some(window)) = (&group, window) else { return all.barrier() };
    let error = match (parameter("CALL").as_deref(), group.rank()) {
        (Some("window"), _) => std::iter::repeat_with(|| window.put(&[1; 1000], 0, 0))
            .take(1_000_000)
            .find_map(Result::err)
            .expect("it is dead"),
        (_, 1) => group.receive(&mut [0u8], 0, 0).map(drop).unwrap_err(),
        _ => group.send(&vec![1f32; 1 << 20], 0, 0).unwrap_err(),
    };
    // The rank may have known of it before the call.
    let ended = matches!(error, Error::PeerFailed { .. } | Error::Closed { .. });
    assert!(ended && error.rank() == Some(0), "{error:?}");
    assert!(error.to_string().contains("rank 0 of this group is rank 2 of the job"), "{error}");
    drop(window);
    all.barrier()
}

/// Rank 0 leaves the job, then rank 1, so that no rank forwards the news. The others go on for longer than the
/// heartbeat's time-out.
fn go_on(all: Group) -> Result<(), Error> {
    let rest = (all.rank() >= 2).then(|| all.group(&[2, 3])).transpose()?;
    all.barrier()?;
    let Some(rest) = rest else {
        std::thread::sleep(Duration::from_millis(700) * all.rank());
        return Ok(());
    };
    let until = std::time::Instant::now() + Duration::from_secs(4);
    // The members decide together on the end.
    let mut goes_on = [1u8];
    while goes_on == [1] {
        std::thread::sleep(Duration::from_millis(50));
        goes_on = [u8::from(std::time::Instant::now() < until)];
        rest.broadcast(&mut goes_on, 0)?;
        talk(&rest, 1)?;
    }
    rest.finalize()
}

/// The leader of a host leaves the job, and a rank of its host waits for a rank of another host, which it reaches only
/// through that leader: it learns at once that it waits in vain.
fn cut_off(all: Group) -> Result<(), Error> {
    let pair = (all.rank() % 2 == 1).then(|| all.group(&[3, 1])).transpose()?;
    all.barrier()?;
    let Some(pair) = pair else {
        // The other leader stays until the ranks of its host have finished.
        if all.rank() == 2 {
            return all.receive(&mut [0u8], 3, 1).map(drop);
        }
        return Ok(());
    };
    let begun = std::time::Instant::now();
    let error = match (parameter("CALL").as_deref(), pair.rank()) {
        (Some("collective"), _) => loop {
            if let Err(error) = pair.barrier() {
                break error;
            }
        },
        (_, 1) => pair.receive(&mut [0u8], 0, 1).map(drop).unwrap_err(),
        _ => loop {
            if let Err(error) = pair.send_receive((&[1u8], 1), (&mut [0u8], 1), 2) {
                break error;
            }
        },
    };
    assert_eq!(error.reason(), Some(shouter::Reason::Aborted), "{error:?}");
    assert!(error.to_string().contains("rank 0 of the job"), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(30), "it waited for its deadline");
    if all.rank() == 3 {
        all.send(&[1u8], 2, 1)?;
    }
    Ok(())
}

/// A rank leaves the job before it has made one of its groups: the members that wait for it there get an error.
fn never_made(all: Group) -> Result<(), Error> {
    all.barrier()?;
    if all.rank() == 1 {
        return Ok(());
    }
    let begun = std::time::Instant::now();
    if parameter("CALL").as_deref() == Some("late") {
        std::thread::sleep(Duration::from_millis(300));
    }
    // Making the group waits for all members.
    let error = all.group(&[2, 1, 0]).map(drop).unwrap_err();
    assert_eq!((error.rank(), error.reason()), (Some(1), Some(shouter::Reason::Aborted)), "{error:?}");
    assert!(begun.elapsed() < Duration::from_secs(30), "it waited for its deadline");
    Ok(())
}

/// Ranks and hosts: one rank on each host, several, all on one.
const PLACES: [(u32, u32); 3] = [(4, 4), (4, 2), (4, 1)];

#[test]
fn messages_of_overlapping_groups_do_not_meet() {
    for (ranks, hosts) in PLACES {
        job!(ranks, hosts, "messages").run().assert_success();
    }
    job!(4, 4, "messages").env("SHOUTER_TRANSPORT", "tcp").run().assert_success();
    job!(4, 2, "messages").args(&["--transport", "kernel"]).run().assert_success();
    job!(4, 2, "messages").args(&["--loss", "2%", "--seed", "7"]).run().assert_success();
    job!(4, 2, "messages").env("SHOUTER_MODE", "dedicated").run().assert_success();
}

#[test]
fn windows_of_overlapping_groups_do_not_meet() {
    for (ranks, hosts) in PLACES {
        job!(ranks, hosts, "windows").run().assert_success();
        job!(ranks, hosts, "windows").with("MEMORY", "shared").run().assert_success();
    }
    job!(4, 2, "windows").args(&["--transport", "kernel"]).run().assert_success();
}

#[test]
fn collectives_and_messages_of_groups_may_be_started_in_every_order() {
    for hosts in [3, 1] {
        job!(3, hosts, "orders").run().assert_success();
    }
}

#[test]
fn errors_name_members_and_the_group_goes_on() {
    let plan = |hosts| job!(3, hosts, "errors").env("SHOUTER_DEADLINE", "4s");
    run_all([plan(3), plan(1)]).iter().for_each(crate::ranks::State::assert_success);
}

#[test]
fn a_member_that_leaves_is_not_waited_for() {
    let plan = |hosts, call| job!(3, hosts, "leave").with("CALL", call);
    let plans = [plan(3, "message"), plan(1, "message"), plan(3, "window"), plan(1, "window")];
    run_all(plans).iter().for_each(crate::ranks::State::assert_success);
}

#[test]
fn what_was_sent_arrives_though_the_sender_has_dropped_the_group() {
    run_all([job!(3, 3, "last_words"), job!(3, 1, "last_words")])
        .iter()
        .for_each(crate::ranks::State::assert_success);
}

#[test]
fn who_leaves_after_rank_0_is_not_taken_for_dead() {
    let plan = |ranks, hosts| job!(ranks, hosts, "go_on").silence_is_found();
    let kernel = plan(4, 2).args(&["--transport", "kernel"]);
    let plans = PLACES.map(|(ranks, hosts)| plan(ranks, hosts)).into_iter().chain([kernel]);
    run_all(plans).iter().for_each(crate::ranks::State::assert_success);
}

#[test]
fn who_is_reached_by_a_leader_that_has_left_is_not_waited_for() {
    for transport in ["auto", "tcp", "kernel"] {
        let plan = |call| job!(4, 2, "cut_off").with("CALL", call).args(&["--transport", transport]);
        for state in run_all([plan("message"), plan("collective")]) {
            state.assert_success();
            // Nor is what was under way to that leader, when the others leave.
            assert!(state.ranks.iter().all(|rank| rank.ended < Some(Duration::from_secs(25))), "{state}");
        }
    }
}

#[test]
fn who_has_left_and_never_made_the_group_is_not_waited_for() {
    let plan = |hosts, call| job!(3, hosts, "never_made").with("CALL", call);
    let plans = [plan(3, "soon"), plan(1, "soon"), plan(3, "late"), plan(1, "late")];
    run_all(plans).iter().for_each(crate::ranks::State::assert_success);
}

#[test]
fn a_rank_that_dies_is_named_by_messages_and_accesses() {
    let plans = PLACES.into_iter().zip(["message", "window", "message"]);
    for state in run_all(plans.map(|((ranks, hosts), call)| job!(ranks, hosts, "die").with("CALL", call))) {
        assert_eq!(state.ranks[2].code, Some(1), "{state}");
        for rank in state.others(2) {
            // Later calls are refused, or find the end themselves.
            assert!(rank.lost_its_group(), "{state}");
            assert!(rank.error().contains("rank 2"), "{state}");
        }
    }
}
