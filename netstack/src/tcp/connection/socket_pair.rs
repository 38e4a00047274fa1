//! The pair of sockets that identifies a connection (RFC 9293 section 3.3.1).

use core::net::{IpAddr, SocketAddr};

/// Both ends' addresses and ports, which never change; both addresses are of one family. Half as large as two
/// [`SocketAddr`].
#[derive(Clone, Copy, Debug)]
pub(super) struct SocketPair {
    local_ip: IpAddr,
    remote_ip: IpAddr,
    local_port: u16,
    remote_port: u16,
}

impl SocketPair {
    pub(super) fn new(local: SocketAddr, remote: SocketAddr) -> Self {
        Self {
            local_ip: local.ip(),
            remote_ip: remote.ip(),
            local_port: local.port(),
            remote_port: remote.port(),
        }
    }

    /// This side's address and port.
    #[inline]
    pub(super) fn local(&self) -> SocketAddr {
        SocketAddr::new(self.local_ip, self.local_port)
    }

    /// The peer's.
    #[inline]
    pub(super) fn remote(&self) -> SocketAddr {
        SocketAddr::new(self.remote_ip, self.remote_port)
    }

    pub(super) fn local_ip(&self) -> IpAddr {
        self.local_ip
    }

    pub(super) fn remote_ip(&self) -> IpAddr {
        self.remote_ip
    }

    #[inline]
    pub(super) fn local_port(&self) -> u16 {
        self.local_port
    }

    #[inline]
    pub(super) fn remote_port(&self) -> u16 {
        self.remote_port
    }

    pub(super) fn is_ipv6(&self) -> bool {
        self.local_ip.is_ipv6()
    }

    /// Whether these are the two ends.
    #[inline]
    pub(super) fn is_between(
        &self,
        local: IpAddr,
        local_port: u16,
        remote: IpAddr,
        remote_port: u16,
    ) -> bool {
        self.remote_port == remote_port
            && self.local_port == local_port
            && self.remote_ip == remote
            && self.local_ip == local
    }
}
