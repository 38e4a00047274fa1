//! The progress of a call: whether it is done or waits, and for how long.

use shouter_netstack::time::Instant;

use crate::errno::{Errno, Result};

/// The result of an attempt.
pub(crate) enum CallProgress<T> {
    /// The call is done.
    Done(T),
    /// The call waits for a change; at the given time it is tried again in any case.
    Wait(Option<Instant>),
}

/// Whether a call may wait, and its end: one value for each call.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    until: Option<Option<Instant>>,
}

impl Patience {
    /// Waits, unless the call must not wait or has reached its limit.
    pub(crate) fn wait<T>(
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
