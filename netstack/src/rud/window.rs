//! How many datagrams may be on the wire (spec.md section 7). The seam at which congestion control will sit: it is
//! given acknowledgements, losses and time-outs, and answers with a limit.

use super::api::Config;

#[cfg(test)]
mod tests;

/// A round has at least this many datagrams, for a share of fewer says little.
const ROUND: u32 = 64;

/// The congestion window, in datagrams.
///
/// A Reno window halves on every loss, so that at 5% random loss it stays at some five datagrams whatever the link
/// could carry. Here the share of losses in a round decides: up to `loss_tolerance` percent, and what chance adds to
/// it, the window does not shrink; above, it halves, once a round.
#[derive(Debug)]
pub(super) struct Window {
    limit: u32,
    max: u32,
    min: u32,
    /// Payload bytes that may be on the wire.
    max_bytes: usize,
    tolerance: u32,
    acked: u32,
    lost: u32,
    round_ends: u64,
}

impl Window {
    /// Starts at the maximum: links within a data centre are sized for it.
    pub(super) fn new(config: &Config) -> Self {
        Self {
            limit: config.window_packets,
            max: config.window_packets,
            min: config.min_window,
            max_bytes: config.window_bytes,
            tolerance: config.loss_tolerance,
            acked: 0,
            lost: 0,
            round_ends: 0,
        }
    }

    /// Datagrams that may be on the wire.
    #[inline]
    pub(super) fn limit(&self) -> u32 {
        self.limit
    }

    /// Whether one more datagram may follow `flight` with `bytes` of payload.
    #[inline]
    pub(super) fn is_open(&self, flight: u32, bytes: usize) -> bool {
        flight < self.limit && bytes < self.max_bytes
    }

    /// `count` datagrams were acknowledged; a round lasts `srtt` nanoseconds.
    #[inline]
    pub(super) fn on_acked(&mut self, now: u64, count: u32, srtt: u64) {
        self.acked += count;
        if now >= self.round_ends && self.acked + self.lost >= ROUND {
            self.end_round(now, srtt);
        }
    }

    /// `count` datagrams were declared lost.
    pub(super) fn on_lost(&mut self, count: u32) {
        self.lost += count;
    }

    /// A retransmission time-out: nothing is known of the path any more.
    pub(super) fn on_timeout(&mut self) {
        //= rud/spec.md section 7
        // A time-out puts the window to its minimum.
        self.limit = self.min;
        self.acked = 0;
        self.lost = 0;
    }

    fn end_round(&mut self, now: u64, srtt: u64) {
        //= rud/spec.md section 7
        // Halved, once a round, when the share of losses exceeds the tolerance by more than chance (two standard
        // deviations of a count are twice its square root); otherwise it grows by a quarter of what was acknowledged.
        let total = u64::from(self.acked) + u64::from(self.lost);
        let certain = u64::from(self.lost.saturating_sub(2 * self.lost.isqrt()));
        if certain * 100 > total * u64::from(self.tolerance) {
            self.limit = (self.limit / 2).max(self.min);
        } else {
            self.limit = (self.limit + self.acked / 4 + 1).min(self.max);
        }
        self.acked = 0;
        self.lost = 0;
        self.round_ends = now + srtt;
    }
}
