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
    /// Words that a rank tells.
    row: usize,
    words: Vec<u64>,
}

impl Told {
    /// Words of a rank in a gather or scatter.
    pub(super) const OWN: usize = 2;

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

    /// Of each rank, in rank order, so many words.
    pub(in crate::communicator) fn new(
        collective: Collective,
        root: Rank,
        row: usize,
        words: Vec<u64>,
    ) -> Self {
        Self { collective, root, row, words }
    }

    fn rows(&self) -> impl Iterator<Item = &[u64]> {
        self.words.chunks_exact(self.row)
    }

    fn row_of(&self, rank: Rank) -> &[u64] {
        self.rows().nth(rank.0 as usize).unwrap_or(&[])
    }

    /// The own count of each rank in a gather or scatter.
    pub(super) fn own(&self) -> impl Iterator<Item = u64> + '_ {
        self.column(Rank(0))
    }

    /// What all ranks give to one, in an all-to-all.
    pub(super) fn column(&self, to: Rank) -> impl Iterator<Item = u64> + '_ {
        self.rows().filter_map(move |row| row.get(to.0 as usize).copied())
    }

    /// What all ranks give, rank by rank, in an all-to-all.
    pub(super) fn matrix(&self) -> Vec<u64> {
        self.rows().flat_map(|row| &row[..row.len() - 1]).copied().collect()
    }

    /// Elements of the block of a rank for another one.
    pub(in crate::communicator) fn given(&self, from: Rank, to: Rank) -> u64 {
        let word = |rank, at: usize| self.row_of(rank).get(at).copied().unwrap_or(0);
        match self.collective {
            Collective::GatherV if to == self.root => word(from, 0),
            Collective::ScatterV if from == self.root => word(to, 0),
            Collective::AllToAllV => word(from, to.0 as usize),
            _ => 0,
        }
    }

    /// Elements of the blocks that a rank gives to those before another one (saturating).
    pub(in crate::communicator) fn given_before(&self, from: Rank, to: Rank) -> u64 {
        let add =
            |counts: &mut dyn Iterator<Item = u64>| counts.take(to.0 as usize).fold(0, u64::saturating_add);
        match self.collective {
            Collective::GatherV if to > self.root => self.given(from, self.root),
            Collective::ScatterV if from == self.root => add(&mut self.own()),
            Collective::AllToAllV => add(&mut self.row_of(from).iter().copied()),
            _ => 0,
        }
    }

    /// Whether each rank takes what the others give it.
    pub(in crate::communicator) fn agree(&self) -> bool {
        match self.collective {
            Collective::AllToAllV => {
                (0..).map(Rank).zip(self.rows()).all(|(to, row)| row.last() == Some(&digest(self.column(to))))
            }
            _ => self.row_of(self.root).last() == Some(&digest(self.own())),
        }
    }
}
