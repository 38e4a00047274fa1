//! Every parser of `wire`: no input panics, and a parsed value can be emitted and parsed again.

use core::net::{Ipv4Addr, Ipv6Addr};

use shouter_netstack::wire::{arp, ethernet, icmpv4, icmpv6, ipv4, ipv6, rud, tcp, udp, vlan};

/// Ethernet frames, with a VLAN tag if there is one.
pub(crate) fn ethernet(bytes: &[u8]) {
    let Ok(frame) = ethernet::Frame::new(bytes) else { return };
    let repr = ethernet::Repr::parse(&frame);
    assert_eq!(repr.emit(), bytes[..ethernet::HEADER_LEN], "an Ethernet header is written as it was read");
    assert_eq!(frame.payload().len() + ethernet::HEADER_LEN, bytes.len());
    if let Ok(tag) = vlan::Tag::new(frame.payload()) {
        let _ = (tag.id(), tag.priority(), tag.ethertype(), tag.payload());
        assert!(tag.id() < 4096 && tag.priority() < 8);
    }
}

/// ARP packets.
pub(crate) fn arp(bytes: &[u8]) {
    let Ok(repr) = arp::Repr::parse(bytes) else { return };
    let again = arp::Repr::parse(&repr.emit()).expect("what was written can be read");
    assert_eq!(format!("{again:?}"), format!("{repr:?}"));
}

/// IPv4 packets, whole and cut off.
pub(crate) fn ipv4(bytes: &[u8]) {
    if let Ok(packet) = ipv4::Packet::new(bytes) {
        let _ =
            (packet.checksum_ok(), packet.source(), packet.destination(), packet.protocol(), packet.ttl());
        let _ = (packet.is_fragment(), packet.traffic_class());
        assert!(packet.options().len() <= 40);
        assert!(packet.payload().len() + ipv4::HEADER_LEN + packet.options().len() <= bytes.len());
        if let Ok(repr) = ipv4::Repr::parse(&packet) {
            assert_eq!(repr.payload_len(), packet.payload().len());
            let _ = repr.emit();
        }
    }
    let rest = bytes.first().map_or(0, |&b| usize::from(b) * 300);
    let _ = ipv4::Packet::with_rest(bytes, rest).map(|packet| packet.payload().len());
}

/// IPv6 packets and their extension headers.
pub(crate) fn ipv6(bytes: &[u8]) {
    if let Ok(packet) = ipv6::Packet::new(bytes) {
        let _ = (packet.source(), packet.destination(), packet.hop_limit(), packet.traffic_class());
        assert!(packet.payload().len() + ipv6::HEADER_LEN <= bytes.len());
        for to_group in [false, true] {
            if let Ok(chain) = ipv6::walk(packet.next_header(), packet.payload(), ipv6::HEADER_LEN, to_group)
            {
                assert!(chain.payload.len() <= packet.payload().len());
            }
        }
        if let Ok(repr) = ipv6::Repr::parse(&packet) {
            assert_eq!(repr.payload_len(), packet.payload().len());
            let _ = repr.emit();
        }
    }
    let _ = ipv6::Packet::quoted(bytes).map(|packet| packet.payload().len());
    let rest = bytes.first().map_or(0, |&b| usize::from(b) * 300);
    let _ = ipv6::Packet::with_rest(bytes, rest).map(|packet| packet.payload().len());
    // Extension headers directly, since few inputs get past the header.
    if let Some((&next, rest)) = bytes.split_first() {
        let _ = ipv6::walk(next, rest, 40, next & 1 == 1);
    }
}

/// ICMP of both versions; for ICMPv6 with a checksum that is made right, too.
pub(crate) fn icmp(bytes: &[u8]) {
    let _ = icmpv4::Message::parse(bytes).map(|message| format!("{message:?}"));
    let (source, destination) = (Ipv6Addr::LOCALHOST, Ipv6Addr::from([0xfd00, 0, 0, 0, 0, 0, 0, 1]));
    let _ = icmpv6::Message::parse(source, destination, bytes).map(|message| format!("{message:?}"));
    let mut bytes = bytes.to_vec();
    if bytes.len() >= 4 {
        for version in [4, 6] {
            bytes[2..4].fill(0);
            let sum = internet_checksum(version, source, destination, &bytes);
            bytes[2..4].copy_from_slice(&sum.to_be_bytes());
            if version == 4 {
                let _ = icmpv4::Message::parse(&bytes).map(|message| format!("{message:?}"));
            } else {
                let _ =
                    icmpv6::Message::parse(source, destination, &bytes).map(|message| format!("{message:?}"));
            }
        }
    }
}

/// The checksum of ICMP (RFC 792) and of ICMPv6 with its pseudo-header (RFC 8200 section 8.1).
fn internet_checksum(version: u8, source: Ipv6Addr, destination: Ipv6Addr, bytes: &[u8]) -> u16 {
    let mut all = Vec::new();
    if version == 6 {
        all.extend_from_slice(&source.octets());
        all.extend_from_slice(&destination.octets());
        all.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
        all.extend_from_slice(&[0, 0, 0, 58]);
    }
    all.extend_from_slice(bytes);
    let mut sum: u64 = 0;
    for pair in all.chunks(2) {
        sum += u64::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// UDP datagrams.
pub(crate) fn udp(bytes: &[u8]) {
    let Ok(datagram) = udp::Datagram::new(bytes) else { return };
    let _ = (datagram.has_checksum(), datagram.checksum_ok(Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST));
    let _ = datagram.checksum_ok(Ipv6Addr::LOCALHOST, Ipv6Addr::LOCALHOST);
    assert!(datagram.payload().len() + udp::HEADER_LEN <= bytes.len());
    if let Ok(repr) = udp::Repr::parse(&datagram) {
        assert_eq!(repr.payload_len(), datagram.payload().len());
        let _ = repr.emit();
    }
}

/// TCP headers: a parsed header is emitted, and parsed again as the same.
pub(crate) fn tcp(bytes: &[u8]) {
    let _ = tcp::Options::parse(bytes).map(|options| format!("{options:?}"));
    let Ok((header, len)) = tcp::Header::parse(bytes) else { return };
    assert!((tcp::HEADER_LEN..=60).contains(&len) && len <= bytes.len());
    let emitted = header.emit();
    let (again, again_len) = tcp::Header::parse(emitted.as_bytes()).expect("what was written can be read");
    assert_eq!(again_len, emitted.as_bytes().len());
    let strip = |header: tcp::Header| tcp::Header { options: tcp::Options::default(), ..header };
    assert_eq!(strip(again), strip(header));
    // Options may be more than fit (a user time-out is rounded, blocks are left out), but none may appear.
    assert!(again.options.sack.as_slice().len() <= header.options.sack.as_slice().len());
    assert!(again.options.mss.is_none() || again.options.mss == header.options.mss);
    assert!(again.options.timestamps.is_none() || again.options.timestamps == header.options.timestamps);
}

/// RUD datagrams and the blocks of acknowledgements.
pub(crate) fn rud(bytes: &[u8]) {
    assert!(rud::Block::parse_all(bytes).count() * rud::BLOCK_LEN <= bytes.len());
    if rud::Bundled::are_whole(bytes) {
        let messages =
            rud::Bundled::new(bytes).map(|(header, payload)| rud::RECORD_LEN + header.len() + payload.len());
        assert_eq!(messages.sum::<usize>(), bytes.len(), "a bundle is its messages and nothing else");
    }
    let Ok(header) = rud::Header::parse(bytes) else { return };
    assert!(header.payload_offset() <= bytes.len());
    assert_eq!(
        header.stamp(bytes).is_some(),
        matches!(header.kind, rud::DatagramKind::Probe | rud::DatagramKind::Answer)
    );
    let mut out = [0; rud::HEADER_LEN];
    header.emit(&mut out);
    assert_eq!(out[4..], bytes[4..rud::HEADER_LEN], "what was read is written, but for the CRC");
}
