//! RUD: reliable, unordered delivery of datagrams over UDP (`spec.md` beside this file is its RFC).
//!
//! TCP delivers a stream: one lost segment holds back all that came after it. A gradient needs no stream. Each RUD
//! datagram says by itself what it belongs to, so it is checked and delivered the moment it arrives, in any order,
//! exactly once; the sender learns when its memory is free again.
//!
//! ```text
//!   send(header, extent, token)                         deliver(header, payload) -> Consumed | Refused
//!        |                                                   ^
//!     sender: ring by PSN ---- datagram: tag, PSN, CRC ----> receiver: bitmap by PSN
//!        |                                                   |
//!   released(token) <---- acknowledgement: floor + words ----'
//! ```
//!
//! - [`Endpoint`] is all sessions of one shard. It is sans-IO: the time, the datagrams and a place to put outgoing
//!   ones are arguments.
//! - A session needs no handshake: both ends got its tags from an authenticated rendezvous.
//! - Lost datagrams are found by time, not by counting (as TCP's RACK does), so spraying over paths does no harm.
//! - `window.rs` is the seam for congestion control.

mod api;
mod crc;
mod endpoint;
mod output;
mod receiver;
mod recovery;
mod sender;
mod session;
mod table;
#[cfg(test)]
mod tests;
mod window;

pub use api::{
    Config, Counters, DatagramMeta, Destination, Disposition, Emit, EndpointCounters, Failure,
    MAX_MESSAGE_HEADER, MAX_PAYLOAD, MessageToken, NoSink, OpenError, RefusalReason, SendError, SessionId,
    SessionParams, Sink, payload_room,
};
pub use endpoint::Endpoint;

use core::time::Duration;

/// The configuration's times in nanoseconds, for the hot paths.
#[derive(Clone, Copy, Debug)]
struct Times {
    ack_every: u32,
    ack_delay: u64,
    min_rto: u64,
    max_rto: u64,
    min_probe: u64,
    initial_rtt: u64,
    min_reordering: u64,
    refusal_backoff: u64,
    heartbeat: u64,
    dead_after: u64,
}

impl From<&Config> for Times {
    fn from(config: &Config) -> Self {
        // A day stands for "never", and keeps sums far from overflow.
        let nanos = |time: Duration| time.min(Duration::from_secs(86_400)).as_nanos() as u64;
        Self {
            ack_every: config.ack_every,
            ack_delay: nanos(config.ack_delay),
            min_rto: nanos(config.min_rto),
            max_rto: nanos(config.max_rto),
            min_probe: nanos(config.min_probe),
            initial_rtt: nanos(config.initial_rtt),
            min_reordering: nanos(config.min_reordering),
            refusal_backoff: nanos(config.refusal_backoff),
            heartbeat: nanos(config.heartbeat),
            dead_after: nanos(config.dead_after),
        }
    }
}
