//! TCP between two stacks: over memory, and over the simulated network.

use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use core::time::Duration;

use crate::device::{Device, Loopback};
use crate::region::Region;
use crate::rss::{Rss, SYMMETRIC_KEY};
use crate::sim::{LinkConfig, Node, Sim, SimDevice};
use crate::stack::{Ipv6Config, PortConfig, Stack, StackConfig};
use crate::tcp::{
    ConnectError, ConnectionId, Error, ListenError, ListenerId, Options, ReleaseToken, StateName, TcpEvent,
};
use crate::time::Instant;

const SECOND: Duration = Duration::from_secs(1);

fn ipv4(host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, host)
}

fn ipv6(host: u16) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, host)
}

fn stack<D: Device>(host: u8, device: D, mtu: u16) -> Stack<D> {
    let mut stack = Stack::new(StackConfig::new(host.into()));
    let mut config = PortConfig::new(ipv4(host), 24, mtu);
    config.ipv6 = Some(Ipv6Config::new(ipv6(host.into()), 64));
    stack.add_port(device, config).unwrap();
    stack
}

/// A server: it echoes the bytes that it reads, or only counts them, and finishes when the peer does.
struct Server<D> {
    stack: Stack<D>,
    listener: ListenerId,
    echo: bool,
    connections: Vec<Served>,
}

struct Served {
    id: ConnectionId,
    received: u64,
    digest: u64,
    /// Read and not yet sent back.
    pending: Vec<u8>,
    ended: bool,
}

/// A running checksum that depends on the order of bytes.
fn digest(digest: u64, bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(digest, |digest, byte| digest.wrapping_mul(0x100_0000_01b3).wrapping_add(u64::from(*byte)))
}

impl<D: Device> Server<D> {
    fn new(mut stack: Stack<D>, echo: bool) -> Self {
        let listener = stack.tcp_mut().listen("[::]:80".parse().unwrap(), 64, None).unwrap();
        Self { stack, listener, echo, connections: Vec::new() }
    }

    fn poll(&mut self, now: Instant) {
        self.stack.poll(now);
        let tcp = self.stack.tcp_mut();
        while tcp.next_event().is_some() {}
        while let Some((id, _)) = tcp.accept(self.listener) {
            self.connections.push(Served { id, received: 0, digest: 0, pending: Vec::new(), ended: false });
        }
        for served in self.connections.iter_mut().filter(|served| !served.ended) {
            loop {
                match tcp.read_chunk(now, served.id) {
                    Ok(Some(chunk)) => {
                        served.received += chunk.len() as u64;
                        served.digest = digest(served.digest, &chunk);
                        if self.echo {
                            served.pending.extend_from_slice(&chunk);
                        }
                    }
                    Ok(None) if served.pending.is_empty() => {
                        tcp.close(now, served.id);
                        served.ended = true;
                        break;
                    }
                    Ok(None) | Err(Error::WouldBlock) => break,
                    Err(error) => panic!("server: {error}"),
                }
            }
            if let Ok(count) = tcp.write(now, served.id, &served.pending) {
                served.pending.drain(..count);
            }
        }
        self.stack.transmit(now);
    }
}

/// A host that opens connections.
struct Client<D> {
    stack: Stack<D>,
    events: Vec<TcpEvent>,
}

impl<D: Device> Client<D> {
    fn poll(&mut self, now: Instant) {
        self.stack.poll(now);
        while let Some(event) = self.stack.tcp_mut().next_event() {
            self.events.push(event);
        }
    }
}

fn pair(mtu: u16) -> (Client<Loopback>, Server<Loopback>) {
    let (left, right) = Loopback::pair(mtu, 256);
    (Client { stack: stack(1, left, mtu), events: Vec::new() }, Server::new(stack(2, right, mtu), true))
}

/// Runs both, a microsecond at a time and from deadline to deadline when nothing moves.
fn run<D: Device>(
    now: &mut Instant,
    client: &mut Client<D>,
    server: &mut Server<D>,
    mut done: impl FnMut(Instant, &mut Client<D>, &mut Server<D>) -> bool,
) -> bool {
    let limit = *now + 300 * SECOND;
    let mut idle = 0;
    while *now < limit {
        let before = (client.stack.counters(), server.stack.counters());
        client.poll(*now);
        server.poll(*now);
        if done(*now, client, server) {
            return true;
        }
        idle = if before == (client.stack.counters(), server.stack.counters()) { idle + 1 } else { 0 };
        let soon = *now + Duration::from_micros(1);
        let deadline =
            [client.stack.next_deadline(), server.stack.next_deadline()].into_iter().flatten().min();
        *now = if idle > 2 { deadline.unwrap_or(limit).max(soon) } else { soon };
    }
    false
}

#[test]
fn echo_over_both_families_and_both_ends_close() {
    for (remote, mtu) in [
        (SocketAddr::from((ipv4(2), 80)), 1500),
        (SocketAddr::from((ipv6(2), 80)), 1500),
        (SocketAddr::from((ipv4(2), 80)), 9000),
        (SocketAddr::from((ipv6(2), 80)), 1280),
    ] {
        let (mut client, mut server) = pair(mtu);
        let mut now = Instant::ZERO + SECOND;
        let id = client.stack.tcp_connect(now, None, remote, None).unwrap();
        let bytes: Vec<u8> = (0..200_000u32).map(|n| (n / 3) as u8).collect();
        let (mut sent, mut got) = (0, Vec::new());
        assert!(
            run(&mut now, &mut client, &mut server, |now, client, _| {
                let tcp = client.stack.tcp_mut();
                if tcp.state(id) != Some(StateName::Established) {
                    return false;
                }
                sent += tcp.write(now, id, &bytes[sent..]).unwrap_or(0);
                while let Ok(Some(chunk)) = tcp.read_chunk(now, id) {
                    got.extend_from_slice(&chunk);
                }
                got.len() == bytes.len()
            }),
            "{remote} {mtu}: {} bytes, {:?}",
            got.len(),
            client.stack.tcp().info(id)
        );
        assert!(got == bytes, "{remote} {mtu}");
        let info = client.stack.tcp().info(id).unwrap();
        let headers = if remote.is_ipv4() { 20 } else { 40 } + 20 + 12;
        assert_eq!(usize::from(info.mss), usize::from(mtu) - headers, "{remote}");
        assert_eq!((info.retransmitted, info.timeouts), (0, 0), "{remote} {mtu}: {info:?}");
        client.stack.tcp_mut().shutdown(now, id).unwrap();
        assert!(run(&mut now, &mut client, &mut server, |now, client, server| {
            let ended = matches!(client.stack.tcp_mut().read_chunk(now, id), Ok(None));
            ended && server.connections[0].ended && server.stack.tcp().connections() == 0
        }));
        client.stack.tcp_mut().close(now, id);
        assert_eq!((client.stack.tcp().connections(), client.stack.tcp().in_time_wait()), (0, 1));
        assert_eq!(client.stack.counters().rx_tcp_checksum + server.stack.counters().rx_tcp_checksum, 0);
        assert!(!client.stack.holds_extents());
    }
}

#[test]
fn a_megabyte_leaves_the_callers_memory_in_place() {
    let (mut client, mut server) = pair(1500);
    server.echo = false;
    let mut now = Instant::ZERO + SECOND;
    let id = client.stack.tcp_connect(now, None, SocketAddr::from((ipv4(2), 80)), None).unwrap();
    let bytes: &'static [u8] = (0..1 << 20u32).map(|n: u32| (n % 253) as u8).collect::<Vec<_>>().leak();
    let region = Region::from_static(bytes);
    let extent = region.extent(0, bytes.len() as u32).unwrap();
    client.stack.tcp_mut().write_extent(now, id, extent, ReleaseToken(9)).unwrap();
    assert!(run(&mut now, &mut client, &mut server, |_, client, _| {
        client.events.contains(&TcpEvent::Released(id, ReleaseToken(9)))
    }));
    assert_eq!(server.connections[0].received, bytes.len() as u64);
    assert_eq!(server.connections[0].digest, digest(0, bytes));
}

#[test]
fn what_cannot_be_reached_is_said() {
    let (mut client, _) = pair(1500);
    let now = Instant::ZERO + SECOND;
    let far = "192.0.2.1:80".parse().unwrap();
    let mut connect = |local: Option<&str>, remote| {
        client.stack.tcp_connect(now, local.map(|text| text.parse().unwrap()), remote, None)
    };
    assert_eq!(connect(None, far), Err(ConnectError::NoRoute { remote: far }));
    let near = SocketAddr::from((ipv4(2), 80));
    let local = "10.0.0.9:0".parse().unwrap();
    assert_eq!(connect(Some("10.0.0.9:0"), near), Err(ConnectError::NotOurs { local }));
    let group = "224.0.0.1:80".parse().unwrap();
    assert_eq!(connect(None, group), Err(ConnectError::BadRemote { remote: group }));
    for all in ["10.0.0.255:80", "10.0.0.0:80"] {
        let remote = all.parse().unwrap();
        assert_eq!(connect(None, remote), Err(ConnectError::BadRemote { remote }), "all of our own network");
    }
    for own in ["10.0.0.1:80", "[2001:db8::1]:80"] {
        let remote = own.parse().unwrap();
        assert_eq!(connect(None, remote), Err(ConnectError::Own { remote }));
    }
    let id = connect(Some("[::]:5000"), near).unwrap();
    assert_eq!(client.stack.tcp().info(id).unwrap().local, SocketAddr::from((ipv4(1), 5000)));
}

#[test]
fn a_listener_needs_an_address_of_the_stack() {
    let (device, _wire) = Loopback::pair(1500, 8);
    let mut stack = stack(1, device, 1500);
    let listen = |stack: &mut Stack<_>, text: &str| stack.tcp_mut().listen(text.parse().unwrap(), 1, None);
    for strange in
        ["9.9.9.9:80", "10.0.0.2:80", "10.0.0.255:80", "224.0.0.1:80", "255.255.255.255:80", "[ff02::1]:80"]
    {
        let local = strange.parse().unwrap();
        let refused = listen(&mut stack, strange);
        assert_eq!(refused, Err(ListenError::NotOurs { local }));
        assert!(refused.unwrap_err().to_string().contains(strange));
    }
    for ours in ["10.0.0.1:80", "[2001:db8::1]:80", "0.0.0.0:81", "[::]:82"] {
        assert!(listen(&mut stack, ours).is_ok(), "{ours}");
    }
}

#[test]
fn a_shard_connects_from_ports_whose_answers_come_to_it() {
    let rss = Rss::new(&SYMMETRIC_KEY, 4);
    let remote = SocketAddr::from((ipv4(2), 80));
    for queue in 0..4 {
        let (device, _wire) = Loopback::pair(1500, 16);
        let mut config = StackConfig::new(1);
        config.rss = Some((rss.clone(), queue));
        let mut stack = Stack::new(config);
        stack.add_port(device, PortConfig::new([10, 0, 0, 1].into(), 24, 1500)).unwrap();
        for _ in 0..8 {
            let id = stack.tcp_connect(Instant::ZERO + SECOND, None, remote, None).unwrap();
            let local = stack.tcp().info(id).unwrap().local;
            assert_eq!(rss.queue(remote, local), queue, "{local}");
        }
    }
}

#[test]
fn a_peer_that_is_not_there_is_unreachable_or_silent() {
    let (mut client, mut server) = pair(1500);
    let mut now = Instant::ZERO + SECOND;
    let options = Options { syn_retries: 2, ..Options::internet() };
    let remote = SocketAddr::from((ipv4(77), 80));
    let id = client.stack.tcp_connect(now, None, remote, Some(options)).unwrap();
    assert!(run(&mut now, &mut client, &mut server, |_, client, _| {
        matches!(client.events[..], [TcpEvent::Failed(failed, _)] if failed == id)
    }));
}

/// A host of the simulation.
enum Host {
    Client(Client<SimDevice>),
    Server(Server<SimDevice>),
}

impl Node for Host {
    fn poll(&mut self, now: Instant) -> Option<Instant> {
        match self {
            Self::Client(client) => {
                client.poll(now);
                client.stack.next_deadline()
            }
            Self::Server(server) => {
                server.poll(now);
                server.stack.next_deadline()
            }
        }
    }
}

/// Sends `len` bytes from one host to another over links that lose; returns goodput in bytes per second.
fn stream(seed: u64, len: u64, loss: f64, delay: Duration, offloads: bool, options: &Options) -> u64 {
    let mut sim = Sim::new(seed).with_poll_interval(Duration::from_micros(10));
    let link = LinkConfig {
        bits_per_second: 10_000_000_000,
        delay,
        queue_frames: 1000,
        loss,
        ..LinkConfig::default()
    };
    let attach = |sim: &Sim| {
        let device = sim.network().attach(1500, link);
        if offloads { device.with_offloads() } else { device }
    };
    let client = Client { stack: stack(1, attach(&sim), 1500), events: Vec::new() };
    let server = Server::new(stack(2, attach(&sim), 1500), false);
    let mut hosts = [Host::Client(client), Host::Server(server)];
    let remote = SocketAddr::from((ipv4(2), 80));
    let start = sim.now();
    let Host::Client(client) = &mut hosts[0] else { unreachable!() };
    let id = client.stack.tcp_connect(start, None, remote, Some(options.clone())).unwrap();
    let block: Vec<u8> = (0..1 << 18u32).map(|n: u32| (n % 251) as u8).collect();
    let (mut written, mut expected) = (0, 0);
    let mut now = start;
    loop {
        let Host::Client(client) = &mut hosts[0] else { unreachable!() };
        while written < len {
            let at = (written % block.len() as u64) as usize;
            let most = (len - written).min((block.len() - at) as u64) as usize;
            match client.stack.tcp_mut().write(now, id, &block[at..at + most]) {
                Ok(count) => {
                    expected = digest(expected, &block[at..at + count]);
                    written += count as u64;
                }
                Err(_) => break,
            }
        }
        if written == len {
            let _ = client.stack.tcp_mut().shutdown(now, id);
        }
        client.stack.transmit(now);
        let limit = now + Duration::from_millis(1);
        let ended = sim.run_until(&mut hosts, limit, |hosts| {
            matches!(&hosts[1], Host::Server(server) if server.connections.first().is_some_and(|served| served.ended))
        });
        now = sim.now();
        if ended {
            break;
        }
        let Host::Client(client) = &hosts[0] else { unreachable!() };
        assert!(
            now < start + 1000 * SECOND
                && !client.events.iter().any(|event| matches!(event, TcpEvent::Failed(..))),
            "seed {seed}: {written} of {len} bytes written, {:?} {:?}",
            client.events,
            client.stack.tcp().info(id)
        );
    }
    let Host::Server(server) = &hosts[1] else { unreachable!() };
    let served = &server.connections[0];
    assert_eq!((served.received, served.digest), (len, expected), "seed {seed}");
    (len as f64 / (sim.now() - start).as_secs_f64()) as u64
}

#[test]
fn streams_survive_loss() {
    // Without loss, a fifth of the line at least, ramp included. With loss (on both links of each way), that it does not
    // crawl: with short time-outs even a fifth of all packets may be lost.
    let (far, near) = (Options::internet(), Options::group());
    for (seed, loss, offloads, options, least) in [
        (1, 0.0, false, &far, 250_000_000),
        (2, 0.01, false, &far, 1_000_000),
        (3, 0.01, true, &far, 1_000_000),
        (4, 0.1, false, &near, 100_000),
    ] {
        let goodput = stream(seed, 5_000_000, loss, Duration::from_micros(50), offloads, options);
        assert!(goodput > least, "seed {seed}, loss {loss}: {goodput} bytes/s");
    }
}

#[test]
fn a_hundred_megabytes_survive_one_per_cent() {
    let goodput = stream(5, 100_000_000, 0.01, Duration::from_micros(500), true, &Options::group());
    assert!(goodput > 5_000_000, "{goodput} bytes/s");
}
