//! BBR on a path: it finds the rate, keeps the queue short, gives way and comes back.

use core::time::Duration;

use super::MS;
use super::path::{Bottleneck, MSS, World};
use crate::cc::{Algorithm, Congestion};
use crate::time::Instant;

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Bytes a second between two times.
fn rate(world: &mut World, from: Duration, to: Duration) -> f64 {
    world.run(from);
    let before: u64 = world.flows.iter().map(|flow| flow.delivered).sum();
    world.run(to);
    let after: u64 = world.flows.iter().map(|flow| flow.delivered).sum();
    (after - before) as f64 / (to - from).as_secs_f64()
}

#[test]
fn it_finds_the_rate_within_a_few_rounds() {
    let path = Bottleneck { queue: 1000 * MSS, ..Bottleneck::small() };
    let mut world = World::one(path, Algorithm::Bbr, 1);
    let got = rate(&mut world, 200 * MS, seconds(3));
    assert!(got > 0.95 * path.bytes_per_second as f64, "{got}");
    assert_eq!(world.flows[0].losses, 0);
}

#[test]
fn it_leaves_a_deep_queue_short_where_newreno_fills_it() {
    let path = Bottleneck { queue: 1000 * MSS, ..Bottleneck::small() };
    let mut mean = [0.0; 2];
    for (mean, algorithm) in mean.iter_mut().zip([Algorithm::Bbr, Algorithm::NewReno]) {
        let mut world = World::one(path, algorithm, 1);
        for step in 0..900 {
            world.run(seconds(1) + 10 * MS * (step + 1));
            *mean += world.backlog() as f64 / MSS as f64 / 900.0;
        }
    }
    assert!(mean[0] < 40.0, "{mean:?}");
    assert!(mean[1] > 4.0 * mean[0], "{mean:?}");
}

#[test]
fn random_loss_of_one_percent_costs_it_little() {
    let path = Bottleneck { loss: 0.01, ..Bottleneck::small() };
    let mut bbr = World::one(path, Algorithm::Bbr, 1);
    let got = rate(&mut bbr, seconds(1), seconds(20));
    // Each round has a loss here, which lowers the short-term bounds until the next probing.
    assert!(got > 0.6 * path.bytes_per_second as f64, "{got}");
    let mut reno = World::one(path, Algorithm::NewReno, 1);
    let reno = rate(&mut reno, seconds(1), seconds(20));
    assert!(got > 4.0 * reno, "{got} against {reno}");
}

#[test]
fn a_shallow_queue_loses_little() {
    let path = Bottleneck { queue: 20 * MSS, ..Bottleneck::small() };
    let mut world = World::one(path, Algorithm::Bbr, 1);
    let got = rate(&mut world, seconds(2), seconds(20));
    assert!(got > 0.85 * path.bytes_per_second as f64, "{got}");
    let flow = &world.flows[0];
    let share = flow.losses as f64 * MSS as f64 / flow.delivered as f64;
    assert!(share < 0.03, "{share}");
    assert_eq!(flow.timeouts, 0);
}

#[test]
fn it_comes_down_when_the_rate_does_and_up_again() {
    let path = Bottleneck { queue: 200 * MSS, ..Bottleneck::small() };
    let mut world = World::one(path, Algorithm::Bbr, 1);
    world.run(seconds(3));
    world.path.bytes_per_second /= 4;
    let slow = rate(&mut world, seconds(10), seconds(13));
    assert!(slow > 0.85 * path.bytes_per_second as f64 / 4.0, "{slow}");
    let backlog = world.backlog();
    assert!(backlog < 100 * MSS, "{backlog}");
    world.path.bytes_per_second *= 4;
    let fast = rate(&mut world, seconds(25), seconds(28));
    assert!(fast > 0.85 * path.bytes_per_second as f64, "{fast}");
}

#[test]
fn every_five_seconds_it_empties_the_pipe_to_see_its_length() {
    let path = Bottleneck { queue: 1000 * MSS, ..Bottleneck::small() };
    let mut world = World::one(path, Algorithm::Bbr, 1);
    world.run(seconds(1));
    let mut lows = Vec::new();
    for step in 0..1400 {
        let now = seconds(1) + 10 * MS * (step + 1);
        world.run(now);
        if world.flows[0].controller.window() <= 60 * MSS {
            lows.push(now);
        }
    }
    // Twice or so in 14 s, about 200 ms each.
    assert!((30..=90).contains(&lows.len()), "{lows:?}");
    assert!(lows.last().unwrap().saturating_sub(lows[0]) > seconds(4), "{lows:?}");
}

#[test]
fn after_a_pause_it_goes_on_at_its_rate_without_a_burst() {
    let path = Bottleneck::small();
    let mut world = World::one(path, Algorithm::Bbr, 1);
    world.flows[0].pause = Some((2_000_000_000, 3_000_000_000));
    world.run(Duration::from_millis(2990));
    let losses = world.flows[0].losses;
    let got = rate(&mut world, Duration::from_millis(3030), Duration::from_millis(3500));
    assert!(got > 0.9 * path.bytes_per_second as f64, "{got}");
    assert_eq!(world.flows[0].losses, losses);
}

#[test]
fn a_time_out_leaves_one_segment_and_an_undo_gives_the_window_back() {
    let mut world = World::one(Bottleneck::small(), Algorithm::Bbr, 1);
    world.run(seconds(2));
    let controller = &mut world.flows[0].controller;
    let before = controller.window();
    controller.on_congestion(Instant::from_nanos(2_000_000_000), Congestion::Timeout, before);
    assert_eq!(controller.window(), MSS);
    controller.undo(Instant::from_nanos(2_000_000_001));
    assert_eq!(controller.window(), before);
}
