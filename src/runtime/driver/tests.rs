use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

use super::*;
use crate::runtime::Clock;
use crate::runtime::{Activity, ShardError, ShardId, Shards, ShardsBuilder, stopping};

/// A made-up peer: every request is answered a few polls later, in another order than the requests.
#[derive(Default)]
struct Engine {
    polls: u64,
    requests: VecDeque<(u64, u64)>,
    answers: Vec<u64>,
}

impl Engine {
    fn request(&mut self, id: u64) {
        self.requests.push_back((id, self.polls + 3 + id % 5));
    }

    fn answer(&mut self, id: u64) -> Option<u64> {
        let at = self.answers.iter().position(|answer| *answer == id)?;
        Some(self.answers.swap_remove(at))
    }
}

impl Poller for Engine {
    fn poll(&mut self, _now: Instant) -> Activity {
        self.polls += 1;
        let (before, polls) = (self.answers.len(), self.polls);
        let answers = &mut self.answers;
        self.requests.retain(|(id, due)| {
            let wait = *due > polls;
            if !wait {
                answers.push(*id);
            }
            wait
        });
        Activity::from_busy(self.answers.len() != before)
    }
}

fn options() -> DriverOptions {
    DriverOptions { idle: IdlePolicy::detect(4), ..DriverOptions::default() }
}

fn in_30_s() -> Option<Instant> {
    Some(Clock.now() + Duration::from_secs(30))
}

#[test]
fn one_thread_drives_its_own_requests() {
    let driver = Driver::new(Engine::default(), options()).unwrap();
    for id in 0..1_000 {
        driver.with(move |engine| engine.request(id)).unwrap();
        assert_eq!(driver.drive_until(move |engine| engine.answer(id), in_30_s()), Ok(id));
    }
}

#[test]
fn four_threads_block_at_once_and_all_are_served() {
    for policy in [IdlePolicy::EXCLUSIVE, IdlePolicy::SHARED, IdlePolicy::FRUGAL] {
        let driver = Driver::new(Engine::default(), DriverOptions { idle: policy, ..options() }).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let driver = &driver;
                scope.spawn(move || {
                    for n in 0..2_000 {
                        let id = n * 4 + thread;
                        driver.with(move |engine| engine.request(id)).unwrap();
                        let answer = driver.drive_until(move |engine| engine.answer(id), in_30_s());
                        assert_eq!(answer, Ok(id), "{policy:?}");
                    }
                });
            }
        });
        assert_eq!(driver.with(|engine| engine.requests.len() + engine.answers.len()), Ok(0));
        assert!(driver.inner().waiters.is_empty());
    }
}

#[test]
fn a_deadline_frees_the_driver_and_those_who_wait() {
    let driver = Driver::new(Engine::default(), options()).unwrap();
    std::thread::scope(|scope| {
        for millis in [5, 10, 20] {
            let driver = &driver;
            scope.spawn(move || {
                let begin = Clock.now();
                let deadline = begin + Duration::from_millis(millis);
                let never = driver.drive_until(|engine| engine.answer(u64::MAX), Some(deadline));
                assert!(matches!(never, Err(DriveError::Timeout { .. })), "{never:?}");
                assert!(Clock.now() >= deadline);
            });
        }
    });
    assert!(driver.inner().waiters.is_empty(), "who timed out left the list");
}

#[test]
fn who_waits_takes_over_when_the_driver_leaves() {
    // The conditions are reached by polling alone, one long after the other, so each driver but the last leaves others behind.
    let driver = Driver::new(Engine::default(), options()).unwrap();
    std::thread::scope(|scope| {
        for condition in [50, 500, 5_000, 10_000] {
            let driver = &driver;
            scope.spawn(move || {
                driver
                    .with(move |engine| engine.requests.push_back((condition, engine.polls + condition)))
                    .unwrap();
                assert_eq!(
                    driver.drive_until(move |engine| engine.answer(condition), in_30_s()),
                    Ok(condition)
                );
            });
        }
    });
}

/// Panics in its third poll.
struct Faulty(u32);

impl Poller for Faulty {
    fn poll(&mut self, _now: Instant) -> Activity {
        self.0 += 1;
        assert!(self.0 < 3, "the third poll is unlucky");
        Activity::Busy
    }
}

#[test]
fn a_panicking_engine_is_an_error_for_everybody_and_ever_after() {
    let driver = Driver::new(Faulty(0), options()).unwrap();
    let is_panic = |result: Result<(), DriveError>| match result {
        Err(DriveError::Panicked { message }) => assert!(message.contains("unlucky"), "{message}"),
        other => panic!("expected the engine's panic, got {other:?}"),
    };
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| is_panic(driver.drive_until(|_| None, in_30_s())));
        }
    });
    is_panic(driver.drive_until(|_| Some(()), None));
    is_panic(driver.with(|_| ()));
}

#[test]
fn driving_from_inside_is_refused() {
    let driver = Arc::new(Driver::new(Engine::default(), options()).unwrap());
    let inside = driver.clone();
    let nested = driver.with(move |_| inside.with(|_| ())).unwrap();
    assert_eq!(nested, Err(DriveError::Reentered));
}

/// Answers knocks from another thread, as a stack answers frames.
struct Echo {
    knocks: Arc<AtomicU64>,
    answered: Arc<AtomicU64>,
    seen: u64,
}

impl Poller for Echo {
    fn poll(&mut self, _now: Instant) -> Activity {
        let knocks = self.knocks.load(Ordering::Acquire);
        let news = knocks != self.seen;
        self.seen = knocks;
        self.answered.store(knocks, Ordering::Release);
        Activity::from_busy(news)
    }
}

#[test]
fn the_helper_answers_while_nobody_drives() {
    let (knocks, answered) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let echo = Echo { knocks: knocks.clone(), answered: answered.clone(), seen: 0 };
    let driver = Driver::new(echo, options()).unwrap();
    for knock in 1..=50 {
        knocks.store(knock, Ordering::Release);
        let late = Clock.now() + Duration::from_secs(10);
        while answered.load(Ordering::Acquire) != knock {
            assert!(Clock.now() < late, "knock {knock} was not answered");
            std::thread::yield_now();
        }
    }
    drop(driver);
}

#[test]
fn a_sleeping_helper_ends_with_its_driver() {
    let slow = DriverOptions {
        active_period: Duration::from_secs(60),
        idle_period: Duration::from_secs(60),
        ..options()
    };
    let begin = Clock.now();
    drop(Driver::new((), slow).unwrap());
    assert!(Clock.now().saturating_since(begin) < Duration::from_secs(30), "the helper slept on");
}

#[test]
fn an_end_that_no_thread_waits_for_is_polled_for_at_once_and_often() {
    struct Quiet(Arc<AtomicU64>);
    impl Poller for Quiet {
        fn poll(&mut self, _now: Instant) -> Activity {
            self.0.fetch_add(1, Ordering::Relaxed);
            Activity::Idle
        }
    }
    let slow = DriverOptions {
        active_period: Duration::from_secs(60),
        idle_period: Duration::from_secs(60),
        ..options()
    };
    let polls = Arc::new(AtomicU64::new(0));
    let driver = Driver::new(Quiet(polls.clone()), slow).unwrap();
    let ends = driver.awaited_ends();
    let late = Clock.now() + Duration::from_secs(30);
    for _ in 0..2 {
        let before = polls.load(Ordering::Relaxed);
        ends.add();
        ends.add();
        ends.remove();
        while polls.load(Ordering::Relaxed) < before + 200 {
            assert!(Clock.now() < late, "the helper sleeps");
            std::thread::yield_now();
        }
        ends.remove();
        // It sleeps again.
        let mut seen = polls.load(Ordering::Relaxed);
        loop {
            std::thread::sleep(Duration::from_millis(20));
            let now = polls.load(Ordering::Relaxed);
            if now == seen {
                break;
            }
            assert!(Clock.now() < late, "the helper polls on");
            seen = now;
        }
    }
    drop(driver);
    ends.add();
}

/// Counts the polls of its driver's helper.
struct Helped {
    by_helper: Arc<AtomicU64>,
    at_rest: bool,
}

impl Poller for Helped {
    fn poll(&mut self, _now: Instant) -> Activity {
        let is_helper = std::thread::current().name() == Some("shouter-helper");
        self.by_helper.fetch_add(is_helper.into(), Ordering::Relaxed);
        // A helper that finds nothing polls once in a look.
        Activity::from_busy(!is_helper)
    }

    fn is_at_rest(&self) -> bool {
        self.at_rest
    }
}

#[test]
fn the_helper_leaves_an_engine_at_rest_to_callers_that_poll_often() {
    let often = Duration::from_millis(20);
    let options = DriverOptions { active_period: often, idle_period: 50 * often, ..options() };
    let late = Clock.now() + Duration::from_secs(60);
    for at_rest in [false, true] {
        let by_helper = Arc::new(AtomicU64::new(0));
        let driver = Driver::new(Helped { by_helper: by_helper.clone(), at_rest }, options.clone()).unwrap();
        let looks = || by_helper.load(Ordering::Relaxed);
        let (mut seen, mut since) = (0, Clock.now());
        // While something is under way it polls as before; at rest it stays away for many periods.
        while if at_rest { Clock.now().saturating_since(since) < 10 * often } else { looks() < 10 } {
            let mut asked = false;
            driver.drive_until(move |_| std::mem::replace(&mut asked, true).then_some(()), None).unwrap();
            if looks() != seen {
                (seen, since) = (looks(), Clock.now());
            }
            assert!(Clock.now() < late, "at rest: {at_rest}; the helper has polled {seen} times");
            // The driver lock is mostly free: a look that finds it taken polls nothing.
            std::thread::sleep(often / 20);
        }
        // It comes back though callers stay away.
        let before = looks();
        while looks() < before + 2 {
            assert!(Clock.now() < late, "the helper sleeps on");
            std::thread::yield_now();
        }
    }
}

/// A shard that drives and waits by `idle`.
fn dedicated<P: Poller + Send>(driver: &Driver<P>, idle: IdlePolicy) -> Shards<()> {
    let shards = ShardsBuilder::new().idle(idle).start([driver.dedicated()], |engine| {
        let work = async {
            stopping().await;
            Ok::<_, String>(())
        };
        Ok((engine, work))
    });
    shards.unwrap()
}

/// Waits until the shard has the driver lock.
fn until_dedicated<P: Poller + Send>(driver: &Driver<P>) {
    while !driver.inner().is_dedicated() {
        std::thread::yield_now();
    }
}

#[test]
fn a_dedicated_shard_serves_all_callers_and_releases_the_lock_when_it_ends() {
    // It parks for a minute whenever there is nothing to do: only the callers' conditions wake it.
    let minute = Duration::from_secs(60);
    let parks = IdlePolicy { spins: 0, yields: 0, first_park: minute, longest_park: minute };
    for idle in [parks, IdlePolicy::EXCLUSIVE] {
        let driver = Driver::new((), options()).unwrap();
        let shard = dedicated(&driver, idle);
        until_dedicated(&driver);
        let begin = Clock.now();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for n in 0..500 {
                        let on = driver.with(move |()| (n, thread_number())).unwrap();
                        assert_eq!(on.0, n);
                        assert_ne!(on.1, thread_number(), "the caller drove");
                    }
                });
            }
        });
        let deadline = Clock.now() + Duration::from_millis(5);
        let never = driver.drive_until(|()| None::<()>, Some(deadline));
        assert!(matches!(never, Err(DriveError::Timeout { .. })), "{never:?}");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                // Reached on this thread alone, so after the shard has ended.
                let me = thread_number();
                driver.drive_until(move |()| (thread_number() == me).then_some(()), in_30_s())
            });
            while driver.inner().waiters.is_empty() {
                std::thread::yield_now();
            }
            shard.stop();
            shard.join().unwrap();
            assert_eq!(waiting.join().unwrap(), Ok(()));
        });
        let me = thread_number();
        assert_eq!(driver.with(|()| thread_number()), Ok(me), "the caller drives again");
        assert!(Clock.now().saturating_since(begin) < Duration::from_secs(30), "a wake-up was lost");
    }
}

#[test]
fn a_dedicated_shard_drives_an_engine_that_needs_polls() {
    let driver = Driver::new(Engine::default(), options()).unwrap();
    let _shard = dedicated(&driver, IdlePolicy::SHARED);
    for id in 0..1_000 {
        driver.with(move |engine| engine.request(id)).unwrap();
        assert_eq!(driver.drive_until(move |engine| engine.answer(id), in_30_s()), Ok(id));
    }
}

/// Panics when it is told to.
struct Fragile(bool);

impl Poller for Fragile {
    fn poll(&mut self, _now: Instant) -> Activity {
        assert!(!self.0, "it breaks");
        Activity::Idle
    }
}

#[test]
fn a_panic_of_a_dedicated_engine_is_told() {
    let driver = Driver::new(Fragile(false), options()).unwrap();
    let (told, heard) = std::sync::mpsc::channel();
    driver.on_panic(Box::new(move |message| told.send(message.to_owned()).unwrap()));
    let _shard = dedicated(&driver, IdlePolicy::SHARED);
    until_dedicated(&driver);
    driver.with(|engine| engine.0 = true).unwrap();
    assert!(heard.recv_timeout(Duration::from_secs(30)).unwrap().contains("it breaks"));
}

/// Counts its polls, which never do anything.
struct Quiet(u64);

impl Poller for Quiet {
    fn poll(&mut self, _now: Instant) -> Activity {
        self.0 += 1;
        Activity::Idle
    }
}

#[test]
fn a_condition_is_asked_again_though_no_poll_does_anything() {
    for idle in [IdlePolicy::EXCLUSIVE, IdlePolicy::SHARED, IdlePolicy::FRUGAL] {
        let driver = Driver::new(Quiet(0), DriverOptions { idle, ..options() }).unwrap();
        let later = || {
            let begun = driver.with(|engine| engine.0).unwrap();
            driver.drive_until(move |engine| (engine.0 > begun + 100).then_some(()), in_30_s())
        };
        assert_eq!(later(), Ok(()), "{idle:?}");
        std::thread::scope(|scope| {
            let other = scope.spawn(later);
            assert_eq!((later(), other.join().unwrap()), (Ok(()), Ok(())), "{idle:?}");
        });
        let shard = dedicated(&driver, idle);
        until_dedicated(&driver);
        assert_eq!(later(), Ok(()), "{idle:?}, dedicated");
        drop(shard);
    }
}

#[test]
fn a_panic_under_a_dedicated_shard_is_an_error_for_everybody() {
    let driver = Driver::new((), options()).unwrap();
    let shard = dedicated(&driver, IdlePolicy::SHARED);
    until_dedicated(&driver);
    let waiting = driver.drive_until(|()| -> Option<()> { panic!("a condition of this kind") }, in_30_s());
    let panicked = DriveError::Panicked { message: "a condition of this kind".to_owned() };
    assert_eq!(waiting, Err(panicked.clone()));
    assert_eq!(driver.with(|()| ()), Err(panicked));
    let message = "a condition of this kind".to_owned();
    assert_eq!(shard.join(), Err(ShardError::Panicked { shard: ShardId(0), message }));
}

#[test]
fn a_caller_is_not_kept_out_by_a_helper_with_endless_work() {
    /// Always busy.
    struct Mill(Arc<AtomicU32>);
    impl Poller for Mill {
        fn poll(&mut self, _now: Instant) -> Activity {
            self.0.fetch_add(1, Ordering::Relaxed);
            Activity::Busy
        }
    }
    let polls = Arc::new(AtomicU32::new(0));
    let driver = Driver::new(Mill(polls.clone()), options()).unwrap();
    for n in 0..500 {
        assert_eq!(driver.with(move |_| n), Ok(n));
    }
    let late = Clock.now() + Duration::from_secs(10);
    while polls.load(Ordering::Relaxed) == 0 {
        assert!(Clock.now() < late, "the helper never polled");
        std::thread::yield_now();
    }
}

#[test]
fn a_forked_child_is_refused_and_may_drop_the_driver() {
    let mut driver = Some(Driver::new(Engine::default(), options()).unwrap());
    let status = sys::in_forked_child(|| {
        let refused = driver.as_ref().unwrap().with(|_| ()) == Err(DriveError::Forked);
        driver = None;
        u8::from(refused)
    });
    assert_eq!(status, 1, "refused, and dropped without waiting for a thread that is not there");
    assert_eq!(driver.unwrap().with(|_| 7), Ok(7), "the parent works on");
}

#[test]
fn work_at_once_is_done_only_where_nobody_drives() {
    let driver = Driver::new(Engine::default(), options()).unwrap();
    // The helper drives now and then.
    let deadline = Clock.now() + Duration::from_secs(30);
    let looks = loop {
        assert!(Clock.now() < deadline, "the lock is never free");
        if let Some(looks) = driver.at_once(|_, looks| Some(looks)).unwrap() {
            break looks;
        }
    };
    assert!(looks >= 1);
    // From inside of the engine, and from another thread while this one drives.
    std::thread::scope(|scope| {
        let driver = &driver;
        let inside = driver.with(move |_| ());
        assert_eq!(inside, Ok(()));
        let (begun, has_begun) = std::sync::mpsc::channel();
        let (end, may_end) = std::sync::mpsc::channel::<()>();
        scope.spawn(move || {
            driver.with(move |_| {
                begun.send(()).unwrap();
                may_end.recv().unwrap();
            })
        });
        has_begun.recv().unwrap();
        assert_eq!(driver.at_once(|_, _| Some(())), Ok(None));
        end.send(()).unwrap();
    });
}

#[test]
fn a_panic_at_once_is_an_error_for_everybody() {
    let driver = Driver::new(Engine::default(), options()).unwrap();
    let unlucky = || {
        let panic = |_: &mut Engine, _| -> Option<()> { panic!("this work is unlucky") };
        driver.at_once(panic)
    };
    let deadline = Clock.now() + Duration::from_secs(30);
    let error = loop {
        assert!(Clock.now() < deadline, "the lock is never free");
        match unlucky() {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(&error, DriveError::Panicked { message } if message.contains("unlucky")), "{error}");
    assert_eq!(driver.with(|_| ()), Err(error));
    assert_eq!(driver.at_once(|_, _| Some(())), Ok(None));
}

/// An engine that sends a part of what was posted in each poll.
struct Sending {
    left: u32,
    polls: u32,
}

impl Poller for Sending {
    fn poll(&mut self, _now: Instant) -> Activity {
        self.polls += 1;
        let busy = self.left > 0;
        self.left = self.left.saturating_sub(1);
        Activity::from_busy(busy)
    }

    fn next_deadline(&self) -> Option<Instant> {
        (self.left > 0).then_some(Instant::ZERO)
    }
}

#[test]
fn what_was_posted_leaves_in_a_few_polls_of_the_caller() {
    for (left, polls) in [(0, 1), (1, 1), (5, 5), (100, 8)] {
        let mut engine = Sending { left, polls: 0 };
        engine.poll_for_posts(|engine, now| engine.poll(now));
        assert_eq!(engine.polls, polls, "{left}");
    }
}
