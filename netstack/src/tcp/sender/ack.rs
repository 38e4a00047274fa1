//! Acknowledgements.

use core::time::Duration;

use super::limits::Limit;
use super::rack::Rack;
use super::rate::Rate;
use super::scoreboard::Record;
use super::window::Change;
use super::{AckIn, AckOut, Phase, ReleaseToken, Sender};
use crate::cc::{AckSample, Congestion, RateSample};
use crate::tcp::memory::Memory;
use crate::time::Instant;
use crate::wire::tcp::{SeqNumber, SeqRange};

/// Two ticks of the timestamp clock.
const TICKS: Duration = Duration::from_millis(2);

/// The content of an acknowledgement.
#[derive(Debug, Default)]
pub(super) struct AckSummary {
    /// SND.UNA before it.
    pub(super) una: SeqNumber,
    /// Sequence numbers acknowledged cumulatively.
    pub(super) acked: u32,
    /// Nothing was being repaired before it.
    open: bool,
    /// Sequence numbers acknowledged for the first time, cumulatively or selectively.
    pub(super) delivered: u32,
    /// Something that was sent more than once was delivered.
    resent: bool,
    /// Something that was sent once and before the last time-out was delivered.
    pub(super) original: bool,
    pub(super) echo: Option<u32>,
    /// Transmission times of the oldest and the newest of the delivered records that were sent once.
    oldest: Option<Instant>,
    newest: Option<Instant>,
    /// The delivered record that was sent last.
    latest: Option<Record>,
    /// A probe of this size got through.
    path_mtu: Option<u16>,
    /// The most payload of a segment that got through.
    size: u16,
}

impl AckSummary {
    fn new(una: SeqNumber, acked: u32, open: bool, echo: Option<u32>) -> Self {
        Self { una, acked, open, echo, ..Self::default() }
    }

    fn note(&mut self, record: &Record, point: Option<SeqNumber>) {
        self.delivered += record.len();
        self.resent |= record.sends > 1;
        self.size = self.size.max(record.payload_per_segment());
        if record.sends == 1 {
            let sent = record.sent_at;
            self.oldest = Some(self.oldest.map_or(sent, |oldest| oldest.min(sent)));
            self.newest = Some(self.newest.map_or(sent, |newest| newest.max(sent)));
            self.original |= point.is_some_and(|point| !record.end.is_after(point));
            if record.path_mtu {
                self.path_mtu = u16::try_from(record.len()).ok();
            }
        }
        if self.latest.is_none_or(|latest| latest.sent_before(record.sent_at, record.end)) {
            self.latest = Some(*record);
        }
    }
}

impl AckSummary {
    /// Whether a round-trip time by timestamps is that of the last transmission of the delivered data. If it is longer,
    /// the timestamp is an earlier transmission's, and either transmission may have been answered: the acknowledgement
    /// of the first may be lost, and this one the peer's answer to the second (RFC 7323 section 4.1 has it measure from
    /// the first, and each lost acknowledgement would add a time-out to the round-trip time).
    fn is_from_latest(&self, now: Instant, rtt: Duration) -> bool {
        !self.resent || self.latest.is_some_and(|latest| rtt <= now.saturating_since(latest.sent_at) + TICKS)
    }
}

/// Processes a delivered record.
struct Delivery<'a> {
    now: Instant,
    summary: &'a mut AckSummary,
    rack: &'a mut Rack,
    rate: &'a mut Rate,
    fack: SeqNumber,
    min: Option<Duration>,
    point: Option<SeqNumber>,
}

impl Delivery<'_> {
    fn on(&mut self, record: &Record) {
        self.summary.note(record, self.point);
        self.rack.on_delivered(self.now, record, self.fack, self.min);
        self.rate.on_delivered(self.now, record.len());
    }
}

impl Sender {
    /// Processes an acknowledgement. `released` gets the tokens of extents that are fully acknowledged.
    pub(crate) fn on_ack(
        &mut self,
        now: Instant,
        ack: &AckIn,
        memory: &mut Memory,
        released: &mut Vec<ReleaseToken>,
    ) -> AckOut {
        if self.control.is_closed() || ack.ack.is_after(self.max_sent()) {
            return AckOut::default();
        }
        if ack.ack.is_before(self.space.una()) {
            self.on_old_ack(now, ack, memory, released);
            return AckOut::default();
        }
        if self.writer.expects_more() && !self.options.cork {
            // The peer was heard: bytes are held back no longer for the writer.
            self.push();
        }
        if let Some(&record) = self.predicted(ack) {
            return self.on_predicted(now, ack, &record, memory, released);
        }
        self.on_any_ack(now, ack, memory, released)
    }

    /// The same for an acknowledgement of any kind, in the range of the outstanding data.
    pub(super) fn on_any_ack(
        &mut self,
        now: Instant,
        ack: &AckIn,
        memory: &mut Memory,
        released: &mut Vec<ReleaseToken>,
    ) -> AckOut {
        self.contact.on_heard(now);
        let probing = self.timers.persist.is_on();
        let same_window = !self.update_window(ack);
        let open = self.recovery.is_open();
        let prior_in_flight = self.in_flight();
        if ack.ack.is_after(self.space.nxt()) {
            // The byte, or the FIN, of a window probe was taken.
            let fin = self.unsent() == 0;
            self.space.on_probe_taken(fin);
        }
        let mut summary =
            AckSummary::new(self.space.una(), ack.ack.distance(self.space.una()), open, ack.echo);
        let duplicate = self.deliver(now, ack, &mut summary, memory, released);
        let fin_acked = summary.acked > 0 && self.space.fin_acked();
        let pure = summary.acked == 0 && !ack.has_data && same_window && ack.sack.is_empty();
        self.on_summary(now, ack, &mut summary, duplicate, pure, prior_in_flight);
        if summary.acked > 0 {
            self.contact.waits_from(now);
        }
        let answered = probing || self.timers.persist.is_on();
        if answered {
            self.window_probe_answered(now);
        }
        AckOut {
            acked: summary.acked,
            fin_acked,
            became_writable: self.unblock(now),
            progress: summary.acked > 0 || answered,
        }
    }

    //= RFC 6675 section 5: the scoreboard learns from any acknowledgement.
    /// One that was overtaken by others: only its SACK blocks may be new.
    fn on_old_ack(
        &mut self,
        now: Instant,
        ack: &AckIn,
        memory: &mut Memory,
        released: &mut Vec<ReleaseToken>,
    ) {
        if !self.rack.has_sack() || ack.sack.is_empty() || self.board.is_empty() {
            return;
        }
        let prior_in_flight = self.in_flight();
        let mut summary = AckSummary::new(self.space.una(), 0, self.recovery.is_open(), ack.echo);
        // Later acknowledgements have reported its ECN mark already, and its timestamp echo is old.
        let ack = AckIn { ece: false, has_data: false, ..*ack };
        let duplicate = self.deliver(now, &ack, &mut summary, memory, released);
        if summary.delivered > 0 || duplicate.is_some() {
            self.on_summary(now, &ack, &mut summary, duplicate, false, prior_in_flight);
        }
    }

    /// Acts on an acknowledgement, once scoreboard and queue are updated. `pure`: it reports nothing new.
    fn on_summary(
        &mut self,
        now: Instant,
        ack: &AckIn,
        summary: &mut AckSummary,
        duplicate: Option<SeqRange>,
        pure: bool,
        prior_in_flight: u32,
    ) {
        self.size.acknowledged(summary.size);
        self.measure(now, ack, summary);
        if ack.has_data && ack.echo.is_some() {
            self.rtt.hear(ack.rtt);
        }
        if let Some(size) = summary.path_mtu {
            self.path_mtu_proved(now, size);
        }
        let mut dsack_segments = 0;
        if let Some(block) = duplicate {
            dsack_segments = block.end.distance(block.start).div_ceil(u32::from(self.size.mss()));
            // A probe that was for nothing says nothing about reordering.
            if !self.timers.tail.ended_at(block.end) {
                self.rack.on_duplicate(self.space.una(), self.space.nxt());
            }
        }
        self.rack.on_progress(self.space.una());
        self.settle_tail_probe(now, summary, duplicate, pure);
        if !self.rack.has_sack() && pure && !self.board.is_empty() {
            self.on_duplicate_ack(summary);
        }

        self.repair(now, summary);
        if dsack_segments > 0 {
            self.on_duplicate_report(now, dsack_segments);
        }
        self.expire_undo();
        let lost = self.find_losses(now, prior_in_flight, summary);
        self.on_ecn_echo(now, ack);
        self.notify_controller(now, ack, summary, prior_in_flight, lost);
        self.timers_on_ack(now, summary.acked > 0, summary.delivered > 0);
    }

    /// Takes the window over, if the segment is not older than the one that announced it last. Returns whether it
    /// changed.
    #[inline]
    pub(super) fn update_window(&mut self, ack: &AckIn) -> bool {
        let change = self.space.update_window(ack);
        if change == Change::Reopened {
            self.on_window_reopened(self.contact.heard());
        }
        change != Change::None
    }

    /// Scoreboard and queue. Returns the block that reports a duplicate, if there is one.
    fn deliver(
        &mut self,
        now: Instant,
        ack: &AckIn,
        summary: &mut AckSummary,
        memory: &mut Memory,
        released: &mut Vec<ReleaseToken>,
    ) -> Option<SeqRange> {
        let point = match self.recovery.phase() {
            Phase::Loss { point, .. } => Some(*point),
            _ => None,
        };
        let (sack, fack, min) = (self.rack.has_sack(), self.rack.fack(), self.rtt.min());
        let moves = ack.ack.is_after(self.space.una());
        if moves {
            self.advance(ack.ack, memory, released);
        }
        let mut delivery =
            Delivery { now, summary, rack: &mut self.rack, rate: &mut self.rate, fack, min, point };
        if moves {
            self.board.acknowledge(ack.ack, |record| delivery.on(record));
        }
        if !sack {
            return None;
        }
        let duplicate = duplicate(ack, self.space.una() - self.space.window().greatest().max(1 << 16));
        // An exact duplicate is followed by the same block once more, which counts like any other.
        for block in ack.sack.as_slice().iter().skip(duplicate.is_some().into()) {
            //= RFC 2018 section 5: blocks beyond what is out mean nothing; those below SND.UNA are duplicates.
            let valid = block.start.is_before(block.end)
                && !block.start.is_before(self.space.una())
                && !block.end.is_after(self.space.nxt());
            if valid {
                self.board.sack(*block, |record| delivery.on(record));
            }
        }
        duplicate
    }

    /// SND.UNA moves on to `una`.
    #[inline]
    pub(super) fn advance(&mut self, una: SeqNumber, memory: &mut Memory, released: &mut Vec<ReleaseToken>) {
        self.queue.acknowledge(self.position(una), memory, released);
        self.control.advance(self.space.una());
        self.space.acknowledge(una);
        self.ecn.advance(una);
    }

    /// Round-trip time.
    fn measure(&mut self, now: Instant, ack: &AckIn, summary: &AckSummary) {
        //= RFC 6298 section 3: not from what was sent again (Karn's algorithm), unless a timestamp shows which it was.
        // Data that arrived behind a hole has waited at the peer until that was filled.
        if let (Some(oldest), Some(newest), false) = (summary.oldest, summary.newest, summary.resent) {
            self.rtt.observe(now.saturating_since(newest));
            self.rtt.sample(now.saturating_since(oldest), self.space.una(), self.space.nxt());
        } else if let Some(rtt) = ack.rtt.filter(|rtt| summary.acked > 0 && summary.is_from_latest(now, *rtt))
        {
            self.rtt.coarse_sample(rtt, self.space.una(), self.space.nxt());
        } else if summary.acked > 0 {
            self.rtt.calm();
        }
    }

    /// A duplicate acknowledgement on a connection without SACK: a segment has left the network.
    fn on_duplicate_ack(&mut self, summary: &mut AckSummary) {
        let mss = u32::from(self.size.mss());
        let limit = self.board.in_flight().saturating_sub(mss);
        summary.delivered += self.recovery.on_duplicate_ack(mss, limit);
    }

    /// Losses that the acknowledgement shows. Returns how many bytes.
    fn find_losses(&mut self, now: Instant, prior_in_flight: u32, summary: &AckSummary) -> u32 {
        let mss = u32::from(self.size.mss());
        let mut lost = 0;
        if self.rack.has_sack() {
            if summary.delivered > 0 {
                lost = self.detect_losses(now, prior_in_flight, summary.delivered);
            }
        } else if self.recovery.is_open() {
            if summary.acked > 0 {
                self.recovery.forget_duplicates();
            }
            //= RFC 5681 section 3.2: three duplicate acknowledgements; RFC 6582 section 3.2, step 2: not for what a
            //= recovery that is over has sent again.
            let enough = self.recovery.duplicates() >= 3 * mss.min(u32::MAX / 3);
            let covered =
                self.recovery.repaired_until().is_none_or(|until| !self.space.una().is_before(until));
            if enough && covered && summary.delivered > 0 {
                if self.board.front().is_some_and(|front| front.path_mtu) {
                    self.path_mtu_lost(now);
                }
                lost = self.board.lose_front(mss);
                self.rate.on_lost(lost);
            }
        }
        if self.recovery.is_open() && self.board.lost() > 0 && self.pending_losses() {
            self.begin_recovery(now, prior_in_flight, summary.delivered);
        }
        lost
    }

    //= RFC 3168 section 6.1.2: ECN echo is a sign of congestion, at most once per window of data.
    fn on_ecn_echo(&mut self, now: Instant, ack: &AckIn) {
        if !ack.ece || !self.recovery.is_open() || !self.ecn.counts(self.space.una()) {
            return;
        }
        let in_flight = self.in_flight();
        self.control.tell(|controller| controller.on_congestion(now, Congestion::Ecn, in_flight.into()));
        self.window_reduced();
    }

    fn notify_controller(
        &mut self,
        now: Instant,
        ack: &AckIn,
        summary: &mut AckSummary,
        prior_in_flight: u32,
        lost: u32,
    ) {
        if summary.delivered == 0 && summary.acked == 0 && lost == 0 {
            return;
        }
        let in_flight = self.in_flight();
        let (threshold, mss) = (self.threshold(), u32::from(self.size.mss()));
        //= RFC 9937 section 6.2: safe means progress without further losses
        let safe = summary.acked > 0 && lost == 0;
        self.recovery.on_ack(summary.delivered, in_flight, threshold, mss, safe);
        let rate = summary.latest.and_then(|latest| self.sample_rate(&latest));
        let sample = AckSample {
            now,
            //= RFC 5681 section 3.2, RFC 3042 section 2: a duplicate acknowledgement lets a segment go, but does not make the
            //= window larger: its bytes count when they are acknowledged. Those of a repair do not count a second time.
            acked: u64::from(if summary.open { summary.acked } else { summary.acked.min(summary.delivered) }),
            delivered: u64::from(if self.rack.has_sack() { summary.delivered } else { summary.acked }),
            prior_in_flight: u64::from(prior_in_flight),
            in_flight: u64::from(in_flight),
            rtt: summary.newest.filter(|_| !summary.resent).map(|newest| now.saturating_since(newest)),
            srtt: self.rtt.srtt(),
            min_rtt: self.rtt.min(),
            rate,
            marked: if self.ecn.is_on() && ack.ece { u64::from(summary.delivered) } else { 0 },
            lost: u64::from(lost),
            in_recovery: matches!(self.recovery.phase(), Phase::Recovery { .. }),
            window_limited: self.control.was_limiting(summary.una),
        };
        self.control.tell(|controller| controller.on_ack(&sample));
    }

    /// The path's delivery rate up to `latest`, for a controller that uses it.
    #[inline]
    pub(super) fn sample_rate(&mut self, latest: &Record) -> Option<RateSample> {
        self.rate.begin_after(latest);
        let wanted = self.control.get().is_some_and(|controller| controller.uses_rate());
        if wanted { self.rate.sample(latest, self.rtt.min()) } else { None }
    }

    /// Whether there is enough room again for a writer that was turned away.
    #[inline]
    pub(crate) fn unblock(&mut self, now: Instant) -> bool {
        if self.queue.len() == 0 && self.board.is_empty() {
            self.ends_all_waits(now);
        }
        self.writer.is_blocked() && self.unblock_writer(now)
    }

    /// The same, as there is such a writer.
    fn unblock_writer(&mut self, now: Instant) -> bool {
        let idle = self.queue.len() == 0;
        let most = self.options.send_buffer.min(self.options.unsent_limit.unwrap_or(usize::MAX));
        let unblocked = self.room() >= most.div_ceil(4) || idle;
        if unblocked {
            self.writer.unblock();
            self.ends_wait(now, Limit::Buffer);
        }
        unblocked
    }
}

/// The first block, if it reports a segment that arrived twice; `oldest` is the lowest number that can be meant.
fn duplicate(ack: &AckIn, oldest: SeqNumber) -> Option<SeqRange> {
    let (first, rest) = ack.sack.as_slice().split_first()?;
    if !first.start.is_before(first.end) || first.start.is_before(oldest) {
        return None;
    }
    //= RFC 2883 section 4: a first block below the acknowledgement, or within the second block.
    let below = !first.end.is_after(ack.ack);
    let within = rest
        .first()
        .is_some_and(|second| !first.start.is_before(second.start) && !first.end.is_after(second.end));
    (below || within).then_some(*first)
}
