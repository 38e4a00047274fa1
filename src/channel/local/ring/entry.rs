//! An entry of a ring.
//!
//! A message is an entry of whole cache lines, which never goes around the end of the ring: a word, the message's header,
//! the payload. Of a payload in the writer's arena the entry may hold the offset there instead, in 8 bytes. The word is zero until the
//! entry is complete:
//!
//! ```text
//!   bit 63       the entry is complete
//!   bit 62       no message: the next entry is at the ring's beginning
//!   bit 61       the payload lies in the writer's arena
//!   bit 60       the reader has read such a payload, while it cannot give the entry's room back yet
//!   bit 59       header and payload lie in the entry's first line: the header in its short form
//!   bits 32..59  the destination plus one, of a message that the leader is to send on; else zero
//!   bits 0..32   payload bytes
//! ```

use shouter_reducer::header::{HEADER_BYTES, SHORT_HEADER_BYTES};

use crate::channel::shm::RING;

/// Payload bytes of a message, at most: a ring holds seven of the largest, so that writer and reader work at the same time.
pub(in crate::channel::local) const MAX_PAYLOAD: usize = 16 << 10;

/// Payload bytes of a message with a short header, at most.
pub(in crate::channel::local) const SHORT_PAYLOAD: usize = LINE - WORD - SHORT_HEADER_BYTES;

/// Entries begin at multiples of a cache line.
pub(super) const LINE: usize = 64;
/// Bytes of an entry's word.
pub(super) const WORD: usize = 8;
pub(super) const COMPLETE: u64 = 1 << 63;
pub(super) const SKIP: u64 = 1 << 62;
pub(super) const IN_ARENA: u64 = 1 << 61;
pub(super) const READ: u64 = 1 << 60;
pub(super) const SHORT: u64 = 1 << 59;
/// Bytes of an offset in an arena.
const OFFSET: usize = 8;
/// The destination's place in a word, and its width.
pub(super) const TO_SHIFT: u32 = 32;
pub(super) const TO_MASK: u64 = (1 << 27) - 1;
const _: () = assert!(WORD + HEADER_BYTES == LINE && RING.is_multiple_of(LINE));
const _: () = assert!(4 * (LINE + MAX_PAYLOAD) < RING);

/// What an entry has behind its word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// A header and the payload.
    Whole,
    /// A header, and the payload's offset in the writer's arena.
    InArena,
    /// A short header and the payload.
    Short,
}

impl Form {
    /// The form that a complete entry's word says; `None` for two at once.
    #[inline]
    pub(super) fn of(word: u64) -> Option<Self> {
        match (word & IN_ARENA != 0, word & SHORT != 0) {
            (false, false) => Some(Self::Whole),
            (true, false) => Some(Self::InArena),
            (false, true) => Some(Self::Short),
            (true, true) => None,
        }
    }

    /// Bytes of the header, and those behind it that the entry of a payload of `len` bytes has.
    #[inline]
    pub(super) fn bytes(self, len: usize) -> (usize, usize) {
        match self {
            Self::Whole => (HEADER_BYTES, len),
            Self::InArena => (HEADER_BYTES, OFFSET),
            Self::Short => (SHORT_HEADER_BYTES, len),
        }
    }

    /// Bytes of an entry.
    #[inline]
    pub(super) fn entry(self, len: usize) -> usize {
        let (header, behind) = self.bytes(len);
        (WORD + header + behind).next_multiple_of(LINE)
    }

    /// Payload bytes, at most.
    pub(super) fn longest(self) -> usize {
        if self == Self::Short { SHORT_PAYLOAD } else { MAX_PAYLOAD }
    }
}
