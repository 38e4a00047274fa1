//! How much of a poll the frames of one direction may take.

/// Bytes of a turn. What is sent beyond them would say what had come when the turn began, though more has come since; and frames that are taken in or made
/// are still in a second-level cache when the protocol or the device reads them. Two hosts that sent to each other over an embedded link had 0.38
/// of the rate of bare frames while a turn had no end, and 0.9 with 8 to 16 frames of 9,000 bytes (benchmarks.md, "The link").
const BYTES: usize = 128 << 10;

/// A shorter frame counts as so many bytes: 64 frames are a turn at most.
const LEAST: usize = BYTES / 64;

/// The frames that still fit the turn, by their bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Turn {
    left: usize,
}

impl Turn {
    pub(super) const WHOLE: Self = Self { left: BYTES };

    /// A frame of `len` bytes is part of it.
    #[inline]
    pub(super) fn take(&mut self, len: usize) {
        self.left = self.left.saturating_sub(len.max(LEAST));
    }

    /// Whether no frame more is.
    #[inline]
    pub(super) fn is_over(self) -> bool {
        self.left == 0
    }
}
