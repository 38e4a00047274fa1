//! Announces ends without waiting for them: one helper thread of the group runs callbacks, wakes futures and signals
//! the group's eventfd. The thread that drives the engine only puts ended operations into a queue.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{self, JoinHandle, Thread};

use crossbeam::queue::SegQueue;
use rustix::event::{EventfdFlags, eventfd};

use super::work::StartedOperation;
use crate::error::Error;
use crate::runtime::lock;
use crate::{log, runtime::panic_message};

/// The helper thread, started when it is first needed.
pub(super) struct Notifier {
    ended: SegQueue<Arc<StartedOperation>>,
    stopping: AtomicBool,
    /// The thread has ended, or never starts: the calling thread does its work then.
    over: AtomicBool,
    thread: OnceLock<Thread>,
    handle: Mutex<Option<JoinHandle<()>>>,
    eventfd: OnceLock<OwnedFd>,
}

impl Notifier {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            ended: SegQueue::new(),
            stopping: AtomicBool::new(false),
            over: AtomicBool::new(false),
            thread: OnceLock::new(),
            handle: Mutex::default(),
            eventfd: OnceLock::new(),
        })
    }

    /// Starts the thread, unless it runs.
    pub(super) fn start(self: &Arc<Self>) -> Result<(), Error> {
        if self.thread.get().is_some() {
            return Ok(());
        }
        let mut handle = lock(&self.handle);
        if handle.is_none() && !self.stopping.load(Ordering::Acquire) {
            let (this, rank) = (self.clone(), log::spoken_for());
            let body = move || {
                log::take_over(rank);
                this.run();
            };
            let started = thread::Builder::new().name("shouter-notify".to_owned()).spawn(body);
            let started = started.map_err(|why| {
                Error::Device(format!("no thread for completions: {why}; look at the pids limit"))
            })?;
            self.thread.get_or_init(|| started.thread().clone());
            *handle = Some(started);
        }
        Ok(())
    }

    /// A descriptor that is readable once an operation has ended since it was last read.
    pub(super) fn eventfd(self: &Arc<Self>) -> Result<BorrowedFd<'_>, Error> {
        self.start()?;
        if let Some(fd) = self.eventfd.get() {
            return Ok(fd.as_fd());
        }
        let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let made = made.map_err(|why| Error::Device(format!("no eventfd for completions: {why}")))?;
        Ok(self.eventfd.get_or_init(|| made).as_fd())
    }

    /// Whether every end is to be announced.
    #[inline]
    pub(super) fn wants_all(&self) -> bool {
        self.eventfd.get().is_some()
    }

    /// An operation has ended whose end is to be announced.
    pub(super) fn push(&self, operation: Arc<StartedOperation>) {
        self.ended.push(operation);
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
        // Ordered by the queue: `stop` looks into it after it has set this.
        if self.over.load(Ordering::SeqCst) {
            self.run_due();
        }
    }

    /// Announces all ends that are due; true if there was one.
    fn run_due(&self) -> bool {
        let mut any = false;
        while let Some(operation) = self.ended.pop() {
            any = true;
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| operation.tell())) {
                tracing::error!(message = panic_message(&*panic), "a completion callback panicked");
                // The others of this operation are still to be called.
                self.ended.push(operation);
            }
        }
        any
    }

    fn run(&self) {
        loop {
            if self.run_due()
                && let Some(fd) = self.eventfd.get()
            {
                // It fails only where the count is full, and then the descriptor is readable.
                let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
            }
            if self.ended.is_empty() {
                if self.stopping.load(Ordering::Acquire) {
                    return;
                }
                thread::park();
            }
        }
    }

    /// Runs due callbacks, and ends the thread.
    fn stop(&self) {
        let handle = {
            let mut handle = lock(&self.handle);
            self.stopping.store(true, Ordering::Release);
            handle.take()
        };
        if let Some(handle) = handle {
            handle.thread().unpark();
            // A callback may be the last to hold the group.
            if handle.thread().id() != thread::current().id() {
                // Panics of callbacks are caught.
                let _ = handle.join();
            }
        }
        self.over.store(true, Ordering::SeqCst);
        self.run_due();
    }
}

/// Stops a group's thread when it is dropped: after the engine, which has reported all ends then.
pub(super) struct StopNotifier(pub(super) Arc<super::outcomes::Outcomes>);

impl Drop for StopNotifier {
    fn drop(&mut self) {
        if self.0.check_process().is_ok() {
            self.0.notifier.stop();
        }
    }
}
