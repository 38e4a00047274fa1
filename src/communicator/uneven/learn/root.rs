//! The counts of a gather or scatter, which the root has, and each other rank has its own.

use shouter_reducer::counts::Counts;
use shouter_reducer::grid::Rank;
use shouter_reducer::header::Collective;

use super::{Differences, Differing, Learned, Round, Told};
use crate::communicator::uneven::{RankBlocks, words};

/// What a rank knows.
pub(in super::super) struct RootCounts {
    collective: Collective,
    root: Rank,
    /// On the root, the counts of all.
    all: Option<Vec<u64>>,
    /// The counts of all as each rank has its own, after the first round.
    told: Option<Vec<u64>>,
}

impl RootCounts {
    /// Each rank sends its count; the root a digest of those that it expects, too.
    pub(super) fn new(blocks: &RankBlocks<'_>, own: Rank, ranks: u32, root: Rank) -> (Self, Round) {
        let gathers = blocks.collective == Collective::GatherV;
        let all = if gathers { blocks.taken } else { blocks.given };
        let all = (root == own).then(|| words(all).collect());
        let round = Round::all_gather(Told::by(blocks, root == own), ranks);
        (Self { collective: blocks.collective, root, all, told: None }, round)
    }

    pub(super) fn collective(&self) -> Collective {
        self.collective
    }

    pub(super) fn root(&self) -> Rank {
        self.root
    }

    pub(super) fn heard(&mut self, words: Vec<u64>) -> Learned {
        match self.told.take() {
            None => self.compare(&Told::new(self.collective, self.root, Told::OWN, words)),
            Some(told) => Learned::Differ(self.differences(&told, &words)),
        }
    }

    /// Whether all ranks agree, after the first round.
    pub(super) fn compare(&mut self, all: &Told) -> Learned {
        let told: Vec<u64> = all.own().collect();
        if all.agree() {
            return Learned::Counts(Counts::of_blocks(told));
        }
        // All see the counts that the root expects.
        let all = self.all.clone().unwrap_or_else(|| told.clone());
        self.told = Some(told);
        Learned::Round(Round::broadcast(all))
    }

    fn differences(&self, told: &[u64], expected: &[u64]) -> Differences {
        let (root, gathers) = (self.root, self.collective == Collective::GatherV);
        let differing = (0..).map(Rank).zip(told.iter().zip(expected)).filter(|(_, (own, all))| own != all);
        let pairs = differing.map(|(rank, (&own, &all))| match gathers {
            true => Differing { from: rank, to: root, given: own, taken: all },
            false => Differing { from: root, to: rank, given: all, taken: own },
        });
        let pairs: Vec<_> = pairs.collect();
        Differences { number: pairs.len() as u64, pairs }
    }
}
