//! Rings and messages between shards.
//!
//! `cargo bench --bench rings`

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant as Wall;

use criterion::{Criterion, criterion_group, criterion_main};
use crossbeam::queue::{ArrayQueue, SegQueue};
use rtrb::RingBuffer;
use shouter::runtime::{ShardId, ShardsBuilder, SubmitError, submit_to};

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

/// A word there and back over two rings; each end spins on a core of its own if there are two.
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

/// `submit_to` between two shards: one at a time (latency), and 64 in flight (throughput).
fn submit(c: &mut Criterion) {
    for under_way in [1, 64] {
        c.bench_function(&format!("submit_to/round-trip/{under_way}-under-way"), |b| {
            b.iter_custom(|iterations| {
                let rounds = iterations.div_ceil(under_way);
                let shards = ShardsBuilder::new().start(0..2, move |shard| {
                    let asks = async move {
                        let begin = Wall::now();
                        let mut calls = Vec::with_capacity(under_way as usize);
                        for round in 0..if shard == 0 { rounds } else { 0 } {
                            calls.extend((0..under_way).map(|n| submit_to(ShardId(1), move || round ^ n)));
                            for call in calls.drain(..) {
                                black_box(call.await)?;
                            }
                        }
                        Ok::<_, SubmitError>(begin.elapsed())
                    };
                    Ok(((), asks))
                });
                let took = shards.and_then(|shards| shards.join()).expect("the other shard answers")[0];
                took.mul_f64(iterations as f64 / (rounds * under_way) as f64)
            });
        });
    }
}

criterion_group!(benches, one_thread, two_threads, submit);
criterion_main!(benches);
