//! Congestion control (spec.md section 7): how many datagrams may be on the wire, and how far apart they leave.
//!
//! [`Signals`] derives the network's delay and marks from acknowledgements. A [`Controller`] answers with a window and
//! a distance between datagrams, which [`Pace`] keeps. It sends nothing and detects no loss.

mod noise;
mod pace;
mod rival;
mod signals;
mod swift;
#[cfg(test)]
mod tests;

pub(super) use pace::Pace;
pub(super) use signals::Signals;
pub(super) use swift::Swift;

use super::recovery::NEVER;

/// An acknowledgement that settled something. Times are nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct AckSample {
    /// When it came.
    pub(super) now: u64,
    /// Datagrams that it settled.
    pub(super) acked: u32,
    /// Datagrams that it reports as marked, beyond those that were known of.
    pub(super) marked: u32,
    /// Datagrams that had been held for lost and were not.
    pub(super) spurious: u32,
    /// When the youngest transmission was sent that it shows to have arrived; `NEVER` if it shows none.
    pub(super) sent_at: u64,
    /// The least time that the network took for a datagram and its acknowledgement; `NEVER` if that is not known.
    pub(super) delay: u64,
    /// The least that the network has taken lately; `NEVER` if that is not known.
    pub(super) base: u64,
    /// Whether the network marks datagrams, of this session or another.
    pub(super) marks: bool,
    /// Acknowledged datagrams that a delay above the target is judged by.
    pub(super) samples: u32,
    /// Datagrams that were on the wire before it came.
    pub(super) flight: u32,
}

/// A congestion controller.
pub(super) trait Controller {
    /// Datagrams that may be on the wire, at least one.
    fn limit(&self) -> u32;

    /// Nanoseconds from one datagram to the next; zero where they need no distance.
    fn gap(&self) -> u64;

    /// Something was settled.
    fn on_acked(&mut self, sample: &AckSample);

    /// `count` datagrams were declared lost.
    fn on_lost(&mut self, count: u32);

    /// A retransmission time-out: nothing is known of the path any more.
    fn on_timeout(&mut self);

    /// Something is sent after a long time in which nothing was on the wire.
    fn on_idle(&mut self);
}
