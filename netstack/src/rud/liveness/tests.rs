use super::*;
use core::time::Duration;

fn liveness() -> Liveness {
    let config = Config {
        heartbeat: Duration::from_nanos(100),
        dead_after: Duration::from_nanos(800),
        ..Config::default()
    };
    Liveness::new(0, &config)
}

//= rud/spec.md section 8, RUD-85
#[test]
fn heartbeats_follow_what_was_sent_last() {
    let mut liveness = liveness();
    assert!(liveness.take_heartbeat(), "the first, at once");
    assert!(!liveness.take_heartbeat());
    liveness.on_sent(50);
    assert_eq!(liveness.deadline(), 100);
    assert_eq!(liveness.on_timeout(100), None);
    assert_eq!(liveness.deadline(), 150, "put off");
    assert_eq!(liveness.on_timeout(149), None);
    assert!(!liveness.heartbeat_due());
    assert_eq!(liveness.on_timeout(150), None);
    assert!(liveness.heartbeat_due());
    assert_eq!(liveness.deadline(), 700, "the peer's silence is next");
}

//= rud/spec.md section 8, RUD-86
#[test]
fn a_silent_peer_is_suspected_before_it_is_dead() {
    let mut liveness = liveness();
    liveness.take_heartbeat();
    liveness.on_sent(690);
    assert_eq!(liveness.on_timeout(699), None);
    assert!(!liveness.is_suspected());
    // Late by so much that it would be dead; its datagrams may be in the queue.
    assert_eq!(liveness.on_timeout(5_000), None);
    assert!(liveness.is_suspected() && liveness.heartbeat_due());
    assert_eq!(liveness.deadline(), 5_100);
    assert_eq!(liveness.on_timeout(5_099), None);
    assert_eq!(liveness.on_timeout(5_100), Some(Silence { silent: 5_100, clue: Clue::Nothing }));
}

#[test]
fn whatever_is_heard_ends_a_suspicion() {
    let mut liveness = liveness();
    assert_eq!(liveness.on_timeout(700), None);
    assert!(liveness.is_suspected());
    liveness.on_heard(750);
    assert!(!liveness.is_suspected());
    assert_eq!(liveness.on_timeout(1_449), None);
    assert!(!liveness.is_suspected());
    assert_eq!(liveness.on_timeout(1_450), None);
    assert_eq!(liveness.on_timeout(1_550), Some(Silence { silent: 800, clue: Clue::Nothing }));
}

#[test]
fn the_strongest_clue_of_the_suspicion_is_named() {
    let mut liveness = liveness();
    liveness.on_clue(650, Clue::Damaged);
    assert_eq!(liveness.on_timeout(700), None);
    // From before the suspicion, though it is only reported now.
    liveness.on_clue(699, Clue::OtherAddress);
    liveness.on_clue(750, Clue::UnknownSession);
    assert_eq!(liveness.on_timeout(800), Some(Silence { silent: 800, clue: Clue::UnknownSession }));
    liveness.on_clue(800, Clue::Damaged);
    liveness.on_clue(801, Clue::OtherAddress);
    assert_eq!(liveness.on_timeout(801).map(|silence| silence.clue), Some(Clue::Damaged));
    // A new suspicion begins without the clues of the last one.
    liveness.on_heard(900);
    assert_eq!(liveness.on_timeout(1_600), None);
    assert_eq!(liveness.on_timeout(1_700).map(|silence| silence.clue), Some(Clue::Nothing));
}

#[test]
fn no_timer_is_missed_whatever_comes_in_between() {
    // Every walk over what may happen, with steps of time of three lengths.
    for walk in 0..200_000_u32 {
        let (mut liveness, mut now, mut seed) = (liveness(), 0, walk);
        for _ in 0..12 {
            let is_due =
                now >= liveness.listen_at() || !liveness.heartbeat_due && now >= liveness.heartbeat_at();
            assert!(!is_due || liveness.deadline() <= now, "{walk}: {liveness:?} at {now}");
            if is_due && liveness.on_timeout(now).is_some() {
                break;
            }
            assert!(now < liveness.listen_at() && (liveness.heartbeat_due || now < liveness.heartbeat_at()));
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            match seed >> 28 & 3 {
                0 => liveness.on_sent(now),
                1 => liveness.on_heard(now),
                2 => _ = liveness.take_heartbeat(),
                _ => liveness.announce(),
            }
            now += [1, 60, 350, 99][(seed >> 26 & 3) as usize];
        }
    }
}
