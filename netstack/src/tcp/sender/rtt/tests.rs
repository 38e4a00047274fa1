use super::*;

fn millis(rtt: &Rtt, options: &Options) -> f64 {
    rtt.rto(options).as_secs_f64() * 1e3
}

#[test]
fn the_first_measurement_gives_three_times_itself() {
    let options = Options { min_rto: Duration::ZERO, ..Options::internet() };
    let mut rtt = Rtt::new();
    assert_eq!(rtt.rto(&options), Duration::from_secs(1));
    rtt.sample(Duration::from_millis(100), SeqNumber(0), SeqNumber(10));
    assert_eq!(rtt.rto(&options), Duration::from_millis(300));
    assert_eq!(rtt.srtt(), Some(Duration::from_millis(100)));
    assert_eq!(rtt.rttvar(), Duration::from_millis(50));
}

#[test]
fn a_steady_path_comes_down_to_the_least() {
    for (options, least) in [(Options::internet(), 200.0), (Options::group(), 1.0)] {
        let mut rtt = Rtt::new();
        for round in 0..200u32 {
            rtt.sample(Duration::from_millis(20), SeqNumber(round * 10 + 1), SeqNumber(round * 10 + 10));
        }
        let rto = millis(&rtt, &options);
        assert!((20.0 + least..20.1 + least).contains(&rto), "{rto}");
    }
}

#[test]
fn many_samples_a_round_trip_do_not_forget_its_variation() {
    let options = Options { min_rto: Duration::ZERO, ..Options::internet() };
    let mut rtt = Rtt::new();
    for round in 0..50u32 {
        // A hundred samples a round trip, one of them late.
        for sample in 0..100 {
            let late = if sample == 50 { 30 } else { 10 };
            rtt.sample(
                Duration::from_millis(late),
                SeqNumber(round * 100 + sample),
                SeqNumber(round * 100 + sample + 100),
            );
            if round > 2 {
                assert!(millis(&rtt, &options) > 25.0, "round {round}, sample {sample}: {rtt:?}");
            }
        }
    }
}

#[test]
fn the_time_out_doubles_up_to_its_most_and_a_measurement_ends_that() {
    let options = Options::internet();
    let mut rtt = Rtt::new();
    rtt.sample(Duration::from_millis(100), SeqNumber(0), SeqNumber(1));
    let base = rtt.rto(&options);
    for doubled in 1..40u32 {
        rtt.back_off();
        assert_eq!(rtt.rto(&options), (base * 2u32.pow(doubled.min(20))).min(options.max_rto));
    }
    rtt.calm();
    assert_eq!(rtt.rto(&options), base * 8);
    rtt.coarse_sample(Duration::from_millis(1), SeqNumber(2), SeqNumber(3));
    assert_eq!((rtt.rto(&options), rtt.srtt()), (base, Some(Duration::from_millis(100))));
}

#[test]
fn after_a_lost_syn_the_first_time_out_is_three_times_as_long() {
    let mut rtt = Rtt::new();
    rtt.be_cautious();
    assert_eq!(rtt.rto(&Options::internet()), Duration::from_secs(3));
    rtt.sample(Duration::from_millis(10), SeqNumber(0), SeqNumber(1));
    assert!(rtt.rto(&Options::internet()) < Duration::from_secs(1));
}

#[test]
fn no_measurement_overflows() {
    let mut rtt = Rtt::new();
    for nanos in [0, 1, u64::MAX, 0, u64::MAX / 2, 5] {
        rtt.sample(Duration::from_nanos(nanos), SeqNumber(nanos as u32), SeqNumber(3));
        rtt.observe(Duration::MAX);
        assert!(rtt.rto(&Options::internet()) <= Duration::from_secs(120));
    }
}

#[test]
fn a_side_that_only_receives_goes_by_the_echoes_in_data() {
    let millis = |millis| Some(Duration::from_millis(millis));
    let mut rtt = Rtt::new();
    assert_eq!(rtt.round_trip(), None);
    rtt.sample(Duration::from_millis(10), SeqNumber(0), SeqNumber(1));
    rtt.hear(millis(5));
    assert_eq!(rtt.round_trip(), millis(10));
    // Longer than the handshake's: up by an eighth of the way each, down at once.
    for _ in 0..60 {
        rtt.hear(millis(80));
    }
    assert_eq!(rtt.round_trip(), millis(80));
    rtt.hear(Some(Duration::MAX));
    rtt.hear(millis(20));
    assert_eq!(rtt.round_trip(), millis(20));
    rtt.hear(None);
    assert_eq!(rtt.round_trip(), millis(10));
}

#[test]
fn whether_a_time_exceeds_the_time_out_is_found_alike_in_short() {
    let swapped =
        Options { min_rto: Duration::from_secs(9), max_rto: Duration::from_secs(2), ..Options::internet() };
    for options in [Options::internet(), Options::group(), swapped] {
        for (measured, backed_off) in [(false, 0), (true, 0), (true, 1), (true, 30)] {
            let mut rtt = Rtt::new();
            if measured {
                rtt.sample(Duration::from_micros(40), SeqNumber(0), SeqNumber(1));
            }
            (0..backed_off).for_each(|_| rtt.back_off());
            let rto = rtt.rto(&options).as_nanos() as u64;
            for nanos in [0, 1, 1_000_000, rto / 2, rto - 1, rto, rto + 1, u64::MAX] {
                assert_eq!(rtt.is_exceeded(nanos, &options), nanos > rto, "{nanos} of {rto}");
            }
        }
    }
}
