//! Handles of operations under way.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use shouter_reducer::executor::{OpError, Request};
use shouter_reducer::header::Shape;
use shouter_reducer::p2p::TransferId;

use super::drive::{OperationFailure, RankEngine, drive_error};
use super::outcomes::{Outcomes, Span};
use super::p2p::Messages;
use super::shards::PartEnds;
use super::staging::device::Progress;
use super::staging::{Ended, Staged};
use super::table::Entry;
use super::uneven::Followed;
use crate::engine::groups::GroupId;
use crate::engine::submitted::{Failure, Report, Submissions};
use crate::error::{Call, Error};
use crate::observe::Row;
use crate::runtime::lock;
use crate::runtime::{Activity, Backoff, Clock, DriveError, IdlePolicy, Instant};

/// The operation has ended.
const ENDED: u8 = 1;
/// Its end is to be announced.
const WATCHED: u8 = 2;

/// It is not held for others of its bucket.
const RELEASED: u8 = 4;

/// A handle's facts about its operation.
pub(super) struct About {
    pub(super) what: OperationKind,
    pub(super) begin: Instant,
    pub(super) step: u64,
    pub(super) bytes: usize,
    pub(super) name: Arc<str>,
}

/// An operation of all ranks, or messages of this one.
pub(super) enum OperationKind {
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
enum Watcher {
    Callback(Box<dyn FnOnce(Result<(), Error>) + Send>),
    Task(Waker),
}

/// An operation, from its start until nothing refers to it any more.
pub(super) struct StartedOperation {
    state: AtomicU8,
    /// Set before it has ended, if it failed.
    failure: OnceLock<Failure>,
    /// The same as the caller reads it.
    error: OnceLock<Error>,
    watchers: Mutex<Vec<Watcher>>,
    outcomes: Arc<Outcomes>,
    about: About,
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
    pub(super) fn new(outcomes: Arc<Outcomes>, about: About) -> Self {
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
    pub(super) fn in_parts(self, parts: usize) -> Self {
        Self { parts: (parts > 1).then(|| PartEnds::new(parts)), ..self }
    }

    /// The same with memory of its own.
    pub(super) fn with_memory(self, staged: Option<Staged>) -> Self {
        let progress = staged.as_ref().and_then(Staged::progress).cloned();
        Self { staged: staged.map(|staged| Mutex::new(Some(staged))), progress, ..self }
    }

    /// The same with more parts behind the first.
    pub(super) fn followed_by(self, followed: Arc<Followed>) -> Self {
        Self { followed: Some(followed), ..self }
    }

    #[inline]
    pub(super) fn has_ended(&self) -> bool {
        self.state.load(Ordering::Acquire) & ENDED != 0
    }

    /// Why nothing of it was started, if it has ended so.
    pub(super) fn refusal(&self) -> Option<Error> {
        let refused = self.has_ended()
            && matches!(self.failure.get(), Some(Failure::Start(_) | Failure::Post(..)))
            && self.messages().is_none_or(Messages::none_posted);
        if refused { self.result().err() } else { None }
    }

    /// How it has ended.
    fn result(&self) -> Result<(), Error> {
        let Some(failure) = self.failure.get() else { return Ok(()) };
        Err(self.error.get_or_init(|| self.outcomes.recorded(self.describe(failure))).clone())
    }

    /// An error of a call for it, with its name.
    pub(super) fn named(&self, error: Error) -> Error {
        self.named_among(error, 0)
    }

    /// An error of a call for it and for `others` besides, with its name.
    #[cold]
    fn named_among(&self, error: Error, others: usize) -> Error {
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
    pub(super) fn messages(&self) -> Option<&Messages> {
        match &self.about.what {
            OperationKind::Messages(messages) => Some(messages),
            OperationKind::Collective { .. } => None,
        }
    }

    /// Records the end, and hands the operation to the notifier if it has watchers.
    pub(super) fn conclude(self: Arc<Self>, result: Result<(), Failure>) {
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
    fn may_be_held(&self) -> bool {
        self.held_in().is_some() && self.state.load(Ordering::Acquire) & (ENDED | RELEASED) == 0
    }

    /// A caller was blocked in a wait for it: the timeline has that.
    #[cold]
    fn has_blocked(&self, begin: Instant, end: Instant) {
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
    fn flush(self: &Arc<Self>) -> bool {
        let Some(submissions) = self.held_in() else { return true };
        let report: Arc<dyn Report> = self.clone();
        // Those that ran since the push count: held operations start behind them.
        submissions.flush(Some(&report), self.outcomes.small_before())
    }

    /// Asks for [`tell`](Self::tell) when it has ended, which may be at once.
    fn watch(self: &Arc<Self>) {
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
    pub(super) fn tell(&self) {
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
    pub(super) fn landed(self: Arc<Self>, result: Result<(), Failure>) {
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

/// An operation under way, or ended, as returned by [`Group::start`](super::Group::start),
/// [`Group::push`](super::Group::push), [`Group::start_uneven`](super::Group::start_uneven) and
/// [`Group::start_message`](super::Group::start_message).
///
/// Any thread may ask it, as often as it likes, also after the group was dropped; clones are the same operation. It does not own the
/// operation's memory: dropping the last handle changes nothing, the operation goes on, and its memory is the group's until the operation
/// has ended or the group was dropped, which waits for that. ([`Lent`](super::Lent) owns memory, and waits when it is dropped.)
///
/// A thread that waits drives the engine, unless a dedicated shard does (the key `mode`). Between calls of the group a
/// helper thread looks every 0.5 ms; while a callback or a future awaits an end every 30 us, and without pause where the process computes nothing.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use shouter::config::{Builder, Environment};
/// # use shouter::{DType, ReduceOp, TensorSpec};
/// # let config = Builder::from_environment(Environment::default())?.set("size", "1")?.set("rank", "0")?.build()?;
/// # let group = shouter::init(config)?;
/// # let ids = group.register(&[TensorSpec::all_reduce("head", DType::F32, 2, ReduceOp::Sum)])?;
/// let mut gradient = [1f32, 2.0];
/// // SAFETY: as many elements as were registered, which nothing else touches before the operation has ended.
/// let work = unsafe { group.push(ids[0], gradient.as_mut_ptr().cast()) }?;
/// work.on_done(|result| println!("reduced: {}", result.is_ok()))?;
/// work.wait(None)?;
/// work.wait(None)?; // As often as one likes.
/// assert!(matches!(work.test(), Some(Ok(()))));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "the memory is the group's until the operation has ended"]
pub struct Work(pub(super) Arc<StartedOperation>);

impl Work {
    /// How the operation has ended; `None` while it is under way. Takes one poll of the engine where no thread drives
    /// it.
    pub fn test(&self) -> Option<Result<(), Error>> {
        if self.0.has_ended() {
            return Some(self.0.result());
        }
        if let Err(error) = self.0.outcomes.check_process() {
            return Some(Err(error));
        }
        if let Some(Err(error)) = self.0.outcomes.driver().map(|driver| driver.nudge())
            && error != DriveError::Reentered
        {
            return Some(Err(drive_error(error)));
        }
        self.0.has_ended().then(|| self.0.result())
    }

    /// Whether the operation has ended, well or not, as far as is known.
    pub(super) fn has_ended(&self) -> bool {
        self.0.has_ended()
    }

    /// Waits until the operation has ended, for `timeout` at most; without one, its deadline (the key `deadline`) ends it. Its memory is
    /// the caller's again then.
    ///
    /// A wait for a tensor that is held for others of its bucket (the key `fuse_below`) flushes what is held, for all threads
    /// and other tensors: every held tensor goes by itself. So ranks wait for those in the same order among their
    /// pushes. [`test`](Self::test), callbacks and futures flush nothing: a tensor that only they ask for fails with
    /// [`Error::Deadline`] where its bucket is not pushed in time.
    ///
    /// # Errors
    /// [`Error::Timeout`] when `timeout` passes first: the operation is still under way. [`Error::Mismatch`], [`Error::PeerFailed`],
    /// [`Error::Deadline`] and [`Error::Accelerator`] say how it has failed, [`Error::Closed`] that it was not started, or was under
    /// way when the group was dropped, or that this is a forked child; the same each time.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<(), Error> {
        Self::wait_any(std::slice::from_ref(self), timeout)?;
        self.0.result()
    }

    /// Waits until one of several operations of a group has ended, well or not, for `timeout` at most; returns the index of the first that
    /// has. [`test`](Self::test) says how.
    ///
    /// # Errors
    /// [`Error::Argument`] for no operations, and for those of several groups; [`Error::Timeout`], which names the first; [`Error::Closed`] in a
    /// forked child.
    pub fn wait_any(works: &[Self], timeout: Option<Duration>) -> Result<usize, Error> {
        let (first, others) =
            works.split_first().ok_or_else(|| Error::Argument("there is no operation to wait for".into()))?;
        first.first_of(works, timeout).map_err(|error| first.0.named_among(error, others.len()))
    }

    /// As [`wait_any`](Self::wait_any), of operations of which this is the first.
    fn first_of(&self, works: &[Self], timeout: Option<Duration>) -> Result<usize, Error> {
        let begin = Clock.now();
        Self::flush_all(works, timeout.map(|timeout| begin + timeout))?;
        if let Some(at) = works.iter().position(Self::has_ended) {
            return Ok(at);
        }
        let outcomes = &self.0.outcomes;
        outcomes.check_process()?;
        if works.iter().any(|work| !work.0.outcomes.driver.ptr_eq(&outcomes.driver)) {
            return Err(Error::Argument(
                "operations of several groups; wait for those of one at a time".into(),
            ));
        }
        let until = timeout.map(|timeout| begin + timeout);
        if let Some(driver) = outcomes.driver() {
            let waited = match works {
                [one] => {
                    let one = one.clone();
                    driver.drive_until(move |_| one.has_ended().then_some(0), until)
                }
                _ => {
                    let works = works.to_vec();
                    driver.drive_until(move |_| works.iter().position(Self::has_ended), until)
                }
            };
            if outcomes.timeline.is_some() {
                let ended = waited.as_ref().ok().and_then(|at| works.get(*at));
                ended.unwrap_or(self).0.has_blocked(begin, Clock.now());
            }
            return waited.map_err(drive_error);
        }
        // The group is being dropped, by another thread, which reports the end.
        let mut idle = Backoff::new(IdlePolicy::SHARED);
        loop {
            if let Some(at) = works.iter().position(Self::has_ended) {
                return Ok(at);
            }
            if until.is_some_and(|until| Clock.now() >= until) {
                return Err(Error::timeout(Clock.now() - begin));
            }
            idle.wait(Activity::Idle, until);
        }
    }

    /// Flushes the queue where an operation is held for others of its bucket. Whether one has ended shows in none of it: ranks differ there.
    #[inline]
    fn flush_all(works: &[Self], until: Option<Instant>) -> Result<(), Error> {
        works.iter().filter(|work| work.0.may_be_held()).try_for_each(|work| work.flush(until))
    }

    fn flush(&self, until: Option<Instant>) -> Result<(), Error> {
        let operation = self.0.clone();
        operation.outcomes.check_process()?;
        if operation.flush() {
            return Ok(());
        }
        // The group is being dropped where nothing drives, and the operation ends with it.
        let Some(driver) = operation.outcomes.driver() else { return Ok(()) };
        driver.drive_until(move |_| operation.flush().then_some(()), until).map_err(drive_error)
    }

    /// Cancels receives that no message was matched with; whether there was one.
    pub(super) fn cancel_receives(
        &self,
        group: Option<GroupId>,
        ids: Vec<TransferId>,
    ) -> Result<bool, Error> {
        self.0.outcomes.check_process()?;
        let Some(driver) = self.0.outcomes.driver() else { return Ok(false) };
        let cancel = move |engine: &mut RankEngine| {
            let Some(messages) = engine.messages_in(group) else { return 0 };
            ids.into_iter().filter(|id| messages.cancel(*id)).count()
        };
        let cancelled = driver.with(cancel);
        // The next poll reports it.
        drop(self.test());
        cancelled.map(|cancelled| cancelled > 0).map_err(drive_error)
    }

    /// Has a helper thread of the group call `callback` with the outcome, once, when the operation has ended; soon, where it has. Callbacks
    /// run one after the other, so they should be quick; they may start and wait for operations. Dropping the group
    /// runs those that are due and waits for them; it ends operations under way, so none is left out.
    ///
    /// # Errors
    /// [`Error::Device`] if there is no thread; [`Error::Closed`] in a forked child.
    pub fn on_done(&self, callback: impl FnOnce(Result<(), Error>) + Send + 'static) -> Result<(), Error> {
        self.0.outcomes.check_process()?;
        self.0.outcomes.notifier.start()?;
        lock(&self.0.watchers).push(Watcher::Callback(Box::new(callback)));
        self.0.watch();
        Ok(())
    }
}

/// Ready with the outcome. It needs no runtime: a helper thread of the group wakes the task.
impl Future for Work {
    type Output = Result<(), Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(result) = self.test() {
            return Poll::Ready(result);
        }
        if let Err(error) = self.0.outcomes.notifier.start() {
            return Poll::Ready(Err(error));
        }
        {
            let mut watchers = lock(&self.0.watchers);
            let known = |watcher: &Watcher| matches!(watcher, Watcher::Task(waker) if waker.will_wake(context.waker()));
            if !watchers.iter().any(known) {
                watchers.push(Watcher::Task(context.waker().clone()));
            }
        }
        self.0.watch();
        if self.has_ended() { Poll::Ready(self.0.result()) } else { Poll::Pending }
    }
}

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let About { what, name, step, .. } = &self.0.about;
        f.debug_struct("Work")
            .field("operation", &format_args!("{what}"))
            .field("tensor", name)
            .field("step", step)
            .field("has_ended", &self.has_ended())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
