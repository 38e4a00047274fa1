//! Local tasks: spawn, yield, and the futures they are made of.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

use async_task::Builder;

use super::{ShardId, context};

/// A spawned task. Awaiting it gives its output and passes on its panic; dropping it cancels the task;
/// [`detach`](async_task::Task::detach) lets it run on by itself. A panic ends the task alone, and is logged.
pub use async_task::Task;

/// The shard that this thread is polling, if any.
pub fn current_shard() -> Option<ShardId> {
    context::with(|context| context.shared.id)
}

/// Frees a task's place when its future is dropped, however that comes about.
struct Registered {
    uid: u64,
    key: usize,
}

impl Drop for Registered {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The panic's text is in the panic hook's message, and goes to the task that awaits this one.
            tracing::error!(shard = current_shard().map(|shard| shard.0), "a task of a shard panicked");
        }
        let waker = context::with_uid(self.uid, |context| context.tasks.release(self.key));
        drop(waker);
    }
}

const NO_SHARD: &str = "called outside of a shard: call it from a task, a poller or a submitted closure";

/// Starts a task on the current shard. The future need not be `Send`; it never leaves this thread.
///
/// # Panics
///
/// If this thread is not polling a shard.
pub fn spawn_local<F>(future: F) -> Task<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    let (shared, key) = context::with(|context| (context.shared.clone(), context.tasks.reserve()))
        .unwrap_or_else(|| panic!("spawn_local was {NO_SHARD}"));
    let registered = Registered { uid: shared.uid, key };
    let (runnable, task) = Builder::new().propagate_panic(true).spawn_local(
        move |()| async move {
            let _registered = registered;
            future.await
        },
        move |runnable| shared.schedule(runnable),
    );
    let waker = runnable.waker();
    context::with(|context| context.tasks.fill(key, waker));
    runnable.schedule();
    task
}

/// Lets every other ready task, the poller and the rings be polled.
pub async fn yield_now() {
    let mut yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            Poll::Ready(())
        } else {
            cx.waker().wake_by_ref();
            Poll::Pending
        }
    })
    .await;
}

/// The output of `future`, or the payload of its panic.
pub(super) async fn caught<F: Future>(future: F) -> Result<F::Output, Box<dyn Any + Send>> {
    let mut future = pin!(future);
    poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(value)) => Poll::Ready(Ok(value)),
        Err(payload) => Poll::Ready(Err(payload)),
    })
    .await
}
