//! The headers in front of packets to a destination, computed once and then copied.
//!
//! A packet's Ethernet and IP headers differ from the previous one's to the same host in a few fields. So they are
//! kept as a template: per packet, they are copied to where the device reads them, and completed there.

use core::net::{IpAddr, Ipv4Addr};

use super::SendError;
use super::counters::Counters;
use super::port::{LinkHeader, Port};
use super::turn::Turn;
use crate::device::{Device, HEADER_CAPACITY};
use crate::ip::is_unicast_ip;
use crate::ip::neighbour::{Requester, Resolution};
use crate::ip::path_mtu::PathMtus;
use crate::tcp::Emitted;
use crate::time::Instant;
use crate::wire::checksum::{Sum, pseudo_header_ip};
use crate::wire::ethernet::EtherType;
use crate::wire::ip::{Ecn, IpHeader, Protocol, header_len};
use crate::wire::{HeaderBytes, ethernet, ipv4, ipv6, udp, vlan};

/// Bytes of IPv6 and UDP headers.
const IPV6_UDP: usize = ipv6::HEADER_LEN + udp::HEADER_LEN;

/// Bytes that headers of the link, IP and UDP take at most.
const FRONT: usize = ethernet::HEADER_LEN + vlan::TAG_LEN + IPV6_UDP;

/// Bytes of IP and UDP headers in front of datagrams to `remote`.
#[inline]
pub(super) const fn ip_udp_len(remote: &IpAddr) -> usize {
    header_len(remote) + udp::HEADER_LEN
}

/// Templates kept, a power of two. Two hosts that share a slot evict each other, which costs time and nothing else.
const SLOTS: usize = 512;

/// The headers in front of packets from one of our addresses to a host.
#[derive(Clone, Debug)]
pub(super) struct Template {
    local: IpAddr,
    remote: IpAddr,
    /// Our address that the packets come from.
    pub(super) source: IpAddr,
    /// The port that they leave by.
    pub(super) port: usize,
    /// The neighbour cache's generation when this was made.
    generation: u32,
    /// Largest IP packet on the path.
    pub(super) mtu: u16,
    /// Largest IP packet that the port itself can send.
    pub(super) port_mtu: u16,
    /// The headers of link, IP and UDP one behind the other, with IP's lengths, protocol, ECN bits and checksum zero, and UDP's header; they
    /// may end before the array does.
    front: [u8; FRONT],
    /// Bytes of the link's header.
    pub(super) link_len: u8,
    /// Sum over the IPv4 header.
    ip_sum: u32,
    /// Sum over the pseudo header of TCP with a length of zero.
    pub(super) tcp_pseudo: Sum,
}

/// IP and UDP headers, ready to be sent.
pub(super) type UdpHeaders = HeaderBytes<IPV6_UDP>;

/// Puts another UDP header in the place of the one that is there.
pub(super) fn set_udp(headers: &mut UdpHeaders, header: [u8; udp::HEADER_LEN]) {
    let end = usize::from(headers.len);
    if let Some(old) = headers.bytes.get_mut(end.saturating_sub(udp::HEADER_LEN)..end) {
        old.copy_from_slice(&header);
    }
}

impl Template {
    /// In place of a template: of no port.
    const VACANT: Self = Self {
        local: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        remote: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        source: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        port: usize::MAX,
        generation: 0,
        mtu: 0,
        port_mtu: 0,
        front: [0; FRONT],
        link_len: 0,
        ip_sum: 0,
        tcp_pseudo: Sum::new(),
    };

    /// The header in front of the IP header.
    pub(super) fn link(&self) -> LinkHeader {
        let mut bytes = [0; ethernet::HEADER_LEN + vlan::TAG_LEN];
        bytes.copy_from_slice(&self.front[..ethernet::HEADER_LEN + vlan::TAG_LEN]);
        LinkHeader { bytes, len: self.link_len }
    }

    /// Completes the IP header of a packet with `len` bytes behind it, which has been checked against the MTU; its length. IPv4 has Don't
    /// Fragment set and its checksum filled in.
    #[inline(always)]
    fn complete_ip(&self, ip: &mut [u8; IPV6_UDP], protocol: Protocol, len: usize, ecn: Ecn) -> usize {
        let protocol = u8::from(protocol);
        match self.remote {
            IpAddr::V4(_) => {
                let total = (len + ipv4::HEADER_LEN) as u16;
                //= RFC 1071 section 2: the sum of the parts that never change is added to that of those that do.
                let sum = self.ip_sum + u32::from(protocol) + u32::from(total) + u32::from(ecn.bits());
                ip[1] |= ecn.bits();
                ip[2..4].copy_from_slice(&total.to_be_bytes());
                ip[9] = protocol;
                ip[10..12].copy_from_slice(&(!fold(sum)).to_be_bytes());
                ipv4::HEADER_LEN
            }
            IpAddr::V6(_) => {
                ip[1] |= ecn.bits() << 4;
                ip[4..6].copy_from_slice(&(len as u16).to_be_bytes());
                ip[6] = protocol;
                ipv6::HEADER_LEN
            }
        }
    }

    /// Completes the IP and UDP headers of a datagram with `len` bytes behind them, without a UDP checksum; their length. `len` has been checked
    /// against the MTU.
    #[inline(always)]
    fn complete_udp(
        &self,
        ip: &mut [u8; IPV6_UDP],
        (source_port, destination_port): (u16, u16),
        len: usize,
        ecn: Ecn,
    ) -> usize {
        let udp_len = len + udp::HEADER_LEN;
        let at = self.complete_ip(ip, Protocol::Udp, udp_len, ecn);
        if let Some(udp) = ip[at..].first_chunk_mut::<{ udp::HEADER_LEN }>() {
            udp[..2].copy_from_slice(&source_port.to_be_bytes());
            udp[2..4].copy_from_slice(&destination_port.to_be_bytes());
            udp[4..6].copy_from_slice(&(udp_len as u16).to_be_bytes());
        }
        at + udp::HEADER_LEN
    }

    /// IP and UDP headers of a datagram with `len` bytes behind them, without a UDP checksum. `len` has been checked
    /// against the MTU.
    pub(super) fn udp_headers(&self, source_port: u16, destination_port: u16, len: usize) -> UdpHeaders {
        let mut bytes = [0; IPV6_UDP];
        if let Some(ip) = self.front.get(usize::from(self.link_len)..).and_then(|rest| rest.first_chunk()) {
            bytes = *ip;
        }
        let len = self.complete_udp(&mut bytes, (source_port, destination_port), len, Ecn::NotEct);
        UdpHeaders { bytes, len: len as u8 }
    }

    /// Puts the headers into `frame`: where those of IP and UDP are, which are to be completed.
    #[inline(always)]
    fn put_front<'f>(&self, frame: &'f mut [u8; HEADER_CAPACITY]) -> Option<&'f mut [u8; IPV6_UDP]> {
        *frame.first_chunk_mut()? = self.front;
        frame.get_mut(usize::from(self.link_len)..)?.first_chunk_mut()
    }

    /// Puts the headers of a datagram with `len` bytes behind them into `frame`, and `header`, the first of those bytes; the length of all.
    /// `len` has been checked against the MTU. `None` if the frame has no room.
    #[cfg(feature = "rud")]
    #[inline(always)]
    pub(super) fn put_udp(
        &self,
        frame: &mut [u8; HEADER_CAPACITY],
        ports: (u16, u16),
        (header, len): (&[u8], usize),
        ecn: Ecn,
    ) -> Option<usize> {
        let ip = self.put_front(frame)?;
        let at = usize::from(self.link_len) + self.complete_udp(ip, ports, len, ecn);
        put_behind(frame, at, header)
    }

    /// Puts the headers of a segment with `len` bytes behind that of IP into `frame`, and `header`, that of TCP: where that is, and the length of
    /// all. `len` has been checked against the MTU. `None` if the frame has no room.
    #[inline(always)]
    pub(super) fn put_tcp(
        &self,
        frame: &mut [u8; HEADER_CAPACITY],
        (header, len): (&[u8], usize),
        ecn: Ecn,
    ) -> Option<(usize, usize)> {
        let ip = self.put_front(frame)?;
        let at = usize::from(self.link_len) + self.complete_ip(ip, Protocol::Tcp, len, ecn);
        Some((at, put_behind(frame, at, header)?))
    }
}

/// Puts a transport's header at `at` in `frame`: where it ends. `None` if the frame has no room.
#[inline(always)]
fn put_behind(frame: &mut [u8; HEADER_CAPACITY], at: usize, header: &[u8]) -> Option<usize> {
    /// Two copies of so many bytes, which may overlap, take less time than a call.
    const PART: usize = 32;
    let end = at + header.len();
    let place = frame.get_mut(at..end)?;
    match (header.first_chunk::<PART>(), header.last_chunk::<PART>()) {
        (Some(first), Some(last)) if header.len() <= 2 * PART => {
            *place.first_chunk_mut()? = *first;
            *place.last_chunk_mut()? = *last;
        }
        _ => place.copy_from_slice(header),
    }
    Some(end)
}

/// Folds a sum of a few 16-bit words.
#[inline]
const fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// Why there is no template for a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Miss {
    /// Nothing can be sent there, or not soon.
    Error(SendError),
    /// Too many neighbours are being resolved.
    Limited { remote: IpAddr, next_hop: IpAddr },
    /// The neighbour is being resolved; packets may wait for it at the port.
    Pending { port: usize, next_hop: IpAddr, source: IpAddr },
}

/// The templates in use.
#[derive(Debug)]
pub(super) struct Destinations {
    slots: Box<[Template; SLOTS]>,
    /// The slot that was looked up last.
    last: usize,
    path_mtus: PathMtus,
}

impl Destinations {
    pub(super) fn new() -> Self {
        Self { slots: Box::new([Template::VACANT; SLOTS]), last: 0, path_mtus: PathMtus::new() }
    }

    /// The template for packets of `asker` from `local` (unspecified: whichever port has the best route) to `remote`.
    #[inline(always)]
    pub(super) fn find<D: Device>(
        &mut self,
        now: Instant,
        ports: &mut [Port<D>],
        (local, remote): (&IpAddr, &IpAddr),
        asker: Requester,
    ) -> Result<&Template, Miss> {
        if !self.seek(ports, local, remote) {
            self.add(now, ports, *local, *remote, asker)?;
        }
        Ok(&self.slots[self.last % SLOTS])
    }

    /// Makes the template, and puts it into the slot that was looked up last.
    #[cold]
    fn add<D: Device>(
        &mut self,
        now: Instant,
        ports: &mut [Port<D>],
        local: IpAddr,
        remote: IpAddr,
        asker: Requester,
    ) -> Result<(), Miss> {
        let template = resolve(now, ports, &self.path_mtus, local, remote, asker)?;
        self.slots[self.last % SLOTS] = template;
        Ok(())
    }

    /// The same as [`find`](Self::find), if there is one; nothing is resolved.
    #[inline]
    pub(super) fn find_known<D>(
        &mut self,
        ports: &[Port<D>],
        local: &IpAddr,
        remote: &IpAddr,
    ) -> Option<&Template> {
        let found = self.seek(ports, local, remote);
        found.then(|| &self.slots[self.last % SLOTS])
    }

    /// Finds the slot for the template; true if that is in it.
    #[inline]
    fn seek<D>(&mut self, ports: &[Port<D>], local: &IpAddr, remote: &IpAddr) -> bool {
        // Consecutive packets often take the same route.
        self.last_fits(ports, local, remote) || self.seek_by_hash(ports, local, remote)
    }

    /// The same, if the slot is not the one that was looked up last.
    #[inline(never)]
    fn seek_by_hash<D>(&mut self, ports: &[Port<D>], local: &IpAddr, remote: &IpAddr) -> bool {
        let hash = (bits(remote) ^ bits(local).rotate_left(16)).wrapping_mul(0x9e37_79b1);
        self.last = hash as usize >> 23 & (SLOTS - 1);
        self.last_fits(ports, local, remote)
    }

    /// Whether the slot that was looked up last has the template.
    #[inline]
    fn last_fits<D>(&self, ports: &[Port<D>], local: &IpAddr, remote: &IpAddr) -> bool {
        let t = &self.slots[self.last % SLOTS];
        t.remote == *remote
            && t.local == *local
            && ports.get(t.port).is_some_and(|port| port.iface.neighbours.generation() == t.generation)
    }

    /// Clears the templates: a port was added, so routes may have changed.
    pub(super) fn clear(&mut self) {
        self.slots.fill(Template::VACANT);
    }

    /// Notes that packets to `remote` longer than `mtu` do not get through, where `current` ones were tried. The caller
    /// has checked that this comes from a host on the path.
    pub(super) fn reduce_path_mtu(&mut self, now: Instant, remote: IpAddr, mtu: u16, current: u16) -> bool {
        let is_new = self.path_mtus.reduce(now, remote, mtu, current);
        if is_new {
            self.clear();
        }
        is_new
    }

    /// The largest packet to `remote`, if the path is known to be narrower than the port.
    pub(super) fn path_mtu(&self, remote: IpAddr) -> Option<u16> {
        self.path_mtus.get(remote)
    }

    /// When to call [`Destinations::poll`] next.
    #[inline]
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.path_mtus.next_deadline()
    }

    /// Removes path MTUs that are too old.
    #[cold]
    pub(super) fn poll(&mut self, now: Instant) {
        if self.path_mtus.poll(now) {
            self.clear();
        }
    }
}

/// An address as bits to hash; of IPv6, the parts in which hosts of one network differ weigh most.
#[inline]
fn bits(address: &IpAddr) -> u32 {
    match address {
        IpAddr::V4(address) => address.to_bits(),
        IpAddr::V6(address) => {
            let bits = address.to_bits();
            let bits = (bits ^ (bits >> 64)) as u64;
            (bits ^ (bits >> 32)) as u32
        }
    }
}

/// A route to a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ResolvedRoute {
    /// The port to send from.
    pub(super) port: usize,
    /// The port's address to send from.
    pub(super) source: IpAddr,
    /// The station to hand the packet to.
    pub(super) next_hop: IpAddr,
}

/// The port to send from, and the next hop there.
pub(super) fn route<D>(ports: &[Port<D>], local: IpAddr, remote: IpAddr) -> Result<ResolvedRoute, SendError> {
    if !is_unicast_ip(remote) {
        return Err(SendError::NotUnicast { remote });
    }
    if local.is_ipv4() != remote.is_ipv4() {
        return Err(SendError::NotOurs { local });
    }
    let mut best: Option<(u8, ResolvedRoute)> = None;
    let mut has_address = local.is_unspecified();
    for (index, port) in ports.iter().enumerate() {
        //= RFC 1122 section 3.3.4.2: strong model, a datagram leaves through the interface of its source address.
        if !local.is_unspecified() && !port.iface.addresses.has(local) {
            continue;
        }
        has_address = true;
        if let Some((hop, own)) = port.iface.addresses.next_hop(remote)
            && best.is_none_or(|(len, _)| hop.prefix_len > len)
        {
            let source = if local.is_unspecified() { own } else { local };
            best = Some((hop.prefix_len, ResolvedRoute { port: index, source, next_hop: hop.address }));
        }
    }
    let leads = |way: &ResolvedRoute| ports.get(way.port).map(|port| &port.iface.addresses);
    match best {
        //= RFC 9293 section 3.9.1.1, MUST-46: the broadcast address of a network of ours is no host's either.
        Some((_, way)) if leads(&way).is_some_and(|own| own.is_broadcast(remote)) => {
            Err(SendError::NotUnicast { remote })
        }
        Some((_, way)) if leads(&way).is_some_and(|own| own.has(remote)) => Err(SendError::Own { remote }),
        Some((_, way)) => Ok(way),
        None if has_address => Err(SendError::NoRoute { remote }),
        None => Err(SendError::NotOurs { local }),
    }
}

fn resolve<D: Device>(
    now: Instant,
    ports: &mut [Port<D>],
    path_mtus: &PathMtus,
    local: IpAddr,
    remote: IpAddr,
    asker: Requester,
) -> Result<Template, Miss> {
    let ResolvedRoute { port, source, next_hop } = route(ports, local, remote).map_err(Miss::Error)?;
    let no_route = Miss::Error(SendError::NoRoute { remote });
    let Some(Port { iface, .. }) = ports.get_mut(port) else {
        return Err(no_route);
    };
    let mac = match iface.resolve(now, next_hop, remote, asker) {
        Resolution::Station(mac) => mac,
        Resolution::Pending => return Err(Miss::Pending { port, next_hop, source }),
        Resolution::Unreachable => return Err(Miss::Error(SendError::Unreachable { remote, next_hop })),
        Resolution::Limited => return Err(Miss::Limited { remote, next_hop }),
    };
    let header = IpHeader::new(source, remote, Protocol::Udp, 0, Ecn::NotEct).ok_or(no_route)?;
    let mut ip = [0; ipv6::HEADER_LEN];
    ip[..header.len()].copy_from_slice(header.as_bytes());
    let mut ip_sum = 0;
    if remote.is_ipv4() {
        ip[2..4].fill(0);
        ip[9..12].fill(0);
        let (words, _) = ip.as_chunks::<2>();
        ip_sum = words.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum();
    }
    let link = iface.link_header(mac, ethertype_of(remote));
    let link_len = link.as_bytes().len();
    let mut front = [0; FRONT];
    front[..link_len].copy_from_slice(link.as_bytes());
    front[link_len..link_len + ip.len()].copy_from_slice(&ip);
    Ok(Template {
        local,
        remote,
        source,
        port,
        generation: iface.neighbours.generation(),
        mtu: path_mtus.get(remote).map_or(iface.mtu, |path| path.min(iface.mtu)),
        port_mtu: iface.mtu,
        front,
        link_len: link.len,
        ip_sum,
        tcp_pseudo: pseudo_header_ip(source, remote, Protocol::Tcp, 0),
    })
}

/// The EtherType of packets to `address`.
pub(super) const fn ethertype_of(address: IpAddr) -> EtherType {
    match address {
        IpAddr::V4(_) => EtherType::Ipv4,
        IpAddr::V6(_) => EtherType::Ipv6,
    }
}

/// Gives the protocols' packets their headers and puts them into the ports' batches.
#[derive(Debug)]
pub(super) struct Emitter<'a, D> {
    pub(super) now: Instant,
    pub(super) ports: &'a mut [Port<D>],
    pub(super) destinations: &'a mut Destinations,
    pub(super) counters: &'a mut Counters,
    /// Only one connection has something to send: a message of it need not wait for others to share a burst with.
    pub(super) alone: bool,
    /// Frames that devices took before the end of the poll.
    pub(super) taken: usize,
    /// What RUD may still send in this poll.
    pub(super) turn: Turn,
}

impl<D: Device> Emitter<'_, D> {
    /// Sends due datagrams of RUD. Not inlined beside TCP's segments: each loop keeps other things at hand.
    #[inline(never)]
    pub(super) fn transmit_rud(&mut self, rud: &mut crate::rud::Endpoint) {
        rud.transmit(self.now, self);
    }

    /// The port, next hop and source of a packet that waits for its neighbour; else it is lost, and counted.
    pub(super) fn pending(&mut self, miss: Miss) -> Result<(usize, IpAddr, IpAddr), Emitted> {
        match miss {
            Miss::Pending { port, next_hop, source } => return Ok((port, next_hop, source)),
            Miss::Error(SendError::Unreachable { .. }) => self.counters.tx_unreachable += 1,
            Miss::Limited { .. } => self.counters.tx_neighbour_limited += 1,
            Miss::Error(_) => {
                self.counters.tx_no_route += 1;
                return Err(Emitted::NoRoute);
            }
        }
        Err(Emitted::Sent)
    }
}

/// IP and UDP headers without a template and without a UDP checksum.
pub(super) fn udp_packet_headers(
    (source, remote): (IpAddr, IpAddr),
    (source_port, destination_port): (u16, u16),
    len: usize,
    ecn: Ecn,
) -> Option<UdpHeaders> {
    let udp = udp::Repr::new(source_port, destination_port, len)?;
    let ip = IpHeader::new(source, remote, Protocol::Udp, len + udp::HEADER_LEN, ecn)?;
    let end = ip.len() + udp::HEADER_LEN;
    let mut out = UdpHeaders { bytes: [0; IPV6_UDP], len: end as u8 };
    out.bytes[..ip.len()].copy_from_slice(ip.as_bytes());
    out.bytes[ip.len()..end].copy_from_slice(&udp.emit());
    Some(out)
}
