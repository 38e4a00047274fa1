//! Operations that callers have handed over and do not wait for: a bounded queue into the engine, and how their ends are reported.
//!
//! A caller puts an operation into the queue, which neither waits nor allocates, and each poll starts what is there, in order, as far as
//! the executor has room. Each has a [`Report`], which hears exactly once how it has ended, whatever becomes of the engine. Each group has
//! a queue of its own, so that one that waits for room holds up no other; those of some ranks get theirs when it is first needed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crossbeam::queue::ArrayQueue;
use shouter_netstack::time::Instant;
use shouter_reducer::executor::{OpError, Request, StartError};

use super::{Engine, Open};

/// Operations that may wait to be started.
const QUEUED: usize = 1024;

/// Why a started operation has no result.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// It was not started.
    Start(StartError),
    /// It has failed.
    Operation(OpError),
    /// The engine is gone. Nothing refers to its memory.
    Gone,
}

/// Who hears how an operation has ended.
pub(crate) trait Report: Send + Sync {
    /// It has ended, and nothing refers to its memory any more unless the error says so. Called once, by the thread that drives the
    /// engine: it must be quick.
    fn ended(self: Arc<Self>, result: Result<(), Failure>);
}

/// A report that is due: made when the operation ends, or when all that could end it is gone.
pub(super) struct Due(Option<Arc<dyn Report>>);

impl Due {
    pub(super) fn report(mut self, result: Result<(), Failure>) {
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

/// An operation to be started.
pub(super) struct Submission {
    pub(super) request: Request,
    /// Small operations that this rank's calls have run before it.
    small_before: u64,
    pub(super) due: Due,
}

/// The queue into an engine.
pub(crate) struct Submissions {
    queue: ArrayQueue<Submission>,
    /// Operations handed over that the engine has neither started nor refused.
    unstarted: AtomicUsize,
    /// The group has ended: what is started now fails.
    closed: AtomicBool,
}

impl Submissions {
    fn new(is_closed: bool) -> Arc<Self> {
        Arc::new(Self {
            queue: ArrayQueue::new(QUEUED),
            unstarted: AtomicUsize::new(0),
            closed: AtomicBool::new(is_closed),
        })
    }

    /// Hands an operation over; false if there is no slot for it now. `small_before` small operations came before it.
    pub(crate) fn push(&self, request: &Request, small_before: u64, report: &Arc<dyn Report>) -> bool {
        if self.queue.is_full() {
            return false;
        }
        let due = Due(Some(report.clone()));
        self.unstarted.fetch_add(1, Ordering::AcqRel);
        let submission = Submission { request: request.clone(), small_before, due };
        match self.queue.push(submission) {
            Ok(()) => true,
            Err(mut refused) => {
                // Another caller has taken the slot: this one reports nothing.
                refused.due.0 = None;
                self.unstarted.fetch_sub(1, Ordering::AcqRel);
                false
            }
        }
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
}

/// The engine's side: the queue, once it is needed, and the operation at its head, if there was no room for it.
#[derive(Default)]
pub(super) struct Submitted {
    queue: Option<Arc<Submissions>>,
    head: Option<Submission>,
    is_closed: bool,
}

impl Submitted {
    /// The queue.
    pub(super) fn queue(&mut self) -> &Arc<Submissions> {
        let is_closed = self.is_closed;
        self.queue.get_or_insert_with(|| Submissions::new(is_closed))
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.head.is_none() && self.queue.as_ref().is_none_or(|queue| queue.is_empty())
    }

    /// The group has ended: what is started now fails.
    pub(super) fn close(&mut self) {
        self.is_closed = true;
        if let Some(queue) = &self.queue {
            queue.close();
        }
    }

    /// Takes the next operation, which is then either [put back](Self::put_back) or [done with](Self::done).
    pub(super) fn next(&mut self) -> Option<Submission> {
        self.head.take().or_else(|| self.queue.as_ref()?.queue.pop())
    }

    /// There is no room for it now.
    pub(super) fn put_back(&mut self, next: Submission) {
        self.head = Some(next);
    }

    /// One that was taken has been started, or refused.
    pub(super) fn done(&self) {
        if let Some(queue) = &self.queue {
            queue.unstarted.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Engine {
    /// The queue of operations of the group of all that are started without waiting.
    pub(crate) fn submissions(&mut self) -> Arc<Submissions> {
        self.submitted.queue().clone()
    }

    /// Starts what waits to be started, as far as there is room. Whether there was anything.
    #[inline]
    pub(super) fn admit(&mut self, now: Instant) -> bool {
        !self.submitted.is_empty() && self.admit_some(now)
    }

    fn admit_some(&mut self, now: Instant) -> bool {
        let mut any = false;
        while let Some(next) = self.submitted.next() {
            let mut open = Open::new(&next.request, self.node.as_deref());
            open.small_before = Some(next.small_before);
            match self.open(now, next.request.clone(), open) {
                Ok(_) => {
                    if let Some(open) = self.open.last_mut() {
                        open.due = Some(next.due);
                    }
                }
                Err(StartError::Busy { .. }) => {
                    self.submitted.put_back(next);
                    break;
                }
                Err(why) => next.due.report(Err(Failure::Start(why))),
            }
            self.submitted.done();
            any = true;
        }
        any
    }

    /// Reports the ends of started operations, once outcomes are not held back.
    #[inline]
    pub(super) fn report(&mut self) -> bool {
        if self.finished.is_empty() || self.settling.is_some() {
            return false;
        }
        let mut any = false;
        let mut at = 0;
        while let Some(completed) = self.finished.get(at) {
            let op = completed.op;
            let open = self.open.iter().position(|open| open.op == op && open.due.is_some());
            let Some(open) = open else {
                at += 1;
                continue;
            };
            let due = self.open.swap_remove(open).due;
            let completed = self.finished.swap_remove(at);
            if let Some(due) = due {
                due.report(completed.result.map_err(Failure::Operation));
            }
            any = true;
        }
        any
    }
}
