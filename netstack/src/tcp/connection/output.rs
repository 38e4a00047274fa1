//! Output: headers, segments, acknowledgements at the end.

use super::{Connection, ConnectionState, Context, TransmitOutcome, timestamp};
use crate::region::Extent;
use crate::tcp::receiver::Acknowledgement;
use crate::tcp::sender::Outgoing;
use crate::tcp::{Destination, Emit, Emitted, Path};
use crate::time::Instant;
use crate::wire::tcp::{self, Flags, Header, SackBlocks, SeqNumber, Timestamps};

/// Extents per segment while there is no path: segments are then lost, and timers go on.
const NO_EXTENTS: usize = 8;

impl Connection {
    //= RFC 9293 section 3.9.1.1, MUST-45: all segments leave from the address with which the connection began.
    fn destination(&self, ect: bool) -> Destination {
        Destination { local: self.local(), remote: self.remote(), ect }
    }

    /// A header with the fields common to all segments.
    #[inline]
    fn header(&self, now: Instant, seq: SeqNumber, flags: Flags, say: &Acknowledgement) -> Header {
        let flags = flags.with(Flags::ACK);
        Header {
            source_port: self.pair.local_port(),
            destination_port: self.pair.remote_port(),
            seq,
            ack: say.ack,
            flags: if say.ece { flags.with(Flags::ECE) } else { flags },
            window: say.window,
            //= RFC 9293 section 3.8.5, SHLD-13: no call sends urgent data.
            urgent: 0,
            options: self.stamped(now, say.echo),
        }
    }

    //= RFC 9293 section 3.5.2, group 1: the reset for a segment with an acknowledgement takes its number from it.
    /// The reset that answers a segment whose acknowledgement is wrong.
    pub(super) fn reset_for_ack(&self, now: Instant, header: &Header) -> Header {
        Header {
            source_port: self.pair.local_port(),
            destination_port: self.pair.remote_port(),
            seq: header.ack,
            flags: Flags::RST,
            // There is no acknowledgement for an echo to go with.
            options: self.stamped(now, self.receiver.ts_recent().map(|_| 0)),
            ..Header::default()
        }
    }

    /// The reset by which this side ends the connection.
    pub(super) fn reset(&self, now: Instant) -> Header {
        Header {
            source_port: self.pair.local_port(),
            destination_port: self.pair.remote_port(),
            seq: self.sender.nxt(),
            ack: self.receiver.next(),
            flags: Flags::RST.with(Flags::ACK),
            options: self.stamped(now, self.receiver.ts_recent()),
            ..Header::default()
        }
    }

    //= RFC 7323 section 3.2: every segment has timestamps once they are agreed upon, and resets should have them.
    /// Options with a timestamp and this echo, if timestamps are used.
    #[inline]
    fn stamped(&self, now: Instant, echo: Option<u32>) -> tcp::Options {
        tcp::Options {
            timestamps: echo.map(|echo| Timestamps { value: timestamp(now, self.timestamp_offset), echo }),
            ..tcp::Options::default()
        }
    }

    /// A pure acknowledgement as of now.
    pub(super) fn pure_ack(&mut self, now: Instant, cx: &mut Context<'_>) -> Header {
        let say = self.receiver.acknowledgement(cx.pool);
        let mut header = self.header(now, self.sender.control_seq(), Flags::ACK, &say);
        header.options.sack = self.blocks();
        header
    }

    fn blocks(&self) -> SackBlocks {
        //= RFC 2018 section 3: three blocks beside timestamps, four without.
        if self.receiver.has_blocks() {
            self.receiver.blocks(if self.negotiated.timestamps { 3 } else { 4 })
        } else {
            SackBlocks::NONE
        }
    }

    /// Whether an acknowledgement is to be sent now.
    #[inline]
    pub(crate) fn is_ack_due(&self) -> bool {
        self.receiver.is_ack_due()
    }

    /// Whether something is to be sent now.
    #[inline]
    pub(crate) fn wants_transmit(&self, now: Instant) -> bool {
        match &self.state {
            ConnectionState::SynSent(handshake) => handshake.is_due(),
            ConnectionState::SynReceived(handshake) => handshake.is_due() || self.receiver.is_ack_due(),
            ConnectionState::Over(_) => false,
            _ => self.receiver.is_ack_due() || self.idle.is_due() || self.sender.wants_transmit(now),
        }
    }

    /// Sends due segments: resends and new data, `quantum` segments of them at most, and the acknowledgements of the
    /// burst.
    pub(crate) fn transmit(
        &mut self,
        now: Instant,
        quantum: u32,
        emit: &mut impl Emit,
        cx: &mut Context<'_>,
    ) -> TransmitOutcome {
        if self.is_over() {
            return TransmitOutcome::Done;
        }
        if let Some(outcome) = self.transmit_syn(now, emit) {
            return outcome;
        }
        if let ConnectionState::SynReceived(_) = self.state {
            return if self.transmit_ack(now, emit, cx) {
                TransmitOutcome::Done
            } else {
                TransmitOutcome::Blocked
            };
        }
        // Acknowledgements of bytes with another ECN mark go first (DCTCP).
        while let Some(say) = self.receiver.earlier(cx.pool) {
            let header = self.header(now, self.sender.control_seq(), Flags::ACK, &say);
            if !self.emit(emit, &header, &[], 0, false) {
                return TransmitOutcome::Blocked;
            }
            self.receiver.on_earlier_sent();
        }
        // SACK blocks travel alone: a full segment has no room for them.
        if self.receiver.is_ack_due() && self.receiver.has_blocks() && !self.transmit_ack(now, emit, cx) {
            return TransmitOutcome::Blocked;
        }
        let outcome = self.transmit_data(now, quantum, emit, cx);
        if self.options.unsent_limit.is_some() {
            // Sent bytes made room, too.
            let became_writable = self.sender.unblock(now);
            self.notify_writable(became_writable, cx);
        }
        if outcome == TransmitOutcome::Blocked {
            return outcome;
        }
        //= RFC 9293 section 3.8.4, SHLD-12: a keep-alive has no data; it repeats the number before the next, so that it
        //= must be answered.
        if self.idle.is_due() {
            let say = self.receiver.acknowledgement(cx.pool);
            let header = self.header(now, self.sender.nxt() - 1, Flags::ACK, &say);
            if !self.emit(emit, &header, &[], 0, false) {
                return TransmitOutcome::Blocked;
            }
            self.idle.on_probe_sent(now);
            self.receiver.on_ack_sent(false);
        }
        if self.receiver.is_ack_due() && !self.transmit_ack(now, emit, cx) {
            return TransmitOutcome::Blocked;
        }
        outcome
    }

    /// Sends the SYN or SYN-ACK if it is due. `Some`: nothing else can be sent.
    fn transmit_syn(&mut self, now: Instant, emit: &mut impl Emit) -> Option<TransmitOutcome> {
        let (ConnectionState::SynSent(handshake) | ConnectionState::SynReceived(handshake)) = &self.state
        else {
            return None;
        };
        if handshake.is_due() {
            let header = self.syn(now)?;
            if !self.emit(emit, &header, &[], 0, false) {
                return Some(TransmitOutcome::Blocked);
            }
        }
        match &mut self.state {
            ConnectionState::SynSent(handshake) => {
                if handshake.is_due() {
                    handshake.on_sent(now);
                }
                Some(TransmitOutcome::Done)
            }
            ConnectionState::SynReceived(handshake) if handshake.is_due() => {
                handshake.on_sent(now);
                self.receiver.on_ack_sent(false);
                Some(TransmitOutcome::Done)
            }
            _ => None,
        }
    }

    fn transmit_data(
        &mut self,
        now: Instant,
        quantum: u32,
        emit: &mut impl Emit,
        cx: &mut Context<'_>,
    ) -> TransmitOutcome {
        if let Some(out) = self.sender.small_message(now) {
            if !self.send(now, &out, emit, cx) {
                return TransmitOutcome::Blocked;
            }
            self.sender.on_emptied(now);
            return TransmitOutcome::Done;
        }
        if !self.sender.wants_transmit(now) {
            return TransmitOutcome::Done;
        }
        let path = emit.path(self.pair.local_ip(), self.pair.remote_ip()).unwrap_or(Path {
            mtu: self.mtu,
            max_payload: u32::from(self.sender.mss()),
            max_extents: NO_EXTENTS,
            max_segments: u32::MAX,
        });
        let mut left = quantum;
        while left > 0 {
            let Some(out) = self.sender.next(now, &path) else { return TransmitOutcome::Done };
            if !self.send(now, &out, emit, cx) {
                return TransmitOutcome::Blocked;
            }
            left = left.saturating_sub(out.segments());
        }
        if self.sender.wants_transmit(now) { TransmitOutcome::More } else { TransmitOutcome::Done }
    }

    /// Sends the segment that the sender has planned; false if there is no room.
    #[inline]
    fn send(&mut self, now: Instant, out: &Outgoing, emit: &mut impl Emit, cx: &mut Context<'_>) -> bool {
        cx.extents.clear();
        self.sender.extents(out, cx.extents);
        let say = self.receiver.acknowledgement(cx.pool);
        let mut flags = Flags::ACK;
        for (set, flag) in [(out.fin, Flags::FIN), (out.psh, Flags::PSH), (out.cwr, Flags::CWR)] {
            if set {
                flags = flags.with(flag);
            }
        }
        let header = self.header(now, out.seq, flags, &say);
        if !self.emit(emit, &header, cx.extents, out.segment_size, out.ect) {
            return false;
        }
        if out.psh {
            emit.flush_now();
        }
        self.sender.on_sent(now, out, header.options.timestamps.map(|stamps| stamps.value));
        self.receiver.on_ack_sent(true);
        true
    }

    /// Sends an acknowledgement; false if there is no room.
    fn transmit_ack(&mut self, now: Instant, emit: &mut impl Emit, cx: &mut Context<'_>) -> bool {
        if !self.receiver.is_ack_due() {
            return true;
        }
        let header = self.pure_ack(now, cx);
        if !self.emit(emit, &header, &[], 0, false) {
            return false;
        }
        //= RFC 5681 section 3.2: without SACK the sender counts duplicates, so none of a burst may be left out.
        for _ in 0..self.receiver.take_duplicates() {
            if !self.emit(emit, &header, &[], 0, false) {
                break;
            }
        }
        self.receiver.on_ack_sent(false);
        true
    }

    /// Hands a segment over; false if there is no room at present.
    fn emit(
        &mut self,
        emit: &mut impl Emit,
        header: &Header,
        payload: &[Extent],
        segment_size: u16,
        ect: bool,
    ) -> bool {
        match emit.emit(&self.destination(ect), header.emit().as_bytes(), payload, segment_size) {
            Emitted::Sent => true,
            Emitted::NoRoom => false,
            Emitted::NoRoute => {
                self.idle.on_soft_error();
                true
            }
        }
    }
}
