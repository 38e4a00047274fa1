//! Finds slow pairs, ranks and hosts in the measurements.

use std::cmp::Ordering;

use serde::Serialize;

/// The measurements between two ranks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Pair {
    /// The lower one first.
    pub(super) ranks: [u32; 2],
    /// Whether they share a host: a pair is compared only with pairs of the same kind.
    pub(super) same_host: bool,
    /// Median of half of a round trip, in microseconds.
    pub(super) latency_us: f64,
    /// From the first to the second and from the second to the first, in 1e9 bytes a second.
    pub(super) gbytes: [f64; 2],
}

/// The medians of the pairs that are compared with each other.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Medians {
    pub(super) same_host: bool,
    pub(super) pairs: usize,
    pub(super) latency_us: f64,
    pub(super) gbytes: f64,
}

/// The figure in which a pair is slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Figure {
    Latency,
    Bandwidth,
}

/// A figure that is worse than its median by more than the factor.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Slow {
    pub(super) figure: Figure,
    /// Of a bandwidth, sender and receiver.
    pub(super) ranks: [u32; 2],
    pub(super) same_host: bool,
    /// In microseconds, or in 1e9 bytes a second.
    pub(super) value: f64,
    pub(super) median: f64,
    /// How many times worse than the median.
    pub(super) times: f64,
}

/// The common element of all slow pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Culprit {
    /// There is one slow pair.
    Pair([u32; 2]),
    /// This rank is in all of them.
    Rank(u32),
    /// A rank of this host is in all of them.
    Host(u32),
    /// All of them are between these two hosts.
    Hosts([u32; 2]),
}

/// The result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Judgement {
    /// The medians of pairs on one host, and of pairs between hosts, where there are any.
    pub(super) medians: Vec<Medians>,
    /// The worst first.
    pub(super) slow: Vec<Slow>,
    /// `None` where nothing is slow, or the slow pairs have nothing in common.
    pub(super) culprit: Option<Culprit>,
}

/// Compares each pair with the median of its kind: a figure is slow if it is more than `factor` times worse. `hosts` has the host of each
/// rank.
pub(super) fn judge(hosts: &[u32], pairs: &[Pair], factor: f64) -> Judgement {
    let (mut medians, mut slow) = (vec![], vec![]);
    for same_host in [true, false] {
        let alike = || pairs.iter().filter(|pair| pair.same_host == same_host);
        let Some(latency_us) = median(alike().map(|pair| pair.latency_us).collect(), f64::total_cmp) else {
            continue;
        };
        let Some(gbytes) = median(alike().flat_map(|pair| pair.gbytes).collect(), |a, b| b.total_cmp(a))
        else {
            continue;
        };
        medians.push(Medians { same_host, pairs: alike().count(), latency_us, gbytes });
        for &Pair { ranks, latency_us: latency, gbytes: [there, back], .. } in alike() {
            let [a, b] = ranks;
            let figures = [
                (Figure::Latency, [a, b], latency, latency_us, latency / latency_us),
                (Figure::Bandwidth, [a, b], there, gbytes, gbytes / there),
                (Figure::Bandwidth, [b, a], back, gbytes, gbytes / back),
            ];
            let figures = figures.into_iter().filter(|(.., times)| *times > factor);
            slow.extend(figures.map(|(figure, ranks, value, median, times)| Slow {
                figure,
                ranks,
                same_host,
                value,
                median,
                times,
            }));
        }
    }
    slow.sort_by(|a, b| b.times.total_cmp(&a.times));
    Judgement { culprit: culprit(hosts, &slow), medians, slow }
}

/// The middle one in the order from good to bad; of the two middle ones the better, so that half of the values may be bad.
fn median(mut values: Vec<f64>, order: impl Fn(&f64, &f64) -> Ordering) -> Option<f64> {
    values.sort_unstable_by(order);
    values.get(values.len().saturating_sub(1) / 2).copied()
}

fn culprit(hosts: &[u32], slow: &[Slow]) -> Option<Culprit> {
    let host = |rank: u32| hosts.get(rank as usize).copied();
    let ranks = shared(slow.iter().map(|slow| slow.ranks));
    match *ranks {
        [a, b] => return Some(Culprit::Pair([a.min(b), a.max(b)])),
        [rank] => return Some(Culprit::Rank(rank)),
        _ => {}
    }
    let of_pair = |slow: &Slow| Some([host(slow.ranks[0])?, host(slow.ranks[1])?]);
    match *shared(slow.iter().filter_map(of_pair)) {
        [a, b] => Some(Culprit::Hosts([a.min(b), a.max(b)])),
        [one] => Some(Culprit::Host(one)),
        _ => None,
    }
}

/// The numbers that are in all pairs.
fn shared(mut pairs: impl Iterator<Item = [u32; 2]>) -> Vec<u32> {
    let mut all = pairs.next().map(Vec::from).unwrap_or_default();
    all.dedup();
    pairs.for_each(|pair| all.retain(|number| pair.contains(number)));
    all
}

#[cfg(test)]
mod tests;
