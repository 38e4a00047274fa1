//! A caller-driven shard: the thread that blocks for a result turns the shard itself.
//!
//! There is one *seat*. Who blocks takes it, turns until its goal is reached, and leaves. Who finds it taken hands
//! its goal to the one who sits there and waits; the driver checks everybody's goal after each turn that did
//! something. A driver that leaves tells the longest waiting thread that the seat is free.
//!
//! ```text
//!   thread A   try_lock ok ---> turn, turn, turn: goal A reached --> leave, nudge B
//!   thread B   try_lock fails -> goal to the list ... spins, parks .......> nudged: takes the seat, turns
//!   helper     park 1 ms ... seat free? one turn, go on while busy, leave ... park
//! ```
//!
//! The lists are touched only when threads do meet; one thread alone pays for an uncontended lock.

mod helper;
mod waiters;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use super::shared::{Remote, Shared};
use super::{Activity, Backoff, Clock, IdlePolicy, Instant, Poller, Reactor, TurnClock, panic_message, sys};
use helper::Helper;
use waiters::{Ticket, Waiters};

/// How a [`Driver`] waits and answers.
#[derive(Clone, Debug)]
pub struct DriverOptions {
    /// How a blocked thread waits.
    pub idle: IdlePolicy,
    /// The helper's name; Linux shows the first 15 bytes.
    pub name: String,
    /// Time between two looks of the helper at the network while there was traffic lately.
    pub active_period: Duration,
    /// The same when there was none for a while.
    pub idle_period: Duration,
}

impl Default for DriverOptions {
    fn default() -> Self {
        Self {
            idle: IdlePolicy::SHARED,
            name: "shouter-helper".to_owned(),
            active_period: Duration::from_micros(500),
            idle_period: Duration::from_millis(5),
        }
    }
}

/// Why [`Driver::drive_until`] gave no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DriveError {
    /// The deadline passed. The shard works on; drive again with a later deadline, or give the operation up.
    #[error("not reached after {waited:?}; drive again with a later deadline, or cancel the operation")]
    Timeout {
        /// How long was waited.
        waited: Duration,
    },
    /// The poller, or a closure run on it, panicked, now or earlier. The shard does nothing any more.
    #[error("the network engine panicked: {message}; leave the job and start anew")]
    Panicked {
        /// What the panic said.
        message: String,
    },
    /// This is a forked child; the engine and its devices belong to the parent.
    #[error("this process was forked from the one that owns the network engine; initialise after the fork")]
    Forked,
    /// Called from inside of the engine (a poller, a task, a goal), which would wait for itself.
    #[error("called from inside of the engine that is to be driven; hand the work to another thread")]
    Reentered,
    /// The helper thread could not be started.
    #[error("no helper thread: {0}; look at the process and pids limits")]
    NoHelper(String),
}

/// What the seat's lock protects.
struct Seat<P> {
    reactor: Reactor<P>,
    /// Set by the panic that ended the engine.
    dead: Option<String>,
}

struct Inner<P> {
    seat: Mutex<Seat<P>>,
    /// The reactor's outside, reachable without the seat.
    shared: Arc<Shared>,
    waiters: Waiters<P>,
    /// Callers that found the seat taken: the helper leaves when it sees one.
    contending: AtomicU32,
    /// Who sits there, as far as a caller must know.
    helper_seated: AtomicBool,
    /// Uid-like number of the thread that drives, zero if none: to notice re-entry.
    seated_thread: AtomicU64,
    /// Times that a caller has left the seat.
    drives: AtomicU64,
    idle: IdlePolicy,
    forks: u32,
}

/// A shard driven by whichever thread blocks for it, with a helper that answers the network meanwhile.
///
/// Share it by reference or `Arc`; any number of threads may block at once.
///
/// ```
/// use shouter::runtime::{Activity, Driver, DriverOptions, Instant, Poller};
///
/// /// Counts its turns.
/// struct Engine(u32);
/// impl Poller for Engine {
///     fn poll(&mut self, _now: Instant) -> Activity {
///         self.0 += 1;
///         Activity::Busy
///     }
/// }
///
/// let driver = Driver::new(Engine(0), DriverOptions::default()).unwrap();
/// let turns = driver.drive_until(|engine| (engine.0 >= 10).then_some(engine.0), None).unwrap();
/// assert!(turns >= 10);
/// ```
pub struct Driver<P: Poller + Send + 'static> {
    inner: Option<Arc<Inner<P>>>,
    helper: Option<Helper>,
}

impl<P: Poller + Send + 'static> std::fmt::Debug for Driver<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver").field("waiting", &self.inner().waiters.len()).finish_non_exhaustive()
    }
}

impl<P: Poller + Send + 'static> Driver<P> {
    /// Puts `poller` into a shard without peers and starts the helper.
    ///
    /// # Errors
    ///
    /// [`DriveError::NoHelper`] if there is no thread to be had.
    pub fn new(poller: P, options: DriverOptions) -> Result<Self, DriveError> {
        Self::with_reactor(Reactor::new(poller), options)
    }

    /// Drives a reactor that was made elsewhere, such as one with peers.
    ///
    /// # Errors
    ///
    /// [`DriveError::NoHelper`] if there is no thread to be had.
    pub fn with_reactor(reactor: Reactor<P>, options: DriverOptions) -> Result<Self, DriveError> {
        sys::count_forks();
        let inner = Arc::new(Inner {
            shared: reactor.shared().clone(),
            seat: Mutex::new(Seat { reactor, dead: None }),
            waiters: Waiters::default(),
            contending: AtomicU32::new(0),
            helper_seated: AtomicBool::new(false),
            seated_thread: AtomicU64::new(0),
            drives: AtomicU64::new(0),
            idle: options.idle,
            forks: sys::fork_generation(),
        });
        let helper = Helper::start(inner.clone(), &options)?;
        Ok(Self { inner: Some(inner), helper: Some(helper) })
    }

    /// Blocks until `goal` finds what it looks for in the engine, turning the engine meanwhile.
    ///
    /// `goal` is asked before the first turn and then whenever something changed. It may be asked by another thread that
    /// drives already, hence `Send + 'static`; it must be quick and must not block.
    ///
    /// # Errors
    ///
    /// [`DriveError::Timeout`] at `deadline`; the other variants if the engine is of no more use.
    #[inline]
    pub fn drive_until<R, F>(&self, mut goal: F, deadline: Option<Instant>) -> Result<R, DriveError>
    where
        F: FnMut(&mut P) -> Option<R> + Send + 'static,
        R: Send + 'static,
    {
        let inner = self.inner();
        inner.check_process()?;
        match inner.try_seat() {
            Some(mut seat) => {
                let result = inner.drive(&mut seat, &mut goal, deadline);
                inner.leave(seat);
                result
            }
            None => inner.drive_or_wait(goal, deadline),
        }
    }

    /// Runs `f` on the engine: at once if nobody drives it, else after the driver's current turn. Tasks may be spawned
    /// and woken from there.
    ///
    /// # Errors
    ///
    /// If the engine is of no more use.
    #[inline]
    pub fn with<R, F>(&self, f: F) -> Result<R, DriveError>
    where
        F: FnOnce(&mut P) -> R + Send + 'static,
        R: Send + 'static,
    {
        let mut f = Some(f);
        self.drive_until(move |poller| f.take().map(|f| f(poller)), None)
    }

    /// Whether the engine is this process's.
    ///
    /// # Errors
    ///
    /// [`DriveError::Forked`] in a forked child.
    #[inline]
    pub fn check_process(&self) -> Result<(), DriveError> {
        self.inner().check_process()
    }

    /// The way into the shard for threads that do not want to block; the helper sees to it soon.
    pub fn remote(&self) -> Remote {
        Remote(self.inner().shared.clone())
    }

    fn inner(&self) -> &Arc<Inner<P>> {
        // Taken only by `drop`.
        self.inner.as_ref().expect("a driver that is not being dropped has its engine")
    }
}

impl<P: Poller + Send + 'static> Drop for Driver<P> {
    fn drop(&mut self) {
        let Some(inner) = self.inner.take() else { return };
        if inner.check_process().is_err() {
            // A forked child: neither thread nor devices are ours. Leak them.
            std::mem::forget(self.helper.take());
            std::mem::forget(inner);
            return;
        }
        inner.shared.ask_to_stop();
        if let Some(helper) = self.helper.take() {
            helper.join();
        }
        // The helper's reference is gone: the reactor is dropped here.
        drop(inner);
    }
}

/// A number that no other live thread has.
fn thread_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local!(static NUMBER: u64 = NEXT.fetch_add(1, Ordering::Relaxed));
    NUMBER.try_with(|number| *number).unwrap_or(u64::MAX)
}

impl<P: Poller + Send + 'static> Inner<P> {
    fn check_process(&self) -> Result<(), DriveError> {
        if sys::fork_generation() == self.forks { Ok(()) } else { Err(DriveError::Forked) }
    }

    /// The seat if it is free now.
    #[inline]
    fn try_seat(&self) -> Option<MutexGuard<'_, Seat<P>>> {
        let seat = match self.seat.try_lock() {
            Ok(seat) => seat,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        self.seated_thread.store(thread_number(), Ordering::Relaxed);
        Some(seat)
    }

    /// Gives the seat back and tells the longest waiting thread.
    #[inline]
    fn leave(&self, seat: MutexGuard<'_, Seat<P>>) {
        self.seated_thread.store(0, Ordering::Relaxed);
        let dead = seat.dead.is_some();
        drop(seat);
        // Pairs with the read-modify-write in `drive_or_wait`. Of two on one word, the later sees what came before the
        // earlier: either we see who waits, or they see the free seat. (A fence says the same at twice the price.)
        self.drives.fetch_add(1, Ordering::AcqRel);
        if !self.waiters.is_empty() {
            if dead { self.waiters.nudge_all() } else { self.waiters.nudge_first() }
        }
    }

    /// Turns until the goal is reached.
    fn drive<R>(
        &self,
        seat: &mut Seat<P>,
        goal: &mut impl FnMut(&mut P) -> Option<R>,
        deadline: Option<Instant>,
    ) -> Result<R, DriveError> {
        if let Some(message) = &seat.dead {
            return Err(DriveError::Panicked { message: message.clone() });
        }
        let reactor = &mut seat.reactor;
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            if let Some(result) = reactor.visit(&mut *goal) {
                return Ok(result);
            }
            self.turn_until(reactor, goal, deadline)
        }));
        outcome.unwrap_or_else(|payload| {
            let message = panic_message(&*payload);
            seat.dead = Some(message.clone());
            Err(DriveError::Panicked { message })
        })
    }

    fn turn_until<R>(
        &self,
        reactor: &mut Reactor<P>,
        goal: &mut impl FnMut(&mut P) -> Option<R>,
        deadline: Option<Instant>,
    ) -> Result<R, DriveError> {
        let mut clock = TurnClock::new(Clock);
        let begin = clock.now();
        let mut idle = Backoff::new(self.idle);
        let mut fresh = true;
        loop {
            let activity = self.turn(reactor, clock.now());
            let parked = idle.wait_with(
                activity,
                || earlier(reactor.next_deadline(), deadline),
                |longest| reactor.park(longest),
            );
            if activity.is_busy() || parked {
                fresh = true;
            }
            if std::mem::take(&mut fresh)
                && let Some(result) = reactor.visit(&mut *goal)
            {
                return Ok(result);
            }
            let (now, read) = if parked { (clock.refresh(), true) } else { clock.after(activity) };
            if read && deadline.is_some_and(|at| now >= at) {
                return Err(DriveError::Timeout { waited: now.saturating_since(begin) });
            }
        }
    }

    /// One turn, and a look at the goals of those who wait. Busy also when one of them was reached: a closure
    /// run by [`Driver::with`] may have changed what another goal looks for.
    #[inline]
    fn turn(&self, reactor: &mut Reactor<P>, now: Instant) -> Activity {
        let activity = reactor.turn(now);
        if !self.waiters.is_empty() && (activity.is_busy() || self.waiters.has_fresh()) {
            let reached = reactor.visit(|poller| self.waiters.serve(poller));
            return activity.or(Activity::from_busy(reached));
        }
        activity
    }

    /// The seat is taken: hand over the goal, and wait for it to be reached or for the seat.
    #[cold]
    fn drive_or_wait<R, F>(&self, mut goal: F, deadline: Option<Instant>) -> Result<R, DriveError>
    where
        F: FnMut(&mut P) -> Option<R> + Send + 'static,
        R: Send + 'static,
    {
        if self.seated_thread.load(Ordering::Relaxed) == thread_number() {
            return Err(DriveError::Reentered);
        }
        let _contending = Contending::new(&self.contending);
        // The helper leaves after its current turn, so it pays to wait a moment before making a fuss.
        for _ in 0..self.idle.spins.min(200) {
            if !self.helper_seated.load(Ordering::Relaxed) {
                break;
            }
            std::hint::spin_loop();
        }
        if let Some(mut seat) = self.try_seat() {
            let result = self.drive(&mut seat, &mut goal, deadline);
            self.leave(seat);
            return result;
        }

        let begin = Clock.now();
        let ticket: Ticket<R> = self.waiters.add(goal);
        // A driver that is parked looks at the new goal at once.
        self.shared.wake();
        let mut idle = Backoff::new(self.idle);
        loop {
            if let Some(result) = ticket.take() {
                return Ok(result);
            }
            // Registered before looking at the seat; pairs with `leave`.
            self.drives.fetch_add(0, Ordering::AcqRel);
            if let Some(mut seat) = self.try_seat() {
                self.waiters.refresh();
                let result = self.drive(&mut seat, &mut |_: &mut P| ticket.take(), deadline);
                self.leave(seat);
                self.waiters.remove(&ticket);
                return result;
            }
            let now = Clock.now();
            if deadline.is_some_and(|at| now >= at) {
                self.waiters.remove(&ticket);
                // A nudge may have been meant for us: pass it on.
                self.waiters.nudge_first();
                let waited = now.saturating_since(begin);
                return ticket.take().ok_or(DriveError::Timeout { waited });
            }
            ticket.wait(&mut idle, deadline);
        }
    }
}

/// The earlier of two deadlines.
fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// Counts a caller that wants the seat.
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

/// A lock whose content stays valid whatever panics: poisoning is of no interest.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
