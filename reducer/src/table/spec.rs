//! A tensor of the table, and the counts of its blocks where they differ.

use super::{MAX_NAME, TableError};
use crate::counts::{CountsError, sum};
use crate::dtype::{DType, ReduceOp};
use crate::header::{Collective, MAX_COUNT};
use core::fmt;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Blocks with different counts that a view shows, at most.
const SHOWN: usize = 3;

/// A tensor and its collective, as a rank registers them before it ever pushes the tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorSpec {
    /// The name, for people and messages.
    pub name: String,
    /// The collective.
    pub collective: Collective,
    /// The elements' type.
    pub dtype: DType,
    /// Elements of the tensor, or of one rank's block; 0 where blocks have counts of their own.
    pub count: u64,
    /// The reduction; [`ReduceOp::Sum`] where nothing is reduced.
    pub op: ReduceOp,
    /// The root; 0 where there is none.
    pub root: u32,
    /// Elements of each block, of collectives whose blocks may differ.
    pub counts: BlockCounts,
}

/// Elements of each block of a tensor, in rank order; zero is allowed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum BlockCounts {
    /// All have the tensor's count.
    #[default]
    None,
    /// A count for each rank, of an all-gather-v, a gather-v, a scatter-v or a reduce-scatter-v: the same on every rank, wherever the root is.
    OfRanks(Vec<u64>),
    /// Those of this rank, of an all-to-all-v. Other ranks have others, so they are no part of what ranks compare.
    OfPairs {
        /// What this rank gives to each rank.
        #[serde(skip)]
        given: Vec<u64>,
        /// What it takes from each rank.
        #[serde(skip)]
        taken: Vec<u64>,
    },
}

/// Why a tensor's counts are not those of its collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum WrongCounts {
    /// There is none, or what should be one for each rank is one for each pair.
    #[error("{0} has a count for each rank; give BlockCounts::OfRanks, the same on every rank")]
    NotOfRanks(Collective),
    /// There is none, or what should be one for each pair is one for each rank.
    #[error(
        "{0} has counts of what a rank gives to each rank, and of what it takes from each; give BlockCounts::OfPairs"
    )]
    NotOfPairs(Collective),
    /// The collective has one count.
    #[error("{0} has one count for all blocks; give BlockCounts::None, or take the collective with counts")]
    Unwanted(Collective),
    /// A count beside those of the blocks.
    #[error("count is {0}, and counts say how many elements each block has; give 0")]
    Twice(u64),
    /// There are not as many as ranks.
    #[error("{found} counts{of} were given, and the group has {ranks} rank(s); give one for each")]
    Number {
        /// Which counts, where there are several lists.
        of: &'static str,
        /// Counts that were given.
        found: usize,
        /// Ranks of the group.
        ranks: u32,
    },
    /// They add up to too much.
    #[error(transparent)]
    Sum(#[from] CountsError),
}

impl TensorSpec {
    /// A tensor that all ranks reduce.
    pub fn all_reduce(name: impl Into<String>, dtype: DType, count: u64, op: ReduceOp) -> Self {
        Self { count, op, ..Self::counted(name.into(), Collective::AllReduce, dtype, BlockCounts::None) }
    }

    /// Blocks of all ranks that every rank gets; `counts` has the elements of each rank's, the same on every rank.
    pub fn all_gather_v(name: impl Into<String>, dtype: DType, counts: Vec<u64>) -> Self {
        Self::counted(name.into(), Collective::AllGatherV, dtype, BlockCounts::OfRanks(counts))
    }

    /// Blocks of all ranks that the root gets; `counts` has the elements of each rank's, the same on every rank.
    pub fn gather_v(name: impl Into<String>, dtype: DType, counts: Vec<u64>, root: u32) -> Self {
        let counts = BlockCounts::OfRanks(counts);
        Self { root, ..Self::counted(name.into(), Collective::GatherV, dtype, counts) }
    }

    /// Blocks of the root, one for each rank; `counts` has the elements of each, the same on every rank.
    pub fn scatter_v(name: impl Into<String>, dtype: DType, counts: Vec<u64>, root: u32) -> Self {
        let counts = BlockCounts::OfRanks(counts);
        Self { root, ..Self::counted(name.into(), Collective::ScatterV, dtype, counts) }
    }

    /// A tensor that all ranks reduce, and of which each gets a block; `counts` has the elements of each, the same on every rank.
    pub fn reduce_scatter_v(name: impl Into<String>, dtype: DType, counts: Vec<u64>, op: ReduceOp) -> Self {
        let counts = BlockCounts::OfRanks(counts);
        Self { op, ..Self::counted(name.into(), Collective::ReduceScatterV, dtype, counts) }
    }

    /// Blocks that each rank gives each other one: this rank has `given` elements for each, and takes `taken` from each.
    pub fn all_to_all_v(name: impl Into<String>, dtype: DType, given: Vec<u64>, taken: Vec<u64>) -> Self {
        let counts = BlockCounts::OfPairs { given, taken };
        Self::counted(name.into(), Collective::AllToAllV, dtype, counts)
    }

    fn counted(name: String, collective: Collective, dtype: DType, counts: BlockCounts) -> Self {
        Self { name, collective, dtype, count: 0, op: ReduceOp::Sum, root: 0, counts }
    }

    /// Refuses counts that the collective does not have in a group of so many ranks.
    ///
    /// # Errors
    /// [`WrongCounts`] says what is to be given.
    pub fn check_counts(&self, ranks: u32) -> Result<(), WrongCounts> {
        self.check_kind()?;
        let number = |of, counts: &[u64]| match counts.len() == ranks as usize {
            true => Ok(()),
            false => Err(WrongCounts::Number { of, found: counts.len(), ranks }),
        };
        match &self.counts {
            BlockCounts::None => Ok(()),
            BlockCounts::OfRanks(counts) => number("", counts),
            BlockCounts::OfPairs { given, taken } => {
                number(" of given elements", given)?;
                number(" of taken elements", taken)
            }
        }
    }

    /// The same for a group of any size.
    fn check_kind(&self) -> Result<(), WrongCounts> {
        let Self { collective, count, ref counts, .. } = *self;
        match counts {
            BlockCounts::None if !collective.has_counts() => return Ok(()),
            BlockCounts::OfRanks(counts)
                if collective.has_counts() && collective != Collective::AllToAllV =>
            {
                sum(counts)?;
            }
            BlockCounts::OfPairs { given, taken } if collective == Collective::AllToAllV => {
                sum(given)?;
                sum(taken)?;
            }
            _ if collective == Collective::AllToAllV => return Err(WrongCounts::NotOfPairs(collective)),
            _ if collective.has_counts() => return Err(WrongCounts::NotOfRanks(collective)),
            _ => return Err(WrongCounts::Unwanted(collective)),
        }
        if count == 0 { Ok(()) } else { Err(WrongCounts::Twice(count)) }
    }

    /// Whether a generation may have it, as its tensor `index`.
    pub(super) fn check(&self, index: usize) -> Result<(), TableError> {
        if self.name.len() > MAX_NAME || self.count > MAX_COUNT {
            return Err(TableError::TooLarge { index });
        }
        self.check_kind().map_err(|why| TableError::Counts { index, why })?;
        if self.collective.reduces() {
            self.op.check(self.dtype).map_err(|why| TableError::NoReduction { index, why })?;
        }
        Ok(())
    }

    /// Forgets the counts that only this rank has.
    pub(super) fn forget_pairs(&mut self) {
        if let BlockCounts::OfPairs { given, taken } = &mut self.counts {
            (*given, *taken) = (vec![], vec![]);
        }
    }

    /// The view of it for people, with the first counts that another view has otherwise.
    pub(super) fn beside(&self, other: Option<&Self>) -> String {
        let mut text = self.to_string();
        let (BlockCounts::OfRanks(ours), Some(BlockCounts::OfRanks(theirs))) =
            (&self.counts, other.map(|other| &other.counts))
        else {
            return text;
        };
        let differing = || ours.iter().zip(theirs).enumerate().filter(|(_, (ours, theirs))| ours != theirs);
        let shown = differing().take(SHOWN).map(|(rank, (count, _))| format!("{count} of rank {rank}"));
        let mut shown: Vec<_> = shown.collect();
        if let Some(more) = differing().count().checked_sub(SHOWN).filter(|more| *more > 0) {
            shown.push(format!("{more} more that differ"));
        }
        if !shown.is_empty() {
            text = format!("{text} with {}", shown.join(", "));
        }
        text
    }
}

impl fmt::Display for TensorSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, collective, dtype, count, op, root, counts } = self;
        write!(f, "\"{name}\" (")?;
        if *collective != Collective::AllReduce {
            write!(f, "{collective} of ")?;
        }
        match counts {
            BlockCounts::None => write!(f, "{count} x {dtype}")?,
            BlockCounts::OfRanks(counts) => {
                let all = counts.iter().fold(0u64, |all, count| all.saturating_add(*count));
                write!(f, "{all} x {dtype} in {} blocks", counts.len())?;
            }
            BlockCounts::OfPairs { .. } => dtype.fmt(f)?,
        }
        if collective.reduces() {
            write!(f, ", {op}")?;
        }
        if collective.has_root() {
            write!(f, ", root {root}")?;
        }
        f.write_str(")")
    }
}
