//! How fast the path delivers (draft-ietf-ccwg-bbr section 4.1, formerly draft-cheng-iccrg-delivery-rate-estimation).

use core::time::Duration;

use super::scoreboard::Record;
use crate::cc::RateSample;
use crate::time::Instant;

/// What is noted of a range when it is sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stamp {
    delivered: u64,
    delivered_at: Instant,
    first_sent_at: Instant,
    in_flight: u32,
    /// The low bits of the count of lost bytes.
    lost: u32,
    app_limited: bool,
}

/// The connection's counts.
#[derive(Debug, Default)]
pub(super) struct Rate {
    delivered: u64,
    delivered_at: Instant,
    first_sent_at: Instant,
    /// The sending was limited by the application until so many bytes are delivered; zero: it is not.
    app_limited: u64,
    lost: u64,
}

impl Rate {
    /// A range leaves, with `in_flight` bytes out before it and `with` it.
    pub(super) fn on_sent(&mut self, now: Instant, in_flight: u32, with: u32) -> Stamp {
        if in_flight == 0 {
            self.first_sent_at = now;
            self.delivered_at = now;
        }
        Stamp {
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            first_sent_at: self.first_sent_at,
            in_flight: with,
            lost: self.lost as u32,
            app_limited: self.app_limited != 0,
        }
    }

    pub(super) fn is_app_limited(&self) -> bool {
        self.app_limited != 0
    }

    /// There is nothing to send though there could be more in flight.
    pub(super) fn set_app_limited(&mut self, in_flight: u32) {
        self.app_limited = (self.delivered + u64::from(in_flight)).max(1);
    }

    pub(super) fn on_lost(&mut self, bytes: u32) {
        self.lost += u64::from(bytes);
    }

    /// `bytes` were delivered.
    pub(super) fn on_delivered(&mut self, now: Instant, bytes: u32) {
        self.delivered += u64::from(bytes);
        self.delivered_at = now;
        if self.delivered > self.app_limited {
            self.app_limited = 0;
        }
    }

    /// The sample over the newest record that an acknowledgement delivered.
    pub(super) fn sample(&mut self, newest: &Record, min_rtt: Option<Duration>) -> Option<RateSample> {
        let stamp = &newest.stamp;
        self.first_sent_at = newest.sent_at;
        let sending = newest.sent_at.saturating_since(stamp.first_sent_at);
        let acknowledging = self.delivered_at.saturating_since(stamp.delivered_at);
        let interval = sending.max(acknowledging);
        // Less than a round trip cannot be: acknowledgements of what was sent again mislead.
        if interval.is_zero() || min_rtt.is_some_and(|least| interval < least) {
            return None;
        }
        Some(RateSample {
            delivered: self.delivered.saturating_sub(stamp.delivered),
            interval,
            prior_delivered: stamp.delivered,
            total_delivered: self.delivered,
            app_limited: stamp.app_limited,
            in_flight_at_send: u64::from(stamp.in_flight),
            lost_since_send: u64::from((self.lost as u32).wrapping_sub(stamp.lost)),
        })
    }
}
