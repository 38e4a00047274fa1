use super::*;

const MS: u64 = 1_000_000;

/// A session over a path, which carries datagrams of up to `carries` bytes; what it has found, with the number of tries.
fn search(mtu: &mut PathMtu, now: &mut u64, carries: u16, paths: u16) -> (Vec<Finding>, u32) {
    let mut asks = super::super::asks::Asks::new(2);
    let (mut found, mut tries) = (vec![], 0);
    for _ in 0..1_000 {
        if mtu.is_due() {
            tries += 1;
            let (size, padded) = (mtu.size(), asks.stamp());
            asks.on_sent(*now, 0, size);
            let small = asks.stamp();
            asks.on_sent(*now, 0, 0);
            mtu.on_tried(*now, small, 6 * MS);
            *now += 50_000;
            for stamp in [padded, small] {
                if stamp == small || size <= carries {
                    let asked = asks.answered(stamp).unwrap();
                    found.extend(mtu.on_answer(*now, stamp, &asked));
                }
            }
        } else if mtu.trial.is_some() {
            *now = mtu.deadline();
            let finding = mtu.on_timeout(*now, paths);
            if finding == Some(Finding::Lowered) {
                // As docs/deploy.md says.
                assert!((LEAST_DOUBT..150 * MS).contains(now), "lowered after {now} ns");
            }
            found.extend(finding);
        } else {
            return (found, tries);
        }
    }
    panic!("it does not end: {mtu:?}");
}

//= rud/spec.md section 6.8, RUD-63, RUD-64
#[test]
fn a_limit_that_fails_falls_to_the_base_and_a_search_finds_what_the_path_carries() {
    for carries in [1_200, 1_201, 1_472, 4_000, 8_000, 8_971] {
        let (mut mtu, mut now) = (PathMtu::new(8_972, 0, 10_000 * MS), 0);
        mtu.on_stalled(8_972);
        let (found, tries) = search(&mut mtu, &mut now, carries, 1);
        assert_eq!(found, [Finding::Lowered, Finding::Settled], "{carries}");
        assert!(mtu.limit <= carries && mtu.limit + STEP > carries, "{carries}: {mtu:?}");
        assert!(tries <= 3 * 8 + 24 && now < 200 * MS, "{tries} tries, {now} ns");
        // It is settled until it is raised.
        mtu.on_stalled(usize::from(mtu.limit).min(1_200));
        assert!(!mtu.is_due() && mtu.deadline() == now + 10_000 * MS);
        now = mtu.deadline();
        assert_eq!(mtu.on_timeout(now, 1), None);
        assert_eq!((search(&mut mtu, &mut now, 9_000, 1).0, mtu.limit), (vec![Finding::Settled], 8_972));
        assert_eq!(mtu.deadline(), NEVER);
    }
}

#[test]
fn a_doubt_that_is_none_costs_one_try() {
    let (mut mtu, mut now) = (PathMtu::new(8_972, 0, 10_000 * MS), 0);
    (0..SUSPICIOUS).for_each(|_| mtu.on_lost(8_000));
    assert_eq!(search(&mut mtu, &mut now, 9_000, 1), (vec![], 1));
    assert_eq!((mtu.limit, mtu.deadline()), (8_972, NEVER));
}

//= rud/spec.md section 6.8, RUD-60
#[test]
fn losses_count_while_nothing_as_long_is_delivered() {
    let mut mtu = PathMtu::new(8_972, 0, 10_000 * MS);
    for _ in 0..100 {
        (1..SUSPICIOUS).for_each(|_| mtu.on_lost(8_000));
        mtu.on_lost(1_000);
        assert!(mtu.is_in_doubt() && !mtu.is_due());
        mtu.on_delivered(0, 8_000);
        assert!(!mtu.is_in_doubt());
    }
    (1..SUSPICIOUS).for_each(|_| mtu.on_lost(8_000));
    mtu.on_delivered(0, 7_999);
    mtu.on_lost(2_000);
    assert!(mtu.is_due());
}

/// Full buffers drop long datagrams more than short ones, for a while, and not all of them.
#[test]
fn a_doubt_ends_when_a_datagram_as_long_as_those_lost_is_delivered() {
    let (mut mtu, mut now) = (PathMtu::new(8_972, 0, 10_000 * MS), 0);
    for delivered in [7_999, 8_000] {
        (0..SUSPICIOUS).for_each(|_| mtu.on_lost(8_000));
        assert!(mtu.is_due());
        for _ in 1..TRIES {
            let mut asks = super::super::asks::Asks::new(2);
            asks.on_sent(now, 0, mtu.size());
            let small = asks.stamp();
            asks.on_sent(now, 0, 0);
            mtu.on_tried(now, small, 6 * MS);
            now += 50_000;
            assert_eq!(mtu.on_answer(now, small, &asks.answered(small).unwrap()), None);
            now = mtu.deadline();
            assert_eq!(mtu.on_timeout(now, 1), None);
            // The next try is a time-out later.
            assert!(!mtu.is_due() && mtu.deadline() == now + 6 * MS);
            now = mtu.deadline();
            assert_eq!(mtu.on_timeout(now, 1), None);
            assert!(mtu.is_due());
        }
        mtu.on_delivered(now, delivered);
        assert_eq!(mtu.trial.is_none(), delivered == 8_000);
        mtu.trial = None;
        assert_eq!(mtu.limit, 8_972);
    }
}

/// A peer without a core answers neither probe of a try.
//= rud/spec.md section 6.8, RUD-61
#[test]
fn silence_is_no_failure_and_is_asked_ever_less_often() {
    let (mut mtu, mut now, mut tries) = (PathMtu::new(8_972, 0, 10_000 * MS), 0, 0);
    mtu.on_stalled(8_972);
    while now < 10_000 * MS {
        assert!(mtu.is_due());
        mtu.on_tried(now, 1, 6 * MS);
        tries += 1;
        now = mtu.deadline();
        assert_eq!(mtu.on_timeout(now, 1), None);
    }
    assert!((25..=40).contains(&tries), "{tries}");
    assert_eq!(search(&mut mtu, &mut now, 9_000, 1), (vec![], 1));
    assert_eq!(mtu.limit, 8_972);
}

//= rud/spec.md section 6.8, RUD-61
#[test]
fn a_size_fails_on_every_path_before_it_counts() {
    let (mut mtu, mut now) = (PathMtu::new(1_264, 0, 10_000 * MS), 0);
    mtu.on_stalled(1_264);
    let (found, tries) = search(&mut mtu, &mut now, 1_200, 10);
    assert!(found == [Finding::Lowered] && tries >= 10, "{found:?}, {tries} tries");
    assert_eq!(mtu.limit, 1_200);
}

//= rud/spec.md section 6.8, RUD-61
#[test]
fn of_many_paths_64_are_enough_for_a_size_to_fail() {
    for (paths, expected) in [(63, 63), (64, 64), (256, 64)] {
        let (mut mtu, mut now, mut tries) = (PathMtu::new(1_264, 0, 10_000 * MS), 0, 0);
        let mut asks = super::super::asks::Asks::new(2);
        mtu.on_stalled(1_264);
        let mut found = None;
        while found.is_none() && tries <= paths {
            if mtu.is_due() {
                tries += 1;
                let small = asks.stamp();
                asks.on_sent(now, 0, 0);
                mtu.on_tried(now, small, 6 * MS);
                assert_eq!(mtu.on_answer(now, small, &asks.answered(small).unwrap()), None);
            }
            now = mtu.deadline();
            found = mtu.on_timeout(now, paths);
        }
        assert_eq!((found, tries), (Some(Finding::Lowered), expected), "{paths} paths");
    }
}

#[test]
fn a_session_whose_datagrams_are_short_searches_nothing() {
    let mut mtu = PathMtu::new(548, 0, 10_000 * MS);
    mtu.on_stalled(548);
    (0..100).for_each(|_| mtu.on_lost(400));
    assert!(!mtu.is_due() && mtu.limit() == 548 && mtu.deadline() == NEVER);
}
