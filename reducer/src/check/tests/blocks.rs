//! Reduce and the collectives over blocks: on every grid, from every root, in place and apart.

use super::*;
use crate::schedule::Placement;

const COLLECTIVES: [Collective; 7] = [
    Collective::AllReduce,
    Collective::Reduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::Gather,
    Collective::Scatter,
    Collective::AllToAll,
];

/// How each rank has its input and output.
type Ranks<'a> = &'a mut dyn FnMut(u32) -> (Access, Placement);

fn schedules(shape: Shape, algorithm: Algorithm, grid: Grid, root: Rank, ranks: Ranks<'_>) -> Vec<Schedule> {
    let schedule = |rank| {
        let (access, placement) = ranks(rank);
        let problem = Problem { access, placement, ..Problem::new(grid, Rank(rank), &shape, root) };
        build(algorithm, &problem, &PARAMS).unwrap_or_else(|why| panic!("{shape} on {grid:?}: {why}"))
    };
    let schedules: Vec<_> = (0..grid.ranks()).map(schedule).collect();
    schedules.iter().for_each(|schedule| costs_hold(schedule, schedules[0].cost()));
    schedules
}

fn proves(shape: Shape, algorithm: Algorithm, grid: Grid, root: Rank, ranks: Ranks<'_>) {
    let schedules = schedules(shape, algorithm, grid, root, ranks);
    if let Err(flaw) = proves_all(algorithm, &schedules, BUDGET) {
        panic!("{algorithm:?} {shape} on {grid:?} from {root}: {flaw}");
    }
}

fn shape(collective: Collective, count: u64) -> Shape {
    let op = if count.is_multiple_of(2) { ReduceOp::Sum } else { ReduceOp::Avg };
    Shape { collective, dtype: DType::F32, op, count }
}

/// The access and the placement of each rank's tensor, by the rank's number.
type Choice = Box<dyn FnMut(u32) -> (Access, Placement)>;

/// All ranks alike, and each as it likes.
fn placements(rng: &mut SmallRng) -> [Choice; 3] {
    let mut own = SmallRng::seed_from_u64(rng.random());
    [
        Box::new(|_| (Access::Host, Placement::InPlace)),
        Box::new(|_| (Access::Host, Placement::Separate)),
        Box::new(move |_| {
            let placement = if own.random() { Placement::InPlace } else { Placement::Separate };
            ([Access::Host, Access::Copies][usize::from(own.random::<bool>())], placement)
        }),
    ]
}

/// `SHOUTER_CHECK=all cargo test -p shouter-reducer check::tests::blocks` leaves nothing out.
#[test]
fn every_collective_is_right_for_1_to_17_ranks() {
    let full = std::env::var_os("SHOUTER_CHECK").is_some_and(|which| which == "all");
    let mut rng = SmallRng::seed_from_u64(8);
    for grid in grids() {
        for collective in COLLECTIVES {
            let reduces = collective.reduces();
            if !reduces && !grid.levels().is_empty() {
                continue; // Levels matter to the order of folds only.
            }
            for algorithm in serving(collective) {
                if !grid.levels().is_empty() && !folds_by_levels(algorithm) {
                    continue;
                }
                // On larger grids `everywhere` proves the others, once each.
                let usual = algorithm == Algorithm::Direct || algorithm == Algorithm::general(collective);
                if grid.ranks() > 10 && !usual && !full {
                    continue;
                }
                // In a lane there is room for a few elements of each block: 40 are several chunks.
                let large = if collective.is_blocked() { 40 } else { 1000 };
                for count in [0, 1, 7, large] {
                    let root = Rank(rng.random_range(0..grid.ranks()));
                    for mut ranks in placements(&mut rng) {
                        proves(shape(collective, count), algorithm, grid, root, &mut ranks);
                    }
                }
            }
        }
    }
}

/// Inputs lie in memory that the node shares.
#[test]
fn every_collective_that_reads_inputs_where_they_lie_is_right_for_2_to_17_ranks() {
    let mut rng = SmallRng::seed_from_u64(9);
    for ranks in 2..=17 {
        let grid = Grid::new(ranks, ranks).unwrap();
        for collective in COLLECTIVES.into_iter().chain([Collective::Broadcast]) {
            if collective == Collective::AllReduce {
                continue; // These are views.
            }
            // The larger one is several pieces.
            for count in [1, 7, 70_000].into_iter().take(if ranks <= 4 { 3 } else { 2 }) {
                let root = Rank(rng.random_range(0..ranks));
                let apart = collective == Collective::AllToAll;
                for every in [Placement::InPlace, Placement::Separate] {
                    let mut place = |_| match collective {
                        Collective::Broadcast => (Access::Host, Placement::InPlace),
                        _ if apart || rng.random() => (Access::Host, Placement::Separate),
                        _ => (Access::Host, every),
                    };
                    let shape = shape(collective, count);
                    let staged = schedules(shape, Algorithm::Direct, grid, root, &mut place);
                    let read: Vec<_> =
                        staged.iter().map(|s| s.in_place().unwrap().as_ref().clone()).collect();
                    if let Err(flaw) = check(&read, BUDGET) {
                        panic!("{shape} on {ranks} ranks from {root}: {flaw}");
                    }
                }
            }
        }
    }
}

#[test]
fn every_root_is_right() {
    let rooted = COLLECTIVES.into_iter().filter(|collective| collective.has_root());
    for collective in rooted.chain([Collective::Broadcast]) {
        for (ranks, per_node, size) in [(16, 1, 4), (16, 4, 2), (16, 16, 1), (15, 3, 2)] {
            let grid = Grid::new(ranks, per_node).unwrap().with_levels(levels(&[size]));
            for root in (0..grid.ranks()).map(Rank) {
                let mut in_place = |_| (Access::Host, Placement::InPlace);
                for algorithm in serving(collective) {
                    proves(shape(collective, 70), algorithm, grid, root, &mut in_place);
                }
            }
        }
    }
}

/// The proof sees what is wrong with the collectives over blocks.
#[test]
fn a_block_in_the_wrong_place_is_found() {
    let grid = Grid::new(4, 2).unwrap();
    for collective in COLLECTIVES {
        let mut apart = |_| (Access::Host, Placement::Separate);
        let right = schedules(shape(collective, 6), Algorithm::Hierarchical, grid, Rank(1), &mut apart);
        check(&right, BUDGET).unwrap();
        // Each copy that brings a result of the root's, put one element further.
        let mut found = 0;
        for step in 0..right[1].steps.len() {
            let mut wrong = right.clone();
            let Action::Copy { into, .. } = &mut wrong[1].steps[step].action else { continue };
            if into.buffer == Buffer::Data {
                into.offset += 4;
                assert!(check(&wrong, BUDGET).is_err(), "{collective}: step {step}");
                found += 1;
            }
        }
        assert!(found > 0, "{collective}");
    }
}

#[test]
fn an_all_to_all_in_place_must_not_overwrite_what_was_not_acknowledged() {
    let grid = Grid::new(3, 1).unwrap();
    let mut in_place = |_| (Access::Host, Placement::InPlace);
    let mut wrong =
        schedules(shape(Collective::AllToAll, 6), Algorithm::Hierarchical, grid, Rank(0), &mut in_place);
    // The copies from the slots wait for what arrives, and no longer for the sends.
    for schedule in &mut wrong {
        for step in 0..schedule.steps.len() {
            if matches!(schedule.steps[step].action, Action::Send { .. }) {
                let (first, last) = (schedule.edge_start[step], schedule.edge_start[step + 1]);
                for edge in first..last {
                    // An edge to itself would be a cycle: it is moved to the step before.
                    schedule.indegree[schedule.edges[edge as usize] as usize] -= 1;
                }
                schedule.edges.drain(first as usize..last as usize);
                schedule.edge_start[step + 1..].iter_mut().for_each(|start| *start -= last - first);
            }
        }
    }
    let flaw = check(&wrong, BUDGET).unwrap_err();
    assert!(matches!(flaw, Flaw::Race { .. }), "{flaw}");
}

#[test]
fn more_ranks_than_a_lane_has_room_for_are_refused() {
    let grid = Grid::new(512, 2).unwrap();
    let shape = shape(Collective::AllGather, 5);
    let why = build(Algorithm::Direct, &Problem::new(grid, Rank(3), &shape, Rank(0)), &PARAMS).unwrap_err();
    assert!(why.to_string().contains("lane_bytes"), "{why}");
}
