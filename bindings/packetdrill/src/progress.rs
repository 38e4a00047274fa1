//! Whether a call is done, or waits, and for how long.

use shouter_netstack::time::Instant;

use crate::errno::{Errno, Result};

/// The result of an attempt.
pub(crate) enum CallProgress<T> {
    /// It is done.
    Done(T),
    /// Something has to change first; at the given time it is tried again in any case.
    Wait(Option<Instant>),
}

/// Whether a call may wait, and since when it has: one for each call.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    until: Option<Option<Instant>>,
}

impl Patience {
    /// Waits, unless it must not, or has for long enough.
    pub(crate) fn turn<T>(
        &mut self,
        now: Instant,
        may_wait: bool,
        limit: Option<Instant>,
    ) -> Result<CallProgress<T>> {
        let until = *self.until.get_or_insert(limit);
        if !may_wait || until.is_some_and(|until| until <= now) {
            return Err(Errno(libc::EAGAIN));
        }
        Ok(CallProgress::Wait(until))
    }
}
