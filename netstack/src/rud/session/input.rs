//! Received datagrams: their checks, their acknowledgements, their messages.

use super::{Accepted, Look, Session, Settled};
use crate::rud::api::{Clue, DatagramMeta, Disposition, RefusalReason, Sink};
use crate::rud::asks::{MOST_AT_ONCE, ONE_DOUBT};
use crate::rud::cc::{AckSample, Controller as _};
use crate::rud::pieces::Piece;
use crate::rud::receiver::Arrival;
use crate::rud::recovery::NEVER;
use crate::rud::sender::{AckContext, Acked};
use crate::wire::rud::{Block, Bundled, DatagramKind, HEADER_LEN, Header, Psn, SPLIT_LEN};

/// A datagram is late that one overtook which was sent this part of the base after it.
const LATE: u64 = 8;

impl Session {
    /// A datagram with the session's tag, which this end may have had for `late` nanoseconds before it looked.
    #[inline]
    pub(in crate::rud) fn on_datagram(
        &mut self,
        look: Look,
        meta: &DatagramMeta,
        header: &Header,
        datagram: &[u8],
        sink: &mut impl Sink,
    ) -> Accepted {
        //= rud/spec.md section 5.1, RUD-17
        // Addresses, then the CRC are checked, before anything takes effect.
        if !self.paths.lead(meta) {
            self.liveness.on_clue(look.now, Clue::OtherAddress);
            return Accepted::WrongAddress;
        }
        //= rud/spec.md section 10, RUD-90
        if self.is_sealed() || !self.paths.verify(meta, header, datagram) {
            self.on_damaged(look.now);
            return Accepted::Damaged;
        }
        self.on_checked(look, meta, header, datagram, sink)
    }

    /// Whether a sealed datagram has the session's addresses.
    pub(in crate::rud) fn leads(&mut self, now: u64, meta: &DatagramMeta) -> bool {
        let leads = self.paths.lead(meta);
        if !leads {
            self.liveness.on_clue(now, Clue::OtherAddress);
        }
        leads
    }

    /// A datagram came damaged.
    pub(in crate::rud) fn on_damaged(&mut self, now: u64) {
        self.counters.crc_dropped += 1;
        self.liveness.on_clue(now, Clue::Damaged);
    }

    /// A datagram that has passed its checks, and is as it was before it was sealed.
    #[inline(always)]
    pub(in crate::rud) fn on_checked(
        &mut self,
        look: Look,
        meta: &DatagramMeta,
        header: &Header,
        datagram: &[u8],
        sink: &mut impl Sink,
    ) -> Accepted {
        let Look { now, late, .. } = look;
        //= rud/spec.md section 4.2, RUD-10
        if header.kind == DatagramKind::Bundle && !Bundled::are_whole(&datagram[header.payload_offset()..]) {
            return Accepted::Malformed;
        }
        if self.failed {
            return Accepted::Yes;
        }
        self.liveness.on_heard(now);
        //= rud/spec.md section 7.2, RUD-108
        // It was marked, or the other end knows that others were.
        self.network_marks |= meta.congestion_experienced | header.network_marks;
        if !self.receiver.base(header.base()) {
            self.counters.out_of_window += 1;
            return Accepted::Yes;
        }
        if !self.pieces.are_none() {
            //= rud/spec.md section 6.8, RUD-67
            self.pieces.forget_before(header.base());
        }
        //= rud/spec.md section 5.1, RUD-18
        // Acknowledgements take effect before the payload is delivered.
        self.on_acknowledgement(look, header, datagram, sink);
        match header.kind {
            DatagramKind::Data | DatagramKind::Piece | DatagramKind::Bundle => {
                self.acks.on_data(now, late, meta.congestion_experienced);
                self.on_data(now, header, datagram, sink);
            }
            DatagramKind::Ack | DatagramKind::Probe | DatagramKind::Answer => {
                self.counters.acks_received += 1;
                self.on_stamp(look, *header, datagram, sink);
            }
        }
        //= rud/spec.md section 5.5, RUD-27
        self.acks.set_due(header.ack_request);
        Accepted::Yes
    }

    #[inline(always)]
    fn on_data(&mut self, now: u64, header: &Header, datagram: &[u8], sink: &mut impl Sink) {
        match self.receiver.classify(header.psn) {
            //= rud/spec.md section 5.2, RUD-21
            Arrival::New => {
                let (front, payload) = datagram.split_at(header.payload_offset());
                if header.kind == DatagramKind::Data {
                    if !self.pieces.are_none() {
                        self.pieces.forget(header.psn);
                    }
                    self.deliver(header.psn, &front[HEADER_LEN..], payload, sink);
                } else if header.kind == DatagramKind::Bundle {
                    self.on_bundle(header.psn, payload, sink);
                } else {
                    self.on_piece(*header, datagram, sink);
                }
            }
            Arrival::Duplicate => {
                //= rud/spec.md section 5.2, RUD-19
                self.receiver.duplicate(header.psn);
                self.asks.on_doubt(now, self.acks.arrivals().1);
                self.acks.set_due(true);
                self.counters.duplicates += 1;
            }
            Arrival::OutOfWindow => self.counters.out_of_window += 1,
        }
    }

    #[inline(always)]
    fn deliver(&mut self, psn: Psn, body: &[u8], payload: &[u8], sink: &mut impl Sink) {
        if self.offer(body, payload, sink) {
            self.receiver.consumed(psn);
        } else {
            self.receiver.refused(psn);
            self.acks.set_due(true);
        }
    }

    /// Offers the upper layer a message; whether it has consumed it.
    #[inline(always)]
    fn offer(&mut self, body: &[u8], payload: &[u8], sink: &mut impl Sink) -> bool {
        match sink.deliver(self.id, body, payload) {
            Disposition::Consumed => {
                self.counters.received += 1;
                self.counters.received_bytes += payload.len() as u64;
                true
            }
            Disposition::Refused(why) => {
                self.counters.refused += 1;
                self.counters.refused_not_ready += u64::from(why == RefusalReason::NotReady);
                false
            }
        }
    }

    /// The messages of a bundle, each with a verdict of its own.
    fn on_bundle(&mut self, psn: Psn, payload: &[u8], sink: &mut impl Sink) {
        let (mut consumed, mut refused, mut bit) = (0, 0, 1_u64);
        for (header, payload) in Bundled::new(payload) {
            *if self.offer(header, payload, sink) { &mut consumed } else { &mut refused } |= bit;
            bit = bit.wrapping_shl(1);
        }
        if refused == 0 {
            self.receiver.consumed(psn);
            return;
        }
        //= rud/spec.md section 5.3, RUD-23
        // Where all are refused, so is the PSN.
        self.acks.set_due(true);
        match consumed {
            0 => self.receiver.refused(psn),
            _ => self.receiver.mixed(psn, consumed, refused),
        }
    }

    /// A part of a message: the last one to come makes it whole.
    #[cold]
    fn on_piece(&mut self, header: Header, datagram: &[u8], sink: &mut impl Sink) {
        let (front, bytes) = datagram.split_at(header.payload_offset());
        let Some(split) = header.split(datagram) else { return };
        let body = &front[HEADER_LEN..front.len() - SPLIT_LEN];
        //= rud/spec.md section 6.8, RUD-68
        let piece = match body.len() + usize::from(split.total) > self.max_message {
            true => Piece::Dropped,
            false => self.pieces.take(header.psn, split, bytes),
        };
        match piece {
            Piece::Whole(payload) => {
                self.deliver(header.psn, body, &payload, sink);
            }
            //= rud/spec.md section 6.8, RUD-66
            Piece::Kept => {}
            Piece::Dropped => self.counters.pieces_dropped += 1,
        }
    }

    fn on_stamp(
        &mut self,
        Look { now, late, .. }: Look,
        header: Header,
        datagram: &[u8],
        sink: &mut impl Sink,
    ) {
        let Some(stamp) = header.stamp(datagram) else { return };
        if header.kind == DatagramKind::Probe {
            //= rud/spec.md section 6.7
            // It waits for acknowledgements, and nothing has come for long: of its data or of ours, most gets lost. It is answered on
            // many paths. A padded one asks for something else.
            let heard = self.acks.arrivals().0;
            let is_stuck = header.base_lag != 0
                && !header.ack_request
                && header.payload_len == 0
                && now.saturating_sub(heard) > ONE_DOUBT;
            let doubts = (is_stuck || self.is_unheard(&header)) && self.asks.on_doubt(now, heard);
            let times = if doubts && is_stuck { self.spray.count().min(MOST_AT_ONCE) } else { 1 };
            if header.ack_request {
                //= rud/spec.md section 5.5, RUD-107
                self.receiver.unreported();
            }
            (0..times).for_each(|_| self.acks.on_probe(now, late, stamp));
        } else if let Some(asked) = self.asks.answered(stamp) {
            self.signals.on_answer(now, late, header.held, asked.sent_at);
            self.spray.on_probe_delivered(asked.path);
            if self.recovery.on_probe_answered(now, stamp, asked.sent_at) {
                self.detect_losses(now);
            } else if self.recovery.backoff() != 0 && asked.padded_to == 0 {
                self.lose_sent_until(asked.sent_at);
            }
            if let Some(finding) = self.mtu.on_answer(now, stamp, &asked) {
                self.on_finding(now, finding, sink);
            }
        }
    }

    /// Whether a tail-loss probe asks for what was acknowledged before.
    fn is_unheard(&self, header: &Header) -> bool {
        //= rud/spec.md section 6.7, RUD-58
        header.ack_request && header.base().is_before(self.receiver.floor()) && !self.acks.waits()
    }

    #[inline]
    fn on_acknowledgement(&mut self, look: Look, header: &Header, datagram: &[u8], sink: &mut impl Sink) {
        let Look { now, late, frames_out } = look;
        let flight = self.sender.flight();
        let context = AckContext { now, recovery: &self.recovery, frames_out };
        let mut acked = Acked::NOTHING;
        let mut settled = Settled { id: self.id, sink, spray: &mut self.spray };
        let first_word = header.cumulative.word_start();
        self.sender.on_cumulative(&context, header.cumulative, &mut acked, &mut settled);
        let start = first_word.plus(u32::from(header.sack_word) * 64);
        self.sender.on_word(&context, start, header.sack, 0, &mut acked, &mut settled);
        if !header.kind.has_message() {
            // Padding may follow.
            for block in Block::parse_all(&datagram[HEADER_LEN..header.payload_offset()]) {
                let Block { received, refused, .. } = block;
                if let Some(psn) = block.bundle() {
                    let psn = first_word.plus(psn);
                    self.sender.on_bundle(&context, psn, received, refused, &mut acked, &mut settled);
                    continue;
                }
                let start = first_word.plus(u32::from(block.word) * 64);
                self.sender.on_word(&context, start, received, refused, &mut acked, &mut settled);
            }
        }
        if acked.count | acked.refused == 0 {
            return;
        }
        self.counters.acked += u64::from(acked.count);
        self.counters.refused_by_peer += u64::from(acked.refused_messages);
        self.counters.spurious += u64::from(acked.spurious);
        self.recovery.on_acked(now, &acked);
        if self.mtu.is_in_doubt() {
            self.mtu.on_delivered(now, acked.longest);
        }
        let signal = self.signals.read(now, late, header, acked.clean_sent_at);
        self.counters.marked += u64::from(signal.marked);
        self.cc.on_acked(&AckSample {
            now,
            acked: acked.count + acked.refused,
            marked: signal.marked,
            spurious: acked.spurious,
            sent_at: if acked.newest { acked.newest_sent_at } else { NEVER },
            delay: signal.delay,
            base: signal.base,
            marks: self.network_marks,
            samples: self.spray.samples().into(),
            flight,
        });
        if acked.newest && self.spray.count() > 1 && signal.base != NEVER {
            self.find_late(acked.newest_sent_at.saturating_sub(signal.base / LATE));
        }
        self.detect_losses(now);
    }

    /// Datagrams on the wire that were sent before `until` are late: others overtook them by more than chance.
    #[inline]
    fn find_late(&mut self, until: u64) {
        //= rud/spec.md section 6.7, RUD-52
        // Late is what was sent an eighth of the base before a datagram that has arrived.
        let window = self.cc.limit();
        for slot in self.sender.sent_before(until) {
            self.spray.on_late(slot, window);
        }
    }

    /// Moves datagrams that count as lost by time to the lost ones.
    #[inline]
    pub(super) fn detect_losses(&mut self, now: u64) {
        let mtu = &mut self.mtu;
        let lost = self.recovery.detect_losses(now, &mut self.sender, |payload| mtu.on_lost(payload));
        if lost != 0 {
            self.cc.on_lost(lost);
            self.counters.lost += u64::from(lost);
        }
    }
}
