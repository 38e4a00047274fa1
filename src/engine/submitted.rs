//! Operations that callers have handed over and do not wait for: a bounded queue into the engine, and how their ends are reported.
//!
//! A caller puts an operation into the queue, which neither waits nor allocates, and each poll starts what is there, in order, as far as
//! the executor has room. Each has a [`Report`], which is told exactly once how it has ended, also when the engine is dropped. Each group
//! has a queue of its own, so that one that waits for room holds up no other; those of some ranks get theirs when it is first needed.
//!
//! The operations that come out of the queue are fused here ([`FusionQueue`]): tensors of a bucket are held until all were pushed, or a
//! flush, which is an entry of the queue, too. So fusion follows from the order of the queue alone.

pub(crate) mod marks;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crossbeam::queue::ArrayQueue;
use shouter_netstack::time::Instant;
use shouter_reducer::executor::{OpError, Request, StartError};
use shouter_reducer::fusion::{Ends, FusionQueue, Member, Ready};
use shouter_reducer::p2p::{PostError, TransferError};

use super::executor_time;
use crate::error::{Error, Operation};
use marks::Mark;

/// Operations that may wait to be started.
const QUEUED: usize = 1024;

/// Why a started operation has no result.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// It was not started.
    Start(StartError),
    /// It has failed.
    Operation(OpError),
    /// It was held for others of its bucket until its deadline: these, which were not pushed.
    Held(Arc<str>),
    /// The engine is gone, or this rank has left. Nothing refers to its memory.
    Gone,
    /// A send or receive was not started.
    Post(PostError, Operation),
    /// A message was not sent or received.
    Transfer(TransferError),
    /// Nothing of it was started, or copies of its memory have failed: this is why.
    Refused(Error),
    /// It has failed so, and the GPU of this rank may still use its memory.
    InUse(Arc<Failure>),
}

/// Takes the outcome of an operation.
pub(crate) trait Report: Send + Sync {
    /// Whether its memory is ready. An operation that is not ready holds up all behind it, so that the order stays; once the group has
    /// ended this is not asked.
    fn is_ready(&self) -> bool {
        true
    }

    /// The operation starts now: it is not held for others of its bucket. Not called for one that is in no bucket.
    fn released(&self);

    /// Whether [`follow`](Self::follow) gives the operation that runs next, once the one that was started has ended well. Until then
    /// nothing behind it is started: so the next one has the same number on all ranks.
    fn is_followed(&self) -> bool {
        false
    }

    /// The request that runs next in place of the one that has ended well, or why none does. Called by the thread that drives the engine.
    fn follow(&self) -> Result<Request, Failure> {
        Err(Failure::Gone)
    }

    /// It has ended, and nothing refers to its memory any more unless the error says so. Called once, by the thread that drives the
    /// engine: it must be quick.
    fn ended(self: Arc<Self>, result: Result<(), Failure>);
}

/// A report that is due: made when the operation ends, or when all that could end it is gone.
pub(crate) struct Due(Option<Arc<dyn Report>>);

impl Due {
    fn released(&self) {
        if let Some(report) = &self.0 {
            report.released();
        }
    }

    fn is_ready(&self) -> bool {
        self.0.as_ref().is_none_or(|report| report.is_ready())
    }

    fn is_followed(&self) -> bool {
        self.0.as_ref().is_some_and(|report| report.is_followed())
    }

    fn follow(&self) -> Result<Request, Failure> {
        self.0.as_ref().map_or(Err(Failure::Gone), |report| report.follow())
    }

    fn is_of(&self, report: &Arc<dyn Report>) -> bool {
        self.0.as_ref().is_some_and(|due| Arc::ptr_eq(due, report))
    }

    fn report(mut self, result: Result<(), Failure>) {
        if let Some(report) = self.0.take() {
            report.ended(result);
        }
    }
}

impl Drop for Due {
    fn drop(&mut self) {
        if let Some(report) = self.0.take() {
            report.ended(Err(Failure::Gone));
        }
    }
}

/// An entry of the queue. A box would be an allocation at each start.
#[allow(clippy::large_enum_variant)]
enum Handed {
    /// An operation to be started, and the bucket that it is in.
    Operation { request: Request, due: Due, member: Option<Member> },
    /// What is held goes: in any case, or if this one's operation is held.
    Flush(Option<Arc<dyn Report>>),
}

/// With how many small operations this rank's calls had run before.
struct Entry {
    handed: Handed,
    small_before: u64,
}

/// An operation to be started.
pub(super) struct Submission {
    pub(super) request: Request,
    /// Small operations that this rank's calls have run before it.
    pub(super) small_before: u64,
    pub(super) ends: Ends<Due>,
}

/// The queue into an engine.
pub(crate) struct Submissions {
    queue: ArrayQueue<Entry>,
    /// Operations handed over that the engine has neither started nor refused, and does not hold for others.
    unstarted: AtomicUsize,
    /// Operations that the engine holds for others.
    held: AtomicUsize,
    /// The group has ended: an operation that is started now fails.
    closed: AtomicBool,
    /// Set when something was put in; none of the queue that each poll looks at.
    mark: Option<Mark>,
}

impl Submissions {
    fn new(is_closed: bool, mark: Option<Mark>) -> Arc<Self> {
        Arc::new(Self {
            queue: ArrayQueue::new(QUEUED),
            unstarted: AtomicUsize::new(0),
            held: AtomicUsize::new(0),
            closed: AtomicBool::new(is_closed),
            mark,
        })
    }

    /// Hands an operation over; false if there is no slot for it now. `small_before` small operations came before it.
    pub(crate) fn push(
        &self,
        request: &Request,
        small_before: u64,
        report: &Arc<dyn Report>,
        member: Option<&Member>,
    ) -> bool {
        if self.queue.is_full() {
            return false;
        }
        let due = Due(Some(report.clone()));
        let handed = Handed::Operation { request: request.clone(), due, member: member.cloned() };
        self.hand(Entry { handed, small_before })
    }

    /// Flushes what is held if the operation of this report is among it; without one, in any case. False if there is no slot now.
    pub(crate) fn flush(&self, of: Option<&Arc<dyn Report>>, small_before: u64) -> bool {
        self.hand(Entry { handed: Handed::Flush(of.cloned()), small_before })
    }

    fn hand(&self, entry: Entry) -> bool {
        self.unstarted.fetch_add(1, Ordering::AcqRel);
        match self.queue.push(entry) {
            Ok(()) => {
                // Behind the entry: who finds the mark finds that, too.
                self.mark.iter().for_each(Mark::set);
                true
            }
            Err(mut refused) => {
                // Another caller has taken the slot: this one reports nothing.
                if let Handed::Operation { due, .. } = &mut refused.handed {
                    due.0 = None;
                }
                self.unstarted.fetch_sub(1, Ordering::AcqRel);
                false
            }
        }
    }

    /// Whether nothing is held for others of its bucket, and nothing handed over that could be.
    pub(crate) fn holds_nothing(&self) -> bool {
        self.are_all_started() && self.held.load(Ordering::Acquire) == 0
    }

    /// Whether all that was handed over has been started, so that the other ranks of the node can know of it, or refused.
    #[inline]
    pub(crate) fn are_all_started(&self) -> bool {
        self.unstarted.load(Ordering::Acquire) == 0
    }

    /// Whether the group has ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Whether nothing waits to be started.
    #[inline]
    fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Takes everything out. Operations that are to be started there are reported as gone.
    fn clear(&self) {
        while self.queue.pop().is_some() {
            self.unstarted.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// The engine's side: the queue, once it is needed, its operations that are held or go next, and the one at its head, if there was no
/// room for it.
#[derive(Default)]
pub(super) struct Submitted {
    queue: Option<Arc<Submissions>>,
    /// Of a group of some ranks: the queue sets it.
    mark: Option<Mark>,
    fusion: FusionQueue<Due>,
    /// Small operations before what was last taken from the queue.
    small_before: u64,
    head: Option<Submission>,
    /// The next one of the queue, whose memory is not ready.
    unready: Option<Entry>,
    /// The part of an operation is under way that another one follows: nothing is started before that.
    awaits_part: bool,
    is_closed: bool,
    /// This rank has left: nothing is started any more.
    has_left: bool,
    /// Something was taken from the queue, started, refused or given up since the last [`take_change`](Self::take_change).
    has_changed: bool,
}

impl Drop for Submitted {
    fn drop(&mut self) {
        // Handles that are in the queue keep it, so it would never go by itself.
        if let Some(queue) = &self.queue {
            queue.clear();
        }
    }
}

impl Submitted {
    /// From now on this is set when something is put into the queue. Before the queue is made.
    pub(super) fn mark_by(&mut self, mark: Mark) {
        self.mark = Some(mark);
    }

    /// The queue.
    pub(super) fn queue(&mut self) -> &Arc<Submissions> {
        let Self { queue, mark, is_closed, .. } = self;
        queue.get_or_insert_with(|| Submissions::new(*is_closed, mark.clone()))
    }

    /// Whether nothing waits to be started. A tensor that is held for others of its bucket does not: those have to be pushed first.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.head.is_none()
            && self.unready.is_none()
            && !self.awaits_part
            && self.fusion.ready() == 0
            && self.queue.as_ref().is_none_or(|queue| queue.is_empty())
    }

    /// The group has ended: an operation that is started now fails.
    pub(super) fn close(&mut self) {
        self.is_closed = true;
        self.change_held(FusionQueue::close);
        if let Some(queue) = &self.queue {
            queue.close();
        }
    }

    /// This rank leaves in good order: operations that are held, or come later, are reported as gone, for their memory is the caller's
    /// again.
    pub(super) fn leave(&mut self) {
        (self.has_left, self.is_closed) = (true, true);
        self.fusion = FusionQueue::default();
        self.unready = None;
        if let Some(queue) = &self.queue {
            queue.close();
            queue.held.store(0, Ordering::Release);
            queue.clear();
        }
    }

    /// Takes the next operation, which is then [put back](Self::put_back), [started](Self::started) or [refused](Self::refused).
    pub(super) fn next(&mut self) -> Option<Submission> {
        if let Some(head) = self.head.take() {
            return Some(head);
        }
        if self.awaits_part {
            return None;
        }
        if self.has_left {
            self.queue.as_ref()?.clear();
            return None;
        }
        loop {
            if let Some(Ready { request, ends, .. }) = self.fusion.take() {
                ends.iter().for_each(Due::released);
                return Some(Submission { request, small_before: self.small_before, ends });
            }
            let entry = self.unready.take();
            // A slot is free.
            self.has_changed |= entry.is_none() && self.queue.as_ref().is_some_and(|queue| !queue.is_empty());
            let entry = entry.or_else(|| self.queue.as_ref()?.queue.pop())?;
            if let Handed::Operation { due, .. } = &entry.handed
                && !due.is_ready()
                && !self.is_closed
            {
                self.unready = Some(entry);
                return None;
            }
            let Entry { handed, small_before } = entry;
            self.small_before = small_before;
            self.has_changed = true;
            match handed {
                Handed::Operation { request, due, member: None } => {
                    return Some(Submission { request, small_before, ends: Ends::One(due) });
                }
                Handed::Operation { request, due, member: Some(member) } => {
                    self.change_held(|fusion| fusion.push(&member, request, due));
                }
                Handed::Flush(None) => self.change_held(FusionQueue::flush),
                Handed::Flush(Some(of)) => self.change_held(|fusion| {
                    if fusion.reports().any(|due| due.is_of(&of)) {
                        fusion.flush();
                    }
                }),
            }
            self.done();
        }
    }

    /// Changes the operations that are held, and counts those that go.
    fn change_held(&mut self, change: impl FnOnce(&mut FusionQueue<Due>)) {
        let before = self.fusion.ready();
        change(&mut self.fusion);
        if let Some(queue) = &self.queue {
            queue.held.store(self.fusion.held(), Ordering::Release);
            queue.unstarted.fetch_add(self.fusion.ready() - before, Ordering::AcqRel);
        }
    }

    /// When the deadline of something that is held passes; [`Duration::MAX`] for nothing.
    #[inline]
    pub(super) fn held_until(&self) -> Duration {
        self.fusion.until()
    }

    /// When a poll is due for tensors that are held.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let until = self.fusion.until();
        (until != Duration::MAX).then(|| Instant::ZERO + until)
    }

    /// Fails tensors that are held past their deadline. They are not started: the other ranks would be blamed for this rank's missing
    /// pushes.
    #[cold]
    pub(super) fn give_up(&mut self, now: Instant) {
        let tell = |dues: &mut dyn Iterator<Item = Due>, missing: Arc<str>| {
            tracing::warn!(%missing, "fused tensors have missed their deadline, as others of their bucket were not pushed");
            dues.for_each(|due| due.report(Err(Failure::Held(missing.clone()))));
        };
        self.change_held(|fusion| fusion.give_up(executor_time(now), tell));
        self.has_changed = true;
    }

    /// Whether callers who wait for a slot, a start or an end may go on: also where all that was taken is held.
    #[inline]
    pub(super) fn take_change(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
    }

    /// An operation has ended: the one that follows it goes next; where there is none, its reports get the result.
    pub(super) fn report(&mut self, ends: Ends<Due>, result: Result<(), Failure>) {
        let followed = match ends {
            Ends::One(due) if due.is_followed() => due,
            ends => return self.tell(ends, result),
        };
        self.awaits_part = false;
        match result.and_then(|()| followed.follow()) {
            Ok(request) => {
                let (small_before, ends) = (self.small_before, Ends::One(followed));
                self.head = Some(Submission { request, small_before, ends });
            }
            Err(failure) => {
                self.done();
                followed.report(Err(failure));
            }
        }
    }

    fn tell(&mut self, ends: Ends<Due>, result: Result<(), Failure>) {
        match ends {
            Ends::One(due) => due.report(result),
            Ends::All(flight) => {
                self.fusion.complete(flight, result.is_ok(), |due| due.report(result.clone()));
            }
        }
    }

    /// There is no room for it now.
    pub(super) fn put_back(&mut self, next: Submission) {
        self.head = Some(next);
    }

    /// One that was taken has been started; the one that follows it comes before all others.
    pub(super) fn started(&mut self, ends: &Ends<Due>) {
        self.has_changed = true;
        self.awaits_part = matches!(ends, Ends::One(due) if due.is_followed());
        if !self.awaits_part {
            self.done();
        }
    }

    /// One that was taken cannot be started.
    pub(super) fn refused(&mut self, ends: Ends<Due>, why: StartError) {
        self.has_changed = true;
        self.done();
        self.tell(ends, Err(Failure::Start(why)));
    }

    /// One that was taken has been started, refused, or is held.
    fn done(&self) {
        if let Some(queue) = &self.queue {
            queue.unstarted.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests;
