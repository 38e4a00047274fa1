//! HyStart++ (RFC 9406): leaves slow start when the round-trip time grows, before the queue overflows.

use core::time::Duration;

use super::AckSample;

//= RFC 9406 section 4.3
// The recommended values. L, the bound on growth per acknowledgement, is taken as infinite: our peers acknowledge
// bursts, and the sender bounds its own.
const MIN_RTT_THRESHOLD: u64 = 4_000_000;
const MAX_RTT_THRESHOLD: u64 = 16_000_000;
const MIN_RTT_DIVISOR: u64 = 8;
const RTT_SAMPLES: u8 = 8;
const CSS_GROWTH_DIVISOR: u64 = 4;
const CSS_ROUNDS: u8 = 5;

/// No round-trip time was measured.
const NO_RTT: u64 = u64::MAX;

/// The response of slow start to an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Advice {
    /// Grow by the bytes delivered, divided by this.
    Grow(u64),
    /// Slow start is over: the window is the threshold.
    Leave,
}

/// State of the first slow start of a connection. Round-trip times are in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct HyStart {
    delivered: u64,
    /// The round is over when so many bytes are delivered.
    round_end: u64,
    last_min: u64,
    current_min: u64,
    /// The round-trip time on entering conservative slow start; [`NO_RTT`] in plain slow start.
    baseline: u64,
    samples: u8,
    css_rounds: u8,
}

impl HyStart {
    pub(super) const fn new() -> Self {
        Self {
            delivered: 0,
            round_end: 0,
            last_min: NO_RTT,
            current_min: NO_RTT,
            baseline: NO_RTT,
            samples: 0,
            css_rounds: 0,
        }
    }

    /// To be called with every acknowledgement as long as there is no threshold.
    //= RFC 9406 section 4.2
    fn on_ack(&mut self, sample: &AckSample) -> Advice {
        if self.delivered == 0 {
            self.round_end = sample.prior_in_flight;
        }
        self.delivered = self.delivered.saturating_add(sample.delivered);
        if let Some(rtt) = sample.rtt {
            self.current_min = self.current_min.min(nanos(rtt));
            self.samples = self.samples.saturating_add(1);
        }
        if self.samples >= RTT_SAMPLES {
            self.judge();
        }
        if self.delivered >= self.round_end && self.end_round(sample.in_flight) {
            return Advice::Leave;
        }
        Advice::Grow(if self.is_conservative() { CSS_GROWTH_DIVISOR } else { 1 })
    }

    const fn is_conservative(&self) -> bool {
        self.baseline != NO_RTT
    }

    /// Compares the round's least round-trip time with the last round's, or with the one that began conservative
    /// slow start.
    fn judge(&mut self) {
        if self.is_conservative() {
            if self.current_min < self.baseline {
                // The queue went away: it was jitter.
                self.baseline = NO_RTT;
                self.css_rounds = 0;
            }
        } else if self.last_min != NO_RTT && self.current_min != NO_RTT {
            let threshold = (self.last_min / MIN_RTT_DIVISOR).clamp(MIN_RTT_THRESHOLD, MAX_RTT_THRESHOLD);
            if self.current_min >= self.last_min.saturating_add(threshold) {
                self.baseline = self.current_min;
                self.css_rounds = 0;
            }
        }
    }

    /// Returns whether slow start ends with this round. The round in which conservative slow start began counts.
    fn end_round(&mut self, in_flight: u64) -> bool {
        self.round_end = self.delivered.saturating_add(in_flight);
        self.last_min = self.current_min;
        self.current_min = NO_RTT;
        self.samples = 0;
        if self.is_conservative() {
            self.css_rounds += 1;
        }
        self.css_rounds >= CSS_ROUNDS
    }
}

/// How far a window grows in slow start by the bytes acknowledged, at most to the threshold; and the rest of them, for
/// congestion avoidance. The threshold becomes the window when HyStart++ ends slow start.
pub(super) fn slow_start(
    hystart: Option<&mut HyStart>,
    sample: &AckSample,
    window: u64,
    threshold: &mut u64,
) -> (u64, u64) {
    let mut divisor = 1;
    if *threshold == u64::MAX
        && let Some(hystart) = hystart
    {
        match hystart.on_ack(sample) {
            Advice::Grow(by) => divisor = by,
            Advice::Leave => {
                *threshold = window;
                return (0, sample.acked);
            }
        }
    }
    if !sample.window_limited {
        return (0, 0);
    }
    let growth = (sample.acked / divisor).min(threshold.saturating_sub(window));
    (growth, sample.acked.saturating_sub(growth.saturating_mul(divisor)))
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(NO_RTT - 1)
}
