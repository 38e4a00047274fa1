use core::time::Duration;

use super::TokenBucket;
use crate::time::Instant;

fn millis(millis: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(millis)
}

#[test]
fn a_burst_and_then_the_rate() {
    let mut bucket = TokenBucket::new(10, 3);
    let mut take = |at| (0..100).filter(|_| bucket.take(millis(at))).count();
    assert_eq!(take(0), 3);
    assert_eq!(take(99), 0);
    assert_eq!(take(100), 1);
    assert_eq!(take(350), 2);
    assert_eq!(take(399), 0);
    assert_eq!(take(400), 1, "part of an interval is not lost");
    assert_eq!(take(1_000_000), 3, "and nothing is saved up beyond the burst");
}

#[test]
fn over_a_long_time_the_rate_holds() {
    let mut bucket = TokenBucket::new(100, 20);
    let taken = (0..10_000).filter(|&at| bucket.take(millis(at))).count();
    assert!((1000..=1020).contains(&taken), "{taken} in ten seconds");
    assert!(!TokenBucket::new(0, 20).take(millis(5)));
}
