//! Waiting for something that happens once, from any thread: [`Event`], and with a value [`completion`].

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::Thread;

use super::{Activity, Backoff, Clock, IdlePolicy, Instant, Step};

/// Who is to be told.
enum Waiter {
    Thread(Thread),
    Task(Waker),
}

/// A flag that is set once and can be waited for by spinning, then yielding, then parking, or from a task.
///
/// Setting it costs a store and a fence while nobody is parked. Unlike [`IdlePolicy`]'s bounded parks, a thread
/// parked here is woken, so it sleeps until then or until its deadline.
#[derive(Default)]
pub struct Event {
    set: AtomicBool,
    registered: AtomicUsize,
    waiters: Mutex<Vec<Waiter>>,
}

impl std::fmt::Debug for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Event").field("set", &self.is_set()).finish_non_exhaustive()
    }
}

impl Event {
    /// Not yet set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether it was set. What the setter did before is visible then.
    #[inline]
    pub fn is_set(&self) -> bool {
        self.set.load(Ordering::Acquire)
    }

    /// Sets it and wakes whoever waits. Setting it again does nothing.
    #[inline]
    pub fn set(&self) {
        self.set.store(true, Ordering::Release);
        // Orders the store before the load: either we see a waiter, or the waiter sees the flag after it registered.
        fence(Ordering::SeqCst);
        if self.registered.load(Ordering::Relaxed) != 0 {
            self.wake_all();
        }
    }

    #[cold]
    fn wake_all(&self) {
        let waiters = {
            let mut list = self.lock();
            self.registered.store(0, Ordering::Relaxed);
            std::mem::take(&mut *list)
        };
        for waiter in waiters {
            match waiter {
                Waiter::Thread(thread) => thread.unpark(),
                Waiter::Task(waker) => waker.wake(),
            }
        }
    }

    /// Waits until it is set, or until `deadline`. Returns whether it was set.
    pub fn wait(&self, policy: IdlePolicy, deadline: Option<Instant>) -> bool {
        let mut idle = Backoff::new(policy);
        let mut turns = 0_u32;
        loop {
            if self.is_set() {
                return true;
            }
            match idle.step(Activity::Idle) {
                Step::Go | Step::Spin => std::hint::spin_loop(),
                Step::Yield => std::thread::yield_now(),
                Step::Park(_) => return self.wait_parked(deadline),
            }
            turns = turns.wrapping_add(1);
            if turns.is_multiple_of(64) && deadline.is_some_and(|at| Clock.now() >= at) {
                return self.is_set();
            }
        }
    }

    #[cold]
    fn wait_parked(&self, deadline: Option<Instant>) -> bool {
        let me = std::thread::current();
        self.register(Waiter::Thread(me.clone()));
        let set = loop {
            if self.is_set() {
                break true;
            }
            match deadline.map(|at| at.saturating_since(Clock.now())) {
                None => std::thread::park(),
                Some(left) if left.is_zero() => break self.is_set(),
                Some(left) => std::thread::park_timeout(left),
            }
        };
        let mut list = self.lock();
        list.retain(|w| !matches!(w, Waiter::Thread(t) if t.id() == me.id()));
        self.registered.store(list.len(), Ordering::Relaxed);
        set
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.is_set() {
            self.register(Waiter::Task(cx.waker().clone()));
        }
        if self.is_set() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Adds a waiter; the caller must look at the flag once more afterwards.
    fn register(&self, waiter: Waiter) {
        let mut list = self.lock();
        if let Waiter::Task(waker) = &waiter
            && list.iter().any(|w| matches!(w, Waiter::Task(other) if other.will_wake(waker)))
        {
            return;
        }
        list.push(waiter);
        self.registered.store(list.len(), Ordering::Relaxed);
        drop(list);
        fence(Ordering::SeqCst);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Waiter>> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a [`Completion`] has no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompletionError {
    /// The deadline passed first; the operation may still complete, so wait again or give it up.
    #[error("not complete by the deadline; wait again with a later one, or drop it")]
    Timeout,
    /// The side that was to complete it went away (its shard stopped).
    #[error("the shard that was to complete this has stopped; look for its error")]
    Abandoned,
    /// The shard has no thread of its own, so it cannot hold a task that is not `Send`.
    #[error("a caller-driven shard takes no local tasks; submit a closure that calls `spawn` instead")]
    NotLocal,
    /// The work panicked.
    #[error("the work panicked: {0}; this is a bug in the closure that was submitted")]
    Panicked(String),
}

#[derive(Debug)]
struct Cell<T> {
    event: Event,
    value: Mutex<Option<Result<T, CompletionError>>>,
}

/// The side that waits for a value.
#[derive(Debug)]
pub struct Completion<T>(Arc<Cell<T>>);

/// The side that provides the value, once. Dropped without it, the waiter learns [`CompletionError::Abandoned`].
#[derive(Debug)]
pub struct Completer<T>(Option<Arc<Cell<T>>>);

/// A value that one side provides and the other waits for, across threads.
///
/// ```
/// use shouter::runtime::{IdlePolicy, completion};
/// let (give, take) = completion();
/// let worker = std::thread::spawn(move || give.complete(6 * 7));
/// assert_eq!(take.wait(IdlePolicy::SHARED, None), Ok(42));
/// worker.join().unwrap();
/// ```
pub fn completion<T>() -> (Completer<T>, Completion<T>) {
    let cell = Arc::new(Cell { event: Event::new(), value: Mutex::new(None) });
    (Completer(Some(cell.clone())), Completion(cell))
}

impl<T> Completer<T> {
    /// Provides the value and wakes the waiter.
    pub fn complete(mut self, value: T) {
        self.settle(Ok(value));
    }

    /// Provides a reason instead of the value.
    pub fn fail(mut self, why: CompletionError) {
        self.settle(Err(why));
    }

    fn settle(&mut self, result: Result<T, CompletionError>) {
        if let Some(cell) = self.0.take() {
            *cell.value.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
            cell.event.set();
        }
    }
}

impl<T> Drop for Completer<T> {
    fn drop(&mut self) {
        self.settle(Err(CompletionError::Abandoned));
    }
}

impl<T> Completion<T> {
    /// Whether waiting would return at once.
    pub fn is_complete(&self) -> bool {
        self.0.event.is_set()
    }

    /// Waits for the value, at most until `deadline`; after a timeout it may be waited for again.
    pub fn wait(&self, policy: IdlePolicy, deadline: Option<Instant>) -> Result<T, CompletionError> {
        if self.0.event.wait(policy, deadline) { self.take() } else { Err(CompletionError::Timeout) }
    }

    fn take(&self) -> Result<T, CompletionError> {
        let value = self.0.value.lock().unwrap_or_else(PoisonError::into_inner).take();
        value.unwrap_or(Err(CompletionError::Abandoned))
    }
}

impl<T> Future for Completion<T> {
    type Output = Result<T, CompletionError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.event.poll(cx).map(|()| self.take())
    }
}

#[cfg(test)]
mod tests;
