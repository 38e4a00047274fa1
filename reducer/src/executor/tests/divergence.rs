//! Divergence as a fault: a rank runs something else, in every way, and no rank gets a wrong sum.

use super::collectives::{Tensors, numbers};
use super::definition::expected;
use super::harness::{self, Faults, Group, shape};
use crate::dtype::{DType, ReduceOp};
use crate::executor::{AbortReason, Completed, OpError, Request, StartError, Tally, Vote};
use crate::grid::tests::any_levels;
use crate::grid::{Grid, Levels, Rank};
use crate::header::{Collective, Header, Identity, Shape, View};
use crate::schedule::{Algorithm, Problem, build};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;

/// How the culprit's list of operations differs from the others'.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Order,
    Skip,
    Repeat,
    DType,
    Op,
    Count,
    EarlyBarrier,
    Generation,
    Empty,
    Collective,
    Root,
}

const KINDS: [Kind; 11] = [
    Kind::Order,
    Kind::Skip,
    Kind::Repeat,
    Kind::DType,
    Kind::Op,
    Kind::Count,
    Kind::EarlyBarrier,
    Kind::Generation,
    Kind::Empty,
    Kind::Collective,
    Kind::Root,
];

/// Ranks, and ranks of a node.
const GRIDS: [(u32, u32); 8] = [(2, 2), (4, 4), (2, 1), (4, 2), (4, 1), (6, 3), (6, 2), (3, 1)];

/// Collectives that need not all ranks for the result of one.
const MOVERS: [Collective; 7] = [
    Collective::Broadcast,
    Collective::Reduce,
    Collective::Gather,
    Collective::Scatter,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::AllToAll,
];

/// An operation of one rank's list.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Item {
    shape: Shape,
    identity: Identity,
}

fn list(rng: &mut SmallRng, ranks: u32) -> Vec<Item> {
    let mut items: Vec<_> = (0..rng.random_range(2..=4u32))
        .map(|tensor| {
            let count = [1, 3, 64, 150, 257, 700][rng.random_range(0..6)];
            let mut shape = shape(DType::I64, ReduceOp::Sum, count);
            let identity = match rng.random_range(0..3) {
                0 => Identity::Registered { generation: 1, tensor, instance: 0 },
                1 => Identity::AdHoc { root: Rank(0) },
                _ => {
                    shape.collective = MOVERS[rng.random_range(0..MOVERS.len())];
                    let has_root = shape.collective.has_root();
                    Identity::AdHoc { root: Rank(if has_root { rng.random_range(0..ranks) } else { 0 }) }
                }
            };
            Item { shape, identity }
        })
        .collect();
    items.push(barrier());
    items
}

fn barrier() -> Item {
    let shape = Shape { collective: Collective::Barrier, dtype: DType::U8, op: ReduceOp::Sum, count: 0 };
    Item { shape, identity: Identity::AdHoc { root: Rank(0) } }
}

/// The culprit's list.
fn diverging(kind: Kind, items: &[Item], ranks: u32, rng: &mut SmallRng) -> Vec<Item> {
    let (mut list, last) = (items.to_vec(), items.len() - 1);
    let at = rng.random_range(0..last);
    let again = |list: &mut Vec<Item>, change: &dyn Fn(&mut Shape)| change(&mut list[at].shape);
    match kind {
        Kind::Order => list.swap(at, (at + 1) % last.max(1)),
        Kind::Skip => drop(list.remove(at)),
        Kind::Repeat => list.insert(at, items[at]),
        Kind::DType => again(&mut list, &|shape| shape.dtype = DType::F64),
        Kind::Op => again(&mut list, &|shape| shape.op = ReduceOp::Max),
        Kind::Count => again(&mut list, &|shape| shape.count += 1),
        Kind::Empty => again(&mut list, &|shape| shape.count = 0),
        Kind::EarlyBarrier => list.truncate(at),
        Kind::Collective => {
            list[at].shape.collective = MOVERS[rng.random_range(0..MOVERS.len())];
            list[at].identity = Identity::AdHoc { root: Rank(0) };
        }
        Kind::Root => {
            if let (true, Identity::AdHoc { root }) =
                (list[at].shape.collective.has_root(), &mut list[at].identity)
            {
                *root = Rank(rng.random_range(0..ranks));
            }
        }
        Kind::Generation => {
            list[at].identity = Identity::Registered { generation: 2, tensor: at as u32, instance: 0 };
        }
    }
    if kind == Kind::EarlyBarrier {
        list.push(barrier());
    }
    list
}

fn value(rank: u32, index: usize) -> i64 {
    i64::from(rank + 1) * 1000 + index as i64
}

fn contents(count: u64, rank: u32) -> Vec<i64> {
    (0..count as usize).map(|index| value(rank, index)).collect()
}

fn bytes(numbers: &[i64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

impl Item {
    fn root(&self) -> Rank {
        match self.identity {
            Identity::AdHoc { root } | Identity::Started { root } => root,
            Identity::Registered { .. } => Rank(0),
        }
    }

    /// Rank `rank`'s part.
    fn problem(&self, grid: Grid, rank: u32) -> Problem {
        Problem::new(grid, Rank(rank), &self.shape, self.root())
    }

    /// Whether rank `rank` cannot be through with this unless `other` has done its part.
    fn needs(&self, rank: u32, other: u32) -> bool {
        let root = self.root().0;
        match self.shape.collective {
            Collective::Broadcast | Collective::Scatter => other == root,
            Collective::Reduce | Collective::Gather => rank == root,
            _ => true,
        }
    }
}

/// Whether a rank of a grid that runs something else leaves every rank without a wrong sum, and is named.
fn run(seed: u64) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let (ranks, per_node) = GRIDS[rng.random_range(0..GRIDS.len())];
    let grid = Grid::new(ranks, per_node).unwrap().with_levels(any_levels(&mut rng));
    let kind = KINDS[rng.random_range(0..KINDS.len())];
    let culprit = rng.random_range(0..ranks);
    let faults = Faults { duplicate: 10, full: 10, refuse: 0, in_order: rng.random() };
    let mut group = Group::new(seed, grid, faults, |config| {
        config.eager_bytes = [0, 600, 1 << 20][(seed % 3) as usize];
    });
    let items = list(&mut rng, ranks);
    let odd = diverging(kind, &items, ranks, &mut rng);
    let what = format!("seed {seed}: {kind:?} by rank {culprit} of {grid:?}: {odd:?} instead of {items:?}");
    let lists: Vec<&[Item]> =
        (0..ranks).map(|rank| if rank == culprit { &odd[..] } else { &items }).collect();
    // Tensors in memory of their own, that the node shares, or of an accelerator.
    let place = rng.random_range(0..4);
    let algorithm = Algorithm::ALL[rng.random_range(0..3)];
    let mut tensors: Vec<Vec<Tensors>> = Vec::new();
    let mut work: Vec<Vec<Request>> = Vec::new();
    for (rank, list) in (0..).zip(&lists) {
        let memory = list.iter().map(|item| {
            let problem = item.problem(grid, rank);
            let input = bytes(&contents(problem.input_bytes() / 8, rank));
            Tensors::new(problem, &input)
        });
        let memory: Vec<_> = memory.collect();
        let requests = list.iter().zip(&memory).map(|(item, tensors)| {
            let on_device = place == 2 || place == 3 && rng.random();
            let identity = item.identity;
            let mut request = if MOVERS.contains(&item.shape.collective) {
                let problem = &tensors.problem;
                let [data, input] = tensors.regions();
                let schedule = Arc::new(build(algorithm, problem, &group.params).unwrap());
                let barrier = group.request(Rank(rank), algorithm, barrier().shape, &tensors.output);
                Request { identity, shape: item.shape, data, input, schedule, ..barrier }
            } else {
                let request = match on_device {
                    true => group.device_request(Rank(rank), algorithm, item.shape, &tensors.output),
                    false => group.request(Rank(rank), algorithm, item.shape, &tensors.output),
                };
                let data = if place == 1 { tensors.output.shared() } else { request.data };
                Request { identity, data, ..request }
            };
            request.priority = rng.random_range(0..3);
            request
        });
        work.push(requests.rev().collect());
        tensors.push(memory);
    }
    let mut idle = 0;
    while idle < 4000 {
        let rank = rng.random_range(0..ranks as usize);
        let worked = match rng.random_range(0..8) {
            0 => match work[rank].pop() {
                None => false,
                Some(request) => match group.start(rank, request.clone()) {
                    Ok(_) => true,
                    Err(StartError::Busy { .. }) => {
                        work[rank].push(request);
                        false
                    }
                    Err(StartError::Aborted(_)) => false,
                    Err(error) => panic!("{what}: {error}"),
                },
            },
            1..4 => group.poll(rank),
            _ => group.network(),
        };
        idle = if worked { 0 } else { idle + 1 };
    }
    for rank in 0..ranks as usize {
        let own = lists[rank];
        for Completed { op, result, .. } in &group.completed[rank] {
            let (at, item) = (op.0 as usize, &own[op.0 as usize]);
            match result {
                Ok(()) => {
                    let needed = (0u32..).zip(&lists).filter(|(other, _)| item.needs(rank as u32, *other));
                    assert!(
                        needed.into_iter().all(|(_, list)| list.get(at) == Some(item)),
                        "{what}: rank {rank} has {item:?} as its {at}th, and not all that it needs run that"
                    );
                    let inputs = (0..ranks)
                        .map(|rank| contents(item.problem(grid, rank).input_bytes() / 8, rank))
                        .collect::<Vec<_>>();
                    let here = &tensors[rank][at];
                    assert_eq!(
                        numbers(&here.result()),
                        expected(&here.problem, &inputs),
                        "{what}: rank {rank}, {item:?}"
                    );
                }
                Err(OpError::Aborted { .. }) => {}
                Err(error) => panic!("{what}: {error}"),
            }
        }
    }
    if odd == items {
        assert!(group.executors.iter().all(|executor| executor.diverged().is_none()), "{what}");
        return;
    }
    // A rank that waits for long looks at the others' views, and asks.
    (0..ranks as usize).for_each(|rank| group.compare(rank));
    group.drain();
    assert!(group.executors.iter().any(|executor| executor.diverged().is_some()), "{what}: no rank noticed");
    let verdicts = group.vote();
    for (rank, verdict) in (0..ranks).zip(&verdicts) {
        let verdict = verdict.unwrap_or_else(|| panic!("{what}: rank {rank} knows nothing"));
        if verdict.is_majority {
            assert_eq!(verdict.rank, Rank(culprit), "{what}");
            assert_eq!(group.executors[rank as usize].aborted().unwrap().culprit, Rank(culprit), "{what}");
        } else {
            assert!(verdict.rank == Rank(culprit) || rank == culprit, "{what}: {verdict}");
        }
    }
}

/// `SHOUTER_DIVERGENCES=0..10000` runs more; `SHOUTER_DIVERGENCES=n..n+1` one again.
#[test]
fn nobody_gets_a_wrong_sum_from_ranks_that_run_different_operations() {
    let wanted = std::env::var("SHOUTER_DIVERGENCES").ok();
    let range = wanted.as_deref().and_then(|range| {
        let (first, end) = range.split_once("..")?;
        Some(first.parse().ok()?..end.parse().ok()?)
    });
    match range {
        Some(range) => range.for_each(run),
        // With the last two, a rank that ran something else wrote to the result area while others read it.
        None => (0..3000).chain([28_055, 63_146]).for_each(run),
    }
}

fn view(count: u64) -> View {
    let shape = shape(DType::F32, ReduceOp::Sum, count);
    View { identity: Identity::AdHoc { root: Rank(0) }, shape }
}

#[test]
fn the_minority_is_named_and_a_tie_shows_both() {
    let mut tally = Tally::new(5);
    tally.cast(0, vec![Vote { view: view(1), rank: Rank(0), ranks: 2 }]);
    assert!(tally.judge(None).is_none(), "one view is no difference");
    tally.cast(1, vec![Vote { view: view(2), rank: Rank(3), ranks: 2 }]);
    let [ours, theirs] = [view(1), view(2)].map(|own| tally.judge(Some(own)).unwrap());
    assert_eq!((ours.rank, ours.found, ours.is_majority), (Rank(3), view(2), false));
    assert_eq!((theirs.rank, theirs.found), (Rank(0), view(1)));
    tally.cast(2, vec![Vote { view: view(2), rank: Rank(4), ranks: 1 }]);
    for own in [None, Some(view(1)), Some(view(2))] {
        let divergence = tally.judge(own).unwrap();
        assert_eq!((divergence.rank, divergence.expected), (Rank(0), view(2)));
        assert!(divergence.is_majority);
    }
}

#[test]
fn votes_that_make_no_sense_count_for_nothing() {
    let grid = Grid::new(4, 2).unwrap().with_levels(Levels::default());
    let mut group = Group::new(1, grid, Faults::default(), |_| {});
    let template = group.executors[2].vote::<harness::View<'_>>(None);
    assert!(template.is_empty(), "nothing is in dispute");
    group.executors[2].diverge(0, Rank(0));
    let [vote] = group.executors[2].vote::<harness::View<'_>>(None)[..] else { panic!() };
    for (round, len) in [(0, 1), (9, 1), (2, 3)] {
        let before = group.executors[0].counters().malformed;
        let _ = group.executors[0].on_fragment(&Header { round, len, ..vote }, &[]);
        assert_eq!(group.executors[0].counters().malformed, before + 1);
        assert!(group.executors[0].diverged().is_none());
    }
}

#[test]
fn a_node_whose_votes_are_missing_is_named_where_all_others_run_the_same() {
    let grid = Grid::new(4, 1).unwrap().with_levels(Levels::default());
    let mut group = Group::new(1, grid, Faults::default(), |_| {});
    let vote = |rank| Vote { view: view(1), rank: Rank(rank), ranks: 1 };
    for culprit in 0..3 {
        group.executors[3].diverge(0, Rank((culprit + 1) % 3));
        let executor = &mut group.executors[3];
        let tally = executor.agreement.tally_of(0).unwrap();
        // While two are missing, it may be either.
        let mut others = (0..4).filter(|rank| *rank != culprit);
        tally.cast(3, vec![vote(3)]);
        others.next().into_iter().chain([3]).for_each(|rank| tally.cast(rank, vec![vote(rank)]));
        assert!(executor.lacks_votes_of_several());
        let tally = executor.agreement.tally_of(0).unwrap();
        others.for_each(|rank| tally.cast(rank, vec![vote(rank)]));
        assert!(!executor.lacks_votes_of_several());
        assert!(executor.conclude::<harness::View<'_>>(None).is_none(), "the votes show no difference");
        let cause = executor.aborted().unwrap();
        assert_eq!((cause.culprit, &cause.reason), (Rank(culprit), &AbortReason::Diverged(None)));
        group = Group::new(1, grid, Faults::default(), |_| {});
    }
}

#[test]
fn a_dead_rank_is_named_although_others_that_heard_of_its_death_did_not_vote_either() {
    let grid = Grid::new(4, 1).unwrap().with_levels(Levels::default());
    let vote = |rank| Vote { view: view(1), rank: Rank(rank), ranks: 1 };
    for (dead, left) in [(2, 0), (0, 2), (1, 0), (0, 1)] {
        let mut group = Group::new(1, grid, Faults::default(), |_| {});
        let executor = &mut group.executors[3];
        executor.diverge(0, Rank(0));
        executor.agreement.tally_of(0).unwrap().cast(3, vec![vote(3)]);
        let voter = (0..3).find(|rank| ![dead, left].contains(rank)).unwrap();
        // It has voted, and leaves with the verdict.
        executor.agreement.tally_of(0).unwrap().cast(voter, vec![vote(voter)]);
        executor.abort(Rank(voter), AbortReason::Failed);
        assert!(executor.aborted().is_none() && executor.lacks_votes_of_several());
        executor.abort(Rank(dead), AbortReason::Failed);
        executor.abort(Rank(left), AbortReason::Failed);
        assert!(executor.aborted().is_none() && !executor.lacks_votes_of_several());
        assert!(executor.conclude::<harness::View<'_>>(None).is_none());
        let cause = executor.aborted().unwrap();
        assert_eq!((cause.culprit, &cause.reason), (Rank(dead), &AbortReason::Failed));
    }
}
