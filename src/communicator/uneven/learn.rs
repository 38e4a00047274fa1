//! The exchange of counts that not every rank has: rounds in which ranks send them as data, for blocking calls and for
//! started ones.

use std::fmt::Write as _;

use shouter_reducer::counts::{Counts, CountsError, digest};
use shouter_reducer::dtype::{DType, ReduceOp};
use shouter_reducer::grid::Rank;
use shouter_reducer::header::{Collective, Shape};
use shouter_reducer::schedule::Problem;

use super::{RankBlocks, words};
use crate::communicator::element::{Buffer, from_slice, with_bytes};
use crate::communicator::table::Tables;
use crate::error::{Call, Error, Views};

/// Pairs of ranks with different counts that an error names, at most.
const NAMED: usize = 3;

/// A rank's counts, of a gather or scatter, where only the root has all, or of an all-to-all.
pub(super) struct Learning {
    collective: Collective,
    own: Rank,
    ranks: u32,
    root: Rank,
    given: Vec<u64>,
    taken: Vec<u64>,
    /// The words of all ranks in the first round, once that is over.
    told: Option<Vec<u64>>,
}

/// A round: an all-gather, or the root's broadcast.
pub(super) struct Round {
    how: Collective,
    mine: Vec<u64>,
    all: Vec<u64>,
}

/// The result of a round.
pub(super) enum Learned {
    /// All ranks agree.
    Counts(Result<Counts, CountsError>),
    /// They do not, and exchange the rest: all see it, so all take part.
    Round(Round),
    /// These differ.
    Differ(Vec<Differing>),
}

impl Round {
    /// This rank's counts, and room for those of all.
    pub(super) fn buffers(&mut self) -> (Buffer, Buffer) {
        (from_slice(&self.mine), with_bytes(&mut self.all, |all| all))
    }
}

impl Learning {
    /// This rank's counts, and the first round: each rank sends the counts that it gives, and a digest of those that it
    /// expects. (For a gather or scatter its own count; the root alone expects something.)
    pub(super) fn new(blocks: &RankBlocks<'_>, own: Rank, ranks: u32, root: Rank) -> (Self, Round) {
        let [given, taken] = [blocks.given, blocks.taken].map(|counts| words(counts).collect::<Vec<_>>());
        let learning = Self { collective: blocks.collective, own, ranks, root, given, taken, told: None };
        let mine = match learning.collective {
            Collective::AllToAllV => {
                let expected = digest(learning.taken.iter().copied());
                learning.given.iter().copied().chain([expected]).collect()
            }
            _ => {
                let (mine, all) = learning.mine_and_all();
                let expected = if root == own { digest(all.iter().copied()) } else { 0 };
                vec![mine, expected]
            }
        };
        let round = learning.gathers(mine);
        (learning, round)
    }

    fn gathers(&self, mine: Vec<u64>) -> Round {
        let all = vec![0; mine.len() * self.ranks as usize];
        Round { how: Collective::AllGather, mine, all }
    }

    /// Of a gather or scatter: this rank's own count, and the counts of all on the root.
    fn mine_and_all(&self) -> (u64, &[u64]) {
        let gathers = self.collective == Collective::GatherV;
        let (own, all) = if gathers { (&self.given, &self.taken) } else { (&self.taken, &self.given) };
        (own.first().copied().unwrap_or(0), all)
    }

    /// This rank's part of a round.
    pub(super) fn problem(&self, tables: &Tables, round: &Round) -> Problem {
        let count = if round.how == Collective::AllGather { round.mine.len() } else { round.all.len() };
        let shape =
            Shape { collective: round.how, dtype: DType::U64, op: ReduceOp::Sum, count: count as u64 };
        let problem = Problem { counts_of: Some(self.collective), ..tables.problem(&shape, self.root) };
        if round.how == Collective::AllGather { problem.separate() } else { problem }
    }

    /// A round is over.
    pub(super) fn heard(&mut self, round: Round) -> Learned {
        match (self.collective, self.told.take()) {
            (Collective::AllToAllV, None) => self.heard_pairs(round.all),
            (Collective::AllToAllV, Some(told)) => self.differing_pairs(&told, &round.all),
            (_, None) => self.heard_blocks(round.all),
            (_, Some(told)) => self.differing_blocks(&told, &round.all),
        }
    }

    fn heard_blocks(&mut self, told: Vec<u64>) -> Learned {
        let counts: Vec<u64> = told.iter().step_by(2).copied().collect();
        let expected = told.get(2 * self.root.0 as usize + 1).copied();
        if expected == Some(digest(counts.iter().copied())) {
            return Learned::Counts(Counts::of_blocks(counts));
        }
        let all = if self.root == self.own { self.mine_and_all().1.to_vec() } else { counts.clone() };
        self.told = Some(counts);
        Learned::Round(Round { how: Collective::Broadcast, mine: vec![], all })
    }

    fn differing_blocks(&self, counts: &[u64], expected: &[u64]) -> Learned {
        let (root, gathers) = (self.root, self.collective == Collective::GatherV);
        let differing = (0..).map(Rank).zip(counts.iter().zip(expected)).filter(|(_, (own, all))| own != all);
        let pairs = differing.map(|(rank, (&own, &all))| match gathers {
            true => Differing { from: rank, to: root, given: own, taken: all },
            false => Differing { from: root, to: rank, given: all, taken: own },
        });
        Learned::Differ(pairs.collect())
    }

    fn heard_pairs(&mut self, told: Vec<u64>) -> Learned {
        let ranks = self.ranks as usize;
        let rows = || told.chunks_exact(ranks + 1);
        let matrix: Vec<u64> = rows().flat_map(|row| &row[..ranks]).copied().collect();
        let given_to = |to: usize| rows().map(move |row| row[to]);
        if (0..).zip(rows()).all(|(to, row)| digest(given_to(to)) == row[ranks]) {
            return Learned::Counts(Counts::of_pairs(self.ranks, matrix));
        }
        self.told = Some(matrix);
        Learned::Round(self.gathers(self.taken.clone()))
    }

    fn differing_pairs(&self, matrix: &[u64], expected: &[u64]) -> Learned {
        let mut differing = Vec::new();
        for (from, row) in (0..).zip(matrix.chunks_exact(self.ranks as usize)) {
            for (to, &given) in (0..self.ranks).zip(row) {
                let taken = expected[(to * self.ranks + from) as usize];
                if taken != given {
                    differing.push(Differing { from: Rank(from), to: Rank(to), given, taken });
                }
            }
        }
        Learned::Differ(differing)
    }
}

/// The error of counts that differ, the same on all ranks but for whose view comes first.
#[cold]
pub(super) fn differ(own: Rank, collective: Collective, step: u64, pairs: Vec<Differing>) -> Error {
    let call = Call { operation: collective.into(), tensor: None, step };
    let mut text = format!("{collective} at step {step} was not started: ");
    // Pairs with this rank come first in its text.
    let (mine, others): (Vec<_>, Vec<_>) = pairs.into_iter().partition(|pair| pair.has(own));
    let pairs = [mine, others].concat();
    let Some(first) = pairs.first() else {
        text.push_str("the digests of counts differ, and the counts do not");
        return Error::mismatch(call, None, Views::default(), text);
    };
    for (index, pair) in pairs.iter().take(NAMED).enumerate() {
        let separator = if index > 0 { "; " } else { "" };
        // Writing to a String cannot fail.
        let _ = write!(text, "{separator}{} and {}", pair.given(), pair.taken());
    }
    if pairs.len() > NAMED {
        let _ = write!(text, "; and {} more pairs differ", pairs.len() - NAMED);
    }
    text.push_str("; give as many elements as are taken. The group goes on");
    let (other, views) = match first.from == own {
        true => (first.to, [first.given(), first.taken()]),
        false => (first.from, [first.taken(), first.given()]),
    };
    let [ours, theirs] = views.map(|view| Some(view.into()));
    Error::mismatch(call, Some(other.0), Views { ours, theirs }, text)
}

/// A count that one rank gives and another does not take.
#[derive(Clone, Copy)]
pub(super) struct Differing {
    from: Rank,
    to: Rank,
    given: u64,
    taken: u64,
}

impl Differing {
    fn has(&self, rank: Rank) -> bool {
        self.from == rank || self.to == rank
    }

    fn given(&self) -> String {
        format!("{} sends {} elements to {}", self.from, self.given, self.to)
    }

    fn taken(&self) -> String {
        format!("{} expects {} from {}", self.to, self.taken, self.from)
    }
}
