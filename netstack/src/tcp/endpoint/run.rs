//! Scheduling and timers.

use super::super::api::{Destination, Emit, Emitted};
use super::super::connection::TransmitOutcome;
use super::Endpoint;
use super::replies::Reply;
use super::timers::Timer;
use crate::time::Instant;

/// Segments that a connection may send before the next connection is served.
const QUANTUM: u32 = 64;

impl Endpoint {
    /// Fires the timers that are due. Call [`transmit`](Self::transmit) afterwards.
    pub fn on_timeout(&mut self, now: Instant) {
        let mut fired = self.timers.expire(now);
        for timer in fired.drain(..) {
            match timer {
                Timer::Connection(index) => {
                    if self.slots.on_fired(index).is_some_and(|due| due <= now)
                        && let Some(end) = self.call(index, |connection, cx| connection.on_timer(now, cx))
                    {
                        self.dispose(now, index, end);
                    } else {
                        self.slots.settle(now, index, &mut self.timers);
                    }
                }
                Timer::TimeWait(index, generation) => match self.records.expired(now, index, generation) {
                    Some(None) => self.forget(index),
                    Some(Some(left)) => self.timers.time_wait(now + left, index, generation),
                    None => {}
                },
            }
        }
        self.timers.recycle(fired);
    }

    /// When [`on_timeout`](Self::on_timeout) has to be called. It may find nothing to do then, because deadlines that
    /// moved back are looked at when they come.
    #[inline]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.timers.next_deadline()
    }

    /// Whether [`next_deadline`](Self::next_deadline) has come.
    #[inline]
    pub(crate) fn is_due(&mut self, now: Instant) -> bool {
        self.timers.are_due(now)
    }

    /// Whether [`transmit`](Self::transmit) has something to send.
    #[inline]
    pub fn wants_transmit(&self) -> bool {
        self.slots.waiting() > 0 || !self.replies.is_empty()
    }

    /// Whether [`transmit`](Self::transmit) would serve one connection, and do nothing else.
    #[inline]
    pub(crate) fn has_one_ready(&self) -> bool {
        self.slots.waiting() == 1 && self.replies.is_empty()
    }

    /// Sends due segments while `emit` has room: answers first, then connections round-robin.
    #[inline]
    pub fn transmit(&mut self, now: Instant, emit: &mut impl Emit) {
        while let Some(reply) = self.replies.front() {
            if !self.send_reply(&reply, emit) {
                return;
            }
            self.replies.pop();
        }
        while let Some(index) = self.slots.next_ready() {
            let outcome = self.call(index, |connection, cx| {
                if connection.is_over() {
                    TransmitOutcome::Done
                } else {
                    connection.transmit(now, QUANTUM, emit, cx)
                }
            });
            let outcome = outcome.unwrap_or(TransmitOutcome::Done);
            self.slots.transmitted(index, outcome, &mut self.timers);
            if outcome == TransmitOutcome::Blocked {
                // The next connection begins when there is room again.
                return;
            }
        }
    }

    /// Sends an answer; false if there is no room.
    fn send_reply(&mut self, reply: &Reply, emit: &mut impl Emit) -> bool {
        let to = Destination { local: reply.local, remote: reply.remote, ect: false };
        match emit.emit(&to, reply.header.emit().as_bytes(), &[], 0) {
            Emitted::NoRoom => return false,
            Emitted::NoRoute => self.counters.no_route += 1,
            Emitted::Sent => {}
        }
        true
    }

    /// Whether [`on_frames_released`](Self::on_frames_released) would change anything.
    #[inline]
    pub(crate) fn awaits_frames(&self) -> bool {
        self.shared.awaits_frames()
    }

    /// No frame of ours from before the last mark waits any more, in a batch or in a device, and here is the next mark: memory of bytes that were
    /// acknowledged before the last can be used again.
    pub(crate) fn on_mark(&mut self) {
        self.shared.on_mark();
    }

    /// No frame of ours waits any more, in a batch or in a device: memory of acknowledged bytes can be used again.
    #[inline]
    pub fn on_frames_released(&mut self) {
        self.shared.on_frames_released();
    }
}
