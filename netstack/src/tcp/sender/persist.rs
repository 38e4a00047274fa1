//! Probing a window that is shut, or too small to be filled (RFC 9293 section 3.8.6.1): its opening could be missed.

use core::time::Duration;

use super::timers::{ATTEMPTS, NEVER, PATIENCE};
use super::{Outgoing, Probe, Sender};
use crate::time::Instant;

/// The persist timer. It runs, or a probe is due, while nothing is out and something waits for the window; `since` is known
/// from the first time that it has run out until it is stopped.
#[derive(Debug)]
pub(super) struct Persist {
    at: Instant,
    /// A probe is to be sent.
    due: bool,
    /// Probes without progress.
    probes: u8,
    since: Instant,
}

impl Default for Persist {
    fn default() -> Self {
        Self { at: NEVER, due: false, probes: 0, since: NEVER }
    }
}

impl Persist {
    /// When the next probe is due.
    #[inline]
    pub(super) fn at(&self) -> Instant {
        self.at
    }

    /// Whether a probe is to be sent.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.due
    }

    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.at != NEVER || self.due
    }

    /// Since when probes are not answered.
    pub(super) fn since(&self) -> Option<Instant> {
        (self.since != NEVER).then_some(self.since)
    }

    /// The window is open, or there is nothing to send.
    #[inline]
    pub(super) fn stop(&mut self) {
        *self = Self::default();
    }

    /// A probe was answered: the peer lives.
    pub(super) fn on_answered(&mut self, now: Instant) {
        if self.since != NEVER {
            self.since = now;
        }
    }

    //= RFC 9293 section 3.8.6.1, MUST-37: a window may stay closed as long as the peer acknowledges
    /// The timer has run out. False if too many probes were not answered; `answered`: the last one was.
    pub(super) fn on_expired(&mut self, now: Instant, answered: bool) -> bool {
        self.at = NEVER;
        self.due = true;
        self.since = self.since.min(now);
        self.probes < ATTEMPTS || answered || now.saturating_since(self.since) < PATIENCE
    }

    //= RFC 9293 section 3.8.6.1, SHLD-29 and SHLD-30: the first probe after a retransmission time-out, then at exponentially
    //= growing intervals.
    fn start(&mut self, now: Instant, rto: Duration, most: Duration) {
        let factor = 1u32.checked_shl(u32::from(self.probes)).unwrap_or(u32::MAX);
        self.at = now + rto.saturating_mul(factor).min(most);
    }

    fn on_sent(&mut self) {
        self.due = false;
        self.probes = self.probes.saturating_add(1);
    }
}

impl Sender {
    /// Whether the data that waits for the window needs probes, and has none yet.
    pub(super) fn should_persist(&self) -> bool {
        self.board.is_empty() && !self.timers.persist.is_on()
    }

    /// The window is closed with nothing out.
    pub(super) fn start_persisting(&mut self, now: Instant) {
        self.timers.persist.start(now, self.rtt.rto(&self.options), self.options.max_rto);
    }

    /// One byte, or the FIN, beyond a closed window; or the data that SWS avoidance held back.
    pub(super) fn window_probe(&self) -> Option<Outgoing> {
        let unsent = self.unsent();
        if !self.board.is_empty() || (unsent == 0 && !self.space.owes_fin()) {
            return None;
        }
        let usable = u64::from(self.space.usable());
        if usable > 0 && unsent > 0 {
            //= RFC 9293 section 3.8.6.2.1, MUST-38, the fourth condition; section 3.9.1.2, MUST-60: after a time-out
            //= what fits is sent.
            let len = unsent.min(usable).min(u64::from(self.size.mss())) as u32;
            // It leaves late: data announced by the writer may not have followed.
            let all = u64::from(len) == unsent;
            let first = self.position(self.space.nxt());
            let out = self.new_data(self.queue.within_record(first, len), Probe::None);
            return Some(Outgoing { psh: out.psh || all, ..out });
        }
        //= RFC 9293 section 3.8.6.1, MUST-36: a closed window is probed by a byte of new data
        let len = unsent.min(1) as u32;
        // Never both: one number beyond the window is all that an answer may acknowledge.
        Some(Outgoing {
            ect: false,
            cwr: false,
            psh: len != 0,
            fin: len == 0,
            ..self.new_data(len, Probe::Window)
        })
    }

    /// A window probe left.
    pub(super) fn window_probe_sent(&mut self, now: Instant) {
        self.space.on_probe_sent();
        self.contact.on_sent(now);
        self.timers.persist.on_sent();
        self.tally().count(|counts| &mut counts.probes, 1);
        self.start_persisting(now);
    }

    /// A segment arrived while the window was probed, with any acknowledgement and window.
    pub(super) fn window_probe_answered(&mut self, now: Instant) {
        self.timers.persist.on_answered(now);
        if self.window_opened() {
            self.timers.persist.stop();
        }
    }

    /// Whether the data held back by the peer's window can go, or none is held back.
    fn window_opened(&self) -> bool {
        let unsent = self.unsent();
        let waiting = unsent > 0 || self.space.owes_fin();
        let usable = u64::from(self.space.usable());
        !waiting
            || (usable > 0
                && (usable >= unsent.min(u64::from(self.size.mss()))
                    || usable >= u64::from(self.space.window().greatest() / 2)))
    }
}
