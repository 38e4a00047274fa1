//! The queue of threads that found the driver lock taken, with their conditions.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::Thread;
use std::time::Duration;

use super::lock;
use crate::runtime::idle::give_way;
use crate::runtime::{Activity, Backoff, BackoffStep, Instant};

/// The condition of a waiting thread; returns true once it holds and its result is stored for the thread.
pub(super) type Condition<P> = Box<dyn FnMut(&mut P) -> bool + Send>;

struct Entry<P> {
    wakeup: Arc<Wakeup>,
    condition: Condition<P>,
}

/// Polls without work after which the conditions are checked all the same: one may depend on the time, or on an effect
/// of another condition's check.
const IDLE_POLLS: u32 = 64;

const WAITING: u8 = 0;
/// The driver lock may be free.
const RETRY_LOCK: u8 = 1;
/// The condition holds.
const REACHED: u8 = 2;

/// Wakes a waiting thread.
struct Wakeup {
    state: AtomicU8,
    thread: Thread,
}

impl Wakeup {
    fn signal(&self, state: u8) {
        // A retry must not overwrite that the condition holds.
        self.state.fetch_max(state, Ordering::AcqRel);
        self.thread.unpark();
    }
}

/// A waiting thread's side of its entry.
pub(super) struct Ticket {
    wakeup: Arc<Wakeup>,
}

impl Ticket {
    /// Whether the condition holds.
    pub(super) fn holds(&self) -> bool {
        self.wakeup.state.load(Ordering::Acquire) == REACHED
    }

    /// Waits to be woken, or for `deadline`.
    pub(super) fn wait(&self, idle: &mut Backoff, deadline: Option<Instant>) {
        loop {
            if self.wakeup.state.compare_exchange(RETRY_LOCK, WAITING, Ordering::AcqRel, Ordering::Acquire)
                != Err(WAITING)
            {
                return;
            }
            match idle.step(Activity::Idle) {
                BackoffStep::Go | BackoffStep::Spin => std::hint::spin_loop(),
                BackoffStep::Yield => {
                    give_way();
                    if deadline.is_some() {
                        return; // The caller reads the clock.
                    }
                }
                BackoffStep::Park(_) => {
                    let left = deadline.map(|at| at.saturating_since(crate::runtime::Clock.now()));
                    match left {
                        None => std::thread::park(),
                        Some(Duration::ZERO) => {}
                        Some(left) => std::thread::park_timeout(left),
                    }
                    return;
                }
            }
        }
    }
}

/// All waiting threads, the longest waiting first.
pub(super) struct Waiters<P> {
    /// Length of the list, readable without its lock.
    count: AtomicUsize,
    /// A condition was added since the last check of all.
    fresh: AtomicBool,
    /// Polls since then that did nothing.
    idle_polls: AtomicU32,
    entries: Mutex<Vec<Entry<P>>>,
}

impl<P> Default for Waiters<P> {
    fn default() -> Self {
        Self {
            count: AtomicUsize::new(0),
            fresh: AtomicBool::new(false),
            idle_polls: AtomicU32::new(0),
            entries: Mutex::new(Vec::new()),
        }
    }
}

impl<P> Waiters<P> {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Whether there is a condition that was not checked yet.
    #[inline]
    pub(super) fn have_fresh(&self) -> bool {
        !self.is_empty() && self.fresh.load(Ordering::Relaxed)
    }

    /// Whether the conditions are to be checked after a poll that did nothing: one was not checked yet, or the last check is
    /// [`IDLE_POLLS`] ago. Called once after each such poll.
    #[inline]
    pub(super) fn are_due(&self) -> bool {
        if self.is_empty() {
            return false;
        }
        // Only the driving thread counts.
        let idle = self.idle_polls.load(Ordering::Relaxed) + 1;
        self.idle_polls.store(idle, Ordering::Relaxed);
        idle >= IDLE_POLLS || self.fresh.load(Ordering::Relaxed)
    }

    /// Makes the next poll check all conditions.
    pub(super) fn refresh(&self) {
        self.fresh.store(true, Ordering::Relaxed);
    }

    /// Adds the calling thread with its condition.
    pub(super) fn add(&self, condition: Condition<P>) -> Ticket {
        let wakeup = Arc::new(Wakeup { state: AtomicU8::new(WAITING), thread: std::thread::current() });
        let mut entries = lock(&self.entries);
        entries.push(Entry { wakeup: wakeup.clone(), condition });
        self.count.store(entries.len(), Ordering::Relaxed);
        self.fresh.store(true, Ordering::Relaxed);
        drop(entries);
        Ticket { wakeup }
    }

    /// Takes a thread off the list, if it is still on it.
    pub(super) fn remove(&self, ticket: &Ticket) {
        let removed = {
            let mut entries = lock(&self.entries);
            let at = entries.iter().position(|entry| Arc::ptr_eq(&entry.wakeup, &ticket.wakeup));
            let removed = at.map(|at| entries.remove(at));
            self.count.store(entries.len(), Ordering::Relaxed);
            removed
        };
        drop(removed);
    }

    /// Checks every condition; entries whose condition holds are removed and their threads woken. Returns whether any
    /// did: the others are then checked again after the next poll.
    #[cold]
    pub(super) fn serve(&self, poller: &mut P) -> bool {
        self.fresh.store(false, Ordering::Relaxed);
        self.idle_polls.store(0, Ordering::Relaxed);
        let mut entries = lock(&self.entries);
        let before = entries.len();
        entries.retain_mut(|entry| {
            let reached = (entry.condition)(poller);
            if reached {
                entry.wakeup.signal(REACHED);
            }
            !reached
        });
        self.count.store(entries.len(), Ordering::Relaxed);
        let any = entries.len() != before;
        if any {
            self.refresh();
        }
        any
    }

    /// Wakes the longest waiting thread, as the driver lock may be free.
    pub(super) fn wake_first(&self) {
        if let Some(entry) = lock(&self.entries).first() {
            entry.wakeup.signal(RETRY_LOCK);
        }
    }

    /// Wakes all waiting threads, because there is nothing left to wait for.
    pub(super) fn wake_all(&self) {
        for entry in lock(&self.entries).iter() {
            entry.wakeup.signal(RETRY_LOCK);
        }
    }
}
