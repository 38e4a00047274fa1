//! The channel between leaders of nodes over byte streams: our own TCP, for networks where RUD's datagrams do not get
//! through, or the kernel's sockets, for hosts that have nothing else.
//!
//! Two leaders share some connections for data and one for control messages. Posted fragments wait in one queue for
//! each peer; every connection takes the next one when it has little left to send, so a slow connection slows only
//! itself (`share.rs`). A fragment is written as header and extent, without a copy where the provider can, and its memory is
//! free when the provider says so. What arrives is handed to the executor straight from the received chunk.
//!
//! | file | what |
//! |---|---|
//! | `streams` | what the channel needs of a provider of byte streams |
//! | `stack`, `kernel` | the providers: our own TCP, the kernel's |
//! | `handshake` | how both ends of a new connection prove that they belong to the group |
//! | `connection` | one connection: framing |
//! | `share` | which connection takes the next fragment |
//! | `session` | opening, accepting and losing connections |
//! | `inbox` | what is done with received frames |
//! | `side` | messages that are not the executor's, and heartbeats |
//!
//! When the group ends, fragments that were begun cannot be taken out of a stream: [`StreamChannel::fence`] resets the
//! connections for data, and the abort message goes by the one for control, which never refers to memory
//! of the trainer. A reset of a connection for data is therefore no sign of death by itself.
//!
//! With no connections for data the channel carries control and side messages only: the control path of a channel that
//! moves data by other means.

mod connection;
mod handshake;
mod inbox;
mod kernel;
mod session;
mod share;
mod side;
mod stack;
mod streams;

use std::collections::{HashMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use shouter_netstack::device::DeviceCounters;
use shouter_netstack::tcp;
use shouter_netstack::time::Instant;
use shouter_reducer::grid::Rank;
use shouter_reducer::header::{Header, MessageKind};
use shouter_reducer::transport::{PayloadRange, SendError, SendToken, Transport};

use super::Inbox;
use super::alarm::Alarm;
use super::peers::Peers;
use super::sys::extent_of;
use super::up::{Channel, PeerAddress, PeerLoss};
use crate::key::Key;
use connection::{Connection, ConnectionState, HEAD, MAX_FRAGMENT, Post};
use handshake::Secrets;
use session::{ConnectionRole, UnauthenticatedPeer};
use share::Load;

pub use connection::MAX_SIDE;
pub use kernel::KernelStreams;
pub use stack::{StackStreams, tcp_options};
pub use streams::{ConnectError, ConnectionInfo, ListenError, StreamEvent, Streams};

/// The channel over our own TCP.
pub type TcpChannel<D> = StreamChannel<StackStreams<D>>;

/// The channel over the kernel's sockets.
pub type KernelChannel = StreamChannel<KernelStreams>;

/// The connection of a peer that carries control messages; those for data follow.
const CONTROL: usize = 0;

/// Fragments that may wait for the connections to a peer.
const QUEUE: usize = 512;

/// Control messages that may wait for a peer.
const CONTROL_QUEUE: usize = 4096;

/// Bytes of fragments that came too early, of one peer: its connections are not read while there are more. The executor
/// keeps some itself.
const ASIDE: usize = 1 << 20;

/// Rounds of sharing and sending in one turn.
const ROUNDS: usize = 4;

/// What a channel needs to know beside its peers.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The group's secret.
    pub secret: Key,
    /// Fresh from the system's random source.
    pub salt: Key,
    /// Connections for data between two leaders; none for a channel that carries control and side messages only.
    pub connections: u16,
    /// A peer that does not answer for so long is dead.
    pub dead_after: Duration,
    /// Whether frames carry a CRC32C; the same on all ranks.
    pub crc: bool,
}

/// A fragment that the executor could not take yet.
struct Aside {
    header: Header,
    payload: Box<[u8]>,
}

struct Peer<Id> {
    local_ip: Ipv4Addr,
    remote: SocketAddr,
    connections: Vec<Connection<Id>>,
    /// Fragments that no connection has taken yet, and their bytes.
    queue: VecDeque<Post>,
    queued: usize,
    control: VecDeque<[u8; HEAD]>,
    aside: VecDeque<Aside>,
    aside_bytes: usize,
    /// Connections that were not read to their end.
    unread: Vec<usize>,
    /// Frames of side messages to send, and side messages that have come.
    sides_out: VecDeque<Vec<u8>>,
    sides_in: VecDeque<Vec<u8>>,
    /// When something last came.
    heard: Instant,
    /// It has announced a graceful close.
    leaving: bool,
    /// A connection for data was reset then: either the peer's group has ended, and an abort message follows, or the peer is lost.
    suspect: Option<(Instant, tcp::Failure)>,
}

/// Connections to all other leaders.
pub struct StreamChannel<S: Streams> {
    streams: S,
    rank: Rank,
    secrets: Secrets,
    settings: Settings,
    peers: Peers<Peer<S::Id>>,
    roles: HashMap<S::Id, ConnectionRole>,
    unauthenticated: VecDeque<UnauthenticatedPeer<S::Id>>,
    /// Connections that peers have yet to make.
    awaited: usize,
    /// Connections that were refused.
    refused: u64,
    strays: u64,
    /// When connections have to be there.
    ready_until: Instant,
    /// When `poll_timers` has something to do.
    alarm: Alarm,
    /// When the next heartbeat is due, where the provider does not detect a stopped process.
    heartbeat_at: Option<Instant>,
    fenced: bool,
    /// Tokens of what was copied.
    copied: Vec<SendToken>,
    /// Resends of connections that are over.
    resent_before: u64,
    loads: Vec<Load>,
    now: Instant,
}

impl<S: Streams> StreamChannel<S> {
    /// Listens, until they have come, for peers of a higher rank, and begins to connect to every one of a lower rank. All of
    /// them count as lost if that takes too long.
    ///
    /// # Errors
    /// [`ListenError`], such as a port that is taken.
    pub fn open(
        mut streams: S,
        rank: Rank,
        peers: &[PeerAddress],
        settings: Settings,
        now: Instant,
    ) -> Result<Self, ListenError> {
        let connections = usize::from(settings.connections) + 1;
        let awaited = peers.iter().filter(|peer| peer.rank > rank).count() * connections;
        match awaited {
            0 => streams.stop_listening(now),
            _ => streams.listen(connections * peers.len() + session::MAX_UNAUTHENTICATED)?,
        }
        let connect = |peer: &PeerAddress| {
            let down = ConnectionState::Down((rank > peer.rank).then_some(now));
            let state = Peer {
                local_ip: peer.local_ip,
                remote: SocketAddr::from((peer.ip, peer.port)),
                connections: (0..connections).map(|_| Connection::new(down)).collect(),
                queue: VecDeque::new(),
                queued: 0,
                control: VecDeque::new(),
                aside: VecDeque::new(),
                aside_bytes: 0,
                unread: vec![],
                sides_out: VecDeque::new(),
                sides_in: VecDeque::new(),
                heard: now,
                leaving: false,
                suspect: None,
            };
            (peer.rank, state)
        };
        let peers = peers.iter().map(connect).collect();
        let mut alarm = Alarm::default();
        alarm.set(now);
        Ok(Self {
            streams,
            rank,
            secrets: Secrets::new(settings.secret.clone(), settings.salt.clone()),
            peers,
            roles: HashMap::new(),
            unauthenticated: VecDeque::new(),
            awaited,
            refused: 0,
            strays: 0,
            ready_until: now + settings.dead_after.max(session::SETUP),
            settings,
            alarm,
            heartbeat_at: (!S::PROVES_LIFE).then_some(now),
            fenced: false,
            copied: vec![],
            resent_before: 0,
            loads: vec![],
            now,
        })
    }

    /// Gives what waits to the connections; true if any took something.
    fn share(&mut self, now: Instant) -> bool {
        let mut any = false;
        let streams = &mut self.streams;
        for (_, peer) in self.peers.iter_mut() {
            let Peer { connections, queue, queued, control, sides_out, .. } = peer;
            for connection in connections.iter_mut().filter(|connection| connection.is_stuck()) {
                any |= connection.flush(now, streams);
            }
            if let Some(connection) =
                connections.get_mut(CONTROL).filter(|connection| connection.state == ConnectionState::Up)
            {
                while !connection.is_stuck()
                    && let Some(head) = control.pop_front()
                {
                    connection.write(now, streams, &head);
                    any = true;
                }
                while !connection.is_stuck()
                    && let Some(frame) = sides_out.pop_front()
                {
                    connection.write(now, streams, &frame);
                    any = true;
                }
            }
            if queue.is_empty() {
                continue;
            }
            self.loads.clear();
            self.loads.extend(connections.iter().enumerate().map(|(index, connection)| {
                let open =
                    index != CONTROL && connection.state == ConnectionState::Up && !connection.is_stuck();
                let info = connection.id.and_then(|id| streams.info(id));
                info.map_or(Load { open: false, unacknowledged: 0, unsent: 0, rate: 1.0 }, |info| Load {
                    open: open && info.writable >= HEAD + MAX_FRAGMENT,
                    unacknowledged: info.unacknowledged,
                    unsent: info.unsent,
                    rate: info.rate,
                })
            }));
            while let Some(post) = queue.front() {
                let len = post.len();
                let Some(index) = share::pick(&self.loads, *queued, len) else { break };
                let (Some(connection), Some(load)) = (connections.get_mut(index), self.loads.get_mut(index))
                else {
                    break;
                };
                self.copied.extend(connection.post(now, streams, post));
                load.add(len);
                load.open &= !connection.is_stuck();
                *queued -= len;
                queue.pop_front();
                any = true;
            }
        }
        any
    }

    /// Connections of unauthenticated peers that were refused.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Bytes of fragments acknowledged by a peer, by connection.
    pub fn acknowledged(&self, rank: Rank) -> Vec<u64> {
        let connections =
            self.peers.of(rank).map(|peer| peer.connections.iter().skip(CONTROL + 1)).into_iter().flatten();
        let info = |connection: &Connection<S::Id>| connection.id.and_then(|id| self.streams.info(id));
        connections.map(|connection| info(connection).map_or(0, |info| info.acknowledged)).collect()
    }

    /// Whether the connection for control messages with a peer is in use.
    pub fn is_connected(&self, rank: Rank) -> bool {
        let control = self.peers.of(rank).and_then(|peer| peer.connections.get(CONTROL));
        control.is_some_and(|connection| connection.state == ConnectionState::Up)
    }
}

impl<S: Streams> Channel for StreamChannel<S> {
    fn receive(&mut self, now: Instant, inbox: &mut dyn Inbox) -> bool {
        self.now = now;
        let any = self.streams.receive(now);
        self.take_up(now, inbox);
        while let Some(event) = self.streams.next_event() {
            self.on_event(now, event, inbox);
        }
        if self.alarm.take_due(now) {
            self.poll_timers(now);
        }
        if self.heartbeat_at.is_some_and(|at| at <= now) {
            self.look_after(now);
        }
        any
    }

    fn transmit(&mut self, now: Instant, inbox: &mut dyn Inbox) -> bool {
        self.now = now;
        let mut any = false;
        for _ in 0..ROUNDS {
            let more = self.share(now);
            any |= self.streams.transmit(now);
            if !more {
                break;
            }
        }
        for token in self.copied.drain(..) {
            inbox.released(token);
        }
        any
    }

    fn next_deadline(&self) -> Option<Instant> {
        [self.streams.next_deadline(), self.alarm.at(), self.heartbeat_at].into_iter().flatten().min()
    }

    fn take_lost(&mut self) -> Option<PeerLoss> {
        self.peers.take_lost()
    }

    fn broadcast(&mut self, header: &Header) {
        let head = connection::message_head(header, &[], self.settings.crc);
        for (_, peer) in self.peers.all_present_mut() {
            peer.control.push_back(head);
        }
        self.share(self.now);
    }

    fn fence(&mut self) {
        self.fenced = true;
        for (_, peer) in self.peers.iter_mut() {
            peer.queue.clear();
            peer.queued = 0;
            for connection in peer.connections.iter_mut().skip(CONTROL + 1) {
                if let Some(id) = connection.end(ConnectionState::Over) {
                    let info = self.streams.info(id);
                    self.resent_before += info.map_or(0, |info| info.retransmitted);
                    self.roles.remove(&id);
                    self.streams.abort(self.now, id);
                }
            }
        }
        self.streams.drop_waiting();
        self.copied.clear();
    }

    fn depart(&mut self) {
        let farewell = connection::sign(true, self.settings.crc);
        for (_, peer) in self.peers.all_present_mut() {
            peer.control.push_back(farewell);
        }
        self.share(self.now);
    }

    fn is_drained(&self) -> bool {
        let acknowledged = |connection: &Connection<S::Id>| {
            let info = connection.id.and_then(|id| self.streams.info(id));
            !connection.is_stuck() && info.is_none_or(|info| info.unacknowledged == 0)
        };
        self.peers.all_present().all(|peer| {
            peer.queue.is_empty()
                && peer.control.is_empty()
                && peer.sides_out.is_empty()
                && peer.connections.iter().all(acknowledged)
        })
    }

    fn resent(&self) -> u64 {
        let ids =
            self.peers.iter().flat_map(|(_, peer)| &peer.connections).filter_map(|connection| connection.id);
        let infos = ids.filter_map(|id| self.streams.info(id));
        self.resent_before + infos.map(|info| info.retransmitted).sum::<u64>()
    }

    fn crc_dropped(&self) -> u64 {
        self.streams.checksum_dropped()
    }

    fn device_counters(&self) -> DeviceCounters {
        self.streams.device_counters()
    }
}

impl<S: Streams> Transport for StreamChannel<S> {
    #[inline]
    fn max_fragment(&self, _: Rank) -> usize {
        MAX_FRAGMENT
    }

    #[inline]
    fn send(
        &mut self,
        to: Rank,
        header: &Header,
        payload: PayloadRange,
        token: SendToken,
    ) -> Result<(), SendError> {
        let index = self.peers.present(to).ok_or(SendError::PeerFailed)?;
        let peer = self.peers.get_mut(index).ok_or(SendError::PeerFailed)?;
        let payload = extent_of(&payload);
        let bytes = payload.as_ref().map_or(&[][..], |payload| payload.as_bytes());
        let head = connection::message_head(header, bytes, self.settings.crc);
        if header.kind != MessageKind::Data && payload.is_none() {
            if peer.control.len() >= CONTROL_QUEUE {
                return Err(SendError::Full);
            }
            peer.control.push_back(head);
            if token != SendToken::CONTROL {
                self.copied.push(token);
            }
            return Ok(());
        }
        if self.fenced || self.settings.connections == 0 {
            return Err(SendError::PeerFailed);
        }
        if peer.queue.len() >= QUEUE {
            return Err(SendError::Full);
        }
        let post = Post { head, payload, token };
        peer.queued += post.len();
        peer.queue.push_back(post);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
