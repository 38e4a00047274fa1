//! Listeners, their half-open connections, and those that wait to be accepted.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::super::api::{ConnectionId, ListenError, ListenerId};
use super::super::options::Options;
use super::{cookie, ports};
use crate::time::Instant;

/// A listener. `half_open` is how many of its connections are in the handshake; those that have completed it are in
/// `queue`, `backlog` of them at most.
#[derive(Debug)]
pub(super) struct Listener {
    local: SocketAddr,
    options: Arc<Options>,
    backlog: usize,
    /// Connections that have completed their handshake.
    queue: VecDeque<ConnectionId>,
    /// Connections that have not.
    half_open: usize,
    /// While cookies of ours may come back.
    cookies_until: Option<Instant>,
}

impl Listener {
    /// The address, and the port, which is known by now.
    pub(super) fn local(&self) -> SocketAddr {
        self.local
    }

    /// The options of the connections whose SYN comes from now on.
    pub(super) fn options(&self) -> &Arc<Options> {
        &self.options
    }

    /// Other options.
    pub(super) fn set_options(&mut self, options: Arc<Options>) {
        self.options = options;
    }

    /// How many handshakes are going on.
    pub(super) fn half_open(&self) -> usize {
        self.half_open
    }

    /// A handshake begins.
    pub(super) fn begin_handshake(&mut self) {
        self.half_open += 1;
    }

    /// One has ended without a connection.
    pub(super) fn give_up_handshake(&mut self) {
        self.half_open = self.half_open.saturating_sub(1);
    }

    /// Whether no more connections may wait.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.queue.len() >= self.backlog
    }

    /// How many connections wait.
    pub(super) fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// A connection has completed its handshake.
    pub(super) fn complete_handshake(&mut self, id: ConnectionId) {
        self.half_open = self.half_open.saturating_sub(1);
        self.queue.push_back(id);
    }

    /// The connection that has waited longest.
    pub(super) fn pop(&mut self) -> Option<ConnectionId> {
        self.queue.pop_front()
    }

    /// A SYN is answered by a cookie.
    pub(super) fn on_cookie_sent(&mut self, now: Instant) {
        self.cookies_until = Some(now + Duration::from_secs(cookie::LIFETIME_SECONDS));
    }

    /// Whether cookies of ours may come back now.
    pub(super) fn expects_cookies(&self, now: Instant) -> bool {
        self.cookies_until.is_some_and(|until| now <= until)
    }
}

/// All listeners of an endpoint.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    slots: Vec<(u32, Option<Listener>)>,
    bound: BTreeMap<(u16, IpAddr), u32>,
    next_port: u16,
}

const ANY4: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
const ANY6: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);

impl Listeners {
    //= RFC 9293 section 3.9.1.1, MUST-41: a listener has a record of its own, and no connection changes; MUST-42: only another
    //= listener keeps a port from being listened at, and no connection, in whichever state.
    /// Opens a listener. `[::]` stands for all addresses of both families, `0.0.0.0` for all of IPv4, port 0 for any
    /// port.
    pub(super) fn open(
        &mut self,
        mut local: SocketAddr,
        backlog: usize,
        options: Arc<Options>,
    ) -> Result<ListenerId, ListenError> {
        if local.port() == 0 {
            let port = self.free_port(local.ip()).ok_or(ListenError::NoFreePort { local })?;
            local.set_port(port);
        } else if self.is_taken(local.port(), local.ip()) {
            return Err(ListenError::InUse { local });
        }
        let listener = Listener {
            local,
            options,
            backlog: backlog.max(1),
            queue: VecDeque::new(),
            half_open: 0,
            cookies_until: None,
        };
        let free = self.slots.iter().position(|(_, slot)| slot.is_none());
        let index = free.unwrap_or(self.slots.len());
        let generation = match self.slots.get_mut(index) {
            Some((generation, slot)) => {
                *slot = Some(listener);
                *generation
            }
            None => {
                self.slots.push((0, Some(listener)));
                0
            }
        };
        let index = index as u32;
        self.bound.insert((local.port(), local.ip()), index);
        Ok(ListenerId { index, generation })
    }

    /// Closes a listener and gives back its index.
    pub(super) fn close(&mut self, id: ListenerId) -> Option<u32> {
        let (generation, slot) = self.slots.get_mut(id.index as usize)?;
        if *generation != id.generation {
            return None;
        }
        let listener = slot.take()?;
        *generation = generation.wrapping_add(1);
        self.bound.remove(&(listener.local.port(), listener.local.ip()));
        Some(id.index)
    }

    pub(super) fn get(&self, id: ListenerId) -> Option<&Listener> {
        let (generation, listener) = self.slots.get(id.index as usize)?;
        listener.as_ref().filter(|_| *generation == id.generation)
    }

    pub(super) fn get_mut(&mut self, id: ListenerId) -> Option<&mut Listener> {
        let (generation, listener) = self.slots.get_mut(id.index as usize)?;
        listener.as_mut().filter(|_| *generation == id.generation)
    }

    /// The listener at an index, of any generation: no half-open connection outlives its listener.
    pub(super) fn at(&mut self, index: u32) -> Option<(ListenerId, &mut Listener)> {
        let (generation, listener) = self.slots.get_mut(index as usize)?;
        let id = ListenerId { index, generation: *generation };
        listener.as_mut().map(|listener| (id, listener))
    }

    /// The listener for connections to `local`.
    pub(super) fn find(&self, local: &SocketAddr) -> Option<u32> {
        let at = |ip| self.bound.get(&(local.port(), ip)).copied();
        at(local.ip()).or_else(|| if local.is_ipv4() { at(ANY4) } else { None }).or_else(|| at(ANY6))
    }

    /// Whether a listener has the port, on any address.
    pub(super) fn has_port(&self, port: u16) -> bool {
        let least = (port, ANY4);
        self.bound.range(least..).next().is_some_and(|((bound, _), _)| *bound == port)
    }

    fn is_taken(&self, port: u16, ip: IpAddr) -> bool {
        // A wildcard clashes with every address that it stands for, and the other way round.
        let covers =
            |wide: IpAddr, narrow: IpAddr| wide == narrow || wide == ANY6 || wide == ANY4 && narrow.is_ipv4();
        self.bound
            .range((port, ANY4)..)
            .take_while(|((bound, _), _)| *bound == port)
            .any(|((_, other), _)| covers(*other, ip) || covers(ip, *other))
    }

    fn free_port(&mut self, ip: IpAddr) -> Option<u16> {
        for _ in ports::RANGE {
            self.next_port = match self.next_port.checked_add(1) {
                Some(next) if ports::RANGE.contains(&next) => next,
                _ => *ports::RANGE.start(),
            };
            if !self.is_taken(self.next_port, ip) {
                return Some(self.next_port);
            }
        }
        None
    }
}
