//! The times of a rank's polls: when the last whole one was, whether the next one may be spared, and whether this process was stopped
//! between two of them.

use std::time::Duration;

use shouter_netstack::time::Instant;

use crate::channel::verbs::ASK_EVERY;

/// Between two whole polls while a rank waits.
const WHOLE_EVERY: Duration = Duration::from_micros(1);

/// For so long behind a whole poll, messages of an operation that is started are sent without another one.
const POSTED_FOR: Duration = Duration::from_micros(20);

/// Messages that may begin and end in one call between two whole polls: some 10 us of a rank that does nothing else.
const SPARED: u32 = 32;

/// The times of an engine's polls.
pub(super) struct PollTimes {
    /// The last whole poll.
    polled_at: Instant,
    /// The polls spared since.
    spared: u32,
    /// It has found nothing to do, and nothing was started since.
    is_resting: bool,
    /// The last time that something happened.
    last_busy: Instant,
    /// The next question to an accelerator whether it is done.
    ask_at: Option<Instant>,
    dead_after: Duration,
    /// This rank was stopped for too long: until then, a peer that it loses may have dropped it for that reason.
    resumed_until: Option<Instant>,
}

impl PollTimes {
    /// Those of a rank that the others take for dead after so long a silence.
    pub(super) fn new(dead_after: Duration, now: Instant) -> Self {
        Self {
            polled_at: now,
            spared: 0,
            is_resting: false,
            last_busy: now,
            ask_at: None,
            dead_after,
            resumed_until: None,
        }
    }

    /// A whole poll begins. Returns the pause before it if this process was stopped for about the heartbeat time-out or longer.
    #[inline]
    pub(super) fn begin(&mut self, now: Instant) -> Option<Duration> {
        let pause = now.saturating_since(self.polled_at);
        self.polled_at = now;
        self.spared = 0;
        // The others count from this rank's last heartbeat, which was before it was stopped.
        if pause <= self.dead_after / 4 * 3 {
            return None;
        }
        self.resumed_until = Some(now + self.dead_after);
        Some(pause)
    }

    /// A whole poll ends. With `asks` an accelerator is asked again soon; with `has_channels` more can bring something to do than the rings of
    /// this host.
    #[inline]
    pub(super) fn end(&mut self, now: Instant, busy: bool, asks: bool, has_channels: bool) {
        self.ask_at = asks.then(|| now + ASK_EVERY);
        if busy {
            self.last_busy = now;
        }
        self.is_resting = !busy && !asks && !has_channels;
    }

    /// Something has come between two whole polls.
    #[inline]
    pub(super) fn found(&mut self, now: Instant) {
        self.last_busy = now;
        self.is_resting = false;
    }

    /// Something was started, and sent as far as possible; `is_done` if nothing of it is left to be sent.
    #[inline]
    pub(super) fn posted(&mut self, is_done: bool) {
        self.is_resting = is_done;
    }

    /// Whether a message may be exchanged without a poll; counts it.
    #[inline]
    pub(super) fn spare_poll(&mut self) -> bool {
        let spares = self.spared < SPARED;
        self.spared += u32::from(spares);
        spares
    }

    /// Whether a rank that waits has to look at more than its rings.
    #[inline]
    pub(super) fn is_whole_poll_due(&self, now: Instant) -> bool {
        !self.is_resting || now.saturating_since(self.polled_at) >= WHOLE_EVERY
    }

    /// Whether messages of an operation that is started now are sent by a whole poll, also on a rank without channels.
    #[inline]
    pub(super) fn is_poll_due_to_post(&self, now: Instant) -> bool {
        self.ask_at.is_some() || now.saturating_since(self.polled_at) >= POSTED_FOR
    }

    /// Whether this rank was stopped for so long, not long ago, that others may have dropped it for that reason.
    pub(super) fn was_stopped(&self) -> bool {
        self.resumed_until.is_some_and(|until| self.polled_at < until)
    }

    /// The last whole poll.
    #[inline]
    pub(super) fn polled_at(&self) -> Instant {
        self.polled_at
    }

    /// For how long nothing has happened.
    pub(super) fn quiet_for(&self, now: Instant) -> Duration {
        now.saturating_since(self.last_busy)
    }

    /// A process that shows no heartbeat for so long is dead.
    pub(super) fn dead_after(&self) -> Duration {
        self.dead_after
    }

    /// The next question to an accelerator.
    pub(super) fn ask_at(&self) -> Option<Instant> {
        self.ask_at
    }
}
