//! The figures of an incast, the same way for all that have one.

use super::{ReportLine, median, percentiles_us, round4};

/// Rounds that warm up windows and caches; not measured.
pub(crate) const WARM_UP: u64 = 5;
/// Fewest measured rounds of a size.
pub(crate) const FEWEST: u64 = 11;
/// Most measured rounds of a size.
pub(crate) const MOST: u64 = 20_000;

/// Times of rounds in which one sends, and of rounds in which all do, in nanoseconds from the start of the first sender of the round until
/// the receiver has a message.
#[derive(Debug)]
pub(crate) struct Times {
    bytes: usize,
    /// Bits in a nanosecond.
    one: Vec<f64>,
    all: Vec<f64>,
    each: Vec<u64>,
}

impl Times {
    /// Of messages of so many bytes.
    pub(crate) fn new(bytes: usize) -> Self {
        Self { bytes, one: vec![], all: vec![], each: vec![] }
    }

    fn rate(&self, times: &[u64]) -> Option<f64> {
        let last = *times.iter().max()?;
        Some((self.bytes * times.len()) as f64 * 8.0 / last.max(1) as f64)
    }

    /// A round of one sender; a rank that receives nothing has no time.
    pub(crate) fn one(&mut self, times: &[u64]) {
        self.one.extend(self.rate(times));
    }

    /// A round of all senders.
    pub(crate) fn all(&mut self, times: Vec<u64>) {
        self.all.extend(self.rate(&times));
        self.each.extend(times);
    }

    /// The line of `who`, without what the job is.
    pub(crate) fn line(mut self, who: &str) -> ReportLine {
        let rounds = self.all.len() as u64;
        let (goodput, one) = (median(&mut self.all), median(&mut self.one));
        let (p50, p99) = percentiles_us(&mut self.each);
        ReportLine {
            iterations: Some(rounds),
            goodput_gbits: Some(round4(goodput)),
            share_of_one: (one > 0.0).then(|| round4(goodput / one)),
            p50_us: Some(p50),
            p99_us: Some(p99),
            ..ReportLine::of("incast", who)
        }
    }
}
