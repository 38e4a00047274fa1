//! The eager pool: early messages are kept here, so many bytes of each peer and no more.
//!
//! A peer's eager messages fit, since the peer respects the [`budget`](super::budget). Granted messages have room of their own: a grant
//! may run ahead of the acknowledgement of this rank's own sends. If that is not enough, or the peer exceeds its budget, messages are
//! refused. A peer may send control messages for operations that this rank has not started: some for each.

use crate::grid::Rank;
use crate::header::{Header, View};

/// The payload of a message.
#[derive(Clone, Copy, Debug)]
pub(super) enum Payload<'a> {
    /// Bytes, still in the receive buffer.
    Bytes(&'a [u8]),
    /// The bytes were already written to their destination.
    Placed,
}

impl Payload<'_> {
    /// Whether it can be what the header says.
    pub(super) fn fits(self, header: &Header) -> bool {
        match self {
            Self::Bytes(bytes) => bytes.len() == header.len as usize,
            Self::Placed => true,
        }
    }
}

/// The share of the pool that a message counts against.
#[derive(Clone, Copy, Debug)]
pub(super) enum ParkClass {
    /// Sent without credit.
    Eager,
    /// Sent with credit.
    Granted,
    /// A control message.
    Control,
}

/// A message that came before it could be used.
#[derive(Debug)]
pub(super) struct Parked {
    pub(super) header: Header,
    pub(super) payload: Vec<u8>,
    /// The payload was already written to its destination.
    pub(super) placed: bool,
    class: ParkClass,
}

impl Parked {
    /// The payload that came with the header.
    pub(super) fn payload(&self) -> Payload<'_> {
        if self.placed { Payload::Placed } else { Payload::Bytes(&self.payload) }
    }

    /// Whether it is this message. Credits from one round on differ by how many messages they grant: one that grants none only asks
    /// for this rank's view (`divergence.rs`), and stands for no other.
    pub(super) fn is(&self, header: &Header) -> bool {
        let what = |h: &Header| (h.key.seq, h.src, h.kind, h.round, h.offset, h.len);
        what(&self.header) == what(header)
    }
}

/// Early messages, for an operation or a later one at the same place of the ring.
#[derive(Debug, Default)]
pub(super) struct Early {
    parked: Vec<Parked>,
    /// A receiving step became ready that may have parked messages.
    is_due: bool,
}

impl Early {
    /// An operation starts; its messages may be here.
    pub(super) fn start(&mut self) {
        self.is_due = false;
    }

    /// A receiving step became ready: messages that are parked here may be for it.
    #[inline]
    pub(super) fn look_again(&mut self) {
        self.is_due = !self.parked.is_empty();
    }

    /// Whether a message may have become acceptable since the last [`looked_at`](Self::looked_at).
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.is_due
    }

    /// All messages are looked at now.
    pub(super) fn looked_at(&mut self) {
        self.is_due = false;
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.parked.is_empty()
    }

    /// Whether this one is here.
    pub(super) fn has(&self, header: &Header) -> bool {
        self.parked.iter().any(|parked| parked.is(header))
    }

    /// One more.
    pub(super) fn keep(&mut self, parked: Parked) {
        self.parked.push(parked);
    }

    /// The operation that the message at a place belongs to.
    pub(super) fn seq_at(&self, index: usize) -> Option<u64> {
        self.parked.get(index).map(|parked| parked.header.key.seq)
    }

    /// A rank's view of an operation, if a message of it is here.
    pub(super) fn view_of(&self, seq: u64, rank: Rank) -> Option<View> {
        let mut headers = self.parked.iter().map(|parked| &parked.header);
        headers.find(|header| header.key.seq == seq && header.src == rank).map(Header::view)
    }

    /// Takes the message at a place; the last one takes its place.
    pub(super) fn take(&mut self, index: usize) -> Parked {
        self.parked.swap_remove(index)
    }

    /// Undoes [`take`](Self::take).
    pub(super) fn put_back(&mut self, index: usize, parked: Parked) {
        self.parked.push(parked);
        let last = self.parked.len() - 1;
        self.parked.swap(index, last);
    }

    /// Takes a message of an operation.
    pub(super) fn take_of(&mut self, seq: u64) -> Option<Parked> {
        let index = self.parked.iter().position(|parked| parked.header.key.seq == seq)?;
        Some(self.take(index))
    }
}

/// Accounts for the pool, and keeps buffers for their next use.
#[derive(Debug)]
pub(super) struct Parking {
    /// Bytes left, by node and class.
    room: Vec<[usize; 3]>,
    buffers: Vec<Vec<u8>>,
}

impl Parking {
    /// Bytes that a fragment counts beyond its payload.
    const OVERHEAD: usize = crate::schedule::MESSAGE_COST;

    /// The most credit messages of a peer for one operation: neighbouring messages are granted in one.
    const CREDITS: usize = 64;

    /// Buffers of at most this size are kept for their next use...
    const KEPT_BYTES: usize = 64 << 10;

    /// ...and at most so many of them.
    const KEPT: usize = 256;

    /// Room of so many bytes for a peer's payload, twice, and room for its control messages of so many operations.
    pub(super) fn new(nodes: usize, bytes: usize, operations: usize) -> Self {
        let control = operations * Self::CREDITS * Self::OVERHEAD;
        Self { room: vec![[bytes, bytes, control]; nodes], buffers: Vec::new() }
    }

    /// Copies a message, or returns `None` when the peer's share is used up.
    pub(super) fn park(
        &mut self,
        (node, class): (u32, ParkClass),
        header: &Header,
        payload: Payload<'_>,
    ) -> Option<Parked> {
        let placed = matches!(payload, Payload::Placed);
        let payload = if let Payload::Bytes(bytes) = payload { bytes } else { &[] };
        let room = self.room.get_mut(node as usize)?.get_mut(class as usize)?;
        *room = room.checked_sub(payload.len() + Self::OVERHEAD)?;
        let mut buffer = self.buffers.pop().unwrap_or_default();
        buffer.extend_from_slice(payload);
        Some(Parked { header: *header, payload: buffer, placed, class })
    }

    /// The message was used.
    pub(super) fn release(&mut self, node: u32, parked: Parked) {
        let mut buffer = parked.payload;
        let room = self.room.get_mut(node as usize);
        if let Some(room) = room.and_then(|rooms| rooms.get_mut(parked.class as usize)) {
            *room += buffer.len() + Self::OVERHEAD;
        }
        buffer.clear();
        if self.buffers.len() < Self::KEPT && buffer.capacity() <= Self::KEPT_BYTES {
            self.buffers.push(buffer);
        }
    }
}
