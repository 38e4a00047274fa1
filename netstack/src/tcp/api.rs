//! TCP's interface to the upper layer and the stack: names, errors, events, and the trait that the stack implements to
//! send.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

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

/// The caller's name for an extent that was given to a connection; it comes back with [`TcpEvent::Released`] or
/// [`TcpEvent::Dropped`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReleaseToken(pub u64);

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
    /// There is no route to the peer.
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

/// Why a call on a connection failed.
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
    #[error("this side has shut down sending; further data needs another connection")]
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
        /// The address given.
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
    /// There is no route to the remote address.
    #[error("no port has a route to {remote}; add a route or a gateway to a port's configuration")]
    NoRoute {
        /// The remote address.
        remote: SocketAddr,
    },
    /// The remote address is that of the port that leads there.
    #[error(
        "{remote} is an address of this stack, which sends nothing to itself; connect to another host, or hand the data over within the program"
    )]
    Own {
        /// The remote address.
        remote: SocketAddr,
    },
    /// The local address is not configured on this stack.
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
        /// The local address requested.
        local: SocketAddr,
    },
    /// No port has the address, so no connection could come to it.
    #[error(
        "TCP {local}: no port of this stack has this address; listen at a port's address, or at 0.0.0.0 or [::]"
    )]
    NotOurs {
        /// The local address requested.
        local: SocketAddr,
    },
    /// No port is free.
    #[error("TCP {local}: no port is free; close listeners, or name a port")]
    NoFreePort {
        /// The local address requested.
        local: SocketAddr,
    },
}

/// A change; the caller looks at the connection for more. Each change is reported once, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TcpEvent {
    /// A connection can be accepted.
    Acceptable(ListenerId),
    /// A connection that this side opened is established.
    Connected(ConnectionId),
    /// There is something to read: data, or the end of the data.
    Readable(ConnectionId),
    /// There is room to write again after [`Error::WouldBlock`].
    Writable(ConnectionId),
    /// All bytes of an extent are acknowledged, and no frame refers to it: its memory is free.
    Released(ConnectionId, ReleaseToken),
    /// The connection has ended before all bytes of an extent were acknowledged; its memory is free likewise.
    Dropped(ConnectionId, ReleaseToken),
    /// The connection has failed.
    Failed(ConnectionId, Failure),
    /// Both directions are finished, everything sent is acknowledged.
    Closed(ConnectionId),
}

/// The present state of a connection.
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
    /// Payload bytes per segment that were announced to the peer (MSS).
    pub own_mss: u16,
    /// The largest payload that came in one segment in order, `own_mss` at most; zero if none came.
    pub received_mss: u16,
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

/// A sender's response to losses and congestion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Repair {
    /// Nothing has happened.
    #[default]
    None,
    /// Segments arrived out of order, none counts as lost.
    Disorder,
    /// The congestion window was reduced because the peer echoed a mark (RFC 3168).
    Reduced,
    /// Fast recovery (RFC 6675, RFC 8985).
    Recovery,
    /// Repair after a retransmission time-out (RFC 5681, RFC 5682).
    Loss,
}

/// How the sending of a connection goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sending {
    /// The repair that is going on.
    pub repair: Repair,
    /// Segments that were sent and not acknowledged cumulatively.
    pub out: u32,
    /// Of these, segments selectively acknowledged; without SACK as many as there were duplicate acknowledgements.
    pub sacked: u32,
    /// Of those out, segments that count as lost, whether sent again or not.
    pub lost: u32,
    /// Of those out, segments that were sent again and are believed to be in flight.
    pub resent: u32,
    /// Retransmission time-outs without progress.
    pub retries: u8,
    /// How long something was waiting to be sent or acknowledged; the next two are parts of it.
    pub busy: Duration,
    /// How long the peer's window kept data back.
    pub window_limited: Duration,
    /// How long all was sent that the send buffer had room for, with a writer turned away and the congestion window open.
    pub buffer_limited: Duration,
}

/// A received segment's metadata beside its bytes.
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

/// Addresses and ECN mark of a segment to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// This side's address and port.
    pub local: SocketAddr,
    /// The peer's.
    pub remote: SocketAddr,
    /// Marks the packet ECN-capable, ECT(0).
    pub ect: bool,
}

/// The limits of a path to a peer.
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

/// The outcome of emitting a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Emitted {
    /// It was sent (or lost like any packet: its neighbour does not answer).
    Sent,
    /// There is no room at present: try again in the next poll.
    NoRoom,
    /// There is no route.
    NoRoute,
}

/// How the endpoint sends; the stack implements it over its ports.
pub trait Emit {
    /// The limits of the path from `local` to `remote`; `None` if there is no route.
    fn path(&mut self, local: IpAddr, remote: IpAddr) -> Option<Path>;

    /// The local address that packets to `remote` leave from; `None` if there is no route.
    fn source(&mut self, remote: IpAddr) -> Option<IpAddr>;

    /// Sends a segment of a TCP header (its checksum zero: it is filled in below) and payload. If the payload is
    /// longer than `segment_size`, the segment is split into segments of that much payload each, whose sequence
    /// numbers follow; FIN and PSH stay on the last, CWR on the first.
    fn emit(&mut self, to: &Destination, header: &[u8], payload: &[Extent], segment_size: u16) -> Emitted;

    /// The connection has sent all that it has: the implementation may flush the emitted frames before the sender
    /// updates its state. It may ignore the call: everything leaves when the poll ends.
    fn flush_now(&mut self) {}
}
