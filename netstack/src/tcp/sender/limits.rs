//! The times during which written data waited for acknowledgements, for the peer's window, or for a writer that the
//! send buffer turned away (Linux reports the same in TCP_INFO). And the outstanding data, in segments.

use core::time::Duration;

use super::{InfoCounts, Phase, Sender};
use crate::tcp::{Repair, Sending};
use crate::time::Instant;

/// The limit on sending. Of two at once the later counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Limit {
    /// Nothing was written that is not acknowledged.
    #[default]
    Idle,
    /// The network.
    Busy,
    /// The peer's window.
    Window,
    /// The writer, whom the send buffer turned away.
    Buffer,
}

/// The times, in nanoseconds.
#[derive(Debug, Default)]
struct Limits {
    limit: Limit,
    since: Instant,
    busy: u64,
    window: u64,
    buffer: u64,
}

/// Statistics of a connection's sending from its beginning on. A connection that sends nothing has none.
#[derive(Debug, Default)]
pub(super) struct Tally {
    counts: InfoCounts,
    limits: Limits,
    /// Up to this stream position nothing is held back for further writes.
    pushed: u64,
}

impl Tally {
    /// Counts `some` more.
    pub(super) fn count(&mut self, which: impl FnOnce(&mut InfoCounts) -> &mut u32, some: u32) {
        let count = which(&mut self.counts);
        *count = count.wrapping_add(some);
    }

    /// Bytes up to this stream position are not held back.
    pub(super) fn push(&mut self, position: u64) {
        self.pushed = position;
    }

    /// The stream position up to which nothing is held back.
    #[inline]
    pub(super) fn pushed(&self) -> u64 {
        self.pushed
    }
}

impl Limits {
    /// Whether this limit holds, or one that counts more.
    #[inline]
    fn is_at_least(&self, limit: Limit) -> bool {
        self.limit >= limit
    }

    /// Begins this limit, if none holds that counts more.
    #[inline]
    fn start(&mut self, now: Instant, limit: Limit) {
        if self.limit < limit {
            self.set(now, limit);
        }
    }

    /// Ends this limit.
    #[inline]
    fn stop(&mut self, now: Instant, limit: Limit) {
        if self.limit == limit {
            self.set(now, Limit::Busy);
        }
    }

    /// All is acknowledged.
    #[inline]
    fn rest(&mut self, now: Instant) {
        self.set(now, Limit::Idle);
    }

    #[inline]
    fn set(&mut self, now: Instant, limit: Limit) {
        let times = self.times(now);
        (self.busy, self.window, self.buffer) = times;
        self.limit = limit;
        self.since = now;
    }

    fn times(&self, now: Instant) -> (u64, u64, u64) {
        let time = now.nanos_since(self.since);
        let during = |limit: Limit| if self.limit == limit { time } else { 0 };
        let busy = if self.limit == Limit::Idle { 0 } else { time };
        (
            self.busy.saturating_add(busy),
            self.window.saturating_add(during(Limit::Window)),
            self.buffer.saturating_add(during(Limit::Buffer)),
        )
    }
}

impl Sender {
    #[inline]
    pub(super) fn tally(&mut self) -> &mut Tally {
        self.tally.get_or_insert_default()
    }

    /// The counts.
    pub(super) fn counts(&self) -> InfoCounts {
        self.tally.as_ref().map_or_else(InfoCounts::default, |tally| tally.counts)
    }

    /// Whether this limit holds, or one that counts more.
    pub(super) fn waits_at_least(&self, limit: Limit) -> bool {
        self.tally.as_ref().is_some_and(|tally| tally.limits.is_at_least(limit))
    }

    /// Begins this limit, if none holds that counts more.
    #[inline]
    pub(super) fn starts_wait(&mut self, now: Instant, limit: Limit) {
        self.tally().limits.start(now, limit);
    }

    /// Ends this limit.
    #[inline]
    pub(super) fn ends_wait(&mut self, now: Instant, limit: Limit) {
        if let Some(tally) = &mut self.tally {
            tally.limits.stop(now, limit);
        }
    }

    /// All is acknowledged.
    #[inline]
    pub(super) fn ends_all_waits(&mut self, now: Instant) {
        if let Some(tally) = &mut self.tally {
            tally.limits.rest(now);
        }
    }

    /// How the sending goes.
    pub(crate) fn sending(&self, now: Instant) -> Sending {
        let repair = match self.recovery.phase() {
            Phase::Recovery { .. } => Repair::Recovery,
            Phase::Loss { .. } => Repair::Loss,
            Phase::Open if self.ecn.is_reduced(self.space.una()) => Repair::Reduced,
            Phase::Open if self.board.sacked() > 0 || self.recovery.duplicates() > 0 => Repair::Disorder,
            Phase::Open => Repair::None,
        };
        let counts = self.board.counts();
        // Segments that a repair has sent again were lost; a tail-loss probe may repeat others.
        let repaired = if self.recovery.is_open() { 0 } else { counts.resent };
        let times = self.tally.as_ref().map(|tally| tally.limits.times(now));
        let (busy, window, buffer) = times.unwrap_or_default();
        Sending {
            repair,
            out: counts.out,
            sacked: counts.sacked.saturating_add(self.recovery.duplicates() / u32::from(self.size.mss())),
            lost: counts.lost.saturating_add(repaired),
            resent: counts.resent,
            retries: self.recovery.timeouts(),
            busy: Duration::from_nanos(busy),
            window_limited: Duration::from_nanos(window),
            buffer_limited: Duration::from_nanos(buffer),
        }
    }
}
