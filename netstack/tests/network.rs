//! Whole stacks in the simulator: ARP, ping and UDP over bad links, incast into one host, and links that are cut.

use core::net::{Ipv4Addr, SocketAddrV4};
use core::time::Duration;

use shouter_netstack::device::{Fault, FaultConfig, Pcap};
use shouter_netstack::region::{Region, RegionId};
use shouter_netstack::rud::{Disposition, Failure, SessionId, SessionParams, Sink, Token};
use shouter_netstack::sim::{LinkConfig, Node, Sim, SimDevice};
use shouter_netstack::stack::{PortConfig, Stack, StackConfig};
use shouter_netstack::time::Instant;
use shouter_netstack::udp::{Payload, SocketConfig, UdpHandle};

const RUD_PORT: u16 = 4791;
static BYTES: [u8; 2048] = {
    let mut bytes = [0; 2048];
    let mut i = 0;
    while i < bytes.len() {
        bytes[i] = (i * 31 + i / 256) as u8;
        i += 1;
    }
    bytes
};

#[derive(Debug, Default)]
struct Count {
    messages: usize,
    bytes: usize,
    released: usize,
    failure: Option<Failure>,
}

impl Sink for Count {
    fn deliver(&mut self, _: SessionId, _: &[u8], payload: &[u8]) -> Disposition {
        assert_eq!(payload, &BYTES[..payload.len()]);
        self.messages += 1;
        self.bytes += payload.len();
        Disposition::Consumed
    }
    fn released(&mut self, _: SessionId, _: Token) {
        self.released += 1;
    }
    fn failed(&mut self, _: SessionId, why: Failure) {
        self.failure = Some(why);
    }
}

type FaultyDevice = Fault<Pcap<SimDevice, Vec<u8>>>;

struct Host {
    stack: Stack<FaultyDevice>,
    sink: Count,
    session: Option<SessionId>,
    to_send: usize,
    len: u32,
}

impl Node for Host {
    fn poll(&mut self, now: Instant) -> Option<Instant> {
        let extent = Region::from_static(RegionId(1), &BYTES).extent(0, self.len);
        while let Some(session) = self.session.filter(|_| self.to_send > 0) {
            if self.stack.rud_mut().send(session, b"", extent, Token(0)).is_err() {
                break;
            }
            self.to_send -= 1;
        }
        self.stack.poll(now, &mut self.sink);
        self.stack.next_deadline()
    }
}

fn address(host: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, host as u8 + 1)
}

fn hosts(sim: &Sim, count: usize, link: LinkConfig, faults: &FaultConfig) -> Vec<Host> {
    (0..count)
        .map(|host| {
            let device = Pcap::new(sim.network().attach(1500, link), Vec::new(), Duration::ZERO);
            let faults = FaultConfig { seed: faults.seed + host as u64, ..faults.clone() };
            let mut config = StackConfig::new(RUD_PORT, host as u64);
            config.neighbours.requests = 10;
            config.rud.dead_after = Duration::from_secs(2);
            let mut stack = Stack::new(config);
            stack
                .add_port(Fault::new(device, faults).unwrap(), PortConfig::new(address(host), 24, 1500))
                .unwrap();
            Host { stack, sink: Count::default(), session: None, to_send: 0, len: 1400 }
        })
        .collect()
}

fn open(hosts: &mut [Host], from: usize, to: usize) -> SessionId {
    let tag = |from: usize, to: usize| (from as u64 + 1) << 32 | (to as u64 + 1);
    let params = SessionParams {
        local_tag: tag(to, from),
        remote_tag: tag(from, to),
        remote_ip: address(to).into(),
        local_ip: address(from).into(),
        remote_port: RUD_PORT,
        local_port: 50_000,
        paths: 1,
        max_payload: hosts[from].stack.max_rud_payload(address(to), 0).unwrap(),
    };
    hosts[from].stack.rud_mut().open(Instant::ZERO, params).unwrap()
}

fn secs(seconds: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(seconds)
}

#[test]
fn pings_get_through_a_lossy_network() {
    let faults = FaultConfig { seed: 5, loss: 0.1, duplicate: 0.05, ..FaultConfig::default() };
    let mut sim = Sim::new(1);
    let mut hosts = hosts(&sim, 3, LinkConfig { loss: 0.05, ..LinkConfig::default() }, &faults);
    let mut answered = [0; 3];
    for sequence in 0..200 {
        let at = Instant::ZERO + Duration::from_millis(100 * sequence);
        sim.run_until(&mut hosts, at, |_| false);
        for (from, host) in hosts.iter_mut().enumerate() {
            let to = address((from + 1) % 3);
            host.stack.ping(sim.now(), to, from as u16, sequence as u16, &BYTES[..100]).unwrap();
        }
    }
    sim.run_until(&mut hosts, secs(25), |_| false);
    for (host, answered) in hosts.iter_mut().zip(&mut answered) {
        while let Some(reply) = host.stack.next_echo_reply() {
            assert_eq!(reply.len, 100);
            *answered += 1;
        }
        *answered += host.stack.counters().rx_echo_queue_full;
    }
    // Each way passes two lossy links and one lossy device: about two in three come back.
    for count in answered {
        assert!((90..190).contains(&count), "{answered:?} of 200 answered");
    }
}

#[test]
fn udp_drops_most_of_what_was_damaged_and_delivers_the_rest() {
    let faults = FaultConfig { seed: 9, corrupt: 0.3, ..FaultConfig::default() };
    let mut sim = Sim::new(1);
    let mut hosts = hosts(&sim, 2, LinkConfig::default(), &faults);
    let bind = |host: &mut Host, port| -> UdpHandle {
        let local = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port);
        let config = SocketConfig { queue_datagrams: 1000, queue_bytes: 1 << 20, checksum: true };
        host.stack.udp_mut().bind(local, config).unwrap()
    };
    let (from, to) = (bind(&mut hosts[0], 0), bind(&mut hosts[1], 5000));
    let target = SocketAddrV4::new(address(1), 5000);
    let mut sent = 0;
    for number in 0..500u16 {
        let at = Instant::ZERO + Duration::from_millis(10 * u64::from(number));
        sim.run_until(&mut hosts, at, |_| false);
        let payload = Payload::Bytes(&BYTES[..usize::from(number)]);
        let result = hosts[0].stack.udp_send_to(sim.now(), from, target, &number.to_be_bytes(), payload);
        sent += u64::from(result.is_ok());
    }
    sim.run_until(&mut hosts, secs(20), |_| false);
    let mut buffer = [0; 1500];
    let (mut got, mut unseen) = (0, 0);
    while let Some(received) = hosts[1].stack.udp_mut().recv(to, &mut buffer) {
        let expected = [&(received.len as u16 - 2).to_be_bytes()[..], &BYTES[..received.len - 2]].concat();
        let flips: u32 = expected.iter().zip(&buffer).map(|(a, b)| (a ^ b).count_ones()).sum();
        // The 16-bit sum does not see two flips that cancel; RUD's CRC would.
        assert!(flips == 0 || flips >= 2, "one flipped bit passed the checksum");
        unseen += u64::from(flips > 0);
        got += 1;
    }
    let counters = hosts[1].stack.counters();
    assert!(got > 300 && got < sent, "{got} of {sent}");
    assert!(counters.rx_udp_checksum > 50, "{counters:?}");
    assert!(unseen * 10 < counters.rx_udp_checksum, "{unseen} damaged datagrams were delivered");
}

#[test]
fn seven_hosts_send_to_one_and_nothing_is_lost_for_good() {
    let mut sim = Sim::new(3);
    let link = LinkConfig { bits_per_second: 10_000_000_000, queue_frames: 64, ..LinkConfig::default() };
    let mut hosts = hosts(&sim, 8, link, &FaultConfig::default());
    for from in 1..8 {
        open(&mut hosts, 0, from);
        hosts[from].session = Some(open(&mut hosts, from, 0));
        hosts[from].to_send = 1000;
    }
    let done = sim.run_until(&mut hosts, secs(5), |hosts| hosts[1..].iter().all(|h| h.sink.released == 1000));
    assert!(done, "released {:?}", hosts.iter().map(|h| h.sink.released).collect::<Vec<_>>());
    assert_eq!(hosts[0].sink.messages, 7000);
    let queue = sim.network().counters(0);
    assert!(queue.queue_drops > 0, "the switch's queue overflowed: {queue:?}");
    let seconds = (sim.now() - Instant::ZERO).as_secs_f64();
    let gigabits = hosts[0].sink.bytes as f64 * 8.0 / seconds / 1e9;
    println!("incast of 7 to 1 over 10 Gb/s, 64 frames of queue: {gigabits:.2} Gb/s, {queue:?}");
    assert!(gigabits > 1.0, "{gigabits:.2} Gb/s");
}

#[test]
fn a_short_cut_heals_and_a_long_one_ends_the_session() {
    let mut sim = Sim::new(3);
    let mut hosts = hosts(&sim, 2, LinkConfig::default(), &FaultConfig::default());
    open(&mut hosts, 1, 0);
    hosts[0].session = Some(open(&mut hosts, 0, 1));
    hosts[0].to_send = 1000;
    assert!(sim.run_until(&mut hosts, secs(1), |hosts| hosts[1].sink.messages > 100));
    sim.network().set_cut(1, true);
    let cut_at = sim.now();
    sim.run_until(&mut hosts, cut_at + Duration::from_millis(500), |_| false);
    assert!(hosts[0].sink.failure.is_none() && hosts[0].sink.released < 1000);
    sim.network().set_cut(1, false);
    let limit = sim.now() + Duration::from_secs(2);
    assert!(sim.run_until(&mut hosts, limit, |hosts| hosts[0].sink.released == 1000));
    assert_eq!(hosts[1].sink.messages, 1000);

    sim.network().set_cut(1, true);
    let limit = sim.now() + Duration::from_secs(4);
    assert!(sim.run_until(&mut hosts, limit, |hosts| hosts.iter().all(|h| h.sink.failure.is_some())));
    assert!(matches!(hosts[0].sink.failure, Some(Failure::PeerSilent { .. })));
}
