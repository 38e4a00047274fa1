//! Single losses at chosen places, reordering, and the permitted cost of a recovery.

use core::time::Duration;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use shouter_netstack::sim::{LinkConfig, Rule, tcp::Segment};
use shouter_netstack::tcp::{IcmpKind, Options, SegmentIcmpError};

use super::goodput::{ALL, options};
use super::network::clean;
use super::world::{World, ms};

const MS: Duration = Duration::from_millis(1);

/// Loses the first transmission of every segment with payload that holds a byte from `from` on, counted from the
/// first byte that passes.
fn lose_once(from: u32, upto: u32) -> Rule<Segment> {
    lose(from, upto, 1)
}

/// The same for the first `times` transmissions.
fn lose(from: u32, upto: u32, times: u32) -> Rule<Segment> {
    let mut first = None;
    let mut seen = std::collections::HashMap::new();
    Box::new(move |_, packet| {
        if packet.payload.is_empty() {
            return true;
        }
        let start = packet.seq().distance(*first.get_or_insert(packet.seq()));
        let hit = start < upto && start + packet.payload.len() as u32 > from;
        let count: &mut u32 = seen.entry(start).or_default();
        *count += u32::from(hit);
        !hit || *count > times
    })
}

/// A message of `len` bytes, of which the last `tail` segments are lost once. Returns how long after its sending it
/// was there, the round-trip time as it was measured (before, or with the delayed acknowledgements of the message itself),
/// and how many time-outs there were.
fn with_tail_loss(options: &Options, rtt: Duration, len: u64, tail: u32) -> (Duration, Duration, u64) {
    let link = clean(1_000_000_000, rtt / 2);
    let mut world = World::new(31, options, [link, link]);
    // A first message, so that a round-trip time is known and windows are open.
    let index = world.connect(200_000, None);
    assert!(world.run_until(ms(5_000), |world| world.received(0) == 200_000));
    world.run_to(world.now + 3 * rtt);
    let info = world.hosts[0].info(index);
    let (mss, measured) = (u32::from(info.mss), info.srtt.unwrap());
    assert!(measured < rtt + options.max_ack_delay / 4, "{info:?}");
    world.links[0].rule = Some(lose_once(len as u32 - tail * mss, len as u32));
    let sent_at = world.now;
    world.hosts[0].apps[index].to_write = len;
    assert!(world.run_until(sent_at + Duration::from_secs(10), |world| world.received(0) == 200_000 + len));
    let took = world.now - sent_at;
    // The rest of the exchange, so that counters are final.
    world.run_to(world.now + 3 * rtt);
    let info = world.hosts[0].info(index);
    (took, measured.max(info.srtt.unwrap()), info.timeouts)
}

#[test]
fn a_tail_loss_is_repaired_within_two_round_trips_and_the_delay_of_acknowledgements_and_a_millisecond() {
    for algorithm in ALL {
        for rtt in [MS, 10 * MS, 50 * MS] {
            for (len, tail) in [(1448 * 10, 1), (1448 * 10, 3), (1448 * 2, 1), (1448, 1), (1448 * 10, 9)] {
                let options = options(algorithm);
                let (took, measured, timeouts) = with_tail_loss(&options, rtt, len, tail);
                // Half a round trip is the message's own; then the repair, by the round-trip time as it was measured.
                let line = Duration::from_micros(300);
                let limit = rtt / 2 + line + 2 * measured + options.max_ack_delay + MS;
                // The probe repairs the last segment itself; the others follow by one, two, four a round trip (RFC
                // 9937: no more than was delivered, and one with each safe acknowledgement).
                let rounds = u32::BITS - (tail - 1).leading_zeros();
                let limit = limit + rounds * (measured + line);
                let what = format!("{algorithm:?}, rtt {rtt:?}, {len} bytes, {tail} lost");
                assert!(took <= limit, "{what}: took {took:?}, limit {limit:?}");
                assert_eq!(timeouts, 0, "{what}");
            }
        }
    }
}

#[test]
fn five_percent_reordering_causes_no_spurious_time_out_and_few_spurious_resends() {
    for algorithm in ALL {
        for seed in 40..43 {
            let rtt = 10 * MS;
            let link = clean(100_000_000, rtt / 2);
            // Held up by up to a quarter of the round trip: some 20 packets overtake.
            let disorderly = LinkConfig { reorder: 0.05, reorder_by: rtt / 4, ..link };
            let mut world = World::new(seed, &options(algorithm), [disorderly, link]);
            world.links[0].config.queue_frames = 100_000;
            let index = world.connect(u64::MAX >> 8, None);
            world.run_to(ms(3_000));
            let early = world.hosts[0].info(index);
            let sent_early = world.links[0].counters().sent;
            world.run_to(ms(8_000));
            let late = world.hosts[0].info(index);
            let what = format!("{algorithm:?}, seed {seed}: {late:?}");
            assert_eq!(late.timeouts, 0, "{what}");
            assert!(world.links[0].counters().reordered > 1000, "{what}");
            // Nothing is lost on this link, so every resend is spurious.
            let resent = late.retransmitted - early.retransmitted;
            let sent = world.links[0].counters().sent - sent_early;
            assert!((resent as f64) < 0.001 * sent as f64, "{resent} of {sent}; {what}");
        }
    }
}

/// Two hosts with a connection that has sent 200,000 bytes and rests.
fn warm(options: &Options, rtt: Duration) -> World {
    let link = clean(10_000_000_000, rtt / 2);
    let mut world = World::new(37, options, [link, link]);
    world.connect(200_000, None);
    assert!(world.run_until(ms(5_000), |world| world.received(0) == 200_000));
    world.run_to(world.now + 50 * MS);
    world
}

#[test]
fn what_is_lost_again_is_probed_for_again_and_needs_no_time_out() {
    for algorithm in ALL {
        for rtt in [MS / 20, MS] {
            // The last segment with its probes; one in the middle with its retransmissions; the last three.
            for (from, upto, times) in [(9, 10, 2), (3, 4, 2), (3, 4, 4), (7, 10, 2)] {
                let options = Options { repeat_tail_probes: true, ..options(algorithm) };
                let mut world = warm(&options, rtt);
                world.links[0].rule = Some(lose(from * 1448, upto * 1448, times));
                let sent_at = world.now;
                world.hosts[0].apps[0].to_write = 14_480;
                assert!(world.run_until(sent_at + 5000 * MS, |world| world.received(0) == 214_480));
                let (took, info) = (world.now - sent_at, world.hosts[0].info(0));
                let what = format!("{algorithm:?}, {rtt:?}, {from} to {upto} lost {times} times: {took:?}");
                assert_eq!(info.timeouts, 0, "{what}");
                // With a single segment out, the peer's delay is waited for.
                let limit = if upto < 10 { 40 * MS } else { 150 * MS };
                assert!(took < limit, "{what}, {info:?}");
            }
        }
    }
}

#[test]
fn acknowledgements_that_are_lost_cost_no_delayed_acknowledgement() {
    for algorithm in ALL {
        let options = Options { repeat_tail_probes: true, ..options(algorithm) };
        let mut world = warm(&options, MS / 20);
        world.hosts[0].apps[0].to_write = u64::MAX >> 8;
        world.run_to(world.now + 5 * MS);
        let (from, cut) = (world.now, MS / 5);
        // All of them for a while: the probe that follows is a single segment in order.
        world.links[1].rule = Some(Box::new(move |now, _| now > from + cut));
        world.run_to(from + cut);
        let before = world.received(0);
        assert!(world.run_until(from + 1000 * MS, |world| world.received(0) > before + 200_000));
        let (took, info) = (world.now - from, world.hosts[0].info(0));
        assert_eq!(info.timeouts, 0, "{algorithm:?}");
        assert!(took < 3 * MS, "{algorithm:?}: {took:?}, {info:?}");
    }
}

#[test]
fn a_loss_in_the_middle_is_repaired_in_a_round_trip_and_not_by_a_time_out() {
    for algorithm in ALL {
        let rtt = 20 * MS;
        let link = clean(1_000_000_000, rtt / 2);
        let mut world = World::new(51, &options(algorithm), [link, link]);
        // The 30th and the 31st segment.
        world.links[0].rule = Some(lose_once(1448 * 30, 1448 * 32));
        let index = world.connect(1448 * 200, None);
        world.hosts[0].apps[index].shut = true;
        assert!(
            world.run_until(ms(2_000), |world| world.hosts[1].apps.first().is_some_and(|a| a.read_to_end))
        );
        let info = world.hosts[0].info(index);
        assert_eq!((info.timeouts, info.spurious), (0, 0), "{algorithm:?}: {info:?}");
        assert_eq!(info.retransmitted, 2, "{algorithm:?}: {info:?}");
        // A round for the handshake, three of slow start, one for the repair, and five at half of 40 segments or more.
        assert!(world.now <= ms(20 * 11), "{algorithm:?}: {:?}", world.now);
    }
}

#[test]
fn every_byte_arrives_whatever_happens() {
    // Replay one: SEED=17 cargo test -p shouter-netstack --test tcp_sim every_byte
    let only: Option<u64> = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds = std::env::var("SEEDS").ok().and_then(|count| count.parse().ok()).unwrap_or(100);
    for seed in only.map_or(0..seeds, |seed| seed..seed + 1) {
        let link = LinkConfig {
            loss: [0.0, 0.01, 0.1, 0.3][seed as usize % 4],
            duplicate: 0.02,
            reorder: 0.1,
            reorder_by: 3 * MS,
            queue_frames: [20, 200][seed as usize / 4 % 2],
            ..clean(50_000_000, [100 * MS / 1000, 5 * MS][seed as usize / 8 % 2])
        };
        let base = if seed % 2 == 0 { Options::group() } else { Options::internet() };
        let options = Options {
            congestion: ALL[seed as usize % 4],
            sack: seed % 5 != 0,
            timestamps: seed % 7 != 0,
            nagle: seed % 3 == 0,
            pacing: seed % 11 == 0,
            ecn: seed % 13 == 0,
            window_scaling: seed % 6 != 5,
            initial_rto: 100 * MS,
            syn_retries: 12,
            ..base
        };
        // Small ones too where not much is lost.
        let options = match seed % 4 {
            0 | 1 => Options {
                send_buffer: 1 << (11 + seed / 4 % 9),
                receive_buffer: 1 << (11 + seed / 4 % 8),
                ..options
            },
            _ => options,
        };
        let mut world = World::new(seed, &options, [link, link]);
        world.super_segment = [1460, 10_000, 65_000][seed as usize % 3];
        world.hosts[1].answer = 100_000;
        let theirs = Options {
            sack: seed % 9 != 1,
            timestamps: seed % 8 != 1,
            window_scaling: seed % 10 != 1,
            ..options.clone()
        };
        let index = world.connect(200_000, Some(theirs));
        let done = |world: &World| world.received(0) == 200_000 && world.hosts[0].apps[index].read == 100_000;
        let mut finished = world.run_until(ms(3_000_000), done);
        for host in &mut world.hosts {
            for app in &mut host.apps {
                app.shut = true;
            }
        }
        finished &= world.run_until(ms(4_000_000), |world| {
            world.hosts.iter().all(|host| host.apps.iter().all(|app| app.read_to_end))
        });
        let now = world.now;
        for host in &mut world.hosts {
            host.apps.iter().for_each(|app| host.endpoint.close(now, app.id));
        }
        finished &= world.run_until(ms(5_000_000), |world| {
            world.hosts.iter().all(|host| host.endpoint.connections() == 0)
        });
        let apps = [&world.hosts[0].apps, &world.hosts[1].apps];
        assert!(finished, "seed {seed}: at {:?}: {options:?} {apps:?}", world.now);
        assert!(
            apps.iter().all(|apps| apps.iter().all(|app| app.failure.is_none())),
            "seed {seed}: {apps:?}"
        );
    }
}

#[test]
fn marks_instead_of_losses() {
    let mut link = clean(100_000_000, MS);
    link.mark_above = 20;
    let back = clean(100_000_000, MS);
    for algorithm in ALL {
        let options = Options { ecn: true, ..options(algorithm) };
        let mut world = World::new(61, &options, [link, back]);
        world.connect(u64::MAX >> 8, None);
        world.run_to(ms(500));
        let before = (world.received(0), world.links[0].counters());
        world.run_to(ms(3_500));
        let tally = world.links[0].counters();
        let rate = (world.received(0) - before.0) as f64 * 8.0 / 3e6;
        assert!(tally.marked > before.1.marked, "{algorithm:?}: {tally:?}");
        assert_eq!(tally.queue_drops, before.1.queue_drops, "{algorithm:?}");
        assert!(rate > 80.0, "{algorithm:?}: {rate} Mbit/s");
        assert_eq!(world.hosts[0].info(0).timeouts, 0);
        assert!(world.hosts[0].info(0).ecn);
    }
}

#[test]
fn two_messages_a_second_apart_need_no_time_out() {
    let polled = Arc::new(AtomicU64::new(0));
    let link = clean(1_000_000_000, 5 * MS);
    for algorithm in ALL {
        let mut world = World::new(71, &options(algorithm), [link, link]);
        let counter = Arc::clone(&polled);
        world.links[0].rule = Some(Box::new(move |_, _| {
            counter.fetch_add(1, Relaxed);
            true
        }));
        let index = world.connect(100_000, None);
        for round in 1..=5u64 {
            assert!(world.run_until(ms(1000 * round), |world| world.received(0) == 100_000 * round));
            world.run_to(ms(1000 * round));
            world.hosts[0].apps[index].to_write = 100_000;
        }
        let info = world.hosts[0].info(index);
        assert_eq!((info.timeouts, info.retransmitted), (0, 0), "{algorithm:?}: {info:?}");
    }
    // Data, handshakes and few acknowledgements: no storm.
    assert!((4 * 5 * 70..4 * 5 * 100).contains(&polled.load(Relaxed)), "{}", polled.load(Relaxed));
}

#[test]
fn a_congestion_window_that_the_peers_window_limits_does_not_grow() {
    for algorithm in [ALL[0], ALL[1], ALL[2]] {
        let link = clean(1_000_000_000, 5 * MS);
        let options = Options { receive_buffer: 100_000, ..options(algorithm) };
        let mut world = World::new(81, &options, [link, link]);
        world.connect(u64::MAX >> 8, None);
        world.run_to(ms(3_000));
        let info = world.hosts[0].info(0);
        assert!(info.peer_window <= 100_000, "{algorithm:?}: {info:?}");
        // Bytes acknowledged while the window was still in use may have doubled it once more.
        assert!(info.congestion_window <= 200_000 + 1460 * 2, "{algorithm:?}: {info:?}");
    }
}

#[test]
fn a_way_that_becomes_longer_is_filled_again() {
    for algorithm in [ALL[1], ALL[3]] {
        let link = LinkConfig { queue_frames: 600, ..clean(100_000_000, 5 * MS) };
        let mut world = World::new(91, &options(algorithm), [link, link]);
        world.connect(u64::MAX >> 8, None);
        world.run_to(ms(2_000));
        for link in &mut world.links {
            link.config.delay = 40 * MS;
        }
        // BBR's shorter time expires after ten seconds, and it finds the rate by a quarter every few.
        world.run_to(ms(25_000));
        let before = world.received(0);
        world.run_to(ms(30_000));
        let rate = (world.received(0) - before) as f64 * 8.0 / 5e6;
        assert!(rate > 70.0, "{algorithm:?}: {rate} Mbit/s, {:?}", world.hosts[0].info(0));
    }
}

#[test]
fn a_path_that_carries_less_than_before_is_found_with_and_without_icmp() {
    const LESS: u16 = 1300;
    for reported in [true, false] {
        let mut world = warm(&options(ALL[1]), MS);
        // Segments that are too long: lost in silence, or with an error that quotes the first of them.
        let too_long = Arc::new(OnceLock::new());
        let seen = Arc::clone(&too_long);
        world.links[0].rule = Some(Box::new(move |_, packet| {
            let fits = packet.header.len() + packet.payload.len() + 20 <= usize::from(LESS);
            if !fits {
                seen.get_or_init(|| (packet.source, packet.destination, packet.seq()));
            }
            fits
        }));
        world.hosts[0].apps[0].to_write = 1_000_000;
        let begin = world.now;
        if reported {
            assert!(world.run_until(begin + 10 * MS, |_| too_long.get().is_some()));
            let (local, remote, seq) = *too_long.get().unwrap();
            let error = SegmentIcmpError { local, remote, seq, kind: IcmpKind::TooBig(LESS) };
            let now = world.now;
            assert!(world.hosts[0].endpoint.on_icmp_error(now, &error));
        }
        let limit = if reported { 100 * MS } else { 5000 * MS };
        let done = world.run_until(begin + limit, |world| world.received(0) == 1_200_000);
        let info = world.hosts[0].info(0);
        assert!(done, "reported: {reported}, {:?}: {info:?}", world.now - begin);
        assert!(info.mss + 52 <= LESS, "reported: {reported}, {info:?}");
        assert_eq!(info.timeouts == 0, reported, "{info:?}");
    }
}
