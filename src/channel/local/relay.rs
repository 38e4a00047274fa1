//! The leader's work for the other ranks of its host: it sends their messages on to the leaders of other hosts, and
//! hands on the messages from there.
//!
//! A message that is sent on stays in the up ring that it came by, from where the channel sends it, header and payload, as the payload
//! of a [`Relay`](MessageKind::Relay) message that names the destination. So it is covered by the channel's CRC like
//! all messages between hosts, and the leader keeps no copy. Its room in the ring is given back when the channel
//! releases it: a rank whose messages cannot be sent on finds its ring full.
//!
//! The other leader never makes its channel wait, behind which the messages of collectives would wait as well: a
//! message that its destination cannot take yet is copied and held. A window bounds that, per leader and destination:
//! no more than [`WINDOW`] bytes are on the way or held, and the destination's leader reports (by
//! [`Relayed`](MessageKind::Relayed)) the bytes taken, whenever they make a quarter of the window. So one destination
//! that takes nothing stops the messages to it, and the ring of a rank that sends nothing else; it stops no other rank.
//! A ring, a window and the held messages depend on no message of the other direction: there is no cyclic wait.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;

use shouter_reducer::executor::{Disposition, Refusal};
use shouter_reducer::grid::{Grid, Rank};
use shouter_reducer::header::{HEADER_BYTES, Header, MatchKey, MessageKind};
use shouter_reducer::memory::Span;
use shouter_reducer::transport::{SendError, SendToken};

use super::ring::{Garbled, MAX_PAYLOAD, Offered, PushError, Reader, RingMessage, Writer};
use super::{bell, bit, lost, relay_bit};
use crate::channel::Inbox;
use crate::channel::loss::PeerLoss;
use crate::channel::shm::NodeSegment;

/// Bytes that one leader's messages to one rank may take, on the way or held: those of a round trip of 50 us at 40
/// Gb/s.
const WINDOW: u32 = 256 << 10;
const _: () = assert!(4 * (HEADER_BYTES + MAX_PAYLOAD) < WINDOW as usize);

/// Messages to one other leader that its channel has not released: the collectives' own share its queue.
const MAX_SENDING: u32 = 64;

/// In the low half of a token: a message of an up ring. The executor has the number of a step there, which is never so large.
const TOKEN: u64 = 0xe000_0000;
const TOKEN_MASK: u64 = 0xf000_0000;

/// A message that a channel sends from its place: the up ring, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RingNumber {
    from: u32,
    number: u32,
}

/// The message that a token stands for; `None` if it is none that is sent on.
#[inline]
pub(super) fn number_of(token: SendToken) -> Option<RingNumber> {
    let SendToken(token) = token;
    let from = (token & !TOKEN_MASK & u64::from(u32::MAX)) as u32;
    (token & TOKEN_MASK == TOKEN).then_some(RingNumber { from, number: (token >> 32) as u32 })
}

fn token_of(of: RingNumber) -> SendToken {
    SendToken(u64::from(of.number) << 32 | TOKEN | u64::from(of.from))
}

/// The bytes sent to a rank of another host. Counts are modulo 2^32.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    bytes: u32,
    /// The bytes that its leader has reported as taken.
    taken: u32,
}

/// The bytes that came from another leader for a rank of this host.
#[derive(Clone, Copy, Debug, Default)]
struct Came {
    taken: u32,
    reported: u32,
    held: u32,
}

/// A message that its destination could not take yet.
#[derive(Debug)]
struct Held {
    from: Rank,
    to: Rank,
    bytes: Box<[u8]>,
}

/// The leader's part.
#[derive(Debug)]
pub(super) struct Relay {
    grid: Grid,
    rank: Rank,
    /// By local rank.
    ups: Vec<Reader>,
    /// By local rank; the leader's own is not used.
    downs: Vec<Writer>,
    /// This rank's own messages to ranks that are no leaders.
    own: Writer,
    /// Up rings with something new, by [`bit`].
    due: u64,
    /// Messages wait, and may be sent on since one of the reasons for it has gone.
    may_go: bool,
    /// By destination.
    sent: HashMap<Rank, Sent>,
    /// By node.
    sending: Vec<u32>,
    /// By leader and destination.
    came: HashMap<(Rank, Rank), Came>,
    held: VecDeque<Held>,
    /// Reports that are due.
    reports: Vec<(Rank, Rank)>,
    is_closed: bool,
}

impl Relay {
    /// Says to the host's other ranks how large their messages may be: all channels take `fragment` bytes.
    pub(super) fn new(segment: &NodeSegment, grid: Grid, rank: Rank, fragment: Option<usize>) -> Self {
        let room = fragment.unwrap_or(0).saturating_sub(HEADER_BYTES).min(MAX_PAYLOAD) / 64 * 64;
        segment.relay_fragment().store(room as u64 + 1, Ordering::Relaxed);
        Self {
            grid,
            rank,
            ups: (0..segment.ranks()).map(|from| Reader::new(segment.ring_up(from))).collect(),
            downs: (0..segment.ranks()).map(|to| Writer::new(segment.ring_down(to))).collect(),
            own: Writer::new(segment.ring_up(0)),
            due: 0,
            may_go: false,
            sent: HashMap::new(),
            sending: vec![0; grid.nodes() as usize],
            came: HashMap::new(),
            held: VecDeque::new(),
            reports: vec![],
            is_closed: false,
        }
    }

    /// Posts a message of the leader itself.
    pub(super) fn post(
        &mut self,
        segment: &NodeSegment,
        to: Rank,
        header: &[u8; HEADER_BYTES],
        payload: &[u8],
    ) -> Result<(), PushError> {
        self.own.push(segment, to.0 + 1, header, payload)?;
        self.due |= bit(0);
        Ok(())
    }

    /// Up rings have something new.
    pub(super) fn ring(&mut self, rung: u64) {
        self.due |= rung;
    }

    /// Whether messages wait for ranks of this host.
    #[inline]
    pub(super) fn holds(&self) -> bool {
        !self.held.is_empty()
    }

    /// Whether something may be sent.
    #[inline]
    pub(super) fn has_work(&self) -> bool {
        (self.due != 0 || self.may_go || !self.reports.is_empty()) && !self.is_closed
    }

    /// The group has ended.
    pub(super) fn close(&mut self) {
        self.is_closed = true;
        self.held.clear();
    }

    /// Whether all that came up for hosts whose leaders are `awaited` was sent on and released, and they know what was taken here.
    pub(super) fn is_drained_to(&self, awaited: &dyn Fn(Rank) -> bool) -> bool {
        let is_awaited = |to: u32| {
            let to = Rank(to.saturating_sub(1));
            !self.grid.contains(to) || awaited(self.grid.leader_of(self.grid.node_of(to)))
        };
        let looked = self.due == 0 && !self.reports.iter().any(|(leader, _)| awaited(*leader));
        self.is_closed || looked && !self.ups.iter().flat_map(Reader::destinations).any(is_awaited)
    }

    /// Sends on as many messages as possible, and reports the bytes taken here; true if anything was sent.
    pub(super) fn send_on(
        &mut self,
        segment: &NodeSegment,
        mut send: impl FnMut(Rank, &Header, Span, SendToken) -> Result<(), SendError>,
        losses: &mut Vec<PeerLoss>,
    ) -> bool {
        let mut any = false;
        let Self { grid, rank, sent, came, sending, reports, .. } = self;
        reports.retain(|&(leader, to)| {
            let Some(came) = came.get_mut(&(leader, to)) else { return false };
            let header = message(MessageKind::Relayed, *rank, to, came.taken);
            let sent = send(leader, &header, Span::empty(), SendToken::CONTROL);
            if sent.is_ok() {
                came.reported = came.taken;
                any = true;
            }
            // Who has left or is lost needs no report.
            sent == Err(SendError::Full)
        });
        let (due, may_go) = (std::mem::take(&mut self.due), std::mem::take(&mut self.may_go));
        for (from, reader) in (0u32..).zip(&mut self.ups) {
            if due & bit(from) == 0 && (!may_go || reader.is_settled()) {
                continue;
            }
            let source = Rank(rank.0 + from);
            let mut is_full = false;
            let offer = |message: &RingMessage<'_>| {
                let Some((to, leader, whole)) = destination(message, *grid, source) else {
                    return Offered::Garbled;
                };
                let (bytes, sent) = (whole.len() as u32, sent.entry(to).or_default());
                let Some(sending) = sending.get_mut(grid.node_of(to) as usize) else {
                    return Offered::Garbled;
                };
                if sent.bytes.wrapping_sub(sent.taken) + bytes > WINDOW || *sending >= MAX_SENDING {
                    return Offered::Later;
                }
                let header = self::message(MessageKind::Relay, *rank, to, bytes);
                match send(leader, &header, whole, token_of(RingNumber { from, number: message.number })) {
                    Ok(()) => {
                        sent.bytes = sent.bytes.wrapping_add(bytes);
                        *sending += 1;
                        Offered::Sending
                    }
                    Err(SendError::Full) => {
                        is_full = true;
                        Offered::Later
                    }
                    // Its leader has left, or the channel has reported its loss.
                    Err(SendError::PeerFailed) => Offered::Taken,
                }
            };
            match reader.look(segment, offer) {
                Ok(looked) => {
                    any |= looked.any;
                    self.due |= if looked.more { bit(from) } else { 0 };
                }
                Err(Garbled) => losses.push(lost(source)),
            }
            self.may_go |= is_full;
        }
        any
    }

    /// Takes a message of another leader that is not for this rank's inbox as it is.
    pub(super) fn take(
        &mut self,
        segment: &NodeSegment,
        header: &Header,
        payload: &[u8],
        inbox: &mut dyn Inbox,
        losses: &mut Vec<PeerLoss>,
    ) -> Disposition {
        const MALFORMED: Disposition = Disposition::Refused(Refusal::Malformed);
        let (from, to) = (header.src, Rank(header.round));
        if self.is_closed {
            return Disposition::Refused(Refusal::Aborted);
        }
        if !self.grid.contains(from) || !self.grid.contains(to) {
            return MALFORMED;
        }
        if header.kind == MessageKind::Relayed {
            return self.on_report(from, to, header.len);
        }
        let node = self.grid.node_of(from);
        let inner = payload.get(..HEADER_BYTES).map(Header::parse);
        let sound = matches!(&inner, Some(Ok(inner)) if self.grid.node_of(inner.src) == node
            && self.grid.contains(inner.src));
        let small = payload.len() <= HEADER_BYTES + MAX_PAYLOAD && payload.len() == header.len as usize;
        if !sound || !small || self.grid.node_of(to) != self.grid.node_of(self.rank) {
            return MALFORMED;
        }
        let bytes = payload.len() as u32;
        let held = self.came.entry((from, to)).or_default().held;
        // Behind those that wait, or it could overtake them without end.
        let taken = held == 0 && self.deliver(segment, to, payload, inbox, losses);
        let came = self.came.entry((from, to)).or_default();
        if !taken {
            if held + bytes > WINDOW {
                return Disposition::Refused(Refusal::NotReady);
            }
            came.held += bytes;
            self.held.push_back(Held { from, to, bytes: payload.into() });
        } else {
            self.count(from, to, bytes);
        }
        Disposition::Consumed
    }

    /// Hands on held messages; true if any was handed on.
    pub(super) fn hand_on(
        &mut self,
        segment: &NodeSegment,
        inbox: &mut dyn Inbox,
        losses: &mut Vec<PeerLoss>,
    ) -> bool {
        let mut any = false;
        for _ in 0..self.held.len() {
            let Some(held) = self.held.pop_front() else { break };
            if self.deliver(segment, held.to, &held.bytes, inbox, losses) {
                let bytes = held.bytes.len() as u32;
                if let Some(came) = self.came.get_mut(&(held.from, held.to)) {
                    came.held -= bytes;
                }
                self.count(held.from, held.to, bytes);
                any = true;
            } else {
                self.held.push_back(held);
            }
        }
        any
    }

    /// A channel has released a message.
    pub(super) fn released(&mut self, segment: &NodeSegment, of: RingNumber) {
        let reader = self.ups.get_mut(of.from as usize);
        let Some(to) = reader.and_then(|reader| reader.release(segment, of.number)) else { return };
        let node = self.grid.node_of(Rank(to.saturating_sub(1)));
        if let Some(sending) = self.sending.get_mut(node as usize) {
            *sending = sending.saturating_sub(1);
        }
        self.may_go = true;
    }

    /// The leader of a rank has reported the bytes taken for it.
    fn on_report(&mut self, from: Rank, to: Rank, taken: u32) -> Disposition {
        if from != self.grid.leader_of(self.grid.node_of(to)) {
            return Disposition::Refused(Refusal::Malformed);
        }
        if let Some(sent) = self.sent.get_mut(&to) {
            // Reports may overtake each other.
            let more = taken.wrapping_sub(sent.taken);
            if more <= sent.bytes.wrapping_sub(sent.taken) {
                sent.taken = taken;
                self.may_go = true;
            }
        }
        Disposition::Consumed
    }

    /// Gives a message to its destination; false if that has no room.
    fn deliver(
        &mut self,
        segment: &NodeSegment,
        to: Rank,
        message: &[u8],
        inbox: &mut dyn Inbox,
        losses: &mut Vec<PeerLoss>,
    ) -> bool {
        let Some((head, payload)) = message.split_first_chunk::<HEADER_BYTES>() else { return true };
        if to == self.rank {
            return Header::parse(head)
                .map_or(true, |header| !inbox.fragment(&header, payload).is_retryable());
        }
        let local = self.grid.local_of(to);
        let Some(writer) = self.downs.get_mut(local as usize) else { return true };
        match writer.push(segment, 0, head, payload) {
            Ok(()) => {
                bell::ring(segment, local, relay_bit(0));
                true
            }
            Err(PushError::Full) => false,
            Err(PushError::TooLarge) => true,
            Err(PushError::Garbled) => {
                losses.push(lost(to));
                true
            }
        }
    }

    /// Counts bytes that a destination has taken; a report is due after a quarter of the window.
    fn count(&mut self, from: Rank, to: Rank, bytes: u32) {
        let came = self.came.entry((from, to)).or_default();
        let before = came.taken.wrapping_sub(came.reported);
        came.taken = came.taken.wrapping_add(bytes);
        if before < WINDOW / 4 && before + bytes >= WINDOW / 4 {
            self.reports.push((from, to));
        }
    }
}

/// The destination of a message in an up ring: the rank, its leader, and the bytes to send; `None` if it makes no
/// sense.
fn destination(message: &RingMessage<'_>, grid: Grid, source: Rank) -> Option<(Rank, Rank, Span)> {
    let to = Rank(message.to.checked_sub(1)?);
    let sound = Header::parse(message.header).is_ok_and(|header| header.src == source)
        && grid.contains(to)
        && grid.node_of(to) != grid.node_of(source);
    let leader = grid.leader_of(grid.node_of(to));
    message.whole().filter(|_| sound).map(|whole| (to, leader, whole))
}

/// A message between two leaders about one for `to`.
fn message(kind: MessageKind, src: Rank, to: Rank, len: u32) -> Header {
    Header { round: to.0, len, ..Header::new(kind, src, MatchKey::default()) }
}
