//! Repairing losses: fast recovery (RFC 6675 by way of RFC 8985, RFC 6582 without SACK), time-outs (RFC 5681), and
//! undoing spurious repairs (F-RTO, RFC 5682; Eifel, RFC 3522; duplicate SACK, RFC 3708).

use super::Sender;
use super::ack::AckSummary;
use super::phase::Phase;
use super::prr::Prr;
use crate::cc::Congestion;
use crate::time::Instant;
use crate::wire::tcp::SeqNumber;

/// The state that shows whether a recovery was spurious.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Undo {
    /// The first number sent again, and the timestamp it had.
    first: Option<(SeqNumber, Option<u32>)>,
    /// Segments sent again that were not reported as duplicates.
    resent: u32,
    /// The recovery is over; after this number nothing can be taken back.
    until: Option<SeqNumber>,
}

/// The present repair, and the state to undo it. There is something to undo only during a repair and until the data
/// sent by its end is acknowledged; `duplicates` stays 0 with SACK, whose scoreboard shows which segments have left the
/// network.
#[derive(Debug)]
pub(super) struct Recovery {
    phase: Phase,
    undo: Option<Undo>,
    /// Segments that have left the network by duplicate acknowledgements, in bytes: without SACK only.
    duplicates: u32,
}

impl Recovery {
    pub(super) fn new() -> Self {
        Self { phase: Phase::Open, undo: None, duplicates: 0 }
    }

    #[inline]
    pub(super) fn phase(&self) -> &Phase {
        &self.phase
    }

    /// Whether nothing is being repaired.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open)
    }

    /// Whether nothing is, nor was lately, and no acknowledgement was a duplicate.
    #[inline]
    pub(super) fn is_quiet(&self) -> bool {
        self.is_open() && self.undo.is_none() && self.duplicates == 0
    }

    /// Retransmission time-outs without progress.
    pub(super) fn timeouts(&self) -> u8 {
        match self.phase {
            Phase::Loss { timeouts, .. } => timeouts,
            _ => 0,
        }
    }

    /// Something new was acknowledged.
    #[inline]
    pub(super) fn on_progress(&mut self) {
        if let Phase::Loss { timeouts, .. } = &mut self.phase {
            *timeouts = 0;
        }
    }

    /// Bytes that have left the network by duplicate acknowledgements.
    #[inline]
    pub(super) fn duplicates(&self) -> u32 {
        self.duplicates
    }

    /// A segment of `mss` bytes has left the network, of `limit` bytes at most. Returns how many bytes that is.
    pub(super) fn on_duplicate_ack(&mut self, mss: u32, limit: u32) -> u32 {
        let before = self.duplicates;
        self.duplicates = (before + mss).min(limit.max(before));
        self.duplicates - before
    }

    /// SND.UNA has moved on while nothing was being repaired.
    pub(super) fn forget_duplicates(&mut self) {
        self.duplicates = 0;
    }

    /// The end of the data that the last recovery had to repair.
    pub(super) fn repaired_until(&self) -> Option<SeqNumber> {
        self.undo.and_then(|undo| undo.until)
    }

    /// Nothing is out: nothing can be taken back.
    pub(super) fn forget_undo(&mut self) {
        self.undo = None;
    }

    /// Bytes have left.
    #[inline]
    pub(super) fn on_sent(&mut self, bytes: u32) {
        if let Phase::Recovery { prr, .. } = &mut self.phase {
            prr.on_sent(bytes);
        }
    }

    /// Segments from SND.UNA or above were sent again, the first with this timestamp.
    pub(super) fn on_resent(&mut self, seq: SeqNumber, segments: u32, timestamp: Option<u32>) {
        if let Some(undo) = &mut self.undo {
            undo.first.get_or_insert((seq, timestamp));
            undo.resent += segments;
        }
    }

    /// An acknowledgement during fast recovery, as [`Prr::on_ack`] has it.
    pub(super) fn on_ack(&mut self, delivered: u32, in_flight: u32, threshold: u64, mss: u32, safe: bool) {
        if let Phase::Recovery { prr, .. } = &mut self.phase {
            prr.on_ack(delivered, in_flight, threshold, mss, safe);
        }
    }
}

impl Sender {
    /// Looks for losses by time, and begins a recovery if there are any. Returns how many bytes were lost.
    pub(super) fn detect_losses(&mut self, now: Instant, prior_in_flight: u32, delivered: u32) -> u32 {
        if !self.rack.has_sack() {
            return 0;
        }
        if self.board.is_empty() {
            self.timers.reorder_at(None);
            return 0;
        }
        let recovering = !self.recovery.is_open();
        let (srtt, min) = (self.rtt.srtt(), self.rtt.min());
        let found = self.rack.detect(now, &mut self.board, srtt, min, recovering);
        self.timers.reorder_at(found.again);
        if found.path_mtu > 0 {
            self.path_mtu_lost(now);
        }
        //= RFC 4821 section 7.5: the loss of a probe alone is no sign of congestion
        let lost = found.lost - found.path_mtu;
        self.rate.on_lost(lost);
        if lost > 0 && !recovering {
            self.begin_recovery(now, prior_in_flight, delivered);
        }
        lost
    }

    /// Losses were found that no recovery is repairing yet.
    pub(super) fn begin_recovery(&mut self, now: Instant, prior_in_flight: u32, delivered: u32) {
        let flight = self
            .space
            .nxt()
            .distance(self.space.una())
            .saturating_sub(self.board.sacked())
            .saturating_add(delivered);
        self.control
            .tell(|controller| controller.on_congestion(now, Congestion::Loss, prior_in_flight.into()));
        self.window_reduced();
        self.recovery.undo = Some(Undo::default());
        // The retransmission serves as the probe.
        self.timers.tail.cancel();
        let mut prr = Prr::new(flight);
        prr.on_ack(0, self.in_flight(), self.threshold(), u32::from(self.size.mss()), false);
        self.recovery.phase = Phase::Recovery { point: self.space.nxt(), prr };
    }

    /// Whether losses wait that are not those of a path MTU probe or of an ICMP error.
    pub(super) fn pending_losses(&self) -> bool {
        self.size.is_unproven() || self.board.sacked() > 0
    }

    /// Losses were found without an acknowledgement: they do not open the window.
    pub(super) fn limit_recovery(&mut self) {
        let (in_flight, threshold) = (self.in_flight(), self.threshold());
        let mss = u32::from(self.size.mss());
        self.recovery.on_ack(0, in_flight, threshold, mss, false);
    }

    /// The threshold towards which the window is reduced.
    pub(super) fn threshold(&self) -> u64 {
        self.control.threshold().unwrap_or(0)
    }

    /// The window was reduced, for any reason.
    pub(super) fn window_reduced(&mut self) {
        self.ecn.reduced(self.space.nxt());
    }

    /// The retransmission timer ran out.
    pub(super) fn begin_loss(&mut self, now: Instant) {
        let in_flight = self.in_flight();
        //= RFC 2018 section 8: after a time-out selective acknowledgements are not relied on if the peer shows that it
        //= has thrown data away: the oldest segment cannot be selectively acknowledged.
        let reneged = self.board.front().is_some_and(|front| front.sacked);
        if reneged {
            self.board.renege();
        }
        let all = reneged || !self.rack.has_sack();
        let (rack, una) = (&self.rack, self.space.una());
        let (srtt, min) = (self.rtt.srtt(), self.rtt.min());
        let lost = self
            .board
            .lose(|record| Some(all || record.start == una || rack.overdue(now, record, srtt, min)));
        self.rate.on_lost(lost);
        let open = self.recovery.is_open();
        let timeouts = self.recovery.timeouts();
        if timeouts == 0 {
            //= RFC 5681 section 3.1, equation 4: the threshold falls once, not with each time-out of the same data.
            self.control
                .tell(|controller| controller.on_congestion(now, Congestion::Timeout, in_flight.into()));
            self.recovery.undo = Some(Undo::default());
        }
        self.window_reduced();
        self.recovery.duplicates = 0;
        self.control.restart_pace(now);
        self.tally().count(|counts| &mut counts.timeouts, 1);
        self.recovery.phase = Phase::Loss {
            point: self.space.nxt(),
            frto: (open || timeouts > 0) && !reneged,
            new: false,
            timeouts: timeouts.saturating_add(1),
        };
        self.black_hole(now, timeouts);
    }

    /// Applies an acknowledgement to the repair that is going on.
    pub(super) fn repair(&mut self, now: Instant, summary: &AckSummary) {
        if self.was_delayed(summary) {
            self.take_back(now);
            return;
        }
        match self.recovery.phase {
            Phase::Open => {}
            Phase::Recovery { point, .. } => {
                if !self.space.una().is_before(point) {
                    self.end_repair(now);
                } else if !self.rack.has_sack() && summary.acked > 0 {
                    //= RFC 6582 section 3.2, step 3: a partial acknowledgement shows the next hole
                    self.recovery.duplicates = self
                        .recovery
                        .duplicates
                        .saturating_sub(summary.acked.saturating_sub(u32::from(self.size.mss())));
                    let lost = self.board.lose_front(u32::from(self.size.mss()));
                    self.rate.on_lost(lost);
                }
            }
            Phase::Loss { point, frto, timeouts, .. } => {
                //= RFC 5682 section 3.1, step 3: what was sent once, before the time-out, arrived after all
                // (without SACK it may have waited behind the hole: only a second acknowledgement shows it)
                if frto && summary.original && (self.rack.has_sack() || self.space.nxt().is_after(point)) {
                    self.take_back(now);
                    return;
                }
                if !self.space.una().is_before(point) {
                    self.end_repair(now);
                    return;
                }
                if !frto {
                    return;
                }
                let sent_new = self.space.nxt().is_after(point);
                let next = if sent_new {
                    //= RFC 5682 section 3.1, step 3a: nothing but duplicates follows: the loss was real.
                    (summary.acked > 0, false)
                } else if summary.acked > 0 {
                    //= RFC 5682 section 3.1, step 2b: up to two new segments instead of retransmissions, if there are
                    let new = self.unsent() > 0
                        && u64::from(self.space.usable()) >= self.unsent().min(u64::from(self.size.mss()));
                    (new, new)
                } else {
                    (true, false)
                };
                self.recovery.phase = Phase::Loss { point, frto: next.0, new: next.1, timeouts };
            }
        }
    }

    /// Everything out when the repair began is acknowledged.
    fn end_repair(&mut self, now: Instant) {
        self.control.tell(|controller| controller.on_recovery_end(now));
        self.rack.on_recovery_end();
        self.recovery.phase = Phase::Open;
        self.recovery.duplicates = 0;
        self.timers.tail.settle();
        let until = self.space.nxt();
        if let Some(undo) = &mut self.recovery.undo {
            undo.until = Some(until);
        }
    }

    /// Eifel: the acknowledgement of the first number sent again echoes a timestamp from before that.
    fn was_delayed(&self, summary: &AckSummary) -> bool {
        let Some(Undo { first: Some((first, Some(stamp))), until: None, .. }) = self.recovery.undo else {
            return false;
        };
        //= RFC 3522 section 3.2, step 5: older than the retransmission means that the original arrived.
        summary.acked > 0
            && !first.is_before(summary.una)
            && self.space.una().is_after(first)
            && summary.echo.is_some_and(|echo| (echo.wrapping_sub(stamp) as i32) < 0)
    }

    /// `segments` were reported as duplicates.
    pub(super) fn on_duplicate_report(&mut self, now: Instant, segments: u32) {
        let Some(undo) = &mut self.recovery.undo else { return };
        if undo.resent == 0 {
            return;
        }
        //= RFC 3708 section 3: if all that was sent again arrived twice, none of it was lost.
        undo.resent = undo.resent.saturating_sub(segments);
        if undo.resent == 0 {
            self.take_back(now);
        }
    }

    /// The repair was for nothing.
    fn take_back(&mut self, now: Instant) {
        self.control.tell(|controller| controller.undo(now));
        if matches!(self.recovery.phase, Phase::Recovery { .. }) {
            self.rack.on_reordering();
        }
        self.board.unlose();
        self.recovery.phase = Phase::Open;
        self.recovery.undo = None;
        self.recovery.duplicates = 0;
        self.timers.reorder_at(None);
        self.ecn.taken_back(self.space.una());
        self.tally().count(|counts| &mut counts.spurious, 1);
    }

    /// Drops the state to undo a repair when it is too late for that.
    pub(super) fn expire_undo(&mut self) {
        let una = self.space.una();
        if self.recovery.undo.is_some_and(|undo| undo.until.is_some_and(|until| una.is_after(until))) {
            self.recovery.undo = None;
        }
    }
}
