//! BBR's model of the path: its rate, its round-trip time, and how much may be in flight on it.

use core::time::Duration;

use super::super::{AckSample, Parameters, RateSample};
use crate::time::Instant;

//= draft-ietf-ccwg-bbr section 2.10: constants
const MIN_RTT_FILTER: Duration = Duration::from_secs(10);
pub(super) const PROBE_RTT_INTERVAL: Duration = Duration::from_secs(5);
/// Rounds that the estimate of aggregation looks back, in two halves.
const EXTRA_ACKED_HALF: u64 = 5;
/// The loss rate above which too much is in flight, in percent.
const LOSS_THRESHOLD: u64 = 2;
/// Reduction on loss and headroom left for others, in percent.
const BETA: u64 = 70;
const HEADROOM: u64 = 15;
/// Rounds without growth by a quarter after which the pipe is full.
const FULL_BW_ROUNDS: u8 = 3;

/// No bound, or nothing measured yet.
pub(super) const NONE: u64 = u64::MAX;

/// `value * percent / 100`.
pub(super) fn percent(value: u64, percent: u64) -> u64 {
    u64::try_from(u128::from(value) * u128::from(percent) / 100).unwrap_or(NONE)
}

/// See the [module](self). Rates are in bytes per second, times in nanoseconds, the rest in bytes.
#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) mss: u64,
    /// The highest rates of this probing cycle and of the last.
    max_bw: [u64; 2],
    /// The short-term bound of the rate, after loss.
    bw_lo: u64,
    /// The rate to work with.
    pub(super) bw: u64,
    /// The short-term bound of bytes in flight, after loss.
    pub(super) inflight_lo: u64,
    /// The long-term bound of bytes in flight, from probing.
    pub(super) inflight_hi: u64,

    pub(super) delivered: u64,
    next_round: u64,
    pub(super) round_start: bool,
    /// Rounds since the last probing for more.
    pub(super) rounds_since_probe: u64,

    loss_round_end: u64,
    pub(super) loss_round_start: bool,
    bw_latest: u64,
    pub(super) inflight_latest: u64,
    pub(super) loss_in_round: bool,
    pub(super) loss_events: u8,

    pub(super) min_rtt: u64,
    min_rtt_at: Instant,
    probe_rtt_min: u64,
    pub(super) probe_rtt_at: Instant,
    pub(super) probe_rtt_expired: bool,

    extra_since: Instant,
    extra_delivered: u64,
    extra: [u64; 2],
    extra_rounds: u64,

    full_bw: u64,
    full_bw_count: u8,
    pub(super) full_bw_now: bool,
    pub(super) full_bw_reached: bool,
}

impl Model {
    pub(super) fn new(parameters: &Parameters) -> Self {
        Self {
            mss: u64::from(parameters.mss.max(1)),
            bw_lo: NONE,
            inflight_lo: NONE,
            inflight_hi: NONE,
            min_rtt: NONE,
            probe_rtt_min: NONE,
            ..Self::default()
        }
    }

    pub(super) fn max_bw(&self) -> u64 {
        self.max_bw[0].max(self.max_bw[1])
    }

    /// The bytes that `bw` has in flight in a round-trip time; `None` as long as either is unknown.
    pub(super) fn bdp(&self, bw: u64) -> Option<u64> {
        if self.min_rtt == NONE || bw == 0 {
            return None;
        }
        u64::try_from(u128::from(bw) * u128::from(self.min_rtt) / 1_000_000_000).ok()
    }

    /// Four segments: fewer would stall behind delayed acknowledgements.
    pub(super) fn least_window(&self) -> u64 {
        4 * self.mss
    }

    /// The long-term bound less headroom for other flows.
    pub(super) fn inflight_with_headroom(&self) -> u64 {
        if self.inflight_hi == NONE {
            return NONE;
        }
        let headroom = percent(self.inflight_hi, HEADROOM).max(self.mss);
        self.inflight_hi.saturating_sub(headroom).max(self.least_window())
    }

    pub(super) fn extra_acked(&self) -> u64 {
        self.extra[0].max(self.extra[1])
    }

    /// A round is over when something sent from now on is delivered.
    pub(super) fn begin_round(&mut self) {
        self.next_round = self.delivered;
    }

    /// Takes in the sample's round, rate and losses. To be called first; [`Model::finish`] comes last.
    pub(super) fn observe(&mut self, sample: &AckSample, window: u64, probing: bool) {
        self.delivered = match sample.rate {
            Some(rate) => rate.total_delivered.max(self.delivered),
            None => self.delivered.saturating_add(sample.delivered),
        };
        self.round_start = false;
        self.loss_round_start = false;
        if let Some(rate) = &sample.rate {
            self.observe_rate(rate);
        }
        if sample.lost > 0 {
            self.loss_in_round = true;
            self.loss_events = self.loss_events.saturating_add(1);
        }
        if self.loss_round_start && self.loss_in_round && !probing {
            //= draft-ietf-ccwg-bbr section 5.5.10.3: lower bounds follow what was delivered in a round with loss
            let bw = if self.bw_lo == NONE { self.max_bw() } else { self.bw_lo };
            let inflight = if self.inflight_lo == NONE { window } else { self.inflight_lo };
            self.bw_lo = self.bw_latest.max(percent(bw, BETA));
            self.inflight_lo = self.inflight_latest.max(percent(inflight, BETA));
        }
        self.observe_aggregation(sample, window);
    }

    fn observe_rate(&mut self, rate: &RateSample) {
        if rate.prior_delivered >= self.next_round {
            self.begin_round();
            self.round_start = true;
            self.rounds_since_probe = self.rounds_since_probe.saturating_add(1);
        }
        let bw = bytes_per_second(rate);
        self.bw_latest = self.bw_latest.max(bw);
        self.inflight_latest = self.inflight_latest.max(rate.delivered);
        if rate.prior_delivered >= self.loss_round_end {
            self.loss_round_end = self.delivered;
            self.loss_round_start = true;
        }
        if bw >= self.max_bw() || !rate.app_limited {
            self.max_bw[0] = self.max_bw[0].max(bw);
        }
        self.observe_full_bw(bw, rate.app_limited);
    }

    /// Whether the rate has stopped growing.
    //= draft-ietf-ccwg-bbr section 5.3.1.2
    fn observe_full_bw(&mut self, bw: u64, app_limited: bool) {
        if self.full_bw_now || app_limited {
            return;
        }
        if bw >= self.full_bw.saturating_add(self.full_bw / 4) {
            self.look_for_full_bw(bw);
        } else if self.round_start {
            self.full_bw_count += 1;
            self.full_bw_now = self.full_bw_count >= FULL_BW_ROUNDS;
            self.full_bw_reached |= self.full_bw_now;
        }
    }

    /// Restarts the check whether the rate grows beyond `bw`.
    pub(super) fn look_for_full_bw(&mut self, bw: u64) {
        self.full_bw = bw;
        self.full_bw_count = 0;
        self.full_bw_now = false;
    }

    /// Measures aggregation: the bytes acknowledged at once beyond those that the rate explains.
    //= draft-ietf-ccwg-bbr section 5.5.9
    fn observe_aggregation(&mut self, sample: &AckSample, window: u64) {
        if self.round_start {
            self.extra_rounds += 1;
            if self.extra_rounds >= if self.full_bw_reached { EXTRA_ACKED_HALF } else { 1 } {
                self.extra = [0, self.extra[0]];
                self.extra_rounds = 0;
            }
        }
        let interval = (sample.now - self.extra_since).as_nanos();
        let mut expected =
            u64::try_from(u128::from(self.bw).saturating_mul(interval) / 1_000_000_000).unwrap_or(NONE);
        if self.extra_delivered <= expected {
            self.extra_delivered = 0;
            self.extra_since = sample.now;
            expected = 0;
        }
        self.extra_delivered = self.extra_delivered.saturating_add(sample.delivered);
        let extra = self.extra_delivered.saturating_sub(expected).min(window);
        self.extra[0] = self.extra[0].max(extra);
    }

    /// Restarts the estimate of aggregation, so that an idle time is not taken for one.
    pub(super) fn restart_aggregation(&mut self, now: Instant) {
        self.extra_since = now;
        self.extra_delivered = 0;
    }

    //= draft-ietf-ccwg-bbr section 5.3.4.3
    pub(super) fn observe_rtt(&mut self, now: Instant, rtt: Option<Duration>) {
        self.probe_rtt_expired = now > self.probe_rtt_at + PROBE_RTT_INTERVAL;
        if let Some(rtt) = rtt {
            let rtt = u64::try_from(rtt.as_nanos()).unwrap_or(NONE - 1).max(1);
            if rtt < self.probe_rtt_min || self.probe_rtt_expired {
                self.probe_rtt_min = rtt;
                self.probe_rtt_at = now;
            }
        }
        let expired = now > self.min_rtt_at + MIN_RTT_FILTER;
        if self.probe_rtt_min < self.min_rtt || (expired && self.probe_rtt_min != NONE) {
            self.min_rtt = self.probe_rtt_min;
            self.min_rtt_at = self.probe_rtt_at;
        }
    }

    /// Closes the sample: signals of a finished round are replaced by the next one's, and the rate is bounded.
    pub(super) fn finish(&mut self, sample: &AckSample) {
        if self.loss_round_start
            && let Some(rate) = &sample.rate
        {
            self.bw_latest = bytes_per_second(rate);
            self.inflight_latest = rate.delivered;
            self.loss_in_round = false;
            self.loss_events = 0;
        }
        self.bw = self.max_bw().min(self.bw_lo);
    }

    /// More was in flight than the path takes: more than 2% of it was lost.
    pub(super) fn is_inflight_too_high(rate: &RateSample) -> bool {
        rate.lost_since_send > percent(rate.in_flight_at_send, LOSS_THRESHOLD)
    }

    /// Lowers the long-term bound after such a loss, with `window` in use.
    pub(super) fn lower_inflight_hi(&mut self, rate: &RateSample, window: u64) {
        if !rate.app_limited {
            let target = self.bdp(self.bw).map_or(window, |bdp| bdp.min(window));
            self.inflight_hi = rate.in_flight_at_send.max(percent(target, BETA));
        }
    }

    pub(super) fn reset_lower_bounds(&mut self) {
        self.bw_lo = NONE;
        self.inflight_lo = NONE;
    }

    pub(super) fn reset_congestion_signals(&mut self) {
        self.loss_in_round = false;
        self.loss_events = 0;
        self.bw_latest = 0;
        self.inflight_latest = 0;
    }

    /// A probing cycle is over: rates of the one before it no longer count.
    pub(super) fn advance_bw_filter(&mut self) {
        if self.max_bw[0] > 0 {
            self.max_bw = [0, self.max_bw[0]];
        }
    }

    /// The state that loss lowered, for an undo.
    pub(super) fn bounds(&self) -> [u64; 3] {
        [self.bw_lo, self.inflight_lo, self.inflight_hi]
    }

    /// Restores bounds that were lowered for nothing.
    pub(super) fn restore(&mut self, [bw_lo, inflight_lo, inflight_hi]: [u64; 3]) {
        self.bw_lo = self.bw_lo.max(bw_lo);
        self.inflight_lo = self.inflight_lo.max(inflight_lo);
        self.inflight_hi = self.inflight_hi.max(inflight_hi);
        self.loss_in_round = false;
        self.loss_events = 0;
        self.bw = self.max_bw().min(self.bw_lo);
    }
}

/// The rate of a sample; zero if it took no time.
pub(super) fn bytes_per_second(rate: &RateSample) -> u64 {
    let nanos = rate.interval.as_nanos();
    if nanos == 0 {
        return 0;
    }
    // Below the bound that keeps sums of rates from overflowing.
    u64::try_from(u128::from(rate.delivered) * 1_000_000_000 / nanos).unwrap_or(NONE).min(NONE >> 8)
}
