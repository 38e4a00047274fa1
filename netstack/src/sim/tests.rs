use core::time::Duration;

use super::{Link, LinkConfig, Network, Node, Packet, Sim};
use crate::device::{Device, Frame, Offload, Transport, TxBatch};
use crate::region::Region;
use crate::time::Instant;
use crate::wire::checksum;
use crate::wire::ip::{Ecn, IpHeader, Protocol};

fn link() -> LinkConfig {
    LinkConfig {
        bits_per_second: 1_000_000_000,
        delay: Duration::from_micros(5),
        queue_frames: 8,
        ..LinkConfig::default()
    }
}

/// A link without limits that takes so many nanoseconds.
pub(crate) fn delayed(nanoseconds: u64) -> LinkConfig {
    LinkConfig {
        bits_per_second: 0,
        delay: Duration::from_nanos(nanoseconds),
        queue_frames: usize::MAX,
        ..LinkConfig::default()
    }
}

fn batch(to: [u8; 6], frames: usize) -> TxBatch {
    let mut batch = TxBatch::with_capacity(frames);
    for number in 0..frames {
        batch.push(Frame::new(&[&to, &[0; 8], &[number as u8; 87]], None).unwrap());
    }
    batch
}

fn drain(device: &mut impl Device, now: Instant) -> Vec<u8> {
    let mut out = Vec::new();
    while device.receive(now, 64, &mut |frame| out.push(frame.head()[14])) > 0 {}
    out
}

#[test]
fn a_frame_takes_the_time_of_two_lines_and_two_delays() {
    let network = Network::new(0);
    let (mut a, mut b) = (network.attach(1500, link()), network.attach(1500, link()));
    assert_eq!(a.transmit(Instant::ZERO, &mut batch(b.mac(), 1)), 1);
    // 101 bytes of frame and 24 of overhead at one bit a nanosecond: 1 us.
    let at = Instant::from_nanos(2 * 1_000 + 2 * 5_000);
    assert_eq!(network.next_event(Instant::ZERO), Some(Instant::from_nanos(6_000)), "at the switch");
    assert!(drain(&mut b, Instant::from_nanos(at.as_nanos() - 1)).is_empty());
    assert_eq!(network.next_event(Instant::ZERO), Some(at));
    assert_eq!(drain(&mut b, at), [0]);
    assert_eq!(network.next_event(at), None);
}

#[test]
fn a_full_line_pushes_back_at_the_host_and_drops_at_the_switch() {
    let network = Network::new(0);
    let mut b = network.attach(1500, link());
    let mut senders: Vec<_> = (0..3).map(|_| network.attach(1500, link())).collect();
    for sender in &mut senders {
        let mut frames = batch(b.mac(), 12);
        assert_eq!(sender.transmit(Instant::ZERO, &mut frames), 8, "the queue holds eight");
        assert_eq!(network.next_event(Instant::ZERO), Some(Instant::from_nanos(1_000)), "when there is room");
        assert_eq!(sender.transmit(Instant::from_nanos(1_000), &mut frames), 1);
    }
    let got = drain(&mut b, Instant::from_nanos(1_000_000));
    let [_, counters] = network.counters(0);
    assert_eq!(got.len() as u64 + counters.queue_drops, 27);
    assert!(counters.queue_drops > 0, "three senders at full rate into one line");
    assert_eq!(counters.deepest_queue, 8);
}

#[test]
fn broadcast_reaches_all_others_and_a_cut_link_nobody() {
    let network = Network::new(0);
    let mut hosts: Vec<_> = (0..4).map(|_| network.attach(1500, link())).collect();
    network.set_cut(2, true);
    hosts[0].transmit(Instant::ZERO, &mut batch([0xff; 6], 1));
    let late = Instant::from_nanos(1_000_000);
    let got: Vec<_> = hosts.iter_mut().map(|host| drain(host, late).len()).collect();
    assert_eq!(got, [0, 1, 0, 1]);
    assert_eq!(network.counters(2)[1].cut_drops, 1);
    // One that is cut in one direction sends what nobody sends it, or the other way round.
    for (cut, from_two, to_two) in [([false, true], 1, 0), ([true, false], 0, 1)] {
        network.set_cut_each(2, cut);
        hosts[2].transmit(late, &mut batch([0xff; 6], 1));
        let later = late + core::time::Duration::from_millis(1);
        assert_eq!(drain(&mut hosts[1], later).len(), from_two);
        hosts[0].transmit(late, &mut batch([0xff; 6], 1));
        assert_eq!(drain(&mut hosts[2], later).len(), to_two);
        drain(&mut hosts[1], later);
    }
}

/// A node that is polled every 10 us, and stops after 1 ms.
struct Clock(Vec<Instant>);

impl Node for Clock {
    fn poll(&mut self, now: Instant) -> Option<Instant> {
        self.0.push(now);
        let next = now + Duration::from_micros(10);
        (next <= Instant::from_nanos(1_000_000)).then_some(next)
    }
}

#[test]
fn time_moves_from_deadline_to_deadline() {
    let mut sim = Sim::new(0);
    let mut nodes = [Clock(Vec::new())];
    let limit = Instant::from_nanos(500_000);
    assert!(sim.run_until(&mut nodes, limit, |nodes| nodes[0].0.len() == 3));
    assert_eq!(sim.now(), Instant::from_nanos(20_000));
    assert!(!sim.run_until(&mut nodes, limit, |_| false));
    assert_eq!(sim.now(), limit, "the limit came first");
    assert!(!sim.run_until(&mut nodes, Instant::from_nanos(u64::MAX), |_| false));
    assert_eq!(sim.now(), Instant::from_nanos(1_000_000), "nothing would ever happen again");
}

#[test]
fn a_nic_with_offloads_splits_before_the_line() {
    let network = Network::new(0);
    let link = LinkConfig { queue_frames: 64, ..link() };
    let (a, mut b) = (network.attach(1500, link), network.attach(1500, link));
    let payload: &'static [u8] = (0..4000).map(|i| (i * 7 + i / 256) as u8).collect::<Vec<_>>().leak();
    let extent = Region::from_static(payload).extent(0, 4000).unwrap();
    let ip =
        IpHeader::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), Protocol::Tcp, 4020, Ecn::NotEct).unwrap();
    let tcp = [1, 2, 3, 4, 0, 0, 0, 9, 0, 0, 0, 8, 0x50, 0x18, 1, 0, 0, 0, 0, 0];
    let offload = Offload { transport: Transport::Tcp, l3_offset: 14, l4_offset: 34, segment_size: 1460 };
    let link_header = [&b.mac()[..], &a.mac(), &[8, 0]].concat();
    let frame = Frame::with_extents(&[&link_header, ip.as_bytes(), &tcp], &[extent], offload).unwrap();
    let send = |device: &mut super::SimDevice| {
        let mut batch = TxBatch::with_capacity(1);
        assert!(batch.push(frame));
        assert_eq!(device.transmit(Instant::ZERO, &mut batch), 1);
        device.counters()
    };
    let mut without = network.attach(1500, link);
    let counters = send(&mut without);
    assert_eq!((counters.tx_frames, counters.dropped), (0, 1), "nobody had offered it");
    assert_eq!(send(&mut a.with_offloads()).tx_frames, 3);
    let mut arrived = Vec::new();
    let later = Instant::ZERO + Duration::from_millis(1);
    b.receive(later, 64, &mut |frame| {
        let tcp = &frame.head()[34..];
        let pseudo = checksum::pseudo_header([10, 0, 0, 1], [10, 0, 0, 2], Protocol::Tcp, tcp.len() as u16);
        assert!(pseudo.over(tcp).is_valid());
        arrived.extend_from_slice(&tcp[20..]);
    });
    assert!(arrived == payload);
}

#[derive(Clone, Debug, PartialEq)]
struct Numbered(u32, bool);

impl Packet for Numbered {
    fn line_len(&self) -> u64 {
        125
    }
    fn mark(&mut self) -> bool {
        self.1 = true;
        true
    }
}

/// Each fault happens at about its configured rate, and nothing else happens; the same seed gives the same run.
#[test]
fn a_link_does_what_its_configuration_says_and_no_more() {
    let run = |config: LinkConfig| {
        let mut link = Link::new(config, 7);
        let mut got = Vec::new();
        for number in 0..10_000 {
            link.send(Instant::from_nanos(u64::from(number) * 1000), Numbered(number, false));
        }
        while let Some(at) = link.next_arrival() {
            got.push(link.receive(at).unwrap());
        }
        (got, link.counters())
    };
    let about = |count: u64| (800..1200).contains(&count);
    let clean = LinkConfig { bits_per_second: 1_000_000_000, queue_frames: 8, ..LinkConfig::default() };
    let (got, counters) = run(clean);
    assert!(got.iter().enumerate().all(|(i, packet)| *packet == Numbered(i as u32, false)));
    assert_eq!((counters.sent, counters.lost, counters.reordered, counters.marked), (10_000, 0, 0, 0));
    let (got, counters) = run(LinkConfig { loss: 0.1, ..clean });
    assert!(about(counters.lost) && got.len() as u64 == 10_000 - counters.lost, "{counters:?}");
    let (got, _) = run(LinkConfig { duplicate: 0.1, ..clean });
    assert!(about(got.len() as u64 - 10_000));
    let (got, counters) = run(LinkConfig { reorder: 0.1, reorder_by: Duration::from_micros(50), ..clean });
    assert!(about(counters.reordered) && got.len() == 10_000);
    assert!(!got.is_sorted_by_key(|packet| packet.0));
    assert_eq!(got, run(LinkConfig { reorder: 0.1, reorder_by: Duration::from_micros(50), ..clean }).0);
    // Twice as many as the line takes.
    let (got, counters) = run(LinkConfig { bits_per_second: 500_000_000, mark_above: 4, ..clean });
    assert!((4_990..5_020).contains(&got.len()) && got.len() as u64 + counters.queue_drops == 10_000);
    assert!(counters.marked > 4_900 && counters.deepest_queue == 8, "{counters:?}");
}

/// Packets of 125 bytes come twice as fast as they leave.
#[test]
fn a_buffer_is_limited_and_marked_by_its_bytes() {
    let config = LinkConfig {
        bits_per_second: 1_000_000_000,
        queue_frames: usize::MAX,
        queue_bytes: 1_000,
        mark_above_bytes: 500,
        ..LinkConfig::default()
    };
    let mut link = Link::new(config, 7);
    let at = |packet: u64| Instant::from_nanos(packet * 500);
    for number in 0..100 {
        link.send(at(number), Numbered(number as u32, false));
        assert!(link.queued_bytes(at(number)) <= 1_000);
    }
    let counters = link.counters();
    assert_eq!((counters.deepest_queue, counters.queue_drops), (8, 43), "{counters:?}");
    // The first nine find 500 bytes or fewer.
    assert_eq!(counters.marked, 57 - 9, "{counters:?}");
    assert!(link.room_at(at(99)).is_some());
    assert_eq!(link.queued_bytes(at(10_000)), 0);
}
