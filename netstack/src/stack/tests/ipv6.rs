//! IPv6 through the whole stack: neighbour discovery, echo, UDP, RUD, fragments.

use core::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use core::time::Duration;

use proptest::prelude::*;

use super::{
    A, Alone, BYTES, Collect, MAC_A, MAC_B, Pair, RUD_PORT, at_micros, config, ethernet, region, stack_of,
};
use crate::device::Loopback;
use crate::ip::Ipv6Config;
use crate::rud::{MessageToken, SessionParams};
use crate::stack::{PortConfig, SendError, Stack};
use crate::time::Instant;
use crate::udp::{Payload, SocketConfig};
use crate::wire::ethernet::{EtherType, Mac};
use crate::wire::icmpv6::{self, Advertisement, Message, Solicitation, solicited_node};
use crate::wire::ip::Protocol;
use crate::wire::{ethernet as ethernet_wire, ipv6, udp};

const A6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
const B6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
/// From the Ethernet addresses 02:00:00:00:00:01 and 02.
const LOCAL_A: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0xff, 0xfe00, 1);
const LOCAL_B: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0xff, 0xfe00, 2);
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

pub(super) fn dual(address: core::net::Ipv4Addr, six: Ipv6Addr) -> PortConfig {
    PortConfig { ipv6: Some(Ipv6Config::new(six, 64)), ..config(address) }
}

fn only(six: Ipv6Addr) -> PortConfig {
    PortConfig::ipv6_only(Ipv6Config::new(six, 64), 1500)
}

/// A stack at A6 with the neighbour B6 at MAC_B.
fn alone_with_neighbour() -> Alone {
    let mut six = Ipv6Config::new(A6, 64);
    six.neighbours = vec![(B6, MAC_B.0)];
    Alone::new(PortConfig { ipv6: Some(six), ..config(A) })
}

fn frame(to: Mac, packet: &[u8]) -> Vec<u8> {
    [&ethernet(to, EtherType::Ipv6)[..], packet].concat()
}

fn packet(from: Ipv6Addr, to: Ipv6Addr, next: u8, hops: u8, payload: &[u8]) -> Vec<u8> {
    let mut ip = ipv6::Repr::new(from, to, next.into(), payload.len()).unwrap();
    ip.hop_limit = hops.try_into().unwrap();
    [&ip.emit()[..], payload].concat()
}

fn solicitation(from: Ipv6Addr, to: Ipv6Addr, hops: u8, message: Solicitation) -> Vec<u8> {
    let mac = if to.is_multicast() { icmpv6::multicast_mac(to) } else { MAC_A };
    frame(mac, &packet(from, to, 58, hops, &message.emit(from, to)[..message.len()]))
}

fn advertisement(from: Ipv6Addr, to: Ipv6Addr, message: Advertisement) -> Vec<u8> {
    let mac = if to.is_multicast() { icmpv6::multicast_mac(to) } else { MAC_A };
    frame(mac, &packet(from, to, 58, 255, &message.emit(from, to)[..message.len()]))
}

fn udp_payload(from: Ipv6Addr, to: Ipv6Addr, port: u16, payload: &[u8]) -> Vec<u8> {
    let udp = udp::Repr::new(999, port, payload.len()).unwrap();
    [&udp.emit_with_checksum(from, to, &[payload])[..], payload].concat()
}

/// The fields of an ICMPv6 frame: its station, source, destination and hop limit, and its message after `read`.
fn icmp<R>(bytes: &[u8], read: impl FnOnce(Message<'_>) -> R) -> (Mac, Ipv6Addr, Ipv6Addr, u8, R) {
    let frame = ethernet_wire::Frame::new(bytes).unwrap();
    assert_eq!(frame.ethertype(), EtherType::Ipv6);
    let packet = ipv6::Packet::new(frame.payload()).unwrap();
    assert_eq!(Protocol::from(packet.next_header()), Protocol::Icmpv6);
    let message = Message::parse(packet.source(), packet.destination(), packet.payload()).unwrap();
    let read = read(message);
    (frame.destination(), packet.source(), packet.destination(), packet.hop_limit(), read)
}

fn as_advertisement(message: Message<'_>) -> Advertisement {
    match message {
        Message::Advertisement(message) => message,
        other => panic!("{other:?}"),
    }
}

fn as_solicitation(message: Message<'_>) -> Solicitation {
    match message {
        Message::Solicitation(message) => message,
        other => panic!("{other:?}"),
    }
}

#[test]
fn ping_over_every_pair_of_addresses() {
    let pairs = [
        (dual(A, A6), dual(super::B, B6), vec![IpAddr::V6(B6), LOCAL_B.into(), super::B.into()]),
        (only(A6), only(B6), vec![B6.into(), LOCAL_B.into()]),
        (only(Ipv6Addr::UNSPECIFIED), only(Ipv6Addr::UNSPECIFIED), vec![LOCAL_B.into()]),
    ];
    for (a, b, targets) in pairs {
        let mut pair = Pair::new(a, b);
        for target in targets {
            let most = if target.is_ipv4() { 1472 } else { 1452 };
            for (sequence, len) in [0, 56, 122, 123, 1000, most].into_iter().enumerate() {
                pair.a.ping(pair.now(), target, 7, sequence as u16, &BYTES[..len]).unwrap();
                pair.steps(4);
                let reply = pair.a.next_echo_reply().unwrap();
                assert_eq!((reply.from, reply.sequence, reply.len), (target, sequence as u16, len));
            }
            let error = pair.a.ping(pair.now(), target, 7, 9, &BYTES[..most + 1]).unwrap_err();
            assert_eq!(error, SendError::TooLong { len: most + 1, limit: most });
        }
    }
    let mut pair = Pair::new(only(A6), only(B6));
    let remote = super::B.into();
    assert_eq!(pair.a.ping(pair.now(), super::B, 1, 1, b""), Err(SendError::NoRoute { remote }));
    let remote = ALL_NODES.into();
    assert_eq!(pair.a.ping(pair.now(), ALL_NODES, 1, 1, b""), Err(SendError::NotUnicast { remote }));
    let addresses: Vec<IpAddr> = pair.a.addresses().map(|(_, address)| address).collect();
    assert_eq!(addresses, [IpAddr::V6(A6), LOCAL_A.into()]);
}

#[test]
fn a_port_announces_its_addresses_when_the_link_comes_up() {
    let (device, mut wire) = Loopback::pair(1500, 64);
    let mut stack = stack_of(device, dual(A, A6));
    stack.poll_with(Instant::ZERO, &mut Collect::default());
    let mut frames = Vec::new();
    crate::device::Device::receive(&mut wire, Instant::ZERO, 64, &mut |frame| frames.push(frame.to_vec()));
    assert_eq!(frames.len(), 3, "ARP, and an advertisement for each address");
    for (frame, address) in frames[1..].iter().zip([A6, LOCAL_A]) {
        let (mac, from, to, hops, message) = icmp(frame, as_advertisement);
        assert_eq!((mac, from, to, hops), (icmpv6::multicast_mac(ALL_NODES), address, ALL_NODES, 255));
        let expected = Advertisement {
            target: address,
            station: Some(MAC_A),
            router: false,
            solicited: false,
            overriding: true,
        };
        assert_eq!(message, expected);
    }
}

#[test]
fn solicitations_are_answered_and_forged_ones_are_not() {
    for (target, asker) in [(A6, B6), (LOCAL_A, LOCAL_B)] {
        let mut alone = Alone::new(dual(A, A6));
        let group = solicited_node(target);
        let question = Solicitation { target, source: Some(MAC_B) };
        let answers = alone.exchange(Some(&solicitation(asker, group, 255, question)));
        let (mac, from, to, hops, message) = icmp(&answers[0], as_advertisement);
        assert_eq!((mac, from, to, hops), (MAC_B, target, asker, 255));
        assert!(message.solicited && message.overriding && !message.router);
        assert_eq!((message.target, message.station), (target, Some(MAC_A)));
        // The asker is known from now on.
        alone.stack.ping(at_micros(alone.now), asker, 1, 1, b"").unwrap();
        assert!(icmp(&alone.exchange(None)[0], |m| matches!(m, Message::Echo(_))).4);

        // Verified by a question to us alone, without the asker's station.
        let verify = Solicitation { target, source: None };
        let answers = alone.exchange(Some(&solicitation(asker, target, 255, verify)));
        assert_eq!(icmp(&answers[0], as_advertisement).0, MAC_B);

        // Another host's address, a packet that was forwarded, a group that is not ours.
        let other = Solicitation { target: B6, source: Some(MAC_B) };
        assert!(alone.exchange(Some(&solicitation(asker, group, 255, other))).is_empty());
        assert!(alone.exchange(Some(&solicitation(asker, group, 254, question))).is_empty());
        assert_eq!(alone.stack.counters().rx_neighbour_forged, 1);
        let stray = solicited_node("fd00::77:7777".parse().unwrap());
        assert!(alone.exchange(Some(&solicitation(asker, stray, 255, question))).is_empty());
        assert_eq!(alone.stack.counters().rx_ipv6_other_host, 1);
    }
}

#[test]
fn a_probe_of_our_address_is_answered() {
    let mut alone = Alone::new(dual(A, A6));
    let group = solicited_node(A6);
    let probe = Solicitation { target: A6, source: None };
    let answers = alone.exchange(Some(&solicitation(Ipv6Addr::UNSPECIFIED, group, 255, probe)));
    let (_, from, to, _, message) = icmp(&answers[0], as_advertisement);
    assert_eq!((from, to, message.solicited), (A6, ALL_NODES, false));
    let claim =
        Advertisement { target: A6, station: Some(MAC_B), router: false, solicited: false, overriding: true };
    assert!(alone.exchange(Some(&advertisement(A6, ALL_NODES, claim))).is_empty());
    assert_eq!(alone.stack.counters().rx_neighbour_conflict, 2);
}

#[test]
fn neighbours_are_found_verified_and_given_up() {
    let mut alone = Alone::new(dual(A, A6));
    let mut seconds = 0;
    let mut second = |alone: &mut Alone, frame: Option<&[u8]>| {
        seconds += 1;
        alone.now = seconds * 1_000_000;
        alone.exchange(frame)
    };
    alone.stack.ping(at_micros(alone.now), B6, 1, 1, b"held").unwrap();
    let asked = second(&mut alone, None);
    let (mac, from, to, hops, message) = icmp(&asked[0], as_solicitation);
    let group = solicited_node(B6);
    assert_eq!((mac, from, to, hops), (icmpv6::multicast_mac(group), A6, group, 255));
    assert_eq!((message.target, message.source), (B6, Some(MAC_A)));
    let answer =
        Advertisement { target: B6, station: Some(MAC_B), router: true, solicited: true, overriding: true };
    // An advertisement of an address that was not solicited is ignored.
    let stray = Advertisement { target: "fd00::5".parse().unwrap(), ..answer };
    second(&mut alone, Some(&advertisement(stray.target, A6, stray)));
    let sent = second(&mut alone, Some(&advertisement(B6, A6, answer)));
    let frame = ethernet_wire::Frame::new(&sent[0]).unwrap();
    assert_eq!((frame.destination(), frame.ethertype()), (MAC_B, EtherType::Ipv6), "what was held goes out");

    // Verified after a second, by a question to the station alone; then the answer counts for a minute.
    let asked = second(&mut alone, None);
    assert_eq!(icmp(&asked[0], as_solicitation).0, MAC_B);
    assert!(second(&mut alone, Some(&advertisement(B6, A6, answer))).is_empty());
    for _ in 0..55 {
        assert!(second(&mut alone, None).is_empty());
    }
    for _ in 0..10 {
        assert!(second(&mut alone, None).is_empty(), "nobody uses it: nobody asks whether it still holds");
    }
    // In use, but silent: solicitations go to it alone, then to all, then the entry is removed.
    alone.stack.ping(at_micros(alone.now), B6, 1, 2, b"used").unwrap();
    assert_eq!(second(&mut alone, None).len(), 1, "the ping itself");
    let mut questions = 0;
    for _ in 0..12 {
        questions += second(&mut alone, None).len();
    }
    assert_eq!(questions, 4);
    alone.stack.ping(at_micros(alone.now), B6, 1, 3, b"lost").unwrap();
    for _ in 0..6 {
        second(&mut alone, None);
    }
    assert_eq!(alone.stack.counters().tx_unreachable, 1);
}

#[test]
fn packets_beyond_the_link_go_to_a_link_local_gateway() {
    let mut six = Ipv6Config::new(A6, 64);
    six.gateway = Some(LOCAL_B);
    six.neighbours = vec![(LOCAL_B, MAC_B.0)];
    let mut alone = Alone::new(PortConfig { ipv6: Some(six), ..config(A) });
    let far = "2001:db8::9".parse::<Ipv6Addr>().unwrap();
    alone.stack.ping(Instant::ZERO, far, 1, 1, b"hello").unwrap();
    let sent = alone.exchange(None);
    let (mac, from, to, hops, ()) = icmp(&sent[0], |_| ());
    assert_eq!((mac, from, to, hops), (MAC_B, A6, far, 64));
}

#[test]
fn udp_sockets_of_both_versions_on_one_port() {
    let mut pair = Pair::new(dual(A, A6), dual(super::B, B6));
    let options = SocketConfig { checksum: false, ..SocketConfig::default() };
    let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 5000));
    let here = pair.a.udp_mut().bind((Ipv6Addr::UNSPECIFIED, 0), options).unwrap();
    let there = pair.b.udp_mut().bind(any, options).unwrap();
    let there_v4 = pair.b.udp_mut().bind((super::B, 5000), options).unwrap();
    let here_v4 = pair.a.udp_mut().bind((A, 0), options).unwrap();
    assert!(pair.b.udp_mut().bind((B6, 5000), options).is_err());
    let port = pair.a.udp().local(here).unwrap().port();
    // Flow label and scope of an address do not matter.
    let to = SocketAddrV6::new(B6, 5000, 7, 3);
    let sends: [(&[u8], Payload<'_>); 4] = [
        (b"", Payload::Bytes(b"short")),
        (b"head", Payload::Bytes(&BYTES[..1000])),
        (b"", Payload::Bytes(b"")),
        (b"head", Payload::Extent(region().extent(3, 1400).unwrap())),
    ];
    for _ in 0..2 {
        for (header, payload) in sends {
            pair.a.udp_send_to(pair.now(), here, to, header, payload).unwrap();
        }
        pair.a.udp_send_to(pair.now(), here_v4, (super::B, 5000), b"", Payload::Bytes(b"four")).unwrap();
        pair.steps(5);
        let mut buffer = [0; 2000];
        for (header, payload) in sends {
            let got = pair.b.udp_mut().recv(there, &mut buffer).unwrap();
            assert_eq!((got.from, got.local), ((A6, port).into(), B6.into()));
            assert_eq!(buffer[..got.len], [header, payload.as_bytes()].concat());
        }
        assert_eq!(pair.b.udp_mut().recv(there_v4, &mut buffer).map(|got| got.len), Some(4));
    }
    assert_eq!(pair.b.counters().rx_udp_checksum, 0, "the option counts for IPv4 alone");
    let mut send = |payload| pair.a.udp_send_to(at_micros(99), here, to, b"", payload);
    let long = region().extent(0, 1453).unwrap();
    assert_eq!(send(Payload::Extent(long)), Err(SendError::TooLong { len: 1453, limit: 1452 }));
    let v4 = pair.a.udp_send_to(at_micros(99), here, (super::B, 5000), b"", Payload::Bytes(b"x"));
    assert_eq!(v4, Err(SendError::NotOurs { local: Ipv6Addr::UNSPECIFIED.into() }), "versions do not mix");
}

#[test]
fn rud_messages_cross_over_ipv6() {
    let mut pair = Pair::new(only(A6), only(B6));
    let most = pair.a.max_rud_datagram(B6).unwrap();
    let largest = most - crate::wire::rud::HEADER_LEN - 16;
    assert_eq!(largest, 1500 - 40 - 8 - crate::wire::rud::HEADER_LEN - 16);
    let params = |local: Ipv6Addr, remote: Ipv6Addr, tags: (u64, u64)| SessionParams {
        local_tag: tags.0,
        remote_tag: tags.1,
        remote_ip: remote.into(),
        local_ip: local.into(),
        remote_port: RUD_PORT,
        local_ports: (50_000..50_003).collect(),
        max_datagram: most,
        seal: None,
    };
    let to_b = pair.a.rud_mut().open(Instant::ZERO, params(A6, B6, (1, 2))).unwrap();
    pair.b.rud_mut().open(Instant::ZERO, params(B6, A6, (2, 1))).unwrap();
    for message in 0..50u64 {
        let extent = region().extent(message as usize, [1, 700, largest as u32][message as usize % 3]);
        pair.a.rud_mut().send(to_b, &[message as u8; 16], extent, MessageToken(message)).unwrap();
    }
    pair.steps(3000);
    assert_eq!((pair.sink_b.got.len(), pair.sink_a.released.len()), (50, 50));
    // A report about the path does not change the sessions' payload size.
    assert!(pair.a.path_mtu_reduce(pair.now(), B6, 1280));
    pair.a.rud_mut().send(to_b, &[0; 16], region().extent(0, largest as u32), MessageToken(99)).unwrap();
    pair.steps(3000);
    assert_eq!(pair.sink_b.got.len(), 51);
}

#[test]
fn fragments_become_datagrams() {
    let mut alone = alone_with_neighbour();
    let socket = alone.stack.udp_mut().bind((A6, 5000), SocketConfig::default()).unwrap();
    let datagram = udp_payload(B6, A6, 5000, &BYTES[..3000]);
    let piece = |offset: usize, len: usize, id: u8| {
        let more = u16::from(offset + len < datagram.len());
        let [hi, lo] = (offset as u16 | more).to_be_bytes();
        let header = [17, 0, hi, lo, 0, 0, 0, id];
        let payload = [&header[..], &datagram[offset..offset + len]].concat();
        frame(MAC_A, &packet(B6, A6, 44, 64, &payload))
    };
    let last = datagram.len() - 2400;
    for (offset, len) in [(1200, 1200), (2400, last), (0, 1200)] {
        assert!(alone.exchange(Some(&piece(offset, len, 1))).is_empty());
    }
    let mut buffer = [0; 4000];
    assert_eq!(alone.stack.udp_mut().recv(socket, &mut buffer).map(|got| got.len), Some(3000));
    assert_eq!(buffer[..3000], BYTES[..3000]);
    let counters = alone.stack.counters();
    assert_eq!((counters.rx_fragments, counters.rx_reassembled, counters.rx_udp), (2, 1, 1));

    // One that is whole goes by itself, though others of its number wait.
    alone.exchange(Some(&piece(1200, 1200, 2)));
    let small = udp_payload(B6, A6, 5000, b"atomic");
    let atomic = [&[17, 0, 0, 0, 0, 0, 0, 2][..], &small].concat();
    alone.exchange(Some(&frame(MAC_A, &packet(B6, A6, 44, 64, &atomic))));
    assert_eq!(alone.stack.udp_mut().recv(socket, &mut buffer).map(|got| got.len), Some(6));

    // Without its beginning a datagram goes in silence; with it the sender gets an error.
    alone.exchange(Some(&piece(0, 1200, 3)));
    assert!(alone.stack.next_deadline().is_some_and(|at| at <= Instant::ZERO + Duration::from_secs(61)));
    alone.now = 61_000_000;
    let replies = alone.exchange(None);
    let errors: Vec<_> = replies
        .iter()
        .filter_map(|bytes| {
            icmp(bytes, |message| match message {
                Message::Error { kind, quoted } => Some((kind, quoted.len())),
                _ => None,
            })
            .4
        })
        .collect();
    assert_eq!(errors, [(crate::ip::IcmpErrorKind::TimeExceeded { code: 1 }, 1232)], "quoted as fits 1280");
    assert_eq!(alone.stack.counters().rx_fragment_timeout, 2);
}

#[test]
fn a_flood_of_fragments_keeps_within_its_budget() {
    let (device, wire) = Loopback::pair(1500, 64);
    let mut config = crate::stack::StackConfig::new(1).with_rud(RUD_PORT);
    config.reassembly.bytes = 20_000;
    config.reassembly.datagrams = 16;
    let mut stack = Stack::new(config);
    stack.add_port(device, dual(A, A6)).unwrap();
    let mut alone = Alone { stack, wire, now: 0 };
    let socket = alone.stack.udp_mut().bind((A6, 5000), SocketConfig::default()).unwrap();
    for number in 0..2000u32 {
        let [a, b, c, d] = number.to_be_bytes();
        let payload = [&[17, 0, 0, 9, a, b, c, d][..], &BYTES[..1200]].concat();
        alone.exchange(Some(&frame(MAC_A, &packet(B6, A6, 44, 64, &payload))));
        assert!(
            alone.stack.protocols.reassembly.bytes() <= 20_000
                && alone.stack.protocols.reassembly.datagrams() <= 16
        );
    }
    assert!(alone.stack.counters().rx_fragment_evicted > 1900);
    let datagram = udp_payload(B6, A6, 5000, &BYTES[..100]);
    for (offset, end, more) in [(0, 56, 1u16), (56, 108, 0)] {
        let [hi, lo] = (offset as u16 | more).to_be_bytes();
        let payload = [&[17, 0, hi, lo, 9, 9, 9, 9][..], &datagram[offset..end]].concat();
        alone.exchange(Some(&frame(MAC_A, &packet(B6, A6, 44, 64, &payload))));
    }
    assert_eq!(alone.stack.udp().waiting(socket), 1, "and others still get through");
}

//= rud/spec.md section 4.5, RUD-16
#[test]
fn each_drop_of_ipv6_is_counted_under_its_reason() {
    let mut alone = alone_with_neighbour();
    alone.stack.udp_mut().bind((A6, 5000), SocketConfig::default()).unwrap();
    let good = udp_payload(B6, A6, 5000, b"payload");
    let no_checksum = |port: u16| {
        let mut bytes = udp_payload(B6, A6, port, b"payload");
        bytes[6..8].fill(0);
        frame(MAC_A, &packet(B6, A6, 17, 64, &bytes))
    };
    let send = |next, payload: &[u8]| frame(MAC_A, &packet(B6, A6, next, 64, payload));
    let with = |header: [u8; 8]| send(60, &[&header[..], &good].concat());
    let mut bad_checksum = good.clone();
    bad_checksum[9] ^= 1;
    let truncated = send(17, &good);
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("rx_udp", send(17, &good)),
        ("rx_udp", with([17, 0, 1, 4, 0, 0, 0, 0])),
        ("rx_ipv6_malformed", truncated[..truncated.len() - 1].to_vec()),
        ("rx_ipv6_malformed", with([17, 9, 1, 4, 0, 0, 0, 0])),
        ("rx_ipv6_extension", with([17, 0, 0x80, 4, 0, 0, 0, 0])),
        ("rx_ipv6_extension", send(59, b"")),
        ("rx_ipv6_other_host", frame(MAC_A, &packet(A6, B6, 17, 64, &good))),
        ("rx_ipv6_other_host", frame(icmpv6::multicast_mac(ALL_NODES), &packet(B6, A6, 17, 64, &good))),
        ("rx_ipv6_bad_source", frame(MAC_A, &packet(ALL_NODES, A6, 17, 64, &good))),
        ("rx_ipv6_bad_source", frame(MAC_A, &packet(Ipv6Addr::LOCALHOST, A6, 17, 64, &good))),
        ("rx_ipv6_group", frame(icmpv6::multicast_mac(ALL_NODES), &packet(B6, ALL_NODES, 17, 64, &good))),
        ("rx_ipv6_group", frame(MAC_A, &packet(Ipv6Addr::UNSPECIFIED, A6, 17, 64, &good))),
        ("rx_fragments", send(44, &[&[17, 0, 0, 1, 0, 0, 0, 1][..], &BYTES[..8]].concat())),
        ("rx_fragment_overlap", send(44, &[&[17, 0, 0, 1, 0, 0, 0, 1][..], &BYTES[..16]].concat())),
        ("rx_fragment_malformed", send(44, &[&[17, 0, 0, 1, 0, 0, 0, 2][..], &BYTES[..9]].concat())),
        ("rx_fragment_malformed", send(44, &[&[17, 0, 0xff, 0xf8, 0, 0, 0, 3][..], &BYTES[..9]].concat())),
        ("rx_unknown_protocol", send(132, b"sctp")),
        ("rx_unknown_protocol", send(1, b"ICMP for IPv4")),
        ("rx_tcp_malformed", send(6, b"tcp")),
        ("rx_udp_checksum", send(17, &bad_checksum)),
        ("rx_udp_checksum", no_checksum(5000)),
        ("rx_rud", no_checksum(RUD_PORT)),
        ("rx_udp_no_socket", send(17, &udp_payload(B6, A6, 5001, b""))),
        ("rx_other_station", frame(MAC_B, &packet(B6, A6, 17, 64, &good))),
        ("rx_icmp_checksum", send(58, &[128, 0, 1, 2, 3, 4, 5, 6])),
    ];
    let value = |alone: &Alone, name: &str| {
        alone.stack.counters().named().find(|(counter, _)| *counter == name).map(|(_, value)| value)
    };
    let total = |alone: &Alone| {
        let counters = alone.stack.counters();
        counters.named().filter(|(name, _)| name.starts_with("rx_")).map(|(_, value)| value).sum::<u64>()
    };
    for (index, (name, frame)) in cases.into_iter().enumerate() {
        let before = (value(&alone, name).unwrap(), total(&alone));
        alone.exchange(Some(&frame));
        let after = (value(&alone, name).unwrap(), total(&alone));
        assert_eq!(
            after,
            (before.0 + 1, before.1 + 1),
            "case {index}, {name}: counted once, and nowhere else"
        );
    }
}

#[test]
fn a_port_without_ipv6_does_not_answer_it() {
    let mut alone = Alone::new(config(A));
    let question = Solicitation { target: LOCAL_A, source: Some(MAC_B) };
    let asked = solicitation(LOCAL_B, solicited_node(LOCAL_A), 255, question);
    assert!(alone.exchange(Some(&asked)).is_empty());
    assert_eq!(alone.stack.counters().rx_ipv6_other_host, 1);
}

proptest! {
    /// Packets that are right but for a few bytes, and chains of headers that are not, go through the whole stack.
    #[test]
    fn no_ipv6_frame_makes_the_stack_panic(
        kind in 0u8..7,
        noise in proptest::collection::vec(any::<u8>(), 0..120),
        links in proptest::collection::vec((0usize..14, proptest::sample::select(vec![0u8, 6, 17, 43, 44, 58, 60])), 0..6),
        changes in proptest::collection::vec((0usize..160, any::<u8>()), 0..4),
        cut in 54usize..300,
    ) {
        let mut alone = alone_with_neighbour();
        let mut chain = noise.clone();
        for (unit, next) in links {
            if let Some(link) = chain.get_mut(unit * 8..unit * 8 + 2) {
                link.copy_from_slice(&[next, 0]);
            }
        }
        let question = Solicitation { target: A6, source: Some(MAC_B) };
        let echo = icmpv6::Echo { kind: icmpv6::EchoKind::Request, identifier: 1, sequence: 2, data: &noise };
        let error = crate::wire::icmp::ErrorKind::PacketTooBig { mtu: 1300 };
        let mut bytes = match kind {
            0 => frame(MAC_A, &packet(B6, A6, 17, 64, &udp_payload(B6, A6, RUD_PORT, &noise))),
            1 => frame(MAC_A, &packet(B6, A6, 0, 64, &chain)),
            2 => frame(MAC_A, &packet(B6, A6, 44, 64, &chain)),
            3 => frame(MAC_A, &packet(B6, A6, 60, 64, &chain)),
            4 => solicitation(B6, solicited_node(A6), 255, question),
            5 => frame(MAC_A, &packet(B6, A6, 58, 64, &[&icmpv6::emit_echo(B6, A6, &echo)[..], &noise].concat())),
            _ => {
                let quoted = packet(A6, B6, 60, 64, &chain);
                let icmp = [&icmpv6::emit_error(B6, A6, error, &quoted)[..], &quoted].concat();
                frame(MAC_A, &packet(B6, A6, 58, 64, &icmp))
            }
        };
        for (at, value) in changes {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        bytes.truncate(cut);
        let before: u64 = alone.stack.counters().named().map(|(_, value)| value).sum();
        alone.exchange(Some(&bytes));
        let after: u64 = alone.stack.counters().named().map(|(_, value)| value).sum();
        prop_assert!(after > before, "every frame is counted");
    }
}
