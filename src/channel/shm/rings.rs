//! The memory of the rings between ranks. Their content, and who may touch it when, is the matter of
//! [`local`](crate::channel::local).
#![allow(unsafe_code)]

use std::sync::atomic::AtomicU64;

use shouter_reducer::memory::Span;

use super::layout::{RELAY_AT, RING};
use super::segment::NodeSegment;

/// A ring's number: one rank writes it, one reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ring(u32);

impl NodeSegment {
    /// The ring from one local rank to another.
    pub(crate) fn ring_between(&self, from: u32, to: u32) -> Ring {
        Ring(from * self.ranks() + to)
    }

    /// The ring from a local rank to the leader, of messages to other nodes; the leader has one as well.
    pub(crate) fn ring_up(&self, from: u32) -> Ring {
        self.ring_between(from, from)
    }

    /// The ring from the leader to a local rank, of messages from other nodes.
    pub(crate) fn ring_down(&self, to: u32) -> Ring {
        self.ring_between(self.ranks(), to)
    }

    /// The bytes read from a ring since its beginning; written by its reader.
    #[inline]
    pub(crate) fn ring_head(&self, ring: Ring) -> &AtomicU64 {
        self.word(self.layout.ring_head(ring.0))
    }

    /// A word of a ring, at a multiple of 8.
    #[inline]
    pub(crate) fn ring_word(&self, ring: Ring, at: usize) -> &AtomicU64 {
        self.word(self.in_ring(ring, at, 8))
    }

    /// Copies bytes into a ring, of which this rank is the writer; false if they do not lie in it. Its reader does not
    /// read them before a word announces them.
    #[inline]
    pub(crate) fn ring_store(&self, ring: Ring, at: usize, bytes: &[u8]) -> bool {
        self.in_ring(ring, at, bytes.len()).is_some_and(|at| self.mapping.store(at, bytes))
    }

    /// Bytes of a ring.
    ///
    /// # Safety
    /// The ring's writer has published them, and they are not given back to it while the slice is used.
    #[inline]
    pub(crate) unsafe fn ring_bytes(&self, ring: Ring, at: usize, len: usize) -> Option<&[u8]> {
        let at = self.in_ring(ring, at, len)?;
        // SAFETY: as the caller promises.
        unsafe { self.mapping.published(at, len) }
    }

    /// Bytes in the arena of the rank that writes to a ring between two ranks; `None` of another ring, or outside of the arena.
    ///
    /// # Safety
    /// The ring's writer has published them, and they are not given back to it while the slice is used.
    pub(crate) unsafe fn writer_bytes(&self, ring: Ring, offset: usize, len: usize) -> Option<&[u8]> {
        let (from, to) = (ring.0 / self.ranks(), ring.0 % self.ranks());
        let begin = if from < self.ranks() && from != to {
            self.arena_begin(from, offset, len)?
        } else {
            return None;
        };
        // SAFETY: as the caller promises.
        unsafe { self.mapping.published(begin, len) }
    }

    /// The same as a payload.
    pub(crate) fn ring_span(&self, ring: Ring, at: usize, len: usize) -> Option<Span> {
        self.mapping.region(self.in_ring(ring, at, len)?, len)?.span(0, len)
    }

    /// The rings of a local rank that may hold something new, a bit each.
    #[inline]
    pub(crate) fn doorbell(&self, local: u32) -> &AtomicU64 {
        self.word(self.layout.doorbell(local))
    }

    /// The rings that a local rank watches without the doorbell, likewise.
    #[inline]
    pub(crate) fn watched(&self, local: u32) -> &AtomicU64 {
        self.word(self.layout.watched(local))
    }

    /// Payload bytes of a message that the leader relays, plus one; 0 before it has said.
    pub(crate) fn relay_fragment(&self) -> &AtomicU64 {
        self.word(Some(RELAY_AT))
    }

    #[inline]
    fn in_ring(&self, ring: Ring, at: usize, len: usize) -> Option<usize> {
        let inside = at.checked_add(len)? <= RING;
        self.layout.ring(ring.0).filter(|_| inside).map(|ring| ring + at)
    }
}
