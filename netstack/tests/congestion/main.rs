//! RUD's congestion control (`rud/spec.md` section 7) on simulated ports: incast, fairness, loss, reordering, buffers, pauses.
//!
//! Every test prints what it has measured: `cargo test -p shouter-netstack --test congestion -- --nocapture`.

mod flow;
mod world;

use core::time::Duration;

use shouter_netstack::cc::Algorithm;
use shouter_netstack::rud::Counters;
use shouter_netstack::sim::{LinkConfig, Packet as _};
use world::{OPENED, Scenario, World};

const MS: Duration = Duration::from_millis(1);

/// The results of a run in which all send at once.
#[derive(Debug)]
struct Outcome {
    drops: f64,
    utilisation: f64,
    /// The queue that was exceeded for 1% of the time, in bandwidth-delay products.
    queue: f64,
    /// The last of 100 senders by the time that a full line would have taken.
    completion: f64,
    resent: f64,
}

/// All senders send so many bytes in all, each as many.
fn incast(scenario: Scenario, bytes: u64) -> Outcome {
    let senders = scenario.senders as u64;
    let rtt = scenario.rtt;
    let line = scenario.mtu as u64 + 38;
    let bdp = scenario.bdp();
    let rate = scenario.port.bits_per_second as f64;
    let mut world = World::new(scenario);
    let each = bytes / senders / line;
    world.send_each(each);
    world.run(rtt + Duration::from_micros(1), |_| false);
    let (from, carried) = (world.now, world.carried);
    // As long as all have something to send.
    world.run(1000 * MS, |world| world.hosts.iter().any(|host| host.done.is_some()));
    let utilisation = world.utilisation(from, carried);
    world.complete(1000 * MS);
    let ideal = (each * senders * line * 8) as f64 / rate + rtt.as_secs_f64();
    let mut ends: Vec<_> = world.hosts.iter().filter_map(|host| host.done).collect();
    ends.sort();
    let last = ends[(ends.len() * 99).div_ceil(100) - 1] - OPENED;
    let counters = world.port.counters();
    let count = |each: fn(&shouter_netstack::rud::Counters) -> u64| -> u64 {
        (0..senders as usize).map(|sender| each(&world.counters(sender))).sum()
    };
    Outcome {
        drops: counters.queue_drops as f64 / counters.sent as f64,
        utilisation,
        queue: world.queue_exceeded_for(0.01) as f64 / bdp,
        completion: last.as_secs_f64() / ideal,
        resent: count(|c| c.resent) as f64 / count(|c| c.sent) as f64,
    }
}

#[test]
fn incast_fills_the_link_and_not_the_buffer() {
    for mark_above_bytes in [usize::MAX, 80_000] {
        for senders in [8, 16, 64] {
            let mut scenario = Scenario::incast(senders);
            scenario.port.mark_above_bytes = mark_above_bytes;
            let outcome = incast(scenario, 200_000_000);
            println!("incast of {senders}, marks above {mark_above_bytes}: {outcome:.3?}");
            assert!(outcome.drops < 0.001, "{senders} senders: {outcome:?}");
            assert!(outcome.utilisation > 0.95, "{senders} senders: {outcome:?}");
            assert!(outcome.queue < 2.0, "{senders} senders: {outcome:?}");
            assert!(outcome.completion < 1.5, "{senders} senders: {outcome:?}");
        }
    }
}

/// Some of them send a datagram in several round trips.
#[test]
fn more_senders_than_datagrams_fit_the_link_share_it_by_pacing() {
    for mark_above_bytes in [usize::MAX, 80_000] {
        let mut scenario = Scenario::incast(256);
        scenario.port.queue_bytes = 8_000_000;
        scenario.port.mark_above_bytes = mark_above_bytes;
        let mut world = World::new(scenario);
        world.send_each(10_000);
        world.run(2 * MS, |_| false);
        let (from, carried) = (world.now, world.carried);
        world.queue.clear();
        world.run(3 * MS, |_| false);
        let utilisation = world.utilisation(from, carried);
        let queue = world.queue_exceeded_for(0.01) as f64 / world.scenario.bdp();
        let paced = (0..256).filter(|sender| world.counters(*sender).paced > MS).count();
        println!(
            "256 senders after 2 ms, marks above {mark_above_bytes}: {utilisation:.3} of the link, queue {queue:.2}, {paced} were paced"
        );
        assert!(utilisation > 0.8 && queue < 3.0 && paced > 150, "{utilisation} {queue} {paced}");
        assert_eq!(world.port.counters().queue_drops, 0);
    }
}

/// Goodput of a single sender as a share of the line, resends, and time-outs.
fn single(scenario: Scenario, time: Duration) -> (f64, Outcome) {
    let rtt = scenario.rtt;
    let bdp = scenario.bdp();
    let mut world = World::new(scenario);
    world.send_each(u64::MAX / 2);
    world.run(20 * rtt, |_| false);
    let (from, carried, arrived) = (world.now, world.carried, world.arrived(0));
    world.run(time, |_| false);
    let goodput = (world.arrived(0) - arrived) as f64 * 8.0
        / (world.now - from).as_secs_f64()
        / world.scenario.port.bits_per_second as f64;
    let counters = world.counters(0);
    let port = world.port.counters();
    let outcome = Outcome {
        drops: port.queue_drops as f64 / port.sent as f64,
        utilisation: world.utilisation(from, carried),
        queue: world.queue_exceeded_for(0.01) as f64 / bdp,
        completion: 0.0,
        resent: counters.resent as f64 / counters.sent as f64,
    };
    (goodput, outcome)
}

#[test]
fn random_loss_costs_no_more_than_itself() {
    for mark_above_bytes in [usize::MAX, 80_000] {
        let run = |loss| {
            let mut scenario = Scenario::incast(1);
            scenario.port = LinkConfig { loss, mark_above_bytes, ..scenario.port };
            single(scenario, 10 * MS)
        };
        let ((clean, _), (lossy, outcome)) = (run(0.0), run(0.01));
        println!(
            "1% random loss, marks above {mark_above_bytes}: goodput {clean:.3} -> {lossy:.3}, {outcome:.3?}"
        );
        assert!(clean > 0.9 && lossy > 0.9 * clean, "{clean} -> {lossy}");
    }
}

#[test]
fn reordering_is_not_loss() {
    let mut scenario = Scenario::incast(1);
    scenario.port.reorder = 0.05;
    scenario.port.reorder_by = Duration::from_micros(10);
    let (goodput, outcome) = single(scenario, 20 * MS);
    println!("5% reordered by up to 10 us: goodput {goodput:.3}, {outcome:.4?}");
    assert!(outcome.resent < 0.001 && goodput > 0.9, "{goodput} {outcome:?}");
}

#[test]
fn two_senders_are_soon_even() {
    for mark_above_bytes in [usize::MAX, 80_000] {
        let mut scenario = Scenario::incast(2);
        scenario.port.mark_above_bytes = mark_above_bytes;
        let mut world = World::new(scenario);
        world.send_each(u64::MAX / 2);
        world.hosts[1].starts = world.now + 5 * MS;
        world.run(10 * MS, |_| false);
        let before = [0, 1].map(|sender| world.arrived(sender));
        world.run(10 * MS, |_| false);
        let [first, second] = [0, 1].map(|sender| (world.arrived(sender) - before[sender]) as f64);
        println!(
            "two senders, marks above {mark_above_bytes}: the second has {:.3} of the first's",
            second / first
        );
        assert!((0.67..1.5).contains(&(second / first)), "{first} {second}");
    }
}

#[test]
fn a_sender_that_is_alone_again_has_the_link_soon() {
    let mut world = World::new(Scenario::incast(2));
    world.send_each(u64::MAX / 2);
    world.run(5 * MS, |_| false);
    world.hosts[1].to_send = 0;
    world.run(MS, |_| false);
    let (from, carried) = (world.now, world.carried);
    world.run(2 * MS, |_| false);
    let utilisation = world.utilisation(from, carried);
    println!("alone again: {utilisation:.3}");
    assert!(utilisation > 0.95, "{utilisation}");
}

#[test]
fn a_shallow_buffer_and_a_deep_one_are_filled_by_nobody() {
    for (senders, queue_bytes) in [(1, 48_000), (2, 48_000), (8, 48_000), (2, 16_000_000), (16, 16_000_000)] {
        let mut scenario = Scenario::incast(senders);
        scenario.port.queue_bytes = queue_bytes;
        // Each sender's line is the port's: a single one has its queue at home.
        let outcome = incast(scenario, 100_000_000);
        println!("{senders} senders, buffer of {queue_bytes}: {outcome:.4?}");
        assert!(outcome.utilisation > 0.9 && outcome.drops < 0.05, "{outcome:?}");
        assert!(queue_bytes < 1_000_000 || outcome.queue < 2.5, "{outcome:?}");
    }
}

#[test]
fn a_policer_is_heeded() {
    let mut scenario = Scenario::incast(1);
    scenario.rtt = Duration::from_micros(50);
    let rate = 10e9;
    let mut world = World::new(scenario);
    // A token bucket of 64 KB.
    let (mut tokens, mut last) = (64e3, world.now);
    world.port.rule = Some(Box::new(move |now, packet| {
        tokens = (tokens + (now - last).as_secs_f64() * rate / 8.0).min(64e3);
        last = now;
        let passes = tokens >= packet.line_len() as f64;
        tokens -= if passes { packet.line_len() as f64 } else { 0.0 };
        passes
    }));
    world.send_each(u64::MAX / 2);
    world.run(2 * MS, |_| false);
    let (from, carried, before) = (world.now, world.carried, world.port.counters());
    world.run(20 * MS, |_| false);
    let share = world.utilisation(from, carried) * 10.0;
    let after = world.port.counters();
    let lost = (after.lost - before.lost) as f64 / (after.sent - before.sent) as f64;
    println!("a policer at a tenth of the link: {share:.3} of its rate, {lost:.3} lost");
    assert!(share > 0.9 && lost < 0.25, "{share} {lost}");
}

#[test]
fn a_host_that_pauses_is_no_queue() {
    let run = |pauses: f64| {
        let mut world = World::new(Scenario { seed: 3, ..Scenario::incast(1) });
        world.pauses = (pauses, 5 * MS);
        world.send_each(u64::MAX / 2);
        // Rates are of the time in which neither end pauses.
        let mut running = Duration::ZERO;
        let mut windows = Vec::new();
        let (mut carried, end) = (0, world.now + 300 * MS);
        while world.now < end {
            let (now, before) = (world.now, world.carried);
            let paused = world.hosts.iter().any(|host| host.paused_until > now);
            world.run(Duration::from_micros(20), |_| false);
            if !paused {
                running += world.now - now;
                carried += world.carried - before;
                windows.push(world.counters(0).window);
            }
        }
        windows.sort_unstable();
        let rate = carried as f64 * 8.0 / running.as_secs_f64() / 1e11;
        (rate, windows[windows.len() / 10], world.counters(0))
    };
    let (rate, window, counters) = run(50.0);
    println!(
        "pauses of 5 ms, 50 a second at each end: {rate:.3} of the link between them, window {window} in the least tenth, {counters:?}"
    );
    assert!(rate > 0.8, "{rate} {window}");
}

#[test]
fn a_jumbo_link_is_full_within_a_few_round_trips() {
    let mut scenario = Scenario::incast(1);
    scenario.mtu = 9000;
    let rtt = scenario.rtt;
    let mut world = World::new(scenario);
    world.send_each(u64::MAX / 2);
    world.run(5 * rtt, |_| false);
    let (from, carried) = (world.now, world.carried);
    world.run(5 * MS, |_| false);
    let utilisation = world.utilisation(from, carried);
    println!("MTU 9000 after five round trips: {utilisation:.3}");
    assert!(utilisation > 0.95, "{utilisation}");
}

/// A probe of full length finds no room where a short one does, and that is no path that narrowed.
#[test]
fn buffers_that_are_too_small_for_long_datagrams_narrow_no_path() {
    for (senders, queue_bytes) in [(32, 40_000), (64, 60_000), (128, 100_000)] {
        let mut scenario = Scenario::incast(senders);
        scenario.mtu = 9000;
        scenario.port.queue_bytes = queue_bytes;
        let mut world = World::new(scenario);
        world.send_each(200);
        world.complete(Duration::from_secs(10));
        let sum =
            |figure: fn(&Counters) -> u64| (0..senders).map(|n| figure(&world.counters(n))).sum::<u64>();
        let (lost, pieces) = (sum(|counters| counters.lost), sum(|counters| counters.pieces));
        println!("incast of {senders} at MTU 9000 into {queue_bytes} bytes: {lost} lost, {pieces} pieces");
        assert!(lost > 100, "{senders}: the buffer was to overflow, {lost} lost");
        assert_eq!(pieces, 0, "{senders}");
    }
}

/// Rounds, as long as with a full buffer, for which sessions are watched beside TCP, after a third of that.
const WATCHED: u32 = 400;

/// A port that marks nothing: Gb/s, and microseconds of a round trip.
type Port = (u64, u64);

/// The buffer is in tenths of a bandwidth-delay product.
fn unmarked(senders: usize, (rate, rtt): Port, tenths: u32, seed: u64) -> Scenario {
    let mut scenario = Scenario { seed, ..Scenario::incast(senders) };
    scenario.rtt = Duration::from_micros(rtt);
    scenario.port.bits_per_second = rate * 1_000_000_000;
    scenario.port.queue_bytes = (scenario.bdp() * f64::from(tenths) / 10.0) as usize;
    scenario
}

/// Sessions beside one TCP connection with CUBIC: the world after so long, what a session has on average by what the connection has, and the share of
/// the line that all have.
fn beside_cubic(scenario: Scenario) -> (World, f64, f64) {
    let senders = scenario.senders;
    let rate = scenario.port.bits_per_second as f64;
    let round = round(&scenario);
    let mut world = World::new(scenario);
    world.send_each(u64::MAX / 2);
    world.send_beside(Algorithm::Cubic);
    let read = |world: &World| {
        let all: u64 = (0..senders).map(|sender| world.arrived(sender)).sum();
        (all, world.beside.as_ref().map_or(0, |flow| flow.read))
    };
    world.run(WATCHED / 3 * round, |_| false);
    let (before, at) = (read(&world), world.now);
    world.run(WATCHED * round, |_| false);
    let after = read(&world);
    let (rud, cubic) = ((after.0 - before.0) as f64, (after.1 - before.1) as f64);
    let share = (rud + cubic) * 8.0 / (world.now - at).as_secs_f64() / rate;
    (world, rud / senders as f64 / cubic, share)
}

/// A round trip with a full buffer.
fn round(scenario: &Scenario) -> Duration {
    scenario.rtt.mul_f64(1.0 + scenario.port.queue_bytes as f64 / scenario.bdp())
}

/// The queue that is exceeded for 1% of the time once the connection has ended, in bandwidth-delay products.
fn queue_afterwards(mut world: World) -> f64 {
    let round = round(&world.scenario);
    world.beside = None;
    world.run(WATCHED * round, |_| false);
    world.queue.clear();
    world.run(WATCHED / 3 * round, |_| false);
    world.queue_exceeded_for(0.01) as f64 / world.scenario.bdp()
}

/// Alone, a session keeps its delay, which is the least beside a sender that fills the buffer. A session has between a third of the connection's share
/// and twice as much.
#[test]
fn a_sender_that_fills_the_buffer_leaves_some_of_the_link() {
    for (senders, port, tenths) in
        [(1, (100, 10), 20), (1, (100, 10), 40), (1, (10, 50), 18), (1, (10, 50), 20), (4, (10, 50), 24)]
    {
        for seed in [11, 12] {
            let (world, ratio, used) = beside_cubic(unmarked(senders, port, tenths, seed));
            let queue = queue_afterwards(world);
            println!(
                "{senders} beside CUBIC, {port:?}, buffer of {:.1}, seed {seed}: {ratio:.2} of it, {used:.3} of the line; then a queue of {queue:.2}",
                f64::from(tenths) / 10.0,
            );
            assert!((1.0 / 3.0..2.0).contains(&ratio), "{senders}, {port:?}, {tenths}, {seed}: {ratio}");
            assert!(used > 0.9 && queue < 2.0, "{senders}, {port:?}, {tenths}, {seed}: {used} {queue}");
        }
    }
}

/// The table in docs/benchmarks.md, "RUD beside TCP", which it prints.
#[test]
fn most_buffers_and_seeds_leave_a_session_its_share() {
    if std::env::var_os("SHOUTER_TEST_LONG").is_none() {
        println!(
            "skipped: all buffers beside CUBIC take minutes; `scripts/test beside`, or SHOUTER_TEST_LONG=1, runs them"
        );
        return;
    }
    const ALL: &[u32] = &[7, 10, 11, 12, 13, 14, 16, 18, 20, 22, 24, 30, 40];
    const SOME: &[u32] = &[10, 12, 14, 16, 20, 24, 30, 40];
    let (mut runs, mut fair, mut starved) = (0, 0, 0);
    for (senders, port, buffers) in [
        (1, (100, 10), ALL),
        (1, (25, 20), ALL),
        (1, (10, 50), ALL),
        (1, (10, 100), SOME),
        (4, (100, 10), SOME),
        (4, (10, 50), SOME),
    ] {
        for &tenths in buffers {
            let mut ratios = [11, 12, 13, 14, 15, 16, 17, 18]
                .map(|seed| beside_cubic(unmarked(senders, port, tenths, seed)).1);
            ratios.sort_by(f64::total_cmp);
            let count =
                |range: core::ops::Range<f64>| ratios.iter().filter(|ratio| range.contains(ratio)).count();
            let (these, none) = (count(1.0 / 3.0..2.0), count(0.0..0.1));
            println!(
                "{senders} beside CUBIC, {port:?}, buffer of {:.1}: {:.2} to {:.2} of it, {these} of 8 fair, {none} starved",
                f64::from(tenths) / 10.0,
                ratios[0],
                ratios[7],
            );
            (runs, fair, starved) = (runs + 8, fair + these, starved + none);
        }
    }
    println!("{fair} of {runs} are fair, {starved} starved");
    assert!(5 * fair >= 3 * runs && 20 * starved <= runs, "{fair} and {starved} of {runs}");
}
