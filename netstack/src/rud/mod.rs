//! RUD: reliable, unordered delivery of datagrams over UDP (`spec.md` beside this file is its RFC).
//!
//! TCP delivers a stream: one lost segment holds back all that came after it. A gradient needs no stream. Each RUD
//! datagram carries its own place, so it is checked and delivered the moment it arrives, in any order, exactly once;
//! the sender learns when its memory is free again.
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
//! - Small messages that are queued behind each other share a datagram, and go before large ones.
//! - Lost datagrams are found by time, not by counting (as TCP's RACK does), so spraying over paths does no harm.
//! - A session is made of parts that keep their own state: `sender` and `receiver` by PSN, `acks` (when to acknowledge, when to
//!   ask for it), `asks` (probes of this end), `recovery` (round-trip time, losses, timers), `liveness` (heartbeats), `paths` (addresses and
//!   source ports), `spray` (which path a datagram takes, and which are left out), `mtu` (how long a datagram may be), `pieces` (messages
//!   that are received in parts), and `cc`, congestion control.
//! - `seal` stands between a session and the network, where sessions are sealed: the session sees datagrams as they are without.

mod acks;
mod api;
mod asks;
mod cc;
mod crc;
mod deadlines;
mod endpoint;
mod liveness;
mod mtu;
mod paths;
mod pieces;
mod receiver;
mod recovery;
mod seal;
mod sender;
mod session;
mod shares;
mod spray;
mod table;
#[cfg(test)]
mod tests;

pub(crate) use api::NoSink;
pub use api::{
    Clue, Config, Counters, DatagramMeta, Destination, Disposition, Emit, EndpointCounters, Failure,
    MAX_DATAGRAM, MAX_MESSAGE_HEADER, MessageToken, OpenError, RefusalReason, SEAL_BYTES, SMALL_MESSAGE,
    SendError, SessionId, SessionParams, Sink, datagram_room, payload_room,
};
pub use endpoint::Endpoint;
pub use seal::SealSecret;

use core::time::Duration;

/// A time of the configuration in nanoseconds. A day stands for "never", and keeps sums far from overflow.
fn nanos(time: Duration) -> u64 {
    time.min(Duration::from_secs(86_400)).as_nanos() as u64
}
