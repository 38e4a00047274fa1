//! The header of every message between ranks: which operation, which message of it, which bytes.
//!
//! 56 bytes, little endian, before the payload of each datagram:
//!
//! ```text
//!   0  1 version   'S' in the high bits, the version in the low four
//!   1  1 kind      data, credit, abort, vote, floor
//!   2  1 element   dtype in the high half, reduction in the low
//!   3  1 operation collective; the top bit is set for an ad-hoc operation
//!   4  4 source    the sender's rank
//!   8  4 group     the communicator
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
//! The offset of a fragment is index times granule (2^48 bytes and more can be addressed). So each fragment gives
//! the position of its neighbours, and the receiver can keep a bit per fragment in any order of arrival.

use crate::dtype::{DType, DTypeError, ReduceOp, ReduceOpError};
use crate::grid::Rank;
use core::fmt;
use thiserror::Error;

/// Bytes of a header on the wire.
pub const HEADER_BYTES: usize = 56;

/// Fragment sizes are multiples of this many bytes.
pub const GRANULE_UNIT: usize = 64;

/// The largest fragment that a header can describe.
pub const MAX_GRANULE: usize = GRANULE_UNIT * u16::MAX as usize;

/// The most elements that an operation can have.
pub const MAX_COUNT: u64 = (1 << 48) - 1;

const VERSION: u8 = 0x52;
const ADHOC: u8 = 0x80;

/// The type of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum MessageKind {
    /// A fragment of a message.
    Data = 1,
    /// The receiver is ready for `len` messages from `round` on.
    Credit = 2,
    /// The group ends; `round` is the culprit's rank, `len` the cause.
    Abort = 3,
    /// Ranks disagree about operation `seq`; `len` ranks of the sender's node have this view of it, `round` is the lowest of them, and
    /// a `granule` says that the node has another view, too.
    Vote = 4,
    /// The sender has consumed all messages of small operations before a position: `round` is its high half, `len` its low one.
    Floor = 5,
}

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
        /// The root.
        root: Rank,
    },
    /// The same, started without waiting where a call that waits goes another way: ranks that do the one and the other diverge.
    Started {
        /// The root.
        root: Rank,
    },
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

/// Which collective an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Collective {
    /// Every rank ends with the reduction over all.
    AllReduce = 1,
    /// Every rank ends with the root's elements.
    Broadcast = 2,
    /// No rank continues before every rank has entered.
    Barrier = 3,
    /// The root ends with the reduction over all.
    Reduce = 4,
    /// Every rank ends with every rank's block, in rank order.
    AllGather = 5,
    /// Every rank gives a block for each rank and ends with the reduction of those for it.
    ReduceScatter = 6,
    /// The root ends with every rank's block, in rank order.
    Gather = 7,
    /// Every rank ends with its block of the root's.
    Scatter = 8,
    /// Every rank gives a block to each rank and ends with one from each, in rank order.
    AllToAll = 9,
}

impl Collective {
    /// Every collective; its number on the wire is its discriminant.
    pub const ALL: [Self; 9] = [
        Self::AllReduce,
        Self::Broadcast,
        Self::Barrier,
        Self::Reduce,
        Self::AllGather,
        Self::ReduceScatter,
        Self::Gather,
        Self::Scatter,
        Self::AllToAll,
    ];

    /// Whether a shape's count is that of one rank's block, and the whole has as many blocks as there are ranks.
    pub fn is_blocked(self) -> bool {
        use Collective::*;
        matches!(self, AllGather | ReduceScatter | Gather | Scatter | AllToAll)
    }

    /// Whether elements are reduced.
    pub fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::Reduce | Self::ReduceScatter)
    }

    /// Whether one rank has another part than the others.
    pub fn has_root(self) -> bool {
        matches!(self, Self::Broadcast | Self::Reduce | Self::Gather | Self::Scatter)
    }

    /// The name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all-reduce",
            Self::Broadcast => "broadcast",
            Self::Barrier => "barrier",
            Self::Reduce => "reduce",
            Self::AllGather => "all-gather",
            Self::ReduceScatter => "reduce-scatter",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::AllToAll => "all-to-all",
        }
    }

    /// The collective of this number.
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|collective| *collective as u8 == code)
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What all ranks must agree on before they exchange a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// The collective.
    pub collective: Collective,
    /// The elements' type.
    pub dtype: DType,
    /// The reduction (`Sum` where there is none).
    pub op: ReduceOp,
    /// Elements: of the tensor, or of one rank's block ([`Collective::is_blocked`]).
    pub count: u64,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { collective, dtype, op, count } = self;
        let blocks = if collective.is_blocked() { "blocks of " } else { "" };
        match collective.reduces() {
            true => write!(f, "{collective} {op} of {blocks}{count} x {dtype}"),
            false => write!(f, "{collective} of {blocks}{count} x {dtype}"),
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

impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.identity {
            Identity::Registered { .. } => write!(f, "{} ({})", self.shape, self.identity),
            Identity::AdHoc { root } if self.shape.collective.has_root() => {
                write!(f, "{} with root {}", self.shape, root.0)
            }
            Identity::AdHoc { .. } => self.shape.fmt(f),
            Identity::Started { root } => {
                let view = Self { identity: Identity::AdHoc { root }, ..*self };
                write!(f, "{view}, started without waiting")
            }
        }
    }
}

/// Everything that a message says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the message is for.
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

/// Why bytes are no header.
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
    /// What the sender runs.
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
        out[2] = u8::from(self.shape.dtype) << 4 | u8::from(self.shape.op);
        out[3] = self.shape.collective as u8 | ad_hoc;
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
        let kind = match bytes[1] {
            1 => MessageKind::Data,
            2 => MessageKind::Credit,
            3 => MessageKind::Abort,
            4 => MessageKind::Vote,
            5 => MessageKind::Floor,
            other => return Err(HeaderError::Kind(other)),
        };
        let code = bytes[3] & !ADHOC;
        let collective = Collective::from_code(code).ok_or(HeaderError::Collective(code))?;
        let identity = if bytes[3] & ADHOC != 0 {
            let root = Rank(u32_at(24));
            if u32_at(32) == 0 { Identity::AdHoc { root } } else { Identity::Started { root } }
        } else {
            Identity::Registered { generation: u32_at(24), tensor: u32_at(28), instance: u32_at(32) }
        };
        let shape = Shape {
            collective,
            dtype: DType::try_from(bytes[2] >> 4)?,
            op: ReduceOp::try_from(bytes[2] & 0x0f)?,
            count: u64_at(44) >> 16,
        };
        let granule = u32::from(u16::from_le_bytes([bytes[44], bytes[45]])) * GRANULE_UNIT as u32;
        let len = u32_at(52);
        if kind == MessageKind::Data && (granule == 0 || len > granule) {
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
