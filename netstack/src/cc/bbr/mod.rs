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

use core::time::Duration;

use model::{Model, NONE, bytes_per_second, percent};

use super::{AckSample, Congestion, Controller, Parameters, RateSample};
use crate::time::Instant;

const PROBE_RTT_TIME: Duration = Duration::from_millis(200);
/// Acknowledgements with losses in a round of Startup after which the pipe is taken for full.
const STARTUP_LOSSES: u8 = 6;
/// Rounds after which a flow probes at the latest, to live beside Reno.
const LONGEST_CRUISE: u64 = 63;
/// Paced below the rate by a percent, so that the queue drains.
const PACING_PERCENT: u64 = 99;
const LARGEST_QUANTUM: u64 = 64 * 1024;

/// What BBR does at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Startup,
    Drain,
    /// ProbeBW: drains what probing left in the queue.
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

impl State {
    //= draft-ietf-ccwg-bbr section 2.10: gains, here in percent
    const fn pacing_gain(self) -> u64 {
        match self {
            Self::Startup => 277,
            Self::Drain => 50,
            Self::Down => 90,
            Self::Up => 125,
            Self::Cruise | Self::Refill | Self::ProbeRtt { .. } => 100,
        }
    }

    const fn window_gain(self) -> u64 {
        match self {
            Self::Up => 225,
            Self::ProbeRtt { .. } => 50,
            _ => 200,
        }
    }

    const fn is_probe_bw(self) -> bool {
        matches!(self, Self::Down | Self::Cruise | Self::Refill | Self::Up)
    }

    /// Loss is the price of probing in these, and does not lower the short-term bounds.
    const fn is_probing(self) -> bool {
        matches!(self, Self::Startup | Self::Refill | Self::Up)
    }
}

/// What acknowledgements at present tell about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AckPhase {
    Idle,
    Refilling,
    /// Of what was sent before the probe.
    Starting,
    /// Of the probe.
    Feedback,
    /// Of what the probe left behind.
    Stopping,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Bbr {
    model: Model,
    state: State,
    phase: AckPhase,
    /// Acknowledgements may still be of the probe.
    probe_samples: bool,
    window: u64,
    initial_window: u64,
    pacing_rate: u64,
    has_rtt: bool,
    /// The window before a recovery or ProbeRtt, to go back to.
    prior_window: u64,
    /// Before the last loss: what an undo gives back.
    prior_bounds: [u64; 3],
    in_recovery: bool,
    /// As much leaves as arrives: the first round of a recovery.
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
            state: State::Startup,
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
        let rate = percent(u64::try_from(rate).unwrap_or(NONE >> 8), State::Startup.pacing_gain());
        self.pacing_rate = rate.max(1);
    }

    /// What the model allows in flight at a gain, with room for bursts.
    fn inflight(&self, bw: u64, gain: u64) -> u64 {
        let bdp = self.model.bdp(bw).unwrap_or(self.initial_window);
        self.with_budget(percent(bdp, gain))
    }

    //= draft-ietf-ccwg-bbr section 5.6.4.2
    fn with_budget(&self, inflight: u64) -> u64 {
        let up = if self.state == State::Up { 2 * self.model.mss } else { 0 };
        inflight.max(3 * self.quantum()).max(self.model.least_window()).saturating_add(up)
    }

    fn quantum(&self) -> u64 {
        (self.pacing_rate / 1000).min(LARGEST_QUANTUM).max(2 * self.model.mss)
    }

    fn probe_rtt_window(&self) -> u64 {
        let bdp = self.model.bdp(self.model.bw).unwrap_or(self.initial_window);
        percent(bdp, 50).max(self.model.least_window())
    }

    // ---- States ----

    fn check_startup(&mut self, sample: &AckSample) {
        if self.state != State::Startup {
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
            self.state = State::Drain;
        }
    }

    fn check_drain(&mut self, sample: &AckSample) {
        if self.state == State::Drain && sample.in_flight <= self.inflight(self.model.bw, 100) {
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
        self.state = State::Down;
    }

    fn refill(&mut self) {
        self.model.reset_lower_bounds();
        self.up_rounds = 0;
        self.up_acked = 0;
        self.phase = AckPhase::Refilling;
        self.model.begin_round();
        self.state = State::Refill;
    }

    fn go_up(&mut self, sample: &AckSample) {
        self.phase = AckPhase::Starting;
        self.model.begin_round();
        self.model.look_for_full_bw(sample.rate.as_ref().map_or(0, bytes_per_second));
        self.state = State::Up;
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
    fn advance_cycle(&mut self, sample: &AckSample) {
        if !self.model.full_bw_reached {
            return;
        }
        if let Some(rate) = &sample.rate {
            self.adapt_upper_bounds(sample, rate);
        }
        match self.state {
            State::Down | State::Cruise if self.is_time_to_probe(sample.now) => self.refill(),
            State::Down
                if sample.in_flight <= self.model.inflight_with_headroom()
                    && sample.in_flight <= self.inflight(self.model.max_bw(), 100) =>
            {
                self.state = State::Cruise;
            }
            State::Refill if self.model.round_start => {
                // From here on, losses are of the probing.
                self.probe_samples = true;
                self.go_up(sample);
            }
            State::Up => {
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
                if self.state == State::Up {
                    self.go_down(sample.now);
                }
            }
        } else if self.model.inflight_hi != NONE {
            self.model.inflight_hi = self.model.inflight_hi.max(rate.in_flight_at_send);
            if self.state == State::Up {
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
            // Not beyond what any window is clamped to.
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
    fn check_probe_rtt(&mut self, sample: &AckSample) {
        if !matches!(self.state, State::ProbeRtt { .. })
            && self.model.probe_rtt_expired
            && !self.idle_restart
            && self.has_rtt
        {
            self.save_window();
            self.phase = AckPhase::Stopping;
            self.model.begin_round();
            self.state = State::ProbeRtt { until: None, round_done: false };
        }
        if let State::ProbeRtt { until, round_done } = self.state {
            match until {
                None if sample.in_flight <= self.probe_rtt_window() => {
                    self.model.begin_round();
                    self.state =
                        State::ProbeRtt { until: Some(sample.now + PROBE_RTT_TIME), round_done: false };
                }
                None => {}
                Some(_) => {
                    let round_done = round_done || self.model.round_start;
                    self.state = State::ProbeRtt { until, round_done };
                    self.end_probe_rtt(sample.now);
                }
            }
        }
        if sample.delivered > 0 {
            self.idle_restart = false;
        }
    }

    fn end_probe_rtt(&mut self, now: Instant) {
        if let State::ProbeRtt { until: Some(until), round_done: true } = self.state
            && now > until
        {
            self.model.probe_rtt_at = now;
            self.window = self.window.max(self.prior_window);
            self.model.reset_lower_bounds();
            if self.model.full_bw_reached {
                self.go_down(now);
                self.state = State::Cruise;
            } else {
                self.state = State::Startup;
            }
        }
    }

    // ---- Control ----

    fn save_window(&mut self) {
        let reduced = self.in_recovery || matches!(self.state, State::ProbeRtt { .. });
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
            State::ProbeRtt { .. } => self.probe_rtt_window().min(model.inflight_with_headroom()),
            State::Cruise => model.inflight_with_headroom(),
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
        // The pacing rate bounds what leaves after an idle time.
    }
}

/// Spreads the bits of a number (the finaliser of SplitMix64).
const fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
