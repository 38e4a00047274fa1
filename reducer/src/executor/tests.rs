mod behind;
mod bits;
mod collectives;
mod definition;
mod divergence;
mod fusion;
mod harness;

use super::*;
use crate::counts::Counts;
use crate::dtype::{DType, ReduceOp};
use crate::grid::tests::levels;
use crate::grid::{Grid, Rank};
use crate::header::{Collective, Identity, Shape};
use crate::schedule::{Algorithm, Problem, build};
use harness::{Buffer, Faults, Group, executor, shape};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::VecDeque;

const BAD: Faults = Faults { duplicate: 10, full: 20, refuse: 10, in_order: false };

fn values(rng: &mut SmallRng, dtype: DType, count: u64) -> Vec<u8> {
    let one = |rng: &mut SmallRng| match dtype {
        DType::I64 => rng.random_range(-1000i64..1000).to_le_bytes().to_vec(),
        DType::F32 => rng.random_range(-8.0f32..8.0).to_le_bytes().to_vec(),
        DType::Bf16 => half::bf16::from_f32(rng.random_range(-8.0f32..8.0)).to_le_bytes().to_vec(),
        other => panic!("no values for {other}"),
    };
    (0..count).flat_map(|_| one(rng)).collect()
}

fn as_numbers(bytes: &[u8], dtype: DType) -> Vec<f64> {
    let number = |b: &[u8]| match dtype {
        DType::I64 => i64::from_le_bytes(b.try_into().unwrap()) as f64,
        DType::F32 => f32::from_le_bytes(b.try_into().unwrap()).into(),
        DType::Bf16 => half::bf16::from_le_bytes(b.try_into().unwrap()).to_f64(),
        other => panic!("no numbers for {other}"),
    };
    bytes.chunks(dtype.size()).map(number).collect()
}

fn check_sum(inputs: &[Vec<u8>], results: &[Vec<u8>], dtype: DType, op: ReduceOp, what: &str) {
    for result in results {
        assert!(*result == results[0], "{what}: ranks end with different bits");
    }
    let inputs: Vec<_> = inputs.iter().map(|bytes| as_numbers(bytes, dtype)).collect();
    let tolerance = match dtype {
        DType::I64 => 0.0,
        DType::F32 => 1e-4,
        _ => 0.6,
    };
    for (i, found) in as_numbers(&results[0], dtype).into_iter().enumerate() {
        let column = inputs.iter().map(|input| input[i]);
        let expected = match op {
            ReduceOp::Max => column.fold(f64::NEG_INFINITY, f64::max),
            ReduceOp::Avg if dtype == DType::I64 => (column.sum::<f64>() / inputs.len() as f64).trunc(),
            ReduceOp::Avg => column.sum::<f64>() / inputs.len() as f64,
            _ => column.sum(),
        };
        assert!((found - expected).abs() <= tolerance, "{what}: element {i} is {found}, not {expected}");
    }
}

/// One seed: a random grid, a few operations of random size, type and algorithm, all at once. Returns how many fragments
/// a one-sided network wrote to their place, and how many folds accelerators made.
fn run_seed(seed: u64) -> [usize; 2] {
    let mut rng = SmallRng::seed_from_u64(seed);
    let nodes = rng.random_range(1..=5);
    let grid = harness::grid(&mut rng, nodes, 3);
    let faults = if rng.random() { BAD } else { Faults { in_order: rng.random(), ..Faults::default() } };
    let one_sided = rng.random();
    let mut group = Group::new(seed, grid, faults, |config| config.one_sided = one_sided);
    group.net.fragment = [64 * rng.random_range(1..=5); 2];
    let (mut work, mut checks) = (vec![VecDeque::new(); grid.ranks() as usize], Vec::new());
    for op_index in 0..rng.random_range(1..=4u32) {
        let dtype = [DType::F32, DType::I64, DType::Bf16][rng.random_range(0..3)];
        let op = [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Max][rng.random_range(0..3)];
        let algorithms = Algorithm::ALL.into_iter().filter(|one| one.applies_to(Collective::AllReduce));
        let algorithms: Vec<_> = algorithms.collect();
        let algorithm = algorithms[rng.random_range(0..algorithms.len())];
        let count = [0, 1, 3, 64, 65, 150, 257, 700][rng.random_range(0..8)];
        let priority = rng.random_range(0..3);
        let shared = [0, 8, 10, 10][rng.random_range(0..4)];
        // On an accelerator on no rank, on some, or on all.
        let device = [0, 0, 5, 10][rng.random_range(0..4)];
        let inputs: Vec<_> = (0..grid.ranks()).map(|_| values(&mut rng, dtype, count)).collect();
        let buffers: Vec<_> = inputs.iter().map(|input| Buffer::new(input)).collect();
        for rank in 0..grid.ranks() {
            let shape = shape(dtype, op, count);
            let buffer = &buffers[rank as usize];
            let on_device = rng.random_range(0..10) < device;
            let mut request = match on_device {
                true => group.device_request(Rank(rank), algorithm, shape, buffer),
                false => group.request(Rank(rank), algorithm, shape, buffer),
            };
            request.priority = priority;
            // Not every tensor can be exported.
            if let Some(device) = &mut request.device {
                device.export = device.export.filter(|_| rng.random_range(0..20) > 0);
            }
            // Shared on all ranks, on some, or on none.
            if !on_device && rng.random_range(0..10) < shared {
                request.data = buffers[rank as usize].shared();
            }
            request.identity = Identity::Registered { generation: 0, tensor: op_index, instance: 0 };
            work[rank as usize].push_back(request);
        }
        checks.push((
            inputs,
            buffers,
            dtype,
            op,
            format!("seed {seed}: {algorithm:?} of {count} {dtype} on {grid:?}"),
        ));
    }
    let what = format!("seed {seed} on {grid:?}");
    group.run(work, &what);
    for completed in group.completed.iter().flatten() {
        assert_eq!((&completed.result, completed.outstanding), (&Ok(()), 0), "{what}");
    }
    for (inputs, buffers, dtype, op, what) in &checks {
        let results: Vec<_> = buffers.iter().map(Buffer::bytes).collect();
        check_sum(inputs, &results, *dtype, *op, what);
    }
    // Messages that are still in flight belong to no operation any more, and change nothing.
    let before: Vec<_> = checks.iter().flat_map(|check| &check.1).map(Buffer::bytes).collect();
    group.drain();
    let after: Vec<_> = checks.iter().flat_map(|check| &check.1).map(Buffer::bytes).collect();
    assert!(before == after, "{what}: a result changed after its completion");
    for executor in &group.executors {
        assert_eq!(executor.counters().malformed, 0, "{what}");
        assert!(
            executor.ring.iter().all(|op| op.state() == OpState::Vacant && op.early.is_empty()),
            "{what}"
        );
    }
    assert!(group.net.refused.iter().all(|&refusal| refusal == Refusal::NotReady), "{what}");
    assert!(one_sided || group.net.placed == 0, "{what}");
    [group.net.placed, group.copies.iter().map(|copies| copies.folds).sum()]
}

/// The seeds to run: the one of `SHOUTER_SEED`, or as many as `SHOUTER_SEEDS` says, or `usual`.
fn seeds(usual: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|number| number.parse::<u64>().ok());
    match number("SHOUTER_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SHOUTER_SEEDS").unwrap_or(usual),
    }
}

/// Replay one with `SHOUTER_SEED=n cargo test -p shouter-reducer a_thousand_seeds`; `SHOUTER_SEEDS=n` runs so many.
#[test]
fn a_thousand_seeds_give_exact_results_and_the_same_bits() {
    let seeds = seeds(1000);
    let ran = seeds.end - seeds.start;
    let counts = seeds.map(run_seed).fold([0; 2], |sum, one| [sum[0] + one[0], sum[1] + one[1]]);
    println!("{counts:?} fragments were placed, and folds left to accelerators");
    assert!(ran < 1000 || counts.iter().all(|&count| count > 1000), "{counts:?}");
}

fn two(change: impl Fn(&mut ExecutorConfig)) -> Group {
    Group::new(
        1,
        Grid::new(2, 1).unwrap().with_levels(levels(&[2])),
        Faults { in_order: true, ..Faults::default() },
        change,
    )
}

fn sum(count: u64) -> Shape {
    shape(DType::I64, ReduceOp::Sum, count)
}

fn filled(count: u64, value: i64) -> Buffer {
    Buffer::new(&value.to_le_bytes().repeat(count as usize))
}

/// Starts the sum of a tensor of i64 on a rank.
fn start(group: &mut Group, rank: u32, algorithm: Algorithm, buffer: &Buffer) {
    let request = group.request(Rank(rank), algorithm, sum(buffer.region.len() as u64 / 8), buffer);
    group.start(rank as usize, request).unwrap();
}

/// Starts it on all ranks.
fn start_all(group: &mut Group, algorithm: Algorithm, buffers: [&Buffer; 2]) {
    (0..).zip(buffers).for_each(|(rank, buffer)| start(group, rank, algorithm, buffer));
}

#[test]
fn a_small_message_that_is_early_is_kept() {
    let mut group = two(|_| {});
    let (a, b) = (filled(3, 1), filled(3, 2));
    start(&mut group, 0, Algorithm::Direct, &a);
    group.drain();
    assert_eq!(group.executors[1].counters().parked, 1);
    start(&mut group, 1, Algorithm::Direct, &b);
    group.drain();
    assert_eq!((group.completed[0].len(), group.completed[1].len()), (1, 1));
    assert_eq!((a.bytes(), b.bytes()), (filled(3, 3).bytes(), filled(3, 3).bytes()));
}

/// Rank 0 starts operations that rank 1 does not know yet, and lets them lie for long.
fn ahead(group: &mut Group, buffers: &[Buffer]) {
    for (i, buffer) in (0u32..).zip(buffers) {
        let mut request = group.request(Rank(0), Algorithm::Direct, sum(3), buffer);
        // The last one first, as gradients come.
        request.priority = u32::MAX - i;
        group.executors[0].start(request).unwrap();
    }
    for _ in 0..10_000 {
        group.poll(0);
        group.network();
    }
}

#[test]
fn a_peer_that_waits_after_each_operation_is_not_in_the_way_of_one_that_waits_at_the_end() {
    // As over connections, where a refused message is in the way of those behind it.
    let mut group = two(|config| config.max_operations = 256);
    let (a, b): (Vec<_>, Vec<_>) = (0..250).map(|i| (filled(3, i), filled(3, 10))).unzip();
    ahead(&mut group, &a);
    for (i, buffer) in b.iter().enumerate() {
        start(&mut group, 1, Algorithm::Direct, buffer);
        group.drain();
        assert_eq!(group.completed[1].len(), i + 1, "operation {i} has not ended");
        assert_eq!(buffer.bytes(), filled(3, 10 + i as i64).bytes());
    }
    assert_eq!((group.completed[0].len(), group.net.refused.len()), (250, 0));
}

#[test]
fn a_late_peer_is_sent_what_it_has_room_for_and_nothing_twice() {
    for in_order in [false, true] {
        let mut group = two(|config| config.max_operations = 256);
        group.net.faults.in_order = in_order;
        let (a, b): (Vec<_>, Vec<_>) = (0..250).map(|i| (filled(3, i), filled(3, 10))).unzip();
        ahead(&mut group, &a);
        // Half of the pool, by costs of 64 and 24 bytes. The others are asked for, both ways.
        assert_eq!((group.executors[0].counters().posted, group.executors[1].counters().parked), (23, 250));
        assert_eq!((group.net.refused.len(), group.net.packets.len()), (0, 0));
        let late = b.iter().map(|buffer| group.request(Rank(1), Algorithm::Direct, sum(3), buffer));
        let work = vec![VecDeque::new(), late.collect()];
        group.run(work, "late");
        group.drain();
        assert!(group.completed.iter().all(|completed| completed.len() == 250));
        assert!((0..).zip(&b).all(|(i, buffer)| buffer.bytes() == filled(3, 10 + i).bytes()));
        assert_eq!((group.executors[0].counters().posted, group.net.refused.len()), (250, 0));
    }
}

#[test]
fn a_peer_in_step_is_asked_for_nothing() {
    let mut group = two(|_| {});
    let mut sent = vec![];
    for _ in 0..1000 {
        let buffers = [filled(3, 1), filled(3, 2)];
        start_all(&mut group, Algorithm::Direct, buffers.each_ref());
        while group.poll(0) || group.poll(1) || !group.net.packets.is_empty() {
            sent.extend(group.net.packets.iter().map(|packet| Header::parse(&packet.header).unwrap().kind));
            group.network();
        }
        assert_eq!(buffers[0].bytes(), filled(3, 3).bytes());
    }
    let count = |kind| sent.iter().filter(|&&other| other == kind).count();
    assert_eq!(count(MessageKind::Credit), 0);
    assert!(count(MessageKind::Floor) > 0);
}

#[test]
fn early_messages_of_a_peer_that_keeps_to_no_budget_are_refused() {
    let mut group = two(|config| config.eager_pool_bytes = 2 * (64 + 24));
    // Rank 0 believes that there is room for everything.
    let generous = ExecutorConfig {
        eager_bytes: 600,
        max_operations: 8,
        ..ExecutorConfig::new(Rank(0), group.grid, crate::kernel::Kernels::detect())
    };
    group.executors[0] = executor(generous);
    group.net.keeps_budgets = false;
    let (a, b): (Vec<_>, Vec<_>) = (0..4).map(|i| (filled(3, i), filled(3, 10))).unzip();
    a.iter().for_each(|buffer| start(&mut group, 0, Algorithm::Direct, buffer));
    for _ in 0..50 {
        group.poll(0);
        group.network();
    }
    assert_eq!(group.executors[1].counters().parked, 2);
    assert!(group.executors[1].counters().not_ready >= 2);
    b.iter().for_each(|buffer| start(&mut group, 1, Algorithm::Direct, buffer));
    group.drain();
    for (i, buffer) in b.iter().enumerate() {
        assert_eq!(buffer.bytes(), filled(3, 10 + i as i64).bytes());
    }
}

#[test]
fn a_large_message_waits_for_credit_and_starves_nobody() {
    let mut group = two(|_| {});
    let large = (filled(1000, 1), filled(1000, 2));
    let small = (filled(4, 5), filled(4, 6));
    // Rank 0 is early with the large tensor; rank 1 has not pushed it.
    start(&mut group, 0, Algorithm::Hierarchical, &large.0);
    group.drain();
    assert_eq!(group.executors[0].counters().posted, 0, "nothing is sent without credit");
    start(&mut group, 1, Algorithm::Hierarchical, &large.1);
    for (rank, buffer) in [(0, &small.0), (1, &small.1)] {
        let mut request = group.request(Rank(rank), Algorithm::Direct, sum(4), buffer);
        request.priority = 0;
        group.executors[rank as usize].start(request).unwrap();
    }
    group.drain();
    assert_eq!(large.1.bytes(), filled(1000, 3).bytes());
    assert_eq!(small.0.bytes(), filled(4, 11).bytes());
    assert_eq!(group.executors[1].counters().not_ready, 0);
}

#[test]
fn a_credit_that_comes_after_a_question_counts() {
    let mut group = two(|_| {});
    let (a, b) = (filled(1000, 1), filled(1000, 2));
    start(&mut group, 0, Algorithm::Hierarchical, &a);
    group.poll(0);
    let credits = group.net.packets.len();
    // Rank 0 has waited for long. Its question reaches rank 1, which has not started the operation, before its credits do.
    group.compare(0);
    group.poll(0);
    assert!(credits > 0 && group.net.packets.len() == credits + 1);
    group.net.packets.rotate_right(1);
    group.drain();
    start(&mut group, 1, Algorithm::Hierarchical, &b);
    group.drain();
    assert_eq!((a.bytes(), b.bytes()), (filled(1000, 3).bytes(), filled(1000, 3).bytes()));
}

/// A leader waits for a late root of its node first, and for the other node then.
#[test]
fn whom_an_operation_waits_for_later_is_asked_as_well() {
    let mut group =
        Group::new(1, Grid::new(4, 2).unwrap().with_levels(levels(&[2])), Faults::default(), |_| {});
    let shape = Shape { collective: Collective::Broadcast, ..sum(1000) };
    let buffers = [filled(1000, 1), filled(1000, 2)];
    let start = |group: &mut Group, rank: usize| {
        let problem = Problem::new(group.grid, Rank(rank as u32), &shape, Rank(1));
        let schedule = Arc::new(build(Algorithm::Hierarchical, &problem, &group.params).unwrap());
        let like = group.request(Rank(rank as u32), Algorithm::Hierarchical, sum(1000), &buffers[rank]);
        let identity = Identity::AdHoc { root: Rank(1) };
        group.start(rank, Request { identity, shape, schedule, ..like }).unwrap();
        group.drain();
    };
    let asked = |group: &mut Group| {
        group.compare(0);
        group.drain();
        group.executors[2].counters().parked
    };
    start(&mut group, 0);
    assert_eq!((asked(&mut group), asked(&mut group)), (0, 0), "it waits for its own node");
    start(&mut group, 1);
    assert_eq!(group.executors[0].counters().posted, 0, "nothing is sent without credit");
    assert_eq!((asked(&mut group), asked(&mut group)), (1, 1), "once");
}

#[test]
fn a_poll_visits_no_operation_that_waits_for_a_peer() {
    let mut group = two(|config| config.max_operations = 256);
    let (a, b): (Vec<_>, Vec<_>) = (0..250).map(|_| (filled(100, 1), filled(100, 2))).unzip();
    a.iter().for_each(|buffer| start(&mut group, 0, Algorithm::Hierarchical, buffer));
    group.drain();
    assert_eq!((group.executors[0].running(), group.executors[0].ring.all_due().count()), (250, 0));
    let late = b.iter().map(|buffer| group.request(Rank(1), Algorithm::Hierarchical, sum(100), buffer));
    let work = vec![VecDeque::new(), late.collect()];
    group.run(work, "late");
    assert!(b.iter().all(|buffer| buffer.bytes() == filled(100, 3).bytes()));
}

#[test]
fn the_more_urgent_operation_goes_first() {
    let mut group = two(|config| config.poll_bytes = 1 << 20);
    let buffers: Vec<_> = (0..4).map(|_| filled(500, 1)).collect();
    for rank in 0..2 {
        for (i, priority) in [(0, 9), (1, 1)] {
            let buffer = &buffers[rank as usize * 2 + i];
            let mut request = group.request(Rank(rank), Algorithm::Ring, sum(500), buffer);
            request.priority = priority;
            group.executors[rank as usize].start(request).unwrap();
        }
    }
    // Credit for both reaches rank 0 before it polls: then it posts the urgent one's bytes first.
    group.poll(1);
    while group.network() {}
    group.poll(0);
    let seqs: Vec<_> = group
        .net
        .packets
        .iter()
        .map(|packet| Header::parse(&packet.header).unwrap())
        .filter(|header| header.kind == MessageKind::Data)
        .map(|header| header.key.seq)
        .collect();
    assert!(seqs.len() > 4 && seqs.is_sorted_by(|a, b| a >= b) && seqs.contains(&0), "{seqs:?}");
    group.drain();
    assert_eq!(group.completed[0].len(), 2);
}

#[test]
fn where_little_is_sent_at_a_time_the_urgent_operation_overtakes_and_the_other_is_not_held_back_for_ever() {
    let mut group = two(|config| config.poll_bytes = 1 << 20);
    let buffers: Vec<_> = (0..4).map(|_| filled(50_000, 1)).collect();
    let start = |group: &mut Group, i: usize, priority| {
        for rank in 0..2 {
            let buffer = &buffers[rank as usize * 2 + i];
            let mut request = group.request(Rank(rank), Algorithm::Ring, sum(50_000), buffer);
            request.priority = priority;
            group.executors[rank as usize].start(request).unwrap();
        }
        group.poll(1);
        while group.network() {}
    };
    let sent = |group: &Group| -> Vec<u64> {
        let headers = group.net.packets.iter().map(|packet| Header::parse(&packet.header).unwrap());
        headers.filter(|header| header.kind == MessageKind::Data).map(|header| header.key.seq).collect()
    };
    start(&mut group, 0, 9);
    let rounds = |group: &mut Group, count| {
        for _ in 0..count {
            group.net.room = Some(2);
            group.poll(0);
        }
    };
    rounds(&mut group, 3);
    assert_eq!(sent(&group), [0; 6]);
    while group.network() {}
    start(&mut group, 1, 1);
    // At once the urgent one alone; then it lets the other have a turn now and then.
    rounds(&mut group, 10);
    assert_eq!(sent(&group), [1; 20]);
    rounds(&mut group, 40);
    let other = sent(&group).iter().filter(|seq| **seq == 0).count();
    assert!(sent(&group).len() == 100 && (4..=8).contains(&other), "{:?}", sent(&group));
    group.net.room = None;
    group.drain();
    assert_eq!(group.completed[0].len(), 2);
}

#[test]
fn a_small_operation_goes_before_a_large_one_of_its_priority() {
    for (small, large) in [(1, 1), (2, 1)] {
        let mut group = two(|config| config.poll_bytes = 1 << 20);
        let buffers: Vec<_> = (0..2).flat_map(|_| [filled(5_000, 1), filled(3, 1)]).collect();
        for rank in 0..2 {
            for (i, (algorithm, count, priority)) in
                [(Algorithm::Ring, 5_000, large), (Algorithm::Direct, 3, small)].into_iter().enumerate()
            {
                let buffer = &buffers[rank as usize * 2 + i];
                let mut request = group.request(Rank(rank), algorithm, sum(count), buffer);
                request.priority = priority;
                group.executors[rank as usize].start(request).unwrap();
            }
        }
        group.poll(1);
        while group.network() {}
        group.poll(0);
        let data = group.net.packets.iter().map(|packet| Header::parse(&packet.header).unwrap());
        let seqs: Vec<_> =
            data.filter(|header| header.kind == MessageKind::Data).map(|header| header.key.seq).collect();
        // A lower number is more urgent.
        let first = u64::from(small == large);
        assert!(seqs.first() == Some(&first) && seqs.contains(&(1 - first)), "{seqs:?}");
        group.drain();
        assert_eq!(group.completed[0].len(), 2);
    }
}

/// The error of an operation that ranks disagree about.
fn error_text(completed: &Completed) -> String {
    let error = completed.result.as_ref().unwrap_err();
    let OpError::Aborted { cause, .. } = error else { panic!("{error}") };
    assert!(matches!(cause.reason, AbortReason::Diverged(_)), "{error}");
    error.to_string()
}

#[test]
fn a_rank_that_diverges_is_named_on_both_sides() {
    let mut group = two(|_| {});
    let (a, b) = (filled(3, 1), Buffer::new(&[0; 12]));
    start(&mut group, 0, Algorithm::Direct, &a);
    let mut request = group.request(Rank(1), Algorithm::Direct, shape(DType::F32, ReduceOp::Max, 3), &b);
    request.name = Arc::from("w1");
    group.start(1, request).unwrap();
    group.drain();
    let verdicts = group.vote();
    group.drain();
    for (rank, verdict) in verdicts.into_iter().enumerate() {
        assert!(error_text(&group.completed[rank][0]).contains("it runs"));
        let divergence = verdict.unwrap();
        assert_eq!(divergence.rank, Rank(1 - rank as u32));
        let text = group.executors[rank].aborted().unwrap().to_string();
        let (sum, max) = ("all-reduce sum of 3 x i64", "all-reduce max of 3 x f32");
        let (ours, theirs) = if rank == 0 { (sum, max) } else { (max, sum) };
        let expected = format!("it runs {theirs} as operation 0 where rank {rank} runs {ours}");
        assert!(text.contains(&expected), "{text}");
    }
    let request = group.request(Rank(0), Algorithm::Direct, sum(3), &a);
    let error = group.executors[0].start(request).unwrap_err();
    assert!(matches!(&error, StartError::Aborted(cause) if cause.culprit == Rank(1)), "{error}");
}

#[test]
fn another_order_of_the_same_tensors_is_a_mismatch() {
    let mut group = two(|_| {});
    let buffers: Vec<_> = (0..4).map(|_| filled(3, 1)).collect();
    for rank in 0..2u32 {
        for i in 0..2u32 {
            let buffer = &buffers[(rank * 2 + i) as usize];
            let mut request = group.request(Rank(rank), Algorithm::Direct, sum(3), buffer);
            let tensor = if rank == 0 { i } else { 1 - i };
            request.identity = Identity::Registered { generation: 2, tensor, instance: 5 };
            group.start(rank as usize, request).unwrap();
        }
    }
    group.drain();
    group.vote();
    let text = group.executors[0].aborted().unwrap().to_string();
    assert!(text.contains("tensor 1 of generation 2, use 5"), "{text}");
    group.completed[0]
        .iter()
        .for_each(|completed| assert!(error_text(completed).contains("tensor 1 of generation 2")));
}

#[test]
fn a_dead_peer_fails_everything_and_is_named() {
    let mut group = two(|_| {});
    let buffers: Vec<_> = (0..2).map(|_| filled(500, 1)).collect();
    buffers.iter().for_each(|buffer| start(&mut group, 0, Algorithm::Ring, buffer));
    group.net.dead = Some(Rank(1));
    group.poll(0);
    assert!(group.completed[0].is_empty(), "the transport's owner decides");
    let lost = group.net.take_lost().unwrap();
    group.executors[0].abort(lost, AbortReason::Failed);
    group.poll(0);
    assert_eq!(group.completed[0].len(), 2);
    for completed in &group.completed[0] {
        let error = completed.result.as_ref().unwrap_err();
        assert!(matches!(error, OpError::Aborted { cause, .. } if cause.culprit == Rank(1)), "{error}");
        assert!(
            error.to_string().contains("all-reduce sum of 500") && error.to_string().contains("step 7"),
            "{error}"
        );
    }
    assert_eq!(group.executors[0].aborted().map(|cause| cause.reason.clone()), Some(AbortReason::Failed));
    group.executors[0].abort(Rank(0), AbortReason::Aborted);
    assert_eq!(
        group.executors[0].aborted().map(|cause| cause.culprit),
        Some(Rank(1)),
        "the first cause stays"
    );
}

#[test]
fn buffers_are_fenced_after_a_failure() {
    let mut group = two(|_| {});
    let (a, b) = (filled(500, 1), filled(500, 2));
    start_all(&mut group, Algorithm::Hierarchical, [&a, &b]);
    group.poll(1);
    while group.network() {}
    group.poll(0);
    group.executors[0].abort(Rank(1), AbortReason::Failed);
    group.poll(0);
    let completed = group.completed[0][0].clone();
    assert!(completed.result.is_err() && completed.outstanding > 0, "{completed:?}");
    assert_eq!(group.executors[0].ring.op(0).state(), OpState::Lingering);
    group.executors[0].fenced();
    assert_eq!(group.executors[0].ring.op(0).state(), OpState::Vacant);
}

#[test]
fn a_deadline_names_who_is_missing() {
    let mut group =
        Group::new(1, Grid::new(4, 2).unwrap().with_levels(levels(&[2])), Faults::default(), |_| {});
    let buffers: Vec<_> = (0..4).map(|_| filled(10, 1)).collect();
    for rank in [0, 1, 3] {
        let mut request =
            group.request(Rank(rank), Algorithm::Hierarchical, sum(10), &buffers[rank as usize]);
        request.deadline = Duration::from_nanos(1000 + u64::from(rank));
        group.start(rank as usize, request).unwrap();
    }
    group.drain();
    assert_eq!(group.executors[0].next_deadline(), Some(Duration::from_nanos(1000)));
    group.now = Duration::from_nanos(1003);
    for rank in 0..4 {
        group.poll(rank);
    }
    let missing = |rank: usize| match &group.completed[rank][0].result {
        Err(OpError::Deadline { missing, .. }) => missing.clone(),
        other => panic!("rank {rank}: {other:?}"),
    };
    assert_eq!((missing(0), missing(1), missing(3)), (vec![Rank(2)], vec![Rank(0)], vec![Rank(2)]));
    let text = group.completed[0][0].result.as_ref().unwrap_err().to_string();
    assert!(text.contains("all-reduce sum of 10 x i64") && text.contains("waiting for rank 2"), "{text}");
    assert_eq!(group.executors[0].next_deadline(), None);
}

#[test]
fn who_called_first_waits_for_those_who_called_later_to_name_the_culprit() {
    let mut group =
        Group::new(1, Grid::new(4, 2).unwrap().with_levels(levels(&[2])), Faults::default(), |_| {});
    group.nodes.iter_mut().for_each(|node| node.announces = true);
    let buffers: Vec<_> = (0..4).map(|_| filled(10, 1)).collect();
    let seconds = Duration::from_secs;
    // Rank 3 is absent. Rank 1 waits for its leader, that for rank 2, and rank 2, which sees who is absent, has called last.
    for (rank, begin) in [(1, 1), (0, 3), (2, 5)] {
        group.executors[rank].set_time(seconds(begin));
        let request = group.request(Rank(rank as u32), Algorithm::Hierarchical, sum(10), &buffers[rank]);
        group.start(rank, Request { deadline: seconds(begin + 10), ..request }).unwrap();
    }
    group.drain();
    for now in [11, 13, 14] {
        group.now = seconds(now);
        for rank in 0..3 {
            group.poll(rank);
        }
    }
    assert!(group.completed.iter().all(Vec::is_empty), "no rank knows the culprit");
    group.now = seconds(15);
    group.poll(2);
    let missing = |group: &Group, rank: usize| match &group.completed[rank][..] {
        [completed] => match &completed.result {
            Err(OpError::Deadline { missing, .. }) => missing.clone(),
            other => panic!("rank {rank}: {other:?}"),
        },
        _ => vec![],
    };
    assert_eq!(missing(&group, 2), [Rank(3)]);
    // A rank that is told nothing of that gives up all the same.
    group.now = seconds(21);
    group.poll(1);
    assert_eq!(missing(&group, 1), [Rank(0)]);
}

/// Ranks that know of each other by messages alone: one that has sent something of the operation has started it, and waits as well.
#[test]
fn who_has_sent_something_is_not_named_at_the_deadline() {
    for ranks in 2..8 {
        for absent in 0..ranks {
            let mut group = Group::new(1, Grid::new(ranks, 1).unwrap(), Faults::default(), |_| {});
            let buffers: Vec<_> = (0..ranks).map(|_| filled(1000, 1)).collect();
            let others = || (0..ranks).filter(|rank| *rank != absent).map(|rank| rank as usize);
            for rank in others() {
                let request = group.request(Rank(rank as u32), Algorithm::Direct, sum(1000), &buffers[rank]);
                group.start(rank, Request { deadline: Duration::from_nanos(1000), ..request }).unwrap();
            }
            group.drain();
            group.now = Duration::from_nanos(1001);
            for rank in others() {
                group.poll(rank);
            }
            for rank in others() {
                match &group.completed[rank][0].result {
                    Err(OpError::Deadline { missing, .. }) => {
                        assert_eq!(*missing, [Rank(absent)], "of {ranks}")
                    }
                    other => panic!("{ranks} without {absent}: {other:?}"),
                }
            }
        }
    }
}

/// Three ranks of one node, and an operation for which the tensors of `shared` ranks are shared.
fn on_one_node(shared: std::ops::Range<u32>) -> (Group, Vec<Buffer>, Vec<Request>) {
    let group = Group::new(1, Grid::new(3, 3).unwrap(), Faults::default(), |_| {});
    let buffers: Vec<_> = (0..3).map(|rank| filled(1000, rank + 1)).collect();
    let requests = (0..3).map(|rank| {
        let buffer = &buffers[rank as usize];
        let request = group.request(Rank(rank), Algorithm::Hierarchical, sum(1000), buffer);
        let data = if shared.contains(&rank) { buffer.shared() } else { buffer.region };
        Request { data, deadline: Duration::from_nanos(1000), ..request }
    });
    let requests = requests.collect();
    (group, buffers, requests)
}

#[test]
fn shared_tensors_are_reduced_in_place_and_mixed_ones_are_staged() {
    let mut results = Vec::new();
    // In place, one lane is used, for its flags; else one for each chunk of 128 elements.
    for (shared, lanes) in [(0..3, 1), (0..2, 8), (0..0, 8)] {
        let (mut group, buffers, requests) = on_one_node(shared.clone());
        for (rank, request) in requests.into_iter().enumerate() {
            group.start(rank, request).unwrap();
        }
        group.drain();
        for (rank, buffer) in buffers.iter().enumerate() {
            assert_eq!(group.completed[rank][0].result, Ok(()), "{shared:?}");
            assert_eq!(group.executors[rank].lanes.take(0), lanes, "{shared:?}");
            results.push(buffer.bytes());
        }
    }
    assert!(results.iter().all(|result| *result == results[0]), "the path shows in the bits");
}

#[test]
fn who_does_not_come_to_shared_tensors_is_named() {
    let (mut group, buffers, requests) = on_one_node(0..3);
    let before = buffers[2].bytes();
    for (rank, request) in requests.into_iter().enumerate().take(2) {
        group.start(rank, request).unwrap();
    }
    group.drain();
    group.now = Duration::from_nanos(1001);
    for rank in 0..2 {
        group.poll(rank);
        let result = &group.completed[rank][0].result;
        assert!(
            matches!(result, Err(OpError::Deadline { missing, .. }) if *missing == [Rank(2)]),
            "{result:?}"
        );
    }
    assert!(buffers[2].bytes() == before);
    group.drain();
}

#[test]
fn messages_that_fit_nothing_are_refused_without_effect() {
    let mut group = two(|_| {});
    let (a, b) = (filled(100, 1), filled(100, 2));
    start_all(&mut group, Algorithm::Hierarchical, [&a, &b]);
    let good = Header {
        kind: MessageKind::Data,
        src: Rank(1),
        key: MatchKey { group: 0, epoch: 0, seq: 0 },
        identity: Identity::AdHoc { root: Rank(0) },
        shape: sum(100),
        round: 0,
        offset: 0,
        granule: 64,
        len: 64,
    };
    let mut refused =
        |header: Header, bytes: usize| match group.executors[0].on_fragment(&header, &vec![0; bytes]) {
            Disposition::Consumed => None,
            Disposition::Refused(why) => Some(why),
        };
    let malformed = Some(Refusal::Malformed);
    assert_eq!(
        refused(Header { key: MatchKey { group: 1, ..good.key }, ..good }, 64),
        Some(Refusal::OtherGroup)
    );
    assert_eq!(
        refused(Header { key: MatchKey { epoch: 1, ..good.key }, ..good }, 64),
        Some(Refusal::OtherEpoch)
    );
    assert_eq!(refused(Header { src: Rank(0), ..good }, 64), malformed);
    assert_eq!(refused(Header { src: Rank(9), ..good }, 64), malformed);
    assert_eq!(refused(Header { round: 9, ..good }, 64), malformed);
    assert_eq!(refused(Header { round: u32::MAX, ..good }, 64), malformed);
    assert_eq!(refused(Header { offset: 1 << 40, ..good }, 64), malformed);
    assert_eq!(refused(Header { len: 32, ..good }, 32), malformed);
    assert_eq!(refused(good, 63), malformed);
    assert_eq!(refused(Header { kind: MessageKind::Credit, round: 0, len: u32::MAX, ..good }, 0), malformed);
    assert_eq!(refused(Header { kind: MessageKind::Abort, round: 77, ..good }, 0), malformed);
    let far = MatchKey { seq: u64::MAX, ..good.key };
    assert_eq!(refused(Header { key: far, ..good }, 64), Some(Refusal::NotReady));
    let before = a.bytes();
    assert!(before == filled(100, 1).bytes());
    assert!(refused(good, 64).is_none(), "and the right one is taken");
    assert!(a.bytes() == before, "zeros were added");
    assert_eq!(refused(Header { granule: 128, len: 128, ..good }, 128), malformed);
}

#[test]
fn operations_that_run_one_after_the_other_work_with_the_same_memory() {
    let mut group = two(|_| {});
    for count in 1..20 {
        let buffers = [filled(count * 100, 1), filled(count * 100, 2)];
        start_all(&mut group, Algorithm::Hierarchical, buffers.each_ref());
        group.drain();
    }
    assert!(group.executors.iter().all(|executor| executor.ring.spares() == 1));
}

#[test]
fn requests_that_do_not_fit_are_refused() {
    let mut group = two(|config| config.slot_pool_bytes = 1024);
    let buffer = filled(3, 1);
    let good = group.request(Rank(0), Algorithm::Direct, sum(3), &buffer);
    let mut start = |request: Request| group.executors[0].start(request).unwrap_err();
    assert!(matches!(
        start(Request { data: filled(4, 1).region, ..good.clone() }),
        StartError::Length { .. }
    ));
    assert!(matches!(start(Request { shape: sum(2), ..good.clone() }), StartError::Schedule { .. }));
    let other = group.request(Rank(1), Algorithm::Direct, sum(3), &buffer);
    assert!(matches!(group.executors[0].start(other).unwrap_err(), StartError::Schedule { .. }));
    let large = filled(200, 1);
    let request = group.request(Rank(0), Algorithm::Direct, sum(200), &large);
    let error = group.executors[0].start(request).unwrap_err();
    assert!(matches!(error, StartError::SlotBudget { budget: 1024, .. }), "{error}");
    for _ in 0..8 {
        group.executors[0].start(good.clone()).unwrap();
    }
    assert!(matches!(group.executors[0].start(good).unwrap_err(), StartError::Busy { .. }));
}

#[test]
fn slots_that_cannot_be_allocated_are_no_reason_to_wait() {
    let mut group =
        two(|config| (config.slot_pool_bytes, config.lazy_slots) = (isize::MAX as usize / 2, true));
    let buffer = filled(3, 1);
    let request = group.request(Rank(0), Algorithm::Direct, sum(3), &buffer);
    let error = group.executors[0].start(request).unwrap_err();
    assert!(matches!(error, StartError::SlotMemory(_)), "{error}");
}

#[test]
fn an_accelerator_that_fails_ends_the_group_and_says_why() {
    let mut group =
        Group::new(3, Grid::new(2, 1).unwrap().with_levels(levels(&[2])), Faults::default(), |_| {});
    let buffers = [filled(700, 1), filled(700, 2)];
    group.copies[0].good = 5;
    let shape = sum(700);
    let request = group.device_request(Rank(0), Algorithm::Ring, shape, &buffers[0]);
    group.start(0, request).unwrap();
    let request = group.request(Rank(1), Algorithm::Ring, shape, &buffers[1]);
    group.start(1, request).unwrap();
    for _ in 0..100_000 {
        group.poll(0);
        group.poll(1);
        group.network();
        if !group.completed[0].is_empty() {
            break;
        }
    }
    let completed = &group.completed[0][0];
    let Err(OpError::Accelerator { error, .. }) = &completed.result else { panic!("{completed:?}") };
    assert_eq!(error.to_string(), "out of order");
    let cause = group.executors[0].aborted().unwrap();
    assert_eq!((cause.culprit, &cause.reason), (Rank(0), &AbortReason::Accelerator));
}

#[test]
fn who_waits_only_for_its_accelerator_says_so_before_the_others_blame_anyone() {
    let mut group = Group::new(1, Grid::new(2, 2).unwrap(), Faults::default(), |_| {});
    group.nodes[0].announces = true;
    // The contents of rank 0's tensor never come.
    group.copies[0].early = u32::MAX;
    let buffers = [filled(100, 1), filled(100, 2)];
    let deadline = Duration::from_nanos(1000);
    let request = group.device_request(Rank(0), Algorithm::Hierarchical, sum(100), &buffers[0]);
    group.start(0, Request { deadline, ..request }).unwrap();
    let request = group.request(Rank(1), Algorithm::Hierarchical, sum(100), &buffers[1]);
    group.start(1, Request { deadline, ..request }).unwrap();
    group.drain();
    group.now = deadline;
    group.poll(1);
    assert!(group.completed[1].is_empty(), "it waits for another rank to name the culprit");
    group.poll(0);
    assert!(
        matches!(group.completed[0][0].result, Err(OpError::Accelerator { .. })),
        "{:?}",
        group.completed[0]
    );
    let cause = group.executors[0].aborted().unwrap();
    assert_eq!((cause.culprit, &cause.reason), (Rank(0), &AbortReason::Accelerator));
    // Without a name it reports the rank that it waits for.
    group.now = Duration::from_nanos(2_000_000_000);
    group.poll(1);
    let result = &group.completed[1][0].result;
    assert!(matches!(result, Err(OpError::Deadline { missing, .. }) if *missing == [Rank(0)]), "{result:?}");
}

#[test]
fn a_schedule_for_the_other_kind_of_memory_is_refused() {
    let mut group = two(|_| {});
    let buffer = filled(10, 1);
    let request = group.device_request(Rank(0), Algorithm::Ring, sum(10), &buffer);
    let error = group.start(0, Request { data: buffer.region, ..request }).unwrap_err();
    assert!(matches!(error, StartError::Schedule { .. }), "{error}");
}

#[test]
fn nothing_of_a_tensor_is_touched_before_its_event_is_reached() {
    let mut group = two(|_| {});
    let buffers = [filled(700, 1), filled(700, 2)];
    group.copies[0].early = 500;
    for rank in 0..2 {
        let request = group.device_request(Rank(rank), Algorithm::Ring, sum(700), &buffers[rank as usize]);
        group.start(rank as usize, request).unwrap();
    }
    for _ in 0..400 {
        group.poll(0);
        group.poll(1);
        group.network();
        assert!(group.executors[0].waits_for_accelerator());
    }
    assert!(group.copies[0].early > 0 && group.copies[0].is_unused() && group.completed[1].is_empty());
    for _ in 0..200 {
        group.poll(0);
    }
    group.run(vec![VecDeque::new(), VecDeque::new()], "later");
    group.drain();
    assert!(group.completed.iter().flatten().all(|completed| completed.result == Ok(())));
    assert!(buffers.iter().all(|buffer| buffer.bytes() == 3i64.to_le_bytes().repeat(700)));
    assert!(!group.executors[0].waits_for_accelerator());
}

#[test]
fn who_is_absent_is_blamed_and_not_who_waits_for_lanes() {
    let mut group = two(|_| {});
    let buffers = [filled(700, 1), filled(700, 2)];
    // The second is more urgent, waits for lanes that the first one holds, and has more time.
    for (index, buffer) in buffers.iter().enumerate() {
        let request = group.device_request(Rank(0), Algorithm::Ring, sum(700), buffer);
        let (priority, deadline) = (1 - index as u32, Duration::from_nanos(1000 + index as u64));
        group.start(0, Request { priority, deadline, ..request }).unwrap();
    }
    for _ in 0..200 {
        group.poll(0);
    }
    group.now = Duration::from_nanos(5000);
    for _ in 0..3 {
        group.poll(0);
    }
    let Err(OpError::Deadline { missing, .. }) = &group.completed[0][0].result else {
        panic!("{:?}", group.completed[0])
    };
    assert_eq!(missing, &[Rank(1)]);
    assert_eq!(group.executors[0].aborted().unwrap().culprit, Rank(1));
}
