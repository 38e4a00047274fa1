//! An operation under way, and what a wait for it may end with.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use shouter_reducer::executor::OpId;

use super::table::Entry;
use crate::error::Error;
use crate::runtime::Instant;

/// An operation under way, from [`Group::push`](super::Group::push) to [`Group::wait`](super::Group::wait). Only a push makes one, and
/// a wait takes it, so the outcome goes to one wait:
///
/// ```compile_fail,E0382
/// fn twice(group: &shouter::Group, pending: shouter::Pending) -> Result<(), shouter::WaitError> {
///     group.wait(pending, None)?;
///     group.wait(pending, None)
/// }
/// ```
///
/// ```compile_fail,E0599
/// let forged = shouter::Pending::from_raw(0);
/// ```
#[must_use = "the buffer is the group's until the operation has been waited for"]
pub struct Pending {
    /// The number of the group that it belongs to.
    pub(super) group: u64,
    pub(super) op: OpId,
    pub(super) begin: Instant,
    /// The tensor.
    pub(super) entry: Arc<Entry>,
}

impl std::fmt::Debug for Pending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pending")
            .field("tensor", &self.entry.name)
            .field("op", &self.op)
            .finish_non_exhaustive()
    }
}

/// Why [`Group::wait`](super::Group::wait) brought no result.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct WaitError {
    /// What went wrong.
    pub error: Error,
    /// The operation, if it is still under way: its buffer is still the group's, and it may be waited for again.
    ///
    /// ```no_run
    /// # fn wait(group: &shouter::Group, mut pending: shouter::Pending) -> Result<(), shouter::Error> {
    /// use std::time::Duration;
    /// use shouter::{Error, WaitError};
    ///
    /// while let Err(why) = group.wait(pending, Some(Duration::from_secs(1))) {
    ///     match why {
    ///         WaitError { error: Error::Timeout { .. }, pending: Some(again) } => pending = again,
    ///         other => return Err(other.error),
    ///     }
    ///     println!("still waiting");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub pending: Option<Pending>,
}

impl From<WaitError> for Error {
    fn from(why: WaitError) -> Self {
        why.error
    }
}

/// A number for a new group.
pub(super) fn next_group() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
