//! What a session sends: resends first, then new data, then what is still owed in acknowledgements.

use super::Session;
use crate::rud::api::Emit;
use crate::rud::crc::HEAD_ROOM;
use crate::rud::sender::Pick;
use crate::time::Instant;
use crate::wire::rud::{BLOCK_LEN, Block, DatagramKind, HEADER_LEN, Header, MAX_BLOCKS};

/// How a call of `transmit` ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::rud) enum TransmitOutcome {
    /// Nothing more is due.
    Done,
    /// The quantum is used up.
    More,
    /// There is no room to send.
    Blocked,
}

impl Session {
    /// Whether the window lets a datagram out. A probe may exceed it by one.
    #[inline]
    fn window_open(&self) -> bool {
        self.recovery.probe_due() || self.window.is_open(self.sender.flight(), self.sender.flight_bytes())
    }

    /// Whether `transmit` has something to do now.
    #[inline]
    pub(in crate::rud) fn wants_transmit(&self, now: u64) -> bool {
        !self.failed
            && (self.acks.is_due()
                || self.liveness.heartbeat_due()
                || self.sender.has_work() && self.window_open()
                || self.sender.retry_at() <= now)
    }

    /// Sends what is due, up to `quantum` data datagrams.
    #[inline]
    pub(in crate::rud) fn transmit(
        &mut self,
        now: u64,
        quantum: u32,
        emit: &mut impl Emit,
    ) -> TransmitOutcome {
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
        while self.acks.is_due() || self.liveness.heartbeat_due() {
            if emit.room() == 0 || !self.send_ack(now, emit) {
                return TransmitOutcome::Blocked;
            }
        }
        TransmitOutcome::Done
    }

    /// Whether the next datagram should ask for an acknowledgement because nothing may follow it.
    #[inline]
    fn closes_window(&self) -> bool {
        let limit = self.window.limit();
        self.acks.asks(limit) && (self.sender.flight() + 1 >= limit || self.sender.is_last())
    }

    #[inline]
    fn send_data(&mut self, now: u64, pick: Pick, emit: &mut impl Emit) -> bool {
        let Pick { slot, psn, again } = pick;
        let ack_request = again || self.sender.message(slot).asks_for_ack() || self.closes_window();
        let base_lag = psn.since(self.sender.base()) as u16;
        let (sack_word, sack) = self.receiver.piggyback();
        let message = self.sender.message_mut(slot);
        let (payload, payload_crc) = message.payload();
        let payload_len = payload.map_or(0, |extent| extent.len());
        let header = Header {
            kind: DatagramKind::Data,
            ack_request,
            body_len: message.body_len(),
            payload_len: payload_len as u16,
            tag: self.remote_tag,
            psn,
            base_lag,
            cumulative: self.receiver.floor(),
            sack_word,
            sack,
        };
        if !self.paths.send(&header, message.head_mut(), payload_crc, payload, emit) {
            // What this datagram would have reported is still owed.
            self.receiver.unreported();
            return false;
        }
        self.on_sent(now);
        self.acks.on_data_sent(ack_request);
        self.recovery.on_sent(now, self.sender.is_quiet());
        self.sender.on_sent(now, pick);
        if again {
            self.counters.resent += 1;
            self.counters.last_resent = Some((Instant::from_nanos(now), self.sender.token(slot)));
        } else {
            self.counters.sent += 1;
            self.counters.sent_bytes += payload_len as u64;
        }
        true
    }

    fn send_ack(&mut self, now: u64, emit: &mut impl Emit) -> bool {
        let mut blocks = [Block::default(); MAX_BLOCKS];
        let ((sack_word, sack), count) = self.receiver.report(&mut blocks);
        let mut head = [0; HEAD_ROOM];
        let body = &mut head[HEADER_LEN..];
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
        if !self.paths.send(&header, &mut head, 0, None, emit) {
            self.receiver.unreported();
            return false;
        }
        self.on_sent(now);
        self.counters.acks_sent += 1;
        self.counters.heartbeats += u64::from(self.liveness.take_heartbeat());
        true
    }

    /// A datagram with an acknowledgement went out.
    #[inline]
    fn on_sent(&mut self, now: u64) {
        self.liveness.on_sent(now);
        if !self.receiver.owes() {
            self.acks.on_reported();
        }
    }
}
