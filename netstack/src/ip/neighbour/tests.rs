use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::time::Duration;

use super::{Cache, Config, Observation, Request, Requester, Resolution};
use crate::time::Instant;
use crate::wire::ethernet::Mac;

fn ip(text: &str) -> Ipv4Addr {
    text.parse().unwrap()
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
    assert_eq!(cache.resolve(secs(1), to, Requester::User), Resolution::Pending);
    cache.hold(to, vec![1], Requester::User);
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
            assert_eq!(cache.resolve(now, to, Requester::User), Resolution::Pending);
        }
    }
    assert_eq!(times, [1, 2, 3, 4], "four requests, a second apart");
    assert_eq!(cache.dropped().unreachable, 1);
    assert_eq!(cache.release(to), None);
    // After a pause it is worth another try.
    assert_eq!(cache.resolve(secs(20), to, Requester::User), Resolution::Pending);
    assert_eq!(asked(&mut cache, secs(20)).len(), 1);
}

#[test]
fn an_answer_releases_what_waits_in_order() {
    let mut cache = Cache::new(Config { pending: 3, ..Config::default() }, &[]);
    let (to, other) = (ip("10.0.0.9"), ip("10.0.0.8"));
    cache.resolve(secs(0), to, Requester::User);
    cache.resolve(secs(0), other, Requester::User);
    for packet in 0..4 {
        cache.hold(to, vec![packet], Requester::User);
    }
    cache.hold(other, vec![9], Requester::User);
    assert_eq!(cache.dropped().queue_full, 2);
    assert_eq!(cache.observe(secs(1), to, MAC, false, &|_| false), Observation::Learned);
    assert_eq!(cache.resolve(secs(1), to, Requester::User), Resolution::Station(MAC));
    let released: Vec<_> = core::iter::from_fn(|| cache.release(to)).collect();
    assert_eq!(released, [[1], [2], [3]], "the latest are kept");
}

#[test]
fn a_station_in_use_is_probed_and_forgotten_when_it_falls_silent() {
    let mut cache = Cache::new(Config::default(), &[]);
    let to = ip("10.0.0.9");
    let (alone, all) =
        (Request { address: to.into(), station: Some(MAC) }, Request { address: to.into(), station: None });
    assert_eq!(cache.observe(secs(0), to, MAC, true, &|_| false), Observation::Learned);
    assert_eq!(cache.next_deadline(), None, "nobody uses it");
    assert_eq!(cache.resolve(secs(0), to, Requester::User), Resolution::Station(MAC));
    assert_eq!(asked(&mut cache, secs(1)), [alone], "one packet is not enough");
    assert_eq!(cache.resolve(secs(1), to, Requester::User), Resolution::Station(MAC), "but used meanwhile");
    assert_eq!(cache.observe(secs(2), to, MAC, true, &|_| false), Observation::Confirmed);
    // Its lifetime is over: requests begin only once a user resolves it again.
    let generation = cache.generation();
    assert_eq!(asked(&mut cache, secs(61)), []);
    assert_eq!(cache.generation(), generation);
    assert_eq!(asked(&mut cache, secs(62)), []);
    assert_ne!(cache.generation(), generation, "kept answers are void");
    assert_eq!(asked(&mut cache, secs(100)), []);
    assert_eq!(cache.resolve(secs(100), to, Requester::User), Resolution::Station(MAC));
    assert_eq!(asked(&mut cache, secs(101)), [alone]);
    assert_eq!(cache.observe(secs(101), to, MAC, false, &|_| false), Observation::Confirmed);
    assert_eq!(asked(&mut cache, secs(161)), []);
    assert_eq!(cache.resolve(secs(161), to, Requester::User), Resolution::Station(MAC));
    let generation = cache.generation();
    assert_eq!(asked(&mut cache, secs(162)), [alone]);
    assert_eq!(asked(&mut cache, secs(163)), [alone]);
    assert_eq!(asked(&mut cache, secs(164)), [all]);
    assert_eq!(asked(&mut cache, secs(165)), [all]);
    assert_eq!(asked(&mut cache, secs(166)), []);
    assert_ne!(cache.generation(), generation, "kept answers are void");
    assert_eq!(cache.resolve(secs(166), to, Requester::User), Resolution::Pending);
}

#[test]
fn progress_above_takes_the_place_of_an_answer() {
    let mut cache = Cache::new(Config::default(), &[]);
    let to = IpAddr::V4(ip("10.0.0.9"));
    assert_eq!(cache.awaits_proof(secs(10), || Some(to)), None);
    cache.resolve(secs(10), to, Requester::Session);
    assert_eq!(cache.awaits_proof(secs(10), || Some(to)), None, "nothing is known yet");
    assert_eq!(asked(&mut cache, secs(10)).len(), 1);
    cache.observe(secs(10), to, MAC, true, &|_| false);
    // Packets in flight when the answer came do not prove it.
    assert_eq!(cache.awaits_proof(secs(10), || Some(to)), None);
    cache.confirm(secs(10), to);
    let later = secs(10) + Duration::from_millis(500);
    assert_eq!(cache.awaits_proof(later, || Some(to)), Some(to));
    cache.confirm(later, to);
    assert_eq!(cache.awaits_proof(later, || Some(to)), None);
    // All answers are lost: as long as there is progress, the station is neither given up nor requested.
    for minute in 1..10 {
        let now = secs(10 + 61 * minute);
        assert_eq!(asked(&mut cache, now), []);
        assert_eq!(cache.resolve(now, to, Requester::Session), Resolution::Station(MAC));
        let later = now + Duration::from_millis(500);
        assert_eq!(cache.awaits_proof(later, || Some(to)), Some(to));
        cache.confirm(later, to);
        assert_eq!(cache.awaits_proof(later, || Some(to)), None);
    }
    let now = secs(10 + 61 * 10);
    assert_eq!(asked(&mut cache, now), []);
    cache.resolve(now, to, Requester::Session);
    assert_eq!(asked(&mut cache, now + Duration::from_secs(1)).len(), 1);
    cache.confirm(now + Duration::from_secs(2), to);
    assert_eq!(asked(&mut cache, now + Duration::from_secs(10)), [], "being probed, too");
    assert_eq!(cache.resolve(now, to, Requester::Session), Resolution::Station(MAC));
}

#[test]
fn a_static_neighbour_stays_and_a_moved_one_is_followed_after_a_question() {
    let (fixed, moved) = (ip("10.0.0.2"), ip("10.0.0.3"));
    let mut cache = Cache::new(Config::default(), &[(fixed.into(), MAC)]);
    let other = Mac([2, 0, 0, 0, 0, 10]);
    assert_eq!(cache.observe(secs(0), fixed, other, true, &|_| false), Observation::Conflict);
    assert_eq!(cache.resolve(secs(1000), fixed, Requester::User), Resolution::Station(MAC));
    assert_eq!(cache.observe(secs(0), moved, MAC, false, &|_| false), Observation::Ignored);
    cache.observe(secs(0), moved, MAC, true, &|_| false);
    cache.observe(secs(0), moved, MAC, true, &|_| false);
    assert_eq!(cache.resolve(secs(0), moved, Requester::User), Resolution::Station(MAC));
    let generation = cache.generation();
    // A contradiction: nothing changes but one request to all stations.
    for _ in 0..3 {
        assert_eq!(cache.observe(secs(5), moved, other, true, &|_| false), Observation::Doubted);
    }
    assert_eq!(asked(&mut cache, secs(5)), [Request { address: moved.into(), station: None }]);
    assert_eq!(asked(&mut cache, secs(5)), []);
    assert_eq!(cache.resolve(secs(5), moved, Requester::User), Resolution::Station(MAC));
    assert_eq!(
        cache.observe(secs(5), moved, other, false, &|_| false),
        Observation::Doubted,
        "no answer to us"
    );
    assert_eq!(cache.generation(), generation);
    // It answers from its new interface.
    assert_eq!(cache.observe(secs(5), moved, other, true, &|_| false), Observation::Confirmed);
    assert_ne!(cache.generation(), generation);
    assert_eq!(cache.resolve(secs(5), moved, Requester::User), Resolution::Station(other));
}

#[test]
fn a_damaged_answer_does_not_last() {
    let mut cache = Cache::new(Config::default(), &[]);
    let to = ip("10.0.0.9");
    let wrong = Mac([2, 0, 0, 0, 0, 0x49]);
    cache.resolve(secs(0), to, Requester::User);
    cache.poll(secs(0), |_| {});
    cache.observe(secs(0), to, wrong, true, &|_| false);
    for second in 1..10 {
        for request in asked(&mut cache, secs(second)) {
            // The host with the wrong address has another IP address, and does not answer.
            if request.station != Some(wrong) {
                cache.observe(secs(second), to, MAC, true, &|_| false);
            }
        }
    }
    assert_eq!(cache.resolve(secs(10), to, Requester::User), Resolution::Station(MAC));
    assert_eq!(cache.observe(secs(10), to, wrong, true, &|_| false), Observation::Doubted);
    for second in 10..13 {
        for _ in asked(&mut cache, secs(second)) {
            cache.observe(secs(second), to, MAC, true, &|_| false);
        }
        assert_eq!(
            cache.resolve(secs(second), to, Requester::User),
            Resolution::Station(MAC),
            "never given up"
        );
    }
}

/// Host `number` of a network of 65,536.
fn host(number: u32) -> IpAddr {
    Ipv4Addr::from(0x0a01_0000 + number).into()
}

/// The same of IPv6.
fn host6(number: u32) -> IpAddr {
    Ipv6Addr::from((0xfd00 << 112) + u128::from(number)).into()
}

#[test]
fn a_flood_of_unauthenticated_packets_takes_nothing_from_others() {
    let config = Config::default();
    let mut cache = Cache::new(config.clone(), &[]);
    let peer = host(65_000);
    cache.resolve(secs(1), peer, Requester::Session);
    cache.observe(secs(1), peer, MAC, true, &|_| false);
    cache.confirm(secs(2), peer);
    let (mut began, mut requests) = (0, 0);
    for tick in 0..20_000u32 {
        // Nobody answers them.
        let now = secs(2) + Duration::from_millis(u64::from(tick) / 2);
        for number in 0..5 {
            let address = host((tick * 5 + number) % 60_000);
            match cache.resolve(now, address, Requester::Unauthenticated) {
                Resolution::Pending => {
                    began += 1;
                    cache.hold(address, vec![0; 60], Requester::Unauthenticated);
                }
                Resolution::Limited | Resolution::Unreachable => {}
                other => panic!("{other:?}"),
            }
        }
        cache.poll(now, |_| requests += 1);
        assert_eq!(cache.resolve(now, peer, Requester::Session), Resolution::Station(MAC));
    }
    let allowed = config.unauthenticated_per_second * 11;
    assert!((allowed / 2..=allowed).contains(&began), "{began} of 100,000 in ten seconds");
    assert!(requests <= 4 * allowed, "{requests} requests");
    // Addresses that connections need are resolved as before, and their packets wait.
    let now = secs(12);
    for number in 0..1000 {
        let address = host(61_000 + number);
        assert_eq!(cache.resolve(now, address, Requester::Session), Resolution::Pending);
        assert_eq!(cache.resolve(now, host6(number), Requester::User), Resolution::Pending);
    }
    cache.hold(host(61_999), vec![1], Requester::Session);
    cache.poll(now, |_| {});
    assert_eq!(cache.observe(now, host(61_999), MAC, true, &|_| false), Observation::Learned);
    assert_eq!(cache.release(host(61_999)), Some(vec![1]));
    assert!(cache.knows(peer));
}

#[test]
fn users_displace_unauthenticated_entries_and_one_another_but_not_sessions() {
    let config = Config { incomplete: 4, ..Config::default() };
    let mut cache = Cache::new(config, &[]);
    let mut resolve = |number, requester| cache.resolve(secs(1), host(number), requester);
    assert_eq!(resolve(0, Requester::Session), Resolution::Pending);
    for number in 1..3 {
        assert_eq!(resolve(number, Requester::User), Resolution::Pending);
    }
    for number in 3..9 {
        assert_eq!(resolve(number, Requester::Unauthenticated), Resolution::Pending, "the newest two stay");
    }
    assert_eq!(resolve(9, Requester::User), Resolution::Pending);
    assert_eq!(resolve(10, Requester::User), Resolution::Pending);
    assert_eq!(resolve(11, Requester::Unauthenticated), Resolution::Limited, "four users");
    assert_eq!(resolve(12, Requester::User), Resolution::Pending);
    let known: Vec<u32> = (0..20).filter(|number| cache.knows(host(*number))).collect();
    assert_eq!(known, [0, 2, 9, 10, 12]);
    // The other version has its own budget.
    assert_eq!(cache.resolve(secs(1), host6(1), Requester::Unauthenticated), Resolution::Pending);
}

#[test]
fn a_flood_of_claims_displaces_only_claims() {
    let mut cache = Cache::new(Config { capacity: 16, ..Config::default() }, &[]);
    let in_use = |address: IpAddr| address == host(3);
    for number in 0..4 {
        // All of them were heard of first; the first two were used since.
        assert_eq!(cache.observe(secs(0), host(number), MAC, true, &in_use), Observation::Learned);
        if number < 2 {
            assert_eq!(cache.resolve(secs(0), host(number), Requester::User), Resolution::Station(MAC));
        }
    }
    let generation = cache.generation();
    for number in 100..5000 {
        assert_eq!(cache.observe(secs(1), host(number), MAC, true, &in_use), Observation::Learned);
    }
    let known: Vec<u32> = (0..4).filter(|number| cache.knows(host(*number))).collect();
    assert_eq!(known, [0, 1, 3], "what is used stays, and what a connection leads to");
    assert_eq!(cache.generation(), generation, "nobody kept what was forgotten");
    assert_eq!((100..5000).filter(|number| cache.knows(host(*number))).count(), 13);
    assert_eq!(cache.next_deadline(), Some(secs(1)), "claims are not verified until they matter");
    // Needed ones are kept above the budget if all others are in use.
    let all = |_| true;
    for number in 5000..5100 {
        cache.resolve(secs(2), host(number), Requester::Session);
        assert_eq!(cache.observe(secs(2), host(number), MAC, true, &all), Observation::Learned);
    }
    assert!((5000..5100).all(|number| cache.knows(host(number))));
    assert_eq!(cache.observe(secs(3), host(6000), MAC, true, &all), Observation::Ignored);
    // And evicted when they are unused.
    for number in 5100..5200 {
        cache.resolve(secs(4), host(number), Requester::User);
        cache.observe(secs(4), host(number), MAC, true, &|_| false);
    }
    assert_eq!((0..7000).filter(|number| cache.knows(host(*number))).count(), 16);
}
