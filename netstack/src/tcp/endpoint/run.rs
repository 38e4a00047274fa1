//! Scheduling and timers.

use super::super::api::{Destination, Emit, Emitted, TcpEvent};
use super::super::connection::TransmitOutcome;
use super::timers::{Armed, Timer};
use super::{Endpoint, Reply};
use crate::time::Instant;

/// Segments that a connection may send before the next connection is served.
const QUANTUM: u32 = 64;

impl Endpoint {
    //= RFC 9293 section 3.10.7.4, MUST-58, MUST-59: a segment that arrives only schedules the connection. What acknowledges all
    //= segments of a burst leaves with `transmit`, once these have been processed.
    /// Schedules a connection to send and arms its timer, if it wants them.
    #[inline]
    pub(super) fn settle(&mut self, now: Instant, index: u32) {
        let Some(slot) = self.slots.get_mut(index as usize) else { return };
        let Some(connection) = slot.connection.as_deref() else { return };
        if connection.is_over() {
            return;
        }
        if !slot.ready && connection.wants_transmit(now) {
            slot.ready = true;
            self.ready.push_back(index);
        }
        self.timers.arm(&mut slot.armed, index, connection.next_deadline());
    }

    /// The same after a write, which starts no timer by itself: if the connection is scheduled to send, its
    /// timer is armed then.
    #[inline]
    pub(super) fn settle_written(&mut self, now: Instant, index: u32) {
        let Some(slot) = self.slots.get_mut(index as usize) else { return };
        let Some(connection) = slot.connection.as_deref() else { return };
        if slot.ready || connection.is_over() {
            return;
        }
        if connection.wants_transmit(now) {
            slot.ready = true;
            self.ready.push_back(index);
        } else {
            self.timers.arm(&mut slot.armed, index, connection.next_deadline());
        }
    }

    /// Fires the timers that are due. Call [`transmit`](Self::transmit) afterwards.
    pub fn on_timeout(&mut self, now: Instant) {
        let mut fired = core::mem::take(&mut self.fired);
        self.timers.expire(now, &mut fired);
        for timer in fired.drain(..) {
            match timer {
                Timer::Connection(index) => {
                    let Some(slot) = self.slots.get_mut(index as usize) else { continue };
                    slot.armed = Armed::NOT;
                    let due = slot.connection.as_deref().and_then(|connection| connection.next_deadline());
                    if due.is_some_and(|due| due <= now)
                        && let Some(end) = self.call(index, |connection, cx| connection.on_timer(now, cx))
                    {
                        self.dispose(now, index, end);
                    } else {
                        self.settle(now, index);
                    }
                }
                Timer::TimeWait(index, generation) => match self.records.expired(now, index, generation) {
                    Some(None) => self.forget(index),
                    Some(Some(left)) => self.timers.time_wait(now + left, index, generation),
                    None => {}
                },
            }
        }
        self.fired = fired;
    }

    /// When [`on_timeout`](Self::on_timeout) has to be called. It may find nothing to do then, because deadlines that
    /// moved back are looked at when they come.
    #[inline]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.timers.next_deadline()
    }

    /// Whether [`transmit`](Self::transmit) has something to send.
    #[inline]
    pub fn wants_transmit(&self) -> bool {
        !self.ready.is_empty() || !self.replies.is_empty()
    }

    /// Whether [`transmit`](Self::transmit) would serve one connection, and do nothing else.
    #[inline]
    pub(crate) fn would_serve_one(&self) -> bool {
        self.ready.len() == 1 && self.replies.is_empty()
    }

    /// Sends what is due while `emit` has room: answers first, then connections round-robin.
    #[inline]
    pub fn transmit(&mut self, now: Instant, emit: &mut impl Emit) {
        while let Some(reply) = self.replies.front().copied() {
            if !self.send_reply(&reply, emit) {
                return;
            }
            self.replies.pop_front();
        }
        while let Some(index) = self.ready.pop_front() {
            let outcome = self.call(index, |connection, cx| {
                if connection.is_over() {
                    TransmitOutcome::Done
                } else {
                    connection.transmit(now, QUANTUM, emit, cx)
                }
            });
            let outcome = outcome.unwrap_or(TransmitOutcome::Done);
            if let Some(slot) = self.slots.get_mut(index as usize) {
                slot.ready = outcome != TransmitOutcome::Done;
                let connection = slot.connection.as_deref().filter(|connection| !connection.is_over());
                let deadline = connection.and_then(|connection| connection.next_deadline());
                self.timers.arm(&mut slot.armed, index, deadline);
            }
            match outcome {
                TransmitOutcome::Done => {}
                TransmitOutcome::More => self.ready.push_back(index),
                TransmitOutcome::Blocked => {
                    // The next connection begins when there is room again.
                    self.ready.push_back(index);
                    return;
                }
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

    /// Whether [`frames_gone`](Self::frames_gone) would change anything.
    #[inline]
    pub(crate) fn awaits_frames(&self) -> bool {
        self.shared.memory.awaits_frames() || !self.starved.is_empty()
    }

    /// No frame of ours waits any more, in a batch or in a device: memory of what was acknowledged can be used again.
    #[inline]
    pub fn frames_gone(&mut self) {
        self.shared.memory.frames_gone();
        if !self.starved.is_empty() && !self.shared.memory.is_full() {
            let starved = core::mem::take(&mut self.starved);
            self.shared.events.queue.extend(starved.into_iter().map(TcpEvent::Writable));
        }
    }
}
