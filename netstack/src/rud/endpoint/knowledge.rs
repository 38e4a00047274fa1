//! What the ends of one host share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Something that is known from some time on, to all who have a clone.
#[derive(Clone, Debug, Default)]
pub(super) struct Knowledge(Arc<AtomicBool>);

impl Knowledge {
    #[inline]
    pub(super) fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// It is known once it was added. The first to add it writes; else threads would take the cache line from each other.
    #[inline]
    pub(super) fn add(&self, known: bool) {
        if known && !self.get() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}
