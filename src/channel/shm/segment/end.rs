//! How the group ends, in words that all ranks of the node see: who ended it, which operation ranks disagree about, and what their
//! votes have shown.

use std::sync::atomic::Ordering;

use shouter_reducer::executor::Divergence;

use super::NodeSegment;
use crate::channel::shm::layout::{ABORT_AT, DISPUTE_AT, VERDICT_AT};
use crate::channel::shm::view::{pack_divergence, unpack_divergence};

/// The rank to blame for the end of the group, and the reason's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Abort {
    /// The culprit's rank.
    pub(crate) culprit: u32,
    /// A reason of the engine's.
    pub(crate) reason: u8,
}

impl NodeSegment {
    /// Records that the group has ended; the first writer wins.
    pub(crate) fn set_abort(&self, culprit: u32, reason: u8) {
        let word = 1 << 63 | u64::from(reason) << 32 | u64::from(culprit);
        // A failure means that another rank was first, whose word stands.
        let _ = self.word(Some(ABORT_AT)).compare_exchange(0, word, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Who ended the group, if it has ended.
    #[inline]
    pub(crate) fn abort(&self) -> Option<Abort> {
        match self.word(Some(ABORT_AT)).load(Ordering::Acquire) {
            0 => None,
            word => Some(Abort { culprit: word as u32, reason: (word >> 32) as u8 }),
        }
    }

    /// Records that ranks disagree about operation `seq`, ahead of [`set_abort`](Self::set_abort).
    pub(crate) fn set_dispute(&self, seq: u64) {
        // The first operation counts. The word is one more, for 0 stands for none, and inverted, so that the largest is the first.
        self.word(Some(DISPUTE_AT)).fetch_max(!(seq + 1), Ordering::AcqRel);
    }

    /// The first operation that ranks are known to disagree about.
    pub(crate) fn dispute(&self) -> Option<u64> {
        match self.word(Some(DISPUTE_AT)).load(Ordering::Acquire) {
            0 => None,
            word => Some(!word - 1),
        }
    }

    /// Records the result of the votes on the operation in dispute. The first writer wins.
    pub(crate) fn set_verdict(&self, divergence: &Divergence) {
        let state = self.word(Some(VERDICT_AT));
        if state.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            for (at, word) in (VERDICT_AT + 8..).step_by(8).zip(pack_divergence(divergence)) {
                self.word(Some(at)).store(word, Ordering::Relaxed);
            }
            state.store(2, Ordering::Release);
        }
    }

    /// What the votes have shown.
    pub(crate) fn verdict(&self) -> Option<Divergence> {
        if self.word(Some(VERDICT_AT)).load(Ordering::Acquire) != 2 {
            return None;
        }
        let word = |index| self.word(Some(VERDICT_AT + 8 + index * 8)).load(Ordering::Relaxed);
        unpack_divergence(std::array::from_fn(word))
    }
}
