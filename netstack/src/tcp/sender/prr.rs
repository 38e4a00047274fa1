//! Proportional rate reduction (RFC 9937, which replaces RFC 6937): the window during fast recovery.

#[cfg(test)]
mod tests;

/// One recovery. All in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prr {
    /// In flight when the recovery began.
    flight: u64,
    delivered: u64,
    out: u64,
    window: u64,
}

impl Prr {
    /// A recovery begins with `flight` bytes out, what this acknowledgement delivered included.
    pub(super) fn new(flight: u64) -> Self {
        Self { flight: flight.max(1), delivered: 0, out: 0, window: 0 }
    }

    /// How much may be in flight.
    pub(super) fn window(&self) -> u64 {
        self.window
    }

    pub(super) fn on_sent(&mut self, bytes: u64) {
        self.out += bytes;
    }

    /// An acknowledgement delivered `delivered` bytes and left `in_flight` in flight; `safe`: it moved on and showed
    /// no further loss.
    pub(super) fn on_ack(&mut self, delivered: u64, in_flight: u64, threshold: u64, mss: u64, safe: bool) {
        self.delivered += delivered;
        let mut send = if in_flight > threshold {
            //= RFC 9937 section 6.2: sending is to delivery as the threshold is to what was in flight.
            let share =
                (u128::from(self.delivered) * u128::from(threshold)).div_ceil(u128::from(self.flight));
            u64::try_from(share).unwrap_or(u64::MAX).saturating_sub(self.out)
        } else {
            //= RFC 9937 section 6.2: below the threshold one byte for each delivered, and as long as it is safe one
            //= segment more.
            let mut limit = self.delivered.saturating_sub(self.out).max(delivered);
            if safe {
                limit += mss;
            }
            limit.min(threshold - in_flight)
        };
        if self.out == 0 {
            //= RFC 9937 section 6.2: the first retransmission leaves at once.
            send = send.max(mss);
        }
        self.window = in_flight + send;
    }
}
