//! Received IPv4 packets, and ARP.

use core::net::IpAddr;

use super::addresses::Ipv4;
use super::receive::{Inbound, Receiver, rest_len};
use crate::device::RxFrame;
use crate::ip::is_unicast;
use crate::ip::neighbour::Observation;
use crate::ip::reassembly::{FragmentPayload, Key, ReassemblyOutcome};
use crate::rud;
use crate::wire::ethernet::Mac;
use crate::wire::ip::{Ecn, Protocol};
use crate::wire::{arp, ipv4};

impl<S: rud::Sink> Receiver<'_, S> {
    #[inline]
    pub(super) fn on_ipv4(&mut self, bytes: &[u8], frame: &RxFrame<'_>) {
        let Ok(packet) = ipv4::Packet::with_rest(bytes, rest_len(frame)) else {
            self.protocols.counters.rx_ipv4_malformed += 1;
            return;
        };
        if !packet.checksum_ok() {
            self.protocols.counters.rx_ipv4_checksum += 1;
            return;
        }
        //= RFC 1122 section 3.2.1.3: a datagram that is not for this host, or from no host, is silently discarded.
        if self.iface.addresses.ipv4.as_ref().is_none_or(|ipv4| packet.destination() != ipv4.address) {
            self.protocols.counters.rx_ipv4_other_host += 1;
            return;
        }
        if !is_unicast(packet.source()) {
            self.protocols.counters.rx_ipv4_bad_source += 1;
            return;
        }
        if packet.is_fragment() {
            self.on_ipv4_fragment(&packet, bytes);
            return;
        }
        let ecn = Ecn::of(packet.traffic_class());
        let (source, destination) = (packet.source(), packet.destination());
        if packet.protocol() == Protocol::Udp
            && self.on_rud(source.into(), destination.into(), ecn, packet.payload(), frame.checksum)
        {
            return;
        }
        self.on_packet(&Inbound {
            source: source.into(),
            destination: destination.into(),
            protocol: packet.protocol(),
            protocol_at: PROTOCOL_AT,
            ecn,
            ttl: packet.ttl(),
            to_group: false,
            payload: packet.payload(),
            rest: frame.rest(),
            checksum: frame.checksum,
            reassembled: false,
            packet: bytes,
        });
    }

    #[cold]
    fn on_ipv4_fragment(&mut self, packet: &ipv4::Packet<'_>, bytes: &[u8]) {
        let (source, destination) = (IpAddr::V4(packet.source()), IpAddr::V4(packet.destination()));
        let protocol = packet.protocol().into();
        let key = Key {
            port: self.port,
            source,
            destination,
            protocol,
            identification: u32::from(packet.identification()),
        };
        let piece = FragmentPayload {
            offset: packet.fragment_offset(),
            more: packet.more_fragments(),
            protocol,
            ecn: Ecn::of(packet.traffic_class()),
            payload: packet.payload(),
            packet: bytes.get(..bytes.len().min(super::icmp::MAX_QUOTE_IPV4)).unwrap_or(bytes),
        };
        match self.protocols.reassembly.insert(self.now, key, &piece) {
            ReassemblyOutcome::Waiting => self.protocols.counters.rx_fragments += 1,
            ReassemblyOutcome::Whole(datagram) => {
                self.protocols.counters.rx_reassembled += 1;
                self.on_packet(&Inbound {
                    source,
                    destination,
                    protocol: datagram.protocol.into(),
                    protocol_at: PROTOCOL_AT,
                    ecn: datagram.ecn,
                    ttl: packet.ttl(),
                    to_group: false,
                    payload: &datagram.payload,
                    rest: &[],
                    checksum: crate::device::RxChecksum::Unknown,
                    reassembled: true,
                    packet: &datagram.packet,
                });
            }
            ReassemblyOutcome::Overlap => self.protocols.counters.rx_fragment_overlap += 1,
            ReassemblyOutcome::BadLength | ReassemblyOutcome::TooLong => {
                self.protocols.counters.rx_fragment_malformed += 1
            }
        }
    }

    #[cold]
    pub(super) fn on_arp(&mut self, station: Mac, bytes: &[u8]) {
        // ARP has no checksum. A sender that is not the station that sent the frame is damaged, or forged.
        let packet = match arp::Repr::parse(bytes) {
            Ok(packet) if packet.sender == station => packet,
            _ => {
                self.protocols.counters.rx_arp_malformed += 1;
                return;
            }
        };
        self.protocols.counters.rx_arp += 1;
        let Some(Ipv4 { address, routes }) = &self.iface.addresses.ipv4 else {
            return;
        };
        let address = *address;
        if packet.sender_ip == address {
            //= RFC 5227 section 2.4: an ARP packet with our address and another sender's is a conflict; we keep ours.
            self.protocols.counters.rx_arp_conflict += u64::from(packet.sender != self.iface.mac);
            return;
        }
        let for_us = packet.target_ip == address;
        //= RFC 5227 section 1.1: a probe has no sender address; there is nothing to learn from it.
        if is_unicast(packet.sender_ip) {
            let for_us = for_us && routes.is_on_link(packet.sender_ip);
            match self.observe(packet.sender_ip.into(), packet.sender, for_us) {
                Observation::Learned => {
                    self.iface.send_held(
                        packet.sender_ip.into(),
                        packet.sender,
                        &mut self.protocols.counters,
                    );
                }
                Observation::Conflict => self.protocols.counters.rx_arp_conflict += 1,
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
            self.iface.send_arp(packet.sender, &reply, &mut self.protocols.counters);
        }
    }
}

/// Offset of the protocol in an IPv4 header.
const PROTOCOL_AT: usize = 9;
