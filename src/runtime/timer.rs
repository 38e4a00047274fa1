//! Timers of tasks: `sleep` and `timeout`.
//!
//! Kept in a tree ordered by (time, arrival) rather than a heap, because most of them are cancelled: a half-hour timeout
//! around a microsecond operation must not stay behind for half an hour.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::{Instant, context};

/// The due time and the timer's number: timers with equal times fire in the order in which they were set.
type Key = (Instant, u64);

/// The timers of one shard.
#[derive(Default)]
pub(super) struct Timers {
    pending: BTreeMap<Key, Waker>,
    set: u64,
}

impl Timers {
    /// When the first is due.
    #[inline]
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.pending.first_key_value().map(|((at, _), _)| *at)
    }

    /// Takes the first if it is due. To be woken outside of `context::with`.
    #[inline]
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<Waker> {
        let first = self.pending.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }

    fn insert(&mut self, at: Instant, waker: Waker) -> Key {
        self.set += 1;
        self.pending.insert((at, self.set), waker);
        (at, self.set)
    }
}

/// The state of a timer.
#[derive(Debug)]
enum SleepState {
    /// Counted from the first poll.
    After(Duration),
    /// Not yet in a shard's tree.
    At(Instant),
    /// In the tree of the shard with this uid.
    Set { uid: u64, key: Key },
}

/// Ends at a point in time; see [`sleep`].
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct Sleep(SleepState);

/// Waits for `duration`, counted from the poll in which it is first polled.
///
/// It never ends early, and late by no more than a poll, or a park's oversleep (50 us of timer slack and more on a busy
/// machine).
///
/// # Panics
///
/// When polled outside of a shard.
pub const fn sleep(duration: Duration) -> Sleep {
    Sleep(SleepState::After(duration))
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let waker = cx.waker().clone();
        let state = &mut self.0;
        // Wakers that the tree no longer needs are handed out and dropped here, after the context was left.
        let (done, _unused) = context::with(|context| {
            let at = match *state {
                SleepState::After(duration) => context.now + duration,
                SleepState::At(at) | SleepState::Set { key: (at, _), .. } => at,
            };
            if context.now >= at {
                let old = match *state {
                    SleepState::Set { uid, key } if uid == context.uid => context.timers.pending.remove(&key),
                    _ => None,
                };
                *state = SleepState::At(at);
                return (true, (Some(waker), old));
            }
            if let SleepState::Set { uid, key } = *state
                && uid == context.uid
                && let Some(set) = context.timers.pending.get_mut(&key)
            {
                return (false, (Some(std::mem::replace(set, waker)), None));
            }
            let key = context.timers.insert(at, waker);
            *state = SleepState::Set { uid: context.uid, key };
            (false, (None, None))
        })
        .unwrap_or_else(|| panic!("a sleep was polled outside of a shard: await it in a task"));
        if done { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let SleepState::Set { uid, key } = self.0 {
            let waker = context::with_uid(uid, |context| context.timers.pending.remove(&key));
            drop(waker);
        }
    }
}

/// The time was up before the future was ready; it was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not done within {limit:?}; the operation was dropped")]
pub struct Elapsed {
    /// The time that it was given.
    pub limit: Duration,
}

/// Gives `future` at most `limit`.
///
/// # Errors
///
/// [`Elapsed`] if it was not ready by then.
///
/// # Panics
///
/// When polled outside of a shard.
pub async fn timeout<F: Future>(limit: Duration, future: F) -> Result<F::Output, Elapsed> {
    let mut future = pin!(future);
    let mut limit_reached = sleep(limit);
    poll_fn(|cx| {
        if let Poll::Ready(value) = future.as_mut().poll(cx) {
            return Poll::Ready(Ok(value));
        }
        Pin::new(&mut limit_reached).poll(cx).map(|()| Err(Elapsed { limit }))
    })
    .await
}
