//! The content of a slot and of an immediate value.
//!
//! A fragment is written to a slot of the peer with its payload first, so that it lies as aligned as the slot, and
//! behind it this trailer, little endian:
//!
//! ```text
//!   0 56 header    of the message
//!  56  4 number    of the fragment on this queue pair, the low 32 bits
//!  60  4 ack       fragments of the other direction taken so far, the low 32 bits
//!  64  4 flags     bit 0: the sender requests an acknowledgement; bit 1: the payload was written to where it belongs, and
//!                  the slot holds the trailer only; the others zero
//!  68  4 crc       CRC32C of the payload and of everything before this field; zero where CRCs are off
//! ```
//!
//! The payload of a credit message may be a [`CreditWindow`]. The immediate value of such a write is the slot's index. A message without a slot (a SEND) carries a [`Notification`].

use shouter_netstack::crc::{crc32c, crc32c_behind};
use shouter_reducer::header::{HEADER_BYTES, Header};
use shouter_reducer::memory::{MemoryKind, Span};

use super::fragments::RefusalReason;
use crate::channel::sys::bytes_of;

/// Bytes behind a payload.
pub(super) const TRAILER: usize = HEADER_BYTES + 16;

/// Bytes of the trailer that its CRC covers.
pub(super) const COVERED: usize = TRAILER - 4;

/// The trailer behind a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Trailer<'a> {
    /// The message's header, still encoded.
    pub(super) header: &'a [u8],
    /// The low 32 bits of the fragment's number.
    pub(super) number: u32,
    /// The low 32 bits of the count of fragments taken.
    pub(super) ack: u32,
    /// The sender requests an acknowledgement.
    pub(super) ask: bool,
}

/// The bit of [`Trailer::ask`].
const ASK: u32 = 1;

/// The bit of a payload that lies where it belongs.
const PLACED: u32 = 2;

/// The header of a message that goes out.
#[derive(Clone, Copy, Debug)]
pub(super) enum Head<'a> {
    /// It is encoded into the trailer.
    New(&'a Header),
    /// The message was sent before.
    Encoded(&'a [u8; HEADER_BYTES]),
}

/// The place of a payload that a trailer follows.
#[derive(Clone, Copy, Debug)]
pub(super) enum Payload<'a> {
    /// In the slot, in front of the trailer.
    Slot,
    /// Sent from there, to the slot.
    ZeroCopy(Read<'a>),
    /// Sent from there, to where it belongs.
    Placed(Read<'a>),
}

/// The way to a payload's CRC.
#[derive(Clone, Copy, Debug)]
pub(super) enum Read<'a> {
    /// From its bytes.
    Bytes(&'a [u8]),
    /// It is known: a device has read them.
    Crc(u32),
}

impl Read<'_> {
    /// The CRC32C of the payload with these bytes behind it.
    #[inline]
    fn crc_with(self, behind: &[u8]) -> u32 {
        match self {
            Self::Bytes(bytes) => crc32c_behind(crc32c(bytes), behind),
            Self::Crc(crc) => crc32c_behind(crc, behind),
        }
    }
}

/// The data to check a payload that the host does not read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Check {
    /// The payload's place.
    pub(super) span: Span,
    /// The trailer, valid only when the check has passed: see [`Trailer`].
    pub(super) number: u32,
    pub(super) ack: u32,
    pub(super) ask: bool,
    trailer: [u8; COVERED],
    expected: u32,
}

impl Check {
    /// Whether a payload of this CRC is the one sent.
    pub(super) fn passes(&self, crc: u32) -> bool {
        crc32c_behind(crc, &self.trailer) == self.expected
    }
}

/// A received slot.
#[derive(Debug)]
pub(super) struct Opened<'a> {
    /// The payload; nothing, if it lies where it belongs.
    pub(super) payload: Option<&'a [u8]>,
    pub(super) trailer: Trailer<'a>,
    /// The check before which nothing of it, the trailer included, may be used: it lies in a device's memory.
    pub(super) check: Option<Check>,
}

/// Puts the trailer at the end of the slot's part, behind the payload's place.
pub(super) fn seal(
    slot: &mut [u8],
    payload: Payload<'_>,
    header: Head<'_>,
    (number, ack): (u64, u64),
    crc: bool,
) {
    let Some((covered, field)) = slot.split_last_chunk_mut::<4>() else { return };
    let Some((_, trailer)) = covered.split_last_chunk_mut::<COVERED>() else { return };
    let Some((head, words)) = trailer.split_first_chunk_mut::<HEADER_BYTES>() else { return };
    match header {
        Head::New(header) => header.encode(head),
        Head::Encoded(bytes) => *head = *bytes,
    }
    let flags = match payload {
        Payload::Slot => 0,
        Payload::ZeroCopy(_) => ASK,
        Payload::Placed(_) => ASK | PLACED,
    };
    for (word, value) in words.chunks_exact_mut(4).zip([number as u32, ack as u32, flags]) {
        word.copy_from_slice(&value.to_le_bytes());
    }
    *field = match payload {
        _ if !crc => [0; 4],
        Payload::Slot => crc32c(covered).to_le_bytes(),
        Payload::ZeroCopy(payload) | Payload::Placed(payload) => payload.crc_with(trailer).to_le_bytes(),
    };
}

/// Makes the trailer that of a payload in the slot, where it has been put meanwhile.
pub(super) fn reseal(slot: &mut [u8], crc: bool) {
    let Some((covered, field)) = slot.split_last_chunk_mut::<4>() else { return };
    let Some((_, flags)) = covered.split_last_chunk_mut::<4>() else { return };
    *flags = [0; 4];
    *field = if crc { crc32c(covered).to_le_bytes() } else { [0; 4] };
}

/// Payload and trailer of a received slot; no payload if that lies where it belongs, which `landing` finds from the
/// header. `None` if it is too short or, where CRCs are on and the host reads the payload, damaged.
pub(super) fn open(
    slot: &[u8],
    crc: bool,
    landing: impl FnOnce(&[u8]) -> Option<Span>,
) -> Option<Opened<'_>> {
    let (covered, field) = slot.split_last_chunk::<4>()?;
    let (payload, bytes) = covered.split_last_chunk::<COVERED>()?;
    let (header, words) = bytes.split_at_checked(HEADER_BYTES)?;
    let (number, words) = words.split_first_chunk()?;
    let (ack, words) = words.split_first_chunk()?;
    let flags = u32::from_le_bytes(*words.first_chunk()?);
    let trailer = Trailer {
        header,
        number: u32::from_le_bytes(*number),
        ack: u32::from_le_bytes(*ack),
        ask: flags & ASK != 0,
    };
    let expected = u32::from_le_bytes(*field);
    let placed = flags & PLACED != 0;
    let mut check = None;
    if crc && !placed && crc32c(covered) != expected {
        return None;
    }
    if crc && placed {
        let span = landing(header)?;
        let sound = match span.region().kind() {
            MemoryKind::Device => {
                let Trailer { number, ack, ask, .. } = trailer;
                check = Some(Check { span, number, ack, ask, trailer: *bytes, expected });
                true
            }
            _ => crc32c_behind(crc32c(bytes_of(&span)?), bytes) == expected,
        };
        if !sound || !payload.is_empty() {
            return None;
        }
    }
    Some(Opened { payload: (!placed).then_some(payload), trailer, check })
}

/// The places to which the messages of a credit may be written, as its receiver names them: message i begins i times
/// `stride` bytes behind `address`. The payload of the credit message, little endian, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CreditWindow {
    /// The first message's place.
    pub(super) address: u64,
    /// Bytes from one to the next.
    pub(super) stride: u64,
    /// Bytes of a message.
    pub(super) len: u32,
    /// The key to the memory.
    pub(super) rkey: u32,
}

impl CreditWindow {
    /// Bytes of one.
    pub(super) const BYTES: usize = 24;

    pub(super) fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        let (first, rest) = out.split_at_mut(16);
        first[..8].copy_from_slice(&self.address.to_le_bytes());
        first[8..].copy_from_slice(&self.stride.to_le_bytes());
        rest[..4].copy_from_slice(&self.len.to_le_bytes());
        rest[4..].copy_from_slice(&self.rkey.to_le_bytes());
        out
    }

    /// `None` if the bytes are none.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (address, rest) = bytes.split_first_chunk()?;
        let (stride, rest) = rest.split_first_chunk()?;
        let (len, rest) = rest.split_first_chunk()?;
        let (rkey, rest) = rest.split_first_chunk()?;
        rest.is_empty().then_some(Self {
            address: u64::from_le_bytes(*address),
            stride: u64::from_le_bytes(*stride),
            len: u32::from_le_bytes(*len),
            rkey: u32::from_le_bytes(*rkey),
        })
    }
}

/// The immediate value of a SEND: an acknowledgement or a refusal. Numbers are low 30 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Notification {
    /// So many fragments were taken.
    Ack(u32),
    /// This fragment was damaged, or there was no room for it: send it again. It counts as taken.
    Refused(RefusalReason, u32),
}

/// Bits of a number in a [`Notification`].
const NUMBER: u32 = (1 << 30) - 1;

impl Notification {
    pub(super) fn encode(self) -> u32 {
        match self {
            Self::Ack(number) => number & NUMBER,
            Self::Refused(RefusalReason::Damaged, number) => 1 << 30 | number & NUMBER,
            Self::Refused(RefusalReason::NotReady, number) => 2 << 30 | number & NUMBER,
        }
    }

    /// `None` if the value is invalid.
    pub(super) fn decode(value: u32) -> Option<Self> {
        let number = value & NUMBER;
        match value >> 30 {
            0 => Some(Self::Ack(number)),
            1 => Some(Self::Refused(RefusalReason::Damaged, number)),
            2 => Some(Self::Refused(RefusalReason::NotReady, number)),
            _ => None,
        }
    }
}

/// The number at or above `floor` whose low `bits` bits these are.
pub(super) fn widen(floor: u64, low: u32, bits: u32) -> u64 {
    let mask = (1u64 << bits) - 1;
    floor + (u64::from(low).wrapping_sub(floor) & mask)
}

/// Bits of a number in a [`Notification`].
pub(super) const NUMBER_BITS: u32 = 30;
