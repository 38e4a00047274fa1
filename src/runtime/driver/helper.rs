//! The thread that answers the network while no caller drives.
//!
//! A trainer that computes for 200 ms between two all-reduces would otherwise leave its peers' frames
//! unacknowledged for that long. The helper sleeps most of the time; it looks more often while there is traffic that no
//! caller attends to, and releases the driver lock after one poll when a caller waits for it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

use super::{DriveError, DriverOptions, Inner};
use crate::log;
use crate::runtime::{Activity, Backoff, Clock, Instant, Poller, panic_message, sys};

/// Idle looks at the network before the helper slows down: 16 of half a millisecond.
const LOOKS_BEFORE_SLOW: u32 = 16;
/// The interval of the polls while a caller drives: the network is answered then. A thread that wakes every half
/// millisecond beside one that computes or polls keeps some Linux schedulers from giving its core to other autogroups
/// (docs/decisions.md).
const DRIVEN_PERIOD: Duration = Duration::from_millis(2);
/// The interval of the polls while an end is awaited by no thread that drives. Ranks hand over many chunks of a large tensor, and each
/// interval holds one up; more polls take too much of a core from a trainer that computes meanwhile (docs/benchmarks.md#pytorch). Where no
/// other thread of the process computes, the helper polls as a caller would, but sleeps no longer than this.
const AWAITED_PERIOD: Duration = Duration::from_micros(30);
/// Polls before the driver lock is released and taken again.
const POLLS_PER_LOCK: u32 = 256;
/// Shortest sleep, so that a deadline in the past cannot make the helper spin.
const SHORTEST_SLEEP: Duration = Duration::from_micros(50);

/// The running helper.
pub(super) struct Helper {
    thread: JoinHandle<()>,
}

impl Helper {
    /// Starts the thread; it ends when the driver is dropped, or a shard drives permanently.
    pub(super) fn start<P: Poller + Send + 'static>(
        inner: Arc<Inner<P>>,
        options: &DriverOptions,
    ) -> Result<Self, DriveError> {
        let (active, slow) = (options.active_period, options.idle_period);
        let thread = log::spawn(&options.name, move || run(&inner, active, slow));
        Ok(Self { thread: thread.map_err(|error| DriveError::NoHelper(error.to_string()))? })
    }

    /// The thread, for those who end its sleep.
    pub(super) fn thread(&self) -> Thread {
        self.thread.thread().clone()
    }

    /// Waits for the end of the thread, which was requested before.
    pub(super) fn join(self) {
        self.thread.thread().unpark();
        // It catches the engine's panics, so there is no panic of its own to report.
        let _ = self.thread.join();
    }
}

fn run<P: Poller + Send + 'static>(inner: &Inner<P>, active: Duration, slow: Duration) {
    // The kernel may otherwise let each sleep take 50 us longer. Where it refuses, it does.
    let _ = rustix::thread::set_current_timer_slack(core::num::NonZero::new(1_000));
    let mut quiet_looks = 0;
    let mut drives = 0;
    let mut attendance = Attendance { at: Clock.now(), polled_waits: 0 };
    let (mut others, mut idle) = (OtherThreads::default(), Backoff::new(inner.idle));
    while !inner.stopping.load(Ordering::Acquire) && !inner.is_dedicated() {
        let seen = inner.drives.load(Ordering::Relaxed);
        let mut activity = Activity::from_busy(seen != drives);
        drives = seen;
        let attended = attendance.look(Clock.now(), inner.polled_waits.load(Ordering::Relaxed), active);
        let mut deadline = None;
        let (mut driven, mut at_rest) = (false, false);
        match inner.contending.load(Ordering::SeqCst) == 0 {
            true => match lock_and_poll(inner) {
                PollAttempt::Done(done, next, rests) => {
                    activity = activity.or(done);
                    (deadline, at_rest) = (next, rests);
                    drives = drives.wrapping_add(1); // The helper's own unlock counts too.
                }
                PollAttempt::Taken => driven = true,
                PollAttempt::Dead => return,
            },
            false => driven = true,
        }
        quiet_looks = if driven || activity.is_busy() { 0 } else { quiet_looks + 1 };
        let period = match driven {
            true => active.max(DRIVEN_PERIOD),
            false if at_rest && attended => {
                // The engine's deadlines are callers' as well.
                deadline = None;
                slow
            }
            false if quiet_looks < LOOKS_BEFORE_SLOW => active,
            false => slow,
        };
        if inner.awaited_ends.is_any() {
            // A caller that drives serves those ends, too; when it stops is seen at the next poll.
            let park = |longest: Duration| std::thread::park_timeout(longest.min(AWAITED_PERIOD));
            if !driven && !others.compute(Clock.now()) {
                idle.wait_with(
                    activity,
                    &mut (),
                    |()| None,
                    |(), longest| {
                        park(longest);
                        Activity::Idle
                    },
                );
            } else {
                idle.reset();
                if driven || !activity.is_busy() {
                    park(AWAITED_PERIOD);
                }
            }
            continue;
        }
        let until =
            deadline.map_or(period, |at| at.saturating_since(Clock.now()).clamp(SHORTEST_SLEEP, period));
        // Unparked when the driver is dropped. A caller that needs the engine polled drives it.
        std::thread::park_timeout(until);
    }
}

/// Whether the other threads of the process compute, as its CPU time says.
#[derive(Default)]
struct OtherThreads {
    /// When it was last looked at.
    at: Instant,
    /// Nanoseconds of CPU time of the other threads until then.
    used: u64,
    compute: bool,
}

impl OtherThreads {
    /// How long they are watched for an answer.
    const PERIOD: u64 = 100_000;

    /// Whether they used more than a quarter of a core lately.
    fn compute(&mut self, now: Instant) -> bool {
        let passed = now.as_nanos().saturating_sub(self.at.as_nanos());
        if passed >= Self::PERIOD {
            let used = sys::cpu_nanos_of_other_threads();
            self.compute = used.saturating_sub(self.used) > passed / 4;
            (self.at, self.used) = (now, used);
        }
        self.compute
    }
}

/// What the helper saw of the callers at its last look.
struct Attendance {
    at: Instant,
    polled_waits: u64,
}

impl Attendance {
    /// Whether callers polled since the last look, on average at least once in each `period`.
    fn look(&mut self, now: Instant, polled_waits: u64, period: Duration) -> bool {
        let (passed, waits) = (now.saturating_since(self.at), polled_waits.wrapping_sub(self.polled_waits));
        (self.at, self.polled_waits) = (now, polled_waits);
        waits > 0 && passed <= period.saturating_mul(u32::try_from(waits).unwrap_or(u32::MAX))
    }
}

/// Result of an attempt to take the driver lock and poll.
enum PollAttempt {
    /// Polled at least once; with the engine's next deadline, and whether it is at rest.
    Done(Activity, Option<Instant>, bool),
    /// A caller drives.
    Taken,
    /// The engine panicked: there is nothing left to do.
    Dead,
}

/// Takes the driver lock if it is free and polls while there is something to do and no caller waits for the lock.
fn lock_and_poll<P: Poller + Send + 'static>(inner: &Inner<P>) -> PollAttempt {
    let Some(mut locked) = inner.try_lock() else { return PollAttempt::Taken };
    inner.helper_drives.store(true, Ordering::Relaxed);
    let mut attempt = PollAttempt::Dead;
    if locked.dead.is_none() {
        let poller = &mut locked.poller;
        let polled = catch_unwind(AssertUnwindSafe(|| {
            let mut any = Activity::Idle;
            for _ in 0..POLLS_PER_LOCK {
                let activity = inner.poll_and_serve(poller, Clock.now());
                any = any.or(activity);
                fence(Ordering::SeqCst);
                if !activity.is_busy() || inner.contending.load(Ordering::Relaxed) != 0 {
                    break;
                }
            }
            PollAttempt::Done(any, poller.next_deadline(), poller.is_at_rest())
        }));
        match polled {
            Ok(done) => attempt = done,
            Err(payload) => {
                let message = panic_message(&*payload);
                tracing::error!(%message, "the network engine panicked while the helper drove it");
                locked.dead = Some(message);
            }
        }
    }
    inner.helper_drives.store(false, Ordering::Relaxed);
    inner.unlock(locked);
    attempt
}
