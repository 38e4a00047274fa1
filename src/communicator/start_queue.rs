//! The queue of a group's started operations, and the handles that are kept for the next ones.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crossbeam::queue::ArrayQueue;

use super::work::StartedOperation;
use crate::engine::submitted::Submissions;

/// How long a start waits for a slot, where as many operations are under way and queued as can be.
pub(super) const SLOT: Duration = Duration::from_secs(1);

/// Where a group starts operations: the queue to the engine, and room for their ends.
pub(super) struct StartQueue {
    /// The queue of started operations; a group of some ranks gets one with the first start.
    submissions: OnceLock<Arc<Submissions>>,
    /// For the ends of started operations: those that only this list refers to are free.
    spare: ArrayQueue<Arc<StartedOperation>>,
}

impl StartQueue {
    /// With the queue, where the engine has made it, and so many operations that are kept.
    pub(super) fn new(submissions: Option<Arc<Submissions>>, spare: usize) -> Self {
        let submissions = submissions.map_or_else(OnceLock::new, OnceLock::from);
        Self { submissions, spare: ArrayQueue::new(spare) }
    }

    /// The queue, if there has been a start.
    #[inline]
    pub(super) fn submissions(&self) -> Option<&Arc<Submissions>> {
        self.submissions.get()
    }

    /// The queue that the engine has made; the first one counts.
    pub(super) fn set(&self, made: Arc<Submissions>) -> &Arc<Submissions> {
        self.submissions.get_or_init(|| made)
    }

    /// Room for an operation's end: that of an earlier one to which nothing else refers any more, if there is one.
    pub(super) fn operation(&self, new: impl FnOnce() -> StartedOperation) -> Arc<StartedOperation> {
        // The oldest is the first that is free again.
        let operation = match self.spare.pop() {
            Some(mut spare) => match Arc::get_mut(&mut spare) {
                Some(free) => {
                    *free = new();
                    spare
                }
                None => {
                    drop(self.spare.push(spare));
                    Arc::new(new())
                }
            },
            None => Arc::new(new()),
        };
        // Where as many are kept already it is freed at its end.
        drop(self.spare.push(operation.clone()));
        operation
    }
}
