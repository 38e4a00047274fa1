//! All-reduce from the engine down to the frames, in virtual time, over links that lose, reorder, duplicate and damage
//! frames: for a thousand seeds (fewer over TCP) every result is exact and the same bits on every rank.
//!
//! A failure names its seed; `SHOUTER_TEST_SEED=<seed> cargo test -p shouter --test simulated_allreduce` replays it.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use shouter::channel::rud::{RudChannel, rud_config};
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
use shouter_reducer::executor::{AbortReason, Executor, ExecutorConfig, OpId, Request};
use shouter_reducer::grid::{Grid, Rank};
use shouter_reducer::header::{Collective, Identity, Shape};
use shouter_reducer::kernel::Kernels;
use shouter_reducer::memory::{Owned, TensorRegion};
use shouter_reducer::plan::{Overrides, Plan};
use shouter_reducer::schedule::Algorithm;

const PORT: u16 = 4_790;
const MTU: u16 = 1_500;

/// The transport of the fragments.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Over {
    Rud,
    Tcp,
}

/// One rank and its tensors.
struct Host {
    // Dropped before the memory that it refers to.
    engine: Engine,
    tensors: Vec<(OpId, Owned, usize)>,
}

impl Node for Host {
    fn poll(&mut self, now: Instant) -> Option<Instant> {
        if self.engine.poll(now).is_busy() { Some(now) } else { self.engine.next_deadline() }
    }
}

fn address(rank: u32) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, rank as u8 + 1)
}

/// The faults on the links of a run.
fn faults(seed: u64) -> FaultConfig {
    FaultConfig {
        seed,
        loss: 0.05,
        corrupt: 0.02,
        duplicate: 0.03,
        reorder: 0.1,
        reorder_delay: Duration::from_micros(50),
        ..FaultConfig::default()
    }
}

fn engine(
    over: Over,
    sim: &Sim,
    grid: Grid,
    rank: u32,
    plan: &Plan,
    faults: FaultConfig,
    dead_after: Duration,
) -> Engine {
    let device = Fault::new(sim.network().attach(MTU, LinkConfig::default()), faults).unwrap();
    let mut config = StackConfig::new(PORT, u64::from(rank));
    config.neighbours.request_interval = Duration::from_millis(1);
    config.neighbours.requests = 20;
    config.rud = rud_config(dead_after, grid.ranks() as usize);
    let mut stack = Stack::new(config);
    stack.add_port(device, PortConfig::new(address(rank), 24, MTU)).unwrap();
    let peers: Vec<_> = (0..grid.ranks())
        .filter(|peer| *peer != rank)
        .map(|peer| PeerAddress { rank: Rank(peer), ip: address(peer), port: PORT, local_ip: address(rank) })
        .collect();
    let (rank, secret, now) = (Rank(rank), Key::from_secret([7; 32]), Instant::ZERO);
    let up: UpChannels = match over {
        Over::Rud => RudChannel::open(stack, rank, &peers, &secret, (2, PORT, MTU), now).unwrap().into(),
        Over::Tcp => {
            let salt = Key::from_secret([rank.0 as u8; 32]);
            let settings = Settings { secret, salt, connections: 2, dead_after, crc: true };
            let streams = StackStreams::new(stack, PORT, dead_after);
            TcpChannel::open(streams, rank, &peers, settings, now).unwrap().into()
        }
    };
    let mut config = ExecutorConfig::new(rank, grid, Kernels::detect());
    config.eager_bytes = plan.eager_bytes as usize;
    // SAFETY: the engine has the channel, and drops it first.
    let executor = unsafe { Executor::new(config) }.unwrap();
    Engine::new(EngineParts { executor, rank, up, node: None, dead_after }, Instant::ZERO)
}

#[test]
fn a_leader_has_a_session_to_each_of_very_many_others() {
    const LEADERS: u32 = 5000;
    let sim = Sim::new(1);
    let mut config = StackConfig::new(PORT, 1);
    config.rud = rud_config(Duration::from_secs(10), LEADERS as usize - 1);
    let mut stack = Stack::new(config);
    let device = sim.network().attach(MTU, LinkConfig::default());
    stack.add_port(device, PortConfig::new(Ipv4Addr::new(10, 0, 0, 1), 8, MTU)).unwrap();
    let local_ip = Ipv4Addr::new(10, 0, 0, 1);
    let peer =
        |rank| PeerAddress { rank: Rank(rank), ip: Ipv4Addr::from(0x0a01_0000 + rank), port: PORT, local_ip };
    let peers: Vec<_> = (1..LEADERS).map(peer).collect();
    let channel =
        RudChannel::open(stack, Rank(0), &peers, &Key::from_secret([7; 32]), (1, PORT, MTU), Instant::ZERO);
    assert!(channel.is_ok(), "{:?}", channel.err());
}

fn request(plan: &Plan, grid: Grid, rank: u32, count: u64, data: &Owned, deadline: Duration) -> Request {
    let shape = Shape { collective: Collective::AllReduce, dtype: DType::I32, op: ReduceOp::Sum, count };
    Request {
        identity: Identity::AdHoc { root: Rank(0) },
        shape,
        // SAFETY: the memory lives in the host behind its engine, which is dropped first.
        data: unsafe { data.region() },
        input: TensorRegion::empty(),
        schedule: Arc::new(plan.schedule(&grid, Rank(rank), &shape, Rank(0)).unwrap()),
        priority: 0,
        deadline,
        name: Arc::from("gradient"),
        step: 0,
        pushed: Duration::ZERO,
        device: None,
    }
}

fn value(rank: u32, tensor: usize, index: usize) -> i32 {
    (rank as i32 + 1) * (index as i32 % 1009) + tensor as i32
}

/// The tensor's elements, read back.
fn elements(memory: &Owned, count: usize) -> Vec<i32> {
    // SAFETY: the operation has completed, so nobody else touches the memory.
    let bytes = unsafe { std::slice::from_raw_parts(memory.region().as_ptr(), count * 4) };
    bytes.chunks_exact(4).map(|c| i32::from_le_bytes(c.try_into().unwrap())).collect()
}

/// Runs one seed; returns the retransmitted datagrams and those dropped for their CRC. `None` if a frame was damaged
/// and TCP's checksum still holds, as for about one in a hundred with several flipped bits: a byte stream cannot
/// retransmit it, and the group ends.
fn run(over: Over, seed: u64) -> Option<(u64, u64)> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let ranks = rng.random_range(2..=5u32);
    let named = [None, Some(Algorithm::Ring), Some(Algorithm::Direct), Some(Algorithm::Hierarchical)];
    let overrides = named[rng.random_range(0..4)]
        .map(|algorithm| Overrides::default().with(Collective::AllReduce, algorithm));
    let plan = Plan {
        overrides: overrides.unwrap_or_default(),
        leaf_size: rng.random_range(1..=4),
        chunk_bytes: 4096,
        eager_bytes: 4096,
        ..Plan::default()
    };
    let grid = Grid::new(ranks, 1, plan.leaf_size).unwrap();
    let counts: Vec<usize> = (0..rng.random_range(1..=3)).map(|_| rng.random_range(1..6000)).collect();
    let mut sim = Sim::new(seed);
    let mut hosts: Vec<Host> = (0..ranks)
        .map(|rank| {
            let engine = engine(over, &sim, grid, rank, &plan, faults(rng.random()), Duration::from_secs(5));
            let mut host = Host { engine, tensors: vec![] };
            for (tensor, &count) in counts.iter().enumerate() {
                let memory = Owned::new(count * 4).unwrap();
                for index in 0..count {
                    let bytes = value(rank, tensor, index).to_le_bytes();
                    // SAFETY: inside the allocation, which nobody else refers to yet.
                    unsafe { memory.region().as_ptr().add(index * 4).cast::<[u8; 4]>().write(bytes) };
                }
                let request = request(&plan, grid, rank, count as u64, &memory, Duration::from_secs(30));
                let op = host.engine.start(Instant::ZERO, request).unwrap();
                host.tensors.push((op, memory, count));
            }
            host
        })
        .collect();
    let (mut ended, mut given_up) = (vec![0; hosts.len()], false);
    let limit = Instant::ZERO + Duration::from_secs(20);
    let done = sim.run_until(&mut hosts, limit, |hosts| {
        for (host, ended) in hosts.iter_mut().zip(&mut ended) {
            while let Some(completed) =
                host.tensors.get(*ended).and_then(|tensor| host.engine.take_finished(tensor.0))
            {
                given_up |= matches!(over, Over::Tcp) && completed.result.is_err();
                assert!(
                    given_up || completed.result.is_ok(),
                    "{over:?}, seed {seed}: {:?}",
                    completed.result
                );
                *ended += 1;
            }
        }
        given_up || ended.iter().all(|ended| *ended == counts.len())
    });
    if given_up {
        return None;
    }
    assert!(
        done,
        "{over:?}, seed {seed}: after {:?} the ranks have ended {ended:?} of {}",
        sim.now(),
        counts.len()
    );
    let mut totals = (0, 0);
    for (rank, host) in hosts.iter().enumerate() {
        for (tensor, (_, memory, count)) in host.tensors.iter().enumerate() {
            for (index, element) in elements(memory, *count).into_iter().enumerate() {
                let due: i32 = (0..ranks).map(|rank| value(rank, tensor, index)).sum();
                assert_eq!(
                    element, due,
                    "{over:?}, seed {seed}: rank {rank}, tensor {tensor}, element {index}"
                );
            }
        }
        let up = host.engine.up();
        totals.0 += up.resent();
        totals.1 += up.crc_dropped();
    }
    Some(totals)
}

#[test]
fn every_all_reduce_is_exact_for_a_thousand_seeds() {
    if let Ok(seed) = std::env::var("SHOUTER_TEST_SEED") {
        for over in [Over::Rud, Over::Tcp] {
            run(over, seed.parse().expect("SHOUTER_TEST_SEED is a number"));
        }
        return;
    }
    exact(Over::Rud, 1_000);
}

#[test]
fn every_all_reduce_over_tcp_is_exact() {
    exact(Over::Tcp, 200);
}

fn exact(over: Over, seeds: u64) {
    let (mut resent, mut dropped, mut given_up) = (0, 0, 0);
    for seed in 0..seeds {
        match run(over, seed) {
            Some(totals) => {
                resent += totals.0;
                dropped += totals.1;
            }
            None => given_up += 1,
        }
    }
    assert!(given_up <= seeds / 20, "{over:?}: {given_up} of {seeds} seeds have ended with an error");
    assert!(
        resent > seeds && dropped > seeds,
        "{over:?}: the faults did not take place: {resent} resent, {dropped} dropped"
    );
}

#[test]
fn a_cut_host_is_named_by_every_survivor() {
    cut(Over::Rud, 50);
}

#[test]
fn a_cut_host_is_named_by_every_survivor_over_tcp() {
    // During the handshakes, and during the transfer.
    cut(Over::Tcp, 50);
    cut(Over::Tcp, 400);
}

fn cut(over: Over, after: u64) {
    for seed in 0..20 {
        let plan = Plan { chunk_bytes: 4096, ..Plan::default() };
        let grid = Grid::new(3, 1, plan.leaf_size).unwrap();
        let mut sim = Sim::new(seed);
        let mut hosts: Vec<Host> = (0..3)
            .map(|rank| {
                let dead_after = Duration::from_millis(200);
                let mut engine = engine(over, &sim, grid, rank, &plan, FaultConfig::default(), dead_after);
                let memory = Owned::new(4 << 20).unwrap();
                let request = request(&plan, grid, rank, 1 << 20, &memory, Duration::from_secs(30));
                let op = engine.start(Instant::ZERO, request).unwrap();
                Host { engine, tensors: vec![(op, memory, 1 << 20)] }
            })
            .collect();
        let cut_at = Instant::ZERO + Duration::from_micros(after + seed * 7);
        assert!(!sim.run_until(&mut hosts, cut_at, |_| false));
        sim.network().set_cut(2, true);
        let mut results = vec![None; 2];
        let limit = Instant::ZERO + Duration::from_secs(2);
        let ended = sim.run_until(&mut hosts, limit, |hosts| {
            for (result, host) in results.iter_mut().zip(hosts) {
                if result.is_none() {
                    *result = host.engine.take_finished(host.tensors[0].0).map(|completed| completed.result);
                }
            }
            results.iter().all(Option::is_some)
        });
        assert!(ended, "{over:?}, seed {seed}: the survivors' operations have not ended: {results:?}");
        for host in &hosts[..2] {
            let cause = host.engine.aborted().expect("the group has ended");
            assert_eq!(
                (cause.culprit, &cause.reason),
                (Rank(2), &AbortReason::Failed),
                "{over:?}, seed {seed}"
            );
        }
        for result in results {
            let text = result.flatten_error();
            assert!(
                text.contains("all-reduce sum of") && text.contains("rank 2"),
                "{over:?}, seed {seed}: {text}"
            );
        }
    }
}

/// The message of an operation's error.
trait FlattenError {
    fn flatten_error(self) -> String;
}

impl<E: std::fmt::Display> FlattenError for Option<Result<(), E>> {
    fn flatten_error(self) -> String {
        match self {
            Some(Err(error)) => error.to_string(),
            _ => "no error".into(),
        }
    }
}
