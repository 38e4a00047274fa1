//! The header of every message between ranks: which operation, which message of it, which bytes.
//!
//! 56 bytes, little endian, before the payload of each datagram:
//!
//! ```text
//!   0  1 version   'S' in the high bits, the version in the low four
//!   1  1 kind      data, credit, abort, vote, floor, relay, relayed, member; or of a message of its own (`p2p`), or to a window
//!   2  2 operation reduction (4 bits), dtype (5), collective (6); the top bit is set for an ad-hoc operation
//!   4  4 source    the sender's rank
//!   8  4 group     the communicator, by the number that the receiver has given it; 0 for the group of all
//!  12  4 epoch     its membership version
//!  16  8 seq       the group's operation number
//!  24  8 tensor    generation and tensor, or the root of an ad-hoc operation
//!  32  4 instance  uses of the tensor so far; 1 for an ad-hoc operation that was started where a blocking call goes another way
//!  36  4 round     the message between these two ranks within the operation
//!  40  4 index     which fragment of the message
//!  44  2 granule   bytes of every fragment but the last, in units of 64
//!  46  6 count     elements of the tensor, or of a rank's block
//!  52  4 length    payload bytes; rounds granted, for credit
//! ```
//!
//! Where the kind is of a message of its own ([`MessageKind::is_p2p`]), the seq counts the messages of this pair of ranks, the tensor is
//! the tag, the count is the message's (or the receive's), and the operation says nothing.
//!
//! Where it is of an access to a window ([`MessageKind::is_window`]), the seq counts the requests of this pair of ranks, the tensor is the
//! first element, the instance the window, the count that of the elements, and the round says with the reduction what is done.
//!
//! The offset of a fragment is index times granule (2^48 bytes and more can be addressed). So each fragment gives
//! the position of its neighbours, and the receiver can keep a bit per fragment in any order of arrival.

mod kind;
mod shape;
mod short;

pub use self::kind::MessageKind;
pub use self::shape::{Collective, Shape};
pub use self::short::SHORT_HEADER_BYTES;

use crate::dtype::{DType, DTypeError, NoReduction, ReduceOp, ReduceOpError};
use crate::grid::Rank;
use core::fmt;
use thiserror::Error;

/// Bytes of a header on the wire.
pub const HEADER_BYTES: usize = 56;

/// Fragment sizes are multiples of this many bytes.
pub const GRANULE_UNIT: usize = 64;

/// The largest fragment that a header can describe.
pub const MAX_GRANULE: usize = GRANULE_UNIT * u16::MAX as usize;

/// In the place of the root of an exchange of counts: this, and the number of the collective whose blocks are counted.
pub(crate) const COUNTS_OF: u32 = 0xffff_ff00;

/// In the place of the root of an all-reduce that is a part of a larger one: this, and the part's number.
const PART: u32 = 0xffff_fe00;

/// The most elements that an operation can have.
pub const MAX_COUNT: u64 = (1 << 48) - 1;

const VERSION: u8 = 0x53;
const ADHOC: u16 = 0x8000;

/// Which operation of which group. The trainer's step number is an annotation and not part of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MatchKey {
    /// The communicator.
    pub group: u32,
    /// The group's membership version.
    pub epoch: u32,
    /// The group's operation number, from 0.
    pub seq: u64,
}

impl MatchKey {
    /// In the place of a group's number: a message about groups, and of none.
    pub const MAKING: u32 = u32::MAX;
}

/// Which tensor an operation works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Identity {
    /// A tensor of the table.
    Registered {
        /// Generation of the table.
        generation: u32,
        /// Index within the generation.
        tensor: u32,
        /// How often the tensor has been reduced before.
        instance: u32,
    },
    /// An operation outside the table, which its shape tells, and its root (rank 0 where it has none).
    AdHoc {
        /// The root. Where there is none: the [digest](crate::counts::Counts::digest) of the counts if blocks may differ, and the
        /// collective that counts are for if counts are exchanged ([`Problem::tag`](crate::schedule::Problem::tag)).
        root: Rank,
    },
    /// The same, started without waiting where a call that waits goes another way: ranks that do the one and the other diverge.
    Started {
        /// The root.
        root: Rank,
    },
}

impl Identity {
    /// Of the part with this number, from 0, of an all-reduce outside the table that is reduced in parts.
    pub fn part(number: u32) -> Self {
        Self::AdHoc { root: Rank(PART + number.min(0xff)) }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Registered { generation, tensor, instance } => {
                write!(f, "tensor {tensor} of generation {generation}, use {instance}")
            }
            Self::AdHoc { root } => write!(f, "ad-hoc operation from {root}"),
            Self::Started { root } => write!(f, "started ad-hoc operation from {root}"),
        }
    }
}

/// One rank's view of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    /// The tensor.
    pub identity: Identity,
    /// The shape.
    pub shape: Shape,
}

impl View {
    /// Whether it is compared before its counts are known.
    fn is_uncounted(&self, root: Rank) -> bool {
        let Shape { collective, count, .. } = self.shape;
        collective.has_counts() && count == 0 && (collective.has_root() || root.0 > COUNTS_OF)
    }
}

impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.identity {
            Identity::Registered { .. } => write!(f, "{} ({})", self.shape, self.identity),
            Identity::AdHoc { root } if self.is_uncounted(root) => {
                let Shape { collective, dtype, .. } = self.shape;
                write!(f, "{} of {dtype}", collective.name())?;
                if collective.has_root() { write!(f, " with root {}", root.0) } else { Ok(()) }
            }
            Identity::AdHoc { root } if !self.shape.collective.has_root() && root.0 > COUNTS_OF => {
                let of = Collective::from_code((root.0 - COUNTS_OF) as u8).map_or("blocks", Collective::name);
                write!(f, "{} (the counts for {of})", self.shape)
            }
            Identity::AdHoc { root } if self.shape.collective == Collective::AllReduce && root.0 >= PART => {
                write!(f, "{} (part {} of a larger one)", self.shape, root.0 - PART + 1)
            }
            Identity::AdHoc { root } if self.shape.collective.has_root() => {
                write!(f, "{} with root {}", self.shape, root.0)
            }
            Identity::AdHoc { root } if self.shape.collective.has_counts() => {
                write!(f, "{} in blocks with counts of digest {:08x}", self.shape, root.0)
            }
            Identity::AdHoc { .. } => self.shape.fmt(f),
            Identity::Started { root } => {
                let view = Self { identity: Identity::AdHoc { root }, ..*self };
                write!(f, "{view}, started without waiting")
            }
        }
    }
}

/// The header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The kind of the message.
    pub kind: MessageKind,
    /// The sender.
    pub src: Rank,
    /// The operation.
    pub key: MatchKey,
    /// The tensor.
    pub identity: Identity,
    /// The operation's shape, as the sender sees it.
    pub shape: Shape,
    /// The message between these two ranks within the operation; see [`MessageKind`] for control messages.
    pub round: u32,
    /// Byte offset of the fragment within the message; a multiple of `granule`.
    pub offset: u64,
    /// Bytes of every fragment of this message but the last: a multiple of [`GRANULE_UNIT`] up to [`MAX_GRANULE`]; 0 for
    /// control messages.
    pub granule: u32,
    /// Payload bytes; see [`MessageKind`] for control messages.
    pub len: u32,
}

/// The bytes of a message's fragments over a transport that takes so many: whole units, and no more than a header can say.
#[inline]
pub(crate) fn granule(max_fragment: usize) -> u32 {
    (max_fragment.clamp(GRANULE_UNIT, MAX_GRANULE) / GRANULE_UNIT * GRANULE_UNIT) as u32
}

/// The reason why bytes are no header.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum HeaderError {
    /// Fewer bytes than a header has.
    #[error("{0} bytes are too few for a message header of {HEADER_BYTES}; drop the datagram")]
    Short(usize),
    /// Another protocol, or another version of this one.
    #[error("version byte {0:#04x} instead of {VERSION:#04x}; run the same version on all ranks")]
    Version(u8),
    /// A kind of message that this version does not know.
    #[error("{0} is no kind of message; run the same version on all ranks")]
    Kind(u8),
    /// A collective that this version does not know.
    #[error("{0} is no collective; run the same version on all ranks")]
    Collective(u8),
    /// An element type that this version does not know.
    #[error(transparent)]
    DType(#[from] DTypeError),
    /// A reduction that this version does not know.
    #[error(transparent)]
    Op(#[from] ReduceOpError),
    /// A reduction that the element type does not have.
    #[error("{0}; drop the datagram")]
    NoReduction(#[from] NoReduction),
    /// A fragment that is larger than its granule, or one without a granule.
    #[error("a fragment of {len} bytes with a granule of {granule}; drop the datagram")]
    Granule {
        /// Payload bytes.
        len: u32,
        /// Bytes of a full fragment.
        granule: u32,
    },
}

impl Header {
    /// The header of a message that is of no collective, without a payload; a caller replaces what it needs otherwise.
    #[inline]
    pub fn new(kind: MessageKind, src: Rank, key: MatchKey) -> Self {
        let identity = Identity::AdHoc { root: Rank(0) };
        let shape = Shape { collective: Collective::Barrier, dtype: DType::U8, op: ReduceOp::Sum, count: 0 };
        Self { kind, src, key, identity, shape, round: 0, offset: 0, granule: 0, len: 0 }
    }

    /// The operation as the sender sees it.
    #[inline]
    pub fn view(&self) -> View {
        View { identity: self.identity, shape: self.shape }
    }

    /// Writes the header. An offset that is no multiple of the granule is rounded down, a granule to whole units; the
    /// executor makes neither.
    #[inline]
    pub fn encode(&self, out: &mut [u8; HEADER_BYTES]) {
        let (a, b, ad_hoc) = match self.identity {
            Identity::Registered { generation, tensor, instance } => {
                (u64::from(generation) | u64::from(tensor) << 32, instance, 0)
            }
            Identity::AdHoc { root } => (u64::from(root.0), 0, ADHOC),
            Identity::Started { root } => (u64::from(root.0), 1, ADHOC),
        };
        let index = if self.granule == 0 { 0 } else { self.offset / u64::from(self.granule) };
        let granule = self.granule / GRANULE_UNIT as u32;
        out[0] = VERSION;
        out[1] = self.kind as u8;
        out[2..4].copy_from_slice(&(self.shape.code() | ad_hoc).to_le_bytes());
        out[4..8].copy_from_slice(&self.src.0.to_le_bytes());
        out[8..12].copy_from_slice(&self.key.group.to_le_bytes());
        out[12..16].copy_from_slice(&self.key.epoch.to_le_bytes());
        out[16..24].copy_from_slice(&self.key.seq.to_le_bytes());
        out[24..32].copy_from_slice(&a.to_le_bytes());
        out[32..36].copy_from_slice(&b.to_le_bytes());
        out[36..40].copy_from_slice(&self.round.to_le_bytes());
        out[40..44].copy_from_slice(&(index as u32).to_le_bytes());
        let tail = u64::from(granule as u16) | (self.shape.count & MAX_COUNT) << 16;
        out[44..52].copy_from_slice(&tail.to_le_bytes());
        out[52..56].copy_from_slice(&self.len.to_le_bytes());
    }

    /// Reads a header from the start of a datagram's payload.
    ///
    /// # Errors
    /// The bytes are too few, of another version, or a field is outside its range.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, HeaderError> {
        let Some(bytes) = bytes.first_chunk::<HEADER_BYTES>() else {
            return Err(HeaderError::Short(bytes.len()));
        };
        let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        if bytes[0] != VERSION {
            return Err(HeaderError::Version(bytes[0]));
        }
        let kind = MessageKind::from_code(bytes[1]).ok_or(HeaderError::Kind(bytes[1]))?;
        let code = u16::from_le_bytes([bytes[2], bytes[3]]);
        let identity = if code & ADHOC != 0 {
            let root = Rank(u32_at(24));
            if u32_at(32) == 0 { Identity::AdHoc { root } } else { Identity::Started { root } }
        } else {
            Identity::Registered { generation: u32_at(24), tensor: u32_at(28), instance: u32_at(32) }
        };
        let shape = Shape::from_code(code, u64_at(44) >> 16)?;
        let granule = u32::from(u16::from_le_bytes([bytes[44], bytes[45]])) * GRANULE_UNIT as u32;
        let len = u32_at(52);
        if kind.carries_payload() && (granule == 0 || len > granule) {
            return Err(HeaderError::Granule { len, granule });
        }
        Ok(Self {
            kind,
            src: Rank(u32_at(4)),
            key: MatchKey { group: u32_at(8), epoch: u32_at(12), seq: u64_at(16) },
            identity,
            shape,
            round: u32_at(36),
            offset: u64::from(u32_at(40)) * u64::from(granule),
            granule,
            len,
        })
    }
}

#[cfg(test)]
mod tests;
