//! How far ranks are known to run the same operations, and the operation that they disagree about.

use super::divergence::Tally;
use crate::grid::Rank;
use crate::transport::NodeMemory;
use std::collections::BTreeSet;

/// Operations between two comparisons with those of the others. Half of what a rank announces before it overwrites the first (512) may be
/// under way, so the others have announced what is compared at one of the next times, before that is overwritten.
const COMPARED: u64 = 64;

/// How far ranks are known to run the same operations.
#[derive(Debug)]
pub(super) struct Agreement {
    /// The ranks of the node run the same operations before this one.
    through: u64,
    /// The operation at which the ranks of the node are compared next, where nothing else needs that.
    compare_at: u64,
    /// The latest operation about which ranks of other nodes were asked, and those ranks.
    asked: (u64, BTreeSet<Rank>),
    /// The votes on what ranks disagree about, if they do.
    tally: Option<Tally>,
    /// The rank reported as the culprit if no votes arrive.
    suspect: Rank,
    /// Ranks that were reported dead during the dispute, in this order.
    dead: Vec<Rank>,
}

/// The agreement of a node's ranks on an operation, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NodeAgreement {
    /// All ranks of the node run the same, and have before.
    Same,
    /// A rank has not started it, or one before.
    Unknown,
    /// Not all run the same as this operation.
    Differs(u64),
}

impl Agreement {
    /// Nothing is known, and nothing in dispute.
    pub(super) fn new(rank: Rank) -> Self {
        Self {
            through: 0,
            compare_at: COMPARED,
            asked: (0, BTreeSet::new()),
            tally: None,
            suspect: rank,
            dead: Vec::new(),
        }
    }

    /// Whether all ranks of the node run the same operations up to and including `seq`. Lanes are numbered by what all operations
    /// before have used of them, so one operation is not enough.
    #[inline]
    pub(super) fn reaches<N: NodeMemory>(&mut self, node: &N, seq: u64) -> NodeAgreement {
        while self.through <= seq {
            match node.agrees(self.through) {
                Some(true) => self.through += 1,
                Some(false) => return NodeAgreement::Differs(self.through),
                None => return NodeAgreement::Unknown,
            }
        }
        NodeAgreement::Same
    }

    /// Whether operations before `next` are to be compared now, though no step needs it: of some, a rank asks nothing of the others. So each
    /// time once.
    #[inline]
    pub(super) fn takes_turn(&mut self, next: u64) -> bool {
        let is_due = next >= self.compare_at;
        if is_due {
            self.compare_at = next + COMPARED;
        }
        is_due
    }

    /// The ranks of the node run the same operations before this one.
    pub(super) fn through(&self) -> u64 {
        self.through
    }

    /// Whether a rank of another node is to be asked about operation `seq`: once, when the operation is first found to wait for that rank, and
    /// about none before the latest.
    pub(super) fn asks(&mut self, seq: u64, rank: Rank) -> bool {
        let (latest, ranks) = &mut self.asked;
        if seq > *latest {
            *latest = seq;
            ranks.clear();
        }
        seq == *latest && ranks.insert(rank)
    }

    /// Ranks disagree about operation `seq`; whether that is the first that they are known to disagree about.
    pub(super) fn dispute(&mut self, seq: u64, suspect: Rank) -> bool {
        let is_first = self.disputed().is_none_or(|known| seq < known);
        if is_first {
            (self.tally, self.suspect) = (Some(Tally::new(seq)), suspect);
        }
        is_first
    }

    /// The operation that ranks disagree about.
    pub(super) fn disputed(&self) -> Option<u64> {
        self.tally.as_ref().map(Tally::seq)
    }

    /// Whether ranks disagree about operation `seq`, or about an earlier one.
    #[inline]
    pub(super) fn is_disputed(&self, seq: u64) -> bool {
        self.tally.as_ref().is_some_and(|tally| seq >= tally.seq())
    }

    /// The rank reported as the culprit if no votes arrive.
    pub(super) fn suspect(&self) -> Rank {
        self.suspect
    }

    /// During the dispute a rank was reported dead.
    pub(super) fn died(&mut self, rank: Rank) {
        if !self.dead.contains(&rank) {
            self.dead.push(rank);
        }
    }

    /// The ranks that were reported dead during the dispute. The first of them may be why the later ones left.
    pub(super) fn dead(&self) -> &[Rank] {
        &self.dead
    }

    /// The votes, if ranks disagree.
    pub(super) fn tally(&self) -> Option<&Tally> {
        self.tally.as_ref()
    }

    /// The votes on this operation, if it is the one that ranks disagree about.
    pub(super) fn tally_of(&mut self, seq: u64) -> Option<&mut Tally> {
        self.tally.as_mut().filter(|tally| tally.seq() == seq)
    }
}
