//! When a session acknowledges without data to send (spec.md section 5.5), and when it asks its peer to (section 6.1).

use super::api::Config;
use super::nanos;
use super::recovery::NEVER;

#[cfg(test)]
mod tests;

/// The acknowledgements that are owed, and those that were asked for.
///
/// `at` is set from the first of `unacked` datagrams until it has passed; then, as after `every` of them, an acknowledgement is
/// `due`. A datagram that reports all ends all three: every datagram acknowledges.
#[derive(Debug)]
pub(super) struct Acks {
    every: u32,
    delay: u64,
    /// Datagrams received that no acknowledgement was sent for.
    unacked: u32,
    /// An acknowledgement is due now.
    due: bool,
    /// When one will be due.
    at: u64,
    /// Data sent since an acknowledgement was asked for.
    since_request: u32,
}

impl Acks {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            every: config.ack_every,
            delay: nanos(config.ack_delay),
            unacked: 0,
            due: false,
            at: NEVER,
            since_request: 0,
        }
    }

    /// Whether one is due now.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.due
    }

    /// When one will be due; `NEVER` if nothing waits for one.
    #[inline]
    pub(super) fn deadline(&self) -> u64 {
        self.at
    }

    /// Data was received.
    #[inline]
    pub(super) fn on_data(&mut self, now: u64) {
        self.unacked += 1;
        if self.unacked == 1 {
            self.at = now.saturating_add(self.delay);
        }
        self.due |= self.unacked >= self.every;
    }

    /// One is due at the next opportunity, if `wanted`.
    #[inline]
    pub(super) fn hurry(&mut self, wanted: bool) {
        self.due |= wanted;
    }

    /// Lets the timer fire whose time has come.
    pub(super) fn on_timeout(&mut self, now: u64) {
        if now >= self.at {
            self.due = true;
            self.at = NEVER;
        }
    }

    /// A datagram went out that leaves nothing to report.
    #[inline]
    pub(super) fn on_reported(&mut self) {
        self.unacked = 0;
        self.due = false;
        self.at = NEVER;
    }

    /// Whether the datagram that fills a window of `limit` should ask.
    #[inline]
    pub(super) fn asks(&self, limit: u32) -> bool {
        //= rud/spec.md section 6.1
        // With a full window every datagram fills it: one request in a quarter of the window is enough.
        self.since_request + 1 >= (limit / 4).min(self.every)
    }

    /// Data was sent, and `asked` for an acknowledgement or not.
    #[inline]
    pub(super) fn on_data_sent(&mut self, asked: bool) {
        self.since_request = if asked { 0 } else { self.since_request + 1 };
    }
}
