//! Hosts that send to one, over the buffer of one switch port: endpoints without stacks, in virtual time.
//!
//! ```text
//!   sender 0 --line--\
//!   sender 1 --line--> port: buffer, marks, line, faults --> receiver
//!      ...           /                                          |
//!   <------------------------ acknowledgements ----------------'
//! ```

use core::net::{IpAddr, Ipv4Addr};
use core::time::Duration;

use shouter_netstack::cc::Algorithm;
use shouter_netstack::region::{Extent, Region};
use shouter_netstack::rud::{
    Config, Counters, DatagramMeta, Destination, Disposition, Emit, Endpoint, Failure, MessageToken,
    SessionId, SessionParams, Sink, datagram_room, payload_room,
};
use shouter_netstack::sim::tcp::Segment;
use shouter_netstack::sim::{Link, LinkConfig, Packet};
use shouter_netstack::time::Instant;

use super::flow::Flow;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// A frame's bytes on the line beside the UDP payload: Ethernet, IPv4 and UDP headers, preamble, check sequence, gap.
pub(crate) const OVERHEAD: usize = 14 + 20 + 8 + 8 + 4 + 12;
/// The least time between two polls of a host; on average it is twice as long, by chance.
const POLL_INTERVAL: Duration = Duration::from_nanos(250);
/// When senders may begin.
pub(crate) const OPENED: Instant = Instant::from_nanos(100_000);
static BYTES: [u8; 9000] = [0x5a; 9000];

/// The parameters of a run.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) senders: usize,
    pub(crate) mtu: usize,
    /// The port to the receiver. The lines of the senders have its rate.
    pub(crate) port: LinkConfig,
    /// The time of a round trip without queues and lines.
    pub(crate) rtt: Duration,
    pub(crate) rud: Config,
    pub(crate) seed: u64,
}

impl Scenario {
    /// `senders` senders over 100 Gb/s with 1 MB of buffer and 10 us.
    pub(crate) fn incast(senders: usize) -> Self {
        let port = LinkConfig { queue_frames: usize::MAX, queue_bytes: 1_000_000, ..LinkConfig::default() };
        Self { senders, mtu: 1500, port, rtt: Duration::from_micros(10), rud: Config::default(), seed: 1 }
    }

    /// Bytes that the line carries in a round trip.
    pub(crate) fn bdp(&self) -> f64 {
        self.port.bits_per_second as f64 / 8.0 * self.rtt.as_secs_f64()
    }
}

/// A datagram under way.
#[derive(Clone, Debug)]
pub(crate) struct Carried {
    /// The sender's number, whichever way it goes.
    host: usize,
    src_port: u16,
    bytes: Vec<u8>,
    marked: bool,
    /// A segment of the TCP connection beside RUD, in place of all that.
    segment: Option<Segment>,
}

impl Packet for Carried {
    fn line_len(&self) -> u64 {
        self.segment.as_ref().map_or((self.bytes.len() + OVERHEAD) as u64, Packet::line_len)
    }
    fn mark(&mut self) -> bool {
        if let Some(segment) = &mut self.segment {
            return segment.mark();
        }
        self.marked = true;
        true
    }
}

/// Counts deliveries and releases.
#[derive(Debug, Default)]
pub(crate) struct App {
    pub(crate) bytes: Vec<u64>,
    pub(crate) released: u64,
}

impl Sink for App {
    fn deliver(&mut self, session: SessionId, _: &[u8], payload: &[u8]) -> Disposition {
        self.bytes[session.index()] += payload.len() as u64;
        Disposition::Consumed
    }
    fn released(&mut self, _: SessionId, _: MessageToken) {
        self.released += 1;
    }
    fn failed(&mut self, _: SessionId, why: Failure) {
        panic!("{why}");
    }
}

/// A host: an endpoint, and its traffic.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) endpoint: Endpoint,
    pub(crate) app: App,
    pub(crate) sessions: Vec<SessionId>,
    /// Messages that a sender has still to send.
    pub(crate) to_send: u64,
    pub(crate) sent: u64,
    /// When a sender begins.
    pub(crate) starts: Instant,
    /// When all that it sent was released.
    pub(crate) done: Option<Instant>,
    /// It does not run before.
    pub(crate) paused_until: Instant,
}

/// Sends over a line that pushes back.
struct Line<'a> {
    now: Instant,
    link: &'a mut Link<Carried>,
    /// A sender's number; the receiver finds it by the address.
    host: Option<usize>,
}

impl Emit for Line<'_> {
    fn room(&self) -> usize {
        64
    }
    fn emit(&mut self, to: &Destination, header: &[u8], payload: Option<Extent>) -> bool {
        if !self.link.has_room(self.now) {
            return false;
        }
        let mut bytes = header.to_vec();
        bytes.extend_from_slice(payload.as_ref().map_or(&[], |extent| extent.as_bytes()));
        let host = self.host.unwrap_or_else(|| host_of(to.remote_ip));
        self.link
            .send(self.now, Carried { host, src_port: to.src_port, bytes, marked: false, segment: None });
        true
    }
}

fn address(host: usize) -> IpAddr {
    Ipv4Addr::new(10, 0, (host >> 8) as u8, host as u8).into()
}

fn host_of(address: IpAddr) -> usize {
    match address {
        IpAddr::V4(address) => usize::from(address.octets()[2]) << 8 | usize::from(address.octets()[3]),
        IpAddr::V6(_) => 0,
    }
}

const RECEIVER: usize = 999;
const PORT: u16 = 4791;

/// The network and the hosts; the receiver is the last.
pub(crate) struct World {
    pub(crate) scenario: Scenario,
    pub(crate) now: Instant,
    pub(crate) hosts: Vec<Host>,
    lines: Vec<Link<Carried>>,
    pub(crate) port: Link<Carried>,
    back: Link<Carried>,
    /// Datagrams that have reached each host and were not looked at.
    inboxes: Vec<Vec<Carried>>,
    pub(crate) rng: SmallRng,
    /// Bytes in the port's queue, every step in which anything happened.
    pub(crate) queue: Vec<(Instant, usize)>,
    /// Line bytes that have arrived at the receiver.
    pub(crate) carried: u64,
    payload: u32,
    /// How often, per second, each host pauses, and for how long.
    pub(crate) pauses: (f64, Duration),
    /// A TCP connection to the same host.
    pub(crate) beside: Option<Flow>,
}

impl World {
    pub(crate) fn new(scenario: Scenario) -> Self {
        let mut rng = SmallRng::seed_from_u64(scenario.seed);
        let tag = |from: usize, to: usize| (from as u64 + 1) << 32 | (to as u64 + 1);
        let payload = payload_room(scenario.mtu, &address(0), 0);
        let open = |endpoint: &mut Endpoint, local: usize, remote: usize| {
            let params = SessionParams {
                local_tag: tag(remote, local),
                remote_tag: tag(local, remote),
                remote_ip: address(remote),
                local_ip: address(local),
                remote_port: PORT,
                local_ports: (50_000..50_004).collect(),
                max_datagram: datagram_room(scenario.mtu, &address(0)),
                seal: None,
            };
            endpoint.open(Instant::ZERO, params).expect("a session")
        };
        let mut host = |local: usize, remotes: core::ops::Range<usize>| {
            let mut endpoint = Endpoint::new(scenario.rud.clone());
            let sessions: Vec<_> = remotes.clone().map(|remote| open(&mut endpoint, local, remote)).collect();
            let app = App { bytes: vec![0; sessions.len()], released: 0 };
            // Sessions are open for a while before anything is sent.
            let starts = OPENED + Duration::from_nanos(rng.random_range(0..1000));
            let (to_send, sent, done, paused_until) = (0, 0, None, Instant::ZERO);
            Host { endpoint, app, sessions, to_send, sent, starts, done, paused_until }
        };
        let mut hosts: Vec<_> = (0..scenario.senders).map(|n| host(n, RECEIVER..RECEIVER + 1)).collect();
        hosts.push(host(RECEIVER, 0..scenario.senders));
        let line = LinkConfig {
            bits_per_second: scenario.port.bits_per_second,
            delay: Duration::ZERO,
            queue_frames: 64,
            // Clocks differ.
            jitter: Duration::from_nanos(2),
            ..LinkConfig::default()
        };
        let half = scenario.rtt / 2;
        let port = LinkConfig { delay: half, ..scenario.port };
        let back = LinkConfig { delay: half, queue_frames: usize::MAX, ..line };
        let seed = scenario.seed.wrapping_mul(1000);
        let mut world = Self {
            now: Instant::ZERO,
            lines: (0..scenario.senders).map(|n| Link::new(line, seed + n as u64)).collect(),
            port: Link::new(port, seed + 500),
            back: Link::new(back, seed + 501),
            inboxes: hosts.iter().map(|_| Vec::new()).collect(),
            hosts,
            rng,
            queue: Vec::new(),
            carried: 0,
            payload: payload as u32,
            pauses: (0.0, Duration::ZERO),
            beside: None,
            scenario,
        };
        world.run(OPENED - Instant::ZERO, |_| false);
        (world.now, world.carried) = (OPENED, 0);
        world.queue.clear();
        world
    }

    /// Lets a TCP connection send all that it may, from a line like those of the other senders.
    pub(crate) fn send_beside(&mut self, algorithm: Algorithm) {
        let rate = self.scenario.port.bits_per_second;
        let line = LinkConfig { bits_per_second: rate, queue_frames: usize::MAX, ..LinkConfig::default() };
        let (line, back) = (
            LinkConfig { delay: Duration::ZERO, ..line },
            LinkConfig { delay: self.scenario.rtt / 2, ..line },
        );
        self.beside = Some(Flow::new(self.now, algorithm, self.scenario.mtu, line, back));
    }

    /// Gives every sender so many messages of a full datagram.
    pub(crate) fn send_each(&mut self, messages: u64) {
        let senders = self.scenario.senders;
        self.hosts[..senders].iter_mut().for_each(|host| host.to_send += messages);
    }

    pub(crate) fn counters(&self, sender: usize) -> Counters {
        let host = &self.hosts[sender];
        host.endpoint.counters(host.sessions[0])
    }

    /// Payload bytes that have arrived from a sender.
    pub(crate) fn arrived(&self, sender: usize) -> u64 {
        self.hosts[self.scenario.senders].app.bytes[sender]
    }

    /// Lets datagrams that have left the senders' lines enter the port, in order, and sorts those that have come back
    /// by their receiver.
    fn carry(&mut self) {
        let mut entering = Vec::new();
        for line in &mut self.lines {
            while let Some(at) = line.next_arrival().filter(|at| *at <= self.now) {
                entering.extend(line.receive(at).map(|datagram| (at, datagram)));
            }
        }
        if let Some(flow) = &mut self.beside {
            while let Some(at) = flow.line.next_arrival().filter(|at| *at <= self.now) {
                let segment = flow.line.receive(at);
                let bytes = Vec::new();
                entering.push((at, Carried { host: 0, src_port: 0, bytes, marked: false, segment }));
            }
        }
        entering.sort_by_key(|(at, _)| *at);
        for (at, datagram) in entering {
            self.port.send(at, datagram);
        }
        while let Some(datagram) = self.back.receive(self.now) {
            self.inboxes[datagram.host].push(datagram);
        }
        while let Some(datagram) = self.port.receive(self.now) {
            self.carried += datagram.line_len();
            if let Some((segment, flow)) = datagram.segment.as_ref().zip(self.beside.as_mut()) {
                flow.on_arrival(self.now, segment);
                continue;
            }
            self.inboxes[self.scenario.senders].push(datagram);
        }
    }

    /// A poll of a host, as a shard would do it.
    fn poll(&mut self, index: usize) {
        let now = self.now;
        let receiver = index == self.scenario.senders;
        let Host { endpoint, app, .. } = &mut self.hosts[index];
        for datagram in self.inboxes[index].drain(..) {
            let (local, remote) = if receiver { (RECEIVER, datagram.host) } else { (index, RECEIVER) };
            let meta = DatagramMeta {
                src_ip: address(remote),
                dst_ip: address(local),
                src_port: datagram.src_port,
                dst_port: PORT,
                congestion_experienced: datagram.marked,
            };
            endpoint.on_datagram(now, &meta, &datagram.bytes, app);
        }
        endpoint.on_timeout(now, app);
        let host = &mut self.hosts[index];
        if now >= host.starts {
            let payload = Region::from_static(&BYTES).extent(0, self.payload);
            while host.to_send > 0
                && host.endpoint.send(host.sessions[0], &[], payload, MessageToken(0)).is_ok()
            {
                host.to_send -= 1;
                host.sent += 1;
            }
        }
        let (link, sender) =
            if receiver { (&mut self.back, None) } else { (&mut self.lines[index], Some(index)) };
        host.endpoint.transmit(now, &mut Line { now, link, host: sender });
        if host.done.is_none() && host.to_send == 0 && host.sent > 0 && host.app.released == host.sent {
            host.done = Some(now);
        }
    }

    /// One step: every host that runs and has something to do is polled, then time jumps to the next event.
    fn step(&mut self) {
        self.carry();
        let mut next = None;
        let mut note = |at: Instant| next = Some(next.map_or(at, |next: Instant| next.min(at)));
        for index in 0..self.hosts.len() {
            let (pauses, pause) = self.pauses;
            let host = &mut self.hosts[index];
            if host.paused_until > self.now {
                note(host.paused_until);
                continue;
            }
            if self.rng.random() {
                // It is about something else.
                let busy =
                    host.endpoint.wants_transmit() || !self.inboxes[index].is_empty() || host.to_send > 0;
                if busy {
                    note(self.now + POLL_INTERVAL);
                }
                host.endpoint.next_deadline().map(&mut note);
                continue;
            }
            host.endpoint.on_poll(self.now, false);
            let due = host.endpoint.next_deadline().is_some_and(|at| at <= self.now);
            let starting = host.to_send > 0 && self.now >= host.starts;
            if due || starting || host.endpoint.wants_transmit() || !self.inboxes[index].is_empty() {
                self.poll(index);
            }
            let host = &mut self.hosts[index];
            if host.endpoint.wants_transmit() {
                note(self.now + POLL_INTERVAL);
            }
            if host.to_send > 0 && host.starts > self.now {
                note(host.starts);
            }
            host.endpoint.next_deadline().map(&mut note);
            if pauses > 0.0 && self.rng.random::<f64>() < pauses * POLL_INTERVAL.as_secs_f64() {
                host.paused_until = self.now + pause;
            }
        }
        if let Some(flow) = &mut self.beside {
            flow.poll(self.now);
            flow.next().map(&mut note);
        }
        let links = self.lines.iter().chain([&self.port, &self.back]);
        links.filter_map(Link::next_arrival).for_each(&mut note);
        let queued = self.port.queued_bytes(self.now);
        self.queue.push((self.now, queued));
        let earliest = self.now + POLL_INTERVAL;
        let next = next.map_or(earliest, |next| next.max(earliest));
        if next > earliest {
            // Hosts look all the time, and have found nothing.
            let before = Instant::from_nanos(next.as_nanos() - POLL_INTERVAL.as_nanos() as u64);
            let running = self.hosts.iter_mut().filter(|host| host.paused_until <= before);
            running.for_each(|host| host.endpoint.on_poll(before, false));
        }
        self.now = next;
    }

    /// Runs until `done`, or until `limit`; whether it was the former.
    pub(crate) fn run(&mut self, limit: Duration, mut done: impl FnMut(&Self) -> bool) -> bool {
        let limit = self.now + limit;
        while self.now < limit {
            self.step();
            if done(self) {
                return true;
            }
        }
        false
    }

    /// Runs until all that was sent has arrived and was acknowledged.
    pub(crate) fn complete(&mut self, limit: Duration) {
        let senders = self.scenario.senders;
        let done = self.run(limit, |world| world.hosts[..senders].iter().all(|host| host.done.is_some()));
        let state: Vec<_> = (0..senders).map(|sender| self.counters(sender)).collect();
        assert!(done, "not done at {:?}: {state:?}", self.now);
    }

    /// The share of the line that was used since `from` of which `carried` bytes had arrived before.
    pub(crate) fn utilisation(&self, from: Instant, carried: u64) -> f64 {
        let bits = (self.carried - carried) as f64 * 8.0;
        bits / (self.now - from).as_secs_f64() / self.scenario.port.bits_per_second as f64
    }

    /// The length of the port's queue in bytes that was exceeded for so small a share of the time.
    pub(crate) fn queue_exceeded_for(&self, share: f64) -> usize {
        let mut spans: Vec<_> =
            self.queue.windows(2).map(|w| (w[0].1, (w[1].0 - w[0].0).as_secs_f64())).collect();
        spans.sort_by_key(|(bytes, _)| *bytes);
        let mut left = spans.iter().map(|(_, time)| time).sum::<f64>() * share;
        for (bytes, time) in spans.into_iter().rev() {
            left -= time;
            if left < 0.0 {
                return bytes;
            }
        }
        0
    }
}
