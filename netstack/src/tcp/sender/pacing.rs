//! When the next burst may leave.

use core::time::Duration;

use crate::time::Instant;

/// What a late poll may make up for.
const GRACE: Duration = Duration::from_micros(500);

/// The pace of a connection.
#[derive(Debug, Default)]
pub(super) struct Pacer {
    at: Instant,
}

impl Pacer {
    /// A burst may leave at once.
    pub(super) fn restart(&mut self, now: Instant) {
        self.at = now;
    }

    /// When the next burst may leave.
    #[inline]
    pub(super) fn at(&self) -> Instant {
        self.at
    }

    /// Whether it may not leave yet.
    #[inline]
    pub(super) fn waits(&self, now: Instant) -> bool {
        now < self.at
    }

    /// A burst has left, which takes so long at the connection's rate: the next one may leave when it has had its time.
    pub(super) fn on_sent(&mut self, now: Instant, time: Duration) {
        let grace = GRACE.min(time);
        let from = Instant::from_nanos(now.as_nanos().saturating_sub(grace.as_nanos() as u64)).max(self.at);
        self.at = from + time;
    }
}
