//! The state of a leader's sessions: there is some for those that are used.

use std::collections::HashSet;
use std::net::Ipv4Addr;

use shouter_netstack::device::Loopback;
use shouter_netstack::sim::{LinkConfig, Node, Sim, SimDevice};
use shouter_netstack::stack::{PortConfig, StackConfig};
use shouter_reducer::executor::Disposition;
use shouter_reducer::header::{MatchKey, MessageKind};

use super::*;
use crate::allocations::bytes;
use crate::channel::up::UpChannels;

const PORT: u16 = 61_790;
const MTU: u16 = 1_500;

fn address(rank: u32) -> Ipv4Addr {
    Ipv4Addr::from(0x0a01_0000 + rank)
}

/// The channel of rank 0 to so many others.
fn channel(others: u32) -> RudChannel<SimDevice> {
    let sim = Sim::new(1);
    let mut config = StackConfig::new(1).with_rud(PORT);
    config.rud = rud_config(Duration::from_secs(10), 4000);
    let mut stack = Stack::new(config);
    let device = sim.network().attach(MTU, LinkConfig::default());
    stack.add_port(device, PortConfig::new(address(0), 8, MTU)).unwrap();
    let local_ip = address(0);
    let peer = |rank| PeerAddress { rank: Rank(rank), ip: address(rank), port: PORT, local_ip };
    let peers: Vec<_> = (1..=others).map(peer).collect();
    RudChannel::open(stack, Rank(0), &peers, (&Key::from_secret([7; 32]), false), (10, PORT, MTU)).unwrap()
}

#[test]
fn a_session_costs_its_parameters_until_it_is_used_and_after_the_join_again() {
    let held = |others: u32| {
        let before = bytes();
        let channel = channel(others);
        (bytes() - before, channel)
    };
    let ((few, _few), (many, mut channel)) = (held(1000), held(2000));
    let unused = (many - few) / 1000;
    assert_eq!(channel.used(), 0);
    let before = bytes();
    channel.announce();
    let announced = (bytes() - before) / 2000;
    assert_eq!(channel.used(), 2000);
    channel.joined();
    let rests = (bytes() - before) / 2000;
    assert_eq!(channel.used(), 0);
    let header = Header::new(MessageKind::Vote, Rank(0), MatchKey::default());
    let before = bytes();
    for rank in 1..=100 {
        let sent = channel.send(Rank(rank), &header, PayloadRange::empty(), SendToken::CONTROL);
        assert_eq!(sent, Ok(()));
    }
    let used = (bytes() - before) / 100;
    assert_eq!(channel.used(), 100);
    assert!(channel.is_used(Rank(100)) && !channel.is_used(Rank(101)) && !channel.is_used(Rank(0)));
    // What has sent something does not rest.
    channel.joined();
    assert_eq!(channel.used(), 100);
    println!(
        "bytes of a session: {unused} unused, {announced} more with heartbeats, {used} more when it sends"
    );
    assert!(unused <= 300, "{unused} bytes");
    // Its place among the times at which sessions are due.
    assert!(rests <= 32, "{rests} bytes stay");
    assert!(announced > 500 && used > announced, "{announced} {used}");
}

/// One end of two.
struct Listener(RudChannel<SimDevice>);

/// Nothing is counted of what comes.
struct Nobody;

impl Inbox for Nobody {
    fn fragment(&mut self, _: &Header, _: &[u8]) -> Disposition {
        Disposition::Consumed
    }

    fn released(&mut self, _: SendToken) {}
}

impl Node for Listener {
    fn poll(&mut self, now: Instant) -> Option<Instant> {
        self.0.receive(now, &mut Nobody);
        self.0.transmit(now, &mut Nobody);
        Some(now + Duration::from_micros(50))
    }
}

/// Whether two ranks hear each other, each with its group's secret, and sealed or not.
fn hear_each_other(ends: [(u8, bool); 2]) -> bool {
    let mut sim = Sim::new(1);
    let mut nodes = [0, 1].map(|rank: u32| {
        let mut config = StackConfig::new(rank.into()).with_rud(PORT);
        config.rud = rud_config(Duration::from_secs(10), 1);
        let mut stack = Stack::new(config);
        let device = sim.network().attach(MTU, LinkConfig::default());
        stack.add_port(device, PortConfig::new(address(rank), 8, MTU)).unwrap();
        let (other, local_ip) = (1 - rank, address(rank));
        let peers = [PeerAddress { rank: Rank(other), ip: address(other), port: PORT, local_ip }];
        let (secret, seals) = ends[rank as usize];
        let secret = Key::from_secret([secret; 32]);
        let channel = RudChannel::open(stack, Rank(rank), &peers, (&secret, seals), (3, PORT, MTU));
        Listener(channel.unwrap())
    });
    nodes.iter_mut().for_each(|node| node.0.announce());
    let heard =
        |nodes: &[Listener]| (0..).zip(nodes).all(|(rank, node)| node.0.has_heard_from(Rank(1 - rank)));
    sim.run_until(&mut nodes, Instant::from_nanos(3_000_000_000), |nodes| heard(nodes))
}

/// Those of ranks 3 and 258 under a secret of 32 sevens were computed from RUD's specification alone, by Python's `hmac`.
//= rud/spec.md section 3.1, RUD-1
//= rud/spec.md section 10, RUD-89
#[test]
fn tags_and_secrets_are_of_one_group_and_one_pair_of_ranks() {
    let [key, other] = [7, 8].map(|byte| Key::from_secret([byte; 32]));
    assert_eq!(tag(&key, Rank(3), Rank(258)), 0x7d90f785afbd719f);
    let expected = [0x09c52ae3f018a6d0, 0x6f5d81a1b3a2b9d1, 0xf19d3a84d2c55986, 0x823b5be48023db91];
    assert_eq!(seal_secret(&key, Rank(258), Rank(3)).as_chunks::<8>().0, expected.map(u64::to_be_bytes));
    let (mut tags, mut secrets) = (HashSet::new(), HashSet::new());
    for (key, a, b) in
        [&key, &other].iter().flat_map(|key| (0..400).map(move |i| (key, Rank(i / 20), Rank(i % 20))))
    {
        assert!(tags.insert(tag(key, a, b)), "one for each direction");
        assert_eq!(secrets.insert(seal_secret(key, a, b)), a.0 <= b.0, "one for both directions");
    }
}

#[test]
fn sealed_ends_hear_each_other_and_nobody_else() {
    for both in [false, true] {
        assert!(hear_each_other([(7, both), (7, both)]), "sealed: {both}");
        assert!(!hear_each_other([(7, both), (8, both)]), "another group's secret, sealed: {both}");
    }
    assert!(!hear_each_other([(7, true), (7, false)]));
}

#[test]
fn ports_whose_link_is_down_are_named() {
    let (device, wire) = Loopback::pair(MTU, 64);
    let mut stack = Stack::new(StackConfig::new(1).with_rud(PORT));
    stack.add_port(device, PortConfig::new(address(0), 8, MTU)).unwrap();
    let peer = PeerAddress { rank: Rank(1), ip: address(1), port: PORT, local_ip: address(0) };
    let secret = Key::from_secret([7; 32]);
    let channel = RudChannel::open(stack, Rank(0), &[peer], (&secret, false), (1, PORT, MTU)).unwrap();
    let mut up = UpChannels::from(channel).with_ports(vec![(address(0).into(), "pci:0000:03:00.0".into())]);
    let mut links = |millis| {
        up.transmit(Instant::ZERO + Duration::from_millis(millis), &mut Nobody);
        (up.links().down, up.links().losses, up.ports_down())
    };
    assert_eq!(links(1), (0, 0, None));
    drop(wire);
    assert_eq!(links(50), (0, 0, None), "nobody has looked");
    assert_eq!(links(200), (1, 1, Some("pci:0000:03:00.0 (10.1.0.0)".into())));
}
