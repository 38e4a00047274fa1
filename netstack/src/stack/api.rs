//! A stack's interface besides the stack itself: its configuration, names, results and errors.

use core::net::IpAddr;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::ip::neighbour;
use crate::ip::reassembly;
use crate::rss::Rss;
#[cfg(feature = "rud")]
use crate::rud;
use crate::tcp;
use crate::time::Instant;

/// The configuration of a stack.
#[derive(Clone, Debug)]
pub struct StackConfig {
    /// The RUD endpoint.
    #[cfg(feature = "rud")]
    pub rud: rud::Config,
    /// The UDP port that RUD datagrams arrive at; no socket can be bound to it. `None`: the stack takes no RUD.
    #[cfg(feature = "rud")]
    pub rud_port: Option<u16>,
    /// The TCP endpoint. [`StackConfig::new`] makes its key from `seed`; a stack that
    /// unauthenticated peers can reach should have one from the system's random source.
    pub tcp: tcp::Config,
    /// How the device deals flows out to shards, and which of them this stack is: [`Stack::tcp_connect`] then takes source
    /// ports whose answers arrive here. `None` if everything arrives here.
    ///
    /// [`Stack::tcp_connect`]: super::Stack::tcp_connect
    pub rss: Option<(Rss, u16)>,
    /// The seed of choices that need not be the same everywhere.
    pub seed: u64,
    /// The neighbour caches.
    pub neighbours: neighbour::Config,
    /// Limits and time-outs of datagrams that come in fragments.
    pub reassembly: reassembly::Config,
    /// ICMP errors sent per second at most; none if 0.
    pub icmp_errors_per_second: u32,
    /// Frames of data that may wait for each port's device.
    pub tx_frames: usize,
    /// Frames received from each port in one poll, at most; fewer where those of its MTU would be more than 128 KiB, but 16 at least.
    pub rx_budget: usize,
    /// Packets of the stack's own (copied datagrams, long echo replies) that may be in flight, per port.
    pub scratch_slots: u16,
}

impl StackConfig {
    /// Defaults, without RUD.
    pub fn new(seed: u64) -> Self {
        Self {
            #[cfg(feature = "rud")]
            rud: rud::Config::default(),
            #[cfg(feature = "rud")]
            rud_port: None,
            tcp: tcp::Config::new(key(seed)),
            rss: None,
            seed,
            neighbours: neighbour::Config::default(),
            reassembly: reassembly::Config::default(),
            icmp_errors_per_second: 100,
            tx_frames: 256,
            rx_budget: 64,
            scratch_slots: 64,
        }
    }

    /// The same with RUD at UDP port `port`.
    #[cfg(feature = "rud")]
    #[must_use]
    pub fn with_rud(self, port: u16) -> Self {
        Self { rud_port: Some(port), ..self }
    }

    /// The UDP port that no socket can be bound to.
    pub(super) fn reserved_port(&self) -> Option<u16> {
        #[cfg(feature = "rud")]
        return self.rud_port;
        #[cfg(not(feature = "rud"))]
        None
    }
}

/// A key that is as good as its seed.
fn key(seed: u64) -> [u8; 32] {
    let mut key = [0; 32];
    SmallRng::seed_from_u64(seed).fill(&mut key);
    key
}

/// Names a port of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortId(pub(super) usize);

impl PortId {
    /// Its number, from 0 in the order of [`Stack::add_port`](super::Stack::add_port).
    pub fn index(self) -> usize {
        self.0
    }
}

/// The work done by one poll.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Frames received.
    pub frames_in: usize,
    /// Frames that devices took.
    pub frames_out: usize,
}

impl Progress {
    /// Whether nothing moved.
    pub fn is_idle(self) -> bool {
        self.frames_in == 0 && self.frames_out == 0
    }
}

/// Why something could not be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// No port has a route.
    #[error("no port has a route to {remote}; add a route or a gateway to a port's configuration")]
    NoRoute {
        /// The destination.
        remote: IpAddr,
    },
    /// Groups and broadcasts are not supported.
    #[error("{remote} does not name one host; only unicast destinations are supported")]
    NotUnicast {
        /// The destination.
        remote: IpAddr,
    },
    /// It is the address of the port that leads there.
    #[error(
        "{remote} is an address of this stack, which sends nothing to itself; send to another host, or hand the data over within the program"
    )]
    Own {
        /// The destination.
        remote: IpAddr,
    },
    /// No port has the source address.
    #[error(
        "no port can send from {local} to there; bind to a port's address, or to 0.0.0.0 for IPv4 and :: for IPv6"
    )]
    NotOurs {
        /// The source address.
        local: IpAddr,
    },
    /// The next hop does not answer.
    #[error("{remote} is unreachable: {next_hop} does not answer; see that it is up and on this link")]
    Unreachable {
        /// The destination.
        remote: IpAddr,
        /// The neighbour that was requested.
        next_hop: IpAddr,
    },
    /// The datagram does not fit a frame.
    #[error(
        "a datagram of {len} bytes exceeds the {limit} that fit a frame; send smaller ones, or raise the MTU"
    )]
    TooLong {
        /// Bytes given, the caller's header included.
        len: usize,
        /// Bytes that fit.
        limit: usize,
    },
    /// The header does not fit in front of an extent.
    #[error("a header of {len} bytes is too long to go in front of an extent; send it as bytes")]
    HeaderTooLong {
        /// Bytes given.
        len: usize,
    },
    /// Nothing fits behind the headers.
    #[error("no payload fits behind the headers within an MTU of {mtu}; raise the MTU")]
    MtuTooSmall {
        /// The port's MTU.
        mtu: u16,
    },
    /// No room at present.
    #[error("the port's transmit queue is full; poll and try again")]
    Full,
    /// The socket is closed, or the destination port is zero.
    #[error("no open UDP socket, or destination port 0; bind a socket and name a port")]
    BadSocket,
}

/// An ICMP echo message that was received: an answer to [`Stack::ping`](super::Stack::ping), or another host's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedEcho {
    /// The sender.
    pub from: IpAddr,
    /// As given to the request.
    pub identifier: u16,
    /// As given to the request.
    pub sequence: u16,
    /// Bytes of data in it.
    pub len: usize,
    /// When the stack took it from the device.
    pub at: Instant,
}
