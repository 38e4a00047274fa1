//! Polling until a condition holds, by the thread that waits for it or by the one that drives.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};

use crossbeam::sync::Parker;

use super::waiters::Condition;
use super::{DriveError, Inner, Locked, thread_number};
use crate::runtime::sleeper::Sleeping;
use crate::runtime::{Activity, Announce, Backoff, Clock, Instant, PollClock, Poller, Wakes, panic_message};

impl<P: Poller + Send + 'static> Inner<P> {
    /// Polls until the condition holds.
    pub(super) fn drive(
        &self,
        locked: &mut Locked<P>,
        condition: &mut dyn FnMut(&mut P) -> bool,
        deadline: Option<Instant>,
    ) -> Result<(), DriveError> {
        if let Some(message) = &locked.dead {
            return Err(DriveError::Panicked { message: message.clone() });
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            if condition(&mut locked.poller) {
                return Ok(());
            }
            self.poll_until(locked, condition, deadline)
        }));
        outcome.unwrap_or_else(|payload| {
            let message = panic_message(&*payload);
            locked.dead = Some(message.clone());
            Err(DriveError::Panicked { message })
        })
    }

    fn poll_until(
        &self,
        locked: &mut Locked<P>,
        condition: &mut dyn FnMut(&mut P) -> bool,
        deadline: Option<Instant>,
    ) -> Result<(), DriveError> {
        let Locked { poller, parker, .. } = locked;
        self.polled_waits.store(self.polled_waits.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        let mut caller = Caller { inner: self, poller, parker, deadline };
        let mut clock = PollClock::new(Clock);
        let begin = clock.now();
        let mut idle = Backoff::new(self.idle);
        let mut fresh = true;
        loop {
            let activity = caller.poller.poll_again(clock.now());
            let activity = self.serve(caller.poller, activity);
            let sleep = |caller: &mut Caller<'_, P>, longest| self.sleeper.sleep(caller, longest);
            let parked = idle.wait_with(activity, &mut caller, Caller::deadline, sleep);
            if activity.is_busy() || parked {
                fresh = true;
            }
            if std::mem::take(&mut fresh) && condition(caller.poller) {
                return Ok(());
            }
            let (now, read) = if parked { (clock.refresh(), true) } else { clock.after(activity) };
            if read && deadline.is_some_and(|at| now >= at) {
                return Err(DriveError::Timeout { waited: now.saturating_since(begin) });
            }
        }
    }

    /// Whether a thread that is about to park has something to do.
    fn has_pending_work(&self) -> bool {
        self.waiters.have_fresh() || self.nudged.swap(false, Ordering::Relaxed)
    }

    /// Polls once, and checks the enqueued conditions if the poll did something, or they are due. Busy also when one of them holds: a closure
    /// run by [`Driver::with`](super::Driver::with) may have changed what another condition depends on.
    #[inline]
    pub(super) fn poll_and_serve(&self, poller: &mut P, now: Instant) -> Activity {
        let activity = poller.poll(now);
        self.serve(poller, activity)
    }

    /// Checks the enqueued conditions behind a poll.
    #[inline]
    pub(super) fn serve(&self, poller: &mut P, activity: Activity) -> Activity {
        if (activity.is_busy() && !self.waiters.is_empty()) || self.waiters.are_due() {
            let reached = self.waiters.serve(poller);
            return activity.or(Activity::from_busy(reached));
        }
        activity
    }

    /// The driver lock is taken: enqueues the condition, and waits for it to hold or for the driver lock.
    #[cold]
    pub(super) fn drive_or_wait(
        &self,
        mut condition: Condition<P>,
        deadline: Option<Instant>,
    ) -> Result<(), DriveError> {
        if self.driving_thread.load(Ordering::Relaxed) == thread_number() {
            return Err(DriveError::Reentered);
        }
        let _contending = Contending::new(&self.contending);
        // The helper unlocks after its current poll, so a short spin is cheaper than enqueueing a waiter.
        for _ in 0..self.idle.spins.min(200) {
            if !self.helper_drives.load(Ordering::Relaxed) {
                break;
            }
            std::hint::spin_loop();
        }
        if let Some(mut locked) = self.try_lock() {
            let result = self.drive(&mut locked, &mut *condition, deadline);
            self.unlock(locked);
            return result;
        }

        let begin = Clock.now();
        let ticket = self.waiters.add(condition);
        // A parked driving thread checks the new condition at once.
        self.wake();
        let mut idle = Backoff::new(self.idle);
        loop {
            if ticket.holds() {
                return Ok(());
            }
            // Registered before looking at the driver lock; pairs with `release`.
            self.drives.fetch_add(0, Ordering::AcqRel);
            if let Some(mut locked) = self.try_lock() {
                self.waiters.refresh();
                let result = self.drive(&mut locked, &mut |_| ticket.holds(), deadline);
                // Removed before the release, which wakes the longest waiting thread.
                self.waiters.remove(&ticket);
                self.unlock(locked);
                return result;
            }
            let now = Clock.now();
            if deadline.is_some_and(|at| now >= at) {
                self.waiters.remove(&ticket);
                // A wake may have been meant for us: pass it on.
                self.waiters.wake_first();
                let waited = now.saturating_since(begin);
                return if ticket.holds() { Ok(()) } else { Err(DriveError::Timeout { waited }) };
            }
            ticket.wait(&mut idle, deadline);
        }
    }
}

/// A thread that drives, as it sleeps.
struct Caller<'a, P: Poller + Send + 'static> {
    inner: &'a Inner<P>,
    poller: &'a mut P,
    parker: &'a Parker,
    deadline: Option<Instant>,
}

impl<P: Poller + Send + 'static> Sleeping for Caller<'_, P> {
    fn parker(&self) -> &Parker {
        self.parker
    }

    fn arm(&mut self, announce: &mut Announce<'_>) -> Wakes {
        self.poller.arm(announce)
    }

    fn disarm(&mut self) {
        self.poller.disarm();
        // Time has passed, on which conditions may depend.
        self.inner.waiters.refresh();
    }

    fn poll(&mut self) -> Activity {
        self.inner.poll_and_serve(self.poller, Clock.now())
    }

    fn deadline(&self) -> Option<Instant> {
        [self.poller.next_deadline(), self.deadline].into_iter().flatten().min()
    }

    fn has_pending_work(&self) -> bool {
        self.inner.has_pending_work()
    }
}

/// Counts a caller that waits for the driver lock.
struct Contending<'a>(&'a AtomicU32);

impl<'a> Contending<'a> {
    fn new(count: &'a AtomicU32) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Contending<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
