//! The counts of an all-to-all, of which each rank has a row and a column.
//!
//! On one host all ranks gather all of them. Else a rank sends each other one the count of what it gives that one, and the sums of its own
//! ([`Share`]); ranks of its host get its row and column, too. So no rank holds or sends as many words as there are pairs of ranks.

use std::sync::Arc;

use shouter_reducer::counts::{Counts, CountsError, Share};
use shouter_reducer::grid::{Grid, Rank};
use shouter_reducer::header::Collective;

use super::{Differences, Differing, Learned, NAMED, Round, Told};
use crate::communicator::uneven::{RankBlocks, words};

/// What a rank knows.
pub(in super::super) struct PairCounts {
    own: Rank,
    grid: Grid,
    given: Vec<u64>,
    taken: Vec<u64>,
    /// Whether the first round has found that counts differ.
    differ: bool,
}

/// Words that a rank sends each other one: the count, and the share.
const WORDS: usize = 1 + Share::WORDS;

/// Words of a count that differs: the giving rank, what it gives, and what is taken.
const DIFFERING: usize = 3;

impl PairCounts {
    pub(super) fn new(blocks: &RankBlocks<'_>, own: Rank, grid: &Grid) -> Result<(Self, Round), CountsError> {
        let [given, taken] = [blocks.given, blocks.taken].map(|counts| words(counts).collect());
        let pairs = Self { own, grid: *grid, given, taken, differ: false };
        let round = match grid.nodes() {
            1 => Round::all_gather(Told::by(blocks, false), grid.ranks()),
            _ => pairs.exchange()?,
        };
        Ok((pairs, round))
    }

    /// The round of several hosts.
    fn exchange(&self) -> Result<Round, CountsError> {
        let share = Share::of(&self.grid, self.own, &self.given, &self.taken).to_words();
        let mut mine = Vec::new();
        for (to, &count) in (0..).map(Rank).zip(&self.given) {
            mine.push(count);
            mine.extend(share);
            if self.tells_all(to) {
                mine.extend(self.given.iter().chain(&self.taken));
            }
        }
        // Each rank gets as many words from another one as it sends that one.
        let all = vec![0; mine.len()];
        let counts = Some(Arc::new(words_between(&self.grid, self.grid.node_of(self.own))?));
        Ok(Round { how: Collective::AllToAllV, counts, mine, all })
    }

    /// Whether that rank gets this one's row and column.
    fn tells_all(&self, to: Rank) -> bool {
        self.grid.node_of(to) == self.grid.node_of(self.own)
    }

    pub(super) fn heard(&mut self, words: Vec<u64>) -> Learned {
        if self.differ {
            return Learned::Differ(self.differences(&words));
        }
        if self.grid.nodes() > 1 {
            let (counts, given_here) = self.exchanged(&words);
            return self.compare(counts, &given_here);
        }
        self.gathered(&Told::new(Collective::AllToAllV, Rank(0), self.given.len() + 1, words))
    }

    /// The round on one host is over.
    pub(super) fn gathered(&mut self, told: &Told) -> Learned {
        let given_here: Vec<u64> = told.column(self.own).collect();
        let counts = match told.agree() {
            true => Counts::of_matrix(&self.grid, told.matrix()),
            false => Err(CountsError::Differ),
        };
        self.compare(counts, &given_here)
    }

    /// The counts, if all ranks agree; else the round in which they exchange those that differ.
    fn compare(&mut self, counts: Result<Counts, CountsError>, given_here: &[u64]) -> Learned {
        if counts != Err(CountsError::Differ) {
            return Learned::Counts(counts);
        }
        self.differ = true;
        let found =
            (0..).zip(given_here.iter().zip(&self.taken)).filter(|(_, (given, taken))| given != taken);
        let mut mine = vec![found.clone().count() as u64];
        mine.extend(found.take(NAMED).flat_map(|(from, (&given, &taken))| [from, given, taken]));
        mine.resize(1 + NAMED * DIFFERING, 0);
        Learned::Round(Round::all_gather(mine, self.grid.ranks()))
    }

    /// The counts, and what all give this rank, after the round of several hosts.
    fn exchanged(&self, words: &[u64]) -> (Result<Counts, CountsError>, Vec<u64>) {
        let (mut given_here, mut shares, mut counts) = (Vec::new(), Vec::new(), [Vec::new(), Vec::new()]);
        let mut rest = words;
        for from in (0..self.grid.ranks()).map(Rank) {
            let Some((&[given, ref share @ ..], behind)) = rest.split_first_chunk::<WORDS>() else { break };
            given_here.push(given);
            shares.push(Share::from_words(*share));
            rest = behind;
            for side in counts.iter_mut().filter(|_| self.tells_all(from)) {
                let (row, behind) = rest.split_at(rest.len().min(self.given.len()));
                side.extend(row);
                rest = behind;
            }
        }
        let node = self.grid.node_of(self.own);
        (Counts::of_node(&self.grid, node, counts, shares), given_here)
    }

    fn differences(&self, words: &[u64]) -> Differences {
        let mut found = Differences { pairs: Vec::new(), number: 0 };
        for (to, words) in (0..).map(Rank).zip(words.chunks_exact(1 + NAMED * DIFFERING)) {
            let (number, pairs) = (words[0], words[1..].chunks_exact(DIFFERING));
            found.number = found.number.saturating_add(number);
            found.pairs.extend(pairs.take(number as usize).map(|words| Differing {
                from: Rank(words[0] as u32),
                to,
                given: words[1],
                taken: words[2],
            }));
        }
        found
    }
}

/// How many words ranks send each other in the round of several hosts, for the ranks of a node.
fn words_between(grid: &Grid, node: u32) -> Result<Counts, CountsError> {
    let (ranks, short) = (u64::from(grid.ranks()), WORDS as u64);
    let long = short + 2 * ranks;
    let row = |node: u32| {
        (0..grid.ranks()).map(move |other| if grid.node_of(Rank(other)) == node { long } else { short })
    };
    let rows: Vec<u64> = (0..grid.locals(node)).flat_map(|_| row(node)).collect();
    let share = |rank| {
        let locals = grid.locals(grid.node_of(Rank(rank)));
        let others = grid.ranks() - locals;
        let arriving = u64::from(others) * short;
        let all = arriving + u64::from(locals) * long;
        Share {
            given: all,
            taken: all,
            arriving,
            given_blocks: grid.ranks(),
            arriving_blocks: others,
            digests: [0; 2],
        }
    };
    Counts::of_node(grid, node, [rows.clone(), rows], (0..grid.ranks()).map(share).collect())
}
