use super::super::judge::judge;
use super::super::measure::Offset;
use super::super::report::{OfHost, RankClock};
use super::*;

/// A job on hosts of two ranks; 1 us and 10 GB/s within them, 10 us and 1 GB/s between them, made worse by `times`.
fn report(size: u32, times: impl Fn(u32, u32) -> f64) -> Report {
    let of_hosts: Vec<u32> = (0..size).map(|rank| rank / 2).collect();
    let pairs = (0..size).flat_map(|a| (a + 1..size).map(move |b| [a, b])).map(|[a, b]| {
        let (same_host, times) = (a / 2 == b / 2, times(a, b));
        let (latency, gbytes) = if same_host { (1.0, 10.0) } else { (10.0, 1.0) };
        Pair { ranks: [a, b], same_host, latency_us: latency * times, gbytes: [gbytes / times, gbytes] }
    });
    let pairs: Vec<Pair> = pairs.collect();
    let hosts = (0..size.div_ceil(2)).map(|host| Host {
        host,
        ranks: (2 * host..size.min(2 * host + 2)).collect(),
        of_host: OfHost {
            name: format!("node{host}"),
            version: "1.2.3".into(),
            channels: if host == 1 { "shm+kernel".into() } else { "shm+rud".into() },
            reasons: vec![format!("the reason of host {host}")],
            memory: vec![],
        },
    });
    let clocks = (1..size).map(|rank| RankClock {
        rank,
        offset: Offset { offset_us: -1e5 * f64::from(rank), uncertainty_us: 3.0 },
        is_off: rank > 1,
    });
    let judgement = judge(&of_hosts, &pairs, 3.0);
    Report {
        ok: judgement.slow.is_empty(),
        size,
        latency_bytes: 8,
        bandwidth_bytes: 4 << 20,
        factor: 3.0,
        hosts: hosts.collect(),
        pairs,
        clocks: clocks.collect(),
        judgement,
    }
}

/// Asserts that the text has these lines, with columns of any width.
fn assert_has(text: &str, lines: &[&str]) {
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    for line in lines {
        assert!(text.lines().any(|has| words(has) == words(line)), "{line:?} is not in\n{text}");
    }
}

#[test]
fn small_jobs_have_every_pair() {
    let text = text(&report(4, |a, b| if (a, b) == (1, 2) { 5.0 } else { 1.0 }));
    assert_has(
        &text,
        &[
            "Transport: shm+rud",
            "  the reason of host 0",
            "Transport of host 1: shm+kernel",
            "  the reason of host 1",
            "  host 1  node1  ranks 2-3  shouter 1.2.3",
            "rank 0 1 2 3",
            "1 1.00 - 50.0 10.0",
            "2 1.00 1.00 - 10.0",
            "1 10.0 - 0.20 1.00",
            "2 -200000.0 within 3.0",
            "Slow: the pair of rank 1 (host 0, node0) and rank 2 (host 1, node1)",
            "  rank 1 (host 0, node0) and rank 2 (host 1, node1): 50.0 us, 5.00 times worse than the median of pairs between hosts, 10.0 us",
            "  from rank 1 (host 0, node0) to rank 2 (host 1, node1): 0.20 GB/s, 5.00 times worse than the median of pairs between hosts, 1.00 GB/s",
        ],
    );
    assert!(text.contains("Warning: the clocks of ranks 2-3 are off by more than 100 ms"), "{text}");
}

#[test]
fn large_jobs_have_sums_of_each_host_and_the_worst_pairs() {
    let slow = |a: u32, b: u32| if a == 5 || b == 5 { 10.0 } else { 1.0 };
    let text = text(&report(20, slow));
    assert_has(
        &text,
        &[
            "2  10.0 10.0  100 100  10.0 1.00  1.00 0.10",
            "3  1.00 1.00  10.0 100  10.0 10.0  1.00 0.10",
            "Median of 180 pairs between hosts: 10.0 us, 1.00 GB/s",
            "Slow: rank 5 (host 2, node2), which is in all slow pairs",
            "  and 28 more; --json has all",
        ],
    );
    assert_eq!(text.lines().filter(|line| line.contains(" times worse ")).count(), WORST);
    assert_eq!(text.lines().filter(|line| line.ends_with(" within 3.0")).count(), WORST);
}

#[test]
fn what_is_well_is_said() {
    let all = text(&report(4, |_, _| 1.0));
    assert!(
        all.ends_with("\nAll is well: no pair is more than 3 times worse than the median of its kind\n"),
        "{all}"
    );
    let alone = text(&report(1, |_, _| 1.0));
    assert!(alone.ends_with("the job has one rank, and there is nothing to measure\n"), "{alone}");
    assert_has(&alone, &["  host 0  node0  rank 0  shouter 1.2.3"]);
}
