//! The RFCs' requirements on NewReno, CUBIC and DCTCP, an event at a time; and properties common to all controllers.

use core::time::Duration;

use proptest::prelude::*;

use super::{ALL, MS, MSS, ack, at, parameters};
use crate::cc::{
    AckSample, Algorithm, Congestion, Controller, Cubic, Dctcp, NewReno, Parameters, RateSample,
};
use crate::time::Instant;

/// One round trip in which the whole window is acknowledged, a packet at a time, beginning at `ms`.
fn round(controller: &mut dyn Controller, ms: u64, rtt: Duration) {
    let packets = controller.window() / MSS;
    for i in 0..packets {
        let in_flight = controller.window().max(MSS) - MSS;
        controller.on_ack(&AckSample {
            rtt: Some(rtt),
            now: at(ms) + 10 * MS * i as u32 / packets as u32,
            ..ack(ms, MSS, in_flight)
        });
    }
}

#[test]
fn slow_start_doubles_the_window_each_round() {
    for algorithm in [Algorithm::NewReno, Algorithm::Cubic, Algorithm::Dctcp] {
        let mut controller = algorithm.build(&parameters());
        let mut windows = vec![controller.window() / MSS];
        for i in 1..=4 {
            round(&mut *controller, i * 10, 10 * MS);
            windows.push(controller.window() / MSS);
        }
        assert_eq!(windows, [10, 20, 40, 80, 160], "{algorithm:?}");
        assert_eq!(controller.slow_start_threshold(), u64::MAX, "{algorithm:?}");
    }
}

#[test]
fn newreno_halves_on_loss_and_adds_a_segment_a_round() {
    let mut reno = NewReno::new(&parameters());
    for i in 1..=3 {
        round(&mut reno, i * 10, 10 * MS);
    }
    reno.on_congestion(at(40), Congestion::Loss, 80 * MSS);
    assert_eq!((reno.window(), reno.slow_start_threshold()), (40 * MSS, 40 * MSS));
    // A second report for the same window of data changes nothing, and neither does growth while it is repaired.
    reno.on_congestion(at(41), Congestion::Ecn, 40 * MSS);
    reno.on_ack(&AckSample { in_recovery: true, ..ack(42, 20 * MSS, 20 * MSS) });
    assert_eq!(reno.window(), 40 * MSS);
    reno.on_recovery_end(at(50));
    for i in 1..=10 {
        round(&mut reno, 50 + i * 10, 10 * MS);
        // Within a segment: acknowledgements of a growing window are a little less than a window.
        let packets = reno.window() as f64 / MSS as f64;
        assert!((packets - (40 + i) as f64).abs() < 0.5, "round {i}: {packets}");
    }
}

#[test]
fn cubic_follows_the_curve_of_its_rfc() {
    // So large that Reno is far below; 100 ms of round-trip time.
    let mut cubic = Cubic::new(&Parameters { mss: MSS as u32, initial_window: 1000 });
    cubic.on_congestion(at(0), Congestion::Loss, 1000 * MSS);
    cubic.on_recovery_end(at(0));
    assert_eq!(cubic.window(), 700 * MSS);
    // K is the cube root of 300 / 0.4.
    let k = 750f64.cbrt();
    let start = 100u64;
    let mut ms = start;
    while ms < start + 14_000 {
        let window = cubic.window();
        for _ in 0..10 {
            cubic.on_ack(&AckSample { srtt: Some(100 * MS), ..ack(ms, window / 10, window) });
            ms += 10;
        }
        // The window follows the curve one round behind the target.
        let t = (ms - start) as f64 / 1e3;
        let curve = |t: f64| 1000.0 + 0.4 * (t - k).powi(3);
        let packets = cubic.window() as f64 / MSS as f64;
        assert!(
            packets <= curve(t + 0.1) + 1.0 && packets >= curve(t - 0.2) - 1.0,
            "after {t} s: {packets}, the curve is at {}",
            curve(t)
        );
    }
}

#[test]
fn cubic_converges_fast_below_its_old_plateau() {
    let mut cubic = Cubic::new(&Parameters { mss: MSS as u32, initial_window: 100 });
    cubic.on_congestion(at(0), Congestion::Loss, 100 * MSS);
    cubic.on_recovery_end(at(10));
    cubic.on_congestion(at(20), Congestion::Loss, 70 * MSS);
    cubic.on_recovery_end(at(30));
    assert_eq!(cubic.window(), 49 * MSS);
    // The plateau is at 70 * 0.85 = 59.5: after K = cbrt(10.5 / 0.4) = 2.97 s the window is there, not at 70.
    let mut ms = 30;
    while ms < 3000 {
        let window = cubic.window();
        cubic.on_ack(&AckSample { srtt: Some(1000 * MS), ..ack(ms, window / 100, window) });
        ms += 10;
    }
    let packets = cubic.window() as f64 / MSS as f64;
    assert!((58.0..61.5).contains(&packets), "{packets}");
}

#[test]
fn cubic_is_as_fast_as_reno_where_windows_are_small() {
    // With 10 ms the curve is far below Reno's line: 0.53 segments a round until the old window is reached, then 1.
    let mut cubic = Cubic::new(&Parameters { mss: MSS as u32, initial_window: 20 });
    cubic.on_congestion(at(0), Congestion::Loss, 20 * MSS);
    cubic.on_recovery_end(at(10));
    let mut windows = Vec::new();
    for i in 0..20 {
        round(&mut cubic, 10 + i * 10, 10 * MS);
        windows.push(cubic.window() as f64 / MSS as f64);
    }
    assert!((windows[9] - (14.0 + 10.0 * 0.529)).abs() < 0.6, "{windows:?}");
    assert!((windows[19] - windows[14] - 5.0).abs() < 0.5, "{windows:?}");
}

#[test]
fn cubics_clock_stands_while_the_application_sends_little() {
    let mut cubic = Cubic::new(&Parameters { mss: MSS as u32, initial_window: 1000 });
    cubic.on_congestion(at(0), Congestion::Loss, 1000 * MSS);
    cubic.on_recovery_end(at(1));
    cubic.on_ack(&ack(100, MSS, 699 * MSS));
    let before = cubic.window();
    for ms in 101..60_000 {
        cubic.on_ack(&AckSample { window_limited: false, ..ack(ms, MSS, MSS) });
    }
    assert_eq!(cubic.window(), before, "a window that is not used does not grow");
    cubic.on_ack(&ack(60_000, 100 * MSS, 600 * MSS));
    // In a minute the curve would be at 50,000 segments, and the target at 1.5 windows.
    assert!(cubic.window() < before + 10 * MSS, "{}", cubic.window() / MSS);
}

#[test]
fn a_time_out_leaves_one_segment_and_only_the_first_lowers_the_threshold() {
    for (algorithm, threshold) in [(Algorithm::NewReno, 5), (Algorithm::Cubic, 7), (Algorithm::Dctcp, 5)] {
        let mut controller = algorithm.build(&parameters());
        for ms in [200, 600, 1400] {
            controller.on_congestion(at(ms), Congestion::Timeout, 10 * MSS);
            assert_eq!(controller.window(), MSS, "{algorithm:?}");
            assert_eq!(controller.slow_start_threshold(), threshold * MSS, "{algorithm:?}");
        }
        // Slow start to the threshold, then slower.
        for i in 0..2 {
            round(&mut *controller, 1500 + i * 10, 10 * MS);
        }
        assert_eq!(controller.window(), 4 * MSS, "{algorithm:?}");
        round(&mut *controller, 1520, 10 * MS);
        assert!(controller.window() < 8 * MSS, "{algorithm:?}: {}", controller.window());
    }
}

#[test]
fn an_undo_gives_back_what_a_loss_or_a_time_out_took_but_not_what_a_mark_did() {
    for algorithm in [Algorithm::NewReno, Algorithm::Cubic, Algorithm::Dctcp] {
        for kind in [Congestion::Loss, Congestion::Timeout] {
            let mut controller = algorithm.build(&parameters());
            controller.on_congestion(at(0), kind, 10 * MSS);
            assert!(controller.window() < 10 * MSS);
            controller.undo(at(1));
            assert_eq!(controller.window(), 10 * MSS, "{algorithm:?} {kind:?}");
            assert_eq!(controller.slow_start_threshold(), u64::MAX, "{algorithm:?} {kind:?}");
            // Only once.
            controller.on_congestion(at(2), Congestion::Ecn, 10 * MSS);
            let window = controller.window();
            controller.undo(at(3));
            assert_eq!(controller.window(), window, "{algorithm:?}: a mark stays");
        }
    }
}

#[test]
fn a_time_out_within_a_recovery_reduces_no_further_and_its_undo_gives_back_only_itself() {
    for (algorithm, packets) in [(Algorithm::NewReno, 5), (Algorithm::Cubic, 7), (Algorithm::Dctcp, 5)] {
        let mut controller = algorithm.build(&parameters());
        controller.on_congestion(at(0), Congestion::Loss, 10 * MSS);
        controller.on_congestion(at(200), Congestion::Timeout, 5 * MSS);
        assert_eq!(controller.window(), MSS, "{algorithm:?}");
        assert_eq!(controller.slow_start_threshold(), packets * MSS, "{algorithm:?}");
        controller.on_congestion(at(600), Congestion::Timeout, MSS);
        controller.undo(at(601));
        assert_eq!(controller.window(), packets * MSS, "{algorithm:?}");
        assert_eq!(controller.slow_start_threshold(), packets * MSS, "{algorithm:?}");
    }
}

#[test]
fn cubics_undo_gives_the_curve_back_too() {
    let grow = |disturbed: bool| {
        let mut cubic = Cubic::new(&Parameters { mss: MSS as u32, initial_window: 1000 });
        cubic.on_congestion(at(0), Congestion::Loss, 1000 * MSS);
        cubic.on_recovery_end(at(1));
        for ms in 1..4000 {
            if disturbed && ms == 2000 {
                cubic.on_congestion(at(ms), Congestion::Loss, 800 * MSS);
                cubic.undo(at(ms));
            }
            let window = cubic.window();
            cubic.on_ack(&ack(ms, window / 10, window));
        }
        cubic.window()
    };
    assert_eq!(grow(true), grow(false));
}

#[test]
fn an_idle_time_halves_the_window_per_time_out_down_to_the_initial_one() {
    for algorithm in [Algorithm::NewReno, Algorithm::Cubic, Algorithm::Dctcp] {
        let mut controller = algorithm.build(&parameters());
        for i in 1..=3 {
            round(&mut *controller, i * 10, 10 * MS);
        }
        controller.on_congestion(at(40), Congestion::Ecn, 80 * MSS);
        let window = controller.window();
        controller.on_idle_restart(at(100), 150 * MS, 200 * MS);
        assert_eq!(controller.window(), window, "{algorithm:?}: not idle for long");
        controller.on_idle_restart(at(300), 250 * MS, 200 * MS);
        assert_eq!(controller.window(), window / 2, "{algorithm:?}");
        assert!(controller.slow_start_threshold() >= window * 3 / 4, "{algorithm:?}");
        controller.on_idle_restart(at(100_000), 90_000 * MS, 200 * MS);
        assert_eq!(controller.window(), 10 * MSS, "{algorithm:?}");
    }
}

#[test]
fn hystart_leaves_slow_start_when_the_round_trip_time_stays_longer() {
    for algorithm in [Algorithm::NewReno, Algorithm::Cubic] {
        let mut controller = algorithm.build(&parameters());
        let mut windows = Vec::new();
        for i in 1..=9 {
            // From the third round on, 10 ms more.
            round(&mut *controller, i * 10, if i < 3 { 50 * MS } else { 60 * MS });
            windows.push(controller.window() / MSS);
        }
        // The round that has both times still doubles; then a quarter of that, for five rounds; then one by one.
        assert_eq!(windows[..3], [20, 40, 80], "{algorithm:?} {windows:?}");
        for i in 3..7 {
            let growth = windows[i] as f64 / windows[i - 1] as f64;
            assert!((1.2..1.3).contains(&growth), "{algorithm:?} {windows:?}");
        }
        assert!(controller.slow_start_threshold() < u64::MAX, "{algorithm:?} {windows:?}");
        assert!(windows[8] <= windows[7] + 2, "{algorithm:?} {windows:?}");
    }
}

#[test]
fn hystart_goes_back_to_doubling_when_it_was_jitter() {
    let mut reno = NewReno::new(&parameters());
    for (i, rtt) in [50, 60, 50, 50].into_iter().enumerate() {
        round(&mut reno, i as u64 * 10, rtt * MS);
    }
    let before = reno.window();
    round(&mut reno, 50, 50 * MS);
    assert!(reno.window() >= 2 * before - MSS, "{} after {before}", reno.window());
    assert_eq!(reno.slow_start_threshold(), u64::MAX);
}

#[test]
fn dctcps_alpha_follows_the_share_of_marks() {
    let mut dctcp = Dctcp::new(&parameters());
    assert_eq!(dctcp.alpha(), 1.0);
    // The first marks halve the window.
    dctcp.on_congestion(at(0), Congestion::Ecn, 10 * MSS);
    assert_eq!(dctcp.window(), 5 * MSS);
    // A quarter of all bytes marked, for long: alpha is a quarter, and a mark takes an eighth.
    for ms in 1..400 {
        dctcp.on_ack(&AckSample { marked: MSS, window_limited: false, ..ack(ms, 4 * MSS, 0) });
    }
    assert!((dctcp.alpha() - 0.25).abs() < 0.001, "{}", dctcp.alpha());
    let mut big = Dctcp::new(&Parameters { mss: MSS as u32, initial_window: 800 });
    for ms in 1..400 {
        big.on_ack(&AckSample { marked: 250 * MSS, window_limited: false, ..ack(ms, 1000 * MSS, 0) });
    }
    big.on_congestion(at(400), Congestion::Ecn, 800 * MSS);
    assert!((699..=701).contains(&(big.window() / MSS)), "{}", big.window() / MSS);
    // Without marks alpha goes to zero; a loss still halves.
    for ms in 400..900 {
        big.on_ack(&AckSample { window_limited: false, ..ack(ms, 1000 * MSS, 0) });
    }
    assert_eq!(big.alpha(), 0.0);
    let before = big.window();
    big.on_congestion(at(1000), Congestion::Loss, before);
    assert_eq!(big.window(), before / 2);
}

#[test]
fn bbrs_time_out_leaves_one_segment_and_an_undo_gives_the_window_back() {
    let mut bbr = Algorithm::Bbr.build(&parameters());
    let mut delivered = 0;
    for round in 1..200 {
        let window = bbr.window().min(100 * MSS);
        bbr.on_sent(at(round * 10), window, 0, true);
        let rate = RateSample {
            delivered: window,
            interval: 10 * MS,
            prior_delivered: delivered,
            total_delivered: delivered + window,
            app_limited: false,
            in_flight_at_send: window,
            lost_since_send: 0,
        };
        delivered += window;
        bbr.on_ack(&AckSample { rate: Some(rate), ..ack(round * 10 + 10, window, 0) });
    }
    let before = bbr.window();
    assert!(before > 100 * MSS, "{before}");
    bbr.on_congestion(at(2000), Congestion::Timeout, before);
    assert_eq!(bbr.window(), MSS);
    bbr.undo(at(2001));
    assert_eq!(bbr.window(), before);
}

/// Any call of a controller.
#[derive(Clone, Debug)]
enum Say {
    Ack(AckSample),
    Congestion(Congestion, u64),
    RecoveryEnd,
    Undo,
    Sent(u64, u64, bool),
    Idle(Duration, Duration),
    Mss(u32),
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0..200_000u64, 1 => any::<u64>(), 1 => Just(0), 1 => Just(u64::MAX)]
}

fn duration() -> impl Strategy<Value = Duration> {
    prop_oneof![4 => (0..2_000_000_000u64).prop_map(Duration::from_nanos), 1 => number().prop_map(Duration::from_nanos), 1 => Just(Duration::MAX)]
}

fn rate() -> impl Strategy<Value = RateSample> {
    (number(), duration(), number(), number(), any::<bool>(), number(), number()).prop_map(
        |(
            delivered,
            interval,
            prior_delivered,
            total_delivered,
            app_limited,
            in_flight_at_send,
            lost_since_send,
        )| {
            RateSample {
                delivered,
                interval,
                prior_delivered,
                total_delivered,
                app_limited,
                in_flight_at_send,
                lost_since_send,
            }
        },
    )
}

fn sample() -> impl Strategy<Value = AckSample> {
    (
        (number(), number(), number(), number(), number(), number()),
        (prop::option::of(duration()), prop::option::of(duration()), prop::option::of(rate())),
        any::<(bool, bool)>(),
    )
        .prop_map(|(numbers, (rtt, srtt, rate), (in_recovery, window_limited))| {
            let (acked, delivered, prior_in_flight, in_flight, marked, lost) = numbers;
            AckSample {
                now: Instant::ZERO,
                acked,
                delivered,
                prior_in_flight,
                in_flight,
                rtt,
                srtt,
                min_rtt: rtt,
                rate,
                marked,
                lost,
                in_recovery,
                window_limited,
            }
        })
}

fn say() -> impl Strategy<Value = Say> {
    let kind = prop_oneof![Just(Congestion::Loss), Just(Congestion::Ecn), Just(Congestion::Timeout)];
    prop_oneof![
        8 => sample().prop_map(Say::Ack),
        2 => (kind, number()).prop_map(|(kind, in_flight)| Say::Congestion(kind, in_flight)),
        1 => Just(Say::RecoveryEnd),
        1 => Just(Say::Undo),
        1 => (number(), number(), any::<bool>()).prop_map(|(bytes, out, limited)| Say::Sent(bytes, out, limited)),
        1 => (duration(), duration()).prop_map(|(idle, rto)| Say::Idle(idle, rto)),
        1 => prop_oneof![Just(536u32), Just(1448), Just(8948), any::<u16>().prop_map(u32::from)].prop_map(Say::Mss),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    #[test]
    fn no_input_panics_or_closes_the_window(
        steps in prop::collection::vec((duration(), say()), 1..60),
        mss in 1u32..9000,
        initial_window in 0u32..100,
    ) {
        for algorithm in ALL {
            let mut controller = algorithm.build(&Parameters { mss, initial_window });
            let (mut now, mut mss) = (Instant::ZERO, mss);
            let mut timed_out = initial_window < 2;
            for (passes, step) in &steps {
                now += *passes;
                match step {
                    Say::Ack(sample) => controller.on_ack(&AckSample { now, ..*sample }),
                    Say::Congestion(kind, in_flight) => {
                        timed_out |= *kind == Congestion::Timeout;
                        controller.on_congestion(now, *kind, *in_flight);
                    }
                    Say::RecoveryEnd => controller.on_recovery_end(now),
                    Say::Undo => controller.undo(now),
                    Say::Sent(bytes, out, limited) => controller.on_sent(now, *bytes, *out, *limited),
                    Say::Idle(idle, rto) => controller.on_idle_restart(now, *idle, *rto),
                    Say::Mss(to) => {
                        // A window in bytes may be but one of the larger segments.
                        timed_out |= *to > mss;
                        mss = (*to).max(1);
                        controller.set_mss(*to);
                    }
                }
                let least = u64::from(mss) * if timed_out { 1 } else { 2 };
                prop_assert!(controller.window() >= least, "{algorithm:?}: {step:?}: {controller:?}");
                prop_assert!(controller.pacing_rate() != Some(0), "{algorithm:?}: {step:?}: {controller:?}");
                let quantum = controller.send_quantum();
                prop_assert!(quantum.is_none_or(|quantum| quantum > 0), "{algorithm:?}: {quantum:?}");
            }
        }
    }
}

#[test]
fn controllers_are_small_and_bbr_is_no_giant() {
    // An idle connection has a kibibyte in all.
    assert!(size_of::<NewReno>() <= 160, "{}", size_of::<NewReno>());
    assert!(size_of::<Cubic>() <= 224, "{}", size_of::<Cubic>());
    assert!(size_of::<Dctcp>() <= 208, "{}", size_of::<Dctcp>());
    assert!(size_of::<crate::cc::Bbr>() <= 512, "{}", size_of::<crate::cc::Bbr>());
}
