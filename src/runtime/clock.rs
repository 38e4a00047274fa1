//! The one clock of the process, and a thrifty way to read it in a loop.

use super::{Activity, Instant, sys};

/// CLOCK_MONOTONIC as an [`Instant`]: nanoseconds since the host booted.
///
/// All processes of a host read the same values, so timestamps of its ranks can be compared. A read costs about
/// 20 ns (vDSO, no system call).
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock;

impl Clock {
    /// The current time.
    #[inline]
    pub fn now(self) -> Instant {
        Instant::from_nanos(sys::monotonic_nanos())
    }
}

/// Idle polls between two reads of the clock.
const IDLE_POLLS_PER_READ: u8 = 8;

/// The time for a loop of polls: read after every busy poll, but only after every eighth idle one, for an idle poll may
/// cost no more than the read itself.
#[derive(Clone, Copy, Debug)]
pub struct PollClock {
    clock: Clock,
    now: Instant,
    stale: u8,
}

impl PollClock {
    /// Reads `clock` for the first time.
    pub fn new(clock: Clock) -> Self {
        Self { clock, now: clock.now(), stale: 0 }
    }

    /// The time as of the last read.
    #[inline]
    pub fn now(&self) -> Instant {
        self.now
    }

    /// To be called after each poll, with its activity: returns the time for the next, and whether it was freshly read.
    #[inline]
    pub fn after(&mut self, activity: Activity) -> (Instant, bool) {
        self.stale += 1;
        let read = activity.is_busy() || self.stale >= IDLE_POLLS_PER_READ;
        if read {
            self.refresh();
        }
        (self.now, read)
    }

    /// Reads the clock now (after a park).
    #[inline]
    pub fn refresh(&mut self) -> Instant {
        self.now = self.clock.now();
        self.stale = 0;
        self.now
    }
}
