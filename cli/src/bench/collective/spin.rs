//! A bare loop that computes for as long as an operation takes, on the ranks' cores: what its 99th percentile has above its median is the machine's.
//!
//! As with an operation, the slowest rank counts.

use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use super::worker::{FEWEST, MOST};
use crate::bench::kernel::pin;
use crate::bench::report::{ReportLine, percentiles_us};

/// Steps of the loop whose time is taken to find how long one takes, and how often: the shortest counts.
const STEPS: u64 = 1000;
const TRIALS: u32 = 200;

/// Measures loops of `us` microseconds on so many ranks, for about `seconds`.
pub(crate) fn measure(bench: &str, (ranks, hosts): (u32, u32), us: f64, seconds: f64) -> ReportLine {
    let loops = (seconds * 1e6 / us.max(0.01)).clamp(FEWEST as f64, MOST as f64) as usize;
    let all_ready = Barrier::new(ranks as usize);
    let times: Vec<Vec<u64>> = thread::scope(|scope| {
        let rank = |rank| {
            let all_ready = &all_ready;
            scope.spawn(move || {
                pin(rank);
                let steps = (us * 1e3 * STEPS as f64 / shortest(STEPS).max(1) as f64) as u64;
                all_ready.wait();
                (0..loops).map(|_| nanos(steps)).collect::<Vec<u64>>()
            })
        };
        let threads: Vec<_> = (0..ranks as usize).map(rank).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    let mut slowest: Vec<u64> = (0..loops)
        .map(|number| times.iter().filter_map(|times| times.get(number)).max().copied().unwrap_or(0))
        .collect();
    let (p50, p99) = percentiles_us(&mut slowest);
    ReportLine {
        ranks: Some(ranks),
        hosts: Some(hosts),
        iterations: Some(loops as u64),
        p50_us: Some(p50),
        p99_us: Some(p99),
        ..ReportLine::of(bench, "spin")
    }
}

/// The shortest time of a few loops, in nanoseconds.
fn shortest(steps: u64) -> u64 {
    (0..TRIALS).map(|_| nanos(steps)).min().unwrap_or(1)
}

/// The time of a loop, in nanoseconds.
fn nanos(steps: u64) -> u64 {
    let begun = Instant::now();
    let mut value = begun.elapsed().as_nanos() as u64;
    for _ in 0..steps {
        value = black_box(value.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(7));
    }
    black_box(value);
    begun.elapsed().as_nanos() as u64
}
