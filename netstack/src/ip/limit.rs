//! A token bucket: so many per second, a few at once.

use core::time::Duration;

use crate::time::Instant;

/// Admits events up to a rate.
#[derive(Debug)]
pub(crate) struct TokenBucket {
    /// Time in which a token comes; none ever come if `None`.
    interval: Option<Duration>,
    burst: u32,
    tokens: u32,
    /// Up to when tokens have come.
    since: Instant,
}

impl TokenBucket {
    /// `per_second` tokens a second, and `burst` at first and at most.
    pub(crate) fn new(per_second: u32, burst: u32) -> Self {
        let interval = (per_second > 0).then(|| Duration::from_secs(1) / per_second);
        let tokens = if per_second > 0 { burst } else { 0 };
        Self { interval, burst, tokens, since: Instant::ZERO }
    }

    /// Takes a token, if there is one.
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        let Some(interval) = self.interval else {
            return false;
        };
        let elapsed = now.saturating_since(self.since);
        let come = elapsed.as_nanos() / interval.as_nanos().max(1);
        if come >= u128::from(self.burst - self.tokens) {
            // Full: further tokens are lost.
            (self.tokens, self.since) = (self.burst, now);
        } else {
            // Less than the burst, so it fits.
            self.tokens += come as u32;
            self.since += interval * come as u32;
        }
        let taken = self.tokens > 0;
        self.tokens = self.tokens.saturating_sub(1);
        taken
    }
}

#[cfg(test)]
mod tests;
