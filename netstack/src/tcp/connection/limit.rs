//! How many answers to unproven segments leave per second.

use crate::time::Instant;

/// So many per second, over all connections.
///
//= RFC 5961 section 7: challenge acknowledgements are limited. A limit that is exact and shared can be measured by a
//= third party and tells it about other connections, so the limit differs from second to second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RateLimit {
    per_second: u32,
    second: u64,
    left: u32,
    noise: u64,
}

impl RateLimit {
    /// About `per_second`: between half of it and all of it.
    pub(crate) fn new(per_second: u32) -> Self {
        Self { per_second, second: u64::MAX, left: 0, noise: 0x9e37_79b9_7f4a_7c15 }
    }

    /// Makes the variation unpredictable.
    #[must_use]
    pub(crate) fn with_seed(self, seed: u64) -> Self {
        Self { noise: self.noise ^ seed, ..self }
    }

    /// Whether one more may leave.
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        let second = now.as_nanos() / 1_000_000_000;
        if second != self.second {
            self.second = second;
            // SplitMix64 (Steele, Lea and Flood, 2014).
            self.noise = self.noise.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = self.noise;
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            let less = self.per_second / 2;
            self.left = self.per_second - ((mixed >> 32) % (u64::from(less) + 1)) as u32;
        }
        let some = self.left > 0;
        self.left = self.left.saturating_sub(1);
        some
    }
}
