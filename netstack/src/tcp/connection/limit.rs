//! How many answers to unproven segments leave per second.

use crate::time::Instant;

/// The answers of one connection in the present second.
///
//= RFC 5961 section 7: challenge acknowledgements are limited. Each connection has a limit of its own: of a common one,
//= a sender that provokes many takes away the answers of others, their answers to keep-alives among them, and can measure what
//= they were given.
#[derive(Clone, Copy, Debug, Default)]
struct Budget {
    /// Modulo 2^16: the same one comes back after 18 hours.
    second: u16,
    used: u16,
}

impl Budget {
    /// Whether one more of `per_second` may leave.
    fn take(&mut self, now: Instant, per_second: u32) -> bool {
        let second = (now.as_nanos() / 1_000_000_000) as u16;
        if second != self.second {
            *self = Self { second, used: 0 };
        }
        let some = u32::from(self.used) < per_second;
        self.used = self.used.saturating_add(1);
        some
    }
}

/// The answers of a connection to unproven segments. Those to the peer's keep-alives have a budget of their own: a
/// sender that knows no sequence numbers cannot use it up.
#[derive(Debug, Default)]
pub(super) struct Answers {
    challenges: Budget,
    keep_alives: Budget,
}

impl Answers {
    /// Whether one more challenge acknowledgement of `per_second` may leave.
    pub(super) fn may_challenge(&mut self, now: Instant, per_second: u32) -> bool {
        self.challenges.take(now, per_second)
    }

    /// Whether one more keep-alive may be answered.
    pub(super) fn may_answer_keep_alive(&mut self, now: Instant, per_second: u32) -> bool {
        self.keep_alives.take(now, per_second)
    }
}

/// A limit per second, over all connections.
///
/// A limit that is exact and shared can be measured by a third party and reveals traffic of others, so this one differs from
/// second to second.
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
