use super::*;
use std::time::Duration;

const PARK_AT_ONCE: IdlePolicy = IdlePolicy {
    spins: 0,
    yields: 0,
    first_park: Duration::from_micros(1),
    longest_park: Duration::from_micros(1),
};

#[test]
fn every_waiter_wakes_whatever_it_was_doing() {
    for round in 0..300 {
        let event = Event::new();
        std::thread::scope(|scope| {
            for policy in [PARK_AT_ONCE, IdlePolicy::SHARED, IdlePolicy::FRUGAL] {
                let event = &event;
                scope.spawn(move || {
                    let late = Clock.now() + Duration::from_secs(30);
                    assert!(event.wait(policy, Some(late)), "round {round}: missed the wake-up");
                });
            }
            if round % 2 == 0 {
                std::thread::yield_now();
            }
            event.set();
        });
    }
}

#[test]
fn a_deadline_ends_the_wait() {
    let event = Event::new();
    for policy in [PARK_AT_ONCE, IdlePolicy::EXCLUSIVE] {
        let begin = Clock.now();
        assert!(!event.wait(policy, Some(begin + Duration::from_millis(3))));
        assert!(Clock.now().saturating_since(begin) >= Duration::from_millis(3));
    }
    assert_eq!(event.registered.load(Ordering::Relaxed), 0, "a waiter that left is no longer listed");
}

#[test]
fn a_completer_that_vanishes_is_an_error() {
    let (give, take) = completion::<u32>();
    drop(give);
    assert_eq!(take.wait(PARK_AT_ONCE, None), Err(CompletionError::Abandoned));
}

#[test]
fn a_timed_out_completion_may_be_waited_for_again() {
    let (give, take) = completion();
    assert_eq!(take.wait(PARK_AT_ONCE, Some(Instant::ZERO)), Err(CompletionError::Timeout));
    give.complete("late");
    assert_eq!(take.wait(PARK_AT_ONCE, None), Ok("late"));
}
