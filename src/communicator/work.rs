//! Handles of operations under way.

mod started;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use shouter_reducer::p2p::TransferId;

use super::drive::{RankEngine, drive_error};
use crate::engine::groups::GroupId;
use crate::error::Error;
use crate::runtime::lock;
use crate::runtime::{Activity, Backoff, Clock, DriveError, IdlePolicy, Instant};
use started::Watcher;
pub(super) use started::{About, OperationKind, StartedOperation};

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
