//! CRC32C, and RUD through whole stacks over the loopback device: headers, CRC, demultiplexing and both copies.
#![allow(missing_docs)]

use core::net::Ipv4Addr;
use core::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use shouter_netstack::device::Loopback;
use shouter_netstack::region::Region;
use shouter_netstack::rud::{self, Disposition, Failure, MessageToken, SessionId, SessionParams, Sink};
use shouter_netstack::stack::{PortConfig, Stack, StackConfig};
use shouter_netstack::time::Instant;

const PORT: u16 = 4_790;
const BURST: usize = 32;
const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];

/// Counts deliveries.
#[derive(Default)]
struct Count(usize);

impl Sink for Count {
    fn deliver(&mut self, _: SessionId, _: &[u8], _: &[u8]) -> Disposition {
        self.0 += 1;
        Disposition::Consumed
    }
    fn released(&mut self, _: SessionId, _: MessageToken) {}
    fn failed(&mut self, _: SessionId, why: Failure) {
        panic!("{why}");
    }
}

/// Two stacks with a session between them.
struct Pair {
    stacks: [Stack<Loopback>; 2],
    sessions: [SessionId; 2],
    now: Instant,
    room: usize,
}

impl Pair {
    fn new(mtu: u16) -> Self {
        let (a, b) = Loopback::pair(mtu, 256);
        let mut sessions = vec![];
        let mut room = 0;
        let mut stacks = [stack(a, mtu, 0), stack(b, mtu, 1)];
        for (me, stack) in stacks.iter_mut().enumerate() {
            room = rud::payload_room(mtu.into(), &ADDRESSES[0].into(), 0);
            let params = SessionParams {
                local_tag: me as u64 + 1,
                remote_tag: 2 - me as u64,
                remote_ip: ADDRESSES[1 - me].into(),
                local_ip: ADDRESSES[me].into(),
                remote_port: PORT,
                local_ports: [50_000].into(),
                max_datagram: rud::datagram_room(mtu.into(), &ADDRESSES[0].into()),
                seal: None,
            };
            sessions.push(stack.rud_mut().open(Instant::ZERO, params).expect("a session opens"));
        }
        let mut pair = Self { stacks, sessions: [sessions[0], sessions[1]], now: Instant::ZERO, room };
        // ARP and the first heartbeats.
        for _ in 0..1_000 {
            pair.poll();
        }
        pair
    }

    fn poll(&mut self) -> usize {
        let mut count = Count::default();
        for stack in &mut self.stacks {
            self.now += Duration::from_nanos(500);
            stack.poll_with(self.now, &mut count);
        }
        count.0
    }

    /// A burst from the first to the second, until it has arrived.
    fn burst(&mut self, region: &Region, len: usize) {
        for _ in 0..BURST {
            let payload = region.extent(0, len as u32);
            self.stacks[0]
                .rud_mut()
                .send(self.sessions[0], &[], payload, MessageToken(0))
                .expect("the window has room");
        }
        let mut left = BURST;
        while left > 0 || !self.stacks[0].rud().is_idle(self.sessions[0]) {
            left -= self.poll().min(left);
        }
    }
}

/// A stack with the device as its port.
fn stack(device: Loopback, mtu: u16, host: usize) -> Stack<Loopback> {
    let mut stack = Stack::new(StackConfig::new(1).with_rud(PORT));
    stack.add_port(device, PortConfig::new(ADDRESSES[host], 24, mtu)).expect("a port is added");
    stack
}

fn crc32c(c: &mut Criterion) {
    let mut group = c.benchmark_group("crc32c");
    for bytes in [64, 1_472, 8_900] {
        let data: Vec<u8> = (0..bytes).map(|i| (i * 31) as u8).collect();
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function(BenchmarkId::from_parameter(bytes), |b| {
            b.iter(|| shouter_netstack::crc::crc32c(core::hint::black_box(&data)));
        });
    }
    group.finish();
}

fn through_loopback(c: &mut Criterion) {
    let memory: &'static [u8] = vec![7u8; 16 << 10].leak();
    let region = Region::from_static(memory);
    let mut group = c.benchmark_group("rud through loopback");
    for (mtu, len) in [(1_500, 64), (1_500, usize::MAX), (9_000, usize::MAX)] {
        let mut pair = Pair::new(mtu);
        let len = len.min(pair.room);
        group.throughput(Throughput::Elements(BURST as u64));
        group.bench_function(BenchmarkId::new(format!("mtu {mtu}"), len), |b| {
            b.iter(|| pair.burst(&region, len));
        });
    }
    group.finish();
}

criterion_group!(benches, crc32c, through_loopback);
criterion_main!(benches);
