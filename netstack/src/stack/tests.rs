use core::cell::Cell;
use core::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use core::time::Duration;
use std::rc::Rc;

use proptest::prelude::*;

use super::{ConfigError, PortConfig, PortId, SendError, Stack, StackConfig};
use crate::device::{Capabilities, Device, DeviceCounters, Frame, Loopback, RxFrame, TxBatch};
use crate::region::Region;
use crate::rud::{
    self, Disposition, Failure, MessageToken, SEAL_BYTES, SealSecret, SessionId, SessionParams, Sink,
};
use crate::time::Instant;
use crate::udp::{BindError, Payload, SocketConfig};
use crate::wire::ethernet::{EtherType, Mac};
use crate::wire::ip::Ecn;
use crate::wire::ipv4::Protocol;
use crate::wire::{arp, checksum, ethernet, icmpv4, ipv4, udp, vlan};

mod icmp;
mod ipv6;
mod pauses;
mod releases;
mod turns;

const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const MAC_A: Mac = Mac([2, 0, 0, 0, 0, 1]);
const MAC_B: Mac = Mac([2, 0, 0, 0, 0, 2]);
const RUD_PORT: u16 = 4791;

static BYTES: [u8; 4096] = {
    let mut bytes = [0; 4096];
    let mut i = 0;
    while i < bytes.len() {
        bytes[i] = (i * 7 + i / 251) as u8;
        i += 1;
    }
    bytes
};

fn region() -> Region {
    Region::from_static(&BYTES)
}

#[derive(Debug, Default)]
struct Collect {
    got: Vec<(Vec<u8>, Vec<u8>)>,
    released: Vec<MessageToken>,
}

impl Sink for Collect {
    fn deliver(&mut self, _: SessionId, header: &[u8], payload: &[u8]) -> Disposition {
        self.got.push((header.to_vec(), payload.to_vec()));
        Disposition::Consumed
    }
    fn released(&mut self, _: SessionId, token: MessageToken) {
        self.released.push(token);
    }
    fn failed(&mut self, _: SessionId, why: Failure) {
        panic!("session failed: {why}");
    }
}

fn at_micros(micros: u64) -> Instant {
    Instant::ZERO + Duration::from_micros(micros)
}

fn config(address: Ipv4Addr) -> PortConfig {
    PortConfig::new(address, 24, 1500)
}

fn stack_of<D: Device>(device: D, config: PortConfig) -> Stack<D> {
    let mut stack = Stack::new(StackConfig::new(1).with_rud(RUD_PORT));
    stack.add_port(device, config).unwrap();
    stack
}

/// Two stacks on one wire.
struct Pair {
    a: Stack<Loopback>,
    b: Stack<Loopback>,
    sink_a: Collect,
    sink_b: Collect,
    now: u64,
}

impl Pair {
    fn new(a: PortConfig, b: PortConfig) -> Self {
        let (device_a, device_b) = Loopback::pair(1500, 64);
        Self {
            a: stack_of(device_a, a),
            b: stack_of(device_b, b),
            sink_a: Collect::default(),
            sink_b: Collect::default(),
            now: 0,
        }
    }

    fn now(&self) -> Instant {
        at_micros(self.now)
    }

    fn step(&mut self) {
        self.a.poll_with(at_micros(self.now), &mut self.sink_a);
        self.b.poll_with(at_micros(self.now), &mut self.sink_b);
        self.now += 1;
    }

    fn steps(&mut self, count: usize) {
        for _ in 0..count {
            self.step();
        }
    }
}

/// One stack, and a test that plays its peer with hand-made frames.
struct Alone {
    stack: Stack<Loopback>,
    wire: Loopback,
    now: u64,
}

impl Alone {
    fn new(config: PortConfig) -> Self {
        let (device, wire) = Loopback::pair(1500, 64);
        let mut alone = Self { stack: stack_of(device, config), wire, now: 0 };
        // Takes the announcement off the wire.
        alone.exchange(None);
        alone
    }

    /// Puts a frame on the wire, and returns the frames that come back.
    fn exchange(&mut self, frame: Option<&[u8]>) -> Vec<Vec<u8>> {
        if let Some(frame) = frame {
            let region = Region::from_static(Box::leak(frame.to_vec().into_boxed_slice()));
            let mut batch = TxBatch::with_capacity(1);
            batch.push(Frame::new(&[], region.extent(0, frame.len() as u32)).unwrap());
            self.wire.transmit(at_micros(self.now), &mut batch);
        }
        self.stack.poll_with(at_micros(self.now), &mut Collect::default());
        self.now += 1;
        let mut out = Vec::new();
        self.wire.receive(at_micros(self.now), 64, &mut |frame| out.push(frame.to_vec()));
        out
    }
}

fn ethernet(destination: Mac, ethertype: EtherType) -> [u8; 14] {
    ethernet::Repr { destination, source: MAC_B, ethertype }.emit()
}

fn udp_frame(payload: &[u8], port: u16) -> Vec<u8> {
    let udp = udp::Repr::new(999, port, payload.len()).unwrap();
    let ip = ipv4::Repr::new(B, A, Protocol::Udp, 8 + payload.len()).unwrap();
    let udp = udp.emit_with_checksum(B, A, &[payload]);
    [&ethernet(MAC_A, EtherType::Ipv4)[..], &ip.emit(), &udp, payload].concat()
}

fn arp_frame(packet: arp::Repr) -> Vec<u8> {
    [&ethernet(Mac::BROADCAST, EtherType::Arp)[..], &packet.emit()].concat()
}

fn request(sender_ip: Ipv4Addr, target_ip: Ipv4Addr) -> arp::Repr {
    arp::Repr {
        operation: arp::Operation::Request,
        sender: MAC_B,
        sender_ip,
        target: Mac::default(),
        target_ip,
    }
}

fn session<D: Device>(
    stack: &mut Stack<D>,
    local: Ipv4Addr,
    remote: Ipv4Addr,
    tags: (u64, u64),
) -> SessionId {
    session_with(stack, local, remote, tags, None)
}

fn session_with<D: Device>(
    stack: &mut Stack<D>,
    local: Ipv4Addr,
    remote: Ipv4Addr,
    tags: (u64, u64),
    seal: Option<SealSecret>,
) -> SessionId {
    let params = SessionParams {
        local_tag: tags.0,
        remote_tag: tags.1,
        remote_ip: remote.into(),
        local_ip: local.into(),
        remote_port: RUD_PORT,
        local_ports: (50_000..50_003).collect(),
        max_datagram: stack.max_rud_datagram(remote).unwrap(),
        seal,
    };
    stack.rud_mut().open(Instant::ZERO, params).unwrap()
}

#[test]
fn rud_messages_cross_and_their_memory_is_released() {
    messages_cross(None);
}

#[test]
fn sealed_rud_messages_cross_and_their_memory_is_released() {
    messages_cross(Some(SealSecret::new([5; 32])));
}

fn messages_cross(seal: Option<SealSecret>) {
    let mut pair = Pair::new(config(A), config(B));
    let to_b = session_with(&mut pair.a, A, B, (1, 2), seal.clone());
    session_with(&mut pair.b, B, A, (2, 1), seal.clone());
    let seal_len = if seal.is_some() { SEAL_BYTES } else { 0 };
    let largest = pair.a.max_rud_datagram(B).unwrap() - crate::wire::rud::HEADER_LEN - 16 - seal_len;
    assert_eq!(largest, 1500 - 20 - 8 - crate::wire::rud::HEADER_LEN - 16 - seal_len);
    for message in 0..100u64 {
        let len = [0, 1, 700, largest][message as usize % 4];
        let extent = region().extent(message as usize, len as u32);
        let header = [message as u8; 16];
        pair.a.rud_mut().send(to_b, &header, extent, MessageToken(message)).unwrap();
    }
    pair.steps(3000);
    let mut got = core::mem::take(&mut pair.sink_b.got);
    got.sort();
    assert_eq!(got.len(), 100);
    for (message, (header, payload)) in got.iter().enumerate() {
        let len = [0, 1, 700, largest][message % 4];
        assert_eq!(header, &[message as u8; 16]);
        assert_eq!(payload, &BYTES[message..message + len]);
    }
    assert_eq!(pair.sink_a.released.len(), 100);
    assert!(!pair.a.holds_extents() && !pair.a.is_backlogged());
    let counters = pair.b.counters();
    assert_eq!(counters.rx_udp_checksum + counters.rx_ipv4_checksum + counters.rx_ipv4_malformed, 0);
    assert!(pair.a.counters().tx_held > 0, "the first datagrams waited for ARP");
    assert!(pair.a.device_counters(PortId(0)).tx_frames > 0);
}

/// A device whose link can be cut.
struct Cut(Loopback, Rc<Cell<bool>>);

// SAFETY: all frames are the inner device's, which keeps the promise.
#[allow(unsafe_code)]
unsafe impl Device for Cut {
    fn capabilities(&self) -> &Capabilities {
        self.0.capabilities()
    }
    fn mac(&self) -> [u8; 6] {
        self.0.mac()
    }
    fn link_up(&mut self) -> bool {
        !self.1.get()
    }
    fn transmit(&mut self, now: Instant, batch: &mut TxBatch) -> usize {
        self.0.transmit(now, batch)
    }
    fn receive(&mut self, now: Instant, budget: usize, sink: &mut impl FnMut(RxFrame<'_>)) -> usize {
        self.0.receive(now, budget, sink)
    }
    fn counters(&self) -> DeviceCounters {
        self.0.counters()
    }
}

#[test]
fn a_link_is_followed_after_it_was_up() {
    let (device, mut wire) = Loopback::pair(1500, 64);
    let cut = Rc::new(Cell::new(false));
    let mut stack = stack_of(Cut(device, Rc::clone(&cut)), config(A));
    let mut millis = 0;
    // Frames that leave within so many milliseconds.
    let mut run = |stack: &mut Stack<Cut>, span: u64| {
        let mut frames = Vec::new();
        for _ in 0..span {
            millis += 1;
            let now = at_micros(millis * 1000);
            stack.poll_with(now, &mut Collect::default());
            wire.receive(now, 64, &mut |frame| frames.push(frame.to_vec()));
        }
        frames
    };
    let announced = run(&mut stack, 200);
    assert_eq!((announced.len(), stack.next_deadline()), (1, None), "nobody is woken to look at it");
    assert_eq!(stack.links_down().count(), 0);
    cut.set(true);
    assert!(run(&mut stack, 110).is_empty());
    assert_eq!((stack.counters().link_losses, stack.links_down().collect::<Vec<_>>()), (1, vec![PortId(0)]));
    // No neighbour is requested over a link that is down; the packet waits.
    stack.ping(at_micros(310_000), B, 1, 1, b"held").unwrap();
    assert!(run(&mut stack, 6000).is_empty());
    cut.set(false);
    let frames = run(&mut stack, 20);
    assert_eq!(frames[0], announced[0], "announced again");
    assert_eq!((frames.len(), stack.counters().link_losses, stack.links_down().count()), (2, 1, 0));
    let question = ethernet::Frame::new(&frames[1]).unwrap().payload();
    assert_eq!(arp::Repr::parse(question).unwrap().target_ip, B);
}

//= rud/spec.md section 4.4, RUD-14
#[test]
fn what_rud_sends_is_well_formed() {
    let mut alone = Alone::new(PortConfig { neighbours: vec![(B, MAC_B.0)], ..config(A) });
    let to_b = session(&mut alone.stack, A, B, (1, 2));
    alone.exchange(None);
    for len in [0, 1, 333, 1400] {
        let extent = region().extent(5, len);
        alone.stack.rud_mut().send(to_b, b"header", extent, MessageToken(0)).unwrap();
        let frames = alone.exchange(None);
        assert_eq!(frames.len(), 1);
        let frame = ethernet::Frame::new(&frames[0]).unwrap();
        assert_eq!((frame.destination(), frame.source()), (MAC_B, MAC_A));
        let packet = ipv4::Packet::new(frame.payload()).unwrap();
        let repr = ipv4::Repr::parse(&packet).unwrap();
        assert_eq!((repr.source, repr.destination, repr.protocol), (A, B, Protocol::Udp));
        assert_eq!(Ecn::of(repr.traffic_class), Ecn::Ect0);
        assert_eq!(repr.emit(), frame.payload()[..20], "what the template gives is what the header would be");
        let datagram = udp::Datagram::new(packet.payload()).unwrap();
        assert!(!datagram.has_checksum());
        assert_eq!(datagram.destination_port(), RUD_PORT);
        assert!((50_000..50_003).contains(&datagram.source_port()));
        assert!(datagram.payload().ends_with(&BYTES[5..5 + len as usize]));
        assert_eq!(frames[0].len(), 14 + 20 + packet.payload().len(), "no trailing bytes");
    }
}

#[test]
fn a_full_device_is_back_pressure() {
    let (device, mut wire) = Loopback::pair(1500, 4);
    let config = PortConfig { neighbours: vec![(B, MAC_B.0)], ..config(A) };
    let mut stack = Stack::new(StackConfig { tx_frames: 8, ..StackConfig::new(1).with_rud(RUD_PORT) });
    stack.add_port(device, config).unwrap();
    let to_b = session(&mut stack, A, B, (1, 2));
    for message in 0..10 {
        stack.rud_mut().send(to_b, &[message], region().extent(0, 300), MessageToken(0)).unwrap();
    }
    let mut sink = Collect::default();
    let mut numbers = Vec::new();
    let mut held = 0;
    for step in 0..12 {
        stack.poll_with(at_micros(step), &mut sink);
        held += u64::from(stack.holds_extents() && stack.is_backlogged());
        wire.receive(at_micros(step), 1, &mut |frame| {
            // Data frames carry one byte of body before the 300 of payload, which is too much for messages to share one; heartbeats and ARP are shorter.
            if frame.len() > 342 {
                numbers.push(frame.head()[frame.len() - 301]);
            }
        });
    }
    for _ in 0..4 {
        stack.poll_with(at_micros(20), &mut sink);
        wire.receive(at_micros(20), 64, &mut |frame| {
            if frame.len() > 342 {
                numbers.push(frame.head()[frame.len() - 301]);
            }
        });
    }
    assert_eq!(numbers, (0..10).collect::<Vec<_>>(), "in order, nothing lost");
    assert!(held > 0);
    assert!(!stack.holds_extents());
    assert_eq!(stack.counters().tx_full, 0);
}

#[test]
fn ping_is_answered_whatever_its_size() {
    let mut pair = Pair::new(config(A), config(B));
    for (sequence, len) in [0, 56, 122, 123, 1000, 1472].into_iter().enumerate() {
        pair.a.ping(pair.now(), B, 7, sequence as u16, &BYTES[..len]).unwrap();
        pair.steps(4);
        let reply = pair.a.next_echo_reply().unwrap();
        assert_eq!(
            (reply.from, reply.identifier, reply.sequence, reply.len),
            (B.into(), 7, sequence as u16, len)
        );
        let request = pair.b.next_echo_request().unwrap();
        assert_eq!((request.from, request.sequence, request.len), (A.into(), sequence as u16, len));
    }
    let error = pair.a.ping(pair.now(), B, 7, 9, &BYTES[..1473]).unwrap_err();
    assert_eq!(error, SendError::TooLong { len: 1473, limit: 1472 });
    let counters = pair.b.counters();
    assert_eq!((counters.rx_echo_requests, counters.rx_arp), (6, 2), "the announcement and one request");
}

#[test]
fn ping_to_nobody_is_unreachable_in_the_end() {
    let mut pair = Pair::new(config(A), config(B));
    let nobody = Ipv4Addr::new(10, 0, 0, 77);
    pair.a.ping(pair.now(), nobody, 1, 1, b"x").unwrap();
    for _ in 0..10 {
        pair.steps(1);
        pair.now += 500_000;
    }
    assert_eq!(pair.a.counters().tx_unreachable, 1);
    let now = pair.now();
    pair.a.ping(now, nobody, 1, 2, b"x").unwrap();
    assert_eq!(
        pair.a.ping(now, Ipv4Addr::new(10, 9, 9, 9), 1, 1, b""),
        Err(SendError::NoRoute { remote: Ipv4Addr::new(10, 9, 9, 9).into() })
    );
    for remote in [Ipv4Addr::BROADCAST, Ipv4Addr::new(224, 0, 0, 1), Ipv4Addr::UNSPECIFIED] {
        assert_eq!(pair.a.ping(now, remote, 1, 1, b""), Err(SendError::NotUnicast { remote: remote.into() }));
    }
}

#[test]
fn udp_sockets_exchange_bytes_and_extents() {
    for with_checksum in [true, false] {
        let mut pair = Pair::new(config(A), config(B));
        let options = SocketConfig { checksum: with_checksum, ..SocketConfig::default() };
        let here = pair.a.udp_mut().bind(SocketAddrV4::new(A, 0), options).unwrap();
        let there = pair.b.udp_mut().bind(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 5000), options).unwrap();
        let from = pair.a.udp().local(here).unwrap();
        let to = SocketAddrV4::new(B, 5000);
        let extent = region().extent(3, 1400).unwrap();
        let long = &BYTES[..1000];
        let sends: [(&[u8], Payload<'_>); 5] = [
            (b"", Payload::Bytes(b"short")),
            (b"head", Payload::Bytes(long)),
            (b"", Payload::Bytes(b"")),
            (b"head", Payload::Extent(extent)),
            (&[7; 200], Payload::Bytes(b"long header")),
        ];
        // Twice: at first they wait for ARP, then they go straight out.
        for _ in 0..2 {
            for (header, payload) in sends {
                pair.a.udp_send_to(pair.now(), here, to, header, payload).unwrap();
            }
            pair.steps(5);
            let mut buffer = [0; 2000];
            for (header, payload) in sends {
                let got = pair.b.udp_mut().recv(there, &mut buffer).unwrap();
                assert_eq!((got.from, got.local), (from, B.into()));
                assert_eq!(buffer[..got.len], [header, payload.as_bytes()].concat());
            }
            assert_eq!(pair.b.udp().waiting(there), 0);
        }
        let now = pair.now();
        let mut send = |header: &[u8], payload| pair.a.udp_send_to(now, here, to, header, payload);
        assert_eq!(
            send(&[0; 123], Payload::Extent(extent)),
            Err(SendError::TooLong { len: 1523, limit: 1472 })
        );
        let short = region().extent(0, 9).unwrap();
        assert_eq!(send(&[0; 135], Payload::Extent(short)), Err(SendError::HeaderTooLong { len: 135 }));
        pair.a.udp_mut().close(here);
        let closed = pair.a.udp_send_to(now, here, to, b"", Payload::Bytes(b""));
        assert_eq!(closed, Err(SendError::BadSocket));
    }
}

#[test]
fn copied_datagrams_use_their_slots_again() {
    let mut pair = Pair::new(config(A), config(B));
    let options = SocketConfig { queue_datagrams: 10_000, queue_bytes: 1 << 24, checksum: true };
    let here = pair.a.udp_mut().bind(SocketAddrV4::new(A, 0), options).unwrap();
    let there = pair.b.udp_mut().bind(SocketAddrV4::new(B, 5000), options).unwrap();
    pair.a.ping(pair.now(), B, 0, 0, b"").unwrap();
    pair.steps(3);
    let mut sent = 0;
    for _ in 0..50 {
        while pair.a.udp_send_to(
            pair.now(),
            here,
            SocketAddrV4::new(B, 5000),
            b"",
            Payload::Bytes(&BYTES[sent % 1000..][..1200]),
        ) == Ok(())
        {
            sent += 1;
        }
        pair.step();
    }
    pair.steps(3);
    assert!(sent > 1000, "{sent}");
    let mut buffer = [0; 1500];
    for number in 0..sent {
        assert_eq!(pair.b.udp_mut().recv(there, &mut buffer).map(|got| got.len), Some(1200));
        assert_eq!(buffer[..1200], BYTES[number % 1000..][..1200], "datagram {number}");
    }
}

#[test]
fn tagged_ports_talk_to_tagged_ports_only() {
    let tagged = |address, vlan| PortConfig { vlan, ..config(address) };
    let reaches = |a, b| {
        let mut pair = Pair::new(tagged(A, a), tagged(B, b));
        pair.a.ping(pair.now(), B, 1, 1, &BYTES[..1472]).unwrap();
        pair.steps(5);
        let dropped = pair.b.counters().rx_other_vlan + pair.b.counters().rx_unknown_ethertype;
        (pair.a.next_echo_reply().is_some(), dropped > 0)
    };
    assert_eq!(reaches(Some(5), Some(5)), (true, false));
    assert_eq!(reaches(Some(5), Some(6)), (false, true));
    assert_eq!(reaches(Some(5), None), (false, true));
    assert_eq!(reaches(None, Some(5)), (false, true));
}

#[test]
fn a_priority_tag_is_taken_off() {
    let mut alone = Alone::new(config(A));
    let packet = request(B, A).emit();
    // Priority 7, VLAN 0.
    let frame = [&ethernet(Mac::BROADCAST, EtherType::Vlan)[..], &[0xe0, 0, 0x08, 0x06], &packet].concat();
    assert_eq!(alone.exchange(Some(&frame)).len(), 1);
    let frame = [&ethernet(Mac::BROADCAST, EtherType::Vlan)[..], &[0xe0]].concat();
    alone.exchange(Some(&frame));
    assert_eq!(alone.stack.counters().rx_ethernet_truncated, 1);
    assert_eq!(vlan::TAG_LEN, 4);
}

#[test]
fn packets_beyond_the_link_go_to_the_gateway() {
    let far = Ipv4Addr::new(192, 168, 7, 7);
    let mut alone = Alone::new(PortConfig { gateway: Some(B), ..config(A) });
    alone.stack.ping(Instant::ZERO, far, 1, 1, b"hello").unwrap();
    let asked = alone.exchange(None);
    let question = arp::Repr::parse(&asked[0][14..]).unwrap();
    assert_eq!((question.operation, question.target_ip), (arp::Operation::Request, B));
    let answer = arp::Repr {
        operation: arp::Operation::Reply,
        sender: MAC_B,
        sender_ip: B,
        target: MAC_A,
        target_ip: A,
    };
    let sent = alone.exchange(Some(&[&ethernet(MAC_A, EtherType::Arp)[..], &answer.emit()].concat()));
    assert_eq!(sent.len(), 1);
    let frame = ethernet::Frame::new(&sent[0]).unwrap();
    assert_eq!(frame.destination(), MAC_B);
    assert_eq!(ipv4::Packet::new(frame.payload()).unwrap().destination(), far);
}

#[test]
fn arp_answers_probes_and_keeps_its_address() {
    let mut alone = Alone::new(config(A));
    // A probe is answered, and adds no entry.
    let answers = alone.exchange(Some(&arp_frame(request(Ipv4Addr::UNSPECIFIED, A))));
    let answer = arp::Repr::parse(&answers[0][14..]).unwrap();
    assert_eq!(
        (answer.operation, answer.sender, answer.sender_ip, answer.target),
        (arp::Operation::Reply, MAC_A, A, MAC_B)
    );
    assert_eq!(alone.exchange(Some(&arp_frame(request(B, Ipv4Addr::new(10, 0, 0, 3))))).len(), 0);
    assert_eq!(alone.stack.counters().rx_arp_conflict, 0);
    assert_eq!(alone.exchange(Some(&arp_frame(request(A, A)))).len(), 0);
    assert_eq!(alone.stack.counters().rx_arp_conflict, 1, "another host has our address");
    alone.exchange(Some(&arp_frame(request(B, A))[..30]));
    assert_eq!(alone.stack.counters().rx_arp_malformed, 1);
}

#[test]
fn each_drop_is_counted_under_its_reason() {
    let mut alone = Alone::new(config(A));
    alone.stack.udp_mut().bind(SocketAddrV4::new(A, 5000), SocketConfig::default()).unwrap();
    let good = udp_frame(b"payload", 5000);
    let patched = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut frame = good.clone();
        change(&mut frame);
        // The header's checksum is made right again.
        if frame.len() >= 34 {
            frame[24..26].fill(0);
            let sum = checksum::checksum(&frame[14..34]);
            frame[24..26].copy_from_slice(&sum.to_be_bytes());
        }
        frame
    };
    let icmp = |bytes: &[u8]| {
        let ip = ipv4::Repr::new(B, A, Protocol::Icmp, bytes.len()).unwrap();
        [&ethernet(MAC_A, EtherType::Ipv4)[..], &ip.emit(), bytes].concat()
    };
    let mut unreachable = [3, 3, 0, 0, 0, 0, 0, 0];
    let sum = checksum::checksum(&unreachable);
    unreachable[2..4].copy_from_slice(&sum.to_be_bytes());
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("rx_udp", good.clone()),
        ("rx_ethernet_truncated", good[..13].to_vec()),
        ("rx_other_station", patched(&|f| f[5] = 9)),
        ("rx_other_station", patched(&|f| f[..6].fill(0xff))),
        ("rx_unknown_ethertype", patched(&|f| f[13] = 0xdd)),
        ("rx_other_vlan", [&good[..12], &[0x81, 0, 0, 5], &good[12..]].concat()),
        ("rx_ipv4_malformed", good[..30].to_vec()),
        ("rx_ipv4_malformed", patched(&|f| f[14] = 0x44)),
        ("rx_ipv4_checksum", {
            let mut frame = good.clone();
            frame[22] ^= 1;
            frame
        }),
        ("rx_fragment_malformed", patched(&|f| f[20] = 0x20)),
        ("rx_fragments", patched(&|f| f[21] = 1)),
        ("rx_ipv4_other_host", patched(&|f| f[33] = 9)),
        ("rx_ipv4_bad_source", patched(&|f| f[26] = 224)),
        ("rx_tcp_malformed", patched(&|f| f[23] = 6)),
        ("rx_unknown_protocol", patched(&|f| f[23] = 132)),
        ("rx_udp_malformed", patched(&|f| f[39] = 7)),
        ("rx_udp_malformed", patched(&|f| f[38] = 7)),
        ("rx_udp_checksum", {
            let mut frame = good.clone();
            frame[44] ^= 1;
            frame
        }),
        ("rx_udp_no_socket", udp_frame(b"payload", 5001)),
        ("rx_rud", udp_frame(b"not a RUD datagram", RUD_PORT)),
        ("rx_icmp_checksum", icmp(&[8, 0, 1, 1, 0, 0, 0, 0])),
        ("rx_icmp_ignored", icmp(&unreachable)),
        ("rx_icmp_unsupported", icmp(&[8, 0, 0])),
    ];
    let value = |stack: &Stack<Loopback>, name: &str| {
        stack.counters().named().find(|(counter, _)| *counter == name).map(|(_, value)| value)
    };
    let total = |stack: &Stack<Loopback>| {
        stack
            .counters()
            .named()
            .filter(|(name, _)| name.starts_with("rx_"))
            .map(|(_, value)| value)
            .sum::<u64>()
    };
    for (name, frame) in cases {
        let before = (value(&alone.stack, name).unwrap(), total(&alone.stack));
        alone.exchange(Some(&frame));
        let after = (value(&alone.stack, name).unwrap(), total(&alone.stack));
        assert_eq!(after, (before.0 + 1, before.1 + 1), "{name}: counted once, and nowhere else");
    }
    assert_eq!(alone.stack.rud().endpoint_counters().malformed, 1);
}

#[test]
fn ports_are_selected_by_route_and_by_source() {
    let second = Ipv4Addr::new(10, 1, 0, 1);
    let (device_a, mut wire_a) = Loopback::pair(1500, 8);
    let (device_b, mut wire_b) = Loopback::pair(9000, 8);
    let mut stack = stack_of(device_a, PortConfig { gateway: Some(B), ..config(A) });
    assert_eq!(
        stack.add_port(Loopback::pair(1500, 1).0, config(A)),
        Err(ConfigError::AddressInUse { address: A.into() })
    );
    stack.add_port(device_b, PortConfig::new(second, 24, 9000)).unwrap();
    assert_eq!(
        stack.addresses().map(|(port, ip)| (port.index(), ip)).collect::<Vec<_>>(),
        [(0, A.into()), (1, second.into())]
    );
    let near_b = Ipv4Addr::new(10, 1, 0, 9);
    assert!(stack.max_rud_datagram(near_b).unwrap() > 8000);
    assert!(stack.max_rud_datagram(B).unwrap() < 1500);

    let socket = stack.udp_mut().bind(SocketAddrV4::new(second, 0), SocketConfig::default()).unwrap();
    let mut send = |to| {
        let now = Instant::ZERO;
        stack.udp_send_to(now, socket, SocketAddrV4::new(to, 9), b"", Payload::Bytes(b"x"))
    };
    // Bound to the second port's address, the first port's gateway is no way out.
    assert_eq!(send(B), Err(SendError::NoRoute { remote: B.into() }));
    let all = Ipv4Addr::new(10, 1, 0, 255);
    assert_eq!(send(all), Err(SendError::NotUnicast { remote: all.into() }), "all hosts of its network");
    assert_eq!(send(second), Err(SendError::Own { remote: second.into() }));
    assert_eq!(send(near_b), Ok(()));
    stack.poll_with(Instant::ZERO, &mut Collect::default());
    assert_eq!(wire_a.receive(Instant::ZERO, 8, &mut |_| {}), 1, "its announcement");
    assert_eq!(wire_b.receive(Instant::ZERO, 8, &mut |_| {}), 2, "its announcement and the question");

    for stray in [B, Ipv4Addr::new(224, 0, 0, 1), Ipv4Addr::BROADCAST] {
        let address = SocketAddr::from((stray, 5000));
        let bound = stack.udp_mut().bind(address, SocketConfig::default());
        assert_eq!(bound, Err(BindError::NotOurs { address }));
    }
}

#[test]
fn a_port_that_cannot_hold_a_rud_datagram_says_so() {
    let (device, _wire) = Loopback::pair(100, 8);
    let stack = stack_of(device, PortConfig::new(A, 24, 68));
    assert_eq!(stack.max_rud_datagram(B), Err(SendError::MtuTooSmall { mtu: 68 }));
    assert_eq!(rud::payload_room(68, &B.into(), 64), 0);
}

proptest! {
    /// Random bytes, and frames that are right but for a few bytes, go through the whole stack.
    #[test]
    fn no_frame_makes_the_stack_panic(
        kind in 0u8..5,
        noise in proptest::collection::vec(any::<u8>(), 0..120),
        changes in proptest::collection::vec((0usize..120, any::<u8>()), 0..6),
        cut in 0usize..200,
    ) {
        let mut alone = Alone::new(config(A));
        let echo = icmpv4::Echo {
            kind: icmpv4::EchoKind::Request, identifier: 1, sequence: 2, data: &noise,
        };
        let mut frame = match kind {
            0 => noise,
            1 => udp_frame(&noise, RUD_PORT),
            2 => udp_frame(&noise, 5000),
            3 => arp_frame(request(B, A)),
            _ => {
                let ip = ipv4::Repr::new(B, A, Protocol::Icmp, 8 + noise.len()).unwrap();
                [&ethernet(MAC_A, EtherType::Ipv4)[..], &ip.emit(), &icmpv4::Message::Echo(echo).emit(), &noise].concat()
            }
        };
        for (at, value) in changes {
            if let Some(byte) = frame.get_mut(at) {
                *byte = value;
            }
        }
        frame.truncate(cut);
        let before: u64 = alone.stack.counters().named().map(|(_, value)| value).sum();
        alone.exchange(Some(&frame));
        let after: u64 = alone.stack.counters().named().map(|(_, value)| value).sum();
        prop_assert!(after > before, "every frame is counted");
    }
}
