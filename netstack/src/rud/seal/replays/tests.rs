use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

//= rud/spec.md section 10.4, RUD-98
#[test]
fn each_number_is_new_once_and_old_ones_are_not() {
    let mut replays = Replays::default();
    for number in [0, 1, 5, 63, 64, 200, 100, 20_000] {
        assert!(replays.is_new(number), "{number}");
        replays.accept(number);
        assert!(!replays.is_new(number), "{number}");
    }
    assert_eq!(replays.highest(), 20_000);
    let oldest = 20_001 - WINDOW;
    assert!(replays.is_new(oldest) && !replays.is_new(oldest - 1) && !replays.is_new(200));
}

//= rud/spec.md section 10.2, RUD-94
#[test]
fn the_upper_half_is_that_of_the_nearest() {
    let mut replays = Replays::default();
    assert_eq!(replays.extend(0), 0);
    assert_eq!(replays.extend(u32::MAX), u64::from(u32::MAX), "there is none below 0");
    replays.accept((1 << 32) - 10);
    assert_eq!(replays.extend(5), (1 << 32) + 5);
    assert_eq!(replays.extend(u32::MAX - 20), (1 << 32) - 21);
    replays.accept((1 << 32) + 5);
    assert_eq!(replays.extend(u32::MAX), (1 << 32) - 1);
    assert_eq!(replays.extend(6), (1 << 32) + 6);
}

proptest! {
    /// Like a set of all numbers accepted.
    #[test]
    fn it_is_a_set_as_far_as_the_window_reaches(
        steps in proptest::collection::vec(prop_oneof![-9_000i64..200, -70i64..70, 0i64..20_000], 1..400),
        start in prop_oneof![Just(0u64), 0..100_000u64, Just((1 << 32) - 500)],
    ) {
        let (mut replays, mut all, mut at) = (Replays::default(), HashSet::new(), start);
        for step in steps {
            at = at.saturating_add_signed(step);
            let highest = all.iter().copied().max();
            prop_assert_eq!(replays.highest(), highest.unwrap_or(0));
            let is_old = highest.is_some_and(|highest| at + WINDOW < highest + 1);
            prop_assert_eq!(replays.is_new(at), !is_old && !all.contains(&at), "{}", at);
            if replays.is_new(at) {
                replays.accept(at);
                all.insert(at);
            }
            prop_assert!(!replays.is_new(at));
        }
    }
}
