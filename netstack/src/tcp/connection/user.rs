//! The user of a connection: its calls, and the events that are reported to it.

use crate::time::Instant;

/// The user's side. A user that has let go of the connection gets no events any more; any other gets one when there is
/// something to read, and the next after it has read again.
#[derive(Debug)]
pub(super) struct User {
    /// When the user closed, or something new was acknowledged since.
    progress: Instant,
    /// The user has closed or aborted.
    released: bool,
    /// The user has shut sending.
    shut: bool,
    /// Data that arrives is announced.
    notify_readable: bool,
}

impl User {
    pub(super) fn new(now: Instant) -> Self {
        Self { progress: now, released: false, shut: false, notify_readable: true }
    }

    /// Whether the user has let go of the connection.
    #[inline]
    pub(super) fn has_released(&self) -> bool {
        self.released
    }

    /// Whether the user has shut sending.
    #[inline]
    pub(super) fn has_shut(&self) -> bool {
        self.shut
    }

    /// Whether the user may still write.
    #[inline]
    pub(super) fn writes(&self) -> bool {
        !self.released && !self.shut
    }

    /// Since when a connection that the user has closed has got nothing through.
    #[inline]
    pub(super) fn stalled_since(&self) -> Instant {
        self.progress
    }

    /// The user lets go of the connection.
    pub(super) fn release(&mut self, now: Instant) {
        self.released = true;
        self.progress = now;
    }

    /// The user shuts sending.
    pub(super) fn shut(&mut self) {
        self.shut = true;
    }

    /// The user reads: the next data that arrives is announced.
    #[inline]
    pub(super) fn on_read(&mut self) {
        self.notify_readable = true;
    }

    /// The peer has acknowledged something new.
    #[inline]
    pub(super) fn on_progress(&mut self, now: Instant) {
        if self.released {
            self.progress = now;
        }
    }

    /// There is something to read. Returns whether the user is to be notified.
    #[inline]
    pub(super) fn on_readable(&mut self) -> bool {
        let tell = self.notify_readable && !self.released;
        self.notify_readable &= !tell;
        tell
    }
}
