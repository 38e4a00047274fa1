//! Each controller on a path that a hundred packets fill: the shares of the line and of the queue that it takes, and
//! its losses.

use core::time::Duration;
use std::fmt::Write as _;

use shouter_netstack::cc::Algorithm;
use shouter_netstack::sim::LinkConfig;
use shouter_netstack::tcp::{Info, Options};

use super::goodput::{ALL, check, goodput, options};
use super::network::clean;
use super::world::{World, ms};

/// A packet of 1538 bytes on the line takes half a millisecond.
const BITS_PER_SECOND: u64 = 24_608_000;
const RTT: Duration = Duration::from_millis(50);
/// Payload bits a second of a full line.
const LINE: f64 = 1448.0 * 8.0 / 0.0005;
const MSS: u64 = 1448;
const ENDLESS: u64 = u64::MAX >> 8;

/// At most `queue` packets wait.
fn bottleneck(queue: usize) -> LinkConfig {
    LinkConfig { queue_frames: queue, ..clean(BITS_PER_SECOND, RTT / 2) }
}

/// One connection that sends without end.
fn one(algorithm: Algorithm, link: LinkConfig) -> World {
    let mut world = World::new(1, &options(algorithm), [link, bottleneck(256)]);
    world.connect(ENDLESS, None);
    world
}

/// Packets that wait at the bottleneck, as the round-trip time says.
fn backlog(info: &Info) -> f64 {
    info.srtt.map_or(0.0, |srtt| srtt.saturating_sub(RTT).as_secs_f64() / 0.0005)
}

/// Looks at the connection every 10 ms from one time to another, in seconds.
fn watch(world: &mut World, from: u64, to: u64, mut look: impl FnMut(u64, &Info)) {
    for at in from * 100..to * 100 {
        world.run_to(ms(at * 10));
        look(at * 10, &world.hosts[0].info(0));
    }
}

#[test]
fn bbr_finds_the_rate_within_a_few_rounds_and_leaves_a_deep_queue_short_where_newreno_fills_it() {
    let mean = [Algorithm::Bbr, Algorithm::NewReno].map(|algorithm| {
        let mut world = one(algorithm, bottleneck(1000));
        let got = goodput(&mut world, 1000, 4000);
        assert!(algorithm != Algorithm::Bbr || got > 0.95 * LINE, "{got}");
        let mut sum = 0.0;
        watch(&mut world, 5, 50, |_, info| sum += backlog(info));
        assert!(algorithm != Algorithm::Bbr || world.links[0].counters().queue_drops == 0);
        sum / 4500.0
    });
    assert!(mean[0] < 40.0, "{mean:?}");
    assert!(mean[1] > 4.0 * mean[0], "{mean:?}");
}

#[test]
fn random_loss_of_one_percent_costs_bbr_little() {
    let [bbr, reno] = [Algorithm::Bbr, Algorithm::NewReno].map(|algorithm| {
        goodput(&mut one(algorithm, LinkConfig { loss: 0.01, ..bottleneck(100) }), 5000, 30_000)
    });
    // Each round has a loss here, which lowers the short-term bounds until the next probing.
    assert!(bbr > 0.6 * LINE, "{bbr}");
    assert!(bbr > 4.0 * reno, "{bbr} against {reno}");
}

#[test]
fn bbr_loses_little_in_a_shallow_queue() {
    let mut world = one(Algorithm::Bbr, bottleneck(20));
    let got = goodput(&mut world, 5000, 30_000);
    assert!(got > 0.85 * LINE, "{got}");
    let counters = world.links[0].counters();
    let share = counters.queue_drops as f64 / counters.sent as f64;
    assert!(share < 0.03, "{share}");
    assert_eq!(world.hosts[0].info(0).timeouts, 0);
}

#[test]
fn bbr_comes_down_when_the_rate_does_and_up_again() {
    let mut world = one(Algorithm::Bbr, bottleneck(200));
    world.run_to(ms(5000));
    world.links[0].config.bits_per_second /= 4;
    let slow = goodput(&mut world, 15_000, 5000);
    assert!(slow > 0.85 * LINE / 4.0, "{slow}");
    // Four times as long on the line.
    let backlog = backlog(&world.hosts[0].info(0)) / 4.0;
    assert!(backlog < 100.0, "{backlog}");
    world.links[0].config.bits_per_second *= 4;
    let fast = goodput(&mut world, 40_000, 5000);
    assert!(fast > 0.85 * LINE, "{fast}");
}

#[test]
fn every_five_seconds_bbr_empties_the_pipe_to_see_its_length() {
    let mut world = one(Algorithm::Bbr, bottleneck(1000));
    let mut lows = Vec::new();
    watch(&mut world, 2, 16, |at, info| {
        if info.congestion_window <= 60 * MSS {
            lows.push(at);
        }
    });
    // Twice or so in 14 s, about 200 ms each.
    assert!((30..=90).contains(&lows.len()), "{lows:?}");
    assert!(lows[lows.len() - 1] - lows[0] > 4000, "{lows:?}");
}

#[test]
fn after_a_pause_bbr_goes_on_at_its_rate_without_a_burst() {
    let options = Options { send_buffer: 500_000, ..options(Algorithm::Bbr) };
    let mut world = World::new(1, &options, [bottleneck(100), bottleneck(256)]);
    world.connect(ENDLESS, None);
    world.run_to(ms(3000));
    world.hosts[0].apps[0].to_write = 0;
    world.run_to(ms(4500));
    let info = world.hosts[0].info(0);
    assert_eq!(info.unacknowledged, 0, "{info:?}");
    let drops = world.links[0].counters().queue_drops;
    world.hosts[0].apps[0].to_write = ENDLESS;
    let got = goodput(&mut world, 4650, 2000);
    assert!(got > 0.9 * LINE, "{got}");
    assert_eq!(world.links[0].counters().queue_drops, drops);
}

#[test]
fn dctcp_keeps_a_marking_queue_short_and_the_line_busy() {
    let mut world = one(Algorithm::Dctcp, LinkConfig { mark_above: 20, ..bottleneck(100) });
    world.run_to(ms(10_000));
    let (before, mut deepest) = (world.received(0), 0f64);
    watch(&mut world, 10, 40, |_, info| deepest = deepest.max(backlog(info)));
    let rate = (world.received(0) - before) as f64 * 8.0 / 30.0;
    assert!(rate > 0.97 * LINE, "{rate}");
    assert!(deepest < 40.0, "{deepest}");
    assert_eq!(world.links[0].counters().queue_drops, 0);
}

#[test]
fn loss_based_controllers_fill_the_line_with_a_full_queue_and_answer_each_overflow_once() {
    for algorithm in [Algorithm::NewReno, Algorithm::Cubic] {
        let mut world = one(algorithm, bottleneck(100));
        let (mut answers, mut threshold) = (0, u64::MAX);
        watch(&mut world, 0, 60, |_, info| {
            answers += u64::from(info.slow_start_threshold != threshold);
            threshold = info.slow_start_threshold;
        });
        let rate = world.received(0) as f64 * 8.0 / 60.0;
        assert!(rate > 0.95 * LINE, "{algorithm:?}: {rate}");
        assert_eq!(world.hosts[0].info(0).timeouts, 0, "{algorithm:?}");
        assert!(answers >= 3, "{algorithm:?}: {answers} answers");
        // The first slow start overshoots; from then on a few packets each time.
        let drops = world.links[0].counters().queue_drops;
        assert!(drops < 150 + 8 * answers, "{algorithm:?}: {drops} lost, {answers} answers");
    }
}

#[test]
fn windows_stay_put_while_the_application_sends_little() {
    for algorithm in [Algorithm::NewReno, Algorithm::Cubic, Algorithm::Dctcp] {
        let mut world = World::new(1, &options(algorithm), [bottleneck(100); 2]);
        world.connect(0, None);
        for round in 1..=400 {
            world.hosts[0].apps[0].to_write = 4 * MSS;
            assert!(world.run_until(ms(60_000), |world| world.received(0) == round * 4 * MSS));
            // The last acknowledgement is there before more is written.
            world.run_to(world.now + RTT);
        }
        assert_eq!(world.hosts[0].info(0).congestion_window, 10 * MSS, "{algorithm:?}");
    }
}

/// A column per controller: window in packets, and the round-trip time in milliseconds.
fn table(into: &mut String, title: &str, link: LinkConfig, times: impl Iterator<Item = u64>) {
    let mut worlds = ALL.map(|algorithm| one(algorithm, link));
    writeln!(into, "{title}\n      ms     NewReno       Cubic       Dctcp         Bbr").unwrap();
    for time in times {
        write!(into, "{time:>8}").unwrap();
        for world in &mut worlds {
            world.run_to(ms(time));
            let info = world.hosts[0].info(0);
            let srtt = info.srtt.unwrap_or_default().as_millis();
            write!(into, "{:>7} {srtt:>4}", info.congestion_window / MSS).unwrap();
        }
        into.push('\n');
    }
    write!(into, "   Mbyte").unwrap();
    worlds.iter().for_each(|world| write!(into, "{:>12.2}", world.received(0) as f64 / 1e6).unwrap());
    write!(into, "\n    lost").unwrap();
    for world in &worlds {
        let counters = world.links[0].counters();
        write!(into, "{:>12}", counters.lost + counters.queue_drops).unwrap();
    }
    into.push_str("\n\n");
}

#[test]
fn the_table_of_windows_is_as_committed() {
    let mut text = String::from(
        "Window in packets and smoothed round-trip time in ms, over time; 100 packets fill the line of 50 ms, each takes 0.5 ms.\n\n",
    );
    let (rounds, seconds) = ((1..=20).map(|round| round * 50), (1..=24).map(|i| i * 500));
    let link = bottleneck(100);
    table(&mut text, "Start, a queue of 100", link, rounds);
    table(&mut text, "12 s, a queue of 100", link, seconds.clone());
    table(&mut text, "12 s, marks above 20", LinkConfig { mark_above: 20, ..link }, seconds.clone());
    table(&mut text, "12 s, 1% loss", LinkConfig { loss: 0.01, ..link }, seconds);
    check("windows.txt", &text);
}
