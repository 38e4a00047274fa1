//! Tests of the shard as a whole: tasks, timers, messages, threads.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use super::*;

fn in_30_s() -> Option<Instant> {
    Some(Clock.now() + Duration::from_secs(30))
}

fn shards(n: usize, depth: usize, idle: IdlePolicy) -> Vec<Shard> {
    mesh(n, depth)
        .into_iter()
        .map(|endpoint| {
            let options = ShardOptions { idle, ..ShardOptions::default() };
            Shard::spawn_on(endpoint, options, || Ok::<_, String>(())).unwrap()
        })
        .collect()
}

fn micros(n: u64) -> Duration {
    Duration::from_micros(n)
}

#[test]
fn timers_fire_in_order_of_time_and_equal_ones_in_order_of_setting() {
    let mut reactor = LocalReactor::new(());
    let fired = Rc::new(RefCell::new(Vec::new()));
    reactor.visit(|()| {
        for (n, after) in [30_u64, 10, 20, 10, 0].into_iter().enumerate() {
            let fired = fired.clone();
            spawn_local(async move {
                sleep(micros(after)).await;
                fired.borrow_mut().push((after, n));
            })
            .detach();
        }
    });
    assert_eq!(reactor.turn(Instant::from_nanos(1_000)), Activity::Busy);
    assert_eq!(*fired.borrow(), [(0, 4)]);
    assert_eq!(reactor.next_deadline(), Some(Instant::from_nanos(11_000)));
    assert_eq!(reactor.turn(Instant::from_nanos(10_999)), Activity::Idle);
    reactor.turn(Instant::from_nanos(11_000));
    assert_eq!(*fired.borrow(), [(0, 4), (10, 1), (10, 3)]);
    reactor.turn(Instant::from_nanos(99_000));
    assert_eq!(*fired.borrow(), [(0, 4), (10, 1), (10, 3), (20, 2), (30, 0)]);
    assert_eq!(reactor.next_deadline(), None);
}

#[test]
fn a_timeout_that_was_not_needed_leaves_no_timer() {
    let mut reactor = LocalReactor::new(());
    let results = reactor.block_on(async {
        let quick = timeout(Duration::from_secs(1800), async {
            yield_now().await;
            1
        })
        .await;
        let slow = timeout(micros(50), std::future::pending::<()>()).await;
        (quick, slow)
    });
    assert_eq!(results, (Ok(1), Err(Elapsed { limit: micros(50) })));
    assert_eq!(reactor.next_deadline(), None);
}

#[test]
fn yielding_tasks_take_turns() {
    let mut reactor = LocalReactor::new(());
    let trace = Rc::new(RefCell::new(String::new()));
    reactor.visit(|()| {
        for name in ['a', 'b', 'c'] {
            let trace = trace.clone();
            spawn_local(async move {
                for _ in 0..3 {
                    trace.borrow_mut().push(name);
                    yield_now().await;
                }
            })
            .detach();
        }
    });
    while reactor.turn(Instant::ZERO).is_busy() {}
    assert_eq!(*trace.borrow(), "abcabcabc");
}

#[test]
fn a_task_that_panics_harms_only_who_awaits_it() {
    let mut reactor = LocalReactor::new(());
    let survived = reactor.block_on(async {
        let task = spawn_local(async { panic!("in a task") });
        let outcome: Result<(), _> = task::caught(task).await;
        panic_message(&*outcome.unwrap_err())
    });
    assert_eq!(survived, "in a task");
}

#[test]
fn a_dropped_task_is_cancelled_and_a_dropped_reactor_drops_all_futures() {
    struct Count(Rc<Cell<u32>>);
    impl Drop for Count {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }
    let dropped = Rc::new(Cell::new(0));
    let mut reactor = LocalReactor::new(());
    let forever = |count: Count| async move {
        let _count = count;
        sleep(Duration::from_secs(3600)).await;
    };
    reactor.visit(|()| drop(spawn_local(forever(Count(dropped.clone())))));
    reactor.turn(Instant::ZERO);
    assert_eq!(dropped.get(), 1, "cancelled by dropping its handle");
    reactor.visit(|()| {
        (0..10).for_each(|_| spawn_local(forever(Count(dropped.clone()))).detach());
        // A future whose drop wakes another task.
        let (give, take) = completion::<()>();
        let count = Count(dropped.clone());
        spawn_local(async move {
            let _count = count;
            let _ = take.await;
        })
        .detach();
        spawn_local(async move {
            let _give = give;
            std::future::pending::<()>().await;
        })
        .detach();
    });
    reactor.turn(Instant::ZERO);
    drop(reactor);
    assert_eq!(dropped.get(), 12);
}

#[test]
fn two_shards_play_ping_pong() {
    let shards = shards(2, 64, IdlePolicy::detect(3));
    let rounds = 100_000_u64;
    let sum = shards[0].remote().run(move || async move {
        let mut value = 0;
        for _ in 0..rounds {
            value = submit_to(ShardId(1), move || value + 1).await?;
        }
        Ok::<_, SubmitError>(value)
    });
    assert_eq!(sum.wait(IdlePolicy::FRUGAL, in_30_s()), Ok(Ok(rounds)));
    shards.into_iter().for_each(|shard| shard.join().unwrap());
}

#[test]
fn a_million_messages_pass_in_order_through_full_rings() {
    // Rings of four, so that nearly every message overflows at the sender.
    let shards = shards(2, 4, IdlePolicy::detect(3));
    let (batches, batch) = (1_000_u64, 1_000_u64);
    let ordered = shards[0].remote().run(move || async move {
        thread_local!(static NEXT: Cell<u64> = const { Cell::new(0) });
        let mut in_order = true;
        for b in 0..batches {
            let calls: Vec<_> = (0..batch)
                .map(|n| {
                    let number = b * batch + n;
                    submit_to(ShardId(1), move || NEXT.replace(number + 1) == number)
                })
                .collect();
            for call in calls {
                in_order &= call.await?;
            }
        }
        Ok::<_, SubmitError>(in_order)
    });
    assert_eq!(ordered.wait(IdlePolicy::FRUGAL, Some(Clock.now() + Duration::from_secs(120))), Ok(Ok(true)));
}

#[test]
fn eight_shards_on_few_cores_all_make_progress() {
    let cores = CoreAllowance::detect().whole_cores();
    let shards = shards(8, 16, IdlePolicy::for_ranks(8, cores.min(7)));
    let answers: Vec<_> = shards
        .iter()
        .map(|shard| {
            shard.remote().run(|| async {
                let me = current_shard().map_or(0, |id| id.0);
                let mut sum = 0;
                for n in 0..2_000 {
                    sum += submit_to(ShardId((me + n) % 8), move || n as u64).await?;
                }
                Ok::<_, SubmitError>(sum)
            })
        })
        .collect();
    for answer in answers {
        assert_eq!(answer.wait(IdlePolicy::FRUGAL, in_30_s()), Ok(Ok(2_000 * 1_999 / 2)));
    }
}

#[test]
fn submit_reports_what_went_wrong() {
    let mut shards = shards(3, 8, IdlePolicy::SHARED);
    let asked = shards[0].remote().run(|| async {
        let missing = submit_to(ShardId(3), || ()).await;
        let away = submit_to::<(), _>(ShardId(1), || panic!("over there")).await;
        let home = submit_to::<(), _>(ShardId(0), || panic!("at home")).await;
        (missing, away, home)
    });
    let panicked =
        |to, message: &str| Err(SubmitError::Panicked { to: ShardId(to), message: message.to_owned() });
    let (missing, away, home) = asked.wait(IdlePolicy::FRUGAL, in_30_s()).unwrap();
    assert_eq!(missing, Err(SubmitError::NoSuchShard(ShardId(3))));
    assert_eq!((away, home), (panicked(1, "over there"), panicked(0, "at home")));

    // A shard that stops while a call is under way fails the call instead of leaving the caller to wait.
    let held = Arc::new(AtomicBool::new(false));
    let (entered, release) = (held.clone(), Arc::new(AtomicBool::new(false)));
    let hold = release.clone();
    let blocked = shards[2].remote().submit(move || {
        entered.store(true, Ordering::Release);
        while !hold.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
    });
    while !held.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
    let (sent, was_sent) = completion();
    let orphan = shards[0].remote().run(move || async move {
        let call = submit_to(ShardId(2), || ());
        sent.complete(());
        call.await
    });
    was_sent.wait(IdlePolicy::FRUGAL, in_30_s()).unwrap();
    let last = shards.pop().unwrap();
    last.stop();
    release.store(true, Ordering::Release);
    let remote = last.remote().clone();
    blocked.wait(IdlePolicy::FRUGAL, in_30_s()).unwrap();
    last.join().unwrap();
    let orphan = orphan.wait(IdlePolicy::FRUGAL, in_30_s()).expect("the caller was told");
    assert!(matches!(orphan, Ok(()) | Err(SubmitError::Stopped(ShardId(2)))), "{orphan:?}");
    assert_eq!(remote.submit(|| ()).wait(IdlePolicy::FRUGAL, in_30_s()), Err(CompletionError::Abandoned));
    let late = shards[0].remote().run(|| async { submit_to(ShardId(2), || ()).await });
    let stopped = Err(SubmitError::Stopped(ShardId(2)));
    assert_eq!(late.wait(IdlePolicy::FRUGAL, in_30_s()), Ok(stopped));
}

#[test]
fn many_outside_threads_submit_to_a_parked_shard() {
    let at_once =
        IdlePolicy { spins: 0, yields: 0, first_park: micros(1), longest_park: Duration::from_secs(60) };
    let shard =
        Shard::spawn(ShardOptions { idle: at_once, ..Default::default() }, || Ok::<_, String>(())).unwrap();
    let begin = Clock.now();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let remote = shard.remote().clone();
            scope.spawn(move || {
                for n in 0..1_000 {
                    let answer = remote.submit(move || thread * n);
                    assert_eq!(answer.wait(IdlePolicy::FRUGAL, in_30_s()), Ok(thread * n));
                }
            });
        }
    });
    assert!(Clock.now().saturating_since(begin) < Duration::from_secs(30), "a wake-up was lost");
}

#[test]
fn wakes_from_other_threads_reach_a_shard() {
    let shard = Shard::spawn(ShardOptions::default(), || Ok::<_, String>(())).unwrap();
    for n in 0..500 {
        let (give, take) = completion();
        let waiting = shard.remote().run(move || async move {
            let kept_here = Rc::new(n);
            take.await.map(|value: u32| value + *kept_here)
        });
        give.complete(1);
        assert_eq!(waiting.wait(IdlePolicy::FRUGAL, in_30_s()), Ok(Ok(n + 1)));
    }
}

/// Panics when told to.
struct Fuse(Arc<AtomicBool>);

impl Poller for Fuse {
    fn poll(&mut self, _now: Instant) -> Activity {
        assert!(!self.0.load(Ordering::Acquire), "the fuse blew");
        Activity::Idle
    }
}

#[test]
fn a_panicking_poller_ends_its_shard_with_an_error() {
    let blow = Arc::new(AtomicBool::new(false));
    let fuse = Fuse(blow.clone());
    let shard = Shard::spawn(ShardOptions::default(), move || Ok::<_, String>(fuse)).unwrap();
    let stuck = shard.remote().run(std::future::pending::<()>);
    assert_eq!(shard.remote().submit(|| 1).wait(IdlePolicy::FRUGAL, in_30_s()), Ok(1));
    blow.store(true, Ordering::Release);
    assert_eq!(stuck.wait(IdlePolicy::FRUGAL, in_30_s()), Err(CompletionError::Abandoned));
    assert_eq!(shard.join(), Err(ShardError::Panicked("the fuse blew".to_owned())));
}

#[test]
fn a_shard_that_cannot_start_says_why() {
    let failing = Shard::spawn(ShardOptions::default(), || Err::<(), _>("no NIC"));
    assert_eq!(failing.unwrap_err(), ShardError::Build("no NIC".to_owned()));
    let panicking = Shard::spawn::<(), String, _>(ShardOptions::default(), || panic!("no memory"));
    assert_eq!(panicking.unwrap_err(), ShardError::Panicked("no memory".to_owned()));
    let nowhere = ShardOptions { core: Some(usize::MAX), ..Default::default() };
    let refused = Shard::spawn(nowhere, || Ok::<_, String>(()));
    assert!(matches!(refused, Err(ShardError::CoreNotAllowed { core: usize::MAX, .. })), "{refused:?}");
}

#[test]
fn a_pinned_shard_runs_on_its_core_alone() {
    let core = *CoreAllowance::detect().cores.last().unwrap();
    let options = ShardOptions { core: Some(core), ..Default::default() };
    let shard = Shard::spawn(options, || Ok::<_, String>(())).unwrap();
    let mask = shard.remote().submit(|| CoreAllowance::detect().cores);
    assert_eq!(mask.wait(IdlePolicy::FRUGAL, in_30_s()), Ok(vec![core]));
}

#[test]
fn shards_nest() {
    // A task of one shard may turn another, and finds itself at home afterwards.
    let mut outer = LocalReactor::new(());
    let ids = outer.block_on(async {
        let mut endpoints = mesh(2, 4);
        let mut inner = LocalReactor::on(endpoints.pop().unwrap(), ());
        let inside = inner.block_on(async { current_shard() });
        (inside, current_shard())
    });
    assert_eq!(ids, (Some(ShardId(1)), Some(ShardId(0))));
    assert_eq!(current_shard(), None);
}

#[test]
fn wake_races_with_stop() {
    // Threads wake tasks while their shard goes down: nothing may hang, abort or leak a running future.
    for _ in 0..200 {
        let shard = Shard::spawn(ShardOptions::default(), || Ok::<_, String>(())).unwrap();
        let alive = Arc::new(AtomicU32::new(0));
        struct Alive(Arc<AtomicU32>);
        impl Drop for Alive {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::AcqRel);
            }
        }
        let (gives, takes): (Vec<_>, Vec<_>) = (0..8).map(|_| completion::<()>()).unzip();
        let count = alive.clone();
        let started = shard.remote().submit(move || {
            for take in takes {
                count.fetch_add(1, Ordering::AcqRel);
                let alive = Alive(count.clone());
                spawn_local(async move {
                    let _alive = alive;
                    let _ = take.await;
                })
                .detach();
            }
        });
        started.wait(IdlePolicy::SHARED, in_30_s()).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || gives.into_iter().for_each(|give| give.complete(())));
            shard.join().unwrap();
        });
        assert_eq!(alive.load(Ordering::Acquire), 0);
    }
}
