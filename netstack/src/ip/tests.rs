use core::net::{Ipv4Addr, Ipv6Addr};
use core::time::Duration;

use proptest::prelude::*;

use super::neighbour::{Cache, Config, Observation, Request, Resolution};
use super::{ConfigError, Ipv6Config, PortConfig, Prefix, Route, RouteTable, is_unicast};
use crate::time::Instant;
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

const MAC: Mac = Mac([2, 0, 0, 0, 0, 9]);

fn secs(seconds: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(seconds)
}

fn asked(cache: &mut Cache, now: Instant) -> Vec<Request> {
    let mut out = Vec::new();
    cache.poll(now, |request| out.push(request));
    out
}

#[test]
fn an_address_is_asked_for_once_a_second_and_then_given_up() {
    let mut cache = Cache::new(Config::default(), &[]);
    let to = ip("10.0.0.9");
    assert_eq!(cache.next_deadline(), None);
    assert_eq!(cache.resolve(secs(1), to), Resolution::Pending);
    cache.hold(to, vec![1]);
    let mut times = Vec::new();
    for tenth in 10..100 {
        let now = Instant::ZERO + Duration::from_millis(100 * tenth);
        if cache.next_deadline().is_some_and(|deadline| deadline <= now) {
            for request in asked(&mut cache, now) {
                assert_eq!(request, Request { address: to.into(), station: None });
                times.push(tenth / 10);
            }
        }
        if tenth < 50 {
            assert_eq!(cache.resolve(now, to), Resolution::Pending);
        }
    }
    assert_eq!(times, [1, 2, 3, 4], "four requests, a second apart");
    assert_eq!(cache.dropped().unreachable, 1);
    assert_eq!(cache.release(to), None);
    // After a pause it is worth another try.
    assert_eq!(cache.resolve(secs(20), to), Resolution::Pending);
    assert_eq!(asked(&mut cache, secs(20)).len(), 1);
}

#[test]
fn an_answer_releases_what_waits_in_order() {
    let mut cache = Cache::new(Config { pending: 3, ..Config::default() }, &[]);
    let (to, other) = (ip("10.0.0.9"), ip("10.0.0.8"));
    cache.resolve(secs(0), to);
    cache.resolve(secs(0), other);
    for packet in 0..4 {
        cache.hold(to, vec![packet]);
    }
    cache.hold(other, vec![9]);
    assert_eq!(cache.dropped().queue_full, 2);
    assert_eq!(cache.observe(secs(1), to, MAC, false), Observation::Learned);
    assert_eq!(cache.resolve(secs(1), to), Resolution::Station(MAC));
    let released: Vec<_> = core::iter::from_fn(|| cache.release(to)).collect();
    assert_eq!(released, [[1], [2], [3]], "the latest are kept");
}

#[test]
fn a_station_is_probed_and_forgotten_when_it_falls_silent() {
    let mut cache = Cache::new(Config::default(), &[]);
    let to = ip("10.0.0.9");
    let (alone, all) =
        (Request { address: to.into(), station: Some(MAC) }, Request { address: to.into(), station: None });
    assert_eq!(cache.observe(secs(0), to, MAC, true), Observation::Learned);
    assert_eq!(asked(&mut cache, secs(1)), [alone], "one packet is not enough");
    assert_eq!(cache.resolve(secs(1), to), Resolution::Station(MAC), "but used meanwhile");
    assert_eq!(cache.observe(secs(2), to, MAC, true), Observation::Confirmed);
    assert_eq!(asked(&mut cache, secs(61)), []);
    assert_eq!(asked(&mut cache, secs(62)), [alone]);
    assert_eq!(cache.observe(secs(62), to, MAC, false), Observation::Confirmed);
    let generation = cache.generation();
    assert_eq!(asked(&mut cache, secs(122)), [alone]);
    assert_eq!(asked(&mut cache, secs(123)), [alone]);
    assert_eq!(asked(&mut cache, secs(124)), [all]);
    assert_eq!(asked(&mut cache, secs(125)), [all]);
    assert_eq!(asked(&mut cache, secs(126)), []);
    assert_ne!(cache.generation(), generation, "kept answers are void");
    assert_eq!(cache.resolve(secs(126), to), Resolution::Pending);
}

#[test]
fn a_static_neighbour_stays_and_a_moved_one_is_followed_after_a_question() {
    let (fixed, moved) = (ip("10.0.0.2"), ip("10.0.0.3"));
    let mut cache = Cache::new(Config::default(), &[(fixed.into(), MAC)]);
    let other = Mac([2, 0, 0, 0, 0, 10]);
    assert_eq!(cache.observe(secs(0), fixed, other, true), Observation::Conflict);
    assert_eq!(cache.resolve(secs(1000), fixed), Resolution::Station(MAC));
    assert_eq!(cache.observe(secs(0), moved, MAC, false), Observation::Ignored);
    cache.observe(secs(0), moved, MAC, true);
    cache.observe(secs(0), moved, MAC, true);
    let generation = cache.generation();
    // A contradiction: nothing changes, everybody is asked, once.
    for _ in 0..3 {
        assert_eq!(cache.observe(secs(5), moved, other, true), Observation::Doubted);
    }
    assert_eq!(asked(&mut cache, secs(5)), [Request { address: moved.into(), station: None }]);
    assert_eq!(asked(&mut cache, secs(5)), []);
    assert_eq!(cache.resolve(secs(5), moved), Resolution::Station(MAC));
    assert_eq!(cache.observe(secs(5), moved, other, false), Observation::Doubted, "no answer to us");
    assert_eq!(cache.generation(), generation);
    // It answers from its new interface.
    assert_eq!(cache.observe(secs(5), moved, other, true), Observation::Confirmed);
    assert_ne!(cache.generation(), generation);
    assert_eq!(cache.resolve(secs(5), moved), Resolution::Station(other));
}

#[test]
fn a_damaged_answer_does_not_last() {
    let mut cache = Cache::new(Config::default(), &[]);
    let to = ip("10.0.0.9");
    let wrong = Mac([2, 0, 0, 0, 0, 0x49]);
    cache.resolve(secs(0), to);
    cache.poll(secs(0), |_| {});
    cache.observe(secs(0), to, wrong, true);
    for second in 1..10 {
        for request in asked(&mut cache, secs(second)) {
            // Whoever has the wrong address has another IP address, and does not answer.
            if request.station != Some(wrong) {
                cache.observe(secs(second), to, MAC, true);
            }
        }
    }
    assert_eq!(cache.resolve(secs(10), to), Resolution::Station(MAC));
    assert_eq!(cache.observe(secs(10), to, wrong, true), Observation::Doubted);
    for second in 10..13 {
        for _ in asked(&mut cache, secs(second)) {
            cache.observe(secs(second), to, MAC, true);
        }
        assert_eq!(cache.resolve(secs(second), to), Resolution::Station(MAC), "never given up");
    }
}

#[test]
fn a_flood_of_senders_does_not_grow_the_cache() {
    let mut cache = Cache::new(Config { capacity: 4, ..Config::default() }, &[]);
    for host in 0..1000u32 {
        let expected = if host < 4 { Observation::Learned } else { Observation::Ignored };
        assert_eq!(cache.observe(secs(0), Ipv4Addr::from(0x0a00_0000 + host), MAC, true), expected);
    }
    // Our own need evicts the one that would expire first.
    assert_eq!(cache.resolve(secs(1), ip("10.1.0.0")), Resolution::Pending);
    for host in 1..4 {
        assert_eq!(cache.resolve(secs(1), ip(&format!("10.1.0.{host}"))), Resolution::Pending);
    }
    assert_eq!(cache.resolve(secs(1), ip("10.1.0.4")), Resolution::Unreachable, "all are being asked for");
}
