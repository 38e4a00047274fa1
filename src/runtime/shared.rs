//! The part of a shard that other threads may touch: its flags, the queue of tasks woken from outside, and the means to wake it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use async_task::Runnable;
use crossbeam::queue::SegQueue;
use crossbeam::sync::Parker;
use crossbeam::utils::CachePadded;

use super::sleeper::Sleeper;
use super::{ShardId, context};

pub(super) struct Shared {
    /// Unique in the process.
    pub(super) uid: u64,
    /// The shard's place in its mesh.
    pub(super) id: ShardId,
    /// A task was woken from outside, a peer stopped, or the shard is to end. One word, so an idle poll looks at one line.
    attention: CachePadded<AtomicBool>,
    sleeper: CachePadded<Sleeper>,
    /// The shard is asked to end.
    stopping: AtomicBool,
    /// The reactor is gone: nothing will be processed any more.
    stopped: AtomicBool,
    woken: SegQueue<Runnable>,
}

impl Shared {
    /// For shard `id`, which will park on `parker`.
    pub(super) fn new(id: ShardId, parker: &Parker) -> Arc<Self> {
        static UIDS: AtomicU64 = AtomicU64::new(1);
        Arc::new(Self {
            uid: UIDS.fetch_add(1, Ordering::Relaxed),
            id,
            attention: CachePadded::new(AtomicBool::new(false)),
            sleeper: CachePadded::new(Sleeper::new(parker)),
            stopping: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            woken: SegQueue::new(),
        })
    }

    /// Puts a woken task in the queue: the shard's own if this thread is polling it, else the one for outsiders.
    #[inline]
    pub(super) fn schedule(&self, runnable: Runnable) {
        let mut slot = Some(runnable);
        context::with_uid(self.uid, |context| {
            if let Some(runnable) = slot.take() {
                context.ready.push_back(runnable);
            }
        });
        if let Some(runnable) = slot {
            self.woken.push(runnable);
            self.raise();
        }
    }

    /// Announces news, and wakes the shard if it sleeps.
    #[inline]
    pub(super) fn raise(&self) {
        self.attention.store(true, Ordering::Release);
        self.wake();
    }

    /// Wakes the shard for news that is already visible elsewhere (in a ring).
    #[inline]
    pub(super) fn wake(&self) {
        self.sleeper.wake();
    }

    /// The sleep of the shard's thread.
    pub(super) fn sleeper(&self) -> &Sleeper {
        &self.sleeper
    }

    /// Whether news was announced and not yet attended to.
    #[inline]
    pub(super) fn has_attention(&self) -> bool {
        self.attention.load(Ordering::Acquire)
    }

    /// As [`Self::has_attention`], and takes the announcement; call before looking into the queue.
    #[inline]
    pub(super) fn take_attention(&self) -> bool {
        self.has_attention() && self.attention.swap(false, Ordering::AcqRel)
    }

    pub(super) fn pop_woken(&self) -> Option<Runnable> {
        self.woken.pop()
    }

    /// Asks the shard to end.
    pub(super) fn ask_to_stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.raise();
    }

    #[inline]
    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// The reactor is gone.
    pub(super) fn mark_stopped(&self) {
        self.stopped.store(true, Ordering::SeqCst);
    }

    #[inline]
    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // A stopped reactor has dropped every future it could reach. A task still here was woken by another thread
        // while that went on; its future may belong to the shard's thread, so it is leaked rather than dropped.
        while let Some(runnable) = self.woken.pop() {
            std::mem::forget(runnable);
        }
    }
}
