//! Addresses, routes, neighbours, paths: where a packet leaves, to which station, and how long it may be.
//!
//! Addresses and routes come from configuration ([`PortConfig`]), which is checked once, with errors that name the
//! remedy; the stations' addresses may also be learned ([`neighbour`], by ARP and neighbour discovery).

mod config;
mod icmp;
pub(crate) mod limit;
pub mod neighbour;
pub mod path_mtu;
pub(crate) mod peers;
mod prefix;
pub mod reassembly;
mod route;

#[cfg(test)]
mod tests;

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub(crate) use config::Checked;
pub use config::{ConfigError, Ipv6Config, PortConfig};
pub use icmp::{IcmpError, IcmpErrorKind};
pub use prefix::{Address, Prefix, PrefixError};
pub use route::{NextHop, Route, RouteTable};

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
