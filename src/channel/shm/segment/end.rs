//! The end of the group, in memory that all ranks of the node see: the rank that ended it, and its reason if it gives
//! one; the operation that ranks disagree about, and the result of their votes.

use std::sync::atomic::Ordering;

use shouter_reducer::executor::Divergence;

use super::NodeSegment;
use crate::channel::shm::layout::{ABORT_AT, ABORT_TEXT_AT, ABORT_TEXT_BYTES, DISPUTE_AT, VERDICT_AT};
use crate::channel::shm::view::{pack_divergence, unpack_divergence};

/// The states of a text, which the number of the rank follows: it is being written; it is there.
const WRITING: u64 = 1;
const WRITTEN: u64 = 2;
const STATE_BITS: u32 = 8;
/// Yields for which another rank's writing is waited for: that takes less than a microsecond, if it is not stopped meanwhile.
const YIELDS: u32 = 1000;

/// The part of a text for which there is room.
pub(crate) fn shortened(text: &str) -> &str {
    crate::wire::shortened(text, ABORT_TEXT_BYTES)
}

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

    /// Records why a rank has given up, ahead of [`set_abort`](Self::set_abort): as much as there is room for. The
    /// first writer wins; when this returns, that writer's text is there, unless it was stopped.
    pub(crate) fn set_abort_text(&self, rank: u32, text: &str) {
        let text = shortened(text);
        let state = self.word(Some(ABORT_TEXT_AT));
        let of_rank = u64::from(rank) << STATE_BITS;
        if state.compare_exchange(0, of_rank | WRITING, Ordering::AcqRel, Ordering::Acquire).is_err() {
            let is_written = || state.load(Ordering::Acquire) & WRITTEN != 0;
            (0..YIELDS).take_while(|_| !is_written()).for_each(|_| std::thread::yield_now());
            return;
        }
        self.word(Some(ABORT_TEXT_AT + 8)).store(text.len() as u64, Ordering::Relaxed);
        for (at, bytes) in (ABORT_TEXT_AT + 16..).step_by(8).zip(text.as_bytes().chunks(8)) {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            self.word(Some(at)).store(u64::from_le_bytes(word), Ordering::Relaxed);
        }
        state.store(of_rank | WRITTEN, Ordering::Release);
    }

    /// The reason why `rank` has given up, if it is recorded here.
    pub(crate) fn abort_text(&self, rank: u32) -> Option<Box<str>> {
        if self.word(Some(ABORT_TEXT_AT)).load(Ordering::Acquire) != u64::from(rank) << STATE_BITS | WRITTEN {
            return None;
        }
        let len =
            self.word(Some(ABORT_TEXT_AT + 8)).load(Ordering::Relaxed).min(ABORT_TEXT_BYTES as u64) as usize;
        let words = (ABORT_TEXT_AT + 16..).step_by(8).take(len.div_ceil(8));
        let mut bytes: Vec<u8> =
            words.flat_map(|at| self.word(Some(at)).load(Ordering::Relaxed).to_le_bytes()).collect();
        bytes.truncate(len);
        Some(String::from_utf8_lossy(&bytes).into())
    }

    /// The rank that ended the group, if it has ended, and the reason.
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

    /// The result of the votes.
    pub(crate) fn verdict(&self) -> Option<Divergence> {
        if self.word(Some(VERDICT_AT)).load(Ordering::Acquire) != 2 {
            return None;
        }
        let word = |index| self.word(Some(VERDICT_AT + 8 + index * 8)).load(Ordering::Relaxed);
        unpack_divergence(std::array::from_fn(word))
    }
}
