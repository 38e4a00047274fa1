//! TCP by itself: the bench feeds segments to an endpoint and counts those that it sends. A SYN answered by a cookie, a
//! segment received in order and acknowledged, a segment sent and acknowledged.
#![allow(missing_docs)]

use core::hint::black_box;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use shouter_netstack::region::Extent;
use shouter_netstack::tcp::{
    Config, ConnectionId, Destination, Emit, Emitted, Endpoint, ListenerId, Options, Path, Payload,
    SegmentMeta,
};
use shouter_netstack::time::Instant;
use shouter_netstack::wire::tcp::{Flags, Header, SeqNumber, Timestamps};

const PORT: u16 = 80;
const MTU: u16 = 1500;
/// Payload bytes of a full segment with timestamps.
const MSS: usize = 1448;
/// Segments of an iteration.
const BURST: usize = 32;
const OURS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const THEIRS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

/// Counts segments and their payload, and keeps the last header.
#[derive(Default)]
struct Count {
    segments: usize,
    bytes: usize,
    last: Header,
}

impl Emit for Count {
    fn path(&mut self, _: IpAddr, _: IpAddr) -> Option<Path> {
        Some(Path { mtu: MTU, max_payload: 1460, max_extents: 4, max_segments: u32::MAX })
    }
    fn source(&mut self, _: IpAddr) -> Option<IpAddr> {
        Some(OURS.into())
    }
    fn emit(&mut self, _: &Destination, header: &[u8], payload: &[Extent], _: u16) -> Emitted {
        self.segments += 1;
        self.bytes += payload.iter().map(Extent::len).sum::<usize>();
        self.last = Header::parse(header).expect("a header of ours").0;
        Emitted::Sent
    }
}

/// An endpoint that listens, and a peer's view of one connection.
struct Bench {
    now: Instant,
    endpoint: Endpoint,
    listener: ListenerId,
    source: (Ipv4Addr, u16),
    seq: SeqNumber,
    ack: SeqNumber,
}

impl Bench {
    fn new(max_half_open: usize) -> Self {
        let config = Config { max_half_open, options: Options::internet(), ..Config::new([7; 32]) };
        let mut endpoint = Endpoint::new(config);
        let local = SocketAddr::new(OURS.into(), PORT);
        let listener = endpoint.listen(local, 1024, None).expect("a listener");
        let now = Instant::from_nanos(1_000_000_000);
        let (seq, ack) = (SeqNumber(1), SeqNumber(0));
        Self { now, endpoint, listener, source: (THEIRS, 50_000), seq, ack }
    }

    fn header(&self, flags: Flags) -> Header {
        let mut header = Header {
            source_port: self.source.1,
            destination_port: PORT,
            seq: self.seq,
            ack: self.ack,
            flags,
            window: u16::MAX,
            ..Header::default()
        };
        // In milliseconds, as most do.
        let value = (self.now.as_nanos() / 1_000_000) as u32;
        header.options.timestamps = Some(Timestamps { value, echo: 0 });
        header
    }

    fn send(&mut self, header: &Header, payload: &[u8]) {
        let meta = SegmentMeta {
            source: self.source.0.into(),
            destination: OURS.into(),
            congestion_experienced: false,
        };
        self.endpoint.on_segment(self.now, &meta, header.emit().as_bytes(), Payload::new(payload));
    }

    fn syn(&self) -> Header {
        let mut syn = self.header(Flags::SYN);
        syn.options.mss = Some(1460);
        syn.options.sack_permitted = true;
        syn.options.window_scale = Some(10);
        syn
    }

    fn transmit(&mut self, count: &mut Count) {
        while self.endpoint.wants_transmit() {
            let before = count.segments;
            self.endpoint.transmit(self.now, count);
            if count.segments == before {
                break;
            }
        }
        self.endpoint.on_frames_released();
        while self.endpoint.next_event().is_some() {}
    }

    fn connect(&mut self) -> ConnectionId {
        let mut count = Count::default();
        let syn = self.syn();
        self.send(&syn, &[]);
        self.transmit(&mut count);
        self.seq += 1;
        self.acknowledge(&count);
        self.endpoint.accept(self.listener).expect("a connection").0
    }

    /// Acknowledges all that was sent, and echoes its timestamp.
    fn acknowledge(&mut self, count: &Count) {
        let syn = u32::from(count.last.flags.contains(Flags::SYN));
        if syn > 0 {
            self.ack = count.last.seq + 1;
        }
        let mut header = self.header(Flags::ACK);
        if let Some(theirs) = count.last.options.timestamps {
            header.options.timestamps =
                header.options.timestamps.map(|ours| Timestamps { echo: theirs.value, ..ours });
        }
        self.send(&header, &[]);
    }

    /// Time passes, and timers fire.
    fn pass(&mut self, time: Duration) {
        self.now += time;
        if self.endpoint.next_deadline().is_some_and(|deadline| deadline <= self.now) {
            self.endpoint.on_timeout(self.now);
        }
    }
}

fn cookies(c: &mut Criterion) {
    let mut group = c.benchmark_group("tcp");
    group.throughput(Throughput::Elements(BURST as u64));
    group.bench_function("SYN answered by a cookie", |b| {
        let mut bench = Bench::new(0);
        let (mut number, mut count) = (0_u32, Count::default());
        b.iter(|| {
            let before = count.segments;
            for _ in 0..BURST {
                number = number.wrapping_add(0x9e37_79b9);
                let [x, y, z, _] = number.to_be_bytes();
                bench.source = (Ipv4Addr::new(100, x, y, z), number as u16 | 1);
                bench.seq = SeqNumber(number);
                let syn = bench.syn();
                bench.send(black_box(&syn), &[]);
            }
            bench.transmit(&mut count);
            assert_eq!(count.segments - before, BURST);
        });
    });
    group.finish();
}

fn received(c: &mut Criterion) {
    let mut group = c.benchmark_group("tcp");
    group.throughput(Throughput::Elements(BURST as u64));
    let payload = [0x5a; MSS];
    // Every second segment is answered at once, so the answers are half as many.
    group.bench_function("segment received, read and acknowledged", |b| {
        let mut bench = Bench::new(1024);
        let id = bench.connect();
        let mut count = Count::default();
        b.iter(|| {
            for _ in 0..BURST {
                let header = bench.header(Flags::ACK);
                bench.send(black_box(&header), &payload);
                bench.seq += MSS as u32;
                bench.transmit(&mut count);
            }
            let mut read = 0;
            while let Ok(Some(chunk)) = bench.endpoint.read_chunk(bench.now, id) {
                read += chunk.len();
            }
            assert_eq!(read, BURST * MSS);
            bench.transmit(&mut count);
            bench.pass(Duration::from_micros(20));
        });
        assert!(count.segments > 0);
    });
    group.finish();
}

fn sent(c: &mut Criterion) {
    let mut group = c.benchmark_group("tcp");
    group.throughput(Throughput::Elements(BURST as u64));
    let payload = vec![0x5a; BURST * MSS];
    // The peer acknowledges four times per burst.
    group.bench_function("segment written, sent and acknowledged", |b| {
        let mut bench = Bench::new(1024);
        let id = bench.connect();
        b.iter(|| {
            let mut left = payload.as_slice();
            let mut count = Count::default();
            while count.bytes < payload.len() {
                let piece = left.len().min(BURST / 4 * MSS);
                let written = bench.endpoint.write(bench.now, id, left.get(..piece).unwrap_or_default());
                left = left.get(written.unwrap_or(0)..).unwrap_or_default();
                let before = count.bytes;
                bench.transmit(&mut count);
                bench.pass(Duration::from_micros(20));
                bench.ack += (count.bytes - before) as u32;
                bench.acknowledge(&count);
            }
            assert_eq!(count.bytes, payload.len());
        });
        let info = bench.endpoint.info(id).expect("a connection");
        assert_eq!((info.retransmitted, info.mss as usize), (0, MSS));
    });
    group.finish();
}

criterion_group!(benches, cookies, received, sent);
criterion_main!(benches);
