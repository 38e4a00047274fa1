//! Timestamps as the receiver sees them (RFC 7323): protection against wrapped sequence numbers, and the value to echo.

use crate::time::Instant;
use crate::wire::tcp::SeqNumber;

//= RFC 7323 section 5.5: after 24 days without a segment the remembered timestamp may have wrapped, and is not used.
const OUTDATED: u32 = 24 * 24 * 3600;

/// The peer's timestamps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Paws {
    /// TS.Recent.
    pub(super) recent: u32,
    /// When it was set, in seconds.
    at: u32,
}

impl Paws {
    pub(super) fn new(now: Instant, value: u32) -> Self {
        Self { recent: value, at: seconds(now) }
    }

    //= RFC 7323 section 5.3, R1: a segment whose timestamp is older than the remembered one is not acceptable.
    /// Whether a segment with this timestamp is a stray of long ago.
    #[inline]
    pub(super) fn is_old(&self, now: Instant, value: u32) -> bool {
        (value.wrapping_sub(self.recent) as i32) < 0 && seconds(now).wrapping_sub(self.at) < OUTDATED
    }

    //= RFC 7323 section 4.3, rule 2: a timestamp is remembered if it is not older, and its segment begins at or before
    //= what was acknowledged last.
    /// Stores the timestamp of an acceptable segment that begins at `seq`.
    #[inline]
    pub(super) fn update(&mut self, now: Instant, value: u32, seq: SeqNumber, last_ack: SeqNumber) {
        if !seq.is_after(last_ack) && !self.is_old(now, value) {
            self.recent = value;
            self.at = seconds(now);
        }
    }
}

fn seconds(now: Instant) -> u32 {
    (now.as_nanos() / 1_000_000_000) as u32
}
