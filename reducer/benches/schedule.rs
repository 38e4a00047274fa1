//! Costs of a collective besides its bytes: building schedules, a small operation between two ranks, and the
//! executor's share of a fragment. Messages pass through memory within one thread.
//!
//! `cargo bench -p shouter-reducer --bench schedule`
#![allow(unsafe_code, missing_docs)]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use shouter_reducer::counts::Counts;
use shouter_reducer::dtype::{DType, ReduceOp};
use shouter_reducer::executor::{Executor, ExecutorConfig, Request};
use shouter_reducer::grid::{Grid, Levels, Rank};
use shouter_reducer::header::{Collective, Header, Identity, Shape};
use shouter_reducer::kernel::Kernels;
use shouter_reducer::memory::{Owned, Span, TensorRegion};
use shouter_reducer::plan::{Overrides, Plan};
use shouter_reducer::schedule::{Algorithm, Problem};
use shouter_reducer::transport::{LaneFlag, NodeMemory, SendError, SendToken, Transport};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

fn shape(count: u64) -> Shape {
    Shape { collective: Collective::AllReduce, dtype: DType::F32, op: ReduceOp::Sum, count }
}

fn build(c: &mut Criterion) {
    let mut group = c.benchmark_group("schedule_build");
    for (name, ranks, per_node, bytes) in [
        ("2x1 4B", 2, 1, 4u64),
        ("2x2 4B", 4, 2, 4),
        ("2x1 64MiB", 2, 1, 64 << 20),
        ("64x8 64MiB", 512, 8, 64 << 20),
    ] {
        let (grid, plan) = (Grid::new(ranks, per_node).unwrap(), Plan::default());
        group.bench_function(name, |b| {
            b.iter(|| plan.schedule(&grid, Rank(0), black_box(&shape(bytes / 4)), Rank(0)).unwrap());
        });
    }
    group.finish();
}

/// Blocks of 4 KiB for each rank, and as many bytes in blocks that differ: those are built anew where counts change in each step.
fn build_blocks(c: &mut Criterion) {
    let mut group = c.benchmark_group("schedule_build_all_to_all");
    for (name, ranks, per_node) in [("8x1", 8, 1), ("1x8", 8, 8), ("8x8", 64, 8)] {
        let (grid, plan) = (Grid::new(ranks, per_node).unwrap(), Plan::default());
        let shape = |collective| Shape { collective, ..shape(1024) };
        let equal = Problem::new(grid, Rank(0), &shape(Collective::AllToAll), Rank(0)).separate();
        group.bench_function(format!("{name} equal"), |b| {
            b.iter(|| plan.schedule_for(black_box(&equal)).unwrap());
        });
        let counts = || (0..u64::from(ranks * ranks)).map(|pair| pair * 37 % 2048).collect::<Vec<_>>();
        group.bench_function(format!("{name} uneven"), |b| {
            b.iter(|| {
                let counts = Arc::new(Counts::of_matrix(&grid, black_box(counts())).unwrap());
                let problem = Problem::new(grid, Rank(0), &shape(Collective::AllToAllV), Rank(0));
                plan.schedule_for(&problem.with_counts(counts).separate()).unwrap()
            });
        });
    }
    group.finish();
}

/// No memory shared within a node.
struct NoNode;

impl NodeMemory for NoNode {
    fn lanes(&self) -> u32 {
        0
    }
    fn lane_bytes(&self) -> usize {
        0
    }
    fn stage(&self, _local: u32, _lane: u32) -> TensorRegion {
        TensorRegion::empty()
    }
    fn result(&self, _lane: u32) -> TensorRegion {
        TensorRegion::empty()
    }
    fn signal(&self, _lane: u32, _flag: LaneFlag, _value: u64) {}
    fn observe(&self, _local: u32, _lane: u32, _flag: LaneFlag) -> u64 {
        u64::MAX
    }
}

/// The messages that one rank has posted.
struct Wire {
    posted: Vec<(Header, Span, SendToken)>,
    fragment: usize,
}

impl Transport for Wire {
    fn max_fragment(&self, _to: Rank) -> usize {
        self.fragment
    }
    fn send(&mut self, _to: Rank, header: &Header, payload: Span, token: SendToken) -> Result<(), SendError> {
        self.posted.push((*header, payload, token));
        Ok(())
    }
}

struct Pair {
    executors: [Executor; 2],
    wires: [Wire; 2],
    requests: [Request; 2],
    _memory: [Owned; 2],
}

impl Pair {
    fn new(bytes: usize, algorithm: Algorithm) -> Self {
        let grid = Grid::new(2, 1).unwrap().with_levels(Levels::new(&[2]).unwrap());
        let overrides = Overrides::default().with(Collective::AllReduce, algorithm);
        let plan = Plan { overrides, ..Plan::default() };
        let shape = shape(bytes as u64 / 4);
        let memory = [0, 1].map(|_| Owned::new(bytes).unwrap());
        let request = |rank: u32| Request {
            identity: Identity::AdHoc { root: Rank(0) },
            shape,
            // SAFETY: the memory lives as long as the executors that use it.
            data: unsafe { memory[rank as usize].region() },
            input: TensorRegion::empty(),
            schedule: Arc::new(plan.schedule(&grid, Rank(rank), &shape, Rank(0)).unwrap()),
            priority: 0,
            deadline: Duration::from_nanos(u64::MAX - 1),
            name: Arc::from("bench"),
            step: 0,
            pushed: Duration::ZERO,
            device: None,
        };
        let requests = [request(0), request(1)];
        let executors = [0, 1].map(|rank| {
            let config = ExecutorConfig {
                poll_bytes: usize::MAX,
                ..ExecutorConfig::new(Rank(rank), grid, Kernels::detect())
            };
            // SAFETY: what is on a wire is used within `run` only.
            unsafe { Executor::new(config) }.unwrap()
        });
        let wires = [0, 1].map(|_| Wire { posted: Vec::new(), fragment: 8832 });
        Self { executors, wires, requests, _memory: memory }
    }

    /// One all-reduce, from start to completion on both ranks.
    fn run(&mut self) {
        let now = Duration::ZERO;
        for rank in 0..2 {
            self.executors[rank].start(self.requests[rank].clone()).unwrap();
        }
        let mut completed = 0;
        while completed < 2 {
            for rank in 0..2 {
                self.executors[rank].poll(now, &mut self.wires[rank], None::<&NoNode>, None);
                for (header, payload, token) in self.wires[rank].posted.drain(..) {
                    // SAFETY: it is released below, and the memory lives as long as the pair.
                    let bytes = unsafe { payload.as_bytes() }.unwrap();
                    self.executors[1 - rank].on_fragment(&header, bytes);
                    self.executors[rank].on_released(token);
                }
                while let Some(done) = self.executors[rank].take_completed() {
                    done.result.unwrap();
                    completed += 1;
                }
            }
        }
    }
}

fn small(c: &mut Criterion) {
    let mut group = c.benchmark_group("executor_small_two_ranks");
    for bytes in [4usize, 256, 4096] {
        group.bench_with_input(BenchmarkId::from_parameter(bytes), &bytes, |b, &bytes| {
            let mut pair = Pair::new(bytes, Algorithm::Direct);
            b.iter(|| pair.run());
        });
    }
    group.finish();
}

fn large(c: &mut Criterion) {
    let mut group = c.benchmark_group("executor_large_two_ranks");
    group.sample_size(20);
    for bytes in [64usize << 10, 1 << 20] {
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_with_input(BenchmarkId::from_parameter(bytes), &bytes, |b, &bytes| {
            let mut pair = Pair::new(bytes, Algorithm::Hierarchical);
            b.iter(|| pair.run());
        });
    }
    group.finish();
}

/// The same 32 KiB in few and in many fragments: the difference, divided by the fragments more, is what a fragment
/// costs from its post to its release, the kernel's call included.
fn fragments(c: &mut Criterion) {
    let mut group = c.benchmark_group("executor_32KiB_in_fragments_of");
    let bytes = 32usize << 10;
    for fragment in [64usize, 512, 8832] {
        // Either rank sends half of the tensor twice.
        let count = 4 * (bytes / 2).div_ceil(fragment) as u64;
        group.throughput(Throughput::Elements(count));
        group.bench_with_input(BenchmarkId::from_parameter(fragment), &fragment, |b, &fragment| {
            let mut pair = Pair::new(bytes, Algorithm::Hierarchical);
            pair.wires.iter_mut().for_each(|wire| wire.fragment = fragment);
            b.iter(|| pair.run());
        });
    }
    group.finish();
}

criterion_group!(benches, build, build_blocks, small, large, fragments);
criterion_main!(benches);
