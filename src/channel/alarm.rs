//! The earliest of the times at which a channel has something to do.

use shouter_netstack::time::Instant;

/// A time that only moves forward to an earlier one until it is due.
#[derive(Debug, Default)]
pub(super) struct Alarm(Option<Instant>);

impl Alarm {
    /// Due at `at`, or before if it was set so.
    pub(super) fn set(&mut self, at: Instant) {
        self.0 = Some(self.0.map_or(at, |other| other.min(at)));
    }

    /// Whether it is due; it is not set afterwards.
    #[inline]
    pub(super) fn take_due(&mut self, now: Instant) -> bool {
        self.0.take_if(|at| *at <= now).is_some()
    }

    /// When it is due.
    #[inline]
    pub(super) fn at(&self) -> Option<Instant> {
        self.0
    }
}
