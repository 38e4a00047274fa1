//! The eager pool: early messages are kept here, so many bytes of each peer and no more.

use super::receive::Payload;
use crate::header::Header;

/// A message that came before it could be used.
#[derive(Debug)]
pub(super) struct Parked {
    pub(super) header: Header,
    pub(super) payload: Vec<u8>,
    /// The payload lies where it belongs.
    pub(super) placed: bool,
}

impl Parked {
    /// What came with the header.
    pub(super) fn payload(&self) -> Payload<'_> {
        if self.placed { Payload::Placed } else { Payload::Bytes(&self.payload) }
    }
}

/// Accounts for the pool, and keeps buffers for their next use.
#[derive(Debug)]
pub(super) struct Parking {
    /// Bytes left, by node.
    room: Vec<usize>,
    buffers: Vec<Vec<u8>>,
}

impl Parking {
    /// What a message costs beyond its payload.
    const OVERHEAD: usize = 64;

    /// Buffers of at most this size are kept for their next use...
    const KEPT_BYTES: usize = 64 << 10;

    /// ...and at most so many of them.
    const KEPT: usize = 256;

    pub(super) fn new(nodes: usize, bytes: usize) -> Self {
        Self { room: vec![bytes; nodes], buffers: Vec::new() }
    }

    /// Copies a message, or returns `None` when the peer's share is used up.
    pub(super) fn park(&mut self, node: u32, header: &Header, payload: Payload<'_>) -> Option<Parked> {
        let placed = matches!(payload, Payload::Placed);
        let payload = if let Payload::Bytes(bytes) = payload { bytes } else { &[] };
        let room = self.room.get_mut(node as usize)?;
        *room = room.checked_sub(payload.len() + Self::OVERHEAD)?;
        let mut buffer = self.buffers.pop().unwrap_or_default();
        buffer.extend_from_slice(payload);
        Some(Parked { header: *header, payload: buffer, placed })
    }

    /// The message was used.
    pub(super) fn release(&mut self, node: u32, parked: Parked) {
        let mut buffer = parked.payload;
        if let Some(room) = self.room.get_mut(node as usize) {
            *room += buffer.len() + Self::OVERHEAD;
        }
        buffer.clear();
        if self.buffers.len() < Self::KEPT && buffer.capacity() <= Self::KEPT_BYTES {
            self.buffers.push(buffer);
        }
    }
}
