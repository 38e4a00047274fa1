//! Instructions that one small request and its answer take in two stacks; the count does not depend on the machine's
//! load.
//!
//! Two stacks in one thread exchange messages over the loopback device, by TCP or RUD, in the steps of
//! `shouter bench pingpong`; with `idle` instead of a protocol they only poll, and with `device` frames of the length of RUD's cross
//! the loopback device without a stack: what the device takes of the others' counts. To be run under callgrind with two counts:
//! the difference is that many exchanges.
//!
//! ```text
//! valgrind --tool=callgrind target/release/examples/exchange tcp 20000
//! ```
//!
//! `scripts/lib/check-instructions` does so, and compares the counts with `netstack/tests/instructions.txt`.
#![allow(missing_docs)]

use core::net::{Ipv4Addr, SocketAddr};
use core::time::Duration;

use shouter_netstack::device::{Device, Loopback, Offload, TxBatch};
use shouter_netstack::region::Region;
use shouter_netstack::rud::{self, SessionId, SessionParams};
use shouter_netstack::stack::{PortConfig, Stack, StackConfig};
use shouter_netstack::tcp::{ConnectionId, Options, TcpEvent};
use shouter_netstack::time::Instant;

const RUD_PORT: u16 = 61_790;
const TCP_PORT: u16 = 7_001;
const BYTES: usize = 64;
const MTU: u16 = 1500;
/// Bytes in front of the payload in a frame of RUD: those of Ethernet, IPv4, UDP and RUD's own header.
const HEADERS: usize = 14 + 20 + 8 + 40;
/// Duration of half an exchange on a fast link.
const STEP: Duration = Duration::from_nanos(600);
const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];
static MESSAGE: [u8; BYTES] = [7; BYTES];

/// Counts RUD's messages.
#[derive(Default)]
struct Arrived(usize);

impl rud::Sink for Arrived {
    fn deliver(&mut self, _: SessionId, _: &[u8], _: &[u8]) -> rud::Disposition {
        self.0 += 1;
        rud::Disposition::Consumed
    }
    fn released(&mut self, _: SessionId, _: rud::MessageToken) {}
    fn failed(&mut self, _: SessionId, why: rud::Failure) {
        panic!("{why}");
    }
}

/// Two stacks, with a RUD session and a TCP connection between them.
struct Pair {
    stacks: [Stack<Loopback>; 2],
    sessions: [SessionId; 2],
    connections: [ConnectionId; 2],
    now: Instant,
}

impl Pair {
    fn new() -> Self {
        let (a, b) = Loopback::pair_with_offloads(MTU, 256);
        let mut host = 0;
        let mut stacks = [a, b].map(|device| {
            let mut stack = Stack::new(StackConfig::new(host as u64).with_rud(RUD_PORT));
            stack.add_port(device, PortConfig::new(ADDRESSES[host], 24, MTU)).expect("a port");
            host += 1;
            stack
        });
        let mut now = Instant::from_nanos(1_000_000_000);
        let session = |stack: &mut Stack<Loopback>, me: usize| {
            let params = SessionParams {
                local_tag: me as u64 + 1,
                remote_tag: 2 - me as u64,
                remote_ip: ADDRESSES[1 - me].into(),
                local_ip: ADDRESSES[me].into(),
                remote_port: RUD_PORT,
                local_ports: [50_000].into(),
                max_datagram: rud::datagram_room(MTU.into(), &ADDRESSES[1 - me].into()),
                seal: None,
            };
            stack.rud_mut().open(now, params).expect("a session")
        };
        let sessions = [session(&mut stacks[0], 0), session(&mut stacks[1], 1)];
        let [client, server] = &mut stacks;
        let local = SocketAddr::from((ADDRESSES[1], TCP_PORT));
        let listener = server.tcp_mut().listen(local, 1, Some(Options::group())).expect("a listener");
        let ours = client.tcp_connect(now, None, local, Some(Options::group())).expect("a connection");
        let theirs = loop {
            now += STEP;
            client.poll_with(now, &mut Arrived::default());
            server.poll_with(now, &mut Arrived::default());
            if let Some((theirs, _)) = server.tcp_mut().accept(listener) {
                break theirs;
            }
        };
        Self { stacks, sessions, connections: [ours, theirs], now }
    }

    /// A message from `from` to the other side, by TCP.
    fn tcp(&mut self, from: usize) {
        let to = 1 - from;
        let stack = &mut self.stacks[from];
        assert_eq!(stack.tcp_mut().write(self.now, self.connections[from], &MESSAGE), Ok(BYTES));
        stack.transmit(self.now);
        self.now += STEP;
        let stack = &mut self.stacks[to];
        stack.poll_with(self.now, &mut Arrived::default());
        let mut news = false;
        while let Some(event) = stack.tcp_mut().next_event() {
            news |= matches!(event, TcpEvent::Readable(_));
        }
        assert!(news, "the message has not arrived");
        let mut buffer = [0; BYTES];
        assert_eq!(stack.tcp_mut().read(self.now, self.connections[to], &mut buffer), Ok(BYTES));
    }

    /// A message from `from` to the other side, by RUD.
    fn rud(&mut self, from: usize, region: &Region) {
        let stack = &mut self.stacks[from];
        let payload = region.extent(0, BYTES as u32);
        stack.rud_mut().send(self.sessions[from], &[], payload, rud::MessageToken(0)).expect("room");
        stack.transmit(self.now);
        self.now += STEP;
        let mut arrived = Arrived::default();
        self.stacks[1 - from].poll_with(self.now, &mut arrived);
        assert_eq!(arrived.0, 1, "the message has not arrived");
    }

    /// A poll of both sides that finds nothing.
    fn idle(&mut self) {
        self.now += Duration::from_nanos(20);
        for stack in &mut self.stacks {
            stack.poll_with(self.now, &mut Arrived::default());
        }
    }
}

/// Two devices without stacks, each with the batch that it sends.
struct Devices {
    devices: [(Loopback, TxBatch); 2],
    header: [u8; HEADERS],
}

impl Devices {
    fn new() -> Self {
        let (a, b) = Loopback::pair_with_offloads(MTU, 256);
        Self { devices: [a, b].map(|device| (device, TxBatch::with_capacity(256))), header: [0; HEADERS] }
    }

    /// A frame from `from` to the other side.
    fn pass(&mut self, from: usize, region: &Region) {
        let payload = region.extent(0, BYTES as u32);
        let (device, batch) = &mut self.devices[from];
        assert_eq!(batch.push_parts(&[&self.header], payload.as_slice(), Offload::NONE), Some(true));
        assert_eq!(device.transmit(Instant::ZERO, batch), 1);
        let mut len = 0;
        self.devices[1 - from].0.receive(Instant::ZERO, 64, &mut |frame| len = frame.len());
        assert_eq!(len, HEADERS + BYTES, "the frame has not arrived");
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let protocol = arguments.next().unwrap_or_else(|| "tcp".into());
    let count: usize = arguments.next().and_then(|count| count.parse().ok()).unwrap_or(20_000);
    let region = Region::from_static(&MESSAGE);
    let (mut pair, mut devices) = (Pair::new(), Devices::new());
    for number in 0..count {
        match protocol.as_str() {
            "tcp" => (0..2).for_each(|from| pair.tcp(from)),
            "rud" => (0..2).for_each(|from| pair.rud(from, &region)),
            "idle" => pair.idle(),
            "device" => (0..2).for_each(|from| devices.pass(from, &region)),
            other => {
                eprintln!("exchange {other}: there are tcp, rud, idle and device");
                return;
            }
        }
        std::hint::black_box(number);
    }
}
