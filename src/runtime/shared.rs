//! The part of a shard that other threads may touch: queues for what comes from outside, and the means to wake it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};

use async_task::Runnable;
use crossbeam::queue::SegQueue;
use crossbeam::sync::{Parker, Unparker};
use crossbeam::utils::CachePadded;

use super::event::{Completer, Completion, CompletionError, completion};
use super::{ShardId, context, panic_message};

/// Work from a thread that is no shard.
pub(super) type Job = Box<dyn FnOnce() + Send>;

/// Bits of [`Shared::sleepers`].
const REACTOR: u8 = 1;
const HELPER: u8 = 2;

pub(super) struct Shared {
    /// Unique in the process.
    pub(super) uid: u64,
    /// The shard's place in its mesh.
    pub(super) id: ShardId,
    /// Something is in one of the queues below, or a peer stopped. One word, so an idle turn looks at one line.
    attention: CachePadded<AtomicBool>,
    /// Who must be woken for news.
    sleepers: CachePadded<AtomicU8>,
    /// The thread is asked to end.
    stopping: AtomicBool,
    /// The reactor is gone: nothing will be processed any more.
    stopped: AtomicBool,
    woken: SegQueue<Runnable>,
    jobs: SegQueue<Job>,
    reactor: Unparker,
    helper: OnceLock<Unparker>,
}

impl Shared {
    /// For shard `id`, which will park on `parker`.
    pub(super) fn new(id: ShardId, parker: &Parker) -> Arc<Self> {
        static UIDS: AtomicU64 = AtomicU64::new(1);
        Arc::new(Self {
            uid: UIDS.fetch_add(1, Ordering::Relaxed),
            id,
            attention: CachePadded::new(AtomicBool::new(false)),
            sleepers: CachePadded::new(AtomicU8::new(0)),
            stopping: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            woken: SegQueue::new(),
            jobs: SegQueue::new(),
            reactor: parker.unparker().clone(),
            helper: OnceLock::new(),
        })
    }

    /// A second thread that is woken for news while it [sleeps](Self::helper_sleeps).
    pub(super) fn set_helper(&self, unparker: Unparker) {
        // Set once by the driver that owns the shard; a second call cannot happen.
        let _ = self.helper.set(unparker);
    }

    /// Puts a woken task in the queue: the shard's own if this thread is turning it, else the one for outsiders.
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

    /// Hands over a job from outside. After the shard stopped it is dropped at once.
    pub(super) fn push_job(&self, job: Job) {
        self.jobs.push(job);
        self.raise();
        // `raise` has a fence: either the stopping shard sees the job, or we see that it stopped.
        if self.is_stopped() {
            self.drop_jobs();
        }
    }

    /// Announces news, and wakes whoever sleeps.
    #[inline]
    pub(super) fn raise(&self) {
        self.attention.store(true, Ordering::Release);
        self.wake();
    }

    /// Wakes whoever sleeps, for news that is already visible elsewhere (in a ring).
    #[inline]
    pub(super) fn wake(&self) {
        // Orders the news before the look at the sleepers; pairs with the fence in `falls_asleep`.
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::Relaxed) != 0 {
            self.wake_sleepers();
        }
    }

    #[cold]
    fn wake_sleepers(&self) {
        let sleepers = self.sleepers.swap(0, Ordering::Relaxed);
        if sleepers & REACTOR != 0 {
            self.reactor.unpark();
        }
        if sleepers & HELPER != 0
            && let Some(helper) = self.helper.get()
        {
            helper.unpark();
        }
    }

    /// Says that the reactor's thread is about to park; it must look for news once more afterwards.
    pub(super) fn reactor_sleeps(&self) {
        self.falls_asleep(REACTOR);
    }

    /// The reactor's thread is up again.
    pub(super) fn reactor_woke(&self) {
        self.sleepers.fetch_and(!REACTOR, Ordering::Relaxed);
    }

    /// Says that the helper is about to park; it must look for news once more afterwards.
    pub(super) fn helper_sleeps(&self) {
        self.falls_asleep(HELPER);
    }

    /// The helper is up again.
    pub(super) fn helper_woke(&self) {
        self.sleepers.fetch_and(!HELPER, Ordering::Relaxed);
    }

    fn falls_asleep(&self, who: u8) {
        self.sleepers.fetch_or(who, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Whether news was announced and not yet attended to.
    #[inline]
    pub(super) fn has_attention(&self) -> bool {
        self.attention.load(Ordering::Acquire)
    }

    /// As [`Self::has_attention`], and takes the announcement; call before looking into the queues.
    #[inline]
    pub(super) fn take_attention(&self) -> bool {
        self.has_attention() && self.attention.swap(false, Ordering::AcqRel)
    }

    pub(super) fn pop_woken(&self) -> Option<Runnable> {
        self.woken.pop()
    }

    pub(super) fn pop_job(&self) -> Option<Job> {
        self.jobs.pop()
    }

    fn drop_jobs(&self) {
        while let Some(job) = self.jobs.pop() {
            drop(job);
        }
    }

    /// Asks the shard's thread to end.
    pub(super) fn ask_to_stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.raise();
    }

    #[inline]
    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// The reactor is gone. Jobs left behind are dropped, which tells their submitters.
    pub(super) fn mark_stopped(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.drop_jobs();
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

/// A way into a shard from any thread.
#[derive(Clone)]
pub struct Remote(pub(super) Arc<Shared>);

impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Remote").field("shard", &self.0.id).field("stopped", &self.0.is_stopped()).finish()
    }
}

impl Remote {
    /// Which shard this leads to.
    pub fn id(&self) -> ShardId {
        self.0.id
    }

    /// Whether the shard is gone.
    pub fn is_stopped(&self) -> bool {
        self.0.is_stopped()
    }

    /// Runs `f` on the shard in one of its next turns; a parked shard is woken.
    ///
    /// The completion fails with [`CompletionError::Panicked`] if `f` panics and with
    /// [`CompletionError::Abandoned`] if the shard stops first. Dropping the completion does not recall `f`.
    pub fn submit<R: Send + 'static>(&self, f: impl FnOnce() -> R + Send + 'static) -> Completion<R> {
        let (completer, completion) = completion();
        self.0.push_job(Box::new(move || settle(completer, f)));
        completion
    }

    /// Runs `make` on the shard and there the future that it returns, as a local task: the future may hold `Rc`s. A
    /// caller-driven shard, which has no thread of its own, answers [`CompletionError::NotLocal`].
    ///
    /// ```
    /// use shouter::runtime::{IdlePolicy, Shard, ShardOptions, sleep};
    /// use std::{rc::Rc, time::Duration};
    ///
    /// let shard = Shard::spawn(ShardOptions::default(), || Ok::<_, String>(())).unwrap();
    /// let answer = shard.remote().run(|| async {
    ///     let six = Rc::new(6);
    ///     sleep(Duration::from_micros(50)).await;
    ///     *six * 7
    /// });
    /// assert_eq!(answer.wait(IdlePolicy::SHARED, None), Ok(42));
    /// shard.join().unwrap();
    /// ```
    pub fn run<F, R>(&self, make: impl FnOnce() -> F + Send + 'static) -> Completion<R>
    where
        F: Future<Output = R> + 'static,
        R: Send + 'static,
    {
        let (completer, completion) = completion();
        self.0.push_job(Box::new(move || {
            if !context::with(|context| context.local).unwrap_or(false) {
                return completer.fail(CompletionError::NotLocal);
            }
            super::spawn_local(async move {
                match super::task::caught(async move { make().await }).await {
                    Ok(value) => completer.complete(value),
                    Err(payload) => completer.fail(CompletionError::Panicked(panic_message(&*payload))),
                }
            })
            .detach();
        }));
        completion
    }
}

/// Runs `f` and settles the completion with what comes of it.
fn settle<R>(completer: Completer<R>, f: impl FnOnce() -> R) {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(value) => completer.complete(value),
        Err(payload) => completer.fail(CompletionError::Panicked(panic_message(&*payload))),
    }
}
