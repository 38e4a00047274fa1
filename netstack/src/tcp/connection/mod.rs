//! One connection: RFC 9293's state machine around a [`Sender`] and a [`Receiver`].
//!
//! SIGNATURES FIRST (bodies follow): what the endpoint may call.

use alloc::sync::Arc; // std::sync::Arc
use core::net::SocketAddr;
use core::time::Duration;
use std::collections::VecDeque;

use super::memory::Memory;
use super::receiver::{Chunk, Pool};
use super::sender::Sender;
use super::{ConnectionId, Emit, Error, Event, Failure, Info, Options, Segment, StateName, Token};
use crate::region::Extent;
use crate::time::Instant;
use crate::wire::tcp::{Header, SeqNumber};

/// What a connection shares with the others of its endpoint, lent for a call.
pub(crate) struct Context<'a> {
    /// The connection's own name, for events.
    pub(crate) id: ConnectionId,
    /// Events are appended.
    pub(crate) events: &'a mut VecDeque<Event>,
    /// Memory of what was written.
    pub(crate) memory: &'a mut Memory,
    /// Memory of what was received, and its limit (receiver::Pool::new(max_receive_memory)).
    pub(crate) pool: &'a mut Pool,
    /// Challenge acknowledgements per second (RFC 5961 section 7).
    pub(crate) challenge: &'a mut RateLimit,
    /// Scratch for tokens (empty between calls; the connection turns them into events).
    pub(crate) released: &'a mut Vec<Token>,
}

/// So many per second, over all connections: `RateLimit::new(per_second)`, `take(now) -> bool`.
pub(crate) struct RateLimit {}

/// The two ends of a connection to be, and what the endpoint chose for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Open {
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    /// The initial sequence number (RFC 6528).
    pub(crate) iss: SeqNumber,
    /// Added to the millisecond clock in timestamps (RFC 7323 section 5.4: not guessable).
    pub(crate) timestamp_offset: u32,
    /// Largest IP packet of the path.
    pub(crate) mtu: u16,
}

/// What a SYN cookie kept of the peer's SYN. Timestamps and ECN by the ACK itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CookieTerms {
    /// The peer's MSS option, rounded down.
    pub(crate) mss: u16,
    /// The peer's shift; `None`: no scaling in either direction.
    pub(crate) window_scale: Option<u8>,
    pub(crate) sack: bool,
    pub(crate) ecn: bool,
    pub(crate) timestamps: bool,
}

/// What the endpoint has to do after a call.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(crate) enum Disposition {
    /// Nothing: look at `wants_transmit` and `next_deadline` again.
    Keep,
    /// A passively opened connection has completed its handshake: it can be accepted.
    Opened,
    /// Send this header (no payload, no ECT) and keep the connection.
    Answer(Header),
    /// Send this reset; the connection is over (as `Remove`).
    Reset(Header),
    /// The protocol is over: take it out of the table. The slot stays until the user has closed too
    /// (`Connection::released`), for what is still to be read and for its error.
    Remove,
    /// As `Remove`, and the pair of addresses stays in TIME-WAIT. The header is the acknowledgement of the peer's
    /// FIN: send it now.
    TimeWait(TimeWaitRecord, Option<Header>),
}

/// What TIME-WAIT needs to know (RFC 9293 section 3.10.7.4, RFC 1337, RFC 6191).
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimeWaitRecord {
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    /// Our next sequence number (one after the FIN).
    pub(crate) snd_nxt: SeqNumber,
    /// The peer's next (one after its FIN).
    pub(crate) rcv_nxt: SeqNumber,
    /// The window field of our last acknowledgement.
    pub(crate) window: u16,
    /// The peer's latest timestamp, if timestamps are used.
    pub(crate) ts_recent: Option<u32>,
    pub(crate) timestamp_offset: u32,
    /// How long (Options::time_wait).
    pub(crate) duration: Duration,
}

/// How a turn of transmission ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Nothing more to send at present.
    Done,
    /// The quantum is used up.
    More,
    /// The device has no room: again in the next turn.
    Blocked,
}

pub(crate) struct Connection {}

impl Connection {
    /// Active open: SYN-SENT. `transmit` sends the SYN.
    pub(crate) fn connect(now: Instant, open: &Open, options: Arc<Options>) -> Self;
    /// Passive open by this SYN: SYN-RECEIVED. `transmit` sends the SYN-ACK. What else the SYN carries (data, FIN)
    /// is not taken and comes again.
    pub(crate) fn accept(now: Instant, open: &Open, options: Arc<Options>, syn: &Segment<'_>) -> Self;
    /// Passive open by an ACK whose cookie was right: SYN-RECEIVED with the SYN-ACK sent. Give the ACK to
    /// `on_segment` next, which returns `Opened`.
    pub(crate) fn from_cookie(now: Instant, open: &Open, options: Arc<Options>, terms: &CookieTerms, ack: &Segment<'_>) -> Self;

    pub(crate) fn on_segment(&mut self, now: Instant, segment: &Segment<'_>, cx: &mut Context<'_>) -> Disposition;
    pub(crate) fn on_timer(&mut self, now: Instant, cx: &mut Context<'_>) -> Disposition;
    pub(crate) fn next_deadline(&self) -> Option<Instant>;
    pub(crate) fn wants_transmit(&self, now: Instant) -> bool;
    /// Sends up to `quantum` segments (of payload; pure ACKs count one).
    pub(crate) fn transmit(&mut self, now: Instant, quantum: u32, emit: &mut impl Emit, cx: &mut Context<'_>) -> Turn;
    /// An ICMP error about a segment of ours (RFC 5927: only if `quoted` is in flight). `Disposition::Remove` if it
    /// ends a connection attempt.
    pub(crate) fn on_icmp(&mut self, now: Instant, kind: IcmpKind, quoted: SeqNumber, cx: &mut Context<'_>) -> Disposition;

    pub(crate) fn write(&mut self, now: Instant, bytes: &[u8], cx: &mut Context<'_>) -> Result<usize, Error>;
    pub(crate) fn write_extent(&mut self, now: Instant, extent: Extent, token: Token, cx: &mut Context<'_>) -> Result<(), Error>;
    /// 0: the end of the data.
    pub(crate) fn read(&mut self, now: Instant, buffer: &mut [u8], cx: &mut Context<'_>) -> Result<usize, Error>;
    /// None: the end of the data.
    pub(crate) fn read_chunk(&mut self, now: Instant, cx: &mut Context<'_>) -> Result<Option<Chunk>, Error>;
    /// FIN after what was written; reading goes on.
    pub(crate) fn shutdown(&mut self, now: Instant, cx: &mut Context<'_>) -> Result<(), Error>;
    /// The user lets go: FIN after what was written, or a reset if data is unread. `released` is true from now on; no
    /// events follow except `Released` tokens.
    pub(crate) fn close(&mut self, now: Instant, cx: &mut Context<'_>) -> Disposition;
    pub(crate) fn abort(&mut self, now: Instant, cx: &mut Context<'_>) -> Disposition;
    /// The user has closed or aborted.
    pub(crate) fn released(&self) -> bool;
    /// The protocol is over (Remove, Reset or TimeWait was returned).
    pub(crate) fn is_over(&self) -> bool;
    pub(crate) fn set_options(&mut self, now: Instant, options: Arc<Options>);
    pub(crate) fn options(&self) -> &Arc<Options>;
    pub(crate) fn info(&self) -> Info;
    pub(crate) fn state(&self) -> StateName;
    pub(crate) fn local(&self) -> SocketAddr;
    pub(crate) fn remote(&self) -> SocketAddr;
}

/// What an ICMP error says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IcmpKind {
    /// Host or network unreachable, time exceeded: soft (RFC 9293 section 3.9.2.2).
    Unreachable,
    /// Protocol or port unreachable: hard before the connection is established (RFC 5461).
    Refused,
    /// Packet too big: the next hop's MTU.
    TooBig(u16),
}
