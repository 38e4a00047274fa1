//! A session's datagrams without data: acknowledgements, heartbeats, answers, and probes of paths and of their MTU.

use super::Session;
use crate::region::{Extent, Region};
use crate::rud::api::{Emit, MAX_DATAGRAM};
use crate::rud::crc::HEAD_ROOM;
use crate::wire::rud::{BLOCK_LEN, Block, DatagramKind, HEADER_LEN, Header, MAX_BLOCKS, STAMP_LEN};

/// What a probe asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    /// Whether its path delivers.
    Path,
    /// Whether its path carries a datagram of so many bytes.
    Size(u16),
    /// What has arrived of the data before it.
    Tail,
    /// Whether its path, which is left out, carries the longest datagram.
    Trial,
}

/// What probes are padded with.
static PADDING: [u8; MAX_DATAGRAM] = [0; MAX_DATAGRAM];

impl Session {
    /// Whether something without data is to be sent now.
    #[inline]
    pub(super) fn has_reports(&self) -> bool {
        self.acks.is_due() || self.liveness.heartbeat_due() || self.has_probes()
    }

    /// Whether probes are to be sent of their own.
    #[inline]
    fn has_probes(&self) -> bool {
        self.recovery.probe_due() || self.asks.is_due() || self.mtu.is_due()
    }

    /// Sends all of it; false if there is no room.
    #[inline]
    pub(super) fn send_reports(&mut self, now: u64, emit: &mut impl Emit) -> bool {
        while self.acks.is_due() || self.liveness.heartbeat_due() {
            if emit.room() == 0 || !self.send_ack(now, emit) {
                return false;
            }
        }
        if self.has_probes() { self.send_probes(now, emit) } else { true }
    }

    /// While paths seem to fail, one that is used and is known to deliver, if there is one.
    #[inline]
    pub(super) fn good_path(&self, now: u64) -> Option<u16> {
        self.asks.good_path(now).filter(|path| self.spray.is_used(*path))
    }

    /// Tries a path that is left out, if one is to be tried now; false if there is no room.
    #[inline]
    pub(super) fn try_path(&mut self, now: u64, emit: &mut impl Emit) -> bool {
        self.spray.trial(now).is_none_or(|path| self.send_trial(now, path, emit))
    }

    #[cold]
    fn send_trial(&mut self, now: u64, path: u16, emit: &mut impl Emit) -> bool {
        //= rud/spec.md section 6.7, RUD-57
        // By a probe, for which nothing waits; what it acknowledges may be lost with it.
        if self.acks.waits() || self.receiver.ack_pending() {
            return true;
        }
        let turn = self.spray.in_turn();
        if emit.room() == 0 || !self.send_probe(now, path, Ask::Trial, emit) {
            return false;
        }
        self.spray.on_trial(now, path, turn);
        true
    }

    /// The acknowledgement that is due: an answer, a probe, or neither.
    fn send_ack(&mut self, now: u64, emit: &mut impl Emit) -> bool {
        //= rud/spec.md section 4.3, RUD-13
        // The answer says what has arrived: what does not fit into it goes before.
        if let Some(probe) = self.acks.probe()
            && self.receiver.fits_one_report()
        {
            let path = self.good_path(now).unwrap_or_else(|| self.spray.pick());
            let held = probe.held(now);
            let header = Header { held, ..self.report_header(now, DatagramKind::Answer) };
            if !self.send_report(path, header, Some(probe.stamp), 0, emit) {
                return false;
            }
            self.acks.on_answered();
            self.after_report(now, path);
            return true;
        }
        let (path, good) = (self.spray.pick(), self.good_path(now));
        let asks = self.liveness.heartbeat_due() || self.asks.wants_ack(now, path);
        //= rud/spec.md section 6.7
        // While probes find out which paths deliver, the acknowledgement itself takes one that does.
        // Where there is room for one, the probe acknowledges as well.
        if !asks || good.is_some() && emit.room() > 1 {
            let header = self.report_header(now, DatagramKind::Ack);
            let path = good.unwrap_or(path);
            if !self.send_report(path, header, None, 0, emit) {
                return false;
            }
            self.after_report(now, path);
        }
        if !asks {
            return true;
        }
        if !self.send_probe(now, path, Ask::Path, emit) {
            return false;
        }
        if self.liveness.take_heartbeat() {
            self.counters.heartbeats += 1;
            self.sender.on_idle();
        }
        true
    }

    /// The tail-loss probe, those of paths, and the next try of a size.
    #[cold]
    fn send_probes(&mut self, now: u64, emit: &mut impl Emit) -> bool {
        if self.recovery.probe_due() && (emit.room() == 0 || !self.send_tail_probe(now, emit)) {
            return false;
        }
        while self.asks.is_due() {
            if emit.room() == 0 || !self.send_probe(now, self.asks.due_on(), Ask::Path, emit) {
                return false;
            }
            self.asks.on_due_sent();
        }
        if self.mtu.is_due() {
            //= rud/spec.md section 6.8
            // The padded one first, then one that is not, on the same path.
            let path = self.spray.in_order(self.mtu.tries());
            if emit.room() < 2 || !self.send_probe(now, path, Ask::Size(self.mtu.size()), emit) {
                return false;
            }
            let small = self.asks.stamp();
            self.mtu.on_tried(now, small, self.recovery.patience());
            return self.send_probe(now, path, Ask::Path, emit);
        }
        true
    }

    /// A probe that asks what has arrived, on another path than the datagram that was sent last.
    fn send_tail_probe(&mut self, now: u64, emit: &mut impl Emit) -> bool {
        let Some(youngest) = self.sender.youngest() else {
            self.recovery.drop_probe();
            return true;
        };
        //= rud/spec.md section 6.4, RUD-46
        let path = self.spray.pick_again(youngest, self.good_path(now));
        let stamp = self.asks.stamp();
        if !self.send_probe(now, path, Ask::Tail, emit) {
            return false;
        }
        self.recovery.on_probe_sent(stamp, self.sender.next_serial());
        self.counters.probes += 1;
        true
    }

    /// A probe on `path`.
    fn send_probe(&mut self, now: u64, path: u16, ask: Ask, emit: &mut impl Emit) -> bool {
        //= rud/spec.md section 6.4, RUD-105
        let ack_request = ask == Ask::Tail;
        let header = Header { ack_request, ..self.report_header(now, DatagramKind::Probe) };
        let padded_to = match ask {
            Ask::Size(bytes) => bytes,
            Ask::Trial => self.mtu.limit() as u16,
            Ask::Path | Ask::Tail => 0,
        };
        if !self.send_report(path, header, Some(self.asks.stamp()), padded_to.into(), emit) {
            return false;
        }
        if self.asks.take_lost(now, path) {
            self.spray.on_probe_lost(now, path);
        }
        self.asks.on_sent(now, path, padded_to);
        self.after_report(now, path);
        true
    }

    fn report_header(&self, now: u64, kind: DatagramKind) -> Header {
        //= rud/spec.md section 4.3, RUD-12
        let psn = self.sender.next();
        Header {
            kind,
            ack_request: false,
            body_len: 0,
            payload_len: 0,
            tag: self.remote_tag,
            psn,
            base_lag: psn.since(self.sender.base()) as u16,
            cumulative: self.receiver.floor(),
            sack_word: 0,
            sack: 0,
            marks: self.acks.marks() as u16,
            network_marks: self.network_marks,
            held: self.acks.held(now),
        }
    }

    /// Sends `header` with what is to be reported, and a stamp behind it; a padded one has a report of the header's word alone.
    fn send_report<E: Emit>(
        &mut self,
        path: u16,
        header: Header,
        stamp: Option<u64>,
        padded_to: usize,
        emit: &mut E,
    ) -> bool {
        let mut blocks = [Block::default(); MAX_BLOCKS];
        let ((sack_word, sack), count) = match padded_to {
            0 => self.receiver.report(&mut blocks),
            _ => (self.receiver.piggyback(), 0),
        };
        let mut head = [0; HEAD_ROOM];
        let body = &mut head[HEADER_LEN..];
        for (block, out) in blocks[..count].iter().zip(body.as_chunks_mut::<BLOCK_LEN>().0) {
            block.emit(out);
        }
        //= rud/spec.md section 4.3
        // A stamp behind the blocks: the peer's, or our own.
        let mut len = count * BLOCK_LEN;
        if let Some(stamp) = stamp {
            body[len..len + STAMP_LEN].copy_from_slice(&stamp.to_be_bytes());
            len += STAMP_LEN;
        }
        let padding = padding(padded_to.saturating_sub(HEADER_LEN + len));
        let crc = padding.filter(|_| !E::SEALS).map_or(0, |padding| crate::crc::crc32c(padding.as_bytes()));
        let payload_len = padding.map_or(0, |padding| padding.len()) as u16;
        let header = Header { body_len: len as u8, payload_len, sack_word, sack, ..header };
        if !self.paths.send(path, &header, &mut head, crc, padding, emit) {
            self.receiver.take_back(sack_word, &blocks[..count]);
            return false;
        }
        true
    }

    /// A datagram without data went out on `path`.
    fn after_report(&mut self, now: u64, path: u16) {
        self.on_sent(now, path);
        self.counters.acks_sent += 1;
    }
}

/// So many bytes of padding; `None` of none.
fn padding(len: usize) -> Option<Extent> {
    if len == 0 { None } else { Region::from_static(&PADDING).extent(0, len as u32) }
}
