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
mod input;
mod listen;
mod orphans;
mod ports;
mod replies;
mod run;
mod secret;
mod shared;
mod shared_options;
mod slots;
mod table;
mod time_wait;
mod timers;

#[cfg(test)]
mod tests;

use core::fmt;
use core::net::{IpAddr, SocketAddr};
use std::collections::BTreeMap;

pub use counters::Counters;
pub use input::SegmentIcmpError;

use super::api::{ConnectError, ConnectionId, ListenError, ListenerId, StateName, TcpEvent};
use super::connection::{Connection, Context, Open, RateLimit};
use super::options::{Config, Options};
use crate::time::Instant;
use crate::wire::tcp::SeqNumber;
use demux::{Demux, Entry};
use listen::Listeners;
use ports::Ports;
use replies::Replies;
use secret::Secret;
use shared::Shared;
use shared_options::SharedOptions;
use slots::{Owner, Slots};
use time_wait::TimeWaitTable;
use timers::Timers;

#[cfg(doc)]
use super::api::Emit;

/// Largest IP packet until the MTU is set: Ethernet's.
const DEFAULT_MTU: u16 = 1500;

/// All TCP connections of one shard.
///
/// The caller drives it: [`on_segment`](Self::on_segment) for each segment that arrives,
/// [`on_timeout`](Self::on_timeout) once [`next_deadline`](Self::next_deadline) has come, then
/// [`transmit`](Self::transmit) while [`wants_transmit`](Self::wants_transmit). Calls on connections never block: they
/// take or give as much as there is, and [`next_event`](Self::next_event) says when there is more.
pub struct Endpoint {
    config: Config,
    options: SharedOptions,
    secret: Secret,
    /// The longest packet from each of our addresses.
    mtus: BTreeMap<IpAddr, u16>,
    slots: Slots,
    demux: Demux,
    listeners: Listeners,
    records: TimeWaitTable,
    ports: Ports,
    timers: Timers,
    replies: Replies,
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

/// An address without scope and flow label, IPv4 as IPv4, as in packets.
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
        let resets = RateLimit::new(config.resets_per_second).with_seed(secret.seed(1));
        Self {
            options: SharedOptions::new(config.options.clone()),
            mtus: BTreeMap::new(),
            slots: Slots::default(),
            demux: Demux::new(),
            listeners: Listeners::default(),
            records: TimeWaitTable::new(),
            ports: Ports::new(&secret),
            timers: Timers::new(),
            replies: Replies::new(resets),
            shared: Shared::new(&config),
            counters: Counters::default(),
            secret,
            config,
        }
    }

    /// Adds an address of ours, with the largest IP packet on its link, in bytes: new connections from it announce that, and those from addresses
    /// that were not added 1500. Once there is one, listeners need an address that was added.
    pub fn add_address(&mut self, local: IpAddr, mtu: u16) {
        self.mtus.insert(local, mtu);
    }

    /// Waits for connections to `local`: `[::]` stands for all addresses of both families, `0.0.0.0` for all of IPv4,
    /// port 0 for any port. `backlog` connections may wait to be accepted. `options` are those of its connections.
    ///
    /// # Errors
    /// [`ListenError`] if the address is taken, or is not ours.
    pub fn listen(
        &mut self,
        local: SocketAddr,
        backlog: usize,
        options: Option<Options>,
    ) -> Result<ListenerId, ListenError> {
        let local = plain(local);
        if !local.ip().is_unspecified() && !self.is_ours(local.ip()) {
            return Err(ListenError::NotOurs { local });
        }
        let options = self.options.get(options);
        self.listeners.open(local, backlog, options)
    }

    /// Changes the options of a listener, if it is there: those of the connections whose SYN comes from now on.
    pub fn modify_listener(&mut self, id: ListenerId, change: impl FnOnce(&mut Options)) {
        let Some(listener) = self.listeners.get(id) else { return };
        let mut options = Options::clone(listener.options());
        change(&mut options);
        let options = self.options.get(Some(options));
        if let Some(listener) = self.listeners.get_mut(id) {
            listener.set_options(options);
        }
    }

    /// How many connections wait to be accepted; some of them may have been reset meanwhile.
    pub fn acceptable(&self, id: ListenerId) -> usize {
        self.listeners.get(id).map_or(0, listen::Listener::waiting)
    }

    /// A listener's address; `None` if it was closed.
    pub fn listener_address(&self, id: ListenerId) -> Option<SocketAddr> {
        self.listeners.get(id).map(listen::Listener::local)
    }

    /// Closes a listener; connections that were not accepted are reset.
    pub fn close_listener(&mut self, now: Instant, id: ListenerId) {
        let mut orphans = Vec::new();
        if let Some(listener) = self.listeners.get_mut(id) {
            orphans.extend(core::iter::from_fn(|| listener.pop()).map(|id| id.index));
        }
        let Some(index) = self.listeners.close(id) else { return };
        orphans.extend(self.slots.half_open(index));
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
            let Some((Owner::Queued, found)) = self.slots.named(connection) else { continue };
            let (readable, over, remote) = (found.info().readable, found.is_over(), found.remote());
            let state = found.state();
            let id = connection;
            self.slots.set_owner(id.index, Owner::User);
            if over && readable == 0 && state == StateName::Closed {
                // It was reset while it waited: the user never saw it.
                self.release(id.index);
                continue;
            }
            let ended = !matches!(state, StateName::Established | StateName::SynReceived);
            if readable > 0 || ended {
                self.shared.events().queue().push_back(TcpEvent::Readable(id));
            }
            return Some((id, remote));
        }
    }

    /// Opens a connection from `local`, one of this host's addresses, to `remote`; with port 0 a free port is chosen
    /// (RFC 6056). [`TcpEvent::Connected`] or [`TcpEvent::Failed`] says how it went.
    ///
    /// # Errors
    /// [`ConnectError`] gives the reason.
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
    /// [`ConnectError`] gives the reason.
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
        let options = self.options.get(options);
        let connection = Connection::connect(now, &open, options);
        self.counters.active_opens += 1;
        Ok(self.add(now, local, remote, connection, Owner::User))
    }

    /// Whether a connection leads to `host`; one that a remote peer opened counts once its handshake is over.
    pub fn has_peer(&self, host: IpAddr) -> bool {
        self.slots.has_peer(host)
    }

    /// Counters over all connections.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Connections that there are, those half open or over but not closed included.
    pub fn connections(&self) -> usize {
        self.slots.len()
    }

    /// Connections in TIME-WAIT.
    #[cfg(test)]
    pub(crate) fn in_time_wait(&self) -> usize {
        self.records.len()
    }

    /// Whether an address can be ours. Without a stack, nobody may have said which ones are.
    fn is_ours(&self, local: IpAddr) -> bool {
        is_host(local) && (self.mtus.is_empty() || self.mtus.contains_key(&local))
    }

    /// The user's connection of that name.
    #[inline]
    fn user(&self, id: ConnectionId) -> Option<&Connection> {
        self.slots.of_user(id).filter(|connection| !connection.released())
    }

    /// Calls a connection with the state that it shares with the others.
    #[inline]
    fn call<R>(&mut self, index: u32, run: impl FnOnce(&mut Connection, &mut Context<'_>) -> R) -> Option<R> {
        let (id, owner, connection) = self.slots.get_mut(index)?;
        let muted = matches!(owner, Owner::HalfOpen(_) | Owner::Queued);
        let mut cx = self.shared.context(id, muted);
        Some(run(connection, &mut cx))
    }

    /// The parameters of a new connection. Its sequence numbers follow those of its predecessor, if there is one.
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
        owner: Owner,
    ) -> ConnectionId {
        let id = self.slots.insert(connection, owner);
        self.demux.insert(self.secret.hash(&local, &remote), Entry::Connection(id.index));
        self.slots.settle(now, id.index, &mut self.timers);
        id
    }

    /// Frees a slot. The connection is in no table any more.
    fn release(&mut self, index: u32) {
        self.counters.ended += u64::from(self.slots.remove(index, &mut self.timers));
    }
}
