//! Locks that a panic does not close: what they guard is valid after each statement.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Takes a lock; one whose holder has panicked, too.
#[inline]
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
