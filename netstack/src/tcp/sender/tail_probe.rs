//! The tail-loss probe (RFC 8985 section 7): it makes the peer answer when the last segments that are out, or the
//! acknowledgements of them, may be lost.

#[cfg(doc)]
use super::Options;
use super::ack::AckSummary;
use super::timers::NEVER;
use super::{Outgoing, Path, Phase, Probe, Sender};
use crate::cc::Congestion;
use crate::time::{Instant, whole_nanos};
use crate::wire::tcp::{SeqNumber, SeqRange};

/// The probe timer, and the probes that were sent. A probe is due only after the timer has run out; `end`, `last` and
/// `resends` count while probes are out, that is, until their result is known.
#[derive(Debug)]
pub(super) struct TailProbes {
    /// When a probe is due; while nothing is out, when to give memory back.
    at: Instant,
    /// SND.NXT after the last probe.
    end: SeqNumber,
    /// The end of the last one, by which a duplicate of it is recognised.
    last: SeqNumber,
    /// How many were retransmissions that were not reported as duplicates.
    resends: u8,
    /// Probes since the peer was heard to have something new.
    unanswered: u8,
    /// A probe is to be sent.
    due: bool,
    out: bool,
}

impl Default for TailProbes {
    fn default() -> Self {
        let (end, last) = (SeqNumber(0), SeqNumber(0));
        Self { at: NEVER, end, last, resends: 0, unanswered: 0, due: false, out: false }
    }
}

impl TailProbes {
    /// When the timer runs out.
    #[inline]
    pub(super) fn at(&self) -> Instant {
        self.at
    }

    /// Whether a probe is to be sent.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.due
    }

    /// Probes since the peer was heard to have something new.
    #[inline]
    pub(super) fn unanswered(&self) -> u8 {
        self.unanswered
    }

    /// Whether probes are out.
    #[inline]
    pub(super) fn are_out(&self) -> bool {
        self.out
    }

    /// Whether the last probe that is out ended at `end`.
    pub(super) fn ended_at(&self, end: SeqNumber) -> bool {
        self.out && self.last == end
    }

    /// The timer has run out, and a probe may be sent if `wanted`.
    pub(super) fn on_expired(&mut self, wanted: bool) {
        self.at = NEVER;
        self.due |= wanted;
    }

    /// No probe is needed now.
    pub(super) fn cancel(&mut self) {
        self.due = false;
    }

    /// The result of the probes is known.
    pub(super) fn settle(&mut self) {
        self.out = false;
        self.resends = 0;
    }

    /// The peer has something new.
    #[inline]
    pub(super) fn on_progress(&mut self) {
        self.unanswered = 0;
    }

    /// All that was out is acknowledged; `rest_at`: when to give memory back, if it was just now.
    #[inline]
    pub(super) fn on_all_acknowledged(&mut self, rest_at: Option<Instant>) {
        self.due = false;
        self.unanswered = 0;
        if let Some(at) = rest_at {
            self.at = at;
        }
    }

    /// A probe has left: it ended at `end`, and SND.NXT is `nxt`.
    fn on_sent(&mut self, nxt: SeqNumber, end: SeqNumber, resend: bool) {
        (self.end, self.last) = (nxt, end);
        self.resends = self.resends.saturating_add(resend.into());
        (self.due, self.out) = (false, true);
        self.unanswered = self.unanswered.saturating_add(1);
    }

    /// A range that ends at `end` was reported as a duplicate: if it was the last probe, that repaired nothing.
    fn on_duplicate(&mut self, end: SeqNumber) {
        if self.ended_at(end) {
            self.resends = self.resends.saturating_sub(1);
        }
    }
}

impl Sender {
    /// Whether a loss of the tail would otherwise be found by a time-out only.
    ///
    /// RFC 8985 sends one probe, and none in recovery; a probe, a retransmission or an answer that is lost then costs a
    /// time-out, whose lower bound is a thousand round trips on a short path. So, with [`Options::repeat_tail_probes`],
    /// an unanswered probe is repeated, after twice as long each time (as RFC 9002 section 6.2 does in QUIC), in the
    /// first half of the time-out; and an unanswered retransmission is probed for too, if nothing was sent after it
    /// whose acknowledgement would show its loss.
    pub(super) fn may_probe_tail(&self) -> bool {
        let again = self.options.repeat_tail_probes;
        let wanted = match self.recovery.phase() {
            //= RFC 8985 section 7.2: with SACK, nothing selectively acknowledged; section 7.3: one probe at a time
            Phase::Open => {
                self.board.sacked() == 0 && self.board.lost() == 0 && (again || !self.timers.tail.are_out())
            }
            // Data that waits to be sent again waits for an answer too.
            Phase::Recovery { .. } => again && !self.timers.reorders() && self.board.in_flight() > 0,
            Phase::Loss { .. } => false,
        };
        self.rack.has_sack() && wanted && !self.board.is_empty()
    }

    /// Starts the probe timer, if there may be a probe.
    pub(super) fn schedule_tail_probe(&mut self, now: Instant) {
        self.timers.tail.at = NEVER;
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
        // They count from the last transmission, whose acknowledgement is missed; an acknowledgement of older data puts
        // the probe off by no more than the queue on the path may have grown.
        let unanswered = self.timers.tail.unanswered;
        if unanswered == 0 {
            let at = self.contact.sent().later(patience).max(now.later(trip / 2));
            self.timers.tail.at = at.min(self.timers.retransmit_at());
            return;
        }
        let factor = 1u64.checked_shl(unanswered.into()).unwrap_or(u64::MAX);
        let patience = patience.saturating_mul(factor);
        // Shortly before the time-out no probe is sent: the time-out fires instead.
        if now.later(patience.saturating_mul(2)) <= self.timers.retransmit_at() {
            self.timers.tail.at = now.later(patience);
        }
    }

    /// The segment that makes the peer answer at once: outside of recovery new data if there is any, and if that was
    /// not answered, or there is none, the last segment again; in recovery the first segment that is out again.
    pub(super) fn tail_probe(&self, path: &Path) -> Option<Outgoing> {
        let mss = u32::from(self.size.mss());
        if matches!(self.recovery.phase(), Phase::Recovery { .. }) {
            let first = self.board.first_in_flight()?;
            let len = (first.len() - u32::from(first.fin)).min(mss);
            let span = self.queue.span(self.position(first.start), len, path.max_extents);
            let fin = first.fin && span + 1 == first.len();
            return Some(Outgoing { probe: Probe::Tail, ..self.again(first.start, span, fin) });
        }
        //= RFC 8985 section 7.3: new data if the peer's window allows, else the segment with the highest number; the
        //= congestion window does not matter.
        let unsent = self.unsent();
        let len = unsent.min(u64::from(self.space.usable())).min(u64::from(mss)) as u32;
        // A second new segment could wait for the peer's delay as the first one did: a repetition is answered at once.
        if self.timers.tail.unanswered == 0 && len > 0 && (u64::from(len) == unsent || len == mss) {
            let len = self.queue.span(self.position(self.space.nxt()), len, path.max_extents);
            return Some(self.new_data(len, Probe::Tail));
        }
        let last = self.board.back()?;
        let data = last.len() - u32::from(last.fin);
        let len = data.min(match data % mss {
            0 => mss,
            rest if last.segment_size == self.size.mss() => rest,
            _ => mss,
        });
        let seq = last.end - (len + u32::from(last.fin));
        let span = self.queue.span(self.position(seq), len, path.max_extents);
        Some(Outgoing { probe: Probe::Tail, ..self.again(seq, span, last.fin && span == len) })
    }

    /// A probe has left, which ended at `end`.
    pub(super) fn tail_probe_sent(&mut self, end: SeqNumber, resend: bool) {
        self.timers.tail.on_sent(self.space.nxt(), end, resend);
        self.tally().count(|counts| &mut counts.probes, 1);
    }

    /// Evaluates the probes after an acknowledgement.
    pub(super) fn settle_tail_probe(
        &mut self,
        now: Instant,
        summary: &AckSummary,
        duplicate: Option<SeqRange>,
        pure: bool,
    ) {
        if let Some(block) = duplicate {
            self.timers.tail.on_duplicate(block.end);
        }
        let TailProbes { out, end, resends, .. } = self.timers.tail;
        if !out || self.space.una().is_before(end) {
            return;
        }
        //= RFC 8985 section 7.4.2: new data acknowledged, or a duplicate of the probe reported: no loss; acknowledged
        //= beyond the probe without a duplicate: the probe repaired one.
        let repaired = resends > 0 && self.space.una().is_after(end);
        let settled = resends == 0 || repaired || pure;
        if settled || self.board.is_empty() && summary.acked == 0 {
            self.timers.tail.settle();
        }
        if repaired && self.recovery.is_open() {
            let in_flight = self.in_flight();
            self.control.tell(|controller| controller.on_congestion(now, Congestion::Loss, in_flight.into()));
            self.control.tell(|controller| controller.on_recovery_end(now));
            self.window_reduced();
        }
    }
}
