//! Times that were measured, and whether they can be true.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::runtime::{Clock, Instant};

/// Rates that networks and memory may have, in MB/s. Slower ones are those of a rank that has lost its core.
pub(super) const NETWORK_RATES: RangeInclusive<u64> = 10..=1_000_000;
pub(super) const MEMORY_RATES: RangeInclusive<u64> = 500..=1_000_000;

/// Times of one thing, in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Samples(Vec<u64>);

impl Samples {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn push(&mut self, time: Duration) {
        self.0.push(time.as_nanos() as u64);
    }

    /// A part of the time since `begin`: that of one of `parts`.
    pub(super) fn push_part(&mut self, begin: Instant, parts: u64) {
        self.0.push(Clock.now().saturating_since(begin).as_nanos() as u64 / parts);
    }

    /// Whether nothing else kept the cores busy: half of them are at most twice as long as the [low](Self::low) one.
    pub(super) fn are_steady(&self) -> bool {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let at = |index: usize| sorted.get(index).copied().unwrap_or_default();
        at(sorted.len() / 2) <= 2 * at(sorted.len() / 4)
    }

    /// What a quarter of them stays below: other programs and the first use of memory lengthen some. `None` where they are fewer than
    /// are needed.
    pub(super) fn low(&self, needed: usize) -> Option<u64> {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 4).copied().filter(|_| sorted.len() >= needed)
    }
}

/// A figure, if it was found and can be true.
///
/// # Errors
/// Which one was not, or cannot.
pub(super) fn plausible(
    (what, unit): (&str, &str),
    found: Option<u64>,
    range: RangeInclusive<u64>,
) -> Result<u32, String> {
    match found {
        Some(value) if range.contains(&value) => u32::try_from(value).map_err(|why| why.to_string()),
        Some(value) => Err(format!("{what} came out as {value} {unit}")),
        None => Err(format!("there was no time for {what}")),
    }
}

/// The rate, in MB/s, of so many bytes in a time in nanoseconds.
///
/// # Errors
/// As [`plausible`].
pub(super) fn rate(
    what: &str,
    time: Option<u64>,
    bytes: u64,
    range: RangeInclusive<u64>,
) -> Result<u32, String> {
    let rate = time.map(|time| bytes.saturating_mul(1_000) / time.max(1));
    plausible((what, "MB/s"), rate, range)
}

/// Nothing if [nothing else kept the cores busy](Samples::are_steady).
///
/// # Errors
/// What varied.
pub(super) fn steady<const N: usize>(all: [(&str, &Samples); N]) -> Result<(), String> {
    match all.iter().find(|(_, samples)| !samples.are_steady()) {
        Some((what, _)) => Err(format!("{what} varied too much: other programs use the cores")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(times: &[u64]) -> Samples {
        Samples(times.to_vec())
    }

    #[test]
    fn the_lower_quartile_counts() {
        assert_eq!(samples(&[900, 10, 500, 11, 12, 13, 14, 800]).low(8), Some(12));
        assert_eq!(samples(&[10, 11]).low(3), None);
        assert_eq!(samples(&[]).low(0), None);
    }

    #[test]
    fn disturbed_samples_are_not_steady() {
        assert!(samples(&[10, 11, 12, 13, 14, 20, 900, 900]).are_steady());
        assert!(!samples(&[10, 11, 12, 13, 40, 50, 900, 900]).are_steady());
        assert!(samples(&[]).are_steady());
    }
}
