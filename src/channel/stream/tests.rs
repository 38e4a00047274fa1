//! Two leaders over simulated links whose connections can be throttled one by one, and unauthenticated peers at the listener; then over
//! the kernel's sockets ([`sockets`]).

mod opening;
mod shaped;
mod sockets;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use shouter_netstack::device::Device;
use shouter_netstack::sim::{LinkConfig, Node, Sim, SimDevice};
use shouter_netstack::stack::{PortConfig, Stack, StackConfig};
use shouter_netstack::tcp::{self, ConnectionId};
use shouter_netstack::time::Instant;
use shouter_reducer::dtype::{DType, ReduceOp};
use shouter_reducer::executor::{Executor, ExecutorConfig, OpId, Request};
use shouter_reducer::grid::{Grid, Rank};
use shouter_reducer::header::{Collective, Identity, Shape};
use shouter_reducer::kernel::Kernels;
use shouter_reducer::memory::{Owned, TensorRegion};
use shouter_reducer::plan::Plan;

use super::*;
use crate::channel::up::UpChannels;
use crate::engine::{Engine, EngineParts};
use crate::key::Key;
use crate::runtime::Poller;
use shaped::{Order, Shaped};

const PORT: u16 = 4_790;
const MTU: u16 = 9_000;
const CONNECTIONS: u16 = 10;
const DEAD_AFTER: Duration = Duration::from_secs(5);

struct Host {
    // Before the memory that it refers to.
    engine: Engine,
    _memory: Owned,
}

impl Node for Host {
    fn poll(&mut self, now: Instant) -> Option<Instant> {
        if self.engine.poll(now).is_busy() { Some(now) } else { self.engine.next_deadline() }
    }
}

/// A channel before its engine has it.
struct Alone<D: Device + 'static>(TcpChannel<D>);

impl<D: Device + 'static> Node for Alone<D> {
    fn poll(&mut self, now: Instant) -> Option<Instant> {
        struct Nobody;
        impl Inbox for Nobody {
            fn fragment(&mut self, _: &Header, _: &[u8]) -> shouter_reducer::executor::Disposition {
                panic!("nothing is sent yet")
            }

            fn released(&mut self, _: SendToken) {}
        }
        let busy = self.0.receive(now, &mut Nobody) | self.0.transmit(now, &mut Nobody);
        if busy { Some(now) } else { self.0.next_deadline() }
    }
}

fn address(rank: u32) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, rank as u8 + 1)
}

fn stack<D: Device>(rank: u32, device: D) -> Stack<D> {
    let mut stack = Stack::new(StackConfig::new(u64::from(rank)));
    stack.add_port(device, PortConfig::new(address(rank), 24, MTU)).unwrap();
    stack
}

fn channel<D: Device + 'static>(rank: u32, peer: u32, device: D) -> TcpChannel<D> {
    let peers = [PeerAddress { rank: Rank(peer), ip: address(peer), port: PORT, local_ip: address(rank) }];
    let (secret, salt) = (Key::from_secret([7; 32]), Key::from_secret([rank as u8; 32]));
    let settings = Settings { secret, salt, connections: CONNECTIONS, dead_after: DEAD_AFTER, crc: true };
    let streams = StackStreams::new(stack(rank, device), PORT, DEAD_AFTER);
    TcpChannel::open(streams, Rank(rank), &peers, settings, Instant::ZERO).unwrap()
}

/// As if there were data for all peers.
fn dial<S: Streams>(channel: &mut StreamChannel<S>) {
    channel.meet_all();
    channel.peers.indices().for_each(|index| channel.want_data(index));
}

/// Whether all connections with the peers that are in use exist.
fn is_connected<S: Streams>(channel: &StreamChannel<S>) -> bool {
    let connections = channel.peers.iter().flat_map(|(_, peer)| &peer.connections);
    connections.map(Connection::is_up).min() == Some(true)
}

#[allow(unsafe_code)]
fn executor(rank: u32, grid: Grid) -> Executor {
    let mut config = ExecutorConfig::new(Rank(rank), grid, Kernels::detect());
    config.eager_bytes = Plan::default().eager_bytes as usize;
    // SAFETY: it goes into an engine, which drops it last.
    unsafe { Executor::new(config) }.unwrap()
}

fn host<D: Device + Send + 'static>(rank: u32, device: D, bytes: usize) -> Host {
    host_of(rank, channel(rank, 1 - rank, device), bytes)
}

fn host_of<D: Device + Send + 'static>(rank: u32, channel: TcpChannel<D>, bytes: usize) -> Host {
    let up = UpChannels::from(channel);
    let executor = executor(rank, Grid::new(2, 1).unwrap());
    let parts = EngineParts { executor, rank: Rank(rank), up, node: None, dead_after: DEAD_AFTER };
    Host { engine: Engine::new(parts, Instant::ZERO), _memory: Owned::new(bytes).unwrap() }
}

fn start(now: Instant, rank: u32, host: &mut Host, bytes: usize) -> OpId {
    let plan = Plan::default();
    let grid = Grid::new(2, 1).unwrap();
    let count = bytes as u64 / 4;
    let shape = Shape { collective: Collective::AllReduce, dtype: DType::I32, op: ReduceOp::Sum, count };
    let request = Request {
        identity: Identity::AdHoc { root: Rank(0) },
        shape,
        data: region(&host._memory),
        input: TensorRegion::empty(),
        schedule: Arc::new(plan.schedule(&grid, Rank(rank), &shape, Rank(0)).unwrap()),
        priority: 0,
        deadline: crate::engine::executor_time(now + Duration::from_secs(60)),
        name: Arc::from("gradient"),
        step: 0,
        pushed: Duration::ZERO,
        device: None,
    };
    host.engine.start(now, request).unwrap()
}

#[allow(unsafe_code)]
fn region(memory: &Owned) -> TensorRegion {
    // SAFETY: the memory lives in the host behind its engine, which is dropped first.
    unsafe { memory.region() }
}

/// Writes to memory that no operation uses yet.
#[allow(unsafe_code)]
fn fill(memory: &Owned, bytes: &[u8]) {
    // SAFETY: the region lies within the memory, which nobody else reads or writes at present.
    unsafe {
        let region = memory.region();
        assert!(bytes.len() <= region.len());
        region.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
    }
}

/// Bytes a second that go each way, in an all-reduce after a first one that warms the connections up.
fn goodput(rates: &[u64]) -> f64 {
    const BYTES: usize = 96 << 20;
    let mut sim = Sim::new(1).with_poll_interval(Duration::from_micros(5));
    let order = Order::default();
    let device = |sim: &Sim| {
        let link =
            LinkConfig { queue_frames: 4096, delay: Duration::from_micros(10), ..LinkConfig::default() };
        Shaped::new(sim.network().attach(MTU, link), PORT, rates, &order)
    };
    let mut alone = [0, 1].map(|rank| Alone(channel(rank, 1 - rank, device(&sim))));
    let within = Duration::from_secs(10);
    // That for control messages first, and all from one side: so there are as many connections as rates, in their order.
    alone[1].0.meet_all();
    let until = sim.now() + within;
    assert!(sim.run_until(&mut alone, until, |all| {
        [0, 1].iter().all(|at| all[*at].0.is_connected(Rank(1 - *at as u32)))
    }));
    dial(&mut alone[1].0);
    let until = sim.now() + within;
    assert!(sim.run_until(&mut alone, until, |all| all.iter().all(|alone| is_connected(&alone.0))));
    let mut rank = 0;
    let mut hosts = alone.map(|Alone(channel)| {
        rank += 1;
        host_of(rank - 1, channel, BYTES)
    });
    let mut took = Duration::ZERO;
    for round in 0..2 {
        let begin = sim.now();
        let ops = [0, 1].map(|rank| start(begin, rank as u32, &mut hosts[rank], BYTES));
        let mut left = 2;
        let done = sim.run_until(&mut hosts, begin + Duration::from_secs(30), |hosts| {
            for (host, op) in hosts.iter_mut().zip(ops) {
                if let Some(completed) = host.engine.take_finished(op) {
                    assert_eq!(completed.result, Ok(()));
                    left -= 1;
                }
            }
            left == 0
        });
        assert!(done, "round {round} has not ended");
        took = sim.now() - begin;
    }
    BYTES as f64 / took.as_secs_f64()
}

#[test]
fn a_throttled_connection_slows_only_itself() {
    // The first is that for control messages.
    let full = 100_000_000;
    let mut rates = vec![full; usize::from(CONNECTIONS) + 1];
    let even = goodput(&rates);
    for slow in [1, 4, 10] {
        rates.fill(full);
        rates[slow] = full / 10;
        let uneven = goodput(&rates);
        let rest = (full * (u64::from(CONNECTIONS) - 1)) as f64;
        println!("{even:.0} bytes/s; connection {slow} throttled: {uneven:.0} of {rest:.0}");
        assert!(
            uneven > 0.9 * rest,
            "{uneven:.0} bytes/s of {rest:.0} with connection {slow} throttled; {even:.0} with none throttled"
        );
    }
    assert!(even > 0.85 * full as f64 * f64::from(CONNECTIONS), "{even:.0} bytes/s over ten connections");
}

/// An unauthenticated peer: opens connections, and sends invalid data or nothing.
struct Intruder<D: Device> {
    stack: Stack<D>,
    says: Vec<u8>,
    more: usize,
    open: Vec<ConnectionId>,
    reset: usize,
}

impl<D: Device> Node for Intruder<D> {
    fn poll(&mut self, now: Instant) -> Option<Instant> {
        if self.more > 0 {
            self.more -= 1;
            let remote = SocketAddr::from((address(0), PORT));
            self.open.push(self.stack.tcp_connect(now, None, remote, None).unwrap());
        }
        self.stack.poll(now);
        while let Some(event) = self.stack.tcp_mut().next_event() {
            match event {
                tcp::TcpEvent::Readable(id) if !self.says.is_empty() => {
                    let _ = self.stack.tcp_mut().write(now, id, &self.says);
                }
                tcp::TcpEvent::Failed(..) => self.reset += 1,
                _ => {}
            }
        }
        let soon = (self.more > 0).then_some(now + Duration::from_micros(20));
        [soon, self.stack.next_deadline()].into_iter().flatten().min()
    }
}

/// The channel of a member of a simulated network.
fn tcp(host: &Host) -> &TcpChannel<SimDevice> {
    host.engine.up().only().expect("TCP is used")
}

/// A participant of the simulation.
enum Anyone<D: Device> {
    Member(Box<Host>),
    Intruder(Box<Intruder<D>>),
}

impl<D: Device> Node for Anyone<D> {
    fn poll(&mut self, now: Instant) -> Option<Instant> {
        match self {
            Self::Member(host) => host.poll(now),
            Self::Intruder(intruder) => intruder.poll(now),
        }
    }
}

impl<D: Device> Anyone<D> {
    fn member(&mut self) -> &mut Host {
        match self {
            Self::Member(host) => host,
            Self::Intruder(_) => panic!("a member is asked for"),
        }
    }

    fn intruder(&self) -> &Intruder<D> {
        match self {
            Self::Intruder(intruder) => intruder,
            Self::Member(_) => panic!("an intruder is asked for"),
        }
    }
}

#[test]
fn unauthenticated_peers_are_turned_away_and_hold_nothing() {
    const BYTES: usize = 1 << 20;
    const CALLS: usize = 300;
    // Nothing, rubbish, a hello with a proof of another secret, one without end.
    let claim = handshake::Claim { from: Rank(1), to: Rank(0), connection: 3, crc: true, nonce: [1; 16] };
    let other = Secrets::new(Key::from_secret([8; 32]), Key::from_secret([0; 32]));
    let forged = other.hello(&[0; 16], &claim).to_vec();
    for says in [vec![], vec![0; handshake::HELLO], forged, vec![9; 60_000]] {
        let mut sim = Sim::new(3);
        let device = |sim: &Sim| sim.network().attach(MTU, LinkConfig::default());
        let mut nodes: Vec<_> =
            (0..2).map(|rank| Anyone::Member(Box::new(host(rank, device(&sim), BYTES)))).collect();
        let intruder = Intruder { stack: stack(9, device(&sim)), says, more: CALLS, open: vec![], reset: 0 };
        nodes.push(Anyone::Intruder(Box::new(intruder)));
        let ops = [0u32, 1].map(|rank| start(sim.now(), rank, nodes[rank as usize].member(), BYTES));
        let mut left = 2;
        let mut most = 0;
        let done = sim.run_until(&mut nodes, Instant::ZERO + Duration::from_secs(20), |nodes| {
            for (rank, op) in ops.iter().enumerate() {
                if let Some(completed) = nodes[rank].member().engine.take_finished(*op) {
                    assert_eq!(completed.result, Ok(()));
                    left -= 1;
                }
            }
            let up = tcp(nodes[0].member());
            most = most.max(up.admission.len());
            // Both sides may dial each connection.
            assert!(up.live.len() <= 2 * (usize::from(CONNECTIONS) + 1) + admission::MAX_UNAUTHENTICATED);
            left <= 0 && nodes[2].intruder().reset == CALLS
        });
        let intruder = nodes[2].intruder();
        assert!(done, "{left} operations are left, {} of {CALLS} reset", intruder.reset);
        let up = tcp(nodes[0].member());
        // Once all connections with the peer exist, the stack refuses further ones.
        assert!(up.refused() > 0 && up.refused() < CALLS as u64, "{} of {CALLS}", up.refused());
        assert_eq!(up.admission.len(), 0, "at most {most} at once");
        assert_eq!(up.live.len(), usize::from(CONNECTIONS) + 1);
    }
}
