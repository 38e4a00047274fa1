//! The state of a connection's queue pair, from offer to end, and for how long the connection has not worked.

use std::time::Duration;

use shouter_netstack::time::Instant;

use super::fabric::Fault;

/// The pauses between two queue pairs of a connection, at first and at most.
pub(super) const PAUSE: Duration = Duration::from_millis(5);
const MAX_PAUSE: Duration = Duration::from_millis(200);

/// The state of a connection's queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkState {
    /// It has no queue pair; one is offered then, or when the control connection is there.
    Down(Option<Instant>),
    /// A queue pair is offered; the peer's offer is awaited.
    Offered,
    /// Connected; the peer is not known to be.
    Connected,
    /// In use.
    Up,
    /// Never to be used again.
    Over,
}

/// The current queue pair of a connection.
#[derive(Debug)]
pub(super) struct Link {
    state: LinkState,
    /// Counts the connection's queue pairs.
    epoch: u32,
    /// Since when it does not work, counted until it has worked again.
    down_since: Option<Instant>,
    /// Fragments that the peer had taken when the present queue pair came up.
    taken_before: u64,
    last_fault: Fault,
    pause: Duration,
}

impl Link {
    /// A connection that has had no queue pair yet.
    pub(super) fn new() -> Self {
        Self {
            state: LinkState::Down(None),
            epoch: 0,
            down_since: None,
            taken_before: 0,
            last_fault: Fault::RetryExceeded,
            pause: Duration::ZERO,
        }
    }

    #[inline]
    pub(super) fn state(&self) -> LinkState {
        self.state
    }

    /// The number of the queue pair.
    pub(super) fn epoch(&self) -> u32 {
        self.epoch
    }

    #[inline]
    pub(super) fn is_up(&self) -> bool {
        self.state == LinkState::Up
    }

    /// Whether the queue pair can receive: the peer may send before its Ready message has arrived.
    #[inline]
    pub(super) fn receives(&self) -> bool {
        matches!(self.state, LinkState::Connected | LinkState::Up)
    }

    #[inline]
    pub(super) fn is_over(&self) -> bool {
        self.state == LinkState::Over
    }

    /// The peer has closed the queue pair and offers another.
    pub(super) fn follow(&mut self, now: Instant, epoch: u32) {
        self.epoch = epoch;
        self.down_since.get_or_insert(now);
    }

    /// A queue pair was made and offered.
    pub(super) fn offered(&mut self) {
        self.state = LinkState::Offered;
    }

    /// The queue pair is connected with the one that the peer has offered.
    pub(super) fn connected(&mut self) {
        self.state = LinkState::Connected;
    }

    /// The peer's queue pair of this number is connected, and it has taken so many fragments; true if the connection is up by that.
    pub(super) fn ready(&mut self, epoch: u32, taken: u64) -> bool {
        let comes_up = self.epoch == epoch && self.state == LinkState::Connected;
        if comes_up {
            self.state = LinkState::Up;
            self.taken_before = taken;
        }
        comes_up
    }

    /// The queue pair has failed. Returns when to offer another, and whether the connection had worked until now.
    pub(super) fn broke(&mut self, now: Instant, why: Fault) -> (Instant, bool) {
        let worked = self.down_since.is_none();
        self.down_since.get_or_insert(now);
        self.last_fault = why;
        self.pause = (self.pause * 2).clamp(PAUSE, MAX_PAUSE);
        let due = now + self.pause;
        self.state = LinkState::Down(Some(due));
        self.epoch += 1;
        (due, worked)
    }

    /// Checks whether a connection that is up counts as up for good: the peer has taken something, or nothing is to be
    /// taken.
    pub(super) fn settle(&mut self, in_flight: u64, taken: u64) {
        if self.is_up() && self.down_since.is_some() && (in_flight == 0 || taken > self.taken_before) {
            self.down_since = None;
            self.pause = Duration::ZERO;
        }
    }

    /// When to check a connection again that does not work.
    ///
    /// # Errors
    /// The last fault, if it has not worked for `patience`.
    pub(super) fn check(&self, now: Instant, patience: Duration) -> Result<Option<Instant>, Fault> {
        let Some(since) = self.down_since else { return Ok(None) };
        let until = since + patience;
        if now >= until { Err(self.last_fault) } else { Ok(Some(until.min(now + MAX_PAUSE))) }
    }

    /// The connection is never to be used again.
    pub(super) fn end(&mut self) {
        self.state = LinkState::Over;
    }
}
