//! The loop body of a shard.

use std::any::Any;
use std::cell::Cell;
use std::collections::VecDeque;
use std::future::Future;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use async_task::Runnable;
use crossbeam::sync::Parker;

use super::context::{self, Context};
use super::mesh::{self, Endpoint, Inbound, Presence};
use super::shared::Shared;
use super::sleeper::Sleeping;
use super::{
    Activity, Announce, Backoff, Clock, IdlePolicy, Instant, PollClock, Poller, ShardId, Task, Wakes,
    spawn_local,
};

/// Messages taken from one ring in one poll.
const RING_BUDGET: usize = 64;
/// Wake-ups from other threads taken in one poll.
const OUTSIDE_BUDGET: usize = 256;
/// How long a stopping shard waits for a task that another thread is just waking.
const STOP_PATIENCE: Duration = Duration::from_millis(500);

/// One shard's state: its poller, ready tasks, timers, and rings. It stays on the thread that made it, so its tasks may hold
/// `Rc` and `RefCell` ([`spawn_local`](super::spawn_local())).
pub struct Reactor<P> {
    poller: P,
    /// Stored here between polls; in the thread-local during one.
    context: Option<Box<Context>>,
    /// Tasks of the current poll, swapped with the context's queue.
    batch: VecDeque<Runnable>,
    inbound: Vec<Inbound>,
    parker: Parker,
    /// Last, so that peers are notified after everything else is dropped.
    presence: Presence,
    _local: PhantomData<*const ()>,
}

impl<P> std::fmt::Debug for Reactor<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reactor").field("id", &self.shared().id).finish_non_exhaustive()
    }
}

impl<P: Poller> Reactor<P> {
    /// A shard without peers.
    pub fn new(poller: P) -> Self {
        Self::on(Endpoint::alone(), poller)
    }

    /// A shard of a [`mesh`](mesh::mesh).
    pub(super) fn on(endpoint: Endpoint, poller: P) -> Self {
        let Endpoint { presence, parker, links, inbound } = endpoint;
        let context = Context::new(presence.shared().clone(), links);
        Self {
            poller,
            context: Some(Box::new(context)),
            batch: VecDeque::with_capacity(64),
            inbound,
            parker,
            presence,
            _local: PhantomData,
        }
    }

    /// One poll: the poller, wake-ups and messages from other threads and shards, due timers, and every task that was ready at the
    /// start of that last part. Bounded and non-blocking.
    ///
    /// # Panics
    ///
    /// If the poller does. Panics of tasks and of submitted closures go to the awaiting task.
    #[inline]
    pub fn poll(&mut self, now: Instant) -> Activity {
        let Self { poller, context, batch, inbound, presence, .. } = self;
        let _entered = context::enter(context);
        context::with(|context| context.now = now);

        let mut busy = poller.poll(now).is_busy();
        if presence.shared().take_attention() {
            busy = true;
            attend(presence.shared(), inbound);
        }
        for inbound in inbound.iter_mut() {
            busy |= drain(inbound, RING_BUDGET);
        }
        while let Some(waker) = context::with(|context| context.timers.pop_due(now)).flatten() {
            waker.wake();
        }
        context::with(|context| std::mem::swap(&mut context.ready, batch));
        busy |= !batch.is_empty();
        for runnable in batch.drain(..) {
            runnable.run();
        }
        busy |= flush_links();
        Activity::from_busy(busy)
    }

    /// Runs `f` on the poller, in the shard: tasks may be spawned and woken from there.
    #[inline]
    pub fn visit<R>(&mut self, f: impl FnOnce(&mut P) -> R) -> R {
        let Self { poller, context, .. } = self;
        let _entered = context::enter(context);
        let result = f(poller);
        flush_links();
        result
    }

    /// When the next poll must be although nothing may arrive.
    pub fn next_deadline(&self) -> Option<Instant> {
        let timer = self.context.as_ref().and_then(|context| context.timers.next_deadline());
        match (timer, self.poller.next_deadline()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// The thread sleeps, as [`Sleeper::sleep`](super::sleeper::Sleeper::sleep) says. Messages from shards and wake-ups end that; frames in a NIC's queue, if the
    /// device announces them.
    pub(super) fn park(&mut self, longest: Duration) -> Activity {
        let shared = self.shared().clone();
        shared.sleeper().sleep(self, longest)
    }

    /// Starts a task whose outcome is checked between polls.
    pub(super) fn start<F>(&mut self, future: F) -> Started<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        let outcome = Rc::new(Cell::new(None));
        let place = outcome.clone();
        let task =
            self.visit(|_| spawn_local(async move { place.set(Some(super::task::caught(future).await)) }));
        Started { outcome, _task: task }
    }

    /// Polls until `future`, run as a task, is done. Waits by the detected [`IdlePolicy`] for one rank.
    ///
    /// # Panics
    ///
    /// If the future does.
    pub fn block_on<F>(&mut self, future: F) -> F::Output
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        let started = self.start(future);
        let mut idle = Backoff::new(IdlePolicy::detect(1));
        let mut clock = PollClock::new(Clock);
        let outcome = loop {
            let activity = self.poll(clock.now());
            if let Some(outcome) = started.take() {
                break outcome;
            }
            self.wait(&mut idle, &mut clock, activity);
        };
        outcome.unwrap_or_else(|payload| std::panic::resume_unwind(payload))
    }

    /// After a poll with this activity: waits if there was nothing to do, and updates the clock.
    #[inline]
    pub(super) fn wait(&mut self, idle: &mut Backoff, clock: &mut PollClock, activity: Activity) {
        if idle.wait_with(activity, self, Self::next_deadline, Self::park) {
            clock.refresh();
        } else {
            clock.after(activity);
        }
    }

    /// The shard's number in its mesh.
    pub(super) fn id(&self) -> ShardId {
        self.shared().id
    }

    /// Whether the poller has something to send.
    pub(super) fn has_unsent(&self) -> bool {
        self.poller.has_unsent()
    }
}

impl<P: Poller> Sleeping for Reactor<P> {
    fn parker(&self) -> &Parker {
        &self.parker
    }

    fn arm(&mut self, announce: &mut Announce<'_>) -> Wakes {
        self.poller.arm(announce)
    }

    fn disarm(&mut self) {
        self.poller.disarm();
    }

    fn poll(&mut self) -> Activity {
        self.poll(Clock.now())
    }

    fn deadline(&self) -> Option<Instant> {
        self.next_deadline()
    }

    fn has_pending_work(&self) -> bool {
        self.shared().has_attention()
            || self.inbound.iter().any(|inbound| !inbound.ring.is_empty())
            || self.context.as_ref().is_some_and(|c| !c.ready.is_empty() || c.links.is_dirty())
    }
}

/// A task that the owner of a reactor has started. Dropping it cancels the task.
pub(super) struct Started<R> {
    outcome: Rc<Cell<Option<Result<R, PanicPayload>>>>,
    _task: Task<()>,
}

/// The payload of a panic.
pub(super) type PanicPayload = Box<dyn Any + Send>;

impl<R> Started<R> {
    /// The output, or the panic, once.
    #[inline]
    pub(super) fn take(&self) -> Option<Result<R, PanicPayload>> {
        self.outcome.take()
    }
}

/// Moves messages that waited for room, and wakes their receivers. Returns whether any moved.
#[inline]
fn flush_links() -> bool {
    let flushed = context::with(|context| context.links.flush()).unwrap_or_default();
    flushed.moved
}

/// Takes up to `budget` messages from a ring. Returns whether there were any.
#[inline]
fn drain(inbound: &mut Inbound, budget: usize) -> bool {
    let mut any = false;
    for _ in 0..budget {
        let Ok(message) = inbound.ring.pop() else { break };
        any = true;
        mesh::receive(inbound.from, message);
    }
    any
}

/// Handles the announcements of other threads.
#[cold]
fn attend(shared: &Shared, inbound: &mut [Inbound]) {
    let mut budget = OUTSIDE_BUDGET;
    while budget > 0
        && let Some(runnable) = shared.pop_woken()
    {
        budget -= 1;
        context::with(|context| context.ready.push_back(runnable));
    }
    if shared.is_stopping() {
        let wakers = context::with(|context| context.stop_waiters.take_wakers()).unwrap_or_default();
        wakers.into_iter().for_each(Waker::wake);
    }
    if budget == 0 {
        shared.raise();
    }
    // A peer that stopped has sent its last message before it said so.
    let mut ended = false;
    for inbound in inbound.iter_mut().filter(|inbound| inbound.ring.is_abandoned()) {
        ended = true;
        while drain(inbound, RING_BUDGET) {}
    }
    if ended {
        mesh::fail_calls_to_the_gone();
    }
}

impl<P> Reactor<P> {
    fn shared(&self) -> &Arc<Shared> {
        self.presence.shared()
    }

    /// Cancels all tasks: their futures are dropped here, on the shard's thread.
    pub(super) fn cancel_tasks(&mut self) {
        let Self { context, batch, presence, .. } = self;
        let shared = presence.shared().clone();
        let _entered = context::enter(context);
        let begin = Clock.now();
        loop {
            let wakers = context::with(|context| context.tasks.take_wakers()).unwrap_or_default();
            wakers.into_iter().for_each(Waker::wake);
            loop {
                context::with(|context| batch.append(&mut context.ready));
                batch.extend(std::iter::from_fn(|| shared.pop_woken()));
                if batch.is_empty() {
                    break;
                }
                // Dropping a runnable drops its future, which may wake others.
                batch.drain(..).for_each(drop);
            }
            let live = context::with(|context| context.tasks.taken()).unwrap_or(0);
            if live == 0 || Clock.now().saturating_since(begin) > STOP_PATIENCE {
                break;
            }
            std::thread::yield_now();
        }
    }
}

impl<P> Drop for Reactor<P> {
    fn drop(&mut self) {
        self.shared().mark_stopped();
        self.cancel_tasks();
        // Timers and calls hold wakers, too; they go outside of the context.
        let _entered = context::enter(&mut self.context);
        let leftovers = context::with(|context| {
            (std::mem::take(&mut context.timers), std::mem::take(&mut context.calls))
        });
        drop(leftovers);
    }
}
