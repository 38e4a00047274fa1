//! The loop body of a shard.

use std::collections::VecDeque;
use std::future::Future;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;
use std::time::Duration;

use async_task::Runnable;
use crossbeam::sync::Parker;

use super::context::{self, Context};
use super::mesh::{self, Endpoint, Inbound, Presence};
use super::shared::{Remote, Shared};
use super::{Activity, Backoff, Clock, IdlePolicy, Instant, Poller, TurnClock, spawn_local};

/// Messages taken from one ring in one turn.
const RING_BUDGET: usize = 64;
/// Jobs and wake-ups from other threads taken in one turn.
const OUTSIDE_BUDGET: usize = 256;
/// How long a stopping shard waits for a task that another thread is just waking.
const STOP_PATIENCE: Duration = Duration::from_millis(500);

/// One shard's state: its poller, ready tasks, timers, and rings. Whoever owns it turns it.
///
/// It is `Send` if the poller is, hence its tasks are, too ([`spawn`](super::spawn)); see [`LocalReactor`] for the
/// other kind.
pub struct Reactor<P> {
    poller: P,
    /// At home between turns; in the thread-local during one.
    context: Option<Box<Context>>,
    /// Tasks of the current turn, swapped with the context's queue.
    batch: VecDeque<Runnable>,
    inbound: Vec<Inbound>,
    parker: Parker,
    /// Last, so that peers are told after everything else is gone.
    presence: Presence,
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

    /// A shard of a [`mesh`](super::mesh()).
    pub fn on(endpoint: Endpoint, poller: P) -> Self {
        Self::build(endpoint, poller, false)
    }

    fn build(endpoint: Endpoint, poller: P, local: bool) -> Self {
        let Endpoint { presence, parker, links, inbound } = endpoint;
        let context = Context::new(presence.shared().clone(), links, local);
        Self {
            poller,
            context: Some(Box::new(context)),
            batch: VecDeque::with_capacity(64),
            inbound,
            parker,
            presence,
        }
    }

    /// One turn: the poller, news from other threads and shards, due timers, and every task that was ready at the
    /// start of that last part. Bounded and non-blocking.
    ///
    /// # Panics
    ///
    /// If the poller does. Panics of tasks and of submitted closures go to whoever awaits them.
    #[inline]
    pub fn turn(&mut self, now: Instant) -> Activity {
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

    /// When the next turn must be although nothing may arrive.
    pub fn next_deadline(&self) -> Option<Instant> {
        let timer = self.context.as_ref().and_then(|context| context.timers.next_deadline());
        match (timer, self.poller.next_deadline()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Parks the calling thread for at most `longest`, unless there is something to do. Messages from shards,
    /// submissions and wake-ups end the park; frames in a NIC queue do not.
    pub fn park(&self, longest: Duration) {
        let shared = self.shared();
        shared.reactor_sleeps();
        if self.has_input() {
            // Perhaps a ring is full: let its reader run.
            std::thread::yield_now();
        } else {
            self.parker.park_timeout(longest);
        }
        shared.reactor_woke();
    }

    fn has_input(&self) -> bool {
        self.shared().has_attention()
            || self.inbound.iter().any(|inbound| !inbound.ring.is_empty())
            || self.context.as_ref().is_some_and(|c| !c.ready.is_empty() || c.links.is_dirty())
    }
}

impl<P> Reactor<P> {
    /// The poller.
    pub fn poller(&mut self) -> &mut P {
        &mut self.poller
    }

    /// The way into this shard from any thread.
    pub fn remote(&self) -> Remote {
        Remote(self.shared().clone())
    }

    pub(super) fn shared(&self) -> &std::sync::Arc<Shared> {
        self.presence.shared()
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

/// Looks after what other threads announced.
#[cold]
fn attend(shared: &Shared, inbound: &mut [Inbound]) {
    let mut budget = OUTSIDE_BUDGET;
    while budget > 0
        && let Some(runnable) = shared.pop_woken()
    {
        budget -= 1;
        context::with(|context| context.ready.push_back(runnable));
    }
    while budget > 0
        && let Some(job) = shared.pop_job()
    {
        budget -= 1;
        job();
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

impl<P> Drop for Reactor<P> {
    /// Cancels all tasks: their futures are dropped here, on the shard's thread.
    fn drop(&mut self) {
        let Self { context, batch, presence, .. } = self;
        let shared = presence.shared().clone();
        shared.mark_stopped();
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
            let live = context::with(|context| context.tasks.live()).unwrap_or(0);
            if live == 0 || Clock.now().saturating_since(begin) > STOP_PATIENCE {
                break;
            }
            std::thread::yield_now();
        }
        // Timers and calls hold wakers, too; they go outside of the context.
        let leftovers = context::with(|context| {
            (std::mem::take(&mut context.timers), std::mem::take(&mut context.calls))
        });
        drop(leftovers);
    }
}

/// A [`Reactor`] that stays on one thread, so its tasks may hold `Rc` and `RefCell`
/// ([`spawn_local`](super::spawn_local)).
#[derive(Debug)]
pub struct LocalReactor<P> {
    reactor: Reactor<P>,
    _local: PhantomData<*const ()>,
}

impl<P: Poller> LocalReactor<P> {
    /// A shard without peers.
    pub fn new(poller: P) -> Self {
        Self::on(Endpoint::alone(), poller)
    }

    /// A shard of a [`mesh`](super::mesh()).
    pub fn on(endpoint: Endpoint, poller: P) -> Self {
        Self { reactor: Reactor::build(endpoint, poller, true), _local: PhantomData }
    }

    /// Turns until `future`, run as a task, is done. Waits by the detected [`IdlePolicy`] for one rank.
    ///
    /// # Panics
    ///
    /// If the future does.
    pub fn block_on<F>(&mut self, future: F) -> F::Output
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        let slot = std::rc::Rc::new(std::cell::RefCell::new(None));
        let filled = slot.clone();
        let task = self.visit(|_| {
            spawn_local(async move {
                let result = super::task::caught(future).await;
                *filled.borrow_mut() = Some(result);
            })
        });
        let mut idle = Backoff::new(IdlePolicy::detect(1));
        let mut clock = TurnClock::new(Clock);
        let result = loop {
            let activity = self.turn(clock.now());
            if let Some(result) = slot.borrow_mut().take() {
                break result;
            }
            if idle.wait_with(activity, || self.next_deadline(), |longest| self.park(longest)) {
                clock.refresh();
            } else {
                clock.after(activity);
            }
        };
        drop(task);
        result.unwrap_or_else(|payload| std::panic::resume_unwind(payload))
    }

    /// Turns until the shard is [asked to stop](super::Shard::stop), waiting by `policy` when idle. An error is what
    /// the poller's panic said.
    pub(super) fn run(&mut self, policy: IdlePolicy) -> Result<(), String> {
        catch_unwind(AssertUnwindSafe(|| {
            let mut idle = Backoff::new(policy);
            let mut clock = TurnClock::new(Clock);
            while !self.shared().is_stopping() {
                let activity = self.turn(clock.now());
                if idle.wait_with(activity, || self.next_deadline(), |longest| self.park(longest)) {
                    clock.refresh();
                } else {
                    clock.after(activity);
                }
            }
        }))
        .map_err(|payload| super::panic_message(&*payload))
    }
}

impl<P> Deref for LocalReactor<P> {
    type Target = Reactor<P>;
    fn deref(&self) -> &Reactor<P> {
        &self.reactor
    }
}

impl<P> DerefMut for LocalReactor<P> {
    fn deref_mut(&mut self) -> &mut Reactor<P> {
        &mut self.reactor
    }
}
