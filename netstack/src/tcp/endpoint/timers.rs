//! One wheel entry per connection and per record, moved lazily: a deadline that moves back is not touched until the
//! entry fires and finds that there is still time.

use crate::time::Instant;
use crate::wheel::{TimerKey, Wheel};

/// Whose timer it is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Timer {
    /// A connection's slot.
    Connection(u32),
    /// A record's index and generation.
    TimeWait(u32, u16),
}

/// The wheel entry of a connection, if it has one, and when it fires.
#[derive(Clone, Copy, Debug)]
pub(super) struct Armed {
    key: TimerKey,
    at: Instant,
}

impl Armed {
    /// No entry.
    pub(super) const NOT: Self = Self { key: TimerKey::NONE, at: Instant::from_nanos(u64::MAX) };
}

/// All timers of an endpoint.
#[derive(Debug)]
pub(super) struct Timers {
    wheel: Wheel<Timer>,
}

impl Timers {
    pub(super) fn new() -> Self {
        Self { wheel: Wheel::new(Instant::ZERO) }
    }

    /// Makes sure that the connection's timer fires at `deadline` at the latest.
    #[inline]
    pub(super) fn arm(&mut self, armed: &mut Armed, index: u32, deadline: Option<Instant>) {
        let Some(deadline) = deadline else { return };
        if armed.at <= deadline {
            return;
        }
        self.wheel.cancel(armed.key);
        *armed = Armed { key: self.wheel.insert(deadline, Timer::Connection(index)), at: deadline };
    }

    /// Stops a connection's timer.
    pub(super) fn disarm(&mut self, armed: &mut Armed) {
        self.wheel.cancel(armed.key);
        *armed = Armed::NOT;
    }

    /// Starts a record's timer.
    pub(super) fn time_wait(&mut self, deadline: Instant, index: u32, generation: u16) {
        self.wheel.insert(deadline, Timer::TimeWait(index, generation));
    }

    /// Hands over what is due.
    pub(super) fn expire(&mut self, now: Instant, fired: &mut Vec<Timer>) {
        self.wheel.expire(now, |timer| fired.push(timer));
    }

    /// When [`Timers::expire`] is next due; it may find nothing then.
    #[inline]
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.wheel.next_deadline()
    }
}
