//! Every algorithm of every collective: on all flat grids of up to 32 ranks and all of up to 8 by 8, from every root of up to 16 ranks, and on
//! some of up to 1,024 ranks.

use super::*;
use crate::schedule::Placement;

/// Small chunks of a tensor; in a lane there is room for two elements of each of 64 x 7 blocks.
const PARAMS: Params = Params { chunk_bytes: 512, lanes: 2, lane_bytes: 4096, depth: 2 };

const BUDGET: usize = 64 << 20;

/// With room for blocks of more ranks.
const ROOMY: Params = Params { chunk_bytes: 64 << 10, lanes: 2, lane_bytes: 64 << 10, depth: 2 };

type What = (Collective, Algorithm);

/// Every collective with every algorithm that serves it, but for those that have one way, which [`uneven`] proves.
fn all() -> impl Iterator<Item = What> {
    Collective::ALL
        .into_iter()
        .filter(|collective| !collective.has_counts() && !collective.is_scan())
        .flat_map(|collective| serving(collective).map(move |algorithm| (collective, algorithm)))
}

fn build_one(
    (collective, algorithm): What,
    grid: Grid,
    rank: u32,
    count: u64,
    root: Rank,
    placement: Placement,
) -> Schedule {
    let params = if grid.ranks() > 64 { &ROOMY } else { &PARAMS };
    let op = if count.is_multiple_of(2) { ReduceOp::Sum } else { ReduceOp::Avg };
    let shape = Shape { collective, dtype: DType::F32, op, count };
    let problem = Problem { placement, ..Problem::new(grid, Rank(rank), &shape, root) };
    build(algorithm, &problem, params).unwrap_or_else(|why| panic!("{shape} on {grid:?}: {why}"))
}

fn build_all(what: What, grid: Grid, count: u64, root: Rank, placement: Placement) -> Vec<Schedule> {
    let schedule = |rank| build_one(what, grid, rank, count, root, placement);
    let schedules: Vec<_> = (0..grid.ranks()).map(schedule).collect();
    schedules.iter().for_each(|schedule| costs_hold(schedule, schedules[0].cost()));
    schedules
}

fn proves(what: What, grid: Grid, count: u64, root: Rank, placement: Placement) {
    let schedules = build_all(what, grid, count, root, placement);
    let (collective, algorithm) = what;
    if let Err(flaw) = proves_all(algorithm, &schedules, BUDGET) {
        panic!("{algorithm:?} {collective} of {count} on {grid:?} from {root}, {placement:?}: {flaw}");
    }
}

/// Elements of one chunk, and of several with a last one that is not full: fewer steps for many ranks.
fn counts(collective: Collective, grid: Grid) -> Vec<u64> {
    let several = match (collective.is_blocked(), grid.most_locals() > 1) {
        _ if collective == Collective::Barrier => return vec![0],
        // A piece of a block has room for so many elements.
        (true, _) if grid.ranks() > 16 => return vec![2],
        (true, true) => 4096 / 4 / blocks_in_lane(collective, grid) * 2 + 1,
        (true, false) => 512 / 4 / u64::from(grid.ranks()) * 2 + 1,
        (false, true) if grid.ranks() > 24 => return vec![321],
        (false, true) => 2048 + 321,
        (false, false) if grid.ranks() > 16 => return vec![127],
        (false, false) => 256 + 97,
    };
    vec![2, several]
}

fn blocks_in_lane(collective: Collective, grid: Grid) -> u64 {
    let (ranks, locals) = (u64::from(grid.ranks()), u64::from(grid.most_locals()));
    match collective {
        Collective::AllToAll => ranks.max(locals * (ranks - locals)),
        _ => ranks,
    }
}

/// One collective on all grids; the levels, the root and where the input lies differ from one to the next.
fn on_all_grids(what: What) {
    let mut rng = SmallRng::seed_from_u64(what.1 as u64);
    let flat = (1..=32).map(|ranks| (ranks, 1));
    let hosts = (1..=8).flat_map(|nodes| (2..=8).map(move |locals| (nodes, locals)));
    for (nodes, locals) in flat.chain(hosts) {
        let grid = Grid::new(nodes * locals, locals).unwrap().with_levels(any_levels(&mut rng));
        for count in counts(what.0, grid) {
            let root = Rank(rng.random_range(0..grid.ranks()));
            let apart = what.0 != Collective::Broadcast && rng.random();
            let placement = if apart { Placement::Separate } else { Placement::InPlace };
            proves(what, grid, count, root, placement);
        }
    }
}

/// A test for each collective, so that they share the cores.
macro_rules! right_on_all_grids {
    ($($name:ident: $collective:ident,)*) => {$(
        #[test]
        fn $name() {
            serving(Collective::$collective).for_each(|algorithm| on_all_grids((Collective::$collective, algorithm)));
        }
    )*};
}

right_on_all_grids! {
    every_all_reduce: AllReduce,
    every_broadcast: Broadcast,
    every_barrier: Barrier,
    every_reduce: Reduce,
    every_all_gather: AllGather,
    every_reduce_scatter: ReduceScatter,
    every_gather: Gather,
    every_scatter: Scatter,
    every_all_to_all: AllToAll,
}

#[test]
fn every_root_of_up_to_16_ranks() {
    for what in all().filter(|(collective, _)| collective.has_root()) {
        for ranks in 1..=16 {
            for locals in (1..=ranks).filter(|locals| ranks % locals == 0) {
                let grid = Grid::new(ranks, locals).unwrap().with_levels(levels(&[3]));
                for root in 0..ranks {
                    proves(what, grid, 5, Rank(root), Placement::InPlace);
                }
            }
        }
    }
}

/// Those whose steps do not grow with the square of the nodes are proved there, too.
#[test]
fn a_sample_of_up_to_1024_ranks() {
    for (nodes, locals) in [(100, 1), (257, 1), (512, 1), (1024, 1), (96, 2), (33, 8)] {
        let grid = Grid::new(nodes * locals, locals).unwrap().with_levels(Levels::default());
        let mut proved = std::collections::BTreeSet::new();
        for what @ (collective, algorithm) in all() {
            // One that fits no two nodes, and one with a piece for each.
            let counts = match collective {
                Collective::Barrier => vec![0],
                _ if collective.is_blocked() => vec![1],
                _ => vec![1, 64 * u64::from(nodes.min(250))],
            };
            for count in counts {
                let root = Rank(grid.ranks() / 3);
                let one = build_one(what, grid, grid.ranks() / 2, count, root, Placement::InPlace);
                if one.steps().len() * (grid.ranks() as usize) < 1 << 14 {
                    proves(what, grid, count, root, Placement::InPlace);
                    proved.insert(algorithm.name());
                }
            }
        }
        assert!(proved.len() >= if nodes > 500 { 6 } else { 8 }, "{proved:?} on {grid:?}");
    }
}

#[test]
fn a_dissemination_barrier_takes_a_message_of_each_node_in_each_round() {
    for (nodes, rounds) in [(2, 1), (5, 3), (16, 4), (33, 6), (512, 9)] {
        let grid = Grid::new(nodes, 1).unwrap().with_levels(Levels::default());
        let what = (Collective::Barrier, Algorithm::Dissemination);
        let proof = check(&build_all(what, grid, 0, Rank(0), Placement::InPlace), BUDGET).unwrap();
        assert_eq!(proof.messages, (nodes * rounds) as usize, "{nodes}");
    }
}

/// Every algorithm, with one thing broken: the order of two steps, the number or the receiver of a message, its block, or what is folded.
#[test]
fn a_broken_one_is_found() {
    for what @ (collective, algorithm) in all() {
        let count = if collective == Collective::Barrier { 0 } else { 70 };
        for (nodes, locals) in [(5, 1), (6, 1), (3, 2)] {
            let grid = Grid::new(nodes * locals, locals).unwrap().with_levels(levels(&[2]));
            // In place, an all-to-all has waits that keep what was not sent; apart, pairwise rounds only wait for one another.
            let apart = !matches!(collective, Collective::Broadcast | Collective::AllToAll);
            let placement = if apart { Placement::Separate } else { Placement::InPlace };
            let right = build_all(what, grid, count, Rank(1), placement);
            check(&right, BUDGET).unwrap();
            let broken = |change: &dyn Fn(&mut Schedule, usize) -> bool| {
                let (mut found, mut all) = (0, 0);
                for rank in 0..right.len() {
                    for step in 0..right[rank].steps.len() {
                        let mut wrong = right.clone();
                        if change(&mut wrong[rank], step) {
                            all += 1;
                            found += usize::from(check(&wrong, BUDGET).is_err());
                        }
                    }
                }
                (found, all)
            };
            let name = format!("{algorithm:?} {collective} on {grid:?}");
            // A message that is numbered otherwise, or sent to its neighbour.
            let (found, all) = broken(&|schedule, step| match &mut schedule.steps[step].action {
                Action::Send { round, .. } => {
                    *round += 1;
                    true
                }
                _ => false,
            });
            assert!(found == all && all > 0, "{name}: {found} of {all} rounds");
            let (found, all) = broken(&|schedule, step| {
                let next = (schedule.problem.grid.node_of(schedule.problem.rank) + 1) % nodes;
                match &mut schedule.steps[step].action {
                    Action::Send { to, .. } if *to != Rank(next * locals) => {
                        *to = Rank(next * locals);
                        true
                    }
                    _ => false,
                }
            });
            assert!(found == all, "{name}: {found} of {all} receivers");
            // A block that is taken from, or put, one element further.
            let (found, all) = broken(&|schedule, step| match &mut schedule.steps[step].action {
                Action::Send { from: at, len, .. } | Action::Receive { into: at, len, .. } if *len > 0 => {
                    at.offset += 4;
                    true
                }
                _ => false,
            });
            assert!(found == all && (all > 0 || count == 0), "{name}: {found} of {all} blocks");
            // A contribution that is left out.
            let (found, all) = broken(&|schedule, step| match &mut schedule.steps[step].action {
                Action::Fold { sources, .. } if *sources > 1 => {
                    *sources -= 1;
                    true
                }
                _ => false,
            });
            assert!(found == all, "{name}: {found} of {all} folds");
            // A wait that is dropped; some are waited for in another way as well.
            let (found, all) = broken(&|schedule, step| {
                let at = schedule.edge_start[step] as usize;
                let any = at < schedule.edge_start[step + 1] as usize;
                if any {
                    drop_edge(schedule, at);
                }
                any
            });
            let needed = if locals == 1 { all / 2 } else { all / 4 };
            assert!(found >= needed, "{name}: {found} of {all} waits");
        }
    }
}
