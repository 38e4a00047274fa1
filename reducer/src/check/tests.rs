mod blocks;
mod everywhere;
mod hosts;
mod levels;
mod uneven;

use super::*;
use crate::dtype::{DType, ReduceOp};
use crate::grid::tests::{any_levels, levels};
use crate::grid::{Grid, Levels};
use crate::header::Shape;
use crate::schedule::{Access, Algorithm, Buffer, BufferOffset, Params, Problem, build};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const BUDGET: usize = 1 << 20;

/// Small chunks and few lanes, so that small counts meet every kind of reuse.
const PARAMS: Params = Params { chunk_bytes: 1024, lanes: 2, lane_bytes: 1024, depth: 2 };

/// The algorithms that serve a collective.
fn serving(collective: Collective) -> impl Iterator<Item = Algorithm> {
    Algorithm::ALL.into_iter().filter(move |algorithm| algorithm.applies_to(collective))
}

fn one_of(rng: &mut SmallRng, collective: Collective) -> Algorithm {
    let serving: Vec<_> = serving(collective).collect();
    serving[rng.random_range(0..serving.len())]
}

/// Whether levels matter to an algorithm.
fn folds_by_levels(algorithm: Algorithm) -> bool {
    use Algorithm::*;
    matches!(algorithm, Direct | Hierarchical | Bruck | Binomial)
}

fn collective(
    collective: Collective,
    algorithm: Algorithm,
    grid: Grid,
    count: u64,
    op: ReduceOp,
) -> Vec<Schedule> {
    mixed(collective, algorithm, grid, count, op, |_| Access::Host)
}

/// The same, with some ranks' tensors in an accelerator's memory, and some of those within reach of a NIC.
fn mixed(
    collective: Collective,
    algorithm: Algorithm,
    grid: Grid,
    count: u64,
    op: ReduceOp,
    mut access: impl FnMut(u32) -> Access,
) -> Vec<Schedule> {
    let shape = Shape { collective, dtype: DType::F32, op, count };
    let root = Rank(grid.ranks() / 2);
    let problem = |rank| Problem { access: access(rank), ..Problem::new(grid, Rank(rank), &shape, root) };
    let build = |problem| build(algorithm, &problem, &PARAMS).unwrap();
    let schedules: Vec<_> = (0..grid.ranks()).map(problem).map(build).collect();
    schedules.iter().for_each(|schedule| costs_hold(schedule, schedules[0].cost()));
    schedules
}

/// Proves them, and that an algorithm which promises the order of folds has it.
fn proves_all(algorithm: Algorithm, schedules: &[Schedule], budget: usize) -> Result<Proof, String> {
    let proof = check(schedules, budget).map_err(|flaw| flaw.to_string())?;
    match proof.in_order || !algorithm.keeps_order() {
        true => Ok(proof),
        false => Err("it does not fold in order".into()),
    }
}

/// No peer is sent more than the cost says, which is the same on all ranks.
fn costs_hold(schedule: &Schedule, cost: u64) {
    assert_eq!(schedule.cost(), cost);
    for steps in [Some(schedule), schedule.in_place().map(|steps| &**steps)].into_iter().flatten() {
        let mut sent = std::collections::HashMap::new();
        for step in steps.steps() {
            if let Action::Send { to, len, .. } = step.action {
                *sent.entry(to).or_insert(0) += len as u64 + 64;
            }
        }
        let most = sent.values().max().copied().unwrap_or(0);
        assert!(most <= cost, "{most} of {cost}: {:?}", schedule.problem());
    }
}

#[test]
fn tensors_on_accelerators_and_on_hosts_meet_in_one_collective() {
    let mut rng = SmallRng::seed_from_u64(5);
    for grid in grids() {
        for algorithm in Algorithm::ALL {
            if !folds_by_levels(algorithm) && !grid.levels().is_empty() {
                continue;
            }
            for count in [0, 1, 65, 257, 700, 1000] {
                let op = if rng.random() { ReduceOp::Sum } else { ReduceOp::Avg };
                let (kind, share) = (rng.random(), [0.5, 1.0][usize::from(rng.random::<bool>())]);
                let kind = if kind { Collective::Broadcast } else { Collective::AllReduce };
                let schedules = mixed(kind, algorithm, grid, count, op, |_| {
                    let device = if rng.random() { Access::Copies } else { Access::Direct };
                    if rng.random_bool(share) { device } else { Access::Host }
                });
                if let Err(flaw) = check(&schedules, BUDGET) {
                    panic!("{kind} {algorithm:?} on {grid:?}, {count} elements, {op}: {flaw}");
                }
            }
        }
    }
}

#[test]
fn a_tensor_that_nics_reach_is_reduced_on_its_device() {
    let grids: [(u32, &[u32]); 6] = [(2, &[2]), (3, &[3]), (4, &[2]), (4, &[4]), (3, &[]), (5, &[2, 2])];
    for (nodes, sizes) in grids {
        let grid = Grid::new(nodes, 1).unwrap().with_levels(levels(sizes));
        for algorithm in serving(Collective::AllReduce) {
            for direct in [1, (1 << nodes) - 1, 0b101] {
                let access = |rank| if direct >> rank & 1 == 1 { Access::Direct } else { Access::Host };
                let mut schedules =
                    mixed(Collective::AllReduce, algorithm, grid, 1000, ReduceOp::Avg, access);
                check(&schedules, BUDGET).unwrap_or_else(|flaw| panic!("{algorithm:?} on {grid:?}: {flaw}"));
                let host = collective(Collective::AllReduce, algorithm, grid, 1000, ReduceOp::Avg);
                let messages = |schedule: &Schedule| {
                    let (mut sent, mut received) = (Vec::new(), Vec::new());
                    for step in schedule.steps() {
                        match step.action {
                            Action::Send { to, round, len, .. } => sent.push((to, round, len)),
                            Action::Receive { from, round, len, .. }
                            | Action::ReceiveReduce { from, round, len, .. } => {
                                received.push((from, round, len))
                            }
                            _ => {}
                        }
                    }
                    (sent, received)
                };
                assert_eq!(
                    messages(&schedules[0]),
                    messages(&host[0]),
                    "the same messages in the same order"
                );
                assert_eq!(schedules[0].lane_chunks(), 0, "nothing is staged");
                assert!(schedules[0].slot_bytes() > 0);
                // A receive that reduces, which the CPU would do, is refused.
                let step = schedules[0].steps.iter_mut().find_map(|step| match step.action {
                    Action::Receive { from, round, into, len } if into.buffer == Buffer::Slot => {
                        step.action = Action::ReceiveReduce { from, round, into, len };
                        Some(())
                    }
                    _ => None,
                });
                assert!(step.is_some());
                let flaw = check(&schedules, BUDGET).unwrap_err();
                assert!(matches!(flaw, Flaw::Bounds { what, .. } if what.contains("arrives")), "{flaw}");
            }
        }
    }
}

#[test]
fn computing_on_a_tensor_of_an_accelerator_is_refused() {
    let grid = Grid::new(2, 1).unwrap().with_levels(levels(&[2]));
    let mut schedules = collective(Collective::AllReduce, Algorithm::Ring, grid, 128, ReduceOp::Sum);
    schedules.iter_mut().for_each(|schedule| schedule.problem.access = Access::Copies);
    let flaw = check(&schedules, BUDGET).unwrap_err();
    assert!(matches!(flaw, Flaw::Bounds { what, .. } if what.contains("reach")), "{flaw}");
}

fn grids() -> impl Iterator<Item = Grid> {
    (1..=17u32).flat_map(|ranks| {
        (1..=ranks).filter(move |per| ranks % per == 0).flat_map(move |per_node| {
            let grid = Grid::new(ranks, per_node).unwrap();
            let mut of_one = vec![1, 2, 3, 4, grid.nodes()];
            of_one.retain(|&size| size <= grid.nodes());
            of_one.sort_unstable();
            of_one.dedup();
            of_one.into_iter().map(move |size| grid.with_levels(levels(&[size])))
        })
    })
}

const COUNTS: [u64; 12] = [0, 1, 2, 3, 63, 64, 65, 200, 257, 511, 700, 1000];

#[test]
fn every_all_reduce_is_right_for_1_to_17_ranks() {
    for grid in grids() {
        for algorithm in serving(Collective::AllReduce) {
            if !folds_by_levels(algorithm) && !grid.levels().is_empty() {
                continue;
            }
            for count in COUNTS {
                // The direct algorithm's messages are many: fewer chunks say as much.
                let op = if count % 2 == 0 { ReduceOp::Sum } else { ReduceOp::Avg };
                let schedules = collective(Collective::AllReduce, algorithm, grid, count, op);
                if let Err(flaw) = proves_all(algorithm, &schedules, BUDGET) {
                    panic!("{algorithm:?} on {grid:?}, {count} elements, {op}: {flaw}");
                }
            }
        }
    }
}

#[test]
fn every_all_reduce_in_place_is_right_for_2_to_17_ranks() {
    for ranks in 2..=17u32 {
        let grid = Grid::new(ranks, ranks).unwrap();
        // The last count makes several pieces.
        for (count, op) in
            COUNTS.into_iter().chain([200_000]).zip([ReduceOp::Sum, ReduceOp::Avg].into_iter().cycle())
        {
            let staged = collective(Collective::AllReduce, Algorithm::Hierarchical, grid, count.max(1), op);
            let in_place: Vec<_> =
                staged.iter().map(|schedule| (**schedule.in_place().unwrap()).clone()).collect();
            check(&in_place, 0)
                .unwrap_or_else(|flaw| panic!("in place on {grid:?}, {count} elements, {op}: {flaw}"));
        }
    }
    let staged =
        collective(Collective::AllReduce, Algorithm::Ring, Grid::new(4, 2).unwrap(), 100, ReduceOp::Sum);
    assert!(staged.iter().all(|schedule| schedule.in_place().is_none()));
}

/// Accelerators fold on some nodes; on others tensors are staged, or lie in host memory.
#[test]
fn every_all_reduce_by_accelerators_is_right_for_2_to_17_ranks() {
    let mut rng = SmallRng::seed_from_u64(6);
    for grid in grids().filter(|grid| grid.most_locals() > 1) {
        for algorithm in serving(Collective::AllReduce) {
            if !folds_by_levels(algorithm) && !grid.levels().is_empty() {
                continue;
            }
            for count in [1, 65, 257, 700, 1000] {
                let op = if rng.random() { ReduceOp::Sum } else { ReduceOp::Avg };
                let folding: Vec<_> = (0..grid.nodes()).map(|_| rng.random_bool(0.7)).collect();
                let folds = |rank: u32| folding[grid.node_of(Rank(rank)) as usize];
                let access = |rank| if folds(rank) || rng.random() { Access::Copies } else { Access::Host };
                let mut schedules = mixed(Collective::AllReduce, algorithm, grid, count, op, access);
                for (rank, schedule) in (0..).zip(&mut schedules).filter(|(rank, _)| folds(*rank)) {
                    let views = schedule.in_place.as_deref().unwrap_or_else(|| panic!("{rank} on {grid:?}"));
                    *schedule = views.clone();
                }
                if let Err(flaw) = proves_all(algorithm, &schedules, BUDGET) {
                    panic!("{algorithm:?} on {grid:?}, {count} elements, {op}: {flaw}");
                }
            }
        }
    }
}

#[test]
fn ending_before_others_have_written_is_refused() {
    for ranks_per_node in [2, 4] {
        let grid = Grid::new(4, ranks_per_node).unwrap().with_levels(levels(&[2]));
        let staged = mixed(Collective::AllReduce, Algorithm::Hierarchical, grid, 100, ReduceOp::Sum, |_| {
            Access::Copies
        });
        let views: Vec<_> = staged.iter().map(|schedule| (**schedule.in_place().unwrap()).clone()).collect();
        check(&views, BUDGET).unwrap();
        let mut refused = 0;
        for rank in 0..4 {
            // The last wait asks for what has been waited for before.
            let last = |step: &Step| matches!(step.action, Action::WaitAll { .. });
            let at = views[rank].steps.iter().rposition(last).unwrap();
            let mut broken = views.clone();
            broken[rank].steps[at].action = Action::WaitAll { flag: LaneFlag::Staged };
            let flaw = check(&broken, BUDGET).unwrap_err();
            refused += usize::from(matches!(flaw, Flaw::Late { owner, .. } if owner.0 as usize == rank));
        }
        assert!(refused >= 3, "{refused} on {grid:?}");
    }
}

#[test]
fn every_broadcast_and_barrier_is_right_for_1_to_17_ranks() {
    for grid in grids().filter(|grid| grid.levels().is_empty()) {
        for count in [0, 1, 65, 700, 1000] {
            for algorithm in serving(Collective::Broadcast) {
                let schedules = collective(Collective::Broadcast, algorithm, grid, count, ReduceOp::Sum);
                let proof = check(&schedules, BUDGET);
                proof.unwrap_or_else(|flaw| panic!("{algorithm:?} broadcast on {grid:?}, {count}: {flaw}"));
            }
        }
        for algorithm in serving(Collective::Barrier) {
            let schedules = collective(Collective::Barrier, algorithm, grid, 0, ReduceOp::Sum);
            let proof = check(&schedules, BUDGET);
            proof.unwrap_or_else(|flaw| panic!("{algorithm:?} barrier on {grid:?}: {flaw}"));
        }
    }
}

#[test]
fn no_node_sends_more_than_its_share() {
    let grids: [(u32, u32, &[u32]); 9] = [
        (4, 2, &[2]),
        (8, 1, &[4]),
        (16, 2, &[4]),
        (8, 1, &[2]),
        (6, 1, &[6]),
        (2, 1, &[]),
        (12, 1, &[2, 3]),
        (16, 1, &[2, 2, 2]),
        (16, 1, &[4, 2]),
    ];
    for (ranks, per_node, sizes) in grids {
        let grid = Grid::new(ranks, per_node).unwrap().with_levels(levels(sizes));
        // A multiple of 64 for every slice of every chunk.
        let count = 256 * u64::from(grid.nodes()) * 64;
        let params = Params { chunk_bytes: 1 << 20, lanes: 2, lane_bytes: 1 << 20, depth: 2 };
        let shape = Shape { collective: Collective::AllReduce, dtype: DType::F32, op: ReduceOp::Sum, count };
        let doubling = grid.nodes().is_power_of_two().then_some(Algorithm::HalvingDoubling);
        for algorithm in [Algorithm::Ring, Algorithm::Hierarchical].into_iter().chain(doubling) {
            let schedules: Vec<_> = (0..ranks)
                .map(|rank| {
                    build(algorithm, &Problem::new(grid, Rank(rank), &shape, Rank(0)), &params).unwrap()
                })
                .collect();
            let proof = check(&schedules, 1 << 30).unwrap();
            let nodes = u64::from(grid.nodes());
            assert_eq!(proof.largest_share, count * 4 * 2 * (nodes - 1) / nodes, "{algorithm:?} on {grid:?}");
        }
    }
}

/// Removes one edge.
fn drop_edge(schedule: &mut Schedule, edge: usize) {
    let to = schedule.edges.remove(edge);
    schedule.indegree[to as usize] -= 1;
    for start in &mut schedule.edge_start {
        if *start as usize > edge {
            *start -= 1;
        }
    }
}

/// Every edge of some collectives is needed: without it, the proof fails. (Edges that only repeat what follows from
/// others are told apart: they lead from a step to one that is reachable otherwise.)
#[test]
fn a_missing_edge_is_found() {
    let mut found = 0;
    let grids: [(u32, u32, &[u32]); 6] =
        [(2, 1, &[2]), (3, 1, &[3]), (4, 1, &[2]), (2, 2, &[]), (4, 2, &[2]), (5, 1, &[2, 2])];
    for (ranks, per_node, sizes) in grids {
        let grid = Grid::new(ranks, per_node).unwrap().with_levels(levels(sizes));
        for algorithm in serving(Collective::AllReduce) {
            let whole = collective(Collective::AllReduce, algorithm, grid, 1000, ReduceOp::Avg);
            let (mut missed, mut total) = (Vec::new(), 0);
            for rank in 0..whole.len() {
                for edge in 0..whole[rank].edges.len() {
                    let mut broken = whole.clone();
                    drop_edge(&mut broken[rank], edge);
                    total += 1;
                    match check(&broken, BUDGET) {
                        Err(_) => found += 1,
                        Ok(_) => missed.push((rank, edge)),
                    }
                }
            }
            // Order that another path gives as well (through a peer's flags, say) may be dropped; most may not.
            assert!(
                missed.len() * 2 < total,
                "{algorithm:?} on {grid:?}: {} of {total} not needed",
                missed.len()
            );
        }
    }
    assert!(found > 500, "only {found}");
}

#[test]
fn a_dropped_acknowledgement_edge_is_a_race() {
    let grid = Grid::new(2, 1).unwrap().with_levels(levels(&[2]));
    let mut schedules = collective(Collective::AllReduce, Algorithm::Hierarchical, grid, 128, ReduceOp::Sum);
    // The send that leads anywhere: its bytes are overwritten by the message that comes back.
    let send = |(i, step): (usize, &crate::schedule::Step)| {
        matches!(step.action, Action::Send { .. }) && !successors(&schedules[0], i).is_empty()
    };
    let send = schedules[0].steps.iter().enumerate().position(send).unwrap();
    let edge = schedules[0].edge_start[send] as usize;
    drop_edge(&mut schedules[0], edge);
    let flaw = check(&schedules, BUDGET).unwrap_err();
    assert!(matches!(flaw, Flaw::Race { .. }), "{flaw}");
}

#[test]
fn mutated_schedules_are_refused() {
    let mut kinds = std::collections::BTreeMap::<&str, usize>::new();
    let mut refused = 0;
    for seed in 0..2000u64 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let shapes: [(u32, u32, &[u32]); 7] = [
            (2, 1, &[2]),
            (3, 1, &[3]),
            (4, 1, &[2]),
            (4, 2, &[2]),
            (3, 3, &[]),
            (6, 2, &[2]),
            (7, 1, &[2, 2]),
        ];
        let (ranks, per_node, sizes) = shapes[rng.random_range(0..shapes.len())];
        let grid = Grid::new(ranks, per_node).unwrap().with_levels(levels(sizes));
        let algorithm = one_of(&mut rng, Collective::AllReduce);
        let (count, views) = (rng.random_range(1..900), per_node > 1 && rng.random());
        let access = if views { Access::Copies } else { Access::Host };
        let mut schedules = mixed(Collective::AllReduce, algorithm, grid, count, ReduceOp::Avg, |_| access);
        if views {
            schedules = schedules.iter().map(|schedule| (**schedule.in_place().unwrap()).clone()).collect();
        }
        let rank = rng.random_range(0..schedules.len());
        let schedule = &mut schedules[rank];
        let at = rng.random_range(0..schedule.steps.len());
        let places = schedule.places.len();
        let what = match &mut schedule.steps[at].action {
            Action::Send { round, .. }
            | Action::Receive { round, .. }
            | Action::ReceiveReduce { round, .. }
                if rng.random() =>
            {
                *round += 1;
                "round"
            }
            Action::Receive { from, round, into, len } => {
                let (from, round, into, len) = (*from, *round, *into, *len);
                schedule.steps[at].action = Action::ReceiveReduce { from, round, into, len };
                "reduced instead of placed"
            }
            Action::ReceiveReduce { from, round, into, len } => {
                let (from, round, into, len) = (*from, *round, *into, *len);
                schedule.steps[at].action = Action::Receive { from, round, into, len };
                "placed instead of reduced"
            }
            Action::Send { len, .. } => {
                *len += 64;
                "length"
            }
            Action::Fold { destinations, sources, .. } if *destinations > 1 && rng.random() => {
                (*destinations, *sources) = (*destinations - 1, *sources + 1);
                "a result not written, but reduced"
            }
            Action::Fold { sources, .. } => {
                *sources -= 1;
                "a contribution skipped"
            }
            Action::Copy { into, .. } => {
                into.offset += 4;
                "a copy misplaced"
            }
            Action::Finish { at, .. } => {
                *at = BufferOffset { buffer: Buffer::Data, offset: at.offset + 4 };
                "a division misplaced"
            }
            Action::Signal { flag } => {
                *flag = if *flag == LaneFlag::Consumed { LaneFlag::Staged } else { LaneFlag::Consumed };
                "another flag"
            }
            // Later chunks wait for the same.
            Action::WaitAll { flag: LaneFlag::Consumed } => continue,
            Action::Wait { flag, .. } | Action::WaitAll { flag } => {
                *flag = if *flag == LaneFlag::Final { LaneFlag::Staged } else { LaneFlag::Final };
                "another flag waited for"
            }
            Action::WaitFree => continue,
        };
        assert_eq!(places, schedule.places.len());
        assert!(
            check(&schedules, BUDGET).is_err(),
            "seed {seed}: {what} at {rank}/{at} of {algorithm:?} {grid:?}"
        );
        *kinds.entry(what).or_default() += 1;
        refused += 1;
    }
    assert!(refused > 1000 && kinds.len() == 10, "{kinds:?}");
}

#[test]
fn waiting_in_a_circle_is_a_deadlock() {
    let grid = Grid::new(2, 1).unwrap();
    let mut schedules = collective(Collective::AllReduce, Algorithm::Direct, grid, 1, ReduceOp::Sum);
    // Each rank sends only after it has received: no rank begins.
    for schedule in &mut schedules {
        let position = |wanted: fn(&Action) -> bool| {
            schedule.steps.iter().position(|step| wanted(&step.action)).unwrap() as u32
        };
        let send = position(|action| matches!(action, Action::Send { .. }));
        let receive = position(|action| matches!(action, Action::Receive { .. }));
        let end = schedule.edge_start[receive as usize + 1] as usize;
        schedule.edges.insert(end, send);
        schedule.edge_start[receive as usize + 1..].iter_mut().for_each(|start| *start += 1);
        schedule.indegree[send as usize] += 1;
    }
    let flaw = check(&schedules, BUDGET).unwrap_err();
    assert!(matches!(&flaw, Flaw::Deadlock { cycle } if cycle.len() >= 4), "{flaw}");
}

#[test]
fn slots_beyond_the_budget_are_refused() {
    let grid = Grid::new(3, 1).unwrap().with_levels(levels(&[3]));
    let schedules = collective(Collective::AllReduce, Algorithm::Direct, grid, 64, ReduceOp::Sum);
    assert_eq!(schedules[0].slot_bytes(), 3 * 256);
    assert!(matches!(check(&schedules, 767), Err(Flaw::Slots { needed: 768, .. })));
    assert!(check(&schedules[..2], 768).is_err());
}

#[test]
fn credit_ahead_of_a_message_that_may_come_too_early_is_refused() {
    let grid = Grid::new(2, 1).unwrap().with_levels(levels(&[2]));
    let mut schedules = collective(Collective::AllReduce, Algorithm::Hierarchical, grid, 128, ReduceOp::Sum);
    let behind = |schedule: &Schedule| schedule.behind_sends.iter().position(|&behind| behind);
    let receive = behind(&schedules[0]).expect("what comes back overwrites what was sent");
    check(&schedules, BUDGET).unwrap();
    // The message that it receives no longer waits for anything on rank 1.
    let sends = |step: &crate::schedule::Step| match (&step.action, &schedules[0].steps[receive].action) {
        (Action::Send { round, .. }, Action::Receive { round: wanted, .. }) => round == wanted,
        _ => false,
    };
    let send = schedules[1].steps.iter().position(sends).unwrap() as u32;
    while let Some(edge) = schedules[1].edges.iter().position(|&to| to == send) {
        drop_edge(&mut schedules[1], edge);
    }
    let graph = Graph::new(&schedules).unwrap();
    let reach = graph.reach(&graph.sort(&schedules).unwrap());
    let flaw = races::check_early(&schedules, &graph, &reach).unwrap_err();
    assert!(matches!(&flaw, Flaw::Early { receive: at, .. } if at.step == receive as u32), "{flaw}");
}
