use core::net::SocketAddr;

use super::*;
use crate::device::{Frame, Loopback};
use crate::rss::SYMMETRIC_KEY;
use crate::wire::ethernet::Mac;
use crate::wire::ip::Protocol;

const NOW: Instant = Instant::ZERO;
const IPV4: [u8; 2] = [8, 0];
const ARP: [u8; 2] = [8, 6];

/// Wires whose far ends stand for a NIC's hardware, and the queues.
fn queues(count: u16) -> (Vec<Loopback>, Vec<Spread<Loopback>>, Rss) {
    let rss = Rss::new(&SYMMETRIC_KEY, count);
    let (hardware, devices) = (0..count).map(|_| Loopback::pair(1500, 1024)).unzip();
    (hardware, spread(devices, Some(&rss)), rss)
}

fn send(device: &mut impl Device, ethertype: [u8; 2], packet: &[u8]) {
    let mut batch = TxBatch::with_capacity(1);
    assert!(batch.push(Frame::new(&[&Mac::BROADCAST.0, &device.mac(), &ethertype, packet], None).unwrap()));
    assert_eq!(device.transmit(NOW, &mut batch), 1);
}

/// What each queue receives, Ethernet header left out.
fn received<D: Device>(queues: &mut [D]) -> Vec<Vec<Vec<u8>>> {
    let of = |queue: &mut D| {
        let mut frames = vec![];
        let count = queue.receive(NOW, 1024, &mut |frame| frames.push(frame.head()[14..].to_vec()));
        assert!(count >= frames.len());
        frames
    };
    queues.iter_mut().map(of).collect()
}

/// A datagram from port `from` of 10.0.0.1 to port `to` of 10.0.0.2.
fn datagram(from: u16, to: u16) -> Vec<u8> {
    let mut packet =
        vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, Protocol::Udp.into(), 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    packet.extend([from.to_be_bytes(), to.to_be_bytes(), [0, 8], [0, 0]].concat());
    packet
}

fn ends(from: u16, to: u16) -> [SocketAddr; 2] {
    [([10, 0, 0, 1], from).into(), ([10, 0, 0, 2], to).into()]
}

#[test]
fn what_hardware_has_dealt_out_stays_and_what_it_has_not_is_handed_on() {
    let (mut hardware, mut queues, rss) = queues(3);
    for port in 50_000..50_040 {
        let [source, destination] = ends(port, 61_790);
        let queue = usize::from(rss.queue(source, destination));
        // By a NIC that hashes, and by one that gives queue 0 everything.
        for arrives in [queue, 0] {
            send(&mut hardware[arrives], IPV4, &datagram(port, 61_790));
            let mut wanted = vec![vec![]; 3];
            wanted[queue].push(datagram(port, 61_790));
            let strayed = queues[0].strayed() + u64::from(arrives != queue);
            assert_eq!(received(&mut queues), wanted, "port {port} at queue {arrives}");
            assert_eq!(queues[0].strayed(), strayed);
        }
    }
    // Each sends by its own.
    for (number, queue) in queues.iter_mut().enumerate() {
        send(queue, IPV4, &[number as u8; 20]);
        let sent: Vec<_> = received(&mut hardware).iter().map(Vec::len).collect();
        assert_eq!(sent, [0, 1, 2].map(|other| usize::from(other == number)));
    }
}

#[test]
fn answers_of_arp_are_everybodys_and_questions_queue_0s() {
    let (mut hardware, mut queues, _) = queues(3);
    for (operation, counts) in [(2, [1, 1, 1]), (1, [1, 0, 0])] {
        let mut arp = vec![0, 1, 8, 0, 6, 4, 0, operation];
        arp.extend([2, 0, 0, 0, 0, 9, 10, 0, 0, 9]);
        arp.extend([2, 0, 0, 0, 0, 2, 10, 0, 0, 2]);
        send(&mut hardware[0], ARP, &arp);
        assert_eq!(received(&mut queues).iter().map(Vec::len).collect::<Vec<_>>(), counts);
    }
}

#[test]
fn a_ring_without_room_is_a_loss_that_is_counted() {
    let (mut hardware, mut queues, rss) = queues(2);
    let ports = rss.source_ports(1, [10, 0, 0, 1].into(), ([10, 0, 0, 2], 7).into(), 50_000);
    let packet = datagram({ ports }.next().unwrap(), 7);
    for _ in 0..DEPTH + 3 {
        send(&mut hardware[0], IPV4, &packet);
    }
    assert_eq!(received(&mut queues[..1]), [Vec::<Vec<u8>>::new()]);
    assert_eq!(queues[0].counters().dropped, 3);
    assert_eq!(received(&mut queues[1..])[0].len(), DEPTH);
}

/// Whatever the network sends to queue 0, a flood of announcements say, the other queues go on.
#[test]
fn frames_that_are_handed_on_hold_up_none_of_the_queues_own() {
    const BUDGET: usize = 8;
    let (mut hardware, mut queues, rss) = queues(2);
    let ports = rss.source_ports(1, [10, 0, 0, 1].into(), ([10, 0, 0, 2], 7).into(), 50_000);
    let own = datagram({ ports }.next().unwrap(), 7);
    let mut announcement = vec![0, 1, 8, 0, 6, 4, 0, 2];
    announcement.extend([2, 0, 0, 0, 0, 9, 10, 0, 0, 9].repeat(2));
    let (mut owns, mut others) = (0, 0);
    for round in 1..=20 {
        for _ in 0..BUDGET {
            send(&mut hardware[0], ARP, &announcement);
            send(&mut hardware[1], IPV4, &own);
        }
        received(&mut queues[..1]);
        let count = queues[1].receive(NOW, BUDGET, &mut |frame| match frame.head()[14..] == own[..] {
            true => owns += 1,
            false => others += 1,
        });
        assert_eq!((count, owns + others), (BUDGET, round * BUDGET));
        assert_eq!((owns, others), (round * BUDGET / 2, round * BUDGET / 2));
    }
    // What one of them has none of is the other's.
    let rest = received(&mut queues[1..]).concat().len();
    assert_eq!(rest, 20 * BUDGET);
}

#[test]
fn queues_that_share_nothing_keep_what_arrives() {
    let (mut far, near) = Loopback::pair(1500, 16);
    let mut queues = spread(vec![near], None);
    send(&mut far, IPV4, &datagram(1, 2));
    assert_eq!(received(&mut queues), [[datagram(1, 2)]]);
}
