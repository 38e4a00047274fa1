//! A thread that sleeps, and how the others wake it.
//!
//! It parks, or, where devices announce frames at descriptors, waits for these. Either ends when another thread wakes it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering, fence};
use std::time::Duration;

use crossbeam::sync::{Parker, Unparker};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use rustix::io::Errno;
use shouter_netstack::device::{Announce, Wakes};

use super::{Activity, Clock, Instant};

/// The longest wait of a thread to which everything is announced. Links that go down are looked at that often, and conditions that depend on the
/// time; a device that loses an interrupt costs so long.
const LONGEST_WAIT: Duration = Duration::from_millis(10);

/// The states of the thread.
const AWAKE: u8 = 0;
const PARKED: u8 = 1;
const WAITING: u8 = 2;

/// The waking side. Waking costs a fence and a load while the thread is up.
pub(super) struct Sleeper {
    state: AtomicU8,
    unparker: Unparker,
    /// Made by the first wait; `None` where the system has no descriptors left.
    events: OnceLock<Option<Events>>,
}

/// What a thread does around its sleep.
pub(super) trait Sleeping {
    /// On which it parks.
    fn parker(&self) -> &Parker;

    /// Has work announced from now on; see [`Poller::arm`](super::Poller::arm).
    fn arm(&mut self, announce: &mut Announce<'_>) -> Wakes;

    /// Ends that.
    fn disarm(&mut self);

    /// Polls once.
    fn poll(&mut self) -> Activity;

    /// When it has to poll again although nothing is announced.
    fn deadline(&self) -> Option<Instant>;

    /// Whether other threads have brought news.
    fn has_pending_work(&self) -> bool;
}

impl Sleeper {
    /// For the thread that will park on `parker`.
    pub(super) fn new(parker: &Parker) -> Self {
        Self { state: AtomicU8::new(AWAKE), unparker: parker.unparker().clone(), events: OnceLock::new() }
    }

    /// Wakes the thread for news that is already visible elsewhere (in a queue, in a flag).
    #[inline]
    pub(super) fn wake(&self) {
        // Orders the news before the look at the state; pairs with the fence in `enter`.
        fence(Ordering::SeqCst);
        if self.state.load(Ordering::Relaxed) != AWAKE {
            self.end_sleep();
        }
    }

    #[cold]
    fn end_sleep(&self) {
        match self.state.swap(AWAKE, Ordering::Acquire) {
            PARKED => self.unparker.unpark(),
            WAITING => self.events.get().into_iter().flatten().for_each(Events::wake),
            _ => {}
        }
    }

    /// The calling thread, which is this `thread`, sleeps for at most `longest`, unless there is news: longer, if everything is announced to it. Returns
    /// the activity of the poll that it makes before.
    #[cold]
    pub(super) fn sleep(&self, thread: &mut impl Sleeping, longest: Duration) -> Activity {
        let mut all_watched = true;
        let armed = thread.arm(&mut |descriptor| {
            let events = self.events.get_or_init(|| Events::new().ok());
            all_watched &= events.as_ref().is_some_and(|events| events.watch(descriptor).is_ok());
        });
        let Some(Some(events)) = self.events.get().filter(|_| armed != Wakes::Never) else {
            self.enter(PARKED, thread, || thread.parker().park_timeout(longest));
            // The system has no descriptors left.
            if armed != Wakes::Never {
                thread.disarm();
            }
            return Activity::Idle;
        };
        let longest = if armed == Wakes::Always && all_watched { LONGEST_WAIT } else { longest };
        // Frames that came before are not announced.
        let activity = thread.poll();
        if !activity.is_busy() {
            let left = thread.deadline().map(|at| at.saturating_since(Clock.now()));
            let longest = left.map_or(longest, |left| left.min(longest));
            if !longest.is_zero() {
                self.enter(WAITING, thread, || events.wait(longest));
            }
        }
        thread.disarm();
        activity
    }

    fn enter(&self, state: u8, thread: &impl Sleeping, sleep: impl FnOnce()) {
        self.state.store(state, Ordering::Release);
        fence(Ordering::SeqCst);
        if thread.has_pending_work() {
            // Perhaps a ring is full: let its reader run.
            std::thread::yield_now();
        } else {
            sleep();
        }
        self.state.store(AWAKE, Ordering::Relaxed);
    }
}

/// What ends a thread's wait: descriptors of devices, and one of its own for the other threads. None of them is read: each event is reported once, whatever
/// the state of its descriptor (`EPOLLET`), so one that comes before the wait ends it at once.
struct Events {
    epoll: OwnedFd,
    wake: OwnedFd,
}

impl Events {
    fn new() -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let events = Self { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?, wake };
        events.watch(events.wake.as_fd())?;
        Ok(events)
    }

    /// Waits will end for this descriptor, too, until it is closed.
    fn watch(&self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        match epoll::add(&self.epoll, descriptor, epoll::EventData::new_u64(0), flags) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(why) => Err(why.into()),
        }
    }

    /// Ends the wait that there is, or else the next one.
    fn wake(&self) {
        // It cannot fail before 2^64 of them.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    fn wait(&self, longest: Duration) {
        let longest = Timespec { tv_sec: longest.as_secs() as i64, tv_nsec: longest.subsec_nanos().into() };
        // epoll_wait(2) counts in milliseconds. A signal ends the wait, which is as good as any other end.
        let _ = poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], Some(&longest));
        // Takes the events that there are, so that they do not end the next wait.
        let mut taken =
            [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 8];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let _ = epoll::wait(&self.epoll, &mut taken[..], Some(&at_once));
    }
}

#[cfg(test)]
mod tests;
