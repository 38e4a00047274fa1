//! Small messages that share datagrams.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::link::SMALL;
use super::requirements::dressed;
use super::*;
use crate::device::FramesOut;
use crate::region::Extent;
use crate::wire::rud::{Bundled, DatagramKind, HEADER_LEN, Header, MAX_BUNDLED};

fn kind(bytes: &[u8]) -> DatagramKind {
    Header::parse(bytes).unwrap().kind
}

/// Gives datagrams to the other end, `to`.
fn deliver(out: &[(Destination, Vec<u8>)], to: usize, endpoint: &mut Endpoint, sink: &mut impl Sink) {
    for (destination, bytes) in out {
        endpoint.on_datagram(Instant::ZERO, &meta(to, destination.src_port), bytes, sink);
    }
}

fn queue(endpoint: &mut Endpoint, id: SessionId, numbers: impl Iterator<Item = u64>) {
    for number in numbers {
        let header = expected_header(number);
        endpoint.send(id, &header, extent_of(number), MessageToken(number)).unwrap();
    }
}

//= rud/spec.md section 6.9, RUD-69, RUD-70
#[test]
fn small_messages_of_one_turn_share_datagrams() {
    let [(mut a, a_id), (mut b, _)] = pair();
    let (mut at_a, mut at_b) = (App::default(), App::default());
    for number in 0..100 {
        a.send(a_id, &[], extent_from(vec![number; 32]), MessageToken(number.into())).unwrap();
    }
    let out = transmit(&mut a, 0);
    // 34 bytes each, of 1,160.
    let counts: Vec<usize> =
        out.iter().map(|(_, bytes)| Bundled::new(&bytes[HEADER_LEN..]).count()).collect();
    assert_eq!(counts, [34, 34, 32]);
    assert!(out.iter().all(|(_, bytes)| kind(bytes) == DatagramKind::Bundle && bytes.len() <= 1200));
    assert_eq!(a.counters(a_id).sent, 3);
    // Never more than a block can tell apart.
    (0..100).for_each(|number| a.send(a_id, &[], None, MessageToken(number)).unwrap());
    let out = transmit(&mut a, 0);
    let counts: Vec<usize> =
        out.iter().map(|(_, bytes)| Bundled::new(&bytes[HEADER_LEN..]).count()).collect();
    assert_eq!(counts, [MAX_BUNDLED, 36]);
    // A message alone is not a bundle, nor does a large one join; those that are small go first.
    let [(mut a, a_id), _] = pair();
    queue(&mut a, a_id, [SMALL].into_iter());
    assert_eq!(kind(&transmit(&mut a, 0)[0].1), DatagramKind::Data);
    queue(&mut a, a_id, [SMALL, 3, SMALL + 1, SMALL + 2, 4].into_iter());
    let out = transmit(&mut a, 0);
    let kinds: Vec<DatagramKind> = out.iter().map(|(_, bytes)| kind(bytes)).collect();
    assert_eq!(kinds, [DatagramKind::Bundle, DatagramKind::Data, DatagramKind::Data]);
    deliver(&out, 1, &mut b, &mut at_b);
    assert_eq!((at_b.order, at_b.corrupt), (vec![SMALL, SMALL + 1, SMALL + 2, 3, 4], 0));
    // The whole datagram is acknowledged, and so each of its messages.
    b.on_timeout(Instant::ZERO + Config::default().ack_delay, &mut App::default());
    deliver(&transmit(&mut b, 30_000), 0, &mut a, &mut at_a);
    let released: Vec<u64> = at_a.released.into_keys().collect();
    assert_eq!(released, [3, 4, SMALL, SMALL + 1, SMALL + 2]);
}

/// Refuses the messages with certain first bytes.
#[derive(Default)]
struct Picky {
    refuse: Vec<u8>,
    consumed: Vec<u8>,
}

impl Sink for Picky {
    fn deliver(&mut self, _: SessionId, header: &[u8], _: &[u8]) -> Disposition {
        if self.refuse.contains(&header[0]) {
            return Disposition::Refused(RefusalReason::NoMemory);
        }
        self.consumed.push(header[0]);
        Disposition::Consumed
    }
    fn released(&mut self, _: SessionId, _: MessageToken) {}
    fn failed(&mut self, _: SessionId, why: Failure) {
        panic!("{why}");
    }
}

//= rud/spec.md section 5.3, RUD-23
//= rud/spec.md section 5.5, RUD-30
//= rud/spec.md section 6.2, RUD-40
//= rud/spec.md section 6.9, RUD-71
#[test]
fn each_message_of_a_bundle_has_its_own_verdict() {
    let [(mut a, a_id), (mut b, b_id)] = pair();
    let mut at_b = Picky { refuse: vec![1, 4], ..Picky::default() };
    (0..6).for_each(|number| a.send(a_id, &[number], None, MessageToken(number.into())).unwrap());
    let first = transmit(&mut a, 0);
    assert_eq!(first.len(), 1);
    deliver(&first, 1, &mut b, &mut at_b);
    assert_eq!(at_b.consumed, [0, 2, 3, 5]);
    // A copy of it is a duplicate, and has the verdict told again.
    let verdict = transmit(&mut b, 0);
    deliver(&first, 1, &mut b, &mut at_b);
    assert_eq!((at_b.consumed.len(), b.counters(b_id).duplicates), (4, 1));
    let again = transmit(&mut b, 0);
    assert_eq!((verdict.len(), again.len()), (1, 1));
    for (verdict, released) in [(again, &[0, 2, 3, 5][..]), (verdict, &[])] {
        let mut at_a = App::default();
        deliver(&verdict, 0, &mut a, &mut at_a);
        assert_eq!(at_a.released.into_keys().collect::<Vec<_>>(), released);
        assert_eq!(a.counters(a_id).refused_by_peer, 2);
    }
    // The others come again, as one datagram with a new PSN.
    assert!(transmit(&mut a, 0).iter().all(|(_, bytes)| !kind(bytes).has_message()));
    let due = Instant::ZERO + Config::default().refusal_backoff;
    a.on_timeout(due, &mut App::default());
    let second = transmit(&mut a, due.as_nanos());
    assert_eq!(second.len(), 1);
    at_b.refuse = vec![1];
    deliver(&second, 1, &mut b, &mut at_b);
    assert_eq!(at_b.consumed, [0, 2, 3, 5, 4]);
    let mut at_a = App::default();
    deliver(&transmit(&mut b, 0), 0, &mut a, &mut at_a);
    assert_eq!(at_a.released.into_keys().collect::<Vec<_>>(), [4]);
    // Those that are queued meanwhile do not wait with it.
    (6..8).for_each(|number| a.send(a_id, &[number], None, MessageToken(number.into())).unwrap());
    deliver(&transmit(&mut a, due.as_nanos()), 1, &mut b, &mut at_b);
    assert_eq!(at_b.consumed, [0, 2, 3, 5, 4, 6, 7]);
}

#[test]
fn bundles_on_a_bad_network_lose_and_repeat_nothing() {
    let (mut bundles, mut refused) = (0, 0);
    for seed in 0..400 {
        let what = format!("seed {seed}");
        let mut world = World::new(seed, &Config::default(), faulty());
        for end in &mut world.ends {
            end.app.refuse = [0.0, 0.02, 0.3, 0.5][seed as usize % 4];
            // Large ones between them, here and there.
            end.to_send.extend((0..1000).map(|i| if i % 97 == 5 { i } else { SMALL + i }));
        }
        world.run_to_completion(100_000 * MS, &what);
        assert_exact(&world, 1000, &what);
        for (end, peer) in [(0, 1), (1, 0)] {
            let counters = world.ends[end].endpoint.counters(world.ends[end].id);
            assert_eq!(counters.refused_by_peer, u64::from(world.ends[peer].app.refusals), "{what}");
            bundles += counters.sent;
            refused += counters.refused_by_peer;
        }
    }
    assert!(bundles < 300_000 && refused > 200_000, "{bundles} {refused}");
}

#[test]
fn a_fence_leaves_bundles_whole() {
    let mut world = World::new(1, &Config::default(), LinkConfig { loss: 0.2, ..delayed(10_000) });
    world.ends[0].to_send.extend((0..500).map(|i| SMALL + i));
    for _ in 0..3 {
        world.step();
        let end = &mut world.ends[0];
        end.endpoint.fence(end.id);
    }
    world.run_to_completion(500 * MS, "fenced");
    assert_exact_at(&world, 500);
}

fn assert_exact_at(world: &World, messages: usize) {
    let app = &world.ends[1].app;
    assert_eq!((app.consumed.len(), world.ends[0].app.released.len()), (messages, messages));
    assert!(app.consumed.values().all(|times| *times == 1));
}

//= rud/spec.md section 4.2, RUD-10
//= rud/spec.md section 5.1, RUD-17
#[test]
fn a_malformed_bundle_has_no_effect() {
    let [(mut a, a_id), (mut b, b_id)] = pair();
    (0..3).for_each(|number| a.send(a_id, &[number], None, MessageToken(number.into())).unwrap());
    let out = transmit(&mut a, 0);
    let bundle = Header::parse(&out[0].1).unwrap();
    let (mut journal, right) = (Journal::default(), meta(1, 40_000));
    let long_header = [&[65, 0][..], &[0; 65]].concat();
    let malformed: [&[u8]; 5] =
        [&[], &[1, 0, 7, 9], &[0, 0, 1, 5, 8], &[0; 2 * MAX_BUNDLED + 2], &long_header];
    for payload in malformed {
        b.on_datagram(Instant::ZERO, &right, &dressed(bundle, &[], payload), &mut journal);
    }
    assert_eq!((b.endpoint_counters().malformed, journal.0.len()), (5, 0));
    assert_eq!(b.counters(b_id), Counters { crc_dropped: 0, ..b.counters(b_id) });
    let whole = dressed(bundle, &[], &out[0].1[HEADER_LEN..]);
    b.on_datagram(Instant::ZERO, &right, &whole, &mut journal);
    assert_eq!(journal.0, ["deliver [0] 0", "deliver [1] 0", "deliver [2] 0"]);
}

#[test]
fn a_million_damaged_bundles_deliver_nothing() {
    let [(mut a, a_id), (mut b, b_id)] = pair();
    queue(&mut a, a_id, SMALL..SMALL + 10);
    let (to, bytes) = transmit(&mut a, 0).remove(0);
    let mut rng = SmallRng::seed_from_u64(7);
    let mut journal = Journal::default();
    let mut damaged = bytes.clone();
    for _ in 0..1_000_000 {
        for _ in 0..rng.random_range(1..6) {
            let bit = rng.random_range(0..damaged.len() * 8);
            damaged[bit / 8] ^= 1 << (bit % 8);
        }
        if damaged != bytes {
            b.on_datagram(Instant::ZERO, &meta(1, to.src_port), &damaged, &mut journal);
        }
        damaged.copy_from_slice(&bytes);
    }
    assert!(journal.0.is_empty(), "{:?}", journal.0);
    assert_eq!(b.counters(b_id).received, 0);
    assert!(b.counters(b_id).crc_dropped > 500_000);
}

/// Keeps the payload of what is emitted, as a device does that reads it later.
#[derive(Default)]
struct Keep(Vec<Extent>);

impl Emit for Keep {
    fn room(&self) -> usize {
        64
    }
    fn emit(&mut self, _: &Destination, _: &[u8], payload: Option<Extent>) -> bool {
        self.0.extend(payload);
        true
    }
}

#[test]
fn the_memory_of_a_bundle_rests_while_a_frame_may_refer_to_it() {
    for close in [false, true] {
        let [(mut a, a_id), (mut b, _)] = pair();
        queue(&mut a, a_id, SMALL + 10..SMALL + 14);
        let mut kept = Keep::default();
        a.transmit(Instant::ZERO, &mut kept);
        a.set_frames_out(FramesOut::Held);
        let bytes = kept.0[0].as_bytes().to_vec();
        if close {
            a.close(a_id);
            assert!(a.awaits_frames());
        } else {
            // Acknowledged, and many others follow.
            let (mut at_a, mut at_b) = (App::default(), App::default());
            let [(mut twin, _), _] = pair();
            queue(&mut twin, a_id, SMALL + 10..SMALL + 14);
            deliver(&transmit(&mut twin, 0), 1, &mut b, &mut at_b);
            b.on_timeout(Instant::ZERO + Config::default().ack_delay, &mut at_b);
            deliver(&transmit(&mut b, 30_000), 0, &mut a, &mut at_a);
            // The messages were copied, so they are released; the copies rest.
            assert!(at_a.released.len() == 4 && a.awaits_frames());
            queue(&mut a, a_id, SMALL + 20..SMALL + 90);
            a.transmit(Instant::ZERO, &mut Keep::default());
            assert_eq!(kept.0[0].as_bytes(), bytes, "it was written while a device may read it");
        }
        assert_eq!(kept.0[0].as_bytes(), bytes);
        a.release_held(&mut App::default());
        assert!(!a.awaits_frames());
    }
}

/// An acknowledgement is to prove that a device has read the only datagram that it reads late.
#[test]
fn a_datagram_is_lent_when_it_is_first_sent_and_kept_when_it_is_sent_again() {
    let [(mut a, a_id), _] = pair();
    a.send(a_id, &[], extent_from(vec![1; 1400]), MessageToken(1)).unwrap();
    let mut lent = vec![];
    for now in (0..1_000_000_000).step_by(1_000_000) {
        a.on_timeout(Instant::from_nanos(now), &mut App::default());
        let mut kept = Keep::default();
        a.transmit(Instant::from_nanos(now), &mut kept);
        lent.extend(kept.0.iter().filter(|extent| extent.len() == 1400).map(Extent::is_lent));
    }
    assert!(lent.len() >= 3 && lent[0] && !lent[1..].contains(&true), "{lent:?}");
}

//= rud/spec.md section 6.10, RUD-73
#[test]
fn neither_small_messages_nor_large_ones_take_all_the_room() {
    let most = u64::from(Config::default().window_packets);
    let full = |endpoint: &mut Endpoint, id, bytes: usize| {
        let mut taken = 0;
        while endpoint.send(id, &[], extent_from(vec![1; bytes]), MessageToken(taken)).is_ok() {
            taken += 1;
        }
        taken
    };
    // Of 255 bytes, four share a datagram.
    for (first, then, at_first, later) in [(255, 1400, 4 * most, 61), (1400, 255, most, 4 * 61)] {
        let [(mut a, a_id), _] = pair();
        assert_eq!(full(&mut a, a_id, first), at_first);
        assert_eq!(full(&mut a, a_id, then), later);
    }
}

//= rud/spec.md section 6.11, RUD-74
#[test]
fn a_sender_says_when_more_large_messages_would_only_wait() {
    let [(mut a, a_id), _] = pair();
    // Small ones do not count.
    queue(&mut a, a_id, SMALL..SMALL + 200);
    let fills = |a: &mut Endpoint| {
        let mut taken = 0;
        while !a.is_ahead(a_id) {
            a.send(a_id, &[], extent_from(vec![1; 1400]), MessageToken(7)).unwrap();
            taken += 1;
        }
        taken
    };
    let window = a.counters(a_id).window;
    assert_eq!(fills(&mut a), window.clamp(8, 64));
    assert_eq!(fills(&mut a), 0);
    // So many more as have left.
    let sent = transmit(&mut a, 0).iter().filter(|(_, bytes)| kind(bytes) == DatagramKind::Data).count();
    assert!(sent > 0);
    assert_eq!(fills(&mut a), sent as u32);
    // It takes more all the same.
    a.send(a_id, &[], extent_from(vec![1; 1400]), MessageToken(7)).unwrap();
}

/// More would not wait: it would be refused for good, which the upper layer has to see.
#[test]
fn a_session_that_has_failed_is_not_ahead() {
    let [(mut a, a_id), _] = pair();
    while !a.is_ahead(a_id) {
        a.send(a_id, &[], extent_from(vec![1; 1400]), MessageToken(7)).unwrap();
    }
    let mut app = App::default();
    for now in (0..30_000 * MS).step_by(10 * MS as usize) {
        a.on_timeout(Instant::from_nanos(now), &mut app);
        transmit(&mut a, now);
        // As many wait as before it failed.
        while app.failures.is_empty() && !a.is_ahead(a_id) {
            a.send(a_id, &[], extent_from(vec![1; 1400]), MessageToken(7)).unwrap();
        }
    }
    assert!(!app.failures.is_empty());
    assert!(!a.is_ahead(a_id));
    assert_eq!(a.send(a_id, &[], extent_from(vec![1; 1400]), MessageToken(7)), Err(SendError::Failed));
}

#[test]
fn the_memory_of_bundles_is_given_back_when_the_session_is_idle() {
    let [(mut a, a_id), (mut b, _)] = pair();
    let (mut at_a, mut at_b) = (App::default(), App::default());
    queue(&mut a, a_id, SMALL..SMALL + 500);
    let config = Config::default();
    let (mut now, mut most) = (0, 0);
    while now < 2 * config.heartbeat.as_nanos() as u64 {
        let at = Instant::from_nanos(now);
        a.on_timeout(at, &mut at_a);
        deliver(&transmit(&mut a, now), 1, &mut b, &mut at_b);
        b.on_timeout(at, &mut at_b);
        deliver(&transmit(&mut b, now), 0, &mut a, &mut at_a);
        most = most.max(a.bundles(a_id));
        now += 10_000_000;
    }
    assert_eq!((at_a.released.len(), at_b.consumed.len()), (500, 500));
    assert!(most > 10, "{most}");
    assert_eq!(a.bundles(a_id), 0);
    // They come back with the next ones.
    queue(&mut a, a_id, SMALL + 500..SMALL + 502);
    deliver(&transmit(&mut a, now), 1, &mut b, &mut at_b);
    assert_eq!((a.bundles(a_id), at_b.consumed.len()), (1, 502));
}

//= rud/spec.md section 6.10, RUD-72
#[test]
fn a_small_message_overtakes_five_megabytes_that_are_queued() {
    let config = Config { window_packets: 4032, window_bytes: 8 << 20, ..Config::default() };
    // Nanoseconds until a message of 64 bytes has arrived behind 4,000 of 1,400 bytes, on a link of 10 Gb/s.
    let time_behind_bulk = |goes_first: bool| {
        let link = LinkConfig { bits_per_second: 10_000_000_000, ..delayed(10_000) };
        let mut world = World::new(1, &config, link);
        let end = &mut world.ends[0];
        end.endpoint.set_bundles(end.id, goes_first);
        end.to_send.extend((0..).filter(|number| number % 5 > 1).take(4000));
        world.step();
        let (now, end) = (world.now, &mut world.ends[0]);
        queue(&mut end.endpoint, end.id, [SMALL + 64].into_iter());
        while !world.ends[1].app.consumed.contains_key(&(SMALL + 64)) {
            world.step();
        }
        let took = world.now - now;
        world.run_to_completion(100 * MS, "bulk");
        took
    };
    let (first, last) = (time_behind_bulk(true), time_behind_bulk(false));
    assert!(first < 60_000, "{first} ns, for a round trip of 20 us");
    assert!(last > 4_000_000, "{last} ns");
}

#[test]
fn the_last_of_the_large_ones_asks_where_the_small_one_behind_them_goes_first() {
    for (large, asked) in [(0, true), (2, true), (2, false)] {
        let [(mut a, a_id), _] = pair();
        for number in 0..large {
            a.send(a_id, &[], extent_from(vec![1; 1000]), MessageToken(number)).unwrap();
        }
        a.send(a_id, &[], extent_from(vec![2; 64]), MessageToken(9)).unwrap();
        if asked {
            a.request_ack(a_id);
        }
        let out = transmit(&mut a, 0);
        let asks: Vec<_> = out.iter().map(|(_, bytes)| Header::parse(bytes).unwrap().ack_request).collect();
        assert_eq!(asks.last(), Some(&asked), "{asks:?}");
    }
}

//= rud/spec.md section 6.10, RUD-72
#[test]
fn large_messages_get_their_turn_beside_small_ones() {
    let [(mut a, a_id), _] = pair();
    a.send(a_id, &[], extent_from(vec![1; 1000]), MessageToken(0)).unwrap();
    let mut sent = 0;
    // Each fills most of a bundle.
    for turn in 0..20 {
        (0..50)
            .for_each(|number| a.send(a_id, &[], extent_from(vec![2; 250]), MessageToken(number)).unwrap());
        let mut collect = Collect { out: Vec::new(), room: 10 };
        a.transmit(Instant::ZERO, &mut collect);
        sent += collect.out.iter().filter(|(_, bytes)| kind(bytes) == DatagramKind::Bundle).count();
        if collect.out.iter().any(|(_, bytes)| kind(bytes) == DatagramKind::Data) {
            assert!((8..=9).contains(&sent), "after {sent}");
            return;
        }
        assert!(turn < 10, "{sent} small ones and no large one");
    }
}
