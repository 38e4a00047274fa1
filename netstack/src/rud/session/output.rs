//! A session's output: resends first, then new data, then the acknowledgements that are pending.

use super::Session;
use crate::rud::api::Emit;
use crate::rud::cc::Controller as _;
use crate::rud::crc::HEAD_ROOM;
use crate::rud::sender::Pick;
use crate::time::Instant;
use crate::wire::rud::{BLOCK_LEN, Block, DatagramKind, HEADER_LEN, Header, MAX_BLOCKS, STAMP_LEN};

/// How a call of `transmit` ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::rud) enum TransmitOutcome {
    /// Nothing more is due.
    Done,
    /// The quantum is used up.
    More,
    /// There is no room to send.
    Blocked,
    /// Data waits until this time.
    Paced(u64),
}

impl Session {
    /// Whether the window lets a datagram out. A probe may exceed it by one.
    #[inline]
    fn window_open(&self) -> bool {
        self.recovery.probe_due()
            || self.sender.flight() < self.cc.limit() && self.sender.flight_bytes() < self.max_bytes
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

    /// Sends due datagrams, up to `quantum` of them with data, of a sender that polled `interval` nanoseconds ago.
    #[inline]
    pub(in crate::rud) fn transmit(
        &mut self,
        now: u64,
        interval: u64,
        quantum: u32,
        emit: &mut impl Emit,
    ) -> TransmitOutcome {
        if self.failed {
            return TransmitOutcome::Done;
        }
        self.sender.requeue(now);
        let mut left = quantum;
        let mut outcome = TransmitOutcome::Done;
        while let Some(pick) = self.sender.pick()
            && self.window_open()
        {
            if !self.pace.is_open(now) && !self.recovery.probe_due() {
                self.pace.on_wait(now);
                outcome = TransmitOutcome::Paced(self.pace.next_at());
                break;
            }
            if left == 0 {
                return TransmitOutcome::More;
            }
            if emit.room() == 0 || !self.send_data(now, pick, emit) {
                return TransmitOutcome::Blocked;
            }
            self.pace.on_sent(now, self.cc.gap(), interval);
            left -= 1;
        }
        while self.acks.is_due() || self.liveness.heartbeat_due() {
            if emit.room() == 0 || !self.send_ack(now, emit) {
                return TransmitOutcome::Blocked;
            }
        }
        outcome
    }

    /// Whether the next datagram should request an acknowledgement because nothing may follow it.
    #[inline]
    fn closes_window(&self) -> bool {
        //= rud/spec.md section 6.1
        // Nothing may follow the datagram that fills the window, and where datagrams keep a distance, the next one does
        // not follow at once.
        let limit = self.cc.limit();
        self.acks.asks(limit)
            && (self.sender.flight() + 1 >= limit
                || self.cc.gap() != 0 && self.sender.has_more()
                || self.sender.is_last())
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
            marks: self.acks.marks() as u16,
            held: self.acks.held(now),
        };
        let path = self.spray.pick_for(now, slot, again);
        if !self.paths.send(path, &header, message.head_mut(), payload_crc, payload, emit) {
            // The report of this datagram is still pending.
            self.receiver.unreported();
            return false;
        }
        self.on_sent(now, path);
        self.spray.on_data_sent(now, slot, again, path);
        self.acks.on_data_sent(ack_request);
        if self.sender.is_quiet() && self.recovery.has_rested(now) {
            self.cc.on_idle();
        }
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
        //= rud/spec.md section 4.3
        // A stamp behind the blocks: the peer's, or that of a heartbeat.
        let probe = self.acks.probe();
        let (kind, stamp) = match probe {
            Some(probe) => (DatagramKind::Answer, Some(probe.stamp)),
            None if self.liveness.heartbeat_due() => (DatagramKind::Probe, Some(now)),
            None => (DatagramKind::Ack, None),
        };
        let mut len = count * BLOCK_LEN;
        if let Some(stamp) = stamp {
            body[len..len + STAMP_LEN].copy_from_slice(&stamp.to_be_bytes());
            len += STAMP_LEN;
        }
        let psn = self.sender.next();
        let header = Header {
            kind,
            ack_request: false,
            body_len: len as u8,
            payload_len: 0,
            tag: self.remote_tag,
            psn,
            base_lag: psn.since(self.sender.base()) as u16,
            cumulative: self.receiver.floor(),
            sack_word,
            sack,
            marks: self.acks.marks() as u16,
            held: probe.map_or_else(|| self.acks.held(now), |probe| probe.held(now)),
        };
        let path = self.spray.pick();
        if !self.paths.send(path, &header, &mut head, 0, None, emit) {
            self.receiver.unreported();
            return false;
        }
        self.on_sent(now, path);
        self.spray.on_ack_sent(path, header.cumulative);
        self.counters.acks_sent += 1;
        match kind {
            DatagramKind::Answer => self.acks.on_answered(),
            _ => self.counters.heartbeats += u64::from(self.liveness.take_heartbeat()),
        }
        true
    }

    /// A datagram with an acknowledgement went out on `path`.
    #[inline]
    fn on_sent(&mut self, now: u64, path: u16) {
        self.spray.on_sent(path);
        self.liveness.on_sent(now);
        if !self.receiver.ack_pending() {
            self.acks.on_reported();
        }
    }
}
