//! UDP sockets.

use core::net::SocketAddr;
use core::time::Duration;

use shouter_netstack::ip::IcmpErrorKind;
use shouter_netstack::udp::{Payload, SocketConfig, UdpHandle};

use super::Domain;
use crate::errno::{self, Errno, Result};
use crate::net::Net;

/// The longest datagram.
const LONGEST: usize = 1 << 16;

/// A UDP socket.
#[derive(Debug, Default)]
pub(crate) struct UdpSocket {
    pub(crate) domain: Domain,
    pub(crate) handle: Option<UdpHandle>,
    peer: Option<SocketAddr>,
    pub(crate) error: Option<Errno>,
    /// SO_RCVTIMEO.
    pub(crate) timeout: Option<Duration>,
    /// A datagram that was peeked at and is still to be read.
    peeked: Option<(Vec<u8>, SocketAddr)>,
    waiting: usize,
    /// The number of events that would wake a waiter.
    pub(crate) edge: u64,
}

impl UdpSocket {
    pub(crate) fn new(domain: Domain) -> Self {
        Self { domain, ..Self::default() }
    }

    pub(crate) fn bind(&mut self, net: &mut Net, local: SocketAddr) -> Result<UdpHandle> {
        let handle = net.stack.udp_mut().bind(local, SocketConfig::default())?;
        self.handle = Some(handle);
        Ok(handle)
    }

    /// The socket in the stack, bound to a free port if it has none yet.
    fn handle(&mut self, net: &mut Net, remote: SocketAddr) -> Result<UdpHandle> {
        match self.handle {
            Some(handle) => Ok(handle),
            None => {
                let domain = if remote.is_ipv4() { Domain::V4 } else { Domain::V6 };
                self.bind(net, SocketAddr::new(domain.any(), 0))
            }
        }
    }

    /// Sets the peer for sending and receiving, or none.
    pub(crate) fn connect(&mut self, net: &mut Net, remote: Option<SocketAddr>) -> Result<()> {
        self.peer = match remote {
            Some(remote) => {
                let remote = self.domain.inward(remote)?;
                self.handle(net, remote)?;
                Some(remote)
            }
            None => None,
        };
        Ok(())
    }

    /// Sends a datagram; `None`: no room now.
    pub(crate) fn send(
        &mut self,
        net: &mut Net,
        bytes: &[u8],
        to: Option<SocketAddr>,
    ) -> Result<Option<usize>> {
        errno::take(&mut self.error)?;
        let remote = match to {
            Some(to) => self.domain.inward(to)?,
            None => self.peer.ok_or(Errno(libc::EDESTADDRREQ))?,
        };
        if remote.port() == 0 {
            return Err(Errno(libc::EINVAL));
        }
        let handle = self.handle(net, remote)?;
        let now = net.now;
        match net.stack.udp_send_to(now, handle, remote, &[], Payload::Bytes(bytes)).map_err(Errno::from) {
            Ok(()) => Ok(Some(bytes.len())),
            Err(Errno(libc::EAGAIN)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Takes the next datagram out of the stack, if it is from the peer.
    fn fetch(&mut self, net: &mut Net) -> Option<()> {
        let handle = self.handle?;
        while self.peeked.is_none() {
            let mut bytes = vec![0; LONGEST];
            let received = net.stack.udp_mut().recv(handle, &mut bytes)?;
            if self.peer.is_none_or(|peer| peer == received.from) {
                bytes.truncate(received.len);
                self.peeked = Some((bytes, received.from));
            }
        }
        Some(())
    }

    /// The next datagram and its sender; `None`: none has arrived.
    pub(crate) fn receive(&mut self, net: &mut Net, peek: bool) -> Result<Option<(Vec<u8>, SocketAddr)>> {
        errno::take(&mut self.error)?;
        if self.fetch(net).is_none() {
            return Ok(None);
        }
        let next = if peek { self.peeked.clone() } else { self.peeked.take() };
        Ok(next.map(|(bytes, from)| (bytes, self.domain.outward(from))))
    }

    /// Notes new errors and datagrams.
    pub(crate) fn look(&mut self, net: &mut Net) {
        let Some(handle) = self.handle else { return };
        if let Some(error) = net.stack.udp_mut().take_error(handle)
            && self.peer == Some(error.remote)
            && let IcmpErrorKind::Unreachable { code } = error.kind
        {
            //= RFC 1122 section 3.2.2.1: code 3 is the port; RFC 4443 section 3.1: over IPv6 it is 4.
            let port = if error.remote.is_ipv4() { 3 } else { 4 };
            self.error = Some(Errno(if code == port { libc::ECONNREFUSED } else { libc::EHOSTUNREACH }));
            self.edge += 1;
        }
        let waiting = net.stack.udp().waiting(handle);
        self.edge += u64::from(waiting > self.waiting);
        self.waiting = waiting;
    }

    pub(crate) fn close(self, net: &mut Net) {
        if let Some(handle) = self.handle {
            net.stack.udp_mut().close(handle);
        }
    }

    /// Bytes of the next datagram.
    pub(crate) fn readable(&mut self, net: &mut Net) -> usize {
        self.fetch(net);
        self.peeked.as_ref().map_or(0, |(bytes, _)| bytes.len())
    }

    /// `poll`'s bits.
    pub(crate) fn readiness(&self, net: &Net) -> i16 {
        let mut bits = libc::POLLOUT | libc::POLLWRNORM;
        let waiting = self.handle.map_or(0, |handle| net.stack.udp().waiting(handle));
        if waiting > 0 || self.peeked.is_some() {
            bits |= libc::POLLIN | libc::POLLRDNORM;
        }
        if self.error.is_some() {
            bits |= libc::POLLERR;
        }
        bits
    }
}
