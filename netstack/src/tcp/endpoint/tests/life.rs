//! The life of connections: opening, data, all ways to end.

use core::net::SocketAddr;
use core::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::pair::{Pair, address};
use crate::region::Region;
use crate::tcp::{ConnectError, Error, Failure, ListenError, Options, ReleaseToken, StateName, TcpEvent};
use crate::wire::tcp::Flags;

const SECOND: Duration = Duration::from_secs(1);

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    SmallRng::seed_from_u64(seed).fill(&mut bytes[..]);
    bytes
}

#[test]
fn who_was_refused_memory_hears_when_there_is_some() {
    // One block for everybody.
    let mut pair = Pair::with(|config| config.max_send_memory = 1);
    let (a, _, listener) = pair.open(None);
    let (c, _) = pair.connect(listener, None);
    let all = noise(1 << 20, 3);
    let taken = pair.a.write(pair.now, a, &all).unwrap();
    assert!(taken > 0 && taken < all.len());
    assert_eq!(pair.a.write(pair.now, c, b"me too"), Err(Error::WouldBlock));
    pair.events_a.clear();
    pair.pass(SECOND);
    // The other end reads, so that the first one's bytes go.
    assert!(pair.events_a.contains(&TcpEvent::Writable(c)), "{:?}", pair.events_a);
    assert_eq!(pair.a.write(pair.now, c, b"me too"), Ok(6));
}

#[test]
fn records_that_go_before_their_time_take_their_timers_along() {
    let mut pair = Pair::with(|config| config.max_time_wait = 4);
    let (mut a, mut b, listener) = pair.open(None);
    for _ in 0..50 {
        pair.a.close(pair.now, a);
        pair.pass(Duration::from_millis(50));
        pair.b.close(pair.now, b);
        pair.pass(Duration::from_millis(50));
        (a, b) = pair.connect(listener, None);
    }
    assert_eq!(pair.a.in_time_wait(), 4);
    assert!(pair.a.timers.len() <= 8, "{} timers", pair.a.timers.len());
}

#[test]
fn a_connection_opens_echoes_and_closes() {
    let mut pair = Pair::new();
    let (a, b, listener) = pair.open(None);
    assert_eq!(pair.events_b, [TcpEvent::Acceptable(listener)]);
    assert_eq!(
        (pair.a.state(a), pair.b.state(b)),
        (Some(StateName::Established), Some(StateName::Established))
    );
    assert_eq!(pair.a.write(pair.now, a, b"hello"), Ok(5));
    pair.pass(SECOND);
    let mut buffer = [0; 16];
    assert_eq!(pair.b.read(pair.now, b, &mut buffer), Ok(5));
    assert_eq!(pair.b.read(pair.now, b, &mut buffer), Err(Error::WouldBlock));
    assert_eq!(pair.b.write(pair.now, b, &buffer[..5]), Ok(5));
    pair.pass(SECOND);
    let chunk = pair.a.read_chunk(pair.now, a).unwrap().expect("data");
    assert_eq!(&*chunk, b"hello");
    let info = pair.a.info(a).unwrap();
    assert_eq!((info.bytes_acked, info.bytes_received, info.unacknowledged), (5, 5, 0));
    assert!(info.timestamps && info.sack && info.window_shifts.is_some(), "{info:?}");
    assert!(info.srtt.is_some_and(|srtt| srtt >= Duration::from_micros(100)), "{info:?}");

    // `a` closes first and waits; `b` reads to the end, and closes too.
    pair.a.close(pair.now, a);
    assert_eq!(pair.a.write(pair.now, a, b"x"), Err(Error::Unknown));
    pair.pass(SECOND);
    assert_eq!(pair.b.read(pair.now, b, &mut buffer), Ok(0));
    assert_eq!(pair.b.state(b), Some(StateName::CloseWait));
    pair.b.close(pair.now, b);
    pair.pass(SECOND);
    assert_eq!((pair.a.connections(), pair.a.in_time_wait()), (0, 1));
    assert_eq!((pair.b.connections(), pair.b.in_time_wait()), (0, 0));
    pair.pass(61 * SECOND);
    assert_eq!(pair.a.in_time_wait(), 0);
    assert_eq!((pair.a.counters().resets_sent, pair.b.counters().resets_sent), (0, 0));
    assert!(pair.a.next_deadline().is_none() && pair.b.next_deadline().is_none());
}

#[test]
fn super_segments_and_extents_arrive() {
    let mut pair = Pair::new();
    pair.path.max_payload = 65_000;
    let (a, b, _) = pair.open(None);
    let bytes: &'static [u8] = noise(3_000_000, 9).leak();
    let region = Region::from_static(bytes);
    for part in 0..3 {
        let extent = region.extent(part * 1_000_000, 1_000_000).unwrap();
        pair.a.write_extent(pair.now, a, extent, ReleaseToken(part as u64)).unwrap();
    }
    let mut got = Vec::new();
    assert!(pair.run(10 * SECOND, |pair| {
        while let Ok(Some(chunk)) = pair.b.read_chunk(pair.now, b) {
            got.extend_from_slice(&chunk);
        }
        got.len() == bytes.len()
    }));
    assert!(got == bytes);
    pair.pass(SECOND);
    let released = (0..3).map(|part| TcpEvent::Released(a, ReleaseToken(part)));
    assert!(released.clone().all(|event| pair.events_a.contains(&event)), "{:?}", pair.events_a);
}

#[test]
fn a_closed_port_refuses() {
    let mut pair = Pair::new();
    let remote = address("10.0.0.2:81");
    let a = pair.a.connect(pair.now, address("10.0.0.1:0"), remote, None).unwrap();
    pair.pass(SECOND);
    assert_eq!(pair.events_a, [TcpEvent::Failed(a, Failure::Refused { remote })]);
    assert_eq!(pair.a.write(pair.now, a, b"x"), Err(Error::Failed(Failure::Refused { remote })));
    pair.a.close(pair.now, a);
    assert_eq!((pair.a.connections(), pair.b.counters().resets_sent), (0, 1));
}

#[test]
fn nobody_there_times_out() {
    let mut pair = Pair::new();
    pair.there.cut = true;
    let options = Options { syn_retries: 3, ..Options::internet() };
    let remote = address("10.0.0.2:80");
    let a = pair.a.connect(pair.now, address("10.0.0.1:0"), remote, Some(options)).unwrap();
    pair.pass(100 * SECOND);
    assert!(
        matches!(pair.events_a[..], [TcpEvent::Failed(id, Failure::TimedOut { .. })] if id == a),
        "{:?}",
        pair.events_a
    );
    assert_eq!(pair.there.counters().sent, 4, "a SYN and three more");
    pair.a.close(pair.now, a);
    assert_eq!(pair.a.connections(), 0);
}

#[test]
fn an_abort_resets_the_peer() {
    let mut pair = Pair::new();
    let (a, b, _) = pair.open(None);
    let remote = pair.b.info(b).unwrap().remote;
    pair.a.abort(pair.now, a);
    assert_eq!(pair.a.connections(), 0);
    pair.pass(SECOND);
    assert!(pair.events_b.contains(&TcpEvent::Failed(b, Failure::Reset { remote })), "{:?}", pair.events_b);
    assert_eq!(pair.b.read(pair.now, b, &mut [0]), Err(Error::Failed(Failure::Reset { remote })));
    pair.b.close(pair.now, b);
    assert_eq!(pair.b.connections(), 0);
}

#[test]
fn closing_with_unread_data_resets() {
    let mut pair = Pair::new();
    let (a, b, _) = pair.open(None);
    pair.a.write(pair.now, a, b"never read").unwrap();
    pair.pass(SECOND);
    pair.b.close(pair.now, b);
    pair.pass(SECOND);
    assert!(pair.events_a.iter().any(|event| matches!(event, TcpEvent::Failed(_, Failure::Reset { .. }))));
    assert_eq!(pair.b.connections(), 0);
}

#[test]
fn a_half_close_lets_the_other_half_go_on() {
    let mut pair = Pair::new();
    let (a, b, _) = pair.open(None);
    pair.a.shutdown(pair.now, a).unwrap();
    assert_eq!(pair.a.write(pair.now, a, b"x"), Err(Error::Shut));
    pair.pass(SECOND);
    assert_eq!((pair.a.state(a), pair.b.state(b)), (Some(StateName::FinWait2), Some(StateName::CloseWait)));
    pair.b.write(pair.now, b, b"an answer").unwrap();
    pair.pass(SECOND);
    let mut buffer = [0; 16];
    assert_eq!(pair.a.read(pair.now, a, &mut buffer), Ok(9));
    pair.b.shutdown(pair.now, b).unwrap();
    pair.pass(SECOND);
    assert_eq!(pair.a.read(pair.now, a, &mut buffer), Ok(0));
    assert_eq!(pair.a.state(a), Some(StateName::TimeWait));
    assert!(pair.events_a.contains(&TcpEvent::Closed(a)) && pair.events_b.contains(&TcpEvent::Closed(b)));
    pair.a.close(pair.now, a);
    pair.b.close(pair.now, b);
    assert_eq!((pair.a.connections(), pair.b.connections()), (0, 0));
}

#[test]
fn both_sides_can_close_and_open_at_once() {
    let mut pair = Pair::new();
    let (a, b, _) = pair.open(None);
    pair.a.close(pair.now, a);
    pair.b.close(pair.now, b);
    pair.pass(SECOND);
    assert_eq!((pair.a.in_time_wait(), pair.b.in_time_wait()), (1, 1));
    assert_eq!((pair.a.connections(), pair.b.connections()), (0, 0));

    // Simultaneous open: no listener, both ports known to both.
    let mut pair = Pair::new();
    let (left, right) = (address("10.0.0.1:1000"), address("10.0.0.2:2000"));
    let a = pair.a.connect(pair.now, left, right, None).unwrap();
    let b = pair.b.connect(pair.now, right, left, None).unwrap();
    pair.pass(SECOND);
    assert!(pair.events_a.contains(&TcpEvent::Connected(a)), "{:?}", pair.events_a);
    assert!(pair.events_b.contains(&TcpEvent::Connected(b)), "{:?}", pair.events_b);
    assert_eq!(pair.transfer(a, b, b"both ways", SECOND), b"both ways");
}

#[test]
fn time_wait_gives_way_to_a_new_connection() {
    let mut pair = Pair::new();
    let listener = pair.b.listen(address("10.0.0.2:80"), 16, None).unwrap();
    let local = address("10.0.0.1:5000");
    let remote = address("10.0.0.2:80");
    // Whichever side closes first: it then waits, and opens or answers anew.
    for first in [0, 1, 0, 1] {
        let a = pair.a.connect(pair.now, local, remote, None).unwrap();
        assert_eq!(pair.a.connect(pair.now, local, remote, None), Err(ConnectError::InUse { local, remote }),);
        let mut accepted = None;
        assert!(pair.run(SECOND, |pair| {
            accepted = accepted.or_else(|| pair.b.accept(listener));
            accepted.is_some()
        }));
        let (b, _) = accepted.unwrap();
        assert_eq!(pair.transfer(a, b, b"data", SECOND), b"data");
        if first == 0 {
            pair.a.close(pair.now, a);
            pair.pass(Duration::from_millis(20));
            pair.b.close(pair.now, b);
        } else {
            pair.b.close(pair.now, b);
            pair.pass(Duration::from_millis(20));
            pair.a.close(pair.now, a);
        }
        pair.pass(Duration::from_millis(20));
        assert_eq!((pair.a.connections(), pair.b.connections()), (0, 0));
    }
    assert_eq!(pair.a.counters().time_wait_reused + pair.b.counters().time_wait_reused, 3);
    assert_eq!(pair.a.counters().resets_sent + pair.b.counters().resets_sent, 0);
}

#[test]
fn listeners_clash_and_take_turns() {
    let mut pair = Pair::new();
    let cases = [
        ("0.0.0.0:80", true),
        ("10.0.0.2:80", false),
        ("[2001:db8::2]:80", true),
        ("[::]:80", false),
        ("[::]:81", true),
        ("10.0.0.2:81", false),
        ("10.0.0.2:82", true),
        ("10.0.0.3:82", true),
        ("10.0.0.2:82", false),
    ];
    for (text, free) in cases {
        let opened = pair.b.listen(address(text), 1, None);
        match opened {
            Ok(_) => assert!(free, "{text}"),
            Err(error) => assert_eq!((error, free), (ListenError::InUse { local: address(text) }, false)),
        }
    }
    for nobody in ["224.0.0.1:83", "255.255.255.255:83", "[ff02::1]:83"] {
        let local = address(nobody);
        assert_eq!(pair.b.listen(local, 1, None), Err(ListenError::NotOurs { local }));
    }
    let any = pair.b.listen(address("10.0.0.2:0"), 1, None).unwrap();
    assert_ne!(pair.b.listener_address(any).unwrap().port(), 0);
    pair.b.close_listener(pair.now, any);
    assert_eq!(pair.b.listener_address(any), None);
    assert_eq!(pair.b.accept(any), None);
    pair.b.close_listener(pair.now, any);
}

#[test]
fn a_wildcard_of_ipv6_takes_both_families() {
    let mut pair = Pair::new();
    let listener = pair.b.listen(address("[::]:80"), 16, None).unwrap();
    for (local, remote) in [
        ("[2001:db8::1]:0", "[2001:db8::2]:80"),
        ("10.0.0.1:0", "10.0.0.2:80"),
        ("10.0.0.1:0", "[::ffff:10.0.0.2]:80"),
    ] {
        let a = pair.a.connect(pair.now, address(local), address(remote), None).unwrap();
        pair.pass(Duration::from_millis(10));
        let (b, from) = pair.b.accept(listener).expect(remote);
        assert_eq!(from.ip(), address(local).ip());
        assert_eq!(pair.transfer(a, b, b"data", SECOND), b"data", "{remote}");
    }
}

#[test]
fn closing_a_listener_resets_who_was_not_accepted() {
    let mut pair = Pair::new();
    let listener = pair.b.listen(address("10.0.0.2:80"), 16, None).unwrap();
    let queued = pair.a.connect(pair.now, address("10.0.0.1:0"), address("10.0.0.2:80"), None).unwrap();
    pair.pass(Duration::from_millis(10));
    assert_eq!(pair.events_a, [TcpEvent::Connected(queued)]);
    // One more stays half open: its last ACK is lost.
    pair.there.rule = Some(Box::new(|_, segment| segment.parsed().flags.contains(Flags::SYN)));
    let half = pair.a.connect(pair.now, address("10.0.0.1:0"), address("10.0.0.2:80"), None).unwrap();
    pair.pass(Duration::from_millis(10));
    assert_eq!(pair.b.connections(), 2);
    pair.b.close_listener(pair.now, listener);
    assert_eq!(pair.b.connections(), 0);
    pair.pass(Duration::from_millis(10));
    let failed: Vec<_> = pair.events_a.iter().filter(|event| matches!(event, TcpEvent::Failed(..))).collect();
    assert_eq!(failed.len(), 2, "{:?} {queued:?} {half:?}", pair.events_a);
}

#[test]
fn what_cannot_be_connected_is_said() {
    let mut pair = Pair::with(|config| config.max_connections = 3);
    let (local, remote) = (address("10.0.0.1:0"), address("10.0.0.2:80"));
    let mut connect =
        |local: &str, remote: &str| pair.a.connect(pair.now, address(local), address(remote), None);
    for bad in ["10.0.0.2:0", "0.0.0.0:80", "224.0.0.1:80", "255.255.255.255:80", "[ff02::1]:80", "[::]:80"] {
        let local = if bad.starts_with('[') { "[2001:db8::1]:0" } else { "10.0.0.1:0" };
        assert_eq!(connect(local, bad), Err(ConnectError::BadRemote { remote: address(bad) }));
    }
    for (local, remote) in
        [("10.0.0.1:0", "[2001:db8::2]:80"), ("0.0.0.0:0", "10.0.0.2:80"), ("10.0.0.2:80", "10.0.0.2:80")]
    {
        let error = connect(local, remote).unwrap_err();
        assert_eq!(error, ConnectError::InUse { local: address(local), remote: address(remote) });
    }
    let refused = pair.a.connect_from(pair.now, local, remote, None, &mut |_| false);
    assert_eq!(refused, Err(ConnectError::NoFreePort { remote }));
    let only = pair.a.connect_from(pair.now, local, remote, None, &mut |port| port == 40_000).unwrap();
    assert_eq!(pair.a.info(only).unwrap().local, address("10.0.0.1:40000"));
    let again = pair.a.connect_from(pair.now, local, remote, None, &mut |port| port == 40_000);
    assert_eq!(again, Err(ConnectError::NoFreePort { remote }));
    pair.a.connect(pair.now, local, remote, None).unwrap();
    pair.a.connect(pair.now, local, remote, None).unwrap();
    assert_eq!(pair.a.connect(pair.now, local, remote, None), Err(ConnectError::TooMany { limit: 3 }));
}

#[test]
fn ports_differ_and_spread() {
    let mut pair = Pair::new();
    let remote = address("10.0.0.2:80");
    let mut ports: Vec<u16> = (0..500)
        .map(|_| {
            let id = pair.a.connect(pair.now, address("10.0.0.1:0"), remote, None).unwrap();
            pair.a.info(id).unwrap().local.port()
        })
        .collect();
    assert!(ports.iter().all(|port| *port >= 16_384));
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 500);
    let first = |key: u8| {
        let mut endpoint = super::super::Endpoint::new(crate::tcp::Config::new([key; 32]));
        let id = endpoint.connect(pair.now, address("10.0.0.1:0"), remote, None).unwrap();
        endpoint.info(id).unwrap().local
    };
    let distinct: std::collections::HashSet<SocketAddr> = (0..50).map(first).collect();
    assert!(distinct.len() > 45, "ports depend on the key");
}

#[test]
fn stale_names_name_nothing() {
    let mut pair = Pair::new();
    let (a, b, listener) = pair.open(None);
    pair.a.abort(pair.now, a);
    pair.pass(SECOND);
    pair.b.close(pair.now, b);
    let (again, _) = pair.connect(listener, None);
    assert_ne!(a, again);
    assert_eq!(pair.a.read(pair.now, a, &mut [0]), Err(Error::Unknown));
    assert_eq!((pair.a.info(a), pair.a.shutdown(pair.now, a)), (None, Err(Error::Unknown)));
    pair.a.close(pair.now, a);
    pair.a.abort(pair.now, a);
    assert_eq!(pair.a.state(again), Some(StateName::Established));
    assert!(pair.a.modify(pair.now, a, |_| {}).is_err());
    assert!(pair.a.modify(pair.now, again, |options| options.nagle = true).is_ok());
    assert!(pair.a.options(again).unwrap().nagle);
}
