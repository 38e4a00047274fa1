//! Congestion control behind one trait, a file each: how much may be in flight, and how fast it may leave.
//!
//! A controller sees acknowledgements and congestion events and answers with a window and, if it paces, a rate. It
//! sends nothing and detects no loss: that is the sender's. Bytes are payload bytes; time is an argument.

mod bbr;
mod cubic;
mod dctcp;
mod episode;
mod hystart;
mod newreno;
#[cfg(test)]
mod tests;

use core::fmt::Debug;
use core::time::Duration;

pub use bbr::Bbr;
pub use cubic::Cubic;
pub use dctcp::Dctcp;
pub use newreno::NewReno;

use crate::time::Instant;

/// A connection's congestion control algorithm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// NewReno (RFC 5681, RFC 6582).
    NewReno,
    /// CUBIC (RFC 9438).
    #[default]
    Cubic,
    /// Data Center TCP (RFC 8257); needs ECN on the whole path.
    Dctcp,
    /// BBR: a model of the path's rate and round-trip time (draft-ietf-ccwg-bbr).
    Bbr,
}

impl Algorithm {
    /// A controller of this kind at the beginning of a connection.
    pub fn build(self, parameters: &Parameters) -> Box<dyn Controller> {
        match self {
            Self::NewReno => Box::new(NewReno::new(parameters)),
            Self::Cubic => Box::new(Cubic::new(parameters)),
            Self::Dctcp => Box::new(Dctcp::new(parameters)),
            Self::Bbr => Box::new(Bbr::new(parameters)),
        }
    }
}

/// An acknowledgement of new data, cumulative or selective.
#[derive(Clone, Copy, Debug)]
pub struct AckSample {
    /// When it arrived.
    pub now: Instant,
    /// Bytes newly acknowledged cumulatively, those delivered during a repair left out. A window that follows RFC 5681
    /// grows by them.
    pub acked: u64,
    /// Bytes newly delivered: acknowledged cumulatively or selectively for the first time.
    pub delivered: u64,
    /// Bytes in flight before this acknowledgement.
    pub prior_in_flight: u64,
    /// Bytes in flight after it.
    pub in_flight: u64,
    /// Round-trip time measured by it, never from a retransmission.
    pub rtt: Option<Duration>,
    /// The smoothed round-trip time.
    pub srtt: Option<Duration>,
    /// The least round-trip time seen in the connection's life.
    pub min_rtt: Option<Duration>,
    /// The delivery rate over the segment that was delivered last (draft-cheng-iccrg-delivery-rate-estimation), for a
    /// controller that [`uses it`](Controller::uses_rate).
    pub rate: Option<RateSample>,
    /// Bytes in this acknowledgement's `delivered` that the peer reported as marked (ECN echo).
    pub marked: u64,
    /// Bytes newly found lost by this acknowledgement.
    pub lost: u64,
    /// Whether a fast recovery is going on: the window is then the recovery's business, not the controller's, unless
    /// it [`controls recovery`](Controller::controls_recovery) itself. After a time-out it is false: slow start grows
    /// the window while the losses are repaired.
    pub in_recovery: bool,
    /// Whether a whole window was in use lately; if not, it must not grow (RFC 9293 by way of RFC 7661).
    pub window_limited: bool,
}

/// How fast the path delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateSample {
    /// Bytes delivered between the sending and the acknowledgement of a segment.
    pub delivered: u64,
    /// The time that took: the longer of sending and acknowledging.
    pub interval: Duration,
    /// The connection's count of delivered bytes when that segment was sent: marks rounds.
    pub prior_delivered: u64,
    /// The connection's count of delivered bytes now.
    pub total_delivered: u64,
    /// Whether the sender had nothing to send meanwhile, so that the rate is a lower bound.
    pub app_limited: bool,
    /// Bytes in flight when that segment was sent.
    pub in_flight_at_send: u64,
    /// Bytes lost since that segment was sent.
    pub lost_since_send: u64,
}

/// A sign of congestion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Congestion {
    /// Loss was detected (once per recovery).
    Loss,
    /// The peer echoed a mark (once per round trip).
    Ecn,
    /// The retransmission time-out fired.
    Timeout,
}

/// Parameters common to all controllers.
#[derive(Clone, Copy, Debug)]
pub struct Parameters {
    /// Payload bytes per segment.
    pub mss: u32,
    /// The initial window in segments (RFC 6928).
    pub initial_window: u32,
}

impl Parameters {
    /// The initial window in bytes: at least one segment.
    fn initial_window_bytes(&self) -> u64 {
        u64::from(self.mss.max(1)) * u64::from(self.initial_window.max(1))
    }
}

/// Window and threshold after an idle time. The window is halved for each time-out that went by, down to the initial
/// window, and the threshold keeps most of it, so that slow start brings it back within a few round trips.
//= RFC 5681 section 4.1: a window that was not used lately does not leave as one burst
fn after_idle(window: u64, threshold: u64, initial: u64, idle: Duration, rto: Duration) -> (u64, u64) {
    let times = idle.as_nanos() / rto.as_nanos().max(1);
    if times == 0 || window <= initial {
        return (window, threshold);
    }
    let halved = window >> u32::try_from(times).unwrap_or(u32::MAX).min(63);
    (halved.max(initial), threshold.max(window - window / 4))
}

/// A congestion controller. All windows are in bytes.
pub trait Controller: Debug + Send {
    /// How many bytes may be in flight, outside of loss recovery.
    fn window(&self) -> u64;

    /// The slow-start threshold; [`u64::MAX`] as long as there is none.
    fn slow_start_threshold(&self) -> u64;

    /// Bytes per second to pace by, if the controller asks for pacing.
    fn pacing_rate(&self) -> Option<u64> {
        None
    }

    /// The largest burst worth handing over at once when pacing, in bytes; `None`: the sender's choice.
    fn send_quantum(&self) -> Option<u64> {
        None
    }

    /// Whether the controller sets the window during loss recovery too (BBR). If not, proportional rate reduction
    /// (RFC 6937) does, towards the threshold that [`Controller::on_congestion`] left.
    fn controls_recovery(&self) -> bool {
        false
    }

    /// Whether it looks at [`AckSample::rate`], which is left out otherwise.
    fn uses_rate(&self) -> bool {
        false
    }

    /// The payload per segment changed: a path MTU was found.
    fn set_mss(&mut self, mss: u32);

    /// `bytes` leave now, with `in_flight` bytes out before them.
    fn on_sent(&mut self, _now: Instant, _bytes: u64, _in_flight: u64, _app_limited: bool) {}

    /// Something new was acknowledged.
    fn on_ack(&mut self, sample: &AckSample);

    /// Congestion, with so many bytes in flight: reduces threshold and window.
    fn on_congestion(&mut self, now: Instant, kind: Congestion, in_flight: u64);

    /// A loss recovery ended: everything out when it began is acknowledged.
    fn on_recovery_end(&mut self, now: Instant);

    /// The last congestion event was spurious (F-RTO, D-SACK, Eifel): its reduction is taken back.
    fn undo(&mut self, now: Instant);

    /// The connection was idle for longer than a retransmission time-out (RFC 5681 section 4.1).
    fn on_idle_restart(&mut self, now: Instant, idle: Duration, rto: Duration);
}
