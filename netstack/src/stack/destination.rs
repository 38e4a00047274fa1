//! From a destination to the headers in front of its datagrams, worked out once and then copied.
//!
//! A datagram's Ethernet, IPv4 and UDP headers differ from the previous one's to the same host in the ports, two
//! length fields and one checksum. So they are kept as a template: per datagram, they are copied and patched.

use core::net::Ipv4Addr;

use super::SendError;
use super::counters::Counters;
use super::port::{LinkHeader, Port};
use crate::device::{Device, Frame};
use crate::ip::is_unicast;
use crate::ip::neighbour::Resolution;
use crate::region::Extent;
use crate::rud;
use crate::time::Instant;
use crate::wire::ethernet::EtherType;
use crate::wire::ipv4::{self, Protocol};
use crate::wire::udp;

/// Bytes of IPv4 and UDP headers.
pub(super) const IP_UDP: usize = ipv4::HEADER_LEN + udp::HEADER_LEN;

/// Templates kept, a power of two. Two hosts that share a slot evict each other, which costs time and nothing else.
const SLOTS: usize = 512;

/// The headers in front of datagrams from one of our addresses to a host.
#[derive(Clone, Debug)]
pub(super) struct Template {
    local: Ipv4Addr,
    remote: Ipv4Addr,
    pub(super) source: Ipv4Addr,
    pub(super) port: usize,
    /// The neighbour cache's generation when this was made.
    generation: u32,
    pub(super) mtu: u16,
    pub(super) link: LinkHeader,
    ip_udp: [u8; IP_UDP],
    /// Sum over the IPv4 header with length and checksum zero.
    ip_sum: u32,
}

impl Template {
    /// IPv4 and UDP headers of a datagram with `len` bytes behind them, without a UDP checksum. `len` has been
    /// checked against the MTU.
    #[inline]
    pub(super) fn stamp(&self, source_port: u16, destination_port: u16, len: usize) -> [u8; IP_UDP] {
        let mut out = self.ip_udp;
        let total = (len + IP_UDP) as u16;
        //= RFC 1071 section 2: the sum of the parts that never change is added to that of those that do.
        let sum = self.ip_sum + u32::from(total);
        let sum = (sum & 0xffff) + (sum >> 16);
        let sum = (sum & 0xffff) + (sum >> 16);
        out[2..4].copy_from_slice(&total.to_be_bytes());
        out[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
        out[20..22].copy_from_slice(&source_port.to_be_bytes());
        out[22..24].copy_from_slice(&destination_port.to_be_bytes());
        out[24..26].copy_from_slice(&(total - ipv4::HEADER_LEN as u16).to_be_bytes());
        out
    }
}

/// Why there is no template for a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Miss {
    /// It will never do, or not soon.
    Error(SendError),
    /// The neighbour is being asked for; packets may wait for it at the port.
    Pending { port: usize, next_hop: Ipv4Addr, source: Ipv4Addr },
}

/// The templates in use.
#[derive(Debug)]
pub(super) struct Destinations {
    slots: Vec<Option<Template>>,
}

impl Destinations {
    pub(super) fn new() -> Self {
        Self { slots: vec![None; SLOTS] }
    }

    /// The template for datagrams from `local` (unspecified: whichever port has the best route) to `remote`.
    #[inline]
    pub(super) fn find<D: Device>(
        &mut self,
        now: Instant,
        ports: &mut [Port<D>],
        local: Ipv4Addr,
        remote: Ipv4Addr,
    ) -> Result<&Template, Miss> {
        let hash = (remote.to_bits() ^ local.to_bits().rotate_left(16)).wrapping_mul(0x9e37_79b1);
        let slot = &mut self.slots[hash as usize >> 23 & (SLOTS - 1)];
        let fresh = slot.as_ref().is_some_and(|t| {
            t.remote == remote
                && t.local == local
                && ports.get(t.port).is_some_and(|port| port.iface.neighbours.generation() == t.generation)
        });
        if !fresh {
            *slot = Some(resolve(now, ports, local, remote)?);
        }
        slot.as_ref().ok_or(Miss::Error(SendError::NoRoute { remote }))
    }

    /// Forgets everything: a port was added, so routes may have changed.
    pub(super) fn clear(&mut self) {
        self.slots.fill(None);
    }
}

/// The port to send from, and the next hop there.
pub(super) fn route<D>(
    ports: &[Port<D>],
    local: Ipv4Addr,
    remote: Ipv4Addr,
) -> Result<(usize, Ipv4Addr), SendError> {
    if !is_unicast(remote) {
        return Err(SendError::NotUnicast { remote });
    }
    let mut best: Option<(u8, usize, Ipv4Addr)> = None;
    let mut has_address = local.is_unspecified();
    for (index, port) in ports.iter().enumerate() {
        //= RFC 1122 section 3.3.4.2: strong model, a datagram leaves through the interface of its source address.
        if !local.is_unspecified() && port.iface.address != local {
            continue;
        }
        has_address = true;
        if let Some(hop) = port.iface.routes.next_hop(remote)
            && best.is_none_or(|(len, ..)| hop.prefix_len > len)
        {
            best = Some((hop.prefix_len, index, hop.address));
        }
    }
    match best {
        Some((_, index, next_hop)) => Ok((index, next_hop)),
        None if has_address => Err(SendError::NoRoute { remote }),
        None => Err(SendError::NotOurs { local }),
    }
}

#[cold]
fn resolve<D: Device>(
    now: Instant,
    ports: &mut [Port<D>],
    local: Ipv4Addr,
    remote: Ipv4Addr,
) -> Result<Template, Miss> {
    let (index, next_hop) = route(ports, local, remote).map_err(Miss::Error)?;
    let Some(Port { iface, .. }) = ports.get_mut(index) else {
        return Err(Miss::Error(SendError::NoRoute { remote }));
    };
    let source = iface.address;
    let mac = match iface.neighbours.resolve(now, next_hop) {
        Resolution::Station(mac) => mac,
        Resolution::Pending => return Err(Miss::Pending { port: index, next_hop, source }),
        Resolution::Unreachable => return Err(Miss::Error(SendError::Unreachable { remote, next_hop })),
    };
    let Some(header) = ipv4::Repr::new(source, remote, Protocol::Udp, 0) else {
        return Err(Miss::Error(SendError::NoRoute { remote }));
    };
    let mut ip_udp = [0; IP_UDP];
    ip_udp[..ipv4::HEADER_LEN].copy_from_slice(&header.emit());
    ip_udp[2..4].fill(0);
    ip_udp[10..12].fill(0);
    let (words, _) = ip_udp.as_chunks::<2>();
    let ip_sum = words.iter().take(ipv4::HEADER_LEN / 2).map(|w| u32::from(u16::from_be_bytes(*w))).sum();
    Ok(Template {
        local,
        remote,
        source,
        port: index,
        generation: iface.neighbours.generation(),
        mtu: iface.mtu,
        link: iface.link_header(mac, EtherType::Ipv4),
        ip_udp,
        ip_sum,
    })
}

/// Gives RUD's datagrams their headers and puts them into the ports' batches.
#[derive(Debug)]
pub(super) struct Emitter<'a, D> {
    pub(super) now: Instant,
    pub(super) ports: &'a mut [Port<D>],
    pub(super) destinations: &'a mut Destinations,
    pub(super) counters: &'a mut Counters,
}

impl<D: Device> Emitter<'_, D> {
    /// What happens to a datagram without a template: it waits for its neighbour, or is dropped. RUD takes a drop
    /// for a loss, and sends again.
    #[cold]
    fn miss(&mut self, miss: Miss, to: (Ipv4Addr, u16, u16), header: &[u8], payload: Option<Extent>) {
        let (remote, source_port, destination_port) = to;
        let (port, next_hop, source) = match miss {
            Miss::Pending { port, next_hop, source } => (port, next_hop, source),
            Miss::Error(SendError::Unreachable { .. }) => {
                self.counters.tx_unreachable += 1;
                return;
            }
            Miss::Error(_) => {
                self.counters.tx_no_route += 1;
                return;
            }
        };
        let payload = payload.as_ref().map_or(&[][..], |extent| extent.as_bytes());
        let len = header.len() + payload.len();
        let headers = udp_packet_headers(source, remote, source_port, destination_port, len);
        match (headers, self.ports.get_mut(port)) {
            (Some(headers), Some(port)) => {
                port.iface.hold(next_hop, [&headers, header, payload], self.counters)
            }
            _ => self.counters.tx_too_long += 1,
        }
    }
}

/// IPv4 and UDP headers without a template and without a UDP checksum.
pub(super) fn udp_packet_headers(
    source: Ipv4Addr,
    remote: Ipv4Addr,
    source_port: u16,
    destination_port: u16,
    len: usize,
) -> Option<[u8; IP_UDP]> {
    let udp = udp::Repr::new(source_port, destination_port, len)?;
    let ip = ipv4::Repr::new(source, remote, Protocol::Udp, len + udp::HEADER_LEN)?;
    let mut out = [0; IP_UDP];
    out[..ipv4::HEADER_LEN].copy_from_slice(&ip.emit());
    out[ipv4::HEADER_LEN..].copy_from_slice(&udp.emit());
    Some(out)
}

impl<D: Device> rud::Emit for Emitter<'_, D> {
    #[inline]
    fn room(&self) -> usize {
        self.ports.iter().map(|port| port.iface.room()).max().unwrap_or(0)
    }

    /// The UDP checksum stays zero: RUD's CRC32C covers payload, addresses and ports, and finds what the 16-bit sum
    /// would miss.
    #[inline]
    fn emit(&mut self, to: &rud::Destination, header: &[u8], payload: Option<Extent>) -> bool {
        //= RFC 768: a UDP checksum of zero says that there is none; over IPv4 that is allowed.
        let (core::net::IpAddr::V4(local), core::net::IpAddr::V4(remote)) = (to.local_ip, to.remote_ip)
        else {
            self.counters.tx_no_route += 1;
            return true;
        };
        let template = match self.destinations.find(self.now, self.ports, local, remote) {
            Ok(template) => template,
            Err(miss) => {
                self.miss(miss, (remote, to.src_port, to.dst_port), header, payload);
                return true;
            }
        };
        let len = header.len() + payload.map_or(0, |extent| extent.len());
        if len + IP_UDP > usize::from(template.mtu) {
            self.counters.tx_too_long += 1;
            return true;
        }
        let Some(Port { iface, .. }) = self.ports.get_mut(template.port) else {
            return false;
        };
        if iface.room() == 0 {
            return false;
        }
        let ip_udp = template.stamp(to.src_port, to.dst_port, len);
        match Frame::new(&[template.link.as_bytes(), &ip_udp, header], payload) {
            Some(frame) => {
                self.counters.tx_rud += 1;
                iface.push(frame)
            }
            None => {
                self.counters.tx_too_long += 1;
                true
            }
        }
    }
}
