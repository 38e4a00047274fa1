//! Received IPv6 packets, and neighbour discovery.

use core::net::{IpAddr, Ipv6Addr};

use super::icmp::MAX_QUOTE_IPV6;
use super::receive::{Inbound, Receiver, rest_len};
use crate::device::{RxChecksum, RxFrame};
use crate::ip::neighbour::Observation;
use crate::ip::reassembly::{FragmentPayload, Key, ReassemblyOutcome};
use crate::rud;
use crate::wire::ethernet::Mac;
use crate::wire::icmp::ErrorKind;
use crate::wire::icmpv6::{Advertisement, NEIGHBOUR_HOP_LIMIT, Solicitation, parameter};
use crate::wire::ip::{Ecn, Protocol};
use crate::wire::ipv6::{self, Chain, Fragment, Problem};

/// Offset of the payload length in the fixed header.
const PAYLOAD_LEN_AT: u32 = 4;

impl<S: rud::Sink> Receiver<'_, S> {
    /// Takes in a packet from a frame that was for this station alone, or for a group (`link_group`).
    #[inline]
    pub(super) fn on_ipv6(&mut self, station: Mac, link_group: bool, bytes: &[u8], frame: &RxFrame<'_>) {
        let Ok(packet) = ipv6::Packet::with_rest(bytes, rest_len(frame)) else {
            self.protocols.counters.rx_ipv6_malformed += 1;
            return;
        };
        let (source, destination) = (packet.source(), packet.destination());
        let to_group = destination.is_multicast();
        let ours = self.iface.addresses.ipv6.as_ref().is_some_and(|ipv6| {
            if to_group { ipv6.listens(destination) } else { !link_group && ipv6.has(destination) }
        });
        if !ours {
            self.protocols.counters.rx_ipv6_other_host += 1;
            return;
        }
        //= RFC 4291 section 2.7: no packet comes from a group. Nor does one from ::1 come by a wire (section 2.5.3).
        if source.is_multicast() || source.is_loopback() {
            self.protocols.counters.rx_ipv6_bad_source += 1;
            return;
        }
        let protocol = Protocol::from(packet.next_header());
        let (from, to) = (IpAddr::V6(source), IpAddr::V6(destination));
        let ecn = Ecn::of(packet.traffic_class());
        if protocol == Protocol::Udp
            && !to_group
            && !source.is_unspecified()
            && self.on_rud(from, to, ecn, packet.payload(), frame.checksum)
        {
            return;
        }
        self.station = station;
        let inbound = Inbound {
            source: from,
            destination: to,
            protocol,
            protocol_at: 6,
            ecn,
            ttl: packet.hop_limit(),
            to_group,
            payload: packet.payload(),
            rest: frame.rest(),
            checksum: frame.checksum,
            reassembled: false,
            packet: bytes,
        };
        match protocol {
            Protocol::Udp | Protocol::Tcp | Protocol::Icmpv6 => self.on_packet(&inbound),
            _ => self.on_chain(&inbound, packet.next_header(), ipv6::HEADER_LEN),
        }
    }

    /// Walks the extension headers of a packet, whose chain begins with `next` at the start of the payload; that is
    /// `at` bytes from the packet's beginning.
    #[cold]
    fn on_chain(&mut self, packet: &Inbound<'_>, next: u8, at: usize) {
        match ipv6::walk(next, packet.payload, at, packet.to_group) {
            Ok(chain) => match chain.fragment {
                Some(fragment) => self.on_ipv6_fragment(packet, &chain, fragment),
                None => self.on_packet(&Inbound {
                    protocol: chain.protocol.into(),
                    protocol_at: chain.protocol_at,
                    payload: chain.payload,
                    ..*packet
                }),
            },
            Err(Problem::Truncated) => self.protocols.counters.rx_ipv6_malformed += 1,
            Err(Problem::Drop) => self.protocols.counters.rx_ipv6_extension += 1,
            Err(Problem::Parameter { code, pointer }) => {
                self.protocols.counters.rx_ipv6_extension += 1;
                self.send_error(packet, ErrorKind::ParameterProblem { code, pointer });
            }
        }
    }

    #[cold]
    fn on_ipv6_fragment(&mut self, packet: &Inbound<'_>, chain: &Chain<'_>, fragment: Fragment) {
        let key = Key {
            port: self.port,
            source: packet.source,
            destination: packet.destination,
            protocol: 0,
            identification: fragment.identification,
        };
        let piece = FragmentPayload {
            offset: fragment.offset,
            more: fragment.more,
            protocol: chain.protocol,
            ecn: packet.ecn,
            payload: chain.payload,
            packet: packet.packet.get(..packet.packet.len().min(MAX_QUOTE_IPV6)).unwrap_or(packet.packet),
        };
        let problem = |pointer| ErrorKind::ParameterProblem { code: parameter::FIELD, pointer };
        match self.protocols.reassembly.insert(self.now, key, &piece) {
            ReassemblyOutcome::Waiting => self.protocols.counters.rx_fragments += 1,
            // Extension headers within it are walked like others, and may not be fragments again.
            ReassemblyOutcome::Whole(datagram) if datagram.protocol == ipv6::FRAGMENT => {
                self.protocols.counters.rx_fragment_malformed += 1;
            }
            ReassemblyOutcome::Whole(datagram) => {
                self.protocols.counters.rx_reassembled += 1;
                let whole = Inbound {
                    ecn: datagram.ecn,
                    payload: &datagram.payload,
                    rest: &[],
                    checksum: RxChecksum::Unknown,
                    reassembled: true,
                    packet: &datagram.packet,
                    ..*packet
                };
                self.on_chain(&whole, datagram.protocol, chain.payload_at);
            }
            ReassemblyOutcome::Overlap => self.protocols.counters.rx_fragment_overlap += 1,
            ReassemblyOutcome::BadLength => {
                self.protocols.counters.rx_fragment_malformed += 1;
                //= RFC 8200 section 4.5: a parameter problem that points to the payload length.
                self.send_error(packet, problem(PAYLOAD_LEN_AT));
            }
            ReassemblyOutcome::TooLong => {
                self.protocols.counters.rx_fragment_malformed += 1;
                //= RFC 8200 section 4.5: a parameter problem that points to the fragment offset.
                let offset_at = chain.payload_at.saturating_sub(ipv6::FRAGMENT_LEN - 2);
                self.send_error(packet, problem(offset_at as u32));
            }
        }
    }

    /// A neighbour solicitation: asks for one of our addresses, or verifies that we have it.
    pub(super) fn on_solicitation(&mut self, packet: &Inbound<'_>, message: &Solicitation) {
        let (Some(source), Some(ipv6)) = (neighbour(packet), &self.iface.addresses.ipv6) else {
            self.protocols.counters.rx_neighbour_forged += 1;
            return;
        };
        self.protocols.counters.rx_neighbour += 1;
        let (from_us, on_link) = (ipv6.has(source), ipv6.routes.is_on_link(source));
        if !ipv6.has(message.target) {
            return;
        }
        if from_us || source.is_unspecified() {
            self.protocols.counters.rx_neighbour_conflict += 1;
        }
        if source.is_unspecified() {
            //= RFC 4862 section 5.4.3: another host is about to take our address; the answer goes to all nodes.
            self.iface.send_advertisement(message.target, None, Mac::BROADCAST, &mut self.protocols.counters);
        }
        if from_us || source.is_unspecified() {
            return;
        }
        //= RFC 4861 section 7.2.3: the sender's link-layer address is remembered.
        if let (Some(mac), true) = (message.source, on_link) {
            self.observe_neighbour(source, mac, true);
        }
        let station = message.source.unwrap_or(self.station);
        self.iface.send_advertisement(message.target, Some(source), station, &mut self.protocols.counters);
    }

    /// A neighbour advertisement: says which station has an address.
    pub(super) fn on_advertisement(&mut self, packet: &Inbound<'_>, message: &Advertisement) {
        let (Some(_), Some(ipv6)) = (neighbour(packet), &self.iface.addresses.ipv6) else {
            self.protocols.counters.rx_neighbour_forged += 1;
            return;
        };
        self.protocols.counters.rx_neighbour += 1;
        if ipv6.has(message.target) {
            //= RFC 4862 section 5.4.4: another host has an address of ours; we keep it.
            self.protocols.counters.rx_neighbour_conflict += 1;
            return;
        }
        //= RFC 4861 section 7.2.5: an advertisement of an address that we did not ask for is silently discarded.
        if !self.iface.neighbours.knows(message.target) {
            return;
        }
        //= RFC 4861 section 7.2.5: without the override flag, another station's claim does not displace what is known.
        if let Some(mac) = message.station
            && (message.solicited || message.overriding)
        {
            self.observe_neighbour(message.target, mac, message.solicited);
        }
    }

    fn observe_neighbour(&mut self, address: Ipv6Addr, mac: Mac, for_us: bool) {
        match self.observe(address.into(), mac, for_us) {
            Observation::Learned => self.iface.send_held(address.into(), mac, &mut self.protocols.counters),
            Observation::Conflict => self.protocols.counters.rx_neighbour_conflict += 1,
            Observation::Confirmed | Observation::Doubted | Observation::Ignored => {}
        }
    }
}

/// The sender of a message of neighbour discovery, if it can be one.
fn neighbour(packet: &Inbound<'_>) -> Option<Ipv6Addr> {
    //= RFC 4861 section 7.1: a hop limit below 255 says that a router forwarded it, and that it is forged.
    match packet.source {
        IpAddr::V6(source) if packet.ttl == NEIGHBOUR_HOP_LIMIT.get() => Some(source),
        _ => None,
    }
}
