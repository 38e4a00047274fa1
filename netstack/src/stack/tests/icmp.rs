//! ICMP errors, sent and received, of both versions; path MTUs; fragments of IPv4.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::time::Duration;

use super::ipv6::dual;
use super::{A, Alone, B, BYTES, MAC_A, MAC_B, at_micros, ethernet, udp_frame};
use crate::ip::{IcmpErrorKind, Ipv6Config};
use crate::rss::{Rss, SYMMETRIC_KEY};
use crate::stack::{PortConfig, SendError};
use crate::time::Instant;
use crate::udp::{Payload, SocketConfig, SocketError};
use crate::wire::checksum::pseudo_header_ip;
use crate::wire::ethernet::EtherType;
use crate::wire::ipv4::Protocol;
use crate::wire::tcp::{Flags, Header};
use crate::wire::{checksum, ethernet as ethernet_wire, icmpv4, icmpv6, ipv4, ipv6, udp};

const A6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
const B6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);

/// A stack with its peer's station configured at both addresses.
fn alone() -> Alone {
    let mut config = dual(A, A6);
    config.neighbours = vec![(B, MAC_B.0)];
    config.ipv6 = Some(Ipv6Config { neighbours: vec![(B6, MAC_B.0)], ..Ipv6Config::new(A6, 64) });
    Alone::new(config)
}

fn frame4(from: Ipv4Addr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let ip = ipv4::Repr::new(from, A, protocol.into(), payload.len()).unwrap();
    [&ethernet(MAC_A, EtherType::Ipv4)[..], &ip.emit(), payload].concat()
}

fn frame6(to: Ipv6Addr, next: u8, payload: &[u8]) -> Vec<u8> {
    let ip = ipv6::Repr::new(B6, to, next.into(), payload.len()).unwrap();
    let mac = if to.is_multicast() { icmpv6::multicast_mac(to) } else { MAC_A };
    [&ethernet(mac, EtherType::Ipv6)[..], &ip.emit(), payload].concat()
}

/// The error in a frame, and the packet that it quotes.
fn error(bytes: &[u8]) -> (IcmpErrorKind, Vec<u8>) {
    let frame = ethernet_wire::Frame::new(bytes).unwrap();
    assert_eq!(frame.destination(), MAC_B);
    match frame.ethertype() {
        EtherType::Ipv4 => {
            let packet = ipv4::Packet::new(frame.payload()).unwrap();
            let repr = ipv4::Repr::parse(&packet).unwrap();
            assert_eq!((repr.source, repr.destination, repr.protocol), (A, B, Protocol::Icmp));
            match icmpv4::Message::parse(packet.payload()).unwrap() {
                icmpv4::Message::Error { kind, quoted } => (kind, quoted.to_vec()),
                other => panic!("{other:?}"),
            }
        }
        _ => {
            let packet = ipv6::Packet::new(frame.payload()).unwrap();
            assert_eq!((packet.source(), packet.destination()), (A6, B6));
            match icmpv6::Message::parse(A6, B6, packet.payload()).unwrap() {
                icmpv6::Message::Error { kind, quoted } => (kind, quoted.to_vec()),
                other => panic!("{other:?}"),
            }
        }
    }
}

fn udp6(port: u16, payload: &[u8]) -> Vec<u8> {
    let udp = udp::Repr::new(999, port, payload.len()).unwrap();
    [&udp.emit_with_checksum(B6, A6, &[payload])[..], payload].concat()
}

#[test]
fn senders_learn_what_is_wrong_with_their_packets() {
    let option = [17, 0, 0x85, 4, 0, 0, 0, 0];
    let cases: Vec<(Vec<u8>, IcmpErrorKind)> = vec![
        (udp_frame(b"payload", 5001), IcmpErrorKind::Unreachable { code: 3 }),
        (frame4(B, 132, b"sctp"), IcmpErrorKind::Unreachable { code: 2 }),
        (frame6(A6, 17, &udp6(5001, b"payload")), IcmpErrorKind::Unreachable { code: 4 }),
        (frame6(A6, 132, b"sctp"), IcmpErrorKind::ParameterProblem { code: 1, pointer: 6 }),
        (frame6(A6, 60, &option), IcmpErrorKind::ParameterProblem { code: 2, pointer: 42 }),
        (
            frame6(A6, 44, &[&[17, 0, 0, 1, 0, 0, 0, 1][..], &[0; 9]].concat()),
            IcmpErrorKind::ParameterProblem { code: 0, pointer: 4 },
        ),
        (
            frame6(A6, 44, &[&[17, 0, 0xff, 0xf9, 0, 0, 0, 1][..], &[0; 8]].concat()),
            IcmpErrorKind::ParameterProblem { code: 0, pointer: 42 },
        ),
    ];
    for (frame, kind) in cases {
        let mut alone = alone();
        let replies = alone.exchange(Some(&frame));
        assert_eq!(replies.len(), 1, "{kind:?}");
        assert_eq!(error(&replies[0]), (kind, frame[14..].to_vec()));
        assert_eq!(alone.stack.counters().tx_icmp_errors, 1);
    }
    // A long packet is quoted as far as an error may be long.
    let mut alone = alone();
    let replies = alone.exchange(Some(&udp_frame(&BYTES[..1400], 5001)));
    assert_eq!((replies[0].len(), error(&replies[0]).1.len()), (14 + 576, 548));
    let replies = alone.exchange(Some(&frame6(A6, 17, &udp6(5001, &BYTES[..1400]))));
    assert_eq!((replies[0].len(), error(&replies[0]).1.len()), (14 + 1280, 1232));
}

#[test]
fn no_error_is_sent_about_errors_groups_and_bad_senders() {
    let mut alone = alone();
    let about = |kind: IcmpErrorKind| icmpv4::Message::Error { kind, quoted: b"nothing of ours" };
    let unreachable = about(IcmpErrorKind::Unreachable { code: 3 });
    let all_nodes: Ipv6Addr = "ff02::1".parse().unwrap();
    let silent = [
        // An ICMP error, right and with a checksum that is not; of a type that is not known.
        frame4(B, 1, &[&unreachable.emit()[..], b"nothing of ours"].concat()),
        frame4(B, 1, &[3, 3, 0, 0, 0, 0, 0, 0]),
        frame4(B, 1, &[42, 0, 0xd5, 0xff, 0, 0, 0, 0]),
        frame6(A6, 58, &[1, 4, 0, 0, 0, 0, 0, 0]),
        // From an address that is not one host's.
        frame4(Ipv4Addr::new(127, 0, 0, 1), 132, b"sctp"),
        frame4(Ipv4Addr::BROADCAST, 132, b"sctp"),
        // For a group.
        frame6(all_nodes, 132, b"sctp"),
        frame6(all_nodes, 60, &[17, 0, 0xc5, 4, 0, 0, 0, 0]),
    ];
    for (case, frame) in silent.iter().enumerate() {
        assert!(alone.exchange(Some(frame)).is_empty(), "case {case}");
    }
    // Only about options that every member of a multicast group has to understand.
    let replies = alone.exchange(Some(&frame6(all_nodes, 60, &[17, 0, 0x85, 4, 0, 0, 0, 0])));
    let to = ipv6::Packet::new(&replies[0][14..]).unwrap();
    assert_eq!((to.source(), to.destination()), (A6, B6), "from an address of ours");
}

#[test]
fn errors_are_limited_in_rate() {
    let mut alone = alone();
    let flood = udp_frame(b"scan", 5001);
    let replies: usize = (0..1000).map(|_| alone.exchange(Some(&flood)).len()).sum();
    assert_eq!(replies, 20);
    assert_eq!(alone.stack.counters().tx_icmp_limited, 980);
    alone.now += 100_000;
    let replies: usize = (0..1000).map(|_| alone.exchange(Some(&flood)).len()).sum();
    assert_eq!(replies, 10, "a hundred a second");
}

/// An error from a host or router about a datagram that socket `local` sent to `remote`.
fn error_frame(local: (IpAddr, u16), remote: (IpAddr, u16), kind: IcmpErrorKind, protocol: u8) -> Vec<u8> {
    let [a, b] = local.1.to_be_bytes();
    let [c, d] = remote.1.to_be_bytes();
    let transport = [a, b, c, d, 0, 8, 0, 0];
    match (local.0, remote.0) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let quoted = ipv4::Repr::new(from, to, protocol.into(), 1480).unwrap();
            let quoted = [&quoted.emit()[..], &transport].concat();
            let header = icmpv4::Message::Error { kind, quoted: &quoted }.emit();
            frame4(B, 1, &[&header[..], &quoted].concat())
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let quoted = ipv6::Repr::new(from, to, protocol.into(), 1460).unwrap();
            let quoted = [&quoted.emit()[..], &transport].concat();
            let header = icmpv6::emit_error(B6, A6, kind, &quoted);
            frame6(A6, 58, &[&header[..], &quoted].concat())
        }
        _ => panic!("addresses of two versions"),
    }
}

#[test]
fn errors_reach_the_socket_that_sent() {
    for (local, remote) in [(IpAddr::V4(A), IpAddr::V4(B)), (A6.into(), B6.into())] {
        let mut alone = alone();
        let socket = alone.stack.udp_mut().bind((local, 6000), SocketConfig::default()).unwrap();
        let kinds = [
            IcmpErrorKind::Unreachable { code: 1 },
            IcmpErrorKind::PacketTooBig { mtu: 1300 },
            IcmpErrorKind::TimeExceeded { code: 0 },
            IcmpErrorKind::ParameterProblem { code: 0, pointer: 20 },
        ];
        for kind in kinds {
            alone.exchange(Some(&error_frame((local, 6000), (remote, 9), kind, 17)));
            let expected = SocketError { kind, remote: (remote, 9).into(), local };
            assert_eq!(alone.stack.udp_mut().take_error(socket), Some(expected));
            assert_eq!(alone.stack.udp_mut().take_error(socket), None);
        }
        assert_eq!(alone.stack.counters().rx_icmp_errors, 4);
        assert_eq!(alone.stack.path_mtu(remote), Ok(1500), "nobody has vouched for it");
        // Another port, and addresses that are not ours.
        let kind = IcmpErrorKind::Unreachable { code: 3 };
        alone.exchange(Some(&error_frame((local, 6001), (remote, 9), kind, 17)));
        alone.exchange(Some(&error_frame((remote, 6000), (local, 9), kind, 17)));
        alone.exchange(Some(&error_frame((local, 6000), (remote, 9), kind, 6)));
        assert_eq!(alone.stack.udp_mut().take_error(socket), None);
        assert_eq!(alone.stack.counters().rx_icmp_ignored, 3);
    }
    // A router that does not say its MTU.
    let mut alone = alone();
    let socket = alone.stack.udp_mut().bind((A, 6000), SocketConfig::default()).unwrap();
    let kind = IcmpErrorKind::PacketTooBig { mtu: 0 };
    alone.exchange(Some(&error_frame((A.into(), 6000), (B.into(), 9), kind, 17)));
    let kind = alone.stack.udp_mut().take_error(socket).map(|error| error.kind);
    assert_eq!(kind, Some(IcmpErrorKind::PacketTooBig { mtu: 1492 }));
}

#[test]
fn path_mtus_are_kept_to_and_forgotten() {
    for (local, remote, most, least) in
        [(IpAddr::V4(A), IpAddr::V4(B), 1400, 552), (A6.into(), B6.into(), 1400, 1280)]
    {
        let headers = if remote.is_ipv4() { 28 } else { 48 };
        let mut alone = alone();
        let socket = alone.stack.udp_mut().bind((local, 6000), SocketConfig::default()).unwrap();
        let send = |alone: &mut Alone, len: u16| {
            let payload = Payload::Bytes(&BYTES[..usize::from(len - headers)]);
            let sent = alone.stack.udp_send_to(at_micros(alone.now), socket, (remote, 9), b"", payload);
            alone.exchange(None);
            sent
        };
        let too_long = |len: u16, most: u16| {
            Err(SendError::TooLong { len: usize::from(len - headers), limit: usize::from(most - headers) })
        };
        assert_eq!(send(&mut alone, 1500), Ok(()));
        assert!(alone.stack.path_mtu_reduce(at_micros(alone.now), remote, most));
        assert_eq!(send(&mut alone, 1500), too_long(1500, most));
        assert_eq!(send(&mut alone, most), Ok(()));
        assert_eq!(alone.stack.path_mtu(remote), Ok(most));
        assert!(alone.stack.path_mtu_reduce(at_micros(alone.now), remote, 1));
        assert_eq!(alone.stack.path_mtu(remote), Ok(least), "no less");
        let deadline = alone.stack.next_deadline().unwrap();
        assert!(deadline <= at_micros(alone.now) + Duration::from_secs(600));
        alone.now += 601_000_000;
        alone.exchange(None);
        assert_eq!(alone.stack.path_mtu(remote), Ok(1500));
        assert_eq!(send(&mut alone, 1500), Ok(()));
    }
}

/// A fragment of the UDP datagram `datagram`, whose header's bits and identification are given.
fn fragment(datagram: &[u8], from: usize, to: usize, id: u8) -> Vec<u8> {
    fragment_of(17, datagram, from, to, id)
}

fn fragment_of(protocol: u8, datagram: &[u8], from: usize, to: usize, id: u8) -> Vec<u8> {
    let mut frame = frame4(B, protocol, &datagram[from..to]);
    let more = if to < datagram.len() { 0x2000 } else { 0 };
    frame[19] = id;
    frame[20..22].copy_from_slice(&((from / 8) as u16 | more).to_be_bytes());
    frame[24..26].fill(0);
    let sum = checksum::checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame
}

#[test]
fn ipv4_fragments_become_datagrams_or_time_out() {
    let mut alone = alone();
    let socket = alone.stack.udp_mut().bind((A, 5000), SocketConfig::default()).unwrap();
    let header = udp::Repr::new(999, 5000, 3000).unwrap().emit_with_checksum(B, A, &[&BYTES[..3000]]);
    let datagram = [&header[..], &BYTES[..3000]].concat();
    for (from, to) in [(2960, 3008), (0, 1480), (1480, 2960)] {
        assert!(alone.exchange(Some(&fragment(&datagram, from, to, 1))).is_empty());
    }
    let mut buffer = [0; 4000];
    assert_eq!(alone.stack.udp_mut().recv(socket, &mut buffer).map(|got| got.len), Some(3000));
    assert_eq!(buffer[..3000], BYTES[..3000]);

    // Nobody listens there: the error quotes the first fragment.
    let header = udp::Repr::new(999, 5001, 3000).unwrap().emit_with_checksum(B, A, &[&BYTES[..3000]]);
    let stray = [&header[..], &BYTES[..3000]].concat();
    let first = fragment(&stray, 0, 1480, 2);
    alone.exchange(Some(&fragment(&stray, 1480, 2960, 2)));
    alone.exchange(Some(&fragment(&stray, 2960, 3008, 2)));
    let replies = alone.exchange(Some(&first));
    assert_eq!(error(&replies[0]), (IcmpErrorKind::Unreachable { code: 3 }, first[14..14 + 548].to_vec()));

    alone.exchange(Some(&first));
    alone.exchange(Some(&fragment(&stray, 1480, 2960, 3)));
    let overlap = fragment(&stray, 1472, 2952, 2);
    assert!(alone.exchange(Some(&overlap)).is_empty());
    assert_eq!(alone.stack.counters().rx_fragment_overlap, 1);
    alone.exchange(Some(&fragment(&stray, 0, 1480, 4)));
    alone.now = 31_000_000;
    let replies = alone.exchange(None);
    assert_eq!(replies.len(), 1, "about the one whose beginning came, and which was not spoilt");
    assert_eq!(error(&replies[0]).0, IcmpErrorKind::TimeExceeded { code: 1 });
    assert_eq!(alone.stack.counters().rx_fragment_timeout, 3);
}

#[test]
fn long_echo_requests_are_answered_in_fragments() {
    let data = &BYTES[..3500];
    let request = icmpv4::Echo { kind: icmpv4::EchoKind::Request, identifier: 7, sequence: 9, data };
    let reply = icmpv4::Echo { kind: icmpv4::EchoKind::Reply, ..request };
    let mut alone = alone();
    let datagram = [&icmpv4::Message::Echo(request).emit()[..], data].concat();
    alone.exchange(Some(&fragment_of(1, &datagram, 0, 1480, 0x5a)));
    alone.exchange(Some(&fragment_of(1, &datagram, 1480, 2960, 0x5a)));
    let answer = alone.exchange(Some(&fragment_of(1, &datagram, 2960, 3508, 0x5a)));
    let mut whole = Vec::new();
    for (index, frame) in answer.iter().enumerate() {
        assert_eq!(frame[..6], MAC_B.0);
        let packet = ipv4::Packet::new(&frame[14..]).unwrap();
        assert!(packet.checksum_ok());
        assert_eq!((packet.source(), packet.destination(), packet.protocol()), (A, B, Protocol::Icmp));
        assert_eq!(packet.identification(), 0x5a);
        assert_eq!(
            (usize::from(packet.fragment_offset()), packet.more_fragments()),
            (whole.len(), index < 2)
        );
        whole.extend_from_slice(packet.payload());
    }
    assert_eq!(icmpv4::Message::parse(&whole), Ok(icmpv4::Message::Echo(reply)));

    let datagram = [&icmpv6::emit_echo(B6, A6, &request)[..], data].concat();
    let mut answer = Vec::new();
    for (from, to) in [(0, 1448), (1448, 2896), (2896, 3508)] {
        let piece = ipv6::Fragment { identification: 3, offset: from as u16, more: to < datagram.len() };
        let payload = [&piece.emit(Protocol::Icmpv6)[..], &datagram[from..to]].concat();
        answer = alone.exchange(Some(&frame6(A6, 44, &payload)));
    }
    let mut whole = Vec::new();
    for (index, frame) in answer.iter().enumerate() {
        let packet = ipv6::Packet::new(&frame[14..]).unwrap();
        assert_eq!((packet.source(), packet.destination(), packet.next_header()), (A6, B6, 44));
        let chain = ipv6::walk(44, packet.payload(), 40, false).unwrap();
        let fragment =
            ipv6::Fragment { identification: 0x0007_0009, offset: whole.len() as u16, more: index < 2 };
        assert_eq!((chain.protocol, chain.fragment), (58, Some(fragment)));
        whole.extend_from_slice(chain.payload);
    }
    assert_eq!(icmpv6::Message::parse(A6, B6, &whole), Ok(icmpv6::Message::Echo(reply)));
    assert_eq!(alone.stack.counters().tx_too_long, 0);
}

#[test]
fn a_flow_of_another_shard_that_came_in_fragments_gets_no_answer() {
    let rss = Rss::new(&SYMMETRIC_KEY, 2);
    let local = SocketAddr::from((A, 5001));
    let port_of = |shard| (1000..).find(|port| rss.queue((B, *port).into(), local) == shard).unwrap();
    let (ours, theirs) = (port_of(0), port_of(1));
    let mut alone = alone();
    alone.stack.protocols.config.rss = Some((rss.clone(), 0));
    let segment = |port: u16| {
        let header =
            Header { source_port: port, destination_port: 5001, flags: Flags::ACK, ..Header::default() };
        let mut bytes = [header.emit().as_bytes(), &BYTES[..100]].concat();
        let sum =
            pseudo_header_ip(B.into(), A.into(), Protocol::Tcp, bytes.len() as u32).over(&bytes).finish();
        bytes[16..18].copy_from_slice(&sum.to_be_bytes());
        bytes
    };
    let datagram = |port: u16| {
        let header = udp::Repr::new(port, 5001, 100).unwrap().emit_with_checksum(B, A, &[&BYTES[..100]]);
        [&header[..], &BYTES[..100]].concat()
    };
    for (protocol, port, bytes) in [
        (6, ours, segment(ours)),
        (6, theirs, segment(theirs)),
        (17, ours, datagram(ours)),
        (17, theirs, datagram(theirs)),
    ] {
        let before = alone.stack.counters().rx_other_shard;
        alone.exchange(Some(&fragment_of(protocol, &bytes, 0, 64, 7)));
        let answers = alone.exchange(Some(&fragment_of(protocol, &bytes, 64, bytes.len(), 7)));
        // A reset, or that no socket is bound there.
        let wanted = if port == ours { (1, 0) } else { (0, 1) };
        let dropped = alone.stack.counters().rx_other_shard - before;
        assert_eq!((answers.len(), dropped), wanted, "protocol {protocol}, port {port}");
    }
}

#[test]
fn an_ipv4_only_port_stays_as_it_was() {
    let mut alone = Alone::new(PortConfig::new(A, 24, 576));
    assert_eq!(alone.stack.next_deadline(), None, "nothing is due");
    let remote = B6.into();
    assert_eq!(alone.stack.ping(Instant::ZERO, B6, 1, 1, b""), Err(SendError::NoRoute { remote }));
    assert!(alone.exchange(None).is_empty());
}
