use super::*;
use crate::config::{Builder, Environment};

fn leader(transport: TransportChoice, crc: bool, ip: [u8; 4]) -> Advertisement {
    let listens = (transport == TransportChoice::Kernel).then_some(SocketAddrV4::new(ip.into(), 4000));
    Advertisement {
        transport,
        crc,
        ports: vec![],
        mtu: 9000,
        data_port: 1,
        kernel: listens,
        control: None,
        rdma: Default::default(),
    }
}

#[test]
fn leaders_that_do_not_go_together_are_named() {
    use TransportChoice::{Kernel, Rud, Tcp};
    let check = |a: &Advertisement, b: &Advertisement| {
        check_same((Rank(0), a), (Rank(4), b)).map_err(|why| why.to_string())
    };
    let near = [10, 0, 0, 1];
    let cases = [
        (
            leader(Kernel, true, near),
            leader(Rud, true, near),
            "rank 0 has transport = \"kernel\" and rank 4 has \"rud\"",
        ),
        (leader(Tcp, true, near), leader(Kernel, true, near), "rank 4 has \"kernel\""),
        (leader(Tcp, false, near), leader(Tcp, true, near), "rank 0 has crc = \"off\" and rank 4 has \"on\""),
        (
            Advertisement { ports: vec![(near.into(), vec![])], ..leader(Rud, true, near) },
            Advertisement { ports: vec![(near.into(), vec![])], data_port: 2, ..leader(Rud, true, near) },
            "rank 0 has data_port = 1 and rank 4 has 2",
        ),
        (leader(Kernel, true, [127, 0, 1, 1]), leader(Kernel, true, near), "set kernel_address"),
    ];
    for (a, b, says) in cases {
        let said = check(&a, &b).unwrap_err();
        assert!(said.contains(says), "{said}");
    }
    assert!(check(&leader(Rud, true, near), &leader(Rud, false, near)).is_ok(), "RUD always has a CRC");
    assert!(check(&leader(Kernel, true, near), &leader(Kernel, true, [10, 0, 0, 2])).is_ok());
}

#[test]
fn a_channel_has_the_connections_that_are_given_or_those_that_its_transport_does_best_with() {
    let of = |number: &str| {
        let builder = Builder::from_environment(Environment::default()).unwrap();
        let builder = builder.set("size", "1").unwrap().set("rank", "0").unwrap();
        let config = builder.set("channel_num", number).unwrap().build().unwrap();
        TransportKind::ALL.map(|kind| (kind.name(), kind.connections(&config)))
    };
    assert_eq!(of(""), [("verbs", 10), ("rud", 64), ("tcp", 10), ("kernel", 10)]);
    assert_eq!(of("7"), [("verbs", 7), ("rud", 7), ("tcp", 7), ("kernel", 7)]);
}

#[test]
fn an_explicit_choice_allows_nothing_else_and_tcp_is_never_taken_by_itself() {
    assert_eq!(
        TransportKind::allowed(TransportChoice::Auto, false),
        [TransportKind::Verbs, TransportKind::Rud, TransportKind::Kernel]
    );
    assert_eq!(TransportKind::allowed(TransportChoice::Auto, true), [TransportKind::Rud]);
    for choice in
        [TransportChoice::Verbs, TransportChoice::Rud, TransportChoice::Tcp, TransportChoice::Kernel]
    {
        assert_eq!(
            TransportKind::allowed(choice, false).iter().map(|kind| kind.name()).collect::<Vec<_>>(),
            [choice.name()]
        );
    }
}

#[test]
fn ports_lead_to_their_network_and_to_the_peers_they_name() {
    let mut config = Builder::from_environment(Environment::default()).unwrap();
    for (key, value) in [
        ("rank", "0"),
        ("size", "1"),
        (
            "ports",
            r#"[{device = "memif-server:/x", address = "10.0.0.1/24"}, {device = "memif-server:/y", address = "10.1.0.1/24", peers = ["10.9.0.9"]}]"#,
        ),
    ] {
        config = config.set(key, value).unwrap();
    }
    let config = config.build().unwrap();
    let to = |ip: [u8; 4]| route(&config, &[(Ipv4Addr::from(ip), vec![])]).map(|(from, _)| from.octets());
    assert_eq!(to([10, 0, 0, 7]), Some([10, 0, 0, 1]));
    assert_eq!(to([10, 9, 0, 9]), Some([10, 1, 0, 1]));
    assert_eq!(to([10, 1, 0, 7]), None, "that port leads only to the peer it names");
}

#[test]
fn what_a_leader_tells_is_refused_when_it_is_damaged() {
    let mut advertised = leader(TransportChoice::Kernel, true, [10, 0, 0, 1]);
    advertised.ports = vec![(Ipv4Addr::LOCALHOST, vec![]), (Ipv4Addr::BROADCAST, vec![Ipv4Addr::LOCALHOST])];
    wire::tests::fuzz(&[advertised, leader(TransportChoice::Auto, false, [10, 0, 0, 2])]);
}
