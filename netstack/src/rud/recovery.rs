//! Loss detection: round-trip time (RFC 6298), time-based detection after RFC 8985, and the tail's timers.

use super::api::Config;
use super::nanos;
use super::sender::{Acked, Sender};

#[cfg(test)]
mod tests;

/// No timer.
pub(super) const NEVER: u64 = u64::MAX;

/// Largest widening of the reordering window, in quarters of the smallest round-trip time.
const MAX_REORDER_STEPS: u32 = 16;

/// Acknowledged datagrams after which a widened reordering window narrows by one step.
const REORDER_PERSISTS: u32 = 4096;

/// A probe's patience doubles at most this often.
const MAX_PROBE_BACKOFF: u32 = 3;

/// Measurements are too old after so many nanoseconds without traffic.
const LONG_REST: u64 = 1_000_000_000;

/// The result of a tail timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TailTimer {
    /// A probe is due.
    Probe,
    /// The probe was not answered either: everything on the wire is lost.
    TimeOut,
}

/// The configuration's times.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    ack_delay: u64,
    min_rto: u64,
    max_rto: u64,
    min_probe: u64,
    initial_rtt: u64,
    min_reordering: u64,
}

impl From<&Config> for Times {
    fn from(config: &Config) -> Self {
        Self {
            ack_delay: nanos(config.ack_delay),
            min_rto: nanos(config.min_rto),
            max_rto: nanos(config.max_rto),
            min_probe: nanos(config.min_probe),
            initial_rtt: nanos(config.initial_rtt),
            min_reordering: nanos(config.min_reordering),
        }
    }
}

/// Measurements of the path, and timers of the datagrams that are out. Times are nanoseconds.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    times: Times,
    srtt: u64,
    rttvar: u64,
    min_rtt: u64,
    /// The most recent transmission known to have arrived: its serial number, its round-trip time.
    newest_serial: u32,
    newest_rtt: u64,
    reorder_steps: u32,
    reorder_calm: u32,
    /// Time-outs since the last datagram that was acknowledged and had been sent only once.
    backoff: u32,
    /// Probes since then.
    probe_backoff: u32,
    probed: bool,
    /// A probe is due that was not sent yet.
    probe_due: bool,
    /// The last probe: its stamp, zero before there is one, and its serial number.
    probe: (u64, u32),
    /// Last time that something new was acknowledged, or that the wire stopped being empty.
    progress_at: u64,
    /// Base of the tail timers: the last transmission or progress.
    tail_at: u64,
    /// When the oldest datagram out counts as lost by time; `NEVER` if nothing sent later has arrived.
    loss_at: u64,
}

impl Recovery {
    pub(super) fn new(now: u64, config: &Config) -> Self {
        Self {
            times: Times::from(config),
            min_rtt: NEVER,
            reorder_steps: 1,
            progress_at: now,
            tail_at: now,
            loss_at: NEVER,
            ..Self::default()
        }
    }

    /// The smoothed round-trip time; zero before the first measurement.
    pub(super) fn srtt(&self) -> u64 {
        self.srtt
    }

    /// The smallest round-trip time seen; `NEVER` before the first measurement.
    pub(super) fn min_rtt(&self) -> u64 {
        self.min_rtt
    }

    /// The least time of a round trip at present: queues make it longer than the smallest ever seen.
    pub(super) fn round_trip(&self) -> u64 {
        self.srtt.saturating_sub(2 * self.rttvar)
    }

    /// Time of the last progress.
    pub(super) fn progress_at(&self) -> u64 {
        self.progress_at
    }

    /// How often the time-out has backed off since the path was last measured.
    pub(super) fn backoff(&self) -> u32 {
        self.backoff
    }

    /// Whether a probe is due.
    #[inline]
    pub(super) fn probe_due(&self) -> bool {
        self.probe_due
    }

    /// When the oldest datagram out counts as lost by time; `NEVER` if nothing sent later has arrived.
    #[inline]
    pub(super) fn loss_deadline(&self) -> u64 {
        self.loss_at
    }

    /// Whether nothing was sent or acknowledged for so long that the measurements are too old.
    #[inline]
    pub(super) fn has_rested(&self, now: u64) -> bool {
        now.saturating_sub(self.tail_at) >= LONG_REST
    }

    /// Data was sent; `first` if nothing was on the wire before.
    #[inline]
    pub(super) fn on_sent(&mut self, now: u64, first: bool) {
        self.tail_at = now;
        if first {
            self.progress_at = now;
        }
    }

    /// The probe that was due went out, with this stamp and serial number.
    pub(super) fn on_probe_sent(&mut self, stamp: u64, serial: u32) {
        self.probe_due = false;
        self.probe = (stamp, serial);
    }

    /// Nothing is to be asked for with the probe that was due.
    pub(super) fn drop_probe(&mut self) {
        self.probe_due = false;
    }

    /// The answer to the probe with `stamp` came, which was sent at `sent_at`. Whether that is the last tail-loss probe.
    pub(super) fn on_probe_answered(&mut self, now: u64, stamp: u64, sent_at: u64) -> bool {
        let (of, serial) = self.probe;
        if of != stamp {
            return false;
        }
        //= rud/spec.md section 6.4, RUD-106
        // It is a transmission that has arrived.
        self.on_arrived(serial, now.saturating_sub(sent_at));
        //= rud/spec.md section 6.4
        // The peer answers: what is sent again is probed as well, but not for ever.
        if self.probe_backoff <= MAX_PROBE_BACKOFF {
            self.probed = false;
            self.tail_at = now;
        }
        true
    }

    /// The transmission `serial` is known to have arrived, after this round-trip time.
    #[inline]
    fn on_arrived(&mut self, serial: u32, rtt: u64) {
        if (serial.wrapping_sub(self.newest_serial) as i32) > 0 {
            self.newest_serial = serial;
            self.newest_rtt = rtt;
        }
    }

    /// Takes in an acknowledgement.
    #[inline]
    pub(super) fn on_acked(&mut self, now: u64, acked: &Acked) {
        self.progress_at = now;
        self.tail_at = now;
        (self.probed, self.probe_due) = (false, false);
        //= rud/spec.md section 6.3, RUD-44
        //= rud/spec.md section 6.5, RUD-48
        // Only a datagram that was sent once gives a round-trip time (Karn's rule).
        // The timers stay backed off until there is one (its second half): a peer that answers late, because it has
        // no core just now, would otherwise be resent everything each time, and never be measured.
        if acked.clean_sent_at != NEVER {
            self.backoff = 0;
            self.probe_backoff = 0;
            self.sample(now.saturating_sub(acked.clean_sent_at).max(1));
        }
        if acked.newest {
            self.on_arrived(acked.newest_serial, now.saturating_sub(acked.newest_sent_at));
        }
        if acked.spurious != 0 {
            //= rud/spec.md section 6.3, RUD-43
            // A loss that was none widens the reordering window.
            self.reorder_steps = (self.reorder_steps + 1).min(MAX_REORDER_STEPS);
            self.reorder_calm = 0;
        } else if self.reorder_steps > 1 {
            self.reorder_calm += acked.count;
            if self.reorder_calm >= REORDER_PERSISTS {
                self.reorder_steps -= 1;
                self.reorder_calm = 0;
            }
        }
    }

    fn sample(&mut self, rtt: u64) {
        self.min_rtt = self.min_rtt.min(rtt);
        if self.srtt == 0 {
            self.srtt = rtt;
            self.rttvar = rtt / 2;
        } else {
            self.rttvar = (3 * self.rttvar + self.srtt.abs_diff(rtt)) / 4;
            self.srtt = ((7 * self.srtt + rtt) / 8).max(1);
        }
    }

    /// Moves datagrams that count as lost by time from the wire to the lost ones; `on_lost` gets the payload bytes of each. Returns
    /// how many.
    #[inline]
    pub(super) fn detect_losses(
        &mut self,
        now: u64,
        sender: &mut Sender,
        mut on_lost: impl FnMut(u16),
    ) -> u32 {
        //= rud/spec.md section 6.3, RUD-43
        // The oldest first; where one is not lost yet, no younger one is.
        self.loss_at = NEVER;
        let mut lost = 0;
        while let Some((sent_at, serial)) = sender.oldest() {
            let lost_at = self.lost_at(sent_at, serial);
            if lost_at > now {
                self.loss_at = lost_at;
                break;
            }
            on_lost(sender.lose_oldest());
            lost += 1;
        }
        lost
    }

    /// When a datagram sent at `sent_at` as transmission `serial` counts as lost; `NEVER` while nothing that was
    /// sent after it is known to have arrived.
    #[inline]
    fn lost_at(&self, sent_at: u64, serial: u32) -> u64 {
        //= rud/spec.md section 6.3, RUD-42
        if (self.newest_serial.wrapping_sub(serial) as i32) <= 0 {
            return NEVER;
        }
        sent_at + self.newest_rtt + self.reordering()
    }

    fn reordering(&self) -> u64 {
        //= rud/spec.md section 6.3, RUD-43
        let quarter = if self.min_rtt == NEVER { 0 } else { self.min_rtt / 4 };
        (quarter * u64::from(self.reorder_steps)).min(self.srtt).max(self.times.min_reordering)
    }

    /// How long the answer to a probe may take.
    pub(super) fn patience(&self) -> u64 {
        let rto = if self.srtt == 0 { 3 * self.times.initial_rtt } else { self.srtt + 4 * self.rttvar };
        rto.max(self.times.min_rto)
    }

    /// The path carries what it did not: timers begin anew.
    pub(super) fn on_path_mended(&mut self, now: u64) {
        (self.backoff, self.probe_backoff, self.probed, self.probe_due) = (0, 0, false, false);
        (self.tail_at, self.progress_at, self.loss_at) = (now, now, NEVER);
    }

    /// When the tail of the datagrams in flight is probed or timed out.
    #[inline]
    pub(super) fn tail_deadline(&self) -> u64 {
        self.tail_at + if self.probed { self.rto() } else { self.probe_timeout() }
    }

    fn probe_timeout(&self) -> u64 {
        //= rud/spec.md section 6.4, RUD-46
        // Two round-trip times, more where they vary, and the peer's acknowledgement delay.
        let times = &self.times;
        let srtt = if self.srtt == 0 { times.initial_rtt } else { self.srtt };
        let patience = (srtt + srtt.max(4 * self.rttvar) + times.ack_delay).max(times.min_probe);
        patience << self.probe_backoff.min(MAX_PROBE_BACKOFF)
    }

    fn rto(&self) -> u64 {
        //= RFC 6298 section 2
        //= rud/spec.md section 6.5, RUD-47, RUD-48
        // srtt + 4 rttvar, backed off by doubling (section 5.5 there).
        let times = &self.times;
        let rto = if self.srtt == 0 { 3 * times.initial_rtt } else { self.srtt + 4 * self.rttvar };
        let rto = rto.saturating_add(times.ack_delay).max(times.min_rto);
        rto.saturating_mul(1 << self.backoff.min(20)).min(times.max_rto)
    }

    /// Fires the tail's timer, if its time has come while datagrams are on the wire.
    pub(super) fn on_tail_timer(&mut self, now: u64) -> Option<TailTimer> {
        if now < self.tail_deadline() {
            return None;
        }
        self.tail_at = now;
        if self.probed {
            self.backoff += 1;
            self.probe_due = false;
            self.loss_at = NEVER;
            Some(TailTimer::TimeOut)
        } else {
            self.probed = true;
            self.probe_due = true;
            self.probe_backoff += 1;
            Some(TailTimer::Probe)
        }
    }
}
