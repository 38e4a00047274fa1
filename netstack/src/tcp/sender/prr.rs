//! Proportional rate reduction (RFC 9937, which replaces RFC 6937): the window during fast recovery.

#[cfg(test)]
mod tests;

/// One recovery. All in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prr {
    /// In flight when the recovery began.
    flight: u32,
    delivered: u32,
    out: u32,
    window: u32,
}

impl Prr {
    /// A recovery begins with `flight` bytes out, including those that this acknowledgement delivered.
    pub(super) fn new(flight: u32) -> Self {
        Self { flight: flight.max(1), delivered: 0, out: 0, window: 0 }
    }

    /// How much may be in flight.
    pub(super) fn window(&self) -> u64 {
        u64::from(self.window)
    }

    pub(super) fn on_sent(&mut self, bytes: u32) {
        self.out = self.out.saturating_add(bytes);
    }

    /// An acknowledgement delivered `delivered` bytes and left `in_flight` in flight; `safe`: it moved on and showed
    /// no further loss.
    pub(super) fn on_ack(&mut self, delivered: u32, in_flight: u32, threshold: u64, mss: u32, safe: bool) {
        self.delivered = self.delivered.saturating_add(delivered);
        let threshold = u32::try_from(threshold).unwrap_or(u32::MAX);
        let mut send = if in_flight > threshold {
            //= RFC 9937 section 6.2: sending is to delivery as the threshold is to what was in flight.
            let share = (u64::from(self.delivered) * u64::from(threshold)).div_ceil(u64::from(self.flight));
            u32::try_from(share).unwrap_or(u32::MAX).saturating_sub(self.out)
        } else {
            //= RFC 9937 section 6.2: below the threshold one byte for each delivered, and as long as it is safe one
            //= segment more.
            let mut limit = self.delivered.saturating_sub(self.out).max(delivered);
            if safe {
                limit = limit.saturating_add(mss);
            }
            limit.min(threshold - in_flight)
        };
        if self.out == 0 {
            //= RFC 9937 section 6.2: the first retransmission leaves at once.
            send = send.max(mss);
        }
        self.window = in_flight.saturating_add(send);
    }
}
