//! The cost of a poll, a task, a timer and the driver's lock.
//!
//! `cargo bench --bench runtime`

use std::cell::Cell;
use std::future::poll_fn;
use std::hint::black_box;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Poll, Waker};
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use shouter::observe::{Row, Timeline, TraceEvent};
use shouter::runtime::{
    Activity, Backoff, Clock, CoreAllowance, Driver, DriverOptions, IdlePolicy, Instant, Poller, Reactor,
    sleep, spawn_local, yield_now,
};
use shouter_reducer::grid::Rank;
use shouter_reducer::recorder::{Record, RecordKind, Recorder};

const NOW: Instant = Instant::ZERO;

fn clock(c: &mut Criterion) {
    c.bench_function("clock/now", |b| b.iter(|| Clock.now()));
}

fn poll(c: &mut Criterion) {
    let mut reactor = Reactor::new(());
    c.bench_function("poll/idle", |b| b.iter(|| reactor.poll(black_box(NOW))));
}

fn tasks(c: &mut Criterion) {
    // Tasks that are all ready in every poll: the cost of a wake and a poll.
    let mut group = c.benchmark_group("task/wake-and-poll");
    for ready in [1, 16, 1_000] {
        let mut reactor = Reactor::new(());
        reactor.visit(|()| {
            for _ in 0..ready {
                spawn_local(async {
                    loop {
                        yield_now().await;
                    }
                })
                .detach();
            }
        });
        group.throughput(criterion::Throughput::Elements(ready));
        group.bench_function(ready.to_string(), |b| b.iter(|| reactor.poll(NOW)));
    }
    group.finish();

    let mut reactor = Reactor::new(());
    c.bench_function("task/spawn-poll-finish", |b| {
        b.iter(|| {
            reactor.visit(|()| spawn_local(async { black_box(1) }).detach());
            reactor.poll(NOW)
        });
    });

    // A task that a poller or another task wakes, as a stack wakes its streams.
    let mut reactor = Reactor::new(());
    let waker: Rc<Cell<Option<Waker>>> = Rc::default();
    let place = waker.clone();
    reactor.visit(|()| {
        spawn_local(poll_fn(move |cx| -> Poll<()> {
            place.set(Some(cx.waker().clone()));
            Poll::Pending
        }))
        .detach();
    });
    reactor.poll(NOW);
    c.bench_function("task/wake-from-poller", |b| {
        b.iter(|| {
            reactor.visit(|()| waker.take().map(Waker::wake));
            reactor.poll(NOW)
        });
    });
}

fn timers(c: &mut Criterion) {
    let mut reactor = Reactor::new(());
    reactor.visit(|()| {
        for n in 0..1_000 {
            spawn_local(sleep(Duration::from_secs(3600 + n))).detach();
        }
    });
    reactor.poll(NOW);
    // Set and cancelled among a thousand others, as the timeout of an operation.
    reactor.visit(|()| {
        spawn_local(async {
            loop {
                let mut limit = std::pin::pin!(sleep(Duration::from_secs(1800)));
                poll_fn(|cx| {
                    let _ = std::future::Future::poll(limit.as_mut(), cx);
                    Poll::Ready(())
                })
                .await;
                yield_now().await;
            }
        })
        .detach();
    });
    c.bench_function("timer/set-and-cancel-among-1000", |b| b.iter(|| reactor.poll(NOW)));
}

/// A poller that is always active, without any work.
struct Engine(u64);

impl Poller for Engine {
    fn poll(&mut self, _now: Instant) -> Activity {
        self.0 += 1;
        Activity::Busy
    }
}

fn driver(c: &mut Criterion) {
    let quiet = DriverOptions { active_period: Duration::from_secs(1), ..DriverOptions::default() };
    let driver = Driver::new(Engine(0), quiet).expect("a helper starts");
    c.bench_function("driver/condition-already-true", |b| {
        b.iter(|| driver.drive_until(|engine| Some(engine.0), None));
    });
    c.bench_function("driver/condition-true-after-one-poll", |b| {
        b.iter(|| {
            let mut asked = false;
            driver.drive_until(move |engine| std::mem::replace(&mut asked, true).then_some(engine.0), None)
        });
    });
    let lock = std::sync::Mutex::new(0_u64);
    c.bench_function("driver/a-bare-mutex", |b| {
        b.iter(|| {
            if let Ok(mut value) = lock.try_lock() {
                *value += 1;
            }
        });
    });
}

fn waiting(c: &mut Criterion) {
    let mut idle = Backoff::new(IdlePolicy { spins: u32::MAX, ..IdlePolicy::EXCLUSIVE });
    c.bench_function("backoff/spin-step", |b| b.iter(|| idle.step(black_box(Activity::Idle))));
    c.bench_function("backoff/pause", |b| b.iter(std::hint::spin_loop));
    c.bench_function("backoff/sched-yield", |b| b.iter(std::thread::yield_now));
}

/// Passes a token around `threads` threads, each waiting by `policy`: the cost of a hop when they outnumber the cores.
fn hops(threads: usize, policy: IdlePolicy, rounds: u64) -> Duration {
    let token = AtomicU64::new(0);
    let last = rounds * threads as u64;
    let begin = std::time::Instant::now();
    std::thread::scope(|scope| {
        for me in 0..threads as u64 {
            let token = &token;
            scope.spawn(move || {
                let mut idle = Backoff::new(policy);
                loop {
                    let seen = token.load(Ordering::Acquire);
                    if seen >= last {
                        break;
                    }
                    let mine = seen % threads as u64 == me;
                    if mine {
                        token.store(seen + 1, Ordering::Release);
                    }
                    idle.wait(Activity::from_busy(mine), None);
                }
            });
        }
    });
    begin.elapsed()
}

fn oversubscribed(c: &mut Criterion) {
    let cores = CoreAllowance::detect().whole_cores();
    let mut group = c.benchmark_group("token-per-hop");
    group.sample_size(10);
    for threads in [2, 4, 8] {
        group.bench_function(format!("{threads}-threads-on-{cores}-cores"), |b| {
            b.iter_custom(|iterations| {
                let rounds = iterations.div_ceil(threads as u64);
                let took = hops(threads, IdlePolicy::for_ranks(threads, cores), rounds);
                took.mul_f64(iterations as f64 / (rounds * threads as u64) as f64)
            });
        });
    }
    group.finish();
}

fn observe(c: &mut Criterion) {
    let tensor: Option<Arc<str>> = Some("layer".into());
    let event = TraceEvent {
        name: "all-reduce",
        duration_ns: Some(5),
        tensor,
        bytes: Some(4096),
        ..TraceEvent::default()
    };
    let timeline = Timeline::new(0, "host", 1 << 12);
    c.bench_function("observe/timeline", |b| {
        b.iter(|| timeline.record(Row::Engine, black_box(&event).clone()))
    });
    let mut recorder = Recorder::new();
    let record = Record { rank: Some(Rank(1)), bytes: 4096, ..Record::of(RecordKind::Sent) };
    c.bench_function("observe/recorder", |b| b.iter(|| recorder.record(black_box(record))));
}

criterion_group!(benches, clock, poll, tasks, timers, driver, waiting, oversubscribed, observe);
criterion_main!(benches);
