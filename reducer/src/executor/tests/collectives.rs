//! All collectives at once, in place and apart, on random grids and bad networks: every rank ends with what the definition says.

use super::definition::{counts, expected};
use super::harness::{Buffer, Faults, Group};
use super::{BAD, seeds, values};
use crate::counts::Counts;
use crate::dtype::{DType, ReduceOp};
use crate::executor::{OpError, OpState, Request};
use crate::grid::Rank;
use crate::header::{Collective, Identity, Shape};
use crate::memory::TensorRegion;
use crate::schedule::{Access, Algorithm, Placement, Problem, build};
use crate::transport::{DeviceTensor, StreamEvent};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Where a rank's input and output lie: at these offsets of one buffer, or of two.
pub(super) struct Tensors {
    pub(super) problem: Problem,
    input: Buffer,
    pub(super) output: Buffer,
    /// The node shares their memory.
    pub(super) shared: bool,
}

impl Tensors {
    pub(super) fn new(problem: Problem, input: &[u8]) -> Self {
        let output_bytes = problem.output_bytes() as usize;
        let whole = (problem.bytes() as usize).max(output_bytes);
        let mut tensors = Self {
            problem,
            input: Buffer::new(input),
            output: Buffer::new(&vec![0xcd; output_bytes]),
            shared: false,
        };
        if tensors.problem.placement == Placement::InPlace {
            // One buffer serves as both.
            let at = tensors.problem.in_place().0 as usize;
            let mut bytes = vec![0xcd; whole];
            bytes[at..at + input.len()].copy_from_slice(input);
            tensors.output = Buffer::new(&bytes);
        }
        tensors
    }

    /// The regions of output and input.
    pub(super) fn regions(&self) -> [TensorRegion; 2] {
        let Self { problem, input, output, .. } = self;
        let region = |buffer: &Buffer| match problem.access {
            Access::Host if self.shared => buffer.shared(),
            Access::Host => buffer.region,
            _ => buffer.device(),
        };
        let [input_bytes, output_bytes] = [problem.input_bytes(), problem.output_bytes()].map(|b| b as usize);
        let given = if problem.has_input() { input_bytes } else { 0 };
        let (from, into) = match problem.placement {
            Placement::Separate => (region(input).sub(0, given), region(output).sub(0, output_bytes)),
            Placement::InPlace => {
                let (from, into) = problem.in_place();
                (region(output).sub(from as usize, given), region(output).sub(into as usize, output_bytes))
            }
        };
        [into.unwrap(), from.unwrap()]
    }

    pub(super) fn result(&self) -> Vec<u8> {
        let at = match self.problem.placement {
            Placement::InPlace => self.problem.in_place().1 as usize,
            Placement::Separate => 0,
        };
        self.output.bytes()[at..at + self.problem.output_bytes() as usize].to_vec()
    }
}

/// The problem with the counts that its node has in a job.
fn on_node(problem: &Problem) -> Problem {
    let part = |counts: &Arc<Counts>| Arc::new(counts.on_node(&problem.grid, problem.node()));
    Problem { counts: problem.counts.as_ref().map(part), ..problem.clone() }
}

pub(super) fn numbers(bytes: &[u8]) -> Vec<i64> {
    bytes.chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap())).collect()
}

/// Collectives of a seed, of any kind and all at once, and what is to come of them.
struct Run {
    group: Group,
    work: Vec<VecDeque<Request>>,
    checks: Vec<Check>,
    /// Some tensors are in an accelerator's memory.
    has_devices: bool,
}

/// An operation, its tensors and what they held, by rank.
struct Check {
    what: String,
    tensors: Vec<Tensors>,
    inputs: Vec<Vec<i64>>,
}

impl Check {
    /// A rank's operation has ended well: its output is what the definition says, and its input is as it was.
    fn is_right(&self, rank: usize) {
        let Self { what, tensors, inputs } = self;
        let here = &tensors[rank];
        let problem = &here.problem;
        let found = numbers(&here.result());
        assert_eq!(found, expected(problem, inputs), "{what}: {} {:?}", problem.rank, problem.placement);
        if problem.placement == Placement::Separate {
            let given = numbers(&here.input.bytes());
            assert_eq!(given, inputs[rank], "{what}: {}'s input", problem.rank);
        }
    }
}

fn prepare(seed: u64) -> Run {
    let mut rng = SmallRng::seed_from_u64(seed);
    // On one node inputs may be read where they lie.
    let nodes = if rng.random_ratio(2, 5) { 1 } else { rng.random_range(2..=7) };
    let grid = super::harness::grid(&mut rng, nodes, 3);
    let faults = if rng.random() { BAD } else { Faults { in_order: rng.random(), ..Faults::default() } };
    let one_sided = rng.random();
    let mut group = Group::new(seed, grid, faults, |config| config.one_sided = one_sided);
    group.net.fragment = [64 * rng.random_range(1..=5); 2];
    let mut work = vec![VecDeque::new(); grid.ranks() as usize];
    let (mut checks, mut has_devices) = (Vec::new(), false);
    for number in 0..rng.random_range(1..=5u32) {
        let collective = Collective::ALL[rng.random_range(0..Collective::ALL.len())];
        let op = [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Max][rng.random_range(0..3)];
        let count = [0, 1, 3, 64, 65, 150, 257][rng.random_range(0..7)];
        let count = if collective == Collective::Barrier { 0 } else { count };
        let op = if collective.is_scan() && op == ReduceOp::Avg { ReduceOp::Sum } else { op };
        let shape = Shape { collective, dtype: DType::I64, op, count };
        let (root, priority) = (Rank(rng.random_range(0..grid.ranks())), rng.random_range(0..3));
        let serving: Vec<_> = Algorithm::ALL.into_iter().filter(|one| one.applies_to(collective)).collect();
        let algorithm = serving[rng.random_range(0..serving.len())];
        let in_shared = [0.0, 0.9, 1.0][rng.random_range(0..3)];
        let on_devices = [0.0, 0.0, 0.5, 1.0][rng.random_range(0..4)];
        let counts = collective.has_counts().then(|| counts(&mut rng, collective, grid));
        let mut tensors = Vec::new();
        let mut inputs = Vec::new();
        for rank in 0..grid.ranks() {
            let mut problem = Problem::new(grid, Rank(rank), &shape, root);
            if let Some(counts) = &counts {
                problem = problem.with_counts(counts.clone());
            }
            if !problem.fits_in_place() || rng.random() && collective != Collective::Broadcast {
                problem = problem.separate();
            }
            if rng.random_bool(on_devices) {
                problem = problem.on_device();
            }
            let input = values(&mut rng, DType::I64, problem.input_bytes() / 8);
            let mut here = Tensors::new(problem.clone(), &input);
            here.shared = rng.random_bool(in_shared);
            let [data, input_region] = here.regions();
            let device = problem.access.is_device();
            has_devices |= device;
            work[rank as usize].push_back(Request {
                identity: Identity::Registered { generation: 0, tensor: number, instance: 0 },
                shape: problem.shape,
                data,
                input: input_region,
                schedule: Arc::new(build(algorithm, &on_node(&problem), &group.params).unwrap()),
                priority,
                deadline: core::time::Duration::MAX,
                name: Arc::from("t"),
                step: 7,
                pushed: core::time::Duration::ZERO,
                device: device.then_some(DeviceTensor { ready_event: Some(StreamEvent(9)), export: None }),
            });
            tensors.push(here);
            inputs.push(numbers(&input));
        }
        let what = format!("seed {seed}: {algorithm:?} {shape} from {root} on {grid:?}");
        checks.push(Check { what, tensors, inputs });
    }
    Run { group, work, checks, has_devices }
}

/// Returns how many operations ran on what ranks gave where it lies.
fn run_seed(seed: u64) -> u64 {
    let Run { mut group, work, checks, .. } = prepare(seed);
    group.run(work, &format!("seed {seed} on {:?}", group.grid));
    for completed in group.completed.iter().flatten() {
        assert_eq!((&completed.result, completed.outstanding), (&Ok(()), 0), "seed {seed}");
    }
    group.drain();
    for check in &checks {
        (0..check.tensors.len()).for_each(|rank| check.is_right(rank));
    }
    for executor in &group.executors {
        assert_eq!(executor.counters().malformed, 0, "seed {seed}");
        assert!(executor.ring.iter().all(|op| op.state() == OpState::Vacant), "seed {seed}");
    }
    group.executors.iter().map(|executor| executor.counters().in_place).sum()
}

/// Replay one with `SHOUTER_SEED=n cargo test -p shouter-reducer collectives_of_every_kind`; `SHOUTER_SEEDS=n` runs so many.
#[test]
fn collectives_of_every_kind_meet_their_definition() {
    let seeds = seeds(600);
    let ran = seeds.end - seeds.start;
    let in_place: u64 = seeds.map(run_seed).sum();
    assert!(ran < 300 || in_place > ran / 6, "hardly any read inputs where they lie: {in_place}");
}

/// Runs a seed in which a rank dies; adds the collectives that were interrupted on others.
fn lose_seed(seed: u64, interrupted: &mut BTreeMap<String, u32>) {
    let Run { mut group, work, checks, has_devices } = prepare(seed);
    let ranks = group.grid.ranks();
    if ranks == 1 {
        return;
    }
    let dies = Rank(seed as u32 % ranks);
    let what = format!("seed {seed}, {dies} of {:?} dies", group.grid);
    group.run_and_lose(work, dies, &what);
    group.drain();
    for rank in (0..ranks as usize).filter(|rank| *rank != dies.0 as usize) {
        for completed in &group.completed[rank] {
            let check = &checks[completed.op.0 as usize];
            match &completed.result {
                Ok(()) => check.is_right(rank),
                Err(OpError::Aborted { cause, .. }) => {
                    assert_eq!(cause.culprit, dies, "{}: rank {rank}", check.what);
                    let collective = check.tensors[rank].problem.shape.collective;
                    *interrupted.entry(collective.to_string()).or_default() += 1;
                }
                Err(error) => panic!("{}: rank {rank}: {error}", check.what),
            }
        }
        let executor = &mut group.executors[rank];
        // What an accelerator was asked for is not reported piece by piece any more.
        if has_devices {
            executor.fenced();
        }
        assert!(executor.is_quiesced(), "{what}: rank {rank} keeps memory");
    }
}

/// On grids of one host, too: every other rank's operations end, with the right result or the name of the rank that died, and every buffer is
/// given back. Replay one with `SHOUTER_SEED=n cargo test -p shouter-reducer a_rank_that_dies`; `SHOUTER_SEEDS=n` runs so many.
#[test]
fn a_rank_that_dies_in_any_collective_is_named_and_buffers_come_back() {
    let seeds = seeds(300);
    let (ran, mut interrupted) = (seeds.end - seeds.start, BTreeMap::new());
    seeds.for_each(|seed| lose_seed(seed, &mut interrupted));
    let rare = |count: &u32| *count < 5;
    assert!(
        ran < 300 || interrupted.len() == Collective::ALL.len() && !interrupted.values().any(rare),
        "{interrupted:?}"
    );
}
