//! What the library knows of an operation under way: its parts, its memory, how it has ended.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::Waker;

use shouter_reducer::executor::{OpError, Request};
use shouter_reducer::header::Shape;

use crate::communicator::drive::OperationFailure;
use crate::communicator::outcomes::{Outcomes, Span};
use crate::communicator::p2p::Messages;
use crate::communicator::shards::PartEnds;
use crate::communicator::staging::device::Progress;
use crate::communicator::staging::{Ended, Staged};
use crate::communicator::table::Entry;
use crate::communicator::uneven::Followed;
use crate::engine::submitted::{Failure, Report, Submissions};
use crate::error::{Call, Error};
use crate::observe::Row;
use crate::runtime::Instant;
use crate::runtime::lock;

/// The operation has ended.
const ENDED: u8 = 1;
/// Its end is to be announced.
const WATCHED: u8 = 2;

/// It is not held for others of its bucket.
const RELEASED: u8 = 4;

/// A handle's facts about its operation.
pub(in crate::communicator) struct About {
    pub(in crate::communicator) what: OperationKind,
    pub(in crate::communicator) begin: Instant,
    pub(in crate::communicator) step: u64,
    pub(in crate::communicator) bytes: usize,
    pub(in crate::communicator) name: Arc<str>,
}

/// An operation of all ranks, or messages of this one.
pub(in crate::communicator) enum OperationKind {
    Collective {
        shape: Shape,
        /// The tensor, if it is registered.
        entry: Option<Arc<Entry>>,
        /// The queue in which it may be held for others of its bucket, if it is in one: a wait flushes that.
        held_in: Option<Arc<Submissions>>,
    },
    Messages(Messages),
}

impl std::fmt::Display for OperationKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Collective { shape, .. } => shape.fmt(f),
            Self::Messages(messages) => messages.fmt(f),
        }
    }
}

/// A receiver of the end.
pub(super) enum Watcher {
    Callback(Box<dyn FnOnce(Result<(), Error>) + Send>),
    Task(Waker),
}

/// An operation, from its start until nothing refers to it any more.
pub(in crate::communicator) struct StartedOperation {
    state: AtomicU8,
    /// Set before it has ended, if it failed.
    failure: OnceLock<Failure>,
    /// The same as the caller reads it.
    error: OnceLock<Error>,
    pub(super) watchers: Mutex<Vec<Watcher>>,
    pub(super) outcomes: Arc<Outcomes>,
    pub(super) about: About,
    /// Memory of its own until it has ended, if it has any.
    staged: Option<Mutex<Option<Staged>>>,
    /// Of one on a GPU: the progress that it shares with its copies.
    progress: Option<Arc<Progress>>,
    /// Its parts behind the first, if it has several.
    followed: Option<Arc<Followed>>,
    /// Its parts side by side, if shards have several.
    parts: Option<PartEnds>,
}

impl StartedOperation {
    pub(in crate::communicator) fn new(outcomes: Arc<Outcomes>, about: About) -> Self {
        Self {
            state: AtomicU8::new(0),
            failure: OnceLock::new(),
            error: OnceLock::new(),
            watchers: Mutex::new(Vec::new()),
            outcomes,
            about,
            staged: None,
            progress: None,
            followed: None,
            parts: None,
        }
    }

    /// The same with so many parts, each of which has an end.
    pub(in crate::communicator) fn in_parts(self, parts: usize) -> Self {
        Self { parts: (parts > 1).then(|| PartEnds::new(parts)), ..self }
    }

    /// The same with memory of its own.
    pub(in crate::communicator) fn with_memory(self, staged: Option<Staged>) -> Self {
        let progress = staged.as_ref().and_then(Staged::progress).cloned();
        Self { staged: staged.map(|staged| Mutex::new(Some(staged))), progress, ..self }
    }

    /// The same with more parts behind the first.
    pub(in crate::communicator) fn followed_by(self, followed: Arc<Followed>) -> Self {
        Self { followed: Some(followed), ..self }
    }

    #[inline]
    pub(in crate::communicator) fn has_ended(&self) -> bool {
        self.state.load(Ordering::Acquire) & ENDED != 0
    }

    /// Why nothing of it was started, if it has ended so.
    pub(in crate::communicator) fn refusal(&self) -> Option<Error> {
        let refused = self.has_ended()
            && matches!(self.failure.get(), Some(Failure::Start(_) | Failure::Post(..)))
            && self.messages().is_none_or(Messages::none_posted);
        if refused { self.result().err() } else { None }
    }

    /// How it has ended.
    pub(super) fn result(&self) -> Result<(), Error> {
        let Some(failure) = self.failure.get() else { return Ok(()) };
        Err(self.error.get_or_init(|| self.outcomes.recorded(self.describe(failure))).clone())
    }

    /// An error of a call for it, with its name.
    pub(in crate::communicator) fn named(&self, error: Error) -> Error {
        self.named_among(error, 0)
    }

    /// An error of a call for it and for `others` besides, with its name.
    #[cold]
    pub(super) fn named_among(&self, error: Error, others: usize) -> Error {
        let About { what, step, .. } = &self.about;
        let (call, name) = match what {
            OperationKind::Collective { shape, entry, .. } => {
                let entry = entry.as_deref();
                (self.outcomes.call_of(shape, entry, *step), Outcomes::subject(shape, entry).to_string())
            }
            OperationKind::Messages(messages) => {
                let call = Call { operation: messages.operation(), tensor: None, step: *step };
                (call, messages.to_string())
            }
        };
        match others {
            0 => error.of(call, &name),
            _ => error.of(call, &format!("{name}, as each of {others} more that were waited for,")),
        }
    }

    #[cold]
    fn describe(&self, failure: &Failure) -> Error {
        let About { what, step, .. } = &self.about;
        let (shape, entry) = match (failure, what) {
            (Failure::Refused(why), _) => return why.clone(),
            (Failure::InUse(why), _) => return self.outcomes.in_use(&self.describe(why), *step),
            (Failure::Post(why, operation), _) => {
                return self.outcomes.post_error(why.clone(), *operation, *step);
            }
            (Failure::Transfer(why), _) => return self.outcomes.transfer_error(why, *step),
            (Failure::Gone, _) => {
                return Error::closed(format!("{what} was under way when its group was dropped"));
            }
            (_, OperationKind::Messages(_)) => {
                return Error::Internal("a message has ended as a collective".into());
            }
            (_, OperationKind::Collective { shape, entry, .. }) => (shape, entry.as_deref()),
        };
        let error = match failure {
            Failure::Held(missing) => return self.outcomes.held(missing, shape, entry, *step),
            Failure::Start(why) => OperationFailure::Start(why.clone()),
            Failure::Operation(why) => OperationFailure::Failed(why.clone()),
            Failure::Gone
            | Failure::Post(..)
            | Failure::Transfer(_)
            | Failure::Refused(_)
            | Failure::InUse(_) => {
                return Error::Internal("an end was described twice".into());
            }
        };
        let error = self.outcomes.run_error(error, shape, entry, *step);
        match &self.followed {
            Some(followed) if followed.learns() && matches!(failure, Failure::Operation(_)) => {
                error.within(shape.collective)
            }
            _ => error,
        }
    }

    /// The queue in which it may be held for others of its bucket.
    fn held_in(&self) -> Option<&Arc<Submissions>> {
        match &self.about.what {
            OperationKind::Collective { held_in, .. } => held_in.as_ref(),
            OperationKind::Messages(_) => None,
        }
    }

    /// Its messages, if it is one of messages.
    pub(in crate::communicator) fn messages(&self) -> Option<&Messages> {
        match &self.about.what {
            OperationKind::Messages(messages) => Some(messages),
            OperationKind::Collective { .. } => None,
        }
    }

    /// Records the end, and hands the operation to the notifier if it has watchers.
    pub(in crate::communicator) fn conclude(self: Arc<Self>, result: Result<(), Failure>) {
        if let Err(failure) = result {
            // It ends once.
            drop(self.failure.set(failure));
        }
        let before = self.state.fetch_or(ENDED, Ordering::AcqRel);
        if before & WATCHED != 0 {
            self.outcomes.awaited_ends.remove();
        }
        if before & WATCHED != 0 || self.outcomes.notifier.wants_all() {
            let notifier = self.outcomes.notifier.clone();
            notifier.push(self);
        }
    }

    /// Whether it waits for others of its bucket, as far as is known.
    pub(super) fn may_be_held(&self) -> bool {
        self.held_in().is_some() && self.state.load(Ordering::Acquire) & (ENDED | RELEASED) == 0
    }

    /// A caller was blocked in a wait for it: the timeline has that.
    #[cold]
    pub(super) fn has_blocked(&self, begin: Instant, end: Instant) {
        let Some(timeline) = &self.outcomes.timeline else { return };
        let About { what, begin: pushed, step, bytes, name } = &self.about;
        let what = match what {
            OperationKind::Collective { shape, .. } => shape.collective.name(),
            OperationKind::Messages(_) => "messages",
        };
        let wait = Span { begin, what, name, bytes: *bytes, step: *step };
        timeline.blocked(*pushed, self.has_ended(), wait.until(end));
    }

    /// Flushes the queue if it is held there; false if there is no slot for that now.
    pub(super) fn flush(self: &Arc<Self>) -> bool {
        let Some(submissions) = self.held_in() else { return true };
        let report: Arc<dyn Report> = self.clone();
        // Those that ran since the push count: held operations start behind them.
        submissions.flush(Some(&report), self.outcomes.small_before())
    }

    /// Asks for [`tell`](Self::tell) when it has ended, which may be at once.
    pub(super) fn watch(self: &Arc<Self>) {
        // Counted first, since it may end at any time.
        self.outcomes.awaited_ends.add();
        let before = self.state.fetch_or(WATCHED, Ordering::AcqRel);
        if before & (WATCHED | ENDED) != 0 {
            self.outcomes.awaited_ends.remove();
        }
        if before & ENDED != 0 {
            self.outcomes.notifier.push(self.clone());
        }
    }

    /// Notifies the watchers.
    pub(in crate::communicator) fn tell(&self) {
        loop {
            let next = {
                let mut watchers = lock(&self.watchers);
                (!watchers.is_empty()).then(|| watchers.remove(0))
            };
            match next {
                Some(Watcher::Callback(callback)) => callback(self.result()),
                Some(Watcher::Task(waker)) => waker.wake(),
                None => return,
            }
        }
    }
}

impl Report for StartedOperation {
    fn released(&self) {
        self.state.fetch_or(RELEASED, Ordering::AcqRel);
    }

    fn is_ready(&self) -> bool {
        self.progress.as_ref().is_none_or(|progress| progress.is_ready())
    }

    fn ended(self: Arc<Self>, result: Result<(), Failure>) {
        if let Some(parts) = &self.parts {
            if let Some(result) = parts.ended(result) {
                let driver = self.outcomes.driver();
                self.landed(result);
                // The last part may have ended on another shard than the one that checks the waits.
                driver.iter().for_each(|driver| driver.recheck());
            }
            return;
        }
        match &self.progress {
            None => self.landed(result),
            Some(progress) => {
                if let Some(outcome) = progress.ended(result.map(|()| None)) {
                    self.landed(outcome.map(drop));
                }
            }
        }
    }

    fn is_followed(&self) -> bool {
        self.followed.as_ref().is_some_and(|followed| followed.learns())
    }

    fn follow(&self) -> Result<Request, Failure> {
        self.followed.as_ref().map_or(Err(Failure::Gone), |followed| followed.follow())
    }
}

impl StartedOperation {
    /// It has ended, and its copies have, if it has any.
    pub(in crate::communicator) fn landed(self: Arc<Self>, result: Result<(), Failure>) {
        if let Some(staged) = self.staged.as_ref().and_then(|staged| lock(staged).take()) {
            staged.end(match &result {
                Ok(()) => Ended::Well,
                Err(Failure::Operation(OpError::InUse { .. }) | Failure::InUse(_)) => Ended::InUse,
                Err(_) => Ended::Badly,
            });
        }
        if let About { what: OperationKind::Collective { shape, .. }, begin, name, bytes, step } = &self.about
        {
            let (begin, bytes, step) = (*begin, *bytes, *step);
            let call = Span { begin, what: shape.collective.name(), name, bytes, step };
            match &result {
                Ok(()) => self.outcomes.finished(&[Row::Calls], &call),
                Err(_) if self.outcomes.timeline.is_none() => {}
                Err(why) => self.outcomes.failed(&[Row::Calls], &call, &self.describe(why)),
            }
        }
        self.conclude(result);
    }
}
