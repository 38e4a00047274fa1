//! The times of the last transmission and of the last segment from the peer, and since when an acknowledgement is
//! awaited: the user timeout for a silent peer counts from there.

use crate::time::Instant;

/// The times. `waiting` counts only while something is out.
#[derive(Debug, Default)]
pub(super) struct Contact {
    sent: Instant,
    heard: Instant,
    /// Since when the oldest number is out unacknowledged.
    waiting: Instant,
}

impl Contact {
    /// The handshake is over.
    pub(super) fn begin(&mut self, now: Instant) {
        (self.sent, self.heard) = (now, now);
    }

    #[inline]
    pub(super) fn sent(&self) -> Instant {
        self.sent
    }

    #[inline]
    pub(super) fn heard(&self) -> Instant {
        self.heard
    }

    /// Since when the oldest number is out unacknowledged.
    pub(super) fn waiting_since(&self) -> Instant {
        self.waiting
    }

    /// Whether the peer has been heard since something was sent last: the intervals between probes grow longer than
    /// any user timeout.
    pub(super) fn is_answered(&self) -> bool {
        self.heard >= self.sent
    }

    #[inline]
    pub(super) fn on_sent(&mut self, now: Instant) {
        self.sent = now;
    }

    #[inline]
    pub(super) fn on_heard(&mut self, now: Instant) {
        self.heard = now;
    }

    /// An acknowledgement of the oldest outstanding number is awaited from now on.
    #[inline]
    pub(super) fn waits_from(&mut self, now: Instant) {
        self.waiting = now;
    }
}
