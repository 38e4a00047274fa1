//! When to look again: retransmission (RFC 6298), tail-loss probe and reordering (RFC 8985), window probe
//! (RFC 9293 section 3.8.6.1), pacing.

use core::time::Duration;

#[cfg(doc)]
use super::Options;
use super::{Phase, Sender, TimerOut};
use crate::time::{Instant, whole_nanos};
use crate::wire::tcp::SeqNumber;

/// Retransmissions, or unanswered window probes, after which the connection is given up...
const ATTEMPTS: u8 = 15;

//= RFC 9293 section 3.8.3, MUST-20, SHLD-11: ...if that took at least 100 s (R2).
const PATIENCE: Duration = Duration::from_secs(100);

/// The tail-loss probes that were sent and not answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct TailProbe {
    /// SND.NXT after the last one.
    pub(super) end: SeqNumber,
    /// Where the last one ended: what a duplicate of it is known by.
    pub(super) last: SeqNumber,
    /// How many were retransmissions that were not reported as duplicates.
    pub(super) resends: u8,
}

/// A connection with nothing to send gives memory back after so long.
const REST: Duration = Duration::from_secs(1);

/// When a timer that does not run expires.
pub(super) const NEVER: Instant = Instant::from_nanos(u64::MAX);

/// The deadlines, and what has come of those that have passed.
#[derive(Debug)]
pub(super) struct Timers {
    retransmit: Instant,
    /// The tail-loss probe; when nothing is out, when to give memory back.
    tail: Instant,
    reorder: Instant,
    persist: Instant,
    /// Time-outs without progress.
    retries: u8,
    /// Window probes without progress.
    probes: u8,
    probing_since: Instant,
    /// A tail-loss probe is to be sent.
    tail_due: bool,
    /// Tail-loss probes since the peer was heard to have something new.
    unanswered: u8,
    /// A window probe is to be sent.
    persist_due: bool,
    tail_probe: Option<TailProbe>,
}

/// When this side sent something last and heard from the peer last.
#[derive(Debug, Default)]
pub(super) struct Contact {
    sent: Instant,
    heard: Instant,
    /// Since when the oldest number is out unacknowledged.
    waiting: Instant,
}

impl Contact {
    /// The handshake is over.
    pub(super) fn begin(&mut self, now: Instant) {
        (self.sent, self.heard) = (now, now);
    }

    #[inline]
    pub(super) fn sent(&self) -> Instant {
        self.sent
    }

    #[inline]
    pub(super) fn heard(&self) -> Instant {
        self.heard
    }

    /// Since when the oldest number is out unacknowledged.
    pub(super) fn waiting_since(&self) -> Instant {
        self.waiting
    }

    #[inline]
    pub(super) fn on_sent(&mut self, now: Instant) {
        self.sent = now;
    }

    #[inline]
    pub(super) fn on_heard(&mut self, now: Instant) {
        self.heard = now;
    }

    /// The oldest number that is out is waited for from now on.
    #[inline]
    pub(super) fn waits_from(&mut self, now: Instant) {
        self.waiting = now;
    }
}

impl Default for Timers {
    fn default() -> Self {
        Self {
            retransmit: NEVER,
            tail: NEVER,
            reorder: NEVER,
            persist: NEVER,
            retries: 0,
            probes: 0,
            probing_since: NEVER,
            tail_due: false,
            unanswered: 0,
            persist_due: false,
            tail_probe: None,
        }
    }
}

impl Timers {
    /// Time-outs without progress.
    pub(super) fn retries(&self) -> u8 {
        self.retries
    }

    /// Whether a tail-loss probe is to be sent.
    #[inline]
    pub(super) fn tail_due(&self) -> bool {
        self.tail_due
    }

    /// Whether a window probe is to be sent.
    #[inline]
    pub(super) fn persist_due(&self) -> bool {
        self.persist_due
    }

    /// Tail-loss probes since the peer was heard to have something new.
    #[inline]
    pub(super) fn unanswered(&self) -> u8 {
        self.unanswered
    }

    /// The tail-loss probes that are out.
    #[inline]
    pub(super) fn tail_probe(&self) -> Option<TailProbe> {
        self.tail_probe
    }

    /// A tail-loss probe has left: it ended at `end`, and SND.NXT is `nxt`.
    pub(super) fn tail_probe_sent(&mut self, nxt: SeqNumber, end: SeqNumber, resend: bool) {
        let before = self.tail_probe.map_or(0, |probe| probe.resends);
        let resends = before.saturating_add(resend.into());
        self.tail_probe = Some(TailProbe { end: nxt, last: end, resends });
        self.tail_due = false;
        self.unanswered = self.unanswered.saturating_add(1);
    }

    /// What ended at `end` was reported as a duplicate: if it was the last probe, that repaired nothing.
    pub(super) fn on_duplicate(&mut self, end: SeqNumber) {
        if let Some(probe) = self.tail_probe.as_mut().filter(|probe| probe.last == end) {
            probe.resends = probe.resends.saturating_sub(1);
        }
    }

    /// What the tail-loss probes were for is known.
    pub(super) fn settle_tail_probe(&mut self) {
        self.tail_probe = None;
    }

    /// No tail-loss probe is needed now.
    pub(super) fn cancel_tail_probe(&mut self) {
        self.tail_due = false;
    }

    /// When to look for losses by time; `None`: there is nothing to be looked at.
    pub(super) fn reorder_at(&mut self, at: Option<Instant>) {
        self.reorder = at.unwrap_or(NEVER);
    }

    /// Time-outs and losses were none.
    pub(super) fn take_back(&mut self) {
        self.retries = 0;
        self.reorder = NEVER;
    }

    /// Since when window probes are not answered.
    pub(super) fn probing_since(&self) -> Option<Instant> {
        (self.probing_since != NEVER).then_some(self.probing_since)
    }

    pub(super) fn persisting(&self) -> bool {
        self.persist != NEVER || self.persist_due
    }

    /// The window is open, or there is nothing to send.
    pub(super) fn stop_persisting(&mut self) {
        self.persist = NEVER;
        self.persist_due = false;
        self.probes = 0;
        self.probing_since = NEVER;
    }

    /// A window probe was answered: the peer lives.
    pub(super) fn probe_answered(&mut self, now: Instant) {
        if self.probing_since != NEVER {
            self.probing_since = now;
        }
    }
}

impl Sender {
    /// The earliest time at which [`Sender::on_timer`] or [`Sender::next`] has something to do.
    #[inline]
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let Timers { retransmit, tail, reorder, persist, .. } = self.timers;
        let paced = if self.waits_for_pace() { self.pacer.at() } else { NEVER };
        let first = retransmit.min(tail).min(reorder).min(persist).min(paced);
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
        if self.timers.tail <= now {
            self.timers.tail = NEVER;
            if self.board.is_empty() {
                self.trim();
            } else if self.may_probe_tail() {
                self.weigh_early(now);
                self.timers.tail_due = true;
                if self.timers.unanswered == 0 {
                    // What follows the probe, and those that repeat it, is the retransmission time-out.
                    self.timers.retransmit = self.rtt.expiry(now, &self.options);
                }
            }
        }
        if self.timers.retransmit <= now && !self.on_timeout(now) {
            return TimerOut::GiveUp;
        }
        if self.timers.persist <= now {
            self.timers.persist = NEVER;
            self.timers.persist_due = true;
            if self.timers.probing_since == NEVER {
                self.timers.probing_since = now;
            }
            let since = self.timers.probing_since;
            //= RFC 9293 section 3.8.6.1, MUST-37: a window may stay closed as long as the peer acknowledges
            let patient = now.saturating_since(since) < PATIENCE || self.is_answered();
            if self.timers.probes >= ATTEMPTS && !patient {
                return TimerOut::GiveUp;
            }
        }
        if self.wants_transmit(now) { TimerOut::Transmit } else { TimerOut::None }
    }

    /// The peer's window was shut and is open: what has waited did so for the peer's sake, so that patience and
    /// time-outs begin anew.
    pub(super) fn on_window_reopened(&mut self, now: Instant) {
        self.contact.waits_from(now);
        self.timers.retries = 0;
        self.rtt.calm();
        if self.timers.retransmit != NEVER {
            self.timers.retransmit = self.rtt.expiry(now, &self.options);
        }
    }

    /// Whether the peer has been heard since something was sent last: the intervals between probes grow longer than
    /// anybody's patience with silence.
    fn is_answered(&self) -> bool {
        self.contact.heard >= self.contact.sent
    }

    /// The retransmission timer ran out; false: once too often.
    fn on_timeout(&mut self, now: Instant) -> bool {
        if self.board.is_empty() {
            self.timers.retransmit = NEVER;
            return true;
        }
        let since = if self.window.size() == 0 {
            self.contact.heard.max(self.contact.waiting)
        } else {
            self.contact.waiting
        };
        //= RFC 9293 section 3.8.6, SHLD-17: nor does data that the peer keeps out by a window that it has shut.
        let patient =
            now.saturating_since(since) < PATIENCE || (self.window.size() == 0 && self.is_answered());
        if self.timers.retries >= ATTEMPTS && !patient {
            return false;
        }
        self.begin_loss(now);
        self.timers.retries = self.timers.retries.saturating_add(1);
        self.timers.tail = NEVER;
        self.timers.tail_due = false;
        self.timers.tail_probe = None;
        self.timers.unanswered = 0;
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
    pub(super) fn timers_on_ack(&mut self, now: Instant, progress: bool, delivered: bool) {
        if self.board.is_empty() {
            //= RFC 6298 section 5.2: all is acknowledged, the timer stops.
            self.timers.retransmit = NEVER;
            self.timers.tail_due = false;
            self.timers.reorder = NEVER;
            self.timers.retries = 0;
            self.timers.unanswered = 0;
            if progress {
                self.timers.tail = now + REST;
            }
            return;
        }
        if progress {
            self.timers.retries = 0;
            //= RFC 6298 section 5.3: it starts again with each acknowledgement of something new.
            self.timers.retransmit = self.rtt.expiry(now, &self.options);
        }
        if progress || delivered {
            self.timers.unanswered = 0;
            self.schedule_tail_probe(now);
        }
    }

    /// Whether a loss of the tail would otherwise be found by a time-out only.
    ///
    /// RFC 8985 sends one probe, and none in recovery; then a probe, a retransmission or an answer that is lost costs a
    /// time-out, whose lower bound is a thousand round trips on a short path. So, with [`Options::repeat_tail_probes`], a
    /// probe that nothing answers is repeated, after twice as long each time (as RFC 9002 section 6.2 does in QUIC), in the
    /// first half of the time-out; and a retransmission that nothing answers, with nothing sent after it whose
    /// acknowledgement would show, is probed for too.
    fn may_probe_tail(&self) -> bool {
        let again = self.options.repeat_tail_probes;
        let wanted = match self.recovery.phase() {
            //= RFC 8985 section 7.2: with SACK, nothing selectively acknowledged; section 7.3: one probe at a time
            Phase::Open => {
                self.board.sacked() == 0
                    && self.board.lost() == 0
                    && (again || self.timers.tail_probe.is_none())
            }
            // What waits to be sent again waits for an answer too.
            Phase::Recovery { .. } => again && self.timers.reorder == NEVER && self.board.in_flight() > 0,
            Phase::Loss { .. } => false,
        };
        self.sack && wanted && !self.board.is_empty()
    }

    /// Starts the probe timer, if there may be a probe.
    fn schedule_tail_probe(&mut self, now: Instant) {
        self.timers.tail = NEVER;
        if !self.may_probe_tail() {
            return;
        }
        //= RFC 8985 section 7.2: two round trips, and the peer's delay if a single segment is out, but not after the
        //= retransmission time-out.
        let trip = self.rtt.trip_nanos(&self.options);
        let mut patience = trip.saturating_mul(2);
        if self.board.at_most_one() {
            patience = patience.saturating_add(whole_nanos(self.options.max_ack_delay));
        }
        // They count from the last transmission, as it is that one whose acknowledgement is missed; an acknowledgement
        // of something older puts the probe off by no more than what the queue on the path may have grown by.
        if self.timers.unanswered == 0 {
            let at = self.contact.sent.later(patience).max(now.later(trip / 2));
            self.timers.tail = at.min(self.timers.retransmit);
            return;
        }
        let factor = 1u64.checked_shl(self.timers.unanswered.into()).unwrap_or(u64::MAX);
        let patience = patience.saturating_mul(factor);
        // Shortly before the time-out no probe is sent: the time-out fires instead.
        if now.later(patience.saturating_mul(2)) <= self.timers.retransmit {
            self.timers.tail = now.later(patience);
        }
    }

    /// The window is closed with nothing out: without a probe its opening could be missed.
    pub(super) fn start_persisting(&mut self, now: Instant) {
        //= RFC 9293 section 3.8.6.1, SHLD-29 and SHLD-30: the first probe after a retransmission time-out, then at
        //= exponentially growing intervals.
        let factor = 1u32.checked_shl(u32::from(self.timers.probes)).unwrap_or(u32::MAX);
        let wait = self.rtt.rto(&self.options).saturating_mul(factor).min(self.options.max_rto);
        self.timers.persist = now + wait;
    }

    /// A window probe left.
    pub(super) fn window_probe_sent(&mut self, now: Instant) {
        self.timers.persist_due = false;
        self.timers.probes = self.timers.probes.saturating_add(1);
        self.tally().count(|counts| &mut counts.probes, 1);
        self.start_persisting(now);
    }
}
