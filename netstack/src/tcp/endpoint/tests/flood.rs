//! Hostile and faulty peers: floods, cookies, queues that are full, strays.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use core::time::Duration;
use std::sync::{Arc, Mutex};

use super::pair::{Pair, address, syn};
use crate::tcp::{KeepAlive, Options, StateName, TcpEvent};
use crate::wire::tcp::{Flags, Header, SeqNumber};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_flood_is_answered_by_cookies_and_a_cookie_opens_a_connection() {
    for (timestamps, sack) in [(true, true), (false, true), (true, false)] {
        let mut pair = Pair::with(|config| config.max_half_open = 8);
        let listener = pair.b.listen(address("10.0.0.2:80"), 16, None).unwrap();
        for port in 1..=1000 {
            let from = format!("192.0.2.1:{port}");
            pair.forge(address(&from), address("10.0.0.2:80"), syn(port));
            // The answers go nowhere.
            pair.answers();
        }
        assert_eq!(pair.b.connections(), 8);
        assert_eq!((pair.b.counters().syn_received, pair.b.counters().cookies_sent), (8, 992));
        let options = Options { timestamps, sack, ..Options::internet() };
        let (a, b) = pair.connect(listener, Some(options));
        assert_eq!(pair.b.counters().cookies_accepted, 1);
        let bytes: Vec<u8> = (0..300_000u32).map(|n| (n % 251) as u8).collect();
        assert!(pair.transfer(a, b, &bytes, 10 * SECOND) == bytes);
        let (info_a, info_b) = (pair.a.info(a).unwrap(), pair.b.info(b).unwrap());
        assert_eq!((info_a.timestamps, info_b.timestamps), (timestamps, timestamps));
        assert_eq!((info_a.sack, info_b.sack), (sack && timestamps, sack && timestamps));
        assert_eq!(info_a.window_shifts.map(|(x, y)| (y, x)), info_b.window_shifts);
        assert_eq!(info_a.window_shifts.is_some(), timestamps);
    }
}

#[test]
fn acknowledgements_of_no_cookie_are_reset() {
    let mut pair = Pair::with(|config| config.max_half_open = 1);
    pair.b.listen(address("10.0.0.2:80"), 16, None).unwrap();
    let (from, to) = (address("192.0.2.1:9"), address("10.0.0.2:80"));
    let ack = Header { seq: SeqNumber(5), ack: SeqNumber(77), flags: Flags::ACK, ..Header::default() };
    pair.forge(from, to, ack);
    let expect = |headers: Vec<Header>| {
        assert_eq!(headers.len(), 1);
        assert_eq!((headers[0].flags, headers[0].seq), (Flags::RST, SeqNumber(77)));
    };
    expect(pair.answers());
    // The same while cookies are out.
    pair.forge(address("192.0.2.2:1"), to, syn(1));
    pair.forge(address("192.0.2.2:2"), to, syn(2));
    pair.answers();
    pair.forge(from, to, ack);
    expect(pair.answers());
    assert_eq!((pair.b.counters().cookies_refused, pair.b.counters().cookies_sent), (1, 1));
}

#[test]
fn a_full_accept_queue_holds_connections_back() {
    let mut pair = Pair::new();
    let listener = pair.b.listen(address("10.0.0.2:80"), 2, None).unwrap();
    let ids: Vec<_> = (0..4)
        .map(|_| pair.a.connect(pair.now, address("10.0.0.1:0"), address("10.0.0.2:80"), None).unwrap())
        .collect();
    pair.pass(SECOND / 2);
    assert_eq!(pair.events_b, [TcpEvent::Acceptable(listener); 2]);
    assert!(pair.b.counters().accept_queue_full >= 1);
    // Room makes the others' repeated segments welcome.
    let mut accepted = 0;
    assert!(pair.run(20 * SECOND, |pair| {
        accepted += usize::from(pair.b.accept(listener).is_some());
        accepted == 4
    }));
    assert!(ids.iter().all(|id| pair.a.state(*id) == Some(StateName::Established)));
}

#[test]
fn half_open_connections_time_out() {
    let mut pair = Pair::with(|config| config.max_half_open = 8);
    pair.b.listen(address("10.0.0.2:80"), 16, None).unwrap();
    for port in 1..=8 {
        pair.forge(address(&format!("192.0.2.1:{port}")), address("10.0.0.2:80"), syn(port));
    }
    assert_eq!(pair.b.connections(), 8);
    // Towards 192.0.2.1 everything is lost.
    pair.back.cut = true;
    pair.pass(400 * SECOND);
    assert_eq!(pair.b.connections(), 0);
    pair.back.cut = false;
    let listener = pair.b.listen(address("10.0.0.2:81"), 16, None).unwrap();
    let (a, b) = pair.connect(listener, None);
    assert_eq!(pair.transfer(a, b, b"data", SECOND), b"data");
}

#[test]
fn strays_get_what_the_standard_says() {
    let mut pair = Pair::new();
    let (from, to) = (address("192.0.2.1:9"), address("10.0.0.2:99"));
    let at =
        |flags, seq, ack| Header { flags, seq: SeqNumber(seq), ack: SeqNumber(ack), ..Header::default() };
    //= RFC 9293 section 3.10.7.1
    let cases = [
        (at(Flags::RST, 1, 2), None),
        (at(Flags::RST.with(Flags::ACK), 1, 2), None),
        (at(Flags::SYN, 10, 0), Some((Flags::RST.with(Flags::ACK), 0, 11))),
        (at(Flags::SYN.with(Flags::FIN), 10, 0), Some((Flags::RST.with(Flags::ACK), 0, 12))),
        (at(Flags::ACK, 10, 20), Some((Flags::RST, 20, 0))),
        (at(Flags::SYN.with(Flags::ACK), 10, 20), Some((Flags::RST, 20, 0))),
        (at(Flags(0), 10, 0), Some((Flags::RST.with(Flags::ACK), 0, 10))),
    ];
    for (header, expected) in cases {
        pair.forge(from, to, header);
        let got = pair.answers().first().map(|answer| (answer.flags, answer.seq.0, answer.ack.0));
        assert_eq!(got, expected, "{header:?}");
    }
    // To a listener: no answer but to a SYN, or to an ACK.
    pair.b.listen(to, 1, None).unwrap();
    for (header, expected) in [
        (at(Flags::RST, 1, 2), None),
        (at(Flags::FIN, 1, 2), None),
        (at(Flags(0), 1, 2), None),
        (at(Flags::SYN.with(Flags::FIN), 1, 2), None),
        (at(Flags::SYN.with(Flags::RST), 1, 2), None),
        (at(Flags::SYN.with(Flags::ACK), 1, 2), Some(Flags::RST)),
        (at(Flags::ACK, 1, 2), Some(Flags::RST)),
    ] {
        pair.forge(from, to, header);
        assert_eq!(pair.answers().first().map(|answer| answer.flags), expected, "{header:?}");
    }
    assert_eq!(pair.b.connections(), 0);
    // From itself: land.
    pair.forge(to, to, syn(1));
    assert_eq!((pair.answers().len(), pair.b.connections()), (0, 0));
}

#[test]
fn resets_and_malformed_segments_are_limited() {
    let mut pair = Pair::with(|config| config.resets_per_second = 10);
    for port in 1..=100 {
        pair.forge(address(&format!("192.0.2.1:{port}")), address("10.0.0.2:99"), syn(port));
    }
    let sent = pair.answers().len();
    assert!((5..=10).contains(&sent), "{sent}: the limit, or up to half of it less");
    assert_eq!(pair.b.counters().answers_suppressed, 100 - sent as u64);
    let meta = crate::tcp::SegmentMeta {
        source: address("192.0.2.1:9").ip(),
        destination: address("10.0.0.2:9").ip(),
        congestion_experienced: false,
    };
    for len in 0..20 {
        pair.b.on_segment(pair.now, &meta, &[0x55; 60][..len], crate::tcp::Payload::default());
    }
    assert_eq!(pair.b.counters().malformed, 20);
}

#[test]
fn time_wait_is_bounded() {
    let mut pair = Pair::with(|config| config.max_time_wait = 3);
    let listener = pair.b.listen(address("10.0.0.2:80"), 16, None).unwrap();
    for round in 0..5 {
        let (a, b) = pair.connect(listener, None);
        pair.a.close(pair.now, a);
        pair.pass(Duration::from_millis(10));
        pair.b.close(pair.now, b);
        pair.pass(Duration::from_millis(10));
        assert_eq!(pair.a.in_time_wait(), (round + 1).min(3));
    }
    assert_eq!(pair.a.counters().time_wait_overflow, 2);
    pair.pass(100 * SECOND);
    assert_eq!(pair.a.in_time_wait(), 0);
}

#[test]
fn idle_connections_hear_their_keep_alives_answered_while_one_client_sends_old_segments() {
    const IDLE: usize = 300;
    let mut pair = Pair::new();
    let keep_alive = KeepAlive { idle: SECOND, interval: SECOND / 5, probes: 3 };
    let options = Options { keep_alive: Some(keep_alive), ..Options::internet() };
    let listener = pair.b.listen(address("0.0.0.0:80"), IDLE + 1, None).unwrap();
    let last = Arc::new(Mutex::new(Header::default()));
    let seen = Arc::clone(&last);
    pair.there.rule = Some(Box::new(move |_, segment| {
        *seen.lock().unwrap() = segment.parsed();
        true
    }));
    let (_, b) = pair.connect(listener, None);
    let (remote, server) = pair.b.info(b).map(|info| (info.remote, info.local)).unwrap();
    // The last of its handshake.
    let last = *last.lock().unwrap();
    assert_eq!((last.source_port, last.flags), (remote.port(), Flags::ACK));
    let old = Header { seq: last.seq - 1000, ..last };
    let idle: Vec<_> = (0..IDLE).map(|_| pair.connect(listener, Some(options.clone())).0).collect();
    let provoked = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&provoked);
    pair.back.rule = Some(Box::new(move |_, segment| {
        counted.fetch_add(u32::from(segment.destination == remote), Relaxed);
        true
    }));
    // 2000 in a second.
    for _ in 0..10_000 {
        pair.forge(remote, server, old);
        pair.pass(Duration::from_micros(500));
    }
    let dead = idle.iter().filter(|id| pair.a.state(**id) != Some(StateName::Established)).count();
    assert_eq!(dead, 0, "of {IDLE}");
    let provoked = provoked.load(Relaxed);
    assert!((400..=700).contains(&provoked), "{provoked} answers in 5 s, the limit is 100 a second");
}

#[test]
fn peers_with_shut_windows_leave_memory_to_others_once_they_are_closed() {
    let mut pair = Pair::with(|config| {
        config.max_send_memory = 4 << 20;
        config.options.send_buffer = 1 << 20;
    });
    let listener = pair.b.listen(address("0.0.0.0:80"), 32, None).unwrap();
    let small = Options { receive_buffer: 64 << 10, ..Options::internet() };
    let bytes = vec![7; 1 << 20];
    // Four times the memory that there is; nobody reads.
    for _ in 0..16 {
        let (_, b) = pair.connect(listener, Some(small.clone()));
        while pair.b.write(pair.now, b, &bytes).is_ok() {
            pair.pass(SECOND / 10);
        }
        pair.b.close(pair.now, b);
    }
    let (a, b) = pair.connect(listener, None);
    assert!(pair.b.connections() > 4);
    let (mut written, mut read) = (0, 0);
    let mut buffer = vec![0; 1 << 20];
    let done = pair.run(SECOND, |pair| {
        written += pair.b.write(pair.now, b, &bytes[..4096]).unwrap_or(0);
        read += pair.a.read(pair.now, a, &mut buffer).unwrap_or(0);
        read >= 1 << 20
    });
    assert!(done, "{written} bytes were taken, {read} arrived; {:?}", pair.b);
    assert!(pair.b.counters().orphans_ended > 0);
    // In the end they go, though their peers answer.
    pair.pass(110 * SECOND);
    assert_eq!(pair.b.connections(), 1);
}

#[test]
fn closed_connections_that_hold_data_are_counted_as_long_as_they_do() {
    let mut pair = Pair::with(|config| config.max_orphans = 2);
    let listener = pair.b.listen(address("0.0.0.0:80"), 32, None).unwrap();
    let mut buffer = [0; 100];
    // Those whose data arrives give their places back, before the peer closes too and without.
    for round in 0..10 {
        let (a, b) = pair.connect(listener, None);
        assert_eq!(pair.b.write(pair.now, b, b"some"), Ok(4));
        pair.b.close(pair.now, b);
        pair.pass(SECOND / 100);
        assert_eq!(pair.a.read(pair.now, a, &mut buffer), Ok(4));
        if round % 2 == 0 {
            pair.a.close(pair.now, a);
            pair.pass(SECOND / 100);
        }
    }
    assert_eq!(pair.b.counters().orphans_ended, 0);
    // Nothing arrives any more. One that its peer resets gives its place back, too.
    pair.back.rule = Some(Box::new(|_, segment| segment.payload.is_empty()));
    let (a, b) = pair.connect(listener, None);
    assert_eq!(pair.b.write(pair.now, b, b"some"), Ok(4));
    pair.b.close(pair.now, b);
    pair.a.abort(pair.now, a);
    pair.pass(SECOND / 100);
    // There are never more than two.
    let before = pair.b.connections();
    for round in 1..=10_u64 {
        let (_, b) = pair.connect(listener, None);
        assert_eq!(pair.b.write(pair.now, b, b"some"), Ok(4));
        pair.b.close(pair.now, b);
        pair.pass(SECOND / 100);
        assert_eq!(pair.b.counters().orphans_ended, round.saturating_sub(2));
        assert_eq!(pair.b.connections(), before + round.min(2) as usize);
    }
}
