//! Memory of idle connections and sessions, by a counting allocator.

#[path = "support/held.rs"]
mod held;

use core::net::SocketAddr;
use core::time::Duration;

use held::held;

use shouter_netstack::region::Extent;
use shouter_netstack::rud;
use shouter_netstack::sim::tcp::Outlet;
use shouter_netstack::sim::{Link, LinkConfig};
use shouter_netstack::tcp::{Config, ConnectionId, Endpoint, Path, StateName, TcpEvent};
use shouter_netstack::time::Instant;

fn path() -> Path {
    Path { mtu: 1500, max_payload: 1460, max_extents: 4, max_segments: u32::MAX }
}

fn exchange(now: Instant, from: &mut Endpoint, to: &mut Endpoint) -> usize {
    let instant = LinkConfig {
        bits_per_second: 0,
        delay: Duration::ZERO,
        queue_frames: usize::MAX,
        ..LinkConfig::default()
    };
    let mut link = Link::new(instant, 0);
    from.transmit(now, &mut Outlet { now, link: &mut link, path: path() });
    from.on_frames_released();
    while let Some(segment) = link.receive(now) {
        segment.deliver(now, to);
    }
    link.counters().sent as usize
}

/// Lets both talk until they are silent, from deadline to deadline.
fn settle(now: &mut Instant, client: &mut Endpoint, server: &mut Endpoint) {
    loop {
        client.on_timeout(*now);
        server.on_timeout(*now);
        if exchange(*now, client, server) + exchange(*now, server, client) > 0 {
            continue;
        }
        match [client.next_deadline(), server.next_deadline()].into_iter().flatten().min() {
            Some(deadline) => *now = deadline.max(Instant::from_nanos(now.as_nanos() + 1000)),
            None => return,
        }
    }
}

#[test]
fn a_hundred_thousand_idle_connections_cost_a_kibibyte_each() {
    const COUNT: usize = 100_000;
    let mut now = Instant::from_nanos(1_000_000_000);
    let mut client = Endpoint::new(Config::new([1; 32]));
    let mut server = Endpoint::new(Config::new([2; 32]));
    let listener = server.listen("10.0.0.2:80".parse().unwrap(), 1 << 16, None).unwrap();
    let mut client_held = 0;
    let before = held();
    let (mut ids, mut accepted): (Vec<ConnectionId>, Vec<ConnectionId>) = (Vec::new(), Vec::new());
    for batch in 0..COUNT / 500 {
        // Two addresses of the client: ports are not the limit.
        let local: SocketAddr = format!("10.0.1.{}:0", batch % 4).parse().unwrap();
        let remote = "10.0.0.2:80".parse().unwrap();
        let mark = held();
        for _ in 0..500 {
            ids.push(client.connect(now, local, remote, None).unwrap());
        }
        client_held += held() - mark;
        settle(&mut now, &mut client, &mut server);
        while let Some((id, _)) = server.accept(listener) {
            accepted.push(id);
        }
        while client.next_event().is_some() {}
        while server.next_event().is_some() {}
    }
    assert_eq!((ids.len(), accepted.len()), (COUNT, COUNT));
    assert!(ids.iter().all(|id| client.state(*id) == Some(StateName::Established)));
    assert!(accepted.iter().all(|id| server.state(*id) == Some(StateName::Established)));
    assert!(client_held > 0);
    let names = ((ids.capacity() + accepted.capacity()) * size_of::<ConnectionId>()) as isize;
    let each = (held() - before - names) / (2 * COUNT as isize);
    println!("{each} bytes an idle connection");
    assert!(each <= 1024, "{each} bytes an idle connection");

    // A few words on each and the same again: buffers are given back when they are empty.
    let mut buffer = [0; 100];
    for (left, right) in ids.iter().zip(&accepted).take(10_000) {
        client.write(now, *left, &buffer).unwrap();
        settle(&mut now, &mut client, &mut server);
        let got = server.read(now, *right, &mut buffer).unwrap();
        assert_eq!(got, 100);
    }
    settle(&mut now, &mut client, &mut server);
    while let Some(event) = server.next_event() {
        assert!(matches!(event, TcpEvent::Readable(_)));
    }
    let again = (held() - before - names) / (2 * COUNT as isize);
    println!("{again} bytes after some were used");
    assert!(again <= 1024, "{again} bytes an idle connection after use");

    // All gone: their capacity stays, which the next ones use.
    for id in ids.drain(..) {
        client.abort(now, id);
        if client.wants_transmit() {
            exchange(now, &mut client, &mut server);
        }
    }
    settle(&mut now, &mut client, &mut server);
    for id in accepted.drain(..) {
        server.close(now, id);
    }
    assert_eq!((client.connections(), server.connections()), (0, 0));
}

/// An open session, whether or not it has messages; one that is only enlisted costs less.
#[test]
fn a_thousand_rud_sessions_without_messages_cost_sixteen_kibibytes_each() {
    const COUNT: u16 = 1023;
    let now = Instant::from_nanos(1_000_000_000);
    let before = held();
    let mut endpoint =
        rud::Endpoint::new(rud::Config { max_sessions: COUNT.into(), ..rud::Config::default() });
    let session = |peer: u16| rud::SessionParams {
        local_tag: u64::from(peer) + 1,
        remote_tag: 1 << 32 | (u64::from(peer) + 1),
        remote_ip: [10, 1, (peer >> 8) as u8, peer as u8].into(),
        local_ip: [10, 0, 0, 1].into(),
        remote_port: 4791,
        local_ports: (50_000..50_064).collect(),
        max_datagram: 1472,
        seal: None,
    };
    let sessions: Vec<_> = (0..COUNT).map(|peer| endpoint.open(now, session(peer)).unwrap()).collect();
    let idle = (held() - before) / COUNT as isize;
    println!("{idle} bytes an idle session");
    assert!(idle <= 16 << 10, "{idle} bytes a session");
    // The first message makes room for a window, and it is room for messages of one session.
    endpoint.set_bundles(sessions[3], false);
    let room = endpoint.capacity(sessions[3]);
    assert_eq!(room, rud::Config::default().window_packets as usize);
    for _ in 0..room {
        endpoint.send(sessions[3], b"header", None, rud::MessageToken(1)).unwrap();
    }
    assert_eq!(endpoint.capacity(sessions[3]), 0);
    assert!(endpoint.send(sessions[3], b"header", None, rud::MessageToken(1)).is_err());
    let used = held() - before - idle * COUNT as isize;
    println!("{used} bytes for a window of messages");
    assert!((64 << 10..1 << 20).contains(&used), "{used} bytes for a window of messages");
}

/// Keeps what is emitted.
#[derive(Default)]
struct Wire(Vec<(rud::DatagramMeta, Vec<u8>)>);

impl rud::Emit for Wire {
    fn room(&self) -> usize {
        4096 - self.0.len()
    }
    fn emit(&mut self, to: &rud::Destination, header: &[u8], payload: Option<Extent>) -> bool {
        let meta = rud::DatagramMeta {
            src_ip: to.local_ip,
            dst_ip: to.remote_ip,
            src_port: to.src_port,
            dst_port: to.dst_port,
            congestion_experienced: false,
        };
        self.0.push((meta, [header, payload.as_ref().map_or(&[], Extent::as_bytes)].concat()));
        true
    }
}

/// Takes everything.
struct Taker;

impl rud::Sink for Taker {
    fn deliver(&mut self, _: rud::SessionId, _: &[u8], _: &[u8]) -> rud::Disposition {
        rud::Disposition::Consumed
    }
    fn released(&mut self, _: rud::SessionId, _: rud::MessageToken) {}
    fn failed(&mut self, _: rud::SessionId, why: rud::Failure) {
        panic!("{why}");
    }
}

/// Two endpoints with a session.
fn rud_pair() -> [(rud::Endpoint, rud::SessionId); 2] {
    [(1, 2), (2, 1)].map(|(own, other): (u8, u8)| {
        let mut endpoint = rud::Endpoint::new(rud::Config::default());
        let params = rud::SessionParams {
            local_tag: u64::from(own) << 32 | 9,
            remote_tag: u64::from(other) << 32 | 9,
            remote_ip: [10, 0, 0, other].into(),
            local_ip: [10, 0, 0, own].into(),
            remote_port: 50_000,
            local_ports: (50_000..50_064).collect(),
            max_datagram: 1472,
            seal: None,
        };
        let id = endpoint.open(Instant::from_nanos(0), params).unwrap();
        (endpoint, id)
    })
}

#[test]
fn a_rud_session_gives_its_window_back_when_it_rests() {
    let [(mut a, id), (mut b, _)] = rud_pair();
    let mut now = 1_000_000_000;
    let mut step = |a: &mut rud::Endpoint, b: &mut rud::Endpoint, nanos: u64| {
        now += nanos;
        let now = Instant::from_nanos(now);
        let mut ends = [a, b];
        for _ in 0..2 {
            let [from, to] = &mut ends;
            let mut wire = Wire::default();
            from.on_timeout(now, &mut Taker);
            from.transmit(now, &mut wire);
            for (meta, bytes) in &wire.0 {
                to.on_datagram(now, meta, bytes, &mut Taker);
            }
            ends.reverse();
        }
    };
    step(&mut a, &mut b, 0);
    let before = held();
    for round in 0..3 {
        for _ in 0..100 {
            a.send(id, b"header", None, rud::MessageToken(1)).unwrap();
        }
        assert!(held() - before > 64 << 10, "{} bytes for a window of messages", held() - before);
        for _ in 0..1000 {
            step(&mut a, &mut b, 10_000);
        }
        assert!(a.is_idle(id), "all are acknowledged");
        for _ in 0..4 {
            step(&mut a, &mut b, 1_000_000_000);
        }
        let more = held() - before;
        assert!(more < 4 << 10, "{more} bytes more than before it was used, in round {round}");
    }
}

#[test]
fn datagrams_of_strangers_leave_nothing_behind() {
    let [(mut a, _), (mut b, _)] = rud_pair();
    let mut wire = Wire::default();
    a.transmit(Instant::from_nanos(1), &mut wire);
    let (meta, mut bytes) = wire.0.remove(0);
    bytes[8] ^= 1;
    let before = held();
    for host in 0..100_000_u32 {
        let meta = rud::DatagramMeta { src_ip: (0x0a01_0000 + host).to_be_bytes().into(), ..meta };
        b.on_datagram(Instant::from_nanos(2), &meta, &bytes, &mut Taker);
    }
    assert_eq!(b.endpoint_counters().unknown_session, 100_000);
    assert_eq!(held(), before);
}
