mod bundles;
mod damage;
mod first_use;
mod goodput;
mod link;
mod path_mtu;
mod requirements;
mod sealed;
mod slow;
mod tail;

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::sim::{LinkConfig, tests::delayed};
use crate::time::Instant;
use link::{App, Collect, World, expected_header, extent_from, extent_of, meta, params};

const MS: u64 = 1_000_000;
const HEADER: usize = crate::wire::rud::HEADER_LEN;
const TAGS: [u64; 2] = [0x0000_0001_dead_beef, 0x0000_0001_feed_f00d];

fn faulty() -> LinkConfig {
    LinkConfig {
        bits_per_second: 100_000_000_000,
        loss: 0.05,
        reorder: 0.1,
        reorder_by: Duration::from_micros(50),
        duplicate: 0.02,
        corrupt: 0.02,
        ..delayed(10_000)
    }
}

/// Every message of both ends was consumed once, intact, and its token released once.
fn assert_exact(world: &World, messages: u64, what: &str) {
    for end in &world.ends {
        assert_eq!(end.app.corrupt, 0, "{what}: a corrupted byte was delivered");
        assert!(end.app.failures.is_empty(), "{what}: {:?}", end.app.failures);
        assert_eq!(end.app.consumed.len() as u64, messages, "{what}");
        assert!(end.app.consumed.values().all(|times| *times == 1), "{what}: delivered twice");
        assert_eq!(end.app.released.len() as u64, messages, "{what}");
        assert!(end.app.released.values().all(|times| *times == 1), "{what}: released twice");
    }
}

/// Replay one: `SEED=17 cargo test -p shouter-netstack --lib a_thousand_seeds`.
//= rud/spec.md section 5.2, RUD-19
//= rud/spec.md section 6.3, RUD-42
#[test]
fn a_thousand_seeds_of_loss_reordering_duplicates_and_bit_flips() {
    let only: Option<u64> = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
    let (mut flipped, mut dropped, mut resent, mut duplicates) = (0, 0, 0, 0);
    for seed in only.map_or(0..1000, |seed| seed..seed + 1) {
        let what = format!("seed {seed}");
        let mut world = World::new(seed, &Config::default(), faulty());
        for end in &mut world.ends {
            end.app.refuse = if seed % 4 == 0 { 0.05 } else { 0.0 };
            end.to_send.extend(0..150);
        }
        world.run_to_completion(2_000 * MS, &what);
        assert_exact(&world, 150, &what);
        flipped += world.links.iter().map(|link| link.counters().corrupted).sum::<u64>();
        for end in &world.ends {
            let counters = end.endpoint.counters(end.id);
            let others = end.endpoint.endpoint_counters();
            dropped += counters.crc_dropped + others.malformed + others.unknown_session;
            resent += counters.resent;
            duplicates += counters.duplicates;
        }
    }
    if only.is_none() {
        // The faults were really there; a flipped datagram that is still in flight at the end is not counted.
        assert!(
            flipped > 5_000 && dropped <= flipped && dropped > flipped * 9 / 10,
            "{dropped} of {flipped}"
        );
        assert!(resent > 10_000, "{resent}");
        assert!(duplicates > 5_000, "{duplicates}");
    }
}

//= rud/spec.md section 5.3, RUD-22
//= rud/spec.md section 6.6, RUD-50
#[test]
fn a_refused_message_is_sent_again_until_it_is_consumed() {
    for seed in 0..50 {
        let what = format!("seed {seed}");
        let mut world = World::new(seed, &Config::default(), LinkConfig { loss: 0.02, ..delayed(5_000) });
        for end in &mut world.ends {
            end.app.refuse = 0.5;
            end.to_send.extend(0..1500);
        }
        // Some are refused 17 times.
        world.run_to_completion(100_000 * MS, &what);
        assert_exact(&world, 1500, &what);
        for (end, peer) in [(0, 1), (1, 0)] {
            let (end, peer) = (&world.ends[end], &world.ends[peer]);
            let refused = end.endpoint.counters(end.id).refused_by_peer;
            assert_eq!(refused, u64::from(peer.app.refusals), "{what}");
            assert!(refused > 1000, "{what}: {refused}");
        }
    }
}

//= rud/spec.md section 6.6, RUD-51
#[test]
fn a_peer_that_refuses_for_ever_is_not_sent_to_for_ever() {
    let mut world = World::new(1, &Config::default(), delayed(5_000));
    world.ends[1].app.refuse = 1.0;
    world.ends[0].to_send.extend(0..100);
    while world.now < 60_000 * MS {
        world.step();
    }
    // 50 us doubled 20 times are 52 s.
    let refused = world.ends[0].endpoint.counters(world.ends[0].id).refused_by_peer;
    assert!((1500..=2200).contains(&refused), "{refused} refusals of 100 messages");
    world.ends[1].app.refuse = 0.0;
    world.run_to_completion(180_000 * MS, "in the end");
    assert_eq!(world.ends[1].app.consumed.len(), 100);
}

//= rud/spec.md section 5.2, RUD-21
#[test]
fn messages_overtake_a_lost_one() {
    let mut world = World::new(3, &Config::default(), LinkConfig { loss: 0.1, ..delayed(50_000) });
    world.ends[0].to_send.extend(0..500);
    world.run_to_completion(1_000 * MS, "seed 3");
    let order = &world.ends[1].app.order;
    assert_eq!(order.len(), 500);
    assert!(!order.is_sorted(), "nothing was overtaken");
    // A loss delays its own message alone: most of the others come in order.
    assert!(order.windows(2).filter(|pair| pair[0] < pair[1]).count() > 400);
}

//= rud/spec.md section 8, RUD-85
//= rud/spec.md section 6.2, RUD-40
#[test]
fn a_dead_peer_is_found_and_an_idle_one_is_not() {
    let config = Config {
        dead_after: Duration::from_secs(2),
        heartbeat: Duration::from_millis(250),
        ..Config::default()
    };
    let mut world = World::new(1, &config, LinkConfig { loss: 0.05, ..delayed(10_000) });
    while world.now < 60_000 * MS {
        world.step();
    }
    assert!(world.ends.iter().all(|end| end.app.failures.is_empty()), "an idle peer was declared dead");
    world.ends[1].alive = false;
    let died = world.now;
    world.ends[0].to_send.extend(0..10);
    while world.ends[0].app.failures.is_empty() {
        world.step();
        assert!(world.now < died + 3_000 * MS, "not found");
    }
    assert!(world.now >= died + 1_700 * MS, "found after {} ms", (world.now - died) / MS);
    let end = &mut world.ends[0];
    let [Failure::PeerSilent { silent, timeouts, clue: Clue::Nothing }] = end.app.failures[..] else {
        panic!("{:?}", end.app.failures)
    };
    assert!(silent >= Duration::from_secs(2));
    assert_eq!(u64::from(timeouts), end.endpoint.counters(end.id).timeouts);
    // One in 50 ms, once the back-off has reached `max_rto`.
    assert!((35..=45).contains(&timeouts), "{timeouts}");
    assert_eq!(end.endpoint.send(end.id, &[], None, MessageToken(0)), Err(SendError::Failed));
    assert_eq!(end.endpoint.capacity(end.id), 0);
    assert!(end.app.released.is_empty(), "nothing of the dead peer's was acknowledged");
    // Once is enough.
    for _ in 0..100 {
        world.step();
    }
    assert_eq!(world.ends[0].app.failures.len(), 1);
}

//= rud/spec.md section 8, RUD-86
#[test]
fn our_own_pause_is_not_taken_for_the_peers_death() {
    let config = Config {
        dead_after: Duration::from_secs(2),
        heartbeat: Duration::from_millis(250),
        ..Config::default()
    };
    let mut world = World::new(1, &config, delayed(10_000));
    while world.now < 1_000 * MS {
        world.step();
    }
    // End 0 stops (SIGSTOP), end 1's heartbeats are lost in its full queue, then it goes on, timers first.
    let now = Instant::from_nanos(world.now + 60_000 * MS);
    let end = &mut world.ends[0];
    end.endpoint.on_timeout(now, &mut end.app);
    assert!(end.app.failures.is_empty());
}

//= rud/spec.md section 8, RUD-88
#[test]
fn the_end_of_a_silent_peer_says_what_came_instead() {
    // A datagram at nine seconds, of a peer that is suspected since 8.75 and dead after ten.
    type Disturb = fn(&mut DatagramMeta, &mut Vec<u8>);
    let end = |disturb: Disturb| {
        let [(mut a, _), (mut b, b_id)] = pair();
        let mut journal = Journal::default();
        let at = |milliseconds: u64| Instant::from_nanos(milliseconds * MS);
        a.on_timeout(at(8_750), &mut journal);
        b.announce(b_id);
        let (to, mut bytes) = transmit(&mut b, 9_000 * MS).remove(0);
        let mut meta = meta(0, to.src_port);
        disturb(&mut meta, &mut bytes);
        a.on_datagram(at(9_000), &meta, &bytes, &mut journal);
        a.on_timeout(at(9_999), &mut journal);
        assert!(journal.0.is_empty(), "{:?}", journal.0);
        a.on_timeout(at(10_000), &mut journal);
        journal.0
    };
    let silent = "failed it has sent nothing for 10s; ";
    assert_eq!(end(|_, _| {}), [""; 0], "it lives");
    let clues: [(Disturb, Clue); 4] = [
        (|_, bytes| bytes.clear(), Clue::Nothing),
        (|_, bytes| bytes[8] ^= 1, Clue::UnknownSession),
        (|meta, _| meta.src_ip = meta.dst_ip, Clue::OtherAddress),
        (|_, bytes| bytes[20] ^= 1, Clue::Damaged),
    ];
    for (disturb, clue) in clues {
        assert_eq!(end(disturb), [format!("{silent}{clue}")]);
    }
    let unknown: Disturb = |meta, bytes| {
        meta.src_ip = meta.dst_ip;
        bytes[8] ^= 1;
    };
    assert_eq!(end(unknown), [format!("{silent}{}", Clue::Nothing)], "not from the peer's address");
}

#[test]
fn a_failure_says_how_often_it_was_tried() {
    let failure = |timeouts| {
        let silent = Duration::from_secs(2);
        Failure::PeerSilent { silent, timeouts, clue: Clue::Nothing }.to_string()
    };
    assert!(failure(0).starts_with("it has sent nothing for 2s; see"), "{}", failure(0));
    assert!(failure(1).contains("2s, though what it had to acknowledge was sent again once; "));
    assert!(failure(7).contains("sent again 7 times; "));
}

#[test]
fn a_full_window_refuses_until_acknowledgements_come() {
    let config = Config { window_packets: 100, ..Config::default() };
    let mut world = World::with_tags(1, &config, delayed(10_000), TAGS);
    let end = &mut world.ends[0];
    end.endpoint.set_bundles(end.id, false);
    assert_eq!(end.endpoint.capacity(end.id), 100);
    for number in 0..100 {
        end.endpoint.send(end.id, &expected_header(number), extent_of(number), MessageToken(number)).unwrap();
    }
    assert_eq!(end.endpoint.capacity(end.id), 0);
    assert_eq!(end.endpoint.send(end.id, &[], None, MessageToken(0)), Err(SendError::Full));
    assert_eq!(
        end.endpoint.send(end.id, &[0; 65], None, MessageToken(0)),
        Err(SendError::HeaderTooLong { len: 65 })
    );
    let long = extent_from(vec![0; 1465]);
    assert_eq!(
        end.endpoint.send(end.id, &[], long, MessageToken(0)),
        Err(SendError::PayloadTooLong { len: 1465, limit: 1464 })
    );
    world.run_to_completion(MS, "full window");
    assert_eq!(world.ends[0].endpoint.capacity(world.ends[0].id), 100);
}

/// The application of a sink test: what happened, in order.
#[derive(Debug, Default)]
struct Journal(Vec<String>);

impl Sink for Journal {
    fn deliver(&mut self, _: SessionId, header: &[u8], payload: &[u8]) -> Disposition {
        self.0.push(format!("deliver {header:?} {}", payload.len()));
        Disposition::Consumed
    }
    fn released(&mut self, _: SessionId, token: MessageToken) {
        self.0.push(format!("released {}", token.0));
    }
    fn failed(&mut self, _: SessionId, why: Failure) {
        self.0.push(format!("failed {why}"));
    }
}

/// A configuration in which only memory limits the first burst.
fn wide() -> Config {
    Config { initial_window: 960, ..Config::default() }
}

fn pair() -> [(Endpoint, SessionId); 2] {
    [0, 1].map(|end| {
        let mut endpoint = Endpoint::new(wide());
        let id = endpoint.open(Instant::ZERO, params(end, TAGS)).unwrap();
        // The first heartbeat.
        let mut collect = Collect { out: Vec::new(), room: 10 };
        endpoint.transmit(Instant::ZERO, &mut collect);
        assert_eq!(collect.out.len(), 1);
        (endpoint, id)
    })
}

fn transmit(endpoint: &mut Endpoint, now: u64) -> Vec<(Destination, Vec<u8>)> {
    let mut collect = Collect { out: Vec::new(), room: 100 };
    endpoint.transmit(Instant::from_nanos(now), &mut collect);
    collect.out
}

/// Fires timers until something is sent; when, and what.
fn wait(endpoint: &mut Endpoint, sink: &mut impl Sink) -> (u64, Vec<(Destination, Vec<u8>)>) {
    loop {
        let at = endpoint.next_deadline().unwrap();
        endpoint.on_timeout(at, sink);
        let sent = transmit(endpoint, at.as_nanos());
        if !sent.is_empty() {
            return (at.as_nanos(), sent);
        }
    }
}

fn has_message(datagram: &[u8]) -> bool {
    crate::wire::rud::Header::parse(datagram).unwrap().kind.has_message()
}

//= rud/spec.md section 5.1, RUD-18
#[test]
fn a_piggybacked_acknowledgement_takes_effect_before_the_delivery() {
    let [(mut a, a_id), (mut b, b_id)] = pair();
    let (mut at_a, mut at_b) = (Journal::default(), Journal::default());
    a.send(a_id, &[1], None, MessageToken(11)).unwrap();
    for (to, bytes) in transmit(&mut a, 100) {
        b.on_datagram(Instant::from_nanos(200), &meta(1, to.src_port), &bytes, &mut at_b);
    }
    b.send(b_id, &[2], extent_from(vec![7; 5]), MessageToken(12)).unwrap();
    let reply = transmit(&mut b, 200);
    assert_eq!(reply.len(), 1, "the reply carries the acknowledgement");
    a.on_datagram(Instant::from_nanos(300), &meta(0, reply[0].0.src_port), &reply[0].1, &mut at_a);
    assert_eq!(at_a.0, ["released 11", "deliver [2] 5"]);
    assert_eq!(a.counters(a_id).srtt, Duration::from_nanos(200));
}

#[test]
fn an_acknowledgement_that_is_due_leaves_with_data() {
    let [(mut a, a_id), (mut b, b_id)] = pair();
    let mut journal = Journal::default();
    a.set_bundles(a_id, false);
    for number in 0..u64::from(Config::default().ack_every) {
        a.send(a_id, &[], None, MessageToken(number)).unwrap();
    }
    for (to, bytes) in transmit(&mut a, 0) {
        b.on_datagram(Instant::ZERO, &meta(1, to.src_port), &bytes, &mut journal);
    }
    assert!(b.wants_transmit(), "one is due");
    b.send(b_id, &[1], None, MessageToken(0)).unwrap();
    let out = transmit(&mut b, 0);
    assert_eq!(out.iter().map(|(_, bytes)| bytes[4]).collect::<Vec<_>>(), [0x40], "data, and nothing else");
}

//= rud/spec.md section 5.5, RUD-28
#[test]
fn acknowledgements_wait_for_company() {
    let config = Config::default();
    let [(mut a, a_id), (mut b, _)] = pair();
    a.set_bundles(a_id, false);
    let mut journal = Journal::default();
    let mut exchange = |count: u64, a: &mut Endpoint, b: &mut Endpoint| {
        for number in 0..count {
            a.send(a_id, &[], None, MessageToken(number)).unwrap();
        }
        for (to, bytes) in transmit(a, 0) {
            b.on_datagram(Instant::ZERO, &meta(1, to.src_port), &bytes, &mut journal);
        }
    };
    exchange(3, &mut a, &mut b);
    assert!(transmit(&mut b, 0).is_empty(), "an acknowledgement too early");
    let due = Instant::ZERO + config.ack_delay;
    assert_eq!(b.next_deadline(), Some(due));
    exchange(u64::from(config.ack_every), &mut a, &mut b);
    assert_eq!(transmit(&mut b, 0).len(), 1, "one for the whole burst");
    exchange(1, &mut a, &mut b);
    b.on_timeout(due, &mut journal);
    assert_eq!(transmit(&mut b, due.as_nanos()).len(), 1);
    b.on_timeout(due + config.ack_delay, &mut journal);
    assert!(transmit(&mut b, due.as_nanos()).is_empty(), "nothing left to acknowledge");
}

//= rud/spec.md section 6.1, RUD-32, RUD-35, RUD-36
//= rud/spec.md section 6.3, RUD-44
#[test]
fn a_header_written_in_place_is_that_of_every_transmission() {
    let [(mut a, a_id), (mut b, _)] = pair();
    let mut journal = Journal::default();
    // A longer one was in the same slot before.
    a.send(a_id, &[9; 64], None, MessageToken(1)).unwrap();
    let before = transmit(&mut a, 0).remove(0);
    b.on_datagram(Instant::ZERO, &meta(1, before.0.src_port), &before.1, &mut journal);
    let due = b.next_deadline().unwrap();
    b.on_timeout(due, &mut journal);
    for (to, bytes) in transmit(&mut b, due.as_nanos()) {
        a.on_datagram(due, &meta(0, to.src_port), &bytes, &mut journal);
    }
    let payload = extent_from(vec![7; 5]);
    a.send_with(a_id, |header: &mut [u8; 3]| *header = [1, 2, 3], payload, MessageToken(2)).unwrap();
    let lost = transmit(&mut a, due.as_nanos() + 30);
    assert_eq!(lost.len(), 1, "and it is lost");
    a.on_timeout(Instant::from_nanos(9 * MS), &mut journal);
    for (to, bytes) in transmit(&mut a, 9 * MS) {
        b.on_datagram(Instant::from_nanos(9 * MS), &meta(1, to.src_port), &bytes, &mut journal);
    }
    for (to, bytes) in transmit(&mut b, 9 * MS) {
        a.on_datagram(Instant::from_nanos(10 * MS), &meta(0, to.src_port), &bytes, &mut journal);
    }
    // It goes before what is new, under the same PSN, and asks for its acknowledgement.
    a.send(a_id, &[4], None, MessageToken(4)).unwrap();
    let again = transmit(&mut a, 10 * MS).remove(0);
    assert_eq!((&again.1[16..20], again.1[5] & 0x80), (&lost[0].1[16..20], 0x80));
    b.on_datagram(Instant::from_nanos(11 * MS), &meta(1, again.0.src_port), &again.1, &mut journal);
    // Nobody knows which of the two the acknowledgement is of, so it measures nothing.
    let measured = a.counters(a_id).srtt;
    for (to, bytes) in transmit(&mut b, 11 * MS) {
        a.on_datagram(Instant::from_nanos(12 * MS), &meta(0, to.src_port), &bytes, &mut journal);
    }
    assert_eq!(a.counters(a_id).srtt, measured);
    let first = format!("deliver {:?} 0", [9u8; 64]);
    assert_eq!(journal.0, [first.as_str(), "released 1", "deliver [1, 2, 3] 5", "released 2"]);
    assert_eq!(
        a.send_with(SessionId(77), |_: &mut [u8; 1]| {}, None, MessageToken(3)),
        Err(SendError::Closed)
    );
}

//= rud/spec.md section 6.7, RUD-52
#[test]
fn datagrams_take_turns_over_the_paths() {
    let [(mut a, a_id), _] = pair();
    a.set_bundles(a_id, false);
    for number in 0..8 {
        a.send(a_id, &[], None, MessageToken(number)).unwrap();
    }
    let ports: Vec<u16> = transmit(&mut a, 0).iter().map(|(to, _)| to.src_port - link::PORTS[0]).collect();
    assert_eq!(ports, [1, 2, 3, 0, 1, 2, 3, 0]);
}

/// Messages one by one, so that each loss costs a time-out. A loss may be one of the message or of its acknowledgement: where half of
/// the paths die, it takes longer to find out which.
#[test]
fn paths_that_die_are_left_out_and_come_back() {
    for (dead, until_known) in [(&[3][..], 50), (&[1, 3, 4, 6, 9], 1000), (&[0, 1, 3, 4, 6, 7, 8, 9], 3000)] {
        let mut world = World::with_paths(1, delayed(5_000), 10);
        let mut number = 0;
        let mut send = |world: &mut World, count: u64| {
            let before = world.ends[0].endpoint.counters(world.ends[0].id).resent;
            for _ in 0..count {
                world.ends[0].to_send.push_back(number);
                number += 1;
                let deadline = world.now + 1000 * MS;
                world.run_to_completion(deadline, "one message");
            }
            let counters = world.ends[0].endpoint.counters(world.ends[0].id);
            (counters.resent - before, usize::from(counters.paths_out))
        };
        assert_eq!(send(&mut world, 1000), (0, 0));
        world.dead.extend(dead);
        // In turn, 500 of them would take each path.
        let (resent, out) = send(&mut world, 5000);
        assert!(resent <= until_known && out == dead.len(), "{dead:?}: {resent} resent, {out} out");
        // Trials, and nothing else.
        let (resent, out) = send(&mut world, 5000);
        assert!(resent <= 50 && out == dead.len(), "{dead:?}: {resent} resent, {out} out");
        world.dead.clear();
        let (_, out) = send(&mut world, 50_000);
        assert_eq!(out, 0, "{dead:?}");
        // The other end only acknowledges, and tries them, too: each once in a second at least.
        let until = world.now + 3000 * MS;
        while world.ends[1].endpoint.counters(world.ends[1].id).paths_out != 0 {
            assert!(world.now < until, "{dead:?}");
            send(&mut world, 1000);
        }
        assert_eq!(send(&mut world, 1000).0, 0, "{dead:?}");
        assert_eq!(world.ends[1].app.consumed.len() as u64, number);
        assert!(world.ends[1].app.consumed.values().all(|times| *times == 1));
    }
}

/// Whole exchanges take longer where one of their messages is lost, but trials of paths that are known to be dead cost them nothing.
//= rud/spec.md section 6.7, RUD-57
#[test]
fn no_message_waits_for_a_trial_of_a_dead_path() {
    for (paths, dead) in [(10, 5), (64, 6), (64, 32), (64, 60)] {
        let mut world = World::with_paths(1, delayed(5_000), paths);
        let mut number = 0;
        // A message and its answer 20 ms after the last; how long it takes, in nanoseconds.
        let mut exchange = |world: &mut World| {
            let next = world.now + 20 * MS;
            while world.now < next {
                world.step_until(next);
            }
            let begun = world.now;
            for from in [0, 1] {
                world.ends[from].to_send.push_back(number);
                while !world.ends[1 - from].app.consumed.contains_key(&number) {
                    assert!(world.now < begun + 1000 * MS);
                    world.step();
                }
                number += 1;
            }
            world.now - begun
        };
        (0..10).for_each(|_| _ = exchange(&mut world));
        world.dead.extend((0..paths).map(|path| path * 7 % paths).take(dead));
        let known = (0..3000).position(|_| {
            exchange(&mut world);
            world.ends.iter().all(|end| usize::from(end.endpoint.counters(end.id).paths_out) == dead)
        });
        assert!(known.is_some(), "{dead} of {paths}");
        let times: Vec<_> = (0..1000).map(|_| exchange(&mut world)).collect();
        let slow = times.iter().filter(|time| **time > MS).count();
        assert!(
            slow == 0,
            "{dead} of {paths} are dead: {slow} of 1000 exchanges took more than a millisecond"
        );
    }
}

#[test]
fn sessions_share_the_room() {
    let mut endpoint = Endpoint::new(wide());
    let ids = [1u64, 2, 3].map(|tag| endpoint.open(Instant::ZERO, params(0, [tag, tag << 8])).unwrap());
    transmit(&mut endpoint, 0);
    ids.iter().for_each(|id| endpoint.set_bundles(*id, false));
    for number in 0..300 {
        for id in ids {
            endpoint.send(id, &[], None, MessageToken(number)).unwrap();
        }
    }
    for _ in 0..30 {
        let mut collect = Collect { out: Vec::new(), room: 10 };
        endpoint.transmit(Instant::ZERO, &mut collect);
    }
    assert_eq!(ids.map(|id| endpoint.counters(id).sent), [100; 3]);
}

#[test]
fn ipv6_and_one_path() {
    let ips = [1u16, 2].map(|last| core::net::IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, last]));
    let mut ends = [0usize, 1].map(|end| {
        let mut endpoint = Endpoint::new(Config::default());
        let params = SessionParams {
            local_ip: ips[end],
            remote_ip: ips[1 - end],
            local_ports: [link::PORTS[end]].into(),
            ..params(end, TAGS)
        };
        let id = endpoint.open(Instant::ZERO, params).unwrap();
        transmit(&mut endpoint, 0);
        (endpoint, id)
    });
    let mut journal = Journal::default();
    let id = ends[0].1;
    ends[0].0.send(id, &[5; 64], extent_from(vec![1; 1400]), MessageToken(1)).unwrap();
    let (to, bytes) = transmit(&mut ends[0].0, 0).remove(0);
    assert_eq!((to.local_ip, to.remote_ip), (ips[0], ips[1]));
    let meta = DatagramMeta {
        src_ip: to.local_ip,
        dst_ip: to.remote_ip,
        src_port: to.src_port,
        dst_port: to.dst_port,
        congestion_experienced: false,
    };
    ends[1].0.on_datagram(Instant::ZERO, &meta, &bytes, &mut journal);
    assert_eq!(journal.0, [format!("deliver {:?} 1400", [5u8; 64])]);
    // Header, body and payload fill exactly what `payload_room` promises.
    assert_eq!(payload_room(40 + 8 + bytes.len(), &ips[0], 64), 1400);
}

/// A burst that fills the window requests acknowledgements, a message in passing does not.
//= rud/spec.md section 6.1, RUD-37
#[test]
fn a_window_that_closes_asks_for_an_acknowledgement() {
    let [(mut a, a_id), _] = pair();
    a.set_bundles(a_id, false);
    let asks = |bytes: &[u8]| bytes[5] & 0x80 != 0;
    a.send(a_id, &[], None, MessageToken(0)).unwrap();
    assert!(!asks(&transmit(&mut a, 0)[0].1));
    let mut asked = 0;
    while a.send(a_id, &[], None, MessageToken(0)).is_ok() {
        asked += transmit(&mut a, 0).iter().filter(|(_, bytes)| asks(bytes)).count();
    }
    assert_eq!(asked, 1);
}

#[test]
fn a_sender_without_room_keeps_what_it_has() {
    let [(mut a, a_id), (mut b, _)] = pair();
    let mut app = App::default();
    for number in 0..40 {
        a.send(a_id, &expected_header(number), extent_of(number), MessageToken(number)).unwrap();
    }
    for room in [0, 1, 0, 7, 100] {
        let mut collect = Collect { out: Vec::new(), room };
        a.transmit(Instant::ZERO, &mut collect);
        for (to, bytes) in collect.out {
            b.on_datagram(Instant::ZERO, &meta(1, to.src_port), &bytes, &mut app);
        }
    }
    assert!(!a.wants_transmit());
    assert_eq!((app.consumed.len(), app.corrupt), (40, 0));
}

//= rud/spec.md section 3.1, RUD-3
//= rud/spec.md section 5.1, RUD-17
#[test]
fn forged_and_misdirected_datagrams_have_no_effect() {
    let [(mut a, a_id), (mut b, b_id)] = pair();
    let mut journal = Journal::default();
    a.send(a_id, &[1, 2, 3], extent_from(vec![9; 100]), MessageToken(1)).unwrap();
    let (to, bytes) = transmit(&mut a, 0).remove(0);
    let now = Instant::ZERO;
    let right = meta(1, to.src_port);
    // Any single flipped bit, wherever it is.
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        b.on_datagram(now, &right, &flipped, &mut journal);
    }
    // Right bytes with a wrong address or port, or cut short.
    b.on_datagram(now, &DatagramMeta { src_port: right.src_port + 1, ..right }, &bytes, &mut journal);
    b.on_datagram(now, &DatagramMeta { dst_port: right.dst_port + 1, ..right }, &bytes, &mut journal);
    b.on_datagram(now, &DatagramMeta { src_ip: right.dst_ip, ..right }, &bytes, &mut journal);
    for len in 0..bytes.len() {
        b.on_datagram(now, &right, &bytes[..len], &mut journal);
    }
    assert!(journal.0.is_empty(), "{:?}", journal.0);
    let counters = b.endpoint_counters();
    assert_eq!(counters.unknown_session, 64);
    assert_eq!(counters.wrong_address, 1);
    assert_eq!(counters.crc_dropped, b.counters(b_id).crc_dropped);
    assert_eq!(
        counters.malformed + counters.unknown_session + counters.crc_dropped + counters.wrong_address,
        (bytes.len() * 8 + 3 + bytes.len()) as u64
    );
    assert!(transmit(&mut b, 0).is_empty(), "an answer");
    // Of a session that was closed.
    b.close(b_id);
    b.on_datagram(now, &right, &bytes, &mut journal);
    assert_eq!(b.endpoint_counters().unknown_session, 65);
    assert!(journal.0.is_empty());
}

//= rud/spec.md section 3.1, RUD-2
#[test]
fn sessions_are_opened_up_to_the_limit_and_ids_do_not_come_back_to_life() {
    let mut endpoint = Endpoint::new(Config { max_sessions: 2, ..Config::default() });
    let open = |endpoint: &mut Endpoint, tag| endpoint.open(Instant::ZERO, params(0, [tag, 5]));
    let first = open(&mut endpoint, 1).unwrap();
    assert_eq!(open(&mut endpoint, 1), Err(OpenError::TagInUse));
    open(&mut endpoint, 2).unwrap();
    assert_eq!(open(&mut endpoint, 3), Err(OpenError::TooMany { limit: 2 }));
    endpoint.close(first);
    endpoint.close(first);
    let third = open(&mut endpoint, 3).unwrap();
    assert_ne!(first, third);
    assert_eq!(endpoint.send(first, &[], None, MessageToken(0)), Err(SendError::Closed));
    assert_eq!((endpoint.capacity(first), endpoint.counters(first)), (0, Counters::default()));
    assert!(endpoint.send(third, &[], None, MessageToken(0)).is_ok());

    let wrong = |params| Endpoint::new(Config::default()).open(Instant::ZERO, params).unwrap_err();
    let right = params(0, TAGS);
    assert_eq!(wrong(SessionParams { local_tag: 0, ..right.clone() }), OpenError::ZeroTag);
    for ports in [vec![], vec![40_000, 0], vec![40_000; 257]] {
        let paths = ports.len();
        let local_ports = ports.into();
        assert_eq!(wrong(SessionParams { local_ports, ..right.clone() }), OpenError::Ports { paths });
    }
    assert_eq!(wrong(SessionParams { remote_port: 0, ..right.clone() }), OpenError::Ports { paths: 4 });
    let asked = MAX_DATAGRAM + 1;
    assert_eq!(
        wrong(SessionParams { max_datagram: asked, ..right.clone() }),
        OpenError::DatagramTooLong { asked, limit: MAX_DATAGRAM }
    );
    let v6 = core::net::IpAddr::from([0u16; 8]);
    assert_eq!(
        wrong(SessionParams { remote_ip: v6, ..right.clone() }),
        OpenError::MixedFamilies { local: right.local_ip, remote: v6 }
    );
}

#[test]
fn payload_room_adds_up() {
    let v4 = core::net::IpAddr::from([10, 0, 0, 1]);
    assert_eq!(payload_room(1500, &v4, 64), 1500 - 20 - 8 - HEADER - 64);
    assert_eq!(payload_room(9000, &core::net::IpAddr::from([0u16; 8]), 0), 9000 - 40 - 8 - HEADER);
    assert_eq!(payload_room(60, &v4, 64), 0);
    assert_eq!(payload_room(1 << 20, &v4, 0), MAX_DATAGRAM - HEADER);
}

/// A datagram's `held`: nanoseconds, and whether they are late.
fn held(bytes: &[u8]) -> (Option<u64>, bool) {
    let held = crate::wire::rud::Header::parse(bytes).unwrap().held;
    (held.nanos(), held.is_late())
}

//= rud/spec.md section 7.1, RUD-75
#[test]
fn a_host_that_did_not_look_says_so() {
    let [(mut a, a_id), (mut b, _)] = pair();
    let mut journal = Journal::default();
    let mut number = 0;
    // A datagram that is read at `now` and acknowledged 10 us later.
    let mut exchange = |b: &mut Endpoint, now: u64| {
        number += 1;
        a.send(a_id, &[], None, MessageToken(number)).unwrap();
        a.request_ack(a_id);
        let (to, bytes) = transmit(&mut a, now).remove(0);
        b.on_datagram(Instant::from_nanos(now), &meta(1, to.src_port), &bytes, &mut journal);
        let acks = transmit(b, now + 10_240);
        a.on_datagram(
            Instant::from_nanos(now + 20_000),
            &meta(0, acks[0].0.src_port),
            &acks[0].1,
            &mut journal,
        );
        held(&acks[0].1)
    };
    let look = |b: &mut Endpoint, now: u64, more: bool| b.on_poll(Instant::from_nanos(now), more);
    assert_eq!(exchange(&mut b, 50_000), (Some(10_240), false), "nothing is known of its looks");
    look(&mut b, 1_000_000, false);
    look(&mut b, 1_004_000, false);
    assert_eq!(exchange(&mut b, 1_004_000), (Some(10_240), false), "4 us between looks");
    look(&mut b, 2_028_000, false);
    assert_eq!(exchange(&mut b, 2_028_000), (Some(1_034_240), true), "a pause of 1,024 us");
    // Datagrams left behind have waited for the pause as well; not those that still are after as long again.
    look(&mut b, 2_028_640, true);
    assert_eq!(exchange(&mut b, 2_028_640), (Some(1_034_880), true));
    (2_029..3_100).for_each(|micros| look(&mut b, micros * 1_000, true));
    assert!(!exchange(&mut b, 3_099_000).1);
}

//= rud/spec.md section 4.3, RUD-12, RUD-13
#[test]
fn a_heartbeat_is_answered_at_once_with_its_stamp() {
    let [(mut a, a_id), (mut b, _)] = pair();
    let mut journal = Journal::default();
    a.announce(a_id);
    let (to, probe) = transmit(&mut a, 7_000).remove(0);
    b.on_datagram(Instant::from_nanos(9_000), &meta(1, to.src_port), &probe, &mut journal);
    let (to, answer) = transmit(&mut b, 9_256).remove(0);
    let stamp = |bytes: &[u8]| crate::wire::rud::Header::parse(bytes).unwrap().stamp(bytes);
    assert_eq!(stamp(&answer), stamp(&probe));
    assert_eq!(held(&answer), (Some(256), false));
    a.on_datagram(Instant::from_nanos(11_000), &meta(0, to.src_port), &answer, &mut journal);
    assert!(transmit(&mut a, 11_000).is_empty() && transmit(&mut b, 11_000).is_empty(), "and that is all");
    a.send(a_id, &[1], None, MessageToken(1)).unwrap();
    assert_eq!(transmit(&mut a, 11_000)[0].1[16..20], [0, 0, 0, 1], "none of them has taken a PSN");
}

/// Only the sessions whose time has come are made ready.
#[test]
fn a_window_below_one_sends_at_its_pace() {
    let mut world = World::with_tags(5, &Config::default(), delayed(5_000), TAGS);
    world.ends[0].to_send.extend((0..3000).map(|number| number * 5 + 2));
    // All is marked, and the window falls to its least.
    world.mark_all = true;
    while world.now < MS {
        world.step();
    }
    let end = &world.ends[0];
    let counters = end.endpoint.counters(end.id);
    assert!(counters.marked > 10, "{counters:?}");
    assert_eq!(counters.window, 1);
    assert!(
        counters.gap > Duration::from_micros(20) && counters.paced > Duration::from_micros(300),
        "{counters:?}"
    );
    assert!(!end.endpoint.wants_transmit() && end.endpoint.next_deadline().is_some());
    // As soon as it is not, the rest is sent.
    world.mark_all = false;
    world.run_to_completion(100 * MS, "without marks");
}

proptest! {
    /// Bytes of every length, with a right tag and even a right CRC, but any header: no panic, and the session
    /// still works afterwards or has only received a base that a real peer could have.
    #[test]
    fn garbage_does_not_panic(
        garbage in proptest::collection::vec((proptest::collection::vec(any::<u8>(), 0..160), any::<bool>()), 1..40),
    ) {
        let [(mut a, a_id), (mut b, _)] = pair();
        let mut journal = Journal::default();
        for number in 0..5 {
            a.send(a_id, &[number as u8], None, MessageToken(number)).unwrap();
            b.send(SessionId(0), &[number as u8], None, MessageToken(number)).unwrap();
        }
        transmit(&mut b, 0);
        for (mut bytes, dressed) in garbage {
            if dressed && bytes.len() >= HEADER {
                // As evil a peer as can be: it knows the tag and computes the CRC.
                let (kind, rest) = (bytes[4] % 6, bytes.len() - HEADER);
                let kind = if kind == 4 && rest < 4 { 0 } else { kind };
                let stamp = if [2, 3].contains(&kind) { 8 } else { 0 };
                let body = if kind == 5 { 0 } else if kind == 0 { rest.min(64) } else if kind == 4 { rest.min(bytes[5] as usize % 65 + 4) } else { rest.saturating_sub(stamp).min(54) / 18 * 18 + stamp };
                if [1, 3].contains(&kind) || bytes.len() < HEADER + body { bytes.resize(HEADER + body, 0); }
                bytes[4] = 0x40 | kind;
                bytes[5] = body as u8 | bytes[5] & 0x80;
                let payload_len = (bytes.len() - HEADER - body) as u16;
                bytes[6..8].copy_from_slice(&payload_len.to_be_bytes());
                bytes[8..16].copy_from_slice(&TAGS[1].to_be_bytes());
                bytes[16..18].copy_from_slice(&[0, 0]);
                bytes[20..22].copy_from_slice(&[0, 0]);
                bytes[32] &= 0x0f;
                bytes[34] &= 0x80;
                bytes[35] &= 63;
                if stamp == 8 && body > 8 && bytes[32] & 1 != 0 {
                    // The block of a bundle that was sent.
                    bytes[22..24].copy_from_slice(&[0, 1]);
                    bytes[HEADER..HEADER + 2].copy_from_slice(&[0x80, 1]);
                }
                let front = HEADER + body;
                let addresses = crc::addresses(link::IPS[0], link::IPS[1]);
                let payload_crc = crate::crc::crc32c(&bytes[front..]);
                let (fixed, rest) = bytes.split_first_chunk_mut().unwrap();
                crc::seal(fixed, &rest[..body], addresses, (40_000, link::PORTS[1]), payload_crc);
            }
            b.on_datagram(Instant::from_nanos(10), &meta(1, 40_000), &bytes, &mut journal);
            b.on_timeout(Instant::from_nanos(10), &mut journal);
            transmit(&mut b, 10);
        }
    }
}
