//! Header prediction: the fast path and the general path have the same result.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::*;
use crate::wire::tcp::PlainHeader;

impl Rig {
    /// Gives a segment to the fast path, if that may take it.
    fn give_short(&mut self, header: &Header, payload: &[u8]) -> bool {
        let bytes = header.emit();
        let Some(plain) = PlainHeader::parse(bytes.as_bytes()) else { return false };
        self.with(|connection, now, cx| connection.on_expected(now, &plain, Payload::new(payload), cx))
    }

    fn sent_bytes(&mut self) -> u32 {
        self.sent().iter().map(|sent| sent.payload.len() as u32).sum()
    }
}

/// Its whole state, except for the addresses of its bytes.
fn state_of(value: &impl core::fmt::Debug) -> String {
    let text = format!("{value:?}");
    text.split("base: 0x").map(|part| part.trim_start_matches(|c: char| c.is_ascii_hexdigit())).collect()
}

#[test]
fn both_ways_end_the_same() {
    let mut taken = 0;
    for seed in 0..300 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let stamps = rng.random_bool(0.8);
        let mut twins = [(); 2].map(|()| Rig::established(stamps));
        let (mut theirs, mut ours, mut acked) = (0_u32, 0_u32, 0_u32);
        for step in 0..60 {
            let time = Duration::from_micros(rng.random_range(0..20_000));
            // Mostly the next segment in order; at times another.
            let seq = match rng.random_range(0..12) {
                0 => theirs.saturating_sub(rng.random_range(0..200)),
                1 => theirs + rng.random_range(0..3000),
                _ => theirs,
            };
            let ack = match rng.random_range(0..6) {
                0 => acked,
                1 => acked + (ours - acked) / 2,
                2 if rng.random_bool(0.1) => ours + 10,
                _ => ours,
            };
            let payload = vec![step as u8; if rng.random_bool(0.7) { rng.random_range(1..1400) } else { 0 }];
            let mut flags = Flags::ACK;
            for (flag, chance) in [(Flags::PSH, 0.5), (Flags::URG, 0.03), (Flags::ECE, 0.03)] {
                if rng.random_bool(chance) {
                    flags = flags.with(flag);
                }
            }
            if step == 55 {
                flags = flags.with(Flags::FIN);
            }
            let old = rng.random_bool(0.05);
            let (write, read) = (rng.random_range(0..3000), rng.random_bool(0.6));
            let mut sent = [0; 2];
            for (number, rig) in twins.iter_mut().enumerate() {
                rig.pass(time);
                let mut header = rig.header(seq, ack, flags);
                if let Some(stamps) = &mut header.options.timestamps {
                    stamps.value -= if old { 5000 } else { 0 };
                    stamps.echo = 5000 + (rig.now.as_nanos() / 1_000_000) as u32 - 3;
                }
                if number == 0 && rig.give_short(&header, &payload) {
                    taken += 1;
                } else {
                    let _ = rig.give(header, &payload);
                }
                if rig.connection.next_deadline().is_some_and(|deadline| deadline <= rig.now) {
                    let _ = rig.with(|connection, now, cx| connection.on_timer(now, cx));
                }
                let _ = rig.write(&vec![7; write]);
                if read {
                    let _ = rig.read();
                }
                sent[number] = rig.sent_bytes();
            }
            let [a, b] = &mut twins;
            let info = a.connection.info();
            theirs = info.bytes_received as u32;
            ours = (info.bytes_acked + info.in_flight as u64) as u32;
            acked = info.bytes_acked as u32;
            assert_eq!(sent[0], sent[1], "seed {seed}, step {step}");
            assert_eq!(state_of(&a.connection), state_of(&b.connection), "seed {seed}, step {step}");
            assert_eq!(a.events(), b.events(), "seed {seed}, step {step}");
        }
    }
    assert!(taken > 5000, "{taken}");
}

#[test]
fn what_is_unusual_goes_the_long_way_and_changes_nothing_before() {
    let mut rig = Rig::established(true);
    rig.write(b"hello").unwrap();
    rig.sent_one();
    let before = format!("{:?}", rig.connection);
    let plain = rig.header(0, 5, Flags::ACK);
    let mut unusual = vec![
        (Header { seq: plain.seq + 1, ..plain }, &b"x"[..]),
        (Header { seq: plain.seq - 1, ..plain }, b"x"),
        (Header { ack: plain.ack + 1, ..plain }, b"x"),
        (Header { ack: plain.ack - 100_000, ..plain }, b"x"),
        (Header { options: tcp::Options::default(), ..plain }, b"x"),
        (plain, &[0; 1 << 17]),
    ];
    for flag in [Flags::FIN, Flags::SYN, Flags::RST, Flags::URG, Flags::ECE, Flags::CWR] {
        unusual.push((Header { flags: plain.flags.with(flag), ..plain }, b"x"));
    }
    for (header, payload) in unusual {
        assert!(!rig.give_short(&header, payload), "{header:?}");
        assert_eq!(format!("{:?}", rig.connection), before, "{header:?}");
    }
    assert!(rig.give_short(&plain, b"x"));
    assert_eq!(rig.read().unwrap(), b"x");
    assert_eq!(rig.connection.info().bytes_acked, 5);
}
