//! What a slot and an immediate value hold.
//!
//! A fragment is written to a slot of the peer with its payload first, so that it lies as aligned as the slot, and
//! behind it this trailer, little endian:
//!
//! ```text
//!   0 56 header    of the message
//!  56  4 number    of the fragment on this queue pair, the low 32 bits
//!  60  4 ack       fragments of the other direction taken so far, the low 32 bits
//!  64  4 flags     bit 0: the sender waits to hear that this was taken; the others zero
//!  68  4 crc       CRC32C of the payload and of everything before this field; zero where CRCs are off
//! ```
//!
//! The immediate value of such a write is the slot's index. A message without a slot (a SEND) carries a [`Word`].

use shouter_netstack::crc::{crc32c, crc32c_of_two};
use shouter_reducer::header::HEADER_BYTES;

/// Bytes behind a payload.
pub(super) const TRAILER: usize = HEADER_BYTES + 16;

/// Bytes of the trailer that its CRC covers.
const COVERED: usize = TRAILER - 4;

/// What stands behind a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Trailer<'a> {
    /// The message's header, still encoded.
    pub(super) header: &'a [u8],
    /// The low 32 bits of the fragment's number.
    pub(super) number: u32,
    /// The low 32 bits of the count of fragments taken.
    pub(super) ack: u32,
    /// The sender waits to hear that this was taken.
    pub(super) ask: bool,
}

/// The bit of [`Trailer::ask`].
const ASK: u32 = 1;

/// Puts the trailer behind the payload, which fills the slot up to there or, where it is `lent`, lies elsewhere.
pub(super) fn seal(
    slot: &mut [u8],
    lent: Option<&[u8]>,
    header: &[u8; HEADER_BYTES],
    (number, ack): (u64, u64),
    crc: bool,
) {
    let Some((covered, field)) = slot.split_last_chunk_mut::<4>() else { return };
    let Some((_, trailer)) = covered.split_last_chunk_mut::<COVERED>() else { return };
    let (head, words) = trailer.split_at_mut(HEADER_BYTES);
    head.copy_from_slice(header);
    let flags = if lent.is_some() { ASK } else { 0 };
    for (word, value) in words.chunks_exact_mut(4).zip([number as u32, ack as u32, flags]) {
        word.copy_from_slice(&value.to_le_bytes());
    }
    *field = match lent {
        _ if !crc => [0; 4],
        None => crc32c(covered).to_le_bytes(),
        Some(payload) => crc32c_of_two(payload, trailer).to_le_bytes(),
    };
}

/// Payload and trailer of what came in a slot; `None` if it is too short or, where CRCs are on, damaged.
pub(super) fn open(slot: &[u8], crc: bool) -> Option<(&[u8], Trailer<'_>)> {
    let (covered, field) = slot.split_last_chunk::<4>()?;
    let (payload, trailer) = covered.split_last_chunk::<COVERED>()?;
    if crc && crc32c(covered) != u32::from_le_bytes(*field) {
        return None;
    }
    let (header, words) = trailer.split_at_checked(HEADER_BYTES)?;
    let (number, words) = words.split_first_chunk()?;
    let (ack, words) = words.split_first_chunk()?;
    let (number, ack) = (u32::from_le_bytes(*number), u32::from_le_bytes(*ack));
    let ask = u32::from_le_bytes(*words.first_chunk()?) & ASK != 0;
    Some((payload, Trailer { header, number, ack, ask }))
}

/// What the immediate value of a SEND says. Numbers are low 30 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// So many fragments were taken.
    Ack(u32),
    /// This fragment was damaged: send it again. It counts as taken.
    Damaged(u32),
    /// There was no room for this fragment: send it again later. It counts as taken.
    NotReady(u32),
}

/// Bits of a number in a [`Word`].
const NUMBER: u32 = (1 << 30) - 1;

impl Word {
    pub(super) fn encode(self) -> u32 {
        match self {
            Self::Ack(number) => number & NUMBER,
            Self::Damaged(number) => 1 << 30 | number & NUMBER,
            Self::NotReady(number) => 2 << 30 | number & NUMBER,
        }
    }

    /// `None` if no such word is sent.
    pub(super) fn decode(word: u32) -> Option<Self> {
        let number = word & NUMBER;
        match word >> 30 {
            0 => Some(Self::Ack(number)),
            1 => Some(Self::Damaged(number)),
            2 => Some(Self::NotReady(number)),
            _ => None,
        }
    }
}

/// The number at or above `floor` whose low `bits` bits these are.
pub(super) fn widen(floor: u64, low: u32, bits: u32) -> u64 {
    let mask = (1u64 << bits) - 1;
    floor + (u64::from(low).wrapping_sub(floor) & mask)
}

/// Bits of a number in a [`Word`].
pub(super) const WORD_BITS: u32 = 30;
