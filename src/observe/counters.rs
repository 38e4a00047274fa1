//! How much: plain numbers, counted where things happen, and copied out when somebody asks.

use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// Longest latency that is told apart; longer ones count as this. The deadline of a collective is 30 minutes by default.
const LONGEST: Duration = Duration::from_secs(3600);
/// Decimal digits kept: a bucket is within 1% of every value in it.
const DIGITS: u8 = 2;

/// A histogram of durations from 1 ns to an hour, exact to 1% (about 28 KiB, allocated when made).
#[derive(Clone, Debug)]
pub struct Latency {
    nanos: Histogram<u64>,
}

impl Default for Latency {
    fn default() -> Self {
        Self::new()
    }
}

impl Latency {
    /// Empty.
    pub fn new() -> Self {
        let nanos = Histogram::new_with_bounds(1, LONGEST.as_nanos() as u64, DIGITS);
        Self { nanos: nanos.expect("the bounds are constants that hdrhistogram accepts") }
    }

    /// Counts one duration.
    #[inline]
    pub fn record(&mut self, duration: Duration) {
        self.nanos.saturating_record(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.nanos.len()
    }

    /// The duration that a share `quantile` (0 to 1) of those counted does not exceed; zero if none were counted.
    pub fn quantile(&self, quantile: f64) -> Duration {
        Duration::from_nanos(self.nanos.value_at_quantile(quantile))
    }

    /// Adds another histogram's counts.
    pub fn add(&mut self, other: &Self) {
        // Both have the same bounds, so this cannot fail.
        let _ = self.nanos.add(&other.nanos);
    }

    /// The figures that reports show.
    pub fn summary(&self) -> LatencySummary {
        let micros = |nanos: u64| nanos as f64 / 1e3;
        let at = |quantile| micros(self.nanos.value_at_quantile(quantile));
        LatencySummary {
            count: self.nanos.len(),
            min_us: if self.nanos.is_empty() { 0.0 } else { micros(self.nanos.min()) },
            mean_us: self.nanos.mean() / 1e3,
            p50_us: at(0.5),
            p90_us: at(0.9),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: micros(self.nanos.max()),
        }
    }
}

/// A [`Latency`] in figures; microseconds, within 1%. All zero if nothing was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LatencySummary {
    /// Durations counted.
    pub count: u64,
    /// The shortest.
    pub min_us: f64,
    /// Their mean.
    pub mean_us: f64,
    /// The median.
    pub p50_us: f64,
    /// The 90th percentile.
    pub p90_us: f64,
    /// The 99th percentile.
    pub p99_us: f64,
    /// The 99.9th percentile.
    pub p999_us: f64,
    /// The longest.
    pub max_us: f64,
}

/// What one shard or rank counts. Add up several with `+=`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Frames handed to the device.
    pub frames_sent: u64,
    /// Frames taken from the device.
    pub frames_received: u64,
    /// Bytes of the frames sent, Ethernet headers included.
    pub bytes_sent: u64,
    /// Bytes of the frames received, Ethernet headers included.
    pub bytes_received: u64,
    /// Datagrams and segments sent again.
    pub resent: u64,
    /// Datagrams dropped because their CRC was wrong; their sender sends them again.
    pub crc_dropped: u64,
    /// Collectives completed.
    pub operations: u64,
    /// Bytes of this rank's tensors that were reduced.
    pub bytes_reduced: u64,
    /// Nanoseconds in all-reduce, from push to completion, summed over the operations.
    pub allreduce_ns: u64,
}

impl AddAssign for Counters {
    fn add_assign(&mut self, other: Self) {
        // Destructured, so that a new counter breaks the build until it is added here.
        let Self {
            frames_sent,
            frames_received,
            bytes_sent,
            bytes_received,
            resent,
            crc_dropped,
            operations,
            bytes_reduced,
            allreduce_ns,
        } = other;
        self.frames_sent += frames_sent;
        self.frames_received += frames_received;
        self.bytes_sent += bytes_sent;
        self.bytes_received += bytes_received;
        self.resent += resent;
        self.crc_dropped += crc_dropped;
        self.operations += operations;
        self.bytes_reduced += bytes_reduced;
        self.allreduce_ns += allreduce_ns;
    }
}

/// The latencies of operations, apart by kind (`allreduce`, `broadcast`...).
#[derive(Clone, Debug, Default)]
pub struct OpCounters {
    kinds: Vec<(&'static str, Latency)>,
}

impl OpCounters {
    /// Counts an operation of `kind`. Only the first of a kind allocates.
    #[inline]
    pub fn record(&mut self, kind: &'static str, duration: Duration) {
        match self.kinds.iter_mut().find(|(name, _)| *name == kind) {
            Some((_, latency)) => latency.record(duration),
            None => self.record_first(kind, duration),
        }
    }

    #[cold]
    fn record_first(&mut self, kind: &'static str, duration: Duration) {
        let mut latency = Latency::new();
        latency.record(duration);
        self.kinds.push((kind, latency));
    }

    /// The latencies of one kind, if there were any.
    pub fn get(&self, kind: &str) -> Option<&Latency> {
        self.kinds.iter().find(|(name, _)| *name == kind).map(|(_, latency)| latency)
    }

    /// Adds another set's counts.
    pub fn add(&mut self, other: &Self) {
        for (kind, latency) in &other.kinds {
            match self.kinds.iter_mut().find(|(name, _)| name == kind) {
                Some((_, mine)) => mine.add(latency),
                None => self.kinds.push((*kind, latency.clone())),
            }
        }
    }
}

/// A rank's counters at one moment, to be serialised.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Snapshot {
    /// Whose.
    pub rank: u32,
    /// The numbers.
    #[serde(flatten)]
    pub counters: Counters,
    /// Latency by kind of operation.
    pub latency: BTreeMap<&'static str, LatencySummary>,
}

impl Snapshot {
    /// Copies the counters.
    pub fn new(rank: u32, counters: Counters, operations: &OpCounters) -> Self {
        let latency = operations.kinds.iter().map(|(kind, latency)| (*kind, latency.summary())).collect();
        Self { rank, counters, latency }
    }
}

#[cfg(test)]
mod tests;
