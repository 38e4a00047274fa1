//! Groups of some ranks between real processes: overlapping, started in every order, ended by errors, many at once.

use std::time::{Duration, Instant};

use crate::ranks::{Gates, State, await_gate, job, join, parameter, play, side_by_side, tell};
use shouter::{DType, Error, Group, ReduceOp, TensorSpec};

/// The body of a rank; as a test of its own it does nothing.
#[test]
fn rank_body() {
    play(
        &[
            ("collectives", collectives),
            ("orders", orders),
            ("split", split),
            ("mismatch", mismatch),
            ("die", die),
            ("leave", leave),
            ("twins", twins),
            ("die_in_twin", die_in_twin),
            ("stopped_in_twin", stopped_in_twin),
            ("many", many),
            ("arguments", arguments),
            ("keeps", keeps),
            ("late", late),
        ],
        join,
    );
}

/// Every collective of a group, against its definition.
fn check(group: &Group, salt: u64) -> Result<(), Error> {
    let (ranks, rank) = (u64::from(group.size()), u64::from(group.rank()));
    for count in [1usize, 300, 20_000] {
        let mut data = vec![rank + salt; count];
        group.all_reduce(&mut data, ReduceOp::Sum)?;
        assert_eq!(data, vec![(0..ranks).sum::<u64>() + salt * ranks; count]);
        for root in 0..group.size() {
            let mut data = vec![rank * 7 + salt; count];
            group.broadcast(&mut data, root)?;
            assert_eq!(data, vec![u64::from(root) * 7 + salt; count]);
            let mut data = vec![rank + salt; count];
            group.reduce(&mut data, ReduceOp::Max, root)?;
            assert_eq!(data[count - 1], if group.rank() == root { ranks - 1 + salt } else { rank + salt });
        }
        let mut all = vec![0; count * ranks as usize];
        group.all_gather(&vec![rank ^ salt; count], &mut all)?;
        assert!(
            (0..).zip(all.chunks(count)).all(|(from, block)| block.iter().all(|&found| found == from ^ salt))
        );
        let input: Vec<u64> = (0..ranks).flat_map(|to| vec![rank * 100 + to; count]).collect();
        group.all_to_all(&input, &mut all)?;
        assert!(
            (0..)
                .zip(all.chunks(count))
                .all(|(from, block)| block.iter().all(|&found| found == from * 100 + rank))
        );
        let mut mine = vec![0; count];
        group.reduce_scatter(&input, &mut mine, ReduceOp::Sum)?;
        assert_eq!(mine, vec![(0..ranks).map(|from| from * 100 + rank).sum::<u64>(); count]);
    }
    group.barrier()
}

/// All groups of two and three of four ranks, and the same ranks in another order; all at once.
fn collectives(all: &Group) -> Result<(), Error> {
    let mut groups = vec![];
    for ranks in [&[0u32, 1][..], &[2, 3], &[3, 1], &[0, 1, 2], &[3, 2, 0], &[1, 0], &[0, 1, 2, 3], &[2]] {
        let number = ranks.iter().position(|rank| *rank == all.rank());
        let group = number.map(|_| all.group(ranks)).transpose()?;
        if let (Some(group), Some(number)) = (&group, number) {
            assert_eq!((group.rank(), group.size()), (number as u32, ranks.len() as u32));
            assert_eq!(
                (0..group.size()).map(|rank| group.job_rank(rank).unwrap()).collect::<Vec<_>>(),
                ranks
            );
        }
        groups.push(group);
    }
    for (group, salt) in groups.iter().zip(1..) {
        group.iter().try_for_each(|group| check(group, salt))?;
        check(all, salt)?;
    }
    let twin = all.duplicate()?;
    check(&twin, 5)?;
    // A group of a group.
    if let Some(of_three) =
        groups.iter().flatten().find(|group| group.size() == 3 && group.job_rank(0) == Some(3))
    {
        let last = of_three.duplicate()?;
        check(&last, 9)?;
        // Those numbered 0 and 2 there: ranks 3 and 0 of the job.
        if of_three.rank() != 1 {
            let pair = of_three.group(&[2, 0])?;
            assert_eq!([pair.job_rank(0), pair.job_rank(1)], [Some(0), Some(3)]);
            check(&pair, 11)?;
        }
    }
    Ok(())
}

/// Three groups of which any two share ranks; each rank starts their operations in its own order, all orders on all
/// ranks.
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
        let lent = order.map(|at| {
            let (group, id) = &groups[at];
            let data = vec![(round + at * 1000) as u64 + u64::from(group.rank()); COUNT];
            (at, group.lend(*id, data))
        });
        // The waits are in yet another order.
        for (at, lent) in lent.into_iter().rev() {
            assert_eq!(lent?.wait()?, vec![3 * (round + at * 1000) as u64 + 3; COUNT], "round {round}");
        }
    }
    Ok(())
}

/// Uneven colors, keys that reverse the order, and a rank in no group.
fn split(all: &Group) -> Result<(), Error> {
    let rank = all.rank();
    // 0 | 1, 2, 3 | no color for the last one.
    let color = match rank {
        0 => Some(u32::MAX),
        rank if rank + 1 == all.size() => None,
        _ => Some(0),
    };
    let group = all.split(color, -i64::from(rank))?;
    let expected: &[u32] = match color {
        Some(u32::MAX) => &[0],
        Some(_) => &[3, 2, 1],
        None => &[],
    };
    let found = group
        .as_ref()
        .map_or(vec![], |group| (0..group.size()).filter_map(|rank| group.job_rank(rank)).collect());
    assert_eq!(found, expected);
    if let Some(group) = &group {
        check(group, 3)?;
        // Again, in halves.
        let again = group.split(Some(group.rank() / 2), 0)?.unwrap();
        check(&again, 4)?;
        again.finalize()?;
    }
    let same = all.split(Some(1), 0)?.unwrap();
    assert_eq!((same.rank(), same.size()), (rank, all.size()));
    check(&same, 6)
}

/// One member makes another call: the group ends on its members, with both views; other groups go on.
fn mismatch(all: &Group) -> Result<(), Error> {
    let (ours, others) = ([3u32, 1, 0], [1u32, 3, 2]);
    let group = ours.contains(&all.rank()).then(|| all.group(&ours)).transpose()?;
    let other = others.contains(&all.rank()).then(|| all.group(&others)).transpose()?;
    if let Some(group) = &group {
        check(group, 1)?;
        let mut data = vec![1f32; if group.rank() == 1 { 999 } else { 1000 }];
        let error = group.all_reduce(&mut data, ReduceOp::Sum).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Mismatch { rank: Some(1), .. }), "{error:?}");
        assert!(["999 x", "1000 x"].iter().all(|view| text.contains(view)), "{text}");
        // Rank 1 of the group is rank 1 of the job: nothing to translate.
        assert!(!text.contains("of the job"), "{text}");
        assert!(matches!(group.barrier().unwrap_err(), Error::Closed { .. } | Error::Mismatch { .. }));
        // A new one of the same ranks works.
        check(&all.group(&ours)?, 8)?;
    }
    if let Some(other) = &other {
        check(other, 2)?;
    }
    check(all, 3)?;
    // The named rank has another number in the job.
    if let Some(other) = &other {
        let result = match other.rank() {
            1 => other.barrier(),
            _ => other.broadcast(&mut vec![0u8; 5000], 0),
        };
        // The root may already have returned.
        let text = result.and_then(|()| other.barrier()).unwrap_err().to_string();
        assert!(
            text.contains("rank 1 of this group is rank 3 of the job")
                || text.contains("rank 0 of this group is rank 1 of the job"),
            "{text}"
        );
    }
    check(all, 4)
}

/// A rank dies while the members of its group are in an operation: all of them name it, and so does the group of all.
fn die(all: &Group) -> Result<(), Error> {
    let members = [2u32, 0, 1];
    let group = members.contains(&all.rank()).then(|| all.group(&members)).transpose()?;
    all.barrier()?;
    if all.rank() == 2 {
        std::process::exit(1);
    }
    let Some(group) = group else { return all.barrier() };
    let error = group.all_reduce(&mut vec![1u8; 3000], ReduceOp::Sum).unwrap_err();
    // The rank may have known of it before the call.
    let ended = matches!(error, Error::PeerFailed { .. } | Error::Closed { .. });
    assert!(ended && error.rank() == Some(0), "{error:?}");
    assert!(error.to_string().contains("rank 0 of this group is rank 2 of the job"), "{error}");
    all.barrier()
}

/// Groups of all ranks, more of them than have lanes: each has its own order, deadline, and end. When they have gone, others take their places.
fn twins(all: &Group) -> Result<(), Error> {
    for round in 0..3 {
        let twins: Vec<Group> = (0..6).map(|_| all.duplicate()).collect::<Result<_, _>>()?;
        twins.iter().zip(round..).try_for_each(|(twin, salt)| check(twin, salt))?;
        // At the same time, each rank in another order.
        let spec = TensorSpec::all_reduce("only", DType::U64, 50_000, ReduceOp::Sum);
        let ids = twins
            .iter()
            .map(|twin| twin.register(std::slice::from_ref(&spec)))
            .collect::<Result<Vec<_>, _>>()?;
        let lent: Vec<_> = (0..twins.len())
            .map(|at| (at + all.rank() as usize) % twins.len())
            .map(|at| (at, twins[at].lend(ids[at][0], vec![at as u64 + round; 50_000])))
            .collect();
        for (at, lent) in lent {
            assert_eq!(lent?.wait()?, vec![u64::from(all.size()) * (at as u64 + round); 50_000]);
        }
        // One rank makes another call: that group ends, and no other.
        let mut data = vec![1f32; if all.rank() == 1 { 99_999 } else { 100_000 }];
        let error = twins[0].all_reduce(&mut data, ReduceOp::Sum).unwrap_err();
        assert!(matches!(error, Error::Mismatch { rank: Some(1), .. }), "{error:?}");
        // One rank does not come: the others name it, and it hears of it.
        let members: Vec<u32> = (0..all.size()).collect();
        let hasty = all.group_within(&members, Duration::from_secs(1))?;
        check(&hasty, round)?;
        if all.rank() == 1 {
            await_gate(&format!("late {round}"));
        }
        let error = hasty.all_reduce(&mut vec![1u8; 100_000], ReduceOp::Sum).unwrap_err();
        if all.rank() == 1 {
            assert!(matches!(error.code(), 6 | 8) && error.rank() == Some(1), "{error:?}");
        } else {
            assert!(matches!(error, Error::Deadline { .. }) && error.missing() == [1], "{error:?}");
            tell(format_args!("round {round} is late"));
        }
        twins[1..].iter().try_for_each(|twin| check(twin, round))?;
        all.barrier()?;
    }
    Ok(())
}

/// A rank dies while the others are in an operation of a duplicate of the group of all.
fn die_in_twin(all: &Group) -> Result<(), Error> {
    let twin = all.duplicate()?;
    check(&twin, 1)?;
    if all.rank() == 2 {
        std::process::exit(1);
    }
    let error = twin.all_reduce(&mut vec![1u8; 1 << 20], ReduceOp::Sum).unwrap_err();
    let ended = matches!(error, Error::PeerFailed { .. } | Error::Closed { .. });
    assert!(ended && error.rank() == Some(2), "{error:?}");
    all.barrier()
}

/// A rank is stopped beyond the others' deadline, which leave the group meanwhile: it hears that it was itself late.
fn stopped_in_twin(all: &Group) -> Result<(), Error> {
    let members: Vec<u32> = (0..all.size()).collect();
    let hasty = all.group_within(&members, Duration::from_secs(1))?;
    check(&hasty, 1)?;
    tell("begun");
    let mut sum = vec![1u8; 100_000];
    let error = loop {
        if let Err(error) = hasty.all_reduce(&mut sum, ReduceOp::Max) {
            break error;
        }
    };
    let missing = error.missing().iter().copied();
    assert_eq!(error.rank().into_iter().chain(missing).collect::<Vec<_>>(), [1], "{error:?}");
    drop(hasty);
    tell("left");
    check(&all.duplicate()?, 2)
}

/// A member drops a group, and the others call once more: they name it, and the group of all goes on.
fn leave(all: &Group) -> Result<(), Error> {
    let group = all.group(&[1, 0, 2])?;
    let met = group.barrier();
    if group.rank() == 2 {
        met?;
        drop(group);
    } else {
        // A faster member may have ended the group before this one has completed the first barrier, or between both.
        let error = met.and_then(|()| group.barrier()).unwrap_err();
        let aborted = shouter::Reason::Aborted;
        let reason = match &error {
            Error::PeerFailed { reason, .. } => Some(reason),
            Error::Closed { reason, .. } => reason.as_ref(),
            _ => None,
        };
        assert!(error.rank() == Some(2) && reason == Some(&aborted), "{error:?}");
    }
    check(all, 1)
}

/// Groups one after another, and many at once; reports the time of one.
fn many(all: &Group) -> Result<(), Error> {
    let count: u32 = parameter("COUNT").unwrap().parse().unwrap();
    let pair = [0, 1];
    let mut took = vec![];
    for round in 0..count {
        if pair.contains(&all.rank()) {
            all.group(&pair)?.barrier()?;
            // Both arrive at the same time.
            let warm = all.group(&pair)?;
            warm.barrier()?;
            let begin = Instant::now();
            let group = all.group(&pair)?;
            took.push(begin.elapsed());
            let mut sum = [round];
            group.all_reduce(&mut sum, ReduceOp::Sum)?;
            assert_eq!(sum, [2 * round]);
        }
    }
    took.sort();
    if let Some(median) = took.get(took.len() / 2) {
        tell(format_args!("median {} ns", median.as_nanos()));
    }
    let groups: Vec<Group> = (0..32).map(|_| all.duplicate()).collect::<Result<_, _>>()?;
    for (group, salt) in groups.iter().zip(0..) {
        let mut sum = [salt];
        group.all_reduce(&mut sum, ReduceOp::Sum)?;
        assert_eq!(sum, [salt * all.size()]);
    }
    all.barrier()
}

/// Invalid lists of members are refused before anything is sent.
fn arguments(all: &Group) -> Result<(), Error> {
    let refused = |ranks: &[u32], with: &str| {
        let error = all.group(ranks).unwrap_err();
        assert!(matches!(&error, Error::Argument(text) if text.contains(with)), "{error}");
    };
    let own = all.rank();
    refused(&[own, all.size()], "no rank of this group");
    refused(&[own, own], "twice");
    refused(&[], "not among");
    refused(&[(own + 1) % all.size()], "not among");
    check(all, 1)
}

/// A member does not make the group: the others name it, and it learns that they have given up. All make the next
/// attempt together.
fn late(all: &Group) -> Result<(), Error> {
    let members = [2u32, 1, 0];
    if all.rank() != 1 {
        let error = all.group(&members).unwrap_err();
        // The other one learns of the first one's deadline.
        let named = error.rank().or(error.missing().first().copied());
        assert!(named == Some(1) && [6, 7].contains(&error.code()), "{error:?}");
        tell("given up");
    } else {
        await_gate("go");
        let error = all.group(&members).unwrap_err();
        assert_eq!(error.reason(), Some(shouter::Reason::Aborted), "{error:?}");
        assert!(error.rank() == Some(0) || error.rank() == Some(2), "{error:?}");
    }
    check(&all.group(&members)?, 1)?;
    check(all, 2)
}

/// A group of some ranks outlives the group of all.
fn keeps(all: &Group) -> Result<(), Error> {
    let group = all.duplicate()?;
    let second = group.duplicate()?;
    group.finalize()?;
    check(&second, 2)?;
    second.finalize()
}

/// Ranks and hosts: one rank on each host, several, all on one.
const PLACES: [(u32, u32); 3] = [(4, 4), (4, 2), (4, 1)];

#[test]
fn every_collective_of_overlapping_groups_is_exact() {
    for (ranks, hosts) in PLACES {
        job!(ranks, hosts, "collectives").run().assert_success();
    }
}

#[test]
fn other_transports_carry_groups_as_well() {
    for (ranks, hosts) in [(4, 4), (4, 2)] {
        job!(ranks, hosts, "collectives").env("SHOUTER_TRANSPORT", "tcp").run().assert_success();
        job!(ranks, hosts, "collectives").args(&["--transport", "kernel"]).run().assert_success();
        job!(ranks, hosts, "collectives").args(&["--loss", "2%", "--seed", "7"]).run().assert_success();
    }
    job!(4, 4, "collectives").env("SHOUTER_MODE", "dedicated").run().assert_success();
}

#[test]
fn overlapping_groups_may_be_started_in_every_order() {
    for hosts in [3, 1] {
        job!(3, hosts, "orders").run().assert_success();
    }
}

#[test]
fn colors_and_keys_make_the_groups() {
    for hosts in [5, 1] {
        job!(5, hosts, "split").run().assert_success();
    }
}

#[test]
fn a_mismatch_ends_its_group_and_no_other() {
    for (ranks, hosts) in PLACES {
        job!(ranks, hosts, "mismatch").run().assert_success();
    }
}

/// Rank 2 has died, and the others have lost their group to it.
fn assert_others_name_rank_2(state: &State) {
    assert_eq!(state.ranks[2].code, Some(1), "{state}");
    for rank in state.others(2) {
        // Later calls are refused, or find the end themselves.
        assert!(rank.lost_its_group(), "{state}");
        assert!(rank.error().contains("rank 2"), "{state}");
    }
}

#[test]
fn a_rank_that_dies_is_named_by_its_groups() {
    for (ranks, hosts) in PLACES {
        let state = job!(ranks, hosts, "die").run();
        assert_others_name_rank_2(&state);
    }
}

#[test]
fn a_member_that_leaves_is_named_by_who_goes_on() {
    for hosts in [3, 1] {
        job!(3, hosts, "leave").run().assert_success();
    }
}

#[test]
fn duplicates_of_the_group_of_all_are_apart_and_take_each_others_places() {
    side_by_side([3, 1], |hosts| {
        let gates = Gates::new();
        let job = job!(3, hosts, "twins").with("GATES", &gates).start();
        for round in 0..3 {
            let line = format!("round {round} is late");
            job.until("the others are late", crate::ranks::LIMIT, |state| {
                state.others(1).all(|rank| rank.told.contains(&line))
            });
            gates.open(&format!("late {round}"));
        }
        job.finish().assert_success();
    });
}

#[test]
fn a_rank_that_dies_is_named_by_a_duplicate_of_the_group_of_all() {
    for hosts in [3, 1] {
        let state = job!(3, hosts, "die_in_twin").run();
        assert_others_name_rank_2(&state);
    }
}

#[test]
fn who_was_stopped_hears_why_the_others_have_left_a_duplicate_of_the_group_of_all() {
    let job = job!(3, 1, "stopped_in_twin").start();
    job.until("all are in operations", crate::ranks::LIMIT, |state| state.all_told("begun"));
    job.signal(1, "STOP");
    let line = "left".to_string();
    job.until("the others have left", crate::ranks::LIMIT, |state| {
        state.others(1).all(|rank| rank.told.contains(&line))
    });
    job.signal(1, "CONT");
    job.finish().assert_success();
}

#[test]
fn a_thousand_groups_one_after_another_and_32_at_once() {
    for hosts in [3, 1] {
        let state = job!(3, hosts, "many").with("COUNT", 334).run();
        state.assert_success();
        let took =
            state.ranks[0].told.iter().find_map(|line| line.strip_prefix("median ")?.strip_suffix(" ns"));
        let took = Duration::from_nanos(took.unwrap().parse().unwrap());
        println!("a group of two of three ranks on {hosts} hosts took {took:?}, the median");
    }
}

#[test]
fn what_is_no_group_is_refused() {
    job!(3, 3, "arguments").run().assert_success();
}

#[test]
fn who_does_not_come_is_named_and_hears_of_it() {
    side_by_side([3, 1], |hosts| {
        let gates = Gates::new();
        // The rank arrives in time for the next attempt.
        let job = job!(3, hosts, "late").env("SHOUTER_DEADLINE", "2s").with("GATES", &gates).start();
        job.until("the others have given up", crate::ranks::LIMIT, |state| {
            state.others(1).all(|rank| rank.told.iter().any(|line| line == "given up"))
        });
        gates.open("go");
        job.finish().assert_success();
    });
}

#[test]
fn a_group_outlives_the_one_that_it_was_made_of() {
    for hosts in [2, 1] {
        job!(2, hosts, "keeps").run().assert_success();
    }
}
