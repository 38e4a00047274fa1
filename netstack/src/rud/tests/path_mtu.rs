//! Paths that drop long datagrams: from the beginning, later, in one direction, some of them, and for a time.

use super::link::SMALL;
use super::*;
use crate::device::FramesOut;
use crate::wire::rud::{DatagramKind, Header};

/// Messages with payloads of up to 1,400 bytes in datagrams of up to 1,504; the base is 1,200.
const SHORT: usize = 1_264;

fn quick() -> Config {
    Config {
        dead_after: Duration::from_secs(2),
        heartbeat: Duration::from_millis(250),
        mtu_raise: Duration::from_secs(1),
        ..Config::default()
    }
}

/// Steps until both ends have sent everything; messages and times are those of `what`.
fn finish(world: &mut World, within: u64, what: &str) {
    let deadline = world.now + within;
    world.run_to_completion(deadline, what);
}

fn limits(world: &World) -> [usize; 2] {
    world.ends.each_ref().map(|end| end.endpoint.counters(end.id).path_datagram.into())
}

fn pieces(world: &World) -> [u64; 2] {
    world.ends.each_ref().map(|end| end.endpoint.counters(end.id).pieces)
}

//= rud/spec.md section 6.8
#[test]
fn a_path_that_drops_long_datagrams_from_the_beginning_delivers_all_in_pieces() {
    for seed in 0..50 {
        for paths in [1, 4] {
            let what = format!("seed {seed}, {paths} paths");
            let mut world = World::with_paths(
                seed,
                LinkConfig { loss: if seed % 2 == 0 { 0.0 } else { 0.02 }, ..delayed(10_000) },
                paths,
            );
            world.carries = [SHORT; 2];
            for end in &mut world.ends {
                end.to_send.extend(0..400);
                end.app.refuse = if seed % 5 == 0 { 0.05 } else { 0.0 };
            }
            finish(&mut world, 2_000 * MS, &what);
            assert_exact(&world, 400, &what);
            assert!(limits(&world).iter().all(|limit| *limit <= SHORT), "{what}: {:?}", limits(&world));
            assert!(pieces(&world).iter().all(|pieces| *pieces > 0), "{what}");
        }
    }
}

//= rud/spec.md section 6.8, RUD-63
#[test]
fn a_path_that_narrows_while_messages_are_under_way_ends_no_session() {
    for seed in 0..10 {
        let what = format!("seed {seed}");
        let mut world = World::with_tags(seed, &quick(), LinkConfig { loss: 0.01, ..delayed(10_000) }, TAGS);
        for end in &mut world.ends {
            end.to_send.extend(0..6_000);
        }
        while world.ends[0].to_send.len() as u64 > 5_900 - 450 * seed {
            world.step();
        }
        world.carries = [SHORT; 2];
        finish(&mut world, 2_000 * MS, &what);
        assert_exact(&world, 6_000, &what);
        assert!(limits(&world).iter().any(|limit| *limit <= SHORT), "{what}: {:?}", limits(&world));
    }
}

/// The time until it is known that no path carries long datagrams any more, while long messages go out; docs/deploy.md has it.
//= rud/spec.md section 6.8, RUD-61
#[test]
fn all_paths_that_narrow_at_once_are_found_in_half_a_second_however_many_there_are() {
    for (paths, most) in [(10, 200), (64, 500), (256, 500)] {
        let mut world = World::with_paths(7, delayed(10_000), paths);
        let mut numbers = (0u64..).map(|number| number * 5 + 2);
        let mut step = |world: &mut World| {
            let waiting = world.ends[0].to_send.len();
            world.ends[0].to_send.extend(numbers.by_ref().take(256usize.saturating_sub(waiting)));
            world.step();
        };
        while world.now < 5 * MS {
            step(&mut world);
        }
        world.carries = [SHORT; 2];
        let begun = world.now;
        while limits(&world)[0] > SHORT {
            step(&mut world);
            assert!(world.now - begun < 5_000 * MS, "{paths} paths");
        }
        let took = (world.now - begun) / MS;
        println!("{paths} paths: {took} ms");
        assert!(took < most, "{paths} paths: {took} ms");
    }
}

//= rud/spec.md section 6.8
#[test]
fn each_direction_is_searched_for_itself() {
    for narrow in [0, 1] {
        let mut world = World::with_tags(3, &quick(), delayed(10_000), TAGS);
        world.carries[narrow] = SHORT;
        for end in &mut world.ends {
            end.to_send.extend(0..1_000);
        }
        finish(&mut world, 1_000 * MS, "one direction");
        assert_exact(&world, 1_000, "one direction");
        assert!(limits(&world)[narrow] <= SHORT);
        assert_eq!((limits(&world)[1 - narrow], pieces(&world)[1 - narrow]), (1_504, 0));
    }
}

/// Those that carry all are used, and the others are left out as those that lose.
//= rud/spec.md section 6.7
#[test]
fn where_some_paths_drop_long_datagrams_the_others_carry_them() {
    for seed in 0..20 {
        let what = format!("seed {seed}");
        let mut world = World::with_paths(seed, delayed(10_000), 10);
        world.carries = [SHORT; 2];
        world.narrow = vec![0, 2, 3, 5, 7, 8, 9];
        for end in &mut world.ends {
            // Full payloads.
            end.to_send.extend((0..4_000).map(|number| number * 5 + 2));
        }
        finish(&mut world, 2_000 * MS, &what);
        assert_exact(&world, 4_000, &what);
        let out = world.ends.each_ref().map(|end| end.endpoint.counters(end.id).paths_out);
        assert!(
            limits(&world).iter().all(|limit| *limit == 1_504) && out.iter().all(|out| *out >= 6),
            "{what}: {out:?} out"
        );
    }
}

/// Trials of paths that carry nothing but short datagrams fail: long ones would be lost on those that come back.
//= rud/spec.md section 6.7, RUD-57
#[test]
fn a_path_that_drops_long_datagrams_does_not_come_back_for_them() {
    let mut world = World::with_paths(3, delayed(10_000), 10);
    world.carries = [SHORT; 2];
    world.narrow = vec![0, 2, 3, 5, 7, 8, 9];
    let resent =
        |world: &World| world.ends.iter().map(|end| end.endpoint.counters(end.id).resent).sum::<u64>();
    let mut known = 0;
    for round in 0..40 {
        for end in &mut world.ends {
            end.to_send.extend((round * 500..round * 500 + 500).map(|number| number * 5 + 2));
        }
        // Apart, so that trials come due between them.
        finish(&mut world, 2_000 * MS, "the paths that carry all");
        let rest = world.now + 50 * MS;
        while world.now < rest {
            world.step_until(rest);
        }
        if round == 9 {
            known = resent(&world);
        }
    }
    assert_exact(&world, 20_000, "all");
    let lost = resent(&world) - known;
    assert!(lost < 30, "{lost} of 30,000 were lost on paths that were known to drop them");
}

/// Nanoseconds that one end takes for so many full messages.
fn time_of(world: &mut World, messages: core::ops::Range<u64>) -> u64 {
    let start = world.now;
    world.ends[0].to_send.extend(messages.map(|number| number * 5 + 2));
    finish(world, 10_000 * MS, "a measurement");
    world.now - start
}

//= rud/spec.md section 6.8, RUD-64
#[test]
fn an_mtu_that_grows_again_is_found_and_the_throughput_is_as_before() {
    let link = LinkConfig { bits_per_second: 100_000_000_000, ..delayed(10_000) };
    let mut world = World::with_tags(3, &quick(), link, TAGS);
    time_of(&mut world, 0..10_000);
    let before = time_of(&mut world, 10_000..20_000);
    world.carries = [SHORT; 2];
    time_of(&mut world, 20_000..30_000);
    let narrow = time_of(&mut world, 30_000..40_000);
    // Each in two pieces: less than half as fast.
    assert!(narrow < 3 * before, "{narrow} ns after {before} ns");
    assert!(limits(&world)[0] <= SHORT && limits(&world)[0] > SHORT - 64);
    world.carries = [usize::MAX; 2];
    let then = world.now + 2_500 * MS;
    while world.now < then {
        world.step();
    }
    assert_eq!(limits(&world)[0], 1_504);
    assert!(matches!(world.ends[0].app.path_changes[..], [narrow, 1_504] if narrow <= SHORT));
    let sent = pieces(&world);
    let after = time_of(&mut world, 40_000..50_000);
    assert!(after < before * 11 / 10, "{after} ns after {before} ns");
    assert_eq!(pieces(&world), sent);
    assert_eq!((world.ends[1].app.consumed.len(), world.ends[1].app.corrupt), (50_000, 0));
}

//= rud/spec.md section 6.8
#[test]
fn pauses_outages_and_losses_narrow_nothing() {
    let mut world = World::with_tags(5, &quick(), LinkConfig { loss: 0.05, ..delayed(10_000) }, TAGS);
    for round in 0..20u64 {
        for end in &mut world.ends {
            end.to_send.extend(round * 500..round * 500 + 500);
        }
        let begun = world.now;
        while world.now < begun + 50_000 {
            world.step();
        }
        // The peer stands still, or nothing passes, for up to 400 ms.
        let ends = world.now + round * 20 * MS;
        world.ends[1].alive = round % 2 == 0;
        while world.now < ends {
            world.step();
            if round % 2 == 0 {
                world.links.iter_mut().for_each(|link| link.retain(|_| false));
            }
        }
        world.ends[1].alive = true;
        finish(&mut world, 2_000 * MS, &format!("round {round}"));
        assert_eq!(limits(&world), [1_504; 2], "round {round}");
    }
    assert_exact(&world, 10_000, "pauses");
    assert_eq!(pieces(&world), [0; 2]);
}

/// How the session of end 0 fails, which sends messages `numbers` over paths that carry `bytes`.
fn failure_over(bytes: usize, numbers: &[u64]) -> Failure {
    let mut world = World::new(1, &quick(), delayed(10_000));
    world.carries = [bytes; 2];
    world.ends[0].to_send.extend(numbers);
    while world.ends[0].app.failures.is_empty() {
        world.step();
        assert!(world.now < 10_000 * MS);
    }
    world.ends[0].app.failures[0]
}

/// Below the base nothing helps: the session fails, and says of what length the datagrams are.
//= rud/spec.md section 8, RUD-87
#[test]
fn a_path_that_carries_less_than_the_base_is_found() {
    let failure = failure_over(1_000, &[2, 3, 4]);
    assert!(
        matches!(failure, Failure::NoProgress { bytes: 1_200, timeouts, .. } if timeouts > 30),
        "{failure:?}"
    );
    let text = failure.to_string();
    assert!(text.ends_with("; see whether the path carries datagrams of 1200 bytes (MTU)"), "{text}");
}

/// That a path drops short datagrams is not for their length, which the failure's text does not name.
//= rud/spec.md section 8, RUD-87
#[test]
fn the_loss_of_short_datagrams_is_not_put_on_the_mtu() {
    let failure = failure_over(100, &[SMALL + 150]);
    assert!(
        matches!(failure, Failure::NoProgress { bytes, timeouts, .. } if (101..300).contains(&bytes) && timeouts > 30),
        "{failure:?}"
    );
    let text = failure.to_string();
    assert!(text.contains("in one direction") && !text.contains("bytes"), "{text}");
}

/// The first piece of a resend waits in the device when the transmission before it is acknowledged: its memory is not released.
//= rud/spec.md section 6.8, RUD-59, RUD-65, RUD-66
#[test]
fn memory_of_a_piece_that_waits_is_kept() {
    let mut world = World::with_tags(1, &quick(), delayed(10_000), TAGS);
    world.carries = [SHORT; 2];
    time_of(&mut world, 0..200);
    assert!(limits(&world)[0] <= SHORT);
    let (mut now, number) = (world.now + 100 * MS, 5_002);
    let send = |end: &mut link::End, now: u64, room: usize| {
        let mut collect = Collect { out: vec![], room };
        end.endpoint.on_timeout(Instant::from_nanos(now), &mut end.app);
        end.endpoint.transmit(Instant::from_nanos(now), &mut collect);
        collect.out
    };
    let receive = |end: &mut link::End, to: usize, now: u64, datagrams: &[(Destination, Vec<u8>)]| {
        for (at, bytes) in datagrams {
            end.endpoint.on_datagram(Instant::from_nanos(now), &meta(to, at.src_port), bytes, &mut end.app);
        }
    };
    let [a, b] = &mut world.ends;
    send(a, now, 64);
    a.endpoint.send(a.id, &expected_header(number), extent_of(number), MessageToken(number)).unwrap();
    let pieces = send(a, now, 64);
    // They fit the path, and have one PSN and one path.
    assert!(pieces.iter().all(|(at, bytes)| {
        bytes.len() <= SHORT && (at.src_port, &bytes[16..20]) == (pieces[0].0.src_port, &pieces[0].1[16..20])
    }));
    receive(b, 1, now + 1_000, &pieces[..1]);
    let early = send(b, now + 40_000, 64);
    receive(a, 0, now + 41_000, &early);
    assert!(!early.is_empty() && !a.endpoint.is_idle(a.id) && !b.app.consumed.contains_key(&number));
    receive(b, 1, now + 50_000, &pieces[1..]);
    assert_eq!((pieces.len(), b.app.consumed[&number]), (2, 1));
    let acknowledgement = send(b, now + MS, 64);
    let mut resent: Vec<(Destination, Vec<u8>)> = vec![];
    while !resent.iter().any(|(_, bytes)| has_message(bytes)) {
        now = a.endpoint.next_deadline().unwrap().as_nanos();
        resent = send(a, now, 1);
    }
    a.endpoint.set_frames_out(FramesOut::Waiting);
    receive(a, 0, now, &acknowledgement);
    assert!(a.endpoint.is_idle(a.id) && !a.app.released.contains_key(&number));
    a.endpoint.set_frames_out(FramesOut::None);
    a.endpoint.release_held(&mut a.app);
    assert_eq!(a.app.released[&number], 1);
}

/// Bundles go on any path, so what becomes of them says nothing of its MTU.
//= rud/spec.md section 6.8, RUD-60
//= rud/spec.md section 6.5, RUD-47
#[test]
fn bundles_that_are_all_lost_put_no_limit_in_doubt() {
    for (bytes, in_doubt) in [(100, false), (1_400, true)] {
        let [(mut a, a_id), _] = pair();
        for number in 0..200 {
            let payload = extent_from(vec![1; bytes]);
            a.send(a_id, &[], payload, MessageToken(number)).unwrap();
        }
        let before = a.counters(a_id).path_datagram;
        let mut padded = 0;
        for now in (0..1_000 * MS).step_by(MS as usize / 2) {
            a.on_timeout(Instant::from_nanos(now), &mut App::default());
            for (_, datagram) in transmit(&mut a, now) {
                let header = Header::parse(&datagram).unwrap();
                assert_eq!(header.kind == DatagramKind::Bundle, bytes == 100 && header.kind.has_message());
                padded += u32::from(header.kind == DatagramKind::Probe && datagram.len() > 1_200);
            }
        }
        let counters = a.counters(a_id);
        assert!(counters.timeouts >= 4 && counters.lost >= 8, "{bytes}: {counters:?}");
        assert_eq!((padded != 0, counters.path_datagram), (in_doubt, before), "{bytes}: {padded} padded");
    }
}
