//! What the upper layer and the stack see of TCP: names, options, errors, events, and the trait that the stack
//! implements to send.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use crate::cc::Algorithm;
use crate::region::Extent;
use crate::wire::tcp::Header;

/// A connection of one [`Endpoint`](super::Endpoint): a slot and the slot's generation, so that a stale id finds
/// nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId {
    pub(super) index: u32,
    pub(super) generation: u32,
}

/// A listener of one [`Endpoint`](super::Endpoint).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId {
    pub(super) index: u32,
    pub(super) generation: u32,
}

/// The caller's name for an extent that was given to a connection; it comes back with [`Event::Released`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub u64);

/// The options of a connection. Those that a listener has are its connections'.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The least retransmission time-out: 200 ms for strangers, whose acknowledgements may be delayed that long
    /// (RFC 6298 section 2.4 asks for a second; no stack keeps to that).
    pub min_rto: Duration,
    /// The greatest retransmission time-out (RFC 6298 section 2.5: at least 60 s).
    pub max_rto: Duration,
    /// The retransmission time-out until a round-trip time has been measured (RFC 6298 section 2.1: 1 s).
    pub initial_rto: Duration,
    /// An acknowledgement waits at most this long for data to go with or for a second segment (RFC 9293 section
    /// 3.8.6.3: less than 0.5 s). It adapts below that to the peer's rhythm.
    pub max_ack_delay: Duration,
    /// Nagle's algorithm (RFC 9293 section 3.7.4).
    pub nagle: bool,
    /// Bytes that may wait to be sent or acknowledged.
    pub send_buffer: usize,
    /// Bytes that may wait to be read: the largest window.
    pub receive_buffer: usize,
    /// The largest segment announced and sent; the path's MTU decides if it is less.
    pub max_segment: Option<u16>,
    /// Window scaling (RFC 7323 section 2).
    pub window_scaling: bool,
    /// Timestamps and PAWS (RFC 7323 sections 3 and 5).
    pub timestamps: bool,
    /// Selective acknowledgement (RFC 2018).
    pub sack: bool,
    /// Explicit congestion notification (RFC 3168), asked for and granted.
    pub ecn: bool,
    /// The congestion control.
    pub congestion: Algorithm,
    /// The initial window in segments (RFC 6928: 10).
    pub initial_window: u32,
    /// Spread segments over the round-trip time even if the congestion control does not ask for it.
    pub pacing: bool,
    /// Keep-alive (RFC 9293 section 3.8.4), off by default as it asks.
    pub keep_alive: Option<KeepAlive>,
    /// How long data may stay unacknowledged before the connection fails (RFC 5482); `None`: until the
    /// retransmissions are used up (about 15 minutes).
    pub user_timeout: Option<Duration>,
    /// SYN retransmissions before a connection attempt fails.
    pub syn_retries: u8,
    /// How long TIME-WAIT lasts (RFC 9293 section 3.6.1: twice the maximum segment lifetime).
    pub time_wait: Duration,
    /// How long a closed connection waits in FIN-WAIT-2 for the peer's FIN.
    pub fin_wait_2: Duration,
    /// Probe for a larger path MTU, and for a black hole, by segments of data (RFC 4821).
    pub mtu_probing: bool,
}

impl Options {
    /// For peers anywhere: what is safe on the Internet.
    pub fn internet() -> Self {
        Self {
            min_rto: Duration::from_millis(200),
            max_rto: Duration::from_secs(120),
            initial_rto: Duration::from_secs(1),
            max_ack_delay: Duration::from_millis(40),
            nagle: false,
            send_buffer: 4 << 20,
            receive_buffer: 4 << 20,
            max_segment: None,
            window_scaling: true,
            timestamps: true,
            sack: true,
            ecn: false,
            congestion: Algorithm::Cubic,
            initial_window: 10,
            pacing: false,
            keep_alive: None,
            user_timeout: None,
            syn_retries: 6,
            time_wait: Duration::from_secs(60),
            fin_wait_2: Duration::from_secs(60),
            mtu_probing: true,
        }
    }

    /// For the hosts of a group, which all run this stack within one data centre: short time-outs, and buffers of what
    /// 100 Gb/s carry in 80 us. Larger ones would only stand in queues, and fall out of the caches there.
    pub fn group() -> Self {
        Self {
            min_rto: Duration::from_millis(1),
            initial_rto: Duration::from_millis(10),
            max_ack_delay: Duration::from_micros(200),
            time_wait: Duration::from_secs(1),
            send_buffer: 1 << 20,
            receive_buffer: 1 << 20,
            ..Self::internet()
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::internet()
    }
}

/// When an idle connection's peer is asked whether it is still there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    /// Silence before the first probe (RFC 9293 section 3.8.4: two hours by default).
    pub idle: Duration,
    /// Time between probes.
    pub interval: Duration,
    /// Probes without an answer after which the connection fails.
    pub probes: u8,
}

impl Default for KeepAlive {
    fn default() -> Self {
        Self { idle: Duration::from_secs(7200), interval: Duration::from_secs(75), probes: 9 }
    }
}

/// Limits of an endpoint, over all connections.
#[derive(Clone, Debug)]
pub struct Config {
    /// Connections at once, those in TIME-WAIT not counted.
    pub max_connections: usize,
    /// Connections in TIME-WAIT at once; the oldest goes when there are more.
    pub max_time_wait: usize,
    /// Half-open connections per listener; above, SYN cookies answer (RFC 4987 section 3.6).
    pub max_half_open: usize,
    /// Bytes of received data that all connections together may hold out of order or unread.
    pub max_receive_memory: usize,
    /// Bytes that all connections together may hold of what was written and is not acknowledged.
    pub max_send_memory: usize,
    /// Challenge acknowledgements and other answers to unproven segments, per second (RFC 5961 section 7).
    pub challenge_acks_per_second: u32,
    /// Resets sent to segments without a connection, per second.
    pub resets_per_second: u32,
    /// The key of initial sequence numbers, cookies and timestamps (RFC 6528), from the system's random source.
    pub key: [u8; 32],
    /// The options of connections and listeners that are opened without any.
    pub options: Options,
}

impl Config {
    /// Defaults with a key.
    pub fn new(key: [u8; 32]) -> Self {
        Self {
            max_connections: 1 << 20,
            max_time_wait: 1 << 18,
            max_half_open: 1024,
            max_receive_memory: 1 << 30,
            max_send_memory: 1 << 30,
            challenge_acks_per_second: 1000,
            resets_per_second: 1000,
            key,
            options: Options::default(),
        }
    }
}

/// The states of RFC 9293 section 3.3.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum StateName {
    Listen,
    SynSent,
    SynReceived,
    Established,
    FinWait1,
    FinWait2,
    CloseWait,
    Closing,
    LastAck,
    TimeWait,
    Closed,
}

/// Why a connection ended otherwise than by both ends' FIN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The peer answered the SYN with a reset.
    #[error("{remote} refused the connection; see that a server listens on that port")]
    Refused {
        /// The peer.
        remote: SocketAddr,
    },
    /// The peer reset the connection.
    #[error("{remote} reset the connection; its program closed it with data unread, or was restarted")]
    Reset {
        /// The peer.
        remote: SocketAddr,
    },
    /// The peer does not answer.
    #[error(
        "{remote} has not answered for {after:?}; see that it is up and that no filter drops its packets"
    )]
    TimedOut {
        /// The peer.
        remote: SocketAddr,
        /// Since when.
        after: Duration,
    },
    /// There is no way to the peer.
    #[error("{remote} cannot be reached; give a port a route to it and see that its next hop answers")]
    Unreachable {
        /// The peer.
        remote: SocketAddr,
    },
    /// This side gave the connection up.
    #[error("the connection to {remote} was aborted by this side")]
    Aborted {
        /// The peer.
        remote: SocketAddr,
    },
}

/// Why a call on a connection did not do what it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Not now: wait for the event.
    #[error("nothing can be done at present; wait for the connection's next event")]
    WouldBlock,
    /// There is no such connection, or it has been closed by this side.
    #[error("no such connection: it was closed by this side; open another")]
    Unknown,
    /// The sending side has been shut.
    #[error("this side has shut down sending; what comes after the FIN needs another connection")]
    Shut,
    /// The connection has failed.
    #[error(transparent)]
    Failed(#[from] Failure),
}

/// Why there is no connection attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The remote address cannot be connected to.
    #[error("{remote} does not name one host and port; connect to a unicast address and a port above 0")]
    BadRemote {
        /// What was given.
        remote: SocketAddr,
    },
    /// The local address is of another family, or the pair is in use.
    #[error("{local} to {remote} is in use or mixes address families; choose another local port, or port 0")]
    InUse {
        /// The local address.
        local: SocketAddr,
        /// The remote address.
        remote: SocketAddr,
    },
    /// There is no way to the remote address.
    #[error("no port has a route to {remote}; add a route or a gateway to a port's configuration")]
    NoRoute {
        /// The remote address.
        remote: SocketAddr,
    },
    /// The local address is nobody's here.
    #[error("no port has the address {local}; connect from a port's address, or from 0.0.0.0 or ::")]
    NotOurs {
        /// The local address.
        local: SocketAddr,
    },
    /// All ports towards that address are in use.
    #[error("no local port towards {remote} is free; close connections, or use a further local address")]
    NoFreePort {
        /// The remote address.
        remote: SocketAddr,
    },
    /// The endpoint is full.
    #[error(
        "{limit} connections are open, the most that the configuration allows; close some or raise max_connections"
    )]
    TooMany {
        /// The limit.
        limit: usize,
    },
}

/// Why there is no listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// Another listener has the address.
    #[error("TCP {local}: another listener has this address; close it, or choose another port")]
    InUse {
        /// What was asked for.
        local: SocketAddr,
    },
    /// No port is free.
    #[error("TCP {local}: no port is free; close listeners, or name a port")]
    NoFreePort {
        /// What was asked for.
        local: SocketAddr,
    },
}

/// What has changed; the caller looks at the connection for more. Each is told once per change, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A connection can be accepted.
    Acceptable(ListenerId),
    /// A connection that this side asked for is established.
    Connected(ConnectionId),
    /// There is something to read: data, or the end of the data.
    Readable(ConnectionId),
    /// There is room to write again after [`Error::WouldBlock`].
    Writable(ConnectionId),
    /// All bytes of an extent are acknowledged, or will never be sent. Its memory may change once
    /// `Stack::holds_extents` is false.
    Released(ConnectionId, Token),
    /// The connection has failed.
    Failed(ConnectionId, Failure),
    /// Both directions are finished, everything sent is acknowledged.
    Closed(ConnectionId),
}

/// What a connection looks like at present.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Info {
    /// The state.
    pub state: StateName,
    /// This side's address.
    pub local: SocketAddr,
    /// The peer's.
    pub remote: SocketAddr,
    /// Bytes written and not yet acknowledged.
    pub unacknowledged: usize,
    /// Of these, bytes that have been sent.
    pub in_flight: usize,
    /// Of these, bytes that were never sent: the congestion window or the peer's holds them back.
    pub unsent: usize,
    /// Bytes that can be written.
    pub writable: usize,
    /// Bytes that can be read.
    pub readable: usize,
    /// The smoothed round-trip time, once one was measured.
    pub srtt: Option<Duration>,
    /// Its variation.
    pub rttvar: Duration,
    /// The least round-trip time seen.
    pub min_rtt: Option<Duration>,
    /// The retransmission time-out, with its back-off.
    pub rto: Duration,
    /// The congestion window in bytes.
    pub congestion_window: u64,
    /// The slow-start threshold in bytes.
    pub slow_start_threshold: u64,
    /// Payload bytes per segment sent.
    pub mss: u16,
    /// The peer's window in bytes.
    pub peer_window: u32,
    /// The window that this side announced last, in bytes.
    pub own_window: u32,
    /// The window shifts, this side's and the peer's; `None` without window scaling.
    pub window_shifts: Option<(u8, u8)>,
    /// Whether timestamps are used.
    pub timestamps: bool,
    /// Whether selective acknowledgements are used.
    pub sack: bool,
    /// Whether ECN is used.
    pub ecn: bool,
    /// Segments sent again.
    pub retransmitted: u64,
    /// Retransmission time-outs.
    pub timeouts: u64,
    /// Of these, and of fast retransmissions, those that were found to be spurious.
    pub spurious: u64,
    /// Tail-loss probes.
    pub probes: u64,
    /// The extent of reordering seen, as a time (RFC 8985 section 6.2).
    pub reordering_window: Duration,
    /// Payload bytes acknowledged by the peer.
    pub bytes_acked: u64,
    /// Payload bytes received in order.
    pub bytes_received: u64,
}

/// What the stack knows about a received segment beside its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentMeta {
    /// The sender's address.
    pub source: IpAddr,
    /// The address of ours that it was sent to.
    pub destination: IpAddr,
    /// The IP header said "congestion experienced" (RFC 3168 section 5).
    pub congestion_experienced: bool,
}

/// The payload of a received segment: one piece, or several if the device coalesced or scattered it. Borrowed for
/// the call.
#[derive(Clone, Copy, Debug, Default)]
pub struct Payload<'a> {
    /// The first piece.
    pub head: &'a [u8],
    /// Further pieces.
    pub rest: &'a [&'a [u8]],
}

impl<'a> Payload<'a> {
    /// A payload in one piece.
    pub const fn new(head: &'a [u8]) -> Self {
        Self { head, rest: &[] }
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.head.len() + self.rest.iter().map(|piece| piece.len()).sum::<usize>()
    }

    /// Whether there are no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The pieces, in order.
    pub fn pieces(&self) -> impl Iterator<Item = &'a [u8]> {
        core::iter::once(self.head).chain(self.rest.iter().copied())
    }
}

/// A segment as the connection sees it: the header was parsed and the checksum checked.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// The header.
    pub header: Header,
    /// The payload.
    pub payload: Payload<'a>,
    /// See [`SegmentMeta::congestion_experienced`].
    pub congestion_experienced: bool,
}

/// Where a segment goes, and how its IP header is marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// This side's address and port.
    pub local: SocketAddr,
    /// The peer's.
    pub remote: SocketAddr,
    /// Marks the packet ECN-capable, ECT(0).
    pub ect: bool,
}

/// What a way to a peer can carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Largest IP packet in bytes.
    pub mtu: u16,
    /// Largest TCP payload in bytes that one [`Emit::emit`] may hand over, to be split into segments below.
    pub max_payload: u32,
    /// Most extents of one [`Emit::emit`].
    pub max_extents: usize,
    /// Most segments that one [`Emit::emit`] may be split into.
    pub max_segments: u32,
}

/// What became of an emitted segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Emitted {
    /// It is on its way (or lost like any packet: its neighbour does not answer).
    Sent,
    /// There is no room at present: try again in the next turn.
    NoRoom,
    /// There is no route.
    NoRoute,
}

/// How the endpoint sends; the stack implements it over its ports.
pub trait Emit {
    /// What the way from `local` to `remote` can carry; `None` if there is no route.
    fn path(&mut self, local: IpAddr, remote: IpAddr) -> Option<Path>;

    /// The local address that packets to `remote` leave from; `None` if there is no route.
    fn source(&mut self, remote: IpAddr) -> Option<IpAddr>;

    /// Sends a segment of a TCP header (its checksum zero: it is filled in below) and payload. If the payload is
    /// longer than `segment_size`, the segment is split into segments of that much payload each, whose sequence
    /// numbers follow; FIN and PSH stay on the last, CWR on the first.
    fn emit(&mut self, to: &Destination, header: &[u8], payload: &[Extent], segment_size: u16) -> Emitted;

    /// The connection has sent all that it has: what was emitted may leave before the sender's books are brought up to date.
    /// Whether that is worth while is below's to say; it leaves anyhow when the turn is over.
    fn hurry(&mut self) {}
}
