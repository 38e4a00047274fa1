//! How shards run and end together.

use std::fmt::Display;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::ShardError;
use crate::runtime::reactor::Started;
use crate::runtime::shared::Shared;
use crate::runtime::{
    Backoff, Clock, IdlePolicy, PollClock, Poller, Reactor, ShardId, panic_message, spawn_local, stop,
};

/// How long shards that have finished go on polling to send their remaining data.
const LINGER: Duration = Duration::from_millis(100);

/// How a shard is run.
#[derive(Clone, Copy)]
pub(super) struct Plan {
    pub(super) idle: IdlePolicy,
    pub(super) grace: Duration,
    pub(super) signals: bool,
}

/// The shared progress of all shards towards their end.
pub(super) struct Ending {
    all: Arc<[Arc<Shared>]>,
    /// Shards whose work goes on.
    unfinished: AtomicUsize,
    /// Shards that have something to send.
    unsent: AtomicUsize,
    /// The first that went wrong.
    error: OnceLock<ShardError>,
}

impl std::fmt::Debug for Ending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ending").field("unfinished", &self.unfinished).finish_non_exhaustive()
    }
}

impl Ending {
    /// Of all these shards.
    pub(super) fn new(all: Arc<[Arc<Shared>]>) -> Self {
        let (unfinished, unsent) = (AtomicUsize::new(all.len()), AtomicUsize::new(all.len()));
        Self { all, unfinished, unsent, error: OnceLock::new() }
    }

    /// The first error.
    pub(super) fn error(&self) -> Option<ShardError> {
        self.error.get().cloned()
    }

    /// Asks all shards to end.
    pub(super) fn stop(&self) {
        self.all.iter().for_each(|shard| shard.ask_to_stop());
    }

    /// Asks all shards to end, because of this.
    pub(super) fn fail(&self, error: ShardError) {
        // Of several errors the first is the cause.
        let _ = self.error.set(error);
        self.stop();
    }

    /// One shard less in `count`; the last one wakes all.
    fn count_down(&self, count: &AtomicUsize) {
        if count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.all.iter().for_each(|shard| shard.raise());
        }
    }
}

/// One shard's part in the common end.
pub(super) struct ShardEnding {
    ending: Arc<Ending>,
    finished: bool,
    sent: bool,
}

impl ShardEnding {
    pub(super) fn new(ending: Arc<Ending>) -> Self {
        Self { ending, finished: false, sent: false }
    }

    pub(super) fn fail(&self, error: ShardError) {
        self.ending.fail(error);
    }

    fn finish(&mut self) {
        if !std::mem::replace(&mut self.finished, true) {
            self.ending.count_down(&self.ending.unfinished);
        }
    }

    fn have_sent(&mut self) {
        if !std::mem::replace(&mut self.sent, true) {
            self.ending.count_down(&self.ending.unsent);
        }
    }

    fn all_have_finished(&self) -> bool {
        self.ending.unfinished.load(Ordering::Acquire) == 0
    }

    fn all_have_sent(&self) -> bool {
        self.ending.unsent.load(Ordering::Acquire) == 0
    }
}

impl Drop for ShardEnding {
    /// Also where the thread could not be had, or has panicked.
    fn drop(&mut self) {
        self.finish();
        self.have_sent();
    }
}

impl<P: Poller> Reactor<P> {
    /// Polls until the work of all shards has ended, and sends the remaining data. `None` if the work failed, which
    /// `own` has recorded.
    pub(super) fn work<F, R, E>(
        mut self,
        work: F,
        plan: Plan,
        own: &mut ShardEnding,
    ) -> Result<Option<R>, ShardError>
    where
        F: Future<Output = Result<R, E>> + 'static,
        R: 'static,
        E: Display + 'static,
    {
        let (shared, mut result) = (own.ending.all.clone(), None);
        let id = self.id();
        let mut work = Some(self.start(work));
        if plan.signals && id == ShardId(0) {
            self.visit(|_| spawn_local(stop::stop_all_on_signal()).detach());
        }
        let mut idle = Backoff::new(plan.idle);
        let mut clock = PollClock::new(Clock);
        let mut until = None;
        while !own.all_have_finished() {
            let activity = self.poll(clock.now());
            // It may have ended in the poll before a sleep.
            if let Some(outcome) = work.as_ref().and_then(Started::take) {
                work = None;
                match outcome {
                    Ok(Ok(value)) => result = Some(value),
                    Ok(Err(why)) => own.fail(ShardError::Failed { shard: id, why: why.to_string() }),
                    Err(payload) => {
                        own.fail(ShardError::Panicked { shard: id, message: panic_message(&*payload) });
                    }
                }
                own.finish();
            }
            if work.is_some() && shared[id.0].is_stopping() {
                let now = Clock.now();
                if now > *until.get_or_insert(now + plan.grace) {
                    own.fail(ShardError::Unfinished { shard: id, grace: plan.grace });
                    work = None;
                    own.finish();
                }
            }
            self.wait(&mut idle, &mut clock, activity);
        }
        self.cancel_tasks();
        let until = Clock.now() + LINGER;
        while !own.all_have_sent() && Clock.now() < until {
            self.poll(Clock.now());
            if !self.has_unsent() {
                own.have_sent();
            }
            std::thread::yield_now();
        }
        // Data that the other shards have sent may leave through this shard's queue.
        self.poll(Clock.now());
        Ok(result)
    }
}
