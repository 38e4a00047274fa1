//! Rings and messages between shards.
//!
//! `cargo bench --bench rings`

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant as Wall;

use criterion::{Criterion, criterion_group, criterion_main};
use crossbeam::queue::{ArrayQueue, SegQueue};
use rtrb::RingBuffer;
use shouter::runtime::{
    CoreAllowance, IdlePolicy, Instant, LocalReactor, Shard, ShardId, ShardOptions, mesh, spawn_local,
    submit_to,
};

/// A push and a pop on one thread: the cost of the ring itself.
fn one_thread(c: &mut Criterion) {
    let mut group = c.benchmark_group("push-and-pop");
    let (mut producer, mut consumer) = RingBuffer::<u64>::new(64);
    group.bench_function("rtrb", |b| {
        b.iter(|| {
            let _ = producer.push(black_box(1));
            black_box(consumer.pop())
        });
    });
    let array = ArrayQueue::<u64>::new(64);
    group.bench_function("crossbeam-array", |b| {
        b.iter(|| {
            let _ = array.push(black_box(1));
            black_box(array.pop())
        });
    });
    let segments = SegQueue::<u64>::new();
    group.bench_function("crossbeam-segments", |b| {
        b.iter(|| {
            segments.push(black_box(1));
            black_box(segments.pop())
        });
    });
    group.finish();
}

/// A word there and back over two rings, each end spinning on a core of its own if there are two.
fn two_threads(c: &mut Criterion) {
    let (mut ask, mut asked) = RingBuffer::<u64>::new(64);
    let (mut answer, mut answered) = RingBuffer::<u64>::new(64);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                if let Ok(word) = asked.pop() {
                    let _ = answer.push(word + 1);
                }
            }
        });
        c.bench_function("round-trip/rtrb", |b| {
            b.iter(|| {
                let _ = ask.push(black_box(1));
                loop {
                    if let Ok(word) = answered.pop() {
                        break word;
                    }
                }
            });
        });
        stop.store(true, Ordering::Relaxed);
    });
}

/// `submit_to` between two shards: one at a time (latency), and 64 under way (throughput).
fn submit(c: &mut Criterion) {
    let idle = IdlePolicy::for_ranks(2, CoreAllowance::detect().whole_cores());
    let shards: Vec<Shard> = mesh(2, 256)
        .into_iter()
        .map(|endpoint| {
            let options = ShardOptions { idle, ..ShardOptions::default() };
            Shard::spawn_on(endpoint, options, || Ok::<_, String>(())).expect("a shard starts")
        })
        .collect();
    for under_way in [1, 64] {
        c.bench_function(&format!("submit_to/round-trip/{under_way}-under-way"), |b| {
            b.iter_custom(|iterations| {
                let rounds = iterations.div_ceil(under_way);
                let took = shards[0].remote().run(move || async move {
                    let begin = Wall::now();
                    let mut calls = Vec::with_capacity(under_way as usize);
                    for round in 0..rounds {
                        calls.extend((0..under_way).map(|n| submit_to(ShardId(1), move || round ^ n)));
                        for call in calls.drain(..) {
                            black_box(call.await).expect("the other shard answers");
                        }
                    }
                    begin.elapsed()
                });
                let took = took.wait(IdlePolicy::FRUGAL, None).expect("the shard runs");
                took.mul_f64(iterations as f64 / (rounds * under_way) as f64)
            });
        });
    }
}

/// Both shards turned by one thread: what a message costs in instructions, without the trip between cores.
fn submit_on_one_thread(c: &mut Criterion) {
    let mut endpoints = mesh(2, 256);
    let mut answering = LocalReactor::on(endpoints.pop().expect("two"), ());
    let mut asking = LocalReactor::on(endpoints.pop().expect("two"), ());
    asking.visit(|()| {
        spawn_local(async { while submit_to(ShardId(1), || ()).await.is_ok() {} }).detach();
    });
    let now = Instant::ZERO;
    c.bench_function("submit_to/cost-on-one-thread", |b| {
        b.iter(|| {
            asking.turn(now);
            answering.turn(now);
        });
    });
}

criterion_group!(benches, one_thread, two_threads, submit, submit_on_one_thread);
criterion_main!(benches);
