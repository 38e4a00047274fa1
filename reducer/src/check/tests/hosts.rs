//! Hosts with different numbers of ranks: every algorithm of every collective on all grids of two to four hosts with one to four ranks each,
//! tensors in place and apart, on hosts and on accelerators.

use super::*;
use crate::counts::Counts;
use crate::schedule::Placement;
use std::sync::Arc;

/// All lists of `hosts` numbers from 1 to 4 that are not all the same.
fn lists(hosts: u32) -> impl Iterator<Item = Vec<u32>> {
    (0..4u32.pow(hosts))
        .map(move |code| (0..hosts).map(|host| code / 4u32.pow(host) % 4 + 1).collect::<Vec<_>>())
        .filter(|list| list.iter().any(|ranks| *ranks != list[0]))
}

fn counts(rng: &mut SmallRng, collective: Collective, grid: Grid) -> Option<Arc<Counts>> {
    let ranks = grid.ranks();
    let mut some = |number: u32| (0..number).map(|_| [0, 1, 13, 70][rng.random_range(0..4)]).collect();
    let counts = match collective {
        Collective::AllToAllV => Counts::of_matrix(&grid, some(ranks * ranks)),
        _ if collective.has_counts() => Counts::of_blocks(some(ranks)),
        _ => return None,
    };
    Some(Arc::new(counts.unwrap()))
}

/// One collective on one grid; where tensors lie, and how many elements there are, differs from one to the next.
fn proves(rng: &mut SmallRng, collective: Collective, algorithm: Algorithm, grid: Grid) {
    let count = match collective {
        Collective::Barrier => 0,
        // Of more, the blocks of many ranks have too many chunks.
        _ if collective.is_blocked() => [0, 1, 2, 70, 150][rng.random_range(0..5)],
        _ => [0, 1, 2, 70, 300, 700][rng.random_range(0..6)],
    };
    let op = if rng.random() && !collective.is_scan() { ReduceOp::Avg } else { ReduceOp::Sum };
    let shape = Shape { collective, dtype: DType::F32, op, count };
    let root = Rank(rng.random_range(0..grid.ranks()));
    let counts = counts(rng, collective, grid);
    let (apart, on_devices) = (rng.random(), [0.0, 0.0, 0.5][rng.random_range(0..3)]);
    let mut schedule = |rank| {
        let mut problem = Problem::new(grid, Rank(rank), &shape, root);
        if let Some(counts) = &counts {
            let counts = counts.on_node(&grid, problem.node());
            problem = problem.with_counts(Arc::new(counts));
        }
        if !problem.fits_in_place() || apart && collective != Collective::Broadcast {
            problem.placement = Placement::Separate;
        }
        if rng.random_bool(on_devices) {
            problem.access = Access::Copies;
        }
        build(algorithm, &problem, &PARAMS).unwrap_or_else(|why| panic!("{shape} on {grid:?}: {why}"))
    };
    let schedules: Vec<_> = (0..grid.ranks()).map(&mut schedule).collect();
    schedules.iter().for_each(|schedule| costs_hold(schedule, schedules[0].cost()));
    if let Err(flaw) = proves_all(algorithm, &schedules, BUDGET) {
        panic!("{algorithm:?} {shape} on {grid:?} from {root}: {flaw}");
    }
}

fn on_all(collectives: impl Fn(Collective) -> bool) {
    let mut rng = SmallRng::seed_from_u64(14);
    let mut proved = 0;
    for list in (2..=4).flat_map(lists) {
        let grid = Grid::of_hosts(&list).unwrap().with_levels(any_levels(&mut rng));
        for collective in Collective::ALL.into_iter().filter(|one| collectives(*one)) {
            for algorithm in serving(collective).filter(|one| one.serves(collective, &grid)) {
                proves(&mut rng, collective, algorithm, grid);
                proved += 1;
            }
        }
    }
    assert!(proved >= 324 * 3, "{proved}");
}

#[test]
fn reductions_are_right_on_hosts_with_different_numbers_of_ranks() {
    on_all(|collective| collective.reduces());
}

#[test]
fn movements_are_right_on_hosts_with_different_numbers_of_ranks() {
    on_all(|collective| !collective.reduces());
}

/// Blocks that are forwarded from host to host are as many from each.
#[test]
fn algorithms_that_forward_blocks_are_replaced_on_hosts_with_different_numbers_of_ranks() {
    let [even, uneven] =
        [[2, 2], [3, 1]].map(|list| Grid::of_hosts(&list).unwrap().with_levels(Levels::default()));
    let mut replaced = 0;
    for collective in Collective::ALL {
        for algorithm in serving(collective) {
            assert!(algorithm.serves(collective, &even), "{algorithm:?} {collective}");
            if algorithm.serves(collective, &uneven) {
                continue;
            }
            replaced += 1;
            let shape = Shape { collective, dtype: DType::F32, op: ReduceOp::Sum, count: 70 };
            let of = |algorithm| {
                let problem = |rank| Problem::new(uneven, Rank(rank), &shape, Rank(0));
                (0..4).map(|rank| build(algorithm, &problem(rank), &PARAMS).unwrap()).collect::<Vec<_>>()
            };
            let general = of(Algorithm::general(collective));
            for (named, general) in of(algorithm).iter().zip(&general) {
                assert_eq!(named.steps(), general.steps(), "{algorithm:?} {collective}");
            }
        }
    }
    assert_eq!(
        replaced, 6,
        "ring and bruck of all-gather, ring of reduce-scatter, binomial gather and scatter, bruck of all-to-all"
    );
}
