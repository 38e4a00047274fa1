//! The channel between leaders of nodes over TCP, for networks where RUD's datagrams do not get through.
//!
//! Two leaders share some connections for data and one for control messages. Posted fragments wait in one queue for
//! each peer; every connection takes the next one when it has little left to send, so a slow connection slows only
//! itself ([`share`]). A fragment is written as header and extent, without a copy, and its memory is free when its
//! bytes are acknowledged. What arrives is handed to the executor straight from the received chunk.
//!
//! | file | what |
//! |---|---|
//! | `entrance` | how both ends of a new connection prove that they belong to the group |
//! | `lane` | one connection: framing |
//! | `share` | which connection takes the next fragment |
//! | `session` | opening, accepting and losing connections |
//!
//! When the group ends, fragments that were begun cannot be taken out of a stream: [`TcpChannel::fence`] resets the
//! connections for data, and the word that ends the group goes by the one for control, which never refers to memory
//! of the trainer. A reset of a connection for data is therefore no sign of death by itself.

mod entrance;
mod lane;
mod session;
mod share;

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use shouter_netstack::device::{Device, DeviceCounters};
use shouter_netstack::rud;
use shouter_netstack::stack::Stack;
use shouter_netstack::tcp::{self, ConnectionId, KeepAlive, ListenError, ListenerId};
use shouter_netstack::time::Instant;
use shouter_reducer::executor::{Disposition, Executor};
use shouter_reducer::grid::Rank;
use shouter_reducer::header::{HEADER_BYTES, Header, Kind};
use shouter_reducer::transport::{PayloadRange, SendError, Token, Transport};

use super::sys::extent_of;
use super::up::{PeerAddress, PeerLoss};
use crate::engine::executor_time;
use entrance::Secrets;
use lane::{HEAD, Lane, MAX_FRAGMENT, Post, State};
use session::{Place, Stranger};
use share::Load;

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
    pub secret: [u8; 32],
    /// Fresh bytes from the system's random source.
    pub salt: [u8; 32],
    /// Connections for data between two leaders.
    pub connections: u16,
    /// The port that every leader listens on.
    pub port: u16,
    /// A peer that does not answer for so long is dead.
    pub dead_after: Duration,
}

/// A fragment that the executor could not take yet.
struct Aside {
    header: Header,
    payload: Box<[u8]>,
}

struct Peer {
    rank: Rank,
    local_ip: Ipv4Addr,
    remote_ip: Ipv4Addr,
    lanes: Vec<Lane>,
    /// Fragments that no connection has taken yet, and their bytes.
    queue: VecDeque<Post>,
    queued: usize,
    control: VecDeque<[u8; HEAD]>,
    aside: VecDeque<Aside>,
    aside_bytes: usize,
    /// Connections that were not read to their end.
    unread: Vec<usize>,
    /// A connection for data was reset then: either the peer's group has ended, and it says so, or it is gone.
    suspect: Option<(Instant, tcp::Failure)>,
    lost: bool,
}

/// Connections to all other leaders over one stack.
pub struct TcpChannel<D: Device> {
    stack: Stack<D>,
    rank: Rank,
    secrets: Secrets,
    settings: Settings,
    listener: ListenerId,
    peers: Vec<Peer>,
    /// Index into `peers` by rank; `u32::MAX` for ranks without connections.
    by_rank: Vec<u32>,
    places: HashMap<ConnectionId, Place>,
    strangers: VecDeque<Stranger>,
    /// Connections that peers have yet to make.
    awaited: usize,
    /// Connections that were turned away.
    refused: u64,
    lost: Vec<PeerLoss>,
    strays: u64,
    /// When connections have to be there.
    ready_until: Instant,
    /// When `tend` has something to do.
    tend_at: Option<Instant>,
    fenced: bool,
    /// Tokens of what was copied.
    copied: Vec<Token>,
    /// Tokens held back: the bytes were acknowledged, but a resend of some may still wait for its device.
    held: Vec<Token>,
    /// Whether the frames that wait for a device may contain resends.
    resends_wait: bool,
    /// Resends so far, as last counted, and those of connections that are over.
    resent: u64,
    resent_before: u64,
    loads: Vec<Load>,
    now: Instant,
}

/// Why the channel cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The port is taken.
    #[error(transparent)]
    Listen(#[from] ListenError),
}

/// The TCP options of a group whose dead are found after `dead_after`.
pub fn tcp_options(dead_after: Duration) -> tcp::Options {
    let interval = (dead_after / 8).clamp(Duration::from_millis(1), Duration::from_secs(1));
    let idle = dead_after.saturating_sub(interval * 4).max(interval);
    tcp::Options {
        // Else a pause on the way would be longer than the time after which the peer counts as dead.
        max_rto: (dead_after / 8).max(Duration::from_millis(20)),
        keep_alive: Some(KeepAlive { idle, interval, probes: 4 }),
        user_timeout: Some(dead_after),
        ..tcp::Options::group()
    }
}

impl<D: Device> TcpChannel<D> {
    /// Listens, and begins to connect to every peer of a lower rank; those of a higher rank connect to this one. All of
    /// them count as lost if that takes too long.
    ///
    /// # Errors
    /// [`OpenError`] if the port is taken.
    pub fn open(
        mut stack: Stack<D>,
        rank: Rank,
        peers: &[PeerAddress],
        settings: Settings,
        now: Instant,
    ) -> Result<Self, OpenError> {
        let lanes = usize::from(settings.connections.max(1)) + 1;
        let ranks = peers.iter().map(|p| p.rank.0).max().unwrap_or(0).max(rank.0) as usize + 1;
        let mut by_rank = vec![u32::MAX; ranks];
        let options = tcp_options(settings.dead_after);
        let local = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), settings.port);
        let listener =
            stack.tcp_mut().listen(local, lanes * peers.len() + session::STRANGERS, Some(options))?;
        let awaited = peers.iter().filter(|peer| peer.rank > rank).count() * lanes;
        let mut connect = |peer: &PeerAddress, index: usize| {
            if let Some(place) = by_rank.get_mut(peer.rank.0 as usize) {
                *place = index as u32;
            }
            let down = State::Down((rank > peer.rank).then_some(now));
            Peer {
                rank: peer.rank,
                local_ip: peer.local_ip,
                remote_ip: peer.ip,
                lanes: (0..lanes).map(|_| Lane::new(down)).collect(),
                queue: VecDeque::new(),
                queued: 0,
                control: VecDeque::new(),
                aside: VecDeque::new(),
                aside_bytes: 0,
                unread: vec![],
                suspect: None,
                lost: false,
            }
        };
        let peers = peers.iter().zip(0..).map(|(peer, index)| connect(peer, index)).collect();
        Ok(Self {
            stack,
            rank,
            secrets: Secrets::new(settings.secret, settings.salt),
            listener,
            peers,
            by_rank,
            places: HashMap::new(),
            strangers: VecDeque::new(),
            awaited,
            refused: 0,
            lost: vec![],
            strays: 0,
            ready_until: now + settings.dead_after.max(session::SETUP),
            settings,
            tend_at: Some(now),
            fenced: false,
            copied: vec![],
            held: vec![],
            resends_wait: false,
            resent: 0,
            resent_before: 0,
            loads: vec![],
            now,
        })
    }

    /// Receives and hands fragments to the executor; what it makes of them goes out with the same turn's
    /// [`transmit`](Self::transmit). True if anything came.
    pub fn receive(&mut self, now: Instant, executor: &mut Executor) -> bool {
        self.now = now;
        let frames = self.stack.receive(now, &mut rud::NoSink);
        self.take_up(now, executor);
        while let Some(event) = self.stack.tcp_mut().next_event() {
            self.on_event(now, event, executor);
        }
        if self.tend_at.is_some_and(|at| at <= now) {
            self.tend(now);
        }
        frames != 0
    }

    /// Sends what the executor has posted and what the protocol owes. True if anything was sent.
    pub fn transmit(&mut self, now: Instant, executor: &mut Executor) -> bool {
        self.now = now;
        let mut frames = 0;
        for _ in 0..ROUNDS {
            let more = self.share(now);
            frames += self.stack.transmit(now);
            if !more {
                break;
            }
        }
        for token in self.copied.drain(..) {
            executor.on_released(token);
        }
        if self.resends_wait || self.stack.is_backlogged() {
            self.watch_resends(executor);
        }
        frames != 0
    }

    /// Gives what waits to the connections; true if any took something.
    fn share(&mut self, now: Instant) -> bool {
        let mut any = false;
        let tcp = self.stack.tcp_mut();
        for peer in &mut self.peers {
            let Peer { lanes, queue, queued, control, .. } = peer;
            for lane in lanes.iter_mut().filter(|lane| lane.is_stuck()) {
                any |= lane.flush(now, tcp);
            }
            if let Some(lane) = lanes.get_mut(CONTROL).filter(|lane| lane.state == State::Up) {
                while !lane.is_stuck()
                    && let Some(head) = control.pop_front()
                {
                    lane.write(now, tcp, &head);
                    any = true;
                }
            }
            if queue.is_empty() {
                continue;
            }
            self.loads.clear();
            self.loads.extend(lanes.iter().enumerate().map(|(index, lane)| {
                let info = lane.id.and_then(|id| tcp.info(id));
                let open = index != CONTROL && lane.state == State::Up && !lane.is_stuck();
                info.map_or(Load { open: false, unacknowledged: 0, unsent: 0, rate: 1.0 }, |info| Load {
                    open: open && info.writable >= HEAD + MAX_FRAGMENT,
                    unacknowledged: info.unacknowledged,
                    unsent: info.unsent,
                    rate: Load::rate(info.congestion_window, info.srtt),
                })
            }));
            while let Some(post) = queue.front() {
                let len = post.len();
                let Some(index) = share::pick(&self.loads, *queued, len) else { break };
                let (Some(lane), Some(load)) = (lanes.get_mut(index), self.loads.get_mut(index)) else {
                    break;
                };
                self.copied.extend(lane.post(now, tcp, post));
                load.add(len);
                load.open &= !lane.is_stuck();
                *queued -= len;
                queue.pop_front();
                any = true;
            }
        }
        any
    }

    /// As for RUD: what was acknowledged may still wait for its device as a resend; its memory is free once the device has
    /// taken everything that waited.
    #[cold]
    fn watch_resends(&mut self, executor: &mut Executor) {
        let resent = self.resent();
        self.resends_wait |= resent != self.resent;
        if !self.stack.holds_extents() {
            self.resends_wait = false;
            for token in self.held.drain(..) {
                executor.on_released(token);
            }
        }
        self.resent = resent;
    }

    /// When the stack needs the next turn although nothing may arrive.
    pub fn next_deadline(&self) -> Option<Instant> {
        [self.stack.next_deadline(), self.tend_at].into_iter().flatten().min()
    }

    /// A peer that was lost since the last call.
    pub fn take_lost(&mut self) -> Option<PeerLoss> {
        self.lost.pop()
    }

    /// Posts a control message to every peer that is still there.
    pub fn broadcast(&mut self, header: &Header) {
        let head = frame_head(header, 0);
        for peer in self.peers.iter_mut().filter(|peer| !peer.lost) {
            peer.control.push_back(head);
        }
        self.share(self.now);
    }

    /// Gives up everything that waits for an acknowledgement or for a device: afterwards nothing refers to any memory.
    /// Control messages still get through.
    pub fn fence(&mut self) {
        self.fenced = true;
        for peer in &mut self.peers {
            peer.queue.clear();
            peer.queued = 0;
            for lane in peer.lanes.iter_mut().skip(CONTROL + 1) {
                if let Some(id) = lane.end(State::Over) {
                    let info = self.stack.tcp().info(id);
                    self.resent_before += info.map_or(0, |info| info.retransmitted);
                    self.places.remove(&id);
                    self.stack.tcp_mut().abort(self.now, id);
                }
            }
        }
        self.stack.drop_waiting();
        self.copied.clear();
        self.held.clear();
        self.resends_wait = false;
    }

    /// Whether everything that was sent has been acknowledged.
    pub fn is_drained(&self) -> bool {
        let acknowledged = |lane: &Lane| {
            let info = lane.id.and_then(|id| self.stack.tcp().info(id));
            !lane.is_stuck() && info.is_none_or(|info| info.unacknowledged == 0)
        };
        self.peers.iter().filter(|peer| !peer.lost).all(|peer| {
            peer.queue.is_empty() && peer.control.is_empty() && peer.lanes.iter().all(acknowledged)
        })
    }

    /// Segments sent again, over all connections.
    pub fn resent(&self) -> u64 {
        let ids = self.peers.iter().flat_map(|peer| &peer.lanes).filter_map(|lane| lane.id);
        let infos = ids.filter_map(|id| self.stack.tcp().info(id));
        self.resent_before + infos.map(|info| info.retransmitted).sum::<u64>()
    }

    /// Segments dropped because their checksum was wrong.
    pub fn checksum_dropped(&self) -> u64 {
        self.stack.counters().rx_tcp_checksum
    }

    /// Connections of strangers that were turned away.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Bytes of fragments acknowledged by a peer, by connection.
    pub fn acknowledged(&self, rank: Rank) -> Vec<u64> {
        let lanes = self.peer(rank).map(|peer| peer.lanes.iter().skip(CONTROL + 1)).into_iter().flatten();
        let info = |lane: &Lane| lane.id.and_then(|id| self.stack.tcp().info(id));
        lanes.map(|lane| info(lane).map_or(0, |info| info.bytes_acked)).collect()
    }

    /// The sum of the counters of all ports.
    pub fn device_counters(&self) -> DeviceCounters {
        super::device_counters(&self.stack)
    }

    fn peer(&self, rank: Rank) -> Option<&Peer> {
        self.peers.get(*self.by_rank.get(rank.0 as usize)? as usize)
    }

    /// Hands on what came too early and what was left unread for it.
    fn take_up(&mut self, now: Instant, executor: &mut Executor) {
        for index in 0..self.peers.len() {
            let Some(peer) = self.peers.get_mut(index) else { return };
            if peer.aside.is_empty() && peer.unread.is_empty() {
                continue;
            }
            for _ in 0..peer.aside.len() {
                let Some(aside) = peer.aside.pop_front() else { break };
                if is_early(executor.on_fragment(executor_time(now), &aside.header, &aside.payload)) {
                    peer.aside.push_back(aside);
                } else {
                    peer.aside_bytes = peer.aside_bytes.saturating_sub(aside.payload.len() + HEAD);
                }
            }
            for lane in std::mem::take(&mut peer.unread) {
                self.read(now, index, lane, executor);
            }
        }
    }

    /// Reads a connection to its end.
    fn read(&mut self, now: Instant, index: usize, at: usize, executor: &mut Executor) {
        let Some(peer) = self.peers.get_mut(index) else { return };
        let Peer { rank, lanes, aside, aside_bytes, unread, .. } = peer;
        let Some(lane) = lanes.get_mut(at) else { return };
        let Some(id) = lane.id.filter(|_| lane.state == State::Up) else { return };
        let strays = &mut self.strays;
        let mut more = *aside_bytes <= ASIDE;
        let mut take = |head: &[u8], payload: &[u8]| match Header::parse(head) {
            Ok(header) if header.src == *rank => {
                if is_early(executor.on_fragment(executor_time(now), &header, payload)) {
                    *aside_bytes += payload.len() + HEAD;
                    aside.push_back(Aside { header, payload: payload.into() });
                }
                *aside_bytes <= ASIDE
            }
            stray => {
                super::stray(strays, Some(*rank), stray.err());
                true
            }
        };
        let failure = loop {
            if !more {
                if !unread.contains(&at) {
                    unread.push(at);
                }
                return;
            }
            match self.stack.tcp_mut().read_chunk(now, id) {
                Ok(Some(chunk)) => {
                    if lane.frames.feed(&chunk, |head, payload| more = take(head, payload)).is_err() {
                        break session::Ending::Garbled;
                    }
                }
                Ok(None) => break session::Ending::Finished,
                // A failure comes as an event.
                Err(_) => return,
            }
        };
        self.lane_ended(now, index, at, failure);
    }
}

/// Whether a message has to be offered again.
fn is_early(disposition: Disposition) -> bool {
    matches!(disposition, Disposition::Refused(why) if why.is_retryable())
}

/// The length and the header in front of a payload.
fn frame_head(header: &Header, payload: usize) -> [u8; HEAD] {
    let mut bytes = [0; HEADER_BYTES];
    header.encode(&mut bytes);
    let mut head = [0; HEAD];
    let fields = (payload as u32).to_le_bytes().into_iter().chain(bytes);
    head.iter_mut().zip(fields).for_each(|(byte, field)| *byte = field);
    head
}

impl<D: Device> Transport for TcpChannel<D> {
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
        token: Token,
    ) -> Result<(), SendError> {
        let index = self.by_rank.get(to.0 as usize).copied().unwrap_or(u32::MAX) as usize;
        let peer = self.peers.get_mut(index).filter(|peer| !peer.lost).ok_or(SendError::PeerFailed)?;
        let payload = extent_of(&payload);
        let head = frame_head(header, payload.as_ref().map_or(0, |payload| payload.len()));
        if header.kind != Kind::Data && payload.is_none() {
            if peer.control.len() >= CONTROL_QUEUE {
                return Err(SendError::Full);
            }
            peer.control.push_back(head);
            if token != Token::CONTROL {
                self.copied.push(token);
            }
            return Ok(());
        }
        if self.fenced {
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
