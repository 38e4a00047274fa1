//! Selects the connection that takes the next fragment.
//!
//! All connections to a peer draw from one queue, each when little of its share is still unsent. That alone would
//! let a slow connection take a fragment for which all others have to wait at the end. So a connection takes one only
//! if it can be expected to deliver it before all connections together have delivered everything else that waits.

/// A connection takes no more while so many bytes of it are unsent.
pub(super) const UNSENT: usize = 48 << 10;

/// The assumed rate of a connection without a measured round trip, in bytes per second.
const UNKNOWN_RATE: f64 = 10e6;

/// A connection, as far as sharing goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    /// Whether it takes anything at present.
    pub(super) open: bool,
    /// Bytes given to it that are not acknowledged.
    pub(super) unacknowledged: usize,
    /// Of these, bytes that it has not sent.
    pub(super) unsent: usize,
    /// Bytes per second that it moves.
    pub(super) rate: f64,
}

impl Load {
    /// The rate of a connection: a window for each round trip.
    pub(super) fn rate(window: u64, round_trip: Option<std::time::Duration>) -> f64 {
        match round_trip {
            Some(time) => window.max(1) as f64 / time.as_secs_f64().max(1e-6),
            None => UNKNOWN_RATE,
        }
    }

    /// Seconds until it will have delivered `len` bytes more.
    fn done(&self, len: usize) -> f64 {
        (self.unacknowledged + len) as f64 / self.rate
    }

    /// It was given `len` bytes.
    pub(super) fn add(&mut self, len: usize) {
        self.unacknowledged += len;
        self.unsent += len;
    }
}

/// The connection that shall take a fragment of `len` bytes, the first of `waiting`; `None` if it had better wait.
pub(super) fn pick(loads: &[Load], waiting: usize, len: usize) -> Option<usize> {
    let usable = || loads.iter().enumerate().filter(|(_, load)| load.open);
    let (mut rate, mut out, mut soonest) = (0.0, waiting.max(len), f64::INFINITY);
    for (_, load) in usable() {
        rate += load.rate;
        out += load.unacknowledged;
        soonest = soonest.min(load.done(len));
    }
    let (index, load) = usable()
        .filter(|(_, load)| load.unsent < UNSENT)
        .min_by(|(_, a), (_, b)| a.done(len).total_cmp(&b.done(len)))?;
    let end = out as f64 / rate;
    (load.done(len) <= soonest.max(end)).then_some(index)
}

#[cfg(test)]
mod tests;
