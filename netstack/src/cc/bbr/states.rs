//! BBR's states and the transitions between them: Startup, Drain, the cycle of ProbeBW, and ProbeRtt.

use core::time::Duration;

use super::model::{Model, NONE, bytes_per_second};
use super::{AckSample, Bbr, RateSample};
use crate::time::Instant;

const PROBE_RTT_TIME: Duration = Duration::from_millis(200);
/// Acknowledgements with losses in a round of Startup after which the pipe is taken for full.
const STARTUP_LOSSES: u8 = 6;
/// Rounds after which a flow probes at the latest, to live beside Reno.
const LONGEST_CRUISE: u64 = 63;

/// A state; ProbeBW has several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BbrState {
    Startup,
    Drain,
    /// ProbeBW: drains the queue that probing left.
    Down,
    Cruise,
    /// Fills the pipe for a round before it is probed.
    Refill,
    Up,
    /// Nearly empties the pipe to see its round-trip time. Its end, once the pipe is that empty; and whether a round
    /// has gone by since.
    ProbeRtt {
        until: Option<Instant>,
        round_done: bool,
    },
}

impl BbrState {
    //= draft-ietf-ccwg-bbr section 2.10: gains, here in percent
    pub(super) const fn pacing_gain(self) -> u64 {
        match self {
            Self::Startup => 277,
            Self::Drain => 50,
            Self::Down => 90,
            Self::Up => 125,
            Self::Cruise | Self::Refill | Self::ProbeRtt { .. } => 100,
        }
    }

    pub(super) const fn window_gain(self) -> u64 {
        match self {
            Self::Up => 225,
            Self::ProbeRtt { .. } => 50,
            _ => 200,
        }
    }

    pub(super) const fn is_probe_bw(self) -> bool {
        matches!(self, Self::Down | Self::Cruise | Self::Refill | Self::Up)
    }

    /// Loss is the price of probing in these, and does not lower the short-term bounds.
    pub(super) const fn is_probing(self) -> bool {
        matches!(self, Self::Startup | Self::Refill | Self::Up)
    }
}

/// The data that the present acknowledgements cover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AckPhase {
    Idle,
    Refilling,
    /// Sent before the probe.
    Starting,
    /// Sent during the probe.
    Feedback,
    /// Left in flight when the probe ended.
    Stopping,
}

impl Bbr {
    pub(super) fn check_startup(&mut self, sample: &AckSample) {
        if self.state != BbrState::Startup {
            return;
        }
        //= draft-ietf-ccwg-bbr section 5.3.1.3: leave on persistent, high loss
        if !self.model.full_bw_reached
            && self.model.loss_round_start
            && self.in_recovery
            && self.model.loss_events >= STARTUP_LOSSES
            && sample.rate.as_ref().is_some_and(Model::is_inflight_too_high)
        {
            self.model.full_bw_reached = true;
            let bdp = self.model.bdp(self.model.max_bw()).unwrap_or(self.initial_window);
            self.model.inflight_hi = bdp.max(self.model.inflight_latest);
        }
        if self.model.full_bw_reached {
            self.state = BbrState::Drain;
        }
    }

    pub(super) fn check_drain(&mut self, sample: &AckSample) {
        if self.state == BbrState::Drain && sample.in_flight <= self.inflight(self.model.bw, 100) {
            self.go_down(sample.now);
        }
    }

    fn go_down(&mut self, now: Instant) {
        self.model.reset_congestion_signals();
        self.up_step = NONE;
        self.pick_wait(now);
        self.cycle_at = now;
        self.phase = AckPhase::Stopping;
        self.model.begin_round();
        self.state = BbrState::Down;
    }

    fn refill(&mut self) {
        self.model.reset_lower_bounds();
        self.up_rounds = 0;
        self.up_acked = 0;
        self.phase = AckPhase::Refilling;
        self.model.begin_round();
        self.state = BbrState::Refill;
    }

    fn go_up(&mut self, sample: &AckSample) {
        self.phase = AckPhase::Starting;
        self.model.begin_round();
        self.model.look_for_full_bw(sample.rate.as_ref().map_or(0, bytes_per_second));
        self.state = BbrState::Up;
        self.steepen();
    }

    /// 2 to 3 seconds, and a head start of one round for every second cycle.
    fn pick_wait(&mut self, now: Instant) {
        let random = mix(now.as_nanos() ^ self.model.delivered.rotate_left(32));
        self.model.rounds_since_probe = random & 1;
        self.probe_wait = Duration::from_secs(2) + Duration::from_nanos((random >> 1) % 1_000_000_000);
    }

    fn is_time_to_probe(&self, now: Instant) -> bool {
        //= draft-ietf-ccwg-bbr section 5.3.3.5: or when Reno would have probed
        let bdp = self.model.bdp(self.model.bw).unwrap_or(self.initial_window).min(self.window);
        let rounds = (bdp / self.model.mss).min(LONGEST_CRUISE);
        now > self.cycle_at + self.probe_wait || self.model.rounds_since_probe >= rounds
    }

    //= draft-ietf-ccwg-bbr section 5.3.3.6
    pub(super) fn advance_cycle(&mut self, sample: &AckSample) {
        if !self.model.full_bw_reached {
            return;
        }
        if let Some(rate) = &sample.rate {
            self.adapt_upper_bounds(sample, rate);
        }
        match self.state {
            BbrState::Down | BbrState::Cruise if self.is_time_to_probe(sample.now) => self.refill(),
            BbrState::Down
                if sample.in_flight <= self.model.inflight_with_headroom()
                    && sample.in_flight <= self.inflight(self.model.max_bw(), 100) =>
            {
                self.state = BbrState::Cruise;
            }
            BbrState::Refill if self.model.round_start => {
                // From here on, losses are of the probing.
                self.probe_samples = true;
                self.go_up(sample);
            }
            BbrState::Up => {
                if sample.window_limited && self.window >= self.model.inflight_hi {
                    // The bound limits, not the path.
                    self.model.look_for_full_bw(sample.rate.as_ref().map_or(0, bytes_per_second));
                } else if self.model.full_bw_now {
                    self.go_down(sample.now);
                }
            }
            _ => {}
        }
    }

    fn adapt_upper_bounds(&mut self, sample: &AckSample, rate: &RateSample) {
        if self.model.round_start {
            match self.phase {
                AckPhase::Starting => self.phase = AckPhase::Feedback,
                AckPhase::Stopping => {
                    self.probe_samples = false;
                    self.phase = AckPhase::Idle;
                    if self.state.is_probe_bw() && !rate.app_limited {
                        self.model.advance_bw_filter();
                    }
                }
                AckPhase::Idle | AckPhase::Refilling | AckPhase::Feedback => {}
            }
        }
        if Model::is_inflight_too_high(rate) {
            if self.probe_samples {
                self.probe_samples = false;
                self.model.lower_inflight_hi(rate, self.window);
                if self.state == BbrState::Up {
                    self.go_down(sample.now);
                }
            }
        } else if self.model.inflight_hi != NONE {
            self.model.inflight_hi = self.model.inflight_hi.max(rate.in_flight_at_send);
            if self.state == BbrState::Up {
                self.probe_upward(sample);
            }
        }
    }

    /// Raises the long-term bound: by one segment in the first round, by two in the second, and so on.
    fn probe_upward(&mut self, sample: &AckSample) {
        if !sample.window_limited || self.window < self.model.inflight_hi {
            return;
        }
        self.up_acked = self.up_acked.saturating_add(sample.delivered);
        let step = self.up_step.max(1);
        if self.up_acked >= step {
            let segments = self.up_acked / step;
            self.up_acked %= step;
            // Not beyond the limit of every window.
            let grown = self.model.inflight_hi.saturating_add(segments.saturating_mul(self.model.mss));
            self.model.inflight_hi = grown.min(NONE - 1);
        }
        if self.model.round_start {
            self.steepen();
        }
    }

    fn steepen(&mut self) {
        self.up_step = (self.window >> self.up_rounds).max(self.model.mss);
        self.up_rounds = (self.up_rounds + 1).min(30);
    }

    //= draft-ietf-ccwg-bbr section 5.3.4.4
    pub(super) fn check_probe_rtt(&mut self, sample: &AckSample) {
        if !matches!(self.state, BbrState::ProbeRtt { .. })
            && self.model.probe_rtt_expired
            && !self.idle_restart
            && self.has_rtt
        {
            self.save_window();
            self.phase = AckPhase::Stopping;
            self.model.begin_round();
            self.state = BbrState::ProbeRtt { until: None, round_done: false };
        }
        if let BbrState::ProbeRtt { until, round_done } = self.state {
            match until {
                None if sample.in_flight <= self.probe_rtt_window() => {
                    self.model.begin_round();
                    self.state =
                        BbrState::ProbeRtt { until: Some(sample.now + PROBE_RTT_TIME), round_done: false };
                }
                None => {}
                Some(_) => {
                    let round_done = round_done || self.model.round_start;
                    self.state = BbrState::ProbeRtt { until, round_done };
                    self.end_probe_rtt(sample.now);
                }
            }
        }
        if sample.delivered > 0 {
            self.idle_restart = false;
        }
    }

    pub(super) fn end_probe_rtt(&mut self, now: Instant) {
        if let BbrState::ProbeRtt { until: Some(until), round_done: true } = self.state
            && now > until
        {
            self.model.probe_rtt_at = now;
            self.window = self.window.max(self.prior_window);
            self.model.reset_lower_bounds();
            if self.model.full_bw_reached {
                self.go_down(now);
                self.state = BbrState::Cruise;
            } else {
                self.state = BbrState::Startup;
            }
        }
    }
}

/// Spreads the bits of a number (the finaliser of SplitMix64).
const fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
