use super::*;

/// Tries the path that is due, if one is, which arrives unless it is of `dead`; whether it tried one in vain.
fn try_path(spray: &mut Spray, now: u64, dead: &[u16]) -> bool {
    let Some(path) = spray.trial(now) else { return false };
    let turn = spray.in_turn();
    spray.on_sent(path);
    spray.on_trial(now, path, turn);
    let is_dead = dead.contains(&path);
    if !is_dead {
        spray.on_probe_delivered(path);
    }
    is_dead
}

/// Sends one datagram of data from slot `slot`; the path that it took.
fn send(spray: &mut Spray, now: u64, slot: u16, again: bool) -> u16 {
    let path = if again { spray.pick_again(slot, None) } else { spray.pick_new() };
    spray.on_sent(path);
    spray.on_data_sent(now, slot, again, path);
    path
}

/// Sends data that is lost on the paths of `dead`, and then sent again until it arrives; the losses.
fn round(spray: &mut Spray, now: u64, dead: &[u16]) -> u32 {
    let mut losses = u32::from(try_path(spray, now, dead));
    let mut path = send(spray, now, 0, false);
    while dead.contains(&path) {
        losses += 1;
        let other = send(spray, now, 0, true);
        assert_ne!(other, path, "a resend takes another path");
        path = other;
    }
    spray.on_delivered(0);
    losses
}

//= rud/spec.md section 6.7, RUD-52
#[test]
fn paths_take_turns_and_a_datagram_that_was_not_taken_leaves_its_path_the_next() {
    let mut spray = Spray::new(3, 4);
    assert_eq!((spray.pick(), spray.pick_new()), (0, 0));
    assert_eq!((0..5).map(|i| send(&mut spray, i, 0, false)).collect::<Vec<_>>(), [0, 1, 2, 0, 1]);
    assert_eq!(spray.pick(), 2);
}

//= rud/spec.md section 6.7, RUD-54, RUD-55, RUD-57
#[test]
fn a_dead_path_is_left_out_and_tried_ever_less_often_until_it_is_back() {
    let mut spray = Spray::new(10, 4);
    let mut losses = 0;
    // 100 s, a datagram every 100 us.
    for i in 0..1_000_000 {
        losses += round(&mut spray, i * 100_000, &[7]);
    }
    // Three, then trials after 1, 2, 4 .. 512 ms, and then one after each of the 99 s.
    assert!((100..=115).contains(&losses), "{losses}");
    assert_eq!(spray.out(), 1);
    let back = (0..20_000).position(|i| {
        assert_eq!(round(&mut spray, 100_000_000_000 + i * 100_000, &[]), 0);
        spray.out() == 0
    });
    assert!(back.is_some_and(|i| i <= 11_000), "{back:?}");
    let taken: Vec<u16> = (0..10).map(|i| send(&mut spray, 200_000_000_000, i % 4, false)).collect();
    assert!((0..10).all(|path| taken.contains(&path)), "{taken:?}");
}

//= rud/spec.md section 6.7
#[test]
fn an_end_without_data_learns_by_probes_and_tries_again_by_them() {
    let mut spray = Spray::new(4, 4);
    let mut lost = 0;
    for i in 0..1_000 {
        let path = spray.pick();
        spray.on_sent(path);
        if path == 2 {
            spray.on_probe_lost(i, path);
            lost += 1;
        } else {
            spray.on_probe_delivered(path);
        }
    }
    assert_eq!((spray.out(), spray.in_use()), (1, 3));
    assert!((3..=10).contains(&lost), "{lost}");
    assert_eq!(spray.trial(1_000), None);
    let mut trials = 0;
    for i in 0..1_000 {
        if let Some(path) = spray.trial(i * FIRST_REST) {
            assert_eq!(path, 2);
            spray.on_trial(i * FIRST_REST, path, 0);
            trials += 1;
        }
    }
    assert!((9..=11).contains(&trials), "{trials}");
    spray.on_probe_delivered(2);
    assert_eq!(spray.out(), 0);
}

/// Where so little is sent that all paths that are left out are due each time, each has its turn.
//= rud/spec.md section 6.7, RUD-57
#[test]
fn each_path_that_is_left_out_is_tried_in_turn() {
    let mut spray = Spray::new(40, 4);
    let dead: Vec<_> = (0..30).collect();
    (0..3_000).for_each(|i| _ = round(&mut spray, i * 1000, &dead));
    assert_eq!(spray.out(), 30);
    let second = 1_000_000_000;
    let mut tried: Vec<_> = (0..30)
        .map(|i| {
            let path = spray.trial((10 + 2 * i) * second).unwrap();
            spray.on_trial((10 + 2 * i) * second, path, 0);
            path
        })
        .collect();
    tried.sort_unstable();
    assert_eq!(tried, dead);
}

/// With one path in use, a resend stays on it, and does not go where nothing arrives.
#[test]
fn of_two_paths_the_one_that_delivers_is_kept() {
    let mut spray = Spray::new(2, 4);
    (0..100).for_each(|i| _ = round(&mut spray, i * 1000, &[1]));
    assert_eq!(spray.out(), 1);
    for i in 100..200 {
        assert_eq!((send(&mut spray, i * 1000, 0, false), send(&mut spray, i * 1000, 0, true)), (0, 0));
        spray.on_delivered(0);
    }
}

//= rud/spec.md section 6.7, RUD-56
#[test]
fn all_dead_paths_are_left_out_but_never_the_last_that_delivers() {
    for count in [2u16, 3, 10, 256] {
        for live in 1..count.min(5) {
            let mut spray = Spray::new(count, 4);
            let dead: Vec<u16> = (live..count).collect();
            let losses: u32 = (0..10_000).map(|i| round(&mut spray, i * 1000, &dead)).sum();
            assert_eq!(spray.out(), count - live, "{live} of {count}");
            // Until they are known, and trials.
            assert!(losses <= 30 * u32::from(count), "{live} of {count}: {losses}");
        }
    }
}

//= rud/spec.md section 6.7, RUD-56
#[test]
fn none_is_left_out_where_all_lose() {
    for count in [1, 2, 3, 10, 256] {
        for delivered in [0, 10_000] {
            let mut spray = Spray::new(count, 4);
            round(&mut spray, 0, if count > 1 { &[0] } else { &[] });
            (0..delivered).for_each(|i| _ = round(&mut spray, i * 1000, &[]));
            assert_eq!(spray.out(), 0, "{count} paths");
            for i in 0..10_000 {
                // Nothing arrives at all.
                send(&mut spray, 20_000_000 + i * 1000, 0, i % 7 != 0);
                assert_eq!(spray.out(), 0, "{count} paths, {delivered} delivered before");
            }
        }
    }
}

/// A sender whose last path dies has nothing new to send, only resends.
//= rud/spec.md section 6.7, RUD-57
#[test]
fn where_the_last_path_dies_another_that_is_back_is_found() {
    let mut spray = Spray::new(10, 4);
    let dead: Vec<u16> = (1..10).collect();
    (0..10_000).for_each(|i| _ = round(&mut spray, i * 1000, &dead));
    assert_eq!(spray.out(), 9);
    send(&mut spray, 10_001_000, 0, false);
    let path = (0..100).map(|_| send(&mut spray, 10_001_000, 0, true)).find(|path| *path == 7);
    assert_eq!(path, Some(7));
    spray.on_delivered(0);
    assert_eq!(spray.out(), 8);
    assert!(
        (0..10).all(|_| round(&mut spray, 10_002_000, &[0, 1, 2, 3, 4, 5, 6, 8, 9]) == 0 || spray.out() >= 8)
    );
    assert_eq!(send(&mut spray, 10_003_000, 0, false), 7, "path 0 is out now");
}

/// The same where data is dealt out by shares, and the paths that are in use take turns at being lost on.
//= rud/spec.md section 6.7
#[test]
fn where_the_last_paths_die_one_that_is_back_is_found_although_paths_have_shares() {
    let mut spray = Spray::new(10, 4);
    let dead: Vec<u16> = (0..10).filter(|path| ![0, 5].contains(path)).collect();
    send(&mut spray, 0, 0, false);
    spray.on_late(0, 64);
    (0..10_000).for_each(|i| _ = round(&mut spray, i * 1000, &dead));
    assert!(spray.shares.are_kept() && spray.out() == 8);
    for back in [3, 7] {
        let (taken, health) = (spray.taken.clone(), spray.health.clone());
        let mut spray = Spray { taken, health, out: 8, ..Spray::new(10, 4) };
        spray.on_late(0, 64);
        send(&mut spray, 10_001_000, 0, false);
        let path = (0..100).map(|_| send(&mut spray, 10_001_000, 0, true)).find(|path| *path == back);
        assert_eq!(path, Some(back));
    }
}

//= rud/spec.md section 6.7, RUD-55
#[test]
fn a_path_that_delivers_some_is_left_out_if_the_others_deliver_more() {
    let mut spray = Spray::new(4, 4);
    let (mut sent, mut taken) = (0, 0);
    for i in 0..100_000u64 {
        let now = i * 10_000;
        let path = send(&mut spray, now, 0, false);
        sent += 1;
        taken += u32::from(path == 2);
        // Two of three are lost on path 2.
        if path == 2 && i % 3 != 0 {
            send(&mut spray, now, 0, true);
        }
        spray.on_delivered(0);
    }
    assert!(taken * 50 < sent, "{taken} of {sent}");
}

#[test]
fn equal_losses_leave_nearly_all_paths_in_use() {
    let mut rng = <rand::rngs::SmallRng as rand::SeedableRng>::seed_from_u64(6);
    for loss in [0.01, 0.05, 0.2] {
        let mut spray = Spray::new(10, 4);
        let mut out = 0;
        for i in 0..100_000u64 {
            // 100,000 datagrams a second.
            let now = i * 10_000;
            send(&mut spray, now, 0, false);
            while rand::Rng::random_bool(&mut rng, loss) {
                send(&mut spray, now, 0, true);
            }
            spray.on_delivered(0);
            out += u32::from(spray.out());
        }
        assert!(f64::from(out) / 100_000.0 < 1.5, "{loss}: {out}");
    }
}
