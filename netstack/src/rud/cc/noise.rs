//! The noise of delays: what neither the network's queues nor the ends' looks account for (spec.md section 7.8).

use super::swift::{LONGEST_QUEUE, ONE};

/// The most that is taken for noise, in nanoseconds.
const MOST: u64 = 10_000_000;

/// So many rounds alone make the first noise.
const ROUNDS: u32 = 8;

/// A round without a delay above the target takes this part off.
const FADES: u64 = 256;

/// The noise of one session's delays, in nanoseconds.
#[derive(Debug, Default)]
pub(super) struct Noise {
    amount: u64,
    /// Rounds alone, in a row, and the least and the most excess of them.
    alone: u32,
    least: u64,
    most: u64,
}

impl Noise {
    #[inline]
    pub(super) fn amount(&self) -> u64 {
        self.amount
    }

    /// A round has ended without marks, losses, or a delay above the target.
    #[inline]
    pub(super) fn on_calm(&mut self) {
        self.alone = 0;
        if self.amount != 0 {
            //= rud/spec.md section 7.8, RUD-104
            // It fades, so that a host that was slow once is not taken for slow for ever.
            self.amount -= self.amount.div_ceil(FADES);
        }
    }

    /// A round has ended that had marks or losses.
    pub(super) fn on_congestion(&mut self) {
        //= rud/spec.md section 7.8, RUD-104
        // There is a queue.
        self.amount /= 2;
        self.alone = 0;
    }

    /// A round of that window has ended, without marks or losses, whose least delay is above the target and `excess` over the network's least. Whether
    /// that is noise.
    pub(super) fn on_above(&mut self, window: u64, excess: u64) -> bool {
        //= rud/spec.md section 7.8, RUD-103
        // One datagram makes no queue, and a smaller window would make the delay no shorter.
        if window > ONE || excess <= LONGEST_QUEUE {
            self.alone = 0;
            return false;
        }
        if self.alone == 0 {
            (self.least, self.most) = (excess, excess);
        }
        self.alone = self.alone.saturating_add(1);
        (self.least, self.most) = (self.least.min(excess), self.most.max(excess));
        // A buffer that somebody else fills is about as full in the next round.
        let varies = self.alone >= ROUNDS && 2 * self.least < self.most;
        let is_noise = varies || self.amount != 0;
        if is_noise {
            self.amount = self.amount.max(excess.min(MOST));
        }
        is_noise
    }
}
