//! One port's addresses and routes, and what can be wrong with them.

use core::net::{IpAddr, Ipv4Addr};

use super::{Prefix, Route, RouteTable, is_unicast};
use crate::wire::ethernet::Mac;
use crate::wire::vlan::VlanId;

/// The smallest MTU of an IPv4 link (RFC 791 section 3.2).
const MIN_MTU: u16 = 68;

/// How a port takes part in IP.
#[derive(Clone, Debug)]
pub struct PortConfig {
    /// The port's own address.
    pub address: Ipv4Addr,
    /// Leading bits that the addresses on the link share, 1 to 32.
    pub prefix_len: u8,
    /// The router for everything that no route covers.
    pub gateway: Option<Ipv4Addr>,
    /// Further routes.
    pub routes: Vec<Route>,
    /// Stations whose Ethernet address is known; they are never asked for by ARP.
    pub neighbours: Vec<(Ipv4Addr, [u8; 6])>,
    /// Largest IP packet in bytes; at most the device's.
    pub mtu: u16,
    /// The 802.1Q network that frames are tagged with; untagged if `None`.
    pub vlan: Option<u16>,
}

impl PortConfig {
    /// A port with `address` on a link with `prefix_len` shared bits, without gateway or tag.
    pub fn new(address: Ipv4Addr, prefix_len: u8, mtu: u16) -> Self {
        Self {
            address,
            prefix_len,
            gateway: None,
            routes: Vec::new(),
            neighbours: Vec::new(),
            mtu,
            vlan: None,
        }
    }
}

/// Why a [`PortConfig`] was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The length is not that of a prefix.
    #[error("port {address}: prefix length {len} is out of range; give 1 to 32")]
    PrefixLength {
        /// The port's address.
        address: Ipv4Addr,
        /// What was given.
        len: u8,
    },
    /// A host cannot have this address.
    #[error(
        "port {address}: no host can have this address in {prefix}; give a unicast address that is neither the first nor the last of its prefix"
    )]
    Address {
        /// The port's address.
        address: Ipv4Addr,
        /// The prefix it was given with.
        prefix: Prefix,
    },
    /// Another port has it.
    #[error("port {address}: another port has this address already; give each port its own")]
    AddressInUse {
        /// The address.
        address: Ipv4Addr,
    },
    /// A gateway is not a neighbour.
    #[error(
        "port {address}: gateway {gateway} is not another host in {prefix}; name a router on the port's own link"
    )]
    Gateway {
        /// The port's address.
        address: Ipv4Addr,
        /// The gateway.
        gateway: Ipv4Addr,
        /// The link's prefix.
        prefix: Prefix,
    },
    /// A static neighbour cannot be reached directly.
    #[error(
        "port {address}: neighbour {neighbour} is not on the link; add an on-link route for it, or remove it"
    )]
    NeighbourOffLink {
        /// The port's address.
        address: Ipv4Addr,
        /// The neighbour.
        neighbour: Ipv4Addr,
    },
    /// A static neighbour has no proper Ethernet address.
    #[error(
        "port {address}: neighbour {neighbour} has Ethernet address {mac}, which is not that of one station"
    )]
    NeighbourMac {
        /// The port's address.
        address: Ipv4Addr,
        /// The neighbour.
        neighbour: Ipv4Addr,
        /// The Ethernet address.
        mac: Mac,
    },
    /// A static neighbour is listed twice.
    #[error("port {address}: neighbour {neighbour} is listed twice; keep one of the two")]
    NeighbourTwice {
        /// The port's address.
        address: Ipv4Addr,
        /// The neighbour.
        neighbour: Ipv4Addr,
    },
    /// The MTU does not suit the device.
    #[error(
        "port {address}: MTU {mtu} is not within {min} to {max}, which device {device} can send; change the port's MTU or the device's"
    )]
    Mtu {
        /// The port's address.
        address: Ipv4Addr,
        /// What was given.
        mtu: u16,
        /// The least.
        min: u16,
        /// What the device can send.
        max: u16,
        /// The device's kind.
        device: &'static str,
    },
    /// Not a VLAN identifier.
    #[error("port {address}: VLAN {vlan} is out of range; give 1 to 4094, or none for untagged frames")]
    Vlan {
        /// The port's address.
        address: Ipv4Addr,
        /// What was given.
        vlan: u16,
    },
}

/// A configuration that has been checked.
#[derive(Clone, Debug)]
pub(crate) struct Checked {
    pub(crate) address: Ipv4Addr,
    pub(crate) mtu: u16,
    pub(crate) vlan: Option<VlanId>,
    pub(crate) routes: RouteTable,
    pub(crate) neighbours: Vec<(IpAddr, Mac)>,
}

impl PortConfig {
    /// Checks the configuration for a device of the given kind and MTU.
    pub(crate) fn check(&self, device: &'static str, device_mtu: u16) -> Result<Checked, ConfigError> {
        let Self { address, prefix_len, gateway, ref routes, ref neighbours, mtu, vlan } = *self;
        let prefix = Prefix::new(address, prefix_len)
            .filter(|_| prefix_len > 0)
            .ok_or(ConfigError::PrefixLength { address, len: prefix_len })?;
        if !is_unicast(address) || address.is_loopback() || !prefix.is_host(address) {
            return Err(ConfigError::Address { address, prefix });
        }
        if !(MIN_MTU..=device_mtu).contains(&mtu) {
            return Err(ConfigError::Mtu { address, mtu, min: MIN_MTU, max: device_mtu, device });
        }
        let vlan = match vlan {
            Some(id) => Some(VlanId::new(id).ok_or(ConfigError::Vlan { address, vlan: id })?),
            None => None,
        };

        let mut table = vec![Route { prefix, gateway: None }];
        table.extend(routes);
        let on_link: Vec<Prefix> = table.iter().filter(|r| r.gateway.is_none()).map(|r| r.prefix).collect();
        table.extend(gateway.map(|gateway| Route { prefix: Prefix::ALL, gateway: Some(gateway) }));
        for gateway in table.iter().filter_map(|route| route.gateway) {
            if gateway == address || !is_unicast(gateway) || !on_link.iter().any(|p| p.is_host(gateway)) {
                return Err(ConfigError::Gateway { address, gateway, prefix });
            }
        }

        let mut known: Vec<(IpAddr, Mac)> = Vec::with_capacity(neighbours.len());
        for &(neighbour, mac) in neighbours {
            let mac = Mac(mac);
            if neighbour == address || !on_link.iter().any(|p| p.is_host(neighbour)) {
                return Err(ConfigError::NeighbourOffLink { address, neighbour });
            }
            if !mac.is_station() {
                return Err(ConfigError::NeighbourMac { address, neighbour, mac });
            }
            if known.iter().any(|&(other, _)| other == neighbour) {
                return Err(ConfigError::NeighbourTwice { address, neighbour });
            }
            known.push((neighbour.into(), mac));
        }
        Ok(Checked { address, mtu, vlan, routes: RouteTable::new(table), neighbours: known })
    }
}
