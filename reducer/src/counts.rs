//! Elements of each block, where blocks differ: one for each rank, or one for each pair of ranks.

mod pairs;

use crate::grid::{Grid, Rank};
use crate::header::{COUNTS_OF, MAX_COUNT};
use pairs::Pairs;
pub use pairs::Share;
use std::hash::{Hash, Hasher};
use thiserror::Error;

/// Why there are no such counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum CountsError {
    /// Not one for each rank, or for each pair of ranks.
    #[error("{found} counts were given, and {needed} are needed")]
    Number {
        /// Counts that were given.
        found: usize,
        /// Counts that are needed.
        needed: usize,
    },
    /// More elements than an operation can have.
    #[error("the counts' sum is more than the {MAX_COUNT} elements that an operation can have; split it")]
    TooLarge,
    /// Of pairs.
    #[error("the ranks give other numbers of elements than they take")]
    Differ,
}

/// Elements of each block of a collective whose blocks differ. Zero is allowed. Blocks lie in rank order, without gaps.
///
/// With a count for each pair of ranks, a rank needs those of the ranks of its node, and of all others the sums ([`Share`]): no rank holds as
/// many counts as there are pairs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counts {
    kind: Kind,
    largest: u64,
    digest: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    /// By rank.
    Blocks(Vec<u64>),
    Pairs(Pairs),
}

impl Hash for Counts {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.digest);
    }
}

impl Counts {
    /// The block of each rank, in rank order.
    ///
    /// # Errors
    /// The sum is more than an operation can have.
    pub fn of_blocks(counts: Vec<u64>) -> Result<Self, CountsError> {
        let largest = sum(&counts)?;
        Ok(Self { largest, digest: digest(counts.iter().copied()), kind: Kind::Blocks(counts) })
    }

    /// The block that each rank gives each other: those that rank 0 gives, in rank order, then those that rank 1 gives... They are of use to
    /// every rank.
    ///
    /// # Errors
    /// There are not as many counts as pairs of ranks, or a sum is more than an operation can have.
    pub fn of_matrix(grid: &Grid, given: Vec<u64>) -> Result<Self, CountsError> {
        let ranks = grid.ranks() as usize;
        let needed = ranks.saturating_mul(ranks);
        if given.len() != needed {
            return Err(CountsError::Number { found: given.len(), needed });
        }
        let column = |of: usize| given.iter().skip(of).step_by(ranks).copied();
        let taken: Vec<u64> = (0..ranks).flat_map(column).collect();
        let rows = given.chunks_exact(ranks).zip(taken.chunks_exact(ranks));
        let share = |(rank, (given, taken))| Share::of(grid, rank, given, taken);
        let shares = (0..).map(Rank).zip(rows).map(share).collect();
        Ok(Self::of_pairs(Pairs::new(0..grid.ranks(), [given, taken], shares)?))
    }

    /// The blocks that the ranks of a node give, and those that they take, each in rank order, rank by rank; and the share of each rank of the
    /// grid.
    ///
    /// # Errors
    /// There are not as many counts as needed, a sum is more than an operation can have, or ranks do not take what others give: all ranks find
    /// the same.
    pub fn of_node(
        grid: &Grid,
        node: u32,
        counts: [Vec<u64>; 2],
        shares: Vec<Share>,
    ) -> Result<Self, CountsError> {
        let first = grid.leader_of(node).0;
        Ok(Self::of_pairs(Pairs::new(first..first + grid.locals(node), counts, shares)?))
    }

    fn of_pairs(pairs: Pairs) -> Self {
        Self { largest: pairs.largest(), digest: pairs.digest(), kind: Kind::Pairs(pairs) }
    }

    /// Whether there is one for each pair of ranks.
    pub fn are_of_pairs(&self) -> bool {
        matches!(self.kind, Kind::Pairs(_))
    }

    /// Whether they are those of a grid with these ranks, and of use to the ranks of the node.
    pub(crate) fn are_for(&self, grid: &Grid, node: u32) -> bool {
        match &self.kind {
            Kind::Blocks(counts) => counts.len() == grid.ranks() as usize,
            Kind::Pairs(pairs) => {
                pairs.ranks() == grid.ranks() && grid.ranks_on(node).all(|rank| pairs.holds(rank))
            }
        }
    }

    /// The most elements that a rank gives, or takes: the same on all ranks.
    pub fn largest(&self) -> u64 {
        self.largest
    }

    /// Elements of a rank's block; of pairs, what the rank gives itself.
    pub fn of(&self, rank: Rank) -> u64 {
        self.given(rank).get(rank.0 as usize).copied().unwrap_or(0)
    }

    /// Elements that a rank gives each rank, or the block of each. Of pairs, a rank of the same node.
    pub fn given_by(&self, rank: Rank) -> impl Iterator<Item = u64> + '_ {
        self.given(rank).iter().copied()
    }

    /// Elements that a rank takes from each rank, or the block of each. Of pairs, a rank of the same node.
    pub fn taken_by(&self, rank: Rank) -> impl Iterator<Item = u64> + '_ {
        self.taken(rank).iter().copied()
    }

    fn given(&self, rank: Rank) -> &[u64] {
        match &self.kind {
            Kind::Blocks(counts) => counts,
            Kind::Pairs(pairs) => pairs.given(rank),
        }
    }

    /// As [`taken_by`](Self::taken_by).
    pub(crate) fn taken(&self, rank: Rank) -> &[u64] {
        match &self.kind {
            Kind::Blocks(counts) => counts,
            Kind::Pairs(pairs) => pairs.taken(rank),
        }
    }

    /// The shares of all ranks, of pairs; else none.
    pub(crate) fn shares(&self) -> &[Share] {
        match &self.kind {
            Kind::Blocks(_) => &[],
            Kind::Pairs(pairs) => pairs.shares(),
        }
    }

    /// The most elements of a block; of pairs, of all that a rank gives or takes.
    pub fn most(&self) -> u64 {
        match &self.kind {
            Kind::Blocks(counts) => counts.iter().copied().fold(0, u64::max),
            Kind::Pairs(_) => self.largest,
        }
    }

    /// A number that other counts hardly have, and that is the root of no collective of counts.
    pub fn digest(&self) -> u32 {
        ((self.digest ^ self.digest >> 32) as u32).min(COUNTS_OF)
    }
}

/// A number that other counts, or the same in another order, hardly have: FNV-1a (Fowler, Noll and Vo, 1991) over words in place of
/// bytes, each mixed as SplitMix64 does at its end (Steele, Lea and Flood, 2014).
pub fn digest(counts: impl Iterator<Item = u64>) -> u64 {
    counts.fold(0xcbf2_9ce4_8422_2325, |hash, count| {
        let mixed = (count ^ count >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (hash ^ mixed ^ mixed >> 27).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// The sum, if it is not more than an operation can have.
pub(crate) fn sum(counts: &[u64]) -> Result<u64, CountsError> {
    let add = |sum: u64, &count: &u64| sum.checked_add(count).filter(|&sum| sum <= MAX_COUNT);
    counts.iter().try_fold(0, add).ok_or(CountsError::TooLarge)
}

#[cfg(test)]
mod tests;
