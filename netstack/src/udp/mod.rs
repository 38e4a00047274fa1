//! UDP sockets (RFC 768): bound to a port, each with a bounded queue of received datagrams.
//!
//! Sending needs a route and a neighbour, so it is the stack's: `Stack::udp_send_to`.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::collections::{BTreeMap, VecDeque};

use crate::ip::{IcmpError, IcmpErrorKind, is_unicast_ip};
use crate::region::Extent;
use crate::time::Instant;

#[cfg(test)]
mod tests;

/// Ports that are handed out when none is requested (RFC 6335 section 6).
const EPHEMERAL: core::ops::RangeInclusive<u16> = 49_152..=65_535;

/// Names a socket. A handle of a closed socket names nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UdpHandle {
    index: u32,
    generation: u32,
}

/// The payload of a datagram to send.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Bytes that are copied before the call returns.
    Bytes(&'a [u8]),
    /// A range of registered memory, read when the device transmits.
    Extent(Extent),
}

impl Payload<'_> {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Extent(extent) => extent.len(),
        }
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes, wherever they are.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Extent(extent) => extent.as_bytes(),
        }
    }
}

/// A received datagram's origin and size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// The datagram's length in bytes; more than the buffer's if it was cut.
    pub len: usize,
    /// The sender.
    pub from: SocketAddr,
    /// The address of ours that it was sent to.
    pub local: IpAddr,
    /// When the stack took it from the device.
    pub at: Instant,
}

/// Why a socket could not be bound.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// Another socket has the port.
    #[error("UDP {address}: the port is in use; close the other socket, or bind port 0 to get a free one")]
    InUse {
        /// The address requested.
        address: SocketAddr,
    },
    /// No port has the address, so no datagram could come to it.
    #[error(
        "UDP {address}: no port of this stack has this address; bind a port's address, or 0.0.0.0 or [::]"
    )]
    NotOurs {
        /// The address requested.
        address: SocketAddr,
    },
    /// No port is free.
    #[error("UDP: no ephemeral port is free on {address}; close sockets that are no longer needed")]
    NoFreePort {
        /// The address requested.
        address: IpAddr,
    },
}

/// Bounds of a socket's receive queue, and its options.
#[derive(Clone, Copy, Debug)]
pub struct SocketConfig {
    /// Datagrams that may wait.
    pub queue_datagrams: usize,
    /// Bytes of payload that may wait.
    pub queue_bytes: usize,
    /// Whether sent datagrams carry a checksum.
    pub checksum: bool,
}

impl Default for SocketConfig {
    fn default() -> Self {
        //= RFC 1122 section 4.1.3.4: checksums are on by default; an application may switch them off.
        Self { queue_datagrams: 256, queue_bytes: 512 * 1024, checksum: true }
    }
}

/// An ICMP error about a datagram that was sent from a socket. It is not authenticated: anyone who knows a host's
/// addresses and ports can send one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketError {
    /// The error.
    pub kind: IcmpErrorKind,
    /// The destination of the datagram.
    pub remote: SocketAddr,
    /// The address of ours that it was sent from.
    pub local: IpAddr,
}

#[derive(Debug)]
struct Socket {
    local: SocketAddr,
    config: SocketConfig,
    waiting: VecDeque<Received>,
    bytes: VecDeque<u8>,
    overflow: u64,
    error: Option<SocketError>,
}

/// All sockets of a stack.
#[derive(Debug)]
pub struct Sockets {
    slots: Vec<(u32, Option<Socket>)>,
    bound: BTreeMap<(u16, IpAddr), u32>,
    /// Those of the stack's ports.
    addresses: Vec<IpAddr>,
    /// Taken by the stack itself.
    reserved_port: Option<u16>,
    next_ephemeral: u16,
}

impl Sockets {
    /// No sockets. `reserved_port` cannot be bound; `seed` says which ephemeral port comes first.
    pub fn new(reserved_port: Option<u16>, seed: u64) -> Self {
        let range = u64::from(*EPHEMERAL.end() - *EPHEMERAL.start()) + 1;
        Self {
            slots: Vec::new(),
            bound: BTreeMap::new(),
            addresses: Vec::new(),
            reserved_port,
            //= RFC 6056 section 3.3: where the search for a free port begins should not be the same everywhere.
            next_ephemeral: *EPHEMERAL.start() + (seed % range) as u16,
        }
    }

    /// Opens a socket on `local`; the unspecified address stands for all of ours of its version, port 0 for any free one.
    ///
    /// # Errors
    /// [`BindError`] if the port is taken, or the address is not ours.
    pub fn bind(
        &mut self,
        local: impl Into<SocketAddr>,
        config: SocketConfig,
    ) -> Result<UdpHandle, BindError> {
        let mut local = plain(local.into());
        if !local.ip().is_unspecified() && !self.is_ours(local.ip()) {
            return Err(BindError::NotOurs { address: local });
        }
        if local.port() == 0 {
            local.set_port(self.ephemeral(local.ip())?);
        } else if self.is_taken(local.port(), local.ip()) {
            return Err(BindError::InUse { address: local });
        }
        let socket = Socket {
            local,
            config,
            waiting: VecDeque::with_capacity(config.queue_datagrams),
            bytes: VecDeque::with_capacity(config.queue_bytes),
            overflow: 0,
            error: None,
        };
        let index = match self.slots.iter().position(|(_, slot)| slot.is_none()) {
            Some(index) => index,
            None => {
                self.slots.push((0, None));
                self.slots.len() - 1
            }
        };
        self.slots[index].1 = Some(socket);
        self.bound.insert((local.port(), local.ip()), index as u32);
        Ok(UdpHandle { index: index as u32, generation: self.slots[index].0 })
    }

    /// Adds an address of a port: once there is one, sockets need an address that was added.
    pub(crate) fn add_address(&mut self, address: IpAddr) {
        self.addresses.push(address);
    }

    /// Whether an address can be ours.
    fn is_ours(&self, address: IpAddr) -> bool {
        is_unicast_ip(address) && (self.addresses.is_empty() || self.addresses.contains(&address))
    }

    /// Closes a socket; its queued datagrams are lost.
    pub fn close(&mut self, handle: UdpHandle) {
        if let Some((generation, slot)) = self.slots.get_mut(handle.index as usize)
            && *generation == handle.generation
            && let Some(socket) = slot.take()
        {
            *generation = generation.wrapping_add(1);
            self.bound.remove(&(socket.local.port(), socket.local.ip()));
        }
    }

    /// The address that a socket is bound to; `None` if it is closed.
    pub fn local(&self, handle: UdpHandle) -> Option<SocketAddr> {
        self.socket(handle).map(|socket| socket.local)
    }

    /// Takes the oldest waiting datagram, as much of it as `buffer` holds.
    pub fn recv(&mut self, handle: UdpHandle, buffer: &mut [u8]) -> Option<Received> {
        let socket = self.socket_mut(handle)?;
        let received = socket.waiting.pop_front()?;
        let take = received.len.min(buffer.len());
        let (front, back) = socket.bytes.as_slices();
        let cut = take.min(front.len());
        buffer[..cut].copy_from_slice(&front[..cut]);
        buffer[cut..take].copy_from_slice(&back[..take - cut]);
        socket.bytes.drain(..received.len);
        Some(received)
    }

    /// How many datagrams wait in a socket.
    pub fn waiting(&self, handle: UdpHandle) -> usize {
        self.socket(handle).map_or(0, |socket| socket.waiting.len())
    }

    /// How many datagrams a socket lost because its queue was full.
    pub fn overflow(&self, handle: UdpHandle) -> u64 {
        self.socket(handle).map_or(0, |socket| socket.overflow)
    }

    /// Takes the latest ICMP error about a datagram from the socket.
    pub fn take_error(&mut self, handle: UdpHandle) -> Option<SocketError> {
        self.socket_mut(handle)?.error.take()
    }

    /// Notes an ICMP error at the socket that sent the datagram; false if there is none.
    pub(crate) fn on_error(&mut self, error: &IcmpError<'_>) -> bool {
        let [a, b, c, d, ..] = *error.transport_prefix else {
            return false;
        };
        let key = (u16::from_be_bytes([a, b]), error.local);
        let any = (key.0, any_like(error.local));
        let index = self.bound.get(&key).or_else(|| self.bound.get(&any));
        let slot = index.and_then(|&index| self.slots.get_mut(index as usize));
        let Some((_, Some(socket))) = slot else {
            return false;
        };
        let remote = SocketAddr::new(error.remote, u16::from_be_bytes([c, d]));
        socket.error = Some(SocketError { kind: error.kind, remote, local: error.local });
        true
    }

    /// Whether datagrams sent from the socket carry a checksum, and its port.
    pub(crate) fn sender(&self, handle: UdpHandle) -> Option<(SocketAddr, bool)> {
        self.socket(handle).map(|socket| (socket.local, socket.config.checksum))
    }

    /// Queues a datagram at the socket that it is for.
    pub(crate) fn deliver(
        &mut self,
        at: Instant,
        from: SocketAddr,
        local: SocketAddr,
        payload: &[u8],
    ) -> Delivery {
        let key = (local.port(), local.ip());
        let any = (local.port(), any_like(local.ip()));
        let Some(&index) = self.bound.get(&key).or_else(|| self.bound.get(&any)) else {
            return Delivery::NoSocket;
        };
        let Some((_, Some(socket))) = self.slots.get_mut(index as usize) else {
            return Delivery::NoSocket;
        };
        if socket.waiting.len() >= socket.config.queue_datagrams
            || socket.bytes.len() + payload.len() > socket.config.queue_bytes
        {
            socket.overflow += 1;
            return Delivery::QueueFull;
        }
        socket.bytes.extend(payload);
        socket.waiting.push_back(Received { len: payload.len(), from, local: local.ip(), at });
        Delivery::Queued
    }

    fn socket(&self, handle: UdpHandle) -> Option<&Socket> {
        let (generation, socket) = self.slots.get(handle.index as usize)?;
        socket.as_ref().filter(|_| *generation == handle.generation)
    }

    fn socket_mut(&mut self, handle: UdpHandle) -> Option<&mut Socket> {
        let (generation, socket) = self.slots.get_mut(handle.index as usize)?;
        socket.as_mut().filter(|_| *generation == handle.generation)
    }

    fn is_taken(&self, port: u16, address: IpAddr) -> bool {
        // A wildcard clashes with every address on its port, and the other way round.
        let bound = |address| self.bound.contains_key(&(port, address));
        Some(port) == self.reserved_port
            || bound(address)
            || bound(any_like(address))
            || (address.is_unspecified()
                && self.bound.range((port, address)..=(port, last_like(address))).next().is_some())
    }

    fn ephemeral(&mut self, address: IpAddr) -> Result<u16, BindError> {
        for _ in EPHEMERAL {
            let port = self.next_ephemeral;
            self.next_ephemeral = if port == *EPHEMERAL.end() { *EPHEMERAL.start() } else { port + 1 };
            if !self.is_taken(port, address) {
                return Ok(port);
            }
        }
        Err(BindError::NoFreePort { address })
    }
}

/// The unspecified address of the same version: it stands for all of ours of that version.
pub(crate) const fn any_like(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    }
}

/// The greatest address of the same version.
const fn last_like(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::BROADCAST),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::from_bits(u128::MAX)),
    }
}

/// Address and port alone: neither flow label nor scope distinguishes sockets.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip(), address.port())
}

/// The outcome of a received datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    Queued,
    NoSocket,
    QueueFull,
}
