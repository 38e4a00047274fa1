//! Waiting after an idle poll: spin, then yield, then park.
//!
//! With a core to itself a waiting loop spins, for a message is worth most when it is seen within 100 ns. With
//! more ranks than cores a spinning thread keeps the awaited one from running, so it must yield the core after a
//! few tries. [`IdlePolicy`] holds the numbers, [`Backoff`] the position in the sequence.
//!
//! A policy is chosen by the number of ranks and cores, and a scheduler may put two ranks on one core all the same, because something else
//! computes on the other. A thread notices that by its yields: one that lets another waiting thread run returns after some microseconds.
//! So the thread yields after a few tries for its next waits, too. A yield to a thread that computes lasts a time slice, milliseconds, in which
//! nothing is waited for; after one of these the thread spins as its policy says.

use std::cell::Cell;
use std::time::Duration;

use super::{Activity, Clock, CoreAllowance, Instant};

/// Idle polls of a wait before the thread considers that it may share its core.
const FEW_SPINS: u32 = 16;

/// A yield that lasts longer than this has let another thread run...
const ANOTHER_RAN: Duration = Duration::from_micros(2);

/// ...and one that lasts at least this long, a thread that computes.
const COMPUTED: Duration = Duration::from_micros(500);

/// Waits for which a thread that has found another waiting thread on its core yields after a few tries.
const REMEMBERED: u32 = 64;

thread_local! {
    /// Waits for which this thread is still held to share its core with a thread that waits as well.
    static SHARED_FOR: Cell<u32> = const { Cell::new(0) };
}

/// How long a waiting loop spins and yields before it parks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdlePolicy {
    /// Idle polls that only execute a PAUSE.
    pub spins: u32,
    /// Idle polls after those that each give up the core once (`sched_yield`).
    pub yields: u32,
    /// Length of the first park after those; each further one doubles.
    pub first_park: Duration,
    /// Longest park. Unannounced work (a flag in shared memory, a frame in the queue of a device without receive interrupts) waits at
    /// most this long, plus the kernel's timer slack (50 us by default).
    pub longest_park: Duration,
}

impl IdlePolicy {
    /// For a thread with a core to itself: some 100 us of pure spinning, then milliseconds of yielding. A yield costs a
    /// lone thread 0.2 us, which is negligible in such a long wait; but when the core turns out to be shared after all
    /// (a data loader, a neighbour), a long spin would keep the awaited thread from running.
    pub const EXCLUSIVE: Self = Self {
        spins: 1_000,
        yields: 10_000,
        first_park: Duration::from_micros(20),
        longest_park: Duration::from_micros(200),
    };

    /// For threads that share cores: yields almost at once.
    pub const SHARED: Self = Self {
        spins: 1,
        yields: 1_000,
        first_park: Duration::from_micros(20),
        longest_park: Duration::from_micros(500),
    };

    /// For threads that must leave the CPU to others (quota below one CPU, or a background helper).
    pub const FRUGAL: Self = Self {
        spins: 8,
        yields: 8,
        first_park: Duration::from_micros(50),
        longest_park: Duration::from_millis(1),
    };

    /// For `local_ranks` processes that wait at the same time on the same `cores` whole cores
    /// ([`CoreAllowance::whole_cores`]).
    ///
    /// Ranks that a launcher has bound to disjoint cores do not share: pass 1 for `local_ranks` then.
    pub const fn for_ranks(local_ranks: usize, cores: usize) -> Self {
        if cores == 0 {
            Self::FRUGAL
        } else if local_ranks > cores {
            Self::SHARED
        } else {
            Self::EXCLUSIVE
        }
    }

    /// [`IdlePolicy::for_ranks`] with the cores that this process was found to have.
    pub fn detect(local_ranks: usize) -> Self {
        Self::for_ranks(local_ranks, CoreAllowance::detect().whole_cores())
    }
}

/// The next action of a waiting loop, as [`Backoff::step`] decides it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackoffStep {
    /// Go on at once.
    Go,
    /// Execute a PAUSE.
    Spin,
    /// Give up the core once.
    Yield,
    /// Sleep, at most this long.
    Park(Duration),
}

/// The position of one waiting loop in the sequence spin, yield, park.
///
/// ```
/// use shouter::runtime::{Activity, Backoff, IdlePolicy};
/// use std::sync::atomic::{AtomicBool, Ordering};
///
/// let ready = AtomicBool::new(false);
/// std::thread::scope(|scope| {
///     scope.spawn(|| ready.store(true, Ordering::Release));
///     let mut idle = Backoff::new(IdlePolicy::for_ranks(2, 1));
///     while !ready.load(Ordering::Acquire) {
///         idle.wait(Activity::Idle, None);
///     }
/// });
/// ```
#[derive(Clone, Debug)]
pub struct Backoff {
    policy: IdlePolicy,
    /// The spins of this wait: those of the policy, or few, until the thread is found not to share its core.
    spins: u32,
    idle_polls: u32,
    next_park: Duration,
}

impl Backoff {
    /// At the start of the sequence.
    pub fn new(policy: IdlePolicy) -> Self {
        Self { policy, spins: policy.spins.min(FEW_SPINS), idle_polls: 0, next_park: policy.first_park }
    }

    /// Back to the start of the sequence.
    #[inline]
    pub fn reset(&mut self) {
        self.spins = self.policy.spins.min(FEW_SPINS);
        self.idle_polls = 0;
        self.next_park = self.policy.first_park;
    }

    /// Records the activity of a poll and returns how to wait before the next. No clock, no system call.
    #[inline]
    pub fn step(&mut self, activity: Activity) -> BackoffStep {
        if activity.is_busy() {
            self.reset();
            return BackoffStep::Go;
        }
        if self.idle_polls < self.spins {
            self.idle_polls += 1;
            BackoffStep::Spin
        } else {
            self.impatient()
        }
    }

    #[cold]
    fn impatient(&mut self) -> BackoffStep {
        if self.spins < self.policy.spins && self.idle_polls == self.spins && !shares_core() {
            self.spins = self.policy.spins;
            self.idle_polls += 1;
            return BackoffStep::Spin;
        }
        if self.idle_polls - self.spins < self.policy.yields {
            self.idle_polls += 1;
            return BackoffStep::Yield;
        }
        let park = self.next_park;
        self.next_park = self.next_park.saturating_mul(2).min(self.policy.longest_park);
        BackoffStep::Park(park)
    }

    /// Waits as the policy says after a poll with this `activity`; parks no longer than until `next_deadline`.
    ///
    /// Parking is `std::thread::park_timeout`, so any thread may unpark it. Returns whether it
    /// parked (then time has passed, and a remembered clock is stale).
    #[inline]
    pub fn wait(&mut self, activity: Activity, next_deadline: Option<Instant>) -> bool {
        let park = |_: &mut (), longest| {
            std::thread::park_timeout(longest);
            Activity::Idle
        };
        self.wait_with(activity, &mut (), |()| next_deadline, park)
    }

    /// As [`Backoff::wait`], with a deadline of the `thread` that is computed only when it is needed, and a park of its own, which returns the activity of a
    /// poll that it has made.
    #[inline]
    pub(super) fn wait_with<T>(
        &mut self,
        activity: Activity,
        thread: &mut T,
        next_deadline: impl FnOnce(&T) -> Option<Instant>,
        park: impl FnOnce(&mut T, Duration) -> Activity,
    ) -> bool {
        match self.step(activity) {
            BackoffStep::Go => false,
            BackoffStep::Spin => {
                std::hint::spin_loop();
                false
            }
            BackoffStep::Yield => {
                give_way();
                false
            }
            BackoffStep::Park(longest) => {
                let deadline = next_deadline(thread);
                let left = deadline.map_or(longest, |at| at.saturating_since(Clock.now()).min(longest));
                if !left.is_zero() && park(thread, left).is_busy() {
                    self.reset();
                }
                true
            }
        }
    }
}

/// Gives up the core once, and notes whom that has let run.
pub(super) fn give_way() {
    let begin = Clock.now();
    std::thread::yield_now();
    note_yield(Clock.now().saturating_since(begin));
}

/// A yield of this thread took so long.
fn note_yield(took: Duration) {
    if took >= COMPUTED {
        SHARED_FOR.set(0);
    } else if took > ANOTHER_RAN {
        SHARED_FOR.set(REMEMBERED);
    }
}

/// Whether this thread is held to share its core, for one more wait.
fn shares_core() -> bool {
    let left = SHARED_FOR.get();
    SHARED_FOR.set(left.saturating_sub(1));
    left > 0
}

#[cfg(test)]
mod tests;
