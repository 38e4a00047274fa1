//! Routes of one port: the longest prefix wins.

use core::net::{IpAddr, Ipv4Addr};

use super::Prefix;

/// Packets for `prefix` go to `gateway`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The destinations.
    pub prefix: Prefix,
    /// The router that forwards to them; `None` if they are on the port's own link.
    pub gateway: Option<Ipv4Addr>,
}

/// The answer for one destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// The station to hand the packet to: the destination itself, or a gateway.
    pub address: IpAddr,
    /// Bits of the prefix that matched, to compare ports by.
    pub prefix_len: u8,
}

/// The routes of one port, longest prefix first.
#[derive(Clone, Debug, Default)]
pub struct RouteTable {
    routes: Vec<Route>,
}

impl RouteTable {
    /// A table of `routes`; of two with the same prefix the first one counts.
    pub fn new(mut routes: Vec<Route>) -> Self {
        // A stable sort: equal lengths keep their order.
        routes.sort_by_key(|route| core::cmp::Reverse(route.prefix.bits()));
        Self { routes }
    }

    /// Where packets for `destination` go next; `None` without a route.
    pub fn next_hop(&self, destination: Ipv4Addr) -> Option<NextHop> {
        //= RFC 1122 section 3.3.1.1: on the connected network directly, else to a gateway; the most specific wins.
        let route = self.routes.iter().find(|route| route.prefix.contains(destination))?;
        Some(NextHop {
            address: route.gateway.unwrap_or(destination).into(),
            prefix_len: route.prefix.bits(),
        })
    }

    /// The routes, longest prefix first.
    pub fn routes(&self) -> &[Route] {
        &self.routes
    }
}
