//! A thread that parks, and how the others wake it.

use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::Duration;

use crossbeam::sync::{Parker, Unparker};

/// The waking side. Waking costs a fence and a load while the thread is up.
pub(super) struct Sleeper {
    asleep: AtomicBool,
    unparker: Unparker,
}

impl Sleeper {
    /// For the thread that will park on `parker`.
    pub(super) fn new(parker: &Parker) -> Self {
        Self { asleep: AtomicBool::new(false), unparker: parker.unparker().clone() }
    }

    /// Wakes the thread for news that is already visible elsewhere (in a queue, in a flag).
    #[inline]
    pub(super) fn wake(&self) {
        // Orders the news before the look at the flag; pairs with the fence in `park`.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) {
            self.unpark();
        }
    }

    #[cold]
    fn unpark(&self) {
        if self.asleep.swap(false, Ordering::Relaxed) {
            self.unparker.unpark();
        }
    }

    /// Parks the calling thread, whose `parker` it is, for at most `longest`, unless there is news.
    pub(super) fn park(&self, parker: &Parker, longest: Duration, has_pending_work: impl FnOnce() -> bool) {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if has_pending_work() {
            // Perhaps a ring is full: let its reader run.
            std::thread::yield_now();
        } else {
            parker.park_timeout(longest);
        }
        self.asleep.store(false, Ordering::Relaxed);
    }
}
