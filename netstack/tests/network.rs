//! Whole stacks in the simulator: neighbours, ping and UDP of both IP versions over bad links, incast, and links that are cut.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddrV4};
use core::time::Duration;

use shouter_netstack::device::{Fault, FaultConfig, Pcap};
use shouter_netstack::region::Region;
use shouter_netstack::rud::{Disposition, Failure, MessageToken, SessionId, SessionParams, Sink};
use shouter_netstack::sim::{LinkConfig, Node, Sim, SimDevice};
use shouter_netstack::stack::{Ipv6Config, PortConfig, Stack, StackConfig};
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
    fn released(&mut self, _: SessionId, _: MessageToken) {
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
        let extent = Region::from_static(&BYTES).extent(0, self.len);
        while let Some(session) = self.session.filter(|_| self.to_send > 0) {
            if self.stack.rud_mut().send(session, b"", extent, MessageToken(0)).is_err() {
                break;
            }
            self.to_send -= 1;
        }
        self.stack.poll_with(now, &mut self.sink);
        self.stack.next_deadline()
    }
}

fn address(host: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, host as u8 + 1)
}

fn address6(host: usize) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, host as u16 + 1)
}

fn hosts(sim: &Sim, count: usize, link: LinkConfig, faults: &FaultConfig) -> Vec<Host> {
    (0..count)
        .map(|host| {
            let device = Pcap::new(sim.network().attach(1500, link), Vec::new(), Duration::ZERO);
            let faults = FaultConfig { seed: faults.seed + host as u64, ..faults.clone() };
            let mut config = StackConfig::new(host as u64).with_rud(RUD_PORT);
            config.neighbours.requests = 10;
            config.rud.dead_after = Duration::from_secs(2);
            let mut stack = Stack::new(config);
            let ipv6 = Some(Ipv6Config::new(address6(host), 64));
            let port = PortConfig { ipv6, ..PortConfig::new(address(host), 24, 1500) };
            stack.add_port(Fault::new(device, faults).unwrap(), port).unwrap();
            Host { stack, sink: Count::default(), session: None, to_send: 0, len: 1400 }
        })
        .collect()
}

fn open(hosts: &mut [Host], from: usize, to: usize) -> SessionId {
    open_between(hosts, from, to, [from, to].map(|host| address(host).into()))
}

fn open_between(hosts: &mut [Host], from: usize, to: usize, [local, remote]: [IpAddr; 2]) -> SessionId {
    let tag = |from: usize, to: usize| (from as u64 + 1) << 32 | (to as u64 + 1);
    let params = SessionParams {
        local_tag: tag(to, from),
        remote_tag: tag(from, to),
        remote_ip: remote,
        local_ip: local,
        remote_port: RUD_PORT,
        local_ports: [50_000].into(),
        max_datagram: hosts[from].stack.max_rud_datagram(remote).unwrap(),
        seal: None,
    };
    hosts[from].stack.rud_mut().open(Instant::ZERO, params).unwrap()
}

fn secs(seconds: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(seconds)
}

#[test]
fn pings_get_through_a_lossy_network() {
    let versions: [fn(usize) -> IpAddr; 2] = [|host| address(host).into(), |host| address6(host).into()];
    for (seed, to) in (5..).zip(versions) {
        let faults = FaultConfig { seed, loss: 0.1, duplicate: 0.05, ..FaultConfig::default() };
        let mut sim = Sim::new(1);
        let mut hosts = hosts(&sim, 3, LinkConfig { loss: 0.05, ..LinkConfig::default() }, &faults);
        let mut answered = [0; 3];
        for sequence in 0..200 {
            let at = Instant::ZERO + Duration::from_millis(100 * sequence);
            sim.run_until(&mut hosts, at, |_| false);
            for (from, host) in hosts.iter_mut().enumerate() {
                let to = to((from + 1) % 3);
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
            assert!((90..190).contains(&count), "seed {seed}: {answered:?} of 200 answered");
        }
    }
}

#[test]
fn sessions_over_ipv6_survive_loss_and_damage() {
    let faults = FaultConfig { seed: 11, loss: 0.02, corrupt: 0.02, reorder: 0.05, ..FaultConfig::default() };
    let mut sim = Sim::new(11);
    let mut hosts = hosts(&sim, 2, LinkConfig::default(), &faults);
    let (a, b) = (address6(0).into(), address6(1).into());
    open_between(&mut hosts, 1, 0, [b, a]);
    hosts[0].session = Some(open_between(&mut hosts, 0, 1, [a, b]));
    hosts[0].to_send = 2000;
    hosts[0].len = 1300;
    let done = sim.run_until(&mut hosts, secs(20), |hosts| hosts[0].sink.released == 2000);
    assert!(done, "seed 11: {} of 2000 released", hosts[0].sink.released);
    assert_eq!(hosts[1].sink.messages, 2000);
    assert!(hosts[1].stack.rud().endpoint_counters().crc_dropped > 0, "damage came as far as RUD");
}

#[test]
fn a_neighbour_that_leaves_is_forgotten_and_found_again() {
    for (to, from) in
        [(IpAddr::V4(address(1)), IpAddr::V4(address(0))), (address6(1).into(), address6(0).into())]
    {
        let mut sim = Sim::new(4);
        let mut hosts = hosts(&sim, 2, LinkConfig::default(), &FaultConfig::default());
        let ping = |sim: &mut Sim, hosts: &mut Vec<Host>, at: u64| {
            sim.run_until(hosts, secs(at), |_| false);
            let before = hosts[0].stack.counters().rx_echo_replies;
            let sent = hosts[0].stack.ping(sim.now(), to, 1, at as u16, b"are you there");
            sim.run_until(hosts, secs(at + 1), |hosts| hosts[0].stack.counters().rx_echo_replies > before);
            (sent.is_ok(), hosts[0].stack.next_echo_reply().map(|reply| reply.from))
        };
        assert_eq!(ping(&mut sim, &mut hosts, 1), (true, Some(to)));
        sim.network().set_cut(1, true);
        // Known for a minute, then verified ten times in vain, requested ten times more, and given up.
        assert_eq!(ping(&mut sim, &mut hosts, 5), (true, None));
        assert_eq!(ping(&mut sim, &mut hosts, 90), (true, None));
        sim.run_until(&mut hosts, secs(101), |_| false);
        assert_eq!(hosts[0].stack.counters().tx_unreachable, 1, "what was held for {to}");
        sim.network().set_cut(1, false);
        assert_eq!(ping(&mut sim, &mut hosts, 110), (true, Some(to)), "from {from}");
    }
}

#[test]
fn a_tunnel_on_the_path_is_believed_when_the_caller_vouches() {
    let mut sim = Sim::new(6);
    let mut hosts = hosts(&sim, 2, LinkConfig::default(), &FaultConfig::default());
    let any = |port| (Ipv6Addr::UNSPECIFIED, port);
    let from = hosts[0].stack.udp_mut().bind(any(0), SocketConfig::default()).unwrap();
    let to = hosts[1].stack.udp_mut().bind(any(5000), SocketConfig::default()).unwrap();
    let target = (address6(1), 5000);
    let send = |sim: &mut Sim, hosts: &mut Vec<Host>, len: usize| {
        let payload = Payload::Bytes(&BYTES[..len]);
        let sent = hosts[0].stack.udp_send_to(sim.now(), from, target, b"", payload);
        let limit = sim.now() + Duration::from_secs(1);
        sim.run_until(hosts, limit, |hosts| hosts[1].stack.udp().waiting(to) > 0);
        let mut buffer = [0; 1500];
        let got = hosts[1].stack.udp_mut().recv(to, &mut buffer).map(|got| got.len);
        (sent.is_ok(), got)
    };
    assert_eq!(send(&mut sim, &mut hosts, 1452), (true, Some(1452)));
    assert!(hosts[0].stack.path_mtu_reduce(sim.now(), target.0, 1400));
    assert_eq!(send(&mut sim, &mut hosts, 1353), (false, None));
    assert_eq!(send(&mut sim, &mut hosts, 1352), (true, Some(1352)));
    let after = sim.now() + Duration::from_secs(601);
    sim.run_until(&mut hosts, after, |_| false);
    assert_eq!(send(&mut sim, &mut hosts, 1452), (true, Some(1452)), "tried again after ten minutes");
}

#[test]
fn udp_drops_most_of_what_was_damaged_and_delivers_the_rest() {
    let faults = FaultConfig { seed: 10, corrupt: 0.3, ..FaultConfig::default() };
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
    let [_, queue] = sim.network().counters(0);
    assert!(queue.queue_drops > 0, "the switch's queue overflowed: {queue:?}");
    let seconds = (sim.now() - Instant::ZERO).as_secs_f64();
    let gigabits = hosts[0].sink.bytes as f64 * 8.0 / seconds / 1e9;
    println!("incast of 7 to 1 over 10 Gb/s, 64 frames of queue: {gigabits:.2} Gb/s, {queue:?}");
    assert!(gigabits > 1.0, "{gigabits:.2} Gb/s");
}

/// Two senders over a port that marks: the marks are made because the datagrams say that they may be, and come back to the senders.
#[test]
fn a_switch_marks_rud_and_its_senders_hear_of_it() {
    let versions: [fn(usize) -> IpAddr; 2] = [|host| address(host).into(), |host| address6(host).into()];
    for address in versions {
        let mut sim = Sim::new(3);
        let link =
            LinkConfig { bits_per_second: 10_000_000_000, queue_bytes: 1_000_000, ..LinkConfig::default() };
        let link = LinkConfig { queue_frames: 10_000, mark_above_bytes: 10_000, ..link };
        let mut hosts = hosts(&sim, 3, link, &FaultConfig::default());
        for from in 1..3 {
            open_between(&mut hosts, 0, from, [address(0), address(from)]);
            hosts[from].session = Some(open_between(&mut hosts, from, 0, [address(from), address(0)]));
            hosts[from].to_send = 1000;
        }
        let done =
            sim.run_until(&mut hosts, secs(5), |hosts| hosts[1..].iter().all(|h| h.sink.released == 1000));
        assert!(done && hosts[0].sink.messages == 2000);
        let [_, port] = sim.network().counters(0);
        assert!(port.marked > 10 && port.queue_drops == 0, "{port:?}");
        for host in &hosts[1..] {
            let counters = host.stack.rud().counters(host.session.unwrap());
            assert!(counters.marked > 5 && counters.resent == 0, "{counters:?}");
        }
    }
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
