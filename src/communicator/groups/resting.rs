//! Groups in which nothing is under way: polls do not visit them, and all that concerns one wakes it.
#![allow(unsafe_code)]

use std::time::{Duration, Instant};

use super::super::Group;
use super::super::tests::{each, in_place, ranks_keyed, ranks_on, ranks_with};
use crate::error::Error;
use crate::runtime::{Clock, Poller};
use crate::{DType, ReduceOp, TensorSpec, Window};

const PATIENCE: Duration = Duration::from_secs(20);

/// How often polls of this rank have visited the group.
fn visits(group: &Group) -> u64 {
    let id = group.outcomes.group.unwrap();
    group.drive.with(move |engine| engine.visits_of_group(id)).unwrap()
}

/// Polls all ranks until for some milliseconds, longer than reports are put off, none has had a group to visit.
fn rest(ranks: &[Group]) {
    let until = Instant::now() + PATIENCE;
    let mut visited = Instant::now();
    while visited.elapsed() < Duration::from_millis(5) {
        assert!(Instant::now() < until, "a group is visited for ever");
        for rank in ranks {
            let polled = |engine: &mut crate::engine::Engine| {
                engine.poll(Clock.now());
                engine.visits_no_group()
            };
            if !rank.drive.with(polled).unwrap() {
                visited = Instant::now();
            }
        }
        std::thread::yield_now();
    }
}

/// Groups of all ranks, by group and rank, in which operations and messages have ended.
fn used(all: &[Group], count: usize) -> Vec<Vec<Group>> {
    let make = |rank: &Group| {
        let group = rank.duplicate().unwrap();
        if group.rank() == 0 {
            group.send(&[7u8; 4], 1, 3).unwrap();
        } else {
            group.receive(&mut [0u8; 4], 0, 3).unwrap();
        }
        group
    };
    (0..count).map(|_| each(all, make)).collect()
}

#[test]
fn polls_do_not_visit_groups_in_which_nothing_is_under_way() {
    for hosts in [1, 2] {
        let all = ranks_on(hosts, 2);
        let groups = used(&all, 40);
        rest(&all);
        let before = |at: usize| [visits(&groups[at][0]), visits(&groups[at][1])];
        let counts: Vec<_> = (0..groups.len()).map(before).collect();
        let sums = each(&all, |rank| {
            let mut data = vec![1f32; 50_000];
            for _ in 0..50 {
                rank.all_reduce(&mut data[..1], crate::ReduceOp::Max).unwrap();
                rank.all_reduce(&mut data, crate::ReduceOp::Max).unwrap();
            }
            // One of them, too.
            let mut one = [1f32; 5000];
            groups[17][rank.rank() as usize].all_reduce(&mut one, crate::ReduceOp::Sum).unwrap();
            one[4999]
        });
        assert_eq!(sums, [2.0; 2]);
        rest(&all);
        for (at, counted) in counts.into_iter().enumerate() {
            let now = before(at);
            match at {
                17 => assert!(now[0] > counted[0] && now[1] > counted[1], "{counted:?}, then {now:?}"),
                _ => assert_eq!(now, counted, "group {at} on {hosts} hosts"),
            }
        }
    }
}

#[test]
fn what_is_started_wakes_its_group() {
    for mode in ["", "dedicated"] {
        let all = ranks_with(1, 2, mode);
        let groups = used(&all, 6);
        for (group, round) in groups.iter().zip(0..).cycle().take(60) {
            rest(&all);
            let mut data = [[1f32; 3], [2.0; 3]];
            let [first, second] = &mut data;
            // SAFETY: left alone until both have ended.
            let works = unsafe {
                [group[0].start(&in_place(first)).unwrap(), group[1].start(&in_place(second)).unwrap()]
            };
            for work in works {
                work.wait(Some(PATIENCE)).unwrap();
            }
            assert_eq!(data, [[3f32; 3]; 2], "group {round}, mode {mode:?}");
        }
    }
}

/// A part of a bucket that is held is nothing that a poll could do anything for before its deadline.
#[test]
fn the_deadline_of_a_part_of_a_bucket_wakes_a_group_that_rests() {
    for mode in ["caller", "dedicated"] {
        let all = ranks_keyed(1, 2, &[("fuse_below", "4096"), ("mode", mode)]);
        let within = Duration::from_secs(3);
        let group = each(&all, |rank| rank.group_within(&[0, 1], within).unwrap());
        let specs =
            ["held", "missing"].map(|name| TensorSpec::all_reduce(name, DType::F32, 4, ReduceOp::Sum));
        let ids = each(&group, |rank| rank.register(&specs).unwrap());
        let mut data = [[1f32; 4]; 2];
        rest(&all);
        let pushed = Instant::now();
        // SAFETY: left alone until both have ended.
        let mut push =
            |at: usize| unsafe { group[at].push(ids[at][0], data[at].as_mut_ptr().cast()) }.unwrap();
        let works = [0, 1].map(&mut push);
        rest(&all);
        assert!(works.iter().all(|work| work.test().is_none()));
        for work in works {
            let error = loop {
                if let Some(ended) = work.test() {
                    break ended.unwrap_err();
                }
                assert!(pushed.elapsed() < PATIENCE, "the deadline has passed");
                std::thread::yield_now();
            };
            assert!(matches!(&error, Error::Deadline { .. }), "{error:?}");
            assert!(error.to_string().contains("missing"), "{error}");
        }
        assert!(pushed.elapsed() >= within, "{:?}", pushed.elapsed());
        rest(&all);
        // The bucket goes on.
        let sums = each(&group, |rank| {
            let mut data = [1f32; 4];
            // SAFETY: left alone until it has ended.
            let work = unsafe { rank.push(ids[0][0], data.as_mut_ptr().cast()) }.unwrap();
            work.wait(Some(PATIENCE)).unwrap();
            data[3]
        });
        assert_eq!(sums, [2.0; 2]);
    }
}

/// An access comes with a message where ranks share no memory, and its owner makes no call for it.
#[test]
fn accesses_to_windows_wake_the_groups_of_both_ends() {
    for (hosts, mode) in [(1, ""), (2, ""), (2, "dedicated")] {
        let all = ranks_with(hosts, 2, mode);
        let groups = used(&all, 5);
        let windows: Vec<Window<'_, u32>> = std::thread::scope(|scope| {
            let make = |rank| scope.spawn(move || Group::window(rank, vec![0u32; 8]).unwrap());
            let made: Vec<_> = groups[3].iter().map(make).collect();
            made.into_iter().map(|window| window.join().unwrap()).collect()
        });
        rest(&all);
        let counted = |at: usize| [visits(&groups[at][0]), visits(&groups[at][1])];
        let (before, beside) = (counted(3), counted(2));
        for round in 1..20 {
            let mut back = [0; 8];
            windows[0].put(&[round; 8], 1, 0).unwrap();
            windows[0].flush(Some(1)).unwrap();
            rest(&all);
            windows[0].get(&mut back, 1, 0).unwrap();
            assert_eq!(back, [round; 8]);
            rest(&all);
        }
        let now = counted(3);
        assert!(now[0] > before[0] && now[1] > before[1], "{before:?}, then {now:?}");
        assert_eq!(counted(2), beside, "on {hosts} hosts");
        std::thread::scope(|scope| {
            windows.into_iter().for_each(|window| drop(scope.spawn(move || window.free().unwrap())));
        });
    }
}

/// A message that no receive takes: its send has ended, and the group rests until its deadline.
#[test]
fn a_deadline_wakes_a_group_that_rests() {
    let all = ranks_on(1, 2);
    let within = Duration::from_secs(1);
    let group = each(&all, |rank| rank.group_within(&[0, 1], within).unwrap());
    let sent = Instant::now();
    group[0].send(&[7u8; 4], 1, 3).unwrap();
    rest(&all);
    let deadline = all[0].drive.with(|engine| engine.next_deadline_of_groups()).unwrap();
    assert!(
        deadline.is_some_and(|at| at > Clock.now() && at <= Clock.now() + within),
        "a thread that sleeps wakes then"
    );
    let before = visits(&group[0]);
    while visits(&group[0]) == before {
        assert!(sent.elapsed() < PATIENCE, "the deadline has passed");
        all[0].drive.with(|engine| engine.poll(Clock.now())).unwrap();
        std::thread::yield_now();
    }
    assert!(sent.elapsed() >= within / 2, "it had nothing to do before");
    rest(&all);
}

#[test]
fn the_end_of_a_group_that_rests_is_noticed() {
    let all = ranks_on(1, 2);
    let mut groups = used(&all, 5);
    rest(&all);
    let group = groups.remove(2);
    let [first, second] = <[Group; 2]>::try_from(group).ok().unwrap();
    // Dropped with an operation under way: the other member is notified although it has begun nothing.
    let mut data = [1f32; 3];
    // SAFETY: left alone until it has ended.
    let work = unsafe { second.start(&in_place(&mut data)) }.unwrap();
    let id = first.outcomes.group;
    drop(second);
    assert!(work.wait(Some(PATIENCE)).is_err());
    let until = Instant::now() + PATIENCE;
    let ended = move |engine: &mut crate::engine::Engine| {
        engine.poll(Clock.now());
        engine.aborted_in(id).is_some()
    };
    while !all[0].drive.with(ended).unwrap() {
        assert!(Instant::now() < until, "this member was not notified");
        std::thread::yield_now();
    }
    let error = first.all_reduce(&mut [1f32; 3], crate::ReduceOp::Sum).unwrap_err();
    assert_eq!(error.rank(), Some(1), "{error}");
    drop(first);
    rest(&all);
    let sums = each(&groups[3], |rank| {
        let mut one = [1f32];
        rank.all_reduce(&mut one, crate::ReduceOp::Sum).unwrap();
        one
    });
    assert_eq!(sums, [[2f32]; 2], "the others go on");
}
