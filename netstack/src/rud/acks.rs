//! Timing of acknowledgements without data to send (spec.md section 5.5), and of requests for the peer's (section 6.1).

use super::api::{Config, MOST_PATHS};
use super::nanos;
use super::recovery::NEVER;
use crate::wire::rud::Held;
use std::collections::VecDeque;

#[cfg(test)]
mod tests;

/// Probes of the peer that may wait for their answers (RUD-13): one for each path. A volley is of 16 at most, but a peer whose
/// acknowledgements get lost sends each as a probe, one on each path until that one's fate is known (RUD-58). Those of many paths wait
/// together where this end looks late, and a forgotten one would count as lost on a path that delivers.
const MOST_PROBES: usize = MOST_PATHS;

/// Pending acknowledgements, and requests for the peer's.
///
/// `at` is set from the first of `unacked` datagrams until it has passed; then, as after `every` of them, an acknowledgement is
/// `due`. A datagram that reports all ends all three: every datagram acknowledges.
#[derive(Debug, Default)]
pub(super) struct Acks {
    every: u32,
    delay: u64,
    /// Datagrams received that no acknowledgement was sent for.
    unacked: u32,
    /// An acknowledgement is due now.
    due: bool,
    /// When one will be due.
    at: u64,
    /// Data sent since an acknowledgement was requested.
    since_request: u32,
    /// When the last data came, or could have come.
    arrived_at: u64,
    /// Whether that is not certain.
    late: bool,
    /// When the data before that came.
    arrived_before: u64,
    /// Data received with a mark.
    marks: u64,
    /// Probes that were not answered yet; an acknowledgement is due for each.
    probes: VecDeque<Probe>,
}

/// A peer's probe.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probe {
    pub(super) stamp: u64,
    arrived_at: u64,
    late: bool,
}

impl Probe {
    /// How long this end has had it.
    pub(super) fn held(&self, now: u64) -> Held {
        Held::new(now.saturating_sub(self.arrived_at), self.late)
    }
}

impl Acks {
    pub(super) fn new(config: &Config) -> Self {
        Self { every: config.ack_every, delay: nanos(config.ack_delay), at: NEVER, ..Self::default() }
    }

    /// Whether one is due now.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.due
    }

    /// When one will be due; `NEVER` if nothing waits for one.
    #[inline]
    pub(super) fn deadline(&self) -> u64 {
        self.at
    }

    /// Whether data has come that nothing sent since acknowledges.
    pub(super) fn waits(&self) -> bool {
        self.unacked != 0
    }

    /// Data was received, `marked` or not, which this end may have had for `late` nanoseconds before it looked.
    #[inline]
    pub(super) fn on_data(&mut self, now: u64, late: u64, marked: bool) {
        self.arrived_before = self.arrived_at;
        self.arrived_at = now.saturating_sub(late);
        self.late = late != 0;
        //= rud/spec.md section 7.2, RUD-76
        self.marks += u64::from(marked);
        self.unacked += 1;
        if self.unacked == 1 {
            self.at = now.saturating_add(self.delay);
        }
        //= rud/spec.md section 5.5, RUD-28
        self.due |= self.unacked >= self.every;
    }

    /// One is due at the next opportunity, if `wanted`.
    #[inline]
    pub(super) fn set_due(&mut self, wanted: bool) {
        self.due |= wanted;
    }

    /// Fires the timer if its time has come.
    pub(super) fn on_timeout(&mut self, now: u64) {
        if now >= self.at {
            self.due = true;
            self.at = NEVER;
        }
    }

    /// A datagram went out that leaves nothing to report.
    #[inline]
    pub(super) fn on_reported(&mut self) {
        self.unacked = 0;
        self.due = !self.probes.is_empty();
        self.at = NEVER;
    }

    /// A probe came, which this end may have had for `late` nanoseconds. It is answered at the next opportunity.
    pub(super) fn on_probe(&mut self, now: u64, late: u64, stamp: u64) {
        if self.probes.len() == MOST_PROBES {
            self.probes.pop_front();
        }
        //= rud/spec.md section 4.3, RUD-13
        self.probes.push_back(Probe { stamp, arrived_at: now.saturating_sub(late), late: late != 0 });
        self.due = true;
    }

    /// The probe to be answered next.
    pub(super) fn probe(&self) -> Option<Probe> {
        self.probes.front().copied()
    }

    /// It is answered by the datagram that goes out now.
    pub(super) fn on_answered(&mut self) {
        self.probes.pop_front();
    }

    /// When data came last, and when before that.
    pub(super) fn arrivals(&self) -> (u64, u64) {
        (self.arrived_at, self.arrived_before)
    }

    /// Data received with a mark.
    #[inline]
    pub(super) fn marks(&self) -> u64 {
        self.marks
    }

    /// How long this end has had the data that came last.
    #[inline]
    pub(super) fn held(&self, now: u64) -> Held {
        Held::new(now.saturating_sub(self.arrived_at), self.late)
    }

    /// Whether the datagram that fills a window of `limit` should request an acknowledgement.
    #[inline]
    pub(super) fn asks(&self, limit: u32) -> bool {
        //= rud/spec.md section 6.1, RUD-37
        // With a full window every datagram fills it: one request in a quarter of the window is enough.
        self.since_request + 1 >= (limit / 4).min(self.every)
    }

    /// Data was sent; `asked`: it requests an acknowledgement.
    #[inline]
    pub(super) fn on_data_sent(&mut self, asked: bool) {
        self.since_request = if asked { 0 } else { self.since_request + 1 };
    }
}
