//! The timer wheel: the cost of a timer, with few and with many others running.
//!
//! `cargo bench -p shouter-netstack --no-default-features --bench wheel`

#![allow(missing_docs)]

use core::hint::black_box;
use core::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use shouter_netstack::time::Instant;
use shouter_netstack::wheel::Wheel;

fn filled(timers: usize, rng: &mut SmallRng) -> Wheel<usize> {
    let mut wheel = Wheel::with_capacity(Instant::ZERO, timers + 1);
    for timer in 0..timers {
        wheel.insert(Instant::from_nanos(rng.random_range(0..10_000_000_000)), timer);
    }
    wheel
}

fn wheel(c: &mut Criterion) {
    let mut group = c.benchmark_group("wheel");
    let mut rng = SmallRng::seed_from_u64(1);
    for timers in [0, 100, 100_000] {
        let mut wheel = filled(timers, &mut rng);
        let deadlines: Vec<_> =
            (0..1024).map(|_| Instant::from_nanos(rng.random_range(0..10_000_000_000))).collect();
        let mut next = 0;
        group.bench_function(format!("insert and cancel among {timers}"), |b| {
            b.iter(|| {
                next = (next + 1) % deadlines.len();
                let key = wheel.insert(deadlines[next], 0);
                wheel.cancel(black_box(key))
            })
        });
        let wheel = filled(timers, &mut rng);
        group.bench_function(format!("next deadline among {timers}"), |b| {
            b.iter(|| black_box(&wheel).next_deadline())
        });
    }
    // Each step fires about one timer, which starts again.
    let mut wheel = filled(1000, &mut rng);
    let mut now = Instant::ZERO;
    group.bench_function("step of 10 us among 1000 that start again", |b| {
        b.iter(|| {
            now += Duration::from_micros(10);
            let mut fired = 0;
            wheel.expire(now, |_| fired += 1);
            for timer in 0..fired {
                wheel.insert(now + Duration::from_nanos(rng.random_range(0..20_000_000)), timer);
            }
            fired
        })
    });
    group.finish();
}

criterion_group!(benches, wheel);
criterion_main!(benches);
