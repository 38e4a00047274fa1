//! The exchange of counts that not every rank has: rounds in which ranks send them as data, for blocking calls and for
//! started ones.

mod pairs;
mod root;
mod told;

use std::fmt::Write as _;
use std::sync::Arc;

use shouter_reducer::counts::{Counts, CountsError};
use shouter_reducer::dtype::{DType, ReduceOp};
use shouter_reducer::grid::{Grid, Rank};
use shouter_reducer::header::{Collective, Shape};
use shouter_reducer::schedule::Problem;

use super::RankBlocks;
use crate::communicator::element::{Buffer, from_slice, with_bytes};
use crate::communicator::table::Tables;
use crate::error::{Call, Error, Views};
use pairs::PairCounts;
use root::RootCounts;
pub(in crate::communicator) use told::Told;

/// Pairs of ranks with different counts that an error names, at most.
const NAMED: usize = 3;

/// A rank's counts of an operation, of which it does not have all.
pub(super) enum Learning {
    /// Of a gather or scatter, where only the root has all.
    Blocks(RootCounts),
    /// Of an all-to-all.
    Pairs(PairCounts),
}

/// A round: an all-gather, an all-to-all in blocks that differ, or the root's broadcast.
pub(super) struct Round {
    how: Collective,
    /// For the all-to-all, those of the words that ranks send each other.
    counts: Option<Arc<Counts>>,
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
    Differ(Differences),
}

impl Round {
    fn all_gather(mine: Vec<u64>, ranks: u32) -> Self {
        let all = vec![0; mine.len() * ranks as usize];
        Self { how: Collective::AllGather, counts: None, mine, all }
    }

    fn broadcast(all: Vec<u64>) -> Self {
        Self { how: Collective::Broadcast, counts: None, mine: vec![], all }
    }

    /// This rank's counts, and room for those of all.
    pub(super) fn buffers(&mut self) -> (Buffer, Buffer) {
        (from_slice(&self.mine), with_bytes(&mut self.all, |all| all))
    }
}

impl Learning {
    /// This rank's counts, and the first round: each rank sends what it gives, and a digest of what it expects.
    ///
    /// # Errors
    /// There are more ranks than an exchange can be made for.
    pub(super) fn new(
        blocks: &RankBlocks<'_>,
        own: Rank,
        grid: &Grid,
        root: Rank,
    ) -> Result<(Self, Round), CountsError> {
        if blocks.collective == Collective::AllToAllV {
            let (pairs, round) = PairCounts::new(blocks, own, grid)?;
            return Ok((Self::Pairs(pairs), round));
        }
        let (blocks, round) = RootCounts::new(blocks, own, grid.ranks(), root);
        Ok((Self::Blocks(blocks), round))
    }

    fn collective(&self) -> Collective {
        match self {
            Self::Blocks(blocks) => blocks.collective(),
            Self::Pairs(_) => Collective::AllToAllV,
        }
    }

    /// This rank's part of a round.
    pub(super) fn problem(&self, tables: &Tables, round: &Round) -> Problem {
        let gathers = round.how == Collective::AllGather;
        let count = if gathers { round.mine.len() } else { round.all.len() } as u64;
        let shape = Shape { collective: round.how, dtype: DType::U64, op: ReduceOp::Sum, count };
        let root = match self {
            Self::Blocks(blocks) => blocks.root(),
            Self::Pairs(_) => Rank(0),
        };
        let problem = Problem { counts_of: Some(self.collective()), ..tables.problem(&shape, root) };
        match &round.counts {
            Some(counts) => problem.with_counts(counts.clone()).separate(),
            None if gathers => problem.separate(),
            None => problem,
        }
    }

    /// The first round is over, and was made where blocks can come with the counts.
    pub(super) fn heard_first(&mut self, told: &Told) -> Learned {
        match self {
            Self::Blocks(blocks) => blocks.compare(told),
            Self::Pairs(pairs) => pairs.gathered(told),
        }
    }

    /// A round is over.
    pub(super) fn heard(&mut self, round: Round) -> Learned {
        match self {
            Self::Blocks(blocks) => blocks.heard(round.all),
            Self::Pairs(pairs) => pairs.heard(round.all),
        }
    }
}

/// The error of counts that differ, the same on all ranks but for whose view comes first.
#[cold]
pub(super) fn differ(own: Rank, collective: Collective, step: u64, found: Differences) -> Error {
    let call = Call { operation: collective.into(), tensor: None, step };
    let mut text = format!("{collective} at step {step} was not started: ");
    // Pairs with this rank come first in its text.
    let (mine, others): (Vec<_>, Vec<_>) = found.pairs.into_iter().partition(|pair| pair.has(own));
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
    let named = pairs.len().min(NAMED) as u64;
    if found.number > named {
        let _ = write!(text, "; and {} more pairs differ", found.number - named);
    }
    text.push_str("; give as many elements as are taken. The group goes on");
    let (other, views) = match first.from == own {
        true => (first.to, [first.given(), first.taken()]),
        false => (first.from, [first.taken(), first.given()]),
    };
    let [ours, theirs] = views.map(|view| Some(view.into()));
    Error::mismatch(call, Some(other.0), Views { ours, theirs }, text)
}

/// Counts that differ, or some of them.
pub(super) struct Differences {
    pairs: Vec<Differing>,
    /// How many there are.
    number: u64,
}

/// A count that one rank gives and another does not take.
#[derive(Clone, Copy)]
struct Differing {
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
