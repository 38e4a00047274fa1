//! Round-trip time and retransmission time-out (RFC 6298).
//!
//! The variation is the greatest of the last round trip, and shrinks slowly: with many samples per round trip it would
//! otherwise decay within a part of one (RFC 7323 appendix G). The lower bound of the time-out counts from the smoothed
//! round-trip time on, as it is there for the peer's delay of acknowledgements, which comes on top.

use core::time::Duration;

use crate::tcp::Options;
use crate::time::{Instant, whole_nanos};
use crate::wire::tcp::SeqNumber;

#[cfg(test)]
mod tests;

/// Doublings that remain when retransmissions are acknowledged.
const KEPT_BACKOFF: u8 = 3;

/// No measurement.
const NONE: u64 = u64::MAX;

/// Timestamps tick in milliseconds: below this they are too coarse to measure by.
const COARSE: Duration = Duration::from_millis(4);

//= RFC 9293 section 3.8.1, MUST-18: the time-out is RFC 6298's, and what was sent again is not measured (Karn's algorithm).
/// The measurements, in nanoseconds.
#[derive(Debug, Default)]
pub(super) struct Rtt {
    srtt: u64,
    /// Mean deviation, its greatest of this round trip, and the value that the time-out uses.
    deviation: u64,
    greatest: u64,
    rttvar: u64,
    min: u64,
    /// The round trip ends when this is acknowledged.
    round_end: SeqNumber,
    /// Doublings of the time-out.
    backoff: u8,
    /// The SYN was sent again and nothing was measured since.
    cautious: bool,
    /// The round-trip time by the echoes in the peer's data, in milliseconds; 0 without any.
    heard: u16,
}

impl Rtt {
    pub(super) fn new() -> Self {
        Self { srtt: NONE, min: NONE, ..Self::default() }
    }

    fn known(nanos: u64) -> Option<Duration> {
        (nanos != NONE).then_some(Duration::from_nanos(nanos))
    }

    pub(super) fn srtt(&self) -> Option<Duration> {
        Self::known(self.srtt)
    }

    /// The smoothed round-trip time in nanoseconds; before there is one, half of the first time-out.
    #[inline]
    pub(super) fn trip_nanos(&self, options: &Options) -> u64 {
        if self.srtt == NONE { whole_nanos(options.initial_rto) / 2 } else { self.srtt }
    }

    pub(super) fn rttvar(&self) -> Duration {
        Duration::from_nanos(self.rttvar)
    }

    pub(super) fn min(&self) -> Option<Duration> {
        Self::known(self.min)
    }

    /// Nothing was measured yet, and the SYN had to be sent again.
    pub(super) fn be_cautious(&mut self) {
        self.cautious = true;
    }

    /// A measurement of the path alone, without the peer's delay.
    pub(super) fn observe(&mut self, rtt: Duration) {
        self.min = self.min.min(bounded(whole_nanos(rtt)));
    }

    /// A measurement; `una` and `nxt` as they are after the acknowledgement.
    pub(super) fn sample(&mut self, rtt: Duration, una: SeqNumber, nxt: SeqNumber) {
        self.sample_nanos(whole_nanos(rtt), una, nxt);
    }

    /// The same in nanoseconds.
    pub(super) fn sample_nanos(&mut self, rtt: u64, una: SeqNumber, nxt: SeqNumber) {
        let rtt = bounded(rtt);
        self.min = self.min.min(rtt);
        self.backoff = 0;
        self.cautious = false;
        if self.srtt == NONE {
            //= RFC 6298 section 2.2: the first measurement R gives SRTT = R and RTTVAR = R/2.
            self.srtt = rtt;
            self.deviation = rtt / 2;
            self.rttvar = self.deviation;
            self.greatest = self.deviation;
            self.round_end = nxt;
            return;
        }
        //= RFC 6298 section 2.3: alpha is 1/8 and beta 1/4, the variation first.
        let off = rtt.abs_diff(self.srtt);
        if off >= self.deviation {
            // A fall of the round-trip time is no reason to wait longer: it counts an eighth.
            let step = (off - self.deviation) / 4;
            self.deviation += if rtt < self.srtt { step / 8 } else { step };
        } else {
            self.deviation -= (self.deviation - off) / 4;
        }
        self.srtt = if rtt < self.srtt { self.srtt - off / 8 } else { self.srtt + off / 8 };
        self.greatest = self.greatest.max(self.deviation);
        self.rttvar = self.rttvar.max(self.greatest);
        if una.is_after(self.round_end) {
            self.rttvar -= (self.rttvar - self.greatest) / 4;
            self.greatest = self.deviation;
            self.round_end = nxt;
        }
    }

    /// A measurement by a clock of milliseconds.
    pub(super) fn coarse_sample(&mut self, rtt: Duration, una: SeqNumber, nxt: SeqNumber) {
        if rtt >= COARSE {
            self.sample(rtt, una, nxt);
        } else {
            // It says no more than that the path is alive and which transmission was answered.
            self.backoff = 0;
        }
    }

    /// The echo in a segment of data from the peer; `None`: less than a millisecond. A side that only receives has no
    /// other measurement once the handshake is over.
    pub(super) fn hear(&mut self, rtt: Option<Duration>) {
        let millis = rtt.map_or(0, |rtt| u16::try_from(rtt.as_millis()).unwrap_or(u16::MAX));
        // Data that waited for its application echoes an old timestamp: a longer time counts an eighth.
        let more = millis.saturating_sub(self.heard).div_ceil(8);
        self.heard = if millis < self.heard { millis } else { self.heard + more };
    }

    /// The time from an announcement of this side to the peer's answer.
    pub(super) fn round_trip(&self) -> Option<Duration> {
        let heard = (self.heard > 0).then(|| Duration::from_millis(u64::from(self.heard)));
        self.srtt().max(heard)
    }

    /// The time-out without back-off, in nanoseconds.
    fn base(&self, options: &Options) -> u64 {
        if self.srtt == NONE {
            //= RFC 6298 section 5.7: a SYN whose timer ran out makes it 3 s when data begins
            return whole_nanos(options.initial_rto).saturating_mul(if self.cautious { 3 } else { 1 });
        }
        let spread = self.rttvar.saturating_mul(4);
        self.srtt.saturating_add(spread.max(whole_nanos(options.min_rto)))
    }

    /// The retransmission time-out.
    pub(super) fn rto(&self, options: &Options) -> Duration {
        Duration::from_nanos(self.rto_nanos(options))
    }

    /// When the retransmission timer runs out if it is started at `now`.
    #[inline]
    pub(super) fn expiry(&self, now: Instant, options: &Options) -> Instant {
        now.later(self.rto_nanos(options))
    }

    /// The retransmission time-out in nanoseconds.
    #[inline]
    fn rto_nanos(&self, options: &Options) -> u64 {
        //= RFC 6298 section 5.5; RFC 9293 section 3.8.2, MUST-19: the time-out doubles each time, up to a maximum.
        let most = whole_nanos(options.max_rto);
        let base = self.base(options).min(most);
        if self.backoff == 0 {
            return base;
        }
        let factor = 1u64.checked_shl(u32::from(self.backoff)).unwrap_or(u64::MAX);
        base.saturating_mul(factor).min(most)
    }

    /// Whether so many nanoseconds are more than the retransmission time-out.
    #[inline]
    pub(super) fn is_exceeded(&self, nanos: u64, options: &Options) -> bool {
        // With a measurement the time-out is no less than the lower of its bounds.
        let least = whole_nanos(options.min_rto.min(options.max_rto));
        (nanos > least || self.srtt == NONE) && nanos > self.rto_nanos(options)
    }

    /// Something was acknowledged that had been sent again: the path is alive, but was not measured.
    pub(super) fn calm(&mut self) {
        //= RFC 6298 section 5 (Karn's algorithm): the back-off stays until there is a measurement
        // Not entirely: after many time-outs, each loss on a path that works again would cost minutes.
        self.backoff = self.backoff.min(KEPT_BACKOFF);
    }

    pub(super) fn back_off(&mut self) {
        self.backoff = self.backoff.saturating_add(1).min(24);
    }
}

/// No time is 0, even if a coarse clock shows it.
fn bounded(nanos: u64) -> u64 {
    nanos.clamp(1, NONE / 8)
}
