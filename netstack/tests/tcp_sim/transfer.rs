//! One transfer over a link that loses chosen segments, or many: how much is sent again, and how large segments stay.

use core::time::Duration;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use shouter_netstack::cc::Algorithm;
use shouter_netstack::sim::{LinkConfig, Rule, tcp::Segment};
use shouter_netstack::tcp::{Info, Options};
use shouter_netstack::time::Instant;

use super::network::clean;
use super::world::{World, ms};

const MS: Duration = Duration::from_millis(1);

/// The results of a transfer.
#[derive(Debug)]
struct Outcome {
    took: Duration,
    info: Info,
    /// Segments with payload, those that were lost included.
    sent: u64,
}

fn newreno() -> Options {
    Options { congestion: Algorithm::NewReno, ..Options::internet() }
}

/// Sends `bytes`; segments with payload whose number `loses` returns true for, counted from 1, are lost.
fn transfer(
    seed: u64,
    bytes: u64,
    options: &Options,
    links: [LinkConfig; 2],
    loses: impl Fn(u64) -> bool + Send + 'static,
) -> Outcome {
    let mut world = World::new(seed, options, links);
    let count = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&count);
    let rule: Rule<Segment> =
        Box::new(move |_, segment| segment.payload.is_empty() || !loses(counted.fetch_add(1, Relaxed) + 1));
    world.links[0].rule = Some(rule);
    world.super_segment = 1448;
    let index = world.connect(bytes, None);
    assert!(world.run_until(ms(600_000), |world| world.received(0) == bytes), "seed {seed}");
    let took = world.now - Instant::ZERO;
    // The last acknowledgements.
    world.run_to(world.now + Duration::from_secs(1));
    Outcome { took, info: world.hosts[0].info(index), sent: count.load(Relaxed) }
}

/// A gigabit a second with a queue of a megabyte.
fn gigabit() -> LinkConfig {
    LinkConfig { queue_frames: 700, ..clean(1_000_000_000, 5 * MS) }
}

#[test]
fn a_clean_link_needs_no_resend() {
    let outcome = transfer(0, 1 << 20, &newreno(), [gigabit(); 2], |_| false);
    assert_eq!((outcome.info.retransmitted, outcome.info.timeouts), (0, 0), "{outcome:?}");
    // A handshake, and slow start from ten segments: 1 MiB needs 7 round trips at most.
    assert!(outcome.took < 100 * MS, "{outcome:?}");
}

#[test]
fn losses_are_repaired_without_time_outs() {
    let lossy = LinkConfig { loss: 0.01, ..gigabit() };
    let timeouts = |seed| {
        let outcome = transfer(seed, 1 << 20, &newreno(), [lossy, gigabit()], |_| false);
        assert!(outcome.info.retransmitted > 0, "seed {seed}: {outcome:?}");
        outcome.info.timeouts
    };
    // Only a lost SYN, or a lost retransmission at the very end, can need one.
    let timeouts: u64 = (0..20).map(timeouts).sum();
    assert!(timeouts <= 2, "{timeouts} time-outs");
}

#[test]
fn one_lost_segment_anywhere_is_repaired_by_one_resend() {
    for sack in [true, false] {
        let options = Options { sack, ..newreno() };
        let all = transfer(0, 200_000, &options, [gigabit(); 2], |_| false).sent;
        // Without SACK three duplicate acknowledgements are needed.
        for number in if sack { 1..=all } else { 10..=all - 10 } {
            let outcome = transfer(0, 200_000, &options, [gigabit(); 2], move |sent| sent == number);
            assert_eq!(outcome.info.timeouts, 0, "SACK {sack}, segment {number}: {outcome:?}");
            assert_eq!(outcome.sent, all + 1, "SACK {sack}, segment {number}: {outcome:?}");
        }
    }
}

#[test]
fn an_outage_leaves_no_small_segments_behind() {
    let outcome = transfer(0, 4 << 20, &newreno(), [gigabit(); 2], |sent| (200..280).contains(&sent));
    assert_eq!(outcome.info.mss, 1448, "{outcome:?}");
}

#[test]
fn heavy_loss_leaves_no_small_segments_behind() {
    for seed in 0..10 {
        let lossy = LinkConfig { loss: 0.15, ..clean(1_000_000_000, MS / 20) };
        let outcome = transfer(seed, 2 << 20, &newreno(), [lossy; 2], |_| false);
        assert!(outcome.info.mss > 1400, "seed {seed}: {outcome:?}");
        assert!(outcome.took < Duration::from_secs(60), "seed {seed}: {outcome:?}");
    }
}
