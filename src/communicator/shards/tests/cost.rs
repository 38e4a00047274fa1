//! What shards cost beside the work that they share out: an all-reduce in parts takes at most a tenth more instructions than on one shard.
//!
//! Two ranks, each of so many engines over a loopback device of its own, run in one thread and in virtual time, as if each engine had a core. Counted
//! are all instructions from the hand-over of the parts to the report of the last one's end, on both ranks, but those of polls that find nothing:
//! how many of these there are depends on the links. Valgrind counts, so the machine's load does not matter: the test starts itself under it.
#![allow(unsafe_code)]

use std::net::Ipv4Addr;
use std::process::Command;
use std::time::Duration;

use shouter_netstack::device::Loopback;
use shouter_netstack::stack::{PortConfig, Stack, StackConfig};
use shouter_reducer::executor::{Executor, ExecutorConfig};
use shouter_reducer::grid::{Grid, Rank};
use shouter_reducer::kernel::Kernels;
use shouter_reducer::memory::Owned;
use shouter_reducer::plan::Plan;

use super::*;
use crate::channel::rud::{RudChannel, rud_config};
use crate::channel::up::PeerAddress;
use crate::engine::submitted::Submissions;
use crate::engine::{Engine, EngineParts};
use crate::key::Key;
use crate::runtime::{Activity, Instant, Poller};

const PORT: u16 = 4_790;
const MTU: u16 = 9_000;
const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];
const DEAD_AFTER: Duration = Duration::from_secs(60);
/// Between two polls of an engine.
const STEP: Duration = Duration::from_micros(10);
/// Names the function that a run under valgrind counts, the shards, and the bytes.
const COUNTED: &str = "SHOUTER_TEST_COUNTED";
/// All-reduces before the one that is counted: the first makes contact, and round-trip times are found.
const BEFORE: u32 = 4;
/// Polls that find nothing, to be counted.
const POLLS: u64 = 1_000;
/// No all-reduce takes so many.
const MOST_POLLS: u64 = 1_000_000;

/// One rank of two, each on a host of its own.
struct Member {
    // Before the memory that they refer to.
    engines: Vec<(Engine, Arc<Submissions>)>,
    whole: Request,
    parts: Arc<[Arc<Schedule>]>,
    _memory: Owned,
}

/// The parts of an operation of one rank.
struct Ends(PartEnds, Mutex<Option<Result<(), Failure>>>);

impl Report for Ends {
    fn released(&self) {}

    fn ended(self: Arc<Self>, result: Result<(), Failure>) {
        if let Some(result) = self.0.ended(result) {
            *lock(&self.1) = Some(result);
        }
    }
}

struct Pair {
    members: [Member; 2],
    now: Instant,
}

impl Pair {
    /// Two ranks of so many shards, which reduce `bytes`.
    fn new(shards: usize, bytes: usize) -> Self {
        let now = Instant::from_nanos(1_000_000_000);
        let (mut ends, mut others): (Vec<_>, Vec<_>) =
            (0..shards).map(|_| Loopback::pair_with_offloads(MTU, 256)).unzip();
        let members = [0, 1].map(|rank| {
            let devices = std::mem::take(if rank == 0 { &mut ends } else { &mut others });
            Member::new(Rank(rank), devices, bytes, now)
        });
        Self { members, now }
    }

    /// The all-reduce that is counted: valgrind finds it by its name.
    #[inline(never)]
    fn last_all_reduce(&mut self) -> u64 {
        self.reduce()
    }

    /// Both ranks reduce their tensors. Returns how many polls have found nothing.
    fn reduce(&mut self) -> u64 {
        let ends = self.members.each_ref().map(Member::hand_over);
        let mut idle = 0;
        for _ in 0..MOST_POLLS {
            idle += self.poll();
            if ends.iter().all(|ends| lock(&ends.1).is_some()) {
                ends.iter().for_each(|ends| assert!(matches!(*lock(&ends.1), Some(Ok(())))));
                return idle;
            }
        }
        panic!("the all-reduce does not end");
    }

    /// So many polls of every engine when nothing is left to do. As above.
    #[inline(never)]
    fn only_poll(&mut self, polls: u64) {
        let idle: u64 = (0..polls).map(|_| self.poll()).sum();
        assert_eq!(idle, polls * self.engines(), "there was something to do");
    }

    /// A poll of every engine. Returns how many have found nothing.
    fn poll(&mut self) -> u64 {
        self.now += STEP;
        let engines = self.members.iter_mut().flat_map(|member| &mut member.engines);
        engines.map(|(engine, _)| u64::from(engine.poll(self.now) == Activity::Idle)).sum()
    }
}

impl Pair {
    fn engines(&self) -> u64 {
        self.members.iter().map(|member| member.engines.len() as u64).sum()
    }
}

impl Member {
    fn new(rank: Rank, devices: Vec<Loopback>, bytes: usize, now: Instant) -> Self {
        let (grid, plan, shards) = (Grid::new(2, 1).unwrap(), Plan::default(), devices.len());
        let (own, other) = (rank.0 as usize, 1 - rank.0 as usize);
        let engine = |(device, shard): (Loopback, u32)| {
            let mut config = StackConfig::new(u64::from(shard)).with_rud(PORT);
            config.rud = rud_config(DEAD_AFTER, 1);
            let mut stack = Stack::new(config);
            stack.add_port(device, PortConfig::new(ADDRESSES[own], 24, MTU)).unwrap();
            let (ip, local_ip) = (ADDRESSES[other], ADDRESSES[own]);
            let peer = PeerAddress { rank: Rank(1 - rank.0), ip, port: PORT, local_ip };
            let secret = Key::from_secret([shard as u8; 32]);
            let channel = RudChannel::open(stack, rank, &[peer], (&secret, false), (2, PORT, MTU)).unwrap();
            let mut config = ExecutorConfig::new(rank, grid, Kernels::detect());
            config.eager_bytes = plan.eager_bytes as usize;
            // SAFETY: it goes into an engine, which drops its channel first.
            let executor = unsafe { Executor::new(config) }.unwrap();
            let parts =
                EngineParts { executor, rank, up: channel.into(), node: None, dead_after: DEAD_AFTER };
            let mut engine = Engine::new(parts, now);
            let submissions = engine.submissions();
            (engine, submissions)
        };
        let count = bytes as u64 / 4;
        let shape = Shape { collective: Collective::AllReduce, dtype: DType::F32, op: ReduceOp::Sum, count };
        let schedule = |shape: Shape| {
            let problem = Problem::new(grid, rank, &shape, Rank(0));
            Arc::new(plan.schedule_for(&problem).unwrap())
        };
        let parts: Arc<[_]> = (0..shards).map(|index| schedule(part_of(&shape, index, shards))).collect();
        let memory = Owned::new(bytes).unwrap();
        let whole = Request {
            identity: Identity::AdHoc { root: Rank(0) },
            shape,
            // SAFETY: nothing else accesses it, and it is dropped after the engines.
            data: unsafe { memory.region() },
            input: TensorRegion::empty(),
            schedule: parts[0].clone(),
            priority: 0,
            deadline: Duration::MAX,
            name: Arc::from("gradient"),
            step: 0,
            pushed: Duration::ZERO,
            device: None,
        };
        Self { engines: devices.into_iter().zip(0..).map(engine).collect(), whole, parts, _memory: memory }
    }

    /// Hands the parts over; one that is whole as it is.
    fn hand_over(&self) -> Arc<Ends> {
        let ends = Arc::new(Ends(PartEnds::new(self.parts.len()), Mutex::default()));
        let report: Arc<dyn Report> = ends.clone();
        for (index, (_, submissions)) in self.engines.iter().enumerate() {
            let part = (self.parts.len() > 1).then(|| request_of(&self.whole, &self.parts, index));
            assert!(submissions.push(part.as_ref().unwrap_or(&self.whole), 0, &report, None));
        }
        ends
    }
}

/// The part of a run under valgrind, which counts the function that is named alone.
fn run(counted: &str, shards: usize, bytes: usize) {
    let mut pair = Pair::new(shards, bytes);
    for _ in 0..BEFORE {
        pair.reduce();
    }
    println!("idle {}", pair.last_all_reduce());
    if counted == "only_poll" {
        while pair.poll() < pair.engines() {}
        pair.only_poll(POLLS);
    }
}

/// The instructions of such a run, and how many polls have found nothing in the all-reduce; `None` without valgrind.
fn count(counted: &str, shards: usize, bytes: usize) -> Option<(u64, u64)> {
    let name = format!("*cost*Pair*{counted}*");
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    command.arg(format!("--toggle-collect={name}")).arg(std::env::current_exe().unwrap()).args([
        "--exact",
        NAME,
        "--nocapture",
    ]);
    let output = command.env(COUNTED, format!("{counted} {shards} {bytes}")).output().ok()?;
    let [out, err] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    assert!(output.status.success(), "{out}\n{err}");
    let number = |text: &str, mark: &str| {
        let line = text.lines().find_map(|line| line.split_once(mark)).expect(mark);
        line.1.split_whitespace().next().and_then(|number| number.parse().ok()).expect(mark)
    };
    Some((number(&err, "Collected : "), number(&out, "idle ")))
}

/// The test's full name.
const NAME: &str =
    "communicator::shards::tests::cost::parts_take_a_tenth_more_instructions_than_the_whole_at_most";

#[test]
fn parts_take_a_tenth_more_instructions_than_the_whole_at_most() {
    if let Ok(counted) = std::env::var(COUNTED) {
        let words: Vec<&str> = counted.split(' ').collect();
        return run(words[0], words[1].parse().unwrap(), words[2].parse().unwrap());
    }
    let smallest = 4 * LEAST_PART as usize;
    // A poll that finds nothing knows no tensor.
    let Some((polls, _)) = count("only_poll", 1, smallest) else {
        println!("skipped: there is no valgrind here");
        return;
    };
    let of_poll = polls / (POLLS * 2);
    // The smallest that is cut into four, and a usual bucket of gradients.
    for bytes in [smallest, 4 << 20] {
        let [one, four] = [1, 4].map(|shards| {
            let (all, idle) = count("last_all_reduce", shards, bytes).unwrap();
            println!(
                "{bytes} bytes, {shards} shards: {all}, with {idle} polls of {of_poll} that find nothing"
            );
            all - idle * of_poll
        });
        assert!(10 * four <= 11 * one, "{bytes} bytes: {one} on one shard, {four} on four");
    }
}
