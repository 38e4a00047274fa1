//! Loss detection by time (RFC 8985 section 6).

use core::time::Duration;

use super::scoreboard::{Record, Scoreboard};
use crate::time::Instant;
use crate::wire::tcp::SeqNumber;

#[cfg(test)]
mod tests;

/// Segments selectively acknowledged above a hole that make it a loss at once, as long as no reordering was seen.
const DUP_THRESH: u32 = 3;

/// Recoveries for which a widened reordering window stays.
const PERSIST: u8 = 16;

/// The newest transmission that is known to have arrived, and the reordering window.
#[derive(Debug, Default)]
pub(super) struct Rack {
    sent_at: Instant,
    end: SeqNumber,
    rtt: Duration,
    /// Highest number acknowledged, cumulatively or selectively.
    fack: SeqNumber,
    reordering: bool,
    /// The window in quarters of the least round-trip time, less one.
    steps: u8,
    persist: u8,
    /// The handshake agreed on selective acknowledgements.
    sack: bool,
    /// Further duplicates count once this is acknowledged.
    round: Option<SeqNumber>,
}

/// The result of the walk over the records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DetectedLosses {
    /// Bytes that count as lost from now on.
    pub(super) lost: u32,
    /// Of these, the bytes of a probe for a larger path MTU.
    pub(super) path_mtu: u32,
    /// When to look again.
    pub(super) again: Option<Instant>,
}

impl Rack {
    pub(super) fn new(iss: SeqNumber) -> Self {
        Self { end: iss, fack: iss, ..Self::default() }
    }

    //= RFC 8985 section 4: a sender that does not get selective acknowledgements does not use RACK-TLP.
    /// The handshake agreed on selective acknowledgements, or not.
    pub(super) fn begin(&mut self, sack: bool) {
        self.sack = sack;
    }

    /// Whether there are selective acknowledgements.
    #[inline]
    pub(super) fn has_sack(&self) -> bool {
        self.sack
    }

    pub(super) fn fack(&self) -> SeqNumber {
        self.fack
    }

    /// A record was delivered; `fack` as it was before the acknowledgement.
    pub(super) fn on_delivered(
        &mut self,
        now: Instant,
        record: &Record,
        fack: SeqNumber,
        min: Option<Duration>,
    ) {
        let rtt = now.saturating_since(record.sent_at);
        if record.sends > 1 {
            //= RFC 8985 section 6.2, step 2: an acknowledgement sooner than a round trip after a retransmission is
            //= of the original.
            if min.is_some_and(|min| rtt < min) {
                return;
            }
        } else if record.end.is_before(fack) {
            //= RFC 8985 section 6.2, step 3: what was sent once and arrives after what was sent later is reordered.
            self.reordering = true;
        }
        self.fack = self.fack.max(record.end);
        if self.sent_at < record.sent_at || (self.sent_at == record.sent_at && self.end.is_before(record.end))
        {
            self.sent_at = record.sent_at;
            self.end = record.end;
            self.rtt = rtt;
        }
    }

    /// A recovery was spurious: data that seemed lost was late.
    pub(super) fn on_reordering(&mut self) {
        self.reordering = true;
    }

    /// A duplicate was reported (RFC 2883): something was sent again for nothing.
    pub(super) fn on_duplicate(&mut self, una: SeqNumber, nxt: SeqNumber) {
        //= RFC 8985 section 6.2, step 4: once per round trip a duplicate widens the window by a quarter of the least
        //= round-trip time.
        if self.round.is_some_and(|round| una.is_before(round)) {
            return;
        }
        self.round = Some(nxt);
        self.steps = self.steps.saturating_add(1);
        self.persist = PERSIST;
    }

    /// A recovery ended.
    pub(super) fn on_recovery_end(&mut self) {
        self.persist = self.persist.saturating_sub(1);
        if self.persist == 0 {
            self.steps = 0;
        }
    }

    /// `una` moved on: keeps the rounds from getting stale.
    pub(super) fn on_progress(&mut self, una: SeqNumber) {
        if self.round.is_some_and(|round| !una.is_before(round)) {
            self.round = None;
        }
        self.fack = self.fack.max(una);
    }

    /// The reordering window.
    pub(super) fn window(&self, srtt: Option<Duration>, min: Option<Duration>, hasty: bool) -> Duration {
        if !self.reordering && hasty {
            return Duration::ZERO;
        }
        //= RFC 8985 section 6.2, step 4: a quarter of the least round-trip time, more after duplicates, never above
        //= the smoothed one.
        let (Some(srtt), Some(min)) = (srtt, min) else { return Duration::ZERO };
        (min / 4).saturating_mul(u32::from(self.steps) + 1).min(srtt)
    }

    /// Marks the records that are lost by now.
    pub(super) fn detect(
        &self,
        now: Instant,
        board: &mut Scoreboard,
        srtt: Option<Duration>,
        min: Option<Duration>,
        recovering: bool,
    ) -> DetectedLosses {
        let hasty = recovering || board.sacked_segments() >= DUP_THRESH;
        let patience = self.rtt + self.window(srtt, min, hasty);
        let mut found = DetectedLosses::default();
        let (mut again, mut path_mtu) = (None::<Instant>, 0);
        found.lost = board.lose(|record| {
            if !record.sent_before(self.sent_at, self.end) {
                // Later records were sent later still, unless this one was sent again.
                return if record.sends > 1 { Some(false) } else { None };
            }
            let deadline = record.sent_at + patience;
            if deadline > now {
                again = Some(again.map_or(deadline, |again| again.max(deadline)));
                return Some(false);
            }
            if record.path_mtu {
                path_mtu += record.len();
            }
            Some(true)
        });
        found.again = again;
        found.path_mtu = path_mtu;
        found
    }

    /// Whether a record counts as lost when the retransmission timer runs out.
    pub(super) fn overdue(
        &self,
        now: Instant,
        record: &Record,
        srtt: Option<Duration>,
        min: Option<Duration>,
    ) -> bool {
        //= RFC 8985 section 6.3: what was sent within the last round trip is not lost by a time-out of what is older.
        record.sent_at + self.rtt + self.window(srtt, min, false) <= now
    }
}
