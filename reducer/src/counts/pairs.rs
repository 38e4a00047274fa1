//! Counts for pairs of ranks, as the ranks of one node need them.

use super::{CountsError, sum};
use crate::grid::{Grid, Rank};
use crate::header::MAX_COUNT;
use std::ops::Range;

/// The sums of one rank's counts: what ranks of other nodes have to know of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Elements that it gives.
    pub given: u64,
    /// Elements that it takes.
    pub taken: u64,
    /// Elements that it takes from ranks of other nodes.
    pub arriving: u64,
    /// Blocks that it gives, and that are not empty.
    pub given_blocks: u32,
    /// The same of those that it takes from ranks of other nodes.
    pub arriving_blocks: u32,
    /// The sum of the digests of the blocks that it gives, and of those that it takes. The sums over all ranks are equal where each rank takes
    /// what the others give it.
    pub digests: [u64; 2],
}

impl Share {
    /// Words that ranks send each other.
    pub const WORDS: usize = 6;

    /// The share of a rank that gives and takes these, in rank order (saturating).
    pub fn of(grid: &Grid, rank: Rank, given: &[u64], taken: &[u64]) -> Self {
        let filled = |count: u64| u32::from(count > 0);
        let mut share = Self::default();
        for (to, &count) in (0..).map(Rank).zip(given) {
            share.given = share.given.saturating_add(count);
            share.given_blocks += filled(count);
            share.digests[0] = share.digests[0].wrapping_add(block_digest(rank, to, count));
        }
        for (from, &count) in (0..).map(Rank).zip(taken) {
            share.taken = share.taken.saturating_add(count);
            share.digests[1] = share.digests[1].wrapping_add(block_digest(from, rank, count));
            if grid.node_of(from) != grid.node_of(rank) {
                share.arriving = share.arriving.saturating_add(count);
                share.arriving_blocks += filled(count);
            }
        }
        share
    }

    /// As sent.
    pub fn to_words(self) -> [u64; Self::WORDS] {
        let blocks = u64::from(self.given_blocks) << 32 | u64::from(self.arriving_blocks);
        [self.given, self.taken, self.arriving, blocks, self.digests[0], self.digests[1]]
    }

    /// As received.
    pub fn from_words([given, taken, arriving, blocks, gives, takes]: [u64; Self::WORDS]) -> Self {
        let (given_blocks, arriving_blocks) = ((blocks >> 32) as u32, blocks as u32);
        Self { given, taken, arriving, given_blocks, arriving_blocks, digests: [gives, takes] }
    }
}

/// A number that another block hardly has: the [digest](super::digest) of both ranks and the count.
fn block_digest(from: Rank, to: Rank, count: u64) -> u64 {
    super::digest([u64::from(from.0) << 32 | u64::from(to.0), count].into_iter())
}

/// The counts of some ranks that follow each other, and the shares of all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pairs {
    held: Range<u32>,
    ranks: usize,
    /// By held rank and other rank: what the held one gives, and what it takes.
    counts: [Vec<u64>; 2],
    /// By rank.
    shares: Vec<Share>,
}

impl Pairs {
    /// All ranks find the same error: what all know is looked at first.
    pub(super) fn new(
        held: Range<u32>,
        counts: [Vec<u64>; 2],
        shares: Vec<Share>,
    ) -> Result<Self, CountsError> {
        let ranks = shares.len();
        let needed = held.len().saturating_mul(ranks);
        if let Some(some) = counts.iter().find(|some| some.len() != needed) {
            return Err(CountsError::Number { found: some.len(), needed });
        }
        let pairs = Self { held, ranks, counts, shares };
        if pairs.digest_of(0) != pairs.digest_of(1) {
            return Err(CountsError::Differ);
        }
        if pairs.largest() > MAX_COUNT {
            return Err(CountsError::TooLarge);
        }
        pairs
            .counts
            .iter()
            .flat_map(|some| some.chunks_exact(ranks.max(1)))
            .try_for_each(|row| sum(row).map(drop))?;
        Ok(pairs)
    }

    /// The most that a rank gives or takes.
    pub(super) fn largest(&self) -> u64 {
        self.shares.iter().map(|share| share.given.max(share.taken)).fold(0, u64::max)
    }

    pub(super) fn digest(&self) -> u64 {
        self.digest_of(0)
    }

    fn digest_of(&self, side: usize) -> u64 {
        self.shares.iter().fold(0, |sum, share| sum.wrapping_add(share.digests[side]))
    }

    pub(super) fn ranks(&self) -> u32 {
        self.ranks as u32
    }

    pub(super) fn holds(&self, rank: Rank) -> bool {
        self.held.contains(&rank.0)
    }

    pub(super) fn given(&self, rank: Rank) -> &[u64] {
        self.row(0, rank)
    }

    pub(super) fn taken(&self, rank: Rank) -> &[u64] {
        self.row(1, rank)
    }

    /// Nothing, of a rank that is not held.
    fn row(&self, side: usize, rank: Rank) -> &[u64] {
        let number = rank.0.wrapping_sub(self.held.start) as usize;
        self.counts[side].chunks_exact(self.ranks.max(1)).nth(number).unwrap_or_default()
    }

    pub(super) fn shares(&self) -> &[Share] {
        &self.shares
    }
}
