//! The pace: the rate at which a connection sends, and the time of the next burst.

use core::time::Duration;

use super::Options;
use super::rtt::Rtt;
use crate::cc::Controller;
use crate::time::Instant;

/// The lateness of a poll that may be made up for.
const GRACE: Duration = Duration::from_micros(500);

/// The pace of a connection.
#[derive(Debug, Default)]
pub(super) struct Pacer {
    at: Instant,
}

impl Pacer {
    /// A burst may leave at once.
    pub(super) fn restart(&mut self, now: Instant) {
        self.at = now;
    }

    /// When the next burst may leave.
    #[inline]
    pub(super) fn at(&self) -> Instant {
        self.at
    }

    /// Whether it may not leave yet.
    #[inline]
    pub(super) fn waits(&self, now: Instant) -> bool {
        now < self.at
    }

    /// A burst of `bytes` has left, `rate` bytes a second: the next one may leave when it has had its time.
    pub(super) fn on_sent(&mut self, now: Instant, bytes: u32, rate: u64) {
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate);
        let time = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let grace = GRACE.min(time);
        let from = Instant::from_nanos(now.as_nanos().saturating_sub(grace.as_nanos() as u64)).max(self.at);
        self.at = from + time;
    }
}

/// Bytes per second, at least one, if the controller or the options ask for a pace and the round-trip time is known.
pub(super) fn rate(controller: &dyn Controller, options: &Options, rtt: &Rtt) -> Option<u64> {
    if let Some(rate) = controller.pacing_rate() {
        return Some(rate.max(1));
    }
    if !options.pacing {
        return None;
    }
    // A little above the rate at which the window turns over; twice that in slow start, where it doubles.
    let srtt = rtt.srtt()?.as_nanos().max(1);
    let window = u128::from(controller.window());
    let starting = controller.window() < controller.slow_start_threshold() / 2;
    let rate = window * 1_000_000_000 / srtt * if starting { 8 } else { 5 } / 4;
    Some(u64::try_from(rate).unwrap_or(u64::MAX).max(1))
}
