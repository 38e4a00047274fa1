//! What a session sends: resends first, then new data, then what is still owed in acknowledgements.

use super::api::Emit;
use super::crc;
use super::recovery::NEVER;
use super::sender::Pick;
use super::session::Session;
use crate::crc::crc32c;
use crate::time::Instant;
use crate::wire::rud::{BLOCK_LEN, Block, DatagramKind, HEADER_LEN, Header, MAX_BLOCKS, MAX_BODY};

/// How a call of `transmit` ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransmitOutcome {
    /// Nothing more is due.
    Done,
    /// The quantum is used up.
    More,
    /// There is no room to send.
    Blocked,
}

impl Session {
    /// Whether the window lets a datagram out.
    #[inline]
    fn window_open(&self) -> bool {
        self.probe
            || self.sender.flight() < self.window.limit() && self.sender.flight_bytes() < self.window_bytes
    }

    /// Whether `transmit` has something to do now.
    #[inline]
    pub(super) fn wants_transmit(&self, now: u64) -> bool {
        !self.failed
            && (self.ack_due
                || self.heartbeat_due
                || self.sender.has_work() && self.window_open()
                || self.sender.retry_at() <= now)
    }

    /// Sends what is due, up to `quantum` data datagrams.
    #[inline]
    pub(super) fn transmit(&mut self, now: u64, quantum: u32, emit: &mut impl Emit) -> TransmitOutcome {
        if self.failed {
            return TransmitOutcome::Done;
        }
        self.sender.requeue(now);
        let mut left = quantum;
        while self.window_open()
            && let Some(pick) = self.sender.pick()
        {
            if left == 0 {
                return TransmitOutcome::More;
            }
            if emit.room() == 0 || !self.send_data(now, pick, emit) {
                return TransmitOutcome::Blocked;
            }
            left -= 1;
        }
        while self.ack_due || self.heartbeat_due {
            if emit.room() == 0 || !self.send_ack(now, emit) {
                return TransmitOutcome::Blocked;
            }
        }
        TransmitOutcome::Done
    }

    /// Whether the next datagram should ask for an acknowledgement because nothing may follow it.
    #[inline]
    fn closes_window(&self) -> bool {
        //= rud/spec.md section 6.1
        // With a full window every datagram closes it: one request in a quarter of the window is enough.
        let limit = self.window.limit();
        self.since_request + 1 >= (limit / 4).min(self.times.ack_every)
            && (self.sender.flight() + 1 >= limit || self.sender.is_last())
    }

    #[inline]
    fn send_data(&mut self, now: u64, pick: Pick, emit: &mut impl Emit) -> bool {
        let Pick { slot, psn, again } = pick;
        let ack_request = again || self.sender.message(slot).request_ack || self.closes_window();
        let base_lag = psn.since(self.sender.base()) as u16;
        let (sack_word, sack) = self.receiver.piggyback();
        let message = self.sender.message(slot);
        let extent = message.extent;
        let payload_crc =
            *message.payload_crc.get_or_insert_with(|| extent.map_or(0, |e| crc32c(e.as_bytes())));
        let payload_len = extent.map_or(0, |e| e.len());
        let header_len = message.header_len;
        // The whole array: a copy of constant length is quicker, and the surplus is not sent.
        self.scratch[HEADER_LEN..HEADER_LEN + MAX_BODY].copy_from_slice(&message.header);
        let header = Header {
            kind: DatagramKind::Data,
            ack_request,
            body_len: header_len,
            payload_len: payload_len as u16,
            tag: self.remote_tag,
            psn,
            base_lag,
            cumulative: self.receiver.floor(),
            sack_word,
            sack,
        };
        if !self.seal_and_emit(&header, payload_crc, extent, emit) {
            return false;
        }
        self.acknowledged(now);
        self.since_request = if ack_request { 0 } else { self.since_request + 1 };
        self.recovery.on_sent(now, self.sender.is_quiet());
        self.probe = false;
        self.sender.on_sent(now, pick);
        if again {
            self.counters.resent += 1;
            self.counters.last_resent =
                self.sender.token(slot).map(|token| (Instant::from_nanos(now), token));
        } else {
            self.counters.sent += 1;
            self.counters.sent_bytes += payload_len as u64;
        }
        true
    }

    fn send_ack(&mut self, now: u64, emit: &mut impl Emit) -> bool {
        let mut blocks = [Block::default(); MAX_BLOCKS];
        let ((sack_word, sack), count) = self.receiver.report(&mut blocks);
        let body = &mut self.scratch[HEADER_LEN..HEADER_LEN + MAX_BLOCKS * BLOCK_LEN];
        for (block, out) in blocks[..count].iter().zip(body.as_chunks_mut::<BLOCK_LEN>().0) {
            block.emit(out);
        }
        let psn = self.sender.next();
        let header = Header {
            kind: DatagramKind::Ack,
            ack_request: false,
            body_len: (count * BLOCK_LEN) as u8,
            payload_len: 0,
            tag: self.remote_tag,
            psn,
            base_lag: psn.since(self.sender.base()) as u16,
            cumulative: self.receiver.floor(),
            sack_word,
            sack,
        };
        if !self.seal_and_emit(&header, 0, None, emit) {
            return false;
        }
        self.acknowledged(now);
        self.counters.acks_sent += 1;
        if self.heartbeat_due {
            self.counters.heartbeats += 1;
            self.heartbeat_due = false;
        }
        true
    }

    /// Sends the header, with the body that lies behind it in `scratch`, on the next path.
    #[inline]
    fn seal_and_emit(
        &mut self,
        header: &Header,
        payload_crc: u32,
        extent: Option<crate::region::Extent>,
        emit: &mut impl Emit,
    ) -> bool {
        let len = HEADER_LEN + header.body_len as usize;
        if let Some(fixed) = self.scratch.first_chunk_mut::<HEADER_LEN>() {
            header.emit(fixed);
        }
        //= rud/spec.md section 6.7
        // Paths are used round-robin.
        let mut to = self.to;
        to.src_port = to.src_port.wrapping_add(self.path);
        crc::seal(&mut self.scratch, len, self.crc_out, to.src_port, to.dst_port, payload_crc);
        if !emit.emit(&to, &self.scratch[..len], extent) {
            // What this datagram would have reported is still owed.
            self.receiver.unreported();
            return false;
        }
        self.path = if self.path + 1 < self.paths { self.path + 1 } else { 0 };
        true
    }

    /// A datagram with an acknowledgement went out.
    #[inline]
    fn acknowledged(&mut self, now: u64) {
        self.last_sent = now;
        if !self.receiver.owes() {
            self.unacked = 0;
            self.ack_due = false;
            self.ack_at = NEVER;
        }
    }
}
