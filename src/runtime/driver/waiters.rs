//! The threads that found the seat taken, and what they wait for.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::Thread;
use std::time::Duration;

use super::lock;
use crate::runtime::{Activity, Backoff, Instant, Step};

/// The goal of a waiting thread; true when reached, with the result put where the thread looks for it.
type Goal<P> = Box<dyn FnMut(&mut P) -> bool + Send>;

struct Entry<P> {
    bell: Arc<Bell>,
    goal: Goal<P>,
}

const WAITING: u8 = 0;
/// The seat may be free.
const NUDGED: u8 = 1;
/// The goal was reached.
const REACHED: u8 = 2;

/// How to tell a thread something.
struct Bell {
    state: AtomicU8,
    thread: Thread,
}

impl Bell {
    fn ring(&self, state: u8) {
        // A nudge must not hide that the goal was reached.
        self.state.fetch_max(state, Ordering::AcqRel);
        self.thread.unpark();
    }
}

/// A waiting thread's side of its entry.
pub(super) struct Ticket<R> {
    bell: Arc<Bell>,
    result: Arc<Mutex<Option<R>>>,
}

impl<R> Ticket<R> {
    /// The result, if the goal was reached.
    pub(super) fn take(&self) -> Option<R> {
        if self.bell.state.load(Ordering::Acquire) == REACHED { lock(&self.result).take() } else { None }
    }

    /// Waits for the bell, or for `deadline`.
    pub(super) fn wait(&self, idle: &mut Backoff, deadline: Option<Instant>) {
        loop {
            if self.bell.state.compare_exchange(NUDGED, WAITING, Ordering::AcqRel, Ordering::Acquire)
                != Err(WAITING)
            {
                return;
            }
            match idle.step(Activity::Idle) {
                Step::Go | Step::Spin => std::hint::spin_loop(),
                Step::Yield => {
                    std::thread::yield_now();
                    if deadline.is_some() {
                        return; // The caller reads the clock.
                    }
                }
                Step::Park(_) => {
                    let left = deadline.map(|at| at.saturating_since(crate::runtime::Clock.now()));
                    match left {
                        None => std::thread::park(),
                        Some(Duration::ZERO) => {}
                        Some(left) => std::thread::park_timeout(left),
                    }
                    return;
                }
            }
        }
    }
}

/// All waiting threads, the longest waiting first.
pub(super) struct Waiters<P> {
    /// Length of the list, readable without its lock.
    count: AtomicUsize,
    /// A goal was added since the last look at all.
    fresh: AtomicBool,
    entries: Mutex<Vec<Entry<P>>>,
}

impl<P> Default for Waiters<P> {
    fn default() -> Self {
        Self { count: AtomicUsize::new(0), fresh: AtomicBool::new(false), entries: Mutex::new(Vec::new()) }
    }
}

impl<P> Waiters<P> {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Whether there is a goal that nobody has looked at.
    #[inline]
    pub(super) fn have_fresh(&self) -> bool {
        !self.is_empty() && self.fresh.load(Ordering::Relaxed)
    }

    /// Makes the next turn look at all goals.
    pub(super) fn refresh(&self) {
        self.fresh.store(true, Ordering::Relaxed);
    }

    /// Adds the calling thread with its goal.
    pub(super) fn add<R, F>(&self, mut goal: F) -> Ticket<R>
    where
        F: FnMut(&mut P) -> Option<R> + Send + 'static,
        R: Send + 'static,
    {
        let bell = Arc::new(Bell { state: AtomicU8::new(WAITING), thread: std::thread::current() });
        let result = Arc::new(Mutex::new(None));
        let place = result.clone();
        let goal = Box::new(move |poller: &mut P| {
            let reached = goal(poller);
            let done = reached.is_some();
            if done {
                *lock(&place) = reached;
            }
            done
        });
        let mut entries = lock(&self.entries);
        entries.push(Entry { bell: bell.clone(), goal });
        self.count.store(entries.len(), Ordering::Relaxed);
        self.fresh.store(true, Ordering::Relaxed);
        drop(entries);
        Ticket { bell, result }
    }

    /// Takes a thread off the list, if it is still on it.
    pub(super) fn remove<R>(&self, ticket: &Ticket<R>) {
        let removed = {
            let mut entries = lock(&self.entries);
            let at = entries.iter().position(|entry| Arc::ptr_eq(&entry.bell, &ticket.bell));
            let removed = at.map(|at| entries.remove(at));
            self.count.store(entries.len(), Ordering::Relaxed);
            removed
        };
        drop(removed);
    }

    /// Looks at every goal; those reached leave the list and their threads are told. Returns whether any was: then the
    /// others are looked at again after the next turn.
    #[cold]
    pub(super) fn serve(&self, poller: &mut P) -> bool {
        self.fresh.store(false, Ordering::Relaxed);
        let mut entries = lock(&self.entries);
        let before = entries.len();
        entries.retain_mut(|entry| {
            let reached = (entry.goal)(poller);
            if reached {
                entry.bell.ring(REACHED);
            }
            !reached
        });
        self.count.store(entries.len(), Ordering::Relaxed);
        let any = entries.len() != before;
        if any {
            self.refresh();
        }
        any
    }

    /// Tells the longest waiting thread that the seat may be free.
    pub(super) fn nudge_first(&self) {
        if let Some(entry) = lock(&self.entries).first() {
            entry.bell.ring(NUDGED);
        }
    }

    /// Tells everybody, because there is nothing left to wait for.
    pub(super) fn nudge_all(&self) {
        for entry in lock(&self.entries).iter() {
            entry.bell.ring(NUDGED);
        }
    }
}
