//! Small operations whose ranks are some operations apart, with ranks that are threads of this process.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, AtomicUsize};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use shouter_reducer::dtype::DType;

use super::*;
use crate::communicator::CollectiveCall;
use crate::communicator::tests::{each, ranks};
use crate::engine::divergence::VIEWS;

/// The rooted collectives.
const ROOTED: [Collective; 4] =
    [Collective::Broadcast, Collective::Reduce, Collective::Gather, Collective::Scatter];

/// A call of `count` elements, of the tensor or of a block.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Item {
    collective: Collective,
    dtype: DType,
    count: usize,
    root: u32,
}

impl Item {
    fn new(collective: Collective, count: usize, root: u32) -> Self {
        Self { collective, dtype: DType::U32, count, root }
    }

    /// The input of a rank in its call number `at`: so long that every collective finds its own.
    fn input(&self, ranks: u32, rank: u32, at: usize) -> Vec<u32> {
        (0..self.count * ranks as usize).map(|index| value(rank, at, index)).collect()
    }

    /// The result of a rank, where all have called this in their call number `at`; none where it only gives.
    fn due(&self, ranks: u32, rank: u32, at: usize) -> Option<Vec<u32>> {
        let (count, is_root) = (self.count, rank == self.root);
        let own = rank as usize * count;
        let of = |from: u32, start: usize| (start..start + count).map(move |index| value(from, at, index));
        let sum = |over: u32, start: usize| {
            (start..start + count).map(|index| (0..over).map(|from| value(from, at, index)).sum()).collect()
        };
        match self.collective {
            Collective::AllReduce => Some(sum(ranks, 0)),
            Collective::Reduce => is_root.then(|| sum(ranks, 0)),
            Collective::Broadcast => Some(of(self.root, 0).collect()),
            Collective::AllGather => Some((0..ranks).flat_map(|from| of(from, 0)).collect()),
            Collective::Gather => is_root.then(|| (0..ranks).flat_map(|from| of(from, 0)).collect()),
            Collective::Scatter => Some(of(self.root, own).collect()),
            Collective::ReduceScatter => Some(sum(ranks, own)),
            Collective::AllToAll => Some((0..ranks).flat_map(|from| of(from, own)).collect()),
            Collective::Scan => Some(sum(rank + 1, 0)),
            Collective::ExScan => (rank > 0).then(|| sum(rank, 0)),
            _ => None,
        }
    }

    /// Whether this rank only gives.
    fn only_gives(&self, rank: u32) -> bool {
        let is_root = rank == self.root;
        match self.collective {
            // A scatter's root takes its own block.
            Collective::Broadcast | Collective::Scatter => is_root,
            Collective::Reduce | Collective::Gather => !is_root,
            _ => false,
        }
    }

    /// Calls it, and returns the output.
    fn call(&self, group: &Group, at: usize) -> Result<Vec<u32>, Error> {
        let (ranks, rank) = (group.size(), group.rank());
        let input = self.input(ranks, rank, at);
        let mut output = match self.collective {
            // What a root broadcasts lies in its output.
            Collective::Broadcast if rank == self.root => input.clone(),
            _ => vec![u32::MAX; input.len()],
        };
        let call = CollectiveCall {
            collective: self.collective,
            input: input.as_ptr().cast(),
            output: output.as_mut_ptr().cast(),
            count: self.count,
            dtype: self.dtype,
            op: ReduceOp::Sum,
            root: self.root,
        };
        // SAFETY: both are as long as the collective can need, and this call's alone.
        unsafe { group.run_collective(&call) }?;
        Ok(output)
    }

    /// Calls it as all ranks do, and checks the result.
    fn check(&self, group: &Group, at: usize) -> Result<(), Error> {
        let (ranks, rank) = (group.size(), group.rank());
        let output = self.call(group, at)?;
        if let Some(due) = self.due(ranks, rank, at) {
            assert_eq!(output[..due.len()], due, "{self:?}, call {at} of rank {rank} of {ranks}");
        }
        Ok(())
    }
}

fn value(rank: u32, at: usize, index: usize) -> u32 {
    (at as u32 * 64 + rank) * 1024 + index as u32 % 1024
}

/// Whether the error names what two ranks have called.
fn names(error: &Error, words: [&str; 2]) -> bool {
    matches!(error, Error::Mismatch { .. }) && words.iter().all(|word| error.to_string().contains(word))
}

/// The ranks that only give are ahead of the others by as many operations as they may, and go on when those come.
#[test]
fn a_rank_that_only_gives_returns_at_once_and_waits_for_slow_ones_later() {
    for (size, collective) in [(2, Collective::Gather), (3, Collective::Reduce), (4, Collective::Broadcast)] {
        let group = ranks(size);
        let given: Vec<_> = (0..size).map(|_| AtomicU64::new(0)).collect();
        let item = Item::new(collective, 3, size - 1);
        each(&group, |group| {
            let rank = group.rank();
            let is_slow = !item.only_gives(rank);
            for at in 0..20 * LEAD as usize {
                let givers =
                    || (0..size).filter(|rank| item.only_gives(*rank)).map(|rank| &given[rank as usize]);
                if is_slow {
                    // They come so far by themselves, and no further.
                    let room = (at as u64 + LEAD).min(20 * LEAD);
                    while givers().any(|given| given.load(Ordering::Acquire) < room) {
                        std::thread::yield_now();
                    }
                    assert!(
                        givers().all(|given| given.load(Ordering::Acquire) == room),
                        "{item:?} of {size}"
                    );
                }
                item.check(group, at).unwrap();
                given[rank as usize].fetch_add(1, Ordering::Release);
            }
            group.barrier().unwrap();
        });
    }
}

/// A scan needs the ranks before one's own: the first returns at once, and the second when the first has come.
#[test]
fn a_rank_of_a_scan_waits_for_those_before_it_only() {
    for collective in [Collective::Scan, Collective::ExScan] {
        let (group, called) = (ranks(3), AtomicU64::new(0));
        let item = Item::new(collective, 5, 0);
        each(&group, |group| {
            if group.rank() == 2 {
                while called.load(Ordering::Acquire) < 2 * LEAD {
                    std::thread::yield_now();
                }
            }
            for at in 0..LEAD as usize {
                item.check(group, at).unwrap();
                called.fetch_add(1, Ordering::AcqRel);
            }
            group.barrier().unwrap();
        });
    }
}

/// Operations of all kinds, small and large, called and started, whose ranks come at any time.
#[test]
fn ten_thousand_operations_are_exact_whatever_the_delays_of_ranks() {
    let all = [
        Collective::AllReduce,
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::AllToAll,
        Collective::Scan,
        Collective::ExScan,
    ];
    for size in 2..=4 {
        let group = ranks(size);
        each(&group, |group| {
            let (mut common, mut own) =
                (SmallRng::seed_from_u64(size.into()), SmallRng::seed_from_u64(group.rank().into()));
            for at in 0..10_000 / 3 + 1 {
                // Most are rooted, and have the same root some times, so that ranks run ahead.
                let rooted = common.random_ratio(4, 5);
                let collective = match rooted {
                    true => ROOTED[common.random_range(0..ROOTED.len())],
                    false => all[common.random_range(0..all.len())],
                };
                let count = match common.random_range(0..20) {
                    0 => 3000,
                    1..6 => common.random_range(11..200),
                    _ => common.random_range(0..10),
                };
                let item =
                    Item::new(collective, count, (at as u32 / 24 + common.random_range(0..8) / 7) % size);
                let (is_v, is_barrier) = (common.random_ratio(1, 12), common.random_ratio(1, 50));
                for _ in 0..if own.random_ratio(1, 12) { own.random_range(0..200) } else { 0 } {
                    std::thread::yield_now();
                }
                item.check(group, at).unwrap();
                if is_v {
                    blocks(group, at, item.root);
                }
                if is_barrier {
                    group.barrier().unwrap();
                }
            }
            group.barrier().unwrap();
        });
    }
}

/// A gather and a scatter of blocks that differ, one of them larger than a cell now and then.
fn blocks(group: &Group, at: usize, root: u32) {
    let (size, rank) = (group.size(), group.rank());
    let long = if at.is_multiple_of(7) { 2000 } else { 2 };
    let counts: Vec<usize> = (0..size as usize).map(|rank| (rank + at) % 3 * long).collect();
    let of = |rank: u32| (0..counts[rank as usize]).map(move |index| value(rank, at, index));
    let all: Vec<u32> = (0..size).flat_map(of).collect();
    let mine: Vec<u32> = of(rank).collect();
    let is_root = rank == root;
    let mut gathered = vec![0; if is_root { all.len() } else { 0 }];
    group.gather_v(&mine, &mut gathered, &counts, root).unwrap();
    assert!(!is_root || gathered == all);
    let mut scattered = vec![0; mine.len()];
    group.scatter_v(&all, &counts, &mut scattered, root).unwrap();
    assert_eq!(scattered, mine);
}

/// A way in which a rank differs from the others.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Collective,
    Root,
    DType,
    Count,
    Skip,
    Repeat,
}

/// A rank calls something else than the others, which may have returned before: every rank gets both views, from this call or from one of
/// the next ones, and no call that does not fail has a wrong result.
#[test]
fn every_rank_is_told_both_views_of_a_rooted_operation_whoever_differs() {
    let ways = [Way::Collective, Way::Root, Way::DType, Way::Count, Way::Skip, Way::Repeat];
    let mut cases = vec![];
    for size in 2..=4u32 {
        for culprit in 0..size {
            for (way, collective) in
                ways.into_iter().flat_map(|way| ROOTED.map(|collective| (way, collective)))
            {
                cases.extend((0..size).map(|root| (size, culprit, way, collective, root)));
            }
        }
    }
    // Ranks that differ wait for each other's views most of the time.
    let next = AtomicUsize::new(0);
    let play = || {
        while let Some(&(size, culprit, way, collective, root)) =
            cases.get(next.fetch_add(1, Ordering::Relaxed))
        {
            differ(size, culprit, way, collective, root);
        }
    };
    std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(play))));
}

fn differ(size: u32, culprit: u32, way: Way, collective: Collective, root: u32) {
    let what = format!("{way:?} of a {collective} from {root} by rank {culprit} of {size}");
    // No two that follow each other are the same.
    let mut common: Vec<_> = (1..5).map(|count| Item::new(collective, count, root)).collect();
    common.extend((5..8).map(|count| Item::new(Collective::Broadcast, count, count as u32 % size)));
    let mut odd = common.clone();
    match way {
        Way::Collective => {
            let others = ROOTED.into_iter().filter(|other| *other != collective);
            odd[1].collective = others.clone().nth((culprit + root) as usize % others.count()).unwrap();
        }
        Way::Root => odd[1].root = (root + 1) % size,
        Way::DType => odd[1].dtype = DType::F32,
        Way::Count => odd[1].count += 7,
        Way::Skip => drop(odd.remove(1)),
        Way::Repeat => odd.insert(1, odd[0]),
    }
    let group = ranks(size);
    let errors = each(&group, |group| {
        let rank = group.rank();
        let items = if rank == culprit { &odd } else { &common };
        let run = |(at, item): (usize, &Item)| -> Result<(), Error> {
            let output = item.call(group, at)?;
            if let Some(due) = item.due(size, rank, at).filter(|_| !item.only_gives(rank)) {
                let is_same = common.get(at) == Some(item);
                assert!(
                    is_same && output[..due.len()] == due,
                    "{what}: call {at} of rank {rank} has {output:?}"
                );
            }
            Ok(())
        };
        let calls = items.iter().enumerate().try_for_each(run);
        (rank, calls.and_then(|()| group.barrier()).expect_err(&what))
    });
    for (rank, error) in errors {
        let text = error.to_string();
        assert!(matches!(error, Error::Mismatch { .. }), "{what}: rank {rank}: {text}");
        // Of two ranks, each sees the other one as the culprit.
        let blamed = if size == 2 { 1 - rank } else { culprit };
        assert!(text.contains(&format!("rank {blamed}: it runs")), "{what}: rank {rank}: {text}");
    }
}

/// Ranks that wait for a core, say, in an operation in which another one differs.
#[test]
fn ranks_that_come_late_are_of_the_majority() {
    for culprit in 0..3 {
        let group = ranks(3);
        let errors = each(&group, |group| {
            let rank = group.rank();
            if rank == (culprit + 1) % 3 {
                std::thread::sleep(2 * VIEWS);
            }
            let item = Item::new(Collective::AllReduce, 3 + usize::from(rank == culprit), 0);
            (rank, item.call(group, 0).expect_err("one has another number of elements"))
        });
        for (rank, error) in errors {
            let text = error.to_string();
            assert!(text.contains(&format!("rank {culprit}: it runs")), "rank {rank}: {text}");
        }
    }
}

/// A rank that has given its part runs an operation of the engine next, and another one has it the other way round.
#[test]
fn an_operation_of_the_engine_comes_behind_the_small_ones_before_it() {
    for size in 2..=3u32 {
        for (culprit, is_started) in (0..size).flat_map(|culprit| [(culprit, false), (culprit, true)]) {
            let group = ranks(size);
            let (small, large) =
                (Item::new(Collective::Gather, 3, 0), Item::new(Collective::AllReduce, 5000, 0));
            let errors = each(&group, |group| {
                let mut data = vec![1u32; 5000];
                let run_large = |data: &mut Vec<u32>| match is_started {
                    true => {
                        let call = CollectiveCall {
                            collective: Collective::AllReduce,
                            input: data.as_ptr().cast(),
                            output: data.as_mut_ptr().cast(),
                            count: data.len(),
                            dtype: DType::U32,
                            op: ReduceOp::Sum,
                            root: 0,
                        };
                        // SAFETY: the data is touched again only after the wait.
                        unsafe { group.start(&call) }?.wait(None)
                    }
                    false => large.check(group, 0),
                };
                let ended = match group.rank() == culprit {
                    true => run_large(&mut data).and_then(|()| small.check(group, 0)),
                    false => small.check(group, 0).and_then(|()| run_large(&mut data)),
                };
                ended.and_then(|()| group.barrier()).unwrap_err()
            });
            for (rank, error) in errors.iter().enumerate() {
                assert!(
                    names(error, ["gather", "all-reduce"]),
                    "culprit {culprit} of {size}, started: {is_started}: rank {rank}: {error}"
                );
            }
        }
    }
}

/// A rank leaves after it has given its part: that reaches the others, and what they call next names it.
#[test]
fn what_a_rank_has_given_stays_when_it_leaves() {
    for size in 2..=4u32 {
        for root in 0..size {
            let mut group = ranks(size);
            // One that takes nothing from the others.
            let leaver = (root + 1) % size;
            let (gather, broadcast) =
                (Item::new(Collective::Gather, 4, root), Item::new(Collective::Broadcast, 2, leaver));
            let left = group.remove(leaver as usize);
            gather.check(&left, 0).unwrap();
            broadcast.check(&left, 1).unwrap();
            drop(left);
            let errors = each(&group, |group| {
                gather.check(group, 0).unwrap();
                broadcast.check(group, 1).unwrap();
                // Some of these only give.
                (2..2 * LEAD as usize + 2).map(|at| gather.check(group, at)).find_map(Result::err)
            });
            for error in errors {
                let error = error.expect("an error before a rank is further ahead than it may be");
                assert!(error.to_string().contains(&format!("rank {leaver}")), "{error}");
            }
        }
    }
}

/// Counts that differ are found by all, also where a rank is ahead, and the group goes on.
#[test]
fn counts_that_differ_are_found_by_all_ranks_behind_operations_that_some_have_left_before() {
    for size in 2..=4u32 {
        for culprit in 0..size {
            let group = ranks(size);
            each(&group, |group| {
                let (rank, item) = (group.rank(), Item::new(Collective::Reduce, 3, 0));
                (0..3).for_each(|at| item.check(group, at).unwrap());
                let mine = vec![0u32; if rank == culprit { 3 } else { 2 }];
                let root = (culprit + 1) % size;
                let mut all = vec![0u32; if rank == root { 2 * size as usize } else { 0 }];
                let counts = vec![2; size as usize];
                let found = group.gather_v(&mine, &mut all, &counts, root);
                assert!(names(&found.unwrap_err(), ["sends 3 elements", "expects 2"]));
                (3..6).for_each(|at| item.check(group, at).unwrap());
                group.barrier().unwrap();
            });
        }
    }
}
