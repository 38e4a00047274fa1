//! One lock around everything, and a condition for blocking calls.
//!
//! Virtual time moves only in the calls of the thread that drives the script: `usleep`, `gettimeofday`,
//! `netdev_receive`. Before it moves on, every thread in a blocking call has seen the latest change, so that a run does
//! not depend on the scheduling of threads.

use core::time::Duration;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use shouter_netstack::time::Instant;

use crate::errno::{Errno, Result};
use crate::flags::Setup;
use crate::machine::Machine;
use crate::progress::{CallProgress, Patience};
use crate::wire::Sent;

/// The initial time of `gettimeofday`, in microseconds: any time far from zero.
const EPOCH: i64 = 1_700_000_000_000_000;

/// The advance of the clock when it is read.
const TICK: Duration = Duration::from_micros(1);

/// Timers that may fire without a packet before the search for the next packet ends.
const MAX_STEPS: usize = 1_000_000;

/// A thread in a blocking call.
#[derive(Debug)]
struct Waiter {
    id: u64,
    /// The latest change that it has seen.
    seen: u64,
    until: Option<Instant>,
}

#[derive(Debug)]
struct Shared {
    machine: Machine,
    /// The number of changes.
    change: u64,
    waiters: Vec<Waiter>,
    next_waiter: u64,
    /// No thread may wait any longer.
    closing: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Host {
    shared: Mutex<Shared>,
    /// Something changed.
    changed: Condvar,
    /// A waiter has looked, or left.
    settled: Condvar,
    /// The thread that made this host, and drives the script.
    driver: ThreadId,
}

impl Shared {
    /// The next time of a timer or of a waiter's deadline.
    fn next_deadline(&self) -> Option<Instant> {
        let waiters = self.waiters.iter().filter_map(|waiter| waiter.until).min();
        [self.machine.net.next_deadline(), waiters].into_iter().flatten().min()
    }
}

/// A thread's place among the waiters, if it has one.
struct Registered<'a> {
    host: &'a Host,
    id: Option<u64>,
}

impl Registered<'_> {
    fn leave(&mut self, shared: &mut Shared) {
        if let Some(id) = self.id.take() {
            shared.waiters.retain(|waiter| waiter.id != id);
            self.host.settled.notify_all();
        }
    }
}

impl Drop for Registered<'_> {
    /// Still registered only if the call panicked.
    fn drop(&mut self) {
        if self.id.is_some() {
            let host = self.host;
            self.leave(&mut host.lock());
        }
    }
}

impl Host {
    pub(crate) fn new(setup: Setup) -> core::result::Result<Self, String> {
        let shared = Shared {
            machine: Machine::new(setup)?,
            change: 0,
            waiters: Vec::new(),
            next_waiter: 0,
            closing: false,
        };
        Ok(Self {
            shared: Mutex::new(shared),
            changed: Condvar::new(),
            settled: Condvar::new(),
            driver: thread::current().id(),
        })
    }

    /// Ignores a panic of another call: the machine is still usable, and the script has the error.
    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the stack, and wakes the waiters if something changed, or `in_any_case`.
    fn publish(&self, shared: &mut Shared, in_any_case: bool) {
        shared.machine.run();
        if shared.machine.net.take_moved() || in_any_case {
            shared.change += 1;
            self.changed.notify_all();
        }
    }

    /// Waits until every waiter has looked at the latest change.
    fn settle<'a>(&self, mut shared: MutexGuard<'a, Shared>) -> MutexGuard<'a, Shared> {
        while !shared.closing && shared.waiters.iter().any(|waiter| waiter.seen != shared.change) {
            shared = self.settled.wait(shared).unwrap_or_else(PoisonError::into_inner);
        }
        shared
    }

    /// Moves time to `to`, or to the first event before that.
    fn step<'a>(&self, mut shared: MutexGuard<'a, Shared>, to: Instant) -> MutexGuard<'a, Shared> {
        let now = shared.machine.net.now;
        let waited_for = shared.waiters.iter().filter_map(|waiter| waiter.until).filter(|at| *at > now).min();
        shared.machine.net.step(waited_for.map_or(to, |at| at.min(to)));
        let now = shared.machine.net.now;
        let is_due = shared.waiters.iter().any(|waiter| waiter.until.is_some_and(|until| until <= now));
        self.publish(&mut shared, is_due);
        self.settle(shared)
    }

    /// Retries the call until it is done, and waits without the lock. The thread that drives the script waits for
    /// timers, and gets EDEADLK if there is none: no other thread could end its call.
    pub(crate) fn call<T>(
        &self,
        mut attempt: impl FnMut(&mut Machine, &mut Patience) -> Result<CallProgress<T>>,
    ) -> Result<T> {
        // Leaves after the lock is released, in any case: no thread may wait for a waiter that is gone.
        let mut me = Registered { host: self, id: None };
        let mut patience = Patience::default();
        let mut shared = self.lock();
        let outcome = loop {
            if shared.closing {
                break Err(Errno(libc::EBADF));
            }
            let until = match attempt(&mut shared.machine, &mut patience) {
                Ok(CallProgress::Wait(until)) => until,
                Ok(CallProgress::Done(value)) => break Ok(value),
                Err(error) => break Err(error),
            };
            self.publish(&mut shared, false);
            let now = shared.machine.net.now;
            if until.is_some_and(|until| until <= now) {
                continue;
            }
            if thread::current().id() == self.driver {
                // No other thread would advance the time.
                shared = self.settle(shared);
                let Some(until) = until.or_else(|| shared.next_deadline()) else {
                    break Err(Errno(libc::EDEADLK));
                };
                let later = shared.machine.net.now + TICK;
                shared = self.step(shared, until.max(later));
                continue;
            }
            shared = self.wait(shared, &mut me.id, until);
        };
        if me.id.is_some() {
            me.leave(&mut shared);
        }
        self.publish(&mut shared, true);
        outcome
    }

    /// A call that never waits.
    pub(crate) fn at_once<T>(&self, mut call: impl FnMut(&mut Machine) -> Result<T>) -> Result<T> {
        self.call(|machine, _| call(machine).map(CallProgress::Done))
    }

    /// Waits for a change.
    fn wait<'a>(
        &self,
        mut shared: MutexGuard<'a, Shared>,
        me: &mut Option<u64>,
        until: Option<Instant>,
    ) -> MutexGuard<'a, Shared> {
        let id = *me.get_or_insert_with(|| {
            shared.next_waiter += 1;
            shared.next_waiter
        });
        let seen = shared.change;
        shared.waiters.retain(|waiter| waiter.id != id);
        shared.waiters.push(Waiter { id, seen, until });
        self.settled.notify_all();
        while shared.change == seen && !shared.closing {
            shared = self.changed.wait(shared).unwrap_or_else(PoisonError::into_inner);
        }
        shared
    }

    /// Gives the stack a packet.
    pub(crate) fn inject(&self, packet: &[u8]) -> Result<()> {
        let mut shared = self.lock();
        let taken = shared.machine.net.inject(packet);
        self.publish(&mut shared, true);
        drop(self.settle(shared));
        if taken { Ok(()) } else { Err(Errno(libc::EINVAL)) }
    }

    /// Takes the next packet that leaves, with its time, moving time on as far as necessary; `None` if no packet would
    /// ever leave.
    pub(crate) fn next_packet(&self) -> Option<(Vec<u8>, i64)> {
        let mut shared = self.settle(self.lock());
        for _ in 0..MAX_STEPS {
            if let Some(Sent { at, packet }) = shared.machine.net.take() {
                return Some((packet, wall_clock(at)));
            }
            let next = shared.next_deadline()?;
            let later = shared.machine.net.now + TICK;
            shared = self.step(shared, next.max(later));
        }
        None
    }

    /// Advances the time.
    pub(crate) fn sleep(&self, time: Duration) {
        let mut shared = self.settle(self.lock());
        let end = shared.machine.net.now + time;
        // Once more at the end, for events due at that time.
        while shared.machine.net.now < end && !shared.closing {
            shared = self.step(shared, end);
        }
        self.publish(&mut shared, false);
    }

    /// The clock in microseconds; reading it advances it.
    pub(crate) fn clock(&self) -> i64 {
        self.sleep(TICK);
        wall_clock(self.lock().machine.net.now)
    }

    /// Ends all waits, and returns when no thread waits any longer.
    pub(crate) fn close(&self) {
        let mut shared = self.lock();
        shared.closing = true;
        shared.change += 1;
        self.changed.notify_all();
        while !shared.waiters.is_empty() {
            shared = self.settled.wait(shared).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The clock's value at a time.
fn wall_clock(at: Instant) -> i64 {
    EPOCH.saturating_add(i64::try_from(at.as_nanos() / 1000).unwrap_or(i64::MAX))
}
