//! What the trainer says of its operations, for errors, timelines and dumps: ranks need not say the same.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::observe::UNNAMED;

/// The trainer's step, and the label of operations outside the table.
pub(super) struct Annotations {
    step: AtomicU64,
    label: Mutex<Arc<str>>,
}

impl Annotations {
    /// Of a group that is made in this step of the trainer; its operations have no label yet.
    pub(super) fn at(step: u64) -> Self {
        Self { step: AtomicU64::new(step), label: Mutex::new(Arc::from(UNNAMED)) }
    }

    #[inline]
    pub(super) fn step(&self) -> u64 {
        self.step.load(Ordering::Relaxed)
    }

    pub(super) fn set_step(&self, step: u64) {
        self.step.store(step, Ordering::Relaxed);
    }

    pub(super) fn label(&self) -> Arc<str> {
        self.label.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// An empty label is none.
    pub(super) fn set_label(&self, label: &str) {
        let label = if label.is_empty() { UNNAMED } else { label };
        *self.label.lock().unwrap_or_else(PoisonError::into_inner) = Arc::from(label);
    }
}
