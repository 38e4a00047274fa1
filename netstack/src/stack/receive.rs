//! From a frame to the protocol that it is for: Ethernet, then ARP or IPv4, then ICMP, UDP or RUD.

use core::net::{IpAddr, SocketAddr};
use std::collections::VecDeque;

use super::EchoReply;
use super::counters::Counters;
use super::port::Interface;
use crate::device::{RxChecksum, RxFrame};
use crate::ip::is_unicast;
use crate::ip::neighbour::Observation;
use crate::rud;
use crate::time::Instant;
use crate::udp::{Delivery, Sockets};
use crate::wire::ethernet::{EtherType, Mac};
use crate::wire::ip::{Ecn, Protocol};
use crate::wire::{arp, ethernet, ipv4, udp, vlan};

/// A packet for a transport: whole, for an address of this port, with its IP header checked.
#[derive(Clone, Copy, Debug)]
#[allow(dead_code, reason = "ECN, pieces and segments are TCP's")]
pub(super) struct Inbound<'a> {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    pub(super) protocol: Protocol,
    pub(super) ecn: Ecn,
    /// What the packet carries; if there is a `rest`, its beginning, with the whole transport header.
    pub(super) payload: &'a [u8],
    /// Further pieces of what it carries; TCP only.
    pub(super) rest: &'a [&'a [u8]],
    /// What the device says about the transport checksum.
    pub(super) checksum: RxChecksum,
    /// Payload bytes of each segment that was merged; 0 for a packet as it was on the wire.
    pub(super) segment_size: u16,
}

/// What a port's frames are handed to.
#[derive(Debug)]
pub(super) struct Receiver<'a, S> {
    pub(super) now: Instant,
    pub(super) iface: &'a mut Interface,
    pub(super) rud: &'a mut rud::Endpoint,
    pub(super) rud_port: u16,
    pub(super) sockets: &'a mut Sockets,
    pub(super) echo_replies: &'a mut VecDeque<EchoReply>,
    pub(super) counters: &'a mut Counters,
    /// Where frames in several pieces are put together, unless they are TCP's.
    pub(super) linear: &'a mut Vec<u8>,
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

    /// TCP takes a frame in pieces; for everybody else it is put together first.
    #[cold]
    fn on_pieces(&mut self, frame: &RxFrame<'_>) {
        if is_tcp(frame.head()) {
            self.on_bytes(frame.head(), frame);
            return;
        }
        let mut bytes = core::mem::take(self.linear);
        bytes.clear();
        frame.pieces().for_each(|piece| bytes.extend_from_slice(piece));
        let mut whole = RxFrame::new(&bytes);
        whole.checksum = frame.checksum;
        self.on_bytes(&bytes, &whole);
        *self.linear = bytes;
    }

    /// `bytes` are the first piece of `frame`, and all of it unless it is TCP's.
    #[inline]
    fn on_bytes(&mut self, bytes: &[u8], frame: &RxFrame<'_>) {
        let Ok(header) = ethernet::Frame::new(bytes) else {
            self.counters.rx_ethernet_truncated += 1;
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
            //= RFC 1122 section 3.3.6: IPv4 for one host that came as a link-layer broadcast is discarded.
            EtherType::Ipv4 | EtherType::Arp => self.counters.rx_other_station += 1,
            _ => self.counters.rx_unknown_ethertype += 1,
        }
    }

    /// Takes off the tag, if it is the port's own or the priority tag of an untagged frame.
    #[cold]
    fn untag<'b>(&mut self, ethertype: EtherType, payload: &'b [u8]) -> Option<(EtherType, &'b [u8])> {
        if ethertype != EtherType::Vlan {
            self.counters.rx_other_vlan += 1;
            return None;
        }
        let Ok(tag) = vlan::Tag::new(payload) else {
            self.counters.rx_ethernet_truncated += 1;
            return None;
        };
        if tag.id() != self.iface.vlan.map_or(0, |id| id.get()) {
            self.counters.rx_other_vlan += 1;
            return None;
        }
        Some((tag.ethertype(), tag.payload()))
    }

    #[inline]
    fn on_ipv4(&mut self, bytes: &[u8], frame: &RxFrame<'_>) {
        let Ok(packet) = ipv4::Packet::with_rest(bytes, frame.len() - frame.head().len()) else {
            self.counters.rx_ipv4_malformed += 1;
            return;
        };
        if !packet.checksum_ok() {
            self.counters.rx_ipv4_checksum += 1;
            return;
        }
        if packet.is_fragment() {
            self.counters.rx_ipv4_fragment += 1;
            return;
        }
        //= RFC 1122 section 3.2.1.3: a datagram that is not for this host, or from no host, is silently discarded.
        if packet.destination() != self.iface.address {
            self.counters.rx_ipv4_other_host += 1;
            return;
        }
        if !is_unicast(packet.source()) {
            self.counters.rx_ipv4_bad_source += 1;
            return;
        }
        self.on_packet(&Inbound {
            source: IpAddr::V4(packet.source()),
            destination: IpAddr::V4(packet.destination()),
            protocol: packet.protocol(),
            ecn: Ecn::of(packet.traffic_class()),
            payload: packet.payload(),
            rest: frame.rest(),
            checksum: frame.checksum,
            segment_size: frame.segment_size,
        });
    }

    /// Takes in what a packet carries.
    #[inline]
    fn on_packet(&mut self, packet: &Inbound<'_>) {
        match packet.protocol {
            Protocol::Udp => self.on_udp(packet),
            Protocol::Tcp => self.on_tcp(packet),
            Protocol::Icmp => self.on_icmp(packet),
            _ => self.counters.rx_ipv4_unknown_protocol += 1,
        }
    }

    #[inline]
    fn on_udp(&mut self, packet: &Inbound<'_>) {
        let Ok(datagram) = udp::Datagram::new(packet.payload) else {
            self.counters.rx_udp_malformed += 1;
            return;
        };
        let (source, destination) = (packet.source, packet.destination);
        let verified = packet.checksum == RxChecksum::Verified || !datagram.has_checksum();
        if !verified && !datagram.checksum_ok(source, destination) {
            self.counters.rx_udp_checksum += 1;
            return;
        }
        if datagram.destination_port() == self.rud_port {
            let meta = rud::DatagramMeta {
                src_ip: source,
                dst_ip: destination,
                src_port: datagram.source_port(),
                dst_port: datagram.destination_port(),
            };
            self.counters.rx_rud += 1;
            self.rud.on_datagram(self.now, &meta, datagram.payload(), self.sink);
            return;
        }
        let from = SocketAddr::new(source, datagram.source_port());
        let to = SocketAddr::new(destination, datagram.destination_port());
        match self.sockets.deliver(self.now, from, to, datagram.payload()) {
            Delivery::Queued => self.counters.rx_udp += 1,
            Delivery::NoSocket => self.counters.rx_udp_no_socket += 1,
            Delivery::QueueFull => self.counters.rx_udp_queue_full += 1,
        }
    }

    #[cold]
    fn on_arp(&mut self, station: Mac, bytes: &[u8]) {
        // ARP has no checksum. A sender that is not the station that sent the frame is damaged, or forged.
        let packet = match arp::Repr::parse(bytes) {
            Ok(packet) if packet.sender == station => packet,
            _ => {
                self.counters.rx_arp_malformed += 1;
                return;
            }
        };
        self.counters.rx_arp += 1;
        let address = self.iface.address;
        if packet.sender_ip == address {
            //= RFC 5227 section 2.4: an ARP packet with our address and another sender's is a conflict; we keep ours.
            self.counters.rx_arp_conflict += u64::from(packet.sender != self.iface.mac);
            return;
        }
        let for_us = packet.target_ip == address;
        //= RFC 5227 section 1.1: a probe has no sender address; there is nothing to learn from it.
        if is_unicast(packet.sender_ip) {
            let on_link = self
                .iface
                .routes
                .next_hop(packet.sender_ip)
                .is_some_and(|hop| hop.address == packet.sender_ip);
            let for_us = for_us && on_link;
            match self.iface.neighbours.observe(self.now, packet.sender_ip, packet.sender, for_us) {
                Observation::Learned => {
                    self.iface.send_held(packet.sender_ip.into(), packet.sender, self.counters);
                }
                Observation::Conflict => self.counters.rx_arp_conflict += 1,
                Observation::Confirmed | Observation::Doubted | Observation::Ignored => {}
            }
        }
        if for_us && packet.operation == arp::Operation::Request {
            //= RFC 826, Packet Reception: addresses are swapped and the answer goes to the station that asked.
            let reply = arp::Repr {
                operation: arp::Operation::Reply,
                sender: self.iface.mac,
                sender_ip: address,
                target: packet.sender,
                target_ip: packet.sender_ip,
            };
            self.iface.send_arp(packet.sender, &reply, self.counters);
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
            *protocol == 6 && flags & 0x3f == 0 && *offset == 0
        }
        (EtherType::Ipv6, [_, _, _, _, _, _, next_header, ..]) => *next_header == 6,
        _ => false,
    }
}
