//! Addresses, routes and neighbours: where a packet leaves, and to which station.
//!
//! Everything comes from configuration ([`PortConfig`]), which is checked once, with errors that say what to change;
//! only the stations' addresses may also be learned ([`neighbour`], by ARP).

mod config;
mod icmp;
pub mod neighbour;
mod route;

#[cfg(test)]
mod tests;

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::str::FromStr;

pub(crate) use config::Checked;
pub use config::{ConfigError, PortConfig};
pub use icmp::{IcmpError, IcmpErrorKind};
pub use route::{NextHop, Route, RouteTable};

/// A range of addresses that share their leading bits, such as 10.1.0.0/16 (RFC 4632).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix {
    network: Ipv4Addr,
    len: u8,
}

/// Text that is not a prefix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a prefix: write an IPv4 address, a slash and a length from 0 to 32, such as 10.1.0.0/16"
)]
pub struct PrefixError {
    /// What was given.
    pub text: String,
}

impl Prefix {
    /// All addresses: the destination of a default route.
    pub const ALL: Self = Self { network: Ipv4Addr::UNSPECIFIED, len: 0 };

    /// The addresses that share their first `len` bits with `address`. `None` above 32 bits.
    pub const fn new(address: Ipv4Addr, len: u8) -> Option<Self> {
        if len > 32 {
            return None;
        }
        Some(Self { network: Ipv4Addr::from_bits(address.to_bits() & mask(len)), len })
    }

    /// The lowest address.
    pub const fn network(self) -> Ipv4Addr {
        self.network
    }

    /// The highest address: the directed broadcast address, unless the prefix has 31 or 32 bits.
    pub const fn last(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.network.to_bits() | !mask(self.len))
    }

    /// How many leading bits are shared.
    pub const fn bits(self) -> u8 {
        self.len
    }

    /// Whether `address` is in it.
    #[inline]
    pub const fn contains(self, address: Ipv4Addr) -> bool {
        address.to_bits() & mask(self.len) == self.network.to_bits()
    }

    /// Whether a host may have `address`: in the prefix, and neither its network nor its broadcast address.
    pub const fn is_host(self, address: Ipv4Addr) -> bool {
        if !self.contains(address) {
            return false;
        }
        //= RFC 3021 section 2.1: of a 31-bit prefix both addresses are hosts.
        self.len >= 31
            || (address.to_bits() != self.network.to_bits() && address.to_bits() != self.last().to_bits())
    }
}

const fn mask(len: u8) -> u32 {
    match len {
        0 => 0,
        len => u32::MAX << (32 - len),
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.len)
    }
}

impl FromStr for Prefix {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<Self, PrefixError> {
        text.split_once('/')
            .and_then(|(address, len)| Self::new(address.parse().ok()?, len.parse().ok()?))
            .ok_or_else(|| PrefixError { text: text.to_owned() })
    }
}

/// Whether one host may be addressed by `address`.
#[inline]
pub const fn is_unicast(address: Ipv4Addr) -> bool {
    //= RFC 1122 section 3.2.1.3: 0/8 names this host or network, 224/4 groups, 240/4 is reserved, all ones all hosts.
    let first = address.octets()[0];
    first != 0 && first < 224
}

/// Whether one host may be addressed by `address`.
#[inline]
pub const fn is_unicast_v6(address: Ipv6Addr) -> bool {
    //= RFC 4291 section 2.4: all but the unspecified address and groups are unicast.
    !address.is_unspecified() && !address.is_multicast()
}

/// Whether one host may be addressed by `address`, of either version.
#[inline]
pub const fn is_unicast_ip(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_unicast(address),
        IpAddr::V6(address) => is_unicast_v6(address),
    }
}
