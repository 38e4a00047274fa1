//! One session: the handling of received datagrams, and its timers. `output.rs` sends.

mod output;

pub(super) use output::TransmitOutcome;

use super::acks::Acks;
use super::api::{
    Clue, Config, Counters, DatagramMeta, Disposition, Failure, MessageToken, RefusalReason, SendError,
    SessionId, SessionParams, Sink,
};
use super::cc::{AckSample, Controller as _, Pace, Signals, Swift};
use super::liveness::{Liveness, Silence};
use super::paths::Paths;
use super::receiver::{Arrival, Receiver};
use super::recovery::{NEVER, Recovery, TailTimer};
use super::sender::{AckContext, Acked, OnSettled, Sender};
use super::spray::Spray;
use crate::device::FramesOut;
use crate::region::Extent;
use crate::wire::rud::{Block, DatagramKind, HEADER_LEN, Header, MAX_BODY, Psn};
use core::net::IpAddr;
use core::time::Duration;

/// The result of the checks before a datagram touches the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Accepted {
    /// It is the session's.
    Yes,
    /// Its addresses are not.
    WrongAddress,
    /// It was damaged in transit.
    Damaged,
}

/// The sender of a datagram with a tag of no session, and the time.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnknownSender {
    pub(super) from: IpAddr,
    pub(super) at: u64,
}

/// The time of a look for datagrams, and for how long those found may have been there, if that is long. Nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub(super) now: u64,
    pub(super) late: u64,
}

/// One end of a session. Each part keeps its own state; the session passes datagrams and the time through them.
#[derive(Debug)]
pub(super) struct Session {
    id: SessionId,
    local_tag: u64,
    remote_tag: u64,
    max_payload: usize,
    paths: Paths,
    spray: Spray,
    sender: Sender,
    receiver: Receiver,
    acks: Acks,
    recovery: Recovery,
    signals: Signals,
    cc: Swift,
    pace: Pace,
    /// Payload bytes that may be on the wire.
    max_bytes: usize,
    liveness: Liveness,
    failed: bool,
    counters: Counters,
}

/// Where the acknowledgements of one datagram go.
struct Settled<'a, S> {
    id: SessionId,
    sink: &'a mut S,
    spray: &'a mut Spray,
}

impl<S: Sink> OnSettled for Settled<'_, S> {
    #[inline]
    fn delivered(&mut self, slot: usize) {
        self.spray.on_delivered(slot);
    }

    #[inline]
    fn released(&mut self, token: MessageToken) {
        self.sink.released(self.id, token);
    }
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
            max_payload: params.max_payload,
            paths: Paths::new(params),
            spray: Spray::new(params.paths, config.window_packets),
            sender: Sender::new(first_psn(params.remote_tag), config),
            receiver: Receiver::new(first_psn(params.local_tag)),
            acks: Acks::new(config),
            recovery: Recovery::new(now, config),
            signals: Signals::new(),
            cc: Swift::new(config, params.max_payload),
            pace: Pace::default(),
            max_bytes: config.window_bytes,
            liveness: Liveness::new(now, config),
            failed: false,
            counters: Counters::default(),
        }
    }

    pub(super) fn id(&self) -> SessionId {
        self.id
    }

    /// The tag of datagrams that this end receives.
    pub(super) fn local_tag(&self) -> u64 {
        self.local_tag
    }

    /// The peer's address.
    pub(super) fn remote_ip(&self) -> IpAddr {
        self.paths.remote_ip()
    }

    /// Queues a message whose header of `len` bytes `write` puts where it is sent from.
    #[inline]
    pub(super) fn push(
        &mut self,
        len: usize,
        write: impl FnOnce(&mut [u8; MAX_BODY]),
        payload: Option<Extent>,
        token: MessageToken,
    ) -> Result<(), SendError> {
        if len > MAX_BODY {
            return Err(SendError::HeaderTooLong { len });
        }
        let bytes = payload.map_or(0, |extent| extent.len());
        if bytes > self.max_payload {
            return Err(SendError::PayloadTooLong { len: bytes, limit: self.max_payload });
        }
        if self.failed {
            return Err(SendError::Failed);
        }
        if !self.sender.push(len as u8, write, payload, token) {
            return Err(SendError::Full);
        }
        Ok(())
    }

    /// The message queued last requests its acknowledgement at once, if it has not been sent yet.
    #[inline]
    pub(super) fn request_ack(&mut self) {
        self.sender.request_ack();
    }

    /// Messages that `push` would take.
    #[inline]
    pub(super) fn capacity(&self) -> usize {
        if self.failed { 0 } else { self.sender.capacity() as usize }
    }

    /// Whether nothing is queued or unacknowledged.
    pub(super) fn is_idle(&self) -> bool {
        self.sender.is_empty()
    }

    /// Whether no data was sent or received.
    pub(super) fn is_unused(&self) -> bool {
        let Counters { sent, received, refused, duplicates, out_of_window, .. } = self.counters;
        self.is_idle() && !self.failed && sent + received + refused + duplicates + out_of_window == 0
    }

    /// Makes a heartbeat due now.
    pub(super) fn announce(&mut self) {
        self.liveness.announce();
    }

    /// Drops all payload: from now on messages are sent, or sent again, as headers alone.
    pub(super) fn forget_payloads(&mut self) {
        self.sender.forget_payloads();
    }

    /// Sets the state of emitted frames, which may still be read.
    pub(super) fn set_frames_out(&mut self, out: FramesOut) {
        self.sender.releases_mut().set_frames_out(out);
    }

    /// Whether acknowledged messages wait until no frame refers to them.
    pub(super) fn holds_releases(&self) -> bool {
        self.sender.releases().is_holding()
    }

    /// No frame is out any more.
    pub(super) fn release_held(&mut self, sink: &mut impl Sink) {
        let id = self.id;
        self.sender.releases_mut().drain(|token| sink.released(id, token));
    }

    /// The counters, with gauges read off the state.
    pub(super) fn counters(&self) -> Counters {
        Counters {
            srtt: Duration::from_nanos(self.recovery.srtt()),
            window: self.cc.limit(),
            gap: Duration::from_nanos(self.cc.gap()),
            paced: Duration::from_nanos(self.pace.waited()),
            marks_received: self.acks.marks(),
            paths_out: self.spray.out(),
            ..self.counters
        }
    }

    /// Data that the peer has acknowledged.
    pub(super) fn acked(&self) -> u64 {
        self.counters.acked
    }

    /// A datagram with the session's tag, which this end may have had for `late` nanoseconds before it looked.
    #[inline]
    pub(super) fn on_datagram(
        &mut self,
        Look { now, late }: Look,
        meta: &DatagramMeta,
        header: &Header,
        datagram: &[u8],
        sink: &mut impl Sink,
    ) -> Accepted {
        //= rud/spec.md section 5.1
        // Addresses, then the CRC are checked, before anything takes effect.
        if !self.paths.lead(meta) {
            self.liveness.on_clue(now, Clue::OtherAddress);
            return Accepted::WrongAddress;
        }
        if !self.paths.verify(meta, header, datagram) {
            self.counters.crc_dropped += 1;
            self.liveness.on_clue(now, Clue::Damaged);
            return Accepted::Damaged;
        }
        if self.failed {
            return Accepted::Yes;
        }
        self.liveness.on_heard(now);
        let base = header.psn.minus(u32::from(header.base_lag));
        if !self.receiver.base(base) {
            self.counters.out_of_window += 1;
            return Accepted::Yes;
        }
        self.spray.on_base(base);
        //= rud/spec.md section 5.1
        // Acknowledgements take effect before the payload is delivered.
        self.on_acknowledgement(Look { now, late }, header, datagram, sink);
        match header.kind {
            DatagramKind::Data => {
                self.acks.on_data(now, late, meta.congestion_experienced);
                self.on_data(now, header, datagram, sink);
            }
            DatagramKind::Ack | DatagramKind::Probe | DatagramKind::Answer => {
                self.counters.acks_received += 1;
                self.on_stamp(Look { now, late }, header, datagram);
            }
        }
        self.acks.set_due(header.ack_request);
        Accepted::Yes
    }

    #[inline]
    fn on_data(&mut self, now: u64, header: &Header, datagram: &[u8], sink: &mut impl Sink) {
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
                        self.acks.set_due(true);
                        self.counters.refused += 1;
                        self.counters.refused_not_ready += u64::from(why == RefusalReason::NotReady);
                    }
                }
            }
            Arrival::Duplicate => {
                self.receiver.duplicate(header.psn);
                self.spray.on_duplicate(now);
                self.acks.set_due(true);
                self.counters.duplicates += 1;
            }
            Arrival::OutOfWindow => self.counters.out_of_window += 1,
        }
    }

    fn on_stamp(&mut self, Look { now, late }: Look, header: &Header, datagram: &[u8]) {
        match header.stamp(datagram) {
            Some(stamp) if header.kind == DatagramKind::Probe => self.acks.on_probe(now, late, stamp),
            Some(stamp) => self.signals.on_answer(now, late, header.held, stamp),
            None => {}
        }
    }

    #[inline]
    fn on_acknowledgement(&mut self, look: Look, header: &Header, datagram: &[u8], sink: &mut impl Sink) {
        let Look { now, late } = look;
        let flight = self.sender.flight();
        let context =
            AckContext { now, min_rtt: self.recovery.min_rtt(), round_trip: self.recovery.round_trip() };
        let mut acked = Acked::NOTHING;
        let mut settled = Settled { id: self.id, sink, spray: &mut self.spray };
        let first_word = header.cumulative.word_start();
        self.sender.on_cumulative(&context, header.cumulative, &mut acked, &mut settled);
        let start = first_word.plus(u32::from(header.sack_word) * 64);
        self.sender.on_word(&context, start, header.sack, 0, &mut acked, &mut settled);
        if header.kind != DatagramKind::Data {
            for block in Block::parse_all(&datagram[HEADER_LEN..]) {
                let start = first_word.plus(u32::from(block.word) * 64);
                let Block { received, refused, .. } = block;
                self.sender.on_word(&context, start, received, refused, &mut acked, &mut settled);
            }
        }
        if acked.count | acked.refused == 0 {
            return;
        }
        self.counters.acked += u64::from(acked.count);
        self.counters.refused_by_peer += u64::from(acked.refused);
        self.counters.spurious += u64::from(acked.spurious);
        self.recovery.on_acked(now, &acked);
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
            flight,
        });
        self.detect_losses(now);
    }

    /// Moves datagrams that count as lost by time to the lost ones.
    #[inline]
    fn detect_losses(&mut self, now: u64) {
        let lost = self.recovery.detect_losses(now, &mut self.sender);
        if lost != 0 {
            self.cc.on_lost(lost);
            self.counters.lost += u64::from(lost);
        }
    }

    /// Fires every timer whose time has come. `unknown` sent the last datagram with a tag of no session.
    pub(super) fn on_timeout(&mut self, now: u64, unknown: Option<UnknownSender>, sink: &mut impl Sink) {
        if self.failed {
            return;
        }
        self.acks.on_timeout(now);
        if now >= self.recovery.loss_deadline() {
            self.detect_losses(now);
        }
        if self.sender.flight() != 0 {
            match self.recovery.on_tail_timer(now) {
                None => {}
                Some(TailTimer::Probe) => {
                    //= rud/spec.md section 6.4
                    // The most recently sent datagram goes again, outside the window.
                    self.sender.probe();
                    self.counters.probes += 1;
                }
                Some(TailTimer::TimeOut) => {
                    //= rud/spec.md section 6.5
                    // Everything on the wire is lost.
                    self.counters.timeouts += 1;
                    self.cc.on_timeout();
                    self.stalled(now, sink);
                    while self.sender.flight() != 0 {
                        self.sender.lose_oldest();
                        self.counters.lost += 1;
                    }
                }
            }
        }
        if let Some(unknown) = unknown.filter(|unknown| unknown.from == self.paths.remote_ip()) {
            self.liveness.on_clue(unknown.at, Clue::UnknownSession);
        }
        if let Some(Silence { silent, clue }) = self.liveness.on_timeout(now) {
            let timeouts = if self.sender.is_quiet() { 0 } else { self.recovery.backoff() };
            self.fail(Failure::PeerSilent { silent: Duration::from_nanos(silent), timeouts, clue }, sink);
        }
    }

    /// Ends a session whose datagrams do not arrive although the peer lives.
    fn stalled(&mut self, now: u64, sink: &mut impl Sink) {
        let stalled = now.saturating_sub(self.recovery.progress_at());
        // Several time-outs, so that our own long pause is not taken for the path's failure.
        if stalled >= self.liveness.dead_after()
            && self.recovery.backoff() >= 4
            && !self.liveness.is_suspected()
        {
            self.fail(
                Failure::NoProgress {
                    stalled: Duration::from_nanos(stalled),
                    timeouts: self.recovery.backoff(),
                    bytes: HEADER_LEN + self.sender.oldest_bytes(),
                },
                sink,
            );
        }
    }

    fn fail(&mut self, why: Failure, sink: &mut impl Sink) {
        if !self.failed {
            self.failed = true;
            sink.failed(self.id, why);
        }
    }

    /// The timers that a received datagram can bring forward.
    #[inline]
    pub(super) fn near_deadline(&self) -> u64 {
        self.acks.deadline().min(self.recovery.loss_deadline()).min(self.sender.retry_at())
    }

    /// When `on_timeout` has something to do.
    #[inline]
    pub(super) fn deadline(&self) -> u64 {
        if self.failed {
            return NEVER;
        }
        let deadline = self.near_deadline().min(self.liveness.deadline());
        if self.sender.flight() == 0 { deadline } else { deadline.min(self.recovery.tail_deadline()) }
    }
}
