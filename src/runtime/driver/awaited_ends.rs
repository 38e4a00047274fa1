//! How many ends nobody drives for.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::Thread;

/// How many ends are awaited by a callback, a future or the like, and so by no thread that drives. As long as there is one, a
/// driver's helper polls every few tens of microseconds while no caller drives.
#[derive(Debug, Default)]
pub struct AwaitedEnds {
    count: AtomicU32,
    /// The helper's thread, once it runs.
    pub(super) helper: OnceLock<Thread>,
}

impl AwaitedEnds {
    /// One more is awaited; the helper is woken for the first.
    pub fn add(&self) {
        if self.count.fetch_add(1, Ordering::AcqRel) == 0
            && let Some(helper) = self.helper.get()
        {
            helper.unpark();
        }
    }

    /// One that was added has come.
    #[inline]
    pub fn remove(&self) {
        self.count.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether there is one.
    pub(crate) fn is_any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }
}
