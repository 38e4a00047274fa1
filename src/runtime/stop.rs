//! The end of shards: the request, and its notice to tasks.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use super::{all_shards, context, sleep, submit_to, sys};

/// The interval of the checks for a signal.
const LOOK: Duration = Duration::from_millis(20);

/// Ready once the shard was asked to end; see [`stopping`].
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct Stopping(Option<WakerSlot>);

/// Where the waker is stored.
#[derive(Debug)]
struct WakerSlot {
    uid: u64,
    key: usize,
}

/// Waits until the shard is asked to end: by [`stop_all`], by a signal
/// ([`stop_on_signals`](super::ShardsBuilder::stop_on_signals)), by [`Shards::stop`](super::Shards::stop), or because another
/// shard has failed.
///
/// # Panics
///
/// When polled outside of a shard.
pub const fn stopping() -> Stopping {
    Stopping(None)
}

impl Future for Stopping {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let waker = cx.waker().clone();
        let place = &mut self.0;
        // The waker that is no longer needed is dropped outside of the context.
        let (stopping, _unused) = context::with(|context| {
            if context.shared.is_stopping() {
                return (true, Some(waker));
            }
            let key = match place {
                Some(WakerSlot { uid, key }) if *uid == context.uid => *key,
                _ => {
                    let key = context.stop_waiters.reserve();
                    *place = Some(WakerSlot { uid: context.uid, key });
                    key
                }
            };
            (false, context.stop_waiters.fill(key, waker))
        })
        .unwrap_or_else(|| panic!("stopping was polled outside of a shard: await it in a task"));
        if stopping { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Stopping {
    fn drop(&mut self) {
        if let Some(WakerSlot { uid, key }) = self.0 {
            let waker = context::with_uid(uid, |context| context.stop_waiters.release(key));
            drop(waker);
        }
    }
}

/// The output of `future`; `None` if the shard was asked to end first: the future is dropped then.
///
/// # Panics
///
/// When polled outside of a shard.
pub async fn until_stop<F: Future>(future: F) -> Option<F::Output> {
    let (mut future, mut stop) = (pin!(future), stopping());
    poll_fn(|cx| {
        if let Poll::Ready(value) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(value));
        }
        Pin::new(&mut stop).poll(cx).map(|()| None)
    })
    .await
}

/// Asks every shard of this mesh to end, this one too. Does nothing outside of a shard.
pub fn stop_all() {
    for shard in all_shards() {
        // Runs in any case. An error would only say that the shard has stopped already.
        drop(submit_to(shard, || context::with(|context| context.shared.ask_to_stop())));
    }
}

/// Asks all shards to end once SIGINT or SIGTERM has come.
pub(super) async fn stop_all_on_signal() {
    while !sys::was_signalled() {
        sleep(LOOK).await;
    }
    stop_all();
}
