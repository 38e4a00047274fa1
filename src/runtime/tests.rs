//! Tests of the shard as a whole: tasks, timers, messages, threads.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use super::*;

/// Runs `work` on the first of so many shards, and returns its output.
fn on_first<F, R>(count: usize, idle: IdlePolicy, work: impl FnOnce() -> F + Clone + Send + 'static) -> R
where
    F: Future<Output = R> + 'static,
    R: Send + 'static,
{
    let shards = ShardsBuilder::new().cores(Cores::Any).idle(idle).start(0..count, move |n| {
        let work = (n == 0).then_some(work.clone());
        Ok::<_, String>(((), async move {
            match work {
                Some(work) => Ok(Some(work().await)),
                None => Ok(None),
            }
        }))
    });
    shards.unwrap().join().unwrap().remove(0).unwrap()
}

/// A flag that any thread sets and a task waits for.
#[derive(Clone, Default)]
struct Flag(Arc<Mutex<(bool, Option<Waker>)>>);

impl Flag {
    fn set(&self) {
        let waker = {
            let mut state = self.0.lock().unwrap();
            state.0 = true;
            state.1.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }

    async fn wait(&self) {
        poll_fn(|cx| {
            let mut state = self.0.lock().unwrap();
            if state.0 {
                return Poll::Ready(());
            }
            state.1 = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}

/// Waits on the calling thread.
fn wait_for(flag: &AtomicBool) {
    let begin = Clock.now();
    while !flag.load(Ordering::Acquire) {
        assert!(Clock.now().saturating_since(begin) < Duration::from_secs(30), "it never happened");
        std::thread::yield_now();
    }
}

const PARK_AT_ONCE: IdlePolicy = IdlePolicy {
    spins: 0,
    yields: 0,
    first_park: Duration::from_secs(60),
    longest_park: Duration::from_secs(60),
};

fn micros(n: u64) -> Duration {
    Duration::from_micros(n)
}

#[test]
fn timers_fire_in_order_of_time_and_equal_ones_in_order_of_setting() {
    let mut reactor = Reactor::new(());
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
    assert_eq!(reactor.poll(Instant::from_nanos(1_000)), Activity::Busy);
    assert_eq!(*fired.borrow(), [(0, 4)]);
    assert_eq!(reactor.next_deadline(), Some(Instant::from_nanos(11_000)));
    assert_eq!(reactor.poll(Instant::from_nanos(10_999)), Activity::Idle);
    reactor.poll(Instant::from_nanos(11_000));
    assert_eq!(*fired.borrow(), [(0, 4), (10, 1), (10, 3)]);
    reactor.poll(Instant::from_nanos(99_000));
    assert_eq!(*fired.borrow(), [(0, 4), (10, 1), (10, 3), (20, 2), (30, 0)]);
    assert_eq!(reactor.next_deadline(), None);
}

#[test]
fn a_timeout_that_was_not_needed_leaves_no_timer() {
    let mut reactor = Reactor::new(());
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
    let mut reactor = Reactor::new(());
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
    while reactor.poll(Instant::ZERO).is_busy() {}
    assert_eq!(*trace.borrow(), "abcabcabc");
}

#[test]
fn a_task_that_panics_harms_only_who_awaits_it() {
    let mut reactor = Reactor::new(());
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
    let mut reactor = Reactor::new(());
    let forever = |count: Count| async move {
        let _count = count;
        sleep(Duration::from_secs(3600)).await;
    };
    reactor.visit(|()| drop(spawn_local(forever(Count(dropped.clone())))));
    reactor.poll(Instant::ZERO);
    assert_eq!(dropped.get(), 1, "cancelled by dropping its handle");
    reactor.visit(|()| {
        (0..10).for_each(|_| spawn_local(forever(Count(dropped.clone()))).detach());
        // A future whose drop wakes another task.
        struct SetInDrop(Flag);
        impl Drop for SetInDrop {
            fn drop(&mut self) {
                self.0.set();
            }
        }
        let (flag, count) = (Flag::default(), Count(dropped.clone()));
        let set = SetInDrop(flag.clone());
        spawn_local(async move {
            let _count = count;
            flag.wait().await;
        })
        .detach();
        spawn_local(async move {
            let _set = set;
            std::future::pending::<()>().await;
        })
        .detach();
    });
    reactor.poll(Instant::ZERO);
    drop(reactor);
    assert_eq!(dropped.get(), 12);
}

#[test]
fn two_shards_play_ping_pong() {
    let rounds = 100_000_u64;
    let sum = on_first(2, IdlePolicy::detect(3), move || async move {
        let mut value = 0;
        for _ in 0..rounds {
            value = submit_to(ShardId(1), move || value + 1).await?;
        }
        Ok::<_, SubmitError>(value)
    });
    assert_eq!(sum, Ok(rounds));
}

#[test]
fn a_million_messages_pass_in_order_through_full_rings() {
    // Batches several times as long as a ring, so that most messages overflow at the sender.
    let (batches, batch) = (1_000_u64, 1_000_u64);
    let ordered = on_first(2, IdlePolicy::detect(3), move || async move {
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
    assert_eq!(ordered, Ok(true));
}

#[test]
fn eight_shards_on_few_cores_all_make_progress() {
    let cores = CoreAllowance::detect().whole_cores();
    let idle = IdlePolicy::for_ranks(8, cores.min(7));
    let shards = ShardsBuilder::new().idle(idle).start(0..8, |me: usize| {
        let work = async move {
            let mut sum = 0;
            for n in 0..2_000 {
                sum += submit_to(ShardId((me + n) % 8), move || n as u64).await?;
            }
            Ok(sum)
        };
        Ok::<_, SubmitError>(((), work))
    });
    assert_eq!(shards.unwrap().join(), Ok(vec![2_000 * 1_999 / 2; 8]));
}

#[test]
fn submit_reports_what_went_wrong() {
    let (missing, away, home) = on_first(3, IdlePolicy::SHARED, || async {
        let missing = submit_to(ShardId(3), || ()).await;
        let away = submit_to::<(), _>(ShardId(1), || panic!("over there")).await;
        let home = submit_to::<(), _>(ShardId(0), || panic!("at home")).await;
        (missing, away, home)
    });
    let panicked =
        |to, message: &str| Err(SubmitError::Panicked { to: ShardId(to), message: message.to_owned() });
    assert_eq!(missing, Err(SubmitError::NoSuchShard(ShardId(3))));
    assert_eq!((away, home), (panicked(1, "over there"), panicked(0, "at home")));
    assert_eq!(all_shards().count(), 0, "not on a shard");
}

#[test]
fn wakes_from_other_threads_reach_a_parked_shard() {
    let flags: Vec<Flag> = (0..500).map(|_| Flag::default()).collect();
    let (begun, seen) = (Clock.now(), flags.clone());
    let progress = Arc::new(AtomicU32::new(0));
    let count = progress.clone();
    let shards = ShardsBuilder::new().idle(PARK_AT_ONCE).start([seen], move |flags| {
        let count = count.clone();
        let work = async move {
            for flag in flags {
                let kept_here = Rc::new(1);
                flag.wait().await;
                count.fetch_add(*kept_here, Ordering::Release);
            }
            Ok::<_, String>(())
        };
        Ok(((), work))
    });
    for (flag, n) in flags.iter().zip(0..) {
        while progress.load(Ordering::Acquire) < n {
            std::thread::yield_now();
        }
        flag.set();
    }
    shards.unwrap().join().unwrap();
    assert!(Clock.now().saturating_since(begun) < Duration::from_secs(30), "a wake-up was lost");
}

/// Panics on request.
struct Fuse(Arc<AtomicBool>);

impl Poller for Fuse {
    fn poll(&mut self, _now: Instant) -> Activity {
        assert!(!self.0.load(Ordering::Acquire), "the fuse blew");
        Activity::Idle
    }
}

#[test]
fn a_panicking_poller_fails_calls_to_its_shard_and_ends_all_with_an_error() {
    let blow = Arc::new(AtomicBool::new(false));
    let (fuse, told) = (blow.clone(), Arc::new(Mutex::new(Vec::new())));
    let heard = told.clone();
    let shards = ShardsBuilder::new().start(0..2, move |n| {
        let fuse = Fuse(if n == 1 { fuse.clone() } else { Arc::default() });
        let (blow, heard) = (fuse.0.clone(), heard.clone());
        let work = async move {
            if n == 1 {
                // Never ends by itself, and ignores the request to end.
                std::future::pending::<()>().await;
            }
            let first = submit_to(ShardId(1), move || drop(blow)).await;
            heard.lock().unwrap().push(first);
            // Calls that are under way when the shard ends, and later ones.
            while heard.lock().unwrap().last() != Some(&Err(SubmitError::Stopped(ShardId(1)))) {
                let outcome = submit_to(ShardId(1), || ()).await;
                heard.lock().unwrap().push(outcome);
            }
            let late = submit_to(ShardId(1), || ()).await;
            heard.lock().unwrap().push(late);
            Ok::<_, String>(())
        };
        Ok((fuse, work))
    });
    let shards = shards.unwrap();
    let begin = Clock.now();
    while told.lock().unwrap().is_empty() && Clock.now().saturating_since(begin) < Duration::from_secs(30) {
        std::thread::yield_now();
    }
    blow.store(true, Ordering::Release);
    let panicked = ShardError::Panicked { shard: ShardId(1), message: "the fuse blew".to_owned() };
    assert_eq!(shards.join(), Err(panicked));
    let told = told.lock().unwrap();
    assert_eq!(told[0], Ok(()));
    assert!(told.ends_with(&[Err(SubmitError::Stopped(ShardId(1))), Err(SubmitError::Stopped(ShardId(1)))]));
}

#[test]
fn shards_that_cannot_start_say_why_and_leave_none_behind() {
    struct Count(Arc<AtomicU32>);
    impl Drop for Count {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::AcqRel);
        }
    }
    let start = |what: fn(u32) -> Result<(), String>| {
        let ended = Arc::new(AtomicU32::new(0));
        let count = ended.clone();
        let started = ShardsBuilder::new().start(0..3, move |n| {
            let count = Count(count.clone());
            what(n)?;
            let work = async {
                stopping().await;
                drop(count);
                Ok::<_, String>(())
            };
            Ok(((), work))
        });
        let error = started.map(drop).unwrap_err();
        assert_eq!(ended.load(Ordering::Acquire), 3);
        error
    };
    let shard = ShardId(1);
    let failed = start(|n| if n == 1 { Err("no NIC".to_owned()) } else { Ok(()) });
    assert_eq!(failed, ShardError::Failed { shard, why: "no NIC".to_owned() });
    let panicked = start(|n| if n == 1 { panic!("no memory") } else { Ok(()) });
    assert_eq!(panicked, ShardError::Panicked { shard, message: "no memory".to_owned() });

    let on = |cores| {
        let builder = ShardsBuilder::new().cores(Cores::Each(cores));
        builder.start(0..2, |_| Ok::<_, String>(((), async { Ok(()) }))).map(drop).unwrap_err()
    };
    assert!(matches!(on(vec![usize::MAX]), ShardError::CoreNotAllowed { core: usize::MAX, .. }));
    let core = *CoreAllowance::detect().cores.last().unwrap();
    assert_eq!(on(vec![core]), ShardError::TooFewCores { shards: 2, cores: 1 });
}

#[test]
fn pinned_shards_run_on_their_cores_alone() {
    let allowed = CoreAllowance::detect().cores;
    let builder = ShardsBuilder::new().cores(Cores::Each(allowed.iter().rev().copied().collect()));
    let shards = builder.start(0..allowed.len(), |_| {
        let cores = CoreAllowance::detect().cores;
        Ok::<_, String>(((), async move { Ok(cores) }))
    });
    let wanted: Vec<_> = allowed.iter().rev().map(|core| vec![*core]).collect();
    assert_eq!(shards.unwrap().join(), Ok(wanted));
}

#[test]
fn the_first_error_ends_all_shards_and_is_reported() {
    for panics in [false, true] {
        let shards = ShardsBuilder::new().start(0..3, move |n| {
            let work = async move {
                if n == 2 {
                    sleep(Duration::from_millis(2)).await;
                    assert!(!panics, "a bug");
                    return Err("no route".to_owned());
                }
                stopping().await;
                Err("ended early".to_owned())
            };
            Ok::<((), _), String>(((), work))
        });
        // `start` reports it if it comes before all pollers are made.
        let error = shards.and_then(Shards::join).map(|_: Vec<()>| ()).unwrap_err();
        let shard = ShardId(2);
        assert_eq!(
            error,
            match panics {
                true => ShardError::Panicked { shard, message: "a bug".to_owned() },
                false => ShardError::Failed { shard, why: "no route".to_owned() },
            }
        );
    }
}

#[test]
fn a_detached_task_that_panics_leaves_its_shard_at_work() {
    let answer = on_first(2, IdlePolicy::SHARED, || async {
        spawn_local(async { panic!("one connection of many") }).detach();
        yield_now().await;
        submit_to(ShardId(1), || 7).await
    });
    assert_eq!(answer, Ok(7));
}

/// Brings what its shard's work waits for when the shard is about to sleep.
struct Late {
    descriptor: OwnedFd,
    come: Arc<(AtomicBool, Mutex<Option<Waker>>)>,
}

impl Poller for Late {
    fn poll(&mut self, _now: Instant) -> Activity {
        Activity::Idle
    }

    fn arm(&mut self, announce: &mut Announce<'_>) -> Wakes {
        announce(self.descriptor.as_fd());
        self.come.0.store(true, Ordering::SeqCst);
        lock(&self.come.1).take().into_iter().for_each(Waker::wake);
        Wakes::Partly
    }
}

#[test]
fn work_that_ends_in_the_poll_before_a_sleep_ends_its_shard() {
    let come = Arc::<(AtomicBool, Mutex<Option<Waker>>)>::default();
    let shards = ShardsBuilder::new().idle(PARK_AT_ONCE).start([come], |come| {
        let descriptor =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|e| e.to_string())?;
        let work = come.clone();
        let work = poll_fn(move |cx| {
            *lock(&work.1) = Some(cx.waker().clone());
            if work.0.load(Ordering::SeqCst) { Poll::Ready(Ok::<_, String>(())) } else { Poll::Pending }
        });
        Ok((Late { descriptor, come }, work))
    });
    let shards = shards.unwrap();
    let (ended, end) = std::sync::mpsc::channel();
    std::thread::spawn(move || ended.send(shards.join().is_ok()));
    assert_eq!(end.recv_timeout(Duration::from_secs(30)), Ok(true));
}

#[test]
fn shards_are_turned_until_the_work_of_all_has_ended() {
    // Shard 1 has nothing to do itself, and answers all the same.
    let answers = on_first(2, IdlePolicy::SHARED, || async {
        let mut answers = 0;
        for _ in 0..20 {
            sleep(Duration::from_millis(1)).await;
            answers += submit_to(ShardId(1), || 1).await?;
        }
        Ok::<_, SubmitError>(answers)
    });
    assert_eq!(answers, Ok(20));
}

#[test]
fn every_shard_receives_a_request_to_end_from_inside_and_outside() {
    let builder = ShardsBuilder::new().idle(PARK_AT_ONCE);
    let work = |asks: bool| async move {
        if asks {
            // All are parked by then.
            sleep(Duration::from_millis(5)).await;
            stop_all();
        }
        assert_eq!(until_stop(std::future::pending::<()>()).await, None);
        assert_eq!(until_stop(async { 1 }).await, Some(1));
        stopping().await;
        Ok::<_, String>(7)
    };
    let asked_inside = builder.start(0..3, move |n| Ok(((), work(n == 1))));
    assert_eq!(asked_inside.unwrap().join(), Ok(vec![7; 3]));
    let asked_outside = builder.start(0..3, move |_| Ok(((), work(false)))).unwrap();
    asked_outside.stop();
    assert_eq!(asked_outside.join(), Ok(vec![7; 3]));
    drop(builder.start(0..3, move |_| Ok(((), work(false)))));
}

#[test]
fn a_signal_asks_all_shards_to_end() {
    let shards = ShardsBuilder::new().stop_on_signals().start(0..2, |n| {
        Ok::<_, String>(((), async move {
            stopping().await;
            Ok(n)
        }))
    });
    let shards = shards.unwrap();
    let killed = std::process::Command::new("kill").args(["-TERM", &std::process::id().to_string()]).status();
    assert!(killed.unwrap().success());
    assert_eq!(shards.join(), Ok(vec![0, 1]));
}

#[test]
fn work_that_does_not_end_is_cancelled_and_reported() {
    let grace = Duration::from_millis(20);
    let shards = ShardsBuilder::new().grace(grace).start(0..2, |n| {
        Ok::<_, String>(((), async move {
            match n {
                0 => stopping().await,
                _ => std::future::pending().await,
            }
            Ok(())
        }))
    });
    let shards = shards.unwrap();
    let begin = Clock.now();
    shards.stop();
    assert_eq!(shards.join(), Err(ShardError::Unfinished { shard: ShardId(1), grace }));
    assert!(Clock.now().saturating_since(begin) >= grace);
}

#[test]
fn a_forked_child_is_refused_and_may_drop_the_shards() {
    let start = || {
        ShardsBuilder::new().start([()], |()| {
            let work = async {
                stopping().await;
                Ok(())
            };
            Ok::<_, String>(((), work))
        })
    };
    let (mut dropped, mut joined) = (Some(start().unwrap()), Some(start().unwrap()));
    let status = in_forked_child(|| {
        dropped = None;
        u8::from(joined.take().unwrap().join() == Err(ShardError::Forked))
    });
    assert_eq!(status, 1, "refused, and dropped without waiting for a thread that is not there");
}

#[test]
fn shards_nest() {
    // A task of one shard may poll another, and finds itself at home afterwards.
    let mut outer = Reactor::new(());
    let ids = outer.block_on(async {
        let mut endpoints = mesh::mesh(2, 4);
        let mut inner = Reactor::on(endpoints.pop().unwrap(), ());
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
        let alive = Arc::new(AtomicU32::new(0));
        struct Alive(Arc<AtomicU32>);
        impl Drop for Alive {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::AcqRel);
            }
        }
        let flags: Vec<Flag> = (0..8).map(|_| Flag::default()).collect();
        let started = Arc::new(AtomicBool::new(false));
        let (count, begun) = (alive.clone(), started.clone());
        let shards = ShardsBuilder::new().start([flags.clone()], move |flags| {
            let (count, begun) = (count.clone(), begun.clone());
            let work = async move {
                for flag in flags {
                    count.fetch_add(1, Ordering::AcqRel);
                    let alive = Alive(count.clone());
                    spawn_local(async move {
                        let _alive = alive;
                        flag.wait().await;
                    })
                    .detach();
                }
                begun.store(true, Ordering::Release);
                stopping().await;
                Ok::<_, String>(())
            };
            Ok(((), work))
        });
        wait_for(&started);
        std::thread::scope(|scope| {
            scope.spawn(|| flags.iter().for_each(Flag::set));
            drop(shards.unwrap());
        });
        assert_eq!(alive.load(Ordering::Acquire), 0);
    }
}
