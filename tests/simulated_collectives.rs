//! Every collective from the engine down to the frames, in virtual time: hosts with one rank or several, which share memory, ranks that
//! start late, and links that lose, reorder, duplicate and damage frames. For every seed each result is what the definition says. Where a
//! rank is stopped or its host is cut off, all work of the others ends soon, with that result or with an error that names the rank. A buffer
//! is overwritten as soon as it is given back, and nothing reads or writes it from then on.
//!
//! A failure names its seed; `SHOUTER_TEST_SEED=<seed> cargo test -p shouter --test simulated_collectives` replays it, and
//! `SHOUTER_SEEDS=<n>` runs so many of each kind.

#[path = "../reducer/src/executor/tests/definition.rs"]
mod definition;

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use definition::{counts, expected};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use shouter::channel::rud::{RudChannel, rud_config};
use shouter::channel::shm::{NodeSegment, SegmentShape, SharedMemory};
use shouter::channel::stream::{Settings, StackStreams, TcpChannel};
use shouter::channel::up::{PeerAddress, UpChannels};
use shouter::engine::{Engine, EngineParts};
use shouter::key::Key;
use shouter::runtime::Poller;
use shouter::{DType, ReduceOp};
use shouter_netstack::device::{Fault, FaultConfig};
use shouter_netstack::sim::{LinkConfig, Node, Sim};
use shouter_netstack::stack::{PortConfig, Stack, StackConfig};
use shouter_netstack::time::Instant;
use shouter_reducer::counts::Counts;
use shouter_reducer::executor::{Executor, ExecutorConfig, OpId, Request};
use shouter_reducer::grid::{Grid, Levels, Rank};
use shouter_reducer::header::{Collective, Shape};
use shouter_reducer::kernel::Kernels;
use shouter_reducer::memory::{MemoryKind, Owned, TensorRegion};
use shouter_reducer::plan::Plan;
use shouter_reducer::schedule::{Algorithm, Placement, Problem};

const PORT: u16 = 4_790;
const MTU: u16 = 1_500;

/// The parts of the frames that faulty links lose and damage.
#[derive(Clone, Copy)]
struct Faults {
    loss: f64,
    corrupt: f64,
}

const BAD: Faults = Faults { loss: 0.05, corrupt: 0.02 };

/// Operations have so long to end. Nothing here takes that long: a loss ends them sooner.
const DEADLINE: Duration = Duration::from_secs(30);

/// A rank of which nothing is heard for so long has failed.
const DEAD_AFTER: Duration = Duration::from_millis(200);

/// After a failure the others have so long to end: the time above, for the channels or the ranks of the host to notice, and another one to
/// notify each other.
const SOON: Duration = Duration::from_millis(500);

/// The same for TCP connections that were never made, beside the time to make them.
const CONNECT: Duration = Duration::from_secs(10);

/// For so long the run goes on when all has ended: what is under way then must do no harm.
const AFTERWARDS: Duration = Duration::from_millis(20);

/// The transport of the fragments between hosts.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Over {
    Rud,
    Tcp,
}

/// Memory of one tensor, on its own or in the part that the host's ranks share.
enum Memory {
    Own(Owned),
    Shared(SharedMemory, usize),
}

impl Memory {
    fn new(segment: Option<&Arc<NodeSegment>>, bytes: &[u8]) -> Self {
        let memory = match segment {
            Some(segment) => {
                Self::Shared(SharedMemory::new(segment, bytes.len()).expect("room in the arena"), bytes.len())
            }
            None => Self::Own(Owned::new(bytes.len()).unwrap()),
        };
        memory.write(bytes);
        memory
    }

    fn region(&self) -> TensorRegion {
        match self {
            // SAFETY: the memory lives in the host behind its engine, which is dropped first.
            Self::Own(owned) => unsafe { owned.region() },
            // SAFETY: likewise.
            Self::Shared(memory, len) => unsafe {
                TensorRegion::from_raw_parts(MemoryKind::Shared, memory.as_ptr(), *len, 0)
            },
        }
    }

    /// The memory, which nobody else accesses now: everything runs in this thread, and no engine is being polled.
    fn bytes(&self) -> &[u8] {
        let region = self.region();
        let base = NonNull::new(region.as_ptr()).unwrap();
        // SAFETY: it is mapped, and as long as that.
        unsafe { std::slice::from_raw_parts(base.as_ptr(), region.len()) }
    }

    fn write(&self, bytes: &[u8]) {
        let region = self.region();
        assert_eq!(region.len(), bytes.len());
        // SAFETY: as in `bytes`; these are apart from it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), region.as_ptr(), bytes.len()) };
    }

    /// What is written to memory that was given back.
    fn poison(&self) -> Vec<u8> {
        (0..self.region().len()).map(|at| 0xa5 ^ at as u8).collect()
    }
}

fn encode(dtype: DType, value: i64) -> Vec<u8> {
    match dtype {
        DType::U8 => vec![value as u8],
        DType::I32 => (value as i32).to_le_bytes().to_vec(),
        DType::I64 => value.to_le_bytes().to_vec(),
        DType::F32 => (value as f32).to_le_bytes().to_vec(),
        other => panic!("no values for {other}"),
    }
}

fn decode(dtype: DType, bytes: &[u8]) -> Vec<i64> {
    let value = |b: &[u8]| match dtype {
        DType::U8 => b[0].into(),
        DType::I32 => i32::from_le_bytes(b.try_into().unwrap()).into(),
        DType::I64 => i64::from_le_bytes(b.try_into().unwrap()),
        DType::F32 => f32::from_le_bytes(b.try_into().unwrap()) as i64,
        other => panic!("no values for {other}"),
    };
    bytes.chunks_exact(dtype.size()).map(value).collect()
}

/// One rank's part of an operation.
struct Op {
    what: Arc<str>,
    problem: Problem,
    /// What all ranks give.
    inputs: Arc<Vec<Vec<i64>>>,
    /// Unused in place.
    input: Memory,
    output: Memory,
    request: Request,
    started: Option<OpId>,
    /// How it has ended, with the text of its error.
    ended: Option<Result<(), String>>,
}

impl Op {
    /// The regions of output and input, as a request has them.
    fn regions(problem: &Problem, input: &Memory, output: &Memory) -> [TensorRegion; 2] {
        let output_bytes = problem.output_bytes() as usize;
        let given = if problem.has_input() { problem.input_bytes() as usize } else { 0 };
        let (from, into) = match problem.placement {
            Placement::Separate => (input.region().sub(0, given), output.region().sub(0, output_bytes)),
            Placement::InPlace => {
                let (from, into) = problem.in_place();
                let whole = output.region();
                (whole.sub(from as usize, given), whole.sub(into as usize, output_bytes))
            }
        };
        [into.unwrap(), from.unwrap()]
    }

    /// The operation has ended and its buffers are given back: checks what is there, and overwrites it.
    fn end(&mut self, result: Result<(), String>) {
        let Self { problem, inputs, what, .. } = &*self;
        let (rank, dtype) = (problem.rank, problem.shape.dtype);
        if result.is_ok() {
            let at = if problem.placement == Placement::InPlace { problem.in_place().1 as usize } else { 0 };
            let found = &self.output.bytes()[at..at + problem.output_bytes() as usize];
            let due = expected(problem, inputs);
            let differs = decode(dtype, found).into_iter().zip(&due).position(|(found, due)| found != *due);
            assert_eq!(
                differs, None,
                "{what}: {rank}'s result, {:?}, first at this element",
                problem.placement
            );
        }
        if problem.placement == Placement::Separate {
            let given = decode(dtype, self.input.bytes());
            assert!(given == inputs[rank.0 as usize], "{what}: {rank}'s input was overwritten");
        }
        [&self.input, &self.output].iter().for_each(|memory| memory.write(&memory.poison()));
        self.ended = Some(result);
    }

    fn is_untouched(&self) -> bool {
        [&self.input, &self.output].iter().all(|memory| memory.bytes() == memory.poison())
    }
}

/// One rank and its tensors.
struct Member {
    // Dropped before the memory that it refers to.
    engine: Engine,
    segment: Option<Arc<NodeSegment>>,
    /// When it starts which operation, in their order.
    ops: Vec<(Instant, Op)>,
    /// The process does not run.
    is_stopped: bool,
}

impl Member {
    /// Starts what is due, polls, and takes what has ended; whether there was anything to do.
    fn poll(&mut self, now: Instant) -> bool {
        let Self { engine, ops, .. } = self;
        for (_, op) in ops.iter_mut().filter(|(at, op)| *at <= now && op.started.is_none()) {
            if op.ended.is_none() {
                match engine.start(now, op.request.clone()) {
                    Ok(id) => op.started = Some(id),
                    Err(why) => op.end(Err(why.to_string())),
                }
            }
        }
        let busy = engine.poll(now).is_busy();
        for (_, op) in ops.iter_mut().filter(|(_, op)| op.ended.is_none()) {
            if let Some(completed) = op.started.and_then(|id| engine.take_finished(id)) {
                assert!(completed.result.is_err() || completed.outstanding == 0, "{}", op.what);
                op.end(completed.result.map_err(|why| why.to_string()));
            }
        }
        busy
    }

    fn next_deadline(&self) -> Option<Instant> {
        let starts = self.ops.iter().filter(|(_, op)| op.started.is_none() && op.ended.is_none());
        starts.map(|(at, _)| *at).chain(self.engine.next_deadline()).min()
    }

    fn has_ended(&self) -> bool {
        self.ops.iter().all(|(_, op)| op.ended.is_some())
    }
}

/// The ranks of a host, which are polled in a random order.
struct Host {
    members: Vec<Member>,
    rng: SmallRng,
}

impl Node for Host {
    fn poll(&mut self, now: Instant) -> Option<Instant> {
        let (ranks, first) = (self.members.len(), self.rng.random_range(0..self.members.len()));
        let mut busy = false;
        for at in 0..ranks {
            let member = &mut self.members[(first + at) % ranks];
            busy |= !member.is_stopped && member.poll(now);
        }
        if busy {
            return Some(now);
        }
        self.members.iter().filter(|member| !member.is_stopped).filter_map(Member::next_deadline).min()
    }
}

fn address(node: u32) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, node as u8 + 1)
}

/// The faults on the links of a run.
fn faults(seed: u64, Faults { loss, corrupt }: Faults) -> FaultConfig {
    FaultConfig {
        seed,
        loss,
        corrupt,
        duplicate: 0.03,
        reorder: 0.1,
        reorder_delay: Duration::from_micros(50),
        ..FaultConfig::default()
    }
}

/// The channel of a host's leader to the others'.
fn channel(
    over: Over,
    sim: &Sim,
    grid: Grid,
    node: u32,
    faults: FaultConfig,
    dead_after: Duration,
) -> UpChannels {
    let device = Fault::new(sim.network().attach(MTU, LinkConfig::default()), faults).unwrap();
    let mut config = StackConfig::new(u64::from(node)).with_rud(PORT);
    config.neighbours.request_interval = Duration::from_millis(1);
    config.neighbours.requests = 20;
    config.rud = rud_config(dead_after, grid.nodes() as usize);
    let mut stack = Stack::new(config);
    stack.add_port(device, PortConfig::new(address(node), 24, MTU)).unwrap();
    let local_ip = address(node);
    let peer = |peer| PeerAddress { rank: grid.leader_of(peer), ip: address(peer), port: PORT, local_ip };
    let peers: Vec<_> = (0..grid.nodes()).filter(|peer| *peer != node).map(peer).collect();
    let (rank, secret, now) = (grid.leader_of(node), Key::from_secret([7; 32]), Instant::ZERO);
    match over {
        Over::Rud => RudChannel::open(stack, rank, &peers, (&secret, false), (2, PORT, MTU)).unwrap().into(),
        Over::Tcp => {
            let salt = Key::from_secret([rank.0 as u8; 32]);
            let settings = Settings { secret, salt, connections: 2, dead_after, crc: true };
            let streams = StackStreams::new(stack, PORT, dead_after);
            TcpChannel::open(streams, rank, &peers, settings, now).unwrap().into()
        }
    }
}

/// The memory that the ranks of a host share, as each of them maps it; none where no host has several.
fn segments(plan: &Plan, grid: Grid, node: u32) -> Vec<Arc<NodeSegment>> {
    if grid.most_locals() == 1 {
        return vec![];
    }
    let ranks = grid.locals(node);
    let lane_bytes = plan.lane_bytes as usize;
    let shape = SegmentShape { ranks, lanes: plan.lanes, lane_bytes, arena_bytes: 16 << 20, parts: 0 };
    let first = NodeSegment::create(shape).unwrap();
    let fd = || first.fd().try_clone_to_owned().unwrap();
    let others: Vec<_> = (1..ranks).map(|local| NodeSegment::attach(fd(), shape, local).unwrap()).collect();
    [first].into_iter().chain(others).map(Arc::new).collect()
}

/// What a seed gives.
struct Job {
    over: Over,
    seed: u64,
    grid: Grid,
    plan: Plan,
    rng: SmallRng,
    dead_after: Duration,
}

impl Job {
    fn new(over: Over, seed: u64, dead_after: Duration) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let nodes = rng.random_range(2..=4u32);
        let even = rng.random_bool(0.5).then(|| rng.random_range(1..=3));
        let locals: Vec<_> = (0..nodes).map(|_| even.unwrap_or_else(|| rng.random_range(1..=3))).collect();
        let plan = Plan {
            levels: Levels::new([&[][..], &[2], &[3], &[2, 2]][rng.random_range(0..4)]).unwrap(),
            chunk_bytes: 4096,
            lane_bytes: [1024, 4096][rng.random_range(0..2)],
            lanes: rng.random_range(1..=4),
            depth: rng.random_range(1..=4),
            eager_bytes: [600, 4096][rng.random_range(0..2)],
            ..Plan::default()
        };
        let grid = Grid::of_hosts(&locals).unwrap();
        Self { over, seed, grid, plan, rng, dead_after }
    }

    /// The engines, without operations; the links have faults if there are any.
    fn hosts(&mut self, sim: &Sim, faulty: Option<Faults>) -> Vec<Host> {
        let Self { over, grid, plan, .. } = *self;
        let mut hosts = vec![];
        for node in 0..grid.nodes() {
            let config = faulty.map(|some| faults(self.rng.random(), some)).unwrap_or_default();
            let mut channel = Some(channel(over, sim, grid, node, config, self.dead_after));
            let segments = segments(&plan, grid, node);
            let members = (0..grid.locals(node)).map(|local| {
                let rank = grid.rank_at(node, local);
                let mut config = ExecutorConfig::new(rank, grid, Kernels::detect());
                config.eager_bytes = plan.eager_bytes as usize;
                // SAFETY: the engine has the channel, and drops it first.
                let mut executor = unsafe { Executor::new(config) }.unwrap();
                let segment = segments.get(local as usize).cloned();
                let node = segment.clone();
                node.iter().for_each(|node| executor.attach_node(&**node).unwrap());
                let (up, dead_after) = (channel.take().unwrap_or_default(), self.dead_after);
                let parts = EngineParts { executor, rank, up, node, dead_after };
                let engine = Engine::new(parts, Instant::ZERO);
                Member { engine, segment, ops: vec![], is_stopped: false }
            });
            let members = members.collect();
            hosts.push(Host { members, rng: SmallRng::seed_from_u64(self.rng.random()) });
        }
        hosts
    }

    /// Mostly none, else up to so many microseconds.
    fn some_time(&mut self, most: u64) -> Duration {
        let late = self.rng.random_bool(0.3);
        Duration::from_micros(if late { self.rng.random_range(0..most) } else { 0 })
    }

    /// Gives all ranks a few collectives, which they start in this order, some of them late.
    fn add_collectives(&mut self, hosts: &mut [Host]) {
        let mut starts = vec![Instant::ZERO; self.grid.ranks() as usize];
        for priority in 0..self.rng.random_range(1..=4) {
            let collective = Collective::ALL[self.rng.random_range(0..Collective::ALL.len())];
            for start in &mut starts {
                *start += self.some_time(3_000);
            }
            self.add(hosts, &starts, collective, priority);
        }
    }

    /// Gives all ranks a collective of a random size, by a random algorithm of those that serve it.
    fn add(&mut self, hosts: &mut [Host], starts: &[Instant], collective: Collective, priority: u32) {
        let Self { seed, over, grid, plan, ref mut rng, .. } = *self;
        let dtype = [DType::U8, DType::I32, DType::I64, DType::F32][rng.random_range(0..4)];
        let op = [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Max][rng.random_range(0..3)];
        // Means of floats are not exact, and scans have none.
        let has_mean = !collective.is_scan() && dtype != DType::F32;
        let op = if has_mean || op != ReduceOp::Avg { op } else { ReduceOp::Sum };
        // Of every rank where there are blocks. A chunk has 512 to 4096 elements.
        let count = match collective {
            Collective::Barrier => 0,
            _ => [0, 1, 2, 7, 64, 257, 1031, 2053, 9001]
                [rng.random_range(0..if collective.is_blocked() { 8 } else { 9 })],
        };
        let shape = Shape { collective, dtype, op, count };
        let root = Rank(rng.random_range(0..grid.ranks()));
        let serving: Vec<_> =
            Algorithm::ALL.into_iter().filter(|one| one.serves(collective, &grid)).collect();
        let algorithm = serving[rng.random_range(0..serving.len())];
        let counts = collective.has_counts().then(|| counts(rng, collective, grid));
        let in_shared = [0.0, 0.9, 1.0][rng.random_range(0..3)];
        let what: Arc<str> =
            format!("{over:?}, seed {seed}: {algorithm:?} {shape} from {root} on {grid:?}").into();
        // Their sums fit.
        let most = if dtype == DType::U8 { 20 } else { 1000 };
        let problems = (0..grid.ranks()).map(|rank| {
            let mut problem = Problem::new(grid, Rank(rank), &shape, root);
            if let Some(counts) = &counts {
                problem = problem.with_counts(counts.clone());
            }
            let is_free = collective != Collective::Broadcast;
            if !problem.fits_in_place() || is_free && rng.random() { problem.separate() } else { problem }
        });
        let problems: Vec<_> = problems.collect();
        let inputs = problems.iter().map(|problem| {
            let len = problem.input_bytes() / dtype.size() as u64;
            (0..len)
                .map(|_| {
                    if dtype == DType::U8 {
                        rng.random_range(0..=most)
                    } else {
                        rng.random_range(-most..=most)
                    }
                })
                .collect()
        });
        let inputs: Arc<Vec<Vec<i64>>> = Arc::new(inputs.collect());
        for problem in problems {
            let rank = problem.rank;
            let given: Vec<u8> =
                inputs[rank.0 as usize].iter().flat_map(|value| encode(dtype, *value)).collect();
            let mut result = vec![0xcd; problem.output_bytes() as usize];
            let mut input = given.as_slice();
            if problem.placement == Placement::InPlace {
                result.resize(result.len().max(problem.bytes() as usize), 0xcd);
                let at = problem.in_place().0 as usize;
                result[at..at + given.len()].copy_from_slice(&given);
                input = &[];
            }
            let member = &mut hosts[grid.node_of(rank) as usize].members[grid.local_of(rank) as usize];
            let segment = member.segment.as_ref().filter(|_| rng.random_bool(in_shared));
            let (input, output) = (Memory::new(segment, input), Memory::new(segment, &result));
            let [data, given] = Op::regions(&problem, &input, &output);
            let request = Request {
                identity: problem.identity(),
                shape: problem.shape,
                data,
                input: given,
                schedule: Arc::new(plan.build(algorithm, &problem).unwrap()),
                priority,
                deadline: DEADLINE,
                name: Arc::from("gradient"),
                step: 0,
                pushed: Duration::ZERO,
                device: None,
            };
            let (what, inputs) = (what.clone(), inputs.clone());
            let op = Op { what, problem, inputs, input, output, request, started: None, ended: None };
            member.ops.push((starts[rank.0 as usize], op));
        }
    }

    fn what(&self) -> String {
        format!("{:?}, seed {} on {:?}", self.over, self.seed, self.grid)
    }
}

/// All ranks.
fn members(hosts: &[Host]) -> impl Iterator<Item = &Member> {
    hosts.iter().flat_map(|host| &host.members)
}

/// Runs until all ranks but these have ended their work.
fn run_to_end(sim: &mut Sim, hosts: &mut [Host], limit: Instant, but: impl Fn(Rank) -> bool, what: &str) {
    let ended = sim.run_until(hosts, limit, |hosts| {
        (0..).zip(members(hosts)).all(|(rank, member)| but(Rank(rank)) || member.has_ended())
    });
    let left = || {
        let ranks = (0u32..).zip(members(hosts)).filter(|(rank, _)| !but(Rank(*rank)));
        let ops = ranks.flat_map(|(rank, member)| member.ops.iter().map(move |(_, op)| (rank, op)));
        let left =
            ops.filter(|(_, op)| op.ended.is_none()).map(|(rank, op)| format!("rank {rank}: {}", op.what));
        left.collect::<Vec<_>>().join("\n")
    };
    assert!(ended, "{what}: not ended after {:?}:\n{}", sim.now(), left());
}

/// Lets what is under way arrive, and looks whether any of it has changed a buffer that was given back.
fn check_buffers(sim: &mut Sim, hosts: &mut [Host], what: &str) {
    let until = sim.now() + AFTERWARDS;
    sim.run_until(hosts, until, |_| false);
    for member in members(hosts) {
        for (_, op) in member.ops.iter().filter(|(_, op)| op.ended.is_some()) {
            assert!(op.is_untouched(), "{what}: {}: written to after it was given back", op.what);
        }
    }
}

/// What a damaged frame did for which TCP's checksum still holds, as for about one in a hundred with several flipped bits. The group ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Damage {
    /// A byte stream cannot bring the data again.
    Data,
    /// With a timestamp far ahead, no later segment is taken.
    Timestamp,
}

/// Runs one seed; returns the retransmitted datagrams and those dropped for their CRC.
fn run(over: Over, seed: u64) -> Result<(u64, u64), Damage> {
    let mut job = Job::new(over, seed, Duration::from_secs(5));
    let mut sim = Sim::new(seed);
    let mut hosts = job.hosts(&sim, Some(BAD));
    job.add_collectives(&mut hosts);
    let what = job.what();
    run_to_end(&mut sim, &mut hosts, Instant::ZERO + Duration::from_secs(20), |_| false, &what);
    check_buffers(&mut sim, &mut hosts, &what);
    let mut totals = (0, 0);
    for member in members(&hosts) {
        let up = member.engine.up();
        assert_eq!(member.engine.counters().malformed, 0, "{what}");
        totals.0 += up.resent();
        totals.1 += up.crc_dropped();
    }
    let ops = members(&hosts).flat_map(|member| &member.ops);
    let errors: Vec<_> =
        ops.filter_map(|(_, op)| Some((&op.what, op.ended.as_ref()?.as_ref().err()?))).collect();
    let says = |part| over == Over::Tcp && errors.iter().any(|(_, error)| error.contains(part));
    if says("CRC32C is wrong") {
        return Err(Damage::Data);
    } else if says("has not answered for") {
        return Err(Damage::Timestamp);
    }
    assert!(errors.is_empty(), "{what}: {errors:?}");
    assert!(members(&hosts).all(|member| member.engine.is_idle()), "{what}: not idle");
    Ok(totals)
}

/// The seeds to run of the usual number.
fn seeds(usual: u64) -> std::ops::Range<u64> {
    let number = |name| {
        std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
    };
    match number("SHOUTER_TEST_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SHOUTER_SEEDS").unwrap_or(usual),
    }
}

fn exact(over: Over, usual: u64) {
    let seeds = seeds(usual);
    let ran = seeds.end - seeds.start;
    let (mut resent, mut dropped, mut damages) = (0, 0, vec![]);
    for seed in seeds {
        match run(over, seed) {
            Ok(totals) => {
                resent += totals.0;
                dropped += totals.1;
            }
            Err(damage) => damages.push(damage),
        }
    }
    let count = |one| damages.iter().filter(|damage| **damage == one).count() as u64;
    let [data, timestamps] = [Damage::Data, Damage::Timestamp].map(count);
    println!("{over:?}: {ran} seeds, {resent} resent, {dropped} dropped, {data} and {timestamps} ended");
    if ran > 1 {
        assert!(data <= ran / 20, "{over:?}: {data} of {ran} seeds have ended with an error");
        assert!(timestamps <= 1 + ran / 1000, "{over:?}: {timestamps} of {ran} seeds have hung");
        assert!(
            resent > ran && dropped > ran,
            "{over:?}: the faults did not take place: {resent} resent, {dropped} dropped"
        );
    }
}

#[test]
fn every_collective_is_exact() {
    exact(Over::Rud, 250);
}

#[test]
fn every_collective_over_tcp_is_exact() {
    exact(Over::Tcp, 50);
}

/// How a rank fails.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Failure {
    /// Its process runs no more.
    Stopped,
    /// It leads its host, which nothing reaches any more, and which reaches nothing.
    Cut,
}

/// Runs one seed in which a rank fails; returns that rank, and the collectives in whose errors others have named it.
fn fail(over: Over, seed: u64) -> (Rank, Vec<Collective>) {
    let mut job = Job::new(over, seed, DEAD_AFTER);
    let grid = job.grid;
    let mut sim = Sim::new(seed);
    // TCP ends a group in which a damaged frame gets through, or four keep-alives in a row or their answers are lost.
    let faulty = if over == Over::Tcp { Faults { loss: 0.01, corrupt: 0.0 } } else { BAD };
    let faulty = job.rng.random::<bool>().then_some(faulty);
    let mut hosts = job.hosts(&sim, faulty);
    job.add_collectives(&mut hosts);
    let culprit = Rank(seed as u32 % grid.ranks());
    let (node, local) = (grid.node_of(culprit) as usize, grid.local_of(culprit) as usize);
    let failure = if grid.is_leader(culprit) && job.rng.random() { Failure::Cut } else { Failure::Stopped };
    let what = format!("{}: {culprit}, {failure:?}", job.what());
    // During the handshakes of connections, or during the transfers.
    let most = [100, 3_000, 8_000][job.rng.random_range(0..3)];
    let at = Instant::ZERO + Duration::from_micros(job.rng.random_range(0..most));
    sim.run_until(&mut hosts, at, |_| false);
    hosts[node].members[local].is_stopped = failure == Failure::Stopped;
    // A leader polls the port of its host.
    sim.network().set_cut(node, grid.is_leader(culprit));
    let at = sim.now();
    // Who is on a host that is cut off takes the others for lost.
    let fails = |rank| rank == culprit || failure == Failure::Cut && grid.node_of(rank) == node as u32;
    run_to_end(&mut sim, &mut hosts, at + CONNECT + SOON, fails, &what);
    let (took, mut named, mut is_soon) = (sim.now() - at, vec![], true);
    for (rank, member) in (0..).map(Rank).zip(members(&hosts)).filter(|(rank, _)| !fails(*rank)) {
        for (_, op) in &member.ops {
            let Some(Err(error)) = &op.ended else { continue };
            let cause = member.engine.aborted().expect("the group has ended");
            assert_eq!(cause.culprit, culprit, "{what}, on {rank}: {error}");
            assert!(error.contains(&culprit.to_string()), "{}, on {rank}: {error}", op.what);
            is_soon &= !error.contains("were not made within");
            named.push(op.problem.shape.collective);
        }
    }
    assert!(!is_soon || took < SOON, "{what}: work ended only after {took:?}");
    check_buffers(&mut sim, &mut hosts, &what);
    // It comes back, and with it all that was on the way.
    sim.network().set_cut(node, false);
    hosts[node].members[local].is_stopped = false;
    let limit = sim.now() + CONNECT + SOON;
    run_to_end(&mut sim, &mut hosts, limit, |_| false, &what);
    check_buffers(&mut sim, &mut hosts, &what);
    (culprit, named)
}

fn fails(over: Over, usual: u64) {
    let seeds = seeds(usual);
    let ran = seeds.end - seeds.start;
    let (mut culprits, mut interrupted) = (BTreeSet::new(), BTreeSet::new());
    for seed in seeds {
        let (culprit, named) = fail(over, seed);
        if !named.is_empty() {
            culprits.insert(culprit.0);
        }
        interrupted.extend(named.into_iter().map(|collective| collective.to_string()));
    }
    if ran > 1 {
        assert!(culprits.range(..8).count() == 8, "{over:?}: only ranks {culprits:?} were named");
        assert_eq!(
            interrupted.len(),
            Collective::ALL.len(),
            "{over:?}: only {interrupted:?} were interrupted"
        );
    }
}

#[test]
fn a_rank_that_fails_is_named_by_all_others() {
    fails(Over::Rud, 150);
}

#[test]
fn a_rank_that_fails_is_named_by_all_others_over_tcp() {
    fails(Over::Tcp, 100);
}

/// What passes the link of a host no more: frames from it, frames to it.
const CUTS: [[bool; 2]; 3] = [[false, true], [true, false], [true, true]];

/// Runs one seed in which the links of so many hosts of at least three are cut at once, some in one direction only. All ranks name the leader of
/// a cut host, its own ranks too, and the other hosts are not taken for it, in whatever order the losses are found; returns that node and the
/// number of its cut, if a rank had to name it.
fn cut_off(over: Over, seed: u64, hosts_cut: u32) -> Option<(u32, usize)> {
    let mut job = Job::new(over, seed, DEAD_AFTER);
    let grid = job.grid;
    if grid.nodes() < hosts_cut + 2 {
        return None;
    }
    let mut sim = Sim::new(seed);
    let faulty = if over == Over::Tcp { Faults { loss: 0.01, corrupt: 0.0 } } else { BAD };
    let faulty = job.rng.random::<bool>().then_some(faulty);
    let mut hosts = job.hosts(&sim, faulty);
    job.add_collectives(&mut hosts);
    let first = job.rng.random_range(0..grid.nodes());
    let nodes: Vec<_> = (0..hosts_cut).map(|more| (first + more) % grid.nodes()).collect();
    let cut = job.rng.random_range(0..CUTS.len());
    let what = format!("{}: {nodes:?}, [from, to]: {:?}", job.what(), CUTS[cut]);
    let at = Instant::ZERO + Duration::from_micros(job.rng.random_range(0..8_000));
    sim.run_until(&mut hosts, at, |_| false);
    nodes.iter().for_each(|node| sim.network().set_cut_each(*node as usize, CUTS[cut]));
    let is_out = |rank| nodes.contains(&grid.node_of(rank));
    // Several that are cut off cannot know that others are not.
    run_to_end(&mut sim, &mut hosts, at + CONNECT + SOON, |rank| hosts_cut > 1 && is_out(rank), &what);
    let (mut is_named, survives) = (false, |rank: &Rank| hosts_cut == 1 || !is_out(*rank));
    for (rank, member) in (0..).map(Rank).zip(members(&hosts)).filter(|(rank, _)| survives(rank)) {
        let Some(cause) = member.engine.aborted() else { continue };
        let right = nodes.iter().any(|node| cause.culprit == grid.leader_of(*node));
        assert!(right, "{what}: {rank} names {}: {cause}", cause.culprit);
        is_named |= member.ops.iter().any(|(_, op)| matches!(op.ended, Some(Err(_))));
    }
    check_buffers(&mut sim, &mut hosts, &what);
    is_named.then_some((first, cut))
}

fn cuts(over: Over, usual: u64) {
    for hosts_cut in [1, 2] {
        let seeds = seeds(usual);
        let ran = seeds.end - seeds.start;
        let named: BTreeSet<_> = seeds.filter_map(|seed| cut_off(over, seed, hosts_cut)).collect();
        if ran > 1 {
            // Jobs of three hosts, and of four.
            let hosts = 3 + u32::from(hosts_cut > 1);
            let due = (0..hosts).flat_map(|node| (0..CUTS.len()).map(move |cut| (node, cut)));
            let missing: Vec<_> = due.filter(|one| !named.contains(one)).collect();
            assert!(missing.is_empty(), "{over:?}: nobody has named these hosts, by these cuts: {missing:?}");
        }
    }
}

#[test]
fn a_host_that_is_cut_off_in_one_direction_is_named_by_all_and_by_itself() {
    cuts(Over::Rud, 250);
}

#[test]
fn a_host_that_is_cut_off_in_one_direction_is_named_by_all_and_by_itself_over_tcp() {
    cuts(Over::Tcp, 400);
}

#[test]
fn a_leader_has_a_session_to_each_of_very_many_others() {
    const LEADERS: u32 = 5000;
    let sim = Sim::new(1);
    let mut config = StackConfig::new(1).with_rud(PORT);
    config.rud = rud_config(Duration::from_secs(10), LEADERS as usize - 1);
    let mut stack = Stack::new(config);
    let device = sim.network().attach(MTU, LinkConfig::default());
    stack.add_port(device, PortConfig::new(Ipv4Addr::new(10, 0, 0, 1), 8, MTU)).unwrap();
    let local_ip = Ipv4Addr::new(10, 0, 0, 1);
    let peer =
        |rank| PeerAddress { rank: Rank(rank), ip: Ipv4Addr::from(0x0a01_0000 + rank), port: PORT, local_ip };
    let peers: Vec<_> = (1..LEADERS).map(peer).collect();
    let channel =
        RudChannel::open(stack, Rank(0), &peers, (&Key::from_secret([7; 32]), false), (1, PORT, MTU));
    assert!(channel.is_ok(), "{:?}", channel.err());
}
