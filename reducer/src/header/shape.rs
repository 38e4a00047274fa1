//! Collectives and the shapes of operations, and their numbers on the wire.

use super::HeaderError;
use crate::dtype::{DType, ReduceOp};
use core::fmt;

// Where the parts of a shape lie in its code.
const DTYPE_AT: u32 = 4;
const COLLECTIVE_AT: u32 = 9;
const CODE_BITS: u32 = 15;
const _: () = assert!(
    ReduceOp::ALL.len() <= 1 << DTYPE_AT
        && DType::ALL.len() <= 1 << (COLLECTIVE_AT - DTYPE_AT)
        && Collective::ALL.len() < 1 << (CODE_BITS - COLLECTIVE_AT)
);

coded_enum! {
    /// Which collective an operation is.
    #[derive(serde::Serialize, serde::Deserialize)]
    pub enum Collective {
        /// Every rank ends with the reduction over all.
        AllReduce = 1, "all-reduce";
        /// Every rank ends with the root's elements.
        Broadcast = 2, "broadcast";
        /// No rank continues before every rank has entered.
        Barrier = 3, "barrier";
        /// The root ends with the reduction over all.
        Reduce = 4, "reduce";
        /// Every rank ends with every rank's block, in rank order.
        AllGather = 5, "all-gather";
        /// Every rank gives a block for each rank and ends with the reduction of those for it.
        ReduceScatter = 6, "reduce-scatter";
        /// The root ends with every rank's block, in rank order.
        Gather = 7, "gather";
        /// Every rank ends with its block of the root's.
        Scatter = 8, "scatter";
        /// Every rank gives a block to each rank and ends with one from each, in rank order.
        AllToAll = 9, "all-to-all";
        /// As [`AllGather`](Self::AllGather), with a count for each rank.
        AllGatherV = 10, "all-gather-v";
        /// As [`Gather`](Self::Gather), with a count for each rank.
        GatherV = 11, "gather-v";
        /// As [`Scatter`](Self::Scatter), with a count for each rank.
        ScatterV = 12, "scatter-v";
        /// As [`ReduceScatter`](Self::ReduceScatter), with a count for each rank.
        ReduceScatterV = 13, "reduce-scatter-v";
        /// As [`AllToAll`](Self::AllToAll), with a count for each pair of ranks.
        AllToAllV = 14, "all-to-all-v";
        /// Every rank ends with the reduction over the ranks up to itself.
        Scan = 15, "scan";
        /// Every rank but the first ends with the reduction over the ranks before it.
        ExScan = 16, "exscan";
    }
}

impl Collective {
    /// The collective with equal blocks, where blocks may differ; else this one.
    pub fn base(self) -> Self {
        match self {
            Self::AllGatherV => Self::AllGather,
            Self::GatherV => Self::Gather,
            Self::ScatterV => Self::Scatter,
            Self::ReduceScatterV => Self::ReduceScatter,
            Self::AllToAllV => Self::AllToAll,
            equal => equal,
        }
    }

    /// Whether blocks may differ: there is a count for each rank, or each pair of ranks ([`Counts`](crate::counts::Counts)).
    pub fn has_counts(self) -> bool {
        self.base() != self
    }

    /// Whether the input and the output have a block for each rank, and so a count for each where blocks may differ (on the root alone where there is
    /// [one](Self::has_root)); a side that has none is this rank's block.
    pub fn sides_of_all(self) -> (bool, bool) {
        match self.base() {
            Self::AllGather | Self::Gather => (false, true),
            Self::Scatter | Self::ReduceScatter => (true, false),
            Self::AllToAll => (true, true),
            _ => (false, false),
        }
    }

    /// Whether every rank ends with a reduction over the ranks before it.
    pub fn is_scan(self) -> bool {
        matches!(self, Self::Scan | Self::ExScan)
    }

    /// Whether there is a block for each rank: a shape's count is that of one rank's, unless they may differ.
    pub fn is_blocked(self) -> bool {
        self.sides_of_all() != (false, false)
    }

    /// Whether elements are reduced.
    pub fn reduces(self) -> bool {
        matches!(
            self.base(),
            Self::AllReduce | Self::Reduce | Self::ReduceScatter | Self::Scan | Self::ExScan
        )
    }

    /// Whether one rank has another part than the others.
    pub fn has_root(self) -> bool {
        matches!(self.base(), Self::Broadcast | Self::Reduce | Self::Gather | Self::Scatter)
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The shape of an operation: all ranks must agree on it before they exchange a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// The collective.
    pub collective: Collective,
    /// The elements' type.
    pub dtype: DType,
    /// The reduction (`Sum` where there is none).
    pub op: ReduceOp,
    /// Elements: of the tensor, or of one rank's block ([`Collective::is_blocked`]); where blocks may differ, the most that a rank
    /// gives or takes ([`Counts::largest`](crate::counts::Counts::largest)).
    pub count: u64,
}

impl Shape {
    /// All but the count, in 15 bits.
    #[inline]
    pub fn code(&self) -> u16 {
        (self.collective as u16) << COLLECTIVE_AT
            | u16::from(u8::from(self.dtype)) << DTYPE_AT
            | u16::from(u8::from(self.op))
    }

    /// The shape of this [`code`](Self::code), whose top bit is not looked at. A reduction that the type does not have is refused.
    ///
    /// # Errors
    /// The code names no type, or no reduction of its type.
    #[inline]
    pub fn from_code(code: u16, count: u64) -> Result<Self, HeaderError> {
        let field = |from: u32, to: u32| (code >> from & ((1 << (to - from)) - 1)) as u8;
        let number = field(COLLECTIVE_AT, CODE_BITS);
        let collective = Collective::from_code(number).ok_or(HeaderError::Collective(number))?;
        let dtype = DType::try_from(field(DTYPE_AT, COLLECTIVE_AT))?;
        let op = ReduceOp::try_from(field(0, DTYPE_AT))?;
        if collective.reduces() {
            op.check(dtype)?;
        }
        Ok(Self { collective, dtype, op, count })
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { collective, dtype, op, count } = self;
        f.write_str(collective.name())?;
        if collective.reduces() {
            write!(f, " {op}")?;
        }
        match collective.base() {
            Collective::Barrier => Ok(()),
            Collective::AllToAll if collective.has_counts() => {
                write!(f, " of up to {count} x {dtype} a rank")
            }
            base if base.is_blocked() && !collective.has_counts() => {
                write!(f, " of blocks of {count} x {dtype}")
            }
            _ => write!(f, " of {count} x {dtype}"),
        }
    }
}
