//! What the host's first two ranks measure while they join: how long a flag takes from one core to the other, and how fast a rank copies and
//! folds what the other one has just written. That is one chunk of a staged all-reduce, in rounds.
//!
//! The first rank publishes a round, the second does its part and publishes the same. Rounds only grow. They lie in the first lane, which no
//! operation uses before all ranks have joined.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::atomic::Ordering;

use shouter_reducer::dtype::{DType, ReduceOp};
use shouter_reducer::kernel::Kernels;
use shouter_reducer::transport::NodeMemory;

use super::layout::ROUNDS_AT;
use super::segment::NodeSegment;

/// The lane that is used.
const LANE: u32 = 0;

/// The part of the second rank in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// To publish the round.
    Answer = 0,
    /// To fill its staging area.
    Fill = 1,
    /// To fold its half of what both have staged.
    Fold = 2,
    /// Nothing more: it was the last round.
    End = 3,
}

/// A round: its number, from 1, and what the second rank does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Round {
    pub(crate) number: u64,
    pub(crate) task: Task,
}

impl Round {
    fn word(self) -> u64 {
        self.number << 2 | self.task as u64
    }

    fn of(word: u64) -> Self {
        let task = [Task::Answer, Task::Fill, Task::Fold, Task::End][word as usize & 3];
        Self { number: word >> 2, task }
    }
}

impl NodeSegment {
    /// The first or second rank publishes a round; all that it has written before is seen by who sees that.
    #[inline]
    pub(crate) fn publish_round(&self, round: Round) {
        self.word(ROUNDS_AT.get(self.local() as usize).copied()).store(round.word(), Ordering::Release);
    }

    /// The last round that the first or second rank has published; number 0 before any.
    #[inline]
    pub(crate) fn round_of(&self, local: u32) -> Round {
        Round::of(self.word(ROUNDS_AT.get(local as usize).copied()).load(Ordering::Acquire))
    }

    /// Copies bytes to this rank's staging area; false if they do not fit.
    pub(crate) fn fill_stage(&self, bytes: &[u8]) -> bool {
        let at = self.layout.area(self.local(), LANE).filter(|_| bytes.len() <= self.lane_bytes());
        at.is_some_and(|at| self.mapping.store(at, bytes))
    }

    /// Folds a part of what the first two ranks have staged into the result, as numbers; false if it does not lie there.
    pub(crate) fn fold_staged(&self, kernels: &Kernels, part: Range<usize>) -> bool {
        let at = |region: shouter_reducer::memory::TensorRegion| {
            region.sub(part.start, part.len()).map(|part| part.as_ptr())
        };
        let [Some(to), Some(first), Some(second)] =
            [self.result(LANE), self.stage(0, LANE), self.stage(1, LANE)].map(at)
        else {
            return false;
        };
        let sources = [first.cast_const(), second.cast_const()];
        // SAFETY: areas of the segment, which do not overlap. Both ranks have staged before the round in which they are folded, stage again
        // only in a later one, and fold different halves.
        unsafe { kernels.fold_raw(DType::F32, ReduceOp::Sum, to, &sources, part.len()) };
        true
    }

    /// Copies the result out; false if it is shorter.
    pub(crate) fn take_folded(&self, into: &mut [u8]) -> bool {
        let at = self.layout.area(self.ranks(), LANE).filter(|_| into.len() <= self.lane_bytes());
        // SAFETY: the second rank has said that it has folded its half, and does so again only in a later round.
        let bytes = at.and_then(|at| unsafe { self.mapping.published(at, into.len()) });
        bytes.map(|bytes| into.copy_from_slice(bytes)).is_some()
    }
}
