//! Sockets: the semantics of Linux's calls.

pub(crate) mod info;
pub(crate) mod option;
pub(crate) mod tcp;
pub(crate) mod udp;

use core::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::errno::{Errno, Result};
use crate::net::Net;

/// An address family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Domain {
    #[default]
    V4,
    V6,
}

impl Domain {
    /// The stack's form of an address: an IPv4-mapped IPv6 address becomes IPv4.
    pub(crate) fn inward(self, address: SocketAddr) -> Result<SocketAddr> {
        match (self, address) {
            (Self::V4, SocketAddr::V4(_)) => Ok(address),
            (Self::V4, SocketAddr::V6(_)) => Err(Errno(libc::EAFNOSUPPORT)),
            (Self::V6, SocketAddr::V4(_)) => Err(Errno(libc::EINVAL)),
            (Self::V6, SocketAddr::V6(_)) => Ok(SocketAddr::new(address.ip().to_canonical(), address.port())),
        }
    }

    /// The program's form of an address.
    pub(crate) fn outward(self, address: SocketAddr) -> SocketAddr {
        match (self, address.ip()) {
            (Self::V6, IpAddr::V4(ip)) => SocketAddr::new(ip.to_ipv6_mapped().into(), address.port()),
            _ => address,
        }
    }

    /// The wildcard.
    pub(crate) const fn any(self) -> IpAddr {
        match self {
            Self::V4 => IpAddr::V4(core::net::Ipv4Addr::UNSPECIFIED),
            Self::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        }
    }
}

/// Checks an address to which a socket is to be bound.
pub(crate) fn check_local(net: &Net, domain: Domain, address: SocketAddr) -> Result<SocketAddr> {
    let local = domain.inward(address)?;
    if net.is_ours(local.ip()) { Ok(local) } else { Err(Errno(libc::EADDRNOTAVAIL)) }
}

/// Whether two local addresses conflict: the same port, and one address covers the other.
pub(crate) fn overlap(one: &SocketAddr, other: &SocketAddr) -> bool {
    let covers = |a: IpAddr, b: IpAddr| a == b || (a.is_unspecified() && (a.is_ipv6() || b.is_ipv4()));
    one.port() != 0
        && one.port() == other.port()
        && (covers(one.ip(), other.ip()) || covers(other.ip(), one.ip()))
}

impl Domain {
    /// The number of the family.
    pub(crate) const fn number(self) -> i32 {
        match self {
            Self::V4 => libc::AF_INET,
            Self::V6 => libc::AF_INET6,
        }
    }
}
