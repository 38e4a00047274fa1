//! Headers and checksums: the cost of parsing and emitting per frame.
//!
//! `cargo bench -p shouter-netstack --no-default-features --bench wire`

#![allow(missing_docs)]

use core::hint::black_box;
use core::net::Ipv4Addr;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use shouter_netstack::device::{Device, Frame, Loopback, RxFrame, TxBatch};
use shouter_netstack::region::Region;
use shouter_netstack::rud::{Disposition, Failure, MessageToken, SessionId, SessionParams, Sink};
use shouter_netstack::stack::{PortConfig, Stack, StackConfig};
use shouter_netstack::time::Instant;
use shouter_netstack::wire::ethernet::{EtherType, Mac};
use shouter_netstack::wire::ipv4::Protocol;
use shouter_netstack::wire::{checksum, ethernet, ipv4, udp};

const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const RUD_PORT: u16 = 4791;
static PAYLOAD: [u8; 9000] = [0x5a; 9000];

fn frame(payload: usize) -> Vec<u8> {
    let eth = ethernet::Repr {
        destination: Mac([2, 0, 0, 0, 0, 1]),
        source: Mac([2, 0, 0, 0, 0, 2]),
        ethertype: EtherType::Ipv4,
    };
    let ip = ipv4::Repr::new(B, A, Protocol::Udp, 8 + payload).unwrap();
    let udp = udp::Repr::new(1000, 2000, payload).unwrap();
    [&eth.emit()[..], &ip.emit(), &udp.emit(), &PAYLOAD[..payload]].concat()
}

fn headers(c: &mut Criterion) {
    let mut group = c.benchmark_group("wire");
    let bytes = frame(1400);
    group.bench_function("parse ethernet ipv4 udp", |b| {
        b.iter(|| {
            let frame = ethernet::Frame::new(black_box(&bytes)).ok()?;
            let packet = ipv4::Packet::new(frame.payload()).ok()?;
            if !packet.checksum_ok() || packet.is_fragment() {
                return None;
            }
            let datagram = udp::Datagram::new(packet.payload()).ok()?;
            Some((
                frame.destination(),
                packet.source(),
                datagram.destination_port(),
                datagram.payload().len(),
            ))
        })
    });
    group.bench_function("emit ethernet ipv4 udp", |b| {
        b.iter(|| {
            let len = black_box(1400);
            let eth = ethernet::Repr {
                destination: Mac([2, 0, 0, 0, 0, 1]),
                source: Mac([2, 0, 0, 0, 0, 2]),
                ethertype: EtherType::Ipv4,
            };
            let ip = ipv4::Repr::new(A, B, Protocol::Udp, len + 8)?.emit();
            let udp = udp::Repr::new(1000, 2000, len)?.emit();
            Frame::new(&[&eth.emit(), &ip, &udp], None)
        })
    });
    group.finish();

    let mut group = c.benchmark_group("checksum");
    for len in [20, 64, 1500, 9000] {
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_function(format!("{len}"), |b| b.iter(|| checksum::checksum(black_box(&PAYLOAD[..len]))));
    }
    group.finish();
}

struct Ignore;

impl Sink for Ignore {
    fn deliver(&mut self, _: SessionId, _: &[u8], payload: &[u8]) -> Disposition {
        black_box(payload.len());
        Disposition::Consumed
    }
    fn released(&mut self, _: SessionId, _: MessageToken) {}
    fn failed(&mut self, _: SessionId, _: Failure) {}
}

/// Takes every frame and returns the same one, so that only the stack is measured.
struct Null {
    inner: Loopback,
    frame: Vec<u8>,
    give: usize,
}

// SAFETY: no frame is read.
#[allow(unsafe_code)]
unsafe impl Device for Null {
    fn capabilities(&self) -> &shouter_netstack::device::Capabilities {
        self.inner.capabilities()
    }
    fn mac(&self) -> [u8; 6] {
        self.inner.mac()
    }
    fn link_up(&mut self) -> bool {
        true
    }
    fn transmit(&mut self, _: Instant, batch: &mut TxBatch) -> usize {
        let frames = batch.frames().len();
        black_box(batch.frames());
        batch.consume(frames);
        frames
    }
    fn receive(&mut self, _: Instant, budget: usize, sink: &mut impl FnMut(RxFrame<'_>)) -> usize {
        let count = self.give.min(budget);
        for _ in 0..count {
            sink(RxFrame::new(&self.frame));
        }
        self.give -= count;
        count
    }
    fn counters(&self) -> shouter_netstack::device::DeviceCounters {
        self.inner.counters()
    }
}

fn stack_with(frame: Vec<u8>, give: usize) -> Stack<Null> {
    let (inner, _) = Loopback::pair(1500, 1);
    let mut stack = Stack::new(StackConfig::new(1).with_rud(RUD_PORT));
    let config = PortConfig { neighbours: vec![(B, [2, 0, 0, 0, 0, 2])], ..PortConfig::new(A, 24, 1500) };
    stack.add_port(Null { inner, frame, give }, config).unwrap();
    stack
}

fn stack(c: &mut Criterion) {
    let mut group = c.benchmark_group("stack");
    let params = |stack: &Stack<Null>| SessionParams {
        local_tag: 1,
        remote_tag: 2,
        remote_ip: B.into(),
        local_ip: A.into(),
        remote_port: RUD_PORT,
        local_ports: [50_000].into(),
        max_datagram: stack.max_rud_datagram(B).unwrap(),
        seal: None,
    };

    let mut idle = stack_with(Vec::new(), 0);
    let params_idle = params(&idle);
    idle.rud_mut().open(Instant::ZERO, params_idle).unwrap();
    idle.poll_with(Instant::from_nanos(1000), &mut Ignore);
    group.bench_function("poll with nothing to do", |b| {
        b.iter(|| idle.poll_with(black_box(Instant::from_nanos(2000)), &mut Ignore))
    });

    group.throughput(Throughput::Elements(64));
    // RUD drops the datagram at its first check, so that this is the stack's own share.
    let mut datagram = frame(1400);
    datagram[36..38].copy_from_slice(&RUD_PORT.to_be_bytes());
    group.bench_function("receive 64 datagrams", |b| {
        b.iter_batched_ref(
            || stack_with(datagram.clone(), 64),
            |stack| stack.poll_with(Instant::from_nanos(2000), &mut Ignore),
            BatchSize::SmallInput,
        )
    });

    // All of the transmit path: RUD (the payload's CRC included), headers, batch.
    let region = Region::from_static(&PAYLOAD);
    for len in [0, 1400] {
        group.bench_function(format!("send 64 datagrams of {len} bytes through RUD"), |b| {
            b.iter_batched_ref(
                || {
                    let mut stack = stack_with(Vec::new(), 0);
                    let params = params(&stack);
                    let session = stack.rud_mut().open(Instant::ZERO, params).unwrap();
                    stack.poll_with(Instant::from_nanos(1000), &mut Ignore);
                    for _ in 0..64 {
                        stack
                            .rud_mut()
                            .send(session, &[0; 16], region.extent(0, len), MessageToken(0))
                            .unwrap();
                    }
                    stack
                },
                |stack| stack.transmit(Instant::from_nanos(2000)),
                BatchSize::SmallInput,
            )
        });
    }
    group.finish();
}

criterion_group!(benches, headers, stack);
criterion_main!(benches);
