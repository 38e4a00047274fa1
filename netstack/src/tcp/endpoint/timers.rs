//! One wheel entry per connection and per record, moved lazily: a deadline that moves back is not touched until the
//! entry fires and finds that there is still time.

use crate::time::Instant;
use crate::wheel::{TimerKey, Wheel};

/// The owner of a timer.
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

/// All timers of an endpoint. A record has an entry in the wheel as long as it exists, a connection as [`Armed`] says.
#[derive(Debug)]
pub(super) struct Timers {
    wheel: Wheel<Timer>,
    /// The entries of records, by their index.
    records: Vec<TimerKey>,
    /// Scratch: empty while nothing is expired.
    fired: Vec<Timer>,
}

impl Timers {
    pub(super) fn new() -> Self {
        Self { wheel: Wheel::new(Instant::ZERO), records: Vec::new(), fired: Vec::new() }
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

    /// How many entries run.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.wheel.len()
    }

    /// Starts a record's timer.
    pub(super) fn time_wait(&mut self, deadline: Instant, index: u32, generation: u16) {
        let key = self.wheel.insert(deadline, Timer::TimeWait(index, generation));
        let at = index as usize;
        if self.records.len() <= at {
            self.records.resize(at + 1, TimerKey::NONE);
        }
        if let Some(place) = self.records.get_mut(at) {
            *place = key;
        }
    }

    /// Stops a record's timer: the record goes before its time.
    pub(super) fn time_wait_over(&mut self, index: u32) {
        if let Some(key) = self.records.get_mut(index as usize) {
            self.wheel.cancel(core::mem::replace(key, TimerKey::NONE));
        }
    }

    /// Hands over the timers that are due, to be given back by [`Timers::recycle`].
    pub(super) fn expire(&mut self, now: Instant) -> Vec<Timer> {
        let mut fired = core::mem::take(&mut self.fired);
        self.wheel.expire(now, |timer| fired.push(timer));
        fired
    }

    /// The fired timers were handled: their memory is used again.
    pub(super) fn recycle(&mut self, mut fired: Vec<Timer>) {
        fired.clear();
        self.fired = fired;
    }

    /// Whether [`Timers::next_deadline`] has come.
    #[inline]
    pub(super) fn are_due(&mut self, now: Instant) -> bool {
        self.wheel.is_due(now)
    }

    /// When [`Timers::expire`] is next due; it may find nothing then.
    #[inline]
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.wheel.next_deadline()
    }
}
