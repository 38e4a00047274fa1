//! Grids of two levels and more: every reduction whose order the levels are part of, on all grids of up to 16 nodes, and on some of up to
//! 1,024. All fold in the same order. Of a part of a chunk, on nodes of one rank, reduces are from every root; of several chunks, and on
//! nodes of two ranks (of three: up to 8 nodes), from one root each.

use super::*;

/// Small chunks, so that a tensor has several with few elements.
const PARAMS: Params = Params { chunk_bytes: 2048, lanes: 2, lane_bytes: 2048, depth: 2 };

/// Elements of two chunks and a part: a lane and a slot are used again. A reduce-scatter's blocks are in a chunk together.
const CHUNKS: u64 = 512 * 2 + 130;
/// Elements of a part of a chunk; of a reduce-scatter's blocks, several chunks where there are eight or more.
const FEW: u64 = 70;

const REDUCTIONS: [Collective; 3] = [Collective::AllReduce, Collective::Reduce, Collective::ReduceScatter];

/// The lists of at most so many levels that differ among so many units: no group is larger than all.
fn lists(units: u32, most: usize) -> Vec<Vec<u32>> {
    let mut all = vec![Vec::new()];
    if most > 0 {
        for size in 2..=units {
            let above = lists(units.div_ceil(size), most - 1);
            all.extend(above.into_iter().map(|above| [vec![size], above].concat()));
        }
    }
    all
}

/// All grids of so many nodes with several levels, each once: a group has any number of units.
fn grids(nodes: u32, locals: u32) -> Vec<Grid> {
    let flat = Grid::new(nodes * locals, locals).unwrap();
    let mut grids: Vec<_> =
        lists(nodes, Levels::MOST).iter().map(|sizes| flat.with_levels(levels(sizes))).collect();
    grids.retain(|grid| grid.levels().len() > 1);
    grids
}

/// Those that promise the order.
fn ordered(collective: Collective) -> impl Iterator<Item = Algorithm> {
    serving(collective).filter(|algorithm| algorithm.keeps_order())
}

fn build_all(
    (collective, algorithm): (Collective, Algorithm),
    grid: Grid,
    count: u64,
    root: Rank,
) -> Vec<Schedule> {
    let op = if count.is_multiple_of(2) { ReduceOp::Sum } else { ReduceOp::Avg };
    let shape = Shape { collective, dtype: DType::F32, op, count };
    let problem = |rank| Problem::new(grid, Rank(rank), &shape, root);
    let schedules: Vec<_> =
        (0..grid.ranks()).map(|rank| build(algorithm, &problem(rank), &PARAMS).unwrap()).collect();
    schedules.iter().for_each(|schedule| costs_hold(schedule, schedules[0].cost()));
    schedules
}

fn proves(what: (Collective, Algorithm), grid: Grid, count: u64, root: Rank) {
    let schedules = build_all(what, grid, count, root);
    if let Err(flaw) = proves_all(what.1, &schedules, BUDGET) {
        panic!("{:?} {} of {count} on {grid:?} from {root}: {flaw}", what.1, what.0);
    }
}

/// Proves every reduction whose order the levels are part of; those that have a root from each of these.
fn reduces(grid: Grid, count: u64, roots: impl IntoIterator<Item = u32> + Clone) {
    for collective in REDUCTIONS {
        for algorithm in ordered(collective) {
            let roots = roots.clone().into_iter().map(Rank);
            for root in roots.take(if collective.has_root() { usize::MAX } else { 1 }) {
                let count = if collective.is_blocked() { FEW } else { count };
                proves((collective, algorithm), grid, count, root);
            }
        }
    }
}

#[test]
fn hierarchical_all_reduces_are_right_on_1_to_16_nodes() {
    for nodes in 1..=16 {
        for grid in grids(nodes, 1) {
            // Slices are of 64 elements at least: in one chunk, all nodes have one, or some; and two chunks and a part.
            for count in [1, 65, 64 * 16 + 1, 512, 512 * 2 + 130] {
                proves((Collective::AllReduce, Algorithm::Hierarchical), grid, count, Rank(0));
            }
        }
    }
}

#[test]
fn every_reduction_is_in_order_on_1_to_16_nodes_of_one_rank_from_every_root() {
    for grid in (1..=16).flat_map(|nodes| grids(nodes, 1)) {
        reduces(grid, FEW, 0..grid.ranks());
    }
}

/// From one root each.
#[test]
fn every_reduction_of_several_chunks_is_in_order_on_1_to_16_nodes_of_one_rank() {
    for nodes in 1..=16 {
        for (number, grid) in (0..).zip(grids(nodes, 1)) {
            reduces(grid, CHUNKS, [number % nodes]);
        }
    }
}

/// From one root each: with several grids of as many nodes, leaders and others.
#[test]
fn every_reduction_of_several_chunks_is_in_order_on_hosts_of_several_ranks() {
    for (nodes, locals) in (1..=16).map(|nodes| (nodes, 2)).chain((1..=8).map(|nodes| (nodes, 3))) {
        for (number, grid) in (0..).zip(grids(nodes, locals)) {
            reduces(grid, CHUNKS, [number % grid.ranks()]);
        }
    }
}

#[test]
fn a_sample_of_up_to_1024_nodes() {
    for (nodes, sizes) in [
        (27, &[3, 3][..]),
        (32, &[8, 4]),
        (61, &[4, 4]),
        (64, &[4, 4, 4]),
        (100, &[8, 4]),
        (128, &[2, 4, 4, 4]),
        (257, &[8, 4]),
        (512, &[8, 8, 8]),
        (1023, &[8, 4, 4, 4]),
        (1024, &[32, 32]),
    ] {
        let grid = Grid::new(nodes, 1).unwrap().with_levels(levels(sizes));
        // As many slices as there may be steps for.
        let count = if nodes > 128 { 64 * 3 } else { 512 };
        proves((Collective::AllReduce, Algorithm::Hierarchical), grid, count, Rank(0));
    }
}

/// Each byte of a tensor leaves a node as often as without levels, and no message more is sent than the groups have pairs.
#[test]
fn levels_save_messages() {
    let messages = |sizes: &[u32]| {
        let grid = Grid::new(64, 1).unwrap().with_levels(levels(sizes));
        let params = Params { chunk_bytes: 1 << 20, ..PARAMS };
        let shape =
            Shape { collective: Collective::AllReduce, dtype: DType::F32, op: ReduceOp::Sum, count: 64 * 64 };
        let schedules: Vec<_> = (0..64)
            .map(|rank| {
                let problem = Problem::new(grid, Rank(rank), &shape, Rank(0));
                build(Algorithm::Hierarchical, &problem, &params).unwrap()
            })
            .collect();
        proves_all(Algorithm::Hierarchical, &schedules, BUDGET).unwrap().messages
    };
    // Of a node: there and back, with the other units of its group at each level.
    let of_a_node = |others: usize| 64 * 2 * others;
    assert_eq!(messages(&[8]), of_a_node(7 + 7));
    assert_eq!(messages(&[4, 4]), of_a_node(3 + 3 + 3));
    assert_eq!(messages(&[2, 2, 2, 2]), of_a_node(1 + 1 + 1 + 1 + 3));
}

/// Slots are as large as the slices of their level: however groups are cut, a chunk's have room for it, less the node's own slice.
#[test]
fn slots_hold_no_more_than_a_chunk() {
    let count = 64 * 64;
    for sizes in [&[][..], &[8], &[4, 4], &[4, 4, 4], &[16], &[4, 16], &[64]] {
        let grid = Grid::new(64, 1).unwrap().with_levels(levels(sizes));
        let shape = Shape { collective: Collective::AllReduce, dtype: DType::F32, op: ReduceOp::Sum, count };
        let params = Params { chunk_bytes: 4 * count as usize, lane_bytes: 4 * count as usize, ..PARAMS };
        for rank in 0..64 {
            let problem = Problem::new(grid, Rank(rank), &shape, Rank(0));
            let schedule = build(Algorithm::Hierarchical, &problem, &params).unwrap();
            assert_eq!(schedule.slot_bytes(), 4 * 64 * 63, "{sizes:?} on {rank}");
        }
    }
}

/// The order is that of the levels, and the proof tells it from any other.
#[test]
fn another_order_is_seen() {
    let grid = |sizes: &[u32]| Grid::new(12, 1).unwrap().with_levels(levels(sizes));
    let lists: [&[u32]; 6] = [&[], &[2], &[4], &[2, 3], &[3, 2], &[2, 2]];
    for built in lists {
        for algorithm in [Algorithm::Direct, Algorithm::Hierarchical, Algorithm::Bruck] {
            let right = build_all((Collective::AllReduce, algorithm), grid(built), 1000, Rank(0));
            for stated in lists {
                let mut schedules = right.clone();
                schedules.iter_mut().for_each(|schedule| schedule.problem.grid = grid(stated));
                let proof = check(&schedules, BUDGET).unwrap();
                let same = grid(built) == grid(stated);
                assert_eq!(proof.in_order, same, "{algorithm:?} built for {built:?}, not {stated:?}");
            }
        }
    }
    let ring = build_all((Collective::AllReduce, Algorithm::Ring), grid(&[2, 3]), 1000, Rank(0));
    assert!(!check(&ring, BUDGET).unwrap().in_order);
}
