use core::net::{IpAddr, SocketAddr};

use super::*;
use crate::device::Loopback;
use crate::device::dealing::DATAGRAMS;
use crate::region::Region;
use crate::rss::SYMMETRIC_KEY;
use crate::wire::ethernet::Mac;
use crate::wire::ip::Protocol;

const NOW: Instant = Instant::ZERO;

fn ipv4(protocol: Protocol, source: (u8, u16), destination: (u8, u16), more: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol.into(), 0, 0];
    packet.extend([10, 0, 0, source.0, 10, 0, 0, destination.0]);
    packet.extend(source.1.to_be_bytes());
    packet.extend(destination.1.to_be_bytes());
    packet.extend(more);
    packet
}

fn send(device: &mut impl Device, ethertype: [u8; 2], payload: &[u8]) {
    let mut batch = TxBatch::with_capacity(1);
    // Leaked: a test's few bytes, so that they can be an extent.
    let region = Region::from_static(payload.to_vec().leak());
    let extent = region.extent(0, payload.len() as u32);
    let frame = Frame::new(&[&Mac::BROADCAST.0, &device.mac(), &ethertype], extent).unwrap();
    assert!(batch.push(frame));
    assert_eq!(device.transmit(NOW, &mut batch), 1);
}

fn received(device: &mut impl Device) -> Vec<Vec<u8>> {
    let mut frames = vec![];
    device.receive(NOW, 64, &mut |frame| frames.push(frame.head()[14..].to_vec()));
    frames
}

/// A peer, and the shares of the device that it is connected to.
fn shares(count: u16) -> (Loopback, Vec<Steered<Loopback>>, Rss) {
    let (peer, device) = Loopback::pair(1500, 64);
    let rss = Rss::new(&SYMMETRIC_KEY, count);
    (peer, steer(device, rss.clone(), count), rss)
}

#[test]
fn every_flow_lands_on_its_shard() {
    let (mut peer, mut shares, rss) = shares(3);
    for port in 1000..1030 {
        let packet = ipv4(Protocol::Tcp, (1, port), (2, 80), &[0; 16]);
        send(&mut peer, [8, 0], &packet);
        let local = SocketAddr::from(([10, 0, 0, 2], 80));
        let expected = usize::from(rss.queue(SocketAddr::from(([10, 0, 0, 1], port)), local));
        let seen: Vec<_> = shares.iter_mut().map(received).collect();
        for (shard, frames) in seen.into_iter().enumerate() {
            let wanted = if shard == expected { vec![packet.clone()] } else { vec![] };
            assert_eq!(frames, wanted, "port {port}, shard {shard}, belongs to {expected}");
        }
    }
}

#[test]
fn an_icmp_error_follows_the_flow_that_it_quotes() {
    let (mut peer, mut shares, rss) = shares(2);
    let local = |port| SocketAddr::from(([10, 0, 0, 2], port));
    let remote = SocketAddr::from(([10, 0, 0, 9], 443));
    let port = (2000..).find(|port| rss.queue(remote, local(*port)) == 1).unwrap();
    let mut error = vec![3, 4, 0, 0, 0, 0, 5, 0];
    error.extend(ipv4(Protocol::Tcp, (2, port), (9, 443), &[0; 4]));
    let mut packet = ipv4(Protocol::Icmp, (7, 0), (2, 0), &[]);
    packet.truncate(20);
    packet.extend(error);
    send(&mut peer, [8, 0], &packet);
    assert_eq!((received(&mut shares[0]).len(), received(&mut shares[1])), (0, vec![packet]));
}

/// The pieces of a datagram of TCP over either version, from `port`, whose first has its ports.
fn pieces(ipv6: bool, port: u16, identification: u16) -> [Vec<u8>; 3] {
    [0u16, 8, 16].map(|offset| {
        let more = offset < 16;
        let payload =
            if offset == 0 { [port.to_be_bytes(), 80u16.to_be_bytes()].concat() } else { vec![9; 4] };
        if ipv6 {
            let mut packet = vec![0x60, 0, 0, 0, 0, 12, 44, 64];
            for host in [1, 2] {
                packet.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, host]);
            }
            packet.extend([6, 0]);
            packet.extend((offset | u16::from(more)).to_be_bytes());
            packet.extend([0, 0]);
            packet.extend(identification.to_be_bytes());
            [packet, payload].concat()
        } else {
            let mut packet = ipv4(Protocol::Tcp, (1, 0), (2, 0), &[]);
            packet.truncate(20);
            packet[4..6].copy_from_slice(&identification.to_be_bytes());
            let word = (offset / 8) | if more { 0x2000 } else { 0 };
            packet[6..8].copy_from_slice(&word.to_be_bytes());
            [packet, payload].concat()
        }
    })
}

#[test]
fn fragments_follow_the_one_with_the_ports() {
    for (ipv6, ethertype, hosts) in
        [(false, [8, 0], ["10.0.0.1", "10.0.0.2"]), (true, [0x86, 0xdd], ["fd00::1", "fd00::2"])]
    {
        let (mut peer, mut shares, rss) = shares(2);
        let [from, to] = hosts.map(|host| host.parse::<IpAddr>().unwrap());
        let port_of =
            |shard| (1000..).find(|port| rss.queue((from, *port).into(), (to, 80).into()) == shard).unwrap();
        let (owners, secondaries) = (port_of(0), port_of(1));
        let mut counts = |pieces: &[Vec<u8>]| {
            pieces.iter().for_each(|piece| send(&mut peer, ethertype, piece));
            [0, 1].map(|shard| received(&mut shares[shard]).len())
        };
        assert_eq!(counts(&pieces(ipv6, secondaries, 1)), [0, 3], "IPv6: {ipv6}");
        assert_eq!(counts(&pieces(ipv6, owners, 2)), [3, 0]);
        // The same number again, of another flow.
        assert_eq!(counts(&pieces(ipv6, owners, 1)), [3, 0]);
        // A fragment before the first is not known.
        let [first, second, third] = pieces(ipv6, secondaries, 3);
        assert_eq!(counts(core::slice::from_ref(&second)), [1, 0]);
        assert_eq!(counts(&[first, third]), [0, 2]);
        // Nor is one after many others.
        for identification in 4..4 + DATAGRAMS as u16 {
            assert_eq!(counts(&pieces(ipv6, secondaries, identification)), [0, 3]);
        }
        assert_eq!(counts(&[second]), [1, 0]);
    }
}

#[test]
fn answers_of_arp_are_everybodys_and_questions_the_owners() {
    let (mut peer, mut shares, _) = shares(2);
    let arp = |operation: u8, sender: u8, target: u8| {
        let mut packet = vec![0, 1, 8, 0, 6, 4, 0, operation];
        packet.extend([2, 0, 0, 0, 0, 1, 10, 0, 0, sender, 0, 0, 0, 0, 0, 0, 10, 0, 0, target]);
        packet
    };
    for (packet, at_secondary) in [(arp(1, 1, 2), 0), (arp(2, 1, 2), 1), (arp(1, 1, 1), 1)] {
        send(&mut peer, [8, 6], &packet);
        assert_eq!((received(&mut shares[0]).len(), received(&mut shares[1]).len()), (1, at_secondary));
    }
}

#[test]
fn frames_of_secondaries_leave_with_the_owners_poll_at_any_length() {
    let (mut peer, mut shares, _) = shares(2);
    for len in [46, 154, 155, 1500] {
        let payload: Vec<u8> = (0..len).map(|i| i as u8).collect();
        send(&mut shares[1], [0x88, 0xb5], &payload);
        assert_eq!(received(&mut peer).len(), 0);
        assert_eq!(received(&mut shares[0]).len(), 0);
        assert_eq!(received(&mut peer), [payload]);
    }
}

#[test]
fn a_full_ring_is_back_pressure_for_the_secondary_and_loss_for_the_owner() {
    let (mut peer, mut shares, rss) = shares(2);
    let mut batch = TxBatch::with_capacity(DEPTH + 1);
    for _ in 0..=DEPTH {
        assert!(batch.push(Frame::new(&[&[0; 60]], None).unwrap()));
    }
    assert_eq!(shares[1].transmit(NOW, &mut batch), DEPTH);
    assert_eq!(batch.frames().len(), 1);

    let to = SocketAddr::from(([10, 0, 0, 2], 80));
    let port = (1000..).find(|p| rss.queue(SocketAddr::from(([10, 0, 0, 1], *p)), to) == 1).unwrap();
    for _ in 0..DEPTH + 3 {
        send(&mut peer, [8, 0], &ipv4(Protocol::Udp, (1, port), (2, 80), &[]));
        assert_eq!(received(&mut shares[0]).len(), 0);
    }
    assert_eq!(shares[0].counters().dropped, 3);
    let mut count = 0;
    while shares[1].receive(NOW, 64, &mut |_| count += 1) > 0 {}
    assert_eq!(count, DEPTH);
}
