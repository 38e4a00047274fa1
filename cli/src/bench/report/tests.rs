use super::*;

/// A line of a round with this median.
fn of_round(who: &str, bytes: u64, p50_us: f64) -> ReportLine {
    let mut line = ReportLine::collective(Collective::AllReduce, who, (2, 1), Some(bytes), &mut [1000; 3]);
    line.p50_us = Some(p50_us);
    line
}

#[test]
fn rounds_become_medians_with_the_least_and_the_greatest() {
    let mut rounds = Rounds::default();
    for p50 in [3.0, 9.0, 4.0] {
        rounds.push(of_round("shouter", 4, p50));
        rounds.push(of_round("shouter", 64, 10.0 * p50));
        rounds.push(of_round("gloo", 4, 100.0));
    }
    let medians = rounds.medians();
    let seen: Vec<_> = medians.iter().map(|line| (line.who.as_str(), line.bytes, line.p50_us)).collect();
    assert_eq!(
        seen,
        [("shouter", Some(4), Some(4.0)), ("shouter", Some(64), Some(40.0)), ("gloo", Some(4), Some(100.0))]
    );
    let first = &medians[0];
    assert_eq!((first.rounds, first.iterations), (Some(3), Some(9)));
    assert_eq!((first.least_p50_us, first.greatest_p50_us), (Some(3.0), Some(9.0)));
    // What a peer lacks stays away, and one round is what it was.
    assert_eq!(medians[2].used_us, None);
    let mut one = Rounds::default();
    one.push(of_round("shouter", 4, 3.0));
    assert_eq!(one.medians(), [of_round("shouter", 4, 3.0)]);
}

#[test]
fn the_rate_of_an_incast_is_that_of_its_last_message() {
    let mut times = incast::Times::new(1000);
    for _ in 0..3 {
        times.one(&[4_000]);
        times.all(vec![5_000, 16_000]);
    }
    let line = times.line("kernel");
    // 16,000 bits in 16 us, and 8,000 in 4 us.
    assert_eq!((line.goodput_gbits, line.share_of_one, line.iterations), (Some(1.0), Some(0.5), Some(3)));
    assert_eq!((line.p50_us, line.p99_us), (Some(16.0), Some(16.0)));
    // Ranks that receive nothing have no figures.
    let mut none = incast::Times::new(1000);
    none.one(&[]);
    none.all(vec![]);
    assert_eq!(
        (none.line("kernel").share_of_one, incast::Times::new(8).line("kernel").p50_us),
        (None, Some(0.0))
    );
}

#[test]
fn percentiles_come_from_the_sorted_latencies() {
    let mut nanos: Vec<u64> = (1..=100).rev().map(|n| n * 1000).collect();
    assert_eq!(percentiles_us(&mut nanos), (51.0, 99.0));
    assert_eq!(percentiles_us(&mut []), (0.0, 0.0));
}

#[test]
fn bus_bandwidth_follows_the_convention() {
    let line =
        ReportLine::collective(Collective::AllReduce, "shouter", (4, 2), Some(1_000_000), &mut [100_000; 3]);
    assert_eq!(line.algbw_gbytes, Some(10.0));
    assert_eq!(line.busbw_gbytes, Some(15.0));
    // For collectives with blocks, all blocks count.
    let line =
        ReportLine::collective(Collective::AllGather, "shouter", (4, 2), Some(1_000_000), &mut [100_000; 3]);
    assert_eq!((line.algbw_gbytes, line.busbw_gbytes), (Some(40.0), Some(30.0)));
}

#[test]
fn a_barrier_has_no_bytes() {
    let line = ReportLine::collective(Collective::Barrier, "shouter", (2, 1), None, &mut [2000]);
    assert_eq!(
        serde_json::to_string(&line).expect("serialises"),
        r#"{"bench":"barrier","who":"shouter","ranks":2,"hosts":1,"iterations":1,"p50_us":2.0,"p99_us":2.0}"#
    );
}

#[test]
fn medians_of_even_and_odd_counts() {
    assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
    assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), 2.5);
    assert_eq!(median(&mut []), 0.0);
}

#[test]
fn peers_carry_no_protocol_and_bytes_are_an_integer() {
    let line =
        ReportLine { bench: "stream".into(), who: "kernel".into(), bytes: Some(64), ..ReportLine::default() };
    assert_eq!(
        serde_json::to_string(&line).expect("serialises"),
        r#"{"bench":"stream","who":"kernel","bytes":64}"#
    );
}

#[test]
fn the_table_shows_ratios_to_the_first_column() {
    let ours = ReportLine::collective(Collective::AllReduce, "shouter", (2, 2), Some(4), &mut [2000]);
    let theirs = ReportLine::collective(Collective::AllReduce, "openmpi-tcp", (2, 2), Some(4), &mut [9000]);
    let slow_ones = &mut [2000, 2000, 6000];
    let slow = ReportLine::collective(Collective::AllReduce, "shouter", (2, 2), Some(64), slow_ones);
    let table = table(&[ours, theirs, ReportLine { sent: Some(90), resent: Some(3), ..slow }]);
    let [p50, p99] = table.split("\nus p99\n").collect::<Vec<_>>()[..] else { panic!("{table}") };
    assert!(p50.contains("9.00 (4.50x)") && p50.contains("2.00") && !p50.contains("6.00"), "{table}");
    assert!(p99.contains("9.00 (4.50x)") && p99.contains("6.00"), "{table}");
    assert!(table.ends_with("shouter of 64 bytes: 3 of 90 frames sent again\n"), "{table}");
}
