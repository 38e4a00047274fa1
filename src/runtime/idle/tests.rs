use super::*;

const POLICY: IdlePolicy = IdlePolicy {
    spins: 3,
    yields: 2,
    first_park: Duration::from_micros(10),
    longest_park: Duration::from_micros(35),
};

#[test]
fn spins_then_yields_then_parks_ever_longer_up_to_the_bound() {
    let mut idle = Backoff::new(POLICY);
    let steps: Vec<BackoffStep> = (0..9).map(|_| idle.step(Activity::Idle)).collect();
    let park = |us| BackoffStep::Park(Duration::from_micros(us));
    let expected = [
        BackoffStep::Spin,
        BackoffStep::Spin,
        BackoffStep::Spin,
        BackoffStep::Yield,
        BackoffStep::Yield,
        park(10),
        park(20),
        park(35),
        park(35),
    ];
    assert_eq!(steps, expected);
}

#[test]
fn work_starts_the_sequence_again() {
    let mut idle = Backoff::new(POLICY);
    for _ in 0..20 {
        idle.step(Activity::Idle);
    }
    assert_eq!(idle.step(Activity::Busy), BackoffStep::Go);
    assert_eq!(idle.step(Activity::Idle), BackoffStep::Spin);
    for _ in 0..4 {
        idle.step(Activity::Idle);
    }
    assert_eq!(idle.step(Activity::Idle), BackoffStep::Park(Duration::from_micros(10)));
}

#[test]
fn a_passed_deadline_is_not_slept_through() {
    let mut idle = Backoff::new(IdlePolicy { spins: 0, yields: 0, ..POLICY });
    let parked = idle.wait_with(
        Activity::Idle,
        &mut (),
        |()| Some(Instant::ZERO),
        |_, _| panic!("slept past a deadline"),
    );
    assert!(parked);
    let in_9_s = |_: &Option<Duration>| Some(Clock.now() + Duration::from_secs(9));
    let mut slept = None;
    let sleep = |slept: &mut Option<Duration>, longest| {
        *slept = Some(longest);
        Activity::Idle
    };
    idle.wait_with(Activity::Idle, &mut slept, in_9_s, sleep);
    assert_eq!(slept, Some(Duration::from_micros(20)));
}

#[test]
fn work_found_before_a_sleep_starts_the_sequence_again() {
    let mut idle = Backoff::new(POLICY);
    while !matches!(idle.step(Activity::Idle), BackoffStep::Park(_)) {}
    assert!(idle.wait_with(Activity::Idle, &mut (), |()| None, |(), _| Activity::Busy));
    assert_eq!(idle.step(Activity::Idle), BackoffStep::Spin);
}

#[test]
fn more_ranks_than_cores_yield_after_a_few_spins() {
    assert!(IdlePolicy::for_ranks(8, 2).spins <= 16);
    assert!(IdlePolicy::for_ranks(2, 2).spins >= 500);
    assert_eq!(IdlePolicy::for_ranks(1, 0), IdlePolicy::FRUGAL);
    let here = IdlePolicy::detect(usize::MAX);
    assert!(here.spins <= 16, "nobody has that many cores: {here:?}");
}

#[test]
fn a_thread_that_shares_its_core_with_a_waiting_one_yields_soon() {
    let spins = || {
        let mut idle = Backoff::new(IdlePolicy { spins: 1_000, ..POLICY });
        (0..).find(|_| idle.step(Activity::Idle) == BackoffStep::Yield).unwrap()
    };
    assert_eq!(spins(), 1_000);
    note_yield(Duration::from_nanos(300));
    assert_eq!(spins(), 1_000, "nothing else was to run");
    note_yield(Duration::from_micros(7));
    for wait in 0..REMEMBERED {
        assert_eq!(spins(), FEW_SPINS, "{wait}");
    }
    assert_eq!(spins(), 1_000, "no yield has lasted since");
    note_yield(Duration::from_micros(7));
    assert_eq!(spins(), FEW_SPINS);
    note_yield(Duration::from_millis(3));
    assert_eq!(spins(), 1_000, "what computes gives the core back late");
}

#[test]
fn each_wait_of_a_loop_considers_it_anew() {
    let mut idle = Backoff::new(IdlePolicy { spins: 1_000, ..POLICY });
    let mut spins = || {
        let _busy = idle.step(Activity::Busy);
        (0..).find(|_| idle.step(Activity::Idle) == BackoffStep::Yield).unwrap()
    };
    assert_eq!(spins(), 1_000);
    note_yield(Duration::from_micros(7));
    assert_eq!(spins(), FEW_SPINS);
    SHARED_FOR.set(0);
    assert_eq!(spins(), 1_000);
}
