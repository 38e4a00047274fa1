//! One connection: RFC 9293's state machine around a [`Sender`] and a [`Receiver`].
//!
//! The endpoint calls it with segments, time and the user's calls; a [`Disposition`] is the endpoint's next step, and
//! [`Connection::transmit`] sends the segments that are due at the end of a burst.

mod calls;
mod close;
mod expected;
mod handshake;
mod icmp;
mod idle;
mod input;
mod limit;
mod open;
mod output;
mod socket_pair;
#[cfg(test)]
mod tests;
mod user;

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

use self::handshake::Handshake;
pub use self::icmp::IcmpKind;
use self::idle::Idle;
use self::limit::Answers;
pub(crate) use self::limit::RateLimit;
pub(crate) use self::open::cookie_syn_ack;
use self::socket_pair::SocketPair;
use self::user::User;
use super::memory::Memory;
use super::receiver::{Pool, Receiver};
use super::sender::Sender;
use super::{ConnectionId, Failure, Info, Options, ReleaseToken, Sending, StateName, TcpEvent};
use crate::region::Extent;
use crate::time::Instant;
use crate::wire::tcp::{Header, SeqNumber};

/// State that a connection shares with the others of its endpoint, borrowed for a call.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    /// The connection's id, for events.
    pub(crate) id: ConnectionId,
    /// Events are appended.
    pub(crate) events: &'a mut VecDeque<TcpEvent>,
    /// Memory of written bytes.
    pub(crate) memory: &'a mut Memory,
    /// Memory of received bytes, and its limit.
    pub(crate) pool: &'a mut Pool,
    /// Challenge acknowledgements of a connection per second (RFC 5961 section 7).
    pub(crate) challenges: u32,
    /// Scratch: tokens that become events.
    pub(crate) released: &'a mut Vec<ReleaseToken>,
    /// Scratch: the extents of a segment.
    pub(crate) extents: &'a mut Vec<Extent>,
}

impl Context<'_> {
    /// Tokens of acknowledged extents become events. (Its callers are inlined where most acknowledgements release
    /// nothing.)
    #[inline(never)]
    fn notify_released(&mut self) {
        self.events.extend(self.released.drain(..).map(|token| TcpEvent::Released(self.id, token)));
    }

    /// Tokens of extents that were not become events.
    fn notify_dropped(&mut self) {
        self.events.extend(self.released.drain(..).map(|token| TcpEvent::Dropped(self.id, token)));
    }
}

/// The two ends of a connection to be, and the endpoint's choices for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Open {
    /// This side's address and port.
    pub(crate) local: SocketAddr,
    /// The peer's.
    pub(crate) remote: SocketAddr,
    /// The initial sequence number (RFC 6528).
    pub(crate) iss: SeqNumber,
    /// Added to the millisecond clock in timestamps (RFC 7323 section 5.4: not to be guessed).
    pub(crate) timestamp_offset: u32,
    /// Largest IP packet of the path, in bytes.
    pub(crate) mtu: u16,
}

/// The options of the peer's SYN that a SYN cookie kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CookieOptions {
    /// The peer's MSS option, rounded down.
    pub(crate) mss: u16,
    /// The peer's shift; `None`: no scaling in either direction.
    pub(crate) window_scale: Option<u8>,
    /// Selective acknowledgement was offered by both.
    pub(crate) sack: bool,
    /// ECN was requested and granted.
    pub(crate) ecn: bool,
    /// Timestamps were offered by both.
    pub(crate) timestamps: bool,
}

/// The endpoint's task after a call.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(crate) enum Disposition {
    /// Nothing: look at `wants_transmit` and `next_deadline` again.
    Keep,
    /// A passively opened connection has completed its handshake: it can be accepted.
    Opened,
    /// Send this header (no payload, not ECN-capable) and keep the connection.
    Answer(Header),
    /// Send this reset; the connection is over, as for `Remove`.
    Reset(Header),
    /// The protocol is over: take it out of the table. The slot stays until the user has closed too
    /// ([`Connection::released`]), for unread data and for its error.
    Remove,
    /// As `Remove`, and the pair of addresses stays in TIME-WAIT. The header is the acknowledgement of the peer's
    /// FIN: send it now.
    TimeWait(TimeWaitRecord, Option<Header>),
}

/// The state of a connection in TIME-WAIT (RFC 9293 section 3.10.7.4, RFC 1337, RFC 6191).
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimeWaitRecord {
    /// This side's address and port.
    pub(crate) local: SocketAddr,
    /// The peer's.
    pub(crate) remote: SocketAddr,
    /// Our next sequence number, one after the FIN.
    pub(crate) snd_nxt: SeqNumber,
    /// The peer's next, one after its FIN.
    pub(crate) rcv_nxt: SeqNumber,
    /// The window field of our last acknowledgement.
    pub(crate) window: u16,
    /// The peer's latest timestamp, if timestamps are used.
    pub(crate) ts_recent: Option<u32>,
    /// As in [`Open`].
    pub(crate) timestamp_offset: u32,
    /// How long.
    pub(crate) duration: Duration,
}

/// How a call of `transmit` ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransmitOutcome {
    /// Nothing more to send at present.
    Done,
    /// The quantum is used up.
    More,
    /// The device has no room: again in the next poll.
    Blocked,
}

/// The states of RFC 9293 section 3.3.2, each with its own data.
#[derive(Debug)]
enum ConnectionState {
    SynSent(Box<Handshake>),
    SynReceived(Box<Handshake>),
    Established,
    FinWait1,
    /// `until`: when a connection that its user has closed goes, whether the peer finishes or not; else [`NEVER`].
    FinWait2 {
        until: Instant,
    },
    CloseWait,
    Closing,
    LastAck,
    /// The protocol is over; received data may still be read.
    Over(EndReason),
}

/// No deadline.
const NEVER: Instant = Instant::from_nanos(u64::MAX);

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndReason {
    /// Both sides' FIN are acknowledged, and this side waits in TIME-WAIT (elsewhere).
    TimeWait,
    /// Both sides' FIN are acknowledged.
    Closed,
    Refused,
    Reset,
    /// After so many milliseconds.
    TimedOut(u32),
    Unreachable,
    Aborted,
}

/// The options that the handshake settled.
#[derive(Clone, Copy, Debug, Default)]
struct NegotiatedOptions {
    /// The peer's window shift; zero without scaling.
    peer_shift: u8,
    /// This side's.
    own_shift: u8,
    scaling: bool,
    timestamps: bool,
    sack: bool,
    ecn: bool,
}

/// A connection. While its handshake goes on the sender is one beyond this side's initial sequence number, and the receiver one
/// beyond the peer's once that is known.
#[derive(Debug)]
pub(crate) struct Connection {
    pair: SocketPair,
    options: Arc<Options>,
    sender: Sender,
    receiver: Receiver,
    state: ConnectionState,
    user: User,
    idle: Idle,
    answers: Answers,
    timestamp_offset: u32,
    mtu: u16,
    negotiated: NegotiatedOptions,
}

/// The value of a connection's timestamp clock: milliseconds, from an offset of its own.
///
//= RFC 7323 section 5.4: between 1 ms and 1 s a tick.
pub(crate) fn timestamp(now: Instant, offset: u32) -> u32 {
    ((now.as_nanos() / 1_000_000) as u32).wrapping_add(offset)
}

impl EndReason {
    fn timed_out(after: Duration) -> Self {
        Self::TimedOut(u32::try_from(after.as_millis()).unwrap_or(u32::MAX))
    }
}

impl Connection {
    /// This side's address and port.
    pub(crate) fn local(&self) -> SocketAddr {
        self.pair.local()
    }

    /// SND.UNA: the peer has acknowledged all numbers before it.
    pub(crate) fn acknowledged(&self) -> SeqNumber {
        self.sender.una()
    }

    /// The peer's.
    pub(crate) fn remote(&self) -> SocketAddr {
        self.pair.remote()
    }

    /// Whether these are its two ends.
    #[inline]
    pub(crate) fn is_between(
        &self,
        local: IpAddr,
        local_port: u16,
        remote: IpAddr,
        remote_port: u16,
    ) -> bool {
        self.pair.is_between(local, local_port, remote, remote_port)
    }

    /// The options.
    pub(crate) fn options(&self) -> &Arc<Options> {
        &self.options
    }

    /// Changes the options; those settled by the handshake stay.
    pub(crate) fn set_options(&mut self, options: Arc<Options>) {
        self.receiver.set_options(&options);
        self.sender.set_options(Arc::clone(&options));
        self.options = options;
    }

    /// Whether the user has closed or aborted it.
    pub(crate) fn released(&self) -> bool {
        self.user.has_released()
    }

    /// Whether the protocol is over: `Remove`, `Reset` or `TimeWait` was returned.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.state, ConnectionState::Over(_))
    }

    /// Whether the handshake is complete.
    fn is_synchronised(&self) -> bool {
        !matches!(
            self.state,
            ConnectionState::SynSent(_) | ConnectionState::SynReceived(_) | ConnectionState::Over(_)
        )
    }

    /// The state.
    pub(crate) fn state(&self) -> StateName {
        match &self.state {
            ConnectionState::SynSent(_) => StateName::SynSent,
            ConnectionState::SynReceived(_) => StateName::SynReceived,
            ConnectionState::Established => StateName::Established,
            ConnectionState::FinWait1 => StateName::FinWait1,
            ConnectionState::FinWait2 { .. } => StateName::FinWait2,
            ConnectionState::CloseWait => StateName::CloseWait,
            ConnectionState::Closing => StateName::Closing,
            ConnectionState::LastAck => StateName::LastAck,
            ConnectionState::Over(EndReason::TimeWait) => StateName::TimeWait,
            ConnectionState::Over(_) => StateName::Closed,
        }
    }

    /// Why it failed, if it did.
    pub(crate) fn failure(&self) -> Option<Failure> {
        let ConnectionState::Over(end) = &self.state else { return None };
        let remote = self.remote();
        match *end {
            EndReason::TimeWait | EndReason::Closed => None,
            EndReason::Refused => Some(Failure::Refused { remote }),
            EndReason::Reset => Some(Failure::Reset { remote }),
            EndReason::TimedOut(millis) => {
                let after = Duration::from_millis(u64::from(millis));
                Some(Failure::TimedOut { remote, after })
            }
            EndReason::Unreachable => Some(Failure::Unreachable { remote }),
            EndReason::Aborted => Some(Failure::Aborted { remote }),
        }
    }

    /// The present state.
    pub(crate) fn info(&self) -> Info {
        let negotiated = &self.negotiated;
        let mut info = Info {
            state: self.state(),
            local: self.local(),
            remote: self.remote(),
            unacknowledged: 0,
            in_flight: 0,
            unsent: 0,
            writable: 0,
            readable: self.receiver.readable(),
            srtt: None,
            rttvar: Duration::ZERO,
            min_rtt: None,
            rto: Duration::ZERO,
            congestion_window: 0,
            slow_start_threshold: 0,
            mss: 0,
            own_mss: self.receiver.mss(),
            received_mss: self.receiver.largest(),
            peer_window: 0,
            own_window: self.receiver.window(),
            window_shifts: negotiated.scaling.then_some((negotiated.own_shift, negotiated.peer_shift)),
            timestamps: negotiated.timestamps,
            sack: negotiated.sack,
            ecn: negotiated.ecn,
            retransmitted: 0,
            timeouts: 0,
            spurious: 0,
            probes: 0,
            reordering_window: Duration::ZERO,
            bytes_acked: 0,
            bytes_received: self.receiver.received(),
        };
        self.sender.fill(&mut info);
        info
    }

    /// How its sending goes.
    pub(crate) fn sending(&self, now: Instant) -> Sending {
        self.sender.sending(now)
    }
}
