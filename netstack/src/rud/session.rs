//! One session: its parts, and what its owner asks of it. `input.rs` takes received datagrams in, `timers.rs` has its timers, and
//! `output.rs` and `reports.rs` send.

mod input;
mod output;
mod reports;
mod timers;

pub(super) use output::TransmitOutcome;

use super::acks::Acks;
use super::api::{Config, Counters, MessageToken, SendError, SessionId, SessionParams, Sink};
use super::asks::Asks;
use super::cc::{Controller as _, Pace, Signals, Swift};
use super::liveness::Liveness;
use super::mtu::PathMtu;
use super::nanos;
use super::paths::Paths;
use super::pieces::Pieces;
use super::receiver::Receiver;
use super::recovery::Recovery;
use super::sender::{self, OnSettled, Sender};
use super::spray::Spray;
use crate::device::FramesOut;
use crate::region::Extent;
use crate::scratch::Bytes;
use crate::wire::rud::{HEADER_LEN, MAX_BODY, Psn};
use core::net::IpAddr;
use core::time::Duration;

/// Large messages that an upper layer with an order of its own keeps queued: as many as the window has datagrams, but at least so many,
/// which are worth a call, and at most so many, which are a burst of an endpoint.
const LEAST_QUEUED: u32 = 8;
const MOST_QUEUED: u32 = 64;

/// The result of the checks before a datagram touches the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Accepted {
    /// It is the session's.
    Yes,
    /// Its addresses are not.
    WrongAddress,
    /// It was damaged in transit.
    Damaged,
    /// What the peer has put into it makes no sense.
    Malformed,
}

/// The time of a look for datagrams, and for how long those found may have been there, if that is long. Nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub(super) now: u64,
    pub(super) late: u64,
    /// Emitted frames that may still be read.
    pub(super) frames_out: FramesOut,
}

/// One end of a session. Each part keeps its own state; the session passes datagrams and the time through them.
#[derive(Debug)]
pub(super) struct Session {
    id: SessionId,
    local_tag: u64,
    remote_tag: u64,
    /// Bytes that the seal adds to each datagram; 0: the session is not sealed.
    seal_len: usize,
    /// The longest message, header and payload, in bytes.
    max_message: usize,
    paths: Paths,
    spray: Spray,
    asks: Asks,
    mtu: PathMtu,
    sender: Sender,
    receiver: Receiver,
    /// Messages received in part.
    pieces: Pieces,
    /// A message that was going out in pieces when the room ended, and the bytes of its payload that had.
    cut: Option<(Psn, usize)>,
    acks: Acks,
    /// Whether the network marks datagrams, of this session or another: as far as this end knows.
    network_marks: bool,
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
    //= rud/spec.md section 3.2, RUD-4
    // The upper half of the tag.
    Psn((tag >> 32) as u32)
}

impl Session {
    pub(super) fn new(now: u64, id: SessionId, config: &Config, params: &SessionParams) -> Self {
        let mtu = PathMtu::new(params.max_plain(), params.seal_len(), nanos(config.mtu_raise));
        // Checked when the session was entered.
        let paths = params.local_ports.len() as u16;
        Self {
            id,
            local_tag: params.local_tag,
            remote_tag: params.remote_tag,
            seal_len: params.seal_len(),
            max_message: params.max_plain().saturating_sub(HEADER_LEN),
            paths: Paths::new(params),
            spray: Spray::new(paths, sender::slots(config)),
            asks: Asks::new(paths),
            //= rud/spec.md section 6.9, RUD-69
            // Every path carries a bundle whole.
            sender: Sender::new(
                first_psn(params.remote_tag),
                config,
                usize::from(mtu.base()).saturating_sub(HEADER_LEN),
            ),
            mtu,
            receiver: Receiver::new(first_psn(params.local_tag)),
            pieces: Pieces::new(config.window_bytes),
            cut: None,
            acks: Acks::new(config),
            network_marks: false,
            recovery: Recovery::new(now, config),
            signals: Signals::new(),
            cc: Swift::new(config, params.max_plain().saturating_sub(HEADER_LEN)),
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

    /// Whether nothing leaves, or is taken in, without a seal.
    #[inline]
    pub(super) fn is_sealed(&self) -> bool {
        self.seal_len != 0
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
        if len + bytes > self.max_message {
            return Err(SendError::PayloadTooLong {
                len: bytes,
                limit: self.max_message.saturating_sub(len),
            });
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

    /// Large messages that `push` would take.
    #[inline]
    pub(super) fn capacity(&self) -> usize {
        if self.failed { 0 } else { self.sender.capacity() as usize }
    }

    /// Whether as many large messages are queued as leave in a round trip.
    #[inline]
    pub(super) fn is_ahead(&self) -> bool {
        //= rud/spec.md section 6.11, RUD-74
        // What is handed over beyond that would leave no sooner, and what is more urgent would leave later.
        // A session that has failed says so to who sends.
        !self.failed && self.sender.queued_large() >= self.cc.limit().clamp(LEAST_QUEUED, MOST_QUEUED)
    }

    /// The longest datagram that the path is held to carry, in bytes, less those of the seal.
    #[inline]
    pub(super) fn path_datagram(&self) -> usize {
        self.mtu.limit()
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

    /// Whether small messages that are queued from now on share datagrams.
    pub(super) fn set_bundles(&mut self, used: bool) {
        self.sender.set_bundles(used);
    }

    /// Bundles that there is memory for.
    #[cfg(test)]
    pub(super) fn bundles(&self) -> usize {
        self.sender.bundles()
    }

    /// The memory that frames may refer to and that is the session's own.
    pub(super) fn into_memory(self) -> impl Iterator<Item = Bytes> {
        self.sender.into_memory()
    }

    /// Whether acknowledged messages, or memory of the session's own, wait until no frame refers to them.
    pub(super) fn waits_for_frames(&self) -> bool {
        self.sender.waits_for_frames()
    }

    /// No frame is out any more.
    pub(super) fn release_held(&mut self, sink: &mut impl Sink) {
        let id = self.id;
        self.sender.release_held(|token| sink.released(id, token));
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
            path_datagram: (self.mtu.limit() + self.seal_len) as u16,
            ..self.counters
        }
    }

    /// Data that the peer has acknowledged.
    pub(super) fn acked(&self) -> u64 {
        self.counters.acked
    }
}
