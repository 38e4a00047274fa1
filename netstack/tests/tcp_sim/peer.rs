//! Against smoltcp, which shares no line with us: we must build the segments that it takes, and take those that it
//! builds.

use core::net::{Ipv4Addr, SocketAddr};
use core::time::Duration;
use std::collections::VecDeque;

use smoltcp::iface::{Config as InterfaceConfig, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{self, Device, DeviceCapabilities, Medium};
use smoltcp::socket::tcp;
use smoltcp::time::Instant as Time;
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr, IpProtocol, Ipv4Packet, TcpPacket};

use shouter_netstack::sim::tcp::{Outlet, Segment};
use shouter_netstack::sim::{Link, LinkConfig};
use shouter_netstack::tcp::{Config, ConnectionId, Endpoint, Error, Options, StateName, TcpEvent};
use shouter_netstack::time::Instant;

use super::goodput::{ALL, options};
use super::network::{clean, ethernet};

const OURS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const THEIRS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const PORT: u16 = 80;

/// The peer's device: IP packets in memory.
#[derive(Default)]
struct Queue {
    inbox: VecDeque<Vec<u8>>,
    outbox: Vec<Vec<u8>>,
}

struct Received(Vec<u8>);
struct ToSend<'a>(&'a mut Vec<Vec<u8>>);

impl phy::RxToken for Received {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        take(&self.0)
    }
}

impl phy::TxToken for ToSend<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, fill: F) -> R {
        let mut packet = vec![0; len];
        let result = fill(&mut packet);
        self.0.push(packet);
        result
    }
}

impl Device for Queue {
    type RxToken<'a> = Received;
    type TxToken<'a> = ToSend<'a>;

    fn receive(&mut self, _: Time) -> Option<(Received, ToSend<'_>)> {
        let packet = self.inbox.pop_front()?;
        Some((Received(packet), ToSend(&mut self.outbox)))
    }

    fn transmit(&mut self, _: Time) -> Option<ToSend<'_>> {
        Some(ToSend(&mut self.outbox))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = 1500;
        capabilities
    }
}

/// A segment of ours as an IP packet, checksums by the peer's code.
fn to_ip(packet: &Segment) -> Vec<u8> {
    let len = 20 + packet.header.len() + packet.payload.len();
    let mut bytes = vec![0; 20];
    bytes.extend_from_slice(&packet.header);
    bytes.extend_from_slice(&packet.payload);
    let mut ip = Ipv4Packet::new_unchecked(&mut bytes);
    ip.set_version(4);
    ip.set_header_len(20);
    ip.set_total_len(len as u16);
    ip.set_hop_limit(64);
    ip.set_next_header(IpProtocol::Tcp);
    ip.set_src_addr(OURS);
    ip.set_dst_addr(THEIRS);
    ip.fill_checksum();
    TcpPacket::new_unchecked(ip.payload_mut())
        .fill_checksum(&IpAddress::Ipv4(OURS), &IpAddress::Ipv4(THEIRS));
    bytes
}

/// A packet of the peer's, taken apart.
fn from_ip(bytes: &[u8]) -> Segment {
    let ip = Ipv4Packet::new_checked(bytes).unwrap();
    let segment = ip.payload();
    let tcp = TcpPacket::new_checked(segment).unwrap();
    assert!(tcp.verify_checksum(&IpAddress::Ipv4(THEIRS), &IpAddress::Ipv4(OURS)));
    let (header, payload) = segment.split_at(usize::from(tcp.header_len()));
    Segment {
        source: SocketAddr::new(THEIRS.into(), tcp.src_port()),
        destination: SocketAddr::new(OURS.into(), tcp.dst_port()),
        header: header.to_vec(),
        payload: payload.to_vec(),
        ect: false,
        marked: false,
    }
}

/// Byte `at` of the stream towards us or towards the peer.
fn byte(at: usize, towards_us: bool) -> u8 {
    (at % 253) as u8 ^ if towards_us { 0x55 } else { 0 }
}

fn bytes(from: usize, len: usize, towards_us: bool) -> Vec<u8> {
    (from..from + len).map(|at| byte(at, towards_us)).collect()
}

/// How far one side is: bytes written and read, and whether it saw the other's end.
#[derive(Debug, Default)]
struct Progress {
    written: usize,
    read: usize,
    ended: bool,
    shut: bool,
}

struct Both {
    now: Instant,
    ours: Endpoint,
    connection: Option<ConnectionId>,
    us: Progress,
    interface: Interface,
    sockets: SocketSet<'static>,
    socket: SocketHandle,
    queue: Queue,
    them: Progress,
    /// Away from us, and towards us.
    links: [Link<Segment>; 2],
    goal: usize,
}

fn time(now: Instant) -> Time {
    Time::from_micros((now.as_nanos() / 1000) as i64)
}

impl Both {
    fn new(seed: u64, options: &Options, link: LinkConfig, goal: usize, we_connect: bool) -> Self {
        let mut ours = Endpoint::new(Config { options: options.clone(), ..Config::new([seed as u8; 32]) });
        let mut queue = Queue::default();
        let mut config = InterfaceConfig::new(HardwareAddress::Ip);
        config.random_seed = seed;
        let mut interface = Interface::new(config, &mut queue, Time::ZERO);
        interface.update_ip_addrs(|addresses| {
            addresses.push(IpCidr::new(IpAddress::Ipv4(THEIRS), 24)).unwrap();
        });
        let buffer = || tcp::SocketBuffer::new(vec![0; 100_000]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        socket.set_congestion_control(tcp::CongestionControl::Reno);
        let mut connection = None;
        if we_connect {
            socket.listen(PORT).unwrap();
            let (local, remote) = (SocketAddr::new(OURS.into(), 0), SocketAddr::new(THEIRS.into(), PORT));
            connection = Some(ours.connect(Instant::ZERO, local, remote, None).unwrap());
        } else {
            ours.listen(SocketAddr::new(OURS.into(), PORT), 4, None).unwrap();
            socket.connect(interface.context(), (OURS, PORT), 40_000).unwrap();
        }
        let mut sockets = SocketSet::new(Vec::new());
        let socket = sockets.add(socket);
        Self {
            now: Instant::ZERO,
            ours,
            connection,
            us: Progress::default(),
            interface,
            sockets,
            socket,
            queue,
            them: Progress::default(),
            links: [0, 1].map(|i| Link::new(link, seed * 2 + i)),
            goal,
        }
    }

    fn act_ours(&mut self) {
        let now = self.now;
        while let Some(event) = self.ours.next_event() {
            match event {
                TcpEvent::Acceptable(listener) => {
                    self.connection = self.ours.accept(listener).map(|(id, _)| id)
                }
                TcpEvent::Failed(_, why) => panic!("{why}"),
                _ => {}
            }
        }
        let Some(id) = self.connection else { return };
        if self
            .ours
            .state(id)
            .is_none_or(|state| matches!(state, StateName::SynSent | StateName::SynReceived))
        {
            return;
        }
        while self.us.written < self.goal {
            let len = (self.goal - self.us.written).min(10_000);
            match self.ours.write(now, id, &bytes(self.us.written, len, false)) {
                Ok(written) => self.us.written += written,
                Err(Error::WouldBlock) => break,
                Err(why) => panic!("write: {why}"),
            }
        }
        let mut buffer = [0; 5_000];
        while !self.us.ended {
            match self.ours.read(now, id, &mut buffer) {
                Ok(0) => self.us.ended = true,
                Ok(read) => {
                    assert!(buffer[..read] == bytes(self.us.read, read, true), "at {}", self.us.read);
                    self.us.read += read;
                }
                Err(Error::WouldBlock) => break,
                Err(why) => panic!("read: {why}"),
            }
        }
        if !self.us.shut && self.us.written == self.goal {
            self.ours.shutdown(now, id).unwrap();
            self.us.shut = true;
        }
    }

    fn act_theirs(&mut self) {
        let socket = self.sockets.get_mut::<tcp::Socket<'_>>(self.socket);
        while socket.can_send() && self.them.written < self.goal {
            let len = (self.goal - self.them.written).min(10_000);
            self.them.written += socket.send_slice(&bytes(self.them.written, len, true)).unwrap();
        }
        let mut buffer = [0; 5_000];
        while socket.can_recv() {
            let read = socket.recv_slice(&mut buffer).unwrap();
            assert!(buffer[..read] == bytes(self.them.read, read, false), "at {}", self.them.read);
            self.them.read += read;
        }
        self.them.ended = self.them.ended || (self.them.read == self.goal && !socket.may_recv());
        if !self.them.shut && self.them.written == self.goal && socket.may_send() {
            socket.close();
            self.them.shut = true;
        }
    }

    fn step(&mut self) {
        let now = self.now;
        while let Some(segment) = self.links[1].receive(now) {
            segment.deliver(now, &mut self.ours);
        }
        if self.ours.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.ours.on_timeout(now);
        }
        self.act_ours();
        let path = ethernet(64 * 1024);
        self.ours.transmit(now, &mut Outlet { now, link: &mut self.links[0], path });
        self.ours.on_frames_released();

        while let Some(packet) = self.links[0].receive(now) {
            self.queue.inbox.push_back(to_ip(&packet));
        }
        self.interface.poll(time(now), &mut self.queue, &mut self.sockets);
        self.act_theirs();
        self.interface.poll(time(now), &mut self.queue, &mut self.sockets);
        for packet in self.queue.outbox.drain(..) {
            self.links[1].send(now, from_ip(&packet));
        }
    }

    /// Runs until both sides have sent and seen everything, the ends included.
    fn run(&mut self, limit: Instant) -> bool {
        loop {
            self.step();
            let all = |progress: &Progress, goal| progress.read == goal && progress.ended && progress.shut;
            if all(&self.us, self.goal) && all(&self.them, self.goal) {
                return true;
            }
            let theirs = self.interface.poll_at(time(self.now), &self.sockets);
            let theirs = theirs.map(|at| Instant::from_nanos((at.total_micros().max(0) as u64) * 1000));
            let arrivals = self.links.iter().filter_map(Link::next_arrival);
            let next = arrivals.chain(self.ours.next_deadline()).chain(theirs).min().unwrap_or(limit);
            self.now = next.max(self.now + Duration::from_micros(1));
            if self.now > limit {
                return false;
            }
        }
    }

    fn describe(&self) -> String {
        let info = self.connection.and_then(|id| self.ours.info(id));
        let socket = self.sockets.get::<tcp::Socket<'_>>(self.socket);
        format!("us {:?}, them {:?} {}, {info:?}", self.us, self.them, socket.state())
    }
}

#[test]
fn both_ways_through_bad_links_with_smoltcp() {
    // Replay one: SEED=17 cargo test -p shouter-netstack --test tcp_sim smoltcp
    // No more seeds than these: smoltcp 0.12 stops its retransmission timer when it enters CLOSING, so data lost behind
    // its FIN then is lost for good (seed 254).
    let only: Option<u64> = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
    for seed in only.map_or(0..200, |seed| seed..seed + 1) {
        let link = LinkConfig {
            loss: [0.0, 0.005, 0.02, 0.1][seed as usize % 4],
            duplicate: [0.0, 0.01][seed as usize / 4 % 2],
            reorder: [0.0, 0.02][seed as usize / 8 % 2],
            reorder_by: Duration::from_millis(1),
            ..clean(100_000_000, Duration::from_millis(2))
        };
        let options = Options {
            sack: seed % 3 != 0,
            timestamps: seed % 5 != 0,
            window_scaling: seed % 7 != 0,
            ..options(ALL[seed as usize / 2 % 4])
        };
        let mut both = Both::new(seed, &options, link, 200_000, seed % 2 == 0);
        let finished = both.run(Instant::ZERO + Duration::from_secs(600));
        assert!(finished, "seed {seed}: {}", both.describe());
    }
}

#[test]
fn a_clean_line_is_filled_as_far_as_smoltcps_buffers_reach() {
    let link = clean(1_000_000_000, Duration::from_micros(500));
    let mut both = Both::new(1, &options(ALL[1]), link, 2_000_000, true);
    assert!(both.run(Instant::ZERO + Duration::from_secs(60)), "{}", both.describe());
    // 100,000 bytes of buffer in a millisecond of round trip: 20 ms for 2 Mbyte each way, with slow start twice that.
    assert!(both.now <= Instant::ZERO + Duration::from_millis(60), "{:?}: {}", both.now, both.describe());
    let info = both.connection.and_then(|id| both.ours.info(id)).unwrap();
    assert_eq!((info.retransmitted, info.timeouts), (0, 0), "{info:?}");
}
