//! From a frame to the protocol that it is for: Ethernet, then ARP or IPv4, then ICMP, UDP or RUD.

use core::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::collections::VecDeque;

use super::EchoReply;
use super::counters::Counters;
use super::port::Interface;
use crate::device::{RxChecksum, RxFrame};
use crate::ip::is_unicast;
use crate::ip::neighbour::{Observation, Resolution};
use crate::rud;
use crate::time::Instant;
use crate::udp::{Delivery, Sockets};
use crate::wire::ethernet::{EtherType, Mac};
use crate::wire::icmpv4::{Echo, EchoKind};
use crate::wire::ipv4::{self, Protocol};
use crate::wire::{Malformed, arp, ethernet, udp, vlan};

/// Echo replies that wait to be looked at.
pub(super) const ECHO_REPLIES: usize = 64;

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
            Some(bytes) => self.on_bytes(bytes, frame.checksum),
            None => self.on_pieces(frame),
        }
    }

    /// Puts a frame together first.
    #[cold]
    fn on_pieces(&mut self, frame: RxFrame<'_>) {
        let mut bytes = core::mem::take(self.linear);
        bytes.clear();
        frame.pieces().for_each(|piece| bytes.extend_from_slice(piece));
        self.on_bytes(&bytes, frame.checksum);
        *self.linear = bytes;
    }

    #[inline]
    fn on_bytes(&mut self, bytes: &[u8], checksum: RxChecksum) {
        let Ok(frame) = ethernet::Frame::new(bytes) else {
            self.counters.rx_ethernet_truncated += 1;
            return;
        };
        let (mut ethertype, mut payload) = (frame.ethertype(), frame.payload());
        if ethertype == EtherType::Vlan || self.iface.vlan.is_some() {
            match self.untag(ethertype, payload) {
                Some(inner) => (ethertype, payload) = inner,
                None => return,
            }
        }
        let ours = frame.destination() == self.iface.mac;
        match ethertype {
            EtherType::Ipv4 if ours => self.on_ipv4(payload, checksum),
            EtherType::Arp if ours || frame.destination().is_broadcast() => {
                self.on_arp(frame.source(), payload)
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
    fn on_ipv4(&mut self, bytes: &[u8], checksum: RxChecksum) {
        let Ok(packet) = ipv4::Packet::new(bytes) else {
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
        match packet.protocol() {
            Protocol::Udp => self.on_udp(&packet, checksum),
            Protocol::Icmp => self.on_icmp(&packet),
            _ => self.counters.rx_ipv4_unknown_protocol += 1,
        }
    }

    #[inline]
    fn on_udp(&mut self, packet: &ipv4::Packet<'_>, checksum: RxChecksum) {
        let Ok(datagram) = udp::Datagram::new(packet.payload()) else {
            self.counters.rx_udp_malformed += 1;
            return;
        };
        let (source, destination) = (packet.source(), packet.destination());
        let verified = checksum == RxChecksum::Verified || !datagram.has_checksum();
        if !verified && !datagram.checksum_ok(source, destination) {
            self.counters.rx_udp_checksum += 1;
            return;
        }
        if datagram.destination_port() == self.rud_port {
            let meta = rud::DatagramMeta {
                src_ip: IpAddr::V4(source),
                dst_ip: IpAddr::V4(destination),
                src_port: datagram.source_port(),
                dst_port: datagram.destination_port(),
            };
            self.counters.rx_rud += 1;
            self.rud.on_datagram(self.now, &meta, datagram.payload(), self.sink);
            return;
        }
        let from = SocketAddrV4::new(source, datagram.source_port());
        let to = SocketAddrV4::new(destination, datagram.destination_port());
        match self.sockets.deliver(self.now, from, to, datagram.payload()) {
            Delivery::Queued => self.counters.rx_udp += 1,
            Delivery::NoSocket => self.counters.rx_udp_no_socket += 1,
            Delivery::QueueFull => self.counters.rx_udp_queue_full += 1,
        }
    }

    #[cold]
    fn on_icmp(&mut self, packet: &ipv4::Packet<'_>) {
        let echo = match Echo::parse(packet.payload()) {
            Ok(echo) => echo,
            Err(Malformed::Checksum) => {
                self.counters.rx_icmp_checksum += 1;
                return;
            }
            Err(_) => {
                self.counters.rx_icmp_unsupported += 1;
                return;
            }
        };
        match echo.kind {
            EchoKind::Request => {
                self.counters.rx_echo_requests += 1;
                //= RFC 1122 section 3.2.2.6: an echo server; source and destination change places, data is kept.
                self.send_echo(packet.source(), &Echo { kind: EchoKind::Reply, ..echo });
            }
            EchoKind::Reply if self.echo_replies.len() >= ECHO_REPLIES => {
                self.counters.rx_echo_queue_full += 1
            }
            EchoKind::Reply => {
                self.counters.rx_echo_replies += 1;
                self.echo_replies.push_back(EchoReply {
                    from: packet.source(),
                    identifier: echo.identifier,
                    sequence: echo.sequence,
                    len: echo.data.len(),
                    at: self.now,
                });
            }
        }
    }

    fn send_echo(&mut self, to: Ipv4Addr, echo: &Echo<'_>) {
        if let Err(why) = send_echo(self.now, self.iface, to, echo, self.counters) {
            match why {
                EchoError::NoRoute => self.counters.tx_no_route += 1,
                EchoError::Unreachable => self.counters.tx_unreachable += 1,
                EchoError::TooLong => self.counters.tx_too_long += 1,
                EchoError::Full => self.counters.tx_full += 1,
            }
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
                    self.iface.send_held(packet.sender_ip, packet.sender, self.counters);
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

/// Why an echo message was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EchoError {
    NoRoute,
    Unreachable,
    TooLong,
    Full,
}

/// Sends an echo message from a port's own address.
pub(super) fn send_echo(
    now: Instant,
    iface: &mut Interface,
    to: Ipv4Addr,
    echo: &Echo<'_>,
    counters: &mut Counters,
) -> Result<(), EchoError> {
    let len = crate::wire::icmpv4::HEADER_LEN + echo.data.len();
    let header = ipv4::Repr::new(iface.address, to, Protocol::Icmp, len).ok_or(EchoError::TooLong)?;
    let next_hop = iface.routes.next_hop(to).ok_or(EchoError::NoRoute)?.address;
    let (ip, icmp) = (header.emit(), echo.emit());
    let parts: [&[u8]; 3] = [&ip, &icmp, echo.data];
    let mac: Mac = match iface.neighbours.resolve(now, next_hop) {
        Resolution::Station(mac) => mac,
        Resolution::Pending => {
            iface.hold(next_hop, parts, counters);
            return Ok(());
        }
        Resolution::Unreachable => return Err(EchoError::Unreachable),
    };
    let link = iface.link_header(mac, EtherType::Ipv4);
    iface.queue_bytes(&link, parts).map_err(|error| match error {
        super::port::QueueError::Full => EchoError::Full,
        super::port::QueueError::TooLong => EchoError::TooLong,
    })
}
