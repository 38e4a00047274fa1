//! The collectives with a count for each rank, and scans: on every grid, with empty blocks, in place and apart.

use super::*;
use crate::counts::Counts;
use crate::schedule::Placement;
use std::sync::Arc;

const UNEVEN: [Collective; 5] = [
    Collective::AllGatherV,
    Collective::GatherV,
    Collective::ScatterV,
    Collective::ReduceScatterV,
    Collective::AllToAllV,
];

/// How much blocks differ.
#[derive(Clone, Copy, Debug)]
enum Spread {
    /// All are empty.
    Nothing,
    /// Some are.
    Some,
    /// All but one are.
    One,
    /// From one to many, several chunks.
    Wide,
}

fn counts(rng: &mut SmallRng, collective: Collective, grid: Grid, spread: Spread) -> Arc<Counts> {
    let ranks = grid.ranks();
    let pairs = collective == Collective::AllToAllV;
    let number = if pairs { ranks * ranks } else { ranks } as usize;
    let only = rng.random_range(0..number);
    let of = |index| match spread {
        Spread::Nothing => 0,
        Spread::Some => [0, 0, 1, 7][rng.random_range(0..4)],
        Spread::One => {
            if index == only {
                333
            } else {
                0
            }
        }
        Spread::Wide if pairs => rng.random_range(0..40),
        Spread::Wide => [0, 1, 13, 100, 300][rng.random_range(0..5)],
    };
    let counts = (0..number).map(of).collect();
    let counts = if pairs { Counts::of_matrix(&grid, counts) } else { Counts::of_blocks(counts) };
    Arc::new(counts.unwrap())
}

fn shape(rng: &mut SmallRng, collective: Collective, count: u64) -> Shape {
    let op = if rng.random() && !collective.is_scan() { ReduceOp::Avg } else { ReduceOp::Sum };
    Shape { collective, dtype: DType::F32, op, count }
}

/// Builds the schedules of all ranks, each with its input where it likes, if it can be there.
fn schedules(rng: &mut SmallRng, problem: &Problem, algorithm: Algorithm, kinds: u32) -> Vec<Schedule> {
    let grid = problem.grid;
    let schedule = |rank| {
        let node = grid.node_of(Rank(rank));
        let counts = problem.counts.as_ref().map(|counts| Arc::new(counts.on_node(&grid, node)));
        let problem = Problem { rank: Rank(rank), counts, ..problem.clone() };
        let (separate, device) = match kinds {
            0 => (false, false),
            1 => (true, false),
            _ => (rng.random(), rng.random()),
        };
        let problem = if separate || !problem.fits_in_place() { problem.separate() } else { problem };
        let problem = if device { problem.on_device() } else { problem };
        build(algorithm, &problem, &PARAMS)
            .unwrap_or_else(|why| panic!("{:?} on {grid:?}: {why}", problem.shape))
    };
    let schedules: Vec<_> = (0..grid.ranks()).map(schedule).collect();
    schedules.iter().for_each(|schedule| costs_hold(schedule, schedules[0].cost()));
    schedules
}

/// The same where all ranks read the others' inputs.
fn in_place(schedules: &[Schedule]) -> Option<Vec<Schedule>> {
    schedules.iter().map(|schedule| Some((**schedule.in_place()?).clone())).collect()
}

/// Levels matter to the order of folds over nodes only.
fn worthwhile(collective: Collective, grid: Grid) -> bool {
    grid.levels().is_empty() || collective == Collective::ReduceScatterV
}

#[test]
fn blocks_that_differ_are_right_for_1_to_17_ranks() {
    let (mut rng, mut read) = (SmallRng::seed_from_u64(9), 0);
    for grid in grids() {
        for collective in UNEVEN.into_iter().filter(|&collective| worthwhile(collective, grid)) {
            for spread in [Spread::Nothing, Spread::Some, Spread::One, Spread::Wide] {
                let counts = counts(&mut rng, collective, grid, spread);
                let (shape, root) = (shape(&mut rng, collective, 0), Rank(rng.random_range(0..grid.ranks())));
                let problem = Problem::new(grid, Rank(0), &shape, root).with_counts(counts.clone());
                for kinds in 0..3 {
                    let schedules = schedules(&mut rng, &problem, Algorithm::Direct, kinds);
                    if let Err(flaw) = check(&schedules, BUDGET) {
                        panic!("{collective} of {counts:?} on {grid:?} from {root}, {kinds}: {flaw}");
                    }
                    let Some(readers) = in_place(&schedules) else { continue };
                    if let Err(flaw) = check(&readers, BUDGET) {
                        panic!(
                            "{collective} of {counts:?} on {grid:?} from {root}, read in place, {kinds}: {flaw}"
                        );
                    }
                    read += 1;
                }
            }
        }
    }
    assert!(read > 100, "inputs were read in place {read} times only");
}

#[test]
fn an_all_to_all_of_pairs_that_give_as_much_as_they_take_is_right_in_place() {
    let mut rng = SmallRng::seed_from_u64(10);
    for (ranks, per_node) in [(1, 1), (2, 1), (3, 1), (5, 1), (4, 2), (6, 2), (6, 3), (4, 4)] {
        let grid = Grid::new(ranks, per_node).unwrap();
        for most in [1, 9, 60] {
            let mut matrix = vec![0; (ranks * ranks) as usize];
            for from in 0..ranks {
                for to in 0..=from {
                    let count = rng.random_range(0..=most);
                    matrix[(from * ranks + to) as usize] = count;
                    matrix[(to * ranks + from) as usize] = count;
                }
            }
            let counts = Arc::new(Counts::of_matrix(&grid, matrix).unwrap());
            let shape = shape(&mut rng, Collective::AllToAllV, 0);
            let problem = Problem::new(grid, Rank(0), &shape, Rank(0)).with_counts(counts);
            let schedules = schedules(&mut rng, &problem, Algorithm::Direct, 0);
            assert!(schedules.iter().all(|s| s.problem().placement == Placement::InPlace));
            check(&schedules, BUDGET).unwrap_or_else(|flaw| panic!("{problem:?}: {flaw}"));
        }
    }
}

#[test]
fn scans_are_right_for_1_to_17_ranks() {
    let (mut rng, mut read) = (SmallRng::seed_from_u64(11), 0);
    for grid in grids().filter(|grid| grid.levels().is_empty()) {
        for collective in [Collective::Scan, Collective::ExScan] {
            for algorithm in [Algorithm::Direct, Algorithm::Hierarchical] {
                for dtype in [DType::F32, DType::F16] {
                    for count in [0, 1, 7, 300] {
                        let shape = Shape { dtype, ..shape(&mut rng, collective, count) };
                        let problem = Problem::new(grid, Rank(0), &shape, Rank(0));
                        for kinds in 0..3 {
                            let schedules = schedules(&mut rng, &problem, algorithm, kinds);
                            if let Err(flaw) = check(&schedules, BUDGET) {
                                panic!("{algorithm:?} {shape} on {grid:?}, {kinds}: {flaw}");
                            }
                            let Some(readers) = in_place(&schedules) else { continue };
                            if let Err(flaw) = check(&readers, BUDGET) {
                                panic!("{shape} on {grid:?}, read in place: {flaw}");
                            }
                            read += 1;
                        }
                    }
                }
            }
        }
    }
    assert!(read > 100, "inputs were read in place {read} times only");
}

#[test]
fn every_root_of_blocks_that_differ_is_right() {
    let mut rng = SmallRng::seed_from_u64(12);
    for collective in [Collective::GatherV, Collective::ScatterV] {
        for (ranks, per_node) in [(16, 1), (16, 4), (16, 16), (15, 3)] {
            let grid = Grid::new(ranks, per_node).unwrap();
            for root in (0..ranks).map(Rank) {
                let counts = counts(&mut rng, collective, grid, Spread::Wide);
                let shape = shape(&mut rng, collective, 0);
                let problem = Problem::new(grid, Rank(0), &shape, root).with_counts(counts);
                let schedules = schedules(&mut rng, &problem, Algorithm::Direct, 2);
                check(&schedules, BUDGET).unwrap_or_else(|flaw| panic!("{problem:?}: {flaw}"));
            }
        }
    }
}

/// A rank that takes nearly all needs no more room for what arrives than one of ranks that take as much each.
#[test]
fn slots_do_not_grow_with_how_much_blocks_differ() {
    for (ranks, per_node) in [(8, 1), (8, 2)] {
        let grid = Grid::new(ranks, per_node).unwrap();
        let slots = |counts: Vec<u64>| {
            let shape = Shape {
                collective: Collective::ReduceScatterV,
                dtype: DType::F32,
                op: ReduceOp::Sum,
                count: 0,
            };
            let counts = Arc::new(Counts::of_blocks(counts).unwrap());
            let problem = Problem::new(grid, Rank(0), &shape, Rank(0)).with_counts(counts);
            build(Algorithm::Direct, &problem, &PARAMS).unwrap().slot_bytes()
        };
        let (even, uneven) = (slots(vec![1000; 8]), slots([vec![7993], vec![1; 7]].concat()));
        assert!(even > 0 && uneven <= 2 * even, "{uneven} instead of {even} bytes");
    }
}

/// The proof sees sums of sums where the elements' type would round each.
#[test]
fn a_scan_of_partial_folds_in_a_narrow_type_is_found() {
    let grid = Grid::new(4, 1).unwrap();
    let shape = Shape { collective: Collective::Scan, dtype: DType::F32, op: ReduceOp::Sum, count: 10 };
    let problem = Problem::new(grid, Rank(0), &shape, Rank(0));
    let mut chain = schedules(&mut SmallRng::seed_from_u64(1), &problem, Algorithm::Hierarchical, 1);
    check(&chain, BUDGET).unwrap();
    // As many bytes of half as wide elements.
    for schedule in &mut chain {
        schedule.problem.shape = Shape { dtype: DType::F16, count: 20, ..shape };
    }
    let flaw = check(&chain, BUDGET).unwrap_err();
    assert!(flaw.to_string().contains("in rank order"), "{flaw}");
}

/// The proof sees a contribution that is missing, or in another order.
#[test]
fn a_scan_in_the_wrong_order_is_found() {
    let grid = Grid::new(4, 4).unwrap();
    let shape = Shape { collective: Collective::Scan, dtype: DType::F32, op: ReduceOp::Sum, count: 10 };
    let problem = Problem::new(grid, Rank(0), &shape, Rank(0));
    let right = schedules(&mut SmallRng::seed_from_u64(1), &problem, Algorithm::Direct, 1);
    let changes: [fn(&mut [BufferOffset]); 2] = [|places| places.swap(1, 2), |places| places[1] = places[2]];
    for change in changes {
        let mut wrong = right.clone();
        change(&mut wrong[3].places);
        let flaw = check(&wrong, BUDGET).unwrap_err();
        assert!(flaw.to_string().contains("in rank order"), "{flaw}");
    }
}

/// The proof sees what is wrong with blocks that differ.
#[test]
fn a_piece_in_the_wrong_place_is_found() {
    let grid = Grid::new(4, 2).unwrap();
    let mut rng = SmallRng::seed_from_u64(3);
    for collective in UNEVEN {
        let counts = match collective {
            Collective::AllToAllV => Counts::of_matrix(&grid, (1..=16).collect()),
            _ => Counts::of_blocks(vec![3, 9, 1, 5]),
        };
        let shape = shape(&mut rng, collective, 0);
        let problem = Problem::new(grid, Rank(0), &shape, Rank(1)).with_counts(Arc::new(counts.unwrap()));
        let right = schedules(&mut rng, &problem, Algorithm::Direct, 1);
        check(&right, BUDGET).unwrap();
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
fn what_cannot_be_built_is_refused() {
    let grid = Grid::new(3, 1).unwrap();
    let built = |problem: &Problem| build(Algorithm::Direct, problem, &PARAMS).unwrap_err().to_string();
    let shape = |collective, op| Shape { collective, dtype: DType::F32, op, count: 3 };
    let problem = |collective| Problem::new(grid, Rank(0), &shape(collective, ReduceOp::Sum), Rank(0));
    let average = Problem::new(grid, Rank(0), &shape(Collective::Scan, ReduceOp::Avg), Rank(0));
    assert!(built(&average).contains("average of a scan"));
    assert!(built(&problem(Collective::GatherV)).contains("counts"), "none");
    let counts = Arc::new(Counts::of_blocks(vec![1, 2, 3]).unwrap());
    assert!(built(&problem(Collective::Gather).with_counts(counts.clone())).contains("counts"));
    assert!(built(&problem(Collective::AllToAllV).with_counts(counts)).contains("counts"));
    let counts = Arc::new(Counts::of_blocks(vec![1, 2]).unwrap());
    assert!(built(&problem(Collective::GatherV).with_counts(counts)).contains("counts"), "of other ranks");
    let counts = Arc::new(Counts::of_matrix(&grid, (1..=9).collect()).unwrap());
    assert!(built(&problem(Collective::AllToAllV).with_counts(counts)).contains("one tensor"));
}
