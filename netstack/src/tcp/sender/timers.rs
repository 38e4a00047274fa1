//! Timers of retransmission (RFC 6298) and reordering (RFC 8985 section 6.2), beside those of probes and of the pace.

use core::time::Duration;

use super::persist::Persist;
use super::tail_probe::TailProbes;
use super::{Sender, TimerOut};
use crate::time::Instant;

/// Retransmissions, or unanswered window probes, after which the connection is given up...
pub(super) const ATTEMPTS: u8 = 15;

//= RFC 9293 section 3.8.3, MUST-20, SHLD-11: ...if that took at least 100 s (R2).
pub(super) const PATIENCE: Duration = Duration::from_secs(100);

/// A connection with nothing to send gives memory back after so long.
const REST: Duration = Duration::from_secs(1);

/// When a timer that does not run expires.
pub(super) const NEVER: Instant = Instant::from_nanos(u64::MAX);

/// The deadlines. The retransmission timer runs exactly while something is out, and the reordering timer only then.
#[derive(Debug)]
pub(super) struct SenderTimers {
    retransmit: Instant,
    reorder: Instant,
    pub(super) tail: TailProbes,
    pub(super) persist: Persist,
}

impl Default for SenderTimers {
    fn default() -> Self {
        let (tail, persist) = (TailProbes::default(), Persist::default());
        Self { retransmit: NEVER, reorder: NEVER, tail, persist }
    }
}

impl SenderTimers {
    /// When the retransmission timer runs out.
    #[inline]
    pub(super) fn retransmit_at(&self) -> Instant {
        self.retransmit
    }

    /// Whether the reordering timer runs.
    pub(super) fn reorders(&self) -> bool {
        self.reorder != NEVER
    }

    /// When to look for losses by time; `None`: there is nothing to be looked at.
    pub(super) fn reorder_at(&mut self, at: Option<Instant>) {
        self.reorder = at.unwrap_or(NEVER);
    }

    #[inline]
    fn first(&self) -> Instant {
        self.retransmit.min(self.tail.at()).min(self.reorder).min(self.persist.at())
    }
}

impl Sender {
    /// The same as [`Sender::next_deadline`] with `NEVER` for `None`, if surely nothing waits to be sent: found with less
    /// effort.
    #[inline]
    pub(crate) fn deadline_at_rest(&self) -> Option<Instant> {
        self.has_nothing().then(|| self.timers.first())
    }

    /// The earliest time at which [`Sender::on_timer`] or [`Sender::next`] has something to do.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let paced = if self.waits_for_pace() { self.control.next_burst_at() } else { NEVER };
        let first = self.timers.first().min(paced);
        (first != NEVER).then_some(first)
    }

    /// Time has passed. Does no harm if nothing is due.
    pub(crate) fn on_timer(&mut self, now: Instant) -> TimerOut {
        if self.timers.reorder <= now {
            self.timers.reorder = NEVER;
            let in_flight = self.in_flight();
            if self.detect_losses(now, in_flight, 0) > 0 {
                self.limit_recovery();
            }
        }
        if self.timers.tail.at() <= now {
            let wanted = self.may_probe_tail();
            self.timers.tail.on_expired(wanted);
            if self.board.is_empty() {
                self.trim();
            } else if wanted {
                self.weigh_early(now);
                if self.timers.tail.unanswered() == 0 {
                    // The retransmission time-out follows the probe, and those that repeat it.
                    self.timers.retransmit = self.rtt.expiry(now, &self.options);
                }
            }
        }
        if self.timers.retransmit <= now && !self.on_timeout(now) {
            return TimerOut::GiveUp;
        }
        if self.timers.persist.at() <= now && !self.timers.persist.on_expired(now, self.contact.is_answered())
        {
            return TimerOut::GiveUp;
        }
        if self.wants_transmit(now) { TimerOut::Transmit } else { TimerOut::None }
    }

    /// The peer's window was shut and is open: data waited because of the peer, so that the user timeout and
    /// retransmission time-outs begin anew.
    pub(super) fn on_window_reopened(&mut self, now: Instant) {
        self.contact.waits_from(now);
        self.recovery.on_progress();
        self.rtt.calm();
        if self.timers.retransmit != NEVER {
            self.timers.retransmit = self.rtt.expiry(now, &self.options);
        }
    }

    /// The retransmission timer ran out; false: once too often.
    fn on_timeout(&mut self, now: Instant) -> bool {
        if self.board.is_empty() {
            self.timers.retransmit = NEVER;
            return true;
        }
        let shut = self.space.window().size() == 0;
        let mut since = self.contact.waiting_since();
        if shut {
            since = since.max(self.contact.heard());
        }
        //= RFC 9293 section 3.8.6, SHLD-17: nor does data that the peer keeps out by a window that it has shut.
        let patient = now.saturating_since(since) < PATIENCE || (shut && self.contact.is_answered());
        if self.recovery.timeouts() >= ATTEMPTS && !patient {
            return false;
        }
        self.begin_loss(now);
        self.timers.tail = TailProbes::default();
        self.timers.reorder = NEVER;
        //= RFC 6298 section 5.5 and 5.6: back off, start again.
        self.rtt.back_off();
        self.timers.retransmit = self.rtt.expiry(now, &self.options);
        true
    }

    /// Something was sent.
    pub(super) fn timers_on_sent(&mut self, now: Instant) {
        //= RFC 6298 section 5.1: the timer runs while anything is out.
        if self.timers.retransmit == NEVER {
            self.timers.retransmit = self.rtt.expiry(now, &self.options);
        }
        self.schedule_tail_probe(now);
    }

    /// The oldest segment was sent again: it gets its time.
    pub(super) fn oldest_resent(&mut self, now: Instant) {
        self.timers.retransmit = self.rtt.expiry(now, &self.options);
    }

    /// An acknowledgement was worked in; `progress`: SND.UNA moved on.
    #[inline]
    pub(super) fn timers_on_ack(&mut self, now: Instant, progress: bool, delivered: bool) {
        if self.board.is_empty() {
            //= RFC 6298 section 5.2: all is acknowledged, the timer stops.
            self.timers.retransmit = NEVER;
            self.timers.reorder = NEVER;
            self.recovery.on_progress();
            self.timers.tail.on_all_acknowledged(progress.then(|| now + REST));
            return;
        }
        if progress {
            self.recovery.on_progress();
            //= RFC 6298 section 5.3: it starts again with each acknowledgement of something new.
            self.timers.retransmit = self.rtt.expiry(now, &self.options);
        }
        if progress || delivered {
            self.timers.tail.on_progress();
            self.schedule_tail_probe(now);
        }
    }
}
