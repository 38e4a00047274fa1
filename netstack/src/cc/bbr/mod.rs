//! BBR, version 3, after draft-ietf-ccwg-bbr: keeps as much in flight as a model of the path says, and paces.
//!
//! ```text
//!   Startup -> Drain -> Down -> Cruise -> Refill -> Up -> Down ...      the rate is probed every 2 to 3 seconds
//!                        (any) -> ProbeRtt -> Cruise or Startup          every 5 seconds, for 200 ms
//! ```
//!
//! Departures from the draft: loss is judged by acknowledgement (rate samples say how much was lost since a segment
//! left), not by lost segment; a mark (ECN) counts as a loss of its round; and the wait between probes is drawn from
//! the time, so that a run is repeatable and yet flows do not probe in step.

mod model;
mod states;

use core::time::Duration;

use model::{Model, NONE, percent};
use states::{AckPhase, BbrState};

use super::{AckSample, Congestion, Controller, Parameters, RateSample};
use crate::time::Instant;

/// Paced below the rate by a percent, so that the queue drains.
const PACING_PERCENT: u64 = 99;
const LARGEST_QUANTUM: u64 = 64 * 1024;

/// BBR: a model of the path, its bandwidth and its least round-trip time, gives rate and window.
#[derive(Debug)]
pub struct Bbr {
    model: Model,
    state: BbrState,
    phase: AckPhase,
    /// Acknowledgements may still cover data of the probe.
    probe_samples: bool,
    window: u64,
    initial_window: u64,
    pacing_rate: u64,
    has_rtt: bool,
    /// The window before a recovery or ProbeRtt, to go back to.
    prior_window: u64,
    /// The bounds before the last loss, which an undo restores.
    prior_bounds: [u64; 3],
    in_recovery: bool,
    /// Packet conservation, in the first round of a recovery: as much leaves as arrives.
    conserving: bool,
    conserving_until: u64,
    idle_restart: bool,
    cycle_at: Instant,
    probe_wait: Duration,
    up_rounds: u32,
    up_acked: u64,
    /// Bytes to be acknowledged for the long-term bound to grow by a segment.
    up_step: u64,
}

impl Bbr {
    /// In Startup, paced as if the initial window took a millisecond.
    pub fn new(parameters: &Parameters) -> Self {
        let window = parameters.initial_window_bytes();
        let mut bbr = Self {
            model: Model::new(parameters),
            state: BbrState::Startup,
            phase: AckPhase::Idle,
            probe_samples: false,
            window,
            initial_window: window,
            pacing_rate: 0,
            has_rtt: false,
            prior_window: 0,
            prior_bounds: [0; 3],
            in_recovery: false,
            conserving: false,
            conserving_until: 0,
            idle_restart: false,
            cycle_at: Instant::ZERO,
            probe_wait: Duration::ZERO,
            up_rounds: 0,
            up_acked: 0,
            up_step: NONE,
        };
        bbr.begin_pacing(Duration::from_millis(1));
        bbr
    }

    fn begin_pacing(&mut self, rtt: Duration) {
        let nanos = rtt.as_nanos().max(1);
        let rate = u128::from(self.initial_window) * 1_000_000_000 / nanos;
        let rate = percent(u64::try_from(rate).unwrap_or(NONE >> 8), BbrState::Startup.pacing_gain());
        self.pacing_rate = rate.max(1);
    }

    /// Bytes that the model allows in flight at a gain, with room for bursts.
    fn inflight(&self, bw: u64, gain: u64) -> u64 {
        let bdp = self.model.bdp(bw).unwrap_or(self.initial_window);
        self.with_budget(percent(bdp, gain))
    }

    //= draft-ietf-ccwg-bbr section 5.6.4.2
    fn with_budget(&self, inflight: u64) -> u64 {
        let up = if self.state == BbrState::Up { 2 * self.model.mss } else { 0 };
        inflight.max(3 * self.quantum()).max(self.model.least_window()).saturating_add(up)
    }

    fn quantum(&self) -> u64 {
        (self.pacing_rate / 1000).min(LARGEST_QUANTUM).max(2 * self.model.mss)
    }

    fn probe_rtt_window(&self) -> u64 {
        let bdp = self.model.bdp(self.model.bw).unwrap_or(self.initial_window);
        percent(bdp, 50).max(self.model.least_window())
    }

    fn save_window(&mut self) {
        let reduced = self.in_recovery || matches!(self.state, BbrState::ProbeRtt { .. });
        self.prior_window = if reduced { self.prior_window.max(self.window) } else { self.window };
    }

    fn set_pacing_rate(&mut self, gain: u64) {
        let rate = percent(percent(self.model.bw, gain), PACING_PERCENT);
        if rate > 0 && (self.model.full_bw_reached || rate > self.pacing_rate) {
            self.pacing_rate = rate;
        }
    }

    fn set_window(&mut self, sample: &AckSample) {
        let model = &self.model;
        let bdp = model.bdp(model.bw).unwrap_or(self.initial_window);
        let most = percent(bdp, self.state.window_gain()).saturating_add(model.extra_acked());
        let most = self.with_budget(most);
        if self.conserving {
            let lost = self.window.saturating_sub(sample.lost).max(model.mss);
            self.window = lost.max(sample.in_flight.saturating_add(sample.delivered));
        } else if model.full_bw_reached {
            self.window = self.window.saturating_add(sample.delivered).min(most);
        } else if self.window < most || model.delivered < self.initial_window {
            self.window = self.window.saturating_add(sample.delivered);
        }
        let cap = match self.state {
            BbrState::ProbeRtt { .. } => self.probe_rtt_window().min(model.inflight_with_headroom()),
            BbrState::Cruise => model.inflight_with_headroom(),
            state if state.is_probe_bw() => model.inflight_hi,
            _ => NONE,
        };
        let least = model.least_window();
        self.window = self.window.max(least).min(cap.min(model.inflight_lo).max(least));
    }
}

impl Controller for Bbr {
    fn window(&self) -> u64 {
        self.window
    }

    fn slow_start_threshold(&self) -> u64 {
        NONE
    }

    fn pacing_rate(&self) -> Option<u64> {
        Some(self.pacing_rate)
    }

    fn send_quantum(&self) -> Option<u64> {
        Some(self.quantum())
    }

    fn controls_recovery(&self) -> bool {
        true
    }

    fn uses_rate(&self) -> bool {
        true
    }

    fn set_mss(&mut self, mss: u32) {
        self.model.mss = u64::from(mss.max(1));
        self.window = self.window.max(self.model.mss);
    }

    fn on_sent(&mut self, now: Instant, _: u64, in_flight: u64, app_limited: bool) {
        //= draft-ietf-ccwg-bbr section 5.4.1: after an idle time, at the rate of the model, not faster
        if in_flight == 0 && app_limited {
            self.idle_restart = true;
            self.model.restart_aggregation(now);
            if self.state.is_probe_bw() {
                self.set_pacing_rate(100);
            } else {
                self.end_probe_rtt(now);
            }
        }
    }

    fn on_ack(&mut self, sample: &AckSample) {
        if !self.has_rtt
            && let Some(rtt) = sample.rtt
        {
            self.has_rtt = true;
            self.model.probe_rtt_at = sample.now;
            self.begin_pacing(rtt);
        }
        self.model.observe(sample, self.window, self.state.is_probing());
        if self.conserving && self.model.delivered >= self.conserving_until {
            self.conserving = false;
        }
        self.check_startup(sample);
        self.check_drain(sample);
        self.advance_cycle(sample);
        self.model.observe_rtt(sample.now, sample.rtt);
        self.check_probe_rtt(sample);
        self.model.finish(sample);
        self.set_pacing_rate(self.state.pacing_gain());
        self.set_window(sample);
    }

    fn on_congestion(&mut self, _: Instant, kind: Congestion, in_flight: u64) {
        if kind == Congestion::Ecn {
            self.model.loss_in_round = true;
            return;
        }
        self.save_window();
        if !self.in_recovery {
            self.prior_bounds = self.model.bounds();
        }
        self.in_recovery = true;
        let mss = self.model.mss;
        match kind {
            Congestion::Timeout => {
                self.conserving = false;
                self.window = mss;
            }
            _ => {
                //= draft-ietf-ccwg-bbr section 5.6.4.4: as much leaves as arrives, for a round
                self.conserving = true;
                self.conserving_until = self.model.delivered.saturating_add(in_flight);
                self.model.begin_round();
                self.window = self.window.min(in_flight.saturating_add(mss)).max(2 * mss);
            }
        }
    }

    fn on_recovery_end(&mut self, _: Instant) {
        if self.in_recovery {
            self.in_recovery = false;
            self.conserving = false;
            self.window = self.window.max(self.prior_window);
        }
    }

    fn undo(&mut self, now: Instant) {
        let bounds = core::mem::take(&mut self.prior_bounds);
        self.model.restore(bounds);
        self.model.look_for_full_bw(0);
        self.on_recovery_end(now);
    }

    fn on_idle_restart(&mut self, _: Instant, _: Duration, _: Duration) {
        // The pacing rate bounds the burst after an idle time.
    }
}
