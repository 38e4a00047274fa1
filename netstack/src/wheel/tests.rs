use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{TICK_SHIFT, Wheel};
use crate::time::Instant;

const TICK: u64 = 1 << TICK_SHIFT;

fn at(nanos: u64) -> Instant {
    Instant::from_nanos(nanos)
}

fn fired(wheel: &mut Wheel<u64>, now: u64) -> Vec<u64> {
    let mut out = Vec::new();
    wheel.expire(at(now), |value| out.push(value));
    out
}

#[test]
fn fires_neither_early_nor_a_tick_late() {
    for deadline in [1, TICK - 1, TICK, TICK + 1, 64 * TICK, 65 * TICK + 7, 1_000_000, 5_000_000_000] {
        let mut wheel = Wheel::new(at(0));
        wheel.insert(at(deadline), 7);
        assert!(fired(&mut wheel, deadline - 1).is_empty(), "deadline {deadline}");
        assert_eq!(fired(&mut wheel, deadline + TICK - 1), [7], "deadline {deadline}");
        assert!(wheel.is_empty());
    }
}

#[test]
fn what_has_passed_fires_at_once_even_at_the_present_tick() {
    let mut wheel = Wheel::new(at(1_000_000));
    wheel.insert(at(3), 1);
    assert!(wheel.next_deadline().unwrap() <= at(1_000_000));
    assert_eq!(fired(&mut wheel, 1_000_000), [1]);
}

#[test]
fn equal_ticks_fire_in_the_order_of_their_start() {
    let mut wheel = Wheel::new(at(0));
    for value in 0..10 {
        wheel.insert(at(500_000), value);
    }
    assert_eq!(fired(&mut wheel, 1_000_000), (0..10).collect::<Vec<_>>());
}

#[test]
fn a_key_is_good_once() {
    let mut wheel = Wheel::new(at(0));
    let first = wheel.insert(at(5_000), 1);
    assert!(wheel.contains(first));
    assert_eq!(wheel.cancel(first), Some(1));
    assert_eq!(wheel.cancel(first), None);
    let second = wheel.insert(at(5_000), 2);
    assert_eq!(second.index, first.index, "the slot in the slab is used again");
    assert_eq!(wheel.cancel(first), None, "but the old key does not reach it");
    assert_eq!(fired(&mut wheel, 10_000), [2]);
    assert!(!wheel.contains(second));
    assert_eq!(wheel.next_deadline(), None);
}

#[test]
fn the_end_of_time_is_not_an_overflow() {
    let mut wheel = Wheel::new(at(u64::MAX - 10));
    wheel.insert(at(u64::MAX), 1);
    let mut early = Wheel::new(at(0));
    early.insert(at(u64::MAX), 2);
    assert!(early.next_deadline().unwrap() > at(0));
    assert!(fired(&mut early, 1 << 60).is_empty());
    assert_eq!(early.len(), 1);
}

/// A step on the wheel, next to a sorted map that does the same.
#[derive(Clone, Debug)]
enum Step {
    Insert(u64),
    Cancel(usize),
    Advance(u64),
    FollowDeadline,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // Distances over all magnitudes, so that all levels are used.
    let distance = (0u32..50, any::<u64>()).prop_map(|(bits, value)| value & ((1 << bits) - 1));
    proptest::collection::vec(
        prop_oneof![
            4 => distance.clone().prop_map(Step::Insert),
            1 => any::<usize>().prop_map(Step::Cancel),
            2 => distance.prop_map(Step::Advance),
            2 => Just(Step::FollowDeadline),
        ],
        1..120,
    )
}

proptest! {
    #[test]
    fn behaves_as_a_sorted_map(start in 0u64..1 << 62, steps in steps()) {
        let mut wheel = Wheel::new(at(start));
        let mut model: BTreeMap<(u64, u64), super::TimerKey> = BTreeMap::new();
        let mut now = start;
        for (id, step) in (0u64..).zip(steps) {
            match step {
                Step::Insert(distance) => {
                    let deadline = now + distance;
                    let key = wheel.insert(at(deadline), id);
                    // A deadline in the present tick may already be due.
                    model.insert((deadline.div_ceil(TICK).max(now / TICK), id), key);
                }
                Step::Cancel(which) => {
                    if !model.is_empty() {
                        let (&model_key, &key) = model.iter().nth(which % model.len()).unwrap();
                        model.remove(&model_key);
                        prop_assert_eq!(wheel.cancel(key), Some(model_key.1));
                        prop_assert_eq!(wheel.cancel(key), None);
                    }
                }
                Step::Advance(distance) => now += distance,
                Step::FollowDeadline => {
                    if let Some(deadline) = wheel.next_deadline() {
                        now = now.max(deadline.as_nanos());
                    }
                }
            }
            if let (Some(next), Some(&(tick, _))) = (wheel.next_deadline(), model.keys().next()) {
                prop_assert!(next.as_nanos() <= tick * TICK, "next {next:?} is later than tick {tick}");
            }
            let is_due = wheel.next_deadline().is_some_and(|next| next <= at(now));
            prop_assert_eq!(wheel.is_due(at(now)), is_due);
            let mut got = Vec::new();
            // As its users do: it is not advanced where nothing is due.
            if is_due || id % 2 == 0 {
                wheel.expire(at(now), |value| got.push(value));
            }
            let rest = model.split_off(&(now / TICK + 1, 0));
            let ticks: BTreeMap<u64, u64> = model.keys().map(|&(tick, id)| (id, tick)).collect();
            let mut expected: Vec<u64> = ticks.keys().copied().collect();
            let order: Vec<u64> = got.iter().filter_map(|id| ticks.get(id).copied()).collect();
            prop_assert!(order.is_sorted(), "fired out of order: {order:?}");
            got.sort_unstable();
            expected.sort_unstable();
            prop_assert_eq!(got, expected);
            model = rest;
            prop_assert_eq!(wheel.len(), model.len());
            prop_assert_eq!(wheel.next_deadline().is_none(), model.is_empty());
        }
    }
}
