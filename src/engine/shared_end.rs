//! The end of the group, which the engines of a rank's shards have in common: each has a part of the same operations, so what ends one of
//! them ends all of them, for the same cause.

use std::panic::resume_unwind;
use std::sync::{Arc, OnceLock, Weak};

use shouter_reducer::executor::AbortCause;

use super::Engine;
use crate::runtime::Driver;

/// The first cause for which one of a rank's engines has ended the group.
#[derive(Default)]
pub(crate) struct SharedEnd {
    cause: OnceLock<Arc<AbortCause>>,
    /// The message of a panic that has ended one of the engines: its parts of operations never end.
    panicked: OnceLock<String>,
    /// The drivers of all these engines.
    drivers: OnceLock<Vec<Weak<Driver<Engine>>>>,
}

impl SharedEnd {
    /// From now on these drivers are woken for the end.
    pub(crate) fn wake(&self, drivers: Vec<Weak<Driver<Engine>>>) {
        // Set once, by the thread that joins.
        drop(self.drivers.set(drivers));
    }

    fn cause(&self) -> Option<&Arc<AbortCause>> {
        self.cause.get()
    }

    fn set(&self, cause: &Arc<AbortCause>) {
        if self.cause.set(cause.clone()).is_ok() {
            self.wake_all();
        }
    }

    /// One of the engines has panicked: the others go the same way, so that nothing waits for it.
    pub(crate) fn panicked(&self, message: &str) {
        if self.panicked.set(message.to_owned()).is_ok() {
            self.wake_all();
        }
    }

    fn wake_all(&self) {
        let drivers = self.drivers.get().into_iter().flatten();
        // One that is gone, or whose engine has panicked, ends nothing more.
        drivers.filter_map(Weak::upgrade).for_each(|driver| drop(driver.nudge()));
    }
}

impl Engine {
    /// From now on the group ends here when it ends in one of the engines that share this.
    pub(crate) fn share_end(&mut self, end: Arc<SharedEnd>) {
        self.shared_end = Some(end);
    }

    /// Whether other engines of this rank are in the same group.
    pub(super) fn has_siblings(&self) -> bool {
        self.shared_end.is_some()
    }

    /// Ends the group here where another engine of this rank has ended it; whether one has.
    #[inline]
    pub(super) fn follow_siblings(&mut self) -> bool {
        let Some(end) = &self.shared_end else { return false };
        if let Some(message) = end.panicked.get() {
            // The driver reports it to all callers.
            resume_unwind(Box::new(message.clone()));
        }
        match end.cause() {
            Some(cause) if self.executor.aborted().is_none() => {
                let AbortCause { culprit, reason, seen } = AbortCause::clone(cause);
                self.executor.abort_seen(culprit, reason, seen);
                true
            }
            cause => cause.is_some(),
        }
    }

    /// The group has ended here.
    pub(super) fn tell_siblings(&self, cause: &Arc<AbortCause>) {
        self.shared_end.iter().for_each(|end| end.set(cause));
    }
}
