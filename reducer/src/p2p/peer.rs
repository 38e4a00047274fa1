//! The state of a rank for each peer that it exchanges messages with: made at the first use.

use super::api::{TransferError, TransferId};
use super::fragments::Fragments;
use super::sends::Handle;
use super::wire::Envelope;
use crate::dtype::DType;
use crate::grid::Rank;
use crate::memory::TensorRegion;
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

/// The cost of a message in a peer's room, beyond its bytes.
pub(super) const OVERHEAD: usize = 256;

/// A message that the peer may keep, and that it has not said to have let go.
#[derive(Debug)]
pub(super) struct UnsettledMessage {
    pub(super) envelope: Envelope,
    /// Of the peer's room.
    pub(super) cost: usize,
    /// Its send. Where the elements were copied, the send may have ended long before.
    pub(super) send: Handle,
    pub(super) deadline: Duration,
    /// It was announced, and is sent when the peer asks for it.
    pub(super) announced: bool,
    /// This rank has given it up and told the peer.
    pub(super) withdrawn: bool,
}

/// The sending side.
#[derive(Debug, Default)]
pub(super) struct Outbound {
    /// The number of the next message.
    pub(super) next: u64,
    /// Messages that the peer may keep, in the order of their numbers.
    records: VecDeque<UnsettledMessage>,
    /// Their costs.
    used: usize,
    /// Sends without a number.
    pub(super) queue: VecDeque<Handle>,
    /// Sends whose fragments are to be posted: those that nobody has asked for...
    pub(super) eager: VecDeque<Handle>,
    /// ...and those that the peer has asked for.
    pub(super) asked: VecDeque<Handle>,
    /// The failure of a send that had ended before.
    pub(super) late: Option<Box<TransferError>>,
}

impl Outbound {
    /// Room that is left of this much.
    pub(super) fn room(&self, of: usize) -> usize {
        of.saturating_sub(self.used)
    }

    /// Whether the peer has room of this much for a message of so many bytes that it has not asked for. A quarter is for announcements: large
    /// messages must not wait for small ones that nobody takes.
    #[inline]
    pub(super) fn takes_unasked(&self, bytes: usize, room: usize) -> bool {
        self.room(room) >= OVERHEAD + bytes + room / 4
    }

    /// One more message.
    pub(super) fn add(&mut self, record: UnsettledMessage) {
        self.used += record.cost;
        self.records.push_back(record);
    }

    /// The message of a number, if the peer may still keep it.
    pub(super) fn record(&mut self, seq: u64) -> Option<&mut UnsettledMessage> {
        let at = self.records.binary_search_by_key(&seq, |record| record.envelope.seq).ok()?;
        self.records.get_mut(at)
    }

    /// The peer keeps it no more.
    pub(super) fn settle(&mut self, seq: u64) -> Option<UnsettledMessage> {
        let at = self.records.binary_search_by_key(&seq, |record| record.envelope.seq).ok()?;
        let record = self.records.remove(at)?;
        self.used -= record.cost;
        Some(record)
    }

    /// The first message from this number on.
    pub(super) fn first_from(&self, seq: u64) -> Option<&UnsettledMessage> {
        self.records.get(self.records.partition_point(|record| record.envelope.seq < seq))
    }

    /// All that the peer may keep.
    pub(super) fn records(&self) -> impl Iterator<Item = &UnsettledMessage> {
        self.records.iter()
    }

    /// Whether the next send to this peer may be posted before any other.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.eager.is_empty() && self.late.is_none()
    }

    /// Whether there are fragments to post.
    pub(super) fn has_fragments(&self) -> bool {
        !self.eager.is_empty() || !self.asked.is_empty()
    }
}

/// A receive that has no message, or whose message is coming.
#[derive(Clone, Copy, Debug)]
pub(super) struct Receive {
    pub(super) id: TransferId,
    pub(super) from: Option<Rank>,
    pub(super) tag: Option<u32>,
    pub(super) dtype: DType,
    pub(super) into: TensorRegion,
    pub(super) deadline: Duration,
}

impl Receive {
    /// Whether it asks for messages with this tag.
    pub(super) fn wants(&self, tag: u32) -> bool {
        self.tag.is_none_or(|own| own == tag)
    }
}

/// The part of a message that is here.
#[derive(Debug)]
pub(super) enum Body {
    /// Nothing: its sender waits to be asked.
    Announced,
    /// The bytes that have come, until a receive takes the message.
    Held(Vec<u8>),
    /// The memory of a send of this rank.
    Own(Handle),
    /// A receive has taken it. The bytes go to its memory.
    Into(Receive),
    /// Nothing: its sender has given it up.
    Void,
}

/// A message of the peer's that has not ended.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) envelope: Envelope,
    pub(super) total: usize,
    /// Of the peer's room.
    pub(super) cost: usize,
    pub(super) fragments: Fragments,
    pub(super) body: Body,
}

/// A message that no receive has taken. All earlier ones of its peer have come.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnexpectedMessage {
    pub(super) seq: u64,
    pub(super) tag: u32,
    /// The order among the messages of all peers that wait for receives.
    pub(super) stamp: u64,
}

/// Messages that receives have taken, and that the peer has not been told of: neighbours.
#[derive(Debug, Default)]
pub(super) struct Unreported {
    pub(super) first: u64,
    pub(super) count: u32,
    pub(super) cost: usize,
}

/// The receiving side.
#[derive(Debug, Default)]
pub(super) struct Inbound {
    /// The number of the next message to be delivered: those behind it that are here wait for it, so that no message overtakes another.
    expected: u64,
    /// Messages that have not ended, by number.
    live: BTreeMap<u64, Incoming>,
    /// The sum of their costs.
    held: usize,
    pub(super) waiting: VecDeque<UnexpectedMessage>,
    /// Receives from this peer without a message, in order.
    pub(super) posted: VecDeque<Receive>,
    pub(super) unreported: Unreported,
}

impl Inbound {
    /// The number of the next message to be delivered.
    #[inline]
    pub(super) fn expected(&self) -> u64 {
        self.expected
    }

    /// The next message is delivered.
    #[inline]
    pub(super) fn advance(&mut self) {
        self.expected += 1;
    }

    /// The costs of the messages that have not ended.
    #[inline]
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// A message that has not ended.
    #[inline]
    pub(super) fn get(&self, seq: u64) -> Option<&Incoming> {
        self.live.get(&seq)
    }

    /// The same, to be changed. Its cost stays.
    #[inline]
    pub(super) fn get_mut(&mut self, seq: u64) -> Option<&mut Incoming> {
        self.live.get_mut(&seq)
    }

    /// All messages that have not ended.
    pub(super) fn messages(&self) -> impl Iterator<Item = &Incoming> {
        self.live.values()
    }

    /// One more message, in the place of an earlier one with its number.
    #[inline]
    pub(super) fn insert(&mut self, incoming: Incoming) {
        self.held += incoming.cost;
        if let Some(before) = self.live.insert(incoming.envelope.seq, incoming) {
            self.held -= before.cost;
        }
    }

    /// Takes a message out.
    #[inline]
    pub(super) fn remove(&mut self, seq: u64) -> Option<Incoming> {
        let incoming = self.live.remove(&seq)?;
        self.held -= incoming.cost;
        Some(incoming)
    }

    /// Takes all receives out, with a message or without.
    pub(super) fn take_receives(&mut self) -> Vec<Receive> {
        let mut receives: Vec<Receive> = self.posted.drain(..).collect();
        let live = std::mem::take(&mut self.live).into_values();
        receives.extend(live.filter_map(|incoming| match incoming.body {
            Body::Into(receive) => Some(receive),
            _ => None,
        }));
        receives
    }

    /// The first message with this tag that no receive has taken.
    pub(super) fn waits(&self, tag: Option<u32>) -> Option<UnexpectedMessage> {
        self.waiting.iter().find(|waiting| tag.is_none_or(|tag| tag == waiting.tag)).copied()
    }

    /// Whether no message is here, in part or whole, and no receive waits for one.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.live.is_empty() && self.posted.is_empty()
    }

    /// Whether a receive waits for this peer.
    pub(super) fn is_wanted(&self) -> bool {
        let into = |incoming: &Incoming| matches!(incoming.body, Body::Into(_));
        !self.posted.is_empty() || self.live.values().any(into)
    }

    /// Whether a peer that keeps to its room may have sent a message so far ahead.
    pub(super) fn reaches(&self, seq: u64, room: usize) -> bool {
        seq.checked_sub(self.expected).is_some_and(|ahead| ahead < (room / OVERHEAD) as u64)
    }
}

/// One peer.
#[derive(Debug, Default)]
pub(super) struct Peer {
    pub(super) out: Outbound,
    pub(super) inbound: Inbound,
    /// It is on the list of those that have fragments to post, or a queue that may go on.
    pub(super) active: bool,
    /// It is on the list of peers that get a report of the messages that were taken.
    pub(super) report_due: bool,
}
