//! Work on an engine that needs no poll, by a caller that finds nobody driving it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{DriveError, Driver, Inner};
use crate::runtime::{Poller, panic_message};

/// How often work may look for something before it is left to polls, with a PAUSE after each look.
const LOOKS: u32 = 500;

impl<P: Poller + Send + 'static> Driver<P> {
    /// Runs `f` on the engine if no thread drives it and none waits for that; `None` otherwise, or where `f` has no result. `f` must be quick:
    /// the number is how often it may look for something to come.
    ///
    /// # Errors
    ///
    /// If the engine is of no more use.
    #[inline]
    pub fn at_once<R>(&self, f: impl FnOnce(&mut P, u32) -> Option<R>) -> Result<Option<R>, DriveError> {
        let inner: &Inner<P> = self.inner();
        inner.check_process()?;
        if !inner.waiters.is_empty() {
            return Ok(None);
        }
        let Some(mut locked) = inner.try_lock() else { return Ok(None) };
        if locked.dead.is_some() {
            inner.unlock(locked);
            return Ok(None);
        }
        let looks = inner.idle.spins.min(LOOKS);
        let result = catch_unwind(AssertUnwindSafe(|| f(&mut locked.poller, looks)));
        let result = result.map_err(|payload| {
            let message = panic_message(&*payload);
            locked.dead = Some(message.clone());
            DriveError::Panicked { message }
        });
        inner.unlock(locked);
        result
    }
}
