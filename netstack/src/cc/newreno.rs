//! NewReno (RFC 5681, RFC 6582) with HyStart++ (RFC 9406) in the first slow start.

use core::time::Duration;

use super::episode::{Episode, Onset};
use super::hystart::{self, HyStart};
use super::{AckSample, Congestion, Controller, Parameters, after_idle};
use crate::time::Instant;

/// NewReno: slow start and congestion avoidance (RFC 5681), with half the window after congestion.
#[derive(Debug)]
pub struct NewReno {
    mss: u64,
    initial_window: u64,
    window: u64,
    threshold: u64,
    /// Growth that is less than a byte: bytes times bytes, below `window`.
    carry: u64,
    hystart: Option<HyStart>,
    episode: Episode,
    /// Window and threshold before the last event that may prove spurious.
    saved: Option<(u64, u64)>,
}

impl NewReno {
    /// In slow start, without a threshold.
    pub fn new(parameters: &Parameters) -> Self {
        Self::with_hystart(parameters, Some(HyStart::new()))
    }

    /// Without HyStart++: slow start lasts until there is congestion.
    pub(super) fn plain(parameters: &Parameters) -> Self {
        Self::with_hystart(parameters, None)
    }

    fn with_hystart(parameters: &Parameters, hystart: Option<HyStart>) -> Self {
        let mss = u64::from(parameters.mss.max(1));
        let window = parameters.initial_window_bytes();
        Self {
            mss,
            initial_window: window,
            window,
            threshold: u64::MAX,
            carry: 0,
            hystart,
            episode: Episode::default(),
            saved: None,
        }
    }

    /// Answers marks with the window that `reduced` makes of the present one, unless this window of data was
    /// answered for already.
    pub(super) fn on_marks(&mut self, reduced: impl FnOnce(u64) -> u64) {
        if self.episode.begin(Congestion::Ecn) == Onset::First {
            // A mark comes from the network: its reduction is never taken back.
            self.saved = None;
            self.reduce_to(reduced(self.window));
        }
    }

    /// Brings threshold and window down to `target`, but not below two segments.
    fn reduce_to(&mut self, target: u64) {
        //= RFC 5681 section 3.1, equation 4
        self.threshold = target.max(2 * self.mss);
        self.window = self.window.min(self.threshold);
        self.carry = 0;
    }

    //= RFC 9293 section 3.8.2, MUST-19: slow start (RFC 5681 section 3.1).
    /// Grows by the bytes acknowledged, at most to the threshold; returns the rest, for congestion avoidance.
    fn slow_start(&mut self, sample: &AckSample) -> u64 {
        let hystart = self.hystart.as_mut();
        let (growth, rest) = hystart::slow_start(hystart, sample, self.window, &mut self.threshold);
        self.window = self.window.saturating_add(growth);
        rest
    }

    /// One segment for each window of bytes acknowledged.
    //= RFC 9293 section 3.8.2, MUST-19: congestion avoidance (RFC 5681 section 3.1), by counting bytes.
    fn avoid_congestion(&mut self, acked: u64) {
        let gain = acked.min(self.window).saturating_mul(self.mss).saturating_add(self.carry);
        let window = self.window.max(1);
        self.carry = gain % window;
        self.window = window.saturating_add(gain / window);
    }
}

impl Controller for NewReno {
    fn window(&self) -> u64 {
        self.window
    }

    fn slow_start_threshold(&self) -> u64 {
        self.threshold
    }

    fn set_mss(&mut self, mss: u32) {
        self.mss = u64::from(mss.max(1));
        self.initial_window = self.initial_window.max(self.mss);
        self.window = self.window.max(self.mss);
    }

    fn on_ack(&mut self, sample: &AckSample) {
        if sample.delivered == 0 {
            return;
        }
        self.episode.progress();
        if sample.in_recovery {
            return;
        }
        let mut left = sample.acked;
        if self.window < self.threshold {
            left = self.slow_start(sample);
        }
        if sample.window_limited && left > 0 && self.window >= self.threshold {
            self.avoid_congestion(left);
        }
    }

    fn on_congestion(&mut self, _: Instant, kind: Congestion, _: u64) {
        if kind == Congestion::Ecn {
            return self.on_marks(|window| window / 2);
        }
        let onset = self.episode.begin(kind);
        if onset != Onset::Same {
            self.saved = Some((self.window, self.threshold));
        }
        if onset == Onset::First {
            // The window stands for the bytes in flight: it grows only while it is used up.
            self.reduce_to(self.window / 2);
        }
        if kind == Congestion::Timeout {
            //= RFC 5681 section 3.1: the loss window is one segment
            self.window = self.mss;
            self.carry = 0;
        }
    }

    fn on_recovery_end(&mut self, _: Instant) {
        self.episode.end();
    }

    fn undo(&mut self, _: Instant) {
        self.episode.end();
        if let Some((window, threshold)) = self.saved.take() {
            self.window = self.window.max(window);
            self.threshold = self.threshold.max(threshold);
        }
    }

    fn on_idle_restart(&mut self, _: Instant, idle: Duration, rto: Duration) {
        (self.window, self.threshold) =
            after_idle(self.window, self.threshold, self.initial_window, idle, rto);
        self.carry = 0;
    }
}
