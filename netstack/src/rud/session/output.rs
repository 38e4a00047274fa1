//! A session's output: resends first, then new data, then what `reports.rs` sends.

use super::Session;
use crate::region::Extent;
use crate::rud::api::Emit;
use crate::rud::cc::Controller as _;
use crate::rud::crc::HEAD_ROOM;
use crate::rud::sender::Pick;
use crate::time::Instant;
use crate::wire::rud::{DatagramKind, HEADER_LEN, Header, SPLIT_LEN, SPLIT_UNIT, Split};

/// How a call of `transmit` ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::rud) enum TransmitOutcome {
    /// Nothing more is due.
    Done,
    /// Data waits for the next call.
    More,
    /// There is no room to send.
    Blocked,
    /// Data waits until this time.
    Paced(u64),
}

impl Session {
    /// Whether the window lets a datagram out.
    #[inline]
    fn window_open(&self) -> bool {
        //= rud/spec.md section 6.1, RUD-34
        self.sender.flight() < self.cc.limit() && self.sender.flight_bytes() < self.max_bytes
    }

    /// Whether `transmit` has something to do now.
    #[inline]
    pub(in crate::rud) fn wants_transmit(&self, now: u64) -> bool {
        !self.failed
            && (self.has_reports()
                || self.sender.has_work() && self.window_open()
                || self.sender.retry_at() <= now)
    }

    /// Sends due datagrams, of a sender that polled `interval` nanoseconds ago.
    #[inline]
    pub(in crate::rud) fn transmit(
        &mut self,
        now: u64,
        interval: u64,
        emit: &mut impl Emit,
    ) -> TransmitOutcome {
        if self.failed {
            return TransmitOutcome::Done;
        }
        self.sender.requeue(now);
        if !self.try_path(now, emit) {
            return TransmitOutcome::Blocked;
        }
        let interval = self.pace.interval(now, interval);
        let mut outcome = TransmitOutcome::Done;
        while let Some(pick) = self.sender.pick()
            && self.window_open()
        {
            if !self.pace.is_open(now) {
                self.pace.on_wait(now);
                outcome = TransmitOutcome::Paced(self.pace.next_at());
                break;
            }
            if emit.is_turn_over() {
                self.pace.on_turn_over(now, interval);
                outcome = TransmitOutcome::More;
                break;
            }
            if emit.room() == 0 || !self.send_data(now, pick, emit) {
                return TransmitOutcome::Blocked;
            }
            self.pace.on_sent(now, self.cc.gap(), interval);
        }
        // An end that only acknowledges has something to acknowledge until here.
        let is_done = self.send_reports(now, emit) && self.try_path(now, emit);
        if is_done { outcome } else { TransmitOutcome::Blocked }
    }

    /// Whether the next datagram should request an acknowledgement because nothing may follow it.
    #[inline]
    fn closes_window(&self) -> bool {
        //= rud/spec.md section 6.1, RUD-37
        // Nothing may follow the datagram that fills the window, and where datagrams keep a distance, the next one does
        // not follow at once.
        let limit = self.cc.limit();
        self.acks.asks(limit)
            && (self.sender.flight() + 1 >= limit
                || self.cc.gap() != 0 && self.sender.has_more()
                || self.sender.is_last())
    }

    #[inline]
    fn send_data<E: Emit>(&mut self, now: u64, pick: Pick, emit: &mut E) -> bool {
        let Pick { slot, again } = pick;
        let psn = self.sender.psn(pick);
        //= rud/spec.md section 6.1, RUD-36
        let closes_window = again || self.closes_window();
        let base_lag = psn.since(self.sender.base()) as u16;
        let (sack_word, sack) = self.receiver.piggyback();
        let path = match again {
            true => self.spray.pick_again(slot, self.good_path(now)),
            false => self.spray.pick_new(),
        };
        let message = self.sender.message_mut(slot);
        let (payload, payload_crc) = message.payload(E::SEALS);
        let payload_len = payload.map_or(0, |extent| extent.len());
        let header = Header {
            kind: message.kind(),
            ack_request: closes_window || message.asks_for_ack(),
            body_len: message.body_len(),
            payload_len: payload_len as u16,
            tag: self.remote_tag,
            psn,
            base_lag,
            cumulative: self.receiver.floor(),
            sack_word,
            sack,
            marks: self.acks.marks() as u16,
            network_marks: self.network_marks,
            held: self.acks.held(now),
        };
        let sent = match payload {
            //= rud/spec.md section 6.8, RUD-59
            Some(payload) if header.payload_offset() + payload_len > self.mtu.limit() => {
                self.send_pieces(pick, path, header, payload, emit)
            }
            _ => {
                self.cut = None;
                // A number's first datagram is lent, and what is sent again under it copied: an acknowledgement then says that the device has read
                // the first, for what was sent again went the same way after it.
                let payload = if again { payload } else { payload.map(Extent::lend) };
                self.paths.send(path, &header, message.head_mut(), payload_crc, payload, emit)
            }
        };
        if !sent {
            // The report of this datagram is still pending.
            self.receiver.take_back(sack_word, &[]);
            return false;
        }
        self.on_sent(now, path);
        self.spray.on_data_sent(now, slot, again, path);
        self.acks.on_data_sent(header.ack_request);
        if self.sender.is_quiet() && self.recovery.has_rested(now) {
            self.cc.on_idle();
        }
        self.recovery.on_sent(now, self.sender.is_quiet());
        self.sender.on_sent(now, pick, psn);
        if again {
            self.counters.resent += 1;
            self.counters.last_resent = Some((Instant::from_nanos(now), self.sender.token(slot)));
        } else {
            self.counters.sent += 1;
            self.counters.sent_bytes += payload_len as u64;
        }
        true
    }

    /// Sends the picked message in pieces, as far as there is room; true if all went out. `header` is that of the whole datagram.
    #[cold]
    fn send_pieces<E: Emit>(
        &mut self,
        pick: Pick,
        path: u16,
        header: Header,
        payload: Extent,
        emit: &mut E,
    ) -> bool {
        //= rud/spec.md section 6.8, RUD-65
        // They have the PSN of the message, and the same path: of a transmission it is one that is lost or arrives.
        let body_len = usize::from(header.body_len);
        let room = self.mtu.limit().saturating_sub(HEADER_LEN + body_len + SPLIT_LEN);
        let most = (room / SPLIT_UNIT).max(1) * SPLIT_UNIT;
        let mut head = [0; HEAD_ROOM + SPLIT_LEN];
        head[..HEAD_ROOM].copy_from_slice(self.sender.message_mut(pick.slot).head_mut());
        let mut from = self.cut.take().filter(|(of, _)| *of == header.psn).map_or(0, |(_, from)| from);
        while from < payload.len() {
            let Some(piece) = payload.slice(from, most.min(payload.len() - from)) else { return true };
            let split = Split { unit: (from / SPLIT_UNIT) as u16, total: header.payload_len };
            if let Some(out) = head[HEADER_LEN + body_len..].first_chunk_mut() {
                split.emit(out);
            }
            let is_last = from + piece.len() == payload.len();
            let header = Header {
                kind: DatagramKind::Piece,
                ack_request: header.ack_request && is_last,
                body_len: (body_len + SPLIT_LEN) as u8,
                payload_len: piece.len() as u16,
                ..header
            };
            let crc = if E::SEALS { 0 } else { crate::crc::crc32c(piece.as_bytes()) };
            if emit.room() == 0 || !self.paths.send(path, &header, &mut head, crc, Some(piece), emit) {
                self.cut = Some((header.psn, from));
                if from != 0 {
                    // Its frames may wait when the transmission before is acknowledged.
                    self.sender.on_sent_in_part(pick);
                }
                return false;
            }
            self.counters.pieces += 1;
            from += piece.len();
        }
        true
    }

    /// A datagram with an acknowledgement went out on `path`.
    #[inline]
    pub(super) fn on_sent(&mut self, now: u64, path: u16) {
        self.spray.on_sent(path);
        self.liveness.on_sent(now);
        //= rud/spec.md section 5.5, RUD-29
        if !self.receiver.ack_pending() {
            self.acks.on_reported();
        }
    }
}
