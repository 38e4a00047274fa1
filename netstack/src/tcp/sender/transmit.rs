//! The choice of the next segment: retransmissions, new data, the FIN, probes.

use core::time::Duration;

use super::limits::Limit;
use super::{Outgoing, Path, Phase, Probe, Sender, path_mtu};
use crate::region::Extent;
use crate::time::Instant;
use crate::wire::tcp::SeqNumber;

/// A path on which nothing needs to be cut.
const ANY: Path =
    Path { mtu: u16::MAX, max_payload: u32::MAX, max_extents: usize::MAX, max_segments: u32::MAX };

/// Why nothing leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    /// There is nothing to send.
    Nothing,
    /// For the congestion window.
    Congestion,
    /// For the peer's window.
    Window,
    /// For the time of the next burst.
    Pace,
    /// For an acknowledgement of a small segment.
    Nagle,
    /// For the data that the user announced.
    More,
}

type Plan = Result<Outgoing, Wait>;

impl Sender {
    /// Whether [`Sender::next`] has something to send, or to decide.
    #[inline]
    pub(crate) fn wants_transmit(&self, now: Instant) -> bool {
        if self.has_nothing() {
            debug_assert!(self.plan(Some(now), &ANY).is_err());
            return false;
        }
        self.may_transmit(now)
    }

    /// The same, as there is something to send.
    fn may_transmit(&self, now: Instant) -> bool {
        if self.has_way(now) {
            debug_assert!(self.plan(Some(now), &ANY).is_ok());
            return true;
        }
        match self.plan(Some(now), &ANY) {
            Ok(_) => true,
            Err(Wait::Window) => self.should_persist() || !self.waits_at_least(Limit::Window),
            Err(Wait::More) => self.should_persist(),
            Err(_) => false,
        }
    }

    /// Whether there is surely nothing to send: all that was written has left, nothing is lost, and no probe is due.
    /// This holds most of the time, and is found with less effort than a plan takes.
    #[inline]
    pub(super) fn has_nothing(&self) -> bool {
        let due = self.timers.persist.is_due() || self.timers.tail.is_due();
        self.unsent() == 0 && !self.space.owes_fin() && !due && self.board.lost() == 0
    }

    /// Whether the written bytes can surely leave: nothing is out, and the peer has room for all of them. This is found
    /// with as little effort.
    #[inline]
    fn has_way(&self, now: Instant) -> bool {
        let unsent = self.unsent();
        let admitted = unsent > 0 && unsent <= u64::from(self.space.usable());
        admitted
            && self.board.is_empty()
            && !self.control.waits_for_pace(now)
            && !self.control.has_no_controller()
            && !self.holds()
    }

    /// Whether something could leave if it were not for the pace.
    #[inline]
    pub(super) fn waits_for_pace(&self) -> bool {
        !self.has_nothing()
            && self.control.paces(&self.options)
            && matches!(self.plan(None, &ANY), Ok(Outgoing { probe: Probe::None, .. }))
    }

    /// The segment to send now. To be called again after [`Sender::on_sent`].
    pub(crate) fn next(&mut self, now: Instant, path: &Path) -> Option<Outgoing> {
        self.control.get()?;
        if self.has_nothing() {
            self.on_emptied(now);
            return None;
        }
        self.obey_path(now, path);
        self.restart_after_idle(now);
        match self.plan(Some(now), path) {
            Ok(out) => {
                self.ends_wait(now, Limit::Window);
                Some(out)
            }
            Err(wait) => {
                if wait == Wait::Window {
                    self.starts_wait(now, Limit::Window);
                } else {
                    self.ends_wait(now, Limit::Window);
                }
                match wait {
                    // Data held back for more to follow leaves in the end, as data behind a small window does.
                    Wait::Window | Wait::More if self.should_persist() => self.start_persisting(now),
                    Wait::Congestion => self.control.is_limiting(self.space.nxt()),
                    Wait::Nothing => self.note_app_limited(),
                    _ => {}
                }
                None
            }
        }
    }

    /// All that was written has left.
    #[inline]
    pub(crate) fn on_emptied(&mut self, now: Instant) {
        if self.writer.is_blocked() && !self.fills_window() {
            self.starts_wait(now, Limit::Buffer);
        }
        if !self.control.waits_for_pace(now) {
            self.note_app_limited();
        }
    }

    /// Whether the congestion window has no room for another segment.
    #[inline]
    fn fills_window(&self) -> bool {
        u64::from(self.in_flight()) + u64::from(self.size.mss()) > self.congestion_window()
    }

    /// All written bytes, if they fit a segment on every path, are in one piece, and nothing holds them back: a small
    /// request, or the answer to one. The result is that of [`Sender::next`], which needs the path.
    #[inline]
    pub(crate) fn small_message(&mut self, now: Instant) -> Option<Outgoing> {
        let due = self.timers.persist.is_due() || self.timers.tail.is_due() || self.space.is_finished();
        let whole = !self.writer.expects_more() && !self.queue.has_marks();
        let len = self.queue.len_of_only()?;
        let small = len < u64::from(self.size.mss().min(path_mtu::LEAST)) && self.size.is_settled();
        if due || !whole || !small || len != self.unsent() || !self.has_way(now) {
            return None;
        }
        self.restart_after_idle(now);
        let out = Outgoing {
            seq: self.space.nxt(),
            len: len as u32,
            segment_size: self.size.mss(),
            fin: false,
            psh: true,
            cwr: self.ecn.says_cwr(),
            ect: self.ecn.is_on(),
            resend: false,
            probe: Probe::None,
        };
        debug_assert_eq!(self.plan(Some(now), &ANY), Ok(out));
        Some(out)
    }

    #[inline]
    fn note_app_limited(&mut self) {
        let in_flight = self.in_flight();
        if u64::from(in_flight) < self.congestion_window() && self.board.lost() == 0 {
            self.rate.set_app_limited(in_flight);
        }
    }

    /// The extents of a segment to send, appended in order.
    #[inline]
    pub(crate) fn extents(&self, out: &Outgoing, into: &mut Vec<Extent>) {
        self.queue.extents(self.position(out.seq), out.len, into);
    }

    /// Plans the next segment; `now` is `None` to leave pacing out.
    fn plan(&self, now: Option<Instant>, path: &Path) -> Plan {
        if self.control.has_no_controller() {
            return Err(Wait::Nothing);
        }
        if self.timers.persist.is_due()
            && let Some(out) = self.window_probe()
        {
            return Ok(out);
        }
        if self.timers.tail.is_due()
            && let Some(out) = self.tail_probe(path)
        {
            return Ok(out);
        }
        if let Some(now) = now
            && self.control.waits_for_pace(now)
        {
            return Err(Wait::Pace);
        }
        let cautious = matches!(self.recovery.phase(), Phase::Loss { frto: true, new: true, .. });
        if !cautious && let Some(plan) = self.resend(path) {
            return plan;
        }
        self.fresh(path)
    }

    pub(super) fn again(&self, seq: SeqNumber, len: u32, fin: bool) -> Outgoing {
        Outgoing {
            seq,
            len,
            segment_size: self.size.mss(),
            fin,
            psh: self.pushes(self.position(seq) + u64::from(len)),
            cwr: false,
            //= RFC 3168 section 6.1.5: retransmissions are not marked ECN-capable.
            ect: false,
            resend: true,
            probe: Probe::None,
        }
    }

    pub(super) fn new_data(&self, len: u32, probe: Probe) -> Outgoing {
        let all = u64::from(len) == self.unsent();
        Outgoing {
            seq: self.space.nxt(),
            len,
            segment_size: self.size.mss(),
            fin: all && self.space.is_finished() && (self.space.usable() > len || probe == Probe::Window),
            psh: len > 0 && self.pushes(self.position(self.space.nxt()) + u64::from(len)),
            cwr: len > 0 && self.ecn.says_cwr(),
            ect: len > 0 && self.ecn.is_on(),
            resend: false,
            probe,
        }
    }

    /// The first data that is lost; `None` if none is.
    fn resend(&self, path: &Path) -> Option<Plan> {
        let lost = self.board.next_lost()?;
        let mss = u32::from(self.size.mss());
        let mut len = lost.len() - u32::from(lost.fin);
        let in_flight = u64::from(self.in_flight());
        let open = self.congestion_window().saturating_sub(in_flight);
        if in_flight > 0 && open < u64::from(len.min(mss)) {
            return Some(Err(Wait::Congestion));
        }
        //= RFC 9293 section 3.8.6, SHLD-16: of what a window has shrunk behind, that which it still admits is sent again;
        //= MUST-35: beyond it the oldest segment alone, which probes a window that has shrunk to zero.
        let admitted = self.space.right_edge().distance(lost.start);
        if admitted < len.min(mss) && lost.start != self.space.una() {
            return Some(Err(Wait::Window));
        }
        let limit = self.burst(path).min(u32::try_from(open).unwrap_or(u32::MAX)).min(admitted).max(mss);
        let mut fin = lost.fin;
        if len > limit {
            len = whole(limit, mss);
            fin = false;
        }
        let span = self.queue.span(self.position(lost.start), len, path.max_extents);
        if span < len {
            len = whole(span, mss);
            fin = false;
        }
        Some(Ok(self.again(lost.start, len, fin)))
    }

    /// Data that was never sent, or the FIN.
    fn fresh(&self, path: &Path) -> Plan {
        let unsent = self.unsent();
        let usable = self.space.usable();
        if unsent == 0 {
            if !self.space.owes_fin() {
                return Err(Wait::Nothing);
            }
            return if usable == 0 { Err(Wait::Window) } else { Ok(self.new_data(0, Probe::None)) };
        }
        let mss = u32::from(self.size.mss());
        let in_flight = u64::from(self.in_flight());
        // A segment at least may leave when nothing is out.
        let open = || match in_flight {
            0 => self.congestion_window().max(u64::from(mss)),
            _ => self.congestion_window().saturating_sub(in_flight),
        };
        let admitted = unsent.min(u64::from(usable)) as u32;
        let all = u64::from(admitted) == unsent;
        //= RFC 9293 section 3.7.4, SHLD-7, MUST-17: Nagle's algorithm can be switched off per connection; as long as a small
        //= segment is out, no other follows.
        let small_out = self.options.nagle && !self.space.is_finished() && self.space.small_is_out();
        // Data with another record behind it waits for nothing.
        let last = self.queue.within_record(self.position(self.space.nxt()), admitted) == admitted;
        let more = self.holds();
        if admitted < mss {
            //= RFC 9293 section 3.8.6.2.1, MUST-38: a full segment, or all that is there, or half the greatest window
            if !all && (admitted == 0 || admitted < self.space.window().greatest() / 2) {
                return Err(Wait::Window);
            }
            if small_out && last {
                return Err(Wait::Nagle);
            }
            if more && last {
                return Err(Wait::More);
            }
            if in_flight > 0 && open() < u64::from(admitted) {
                return Err(Wait::Congestion);
            }
            let len = self.queue.span(self.position(self.space.nxt()), admitted, path.max_extents);
            return Ok(self.new_data(len, Probe::None));
        }
        let open = open();
        if open < u64::from(mss) {
            return Err(Wait::Congestion);
        }
        if let Some(size) = self.path_mtu_candidate(admitted) {
            // Nothing else is sent until the window has room for the probe.
            return if in_flight > 0 && open < u64::from(size) {
                Err(Wait::Congestion)
            } else {
                Ok(Outgoing { segment_size: size, ..self.new_data(u32::from(size), Probe::PathMtu) })
            };
        }
        //= RFC 9293 section 3.9.1.2, SHLD-28: full segments, whatever the sizes of the writes were.
        let mut len = admitted.min(u32::try_from(open).unwrap_or(u32::MAX)).min(self.burst(path));
        if u64::from(len) != unsent || small_out || more {
            len = whole(len, mss);
        }
        let span = self.queue.span(self.position(self.space.nxt()), len, path.max_extents);
        if span < len {
            len = whole(span, mss);
        }
        Ok(self.new_data(len, Probe::None))
    }

    /// The most that leaves at once, in bytes: at least a segment, and whole ones.
    fn burst(&self, path: &Path) -> u32 {
        let mss = u32::from(self.size.mss());
        let mut burst = u64::from(path.max_payload).min(u64::from(path.max_segments) * u64::from(mss));
        let window = self.congestion_window().min(u64::from(self.space.window().greatest()));
        // About half a window keeps the acknowledgements coming.
        burst = burst.min(window / 2);
        let quantum = self.control.get().and_then(|controller| controller.send_quantum());
        match (quantum, self.control.pacing_rate(&self.options, &self.rtt)) {
            (Some(quantum), _) => burst = burst.min(quantum),
            // About a millisecond's worth.
            (None, Some(rate)) => burst = burst.min((rate / 1000).max(u64::from(2 * mss))),
            (None, None) => {}
        }
        whole(u32::try_from(burst).unwrap_or(u32::MAX), mss).max(mss)
    }

    //= RFC 5681 section 4.1: after an idle retransmission time-out there is no clock of acknowledgements.
    #[inline]
    fn restart_after_idle(&mut self, now: Instant) {
        if !self.board.is_empty() || self.unsent() == 0 {
            return;
        }
        let idle = now.nanos_since(self.contact.sent());
        if self.rtt.is_exceeded(idle, &self.options) {
            let (idle, rto) = (Duration::from_nanos(idle), self.rtt.rto(&self.options));
            self.control.tell(|controller| controller.on_idle_restart(now, idle, rto));
            self.contact.on_sent(now);
        }
    }

    /// The segment that [`Sender::next`] returned has left. `timestamp` is the value of the timestamps option on it.
    pub(crate) fn on_sent(&mut self, now: Instant, out: &Outgoing, timestamp: Option<u32>) {
        if out.probe == Probe::Window {
            self.window_probe_sent(now);
            return;
        }
        let span = out.span();
        if span == 0 {
            return;
        }
        self.starts_wait(now, Limit::Busy);
        if self.board.is_empty() {
            self.contact.waits_from(now);
            self.timers.persist.stop();
        }
        let in_flight = self.in_flight();
        let stamp = self.rate.on_sent(now, in_flight, in_flight.saturating_add(span));
        let app_limited = self.rate.is_app_limited();
        let end = out.seq + span;
        if out.resend {
            self.board.resent(out.seq..end, |record| {
                record.sent_at = now;
                record.stamp = stamp;
                record.segment_size = out.segment_size;
                record.path_mtu = false;
            });
            self.tally().count(|counts| &mut counts.retransmitted, out.segments());
            if out.seq == self.space.una() && (out.probe != Probe::Tail || self.timers.tail.unanswered() == 0)
            {
                self.oldest_resent(now);
            }
            if out.probe != Probe::Tail || matches!(self.recovery.phase(), Phase::Recovery { .. }) {
                self.recovery.on_resent(out.seq, out.segments(), timestamp);
            }
        } else {
            self.board.push(super::scoreboard::Record {
                start: out.seq,
                end,
                sent_at: now,
                stamp,
                segment_size: out.segment_size,
                sends: 1,
                sacked: false,
                lost: false,
                fin: out.fin,
                path_mtu: out.probe == Probe::PathMtu,
            });
            let small = out.len < u32::from(out.segment_size) && out.len > 0
                || !out.len.is_multiple_of(u32::from(out.segment_size).max(1));
            self.space.on_sent(end, out.fin, small);
            self.ecn.said_cwr(out.cwr);
        }
        self.recovery.on_sent(span);
        self.control.tell(|controller| {
            controller.on_sent(now, span.into(), in_flight.into(), app_limited);
        });
        match out.probe {
            Probe::Tail => self.tail_probe_sent(end, out.resend),
            Probe::PathMtu => self.path_mtu_sent(),
            _ => {}
        }
        if self.fills_window() {
            self.control.is_limiting(self.space.nxt());
        }
        self.control.pace(now, span, &self.options, &self.rtt);
        self.contact.on_sent(now);
        self.timers_on_sent(now);
    }
}

/// `len` cut to whole segments if it is more than one.
fn whole(len: u32, mss: u32) -> u32 {
    if len > mss { len - len % mss } else { len }
}
