//! The parts of a shard that its tasks reach while they run: the queue, the timers, the links to other shards.
//!
//! A [`Context`] lives in its reactor and is moved into a thread-local for the length of a poll, so the free
//! functions (`spawn_local`, `sleep`, `submit_to`) find it. The move costs a pointer swap.
//!
//! A rule keeps the `RefCell` from a second borrow: inside [`with`] no foreign code runs. Wakers are cloned, woken and
//! dropped outside, for the last reference to a task's waker may schedule the task, which comes back here.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

use async_task::Runnable;

use super::Instant;
use super::mesh::{Calls, Links};
use super::shared::Shared;
use super::timer::Timers;

thread_local! {
    static CURRENT: RefCell<Option<Box<Context>>> = const { RefCell::new(None) };
}

/// One shard's state, as seen by its tasks.
pub(super) struct Context {
    /// [`Shared::uid`], at hand.
    pub(super) uid: u64,
    /// Identity, and the part that other threads may touch.
    pub(super) shared: Arc<Shared>,
    /// Time of this poll.
    pub(super) now: Instant,
    /// Tasks to run, first in first out.
    pub(super) ready: VecDeque<Runnable>,
    pub(super) timers: Timers,
    pub(super) calls: Calls,
    pub(super) links: Links,
    /// A waker for every task that has not finished, so that a shard that ends can drop all its futures.
    pub(super) tasks: Wakers,
    /// Tasks that wait for the request to end the shard.
    pub(super) stop_waiters: Wakers,
}

impl Context {
    pub(super) fn new(shared: Arc<Shared>, links: Links) -> Self {
        Self {
            uid: shared.uid,
            shared,
            now: Instant::ZERO,
            ready: VecDeque::with_capacity(64),
            timers: Timers::default(),
            calls: Calls::default(),
            links,
            tasks: Wakers::default(),
            stop_waiters: Wakers::default(),
        }
    }
}

/// Runs `f` on the shard that this thread is polling; `None` if it is polling none.
#[inline]
pub(super) fn with<R>(f: impl FnOnce(&mut Context) -> R) -> Option<R> {
    CURRENT.try_with(|current| current.borrow_mut().as_deref_mut().map(f)).ok().flatten()
}

/// As [`with`], but only if the shard is the one with this `uid`.
#[inline]
pub(super) fn with_uid<R>(uid: u64, f: impl FnOnce(&mut Context) -> R) -> Option<R> {
    with(|context| (context.uid == uid).then(|| f(context))).flatten()
}

/// A visit: `home`'s context is the thread's current one until this is dropped, also by a panic.
pub(super) struct Entered<'a> {
    home: &'a mut Option<Box<Context>>,
    previous: Option<Box<Context>>,
    installed: bool,
}

/// Makes the context in `home` the current one. Visits nest: a task of one shard may drive another.
#[inline]
pub(super) fn enter(home: &mut Option<Box<Context>>) -> Entered<'_> {
    let mut slot = home.take();
    let installed = CURRENT.try_with(|current| std::mem::swap(&mut *current.borrow_mut(), &mut slot)).is_ok();
    if installed {
        Entered { home, previous: slot, installed }
    } else {
        // This thread is being torn down: run without the free functions.
        *home = slot;
        Entered { home, previous: None, installed }
    }
}

impl Drop for Entered<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.installed {
            let previous = self.previous.take();
            *self.home = CURRENT.try_with(|current| current.replace(previous)).ok().flatten();
        }
    }
}

/// Wakers, each in a place of its own.
#[derive(Default)]
pub(super) struct Wakers {
    wakers: Vec<Option<Waker>>,
    free: Vec<usize>,
    taken: usize,
}

impl Wakers {
    /// Takes a place.
    pub(super) fn reserve(&mut self) -> usize {
        self.taken += 1;
        self.free.pop().unwrap_or_else(|| {
            self.wakers.push(None);
            self.wakers.len() - 1
        })
    }

    /// Fills the place, and returns its former waker to be dropped outside of [`with`].
    pub(super) fn fill(&mut self, key: usize, waker: Waker) -> Option<Waker> {
        self.wakers[key].replace(waker)
    }

    /// Frees the place; the waker is returned to be dropped outside of [`with`].
    pub(super) fn release(&mut self, key: usize) -> Option<Waker> {
        self.taken -= 1;
        self.free.push(key);
        self.wakers[key].take()
    }

    /// Places that are taken.
    pub(super) fn taken(&self) -> usize {
        self.taken
    }

    /// All wakers; the places stay taken until they are released.
    pub(super) fn take_wakers(&mut self) -> Vec<Waker> {
        self.wakers.iter_mut().filter_map(Option::take).collect()
    }
}
