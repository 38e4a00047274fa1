//! Elements of each block, where blocks differ: one for each rank, or one for each pair of ranks.

use crate::grid::Rank;
use crate::header::MAX_COUNT;
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
}

/// Elements of each block of a collective whose blocks differ. Zero is allowed. Blocks lie in rank order, without gaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counts {
    ranks: usize,
    /// By rank, or by giving rank and taking rank.
    counts: Vec<u64>,
    largest: u64,
    digest: u64,
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
    /// The sum is more than a `u64` holds.
    pub fn of_blocks(counts: Vec<u64>) -> Result<Self, CountsError> {
        let largest = sum(counts.iter().copied())?;
        Ok(Self { ranks: counts.len(), largest, digest: digest(counts.iter().copied()), counts })
    }

    /// The block that each rank gives each other: those that rank 0 gives, in rank order, then those that rank 1 gives...
    ///
    /// # Errors
    /// There are not `ranks` times `ranks` counts, or a sum is more than a `u64` holds.
    pub fn of_pairs(ranks: u32, counts: Vec<u64>) -> Result<Self, CountsError> {
        let (ranks, found) = (ranks as usize, counts.len());
        if Some(found) != ranks.checked_mul(ranks) {
            return Err(CountsError::Number { found, needed: ranks.saturating_mul(ranks) });
        }
        let (mut largest, mut taken) = (0, vec![0u64; ranks]);
        for row in counts.chunks_exact(ranks.max(1)) {
            largest = largest.max(sum(row.iter().copied())?);
            // At most 2^48 each, so that as many as there are ranks fit.
            taken.iter_mut().zip(row).for_each(|(sum, &count)| *sum += count);
        }
        let largest = taken.into_iter().fold(largest, u64::max);
        if largest > MAX_COUNT {
            return Err(CountsError::TooLarge);
        }
        Ok(Self { ranks, largest, digest: digest(counts.iter().copied()), counts })
    }

    /// Whether there is one for each pair of ranks.
    pub fn are_of_pairs(&self) -> bool {
        self.counts.len() != self.ranks
    }

    /// Number of ranks.
    pub fn ranks(&self) -> u32 {
        self.ranks as u32
    }

    /// The most elements that a rank gives, or takes: the same on all ranks.
    pub fn largest(&self) -> u64 {
        self.largest
    }

    /// Elements of a rank's block.
    pub fn of(&self, rank: Rank) -> u64 {
        self.counts[rank.0 as usize]
    }

    /// Elements that one rank gives another.
    pub fn between(&self, from: Rank, to: Rank) -> u64 {
        self.counts[from.0 as usize * self.ranks + to.0 as usize]
    }

    /// Elements that a rank gives each rank, or the block of each.
    pub fn given_by(&self, rank: Rank) -> impl Iterator<Item = u64> + '_ {
        let row = if self.are_of_pairs() { rank.0 as usize * self.ranks } else { 0 };
        self.counts[row..row + self.ranks].iter().copied()
    }

    /// Elements that a rank takes from each rank, or the block of each.
    pub fn taken_by(&self, rank: Rank) -> impl Iterator<Item = u64> + '_ {
        let (first, step) = if self.are_of_pairs() { (rank.0 as usize, self.ranks) } else { (0, 1) };
        self.counts[first..].iter().step_by(step).copied()
    }

    /// The most elements of a block.
    pub fn most(&self) -> u64 {
        self.counts.iter().copied().fold(0, u64::max)
    }

    /// A number that other counts hardly have: the [`digest`] of all, folded.
    pub fn digest(&self) -> u32 {
        (self.digest ^ self.digest >> 32) as u32
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

fn sum(mut counts: impl Iterator<Item = u64>) -> Result<u64, CountsError> {
    counts
        .try_fold(0u64, |sum, count| sum.checked_add(count).filter(|&sum| sum <= MAX_COUNT))
        .ok_or(CountsError::TooLarge)
}

#[cfg(test)]
mod tests;
