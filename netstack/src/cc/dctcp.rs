//! Data Center TCP (RFC 8257): a window reduced by as much as the network marks.
//!
//! The share of marked bytes is estimated once per round trip; on marks the window comes down by half that share.
//! To loss and time-outs DCTCP answers as [`NewReno`], and grows like it; HyStart++ is left out, since marks end slow
//! start.

use core::time::Duration;

use super::newreno::NewReno;
use super::{AckSample, Congestion, Controller, Parameters};
use crate::time::Instant;

/// One, as alpha is counted.
const ONE: u64 = 1 << 20;
//= RFC 8257 section 4.2: g is 1/16
const G_SHIFT: u32 = 4;

/// DCTCP (RFC 8257): a window with marks is reduced by half the share of bytes that were marked.
#[derive(Debug)]
pub struct Dctcp {
    reno: NewReno,
    /// The estimated share of marked bytes, from 0 to [`ONE`].
    alpha: u64,
    /// Bytes delivered in the connection's life.
    delivered: u64,
    /// The observation window is over when so many bytes are delivered.
    window_end: u64,
    window_delivered: u64,
    window_marked: u64,
}

impl Dctcp {
    /// In slow start, taking all bytes for marked at first.
    //= RFC 8257 section 4.2: alpha begins with one, so that the first marks halve the window
    pub fn new(parameters: &Parameters) -> Self {
        Self {
            reno: NewReno::plain(parameters),
            alpha: ONE,
            delivered: 0,
            window_end: parameters.initial_window_bytes(),
            window_delivered: 0,
            window_marked: 0,
        }
    }

    /// The estimated share of marked bytes, from 0 to 1.
    pub fn alpha(&self) -> f64 {
        self.alpha as f64 / ONE as f64
    }

    //= RFC 8257 section 3.3, steps 3 to 9
    fn observe(&mut self, sample: &AckSample) {
        self.delivered = self.delivered.saturating_add(sample.delivered);
        self.window_delivered = self.window_delivered.saturating_add(sample.delivered);
        self.window_marked = self.window_marked.saturating_add(sample.marked.min(sample.delivered));
        if self.delivered < self.window_end {
            return;
        }
        let share =
            u128::from(self.window_marked) * u128::from(ONE) / u128::from(self.window_delivered.max(1));
        let share = u64::try_from(share).unwrap_or(ONE).min(ONE);
        // Rounded up, so that alpha comes down to zero.
        let forgotten = (self.alpha + (1 << G_SHIFT) - 1) >> G_SHIFT;
        self.alpha = (self.alpha - forgotten + (share >> G_SHIFT)).min(ONE);
        self.window_end = self.delivered.saturating_add(sample.in_flight);
        self.window_delivered = 0;
        self.window_marked = 0;
    }
}

impl Controller for Dctcp {
    fn window(&self) -> u64 {
        self.reno.window()
    }

    fn slow_start_threshold(&self) -> u64 {
        self.reno.slow_start_threshold()
    }

    fn set_mss(&mut self, mss: u32) {
        self.reno.set_mss(mss);
    }

    fn on_sent(&mut self, now: Instant, bytes: u64, in_flight: u64, app_limited: bool) {
        self.reno.on_sent(now, bytes, in_flight, app_limited);
    }

    fn on_ack(&mut self, sample: &AckSample) {
        self.observe(sample);
        self.reno.on_ack(sample);
    }

    fn on_congestion(&mut self, now: Instant, kind: Congestion, in_flight: u64) {
        if kind == Congestion::Ecn {
            //= RFC 8257 section 3.3, equation 9
            self.reno.on_marks(|window| {
                let cut = u128::from(window) * u128::from(self.alpha) / u128::from(2 * ONE);
                window - u64::try_from(cut).unwrap_or(window / 2)
            });
        } else {
            //= RFC 8257 section 3.5: loss is answered as without ECN, and leaves alpha as it is
            self.reno.on_congestion(now, kind, in_flight);
        }
    }

    fn on_recovery_end(&mut self, now: Instant) {
        self.reno.on_recovery_end(now);
    }

    fn undo(&mut self, now: Instant) {
        self.reno.undo(now);
    }

    fn on_idle_restart(&mut self, now: Instant, idle: Duration, rto: Duration) {
        self.reno.on_idle_restart(now, idle, rto);
    }
}
