//! A session's timers.

use super::Session;
use crate::rud::api::{Clue, Failure, Sink};
use crate::rud::cc::Controller as _;
use crate::rud::liveness::Silence;
use crate::rud::mtu::Finding;
use crate::rud::recovery::{NEVER, TailTimer};
use crate::wire::rud::HEADER_LEN;
use core::net::IpAddr;
use core::time::Duration;
use std::collections::BTreeMap;

impl Session {
    /// Fires every timer whose time has come. `unknown` says when hosts sent a datagram with a tag of no session last.
    pub(in crate::rud) fn on_timeout(
        &mut self,
        now: u64,
        unknown: &BTreeMap<IpAddr, u64>,
        sink: &mut impl Sink,
    ) {
        if self.failed {
            return;
        }
        self.acks.on_timeout(now);
        if now >= self.recovery.loss_deadline() {
            self.detect_losses(now);
        }
        if self.sender.flight() != 0 {
            match self.recovery.on_tail_timer(now) {
                None => {}
                //= rud/spec.md section 6.4, RUD-46
                // A peer that may not have begun the session answers data alone; else the probe goes out with the reports.
                Some(TailTimer::Probe) if self.recovery.srtt() == 0 => {
                    self.recovery.drop_probe();
                    self.sender.lose_youngest();
                }
                Some(TailTimer::Probe) => {}
                Some(TailTimer::TimeOut) => {
                    //= rud/spec.md section 6.5, RUD-47
                    // Everything on the wire is lost.
                    self.counters.timeouts += 1;
                    self.cc.on_timeout();
                    self.stalled(now, sink);
                    self.mtu.on_stalled(HEADER_LEN + self.sender.longest_bytes());
                    self.lose_all();
                    self.asks.volley(now);
                }
            }
        }
        if let Some(finding) = self.mtu.on_timeout(now, self.spray.in_use()) {
            self.on_finding(now, finding, sink);
        }
        if self.liveness.is_suspected()
            && let Some(at) = unknown.get(&self.paths.remote_ip())
        {
            self.liveness.on_clue(*at, Clue::UnknownSession);
        }
        if let Some(Silence { silent, clue }) = self.liveness.on_timeout(now) {
            let timeouts = if self.sender.is_quiet() { 0 } else { self.recovery.backoff() };
            self.fail(Failure::PeerSilent { silent: Duration::from_nanos(silent), timeouts, clue }, sink);
        }
    }

    /// Everything on the wire is lost.
    fn lose_all(&mut self) {
        while self.sender.flight() != 0 {
            self.sender.lose_oldest();
            self.counters.lost += 1;
        }
    }

    /// After a time-out the answer to a probe has come that was sent at `sent_at`.
    #[cold]
    pub(super) fn lose_sent_until(&mut self, sent_at: u64) {
        //= rud/spec.md section 6.5, RUD-49
        // It acknowledges what had arrived before: the rest was lost, and goes again on a path that is known to deliver.
        while self.sender.oldest().is_some_and(|(oldest, _)| oldest <= sent_at) {
            self.sender.lose_oldest();
            self.counters.lost += 1;
        }
    }

    /// The path carries more, or less, than it did.
    #[cold]
    pub(super) fn on_finding(&mut self, now: u64, finding: Finding, sink: &mut impl Sink) {
        if finding == Finding::Lowered {
            //= rud/spec.md section 6.8, RUD-63
            // What was too long is sent again in pieces, and its loss was no congestion.
            self.lose_all();
            self.recovery.on_path_mended(now);
            self.cc.on_idle();
        }
        if let Some(bytes) = self.mtu.take_news() {
            sink.path_changed(self.id, bytes + self.seal_len);
        }
    }

    /// Ends a session whose datagrams do not arrive although the peer lives.
    fn stalled(&mut self, now: u64, sink: &mut impl Sink) {
        let stalled = now.saturating_sub(self.recovery.progress_at());
        //= rud/spec.md section 8, RUD-87
        // Several time-outs, so that our own long pause is not taken for the path's failure.
        if stalled >= self.liveness.dead_after()
            && self.recovery.backoff() >= 4
            && !self.liveness.is_suspected()
        {
            self.fail(
                Failure::NoProgress {
                    stalled: Duration::from_nanos(stalled),
                    timeouts: self.recovery.backoff(),
                    bytes: (HEADER_LEN + self.sender.oldest_bytes()).min(self.mtu.limit()) + self.seal_len,
                },
                sink,
            );
        }
    }

    fn fail(&mut self, why: Failure, sink: &mut impl Sink) {
        if !self.failed {
            self.failed = true;
            sink.failed(self.id, why);
        }
    }

    /// Another session may have learned that the network marks datagrams.
    #[inline]
    pub(in crate::rud) fn hear_of_marks(&mut self, network_marks: bool) {
        self.network_marks |= network_marks;
    }

    /// Whether this end knows that the network marks datagrams.
    #[inline]
    pub(in crate::rud) fn network_marks(&self) -> bool {
        self.network_marks
    }

    /// The timers that a received datagram can bring forward.
    #[inline]
    pub(in crate::rud) fn near_deadline(&self) -> u64 {
        self.acks
            .deadline()
            .min(self.recovery.loss_deadline())
            .min(self.sender.retry_at())
            .min(self.mtu.deadline())
            .min(if self.sender.flight() == 0 { NEVER } else { self.recovery.tail_deadline() })
    }

    /// When `on_timeout` has something to do.
    #[inline]
    pub(in crate::rud) fn deadline(&self) -> u64 {
        if self.failed {
            return NEVER;
        }
        self.near_deadline().min(self.liveness.deadline())
    }
}
