//! The whole of TCP: an endpoint under arbitrary segments, calls, and times.
//!
//! The input is a program: each step is an opcode byte and operands. Numbers in segments are relative to the endpoint's
//! latest ones, so that many of them matter.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::time::Duration;
use std::collections::BTreeSet;

use shouter_netstack::cc::Algorithm;
use shouter_netstack::region::{Extent, Region};
use shouter_netstack::tcp::{
    Config, ConnectionId, Destination, Emit, Emitted, Endpoint, IcmpKind, KeepAlive, Options, Path, Payload,
    ReleaseToken, SegmentIcmpError, SegmentMeta, StateName, TcpEvent,
};
use shouter_netstack::time::Instant;
use shouter_netstack::wire::tcp::{Flags, Header, SeqNumber, SeqRange, Timestamps};

static DATA: [u8; 70_000] = [7; 70_000];
/// Rounds after which something hangs.
const ROUNDS: usize = 20_000;
const RECEIVE_BUFFER: usize = 20_000;

/// Reads the program; zeros follow its end.
struct Program<'a>(&'a [u8]);

impl Program<'_> {
    fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((&first, rest)) => {
                self.0 = rest;
                first
            }
            None => 0,
        }
    }

    fn half(&mut self) -> u16 {
        u16::from_be_bytes([self.byte(), self.byte()])
    }

    /// A small number mostly, around zero; a large one now and then.
    fn delta(&mut self) -> u32 {
        match self.byte() {
            0x00..=0x7f => 0,
            0x80..=0x9f => u32::from(self.byte() & 7).wrapping_sub(4),
            0xa0..=0xcf => u32::from(self.half()).wrapping_sub(32_768),
            0xd0..=0xef => u32::from(self.byte()) * 500,
            _ => (u32::from(self.half()) << 16) | u32::from(self.half()),
        }
    }
}

/// A pair of addresses, as its peer has seen it.
struct Flow {
    local: SocketAddr,
    remote: SocketAddr,
    id: Option<ConnectionId>,
    /// Our next number, the number that we expect, and our window.
    nxt: SeqNumber,
    una: SeqNumber,
    rcv: SeqNumber,
    window: u32,
    ts: u32,
    seen: bool,
}

#[derive(Default)]
struct Network {
    flows: Vec<Flow>,
    way: u8,
    mtu: u16,
    /// The largest that the path ever had: a connection is informed of a smaller one later.
    largest_mtu: u16,
    max_payload: u32,
    emitted: u64,
}

impl Emit for Network {
    fn path(&mut self, _: IpAddr, _: IpAddr) -> Option<Path> {
        (self.way != 2).then_some(Path {
            mtu: self.mtu,
            max_payload: self.max_payload,
            max_extents: 8,
            max_segments: u32::MAX,
        })
    }

    fn source(&mut self, remote: IpAddr) -> Option<IpAddr> {
        Some(local_ip(remote.is_ipv6()))
    }

    fn emit(&mut self, to: &Destination, bytes: &[u8], payload: &[Extent], segment_size: u16) -> Emitted {
        let (header, len) = Header::parse(bytes).expect("our own header parses");
        assert_eq!(len, bytes.len());
        assert!(payload.len() <= 8, "{} extents", payload.len());
        let size: usize = payload.iter().map(Extent::len).sum();
        assert!(size <= self.max_payload as usize, "{size} bytes for a path that takes {}", self.max_payload);
        assert!(size == 0 || segment_size > 0, "{size} bytes without a segment size");
        let ip = if to.local.is_ipv4() { 20 } else { 40 };
        assert!(
            ip + len + size.min(usize::from(segment_size)) <= usize::from(self.largest_mtu),
            "a packet larger than the path's MTU {}: header {len}, segment {segment_size}",
            self.largest_mtu
        );
        match self.way {
            1 => return Emitted::NoRoom,
            2 => return Emitted::NoRoute,
            _ => {}
        }
        self.emitted += 1;
        for extent in payload {
            std::hint::black_box(extent.as_bytes().iter().map(|&b| u64::from(b)).sum::<u64>());
        }
        if let Some(flow) = self.flows.iter_mut().find(|f| f.local == to.local && f.remote == to.remote) {
            let occupied =
                u32::from(header.flags.contains(Flags::SYN)) + u32::from(header.flags.contains(Flags::FIN));
            let end = header.seq + size as u32 + occupied;
            if !header.flags.contains(Flags::RST) {
                if header.flags.contains(Flags::SYN) || !flow.seen {
                    (flow.nxt, flow.una) = (end, header.seq);
                }
                flow.nxt = flow.nxt.max(end);
                flow.seen = true;
            }
            if header.flags.contains(Flags::ACK) {
                flow.rcv = header.ack;
                flow.window = header.window.into();
            }
            if let Some(ts) = header.options.timestamps {
                flow.ts = ts.value;
            }
        }
        Emitted::Sent
    }
}

fn local_ip(ipv6: bool) -> IpAddr {
    if ipv6 {
        Ipv6Addr::from([0xfd00, 0, 0, 0, 0, 0, 0, 1]).into()
    } else {
        Ipv4Addr::new(10, 0, 0, 1).into()
    }
}

fn remote_ip(ipv6: bool) -> IpAddr {
    if ipv6 {
        Ipv6Addr::from([0xfd00, 0, 0, 0, 0, 0, 0, 2]).into()
    } else {
        Ipv4Addr::new(10, 0, 0, 2).into()
    }
}

/// Runs one input.
pub(crate) fn run(bytes: &[u8]) {
    let mut program = Program(bytes);
    let mut world = World::new(&mut program);
    // The program is as long as the input, and no step is shorter than a byte.
    while !program.0.is_empty() {
        world.step(&mut program);
        world.poll();
    }
    world.end();
}

struct World {
    endpoint: Endpoint,
    now: Instant,
    network: Network,
    listener: shouter_netstack::tcp::ListenerId,
    current: usize,
    clock: u32,
    tokens: BTreeSet<(ConnectionId, u64)>,
    next_token: u64,
}

impl World {
    fn new(program: &mut Program<'_>) -> Self {
        let choice = program.byte();
        let more = program.byte();
        let ipv6 = choice & 1 != 0;
        let on = |bit: u8| more & (1 << bit) != 0;
        let options = Options {
            nagle: on(0),
            timestamps: on(1),
            sack: on(2),
            window_scaling: on(3),
            ecn: on(4),
            pacing: on(5),
            mtu_probing: on(6),
            keep_alive: on(7).then_some(KeepAlive {
                idle: Duration::from_secs(5),
                interval: Duration::from_secs(1),
                probes: 3,
            }),
            user_timeout: (choice & 2 != 0).then_some(Duration::from_secs(20)),
            congestion: match choice >> 6 {
                0 => Algorithm::Cubic,
                1 => Algorithm::NewReno,
                2 => Algorithm::Dctcp,
                _ => Algorithm::Bbr,
            },
            send_buffer: 50_000,
            receive_buffer: RECEIVE_BUFFER,
            time_wait: Duration::from_secs(2),
            fin_wait_2: Duration::from_secs(3),
            ..Options::internet()
        };
        let mut config = Config::new([choice; 32]);
        config.options = options;
        config.max_connections = 4;
        config.max_time_wait = 2;
        config.max_half_open = usize::from(choice >> 2 & 1);
        config.max_receive_memory = 40_000;
        let mut endpoint = Endpoint::new(config);
        let server = SocketAddr::new(local_ip(ipv6), 80);
        let listener = endpoint.listen(server, 2, None).expect("the port is free");
        let flow = |local: SocketAddr, port: u16| Flow {
            local,
            remote: SocketAddr::new(remote_ip(ipv6), port),
            id: None,
            nxt: SeqNumber(0),
            una: SeqNumber(0),
            rcv: SeqNumber(1000),
            window: 0,
            ts: 0,
            seen: false,
        };
        let network = Network {
            flows: vec![
                flow(server, 1001),
                flow(server, 1002),
                flow(SocketAddr::new(local_ip(ipv6), 50_000), 2000),
                flow(SocketAddr::new(local_ip(ipv6), 50_001), 2000),
            ],
            way: 0,
            mtu: 1500,
            largest_mtu: 1500,
            max_payload: if choice & 8 == 0 { 65_536 } else { 1460 },
            emitted: 0,
        };
        let now = Instant::from_nanos(u64::from(program.byte()) * 1_000_000_007);
        Self {
            endpoint,
            now,
            network,
            listener,
            current: 0,
            clock: 1,
            tokens: BTreeSet::new(),
            next_token: 0,
        }
    }

    fn flow(&mut self) -> &mut Flow {
        let current = self.current % self.network.flows.len();
        &mut self.network.flows[current]
    }

    fn step(&mut self, program: &mut Program<'_>) {
        let now = self.now;
        let id = self.flow().id;
        match program.byte() % 24 {
            0 => self.wait(Duration::from_micros(u64::from(program.half()) * 10)),
            1 => {
                if let Some(at) = self.endpoint.next_deadline() {
                    self.wait(at.saturating_since(now));
                }
            }
            2 => self.wait(Duration::from_secs(program.byte().into())),
            3 => self.current = program.byte().into(),
            // Segments: the likely ones in a form of their own.
            4..=6 => self.segment(Flags::ACK, program),
            7 => self.segment(Flags::SYN, program),
            8 => self.segment(Flags::SYN.with(Flags::ACK), program),
            9 => self.segment(Flags::FIN.with(Flags::ACK), program),
            10 => self.segment(Flags::RST, program),
            11 => {
                let flags = Flags(program.byte());
                self.segment(flags, program);
            }
            12 => self.raw(program),
            13 | 14 => {
                let len = usize::from(program.half());
                if let Some(id) = id
                    && let Ok(taken) = self.endpoint.write(now, id, &DATA[..len])
                {
                    assert!(taken <= len);
                }
            }
            15 => {
                let len = u32::from(program.half());
                let extent = Region::from_static(&DATA).extent(0, len);
                if let (Some(id), Some(extent)) = (id, extent) {
                    self.next_token += 1;
                    if self.endpoint.write_extent(now, id, extent, ReleaseToken(self.next_token)).is_ok() {
                        self.tokens.insert((id, self.next_token));
                    }
                }
            }
            16 => {
                let mut buffer = vec![0; usize::from(program.half())];
                if let Some(id) = id
                    && let Ok(len) = self.endpoint.read(now, id, &mut buffer)
                {
                    assert!(len <= buffer.len());
                }
            }
            17 => {
                if let Some(id) = id {
                    let _ = self.endpoint.read_chunk(now, id).map(|chunk| chunk.map(|chunk| chunk.len()));
                }
            }
            18 => {
                if let Some(id) = id {
                    let _ = self.endpoint.shutdown(now, id);
                }
            }
            19 => {
                if let Some(id) = self.flow().id.take() {
                    if program.byte() & 1 == 0 {
                        self.endpoint.close(now, id)
                    } else {
                        self.endpoint.abort(now, id)
                    }
                }
            }
            20 => {
                let (local, remote) = (self.flow().local, self.flow().remote);
                if id.is_none() && local.port() != 80 {
                    self.flow().id = self.endpoint.connect(now, local, remote, None).ok();
                }
            }
            21 => self.icmp(program),
            22 => self.network.way = program.byte() % 4,
            _ => {
                let value = program.byte();
                if let Some(id) = id {
                    let _ = self.endpoint.modify(now, id, |options| match value % 4 {
                        0 => options.nagle = value & 4 != 0,
                        1 => options.keep_alive = (value & 4 != 0).then(KeepAlive::default),
                        2 => options.user_timeout = (value & 4 != 0).then_some(Duration::from_secs(1)),
                        _ => options.receive_buffer = usize::from(value) * 100,
                    });
                }
                self.network.mtu = 576 + u16::from(value) * 8;
                self.network.largest_mtu = self.network.largest_mtu.max(self.network.mtu);
            }
        }
    }

    fn segment(&mut self, flags: Flags, program: &mut Program<'_>) {
        self.clock += 1;
        let clock = self.clock;
        let flow = self.flow();
        let shape = program.byte();
        let mut header = Header {
            source_port: flow.remote.port(),
            destination_port: flow.local.port(),
            seq: flow.rcv + program.delta(),
            ack: flow.nxt + program.delta(),
            flags,
            window: if shape & 1 == 0 { 65535 } else { program.half() },
            urgent: if shape & 2 == 0 { 0 } else { program.half() },
            ..Header::default()
        };
        if shape & 4 != 0 {
            header.ack = flow.una + program.delta();
        }
        if shape & 8 != 0 || flags.contains(Flags::SYN) {
            let value = clock.wrapping_add(program.delta());
            header.options.timestamps =
                Some(Timestamps { value, echo: flow.ts.wrapping_add(program.delta()) });
        }
        if flags.contains(Flags::SYN) {
            let choice = program.byte();
            header.options.mss = (choice & 1 != 0).then(|| program.half());
            header.options.window_scale = (choice & 2 != 0).then(|| program.byte() & 15);
            header.options.sack_permitted = choice & 4 != 0;
        }
        if shape & 16 != 0 {
            for _ in 0..=(shape >> 6) {
                let start = flow.una + u32::from(program.half()) + program.delta();
                let end = start + u32::from(program.half()) + program.delta();
                header.options.sack.push(SeqRange { start, end });
            }
        }
        if header.ack.is_after(flow.una) && !header.ack.is_after(flow.nxt) && flags.contains(Flags::ACK) {
            flow.una = header.ack;
        }
        let len = if shape & 32 != 0 { usize::from(program.half()) % 3000 } else { 0 };
        let (head, tail) = DATA[..len].split_at(len / 3);
        let pieces = [tail];
        let payload =
            if shape & 64 == 0 { Payload::new(&DATA[..len]) } else { Payload { head, rest: &pieces } };
        let meta = SegmentMeta {
            source: flow.remote.ip(),
            destination: flow.local.ip(),
            congestion_experienced: shape & 128 != 0,
        };
        let now = self.now;
        self.endpoint.on_segment(now, &meta, header.emit().as_bytes(), payload);
    }

    fn raw(&mut self, program: &mut Program<'_>) {
        let len = usize::from(program.byte()) % 80;
        let mut bytes: Vec<u8> = (0..len).map(|_| program.byte()).collect();
        let flow = self.flow();
        let meta = SegmentMeta {
            source: flow.remote.ip(),
            destination: flow.local.ip(),
            congestion_experienced: false,
        };
        if let Some(ports) = bytes.get_mut(..4) {
            ports[..2].copy_from_slice(&flow.remote.port().to_be_bytes());
            ports[2..].copy_from_slice(&flow.local.port().to_be_bytes());
        }
        let now = self.now;
        self.endpoint.on_segment(now, &meta, &bytes, Payload::new(&DATA[..len]));
    }

    fn icmp(&mut self, program: &mut Program<'_>) {
        let kind = match program.byte() % 3 {
            0 => IcmpKind::TooBig(program.half()),
            1 => IcmpKind::Unreachable,
            _ => IcmpKind::Refused,
        };
        let seq = self.flow().una + program.delta();
        let error = SegmentIcmpError { local: self.flow().local, remote: self.flow().remote, seq, kind };
        let now = self.now;
        self.endpoint.on_icmp_error(now, &error);
    }

    /// Lets the endpoint send, takes its events, and checks the invariants.
    fn poll(&mut self) {
        for round in 0.. {
            assert!(round < ROUNDS, "it wants to transmit without end");
            if !self.endpoint.wants_transmit() {
                break;
            }
            self.endpoint.transmit(self.now, &mut self.network);
            if matches!(self.network.way, 1 | 2) {
                break;
            }
        }
        while let Some(event) = self.endpoint.next_event() {
            match event {
                TcpEvent::Released(id, token) | TcpEvent::Dropped(id, token) => {
                    assert!(
                        self.tokens.remove(&(id, token.0)),
                        "{token:?} is released twice, or was not accepted"
                    );
                }
                TcpEvent::Acceptable(id) => assert_eq!(id, self.listener),
                _ => {}
            }
        }
        self.endpoint.on_frames_released();
        while let Some((id, from)) = self.endpoint.accept(self.listener) {
            match self.network.flows.iter_mut().find(|f| f.remote == from && f.id.is_none()) {
                Some(flow) => flow.id = Some(id),
                None => self.endpoint.abort(self.now, id),
            }
        }
        for flow in &self.network.flows {
            if let Some(info) = flow.id.and_then(|id| self.endpoint.info(id)) {
                assert!(info.in_flight <= info.unacknowledged + 2, "{info:?}");
                assert!(info.readable <= 70_000 + RECEIVE_BUFFER, "{info:?}");
                let synchronised = matches!(
                    info.state,
                    StateName::Established
                        | StateName::FinWait1
                        | StateName::FinWait2
                        | StateName::CloseWait
                        | StateName::Closing
                        | StateName::LastAck
                );
                assert!(!synchronised || (info.congestion_window > 0 && info.mss > 0), "{info:?}");
            }
        }
    }

    fn wait(&mut self, by: Duration) {
        let limit = self.now + by;
        for round in 0.. {
            if round >= ROUNDS {
                let infos: Vec<_> = self
                    .network
                    .flows
                    .iter()
                    .map(|flow| flow.id.and_then(|id| self.endpoint.info(id)))
                    .collect();
                panic!(
                    "deadlines without end: it is {:?}, the next is {:?}, the way is {}, {infos:?}",
                    self.now,
                    self.endpoint.next_deadline(),
                    self.network.way
                );
            }
            match self.endpoint.next_deadline() {
                // A connection that waits for room has a deadline of now, and stays ready.
                Some(at) if at <= self.now && self.network.way == 1 && self.endpoint.wants_transmit() => {
                    break;
                }
                Some(at) if at <= limit => {
                    self.now = self.now.max(at);
                    self.endpoint.on_timeout(self.now);
                    self.poll();
                }
                _ => break,
            }
        }
        self.now = limit;
    }

    /// Everything is given up: nothing may be left.
    fn end(mut self) {
        self.network.way = 0;
        for index in 0..self.network.flows.len() {
            if let Some(id) = self.network.flows[index].id.take() {
                self.endpoint.abort(self.now, id);
                assert!(self.endpoint.info(id).is_none(), "an aborted connection is still known");
            }
        }
        self.endpoint.close_listener(self.now, self.listener);
        self.poll();
        for _ in 0..100 {
            self.wait(Duration::from_secs(60));
        }
        assert!(self.tokens.is_empty(), "never released: {:?}", self.tokens);
        assert!(self.endpoint.next_deadline().is_none(), "a timer outlives everything");
        assert!(!self.endpoint.wants_transmit(), "it wants to transmit, and nothing is left");
    }
}
