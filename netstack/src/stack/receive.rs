//! From a frame to the protocol that it is for: Ethernet, then ARP or IP of either version, then ICMP, TCP, UDP or RUD.

use core::net::{IpAddr, SocketAddr};
use std::collections::VecDeque;

use super::counters::Counters;
use super::port::Interface;
use super::{ReceivedEcho, StackConfig, icmp};
use crate::device::{RxChecksum, RxFrame};
use crate::ip::limit::TokenBucket;
use crate::ip::neighbour::Observation;
use crate::ip::reassembly::Reassembly;
use crate::rud;
use crate::tcp;
use crate::time::Instant;
use crate::udp::{Delivery, Sockets};
use crate::wire::ethernet::{EtherType, Mac};
use crate::wire::icmp::ErrorKind;
use crate::wire::ip::{Ecn, Protocol};
use crate::wire::{ethernet, icmpv4, icmpv6, udp, vlan};

/// A packet for a transport: whole, for an address of this port, with its IP header checked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inbound<'a> {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    pub(super) protocol: Protocol,
    /// Offset of the protocol field in the packet, in bytes.
    pub(super) protocol_at: usize,
    pub(super) ecn: Ecn,
    /// Hops that it could still have taken.
    pub(super) ttl: u8,
    /// It is for a group of hosts, not for us alone.
    pub(super) to_group: bool,
    /// The packet's payload; if there is a `rest`, its beginning, with the whole transport header.
    pub(super) payload: &'a [u8],
    /// Further pieces of the payload; TCP only.
    pub(super) rest: &'a [&'a [u8]],
    /// The device's result for the transport checksum.
    pub(super) checksum: RxChecksum,
    /// It was put together from fragments.
    pub(super) reassembled: bool,
    /// The packet from its IP header on, to be quoted in an error; of a datagram from fragments the first one's beginning.
    pub(super) packet: &'a [u8],
}

/// ICMP errors that may be sent at once.
const ICMP_BURST: u32 = 20;

/// What a received frame may touch beside its port.
#[derive(Debug)]
pub(super) struct Protocols {
    pub(super) rud: rud::Endpoint,
    pub(super) tcp: tcp::Endpoint,
    pub(super) sockets: Sockets,
    pub(super) reassembly: Reassembly,
    pub(super) icmp_limit: TokenBucket,
    pub(super) echo_replies: VecDeque<ReceivedEcho>,
    pub(super) echo_requests: VecDeque<ReceivedEcho>,
    pub(super) counters: Counters,
    /// The buffer in which frames in several pieces are put together, unless they are TCP's.
    pub(super) linear: Vec<u8>,
    pub(super) config: StackConfig,
}

impl Protocols {
    pub(super) fn new(config: StackConfig) -> Self {
        Self {
            #[cfg(feature = "rud")]
            rud: rud::Endpoint::new(config.rud.clone()),
            #[cfg(not(feature = "rud"))]
            rud: rud::Endpoint,
            tcp: tcp::Endpoint::new(config.tcp.clone()),
            sockets: Sockets::new(config.reserved_port(), config.seed),
            reassembly: Reassembly::new(config.reassembly.clone()),
            icmp_limit: TokenBucket::new(config.icmp_errors_per_second, ICMP_BURST),
            echo_replies: VecDeque::with_capacity(icmp::ECHO_QUEUE),
            echo_requests: VecDeque::with_capacity(icmp::ECHO_QUEUE),
            counters: Counters::default(),
            linear: Vec::new(),
            config,
        }
    }
}

/// Takes a port's frames.
#[derive(Debug)]
pub(super) struct Receiver<'a, S> {
    pub(super) now: Instant,
    pub(super) iface: &'a mut Interface,
    /// The port's number.
    pub(super) port: usize,
    /// The station that sent the frame, of IPv6 packets.
    pub(super) station: Mac,
    pub(super) protocols: &'a mut Protocols,
    #[cfg_attr(not(feature = "rud"), expect(dead_code, reason = "only RUD delivers to it"))]
    pub(super) sink: &'a mut S,
}

impl<S: rud::Sink> Receiver<'_, S> {
    /// Takes in one frame.
    #[inline]
    pub(super) fn on_frame(&mut self, frame: RxFrame<'_>) {
        match frame.contiguous() {
            Some(bytes) => self.on_bytes(bytes, &frame),
            None => self.on_pieces(&frame),
        }
    }

    /// TCP takes a frame in pieces; for other protocols it is assembled first.
    #[cold]
    fn on_pieces(&mut self, frame: &RxFrame<'_>) {
        if is_tcp(frame.head()) {
            self.on_bytes(frame.head(), frame);
            return;
        }
        let mut bytes = core::mem::take(&mut self.protocols.linear);
        bytes.clear();
        frame.pieces().for_each(|piece| bytes.extend_from_slice(piece));
        let mut whole = RxFrame::new(&bytes);
        whole.checksum = frame.checksum;
        self.on_bytes(&bytes, &whole);
        self.protocols.linear = bytes;
    }

    /// `bytes` are the first piece of `frame`, and all of it unless it is TCP's.
    #[inline]
    fn on_bytes(&mut self, bytes: &[u8], frame: &RxFrame<'_>) {
        let Ok(header) = ethernet::Frame::new(bytes) else {
            self.protocols.counters.rx_ethernet_truncated += 1;
            return;
        };
        let (mut ethertype, mut payload) = (header.ethertype(), header.payload());
        if ethertype == EtherType::Vlan || self.iface.vlan.is_some() {
            match self.untag(ethertype, payload) {
                Some(inner) => (ethertype, payload) = inner,
                None => return,
            }
        }
        let ours = header.destination() == self.iface.mac;
        match ethertype {
            EtherType::Ipv4 if ours => self.on_ipv4(payload, frame),
            EtherType::Arp if ours || header.destination().is_broadcast() => {
                self.on_arp(header.source(), payload)
            }
            EtherType::Ipv6 if ours || is_ipv6_group(header.destination()) => {
                self.on_ipv6(header.source(), !ours, payload, frame);
            }
            //= RFC 1122 section 3.3.6: IPv4 for one host that came as a link-layer broadcast is discarded.
            EtherType::Ipv4 | EtherType::Ipv6 | EtherType::Arp => {
                self.protocols.counters.rx_other_station += 1
            }
            _ => self.protocols.counters.rx_unknown_ethertype += 1,
        }
    }

    /// Takes off the tag, if it is the port's own or the priority tag of an untagged frame.
    #[cold]
    fn untag<'b>(&mut self, ethertype: EtherType, payload: &'b [u8]) -> Option<(EtherType, &'b [u8])> {
        if ethertype != EtherType::Vlan {
            self.protocols.counters.rx_other_vlan += 1;
            return None;
        }
        let Ok(tag) = vlan::Tag::new(payload) else {
            self.protocols.counters.rx_ethernet_truncated += 1;
            return None;
        };
        if tag.id() != self.iface.vlan.map_or(0, |id| id.get()) {
            self.protocols.counters.rx_other_vlan += 1;
            return None;
        }
        Some((tag.ethertype(), tag.payload()))
    }

    /// Hands a packet to its protocol.
    #[inline]
    pub(super) fn on_packet(&mut self, packet: &Inbound<'_>) {
        match packet.protocol {
            // Only neighbour discovery and echo are for groups.
            Protocol::Udp | Protocol::Tcp if packet.to_group || packet.source.is_unspecified() => {
                self.protocols.counters.rx_ipv6_group += 1;
            }
            Protocol::Udp | Protocol::Tcp if packet.reassembled && self.is_elsewhere(packet) => {
                self.protocols.counters.rx_other_shard += 1;
            }
            Protocol::Udp => self.on_udp(packet),
            Protocol::Tcp => self.on_tcp(packet),
            Protocol::Icmp if packet.source.is_ipv4() => self.on_icmp(packet),
            Protocol::Icmpv6 if packet.source.is_ipv6() => self.on_icmpv6(packet),
            _ => self.on_unknown(packet),
        }
    }

    /// Whether the packet's flow is another shard's. Devices deal fragments out by their addresses, since only the
    /// first has ports: a datagram put together here need not be ours, and an answer to it would end the other shard's
    /// connection.
    #[cold]
    fn is_elsewhere(&self, packet: &Inbound<'_>) -> bool {
        let (Some((rss, shard)), Some([a, b, c, d])) =
            (&self.protocols.config.rss, packet.payload.first_chunk())
        else {
            return false;
        };
        let source = SocketAddr::new(packet.source, u16::from_be_bytes([*a, *b]));
        rss.queue(source, SocketAddr::new(packet.destination, u16::from_be_bytes([*c, *d]))) != *shard
    }

    /// Notes that a station claims an address. Entries of connections, sessions and gateways are not evicted for it.
    pub(super) fn observe(&mut self, address: IpAddr, station: Mac, for_us: bool) -> Observation {
        let Interface { neighbours, addresses, .. } = &mut *self.iface;
        let (tcp, rud) = (&self.protocols.tcp, &self.protocols.rud);
        let in_use = |other| addresses.is_gateway(other) || tcp.has_peer(other) || rud.has_peer(other);
        neighbours.observe(self.now, address, station, for_us, &in_use)
    }

    /// The next hop towards `source`, if progress of a connection or session with it would prove that it is there.
    #[inline]
    pub(super) fn unproven(&self, source: IpAddr) -> Option<IpAddr> {
        let Interface { neighbours, addresses, .. } = &*self.iface;
        neighbours.awaits_proof(self.now, || addresses.next_hop(source).map(|(hop, _)| hop.address))
    }

    #[cold]
    fn on_unknown(&mut self, packet: &Inbound<'_>) {
        self.protocols.counters.rx_unknown_protocol += 1;
        let kind = match packet.source {
            //= RFC 1122 section 3.2.2.1: protocol unreachable, where no protocol handles it.
            IpAddr::V4(_) => ErrorKind::Unreachable { code: icmpv4::unreachable::PROTOCOL },
            //= RFC 8200 section 4: a next header that is not known is a parameter problem that points to it.
            IpAddr::V6(_) => ErrorKind::ParameterProblem {
                code: icmpv6::parameter::NEXT_HEADER,
                pointer: packet.protocol_at as u32,
            },
        };
        self.send_error(packet, kind);
    }

    #[cfg(not(feature = "rud"))]
    pub(super) fn on_rud(&mut self, _: IpAddr, _: IpAddr, _: Ecn, _: &[u8], _: RxChecksum) -> bool {
        false
    }

    fn on_udp(&mut self, packet: &Inbound<'_>) {
        let (source, destination) = (packet.source, packet.destination);
        if self.on_rud(source, destination, packet.ecn, packet.payload, packet.checksum) {
            return;
        }
        let Ok(datagram) = udp::Datagram::new(packet.payload) else {
            self.protocols.counters.rx_udp_malformed += 1;
            return;
        };
        //= RFC 8200 section 8.1: over IPv6 a datagram without a checksum is discarded.
        let acceptable = packet.checksum == RxChecksum::Verified
            || match datagram.has_checksum() {
                true => datagram.checksum_ok(source, destination),
                false => source.is_ipv4(),
            };
        if !acceptable {
            self.protocols.counters.rx_udp_checksum += 1;
            return;
        }
        let from = SocketAddr::new(source, datagram.source_port());
        let to = SocketAddr::new(destination, datagram.destination_port());
        match self.protocols.sockets.deliver(self.now, from, to, datagram.payload()) {
            Delivery::Queued => self.protocols.counters.rx_udp += 1,
            Delivery::NoSocket => {
                self.protocols.counters.rx_udp_no_socket += 1;
                //= RFC 1122 section 4.1.3.1: port unreachable, where no socket is bound.
                let code = match source {
                    IpAddr::V4(_) => icmpv4::unreachable::PORT,
                    IpAddr::V6(_) => icmpv6::unreachable::PORT,
                };
                self.send_error(packet, ErrorKind::Unreachable { code });
            }
            Delivery::QueueFull => self.protocols.counters.rx_udp_queue_full += 1,
        }
    }
}

/// Whether a frame that begins with `head` may be handed on in pieces: a whole TCP segment, untagged or tagged.
fn is_tcp(head: &[u8]) -> bool {
    let Ok(header) = ethernet::Frame::new(head) else {
        return false;
    };
    let (mut ethertype, mut payload) = (header.ethertype(), header.payload());
    if ethertype == EtherType::Vlan
        && let Ok(tag) = vlan::Tag::new(payload)
    {
        (ethertype, payload) = (tag.ethertype(), tag.payload());
    }
    match (ethertype, payload) {
        (EtherType::Ipv4, [_, _, _, _, _, _, flags, offset, _, protocol, ..]) => {
            Protocol::from(*protocol) == Protocol::Tcp && flags & 0x3f == 0 && *offset == 0
        }
        (EtherType::Ipv6, [_, _, _, _, _, _, next_header, ..]) => {
            Protocol::from(*next_header) == Protocol::Tcp
        }
        _ => false,
    }
}

/// Whether frames to `station` go to a group of IPv6 hosts (RFC 2464 section 7).
const fn is_ipv6_group(station: Mac) -> bool {
    matches!(station.0, [0x33, 0x33, ..])
}

/// Bytes of a frame beyond its first piece.
#[inline]
pub(super) fn rest_len(frame: &RxFrame<'_>) -> usize {
    if frame.rest().is_empty() { 0 } else { frame.len() - frame.head().len() }
}
