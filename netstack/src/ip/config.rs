//! One port's addresses and routes, and the errors in them.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Address, Prefix, Route, RouteTable};
use crate::wire::ethernet::Mac;
use crate::wire::ipv6;
use crate::wire::vlan::VlanId;

/// The smallest MTU of an IPv4 link (RFC 791 section 3.2).
const MIN_MTU: u16 = 68;

/// Addresses on the link (RFC 4291 section 2.5.6).
const LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0);

/// How a port takes part in IP.
#[derive(Clone, Debug)]
pub struct PortConfig {
    /// The port's own IPv4 address; 0.0.0.0 if it has IPv6 only.
    pub address: Ipv4Addr,
    /// Leading bits that the addresses on the link share, 1 to 32.
    pub prefix_len: u8,
    /// The router for everything that no route covers.
    pub gateway: Option<Ipv4Addr>,
    /// Further routes.
    pub routes: Vec<Route>,
    /// Stations whose Ethernet address is configured; ARP never requests it.
    pub neighbours: Vec<(Ipv4Addr, [u8; 6])>,
    /// How the port takes part in IPv6; not at all if `None`.
    pub ipv6: Option<Ipv6Config>,
    /// Largest IP packet in bytes; at most the device's, and with IPv6 1280 at least.
    pub mtu: u16,
    /// The 802.1Q network that frames are tagged with; untagged if `None`.
    pub vlan: Option<u16>,
}

/// How a port takes part in IPv6. It also has the link-local address that follows from its Ethernet address (RFC 4291
/// appendix A).
///
/// Addresses come from here alone: there is no autoconfiguration from routers, and no detection of duplicates before an
/// address is used. Duplicates are counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ipv6Config {
    /// The port's own address; `::` if the link-local one is enough.
    pub address: Ipv6Addr,
    /// Leading bits that the addresses on the link share, 1 to 128.
    pub prefix_len: u8,
    /// The router for everything that no route covers.
    pub gateway: Option<Ipv6Addr>,
    /// Further routes.
    pub routes: Vec<Route<Ipv6Addr>>,
    /// Stations whose Ethernet address is configured; neighbour discovery never solicits it.
    pub neighbours: Vec<(Ipv6Addr, [u8; 6])>,
}

impl Ipv6Config {
    /// A port with `address` on a link with `prefix_len` shared bits, without gateway.
    pub fn new(address: Ipv6Addr, prefix_len: u8) -> Self {
        Self { address, prefix_len, gateway: None, routes: Vec::new(), neighbours: Vec::new() }
    }
}

impl PortConfig {
    /// A port with `address` on a link with `prefix_len` shared bits, without gateway, IPv6 or tag.
    pub fn new(address: Ipv4Addr, prefix_len: u8, mtu: u16) -> Self {
        Self {
            address,
            prefix_len,
            gateway: None,
            routes: Vec::new(),
            neighbours: Vec::new(),
            ipv6: None,
            mtu,
            vlan: None,
        }
    }

    /// A port with IPv6 only: its IPv4 address is unspecified.
    ///
    /// ```
    /// use shouter_netstack::stack::{Ipv6Config, PortConfig};
    ///
    /// let port = PortConfig::ipv6_only(Ipv6Config::new("fd00::1".parse()?, 64), 1500);
    /// assert!(port.address.is_unspecified());
    /// # Ok::<(), std::net::AddrParseError>(())
    /// ```
    pub fn ipv6_only(ipv6: Ipv6Config, mtu: u16) -> Self {
        Self { ipv6: Some(ipv6), ..Self::new(Ipv4Addr::UNSPECIFIED, 0, mtu) }
    }

    /// How errors name the port.
    fn name(&self) -> IpAddr {
        match &self.ipv6 {
            Some(ipv6) if self.address.is_unspecified() => ipv6.address.into(),
            _ => self.address.into(),
        }
    }
}

/// Why a [`PortConfig`] was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The length is not that of a prefix.
    #[error("port {address}: prefix length {len} is out of range; give 1 to {max}")]
    PrefixLength {
        /// The port's address.
        address: IpAddr,
        /// The length given.
        len: u8,
        /// The greatest length: 32 or 128.
        max: u8,
    },
    /// A host cannot have this address.
    #[error(
        "port {address}: no host can have this address on a link with {prefix_len} shared bits; give a unicast address that is neither the first of its prefix nor, of IPv4, the last"
    )]
    Address {
        /// The port's address.
        address: IpAddr,
        /// Bits of the prefix it was given with.
        prefix_len: u8,
    },
    /// Another port has it.
    #[error("port {address}: another port has this address already; give each port its own")]
    AddressInUse {
        /// The address.
        address: IpAddr,
    },
    /// A gateway is not a neighbour.
    #[error(
        "port {address}: gateway {gateway} is not another host on the port's link; name a router within its {prefix_len} shared bits"
    )]
    Gateway {
        /// The port's address.
        address: IpAddr,
        /// The gateway.
        gateway: IpAddr,
        /// Bits of the link's prefix.
        prefix_len: u8,
    },
    /// A static neighbour cannot be reached directly.
    #[error(
        "port {address}: neighbour {neighbour} is not on the link; add an on-link route for it, or remove it"
    )]
    NeighbourOffLink {
        /// The port's address.
        address: IpAddr,
        /// The neighbour.
        neighbour: IpAddr,
    },
    /// A static neighbour has no proper Ethernet address.
    #[error(
        "port {address}: neighbour {neighbour} has Ethernet address {mac}, which is not that of one station"
    )]
    NeighbourMac {
        /// The port's address.
        address: IpAddr,
        /// The neighbour.
        neighbour: IpAddr,
        /// The Ethernet address.
        mac: Mac,
    },
    /// A static neighbour is listed twice.
    #[error("port {address}: neighbour {neighbour} is listed twice; keep one of the two")]
    NeighbourTwice {
        /// The port's address.
        address: IpAddr,
        /// The neighbour.
        neighbour: IpAddr,
    },
    /// The MTU does not suit the device.
    #[error(
        "port {address}: MTU {mtu} is not within {min} to {max}, which device {device} can send; change the port's MTU or the device's"
    )]
    Mtu {
        /// The port's address.
        address: IpAddr,
        /// The MTU given.
        mtu: u16,
        /// The least: 68, or 1280 with IPv6.
        min: u16,
        /// The largest MTU of the device.
        max: u16,
        /// The device's kind.
        device: &'static str,
    },
    /// Not a VLAN identifier.
    #[error("port {address}: VLAN {vlan} is out of range; give 1 to 4094, or none for untagged frames")]
    Vlan {
        /// The port's address.
        address: IpAddr,
        /// The identifier given.
        vlan: u16,
    },
}

/// A configuration that has been checked.
#[derive(Clone, Debug)]
pub(crate) struct Checked {
    pub(crate) ipv4: Option<(Ipv4Addr, RouteTable)>,
    /// Without the link-local address, which depends on the device; `None` if that is the only one.
    pub(crate) ipv6: Option<(Option<Ipv6Addr>, RouteTable<Ipv6Addr>)>,
    pub(crate) mtu: u16,
    pub(crate) vlan: Option<VlanId>,
    pub(crate) neighbours: Vec<(IpAddr, Mac)>,
}

impl PortConfig {
    /// Checks the configuration for a device of the given kind and MTU.
    pub(crate) fn check(&self, device: &'static str, device_mtu: u16) -> Result<Checked, ConfigError> {
        let address = self.name();
        let mut neighbours = Vec::new();
        let ipv4 = if self.address.is_unspecified() && self.ipv6.is_some() {
            None
        } else {
            let family = FamilyConfig {
                address: self.address,
                prefix_len: self.prefix_len,
                gateway: self.gateway,
                routes: &self.routes,
                neighbours: &self.neighbours,
            };
            Some((self.address, family.check(&[], &mut neighbours)?))
        };
        let ipv6 = match &self.ipv6 {
            None => None,
            Some(ipv6) => {
                let own = Some(ipv6.address).filter(|address| !address.is_unspecified());
                let family = FamilyConfig {
                    // The prefix of the link is that of link-local addresses if there is no other.
                    address: own.unwrap_or(Ipv6Addr::from_bits(LINK_LOCAL.to_bits() | u64::MAX as u128)),
                    prefix_len: if own.is_some() { ipv6.prefix_len } else { 64 },
                    gateway: ipv6.gateway,
                    routes: &ipv6.routes,
                    neighbours: &ipv6.neighbours,
                };
                //= RFC 4291 section 2.5.6: link-local addresses have a prefix of 64 bits.
                let link_local: Vec<_> = Prefix::new(LINK_LOCAL, 64)
                    .map(|prefix| Route { prefix, gateway: None })
                    .into_iter()
                    .collect();
                Some((own, family.check(&link_local, &mut neighbours)?))
            }
        };
        //= RFC 8200 section 5: every link that carries IPv6 has an MTU of 1280 at least.
        let min = if ipv6.is_some() { ipv6::MIN_MTU } else { MIN_MTU };
        let mtu = self.mtu;
        if !(min..=device_mtu).contains(&mtu) {
            return Err(ConfigError::Mtu { address, mtu, min, max: device_mtu, device });
        }
        let vlan = match self.vlan {
            Some(id) => Some(VlanId::new(id).ok_or(ConfigError::Vlan { address, vlan: id })?),
            None => None,
        };
        Ok(Checked { ipv4, ipv6, mtu, vlan, neighbours })
    }
}

/// The configuration of one IP version.
struct FamilyConfig<'a, A> {
    address: A,
    prefix_len: u8,
    gateway: Option<A>,
    routes: &'a [Route<A>],
    neighbours: &'a [(A, [u8; 6])],
}

impl<A: Address> FamilyConfig<'_, A> {
    /// Checks it, adds its neighbours to `known`, and returns its routes and the `further` ones.
    fn check(
        &self,
        further: &[Route<A>],
        known: &mut Vec<(IpAddr, Mac)>,
    ) -> Result<RouteTable<A>, ConfigError> {
        let &Self { address: own, prefix_len, gateway, routes, neighbours } = self;
        let address = own.into();
        let prefix = Prefix::new(own, prefix_len)
            .filter(|_| prefix_len > 0)
            .ok_or(ConfigError::PrefixLength { address, len: prefix_len, max: A::BITS })?;
        if !own.is_host_address() || !prefix.is_host(own) {
            return Err(ConfigError::Address { address, prefix_len });
        }
        let mut table = vec![Route { prefix, gateway: None }];
        table.extend(further);
        table.extend(routes);
        let on_link: Vec<_> = table.iter().filter(|r| r.gateway.is_none()).map(|r| r.prefix).collect();
        let is_neighbour = |other: A| other != own && on_link.iter().any(|prefix| prefix.is_host(other));
        table.extend(gateway.map(|gateway| Route { prefix: Prefix::ALL, gateway: Some(gateway) }));
        for gateway in table.iter().filter_map(|route| route.gateway) {
            if !gateway.is_host_address() || !is_neighbour(gateway) {
                return Err(ConfigError::Gateway { address, gateway: gateway.into(), prefix_len });
            }
        }
        for &(station, mac) in neighbours {
            let (mac, neighbour) = (Mac(mac), station.into());
            if !is_neighbour(station) {
                return Err(ConfigError::NeighbourOffLink { address, neighbour });
            }
            if !mac.is_station() {
                return Err(ConfigError::NeighbourMac { address, neighbour, mac });
            }
            if known.iter().any(|&(other, _)| other == neighbour) {
                return Err(ConfigError::NeighbourTwice { address, neighbour });
            }
            known.push((neighbour, mac));
        }
        Ok(RouteTable::new(table))
    }
}
