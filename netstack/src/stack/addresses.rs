//! A port's own addresses, its routes, and its neighbours: resolution, announcements, and packets that wait.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::counters::Counters;
use super::destination::ethertype_of;
use super::port::Interface;
use crate::ip::neighbour::{Requester, Resolution};
use crate::ip::{NextHop, RouteTable};
use crate::time::Instant;
use crate::wire::arp;
use crate::wire::ethernet::{EtherType, Mac};
use crate::wire::icmpv6::{self, Advertisement, Solicitation};
use crate::wire::ip::Protocol;
use crate::wire::ipv6;

/// All hosts of the link (RFC 4291 section 2.7.1).
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// The addresses of a port, and its routes.
#[derive(Debug)]
pub(super) struct Addresses {
    pub(super) ipv4: Option<Ipv4>,
    pub(super) ipv6: Option<Ipv6>,
}

/// A port's part in IPv4.
#[derive(Debug)]
pub(super) struct Ipv4 {
    pub(super) address: Ipv4Addr,
    pub(super) routes: RouteTable,
}

/// A port's part in IPv6.
#[derive(Debug)]
pub(super) struct Ipv6 {
    pub(super) global: Option<Ipv6Addr>,
    pub(super) link_local: Ipv6Addr,
    pub(super) routes: RouteTable<Ipv6Addr>,
}

impl Ipv6 {
    /// The addresses, the link-local one last.
    pub(super) fn all(&self) -> impl Iterator<Item = Ipv6Addr> + use<> {
        self.global.into_iter().chain([self.link_local])
    }

    #[inline]
    pub(super) fn has(&self, address: Ipv6Addr) -> bool {
        self.global == Some(address) || self.link_local == address
    }

    /// Whether this port listens to a group.
    pub(super) fn listens(&self, group: Ipv6Addr) -> bool {
        //= RFC 4291 section 2.8: a host recognises all-nodes, and the solicited-node group of each of its addresses.
        group == ALL_NODES || self.all().any(|address| icmpv6::solicited_node(address) == group)
    }

    /// The address to send from to `remote`.
    fn source_for(&self, remote: Ipv6Addr) -> Ipv6Addr {
        //= RFC 6724 section 5, rule 2: an address of the destination's scope.
        match self.global {
            Some(global) if !remote.is_unicast_link_local() && !is_link_group(remote) => global,
            _ => self.link_local,
        }
    }
}

/// Whether a group is that of one link or one host.
const fn is_link_group(address: Ipv6Addr) -> bool {
    let [first, scope, ..] = address.octets();
    first == 0xff && matches!(scope & 0x0f, 1 | 2)
}

/// The link-local address of a station.
fn link_local(Mac([a, b, c, d, e, f]): Mac) -> Ipv6Addr {
    //= RFC 4291 appendix A: ff:fe in the middle of the Ethernet address, and its universal/local bit inverted.
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

impl Addresses {
    pub(super) fn new(
        ipv4: Option<(Ipv4Addr, RouteTable)>,
        ipv6: Option<(Option<Ipv6Addr>, RouteTable<Ipv6Addr>)>,
        mac: Mac,
    ) -> Self {
        Self {
            ipv4: ipv4.map(|(address, routes)| Ipv4 { address, routes }),
            ipv6: ipv6.map(|(own, routes)| {
                // A link-local address that was given takes the place of the automatic one.
                let given = own.filter(Ipv6Addr::is_unicast_link_local);
                Ipv6 {
                    global: own.filter(|_| given.is_none()),
                    link_local: given.unwrap_or_else(|| link_local(mac)),
                    routes,
                }
            }),
        }
    }

    /// All of them, link-local ones last.
    pub(super) fn all(&self) -> impl Iterator<Item = IpAddr> + use<> {
        let ipv4 = self.ipv4.as_ref().map(|ipv4| IpAddr::V4(ipv4.address));
        let ipv6 = self.ipv6.as_ref().map(Ipv6::all);
        ipv4.into_iter().chain(ipv6.into_iter().flatten().map(IpAddr::V6))
    }

    /// Whether `address` is one of them.
    #[inline]
    pub(super) fn has(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => self.ipv4.as_ref().is_some_and(|ipv4| ipv4.address == address),
            IpAddr::V6(address) => self.ipv6.as_ref().is_some_and(|ipv6| ipv6.has(address)),
        }
    }

    /// Whether `address` stands for all hosts of a network on this port's link.
    pub(super) fn is_broadcast(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => self.ipv4.as_ref().is_some_and(|ipv4| ipv4.routes.is_broadcast(address)),
            IpAddr::V6(_) => false,
        }
    }

    /// Whether `address` is a router of this port's.
    pub(super) fn is_gateway(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => self.ipv4.as_ref().is_some_and(|ipv4| ipv4.routes.is_gateway(address)),
            IpAddr::V6(address) => self.ipv6.as_ref().is_some_and(|ipv6| ipv6.routes.is_gateway(address)),
        }
    }

    /// The next hop towards `remote`, and the address of ours to send from.
    pub(super) fn next_hop(&self, remote: IpAddr) -> Option<(NextHop, IpAddr)> {
        match remote {
            IpAddr::V4(remote) => {
                let ipv4 = self.ipv4.as_ref()?;
                Some((ipv4.routes.next_hop(remote)?, ipv4.address.into()))
            }
            IpAddr::V6(remote) => {
                let ipv6 = self.ipv6.as_ref()?;
                Some((ipv6.routes.next_hop(remote)?, ipv6.source_for(remote).into()))
            }
        }
    }
}

impl Interface {
    /// Announces this host on the link, so that hosts that requested it before learn it now.
    pub(super) fn announce(&mut self, counters: &mut Counters) {
        if let Some(Ipv4 { address, .. }) = self.addresses.ipv4 {
            //= RFC 5227 section 2.3: an announcement is a request for the own address.
            self.send_arp(Mac::BROADCAST, &self.arp_request(address, address), counters);
        }
        let Some(ipv6) = &self.addresses.ipv6 else { return };
        for target in ipv6.all() {
            //= RFC 4861 section 7.2.6: unsolicited advertisements go to all nodes, with the override flag.
            self.send_advertisement(target, None, Mac::BROADCAST, counters);
        }
    }

    /// Runs the due timers of the neighbour cache.
    pub(super) fn poll_neighbours(&mut self, now: Instant, counters: &mut Counters) {
        let mut asked = Vec::new();
        let before = self.neighbours.dropped();
        self.neighbours.poll(now, |request| asked.push(request));
        let after = self.neighbours.dropped();
        counters.tx_unreachable += after.unreachable - before.unreachable;
        for question in asked {
            match (question.address, self.addresses.next_hop(question.address)) {
                (IpAddr::V4(target), Some((_, IpAddr::V4(source)))) => {
                    let destination = question.station.unwrap_or(Mac::BROADCAST);
                    self.send_arp(destination, &self.arp_request(source, target), counters);
                }
                (IpAddr::V6(target), Some((_, IpAddr::V6(source)))) => {
                    self.send_solicitation(source, target, question.station, counters);
                }
                _ => {}
            }
        }
    }

    fn arp_request(&self, sender_ip: Ipv4Addr, target_ip: Ipv4Addr) -> arp::Repr {
        arp::Repr {
            operation: arp::Operation::Request,
            sender: self.mac,
            sender_ip,
            target: Mac::default(),
            target_ip,
        }
    }

    /// Sends an ARP packet, or drops it if there is no room: the other side will retry.
    pub(super) fn send_arp(&mut self, destination: Mac, packet: &arp::Repr, counters: &mut Counters) {
        let link = self.link_header(destination, EtherType::Arp);
        if self.queue_bytes(&link, [&packet.emit(), &[], &[]]).is_err() {
            counters.tx_full += 1;
        }
    }

    /// Solicits the station of `target`: from `station` alone, or from all that may have it.
    fn send_solicitation(
        &mut self,
        source: Ipv6Addr,
        target: Ipv6Addr,
        station: Option<Mac>,
        counters: &mut Counters,
    ) {
        //= RFC 4861 section 7.2.2: to the solicited-node group; to the neighbour itself when it is only verified.
        let group = icmpv6::solicited_node(target);
        let (destination, mac) = match station {
            Some(mac) => (target, mac),
            None => (group, icmpv6::multicast_mac(group)),
        };
        let message = Solicitation { target, source: Some(self.mac) };
        self.send_neighbour_message(source, destination, mac, &message.emit(source, destination), counters);
    }

    /// Advertises that `target` is ours: to `asker` at `station`, or to all nodes.
    pub(super) fn send_advertisement(
        &mut self,
        target: Ipv6Addr,
        asker: Option<Ipv6Addr>,
        station: Mac,
        counters: &mut Counters,
    ) {
        let (destination, mac) = match asker {
            Some(asker) => (asker, station),
            None => (ALL_NODES, icmpv6::multicast_mac(ALL_NODES)),
        };
        let message = Advertisement {
            target,
            station: Some(self.mac),
            router: false,
            solicited: asker.is_some(),
            overriding: true,
        };
        self.send_neighbour_message(target, destination, mac, &message.emit(target, destination), counters);
    }

    fn send_neighbour_message(
        &mut self,
        source: Ipv6Addr,
        destination: Ipv6Addr,
        mac: Mac,
        message: &[u8],
        counters: &mut Counters,
    ) {
        let Some(mut ip) = ipv6::Repr::new(source, destination, Protocol::Icmpv6, message.len()) else {
            return;
        };
        //= RFC 4861 section 7.1.1: the hop limit is 255, which no router lets through.
        ip.hop_limit = icmpv6::NEIGHBOUR_HOP_LIMIT;
        let link = self.link_header(mac, EtherType::Ipv6);
        if self.queue_bytes(&link, [&ip.emit(), message, &[]]).is_err() {
            counters.tx_full += 1;
        }
    }

    /// Sends the packets that waited for `address`, now that it is known to be `mac`'s.
    pub(super) fn send_held(&mut self, address: IpAddr, mac: Mac, counters: &mut Counters) {
        let link = self.link_header(mac, ethertype_of(address));
        while let Some(packet) = self.neighbours.release(address) {
            if self.queue_bytes(&link, [&packet, &[], &[]]).is_err() {
                counters.tx_full += 1;
            }
        }
    }

    /// Resolves `hop`, the next hop of a packet of `asker` to `remote`.
    pub(super) fn resolve(
        &mut self,
        now: Instant,
        hop: IpAddr,
        remote: IpAddr,
        asker: Requester,
    ) -> Resolution {
        // There are few gateways, and others need them too, whichever peer is answered through them.
        let asker = if hop == remote { asker } else { Requester::Session };
        self.neighbours.resolve(now, hop, asker)
    }

    /// Keeps a packet of `asker` until the neighbour `address` is known.
    pub(super) fn hold(
        &mut self,
        address: IpAddr,
        parts: [&[u8]; 3],
        asker: Requester,
        counters: &mut Counters,
    ) {
        if parts.iter().map(|part| part.len()).sum::<usize>() > usize::from(self.mtu) {
            counters.tx_too_long += 1;
            return;
        }
        counters.tx_held += 1;
        self.neighbours.hold(address, parts.concat(), asker);
    }
}
