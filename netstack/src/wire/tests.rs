use core::net::Ipv4Addr;

use proptest::prelude::*;

use super::ethernet::{EtherType, Mac};
use super::ipv4::Protocol;
use super::{Malformed, arp, checksum, ethernet, icmpv4, ipv4, udp, vlan};

/// The definition, word by word, to compare the fast one with.
fn reference_checksum(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[test]
fn checksum_of_the_example_in_rfc_1071() {
    //= RFC 1071 section 3: the example's bytes sum to ddf2.
    assert_eq!(checksum::checksum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), !0xddf2);
}

#[test]
fn checksum_of_nothing_and_of_all_ones() {
    assert_eq!(checksum::checksum(&[]), 0xffff);
    assert_eq!(checksum::checksum(&[0xff; 9000]), 0);
}

#[test]
fn incremental_update_of_the_example_in_rfc_1624() {
    //= RFC 1624 section 4: HC dd2f, m 5555, m' 3285 gives 0000, where RFC 1141 gave ffff.
    assert_eq!(checksum::update(0xdd2f, 0x5555, 0x3285), 0x0000);
}

#[test]
fn a_known_ipv4_header() {
    let bytes = [
        0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0x00, 0x01, 0xc0,
        0xa8, 0x00, 0xc7,
    ];
    let mut frame = bytes.to_vec();
    frame.resize(0x73 + 9, 0xee);
    let packet = ipv4::Packet::new(&frame).unwrap();
    assert!(packet.checksum_ok());
    assert_eq!(packet.payload().len(), 0x73 - 20, "padding is trimmed");
    let repr = ipv4::Repr::parse(&packet).unwrap();
    assert_eq!(repr.source, Ipv4Addr::new(192, 168, 0, 1));
    assert_eq!(repr.destination, Ipv4Addr::new(192, 168, 0, 199));
    assert_eq!(repr.protocol, Protocol::Udp);
    assert_eq!(repr.emit(), bytes);
}

#[test]
fn fragments_options_and_lies_about_lengths() {
    let repr = ipv4::Repr::new(Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST, Protocol::Icmp, 4).unwrap();
    let mut bytes = repr.emit().to_vec();
    bytes.extend([1, 2, 3, 4]);
    let parse = |bytes: &[u8]| ipv4::Packet::new(bytes).and_then(|p| ipv4::Repr::parse(&p));
    assert_eq!(parse(&bytes), Ok(repr));
    assert_eq!(parse(&bytes[..23]), Err(Malformed::Truncated));

    let mut fragment = bytes.clone();
    fragment[6] = 0x20;
    fragment[10..12].copy_from_slice(&[0; 2]);
    let sum = checksum::checksum(&fragment[..20]);
    fragment[10..12].copy_from_slice(&sum.to_be_bytes());
    assert_eq!(parse(&fragment), Err(Malformed::Fragment));

    let mut six = bytes.clone();
    six[0] = 0x65;
    assert_eq!(parse(&six), Err(Malformed::Unsupported));
    let mut short_header = bytes.clone();
    short_header[0] = 0x44;
    assert_eq!(parse(&short_header), Err(Malformed::Length));
    let mut long_header = bytes.clone();
    long_header[0] = 0x4f;
    assert_eq!(parse(&long_header), Err(Malformed::Length));
    let mut short_total = bytes.clone();
    short_total[3] = 19;
    assert_eq!(parse(&short_total), Err(Malformed::Length));

    let mut options = bytes.clone();
    options[0] = 0x46;
    options[10..12].copy_from_slice(&[0; 2]);
    let sum = checksum::checksum(&options[..24]);
    options[10..12].copy_from_slice(&sum.to_be_bytes());
    let packet = ipv4::Packet::new(&options).unwrap();
    assert!(packet.checksum_ok());
    assert_eq!((packet.options(), packet.payload()), (&[1u8, 2, 3, 4][..], &[][..]));
}

#[test]
fn a_representation_cannot_hold_what_does_not_fit() {
    let (a, b) = (Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST);
    assert!(ipv4::Repr::new(a, b, Protocol::Udp, ipv4::MAX_PAYLOAD).is_some());
    assert!(ipv4::Repr::new(a, b, Protocol::Udp, ipv4::MAX_PAYLOAD + 1).is_none());
    assert!(udp::Repr::new(1, 2, udp::MAX_PAYLOAD).is_some());
    assert!(udp::Repr::new(1, 2, udp::MAX_PAYLOAD + 1).is_none());
    assert!(udp::Repr::new(1, 0, 0).is_none());
    assert!(vlan::VlanId::new(0).is_none() && vlan::VlanId::new(4095).is_none());
}

#[test]
fn arp_knows_only_ipv4_over_ethernet() {
    let repr = arp::Repr {
        operation: arp::Operation::Request,
        sender: Mac([2, 0, 0, 0, 0, 1]),
        sender_ip: Ipv4Addr::new(10, 0, 0, 1),
        target: Mac::default(),
        target_ip: Ipv4Addr::new(10, 0, 0, 2),
    };
    let bytes = repr.emit();
    assert_eq!(arp::Repr::parse(&bytes), Ok(repr));
    assert_eq!(arp::Repr::parse(&bytes[..27]), Err(Malformed::Truncated));
    for at in [0, 1, 2, 3, 4, 5, 6, 7] {
        let mut other = bytes;
        other[at] ^= 0x40;
        assert_eq!(arp::Repr::parse(&other), Err(Malformed::Unsupported), "byte {at}");
    }
    let mut broadcast_sender = bytes;
    broadcast_sender[8..14].fill(0xff);
    assert_eq!(arp::Repr::parse(&broadcast_sender), Err(Malformed::Unsupported));
}

#[test]
fn a_udp_checksum_of_zero_is_sent_as_all_ones() {
    let (a, b) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
    let repr = udp::Repr::new(1000, 2000, 2).unwrap();
    let plain = repr.emit_with_checksum(a, b, &[&[0, 0]]);
    // The payload that brings the sum to ffff, so that the checksum becomes zero.
    let payload = [plain[6], plain[7]];
    let header = repr.emit_with_checksum(a, b, &[&payload]);
    assert_eq!(header[6..], [0xff, 0xff]);
    let bytes = [&header[..], &payload].concat();
    assert!(udp::Datagram::new(&bytes).unwrap().checksum_ok(a, b));
}

fn any_ip() -> impl Strategy<Value = Ipv4Addr> {
    any::<u32>().prop_map(Ipv4Addr::from)
}

proptest! {
    #[test]
    fn checksum_agrees_with_its_definition(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        prop_assert_eq!(checksum::checksum(&bytes), reference_checksum(&bytes));
    }

    #[test]
    fn checksum_does_not_depend_on_how_bytes_are_cut(
        bytes in proptest::collection::vec(any::<u8>(), 0..300), a in 0usize..300, b in 0usize..300,
    ) {
        let (a, b) = (a.min(b).min(bytes.len()), a.max(b).min(bytes.len()));
        let sum = checksum::Sum::new().over(&bytes[..a]).over(&bytes[a..b]).over(&bytes[b..]);
        prop_assert_eq!(sum.finish(), reference_checksum(&bytes));
    }

    #[test]
    fn checksum_update_agrees_with_computing_anew(
        bytes in proptest::collection::vec(any::<u8>(), 2..64), at in 0usize..31, new: u16,
    ) {
        let mut bytes = bytes;
        bytes[0] |= 1; // not all zero, where two representations of zero exist
        let at = (at * 2).min((bytes.len() - 2) & !1);
        prop_assume!(at > 0);
        let before = checksum::checksum(&bytes);
        let old = u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        bytes[at..at + 2].copy_from_slice(&new.to_be_bytes());
        prop_assert_eq!(checksum::update(before, old, new), checksum::checksum(&bytes));
    }

    #[test]
    fn no_bytes_make_a_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..128)) {
        if let Ok(frame) = ethernet::Frame::new(&bytes) {
            prop_assert_eq!(&ethernet::Repr::parse(&frame).emit()[..], &bytes[..14]);
            let _ = vlan::Tag::new(frame.payload()).map(|t| (t.id(), t.priority(), t.ethertype(), t.payload()));
        }
        let _ = arp::Repr::parse(&bytes);
        if let Ok(packet) = ipv4::Packet::new(&bytes) {
            prop_assert!(packet.payload().len() + packet.options().len() + 20 <= bytes.len());
            let _ = ipv4::Repr::parse(&packet);
        }
        let _ = icmpv4::Message::parse(&bytes);
        if let Ok(datagram) = udp::Datagram::new(&bytes) {
            prop_assert!(datagram.payload().len() + 8 <= bytes.len());
            let _ = datagram.checksum_ok(Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST);
            let _ = udp::Repr::parse(&datagram);
        }
    }

    #[test]
    fn what_looks_like_ipv4_is_survived_too(
        mut bytes in proptest::collection::vec(any::<u8>(), 20..128), ihl in 0u8..16, total in 0u16..160,
    ) {
        bytes[0] = 0x40 | ihl;
        bytes[2..4].copy_from_slice(&total.to_be_bytes());
        if let Ok(packet) = ipv4::Packet::new(&bytes) {
            prop_assert_eq!(packet.payload().len() + packet.options().len() + 20, usize::from(total));
        }
    }

    #[test]
    fn headers_survive_the_round_trip(
        dst: [u8; 6], src: [u8; 6], kind: u16, id in 1u16..4095, a in any_ip(), b in any_ip(),
        ports: (u16, u16), data in proptest::collection::vec(any::<u8>(), 0..64), flip in 0usize..64,
    ) {
        let eth = ethernet::Repr { destination: Mac(dst), source: Mac(src), ethertype: kind.into() };
        prop_assert_eq!(ethernet::Repr::parse(&ethernet::Frame::new(&eth.emit()).unwrap()), eth);

        let tag = vlan::Repr { id: vlan::VlanId::new(id).unwrap(), ethertype: EtherType::Ipv4 };
        let emitted = tag.emit();
        let view = vlan::Tag::new(&emitted).unwrap();
        prop_assert_eq!((view.id(), view.ethertype()), (id, EtherType::Ipv4));

        let repr = ipv4::Repr::new(a, b, Protocol::from(kind as u8), data.len()).unwrap();
        let bytes = [&repr.emit()[..], &data].concat();
        prop_assert_eq!(ipv4::Repr::parse(&ipv4::Packet::new(&bytes).unwrap()), Ok(repr));

        let echo = icmpv4::Echo {
            kind: icmpv4::EchoKind::Reply, identifier: ports.0, sequence: ports.1, data: &data,
        };
        let echo = icmpv4::Message::Echo(echo);
        let mut bytes = [&echo.emit()[..], &data].concat();
        prop_assert_eq!(icmpv4::Message::parse(&bytes), Ok(echo));
        let at = flip % bytes.len();
        bytes[at] ^= 0x10;
        prop_assert_eq!(icmpv4::Message::parse(&bytes), Err(Malformed::Checksum));

        for kind in [
            icmpv4::ErrorKind::Unreachable { code: 3 },
            icmpv4::ErrorKind::PacketTooBig { mtu: kind },
            icmpv4::ErrorKind::TimeExceeded { code: 1 },
            icmpv4::ErrorKind::ParameterProblem { code: 0, pointer: u32::from(kind >> 8) },
        ] {
            let error = icmpv4::Message::Error { kind, quoted: &data };
            let bytes = [&error.emit()[..], &data].concat();
            prop_assert_eq!(icmpv4::Message::parse(&bytes), Ok(error));
        }

        let repr = udp::Repr::new(ports.0, ports.1.max(1), data.len()).unwrap();
        let cut = data.len() / 3;
        let mut bytes = [&repr.emit_with_checksum(a, b, &[&data[..cut], &data[cut..]])[..], &data].concat();
        let view = udp::Datagram::new(&bytes).unwrap();
        prop_assert!(view.has_checksum() && view.checksum_ok(a, b));
        prop_assert_eq!(udp::Repr::parse(&view), Ok(repr));
        prop_assert_eq!(view.payload(), &data[..]);
        if !data.is_empty() {
            let at = 8 + flip % data.len();
            bytes[at] ^= 1;
            prop_assert!(!udp::Datagram::new(&bytes).unwrap().checksum_ok(a, b));
        }
    }
}
