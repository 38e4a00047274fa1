//! Fused tensors: the bits of single ones, whatever is pushed when, and the same operations on all ranks.

use super::harness::{Buffer, Faults, Group, PARAMS, shape};
use crate::dtype::{DType, ReduceOp};
use crate::executor::op::OpState;
use crate::executor::{OpId, Request, StartError};
use crate::fusion::{Bucket, Ends, FusionQueue, Member, Ready, layouts};
use crate::grid::tests::any_levels;
use crate::grid::{Grid, Rank};
use crate::header::Identity;
use crate::memory::MemoryKind;
use crate::plan::Plan;
use crate::schedule::{Algorithm, Problem, build};
use crate::table::TensorSpec;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use std::collections::VecDeque;
use std::sync::Arc;

/// The actions of all ranks, in this order.
#[derive(Clone, Copy, Debug)]
enum Action {
    Push(usize),
    Wait(usize),
    Flush,
}

/// Steps that push tensors, all or some, in any order, and wait for them in any other.
fn program(rng: &mut SmallRng, tensors: usize) -> Vec<Action> {
    let mut actions = vec![];
    for _ in 0..rng.random_range(2..5) {
        let mut order: Vec<usize> = (0..tensors).collect();
        order.shuffle(rng);
        if rng.random_bool(0.4) {
            order.truncate(rng.random_range(1..tensors));
        }
        let mut pushed = vec![];
        for tensor in order {
            actions.push(Action::Push(tensor));
            pushed.push(tensor);
            if rng.random_bool(0.05) {
                actions.push(Action::Wait(pushed.swap_remove(rng.random_range(0..pushed.len()))));
            } else if rng.random_bool(0.03) {
                actions.push(Action::Flush);
            }
        }
        pushed.shuffle(rng);
        actions.extend(pushed.into_iter().map(Action::Wait));
    }
    actions
}

/// One rank: its position in the program, the requests that wait for room, and the operations that it has started.
struct Trainer {
    at: usize,
    queue: FusionQueue<usize>,
    waits: VecDeque<(Request, Ends<usize>)>,
    started: Vec<(OpId, Option<Ends<usize>>)>,
    pushed: Vec<u32>,
    ended: Vec<u32>,
    entries: Vec<(Request, Option<Member>)>,
}

/// The outcome of a run.
struct Outcome {
    /// The ranks' memory.
    bytes: Vec<Vec<u8>>,
    /// Operations of several tensors.
    fused: usize,
    /// Those whose tensors were reduced where they lie.
    joined: usize,
}

fn run(seed: u64, fuses: bool) -> Outcome {
    let mut rng = SmallRng::seed_from_u64(seed);
    let grids = [(2, 1), (3, 3), (4, 2), (6, 3), (5, 1), (8, 2)];
    let (ranks, per_node) = grids[rng.random_range(0..grids.len())];
    let grid = Grid::new(ranks, per_node).unwrap().with_levels(any_levels(&mut rng));
    let faults = match rng.random_range(0..3) {
        0 => Faults::default(),
        1 => Faults { in_order: true, full: 10, ..Faults::default() },
        _ => Faults { duplicate: 20, full: 20, refuse: 20, in_order: false },
    };
    let kinds = [DType::F32, DType::F16, DType::Bf16, DType::I32];
    let ops = [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Avg];
    let (dtype, op) = (kinds[rng.random_range(0..4)], ops[rng.random_range(0..2)]);
    let specs: Vec<TensorSpec> = (0..rng.random_range(3..12))
        .map(|number| {
            let count =
                if rng.random_bool(0.2) { rng.random_range(200..900) } else { rng.random_range(1..40) };
            let dtype = if rng.random_bool(0.8) { dtype } else { kinds[rng.random_range(0..4)] };
            let op = if rng.random_bool(0.9) { op } else { ReduceOp::Min };
            TensorSpec::all_reduce(format!("t{number}"), dtype, count, op)
        })
        .collect();
    let algorithms: Vec<_> = specs
        .iter()
        .map(|_| if rng.random_bool(0.5) { Algorithm::Direct } else { Algorithm::Hierarchical })
        .collect();
    let actions = program(&mut rng, specs.len());
    let (fuse_below, fuse_bytes) = (rng.random_range(40..200), rng.random_range(100..1500));
    let plan = Plan { fuse_below: if fuses { fuse_below } else { 0 }, fuse_bytes, ..Plan::default() };
    // The tensors of a rank lie one behind the other, in its own memory or in shared one.
    let shared = rng.random_bool(0.5);
    let sizes: Vec<usize> = specs.iter().map(|spec| spec.count as usize * spec.dtype.size()).collect();
    let buffers: Vec<Buffer> = (0..ranks)
        .map(|_| {
            // No byte pattern is special to 16-bit floats but few, so sums round.
            let bytes: Vec<u8> = (0..sizes.iter().sum()).map(|_| rng.random_range(0x20..0x40)).collect();
            Buffer::new(&bytes)
        })
        .collect();
    // Other times, not other programs.
    let mut group = Group::new(seed ^ u64::from(fuses) << 32, grid, faults, |_| {});
    let mut members: Vec<_> = (0..ranks)
        .map(|rank| {
            let schedule = |algorithm, shape: &_| {
                let problem = Problem::new(grid, Rank(rank), shape, Rank(0));
                Arc::new(build(algorithm, &problem, &PARAMS).unwrap())
            };
            let mut of = vec![None; specs.len()];
            for (number, layout) in (specs.len() as u32..).zip(layouts(&plan, &specs)) {
                let algorithm = if number % 2 == 0 { Algorithm::Direct } else { Algorithm::Hierarchical };
                let schedule = schedule(algorithm, &layout.shape);
                let bucket = Arc::new(Bucket::new(layout, 0, number, &specs, schedule).unwrap());
                for (index, tensor) in bucket.layout().tensors.iter().enumerate() {
                    of[*tensor as usize] = Some(Member { bucket: bucket.clone(), index });
                }
            }
            let buffer = &buffers[rank as usize];
            let whole = if shared { buffer.shared() } else { buffer.region };
            let mut start = 0;
            let entries = (0..).zip(&specs).zip(of).map(|((tensor, spec), member)| {
                let shape = shape(spec.dtype, spec.op, spec.count);
                let bytes = sizes[tensor as usize];
                let data = whole.sub(start, bytes).unwrap();
                start += bytes;
                let algorithm = algorithms[tensor as usize];
                let identity = Identity::Registered { generation: 0, tensor, instance: 0 };
                let request = Request {
                    data,
                    identity,
                    priority: tensor,
                    schedule: schedule(algorithm, &shape),
                    ..group.request(Rank(rank), algorithm, shape, buffer)
                };
                (request, member)
            });
            Trainer {
                at: 0,
                queue: FusionQueue::default(),
                waits: VecDeque::new(),
                started: vec![],
                pushed: vec![0; specs.len()],
                ended: vec![0; specs.len()],
                entries: entries.collect(),
            }
        })
        .collect();
    let what = format!("seed {seed}, fuses: {fuses}, on {grid:?}: {actions:?}");
    let (mut idle, mut fused, mut joined) = (0, 0, 0);
    let is_done = |member: &Trainer| member.at == actions.len() && member.pushed == member.ended;
    while !members.iter().all(is_done) {
        let rank = group.rng.random_range(0..ranks as usize);
        let mut worked = match group.rng.random_range(0..8) {
            0..2 => act(&mut members[rank], &actions),
            2..4 => group.poll(rank),
            _ => group.network(),
        };
        let member = &mut members[rank];
        while let Some(Ready { request, ends, .. }) = member.queue.take() {
            member.waits.push_back((request, ends));
        }
        while let Some((request, _)) = member.waits.front() {
            match group.start(rank, request.clone()) {
                Ok(op) => {
                    let (request, ends) = member.waits.pop_front().unwrap();
                    if matches!(ends, Ends::All(_)) {
                        fused += 1;
                        joined += usize::from(request.data.kind() == MemoryKind::Shared);
                    }
                    member.started.push((op, Some(ends)));
                    worked = true;
                }
                Err(StartError::Busy { .. }) => break,
                Err(error) => panic!("{what}: {error}"),
            }
        }
        for completed in group.completed[rank].drain(..) {
            assert_eq!(completed.result, Ok(()), "{what}");
            let (_, ends) = member.started.iter_mut().find(|(op, _)| *op == completed.op).unwrap();
            let ended = &mut member.ended;
            match ends.take().expect("it ends once") {
                Ends::One(tensor) => ended[tensor] += 1,
                Ends::All(used) => member.queue.complete(used, true, |tensor| ended[tensor] += 1),
            }
        }
        idle = if worked { 0 } else { idle + 1 };
        assert!(idle < 20_000, "{what}: nothing happens any more");
    }
    group.drain();
    for (member, executor) in members.iter().zip(&group.executors) {
        assert_eq!(
            (member.queue.held(), member.queue.ready(), member.queue.reports().count()),
            (0, 0, 0),
            "{what}"
        );
        assert!(
            executor.ring.iter().all(|op| op.state() == OpState::Vacant && op.early.is_empty()),
            "{what}"
        );
    }
    drop(members);
    Outcome { bytes: buffers.iter().map(Buffer::bytes).collect(), fused, joined }
}

/// Does the next action, if it can be done.
fn act(member: &mut Trainer, actions: &[Action]) -> bool {
    match actions.get(member.at) {
        None => return false,
        Some(Action::Push(tensor)) => {
            let (mut request, of) = member.entries[*tensor].clone();
            if let Identity::Registered { instance, .. } = &mut request.identity {
                *instance = member.pushed[*tensor];
            }
            member.pushed[*tensor] += 1;
            match of {
                Some(of) => member.queue.push(&of, request, *tensor),
                None => member.waits.push_back((request, Ends::One(*tensor))),
            }
        }
        Some(Action::Wait(tensor)) => {
            if member.queue.reports().any(|held| held == tensor) {
                member.queue.flush();
            }
            if member.pushed[*tensor] != member.ended[*tensor] {
                return false;
            }
        }
        Some(Action::Flush) => member.queue.flush(),
    }
    member.at += 1;
    true
}

#[test]
fn fused_tensors_have_the_bits_of_single_ones() {
    let (mut fused, mut joined) = (0, 0);
    for seed in 0..300 {
        let [single, together] = [false, true].map(|fuses| run(seed, fuses));
        assert_eq!(single.fused, 0);
        assert!(single.bytes == together.bytes, "seed {seed}: the bits differ");
        fused += together.fused;
        joined += together.joined;
    }
    assert!(fused > 1000 && joined > 100, "{fused} operations were fused, {joined} of them without a copy");
}
