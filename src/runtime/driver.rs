//! A caller-driven engine: the thread that blocks for a result polls the engine itself.
//!
//! There is one *driver lock*. A blocking thread takes it, polls until its condition holds, and releases it. A thread that finds
//! it taken enqueues its condition with the driving thread and waits; the driving thread checks all enqueued conditions after
//! each poll that did work. On release it wakes the longest waiting thread.
//!
//! ```text
//!   thread A   try_lock ok ---> poll, poll, poll: condition A holds --> unlock, wake B
//!   thread B   try_lock fails -> enqueues its condition ... spins, parks ...> woken: takes the lock, polls
//!   helper     park 0.5 or 5 ms ... lock free? one poll, go on while busy, unlock ... park; 30 us while a callback awaits an end
//! ```
//!
//! The queue is touched only when threads contend; a single thread pays for an uncontended lock.
//!
//! A shard may hold the role of the driver permanently ([`Driver::dedicated`]). Callers then only enqueue their conditions.

mod at_once;
mod awaited_ends;
mod dedicated;
mod drive;
mod helper;
mod waiters;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError};
use std::time::Duration;

use crossbeam::sync::Parker;
use crossbeam::utils::CachePadded;

use super::lock::lock;
use super::shared::Shared;
use super::sleeper::Sleeper;
use super::{IdlePolicy, Instant, Poller, sys};
pub use awaited_ends::AwaitedEnds;
pub use dedicated::Dedicated;
use helper::Helper;
use waiters::Waiters;

/// How a [`Driver`] waits and answers.
#[derive(Clone, Debug)]
pub struct DriverOptions {
    /// How a blocked thread waits.
    pub idle: IdlePolicy,
    /// The helper's name; Linux shows the first 15 bytes.
    pub name: String,
    /// The interval of the helper's polls of the network while there was traffic lately.
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
    /// The deadline passed. The engine works on; drive again with a later deadline, or give the operation up.
    #[error("not reached after {waited:?}; drive again with a later deadline, or cancel the operation")]
    Timeout {
        /// The time waited.
        waited: Duration,
    },
    /// The poller, or a closure run on it, panicked, now or earlier. The engine does nothing any more.
    #[error("the network engine panicked: {message}; leave the job and start anew")]
    Panicked {
        /// The panic's message.
        message: String,
    },
    /// This is a forked child; the engine and its devices belong to the parent.
    #[error("this process was forked from the one that owns the network engine; initialise after the fork")]
    Forked,
    /// Called from inside of the engine (a poller, a condition), which would wait for itself.
    #[error("called from inside of the engine that is to be driven; hand the work to another thread")]
    Reentered,
    /// The helper thread could not be started.
    #[error("no helper thread: {0}; look at the process and pids limits")]
    NoHelper(String),
}

/// Is told the message of a panic.
pub(crate) type OnPanic = Box<dyn Fn(&str) + Send + Sync>;

/// The state that the driver lock protects.
struct Locked<P> {
    poller: P,
    /// The driving thread parks on it.
    parker: Parker,
    /// The message of the panic that ended the engine.
    dead: Option<String>,
}

struct Inner<P> {
    locked: Mutex<Locked<P>>,
    /// The driving thread, while it is parked.
    sleeper: CachePadded<Sleeper>,
    /// The shard that drives permanently, once there is one.
    shard: OnceLock<Arc<Shared>>,
    /// Told when the engine panics while its shard drives it.
    on_panic: OnceLock<OnPanic>,
    /// The helper shall end.
    stopping: AtomicBool,
    waiters: Waiters<P>,
    /// Callers that found the driver lock taken: the helper releases it when it sees one.
    contending: AtomicU32,
    /// The helper holds the driver lock.
    helper_drives: AtomicBool,
    /// Uid-like number of the thread that drives, zero if none: to notice re-entry.
    driving_thread: AtomicU64,
    /// How often the driver lock was released.
    drives: AtomicU64,
    /// Waits in which a caller polled; only the thread with the driver lock writes it.
    polled_waits: AtomicU64,
    awaited_ends: Arc<AwaitedEnds>,
    /// Something waits for the next poll.
    nudged: AtomicBool,
    idle: IdlePolicy,
    forks: u32,
}

/// An engine driven by whichever thread blocks for it, with a helper that answers the network meanwhile.
///
/// Share it by reference or `Arc`; any number of threads may block at once.
///
/// ```
/// use shouter::runtime::{Activity, Driver, DriverOptions, Instant, Poller};
///
/// /// Counts its polls.
/// struct Engine(u32);
/// impl Poller for Engine {
///     fn poll(&mut self, _now: Instant) -> Activity {
///         self.0 += 1;
///         Activity::Busy
///     }
/// }
///
/// let driver = Driver::new(Engine(0), DriverOptions::default()).unwrap();
/// let polls = driver.drive_until(|engine| (engine.0 >= 10).then_some(engine.0), None).unwrap();
/// assert!(polls >= 10);
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
    /// Takes `poller` in and starts the helper.
    ///
    /// # Errors
    ///
    /// [`DriveError::NoHelper`] if there is no thread to be had.
    pub fn new(poller: P, options: DriverOptions) -> Result<Self, DriveError> {
        sys::count_forks();
        let parker = Parker::new();
        let inner = Arc::new(Inner {
            sleeper: CachePadded::new(Sleeper::new(&parker)),
            locked: Mutex::new(Locked { poller, parker, dead: None }),
            shard: OnceLock::new(),
            on_panic: OnceLock::new(),
            stopping: AtomicBool::new(false),
            waiters: Waiters::default(),
            contending: AtomicU32::new(0),
            helper_drives: AtomicBool::new(false),
            driving_thread: AtomicU64::new(0),
            drives: AtomicU64::new(0),
            polled_waits: AtomicU64::new(0),
            awaited_ends: Arc::default(),
            nudged: AtomicBool::new(false),
            idle: options.idle,
            forks: sys::fork_generation(),
        });
        let helper = Helper::start(inner.clone(), &options)?;
        inner.awaited_ends.helper.get_or_init(|| helper.thread());
        Ok(Self { inner: Some(inner), helper: Some(helper) })
    }

    /// A poller for a shard that drives the engine permanently, from its first poll until it ends. Callers enqueue their
    /// conditions meanwhile, and the helper thread ends. A second shard of one driver would only wait for the first.
    ///
    /// ```
    /// use shouter::runtime::{Driver, DriverOptions, ShardsBuilder, stopping};
    ///
    /// let driver = Driver::new((), DriverOptions::default()).unwrap();
    /// let shard = ShardsBuilder::new().start([driver.dedicated()], |engine| {
    ///     Ok::<_, String>((engine, async { Ok(stopping().await) }))
    /// })?;
    /// assert_eq!(driver.with(|()| 7), Ok(7));
    /// shard.stop();
    /// shard.join()?;
    /// # Ok::<(), shouter::runtime::ShardError>(())
    /// ```
    pub fn dedicated(&self) -> Dedicated<P> {
        Dedicated::new(self.inner().clone())
    }

    /// Blocks until `condition` returns a result, polling the engine meanwhile.
    ///
    /// `condition` is checked before the first poll, after each poll that did something, and now and then after one
    /// that did not. Another thread that drives already may check it, hence `Send + 'static`; it must be quick and must
    /// not block.
    ///
    /// # Errors
    ///
    /// [`DriveError::Timeout`] at `deadline`; the other variants if the engine is of no more use.
    #[inline]
    pub fn drive_until<R, F>(&self, mut condition: F, deadline: Option<Instant>) -> Result<R, DriveError>
    where
        F: FnMut(&mut P) -> Option<R> + Send + 'static,
        R: Send + 'static,
    {
        let inner = self.inner();
        inner.check_process()?;
        let result = match inner.try_lock() {
            Some(mut locked) => {
                let mut result = None;
                let mut holds = |poller: &mut P| {
                    result = condition(poller);
                    result.is_some()
                };
                let driven = inner.drive(&mut locked, &mut holds, deadline);
                inner.unlock(locked);
                driven?;
                result
            }
            None => {
                let place = Arc::new(Mutex::new(None));
                let result = place.clone();
                let holds = move |poller: &mut P| {
                    let found = condition(poller);
                    let holds = found.is_some();
                    *lock(&place) = found;
                    holds
                };
                inner.drive_or_wait(Box::new(holds), deadline)?;
                lock(&result).take()
            }
        };
        Ok(result.expect("a condition that holds has its result"))
    }

    /// Runs `f` on the engine: at once if no thread drives it, else after the driver's current poll.
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

    /// Has the engine polled for news that is already in a queue that it reads: by this thread, once, if no thread
    /// drives it, else by the one that does. Does not wait, and allocates nothing.
    ///
    /// # Errors
    ///
    /// If the engine is of no more use.
    pub fn nudge(&self) -> Result<(), DriveError> {
        let inner = self.inner();
        inner.check_process()?;
        inner.nudge()
    }

    /// From now on this is told the message when the engine panics while its shard drives it; set once.
    pub(crate) fn on_panic(&self, tell: OnPanic) {
        drop(self.inner().on_panic.set(tell));
    }

    /// Has the conditions of all that wait checked: one may hold by what another engine has done. Does not wait.
    pub(crate) fn recheck(&self) {
        let inner = self.inner();
        inner.waiters.refresh();
        inner.wake();
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

    /// The ends that are awaited by no thread that drives. It outlives the driver.
    pub fn awaited_ends(&self) -> Arc<AwaitedEnds> {
        self.inner().awaited_ends.clone()
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
        inner.stopping.store(true, Ordering::Release);
        if let Some(helper) = self.helper.take() {
            helper.join();
        }
        // The helper's reference is gone, and a shard's should be: the engine is dropped here.
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

    /// Whether a shard drives permanently.
    #[inline]
    fn is_dedicated(&self) -> bool {
        self.shard.get().is_some_and(|shard| !shard.is_stopped())
    }

    /// Wakes the driving thread for a new condition.
    fn wake(&self) {
        match self.shard.get() {
            Some(shard) if !shard.is_stopped() => shard.raise(),
            _ => self.sleeper.wake(),
        }
    }

    /// The driver lock if it is free now.
    #[inline]
    fn try_lock(&self) -> Option<MutexGuard<'_, Locked<P>>> {
        if self.is_dedicated() {
            return None;
        }
        let locked = match self.locked.try_lock() {
            Ok(locked) => locked,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        self.driving_thread.store(thread_number(), Ordering::Relaxed);
        Some(locked)
    }

    /// Releases the driver lock and wakes the longest waiting thread.
    #[inline]
    fn unlock(&self, locked: MutexGuard<'_, Locked<P>>) {
        self.release(locked);
        if self.nudged.load(Ordering::Relaxed) {
            // The nudging thread found the lock taken. A panic of the engine is kept for the next driving thread.
            let _ = self.serve_nudge();
        }
    }

    /// Polls for work that waits for a poll, unless another thread drives.
    fn nudge(&self) -> Result<(), DriveError> {
        self.nudged.store(true, Ordering::Relaxed);
        // Pairs with the read-modify-write in `release`: either we find the lock free, or the releasing thread sees the
        // nudge.
        self.drives.fetch_add(0, Ordering::AcqRel);
        self.serve_nudge()
    }

    fn serve_nudge(&self) -> Result<(), DriveError> {
        while self.nudged.load(Ordering::Relaxed) {
            if self.driving_thread.load(Ordering::Relaxed) == thread_number() {
                return Ok(());
            }
            let Some(mut locked) = self.try_lock() else {
                self.wake();
                return Ok(());
            };
            self.nudged.store(false, Ordering::Relaxed);
            let polled = self.drive(
                &mut locked,
                &mut |poller| {
                    poller.poll_for_posts(|poller, now| self.poll_and_serve(poller, now));
                    true
                },
                None,
            );
            self.release(locked);
            polled?;
        }
        Ok(())
    }

    #[inline]
    fn release(&self, locked: MutexGuard<'_, Locked<P>>) {
        self.driving_thread.store(0, Ordering::Relaxed);
        let dead = locked.dead.is_some();
        drop(locked);
        // Pairs with the read-modify-writes in `drive_or_wait` and `nudge`. Of two on one word, the later sees all
        // writes before the earlier: either we see the waiting thread, or it sees the free lock. (A fence does the same
        // at twice the price.)
        self.drives.fetch_add(1, Ordering::AcqRel);
        if !self.waiters.is_empty() {
            if dead { self.waiters.wake_all() } else { self.waiters.wake_first() }
        }
    }
}

#[cfg(test)]
mod tests;
