//! What ranks tell each other of their counts where an all-gather suffices.
//!
//! | collective | words of a rank |
//! |---|---|
//! | gather-v, scatter-v | its own count, and on the root the digest of those that it has |
//! | all-to-all-v on one host | what it gives to each rank, and the digest of what it takes from each |

use shouter_reducer::counts::digest;
use shouter_reducer::grid::Rank;
use shouter_reducer::header::Collective;

use crate::communicator::uneven::{RankBlocks, words};

/// The words of all ranks.
pub(in crate::communicator) struct Told {
    collective: Collective,
    root: Rank,
    words: Vec<u64>,
}

impl Told {
    /// What a rank tells.
    pub(in crate::communicator::uneven) fn by(blocks: &RankBlocks<'_>, is_root: bool) -> Vec<u64> {
        let RankBlocks { collective, given, taken, .. } = *blocks;
        let (own, expected) = match collective {
            Collective::ScatterV => (taken, given),
            _ => (given, taken),
        };
        let expects = is_root || collective == Collective::AllToAllV;
        let expected = if expects { digest(words(expected)) } else { 0 };
        words(own).chain([expected]).collect()
    }

    pub(in crate::communicator) fn new(collective: Collective, root: Rank, words: Vec<u64>) -> Self {
        Self { collective, root, words }
    }

    pub(super) fn into_words(self) -> Vec<u64> {
        self.words
    }

    /// Words that a rank tells.
    fn row(&self) -> usize {
        match self.collective {
            // Of n ranks n (n + 1).
            Collective::AllToAllV => self.words.len().isqrt() + 1,
            _ => 2,
        }
    }

    /// The number of ranks.
    fn ranks(&self) -> usize {
        self.words.len() / self.row()
    }

    /// The own count of each rank in a gather or scatter.
    pub(super) fn own(&self) -> impl Iterator<Item = u64> + '_ {
        self.words.iter().step_by(2).copied()
    }

    /// Elements of the block of a rank for another one.
    pub(in crate::communicator) fn given(&self, from: Rank, to: Rank) -> u64 {
        let row = self.row();
        let word = |row_of: Rank, at: u32| {
            self.words.get(row_of.0 as usize * row + at as usize).copied().unwrap_or(0)
        };
        match self.collective {
            Collective::GatherV if to == self.root => word(from, 0),
            Collective::ScatterV if from == self.root => word(to, 0),
            Collective::AllToAllV => word(from, to.0),
            _ => 0,
        }
    }

    /// Elements of the blocks that a rank gives to those before another one (saturating).
    pub(in crate::communicator) fn given_before(&self, from: Rank, to: Rank) -> u64 {
        (0..to.0).map(|to| self.given(from, Rank(to))).fold(0, u64::saturating_add)
    }

    /// Elements of all blocks that a rank gives (saturating).
    pub(in crate::communicator) fn given_by(&self, from: Rank) -> u64 {
        self.given_before(from, Rank(self.ranks() as u32))
    }

    /// Whether each rank takes what the others give it.
    pub(in crate::communicator) fn agree(&self) -> bool {
        let expected = |rank: Rank| self.words.get(rank.0 as usize * self.row() + self.row() - 1).copied();
        let ranks = || (0..self.ranks() as u32).map(Rank);
        match self.collective {
            Collective::AllToAllV => {
                ranks().all(|to| expected(to) == Some(digest(ranks().map(|from| self.given(from, to)))))
            }
            _ => expected(self.root) == Some(digest(self.own())),
        }
    }
}
