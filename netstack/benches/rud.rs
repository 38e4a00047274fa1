//! Cost of RUD per datagram, CRC included, device excluded: two endpoints in one thread.
//!
//! `send` is queueing, header, CRC and hand-over of a burst of 32 and, later, taking in its acknowledgement; the payload
//! is read for its CRC and not copied, as with a NIC. `receive` is parsing, CRC, delivery and acknowledging of such a
//! burst. `both` is their sum, with the payload copied onto the wire. Times are of a burst: divide by 32 for a
//! datagram's; criterion also shows datagrams per second.
#![allow(missing_docs)]
#![allow(unsafe_code)]

use core::net::{IpAddr, Ipv4Addr};
use core::ptr::NonNull;
use std::time::{Duration, Instant as Clock};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use shouter_netstack::region::{Extent, Region};
use shouter_netstack::rud::*;
use shouter_netstack::time::Instant;

const BURST: usize = 32;
const HEADER: [u8; 40] = [7; 40];
const IPS: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2))];

/// Copies emitted datagrams, header and payload, into reused buffers, as an embedded link's driver does.
struct Wire {
    frames: Vec<(DatagramMeta, Vec<u8>)>,
    used: usize,
    /// Whether to copy the payload: the sending side alone is measured without.
    copy: bool,
}

impl Wire {
    fn new(copy: bool) -> Self {
        let meta = DatagramMeta {
            src_ip: IPS[0],
            dst_ip: IPS[1],
            src_port: 0,
            dst_port: 0,
            congestion_experienced: false,
        };
        let frames = (0..2 * BURST).map(|_| (meta, Vec::with_capacity(10_000))).collect();
        Self { frames, used: 0, copy }
    }
}

impl Emit for Wire {
    fn room(&self) -> usize {
        self.frames.len() - self.used
    }
    fn emit(&mut self, to: &Destination, header: &[u8], payload: Option<Extent>) -> bool {
        let Some((meta, bytes)) = self.frames.get_mut(self.used) else { return false };
        self.used += 1;
        *meta = DatagramMeta {
            src_ip: to.local_ip,
            dst_ip: to.remote_ip,
            src_port: to.src_port,
            dst_port: to.dst_port,
            congestion_experienced: false,
        };
        bytes.clear();
        bytes.extend_from_slice(header);
        if self.copy {
            bytes.extend_from_slice(payload.as_ref().map_or(&[], |extent| extent.as_bytes()));
        }
        true
    }
}

#[derive(Default)]
struct Count {
    delivered: u64,
    released: u64,
}

impl Sink for Count {
    fn deliver(&mut self, _: SessionId, header: &[u8], payload: &[u8]) -> Disposition {
        self.delivered += u64::from(header[0]) + payload.len() as u64;
        Disposition::Consumed
    }
    fn released(&mut self, _: SessionId, token: MessageToken) {
        self.released += token.0;
    }
    fn failed(&mut self, _: SessionId, why: Failure) {
        panic!("{why}");
    }
}

struct Pair {
    ends: [(Endpoint, SessionId); 2],
    region: Region,
    payload: usize,
    out: Wire,
    back: Wire,
    count: Count,
    now: u64,
    at: usize,
}

/// One end's parameters, but for its tags.
fn params(end: usize) -> SessionParams {
    SessionParams {
        local_tag: 0,
        remote_tag: 0,
        remote_ip: IPS[1 - end],
        local_ip: IPS[end],
        remote_port: 40_000,
        local_ports: (40_000..40_008).collect(),
        max_datagram: 9104,
        seal: None,
    }
}

impl Pair {
    fn new(payload: usize) -> Self {
        let tags = [0x1234_5678_9abc_def1, 0x2345_6789_abcd_ef12];
        let ends = [0, 1].map(|end: usize| {
            let mut endpoint = Endpoint::new(Config::default());
            let params = SessionParams { local_tag: tags[end], remote_tag: tags[1 - end], ..params(end) };
            let id = endpoint.open(Instant::ZERO, params).unwrap();
            (endpoint, id)
        });
        // Fits the second-level cache: RUD is measured, not memory.
        let memory: &'static mut [u8] = Box::leak(vec![5u8; 512 << 10].into_boxed_slice());
        let (base, len) = (NonNull::new(memory.as_mut_ptr()).unwrap(), memory.len());
        // SAFETY: leaked, so it stays readable; nothing writes to it.
        let region = unsafe { Region::from_raw_parts(base, len) };
        let (out, back) = (Wire::new(true), Wire::new(true));
        Self { ends, region, payload, out, back, count: Count::default(), now: 0, at: 0 }
    }

    #[inline]
    fn send(&mut self) {
        let (endpoint, id) = &mut self.ends[0];
        for _ in 0..BURST {
            if self.at + self.payload > self.region.len() {
                self.at = 0;
            }
            let extent =
                if self.payload == 0 { None } else { self.region.extent(self.at, self.payload as u32) };
            self.at += self.payload;
            endpoint.send(*id, &HEADER, extent, MessageToken(1)).unwrap();
        }
        self.out.used = 0;
        endpoint.transmit(Instant::from_nanos(self.now), &mut self.out);
    }

    #[inline]
    fn receive(&mut self) {
        let (endpoint, _) = &mut self.ends[1];
        let now = Instant::from_nanos(self.now);
        for (meta, bytes) in &self.out.frames[..self.out.used] {
            endpoint.on_datagram(now, meta, bytes, &mut self.count);
        }
        self.back.used = 0;
        endpoint.transmit(now, &mut self.back);
    }

    #[inline]
    fn acknowledge(&mut self) {
        let (endpoint, _) = &mut self.ends[0];
        let now = Instant::from_nanos(self.now);
        for (meta, bytes) in &self.back.frames[..self.back.used] {
            endpoint.on_datagram(now, meta, bytes, &mut self.count);
        }
        endpoint.on_timeout(now, &mut self.count);
    }
}

/// One part of a round, or all of it.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    Send,
    Receive,
    Both,
}

fn timed(payload: usize, part: Part) -> impl FnMut(&mut criterion::Bencher<'_>) {
    move |bencher| {
        let mut pair = Pair::new(payload);
        pair.out.copy = part != Part::Send;
        bencher.iter_custom(|rounds| {
            let (mut sending, mut receiving) = (Duration::ZERO, Duration::ZERO);
            for _ in 0..rounds {
                pair.now += 3_000;
                let start = Clock::now();
                pair.send();
                sending += start.elapsed();
                if part == Part::Send {
                    complete(&mut pair);
                }
                let start = Clock::now();
                pair.receive();
                let received = Clock::now();
                pair.acknowledge();
                receiving += received - start;
                sending += received.elapsed();
            }
            match part {
                Part::Send => sending,
                Part::Receive => receiving,
                Part::Both => sending + receiving,
            }
        });
        let (endpoint, id) = &pair.ends[0];
        assert_eq!(endpoint.counters(*id).resent, 0, "the measurement met losses");
    }
}

fn parts(c: &mut Criterion) {
    let mut group = c.benchmark_group("rud");
    group.throughput(Throughput::Elements(BURST as u64));
    group.measurement_time(Duration::from_secs(2)).warm_up_time(Duration::from_millis(500));
    let full = [1500, 9000].map(|mtu| payload_room(mtu, &IPS[0], HEADER.len()));
    for payload in [0, 64, full[0], full[1]] {
        group.bench_function(BenchmarkId::new("send", payload), timed(payload, Part::Send));
        group.bench_function(BenchmarkId::new("receive", payload), timed(payload, Part::Receive));
        group.bench_function(BenchmarkId::new("both", payload), timed(payload, Part::Both));
    }
    group.finish();
}

/// A message of 64 bytes there and one back, each a burst of its own: the latency that RUD adds to a round trip.
fn ping_pong(c: &mut Criterion) {
    let mut pair = Pair::new(64);
    let extent = pair.region.extent(0, 64);
    c.bench_function("rud/ping-pong/64", |bencher| {
        bencher.iter(|| {
            for from in 0..2 {
                pair.now += 300;
                let now = Instant::from_nanos(pair.now);
                let (endpoint, id) = &mut pair.ends[from];
                endpoint.send(*id, &HEADER, extent, MessageToken(1)).unwrap();
                pair.out.used = 0;
                endpoint.transmit(now, &mut pair.out);
                let (endpoint, _) = &mut pair.ends[1 - from];
                for (meta, bytes) in &pair.out.frames[..pair.out.used] {
                    endpoint.on_datagram(now, meta, bytes, &mut pair.count);
                }
            }
        });
    });
}

/// A message of 64 bytes on each session in turn: what a round trip costs with many of them.
fn sessions(c: &mut Criterion) {
    let mut group = c.benchmark_group("rud/sessions");
    for count in [16, 256, 1024] {
        let mut pair = Pair::new(64);
        let [ids, _] = [0, 1].map(|end| {
            let endpoint = &mut pair.ends[end].0;
            *endpoint = Endpoint::new(Config::default());
            let open = |number: u64| {
                let tags = [number << 32 | 1, number << 32 | 2];
                let params = SessionParams { local_tag: tags[end], remote_tag: tags[1 - end], ..params(end) };
                endpoint.open(Instant::ZERO, params).unwrap()
            };
            (1..=count).map(open).collect::<Vec<_>>()
        });
        let extent = pair.region.extent(0, 64);
        let mut turns = ids.iter().copied().cycle();
        group.bench_function(BenchmarkId::from_parameter(count), |bencher| {
            bencher.iter(|| {
                let id = turns.next().unwrap();
                pair.now += 1_024_000 / count;
                let now = Instant::from_nanos(pair.now);
                pair.ends[0].0.send(id, &HEADER, extent, MessageToken(1)).unwrap();
                for from in [0, 1, 0] {
                    pair.out.used = 0;
                    pair.ends[from].0.transmit(now, &mut pair.out);
                    for (meta, bytes) in &pair.out.frames[..pair.out.used] {
                        let meta = DatagramMeta { src_ip: IPS[from], dst_ip: IPS[1 - from], ..*meta };
                        pair.ends[1 - from].0.on_datagram(now, &meta, bytes, &mut pair.count);
                    }
                    pair.ends[from].0.on_timeout(now, &mut pair.count);
                }
            });
        });
    }
    group.finish();
}

/// Appends the payloads that `send` left out.
fn complete(pair: &mut Pair) {
    if pair.payload == 0 {
        return;
    }
    for (_, bytes) in &mut pair.out.frames[..pair.out.used] {
        bytes.resize(bytes.len() + pair.payload, 5);
    }
}

criterion_group!(benches, parts, ping_pong, sessions);
criterion_main!(benches);
