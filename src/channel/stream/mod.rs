//! The channel between leaders of nodes over byte streams: our own TCP, for networks where RUD's datagrams do not get
//! through, or the kernel's sockets, for hosts that have nothing else.
//!
//! Two leaders share some connections for data and one for control messages. They are made at their first use, by the side that has it
//! (`opening.rs`): until then a peer costs its address. Posted fragments wait in one queue for
//! each peer; every connection takes the next one when it has little left to send, so a slow connection slows only
//! itself (`share.rs`). A fragment is written as header and extent, without a copy where the provider can, and its memory is
//! free when the provider releases it. Received messages are handed to the executor straight from the received chunk.
//!
//! | file | what |
//! |---|---|
//! | `streams` | the operations that the channel uses of a provider of byte streams |
//! | `stack`, `kernel` | the providers: our own TCP, the kernel's |
//! | `handshake` | how both ends of a new connection prove that they belong to the group |
//! | `connection` | one connection: framing |
//! | `live` | the provider's connections, and the role of each |
//! | `admission` | connections whose peers have not authenticated themselves |
//! | `opening` | the first use of a peer |
//! | `probe` | trials of the way to all peers, at the join |
//! | `session` | opening, accepting and losing connections |
//! | `outbox` | messages that wait to be sent to a peer |
//! | `share` | which connection takes the next fragment |
//! | `inbox`, `backlog` | the handling of received frames; those that come too early |
//! | `standing`, `heartbeat` | heartbeats, a peer's and this rank's |
//! | `side` | messages that are not the executor's |
//!
//! When the group ends, fragments that were begun cannot be taken out of a stream: [`StreamChannel::fence`] resets the
//! connections for data, and the abort message goes by the one for control, which never refers to memory
//! of the trainer. A reset of a connection for data is therefore no sign of death by itself.
//!
//! With no connections for data the channel carries control and side messages only: the control path of a channel that
//! moves data by other means.

mod admission;
mod backlog;
mod connection;
mod handshake;
mod heartbeat;
mod inbox;
mod kernel;
mod live;
mod opening;
mod outbox;
mod probe;
mod session;
mod share;
mod side;
mod stack;
mod standing;
mod streams;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use shouter_netstack::device::{Announce, DeviceCounters, Wakes};
use shouter_netstack::time::Instant;
use shouter_reducer::grid::Rank;
use shouter_reducer::header::{Header, MessageKind};
use shouter_reducer::transport::{PayloadRange, SendError, SendToken, Transport};

use super::alarm::Alarm;
use super::loss::PeerLoss;
use super::peers::Peers;
use super::sys::extent_of;
use super::up::{Channel, PeerAddress};
use super::{Inbox, Links};
use crate::key::Key;
use admission::Admission;
use backlog::Backlog;
use connection::{Connection, ConnectionState, MAX_FRAGMENT, Post};
use handshake::Secrets;
use heartbeat::Heartbeat;
use live::Live;
use opening::Directory;
use outbox::Outbox;
use probe::Trials;
use standing::Standing;

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

/// Rounds of sharing and sending in one poll.
const ROUNDS: usize = 4;

/// The channel's parameters besides its peers.
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

/// A leader elsewhere that the channel was used with.
struct Peer<Id> {
    local_ip: Ipv4Addr,
    remote: SocketAddr,
    connections: Vec<Connection<Id>>,
    /// The time by which the connection for control messages has to be there.
    control_until: Instant,
    /// The same for the connections for data, once this side has something for them.
    data_until: Option<Instant>,
    /// The system's number of the error with which this host has refused the last dial.
    refused: Option<i32>,
    /// Its host has refused the last dial: nobody listens there.
    is_deaf: bool,
    outbox: Outbox,
    backlog: Backlog,
    standing: Standing,
}

/// Connections to other leaders.
pub struct StreamChannel<S: Streams> {
    live: Live<S>,
    rank: Rank,
    secrets: Secrets,
    settings: Settings,
    /// All leaders that the channel leads to.
    directory: Directory,
    /// Those that it was used with, in the order of their first use.
    peers: Peers<Peer<S::Id>>,
    admission: Admission<S::Id>,
    trials: Trials<S::Id>,
    strays: u64,
    /// When `poll_timers` has something to do.
    alarm: Alarm,
    heartbeat: Heartbeat,
    /// Connections have so long to be made.
    patience: Duration,
    fenced: bool,
    /// This rank leaves in good order.
    departed: bool,
    /// Tokens of copied payloads.
    copied: Vec<SendToken>,
    now: Instant,
    /// Own dials that gave way to the other side's: before their hello, and after it.
    #[cfg(test)]
    ties: [u64; 2],
}

impl<S: Streams> StreamChannel<S> {
    /// Listens, until all connections exist. They are made at their first use, which may be on either side. A peer with which that takes too
    /// long counts as lost.
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
        let each = usize::from(settings.connections) + 1;
        match peers.len() * each {
            0 => streams.stop_listening(now),
            missing => {
                streams.listen(missing.min(admission::MAX_EXPECTED) + admission::MAX_UNAUTHENTICATED)?
            }
        }
        Ok(Self {
            live: Live::new(streams),
            rank,
            secrets: Secrets::new(settings.secret.clone(), settings.salt.clone()),
            directory: Directory::new(peers),
            peers: Peers::default(),
            admission: Admission::new(peers.len(), each),
            trials: Trials::default(),
            strays: 0,
            alarm: Alarm::default(),
            heartbeat: Heartbeat::new((!S::PROVES_LIFE).then_some(now), settings.dead_after),
            patience: settings.dead_after.max(session::SETUP),
            settings,
            fenced: false,
            departed: false,
            copied: vec![],
            now,
            #[cfg(test)]
            ties: [0; 2],
        })
    }

    /// Gives waiting messages to the connections; true if any took something.
    fn share(&mut self, now: Instant) -> bool {
        let streams = self.live.streams_mut();
        let mut any = false;
        for (_, peer) in self.peers.iter_mut() {
            any |= peer.outbox.share(now, streams, &mut peer.connections, &mut self.copied);
        }
        any
    }

    /// Closes the connections of a peer from `first` on for good.
    fn close_from(&mut self, now: Instant, index: usize, first: usize) {
        let Some(peer) = self.peers.get_mut(index) else { return };
        for connection in peer.connections.iter_mut().skip(first) {
            if let Some(id) = connection.end(ConnectionState::Over) {
                self.live.close(now, id);
            }
        }
    }

    /// Connections of unauthenticated peers that were refused.
    pub fn refused(&self) -> u64 {
        self.admission.refused()
    }

    /// Bytes of fragments acknowledged by a peer, by connection.
    pub fn acknowledged(&self, rank: Rank) -> Vec<u64> {
        let connections =
            self.peers.of(rank).map(|peer| peer.connections.iter().skip(CONTROL + 1)).into_iter().flatten();
        let info =
            |connection: &Connection<S::Id>| connection.id().and_then(|id| self.live.streams().info(id));
        connections.map(|connection| info(connection).map_or(0, |info| info.acknowledged)).collect()
    }

    /// Whether the connection for control messages with a peer is in use.
    pub fn is_connected(&self, rank: Rank) -> bool {
        let control = self.peers.of(rank).and_then(|peer| peer.connections.get(CONTROL));
        control.is_some_and(Connection::is_up)
    }
}

impl<S: Streams> Channel for StreamChannel<S> {
    fn receive(&mut self, now: Instant, inbox: &mut dyn Inbox) -> bool {
        self.now = now;
        let any = self.live.streams_mut().receive(now);
        self.take_up(now, inbox);
        if self.admission.begin_poll() {
            self.admit(now);
        }
        while let Some(event) = self.live.streams_mut().next_event() {
            self.on_event(now, event, inbox);
        }
        if self.alarm.take_due(now) {
            self.poll_timers(now);
        }
        if self.heartbeat.is_due(now) {
            self.look_after(now);
        }
        any || self.admission.is_behind()
    }

    fn transmit(&mut self, now: Instant, inbox: &mut dyn Inbox) -> bool {
        self.now = now;
        let mut any = false;
        for _ in 0..ROUNDS {
            let more = self.share(now);
            any |= self.live.streams_mut().transmit(now);
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
        let at_once = self.admission.is_behind().then_some(self.now);
        [self.live.streams().next_deadline(), self.alarm.at(), self.heartbeat.at(), at_once]
            .into_iter()
            .flatten()
            .min()
    }

    fn arm(&mut self, announce: &mut Announce<'_>) -> Wakes {
        self.live.streams_mut().arm(announce)
    }

    fn disarm(&mut self) {
        self.live.streams_mut().disarm();
    }

    fn take_lost(&mut self) -> Option<PeerLoss> {
        self.peers.take_lost()
    }

    /// It goes also to peers that the channel was not used with: an error is news to all.
    fn broadcast(&mut self, header: &Header) {
        self.meet_all();
        let head = connection::message_head(header, &[], self.settings.crc);
        for (_, peer) in self.peers.all_present_mut() {
            peer.outbox.announce(head);
        }
        self.share(self.now);
    }

    fn fence(&mut self) {
        self.fenced = true;
        for index in self.peers.indices() {
            if let Some(peer) = self.peers.get_mut(index) {
                peer.outbox.clear_fragments();
            }
            self.close_from(self.now, index, CONTROL + 1);
        }
        self.live.streams_mut().drop_waiting();
        self.copied.clear();
    }

    fn is_used(&self, rank: Rank) -> bool {
        self.peers.index(rank).is_some()
    }

    fn acknowledged_by(&self, rank: Rank) -> u64 {
        let present = self.peers.present(rank).and_then(|index| self.peers.get(index));
        let ids = present.into_iter().flat_map(|peer| &peer.connections).filter_map(Connection::id);
        ids.filter_map(|id| self.live.streams().info(id)).map(|info| info.acknowledged).sum()
    }

    fn used(&self) -> usize {
        self.peers.indices().len()
    }

    /// All listen by now, so a peer that makes no connection is as silent as one that sends nothing.
    fn joined(&mut self) {
        self.end_trials();
        self.admission.joined();
        self.patience = self.settings.dead_after.max(session::LEAST);
    }

    fn depart(&mut self) {
        self.departed = true;
        let farewell = connection::sign(true, self.settings.crc);
        for (_, peer) in self.peers.all_present_mut() {
            peer.outbox.announce(farewell);
        }
        self.share(self.now);
    }

    fn is_drained_to(&self, awaited: &dyn Fn(Rank) -> bool) -> bool {
        let acknowledged = |connection: &Connection<S::Id>| {
            let info = connection.id().and_then(|id| self.live.streams().info(id));
            !connection.is_stuck() && info.is_none_or(|info| info.unacknowledged == 0)
        };
        // A peer that has announced a graceful close and closed will read nothing any more.
        let has_gone = |peer: &Peer<S::Id>| {
            peer.standing.is_leaving() && !peer.connections.get(CONTROL).is_some_and(Connection::is_up)
        };
        self.peers
            .all_present()
            .filter(|(rank, peer)| awaited(*rank) && !has_gone(peer))
            .all(|(_, peer)| peer.outbox.is_empty() && peer.connections.iter().all(acknowledged))
    }

    fn is_connecting_to(&self, awaited: &dyn Fn(Rank) -> bool) -> bool {
        let is_pending = |peer: &Peer<S::Id>| {
            !peer.is_deaf && peer.connections.get(CONTROL).is_some_and(Connection::is_being_made)
        };
        self.peers.all_present().any(|(rank, peer)| awaited(rank) && is_pending(peer))
    }

    fn resent(&self) -> u64 {
        let connections = self.peers.iter().flat_map(|(_, peer)| &peer.connections);
        self.live.resent(connections.filter_map(Connection::id))
    }

    fn crc_dropped(&self) -> u64 {
        self.live.streams().checksum_dropped()
    }

    fn device_counters(&self) -> DeviceCounters {
        self.live.streams().device_counters()
    }

    fn links(&self) -> Links {
        self.live.streams().links()
    }

    fn addresses_down(&self) -> Vec<IpAddr> {
        self.live.streams().addresses_down()
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
        let index = match self.peers.present(to) {
            Some(index) => index,
            None => self.meet(to).ok_or(SendError::PeerFailed)?,
        };
        let peer = self.peers.get_mut(index).ok_or(SendError::PeerFailed)?;
        let payload = extent_of(&payload);
        let bytes = payload.as_ref().map_or(&[][..], |payload| payload.as_bytes());
        let head = connection::message_head(header, bytes, self.settings.crc);
        if header.kind != MessageKind::Data && payload.is_none() {
            peer.outbox.post_control(head)?;
            if token != SendToken::CONTROL {
                self.copied.push(token);
            }
            return Ok(());
        }
        if self.fenced || self.settings.connections == 0 {
            return Err(SendError::PeerFailed);
        }
        peer.outbox.post(Post { head, payload, token })?;
        if peer.data_until.is_none() {
            self.want_data(index);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
