//! One session: what it does with a received datagram, and when its timers fire. `output.rs` sends.

use super::Times;
use super::api::{
    Config, Counters, DatagramMeta, Destination, Disposition, Failure, MessageToken, RefusalReason,
    SessionId, SessionParams, Sink,
};
use super::crc;
use super::receiver::{Arrival, Receiver};
use super::recovery::{NEVER, Recovery};
use super::sender::{AckContext, Acked, Sender};
use super::window::Window;
use crate::wire::rud::{Block, DatagramKind, HEADER_LEN, Header, Psn};
use core::time::Duration;

/// What became of a datagram before it touched the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Accepted {
    /// It is the session's.
    Yes,
    /// Its addresses are not.
    WrongAddress,
    /// It was damaged in transit.
    Damaged,
}

/// One end of a session.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: SessionId,
    pub(super) local_tag: u64,
    pub(super) remote_tag: u64,
    pub(super) to: Destination,
    pub(super) paths: u16,
    /// The path of the next datagram.
    pub(super) path: u16,
    pub(super) max_payload: usize,
    pub(super) crc_out: u32,
    crc_in: u32,
    pub(super) window_bytes: usize,
    pub(super) times: Times,

    pub(super) sender: Sender,
    pub(super) receiver: Receiver,
    pub(super) recovery: Recovery,
    pub(super) window: Window,

    /// Datagrams received that no acknowledgement was sent for.
    pub(super) unacked: u32,
    /// An acknowledgement is due now.
    pub(super) ack_due: bool,
    /// When one will be due.
    pub(super) ack_at: u64,
    pub(super) heartbeat_due: bool,
    /// Data sent since an acknowledgement was asked for.
    pub(super) since_request: u32,
    /// A probe may exceed the window by one.
    pub(super) probe: bool,
    pub(super) last_sent: u64,
    last_heard: u64,
    /// Since when the peer has been suspected dead.
    suspected_at: u64,
    pub(super) failed: bool,
    pub(super) counters: Counters,
    pub(super) scratch: [u8; crc::SCRATCH],
}

/// The first PSN of the direction whose datagrams carry `tag`.
fn first_psn(tag: u64) -> Psn {
    //= rud/spec.md section 3.2
    // The upper half of the tag.
    Psn((tag >> 32) as u32)
}

impl Session {
    pub(super) fn new(now: u64, id: SessionId, config: &Config, params: &SessionParams) -> Self {
        Self {
            id,
            local_tag: params.local_tag,
            remote_tag: params.remote_tag,
            to: Destination {
                local_ip: params.local_ip,
                remote_ip: params.remote_ip,
                src_port: params.local_port,
                dst_port: params.remote_port,
            },
            paths: params.paths,
            path: 0,
            max_payload: params.max_payload,
            crc_out: crc::addresses(params.local_ip, params.remote_ip),
            crc_in: crc::addresses(params.remote_ip, params.local_ip),
            window_bytes: config.window_bytes,
            times: Times::from(config),
            sender: Sender::new(first_psn(params.remote_tag), config.window_packets),
            receiver: Receiver::new(first_psn(params.local_tag)),
            recovery: Recovery::new(now),
            window: Window::new(config),
            unacked: 0,
            ack_due: false,
            ack_at: NEVER,
            heartbeat_due: true,
            since_request: 0,
            probe: false,
            last_sent: now,
            last_heard: now,
            suspected_at: NEVER,
            failed: false,
            counters: Counters::default(),
            scratch: [0; crc::SCRATCH],
        }
    }

    /// The counters, with what is read off the state.
    pub(super) fn counters(&self) -> Counters {
        Counters {
            srtt: Duration::from_nanos(self.recovery.srtt()),
            window: self.window.limit(),
            ..self.counters
        }
    }

    /// A datagram with the session's tag.
    #[inline]
    pub(super) fn on_datagram(
        &mut self,
        now: u64,
        meta: &DatagramMeta,
        header: &Header,
        datagram: &[u8],
        sink: &mut impl Sink,
    ) -> Accepted {
        //= rud/spec.md section 5.1
        // Addresses, then the CRC, before anything is believed.
        if meta.src_ip != self.to.remote_ip || meta.dst_ip != self.to.local_ip {
            return Accepted::WrongAddress;
        }
        let offset = header.payload_offset();
        if !crc::verify(datagram, offset, self.crc_in, meta.src_port, meta.dst_port) {
            self.counters.crc_dropped += 1;
            return Accepted::Damaged;
        }
        if self.failed {
            return Accepted::Yes;
        }
        self.last_heard = now;
        self.suspected_at = NEVER;
        if !self.receiver.base(header.psn.minus(u32::from(header.base_lag))) {
            self.counters.out_of_window += 1;
            return Accepted::Yes;
        }
        //= rud/spec.md section 5.1
        // Acknowledgements take effect before the payload is delivered.
        self.on_acknowledgement(now, header, datagram, sink);
        match header.kind {
            DatagramKind::Data => self.on_data(now, header, datagram, sink),
            DatagramKind::Ack => self.counters.acks_received += 1,
        }
        self.ack_due |= header.ack_request;
        Accepted::Yes
    }

    #[inline]
    fn on_data(&mut self, now: u64, header: &Header, datagram: &[u8], sink: &mut impl Sink) {
        self.unacked += 1;
        if self.unacked == 1 {
            self.ack_at = now.saturating_add(self.times.ack_delay);
        }
        match self.receiver.classify(header.psn) {
            Arrival::New => {
                let (front, payload) = datagram.split_at(header.payload_offset());
                match sink.deliver(self.id, &front[HEADER_LEN..], payload) {
                    Disposition::Consumed => {
                        self.receiver.consumed(header.psn);
                        self.counters.received += 1;
                        self.counters.received_bytes += payload.len() as u64;
                    }
                    Disposition::Refused(why) => {
                        self.receiver.refused(header.psn);
                        self.ack_due = true;
                        self.counters.refused += 1;
                        self.counters.refused_not_ready += u64::from(why == RefusalReason::NotReady);
                    }
                }
            }
            Arrival::Duplicate => {
                self.receiver.duplicate(header.psn);
                self.ack_due = true;
                self.counters.duplicates += 1;
            }
            Arrival::OutOfWindow => self.counters.out_of_window += 1,
        }
        if self.unacked >= self.times.ack_every {
            self.ack_due = true;
        }
    }

    #[inline]
    fn on_acknowledgement(&mut self, now: u64, header: &Header, datagram: &[u8], sink: &mut impl Sink) {
        let context = AckContext {
            now,
            min_rtt: self.recovery.min_rtt(),
            round_trip: self.recovery.round_trip(),
            refusal_backoff: self.times.refusal_backoff,
        };
        let id = self.id;
        let mut acked = Acked::NOTHING;
        let mut release = |token: MessageToken| sink.released(id, token);
        let first_word = header.cumulative.word_start();
        self.sender.on_cumulative(&context, header.cumulative, &mut acked, &mut release);
        let start = first_word.plus(u32::from(header.sack_word) * 64);
        self.sender.on_word(&context, start, header.sack, 0, &mut acked, &mut release);
        if header.kind == DatagramKind::Ack {
            for block in Block::parse_all(&datagram[HEADER_LEN..]) {
                let start = first_word.plus(u32::from(block.word) * 64);
                let Block { received, refused, .. } = block;
                self.sender.on_word(&context, start, received, refused, &mut acked, &mut release);
            }
        }
        if acked.count | acked.refused == 0 {
            return;
        }
        self.counters.acked += u64::from(acked.count);
        self.counters.refused_by_peer += u64::from(acked.refused);
        self.counters.spurious += u64::from(acked.spurious);
        self.recovery.on_acked(now, &acked);
        self.window.on_acked(now, acked.count + acked.refused, self.recovery.srtt());
        self.detect_losses(now);
    }

    /// Moves what counts as lost by time to the lost ones.
    #[inline]
    fn detect_losses(&mut self, now: u64) {
        //= rud/spec.md section 6.3
        // The oldest first; where one is not lost yet, no younger one is.
        self.recovery.lost_at = NEVER;
        while let Some((sent_at, serial)) = self.sender.oldest() {
            let lost_at = self.recovery.lost_at(sent_at, serial, &self.times);
            if lost_at > now {
                self.recovery.lost_at = lost_at;
                return;
            }
            self.sender.lose_oldest();
            self.window.on_lost(1);
            self.counters.lost += 1;
        }
    }

    /// Lets every timer fire whose time has come.
    pub(super) fn on_timeout(&mut self, now: u64, sink: &mut impl Sink) {
        if self.failed {
            return;
        }
        if now >= self.ack_at {
            self.ack_due = true;
            self.ack_at = NEVER;
        }
        if now >= self.recovery.lost_at {
            self.detect_losses(now);
        }
        if self.sender.flight() != 0 && now >= self.recovery.tail_deadline(&self.times) {
            if !self.recovery.on_tail_timer(now) {
                //= rud/spec.md section 6.4
                // The most recently sent datagram goes again, outside the window.
                self.sender.probe();
                self.probe = true;
                self.counters.probes += 1;
            } else {
                //= rud/spec.md section 6.5
                // Everything on the wire is lost.
                self.counters.timeouts += 1;
                self.window.on_timeout();
                self.stalled(now, sink);
                while self.sender.flight() != 0 {
                    self.sender.lose_oldest();
                    self.counters.lost += 1;
                }
                self.recovery.lost_at = NEVER;
            }
        }
        if now >= self.last_sent.saturating_add(self.times.heartbeat) {
            self.heartbeat_due = true;
        }
        self.listen(now, sink);
    }

    /// Ends a session whose datagrams do not arrive although the peer lives.
    fn stalled(&mut self, now: u64, sink: &mut impl Sink) {
        let stalled = now.saturating_sub(self.recovery.progress_at());
        // Several time-outs, so that our own long pause is not taken for the path's failure.
        if stalled >= self.times.dead_after && self.recovery.backoff() >= 4 && self.suspected_at == NEVER {
            self.fail(
                Failure::NoProgress {
                    stalled: Duration::from_nanos(stalled),
                    bytes: HEADER_LEN + self.sender.oldest_bytes(),
                },
                sink,
            );
        }
    }

    fn listen(&mut self, now: u64, sink: &mut impl Sink) {
        //= rud/spec.md section 8
        // Suspicion first, failure an eighth of the time later: if it was us who did not run, the peer's
        // heartbeats are waiting and will be read in between.
        let silent = now.saturating_sub(self.last_heard);
        if self.failed || now < self.listen_at() {
            return;
        }
        if self.suspected_at == NEVER {
            self.suspected_at = now;
            self.heartbeat_due = true;
        } else {
            self.fail(Failure::PeerSilent { silent: Duration::from_nanos(silent) }, sink);
        }
    }

    fn fail(&mut self, why: Failure, sink: &mut impl Sink) {
        if !self.failed {
            self.failed = true;
            sink.failed(self.id, why);
        }
    }

    /// When the peer's silence has to be looked at next.
    fn listen_at(&self) -> u64 {
        let dead_after = self.times.dead_after;
        if self.suspected_at == NEVER {
            self.last_heard.saturating_add(dead_after - dead_after / 8)
        } else {
            let dead = self.last_heard.saturating_add(dead_after);
            dead.max(self.suspected_at.saturating_add(dead_after / 8))
        }
    }

    /// The timers that a received datagram can bring forward.
    #[inline]
    pub(super) fn near_deadline(&self) -> u64 {
        self.ack_at.min(self.recovery.lost_at).min(self.sender.retry_at())
    }

    /// When `on_timeout` has something to do.
    #[inline]
    pub(super) fn deadline(&self) -> u64 {
        if self.failed {
            return NEVER;
        }
        let mut deadline = self.near_deadline().min(self.listen_at());
        if self.sender.flight() != 0 {
            deadline = deadline.min(self.recovery.tail_deadline(&self.times));
        }
        if !self.heartbeat_due {
            deadline = deadline.min(self.last_sent.saturating_add(self.times.heartbeat));
        }
        deadline
    }
}
