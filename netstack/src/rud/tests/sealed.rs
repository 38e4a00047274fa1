//! Sealed sessions: what is on the wire, what is refused, and the same guarantees as without.

use std::collections::HashSet;

use super::link::sealed_params;
use super::requirements::vectors;
use super::*;
use crate::wire::rud::{DatagramKind, HEADER_LEN, Header, SEAL_LEN};

/// The numbers of an epoch.
const EPOCH: u64 = 1 << 24;

pub(super) fn sealed_pair() -> [(Endpoint, SessionId); 2] {
    [0, 1].map(|end| {
        let mut endpoint = Endpoint::new(wide());
        let id = endpoint.open(Instant::ZERO, sealed_params(end, TAGS)).unwrap();
        (endpoint, id)
    })
}

/// Datagrams that another implementation has sealed (OpenSSL's, by Python's `cryptography` 48), from the specification alone:
///
/// ```python
/// key = HKDF(SHA256(), 32, None, b"shouter rud seal" + pack(">QQ", tag, number >> 24)).derive(bytes(range(32)))
/// head = pack(">IBBHQIIQHHHH", number & 0xffffffff, 0x48, 3, 5, tag, 1, 1, 0, 0, 0, 0, 0)
/// head + AESGCM(key).encrypt(bytes(4) + pack(">Q", number), b"abc" + b"hello", head)
/// ```
///
/// They are those of the specification, after the one that is not sealed. Numbers of the first epoch, of the second one, and above 2^32.
const NUMBERS: [u64; 3] = [0, EPOCH + 5, (1 << 32) + 7];

//= rud/spec.md section 10.1, RUD-91, RUD-92
//= rud/spec.md section 10.3, RUD-95
#[test]
fn it_seals_and_opens_as_another_implementation_does() {
    let vectors = vectors();
    assert_eq!(vectors.len(), 1 + NUMBERS.len());
    for (number, sealed) in NUMBERS.into_iter().zip(&vectors[1..]) {
        let [(mut a, a_id), (mut b, b_id)] = sealed_pair();
        a.seal_mut(a_id).count_from(number);
        b.seal_mut(b_id).count_from(number);
        a.send(a_id, b"abc", extent_from(b"hello".to_vec()), MessageToken(1)).unwrap();
        let (to, bytes) = transmit(&mut a, 0).remove(0);
        assert_eq!(&bytes, sealed, "number {number}");
        let mut journal = Journal::default();
        b.on_datagram(Instant::ZERO, &meta(1, to.src_port), sealed, &mut journal);
        assert_eq!(journal.0, [format!("deliver {:?} 5", b"abc")]);
    }
}

//= rud/spec.md section 5.1, RUD-17
//= rud/spec.md section 10.4, RUD-99
#[test]
fn no_changed_byte_has_an_effect() {
    for enlisted in [false, true] {
        let [(mut a, a_id), (mut b, mut b_id)] = sealed_pair();
        if enlisted {
            b = Endpoint::new(wide());
            b_id = b.enlist(sealed_params(1, TAGS)).unwrap();
        }
        let mut journal = Journal::default();
        a.send(a_id, &[1, 2, 3], extent_from(vec![9; 100]), MessageToken(1)).unwrap();
        let (to, bytes) = transmit(&mut a, 0).remove(0);
        let (now, right) = (Instant::ZERO, meta(1, to.src_port));
        let mut wrong = 0;
        let mut refuse = |b: &mut Endpoint, meta: &DatagramMeta, bytes: &[u8]| {
            b.on_datagram(now, meta, bytes, &mut journal);
            wrong += 1;
        };
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            refuse(&mut b, &right, &flipped);
        }
        for len in 0..bytes.len() {
            refuse(&mut b, &right, &bytes[..len]);
        }
        refuse(&mut b, &right, &[&bytes[..], &[0]].concat());
        refuse(&mut b, &DatagramMeta { src_ip: right.dst_ip, ..right }, &bytes);
        assert!(journal.0.is_empty(), "{:?}", journal.0);
        assert_eq!(b.has_begun(b_id), !enlisted);
        assert_eq!(b.counters(b_id).received + b.counters(b_id).acks_received, 0);
        let counters = b.endpoint_counters();
        let dropped = counters.malformed + counters.unknown_session + counters.crc_dropped;
        assert_eq!((dropped + counters.wrong_address, counters.wrong_address), (wrong, 1));
        assert!(counters.crc_dropped > 900, "{counters:?}");
        // The datagram itself is taken after all of that, once.
        b.on_datagram(now, &right, &bytes, &mut journal);
        b.on_datagram(now, &right, &bytes, &mut journal);
        assert_eq!((journal.0.len(), b.endpoint_counters().replayed), (1, 1));
    }
}

//= rud/spec.md section 10, RUD-90
#[test]
fn a_session_takes_sealed_datagrams_or_others_and_not_both() {
    let ends = |sealed: bool| {
        [0, 1].map(|end| {
            let mut endpoint = Endpoint::new(wide());
            let params = if sealed { sealed_params(end, TAGS) } else { params(end, TAGS) };
            (endpoint.open(Instant::ZERO, params.clone()).unwrap(), endpoint, params)
        })
    };
    for sealed in [false, true] {
        let [(id, mut from, _), _] = ends(sealed);
        let [_, (to_id, mut to, params)] = ends(!sealed);
        let mut enlisted = Endpoint::new(wide());
        let enlisted_id = enlisted.enlist(params).unwrap();
        let mut journal = Journal::default();
        from.send(id, &[1], None, MessageToken(1)).unwrap();
        for (dest, bytes) in transmit(&mut from, 0) {
            to.on_datagram(Instant::ZERO, &meta(1, dest.src_port), &bytes, &mut journal);
            enlisted.on_datagram(Instant::ZERO, &meta(1, dest.src_port), &bytes, &mut journal);
        }
        assert!(journal.0.is_empty() && !enlisted.has_begun(enlisted_id));
        assert_eq!((to.counters(to_id).crc_dropped, enlisted.endpoint_counters().crc_dropped), (2, 1));
    }
}

//= rud/spec.md section 10, RUD-90
//= rud/spec.md section 10.2, RUD-93
#[test]
fn nothing_of_bodies_and_payloads_is_in_clear_and_no_number_is_used_twice() {
    let mut world = World::sealed(3, &Config::default(), faulty(), EPOCH - 300);
    world.recorded = Some(vec![]);
    for end in &mut world.ends {
        end.to_send.extend(0..400);
    }
    world.run_to_completion(2_000 * MS, "sealed");
    assert_exact(&world, 400, "sealed");
    let recorded = world.recorded.take().unwrap();
    let resent: u64 = world.ends.iter().map(|end| end.endpoint.counters(end.id).resent).sum();
    assert!(resent > 20 && recorded.len() > 900, "{resent} of {}", recorded.len());
    let mut numbers = [HashSet::new(), HashSet::new()];
    let headers: HashSet<Vec<u8>> = (0..400).map(|number| expected_header(number)[..8].to_vec()).collect();
    for (from, datagram) in &recorded {
        let (header, number) = Header::parse_sealed(&datagram.bytes).unwrap();
        assert!(numbers[*from].insert(number), "{number} twice");
        let text = &datagram.bytes[HEADER_LEN..];
        if header.kind == DatagramKind::Data && header.payload_len == 1400 {
            // Plain payloads have 256 values in a period of 2,048 bytes; neighbours differ by few bits.
            assert_eq!(text.windows(8).find(|bytes| headers.contains(*bytes)), None);
        }
    }
    assert!(
        numbers
            .iter()
            .all(|own| (EPOCH - 300..EPOCH - 300 + own.len() as u64).all(|n| own.contains(&(n as u32))))
    );
}

#[test]
fn sealed_sessions_are_exact_whatever_is_lost_damaged_or_late_and_whenever_keys_change() {
    for seed in 0..200 {
        let what = format!("seed {seed}");
        // The key changes, and the lower half of the number begins anew, in the middle of it.
        let first = [0, EPOCH - 60, 41 * EPOCH - 90, (1 << 32) - 100][seed as usize % 4];
        let mut world = World::sealed(seed, &Config::default(), faulty(), first);
        for end in &mut world.ends {
            end.app.refuse = if seed % 8 == 0 { 0.05 } else { 0.0 };
            end.to_send.extend(0..150);
        }
        world.run_to_completion(2_000 * MS, &what);
        assert_exact(&world, 150, &what);
        for end in &mut world.ends {
            assert!(end.endpoint.seal_mut(end.id).next() > first + 150, "{what}");
        }
    }
}

//= rud/spec.md section 10.4, RUD-98
#[test]
fn what_was_recorded_has_no_effect_of_any_kind_when_it_comes_again() {
    let config =
        Config { dead_after: Duration::from_secs(2), heartbeat: Duration::from_millis(250), ..wide() };
    let mut world = World::sealed(9, &config, delayed(10_000), 0);
    world.recorded = Some(vec![]);
    for end in &mut world.ends {
        end.to_send.extend(0..200);
    }
    world.run_to_completion(1_000 * MS, "at first");
    let later = world.now + 1_000 * MS;
    while world.now < later {
        world.step();
    }
    // One end dies, and somebody sends all that it has ever sent, again and again.
    let recorded = world.recorded.take().unwrap();
    let kinds: HashSet<u8> = recorded.iter().map(|(_, datagram)| datagram.bytes[4] & 7).collect();
    assert!([0, 2, 3].iter().all(|kind| kinds.contains(kind)), "data, probes and answers: {kinds:?}");
    world.ends[1].alive = false;
    let (counters, others) = {
        let end = &world.ends[0];
        (end.endpoint.counters(end.id), end.endpoint.endpoint_counters())
    };
    let mut times = 0;
    let begun = world.now;
    while world.ends[0].app.failures.is_empty() {
        assert!(world.now < begun + 3_000 * MS, "it is taken for alive");
        let end = &mut world.ends[0];
        for (_, datagram) in recorded.iter().filter(|(from, _)| *from == 1) {
            let meta = meta(0, datagram.src_port);
            end.endpoint.on_datagram(Instant::from_nanos(world.now), &meta, &datagram.bytes, &mut end.app);
            times += 1;
        }
        world.step();
    }
    assert!(matches!(world.ends[0].app.failures[..], [Failure::PeerSilent { .. }]));
    let end = &world.ends[0];
    let after = end.endpoint.counters(end.id);
    assert_eq!(after.duplicates + after.acks_received, counters.duplicates + counters.acks_received);
    assert_eq!(
        (after.received, after.srtt, after.window),
        (counters.received, counters.srtt, counters.window)
    );
    // Those sent last may still have been on their way.
    let replayed = end.endpoint.endpoint_counters().replayed - others.replayed;
    assert!(times > 1_000 && replayed >= times - 10, "{replayed} of {times}");
}

//= rud/spec.md section 10.2, RUD-93
#[test]
fn a_session_that_rests_goes_on_with_its_numbers() {
    let mut ends = [0, 1].map(|end| {
        let mut endpoint = Endpoint::new(wide());
        let id = endpoint.enlist(sealed_params(end, TAGS)).unwrap();
        (endpoint, id)
    });
    let mut journal = Journal::default();
    let mut numbers = HashSet::new();
    for round in 1..=5 {
        for (endpoint, id) in &mut ends {
            endpoint.announce(*id);
        }
        let sent = ends.each_mut().map(|(endpoint, _)| transmit(endpoint, 0));
        for (from, sent) in sent.iter().enumerate() {
            for (to, bytes) in sent {
                assert!(numbers.insert((from, bytes[..4].to_vec())), "a number is used twice");
                let (endpoint, _) = &mut ends[1 - from];
                endpoint.on_datagram(Instant::ZERO, &meta(1 - from, to.src_port), bytes, &mut journal);
            }
        }
        for (endpoint, id) in &mut ends {
            assert_eq!(endpoint.counters(*id).acks_received, 1);
            endpoint.rest(*id);
            assert!(!endpoint.has_begun(*id), "round {round}");
        }
        // What came before is not taken again by one that has begun anew.
        let (endpoint, id) = &mut ends[0];
        endpoint.announce(*id);
        for (to, bytes) in &sent[1] {
            endpoint.on_datagram(Instant::ZERO, &meta(0, to.src_port), bytes, &mut journal);
        }
        assert_eq!(endpoint.counters(*id).acks_received, 0);
        endpoint.rest(*id);
    }
    assert_eq!(numbers.len(), 10);
    // Data wakes the other end.
    let id = ends[0].1;
    ends[0].0.send(id, &[4], None, MessageToken(1)).unwrap();
    for (to, bytes) in transmit(&mut ends[0].0, 0) {
        ends[1].0.on_datagram(Instant::ZERO, &meta(1, to.src_port), &bytes, &mut journal);
    }
    assert_eq!(journal.0, ["deliver [4] 0"]);
}

//= rud/spec.md section 10.3, RUD-96
//= rud/spec.md section 6.8, RUD-59
#[test]
fn a_datagram_is_no_longer_than_one_without_a_seal() {
    let [(mut a, a_id), (mut b, _)] = sealed_pair();
    let most = sealed_params(0, TAGS).max_datagram;
    let room = most - HEADER_LEN - SEAL_LEN - 8;
    assert_eq!(a.payload_limit(a_id, 8), room);
    let too_long = a.send(a_id, &[1; 8], extent_from(vec![1; room + 1]), MessageToken(0));
    assert_eq!(too_long, Err(SendError::PayloadTooLong { len: room + 1, limit: room }));
    a.send(a_id, &[1; 8], extent_from(vec![1; room]), MessageToken(0)).unwrap();
    let (to, bytes) = transmit(&mut a, 0).remove(0);
    assert_eq!(bytes.len(), most);
    let mut journal = Journal::default();
    b.on_datagram(Instant::ZERO, &meta(1, to.src_port), &bytes, &mut journal);
    assert_eq!(journal.0, [format!("deliver {:?} {room}", [1; 8])]);
    let same = SessionParams { remote_tag: TAGS[0], ..sealed_params(0, TAGS) };
    assert_eq!(Endpoint::new(wide()).open(Instant::ZERO, same), Err(OpenError::SameTags));
}

//= rud/spec.md section 6.8
#[test]
fn a_narrow_path_is_found_and_carries_pieces_that_are_sealed() {
    for carries in [1_200, 1_264, 1_400] {
        let what = format!("{carries} bytes");
        let mut world = World::sealed(4, &Config::default(), LinkConfig { loss: 0.01, ..delayed(10_000) }, 0);
        world.carries = [carries; 2];
        world.recorded = Some(vec![]);
        for end in &mut world.ends {
            end.to_send.extend(0..400);
        }
        world.run_to_completion(2_000 * MS, &what);
        assert_exact(&world, 400, &what);
        for end in &world.ends {
            let counters = end.endpoint.counters(end.id);
            let limit = usize::from(counters.path_datagram);
            assert!(counters.pieces > 0 && limit <= carries && limit >= 1_200, "{what}: {counters:?}");
        }
        let longest = world.recorded.take().unwrap().iter().map(|(_, datagram)| datagram.bytes.len()).max();
        assert_eq!(longest, Some(sealed_params(0, TAGS).max_datagram), "{what}");
    }
}

proptest! {
    /// Whatever comes to the port of a sealed session, with the right tag or without: it is dropped.
    #[test]
    fn garbage_has_no_effect(
        garbage in proptest::collection::vec((proptest::collection::vec(any::<u8>(), 0..160), 0..3usize), 1..40),
    ) {
        let [_, (mut b, b_id)] = sealed_pair();
        let mut journal = Journal::default();
        for (mut bytes, dressed) in garbage {
            if dressed > 0 && bytes.len() >= HEADER {
                bytes[4] = [0x40, 0x48][dressed - 1] | (bytes[4] % 5);
                bytes[8..16].copy_from_slice(&TAGS[1].to_be_bytes());
                bytes[..3].copy_from_slice(&[0; 3]);
                (bytes[5], bytes[32]) = (8, 0);
                bytes[34] &= 0x80;
                let payload = bytes.len().saturating_sub(HEADER + 8 + [0, SEAL_LEN][dressed - 1]) as u16;
                bytes[6..8].copy_from_slice(&payload.to_be_bytes());
            }
            b.on_datagram(Instant::from_nanos(10), &meta(1, 40_000), &bytes, &mut journal);
            let sent = transmit(&mut b, 10);
            prop_assert!(sent.iter().all(|(_, bytes)| bytes[34] & 0x80 == 0), "what it was told of marks");
        }
        let counters = b.counters(b_id);
        prop_assert!(journal.0.is_empty() && counters.acks_received + counters.received == 0);
        prop_assert_eq!(counters.acks_sent, counters.heartbeats);
    }
}
