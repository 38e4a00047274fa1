//! Whether a peer counts as there: when it was last heard, whether it leaves, and signs against it.

use std::time::Duration;

use shouter_netstack::tcp::Failure;
use shouter_netstack::time::Instant;

/// The signs of a peer's life.
#[derive(Debug)]
pub(super) struct Standing {
    last_heard: Instant,
    /// It has announced a graceful close.
    leaving: bool,
    /// The first sign that it is lost, and until when another explanation may come.
    doubt: Option<(Instant, Failure)>,
}

impl Standing {
    pub(super) fn new(now: Instant) -> Self {
        Self { last_heard: now, leaving: false, doubt: None }
    }

    /// Something has come, or cannot be expected.
    #[inline]
    pub(super) fn on_heard(&mut self, now: Instant) {
        self.last_heard = now;
    }

    /// For how long nothing has come.
    pub(super) fn silence(&self, now: Instant) -> Duration {
        now.saturating_since(self.last_heard)
    }

    /// It has announced a graceful close: its connections that end from now on are no failure.
    pub(super) fn said_farewell(&mut self) {
        self.leaving = true;
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.leaving
    }

    /// It counts as lost by this failure from `until` on; a sign that was there before holds.
    pub(super) fn doubt(&mut self, until: Instant, failure: Failure) {
        self.doubt.get_or_insert((until, failure));
    }

    /// The time from which it counts as lost, and the failure.
    pub(super) fn doubted(&self) -> Option<(Instant, Failure)> {
        self.doubt
    }

    /// It is lost for some reason: nothing else is waited for.
    pub(super) fn settle(&mut self) {
        self.doubt = None;
    }
}
