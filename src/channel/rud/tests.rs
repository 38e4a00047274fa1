//! The state of a leader's sessions: there is some for those that are used.

use std::net::Ipv4Addr;

use shouter_netstack::sim::{LinkConfig, Sim, SimDevice};
use shouter_netstack::stack::{PortConfig, StackConfig};
use shouter_reducer::header::{MatchKey, MessageKind};

use super::*;
use crate::allocations::bytes;

const PORT: u16 = 4_790;
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
    RudChannel::open(stack, Rank(0), &peers, &Key::from_secret([7; 32]), (10, PORT, MTU)).unwrap()
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
