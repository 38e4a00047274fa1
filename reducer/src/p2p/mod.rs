//! Messages from one rank to another, matched by sender and tag: sends, receives, probes. A state machine without a thread, a clock or a
//! socket, as the [executor](crate::executor) is.
//!
//! ```text
//!   start_send, start_receive ---> queues per peer <--- on_message, on_released
//!   poll ------> control messages, fragments (Transport)
//!   take_ended
//! ```
//!
//! **Order.** The messages from one rank to another are numbered in the order in which their sends were started. The receiver delivers
//! them in that order, whatever the network does. The oldest receive that asks for a message's sender (or any) and its tag (or any) takes it,
//! and a receive takes the oldest message that fits. So of two messages that a receive asks for, the first one started comes first: MPI's
//! rule. Between different senders there is no order.
//!
//! **Room.** A message that comes before its receive is kept, so many bytes for each peer ([`room_bytes`](MessengerConfig::room_bytes))
//! and no more. The sender counts the bytes that the peer may keep: small messages go out at once as long as they have room (three
//! quarters of it); others are announced, which costs little (`peer::OVERHEAD`), and sent when a receive has asked for them, straight
//! into its memory. Where not even an announcement has room, sends wait. The receiver says now and then which messages receives have
//! taken, which gives their room back.
//!
//! **Ends.** A send of a small message ends as soon as its elements are copied, where there is room for the copy; any other when its
//! memory is not needed any more. A [synchronous](SendRequest::synchronous) one ends when a receive has taken the message. A failure of a
//! message whose send has ended (a receive too short for it; no receive before the deadline) is the error of the next
//! [`start_send`](Messenger::start_send) to that rank, or of [`take_late`](Messenger::take_late).
//!
//! **Exactly once.** Messages have numbers, and fragments a bit each: a repetition changes nothing.

mod api;
mod at_once;
mod common;
mod deadlines;
pub(crate) mod fragments;
mod peer;
mod peers;
mod receive;
mod send;
mod sends;
mod wire;

pub use self::api::{
    Direction, MessageCounters, MessengerConfig, PostError, ReceiveRequest, SendRequest, Status,
    TransferError, TransferId, TransferSubject,
};

use self::common::Common;
use self::peer::{Body, Receive};
use self::peers::Peers;
use self::sends::{Handle, SendState, Sends};
use crate::executor::{AbortCause, Disposition, Progress, Refusal};
use crate::grid::Rank;
use crate::header::{Header, MessageKind};
use crate::machine::{Ended, Machine};
use crate::memory::{MemoryKind, Pool, TensorRegion};
use crate::transport::{SendToken, Transport};
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

/// The sends and receives of one rank in one group.
#[derive(Debug)]
pub struct Messenger {
    common: Common,
    peers: Peers,
    sends: Sends,
    /// Receives from any rank without a message, in order.
    any: VecDeque<Receive>,
    /// Copies of messages whose sends have ended.
    copies: Option<Pool>,
    /// Buffers of held messages, for their next use.
    buffers: Vec<Vec<u8>>,
    /// Messages that have waited for a receive.
    stamps: u64,
    cause: Option<Arc<AbortCause>>,
}

impl Messenger {
    /// Without sends and receives; the state of a peer is made at its first use. The share of `room_bytes` that a message may have
    /// bounds `eager_bytes`.
    ///
    /// # Safety
    /// As for [`Executor::new`](crate::executor::Executor::new): memory that it hands to a transport is not used any more when it is
    /// dropped, so the transport goes first.
    #[allow(unsafe_code)]
    pub unsafe fn new(config: MessengerConfig) -> Self {
        let eager_bytes = config.eager_bytes.min(config.room_bytes / 4);
        Self {
            common: Common::new(MessengerConfig { eager_bytes, ..config }),
            peers: Peers::default(),
            sends: Sends::default(),
            any: VecDeque::new(),
            copies: None,
            buffers: vec![],
            stamps: 0,
            cause: None,
        }
    }

    /// The first message from this rank (or any) with this tag (or any) that has come, and that no receive has taken. It may have come in
    /// part.
    pub fn probe(&self, from: Option<Rank>, tag: Option<u32>) -> Option<Status> {
        let (peer, seq) = self.find_waiting(from, tag)?;
        let envelope = self.peers.get(peer)?.inbound.get(seq)?.envelope;
        Some(Status { peer, tag: envelope.tag, dtype: envelope.dtype, count: envelope.count })
    }

    /// Whether a receive from this rank (or any) with this tag (or any) would take a message that its sender still has.
    pub fn is_announced(&self, from: Option<Rank>, tag: Option<u32>) -> bool {
        let found = self.find_waiting(from, tag);
        let incoming = found.and_then(|(peer, seq)| self.peers.get(peer)?.inbound.get(seq));
        incoming.is_some_and(|incoming| matches!(incoming.body, Body::Announced))
    }

    /// Ends a receive that no message has been matched with: with [`TransferError::Cancelled`]. False if it is none of those.
    pub fn cancel(&mut self, id: TransferId) -> bool {
        let find = |queue: &mut VecDeque<Receive>| {
            let at = queue.binary_search_by_key(&id, |receive| receive.id).ok()?;
            queue.remove(at)
        };
        let found = find(&mut self.any)
            .or_else(|| self.peers.iter_mut().find_map(|(_, peer)| find(&mut peer.inbound.posted)));
        let Some(receive) = found else { return false };
        let subject = self.common.receiving(&receive);
        self.common.end(receive.id, Err(TransferError::Cancelled { subject }));
        true
    }

    /// How a send that had ended has failed since, if one has; each is told once.
    pub fn take_late(&mut self) -> Option<TransferError> {
        self.peers.iter_mut().find_map(|(_, peer)| peer.out.late.take()).map(|late| *late)
    }

    /// The ranks that there were messages with, or receives from.
    pub fn known(&self) -> impl Iterator<Item = Rank> {
        self.peers.iter().map(|(rank, _)| rank)
    }

    /// Whether no transport refers to memory of a send, a copy included.
    pub fn is_quiesced(&self) -> bool {
        self.sends.iter().all(|(_, send)| send.unreleased == 0)
    }

    /// Whether one of these ranks has still to be sent a message, or a part of it; that its send may have ended does not matter.
    pub fn has_unacknowledged(&self, ranks: impl Fn(Rank) -> bool) -> bool {
        let own = self.common.config.rank;
        self.sends.iter().any(|(_, send)| send.failure.is_none() && send.to != own && ranks(send.to))
    }

    /// The counters since the start.
    pub fn counters(&self) -> MessageCounters {
        self.common.counters
    }

    /// Whether a send or receive with this rank and this memory may start.
    fn check(
        &self,
        peer: Option<Rank>,
        dtype: crate::dtype::DType,
        memory: &TensorRegion,
    ) -> Result<(), PostError> {
        let config = &self.common.config;
        if let Some(cause) = &self.cause {
            return Err(PostError::Aborted(Arc::clone(cause)));
        }
        if let Some(peer) = peer.filter(|peer| peer.0 >= config.ranks) {
            return Err(PostError::Rank { peer, ranks: config.ranks });
        }
        let bytes = memory.len();
        let count = (bytes / dtype.size()) as u64;
        let whole = bytes.is_multiple_of(dtype.size()) && count <= crate::header::MAX_COUNT;
        if !whole || memory.kind() == MemoryKind::Device && bytes > 0 {
            return Err(PostError::Memory { bytes, dtype });
        }
        // Copies whose sends have ended have places, too.
        let places = (sends::PLACES / 2) as usize;
        if self.common.running() >= config.max_operations.min(places) {
            return Err(PostError::Busy { max: config.max_operations });
        }
        Ok(())
    }
}

impl Machine for Messenger {
    type Id = TransferId;
    type Outcome = Result<Status, TransferError>;

    fn on_message(&mut self, header: &Header, payload: &[u8]) -> Disposition {
        let config = &self.common.config;
        if let Some(why) = Refusal::of_key(&header.key, config.group, config.epoch) {
            return Disposition::Refused(why);
        }
        if header.src.0 >= config.ranks || header.src == config.rank {
            return self.common.malformed();
        }
        if self.cause.is_some() {
            return Disposition::Refused(Refusal::Aborted);
        }
        let Some(envelope) = wire::Envelope::of(header) else { return self.common.malformed() };
        match header.kind {
            MessageKind::Message => self.on_fragment(header, envelope, payload),
            MessageKind::Ready => self.on_ready(header.src, envelope),
            MessageKind::Withdrawn => self.on_withdrawn(header.src, envelope),
            MessageKind::Clear => self.on_clear(header.src, envelope.seq),
            MessageKind::Taken => self.on_taken(header.src, envelope.seq, header.len),
            MessageKind::Refused => self.on_refused(header, &envelope),
            _ => self.common.malformed(),
        }
    }

    fn on_released(&mut self, token: SendToken) {
        let Some(handle) = Handle::of(token) else { return };
        let Some(send) = self.sends.get(handle) else { return };
        send.unreleased = send.unreleased.saturating_sub(1);
        if send.unreleased == 0 && send.state == SendState::Posted {
            self.end_send(handle);
        }
    }

    fn poll(&mut self, now: Duration, transport: &mut impl Transport) -> Progress {
        self.common.now = now;
        let mut worked = false;
        if self.common.has_passed(now) {
            worked |= self.check_deadlines(now);
        }
        if self.peers.report_at <= now {
            self.report_all();
        }
        worked |= self.common.flush(transport);
        worked |= self.post_all(transport);
        worked |= self.common.flush(transport);
        Progress { worked }
    }

    #[inline]
    fn take_ended(&mut self) -> Option<Ended<Self::Id, Self::Outcome>> {
        self.common.take_ended()
    }

    fn running(&self) -> usize {
        self.common.running()
    }

    #[inline]
    fn has_work(&self) -> bool {
        self.common.has_control() || self.peers.are_active()
    }

    fn next_deadline(&self) -> Option<Duration> {
        let next = self.common.earliest().min(self.peers.report_at);
        (next < Duration::MAX).then_some(next)
    }

    #[cold]
    fn awaited(&self, gone: impl Fn(Rank) -> bool) -> Option<Rank> {
        let own = self.common.config.rank;
        let sends = self.sends.iter().filter(|(_, send)| send.id.is_some()).map(|(_, send)| send.to);
        let peers = self.peers.iter().filter(|(_, peer)| peer.inbound.is_wanted()).map(|(rank, _)| rank);
        let others = || (0..self.common.config.ranks).map(Rank).filter(|rank| *rank != own);
        let all_gone = !self.any.is_empty() && others().all(&gone);
        let any = if all_gone { others().next() } else { None };
        sends.chain(peers).filter(|rank| gone(*rank)).chain(any).min()
    }

    fn abort(&mut self, cause: &Arc<AbortCause>) {
        if self.cause.is_some() {
            return;
        }
        self.cause = Some(Arc::clone(cause));
        let mut receives: Vec<Receive> = self.any.drain(..).collect();
        for (_, peer) in self.peers.iter_mut() {
            receives.extend(peer.inbound.take_receives());
        }
        for receive in receives {
            let subject = self.common.receiving(&receive);
            self.common.end(receive.id, Err(TransferError::Aborted { subject, cause: Arc::clone(cause) }));
        }
        self.peers.clear();
        self.common.clear();
        let sends: Vec<_> = self.sends.iter().map(|(handle, _)| handle).collect();
        for handle in sends {
            self.fail_send(handle, |subject| TransferError::Aborted { subject, cause: Arc::clone(cause) });
        }
    }

    fn fenced(&mut self) {
        let sends: Vec<_> = self.sends.iter().map(|(handle, _)| handle).collect();
        for handle in sends {
            if let Some(send) = self.sends.get(handle) {
                send.unreleased = 0;
            }
            self.end_send(handle);
        }
    }
}

#[cfg(test)]
mod tests;
