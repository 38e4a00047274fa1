//! The path's delivery rate (draft-ietf-ccwg-bbr section 4.1, formerly draft-cheng-iccrg-delivery-rate-estimation).

use core::time::Duration;

use super::scoreboard::Record;
use crate::cc::RateSample;
use crate::time::Instant;

/// The state noted for a range when it is sent. Of counts it has the low bits, of times how long before the sending
/// they were, in units of 16 ns (68 s at most): there are never more than 2^31 bytes out.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stamp {
    delivered: u32,
    since_delivery: u32,
    since_first: u32,
    in_flight: u32,
    lost: u32,
    app_limited: bool,
}

fn since(now: Instant, then: Instant) -> u32 {
    u32::try_from(now.nanos_since(then) >> 4).unwrap_or(u32::MAX)
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
            delivered: self.delivered as u32,
            since_delivery: since(now, self.delivered_at),
            since_first: since(now, self.first_sent_at),
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

    /// Bytes delivered so far.
    pub(super) fn delivered(&self) -> u64 {
        self.delivered
    }

    /// `bytes` were delivered.
    pub(super) fn on_delivered(&mut self, now: Instant, bytes: u32) {
        self.delivered += u64::from(bytes);
        self.delivered_at = now;
        if self.delivered > self.app_limited {
            self.app_limited = 0;
        }
    }

    /// The next sample's sending begins where `newest`, the newest record that an acknowledgement delivered, was sent.
    #[inline]
    pub(super) fn begin_after(&mut self, newest: &Record) {
        self.first_sent_at = newest.sent_at;
    }

    /// The sample over the newest record that an acknowledgement delivered.
    pub(super) fn sample(&self, newest: &Record, min_rtt: Option<Duration>) -> Option<RateSample> {
        let stamp = &newest.stamp;
        let delivered = u64::from((self.delivered as u32).wrapping_sub(stamp.delivered));
        let sending = Duration::from_nanos(u64::from(stamp.since_first) << 4);
        let waiting = Duration::from_nanos(u64::from(stamp.since_delivery) << 4);
        let acknowledging = self.delivered_at.saturating_since(newest.sent_at) + waiting;
        let interval = sending.max(acknowledging);
        // Less than a round trip cannot be: acknowledgements of data that was sent again mislead.
        if interval.is_zero() || min_rtt.is_some_and(|least| interval < least) {
            return None;
        }
        Some(RateSample {
            delivered,
            interval,
            prior_delivered: self.delivered.saturating_sub(delivered),
            total_delivered: self.delivered,
            app_limited: stamp.app_limited,
            in_flight_at_send: u64::from(stamp.in_flight),
            lost_since_send: u64::from((self.lost as u32).wrapping_sub(stamp.lost)),
        })
    }
}
