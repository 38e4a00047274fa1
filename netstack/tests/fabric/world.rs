//! Hosts on a network: RUD endpoints without stacks, their traffic, and what arrived of it.

use core::cmp::Reverse;
use core::net::{IpAddr, Ipv4Addr};
use core::time::Duration;
use std::collections::BinaryHeap;
use std::sync::LazyLock;

use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};
use shouter_netstack::region::{Extent, Region};
use shouter_netstack::rud::{
    Config, Counters, DatagramMeta, Destination, Disposition, Emit, Endpoint, Failure, MessageToken,
    SessionId, SessionParams, Sink, datagram_room, payload_room,
};
use shouter_netstack::sim::LinkConfig;
use shouter_netstack::time::Instant;

use super::fair;
use super::network::{Carried, Datagram, Network};
use super::topology::FatTree;

/// The least time between two polls of a host.
const POLL_INTERVAL: Duration = Duration::from_nanos(250);
/// When hosts may begin to send.
pub(crate) const OPENED: Instant = Instant::from_nanos(100_000);
pub(crate) const MTU: usize = 1500;
/// A full frame on the line, with preamble and gap.
pub(crate) const LINE_LEN: u64 = MTU as u64 + 38;
pub(crate) const RATE: u64 = 100_000_000_000;
/// The time of a round trip between two pods, without queues and lines.
pub(crate) const RTT: Duration = Duration::from_micros(10);
/// Links between hosts of two pods.
const HOPS: u32 = 6;
/// The port of every host, at which all paths end.
const PORT: u16 = 4791;
/// The source port of path 0.
const FIRST_PORT: u16 = 50_000;
/// Bytes of a message's header: its number.
const HEADER: usize = 8;

/// Bytes that payloads are taken from. A message's number says where, so the receiver can tell whether it got the right ones.
static PATTERN: LazyLock<&'static [u8]> = LazyLock::new(|| {
    let mut bytes = vec![0; 1 << 16];
    SmallRng::seed_from_u64(1).fill_bytes(&mut bytes);
    bytes.leak()
});

fn payload_at(number: u64) -> usize {
    (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 49) as usize
}

fn address(host: usize) -> IpAddr {
    Ipv4Addr::new(10, 0, (host >> 8) as u8, host as u8).into()
}

fn host_of(address: IpAddr) -> usize {
    match address {
        IpAddr::V4(address) => usize::from(address.octets()[2]) << 8 | usize::from(address.octets()[3]),
        IpAddr::V6(_) => unreachable!("all addresses are IPv4"),
    }
}

/// What a host has received and got back, by session.
#[derive(Debug, Default)]
struct App {
    payload: usize,
    arrived: Vec<Arrived>,
    released: Vec<u64>,
}

/// The messages that came on one session: a bit for each number.
#[derive(Clone, Debug, Default)]
struct Arrived {
    count: u64,
    bits: Vec<u64>,
}

impl Sink for App {
    fn deliver(&mut self, session: SessionId, header: &[u8], payload: &[u8]) -> Disposition {
        let number = u64::from_be_bytes(header.try_into().expect("a damaged header was delivered"));
        let at = payload_at(number);
        assert!(
            payload == &PATTERN[at..at + self.payload],
            "message {number} was delivered with other bytes"
        );
        let arrived = &mut self.arrived[session.index()];
        let (word, bit) = ((number / 64) as usize, 1 << (number % 64));
        if arrived.bits.len() <= word {
            arrived.bits.resize(word + 1, 0);
        }
        assert!(arrived.bits[word] & bit == 0, "message {number} was delivered twice");
        arrived.bits[word] |= bit;
        arrived.count += 1;
        Disposition::Consumed
    }

    fn released(&mut self, session: SessionId, _: MessageToken) {
        self.released[session.index()] += 1;
    }

    fn failed(&mut self, _: SessionId, why: Failure) {
        panic!("a session failed: {why}");
    }
}

/// Messages from one host to another, a full datagram each.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) from: usize,
    pub(crate) to: usize,
    sending: SessionId,
    receiving: SessionId,
    left: u64,
    sent: u64,
    starts: Instant,
    /// When all was acknowledged.
    pub(crate) done: Option<Instant>,
}

#[derive(Debug)]
struct Host {
    endpoint: Endpoint,
    app: App,
    inbox: Vec<Carried>,
    /// The number of the flow that it sends.
    flow: Option<usize>,
    polled: Instant,
    /// When it is polled next; an event with another time is stale.
    wakes: Instant,
}

/// Sends over a host's line, which pushes back.
struct Line<'a> {
    now: Instant,
    host: usize,
    network: &'a mut Network,
}

impl Emit for Line<'_> {
    fn room(&self) -> usize {
        64
    }

    fn emit(&mut self, to: &Destination, header: &[u8], payload: Option<Extent>) -> bool {
        if !self.network.line(self.host).has_room(self.now) {
            return false;
        }
        let hosts = (self.host, host_of(to.remote_ip));
        self.network.send(self.now, Datagram::new(hosts, (to.src_port, to.dst_port), header, payload));
        true
    }
}

const NEVER: Instant = Instant::from_nanos(u64::MAX);

/// Hosts, flows and the network, in virtual time, from one seed.
pub(crate) struct World {
    pub(crate) now: Instant,
    pub(crate) network: Network,
    pub(crate) flows: Vec<Flow>,
    /// Flows of which not all was acknowledged.
    open: usize,
    hosts: Vec<Host>,
    wakes: BinaryHeap<Reverse<(Instant, usize)>>,
    rng: SmallRng,
    buffer: Vec<u8>,
    /// The port to a host of which the queue is measured, every microsecond, and its bytes then.
    pub(crate) measured: Option<usize>,
    pub(crate) queue: Vec<usize>,
}

impl World {
    /// Sessions of so many paths for flows between pairs of hosts; nobody sends from two.
    pub(crate) fn new(tree: FatTree, pairs: &[(usize, usize)], paths: u16, seed: u64) -> Self {
        Self::mixed(tree, pairs, [paths; 2], seed)
    }

    /// The same with other numbers of paths for every second session.
    pub(crate) fn mixed(tree: FatTree, pairs: &[(usize, usize)], paths: [u16; 2], seed: u64) -> Self {
        let port = LinkConfig {
            bits_per_second: RATE,
            delay: RTT / (2 * HOPS),
            queue_frames: usize::MAX,
            queue_bytes: 1_000_000,
            mark_above_bytes: 80_000,
            ..LinkConfig::default()
        };
        // Clocks differ.
        let line = LinkConfig { queue_frames: 64, jitter: Duration::from_nanos(2), ..port };
        let line = LinkConfig { mark_above_bytes: usize::MAX, ..line };
        let payload = payload_room(MTU, &address(0), HEADER);
        let host = |_| Host {
            endpoint: Endpoint::new(Config::default()),
            app: App { payload, ..App::default() },
            inbox: Vec::new(),
            flow: None,
            polled: Instant::ZERO,
            wakes: NEVER,
        };
        let mut world = Self {
            now: Instant::ZERO,
            network: Network::new(tree.topology(), line, port, seed),
            flows: Vec::new(),
            open: pairs.len(),
            hosts: (0..tree.size()).map(host).collect(),
            wakes: BinaryHeap::new(),
            rng: SmallRng::seed_from_u64(seed),
            buffer: Vec::new(),
            measured: None,
            queue: Vec::new(),
        };
        for (number, &(from, to)) in pairs.iter().enumerate() {
            let paths = paths[number % 2];
            let tags = [0, 1].map(|end| (2 * number as u64 + end + 1) << 32);
            let sending = world.open((from, to), tags, paths);
            let receiving = world.open((to, from), [tags[1], tags[0]], paths);
            // They do not begin at one instant.
            let starts = OPENED + Duration::from_nanos(world.rng.random_range(0..1000));
            world.flows.push(Flow { from, to, sending, receiving, left: 0, sent: 0, starts, done: None });
            assert!(world.hosts[from].flow.replace(number).is_none(), "host {from} sends two flows");
        }
        (0..tree.size()).for_each(|host| world.wake(host, Instant::ZERO));
        world.run_until(OPENED);
        world
    }

    fn open(&mut self, (local, remote): (usize, usize), tags: [u64; 2], paths: u16) -> SessionId {
        let Host { endpoint, app, .. } = &mut self.hosts[local];
        app.arrived.push(Arrived::default());
        app.released.push(0);
        let params = SessionParams {
            local_tag: tags[0],
            remote_tag: tags[1],
            remote_ip: address(remote),
            local_ip: address(local),
            remote_port: PORT,
            local_ports: (FIRST_PORT..FIRST_PORT + paths).collect(),
            max_datagram: datagram_room(MTU, &address(local)),
            seal: None,
        };
        endpoint.open(Instant::ZERO, params).expect("a session")
    }

    /// Gives each flow so many messages to send, once.
    pub(crate) fn send_each(&mut self, messages: u64) {
        self.flows.iter_mut().for_each(|flow| flow.left += messages);
        for flow in 0..self.flows.len() {
            let Flow { from, starts, .. } = self.flows[flow];
            self.wake(from, starts.max(self.now));
        }
    }

    /// No flow has any message that is not queued yet.
    pub(crate) fn stop(&mut self) {
        self.flows.iter_mut().for_each(|flow| flow.left = 0);
    }

    /// Messages of each flow that have arrived.
    pub(crate) fn arrived(&self) -> Vec<u64> {
        self.flows.iter().map(|flow| self.hosts[flow.to].app.arrived[flow.receiving.index()].count).collect()
    }

    /// A statistic of both ends of all sessions, added up.
    pub(crate) fn sum(&self, each: fn(&Counters) -> u64) -> u64 {
        let counters = |host: usize, session| each(&self.hosts[host].endpoint.counters(session));
        self.flows.iter().map(|f| counters(f.from, f.sending) + counters(f.to, f.receiving)).sum()
    }

    /// Datagrams that were dropped for their CRC, or for a tag or a form that it would have covered.
    pub(crate) fn dropped_damaged(&self) -> u64 {
        let of = |host: &Host| {
            let counters = host.endpoint.endpoint_counters();
            counters.crc_dropped + counters.unknown_session + counters.malformed
        };
        self.hosts.iter().map(of).sum()
    }

    /// The rates that the hashes and the parts that work allow now, as shares of a link.
    pub(crate) fn fair_rates(&self, paths: u16) -> Vec<f64> {
        let pairs: Vec<_> = self.flows.iter().map(|flow| (flow.from, flow.to)).collect();
        let ports: Vec<_> = (0..paths).map(|path| (FIRST_PORT + path, PORT)).collect();
        let rates = fair::rates(&self.network, &pairs, &ports);
        rates.into_iter().map(|rate| rate / RATE as f64).collect()
    }

    fn wake(&mut self, host: usize, at: Instant) {
        let at = at.max(self.now);
        if at < self.hosts[host].wakes {
            self.hosts[host].wakes = at;
            self.wakes.push(Reverse((at, host)));
        }
    }

    fn poll(&mut self, index: usize) {
        let (now, host) = (self.now, &mut self.hosts[index]);
        host.wakes = NEVER;
        // Hosts look all the time, and have found nothing.
        if now - host.polled > 2 * POLL_INTERVAL {
            let before = Instant::from_nanos(now.as_nanos() - POLL_INTERVAL.as_nanos() as u64);
            host.endpoint.on_poll(before, false);
        }
        host.polled = now;
        host.endpoint.on_poll(now, false);
        for Carried(datagram) in host.inbox.drain(..) {
            let meta = DatagramMeta {
                src_ip: address(datagram.from),
                dst_ip: address(index),
                src_port: datagram.src_port,
                dst_port: datagram.dst_port,
                congestion_experienced: datagram.marked,
            };
            datagram.assemble(&mut self.buffer);
            host.endpoint.on_datagram(now, &meta, &self.buffer, &mut host.app);
        }
        host.endpoint.on_timeout(now, &mut host.app);
        if let Some(flow) = host.flow.map(|flow| &mut self.flows[flow])
            && now >= flow.starts
        {
            let pattern = Region::from_static(*PATTERN);
            while flow.left > 0 && host.endpoint.capacity(flow.sending) > 0 {
                let payload = pattern.extent(payload_at(flow.sent), host.app.payload as u32);
                let header = flow.sent.to_be_bytes();
                host.endpoint.send(flow.sending, &header, payload, MessageToken(0)).expect("there is room");
                flow.left -= 1;
                flow.sent += 1;
            }
            let all_released = host.app.released[flow.sending.index()] == flow.sent;
            if flow.left == 0 && flow.sent > 0 && flow.done.is_none() && all_released {
                flow.done = Some(now);
                self.open -= 1;
            }
        }
        host.endpoint.transmit(now, &mut Line { now, host: index, network: &mut self.network });
        let mut next = host.endpoint.next_deadline().unwrap_or(NEVER);
        if host.endpoint.wants_transmit() {
            next = next.min(self.network.line(index).room_at(now).unwrap_or(now));
        }
        self.wake(index, next.max(now + POLL_INTERVAL));
    }

    /// Does what happens next, unless that is after `limit`.
    fn step(&mut self, limit: Instant) -> bool {
        let poll = self.wakes.peek().map_or(NEVER, |Reverse((at, _))| *at);
        let event = self.network.next_event();
        let next = poll.min(event);
        if next > limit {
            self.now = limit;
            return false;
        }
        if let Some(measured) = self.measured
            && next.as_nanos() / 1000 > self.now.as_nanos() / 1000
        {
            self.queue.push(self.network.port(measured).queued_bytes(next));
        }
        self.now = next;
        if event <= poll {
            if let Some(carried) = self.network.advance(next) {
                let host = carried.0.to;
                self.hosts[host].inbox.push(carried);
                let looks = next + POLL_INTERVAL.mul_f64(self.rng.random());
                self.wake(host, looks.max(self.hosts[host].polled + POLL_INTERVAL));
            }
        } else if let Some(Reverse((at, host))) = self.wakes.pop()
            && self.hosts[host].wakes == at
        {
            self.poll(host);
        }
        true
    }

    pub(crate) fn run_until(&mut self, limit: Instant) {
        while self.step(limit) {}
    }

    pub(crate) fn run(&mut self, time: Duration) {
        self.run_until(self.now + time);
    }

    /// Runs until every message has arrived, once, and was acknowledged; fails at `limit`.
    pub(crate) fn complete(&mut self, limit: Duration) {
        let limit = self.now + limit;
        while self.open > 0 {
            if !self.step(limit) {
                let late = self.flows.iter().find(|flow| flow.done.is_none()).expect("one is late");
                let state = self.hosts[late.from].endpoint.counters(late.sending);
                panic!("host {} is not done with host {}: {state:?}", late.from, late.to);
            }
        }
        for (flow, arrived) in self.flows.iter().zip(self.arrived()) {
            assert_eq!(arrived, flow.sent, "host {} to host {}", flow.from, flow.to);
        }
    }
}
