//! Sessions that begin with their first use: nothing before it costs anything, and nothing is lost by it.

use super::*;

fn quick() -> Config {
    Config { dead_after: Duration::from_secs(2), heartbeat: Duration::from_millis(250), ..Config::default() }
}

/// Runs until this time.
fn until(world: &mut World, time: u64) {
    while world.now < time && world.step() {}
    world.now = world.now.max(time);
}

fn have_begun(world: &World) -> [bool; 2] {
    world.ends.each_ref().map(|end| end.endpoint.has_begun(end.id))
}

#[test]
fn an_enlisted_session_sends_nothing_and_expects_nothing_until_either_end_uses_it() {
    for first in [0, 1] {
        let mut world = World::enlisted(1, &quick(), delayed(10_000));
        assert!(!world.step(), "nothing is to come");
        until(&mut world, 3_600_000 * MS);
        for end in &world.ends {
            assert_eq!(end.endpoint.next_deadline(), None);
            assert!(end.app.failures.is_empty() && end.endpoint.is_idle(end.id));
        }
        assert!(world.links.iter().all(|link| link.counters().sent == 0));
        world.ends[first].to_send.extend(0..3);
        world.run_to_completion(world.now + 100 * MS, "the first messages");
        assert_eq!(world.ends[1 - first].app.consumed.len(), 3);
        assert_eq!(have_begun(&world), [true; 2]);
        // From then on heartbeats say that both live...
        let later = world.now + 60_000 * MS;
        until(&mut world, later);
        assert!(world.ends.iter().all(|end| end.app.failures.is_empty()));
        // ...and that one does not.
        world.ends[1].alive = false;
        until(&mut world, later + 3_000 * MS);
        assert_eq!(world.ends[0].app.failures.len(), 1);
    }
}

#[test]
fn first_uses_of_both_ends_on_a_bad_network_lose_and_repeat_nothing() {
    for seed in 0..500 {
        let what = format!("seed {seed}");
        let mut world = World::enlisted(seed, &Config::default(), faulty());
        let (first, gap) = ((seed % 2) as usize, seed % 7 * 5_000);
        world.ends[first].to_send.extend(0..40);
        let then = world.now + gap;
        while world.now < then && world.step() {}
        world.ends[1 - first].to_send.extend(0..40);
        world.run_to_completion(world.now + 2_000 * MS, &what);
        assert_exact(&world, 40, &what);
    }
}

#[test]
fn a_peer_that_is_gone_is_found_from_the_first_use_on() {
    let mut world = World::enlisted(1, &quick(), delayed(10_000));
    world.ends[1].alive = false;
    until(&mut world, 600_000 * MS);
    assert!(world.ends[0].app.failures.is_empty());
    world.ends[0].to_send.push_back(0);
    until(&mut world, 601_500 * MS);
    assert!(world.ends[0].app.failures.is_empty(), "its time begins with the first use");
    until(&mut world, 603_000 * MS);
    assert_eq!(world.ends[0].app.failures.len(), 1);
}

//= rud/spec.md section 3.4, RUD-6
#[test]
fn what_has_carried_no_data_rests_again_and_heartbeats_wake_nobody() {
    let mut world = World::enlisted(1, &quick(), delayed(10_000));
    for end in &mut world.ends {
        end.endpoint.announce(end.id);
    }
    until(&mut world, 1_000 * MS);
    assert_eq!(have_begun(&world), [true; 2]);
    assert!(
        world.ends.iter().all(|end| end.endpoint.counters(end.id).acks_received > 0),
        "they have heard each other"
    );
    // One end long before the other, whose heartbeats still come.
    let [one, _] = &mut world.ends;
    one.endpoint.rest(one.id);
    until(&mut world, 2_000 * MS);
    assert_eq!(have_begun(&world), [false, true]);
    let other = &mut world.ends[1];
    other.endpoint.rest(other.id);
    until(&mut world, 60_000 * MS);
    assert!(have_begun(&world) == [false; 2] && world.ends.iter().all(|end| end.app.failures.is_empty()));
    // Messages that come while one end goes to rest are delivered; those that were sent keep it awake.
    for end in &mut world.ends {
        end.endpoint.announce(end.id);
    }
    world.ends[0].to_send.extend(0..5);
    world.step();
    for end in &mut world.ends {
        end.endpoint.rest(end.id);
    }
    assert_eq!(have_begun(&world), [true, false]);
    world.run_to_completion(world.now + 1_000 * MS, "messages");
    assert_eq!(world.ends[1].app.consumed.len(), 5);
    for end in &mut world.ends {
        end.endpoint.rest(end.id);
    }
    assert_eq!(have_begun(&world), [true; 2]);
}

#[test]
fn a_closed_one_is_gone_whether_it_had_begun_or_not() {
    for used in [false, true] {
        let mut endpoint = Endpoint::new(Config::default());
        let id = endpoint.enlist(params(0, TAGS)).unwrap();
        assert_eq!(endpoint.enlist(params(0, TAGS)), Err(OpenError::TagInUse));
        if used {
            endpoint.announce(id);
        }
        assert!(endpoint.has_begun(id) == used && endpoint.has_peer(params(0, TAGS).remote_ip));
        endpoint.close(id);
        endpoint.close(id);
        assert!(!endpoint.has_peer(params(0, TAGS).remote_ip));
        assert_eq!(endpoint.send(id, &[], None, MessageToken(0)), Err(SendError::Closed));
        let again = endpoint.enlist(params(0, TAGS)).unwrap();
        assert!(again != id && again.index() == id.index());
        endpoint.announce(id);
        assert!(!endpoint.has_begun(again), "an old name finds nothing");
    }
}

//= rud/spec.md section 3.4, RUD-6
#[test]
fn damaged_and_misdirected_datagrams_are_no_first_use() {
    let [(mut a, a_id), (mut b, b_id)] = [0, 1].map(|end| {
        let mut endpoint = Endpoint::new(quick());
        let id = endpoint.enlist(params(end, TAGS)).unwrap();
        (endpoint, id)
    });
    let mut journal = Journal::default();
    a.send(a_id, &[1, 2, 3], extent_from(vec![9; 100]), MessageToken(1)).unwrap();
    let (to, bytes) = transmit(&mut a, 0).into_iter().find(|(_, bytes)| bytes.len() > 100).unwrap();
    let (now, right) = (Instant::ZERO, meta(1, to.src_port));
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        b.on_datagram(now, &right, &flipped, &mut journal);
    }
    b.on_datagram(now, &DatagramMeta { src_ip: right.dst_ip, ..right }, &bytes, &mut journal);
    b.on_datagram(now, &DatagramMeta { src_port: right.src_port + 1, ..right }, &bytes, &mut journal);
    assert!(!b.has_begun(b_id) && journal.0.is_empty(), "{:?}", journal.0);
    let counters = b.endpoint_counters();
    assert!(counters.crc_dropped > 100 && counters.wrong_address == 1, "{counters:?}");
    b.on_datagram(now, &right, &bytes, &mut journal);
    assert!(b.has_begun(b_id) && !journal.0.is_empty());
}
