//! CUBIC (RFC 9438) with HyStart++ (RFC 9406) in the first slow start.
//!
//! After a reduction the window grows along a cubic curve of time, `W(t) = C (t - K)^3 + W_max`: fast at first, flat
//! around the window at which congestion was met, then fast again. Where Reno would have a larger window, its
//! estimate is taken. Windows are in bytes, times in seconds; only addition, multiplication and division are used,
//! so the same input gives the same bits on every machine.

use core::time::Duration;

use super::episode::{Episode, Onset};
use super::hystart::{self, HyStart};
use super::{AckSample, Congestion, Controller, Parameters, after_idle};
use crate::time::Instant;

//= RFC 9438 section 5.1: C, in segments per cubed second
const C: f64 = 0.4;
//= RFC 9438 section 4.6
const BETA: f64 = 0.7;
//= RFC 9438 section 4.3: makes a flow that reduces by beta as fast as Reno on average
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

/// The curve of one congestion avoidance stage.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Epoch {
    start: Instant,
    /// When the curve reaches `w_max`, in seconds after `start`.
    k: f64,
    /// The window that Reno would have by now.
    estimate: f64,
}

/// The state that an undo restores.
//= RFC 9438 section 4.9
#[derive(Clone, Copy, Debug)]
struct Saved {
    window: f64,
    threshold: u64,
    w_max: f64,
    prior: f64,
    epoch: Option<Epoch>,
}

/// CUBIC (RFC 9438): after congestion the window grows by a cubic function of time, and hardly depends on the round-trip time.
#[derive(Debug)]
pub struct Cubic {
    mss: f64,
    initial_window: u64,
    window: f64,
    threshold: u64,
    /// The plateau of the curve; zero before the first congestion and after a time-out.
    w_max: f64,
    /// The window when congestion was met last.
    prior: f64,
    epoch: Option<Epoch>,
    last_ack: Instant,
    hystart: HyStart,
    episode: Episode,
    saved: Option<Box<Saved>>,
}

impl Cubic {
    /// In slow start, without a threshold.
    pub fn new(parameters: &Parameters) -> Self {
        let window = parameters.initial_window_bytes();
        Self {
            mss: f64::from(parameters.mss.max(1)),
            initial_window: window,
            window: window as f64,
            threshold: u64::MAX,
            w_max: 0.0,
            prior: 0.0,
            epoch: None,
            last_ack: Instant::ZERO,
            hystart: HyStart::new(),
            episode: Episode::default(),
            saved: None,
        }
    }

    /// Grows the window, which is so large, by the bytes acknowledged, at most to the threshold; returns the rest, for congestion avoidance.
    fn slow_start(&mut self, sample: &AckSample, window: u64) -> u64 {
        let (growth, rest) =
            hystart::slow_start(Some(&mut self.hystart), sample, window, &mut self.threshold);
        if growth > 0 {
            self.window += growth as f64;
        }
        rest
    }

    /// Begins a congestion avoidance stage at `now`.
    //= RFC 9438 section 4.2, equation 2; without congestion (section 4.10) and after a time-out (section 4.8) the
    //= plateau is the present window and K is zero
    fn begin(&mut self, now: Instant) -> Epoch {
        if self.w_max <= self.window {
            self.w_max = self.window;
        }
        let k = cube_root((self.w_max - self.window) / self.mss / C);
        Epoch { start: now, k, estimate: self.window }
    }

    /// The curve, in bytes, `at` seconds after the stage began.
    //= RFC 9438 section 4.2, equation 1
    fn curve(&self, epoch: &Epoch, at: f64) -> f64 {
        let t = at - epoch.k;
        self.w_max + C * self.mss * t * t * t
    }

    fn avoid_congestion(&mut self, sample: &AckSample, acked: u64) {
        let mut epoch = match self.epoch {
            Some(epoch) => epoch,
            None => self.begin(sample.now),
        };
        let window = self.window;
        let share = (acked as f64 / window).min(1.0);
        //= RFC 9438 section 4.3, equation 4: like Reno once the estimate has reached the old window
        let alpha = if epoch.estimate < self.prior { ALPHA } else { 1.0 };
        epoch.estimate += alpha * share * self.mss;

        let at = (sample.now - epoch.start).as_secs_f64();
        if self.curve(&epoch, at) < epoch.estimate {
            self.window = window.max(epoch.estimate);
        } else {
            //= RFC 9438 section 4.2: where the curve will be in a round-trip time, at most 1.5 windows
            let rtt = sample.srtt.or(sample.rtt).unwrap_or_default().as_secs_f64();
            let target = self.curve(&epoch, at + rtt).clamp(window, 1.5 * window);
            self.window = window + (target - window) * share;
        }
        self.epoch = Some(epoch);
    }
}

impl Controller for Cubic {
    fn window(&self) -> u64 {
        self.window as u64
    }

    fn slow_start_threshold(&self) -> u64 {
        self.threshold
    }

    fn set_mss(&mut self, mss: u32) {
        self.mss = f64::from(mss.max(1));
        self.initial_window = self.initial_window.max(u64::from(mss));
        self.window = self.window.max(self.mss);
    }

    fn on_ack(&mut self, sample: &AckSample) {
        let since = sample.now - self.last_ack;
        self.last_ack = sample.now;
        if sample.delivered == 0 {
            return;
        }
        self.episode.progress();
        if !sample.window_limited
            && let Some(epoch) = &mut self.epoch
        {
            //= RFC 9438 section 5.8: the curve does not run on while the application sends too little
            epoch.start += since;
        }
        if sample.in_recovery {
            return;
        }
        let (window, mut left) = (self.window(), sample.acked);
        if window < self.threshold {
            left = self.slow_start(sample, window);
        }
        if sample.window_limited && left > 0 && self.window() >= self.threshold {
            self.avoid_congestion(sample, left);
        }
    }

    fn on_congestion(&mut self, _: Instant, kind: Congestion, _: u64) {
        let onset = self.episode.begin(kind);
        if onset != Onset::Same {
            // A mark comes from the network: its reduction is never taken back.
            self.saved = (kind != Congestion::Ecn).then(|| {
                Box::new(Saved {
                    window: self.window,
                    threshold: self.threshold,
                    w_max: self.w_max,
                    prior: self.prior,
                    epoch: self.epoch,
                })
            });
        }
        if onset == Onset::First {
            //= RFC 9438 section 4.7: a flow that met congestion below its old plateau makes room
            let fast_convergence = self.window < self.w_max;
            self.w_max = if fast_convergence { self.window * (1.0 + BETA) / 2.0 } else { self.window };
            self.prior = self.window;
            //= RFC 9438 section 4.6
            let target = (self.window * BETA).max(2.0 * self.mss);
            self.threshold = target as u64;
            self.window = self.window.min(target);
            self.epoch = None;
        }
        if kind == Congestion::Timeout {
            //= RFC 9438 section 4.8
            self.window = self.mss;
            self.w_max = 0.0;
            self.epoch = None;
        }
    }

    fn on_recovery_end(&mut self, _: Instant) {
        self.episode.end();
    }

    fn undo(&mut self, _: Instant) {
        self.episode.end();
        if let Some(saved) = self.saved.take() {
            self.window = self.window.max(saved.window);
            self.threshold = self.threshold.max(saved.threshold);
            self.w_max = saved.w_max;
            self.prior = saved.prior;
            self.epoch = saved.epoch;
        }
    }

    fn on_idle_restart(&mut self, _: Instant, idle: Duration, rto: Duration) {
        let window = self.window();
        let (restarted, threshold) = after_idle(window, self.threshold, self.initial_window, idle, rto);
        self.threshold = threshold;
        if restarted < window {
            self.window = restarted as f64;
            self.epoch = None;
        }
    }
}

/// The cube root of a number that is not negative, to about 15 digits.
fn cube_root(x: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    // A power of two of about the right size, then Newton's iteration.
    let exponent = ((x.to_bits() >> 52) & 0x7ff) as i64 - 1023;
    let bits = (exponent.div_euclid(3) + 1023).clamp(1, 2046) as u64;
    let mut root = f64::from_bits(bits << 52);
    for _ in 0..8 {
        root = (2.0 * root + x / (root * root)) / 3.0;
    }
    root
}
