//! The times of heartbeats, where the provider of connections does not detect a stopped process.

use std::time::Duration;

use shouter_netstack::time::Instant;

/// The time of the next heartbeat.
#[derive(Debug)]
pub(super) struct Heartbeat {
    /// None, where there are no heartbeats.
    at: Option<Instant>,
    dead_after: Duration,
}

impl Heartbeat {
    /// From `at` on, to peers that take this rank for dead after a silence of `dead_after`.
    pub(super) fn new(at: Option<Instant>, dead_after: Duration) -> Self {
        Self { at, dead_after }
    }

    /// When the next one is due.
    #[inline]
    pub(super) fn at(&self) -> Option<Instant> {
        self.at
    }

    #[inline]
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.at.is_some_and(|at| at <= now)
    }

    /// The one that is due is sent now. True if it comes so late that this process itself may have been stopped.
    pub(super) fn send(&mut self, now: Instant) -> bool {
        let due = self.at.unwrap_or(now);
        let interval = (self.dead_after / 8).clamp(Duration::from_millis(1), Duration::from_secs(1));
        self.at = Some(now + interval);
        now.saturating_since(due) > self.dead_after / 2
    }
}
