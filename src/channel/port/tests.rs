use std::net::{IpAddr, Ipv4Addr};

use shouter_netstack::region::Extent;
use shouter_netstack::rud;
use shouter_netstack::stack::Stack;
use shouter_netstack::time::Instant;
use shouter_netstack::wire::rud::Header;

use super::PortDevice;
use super::device::are_far;
use crate::config::{Builder, Environment};

#[test]
fn cores_are_far_from_a_nic_where_none_is_of_its_node() {
    for (cores, near, expected) in [
        (&[0, 1][..], "0-3", false),
        (&[0, 1], "2-3,6-7", true),
        (&[0, 6], "2-3,6-7", false),
        // A node of memory alone, or a kernel without NUMA.
        (&[0], "", false),
        (&[], "0-3", false),
    ] {
        assert_eq!(are_far(cores, near), expected, "{cores:?} and {near}");
    }
}

/// Keeps what an end sends.
#[derive(Default)]
struct Wire(Vec<(rud::Destination, Vec<u8>)>);

impl rud::Emit for Wire {
    fn room(&self) -> usize {
        64
    }

    fn emit(&mut self, to: &rud::Destination, header: &[u8], _: Option<Extent>) -> bool {
        self.0.push((*to, header.to_vec()));
        true
    }
}

struct Taker;

impl rud::Sink for Taker {
    fn deliver(&mut self, _: rud::SessionId, _: &[u8], _: &[u8]) -> rud::Disposition {
        rud::Disposition::Consumed
    }

    fn released(&mut self, _: rud::SessionId, _: rud::MessageToken) {}

    fn failed(&mut self, _: rud::SessionId, _: rud::Failure) {}
}

#[test]
fn what_one_shard_learns_of_the_network_all_know() {
    let set = [("rank", "0"), ("size", "1"), ("mode", "dedicated"), ("shards", "3")];
    let builder = Builder::from_environment(Environment::default()).unwrap();
    let config = set.iter().fold(builder, |builder, (key, value)| builder.set(key, value).unwrap());
    // Two hosts without ports: datagrams are handed on here.
    let [mut here, mut there] = [(); 2]
        .map(|()| super::open(&config.clone().build().unwrap(), rud::Config::default()).unwrap().stacks);
    let addresses = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)].map(IpAddr::V4);
    // The datagrams with which shard `at` begins its session, and whether all say that the network marks, or none does.
    let begin = |stack: &mut Stack<PortDevice>, host: usize, at: u64| {
        let tags = [2 * at + 1, 2 * at + 2];
        let params = rud::SessionParams {
            local_tag: tags[host],
            remote_tag: tags[1 - host],
            local_ip: addresses[host],
            remote_ip: addresses[1 - host],
            remote_port: 4_000,
            local_ports: [5_000].into(),
            max_datagram: 1472,
            seal: None,
        };
        let id = stack.rud_mut().open(Instant::ZERO, params).unwrap();
        stack.rud_mut().send(id, b"message", None, rud::MessageToken(0)).unwrap();
        let mut wire = Wire::default();
        stack.rud_mut().transmit(Instant::ZERO, &mut wire);
        let told = wire.0.iter().filter(|(_, bytes)| Header::parse(bytes).unwrap().network_marks).count();
        assert!(told == 0 || told == wire.0.len());
        (wire.0, told != 0)
    };
    assert!(!begin(&mut here[1], 0, 1).1);
    for (to, bytes) in begin(&mut there[1], 1, 1).0 {
        let meta = rud::DatagramMeta {
            src_ip: to.local_ip,
            dst_ip: to.remote_ip,
            src_port: to.src_port,
            dst_port: to.dst_port,
            congestion_experienced: true,
        };
        here[1].rud_mut().on_datagram(Instant::ZERO, &meta, &bytes, &mut Taker);
    }
    assert!(begin(&mut here[0], 0, 0).1 && begin(&mut here[2], 0, 2).1);
    assert!(!begin(&mut there[0], 1, 0).1, "another host is told by datagrams alone");
}
