//! GIDs: the addresses of RDMA ports, and which of them reaches a peer.
//!
//! A RoCE v2 GID is an IP address of the port's network interface, an IPv4 address in its mapped form (RFC 4291, section
//! 2.5.5.2). A port has several: one per address and per version of RoCE, in no order that can be relied on. So a connection
//! does not take the first: [`route`] asks the kernel through which interface its packets would go.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{VerbsError, sys};

/// An entry of a port's GID table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gid {
    /// Its place in the table, which a connection names.
    pub index: u8,
    /// The address.
    pub raw: [u8; 16],
    /// The protocol of packets from it.
    pub kind: GidKind,
    /// The network interface that it belongs to; InfiniBand proper has none.
    pub netdev: Option<String>,
}

/// The protocol of a GID (`enum ibv_gid_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GidKind {
    /// InfiniBand proper.
    Ib,
    /// RDMA over Ethernet frames of its own type; not routable.
    RoceV1,
    /// RDMA over UDP, port 4791.
    RoceV2,
    /// A type that this version does not support.
    Unknown(u32),
}

impl GidKind {
    pub(super) fn of(raw: u32) -> Self {
        match raw {
            0 => Self::Ib,
            1 => Self::RoceV1,
            2 => Self::RoceV2,
            other => Self::Unknown(other),
        }
    }
}

impl Gid {
    /// The IPv4 address, where the GID is one in its mapped form.
    pub fn ipv4(&self) -> Option<Ipv4Addr> {
        Ipv6Addr::from(self.raw).to_ipv4_mapped()
    }

    /// The IPv6 address, where it is not a mapped IPv4 address.
    pub fn ipv6(&self) -> Option<Ipv6Addr> {
        let address = Ipv6Addr::from(self.raw);
        address.to_ipv4_mapped().is_none().then_some(address)
    }
}

/// The address in a GID if it can be routed to: IPv4, or IPv6 that is neither link-local nor unspecified.
fn routable(raw: &[u8; 16]) -> Option<IpAddr> {
    let address = Ipv6Addr::from(*raw).to_canonical();
    let local = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    (!local && !address.is_unspecified() && !address.is_multicast()).then_some(address)
}

/// Chooses by route: one of our RoCE v2 GIDs and one of the peer's (its RoCE v2 GIDs, raw), such that the kernel has a route
/// from the first to the second through the first one's network interface. Where several do, the most specific route wins;
/// then the order of `ours` and of `theirs`. `None` where no route leads there.
///
/// The kernel is queried over rtnetlink for the matching entry of its routing tables, rules included. (A socket bound
/// to the interface would not show it: IPv4 then takes any destination for a neighbour.)
///
/// # Errors
/// [`VerbsError::Routing`] where this process may not use netlink.
pub fn route(ours: &[Gid], theirs: &[[u8; 16]]) -> Result<Option<(Gid, [u8; 16])>, VerbsError> {
    let mut questions = Vec::new();
    let mut pairs = Vec::new();
    for our in ours.iter().filter(|gid| gid.kind == GidKind::RoceV2) {
        let Some(source) = routable(&our.raw) else { continue };
        let Some(interface) = our.netdev.as_deref().and_then(sys::interface_index) else { continue };
        for their in theirs {
            let Some(destination) = routable(their) else { continue };
            if let Some(question) = question(source, destination, interface) {
                questions.push(question);
                pairs.push((our, their));
            }
        }
    }
    let mut best: Option<(u8, usize)> = None;
    sys::ask_routes(&questions, |index, reply| {
        if let Some(prefix) = prefix_of(reply)
            && best.is_none_or(|(most, _)| prefix > most)
        {
            best = Some((prefix, index));
        }
    })
    .map_err(|errno| VerbsError::Routing { errno })?;
    Ok(best.map(|(_, index)| (pairs[index].0.clone(), *pairs[index].1)))
}

// Numbers of rtnetlink(7) and netlink(7).
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const NLM_F_REQUEST: u16 = 1;
/// The answer is the table's entry, not the outcome; without an entry it is an error.
const RTM_F_FIB_MATCH: u32 = 0x2000;
const RTA_DST: u16 = 1;
const RTA_SRC: u16 = 2;
const RTA_OIF: u16 = 4;
const RTN_UNICAST: u8 = 1;
const RTN_LOCAL: u8 = 2;
const HEADER: usize = 16;

/// RTM_GETROUTE from `source` to `destination` through `interface`; `None` for addresses of two families.
fn question(source: IpAddr, destination: IpAddr, interface: u32) -> Option<Vec<u8>> {
    let (family, source, destination) = match (source, destination) {
        (IpAddr::V4(s), IpAddr::V4(d)) => (libc::AF_INET, s.octets().to_vec(), d.octets().to_vec()),
        (IpAddr::V6(s), IpAddr::V6(d)) => (libc::AF_INET6, s.octets().to_vec(), d.octets().to_vec()),
        _ => return None,
    };
    let bits = u8::try_from(source.len() * 8).ok()?;
    let mut message = vec![0; HEADER];
    message.extend([u8::try_from(family).ok()?, bits, bits, 0, 0, 0, 0, 0]);
    message.extend(RTM_F_FIB_MATCH.to_ne_bytes());
    for (kind, value) in
        [(RTA_DST, &destination[..]), (RTA_SRC, &source), (RTA_OIF, &interface.to_ne_bytes())]
    {
        message.extend(u16::try_from(4 + value.len()).ok()?.to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend(value);
    }
    let len = u32::try_from(message.len()).ok()?;
    message[..4].copy_from_slice(&len.to_ne_bytes());
    message[4..6].copy_from_slice(&RTM_GETROUTE.to_ne_bytes());
    message[6..8].copy_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    Some(message)
}

/// The prefix length of the route in an answer; `None` for an error, or a route that leads nowhere.
fn prefix_of(reply: &[u8]) -> Option<u8> {
    let kind = u16::from_ne_bytes(reply.get(4..6)?.try_into().ok()?);
    let route = reply.get(HEADER..HEADER + 12)?;
    let leads = matches!(route[7], RTN_UNICAST | RTN_LOCAL);
    (kind == RTM_NEWROUTE && leads).then_some(route[1])
}

#[cfg(test)]
mod tests;
