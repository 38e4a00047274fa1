//! Tasks of a group's operations: copies between GPUs and staging areas, which are begun and asked about a step at a time, at each poll.
#![cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "a build without CUDA has no tasks"))]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use shouter_netstack::time::Instant;

use super::Engine;
use super::groups::GroupId;

/// How far a task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// It is over.
    Over,
    /// It asks again soon, although no event comes.
    Asks,
    /// An event of the engine lets it go on.
    Waits,
}

/// Something to be done, which its engine polls. One that is dropped before it is over ends what it has begun.
pub(crate) trait Task: Send {
    /// Goes as far as it can without waiting.
    fn poll(&mut self, engine: &mut Engine, now: Instant) -> Step;
}

/// A task, and the group that it is of; `None` for the group of all.
type Owned = (Option<GroupId>, Box<dyn Task>);

/// Where tasks are handed over, by any thread.
#[derive(Default)]
pub(crate) struct Handed {
    tasks: Mutex<Vec<Owned>>,
    waiting: AtomicUsize,
}

impl Handed {
    /// The next poll takes it.
    pub(crate) fn push(&self, group: Option<GroupId>, task: Box<dyn Task>) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.push((group, task));
        self.waiting.store(tasks.len(), Ordering::Release);
    }

    fn take(&self) -> Vec<Owned> {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.store(0, Ordering::Release);
        std::mem::take(&mut tasks)
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.waiting.load(Ordering::Acquire) == 0
    }
}

/// The tasks of an engine.
#[derive(Default)]
pub(super) struct Tasks {
    handed: Arc<Handed>,
    running: Vec<Owned>,
    /// One of them asks again.
    ask: bool,
}

impl Tasks {
    /// Whether one of them asks again soon, although no event comes.
    #[inline]
    pub(super) fn ask(&self) -> bool {
        self.ask
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        // Handles that are left keep the list, so these would never go by themselves.
        drop(self.handed.take());
    }
}

impl Engine {
    /// Where tasks are handed over.
    pub(crate) fn tasks(&self) -> Arc<Handed> {
        self.tasks.handed.clone()
    }

    /// Polls all tasks; whether one has ended.
    #[inline]
    pub(super) fn run_tasks(&mut self, now: Instant) -> bool {
        if self.tasks.handed.is_empty() && self.tasks.running.is_empty() {
            self.tasks.ask = false;
            return false;
        }
        self.run_some_tasks(now)
    }

    #[cold]
    fn run_some_tasks(&mut self, now: Instant) -> bool {
        let mut running = std::mem::take(&mut self.tasks.running);
        running.append(&mut self.tasks.handed.take());
        let (before, mut ask) = (running.len(), false);
        running.retain_mut(|(_, task)| {
            let step = task.poll(self, now);
            ask |= step == Step::Asks;
            step != Step::Over
        });
        let ended = running.len() < before;
        self.tasks.running = running;
        self.tasks.ask = ask;
        ended
    }

    /// Whether a group has tasks that are not over.
    pub(super) fn has_tasks(&self, group: Option<GroupId>) -> bool {
        let is_of = |task: &Owned| task.0 == group;
        self.tasks.running.iter().any(is_of)
            || !self.tasks.handed.is_empty()
                && self.tasks.handed.tasks.lock().unwrap_or_else(PoisonError::into_inner).iter().any(is_of)
    }

    /// A group ends because of this rank.
    #[cfg(feature = "cuda")]
    #[cold]
    pub(crate) fn fail_in(&mut self, group: Option<GroupId>, why: shouter_reducer::executor::AbortReason) {
        match group {
            None => self.end(self.rank, why),
            Some(id) => self.groups.fail(id, why),
        }
    }

    /// Whether a group has ended in error, and its outcomes are not held back any more.
    #[cfg(feature = "cuda")]
    pub(crate) fn is_settled_in(&self, group: Option<GroupId>) -> bool {
        let is_flooded = match group {
            None => self.ending.is_flooded(),
            Some(id) => self.groups.is_flooded(id),
        };
        is_flooded && !self.is_settling_in(group)
    }
}
