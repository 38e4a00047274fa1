//! The acknowledgement that was expected (Van Jacobson's header prediction, for the half of it that sends): it covers
//! all outstanding data, which was sent once and as one, and nothing is being repaired. A request that was answered is
//! acknowledged in this way. The result is the same as in `ack`, without most of its checks.

use super::scoreboard::Record;
use super::{AckIn, AckOut, ReleaseToken, Sender};
use crate::cc::AckSample;
use crate::tcp::memory::Memory;
use crate::time::Instant;

impl Sender {
    /// The acknowledged record, if the acknowledgement is the expected one.
    #[inline]
    pub(super) fn predicted(&self, ack: &AckIn) -> Option<&Record> {
        let record = self.board.only()?;
        let all = ack.ack == record.end && ack.ack == self.space.nxt();
        let is_new = !ack.sack.is_empty() || (self.ecn.is_on() && ack.ece);
        let quiet = self.recovery.is_quiet();
        let probing = self.timers.tail.are_out() || self.timers.persist.is_on();
        let plain = record.sends == 1 && !record.sacked && !record.lost && !record.path_mtu;
        (all && !is_new && quiet && !probing && plain).then_some(record)
    }

    /// Processes it.
    pub(super) fn on_predicted(
        &mut self,
        now: Instant,
        ack: &AckIn,
        record: &Record,
        memory: &mut Memory,
        released: &mut Vec<ReleaseToken>,
    ) -> AckOut {
        self.board.acknowledge_only();
        self.contact.on_heard(now);
        self.update_window(ack);
        let acked = record.len();
        let (una, fack) = (self.space.una(), self.rack.fack());
        self.size.acknowledged(record.payload_per_segment());
        // A record that was sent once needs no least round-trip time to decide which transmission arrived.
        self.rack.on_delivered(now, record, fack, None);
        self.rate.on_delivered(now, acked);
        self.advance(ack.ack, memory, released);

        let nanos = now.nanos_since(record.sent_at);
        self.rtt.sample_nanos(nanos, self.space.una(), self.space.nxt());
        if ack.has_data && ack.echo.is_some() {
            self.rtt.hear(ack.rtt);
        }
        self.rack.on_progress(self.space.una());
        let rate = self.sample_rate(record);
        let sample = AckSample {
            now,
            acked: u64::from(acked),
            delivered: u64::from(acked),
            prior_in_flight: u64::from(acked),
            in_flight: 0,
            rtt: Some(now.saturating_since(record.sent_at)),
            srtt: self.rtt.srtt(),
            min_rtt: self.rtt.min(),
            rate,
            marked: 0,
            lost: 0,
            in_recovery: false,
            window_limited: self.control.was_limiting(una),
        };
        self.control.tell(|controller| controller.on_ack(&sample));
        self.timers_on_ack(now, true, true);
        self.contact.waits_from(now);
        let fin_acked = self.space.fin_sent();
        AckOut { acked, fin_acked, became_writable: self.unblock(now), progress: true }
    }
}
