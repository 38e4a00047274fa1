//! How much of a poll one direction may take.

/// Bytes of a turn. Data beyond them would leave with acknowledgements that are old by then, while what the peer sends waits; and frames of one turn are still
/// in a second-level cache when the protocol or the device reads them. With turns of 128 KiB two hosts that send to each other over an embedded
/// link have 0.7 to 0.9 of the rate of bare frames, and 0.4 to 0.5 where turns have no end (docs/benchmarks.md, "The link").
const BYTES: usize = 128 << 10;

/// A shorter frame counts as so many bytes: 64 frames are a turn at most.
const LEAST: usize = BYTES / 64;

/// Frames that are received in one, at least: long ones may exceed it a little, and devices give bursts.
const FEWEST: usize = 16;

/// What of a turn is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Turn {
    left: usize,
}

impl Turn {
    pub(super) const WHOLE: Self = Self { left: BYTES };

    /// Frames of `mtu` bytes that are one, and 16 at least.
    pub(super) fn frames(mtu: u16) -> usize {
        (BYTES / usize::from(mtu.max(1))).max(FEWEST)
    }

    /// A frame of `len` bytes is part of it.
    #[inline]
    pub(super) fn take(&mut self, len: usize) {
        self.left = self.left.saturating_sub(len.max(LEAST));
    }

    /// Whether nothing is left of it.
    #[inline]
    pub(super) fn is_over(self) -> bool {
        self.left == 0
    }
}
