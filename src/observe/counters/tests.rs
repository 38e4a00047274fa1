use super::*;

#[test]
fn quantiles_are_within_one_percent() {
    let mut latency = Latency::new();
    (1..=10_000).for_each(|micros| latency.record(Duration::from_micros(micros)));
    for (quantile, micros) in [(0.5, 5_000.0), (0.99, 9_900.0), (0.999, 9_990.0)] {
        let found = latency.quantile(quantile).as_nanos() as f64 / 1e3;
        assert!((found / micros - 1.0).abs() < 0.01, "p{quantile}: {found} us, expected {micros}");
    }
    assert_eq!(latency.count(), 10_000);
}

#[test]
fn what_is_out_of_range_is_counted_at_the_edge() {
    let mut latency = Latency::new();
    latency.record(Duration::ZERO);
    latency.record(Duration::MAX);
    let summary = latency.summary();
    assert_eq!(summary.count, 2);
    assert!((summary.max_us / (LONGEST.as_micros() as f64) - 1.0).abs() < 0.01, "{summary:?}");
    assert_eq!(Latency::new().summary(), LatencySummary::default());
}

#[test]
fn kinds_are_told_apart_and_sums_agree() {
    let mut left = OpCounters::default();
    left.record("allreduce", Duration::from_micros(10));
    let mut right = OpCounters::default();
    right.record("allreduce", Duration::from_micros(20));
    right.record("barrier", Duration::from_micros(1));
    left.add(&right);
    assert_eq!(left.get("allreduce").map(Latency::count), Some(2));
    assert_eq!(left.get("barrier").map(Latency::count), Some(1));
    assert!(left.get("broadcast").is_none());
}

#[test]
fn a_snapshot_is_one_flat_json_object() {
    let mut counters = Counters { frames_sent: 3, crc_dropped: 1, ..Counters::default() };
    counters += Counters { frames_sent: 4, bytes_reduced: 64, ..Counters::default() };
    let mut operations = OpCounters::default();
    operations.record("allreduce", Duration::from_micros(2));
    let json = serde_json::to_value(Snapshot::new(5, counters, &operations)).unwrap();
    assert_eq!(json["rank"], 5);
    assert_eq!(json["frames_sent"], 7);
    assert_eq!(json["crc_dropped"], 1);
    assert_eq!(json["bytes_reduced"], 64);
    assert_eq!(json["latency"]["allreduce"]["count"], 1);
}
