//! The report for people.

use super::judge::{Culprit, Figure, Pair, Slow};
use super::report::{CLOCK_WARNING_US, Host, OfHost, Report};
use crate::info::{Item, ranges};

/// The largest number of ranks whose pairs are shown one by one; larger jobs show a summary for each host.
const MOST_SHOWN: u32 = 16;
/// The largest number of slow pairs, and of clocks of large jobs, that is shown.
const WORST: usize = 10;

/// The whole report; every line ends with a line break.
pub(super) fn text(report: &Report) -> String {
    let mut text = transports(report) + &hosts(report);
    if report.size > 1 {
        text += &if report.size <= MOST_SHOWN { matrices(report) } else { by_host(report) };
        text += &clocks(report);
    }
    text += &verdict(report);
    text
}

fn transports(report: &Report) -> String {
    let mut text = String::new();
    let mut before = None;
    for Host { host, of_host, .. } in &report.hosts {
        // Each host has its own reasons; they are shown where its channels differ from those of the host before.
        if before.is_none_or(|channels| channels != &of_host.channels) {
            let of = if before.is_some() { format!(" of host {host}") } else { String::new() };
            text += &format!("Transport{of}: {}\n", of_host.channels);
            of_host.reasons.iter().for_each(|reason| text += &format!("  {reason}\n"));
        }
        before = Some(&of_host.channels);
    }
    text
}

fn hosts(report: &Report) -> String {
    let mut text = "\nHosts\n".to_owned();
    // Each distinct line about memory, with its hosts.
    let mut memory: Vec<(String, Vec<usize>)> = vec![];
    for Host { host, ranks, of_host } in &report.hosts {
        let numbers: Vec<usize> = ranks.iter().map(|rank| *rank as usize).collect();
        let word = if ranks.len() == 1 { "rank" } else { "ranks" };
        let OfHost { name, version, .. } = of_host;
        text += &format!("  host {host}  {name}  {word} {}  shouter {version}\n", ranges(&numbers));
        for line in of_host.memory.iter().map(Item::line) {
            match memory.iter_mut().find(|(said, _)| *said == line) {
                Some((_, hosts)) => hosts.push(*host as usize),
                None => memory.push((line, vec![*host as usize])),
            }
        }
    }
    for (line, hosts) in memory {
        text += &format!("  host {}  {line}\n", ranges(&hosts));
    }
    text
}

/// A figure with its significant digits.
fn short(value: f64) -> String {
    match value {
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        0.1.. => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

fn latency_title(report: &Report) -> String {
    format!("\nLatency in us: half of the round trip of {} bytes, p50\n", report.latency_bytes)
}

fn bandwidth_title(report: &Report) -> String {
    format!("\nBandwidth in GB/s of messages of {} bytes, p50", report.bandwidth_bytes)
}

fn matrices(report: &Report) -> String {
    let matrix = |figure: fn(&Pair) -> [f64; 2]| {
        let size = report.size as usize;
        let mut cells = vec![vec!["-".to_owned(); size]; size];
        for pair in &report.pairs {
            let [a, b] = pair.ranks.map(|rank| rank as usize);
            [cells[a][b], cells[b][a]] = figure(pair).map(short);
        }
        let mut text = "  rank".to_owned();
        (0..size).for_each(|rank| text += &format!("{rank:>9}"));
        text.push('\n');
        for (rank, row) in cells.iter().enumerate() {
            text += &format!("{rank:>6}");
            row.iter().for_each(|cell| text += &format!("{cell:>9}"));
            text.push('\n');
        }
        text
    };
    let latency = latency_title(report) + &matrix(|pair| [pair.latency_us; 2]);
    let bandwidth = bandwidth_title(report) + ", from the rank of the row to that of the column\n";
    latency + &bandwidth + &matrix(|pair| pair.gbytes)
}

/// For each host, median and worst of its pairs.
fn by_host(report: &Report) -> String {
    let mut text = latency_title(report);
    text += bandwidth_title(report).trim_start();
    text += ", of both directions; each: median, and worst of the pairs\n";
    text += &format!(
        "{:>6}  {:>19}  {:>19}  {:>19}  {:>19}\n",
        "host", "us within", "us to others", "GB/s within", "GB/s with others"
    );
    for Host { host, ranks, .. } in &report.hosts {
        let of_host = |pair: &&Pair| pair.ranks.iter().any(|rank| ranks.contains(rank));
        let [within, others] = [true, false].map(|same_host| {
            let pairs = report.pairs.iter().filter(of_host).filter(move |pair| pair.same_host == same_host);
            pairs.collect::<Vec<_>>()
        });
        let latency = |pairs: &[&Pair]| summary(pairs.iter().map(|pair| pair.latency_us).collect(), true);
        let gbytes = |pairs: &[&Pair]| summary(pairs.iter().flat_map(|pair| pair.gbytes).collect(), false);
        text += &format!(
            "{host:>6}  {:>19}  {:>19}  {:>19}  {:>19}\n",
            latency(&within),
            latency(&others),
            gbytes(&within),
            gbytes(&others)
        );
    }
    for medians in &report.judgement.medians {
        text += &format!(
            "Median of {} pairs {}: {} us, {} GB/s\n",
            medians.pairs,
            kind(medians.same_host),
            short(medians.latency_us),
            short(medians.gbytes)
        );
    }
    text
}

/// Median and worst value.
fn summary(mut values: Vec<f64>, large_is_bad: bool) -> String {
    values.sort_unstable_by(f64::total_cmp);
    let worst = if large_is_bad { values.last() } else { values.first() };
    match (values.get(values.len() / 2), worst) {
        (Some(median), Some(worst)) => format!("{} {:>9}", short(*median), short(*worst)),
        _ => "-".to_owned(),
    }
}

fn clocks(report: &Report) -> String {
    let mut text = "\nClocks against rank 0's, in us".to_owned();
    let mut clocks: Vec<_> = report.clocks.iter().collect();
    if report.size > MOST_SHOWN {
        clocks.sort_by(|a, b| b.offset.offset_us.abs().total_cmp(&a.offset.offset_us.abs()));
        clocks.truncate(WORST);
        text += &format!(": the {} largest offsets", clocks.len());
    }
    text.push('\n');
    for clock in clocks {
        let (offset, within) = (clock.offset.offset_us, clock.offset.uncertainty_us);
        text += &format!("{:>6}  {offset:+.1} within {within:.1}\n", clock.rank);
    }
    let off: Vec<usize> =
        report.clocks.iter().filter(|clock| clock.is_off).map(|clock| clock.rank as usize).collect();
    if !off.is_empty() {
        text += &format!(
            "Warning: the clocks of ranks {} are off by more than {} ms; logs and timelines of the hosts do not fit together: synchronise the hosts (chrony, NTP)\n",
            ranges(&off),
            CLOCK_WARNING_US / 1e3
        );
    }
    text
}

/// The kind of pairs that are compared with each other.
fn kind(same_host: bool) -> &'static str {
    if same_host { "of one host" } else { "between hosts" }
}

fn verdict(report: &Report) -> String {
    let slow = &report.judgement.slow;
    if report.size == 1 {
        return "\nAll is well: the job has one rank, and there is nothing to measure\n".into();
    }
    if slow.is_empty() {
        let factor = report.factor;
        return format!(
            "\nAll is well: no pair is more than {factor} times worse than the median of its kind\n"
        );
    }
    let mut text = match report.judgement.culprit {
        Some(Culprit::Pair([a, b])) => {
            format!("\nSlow: the pair of {} and {}\n", rank(report, a), rank(report, b))
        }
        Some(Culprit::Rank(one)) => format!("\nSlow: {}, which is in all slow pairs\n", rank(report, one)),
        Some(Culprit::Host(one)) => format!("\nSlow: {}, which is in all slow pairs\n", host(report, one)),
        Some(Culprit::Hosts([a, b])) => {
            format!("\nSlow: what is between {} and {}\n", host(report, a), host(report, b))
        }
        None => "\nSlow: pairs that have neither a rank nor a host in common\n".into(),
    };
    slow.iter().take(WORST).for_each(|slow| text += &format!("  {}\n", sentence(report, slow)));
    if slow.len() > WORST {
        text += &format!("  and {} more; --json has all\n", slow.len() - WORST);
    }
    text
}

fn sentence(report: &Report, slow: &Slow) -> String {
    let [a, b] = slow.ranks.map(|of| rank(report, of));
    let (value, median) = (short(slow.value), short(slow.median));
    let than = format!("{} times worse than the median of pairs {}", short(slow.times), kind(slow.same_host));
    match slow.figure {
        Figure::Latency => format!("{a} and {b}: {value} us, {than}, {median} us"),
        Figure::Bandwidth => format!("from {a} to {b}: {value} GB/s, {than}, {median} GB/s"),
    }
}

fn rank(report: &Report, rank: u32) -> String {
    let of = report.hosts.iter().find(|host| host.ranks.contains(&rank));
    format!("rank {rank}{}", of.map_or_else(String::new, |of| format!(" ({})", host(report, of.host))))
}

fn host(report: &Report, host: u32) -> String {
    let name = report.hosts.iter().find(|of| of.host == host).map_or("", |of| &of.of_host.name);
    format!("host {host}, {name}")
}

#[cfg(test)]
mod tests;
