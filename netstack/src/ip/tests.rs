use core::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::{ConfigError, Ipv6Config, PortConfig, Prefix, Route, RouteTable, is_unicast};
use crate::wire::ethernet::Mac;

fn ip(text: &str) -> Ipv4Addr {
    text.parse().unwrap()
}

fn prefix(text: &str) -> Prefix {
    text.parse().unwrap()
}

#[test]
fn prefixes() {
    let p = prefix("10.1.2.3/16");
    assert_eq!(p.to_string(), "10.1.0.0/16");
    assert_eq!(p.last(), ip("10.1.255.255"));
    assert!(p.contains(ip("10.1.255.1")) && !p.contains(ip("10.2.0.0")));
    assert!(!p.is_host(p.network()) && !p.is_host(p.last()) && p.is_host(ip("10.1.0.1")));
    assert!(prefix("10.0.0.0/31").is_host(ip("10.0.0.0")));
    assert!(Prefix::<Ipv4Addr>::ALL.contains(Ipv4Addr::BROADCAST));
    for text in ["10.0.0.0", "10.0.0.0/33", "10.0.0/8", "/8", "10.0.0.0/-1", "10.0.0.0/"] {
        let error = text.parse::<Prefix>().unwrap_err();
        assert_eq!(error.text, text);
    }
    assert!(is_unicast(ip("10.0.0.1")) && is_unicast(ip("223.255.255.255")));
    for text in ["0.0.0.0", "0.1.2.3", "224.0.0.1", "255.255.255.255", "240.0.0.1"] {
        assert!(!is_unicast(ip(text)), "{text}");
    }
}

fn ip6(text: &str) -> Ipv6Addr {
    text.parse().unwrap()
}

#[test]
fn prefixes_of_ipv6() {
    let p: Prefix<Ipv6Addr> = "fd00:1:2:3::9/64".parse().unwrap();
    assert_eq!(p.to_string(), "fd00:1:2:3::/64");
    assert_eq!(p.last(), ip6("fd00:1:2:3:ffff:ffff:ffff:ffff"));
    assert!(p.contains(ip6("fd00:1:2:3:4::")) && !p.contains(ip6("fd00:1:2:4::")));
    assert!(!p.is_host(p.network()), "the routers' anycast address");
    assert!(p.is_host(p.last()) && p.is_host(ip6("fd00:1:2:3::1")));
    let pair: Prefix<Ipv6Addr> = "fd00::/127".parse().unwrap();
    assert!(pair.is_host(ip6("fd00::")) && pair.is_host(ip6("fd00::1")) && !pair.is_host(ip6("fd00::2")));
    assert!(Prefix::<Ipv6Addr>::ALL.contains(ip6("ff02::1")));
    for text in ["fd00::", "fd00::/129", "10.0.0.0/8", "/8"] {
        assert!(text.parse::<Prefix<Ipv6Addr>>().is_err(), "{text}");
    }
}

#[test]
fn each_mistake_in_ipv6_has_its_error_too() {
    let good = Ipv6Config {
        gateway: Some(ip6("fe80::1")),
        neighbours: vec![(ip6("fd00::2"), [2, 0, 0, 0, 0, 2])],
        ..Ipv6Config::new(ip6("fd00::1"), 64)
    };
    let check = |change: &dyn Fn(&mut PortConfig, &mut Ipv6Config)| {
        let mut config = PortConfig::new(ip("10.0.0.1"), 24, 1500);
        let mut six = good.clone();
        change(&mut config, &mut six);
        config.ipv6 = Some(six);
        config.check("loopback", 9000).map(|_| ())
    };
    let address = ip6("fd00::1").into();
    assert_eq!(check(&|_, _| {}), Ok(()));
    assert_eq!(check(&|four, _| (four.address, four.prefix_len) = (Ipv4Addr::UNSPECIFIED, 0)), Ok(()));
    assert_eq!(check(&|_, six| (six.address, six.neighbours) = (Ipv6Addr::UNSPECIFIED, vec![])), Ok(()));
    let error = ConfigError::PrefixLength { address, len: 129, max: 128 };
    assert_eq!(check(&|_, six| six.prefix_len = 129), Err(error));
    for bad in ["ff02::1", "::1", "fd00::", "::ffff:10.0.0.1"] {
        let error = check(&|_, six| six.address = ip6(bad)).unwrap_err();
        assert!(matches!(error, ConfigError::Address { .. }), "{bad}: {error}");
    }
    for bad in ["fd01::1", "ff02::2", "fd00::1"] {
        let error = check(&|_, six| six.gateway = Some(ip6(bad))).unwrap_err();
        assert!(matches!(error, ConfigError::Gateway { .. }), "{bad}: {error}");
    }
    let error = check(&|_, six| six.neighbours[0].0 = ip6("fd01::1")).unwrap_err();
    assert!(matches!(error, ConfigError::NeighbourOffLink { .. }), "{error}");
    let error = check(&|four, _| four.mtu = 1279).unwrap_err();
    assert!(matches!(error, ConfigError::Mtu { min: 1280, .. }), "{error}");
    let error = PortConfig::new(Ipv4Addr::UNSPECIFIED, 24, 1500).check("loopback", 9000).unwrap_err();
    assert!(matches!(error, ConfigError::Address { .. }), "no address at all: {error}");
    let only = PortConfig::ipv6_only(good, 1500);
    assert_eq!(only.check("loopback", 9000).map(|checked| checked.ipv4.is_none()), Ok(true));
}

#[test]
fn the_longest_prefix_wins() {
    let table = RouteTable::new(vec![
        Route { prefix: Prefix::ALL, gateway: Some(ip("10.0.0.1")) },
        Route { prefix: prefix("10.0.0.0/24"), gateway: None },
        Route { prefix: prefix("10.5.0.0/16"), gateway: Some(ip("10.0.0.2")) },
        Route { prefix: prefix("10.5.6.0/24"), gateway: Some(ip("10.0.0.3")) },
        Route { prefix: prefix("10.5.6.0/24"), gateway: Some(ip("10.0.0.4")) },
    ]);
    let via = |to: &str| table.next_hop(ip(to)).map(|hop| hop.address);
    assert_eq!(via("10.0.0.77"), Some(ip("10.0.0.77").into()));
    assert_eq!(via("10.5.1.1"), Some(ip("10.0.0.2").into()));
    assert_eq!(via("10.5.6.1"), Some(ip("10.0.0.3").into()));
    assert_eq!(via("8.8.8.8"), Some(ip("10.0.0.1").into()));
    assert_eq!(RouteTable::default().next_hop(ip("8.8.8.8")), None);
}

proptest! {
    #[test]
    fn the_table_agrees_with_trying_all(
        routes in proptest::collection::vec((any::<u32>(), 0u8..33, any::<u32>()), 0..20), near: bool, to: u32,
    ) {
        let to = Ipv4Addr::from(if near { routes.first().map_or(to, |r| r.0) } else { to });
        let routes: Vec<Route> = routes
            .into_iter()
            .map(|(net, len, via)| Route { prefix: Prefix::new(net.into(), len).unwrap(), gateway: Some(via.into()) })
            .collect();
        let best = routes.iter().filter(|r| r.prefix.contains(to)).map(|r| r.prefix.bits()).max();
        prop_assert_eq!(RouteTable::new(routes).next_hop(to).map(|hop| hop.prefix_len), best);
    }
}

#[test]
fn each_mistake_in_a_configuration_has_its_error() {
    let good = PortConfig {
        gateway: Some(ip("10.0.0.254")),
        routes: vec![Route { prefix: prefix("10.9.0.0/16"), gateway: Some(ip("10.0.0.253")) }],
        neighbours: vec![(ip("10.0.0.2"), [2, 0, 0, 0, 0, 2])],
        vlan: Some(7),
        ..PortConfig::new(ip("10.0.0.1"), 24, 1500)
    };
    let check = |change: &dyn Fn(&mut PortConfig)| {
        let mut config = good.clone();
        change(&mut config);
        config.check("loopback", 9000).map(|_| ())
    };
    let address = ip("10.0.0.1").into();
    assert_eq!(check(&|_| {}), Ok(()));
    for len in [0, 33] {
        assert_eq!(check(&|c| c.prefix_len = len), Err(ConfigError::PrefixLength { address, len, max: 32 }));
    }
    for bad in ["10.0.0.0", "10.0.0.255", "224.0.0.1", "127.0.0.1", "0.0.0.0"] {
        let error = check(&|c| c.address = ip(bad)).unwrap_err();
        assert!(matches!(error, ConfigError::Address { .. }), "{bad}: {error}");
    }
    for bad in ["10.0.1.1", "10.0.0.1", "10.0.0.255"] {
        let error = check(&|c| c.gateway = Some(ip(bad))).unwrap_err();
        assert!(matches!(error, ConfigError::Gateway { .. }), "{bad}: {error}");
        let error = check(&|c| c.routes[0].gateway = Some(ip(bad))).unwrap_err();
        assert!(matches!(error, ConfigError::Gateway { .. }), "{bad}: {error}");
    }
    let neighbour = ip("10.0.9.2");
    assert_eq!(
        check(&|c| c.neighbours[0].0 = neighbour),
        Err(ConfigError::NeighbourOffLink { address, neighbour: neighbour.into() })
    );
    // An on-link route makes it a neighbour.
    let on_link = Route { prefix: prefix("10.0.9.0/24"), gateway: None };
    assert_eq!(
        check(&|c| {
            c.neighbours[0].0 = neighbour;
            c.routes.push(on_link);
        }),
        Ok(())
    );
    let neighbour = ip("10.0.0.2");
    assert_eq!(
        check(&|c| c.neighbours[0].1 = [0xff; 6]),
        Err(ConfigError::NeighbourMac { address, neighbour: neighbour.into(), mac: Mac::BROADCAST })
    );
    assert_eq!(
        check(&|c| c.neighbours.push((neighbour, [2, 0, 0, 0, 0, 3]))),
        Err(ConfigError::NeighbourTwice { address, neighbour: neighbour.into() })
    );
    for mtu in [67, 9001] {
        let error = check(&|c| c.mtu = mtu).unwrap_err();
        assert_eq!(error, ConfigError::Mtu { address, mtu, min: 68, max: 9000, device: "loopback" });
    }
    for vlan in [0, 4095] {
        assert_eq!(check(&|c| c.vlan = Some(vlan)), Err(ConfigError::Vlan { address, vlan }));
    }
}
