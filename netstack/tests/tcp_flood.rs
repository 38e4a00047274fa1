//! Whole stacks under attack, in virtual time: a connection goes on, its stream stays exact, and memory stays within the
//! limits that the configuration gives.
//!
//! `SHOUTER_SEED=<seed>` replays a failure, `SHOUTER_SECONDS=<seconds of virtual time>` attacks for longer.

#[path = "support/held.rs"]
mod held;
#[path = "support/stream.rs"]
mod stream;

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4};
use core::time::Duration;
use std::collections::VecDeque;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use shouter_netstack::device::{Capabilities, Device, DeviceCounters, RxFrame, TxBatch};
use shouter_netstack::sim::tcp::{Outlet, Segment};
use shouter_netstack::sim::{Link, LinkConfig, Node, Sim, SimDevice};
use shouter_netstack::stack::{Ipv6Config, PortConfig, PortId, Stack, StackConfig};
use shouter_netstack::tcp::{
    self, ConnectionId, Endpoint, Error, ListenerId, Options, Path, Payload, SegmentMeta, StateName, TcpEvent,
};
use shouter_netstack::time::Instant;
use shouter_netstack::wire::checksum::{checksum, pseudo_header};
use shouter_netstack::wire::ethernet::{self, EtherType, Mac};
use shouter_netstack::wire::icmp::{Echo, EchoKind, ErrorKind};
use shouter_netstack::wire::ip::Protocol;
use shouter_netstack::wire::tcp::{Flags, Header, SeqNumber, Timestamps};
use shouter_netstack::wire::{arp, icmpv4, icmpv6, ipv6};

use held::held;
use stream::{is_stream, stream};

const MIB: isize = 1 << 20;
const MTU: u16 = 1500;
const LINE: u64 = 10_000_000_000;
/// Bytes a second that the connection is offered.
const LOAD: u64 = 100_000_000;
/// Frames that wait for a poll; further ones are lost, as in a NIC.
const RING: usize = 512;
/// Time between two polls: with 64 frames each a host takes 3.2 million a second.
const POLL_INTERVAL: Duration = Duration::from_micros(20);

const CLIENT: usize = 0;
const SERVER: usize = 1;
/// The router to everybody else. It takes the answers to made-up addresses.
const ROUTER: usize = 2;

fn ip(host: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, host as u8 + 1)
}

fn ip6(host: usize) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, host as u16 + 1)
}

/// The MAC addresses that the simulated network gives its hosts.
fn mac(host: usize) -> Mac {
    Mac([2, 0x51, 0, 0, 0, host as u8 + 1])
}

fn server() -> SocketAddrV4 {
    SocketAddrV4::new(ip(SERVER), 80)
}

/// The number that an attack's randomness begins with, and how long it lasts: `span`, unless the environment says more.
fn seed_and_span(seed: u64, span: Duration) -> (u64, Duration) {
    let from = |name| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    (from("SHOUTER_SEED").unwrap_or(seed), from("SHOUTER_SECONDS").map_or(span, Duration::from_secs))
}

fn check(seed: u64, at: u64, bytes: &[u8]) {
    assert_eq!(is_stream(at, bytes), Ok(()), "seed {seed}: other bytes at the position in the stream");
}

/// A simulated device at which an attacker's frames arrive beside those of the network.
struct Nic {
    inner: SimDevice,
    extra: VecDeque<Vec<u8>>,
    /// The attacker's frames that the stack has seen, and those that found the ring full.
    taken: u64,
    overrun: u64,
    /// The last frame that came from the network.
    sniffed: Vec<u8>,
}

impl Nic {
    fn inject(&mut self, frame: Vec<u8>) {
        if self.extra.len() < RING {
            self.extra.push_back(frame);
        } else {
            self.overrun += 1;
        }
    }

    fn take_extra(&mut self, most: usize, sink: &mut impl FnMut(RxFrame<'_>)) -> usize {
        let count = most.min(self.extra.len());
        for frame in self.extra.drain(..count) {
            sink(RxFrame::new(&frame));
        }
        self.taken += count as u64;
        count
    }
}

// SAFETY: all frames are the inner device's, which keeps the promise.
#[allow(unsafe_code)]
unsafe impl Device for Nic {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }
    fn mac(&self) -> [u8; 6] {
        self.inner.mac()
    }
    fn link_up(&mut self) -> bool {
        self.inner.link_up()
    }
    fn transmit(&mut self, now: Instant, batch: &mut TxBatch) -> usize {
        self.inner.transmit(now, batch)
    }
    /// Half of the budget is the attacker's, and so is the part of the other half that the network leaves over.
    fn receive(&mut self, now: Instant, budget: usize, sink: &mut impl FnMut(RxFrame<'_>)) -> usize {
        let mut count = self.take_extra(budget / 2, sink);
        let sniffed = &mut self.sniffed;
        count += self.inner.receive(now, budget - count, &mut |frame| {
            sniffed.clear();
            frame.pieces().for_each(|piece| sniffed.extend_from_slice(piece));
            sink(frame);
        });
        count + self.take_extra(budget - count, sink)
    }
    fn counters(&self) -> DeviceCounters {
        self.inner.counters()
    }
}

/// The facts that an attacker has when it makes a frame.
struct Scene<'a> {
    /// The connection's ends: the victim's, and its peer's.
    victim: SocketAddrV4,
    peer: SocketAddrV4,
    victim_mac: Mac,
    sniffed: &'a [u8],
}

type Make = fn(&mut SmallRng, &Scene<'_>) -> Vec<u8>;

/// Frames for one host.
struct Attack {
    make: Make,
    rng: SmallRng,
    /// Time between two frames; if zero, their time on the line.
    interval: Duration,
    next: Instant,
    until: Instant,
    victim: SocketAddrV4,
    peer: SocketAddrV4,
    made: u64,
}

/// One connection's application: it writes or reads.
struct App {
    id: ConnectionId,
    /// Since when it writes `LOAD` bytes a second; `None`: only `total`, at once.
    since: Option<Instant>,
    total: u64,
    written: u64,
    read: u64,
}

impl App {
    fn new(id: ConnectionId) -> Self {
        Self { id, since: None, total: 0, written: 0, read: 0 }
    }

    /// Bytes that are to have been written by `now`.
    fn due(&self, now: Instant) -> u64 {
        match self.since {
            Some(since) => ((now - since).as_nanos() * u128::from(LOAD) / 1_000_000_000) as u64,
            None => self.total,
        }
    }
}

struct Host {
    seed: u64,
    number: usize,
    stack: Stack<Nic>,
    port: PortId,
    listener: Option<ListenerId>,
    apps: Vec<App>,
    attack: Option<Attack>,
    connected: usize,
    most_connections: usize,
    most_held: isize,
}

impl Host {
    fn new(sim: &Sim, seed: u64, number: usize, neighbours: Neighbours) -> Self {
        let link = LinkConfig {
            bits_per_second: LINE,
            delay: Duration::from_micros(5),
            queue_frames: 256,
            ..LinkConfig::default()
        };
        let inner = sim.network().attach(MTU, link);
        let nic = Nic { inner, extra: VecDeque::new(), taken: 0, overrun: 0, sniffed: Vec::new() };
        let mut config = StackConfig::new(seed + number as u64);
        // Small windows, so that a blind guess stays one.
        config.tcp.options =
            Options { send_buffer: 256 << 10, receive_buffer: 256 << 10, ..Options::internet() };
        let mut stack = Stack::new(config);
        let others = (0..3).filter(|&other| other != number);
        let port = match neighbours {
            Neighbours::Static => PortConfig {
                gateway: Some(ip(ROUTER)).filter(|_| number != ROUTER),
                neighbours: others.map(|other| (ip(other), mac(other).0)).collect(),
                ..PortConfig::new(ip(number), 24, MTU)
            },
            Neighbours::Asked => PortConfig {
                ipv6: Some(Ipv6Config::new(ip6(number), 64)),
                ..PortConfig::new(ip(number), 16, MTU)
            },
        };
        let port = stack.add_port(nic, port).unwrap();
        Self {
            seed,
            number,
            stack,
            port,
            listener: None,
            apps: Vec::new(),
            attack: None,
            connected: 0,
            most_connections: 0,
            most_held: 0,
        }
    }

    fn nic(&self) -> &Nic {
        self.stack.device(self.port).unwrap()
    }

    fn make_frames(&mut self, now: Instant) {
        let Some(attack) = &mut self.attack else { return };
        let nic = self.stack.device_mut(self.port).unwrap();
        while attack.next <= now && attack.next < attack.until {
            let scene = Scene {
                victim: attack.victim,
                peer: attack.peer,
                victim_mac: mac(self.number),
                sniffed: &nic.sniffed,
            };
            let frame = (attack.make)(&mut attack.rng, &scene);
            let line_time =
                Duration::from_nanos((frame.len().max(60) as u64 + 24) * 8 * 1_000_000_000 / LINE);
            attack.next += if attack.interval.is_zero() { line_time } else { attack.interval };
            attack.made += 1;
            nic.inject(frame);
        }
    }

    fn act(&mut self, now: Instant) {
        let seed = self.seed;
        let tcp = self.stack.tcp_mut();
        while let Some(event) = tcp.next_event() {
            match event {
                TcpEvent::Acceptable(listener) => {
                    while let Some((id, _)) = tcp.accept(listener) {
                        self.apps.push(App::new(id));
                    }
                }
                TcpEvent::Connected(_) => self.connected += 1,
                TcpEvent::Failed(_, why) => panic!("seed {seed}: host {}: {why}", self.number),
                _ => {}
            }
        }
        for app in &mut self.apps {
            while app.written < app.due(now) {
                let most = (app.due(now) - app.written).min(1 << 16) as usize;
                match tcp.write(now, app.id, stream(app.written, most)) {
                    Ok(written) => app.written += written as u64,
                    Err(Error::WouldBlock) => break,
                    Err(why) => panic!("seed {seed}: {why}"),
                }
            }
            loop {
                match tcp.read_chunk(now, app.id) {
                    Ok(Some(chunk)) => {
                        check(seed, app.read, &chunk);
                        app.read += chunk.len() as u64;
                    }
                    Err(Error::WouldBlock) => break,
                    Ok(None) => panic!("seed {seed}: the stream of host {} was ended", self.number),
                    Err(why) => panic!("seed {seed}: {why}"),
                }
            }
        }
    }

    /// Frames that a counter of the stack accounts for: those under which each frame ends once.
    fn accounted(&self) -> u64 {
        // These count datagrams, or frames that were counted already.
        let again = [
            "rx_arp_conflict",
            "rx_neighbour_conflict",
            "rx_reassembled",
            "rx_fragment_timeout",
            "rx_fragment_evicted",
        ];
        let named = self.stack.counters();
        let named = named.named().filter(|(name, _)| name.starts_with("rx_") && !again.contains(name));
        named.map(|(_, count)| count).sum()
    }
}

impl Node for Host {
    fn poll(&mut self, now: Instant) -> Option<Instant> {
        self.make_frames(now);
        self.stack.receive(now);
        self.act(now);
        self.stack.transmit(now);
        self.most_connections = self.most_connections.max(self.stack.tcp().connections());
        self.most_held = self.most_held.max(held());
        let waits = !self.nic().extra.is_empty() || self.stack.is_backlogged();
        let attack = self.attack.as_ref().filter(|attack| attack.next < attack.until);
        let writes = self.apps.iter().any(|app| app.since.is_some());
        [
            self.stack.next_deadline(),
            attack.map(|attack| attack.next),
            waits.then_some(now),
            writes.then_some(now + POLL_INTERVAL),
        ]
        .into_iter()
        .flatten()
        .min()
    }
}

/// A client with a connection to a server that is offered `LOAD`, and their router.
struct World {
    seed: u64,
    sim: Sim,
    hosts: Vec<Host>,
    client: SocketAddrV4,
    before: isize,
}

/// How hosts learn each other's stations.
#[derive(Clone, Copy)]
enum Neighbours {
    /// From their configuration.
    Static,
    /// By asking, on a link with many addresses.
    Asked,
}

impl World {
    fn new(seed: u64) -> Self {
        Self::on(seed, Neighbours::Static)
    }

    fn on(seed: u64, neighbours: Neighbours) -> Self {
        let sim = Sim::new(seed).with_poll_interval(POLL_INTERVAL);
        let hosts = (0..3).map(|number| Host::new(&sim, seed, number, neighbours)).collect();
        let client = SocketAddrV4::new(ip(CLIENT), 50_000);
        let mut world = Self { seed, sim, hosts, client, before: 0 };
        let listener = world.hosts[SERVER].stack.tcp_mut().listen(server().into(), 64, None).unwrap();
        world.hosts[SERVER].listener = Some(listener);
        world.connect(Some(client.into()));
        world.hosts[CLIENT].apps[0].since = Some(world.sim.now());
        // Slow start is over, buffers have their final sizes.
        world.run(Duration::from_millis(20));
        world.before = held();
        world.hosts.iter_mut().for_each(|host| host.most_held = 0);
        world
    }

    fn connect(&mut self, local: Option<SocketAddr>) {
        self.connect_from(CLIENT, local);
    }

    fn connect_from(&mut self, host: usize, local: Option<SocketAddr>) {
        let now = self.sim.now();
        let total = self.hosts[SERVER].apps.len() + 1;
        let client = &mut self.hosts[host];
        let id = client.stack.tcp_connect(now, local, server().into(), None).unwrap();
        client.apps.push(App::new(id));
        let (count, seed) = (client.apps.len(), self.seed);
        let done = self.sim.run_until(&mut self.hosts, now + Duration::from_secs(2), |hosts| {
            hosts[host].connected == count && hosts[SERVER].apps.len() == total
        });
        let counters = self.hosts[SERVER].stack.tcp().counters();
        assert!(done, "seed {seed}: connection {count} of host {host} is established; {counters:?}");
    }

    fn attack(&mut self, host: usize, make: Make, interval: Duration, span: Duration) {
        let ends = [self.client, server()];
        let now = self.sim.now();
        self.hosts[host].attack = Some(Attack {
            make,
            rng: SmallRng::seed_from_u64(self.seed ^ (host as u64) << 32),
            interval,
            next: now,
            until: now + span,
            victim: ends[host],
            peer: ends[1 - host],
            made: 0,
        });
    }

    fn run(&mut self, span: Duration) {
        let limit = self.sim.now() + span;
        self.sim.run_until(&mut self.hosts, limit, |_| false);
    }

    /// Runs, and returns which part of the load got through meanwhile.
    fn share(&mut self, span: Duration) -> f64 {
        let (read, begun) = (self.hosts[SERVER].apps[0].read, self.sim.now());
        self.run(span);
        let took = (self.sim.now() - begun).as_secs_f64();
        assert!(took >= 0.9 * span.as_secs_f64(), "time has passed");
        (self.hosts[SERVER].apps[0].read - read) as f64 / (took * LOAD as f64)
    }

    /// The checks after every attack: the connection lives, every frame is accounted for. Returns how many of the
    /// attacker's frames the host took.
    fn check(&self, host: usize) -> u64 {
        let seed = self.seed;
        for host in &self.hosts[..2] {
            let state = host.stack.tcp().state(host.apps[0].id);
            assert_eq!(state, Some(StateName::Established), "seed {seed}: host {}", host.number);
            let (nic, counters) = (host.nic(), host.stack.counters());
            let seen = nic.taken + nic.counters().rx_frames;
            assert_eq!(host.accounted(), seen, "seed {seed}: every frame is counted once; {counters:?}");
            assert_eq!(counters.rx_tcp, host.stack.tcp().counters().received, "seed {seed}");
        }
        let host = &self.hosts[host];
        let made = host.attack.as_ref().map_or(0, |attack| attack.made);
        assert_eq!(made, host.nic().taken + host.nic().overrun + host.nic().extra.len() as u64);
        host.nic().taken
    }

    /// The most bytes that were held since the attack began, beyond those held before.
    fn grown(&self) -> isize {
        self.hosts.iter().map(|host| host.most_held).max().unwrap_or(0) - self.before
    }
}

/// An IPv4 packet in a frame to `to`; `fragment` is the field with the offset and the flags.
fn packet(
    to: Mac,
    [source, destination]: [Ipv4Addr; 2],
    protocol: u8,
    (id, fragment): (u16, u16),
    payload: &[u8],
) -> Vec<u8> {
    let link = ethernet::Repr { destination: to, source: mac(ROUTER), ethertype: EtherType::Ipv4 };
    let mut header = [0; 20];
    header[0] = 0x45;
    header[2..4].copy_from_slice(&(20 + payload.len() as u16).to_be_bytes());
    header[4..6].copy_from_slice(&id.to_be_bytes());
    header[6..8].copy_from_slice(&fragment.to_be_bytes());
    header[8..10].copy_from_slice(&[64, protocol]);
    header[12..16].copy_from_slice(&source.octets());
    header[16..].copy_from_slice(&destination.octets());
    let sum = checksum(&header);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    [&link.emit()[..], &header, payload].concat()
}

/// A segment in a frame.
fn segment(to: Mac, from: SocketAddrV4, at: SocketAddrV4, header: Header, payload: &[u8]) -> Vec<u8> {
    let header = Header { source_port: from.port(), destination_port: at.port(), ..header };
    let mut bytes = [header.emit().as_bytes(), payload].concat();
    let sum =
        pseudo_header(from.ip().octets(), at.ip().octets(), Protocol::Tcp, bytes.len() as u16).over(&bytes);
    bytes[16..18].copy_from_slice(&sum.finish().to_be_bytes());
    packet(to, [*from.ip(), *at.ip()], 6, (0, 0x4000), &bytes)
}

/// A random remote address.
fn random_source(rng: &mut SmallRng) -> SocketAddrV4 {
    let [b, c, d] = rng.random();
    SocketAddrV4::new(Ipv4Addr::new(rng.random_range(100..=120), b, c, d), rng.random_range(1..=u16::MAX))
}

fn flooding_syn(rng: &mut SmallRng, scene: &Scene<'_>) -> Vec<u8> {
    let mut header =
        Header { seq: SeqNumber(rng.random()), flags: Flags::SYN, window: rng.random(), ..Header::default() };
    header.options.mss = Some(1460);
    header.options.sack_permitted = rng.random();
    header.options.window_scale = rng.random::<bool>().then_some(7);
    header.options.timestamps = rng.random::<bool>().then_some(Timestamps { value: rng.random(), echo: 0 });
    segment(scene.victim_mac, random_source(rng), scene.victim, header, &[])
}

#[test]
fn a_connection_keeps_its_load_under_a_syn_flood_and_a_new_client_gets_in() {
    let (seed, span) = seed_and_span(1, Duration::from_millis(60));
    let mut world = World::new(seed);
    let quiet = world.share(Duration::from_millis(20));
    assert!((0.99..1.01).contains(&quiet), "without an attack all of the load gets through: {quiet}");
    let limit = world.hosts[SERVER].stack.tcp().config().max_half_open;
    world.attack(SERVER, flooding_syn, Duration::from_micros(2), span);
    let share = world.share(span);
    assert!(share >= 0.8, "seed {seed}: {share} of the load");
    world.run(Duration::from_millis(1));
    let taken = world.check(SERVER);
    assert_eq!(taken as u128, span.as_micros() / 2, "seed {seed}: no SYN was lost");
    let server = &world.hosts[SERVER];
    let counters = *server.stack.tcp().counters();
    // One is the connection's own.
    assert_eq!(counters.syn_received + counters.cookies_sent, taken + 1, "seed {seed}: {counters:?}");
    assert!(counters.cookies_sent >= taken - limit as u64 && counters.answers_suppressed == 0);
    assert!(server.most_connections <= limit + 1, "{} connections, of {limit}", server.most_connections);
    let grown = world.grown();
    println!("{share:.3} of the load, {grown} bytes more, {} cookies", counters.cookies_sent);
    // A half-open connection takes about a kibibyte.
    assert!(grown < 2 * MIB, "seed {seed}: {grown} bytes more");

    // The half-open ones are still there, so the honest client comes in by a cookie.
    world.connect(None);
    assert_eq!(world.hosts[SERVER].stack.tcp().counters().cookies_accepted, 1);
    world.hosts[CLIENT].apps[1].total = 1_000_000;
    world.run(Duration::from_millis(50));
    assert_eq!(world.hosts[SERVER].apps[1].read, 1_000_000, "seed {seed}");
}

/// An address on the link that nobody has.
fn nobody(rng: &mut SmallRng) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, rng.random_range(1..255), rng.random_range(1..255))
}

/// SYNs from all over the link.
fn syn_of_nobody(rng: &mut SmallRng, scene: &Scene<'_>) -> Vec<u8> {
    let from = SocketAddrV4::new(nobody(rng), rng.random_range(1..=u16::MAX));
    let header =
        Header { seq: SeqNumber(rng.random()), flags: Flags::SYN, window: 1000, ..Header::default() };
    segment(scene.victim_mac, from, scene.victim, header, &[])
}

/// Pings from all over the link, of IPv6.
fn ping_of_nobody(rng: &mut SmallRng, scene: &Scene<'_>) -> Vec<u8> {
    let from = Ipv6Addr::from((0xfd00 << 112) + u128::from(rng.random::<u64>() | 1 << 63));
    let to = ip6(usize::from(scene.victim.ip().octets()[3]) - 1);
    let echo = Echo { kind: EchoKind::Request, identifier: rng.random(), sequence: 1, data: b"anybody?" };
    let payload = [&icmpv6::emit_echo(from, to, &echo)[..], echo.data].concat();
    let ip = ipv6::Repr::new(from, to, Protocol::Icmpv6, payload.len()).unwrap();
    let link =
        ethernet::Repr { destination: scene.victim_mac, source: mac(ROUTER), ethertype: EtherType::Ipv6 };
    [&link.emit()[..], &ip.emit(), &payload].concat()
}

/// Stations all over the link request the victim's, and announce their own.
fn claim_of_nobody(rng: &mut SmallRng, scene: &Scene<'_>) -> Vec<u8> {
    let sender = Mac([2, rng.random(), rng.random(), rng.random(), rng.random(), rng.random()]);
    let link = ethernet::Repr { destination: scene.victim_mac, source: sender, ethertype: EtherType::Arp };
    let claim = arp::Repr {
        operation: arp::Operation::Request,
        sender,
        sender_ip: nobody(rng),
        target: Mac::default(),
        target_ip: *scene.victim.ip(),
    };
    [&link.emit()[..], &claim.emit()].concat()
}

fn all_of_nobody(rng: &mut SmallRng, scene: &Scene<'_>) -> Vec<u8> {
    [syn_of_nobody, ping_of_nobody, claim_of_nobody][rng.random_range(0..3)](rng, scene)
}

#[test]
fn addresses_that_nobody_has_take_no_neighbours_from_connections() {
    let (seed, span) = seed_and_span(7, Duration::from_millis(60));
    for make in [syn_of_nobody as Make, ping_of_nobody, claim_of_nobody, all_of_nobody] {
        let mut world = World::on(seed, Neighbours::Asked);
        // 300,000 a second, long enough for all that connects.
        world.attack(SERVER, make, Duration::from_nanos(3333), Duration::from_secs(10));
        let share = world.share(span);
        println!("{share:.3} of the load");
        assert!(share >= 0.8, "seed {seed}: {share} of the load");
        // The last of them is the first that this host hears of that client.
        for client in [CLIENT; 99].into_iter().chain([ROUTER]) {
            let begun = world.sim.now();
            world.connect_from(client, None);
            let took = world.sim.now() - begun;
            assert!(took < Duration::from_millis(10), "seed {seed}: {took:?} to connect");
        }
        // And it still finds unknown hosts of both versions.
        let now = world.sim.now();
        for (sequence, to) in
            [IpAddr::V4(ip(ROUTER)), ip6(CLIENT).into(), ip6(ROUTER).into()].into_iter().enumerate()
        {
            world.hosts[SERVER].stack.ping(now, to, 1, sequence as u16, b"there?").unwrap();
        }
        let mut replies = 0;
        let done = world.sim.run_until(&mut world.hosts, now + Duration::from_millis(100), |hosts| {
            replies += core::iter::from_fn(|| hosts[SERVER].stack.next_echo_reply()).count();
            replies == 3
        });
        assert!(done, "seed {seed}: {replies} of 3 replies");
        assert!(world.share(span) >= 0.8, "seed {seed}");
        world.check(SERVER);
        assert!(world.grown() < 8 * MIB, "seed {seed}: {} bytes more", world.grown());
    }
}

/// An observer of the connection claims that its segments do not get through: now large ones, now any.
fn too_big(rng: &mut SmallRng, scene: &Scene<'_>) -> Vec<u8> {
    // Behind Ethernet and IPv4 headers of 34 bytes; the number that the other side expects next is out.
    let expected = scene.sniffed.get(42..46).map_or([0; 4], |bytes| [bytes[0], bytes[1], bytes[2], bytes[3]]);
    let ports = [scene.victim.port().to_be_bytes(), scene.peer.port().to_be_bytes()].concat();
    let ends = [*scene.victim.ip(), *scene.peer.ip()];
    let quoted = packet(mac(ROUTER), ends, 6, (0, 0x4000), &[&ports[..], &expected].concat());
    let kind = ErrorKind::PacketTooBig { mtu: if rng.random() { 68 } else { rng.random_range(0..1500) } };
    let message = icmpv4::Message::Error { kind, quoted: &quoted[14..] }.emit();
    let source = *random_source(rng).ip();
    packet(scene.victim_mac, [source, *scene.victim.ip()], 1, (0, 0), &[&message[..], &quoted[14..]].concat())
}

#[test]
fn segments_stay_as_large_as_those_that_get_through_despite_forged_icmp_errors() {
    let (seed, span) = seed_and_span(8, Duration::from_millis(100));
    let mut world = World::new(seed);
    let id = world.hosts[CLIENT].apps[0].id;
    let before = world.hosts[CLIENT].stack.tcp().info(id).unwrap().mss;
    world.attack(CLIENT, too_big, Duration::from_micros(50), span);
    let share = world.share(span);
    assert!(share >= 0.95, "seed {seed}: {share} of the load");
    world.check(CLIENT);
    assert_eq!(world.hosts[CLIENT].stack.tcp().info(id).unwrap().mss, before, "seed {seed}");
    let counters = world.hosts[CLIENT].stack.counters();
    assert!(counters.rx_icmp_errors > 1000, "seed {seed}: {counters:?}");
}

fn blind(rng: &mut SmallRng, scene: &Scene<'_>) -> Vec<u8> {
    let kinds = [
        Flags::RST,
        Flags::RST.with(Flags::ACK),
        Flags::FIN.with(Flags::ACK),
        Flags::SYN,
        Flags::SYN.with(Flags::ACK),
        Flags::ACK,
        Flags::ACK.with(Flags::PSH),
        Flags(0),
    ];
    let mut header = Header {
        seq: SeqNumber(rng.random()),
        ack: SeqNumber(rng.random()),
        flags: kinds[rng.random_range(0..kinds.len())],
        window: rng.random(),
        ..Header::default()
    };
    let stamps = Timestamps { value: rng.random(), echo: rng.random() };
    header.options.timestamps = rng.random::<bool>().then_some(stamps);
    let data: [u8; 64] = rng.random();
    let payload = if header.flags.intersects(Flags::ACK) { &data[..] } else { &[] };
    segment(scene.victim_mac, scene.peer, scene.victim, header, payload)
}

#[test]
fn segments_of_the_right_pair_with_guessed_numbers_do_nothing() {
    let (seed, span) = seed_and_span(2, Duration::from_millis(100));
    let mut world = World::new(seed);
    for host in [CLIENT, SERVER] {
        world.attack(host, blind, Duration::from_micros(10), span);
    }
    let share = world.share(span);
    println!("{share:.3} of the load");
    assert!(share >= 0.95, "seed {seed}: {share} of the load");
    world.run(Duration::from_millis(5));
    for host in [CLIENT, SERVER] {
        assert_eq!(world.check(host) as u128, span.as_micros() / 10, "seed {seed}");
        let counters = world.hosts[host].stack.tcp().counters();
        assert_eq!((counters.ended, counters.malformed), (0, 0), "seed {seed}: {counters:?}");
    }
    let share = world.share(Duration::from_millis(20));
    assert!(share >= 0.99, "seed {seed}: {share} of the load afterwards");
    assert!(world.grown() < MIB, "seed {seed}: {} bytes more", world.grown());
}

/// Noise, frames that are right in all but one byte, and right headers with contents that nobody sends. Of the
/// connection's own frames only one byte changes, which no checksum lets pass.
fn noise(rng: &mut SmallRng, scene: &Scene<'_>) -> Vec<u8> {
    let random = |rng: &mut SmallRng, most: usize| -> Vec<u8> {
        let len = rng.random_range(0..=most);
        (0..len).map(|_| rng.random()).collect()
    };
    match rng.random_range(0..6) {
        0 => random(rng, 1514),
        1 => {
            let types = [0x0800, 0x0806, 0x86dd, 0x8100, 0x88b5];
            let ethertype = EtherType::from(types[rng.random_range(0..types.len())]);
            let link = ethernet::Repr { destination: scene.victim_mac, source: mac(ROUTER), ethertype };
            [&link.emit()[..], &random(rng, 100)].concat()
        }
        2 => {
            let mut frame = scene.sniffed.to_vec();
            if !frame.is_empty() {
                let at = rng.random_range(0..frame.len());
                frame[at] ^= rng.random_range(1..=255u8);
            }
            frame
        }
        3 => {
            let len = rng.random_range(0..=scene.sniffed.len().saturating_sub(1));
            scene.sniffed[..len].to_vec()
        }
        4 => {
            // Any protocol, fragments too, in good IP headers.
            let protocol = [1, 6, 17, 17, 58, rng.random()][rng.random_range(0..6)];
            let fragment = if rng.random_range(0..4) == 0 { rng.random() } else { 0 };
            let ends = [*random_source(rng).ip(), *scene.victim.ip()];
            packet(scene.victim_mac, ends, protocol, (rng.random(), fragment), &random(rng, 1480))
        }
        _ => {
            // Random options and fields in segments with good checksums, from random sources.
            let (from, mut to) = (random_source(rng), scene.victim);
            if rng.random() {
                to.set_port(rng.random());
            }
            let mut bytes = random(rng, 200);
            bytes.resize(bytes.len().max(20), 0);
            bytes[..2].copy_from_slice(&from.port().to_be_bytes());
            bytes[2..4].copy_from_slice(&to.port().to_be_bytes());
            bytes[16..18].fill(0);
            let sum = pseudo_header(from.ip().octets(), to.ip().octets(), Protocol::Tcp, bytes.len() as u16);
            let sum = sum.over(&bytes).finish();
            bytes[16..18].copy_from_slice(&sum.to_be_bytes());
            packet(scene.victim_mac, [*from.ip(), *to.ip()], 6, (0, 0), &bytes)
        }
    }
}

#[test]
fn noise_at_line_rate_is_counted_and_harms_nobody() {
    let (first, span) = seed_and_span(3, Duration::from_millis(15));
    for seed in first..first + 2 {
        let mut world = World::new(seed);
        for host in [CLIENT, SERVER] {
            world.attack(host, noise, Duration::ZERO, span);
        }
        let share = world.share(span);
        world.run(Duration::from_millis(1));
        for host in [CLIENT, SERVER] {
            let taken = world.check(host);
            let least = span.as_nanos() as u64 * LINE / 8 / 1_000_000_000 / 1538;
            assert!(taken > least, "seed {seed}: only {taken} frames");
            let counters = world.hosts[host].stack.counters();
            for (name, count) in counters.named().filter(|(name, _)| {
                [
                    "rx_ethernet_truncated",
                    "rx_ipv4_checksum",
                    "rx_tcp_checksum",
                    "rx_fragments",
                    "rx_udp_checksum",
                ]
                .contains(name)
            }) {
                assert!(count > 0, "seed {seed}: {name} was not reached");
            }
            assert!(world.hosts[host].stack.tcp().counters().malformed > 0, "seed {seed}");
        }
        println!("{share:.3} of the load, {} bytes more", world.grown());
        assert!(share >= 0.8, "seed {seed}: {share} of the load");
        assert!(world.grown() < 2 * MIB, "seed {seed}: {} bytes more", world.grown());
        let share = world.share(Duration::from_millis(20));
        assert!(share >= 0.99, "seed {seed}: {share} of the load afterwards");
    }
}

/// Beginnings and middles of ever new datagrams, never an end.
fn scattered_fragment(rng: &mut SmallRng, scene: &Scene<'_>) -> Vec<u8> {
    let offset = if rng.random() { 0 } else { rng.random_range(1..0x1f00) };
    let payload = vec![rng.random(); rng.random_range(1..=185) * 8];
    let source = if rng.random() { *random_source(rng).ip() } else { *scene.peer.ip() };
    let protocol = if rng.random() { 6 } else { 17 };
    packet(
        scene.victim_mac,
        [source, *scene.victim.ip()],
        protocol,
        (rng.random(), 0x2000 | offset),
        &payload,
    )
}

/// All but the end of a few large datagrams, in any order.
fn large_fragment(rng: &mut SmallRng, scene: &Scene<'_>) -> Vec<u8> {
    let ends = [*scene.peer.ip(), *scene.victim.ip()];
    let place = (rng.random_range(0..60), 0x2000 | (rng.random_range(0..62) * 128));
    packet(scene.victim_mac, ends, 6, place, &[0x5a; 1024])
}

#[test]
fn fragments_that_never_become_whole_stay_within_their_budget() {
    let (seed, span) = seed_and_span(5, Duration::from_millis(30));
    // The default limit of `reassembly::Config`, and a little for other memory that changes.
    let budget = MIB + MIB / 4;
    for (make, least) in [(scattered_fragment as Make, 0), (large_fragment, MIB * 3 / 4)] {
        let mut world = World::new(seed);
        world.attack(SERVER, make, Duration::from_micros(4), span);
        let share = world.share(span);
        world.run(Duration::from_millis(1));
        let taken = world.check(SERVER);
        let counters = world.hosts[SERVER].stack.counters();
        let grown = world.grown();
        println!("{share:.3} of the load, {grown} bytes more, {taken} fragments");
        assert!(share >= 0.95, "seed {seed}: {share} of the load");
        let dropped = counters.rx_fragment_overlap + counters.rx_fragment_malformed;
        assert_eq!(counters.rx_fragments + dropped, taken, "seed {seed}: {counters:?}");
        assert_eq!(counters.rx_reassembled, 0, "seed {seed}");
        assert!(counters.rx_fragment_evicted > 50, "seed {seed}: {counters:?}");
        assert!((least..budget).contains(&grown), "seed {seed}: {grown} bytes more");
    }
}

/// A peer by hand: the numbers that it expects next and sends next.
#[derive(Clone, Copy)]
struct Peer {
    address: SocketAddrV4,
    window: u16,
    seq: SeqNumber,
    ack: SeqNumber,
}

/// An endpoint that listens, and time.
struct Lone {
    now: Instant,
    endpoint: Endpoint,
    listener: ListenerId,
}

impl Lone {
    fn new(change: impl FnOnce(&mut tcp::Config)) -> Self {
        let mut config = tcp::Config::new([7; 32]);
        change(&mut config);
        let mut endpoint = Endpoint::new(config);
        let listener = endpoint.listen(server().into(), 1024, None).unwrap();
        Self { now: Instant::ZERO + Duration::from_secs(1), endpoint, listener }
    }

    fn send(&mut self, peer: &Peer, flags: Flags, seq: SeqNumber, payload: &[u8]) {
        let header = Header {
            source_port: peer.address.port(),
            destination_port: server().port(),
            seq,
            ack: peer.ack,
            flags,
            window: peer.window,
            ..Header::default()
        };
        let meta = SegmentMeta {
            source: (*peer.address.ip()).into(),
            destination: (*server().ip()).into(),
            congestion_experienced: false,
        };
        self.endpoint.on_segment(self.now, &meta, header.emit().as_bytes(), Payload::new(payload));
    }

    fn take(&mut self) -> Vec<Segment> {
        let now = self.now;
        let instant = LinkConfig { bits_per_second: 0, delay: Duration::ZERO, ..LinkConfig::default() };
        let mut link = Link::new(LinkConfig { queue_frames: usize::MAX, ..instant }, 0);
        let path = Path { mtu: MTU, max_payload: 1460, max_extents: 4, max_segments: u32::MAX };
        self.endpoint.transmit(now, &mut Outlet { now, link: &mut link, path });
        self.endpoint.on_frames_released();
        core::iter::from_fn(|| link.receive(now)).collect()
    }

    /// A connection of peer `number`, which announces `window`.
    fn open(&mut self, number: u16, window: u16) -> (Peer, ConnectionId) {
        let address = SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 1), 1000 + number);
        let mut peer = Peer { address, window, seq: SeqNumber(u32::MAX - 500), ack: SeqNumber(0) };
        self.send(&peer, Flags::SYN, peer.seq, &[]);
        let answer = self.take().pop().unwrap().parsed();
        assert!(answer.flags.contains(Flags::SYN.with(Flags::ACK)));
        (peer.seq, peer.ack) = (peer.seq + 1, answer.seq + 1);
        self.send(&peer, Flags::ACK, peer.seq, &[]);
        let (id, _) = self.endpoint.accept(self.listener).unwrap();
        (peer, id)
    }
}

const PEERS: u16 = 200;

#[test]
fn peers_that_keep_their_window_shut_hold_no_more_than_the_limit() {
    const LIMIT: usize = 8 << 20;
    let mut lone = Lone::new(|config| config.max_send_memory = LIMIT);
    let mut peers: Vec<_> = (0..PEERS).map(|number| lone.open(number, number % 2)).collect();
    let before = held();
    // One after the other, so that no one has it all.
    let mut written = 0;
    loop {
        let round = written;
        for (_, id) in &peers {
            match lone.endpoint.write(lone.now, *id, stream(0, 8 << 10)) {
                Ok(count) => written += count,
                Err(Error::WouldBlock) => {}
                Err(why) => panic!("{why}"),
            }
        }
        if written == round {
            break;
        }
    }
    assert!((LIMIT / 2..=LIMIT).contains(&written), "{written} bytes were taken");
    let (_, waiting) = lone.open(PEERS, 60_000);
    assert_eq!(lone.endpoint.write(lone.now, waiting, b"all memory is taken"), Err(Error::WouldBlock));
    let (mut most, mut probes, mut bytes) = (held(), 0, 0);
    let end = lone.now + Duration::from_secs(600);
    while lone.now < end {
        for segment in lone.take() {
            let (header, payload) = (segment.parsed(), segment.payload);
            let index = usize::from(segment.destination.port() - 1000);
            let peer = &mut peers[index].0;
            probes += usize::from(peer.window == 0);
            assert!(payload.len() <= 1, "{} bytes into a window of {}", payload.len(), peer.window);
            if header.seq == peer.ack && payload.len() <= usize::from(peer.window) {
                peer.ack += payload.len() as u32;
                bytes += payload.len();
            }
            let peer = *peer;
            lone.send(&peer, Flags::ACK, peer.seq, &[]);
        }
        most = most.max(held());
        lone.now = lone.endpoint.next_deadline().unwrap_or(end).max(lone.now + Duration::from_micros(10));
        lone.endpoint.on_timeout(lone.now);
        while lone.endpoint.next_event().is_some() {}
    }
    let grown = most - before;
    println!("{written} bytes written, {grown} more held, {probes} probes, {bytes} bytes taken");
    assert!(grown <= LIMIT as isize + PEERS as isize * 4096, "{grown} bytes more");
    assert!(bytes > 0, "windows of one byte are used");
    //= RFC 1122 section 4.2.2.17: the time between probes grows exponentially.
    let shut = usize::from(PEERS) / 2;
    assert!((5 * shut..=20 * shut).contains(&probes), "{probes} probes of {shut} windows in ten minutes");
    //= RFC 1122 section 4.2.2.17: a connection stays open as long as its window probes are answered.
    for (peer, id) in &peers {
        assert_eq!(lone.endpoint.state(*id), Some(StateName::Established), "{}", peer.address);
    }
    // A connection that holds memory too long can be aborted, and its memory serves those that waited.
    for (_, id) in &peers {
        lone.endpoint.abort(lone.now, *id);
    }
    lone.take();
    lone.take();
    let written = lone.endpoint.write(lone.now, waiting, stream(0, 60_000));
    assert_eq!(written, Ok(60_000));
    let sent: usize = lone.take().iter().map(|segment| segment.payload.len()).sum();
    assert!(sent >= 10 * 536, "{sent} bytes leave at once");
}

#[test]
fn peers_that_leave_holes_hold_no_more_than_the_limit() {
    const LIMIT: usize = 4 << 20;
    let mut lone = Lone::new(|config| config.max_receive_memory = LIMIT);
    let peers: Vec<_> = (0..PEERS).map(|number| lone.open(number, 60_000)).collect();
    let (mut honest, honest_id) = lone.open(PEERS, 60_000);
    let (before, mut most) = (held(), 0);
    // Every second byte.
    for round in 1..=600u32 {
        for (peer, _) in &peers {
            let at = 2 * round;
            lone.send(peer, Flags::ACK, peer.seq + at, stream(u64::from(at), 1));
        }
        lone.take();
        most = most.max(held());
    }
    let grown = most - before;
    println!("{grown} bytes held");
    // Each hole's record is less than 64 bytes, of at most 256 a connection, in a vector of up to twice that.
    assert!(grown <= LIMIT as isize + PEERS as isize * 256 * 128, "{grown} bytes more");
    assert!(grown >= LIMIT as isize / 2, "{grown} bytes: the limit was not reached");

    // Others still get their bytes through.
    let (mut read, mut sent) = (0, 0);
    while read < 200_000 {
        let bytes = stream(sent, 1000);
        lone.send(&honest, Flags::ACK, honest.seq, bytes);
        sent += bytes.len() as u64;
        if let Ok(Some(chunk)) = lone.endpoint.read_chunk(lone.now, honest_id) {
            check(0, read, &chunk);
            read += chunk.len() as u64;
        }
        assert_eq!(read, sent, "all was read");
        honest.seq += bytes.len() as u32;
        lone.now += Duration::from_millis(1);
        lone.take();
    }
    // And a peer that fills its holes, too.
    let (peer, id) = peers[0];
    lone.send(&peer, Flags::ACK, peer.seq, stream(0, 1300));
    let mut read = 0;
    while let Ok(Some(chunk)) = lone.endpoint.read_chunk(lone.now, id) {
        check(0, read, &chunk);
        read += chunk.len() as u64;
    }
    assert_eq!(read, 1300);
    for (_, id) in &peers {
        lone.endpoint.abort(lone.now, *id);
    }
    lone.take();
    lone.take();
    let left = held() - before;
    assert!(left < 4 * MIB, "{left} bytes are left");
}
