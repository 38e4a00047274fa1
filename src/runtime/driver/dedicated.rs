//! A shard that drives permanently.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Inner, lock, thread_number};
use crate::runtime::{Activity, Announce, Instant, Poller, Wakes, context, panic_message};

/// The engine of a [`Driver`](super::Driver) as a shard polls it; see [`Driver::dedicated`](super::Driver::dedicated).
pub struct Dedicated<P: Poller + Send + 'static>(Arc<Inner<P>>);

impl<P: Poller + Send + 'static> std::fmt::Debug for Dedicated<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Dedicated")
    }
}

impl<P: Poller + Send + 'static> Dedicated<P> {
    pub(super) fn new(inner: Arc<Inner<P>>) -> Self {
        Self(inner)
    }
}

impl<P: Poller + Send + 'static> Poller for Dedicated<P> {
    fn poll(&mut self, now: Instant) -> Activity {
        let inner = &*self.0;
        if inner.shard.get().is_none()
            && let Some(shard) = context::with(|context| context.shared.clone())
        {
            // From here on no other thread takes the driver lock. A thread that holds it unlocks when its condition holds.
            inner.shard.get_or_init(|| shard);
            inner.waiters.refresh();
        }
        let mut locked = lock(&inner.locked);
        inner.driving_thread.store(thread_number(), Ordering::Relaxed);
        let polled = match &locked.dead {
            Some(message) => Err(message.clone()),
            None => catch_unwind(AssertUnwindSafe(|| inner.poll_and_serve(&mut locked.poller, now)))
                .map_err(|payload| panic_message(&*payload)),
        };
        polled.unwrap_or_else(|message| {
            tracing::error!(%message, "the network engine panicked while its shard drove it");
            locked.dead = Some(message.clone());
            drop(locked);
            inner.on_panic.get().iter().for_each(|tell| tell(&message));
            // Ends the shard with an error.
            resume_unwind(Box::new(message))
        })
    }

    fn next_deadline(&self) -> Option<Instant> {
        lock(&self.0.locked).poller.next_deadline()
    }

    fn arm(&mut self, announce: &mut Announce<'_>) -> Wakes {
        lock(&self.0.locked).poller.arm(announce)
    }

    fn disarm(&mut self) {
        lock(&self.0.locked).poller.disarm();
        // Time has passed, on which conditions may depend.
        self.0.waiters.refresh();
    }
}

impl<P: Poller + Send + 'static> Drop for Dedicated<P> {
    /// The driver lock is free again: the waiting threads drive themselves.
    fn drop(&mut self) {
        self.0.driving_thread.store(0, Ordering::Relaxed);
        self.0.waiters.wake_all();
    }
}
