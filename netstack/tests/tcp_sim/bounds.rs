//! Bounds of loss-based congestion control, which ours reaches.

use core::time::Duration;

use shouter_netstack::cc::Algorithm;
use shouter_netstack::sim::LinkConfig;
use shouter_netstack::tcp::Options;

use super::goodput::{ALL, goodput, options};
use super::network::clean;
use super::world::World;

/// Mbit/s at 1% of random loss of data and 1 ms of round-trip time.
fn at_one_percent(options: &Options, seed: u64) -> f64 {
    // The time on the line counts: a millisecond in all.
    let bbr = options.congestion == Algorithm::Bbr;
    let (rate, span) = if bbr { (1_000_000_000, 500) } else { (10_000_000_000, 8000) };
    let link = clean(rate, Duration::from_nanos(499_300));
    let lossy = LinkConfig { loss: 0.01, ..link };
    let mut world = World::new(seed, options, [lossy, link]);
    world.connect(u64::MAX >> 8, None);
    let got = goodput(&mut world, 500, span) / 1e6;
    let info = world.hosts[0].info(0);
    assert_eq!(info.mss, 1448, "the bound is for this size");
    got
}

/// `MSS / RTT * sqrt(3 / 2) / sqrt(p)` (Mathis, Semke, Mahdavi, Ott 1997).
const MATHIS: f64 = 1448.0 * 8.0 / 1e-3 * 1.224_744_9 / 0.1 / 1e6;

#[test]
fn each_controller_reaches_seven_eighths_of_the_mathis_bound_and_cubic_is_not_below_newreno() {
    let got = ALL.map(|algorithm| {
        let rates = [21, 22, 23].map(|seed| at_one_percent(&options(algorithm), seed));
        rates.iter().sum::<f64>() / rates.len() as f64
    });
    for (algorithm, got) in ALL.iter().zip(got) {
        // The bound lets every acknowledgement make the window larger; the duplicate ones before a recovery do not.
        assert!(got >= 0.875 * MATHIS, "{algorithm:?}: {got} Mbit/s, the bound is {MATHIS}");
    }
    assert!(got[1] >= got[0], "CUBIC {} below NewReno {}", got[1], got[0]);
}

#[test]
fn without_sack_and_timestamps_newreno_still_gets_through() {
    let options =
        Options { sack: false, timestamps: false, congestion: Algorithm::NewReno, ..Options::internet() };
    let link = clean(100_000_000, Duration::from_millis(1));
    let lossy = LinkConfig { loss: 0.01, ..link };
    let mut world = World::new(24, &options, [lossy, link]);
    world.connect(u64::MAX >> 8, None);
    let got = goodput(&mut world, 500, 8000) / 1e6;
    let info = world.hosts[0].info(0);
    // A recovery repairs a loss per round trip, and a lost retransmission costs a time-out: a tenth of the bound.
    assert!(got > 0.1 * MATHIS / 2.0, "{got} Mbit/s; {info:?}");
}
