//! Segments that should not be, and blind attacks.

use super::*;
use crate::cc::Algorithm;

fn acknowledges(rig: &mut Rig, ack: SeqNumber) {
    let sent = rig.sent_one();
    assert_eq!((sent.header.ack, sent.header.flags), (ack, Flags::ACK));
}

#[test]
fn a_syn_in_a_connection_is_challenged() {
    let mut rig = Rig::established(Options::internet());
    for seq in [0, 5, u32::MAX, 1 << 20] {
        let header = rig.header(seq, 0, Flags::SYN);
        assert!(matches!(rig.give(header, &[]), Disposition::Keep));
        acknowledges(&mut rig, IRS + 1);
    }
    assert_eq!(rig.state(), StateName::Established);
}

#[test]
fn challenges_are_limited() {
    let mut rig = Rig::established(Options::internet());
    rig.challenges = 10;
    let mut challenges = 0;
    for _ in 0..100 {
        let header = rig.header(5, 0, Flags::SYN);
        assert!(matches!(rig.give(header, &[]), Disposition::Keep));
        challenges += rig.sent().len();
    }
    assert_eq!(challenges, 10);
    rig.pass(Duration::from_secs(1));
    let header = rig.header(5, 0, Flags::SYN);
    assert!(matches!(rig.give(header, &[]), Disposition::Keep));
    assert_eq!(rig.sent().len(), 1);
}

#[test]
fn acknowledgements_out_of_range_drop_the_segment() {
    let mut rig = Rig::established(Options::internet());
    assert_eq!(rig.write(b"data"), Ok(4));
    rig.sent_one();
    for ack in [5, 1000, 1 << 30] {
        assert!(matches!(rig.data(0, ack, b"injected"), Disposition::Keep));
        acknowledges(&mut rig, IRS + 1);
    }
    // Older than the largest window that the peer ever had (65535 bytes).
    assert!(matches!(rig.data(0, 0_u32.wrapping_sub(70_000), b"injected"), Disposition::Keep));
    acknowledges(&mut rig, IRS + 1);
    assert_eq!(rig.read(), Err(Error::WouldBlock));
    // A little old: reordering, not an attack.
    assert!(matches!(rig.data(0, u32::MAX, b"real"), Disposition::Keep));
    assert_eq!(rig.read().as_deref(), Ok(&b"real"[..]));
    assert_eq!(rig.connection.info().unacknowledged, 4);
}

#[test]
fn segments_without_acknowledgement_are_dropped() {
    let mut rig = Rig::established(Options::internet());
    let header = rig.header(0, 0, Flags(0));
    assert!(matches!(rig.give(header, b"x"), Disposition::Keep));
    rig.sent_nothing();
    assert_eq!(rig.read(), Err(Error::WouldBlock));
}

#[test]
fn old_timestamps_protect_against_wrapped_numbers() {
    let mut rig = Rig::established(Options::internet());
    assert!(matches!(rig.data(0, 0, b"new"), Disposition::Keep));
    rig.sent_one();
    let clock = rig.peer_clock;
    rig.peer_clock = clock.map(|clock| clock - 1);
    assert!(matches!(rig.data(3, 0, b"old"), Disposition::Keep));
    acknowledges(&mut rig, IRS + 4);
    assert_eq!(rig.read().as_deref(), Ok(&b"new"[..]));
    // A reset is exempt (RFC 7323 section 5.2).
    let reset = rig.header(3, 0, Flags::RST);
    assert!(matches!(rig.give(reset, &[]), Disposition::Remove));
}

#[test]
fn a_missing_timestamp_drops_the_segment() {
    let mut rig = Rig::established(Options::internet());
    rig.peer_clock = None;
    assert!(matches!(rig.data(0, 0, b"bare"), Disposition::Keep));
    rig.sent_nothing();
    assert_eq!(rig.read(), Err(Error::WouldBlock));
}

#[test]
fn the_echo_is_that_of_the_earliest_unacknowledged_segment() {
    let mut rig = Rig::established(Options::internet());
    let first = rig.peer_clock;
    assert!(matches!(rig.data(0, 0, b"a"), Disposition::Keep));
    rig.peer_clock = first.map(|clock| clock + 5);
    assert!(matches!(rig.data(1, 0, b"b"), Disposition::Keep));
    let echo = rig.sent_one().header.options.timestamps.map(|stamps| stamps.echo);
    assert_eq!(echo, first);
    assert!(matches!(rig.data(2, 0, b"c"), Disposition::Keep));
    let echo = rig.sent_one().header.options.timestamps.map(|stamps| stamps.echo);
    assert_eq!(echo, rig.peer_clock);
}

#[test]
fn urgent_data_is_data() {
    let mut rig = Rig::established(Options::internet());
    let header = Header { urgent: 3, ..rig.header(0, 0, Flags::ACK.with(Flags::URG)) };
    assert!(matches!(rig.give(header, b"urgent"), Disposition::Keep));
    assert_eq!(rig.read().as_deref(), Ok(&b"urgent"[..]));
}

#[test]
fn data_after_the_fin_is_not_taken() {
    let mut rig = Rig::established(Options::internet());
    assert!(matches!(rig.fin(0, 0), Disposition::Keep));
    rig.sent_one();
    assert!(matches!(rig.data(1, 0, b"zombie"), Disposition::Keep));
    acknowledges(&mut rig, IRS + 2);
    assert_eq!(rig.read().as_deref(), Ok(&b""[..]));
}

#[test]
fn a_fin_before_what_was_received_is_ignored() {
    let mut rig = Rig::established(Options::internet());
    assert!(matches!(rig.data(10, 0, b"later"), Disposition::Keep));
    assert!(matches!(rig.fin(5, 0), Disposition::Keep));
    assert!(matches!(rig.data(0, 0, b"0123456789"), Disposition::Keep));
    assert_eq!(rig.read().as_deref(), Ok(&b"0123456789later"[..]));
    assert_eq!(rig.state(), StateName::Established);
}

#[test]
fn acknowledgements_count_while_the_window_is_shut() {
    let options = Options { receive_buffer: 1000, window_scaling: false, ..Options::internet() };
    let mut rig = Rig::established(options);
    assert_eq!(rig.write(b"data"), Ok(4));
    rig.sent_one();
    assert!(matches!(rig.data(0, 0, &[0; 1000]), Disposition::Keep));
    assert_eq!(rig.sent_one().header.window, 0);
    assert!(matches!(rig.data(1000, 4, b"probe"), Disposition::Keep));
    assert_eq!(rig.connection.info().unacknowledged, 0);
    let sent = rig.sent_one();
    assert_eq!((sent.header.ack, sent.header.window), (IRS + 1001, 0));
    let reset = rig.header(1000, 0, Flags::RST);
    assert!(matches!(rig.give(reset, &[]), Disposition::Remove));
}

/// Any segment at any time, in any state: nothing panics, memory stays bounded, and what is over stays over.
#[test]
fn arbitrary_segments_do_no_harm() {
    use rand::{Rng, SeedableRng, rngs::SmallRng};
    for seed in 0..400 {
        let mut random = SmallRng::seed_from_u64(seed);
        let options = Options {
            ecn: random.random(),
            receive_buffer: 1 << random.random_range(8..22),
            congestion: if random.random() { Algorithm::Dctcp } else { Algorithm::NewReno },
            keep_alive: random.random::<bool>().then(crate::tcp::KeepAlive::default),
            ..Options::internet()
        };
        let mut rig = match random.random_range(0..3) {
            0 => Rig::connect(options),
            1 => Rig::accept(options, syn()),
            _ => Rig::established(options),
        };
        let bytes = [0x5a; 3000];
        let (mut seq, mut ack) = (0, 0);
        for step in 0..300 {
            let flags = match random.random_range(0..8) {
                0 => Flags(random.random()),
                1 => Flags::ACK.with(Flags::FIN),
                _ => Flags::ACK,
            };
            let near = |random: &mut SmallRng, at: u32| match random.random_range(0..6) {
                0 => random.random(),
                1 => at.wrapping_add(random.random_range(0..100_000)),
                2 => at.wrapping_sub(random.random_range(0..100_000)),
                3 => at.wrapping_add(random.random_range(0..4000)),
                _ => at,
            };
            let mut header = rig.header(near(&mut random, seq), near(&mut random, ack), flags);
            header.window = random.random();
            for _ in 0..random.random_range(0..5) {
                let start = IRS + near(&mut random, seq);
                header
                    .options
                    .sack
                    .push(crate::wire::tcp::SeqRange { start, end: start + random.random_range(0..5000) });
            }
            if random.random_range(0..20) == 0 {
                header.options.timestamps = random
                    .random::<bool>()
                    .then(|| Timestamps { value: random.random(), echo: random.random() });
            }
            let len = random.random_range(0..bytes.len());
            let (head, rest) = bytes.split_at(random.random_range(0..=len));
            let rest = [rest.get(..len - head.len()).unwrap_or_default()];
            let segment = Segment {
                header,
                payload: Payload { head, rest: &rest },
                congestion_experienced: random.random(),
            };
            let was_over = rig.connection.is_over();
            let disposition = rig.give_segment(&segment);
            assert!(!was_over || matches!(disposition, Disposition::Keep), "seed {seed}, step {step}");
            match random.random_range(0..12) {
                0 => drop(rig.write(&bytes)),
                1 => drop(rig.read()),
                2 => drop(rig.with(|connection, now, cx| connection.read_chunk(now, cx))),
                3 => drop(rig.connection.next_deadline().map(|_| rig.wait())),
                4 if step > 200 => drop(rig.connection.shutdown()),
                5 if step > 280 => {
                    let _ = rig.close();
                }
                6 => rig.pass(Duration::from_millis(random.random_range(0..300))),
                _ => {}
            }
            rig.transmit();
            rig.wire.sent.clear();
            seq = rig.connection.receiver.next().0.wrapping_sub(IRS.0 + 1);
            ack = rig.connection.sender.nxt().0.wrapping_sub(ISS.0 + 1);
            assert!(rig.pool.used() <= 40 << 20, "seed {seed}, step {step}: {} bytes", rig.pool.used());
        }
        let _ = rig.close();
        assert!(!rig.connection.is_over() || rig.pool.used() == 0, "seed {seed}");
    }
}
