//! A poll-mode runtime, one shard per core, in the spirit of Seastar.
//!
//! A *shard* owns everything it touches: a NIC queue pair, the protocols above it, its timers and its tasks. No
//! other thread ever locks or reads them. A shard runs one loop, whose step is a *poll*:
//!
//! ```text
//!            +--------------------------- poll(now) ---------------------------+
//!            |                                                                 |
//!   NIC ---> | poller.poll -> wakes from      -> rings from   -> due -> ready  | ---> NIC
//!            |                other threads      other shards   timers tasks   |
//!            +-----------------------------------------------------------------+
//!                     nothing to do? PAUSE, later sched_yield, later sleep
//! ```
//!
//! There is no epoll below a poll, but for a sleep that a NIC may end ([`Poller::arm`]), and no lock inside it. Shards speak to each other by [`submit_to`], over one
//! single-producer ring for each ordered pair: it carries a closure there and its result back.
//!
//! [`ShardsBuilder`] starts shards on threads of their own, pinned to cores, and gives each its queue pair. They end
//! together: when the work of all has ended, when one fails, or when they are asked to ([`stop_all`], a signal).
//!
//! # Drivers of an engine
//!
//! * **A shard.** Its tasks may hold `Rc` and `RefCell` ([`spawn_local()`]): the programs on [`net`](crate::net).
//! * **The waiting thread** ([`Driver`]): the thread that blocks for a result polls the engine itself, so no message
//!   crosses a core on its way to the caller. Between blocking calls a mostly sleeping helper thread answers the
//!   network: a group in its default mode.
//! * **Both** ([`Driver::dedicated`]): a shard polls the engine all the time, and waiting threads enqueue their conditions: a group in
//!   dedicated mode.
//!
//! # Waiting
//!
//! Every loop that waits goes through one [`Backoff`]: it spins, then yields, then sleeps with a bound. The
//! [`IdlePolicy`] gives the length of each, by the CPUs that this process may use: cgroup quota, affinity mask, and the
//! number of ranks that share the cores.
//!
//! # Forks
//!
//! Threads do not survive `fork`. A [`Driver`] or [`Shards`] that finds itself in a forked child refuses to work
//! ([`DriveError::Forked`], [`ShardError::Forked`]) and, when dropped there, leaks its resources rather than touch the
//! parent's devices.
//!
//! # Example
//!
//! ```
//! use shouter::runtime::{Reactor, sleep, spawn_local, yield_now};
//! use std::{cell::Cell, rc::Rc, time::Duration};
//!
//! let mut shard = Reactor::new(());
//! let total = shard.block_on(async {
//!     let total = Rc::new(Cell::new(0));
//!     let tasks: Vec<_> = (1..=3)
//!         .map(|n| {
//!             let total = total.clone();
//!             spawn_local(async move {
//!                 sleep(Duration::from_micros(10 * n)).await;
//!                 yield_now().await;
//!                 total.set(total.get() + n);
//!             })
//!         })
//!         .collect();
//!     for task in tasks {
//!         task.await;
//!     }
//!     total.get()
//! });
//! assert_eq!(total, 6);
//! ```

mod clock;
mod context;
mod cores;
mod driver;
mod idle;
mod lock;
mod mesh;
mod reactor;
mod shards;
mod shared;
mod sleeper;
mod stop;
#[allow(unsafe_code)]
mod sys;
mod task;
mod timer;

#[cfg(test)]
mod tests;

pub use clock::{Clock, PollClock};
pub use cores::{CoreAllowance, CpuQuota};
pub use driver::{AwaitedEnds, Dedicated, DriveError, Driver, DriverOptions};
pub use idle::{Backoff, BackoffStep, IdlePolicy};
pub(crate) use lock::lock;
pub use mesh::{Submit, SubmitError, all_shards, submit_to};
pub use reactor::Reactor;
pub use shards::{Cores, ShardError, Shards, ShardsBuilder};
pub use shouter_netstack::device::{Announce, Wakes};
pub use shouter_netstack::time::Instant;
pub use stop::{Stopping, stop_all, stopping, until_stop};
#[cfg(test)]
pub(crate) use sys::in_forked_child;
pub(crate) use sys::{count_forks, fork_generation};
pub use task::{Task, current_shard, spawn_local, yield_now};
pub use timer::{Elapsed, Sleep, sleep, timeout};

/// A shard's number among those that were started together: from 0 on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(pub usize);

impl core::fmt::Display for ShardId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "shard {}", self.0)
    }
}

/// Whether a poll did work; decides between polling again at once and waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// Something was received, sent or changed: poll again at once.
    Busy,
    /// Nothing happened.
    Idle,
}

impl Activity {
    /// [`Activity::Busy`] if `busy`.
    #[inline]
    pub const fn from_busy(busy: bool) -> Self {
        if busy { Self::Busy } else { Self::Idle }
    }

    /// Whether something happened.
    #[inline]
    pub const fn is_busy(self) -> bool {
        matches!(self, Self::Busy)
    }

    /// Busy if either is.
    #[inline]
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self::from_busy(self.is_busy() || other.is_busy())
    }
}

/// Polls for what a caller has posted, at most.
const MOST_POLLS: usize = 8;

/// The engine that a shard drives on every poll: a stack on a NIC queue, an executor, or nothing (`()`).
pub trait Poller {
    /// Does a bounded amount of work without blocking. Must report [`Activity::Busy`] whenever it changed
    /// anything that a caller may be waiting for.
    fn poll(&mut self, now: Instant) -> Activity;

    /// The same, for a caller that goes on polling until it finds something: it may leave out work that one of the next
    /// calls does soon enough.
    #[inline]
    fn poll_again(&mut self, now: Instant) -> Activity {
        self.poll(now)
    }

    /// When it needs the next call although nothing may arrive. A parked shard wakes by then.
    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    /// The thread is about to sleep: has work that comes from now on announced at descriptors, and says how far they announce it. Where it is
    /// [`Wakes::Always`], nothing but these, [`next_deadline`](Self::next_deadline) and wake-ups of other threads brings work soon; all else has to do with a poll
    /// every 10 ms. It is polled once more before the sleep.
    fn arm(&mut self, _announce: &mut Announce<'_>) -> Wakes {
        Wakes::Never
    }

    /// Whether nothing is under way that a caller has begun and may go on without: what is left to do is to answer others. A helper then leaves
    /// that to callers that poll often anyway.
    fn is_at_rest(&self) -> bool {
        false
    }

    /// Polls for a caller that has posted something and does not wait for it: again, while there is more to do at once, since a poll sends a bounded
    /// amount. What is left after some polls is left to the helper.
    fn poll_for_posts(&mut self, mut poll: impl FnMut(&mut Self, Instant) -> Activity) {
        for _ in 0..MOST_POLLS {
            let now = Clock.now();
            let is_busy = poll(self, now).is_busy();
            if !is_busy || self.next_deadline().is_none_or(|at| at > now) {
                break;
            }
        }
    }

    /// Ends what [`arm`](Self::arm) has begun.
    fn disarm(&mut self) {}

    /// Whether something waits to be sent by the next call. A shard that ends goes on for a moment until there is nothing.
    fn has_unsent(&self) -> bool {
        false
    }
}

impl Poller for () {
    fn poll(&mut self, _now: Instant) -> Activity {
        Activity::Idle
    }
}

/// The message of a panic.
pub(crate) fn panic_message(payload: &(dyn core::any::Any + Send)) -> String {
    if let Some(text) = payload.downcast_ref::<&'static str>() {
        (*text).to_owned()
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text.clone()
    } else {
        "a panic without a message".to_owned()
    }
}
