//! Errors of operations: causes from the engine and the node's memory, with the tensors' names.

use std::sync::Arc;
use std::time::Duration;

use shouter_reducer::executor::{AbortCause, AbortReason, Divergence, OpError, StartError};
use shouter_reducer::grid::Rank;
use shouter_reducer::header::{Identity, Shape, View};
use shouter_reducer::p2p::{Direction, PostError, TransferError};

use super::drive::{OperationFailure, RankEngine};
use super::outcomes::Outcomes;
use super::table::Entry;
use crate::error::{Call, Error, Operation, Views};
use crate::runtime::Driver;

impl Outcomes {
    /// An error of a call as the caller gets it: with the path of the rank's last events, if the group has ended.
    #[cold]
    pub(super) fn recorded(&self, error: Error) -> Error {
        let error = self.with_job_ranks(error);
        if !error.can_end_group() || self.check_process().is_err() || !self.has_ended() {
            return error;
        }
        match self.flight.ended(&error.to_string()) {
            Some(path) => error.with_events_in(path),
            None => error,
        }
    }

    /// Whether the group has ended in error, or its engine has panicked.
    fn has_ended(&self) -> bool {
        let node = self.node.as_ref().and_then(|node| node.upgrade());
        let by_node = node.is_some_and(|node| node.abort().is_some());
        let group = self.group;
        let by_engine =
            |driver: Arc<Driver<RankEngine>>| driver.with(move |engine| engine.aborted_in(group).is_some());
        // The end of a group that was dropped is not reported.
        by_node || self.driver().is_some_and(|driver| by_engine(driver).unwrap_or(true))
    }

    /// An operation, of a registered tensor or outside the table.
    fn call(&self, shape: &Shape, identity: &Identity, step: u64) -> Call {
        Call { operation: shape.collective.into(), tensor: self.tables.named(identity), step }
    }

    /// An operation outside the table.
    pub(super) fn unnamed_call(shape: &Shape, step: u64) -> Call {
        Call { operation: shape.collective.into(), tensor: None, step }
    }

    /// The different operations that ranks run, by the tensors' names.
    fn views(&self, Divergence { expected, found, .. }: &Divergence) -> Views {
        let describe = |view| Some(self.tables.describe(view).into());
        Views { ours: describe(expected), theirs: describe(found) }
    }

    /// The same for people.
    fn divergence_text(&self, divergence: &Divergence) -> String {
        format!(
            "{}: {}; run the same operations in the same order on every rank",
            divergence.rank,
            divergence.describe(|view| self.tables.describe(view))
        )
    }

    /// Ranks run another operation than this small one, or have run another one before it; this rank's is `own`.
    #[cold]
    pub(super) fn diverged(
        &self,
        divergence: Option<Divergence>,
        view: &View,
        own: View,
        step: u64,
    ) -> Error {
        let call = Self::unnamed_call(&view.shape, step);
        let Some(divergence) = divergence else {
            let text = format!(
                "{view} at step {step} was given up: another rank runs another operation; run the same operations in the same \
                 order on every rank"
            );
            return Error::diverged(call, None, Views::default(), text);
        };
        let divergence = divergence.seen_with(Some(own));
        let text = format!("{view} at step {step} was given up: {}", self.divergence_text(&divergence));
        Error::diverged(call, Some(divergence.rank.0), self.views(&divergence), text)
    }

    /// The group has ended under a collective. The rank whose deadline passes first tells the others, which wait for the same rank.
    #[cold]
    fn ended(&self, call: Call, cause: &AbortCause, text: String) -> Error {
        match &cause.reason {
            AbortReason::Late if cause.culprit != self.rank => {
                Error::deadline(call, vec![cause.culprit.0], self.deadline, text)
            }
            _ => Error::ended_by(call, cause, text),
        }
    }

    /// The group has ended under a small operation.
    #[cold]
    pub(super) fn aborted(&self, cause: &AbortCause, view: &View, step: u64) -> Error {
        let text = format!("{view} at step {step} was given up: {cause}");
        self.ended(Self::unnamed_call(&view.shape, step), cause, text)
    }

    /// A small operation waits for a rank longer than it may.
    #[cold]
    pub(super) fn late(&self, missing: Rank, waited: Duration, view: &View, step: u64) -> Error {
        let text = format!(
            "{view} at step {step} waits for {missing} since {waited:?}; check that it runs the same operations, and does not \
             register tensors meanwhile, or give operations more time (SHOUTER_DEADLINE)"
        );
        Error::deadline(Self::unnamed_call(&view.shape, step), vec![missing.0], self.deadline, text)
    }

    /// A tensor waited for others of its bucket, which were not pushed, longer than it may.
    #[cold]
    pub(super) fn held(&self, missing: &str, shape: &Shape, tensor: Option<&Entry>, step: u64) -> Error {
        let text = format!(
            "{} waited for others of its bucket, which were not pushed: {missing}; push them, or wait for one that was, or call \
             barrier, and what was pushed goes by itself",
            Self::subject(shape, tensor)
        );
        Error::deadline(self.call_of(shape, tensor, step), vec![], self.deadline, text)
    }

    /// The text of an operation for people: of a registered tensor or of this shape alone.
    pub(super) fn subject(shape: &Shape, tensor: Option<&Entry>) -> String {
        match tensor {
            Some(entry) => format!("{shape} of \"{}\"", entry.name),
            None => shape.to_string(),
        }
    }

    /// The same as errors have it.
    pub(super) fn call_of(&self, shape: &Shape, tensor: Option<&Entry>, step: u64) -> Call {
        match tensor {
            Some(entry) => self.call(shape, &entry.identity(0), step),
            None => Self::unnamed_call(shape, step),
        }
    }

    /// Why an operation brought no result, of a registered tensor or of this shape alone.
    #[cold]
    pub(super) fn run_error(
        &self,
        error: OperationFailure,
        shape: &Shape,
        tensor: Option<&Entry>,
        step: u64,
    ) -> Error {
        match error {
            OperationFailure::Drive(error) => error,
            OperationFailure::Start(error) => self.start_error(error, shape, tensor, step),
            OperationFailure::Failed(error) => self.op_error(error, tensor),
        }
    }

    /// Why an operation was not started, of a registered tensor or of this shape alone.
    #[cold]
    fn start_error(&self, error: StartError, shape: &Shape, tensor: Option<&Entry>, step: u64) -> Error {
        let cause = match error {
            StartError::Aborted(cause) => cause,
            StartError::Length { .. }
            | StartError::Busy { .. }
            | StartError::SlotBudget { .. }
            | StartError::SlotMemory(_) => {
                return Error::Argument(error.to_string());
            }
            StartError::Schedule { .. } | StartError::NoNodeMemory { .. } => {
                return Error::Internal(error.to_string());
            }
        };
        let what = format!("{} was not started", Self::subject(shape, tensor));
        let call = self.call_of(shape, tensor, step);
        let AbortReason::Diverged(found) = &cause.reason else {
            return Error::closed_by(&cause, format!("{what}: {cause}")).of(call, &what);
        };
        let (views, why) = match found {
            Some(divergence) => (self.views(divergence), self.divergence_text(divergence)),
            None => (Views::default(), cause.to_string()),
        };
        Error::diverged(call, Some(cause.culprit.0), views, format!("{what}: {why}"))
    }

    /// Why an operation that had been started has failed. Of one tensor of a bucket the text names all.
    #[cold]
    fn op_error(&self, error: OpError, tensor: Option<&Entry>) -> Error {
        let subject = error.subject();
        let identity = tensor.map_or(subject.identity, |entry| entry.identity(0));
        let call = self.call(&subject.shape, &identity, subject.step);
        let mut text = error.to_string();
        let (mut cause, mut in_use_by) = (&error, None);
        while let OpError::InUse { error, rank } = cause {
            if *rank == self.rank {
                return Error::accelerator_under(call, text).with_memory_in_use(rank.0);
            }
            in_use_by.get_or_insert(rank.0);
            cause = error;
        }
        let error = match cause {
            OpError::Deadline { missing, .. } => {
                Error::deadline(call, missing.iter().map(|rank| rank.0).collect(), self.deadline, text)
            }
            OpError::Aborted { subject, cause: end } => match &end.reason {
                AbortReason::Diverged(found) => {
                    let views = found.as_ref().map(|divergence| self.views(divergence)).unwrap_or_default();
                    if let (Some(divergence), None) = (found, in_use_by) {
                        text = format!("{subject} was given up: {}", self.divergence_text(divergence));
                    }
                    Error::diverged(call, Some(end.culprit.0), views, text)
                }
                _ => self.ended(call, end, text),
            },
            OpError::Accelerator { .. } | OpError::InUse { .. } => Error::accelerator_under(call, text),
        };
        match in_use_by {
            Some(rank) => error.with_memory_in_use(rank),
            None => error,
        }
    }

    /// An operation has failed so, and a copy of this rank's GPU may still read or write its memory.
    #[cold]
    pub(super) fn in_use(&self, error: &Error, step: u64) -> Error {
        let call = Call { operation: Operation::AllReduce, tensor: None, step };
        let own = self.rank;
        let text = format!("{error}; {own}'s GPU may still use it: leave the tensor's memory as it is");
        Error::accelerator_under(call, text).with_memory_in_use(own.0)
    }

    /// Why a send or receive was not started.
    #[cold]
    pub(super) fn post_error(&self, error: PostError, operation: Operation, step: u64) -> Error {
        match &error {
            PostError::Earlier(why) => self.transfer_error_saying(why, error.to_string(), step),
            PostError::Aborted(cause) => {
                let what = if operation == Operation::Send { "a send" } else { "a receive" };
                let call = Call { operation, tensor: None, step };
                Error::closed_by(cause, format!("{what} was not started: {cause}")).of(call, &what)
            }
            error => Error::Argument(error.to_string()),
        }
    }

    /// Why a send or receive has failed.
    #[cold]
    pub(super) fn transfer_error(&self, error: &TransferError, step: u64) -> Error {
        self.transfer_error_saying(error, error.to_string(), step)
    }

    fn transfer_error_saying(&self, error: &TransferError, text: String, step: u64) -> Error {
        let operation = match error.subject().direction {
            Direction::Send => Operation::Send,
            Direction::Receive => Operation::Receive,
        };
        let call = Call { operation, tensor: None, step };
        match error {
            TransferError::Mismatch { subject, peer, dtype, count } => {
                let views = Views {
                    ours: Some(subject.to_string().into()),
                    theirs: Some(format!("{count} x {dtype}").into()),
                };
                Error::mismatch(call, Some(peer.0), views, text)
            }
            TransferError::Deadline { subject } => {
                let missing = subject.peer.map(|peer| peer.0).into_iter().collect();
                Error::deadline(call, missing, self.deadline, text)
            }
            TransferError::GivenUp { peer, .. } => Error::deadline(call, vec![peer.0], self.deadline, text),
            TransferError::Cancelled { .. } => Error::Argument(text),
            TransferError::Aborted { cause, .. } => Error::ended_by(call, cause, text),
        }
    }
}
