//! A port's own addresses, and the ways from it.

use core::net::IpAddr;

use super::port::Interface;
use crate::ip::NextHop;

impl Interface {
    /// Whether `address` is one of this port's own.
    #[inline]
    pub(super) fn has_address(&self, address: IpAddr) -> bool {
        address == IpAddr::V4(self.address)
    }

    /// The next hop towards `remote`, and the address of ours to send from.
    pub(super) fn next_hop(&self, remote: IpAddr) -> Option<(NextHop, IpAddr)> {
        match remote {
            IpAddr::V4(remote) => Some((self.routes.next_hop(remote)?, self.address.into())),
            IpAddr::V6(_) => None,
        }
    }
}
