//! Staging areas of operations on a GPU's memory, as operations see them: their memory is ready some time after the start, and their results
//! are at their place some time after the end. In between, copies run ([`Copies`]), which the engine polls.

use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::communicator::Status;
use crate::communicator::drive::RankEngine;
use crate::engine::submitted::Failure;
use crate::runtime::lock;

/// The end of an operation or a message; of a message with its status.
pub(in crate::communicator) type Outcome = Result<Option<Status>, Failure>;

/// A call on the engine, made when an input is in its staging area.
pub(in crate::communicator) type Act = Box<dyn FnOnce(&mut RankEngine) + Send>;

/// The callback of the end.
pub(in crate::communicator) type OnEnd = Box<dyn FnOnce(Outcome) + Send>;

/// A GPU's side of a staging area.
pub(in crate::communicator) struct Device {
    /// The memory of the staging area.
    pub(in crate::communicator) _area: Box<dyn Any + Send + Sync>,
    pub(in crate::communicator) progress: Arc<Progress>,
    /// Until they are handed over.
    pub(in crate::communicator) copies: Option<Box<dyn Copies>>,
}

/// The copies of an operation that has been prepared: to the staging area before it, and from there after it.
pub(in crate::communicator) trait Copies: Send {
    /// Has this called once, when the input is in the staging area.
    fn when_ready(&mut self, act: Act);

    /// Has this called once, when the operation has ended and no copy runs any more, or with an error that says that
    /// one may.
    fn when_over(&mut self, on_end: OnEnd);

    /// Hands them over to the engine.
    fn begin(self: Box<Self>);
}

/// The progress that an operation and its copies share.
#[derive(Default)]
pub(in crate::communicator) struct Progress {
    is_ready: AtomicBool,
    ends: Mutex<Ends>,
}

#[derive(Default)]
struct Ends {
    /// The copies are gone, and nothing waits for the outcome.
    are_gone: bool,
    /// A copy that was begun may run yet.
    in_use: bool,
    /// The operation's end, until the copies take it.
    outcome: Option<Outcome>,
}

impl Progress {
    /// Whether the input is in the staging area.
    #[inline]
    pub(in crate::communicator) fn is_ready(&self) -> bool {
        self.is_ready.load(Ordering::Acquire)
    }

    /// The operation has ended. Gives the outcome back where it is to be reported at once: else copies follow, which
    /// report it.
    pub(in crate::communicator) fn ended(&self, outcome: Outcome) -> Option<Outcome> {
        let mut ends = lock(&self.ends);
        if !ends.are_gone {
            ends.outcome = Some(outcome);
            return None;
        }
        // Without copies no result comes to its place.
        let failure = outcome.err().unwrap_or(Failure::Gone);
        Some(Err(if ends.in_use { Failure::InUse(Arc::new(failure)) } else { failure }))
    }
}

/// The copies' side.
#[cfg(feature = "cuda")]
impl Progress {
    pub(in crate::communicator) fn set_ready(&self) {
        self.is_ready.store(true, Ordering::Release);
    }

    /// Takes the operation's end, if it has ended.
    pub(in crate::communicator) fn take(&self) -> Option<Outcome> {
        lock(&self.ends).outcome.take()
    }

    /// Whether it has ended badly.
    pub(in crate::communicator) fn has_failed(&self) -> bool {
        matches!(lock(&self.ends).outcome, Some(Err(_)))
    }

    /// The copies go, and may leave one behind that runs; returns the outcome that was not reported.
    pub(in crate::communicator) fn leave(&self, in_use: bool) -> Option<Outcome> {
        let mut ends = lock(&self.ends);
        (ends.are_gone, ends.in_use) = (true, in_use);
        ends.outcome.take()
    }
}
