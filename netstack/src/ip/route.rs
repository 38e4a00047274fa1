//! Routes of one port: the longest prefix wins.

use core::net::{IpAddr, Ipv4Addr};

use super::{Address, Prefix};

/// Packets for `prefix` go to `gateway`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route<A = Ipv4Addr> {
    /// The destinations.
    pub prefix: Prefix<A>,
    /// The router that forwards to them; `None` if they are on the port's own link.
    pub gateway: Option<A>,
}

/// The answer for one destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// The station to hand the packet to: the destination itself, or a gateway.
    pub address: IpAddr,
    /// Bits of the prefix that matched, to compare ports by.
    pub prefix_len: u8,
}

/// The routes of one port and IP version, longest prefix first.
#[derive(Clone, Debug)]
pub struct RouteTable<A = Ipv4Addr> {
    routes: Vec<Route<A>>,
}

impl<A> Default for RouteTable<A> {
    fn default() -> Self {
        Self { routes: Vec::new() }
    }
}

impl<A: Address> RouteTable<A> {
    /// A table of `routes`; of two with the same prefix the first one counts.
    pub fn new(mut routes: Vec<Route<A>>) -> Self {
        // A stable sort: equal lengths keep their order.
        routes.sort_by_key(|route| core::cmp::Reverse(route.prefix.bits()));
        Self { routes }
    }

    /// The next hop of packets for `destination`; `None` without a route.
    pub fn next_hop(&self, destination: A) -> Option<NextHop> {
        //= RFC 1122 section 3.3.1.1: on the connected network directly, else to a gateway; the most specific wins.
        let route = self.routes.iter().find(|route| route.prefix.contains(destination))?;
        let address = route.gateway.unwrap_or(destination).into();
        Some(NextHop { address, prefix_len: route.prefix.bits() })
    }

    /// Whether `destination` stands for all hosts of a network on the port's own link.
    pub fn is_broadcast(&self, destination: A) -> bool {
        let route = self.routes.iter().find(|route| route.prefix.contains(destination));
        route.is_some_and(|route| route.gateway.is_none() && route.prefix.is_broadcast(destination))
    }

    /// Whether `address` is reached without a router.
    pub fn is_on_link(&self, address: A) -> bool {
        self.next_hop(address).is_some_and(|hop| hop.address == address.into())
    }

    /// Whether `address` is a router that a route leads through.
    pub(crate) fn is_gateway(&self, address: A) -> bool {
        self.routes.iter().any(|route| route.gateway == Some(address))
    }
}
