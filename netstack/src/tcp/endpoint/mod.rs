//! All TCP connections of one shard: finds a segment's connection, opens and closes connections, schedules them to
//! send, and keeps their timers.
//!
//! ```text
//!   segment --> table --> connection         a slab of boxes, one timer each
//!                    \--> TIME-WAIT record   64 bytes, aged by the same wheel
//!           --> listener: half-open connections, SYN cookies, accept queue
//!           --> none: a reset
//!
//!   answers of no connection, then connections round-robin --> Emit
//! ```
//!
//! An [`Endpoint`] needs no stack: tests and fuzzers give it segments and time, and take its segments through [`Emit`].

mod calls;
mod cookie;
mod counters;
mod demux;
mod events;
mod listen;
mod orphans;
mod ports;
mod run;
mod secret;
mod table;
mod time_wait;
mod timers;

#[cfg(test)]
mod tests;

use core::fmt;
use core::net::{IpAddr, SocketAddr};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

pub use counters::Counters;
pub use demux::IcmpError;

use super::api::{ConnectError, ConnectionId, ListenError, ListenerId, ReleaseToken, StateName, TcpEvent};
use super::connection::{Connection, Context, Open, RateLimit};
use super::memory::Memory;
use super::options::{Config, Options};
use super::receiver::Pool;
use crate::ip::peers::Peers;
use crate::region::Extent;
use crate::time::Instant;
use crate::wire::tcp::{Header, SeqNumber};
use events::Events;
use listen::Listeners;
use ports::Ports;
use secret::Secret;
use table::Table;
use time_wait::Records;
use timers::{Armed, Timer, Timers};

#[cfg(doc)]
use super::api::Emit;

/// In the table, values with this bit are records in TIME-WAIT, others connections.
const TIME_WAIT: u32 = 1 << 31;

/// Largest IP packet until the MTU is set: Ethernet's.
const DEFAULT_MTU: u16 = 1500;

/// Who owns a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionOwner {
    /// The user.
    User,
    /// A listener; the handshake is going on.
    HalfOpen(u32),
    /// A listener's accept queue.
    Queued,
    /// The endpoint alone: the user has closed it, and it still holds written data.
    Orphan,
}

/// One connection's place in the slab.
struct Slot {
    generation: u32,
    owner: ConnectionOwner,
    /// Whether the index is in `ready`.
    ready: bool,
    armed: Armed,
    connection: Option<Box<Connection>>,
}

/// What connections share.
struct Shared {
    memory: Memory,
    pool: Pool,
    /// Challenge acknowledgements of a connection per second.
    challenges: u32,
    events: Events,
    /// Events of connections that the user does not know yet end here.
    muted: VecDeque<TcpEvent>,
    released: Vec<ReleaseToken>,
    extents: Vec<Extent>,
}

impl Shared {
    #[inline]
    fn context(&mut self, id: ConnectionId, muted: bool) -> Context<'_> {
        self.muted.clear();
        Context {
            id,
            events: if muted { &mut self.muted } else { &mut self.events.queue },
            memory: &mut self.memory,
            pool: &mut self.pool,
            challenges: self.challenges,
            released: &mut self.released,
            extents: &mut self.extents,
        }
    }
}

/// An answer that belongs to no connection.
#[derive(Clone, Copy, Debug)]
struct Reply {
    local: SocketAddr,
    remote: SocketAddr,
    header: Header,
}

/// All TCP connections of one shard.
///
/// The caller drives it: [`on_segment`](Self::on_segment) for what arrives, [`on_timeout`](Self::on_timeout) once
/// [`next_deadline`](Self::next_deadline) has come, then [`transmit`](Self::transmit) while
/// [`wants_transmit`](Self::wants_transmit). Calls on connections never block: they take or give what there is, and
/// [`next_event`](Self::next_event) says when there is more.
pub struct Endpoint {
    config: Config,
    options: Arc<Options>,
    /// Those that were given last.
    recent_options: Arc<Options>,
    secret: Secret,
    /// What packets from our addresses may be as long as.
    mtus: BTreeMap<IpAddr, u16>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    table: Table,
    /// The hosts of connections whose handshake this side began, or is over.
    peers: Peers,
    /// The slot that the last segment was for: the next one is often for the same.
    last: u32,
    listeners: Listeners,
    records: Records,
    /// Connections that were refused memory; they are notified when there is some.
    starved: BTreeSet<ConnectionId>,
    /// Slots whose owner is [`ConnectionOwner::Orphan`], and the one that was looked at last when there were too many.
    orphans: usize,
    hand: usize,
    ports: Ports,
    timers: Timers,
    /// Scratch of `on_timeout`.
    fired: Vec<Timer>,
    /// Connections with something to send, in round-robin order. Each is in it at most once.
    ready: VecDeque<u32>,
    replies: VecDeque<Reply>,
    resets: RateLimit,
    shared: Shared,
    counters: Counters,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("connections", &self.connections())
            .field("time_wait", &self.records.len())
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

/// An address without scope and flow label, IPv4 as IPv4: what packets say.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Whether a host can have the address.
fn is_host(ip: IpAddr) -> bool {
    let broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
    !ip.is_unspecified() && !ip.is_multicast() && !broadcast
}

impl Endpoint {
    /// An endpoint without connections.
    pub fn new(config: Config) -> Self {
        let secret = Secret::new(&config.key);
        let options = Arc::new(config.options.clone());
        Self {
            recent_options: Arc::clone(&options),
            options,
            mtus: BTreeMap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            table: Table::new(),
            peers: Peers::default(),
            last: 0,
            listeners: Listeners::default(),
            records: Records::new(),
            starved: BTreeSet::new(),
            orphans: 0,
            hand: 0,
            ports: Ports::new(&secret),
            timers: Timers::new(),
            fired: Vec::new(),
            ready: VecDeque::new(),
            replies: VecDeque::new(),
            resets: RateLimit::new(config.resets_per_second).with_seed(secret.seed(1)),
            shared: Shared {
                memory: Memory::new(config.max_send_memory),
                pool: Pool::new(config.max_receive_memory),
                challenges: config.challenge_acks_per_second,
                events: Events::default(),
                muted: VecDeque::new(),
                released: Vec::new(),
                extents: Vec::new(),
            },
            counters: Counters::default(),
            secret,
            config,
        }
    }

    /// The largest IP packet on the link of an address of ours, in bytes; 1500 for addresses that nothing was said
    /// about. New connections announce it.
    pub fn set_mtu(&mut self, local: IpAddr, mtu: u16) {
        self.mtus.insert(local, mtu);
    }

    /// Waits for connections to `local`: `[::]` stands for all addresses of both families, `0.0.0.0` for all of IPv4,
    /// port 0 for any port. `backlog` connections may wait to be accepted. `options` are those of its connections.
    ///
    /// # Errors
    /// [`ListenError`] if the address is taken.
    pub fn listen(
        &mut self,
        local: SocketAddr,
        backlog: usize,
        options: Option<Options>,
    ) -> Result<ListenerId, ListenError> {
        let options = self.shared_options(options);
        self.listeners.open(plain(local), backlog, options)
    }

    /// Changes the options of a listener, if it is there: those of the connections whose SYN comes from now on.
    pub fn modify_listener(&mut self, id: ListenerId, change: impl FnOnce(&mut Options)) {
        let Some(listener) = self.listeners.get(id) else { return };
        let mut options = Options::clone(&listener.options);
        change(&mut options);
        let options = self.shared_options(Some(options));
        if let Some(listener) = self.listeners.get_mut(id) {
            listener.options = options;
        }
    }

    /// How many connections wait to be accepted; some of them may have been reset meanwhile.
    pub fn acceptable(&self, id: ListenerId) -> usize {
        self.listeners.get(id).map_or(0, listen::Listener::waiting)
    }

    /// Where a listener waits; `None` if it was closed.
    pub fn listener_address(&self, id: ListenerId) -> Option<SocketAddr> {
        self.listeners.get(id).map(|listener| listener.local)
    }

    /// Closes a listener; connections that were not accepted are reset.
    pub fn close_listener(&mut self, now: Instant, id: ListenerId) {
        let mut orphans = Vec::new();
        if let Some(listener) = self.listeners.get_mut(id) {
            orphans.extend(core::iter::from_fn(|| listener.pop()).map(|id| id.index));
        }
        let Some(index) = self.listeners.close(id) else { return };
        let half_open =
            self.slots.iter().enumerate().filter(|(_, slot)| slot.owner == ConnectionOwner::HalfOpen(index));
        orphans.extend(half_open.map(|(index, _)| index as u32));
        for index in orphans {
            if let Some(end) = self.call(index, |connection, cx| connection.abort(now, cx)) {
                self.dispose(now, index, end);
            }
        }
    }

    /// The connection that has waited longest to be accepted, and its peer. Data that came with it is announced by an
    /// event, as ever.
    pub fn accept(&mut self, id: ListenerId) -> Option<(ConnectionId, SocketAddr)> {
        loop {
            let connection = self.listeners.get_mut(id)?.pop()?;
            let Some(slot) = self.slots.get_mut(connection.index as usize) else { continue };
            let Some(found) = slot.connection.as_deref() else { continue };
            if slot.generation != connection.generation || slot.owner != ConnectionOwner::Queued {
                continue;
            }
            let (readable, over, remote) = (found.info().readable, found.is_over(), found.remote());
            let state = found.state();
            slot.owner = ConnectionOwner::User;
            let id = connection;
            if over && readable == 0 && state == StateName::Closed {
                // It was reset while it waited: the user never saw it.
                self.release(id.index);
                continue;
            }
            let ended = !matches!(state, StateName::Established | StateName::SynReceived);
            if readable > 0 || ended {
                self.shared.events.queue.push_back(TcpEvent::Readable(id));
            }
            return Some((id, remote));
        }
    }

    /// Opens a connection from `local`, one of this host's addresses, to `remote`; with port 0 a free port is chosen
    /// (RFC 6056). [`TcpEvent::Connected`] or [`TcpEvent::Failed`] says how it went.
    ///
    /// # Errors
    /// [`ConnectError`] says what cannot be.
    pub fn connect(
        &mut self,
        now: Instant,
        local: SocketAddr,
        remote: SocketAddr,
        options: Option<Options>,
    ) -> Result<ConnectionId, ConnectError> {
        self.connect_from(now, local, remote, options, &mut |_| true)
    }

    /// The same, from a port that `accept_port` accepts: one, for example, for which the answers' hash leads to this
    /// shard.
    ///
    /// # Errors
    /// [`ConnectError`] says what cannot be.
    pub fn connect_from(
        &mut self,
        now: Instant,
        local: SocketAddr,
        remote: SocketAddr,
        options: Option<Options>,
        accept_port: &mut dyn FnMut(u16) -> bool,
    ) -> Result<ConnectionId, ConnectError> {
        let (mut local, remote) = (plain(local), plain(remote));
        //= RFC 9293 section 3.9.1.1, MUST-46: a connection to a group or to all hosts is refused.
        if remote.port() == 0 || !is_host(remote.ip()) {
            return Err(ConnectError::BadRemote { remote });
        }
        if local.is_ipv4() != remote.is_ipv4() || !is_host(local.ip()) {
            return Err(ConnectError::InUse { local, remote });
        }
        if self.connections() >= self.config.max_connections {
            return Err(ConnectError::TooMany { limit: self.config.max_connections });
        }
        if local.port() == 0 {
            let (mut ports, secret) = (core::mem::replace(&mut self.ports, Ports::none()), &self.secret);
            let chosen = ports.choose(secret, local, remote, |port| {
                let local = SocketAddr::new(local.ip(), port);
                accept_port(port) && !self.listeners.has_port(port) && self.is_free(now, &local, &remote)
            });
            self.ports = ports;
            local.set_port(chosen.ok_or(ConnectError::NoFreePort { remote })?);
        } else if local == remote || !self.is_free(now, &local, &remote) {
            return Err(ConnectError::InUse { local, remote });
        }
        let after = self.leave_time_wait(&local, &remote);
        let open = self.open(now, local, remote, after);
        let options = self.shared_options(options);
        let connection = Connection::connect(now, &open, options);
        self.counters.active_opens += 1;
        Ok(self.add(now, local, remote, connection, ConnectionOwner::User))
    }

    /// Whether a connection leads to `host`; one that a remote peer opened counts once its handshake is over.
    pub fn has_peer(&self, host: IpAddr) -> bool {
        self.peers.has(host)
    }

    /// What all connections have seen.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Connections that there are, those half open or over but not closed included.
    pub fn connections(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Connections in TIME-WAIT.
    #[cfg(test)]
    pub(crate) fn in_time_wait(&self) -> usize {
        self.records.len()
    }

    /// The user's connection of that name.
    #[inline]
    fn user(&self, id: ConnectionId) -> Option<&Connection> {
        let slot = self.slots.get(id.index as usize)?;
        let found = slot.generation == id.generation && slot.owner == ConnectionOwner::User;
        slot.connection.as_deref().filter(|connection| found && !connection.released())
    }

    /// Calls a connection with what it shares with the others.
    #[inline]
    fn call<R>(&mut self, index: u32, run: impl FnOnce(&mut Connection, &mut Context<'_>) -> R) -> Option<R> {
        let slot = self.slots.get_mut(index as usize)?;
        let connection = slot.connection.as_deref_mut()?;
        let id = ConnectionId { index, generation: slot.generation };
        let muted = matches!(slot.owner, ConnectionOwner::HalfOpen(_) | ConnectionOwner::Queued);
        let mut cx = self.shared.context(id, muted);
        Some(run(connection, &mut cx))
    }

    /// Options in memory that connections with the same options share.
    fn shared_options(&mut self, options: Option<Options>) -> Arc<Options> {
        match options {
            None => self.options.clone(),
            Some(options) => {
                if *self.recent_options != options {
                    self.recent_options = Arc::new(options);
                }
                self.recent_options.clone()
            }
        }
    }

    /// What a new connection begins with. Its sequence numbers follow those of its predecessor, if there is one.
    fn open(&self, now: Instant, local: SocketAddr, remote: SocketAddr, after: Option<SeqNumber>) -> Open {
        let mut iss = self.secret.sequence(now, &local, &remote);
        if let Some(after) = after
            && !iss.is_after(after + u32::from(u16::MAX))
        {
            //= RFC 9293 section 3.6.1, MAY-2: the new sequence numbers are larger than the largest of before.
            iss = after + (u32::from(u16::MAX) + 2);
        }
        let timestamp_offset = self.secret.timestamp_offset(&local, &remote);
        let mtu = self.mtus.get(&local.ip()).copied().unwrap_or(DEFAULT_MTU);
        Open { local, remote, iss, timestamp_offset, mtu }
    }

    /// Gives a connection a slot, an entry in the table, a timer and a place in the send queue.
    fn add(
        &mut self,
        now: Instant,
        local: SocketAddr,
        remote: SocketAddr,
        connection: Connection,
        owner: ConnectionOwner,
    ) -> ConnectionId {
        let index = self.free.pop().unwrap_or(self.slots.len() as u32);
        let connection = Some(Box::new(connection));
        // Its predecessor may have left the slot's number in the queue.
        let ready = self.slots.get(index as usize).is_some_and(|slot| slot.ready);
        let fresh = |generation| Slot { generation, owner, ready, armed: Armed::NOT, connection };
        let generation = match self.slots.get_mut(index as usize) {
            Some(slot) => {
                *slot = fresh(slot.generation);
                slot.generation
            }
            None => {
                if self.slots.len() == self.slots.capacity() {
                    // An eighth at a time: doubling would leave half of it unused.
                    self.slots.reserve_exact(self.slots.len() / 8 + 16);
                }
                self.slots.push(fresh(0));
                0
            }
        };
        self.table.insert(self.secret.hash(&local, &remote), index);
        if owner == ConnectionOwner::User {
            self.peers.add(remote.ip());
        }
        self.settle(now, index);
        ConnectionId { index, generation }
    }

    /// Frees a slot. The connection is in no table any more.
    fn release(&mut self, index: u32) {
        let Some(slot) = self.slots.get_mut(index as usize) else { return };
        if let Some(connection) = slot.connection.take() {
            if !matches!(slot.owner, ConnectionOwner::HalfOpen(_)) {
                self.peers.remove(connection.remote().ip());
            }
            self.timers.disarm(&mut slot.armed);
            slot.generation = slot.generation.wrapping_add(1);
            self.free.push(index);
            self.counters.ended += 1;
        }
    }
}
