//! The receiver against a model that keeps every byte in a table.

use core::time::Duration;

use rand::{Rng, SeedableRng, rngs::SmallRng};

use super::*;

const IRS: SeqNumber = SeqNumber(u32::MAX - 5000);
const LEN: u32 = 40_000;

fn now() -> Instant {
    Instant::from_nanos(1_000_000_000)
}

fn receiver(options: &Options) -> Receiver {
    let mut receiver = Receiver::new(now(), options);
    receiver.open(now(), IRS, 1460, None);
    receiver.establish(Receiver::wanted_shift(options), true, false, false);
    receiver
}

/// Segments anywhere in the window, overlapping, with other bytes each time: bytes that came first stay, blocks are
/// right, and nothing is left behind.
#[test]
fn reassembles_like_a_table() {
    for seed in 0..300 {
        let mut random = SmallRng::seed_from_u64(seed);
        let options = Options { receive_buffer: 64 << 10, ..Options::internet() };
        let mut receiver = receiver(&options);
        let mut pool = Pool::new(64 << 20);
        let mut table: Vec<Option<u8>> = vec![None; LEN as usize];
        let mut read: Vec<u8> = Vec::new();
        let mut step = 0;
        while (read.len() as u32) < LEN {
            step += 1;
            let next = receiver.next().distance(IRS + 1) - u32::from(receiver.finished());
            let most = if random.random_range(0..4) == 0 { 3000 } else { 300 };
            // Mostly ahead, sometimes behind, and the more often exactly next the longer it takes.
            let start = match random.random_range(0..10) {
                0 => next.saturating_sub(random.random_range(0..1000)),
                at if at * 100 < step => next,
                _ => next + random.random_range(0..6000),
            }
            .min(LEN);
            let end = (start + random.random_range(0..most)).min(LEN);
            let bytes: Vec<u8> = (start..end).map(|_| random.random()).collect();
            let cut = random.random_range(0..=bytes.len());
            let (head, rest) = bytes.split_at(cut);
            let edge = receiver.window.edge().distance(IRS + 1);
            for (at, byte) in (start..end.min(edge)).zip(&bytes) {
                table[at as usize].get_or_insert(*byte);
            }
            let fin = end == LEN;
            let seq = IRS + 1 + start;
            let taken = receiver.on_data(now(), seq, Payload { head, rest: &[rest] }, fin, &mut pool);

            let held = table.iter().take_while(|byte| byte.is_some()).count() as u32;
            let reached = receiver.next().distance(IRS + 1);
            let finished = u32::from(receiver.finished());
            assert_eq!(reached - finished, held, "seed {seed}, step {step}");
            assert_eq!(taken.readable, held - next, "seed {seed}, step {step}");
            for block in receiver.blocks(4).as_slice().iter().skip(usize::from(receiver.duplicate.is_some()))
            {
                let (from, to) = (block.start.distance(IRS + 1), block.end.distance(IRS + 1));
                assert!(from > reached && from < to, "seed {seed}, step {step}: {block:?}");
                assert!(table[from as usize..to as usize].iter().all(Option::is_some), "seed {seed}");
                assert_eq!(table[from as usize - 1], None, "seed {seed}, step {step}: a block is whole");
                assert_eq!(table.get(to as usize).copied().flatten(), None, "seed {seed}, step {step}");
            }
            if receiver.is_ack_due() {
                receiver.acknowledgement(&pool);
                receiver.on_ack_sent(false);
            }
            match random.random_range(0..3) {
                0 => {
                    let mut buffer = vec![0; random.random_range(1..5000)];
                    let count = receiver.read(now(), &mut buffer, None, &mut pool);
                    read.extend_from_slice(buffer.get(..count).unwrap_or_default());
                }
                1 => {
                    if let Some(chunk) = receiver.read_chunk(now(), None, &mut pool) {
                        read.extend_from_slice(&chunk);
                    }
                }
                _ => {}
            }
            assert!(step < 20_000, "seed {seed} does not end");
        }
        assert!(receiver.finished() || receiver.fin.is_none(), "seed {seed}");
        assert!(read.iter().zip(&table).all(|(read, wanted)| Some(*read) == *wanted), "seed {seed}");
        receiver.clear(&mut pool);
        assert_eq!(pool.used(), 0, "seed {seed}");
    }
}

/// The worst that a peer can do to memory: one byte here and there. No more than a bounded multiple of the window.
#[test]
fn tiny_segments_take_bounded_memory() {
    for step in [2, 3, 17, 250] {
        let options = Options { receive_buffer: 64 << 10, ..Options::internet() };
        let mut receiver = receiver(&options);
        let mut pool = Pool::new(1 << 30);
        let mut most = 0;
        for at in (0..60_000).step_by(step).skip(1) {
            receiver.on_data(now(), IRS + 1 + at, Payload::new(b"x"), false, &mut pool);
            most = most.max(pool.used());
        }
        for at in 0..60_000 {
            receiver.on_data(now(), IRS + 1 + at, Payload::new(b"y"), false, &mut pool);
            most = most.max(pool.used());
        }
        assert_eq!(receiver.readable(), 60_000);
        assert!(most <= 8 * 65_536, "{most} bytes at every {step}th");
        receiver.clear(&mut pool);
        assert_eq!(pool.used(), 0);
    }
}

#[test]
fn acceptable_segments_are_those_of_the_table() {
    let options = Options { receive_buffer: 1000, window_scaling: false, ..Options::internet() };
    let receiver = receiver(&options);
    let at = |offset: i32| SeqNumber((IRS + 1).0.wrapping_add(offset as u32));
    // (offset, length, acceptable): a window of 1000 from 0.
    for (offset, len, wanted) in [
        (0, 0, true),
        (999, 0, true),
        (1000, 0, false),
        (-1, 0, false),
        (0, 1, true),
        (-1, 1, false),
        (-1, 2, true),
        (999, 1, true),
        (1000, 1, false),
        (-500, 3000, true),
        (i32::MIN, 10, false),
    ] {
        assert_eq!(receiver.is_acceptable(at(offset), len), wanted, "{len} at {offset}");
    }
}

#[test]
fn the_delay_follows_the_peers_rhythm() {
    let most = Duration::from_millis(40);
    let mut policy = AckPolicy::new(now(), most);
    let mut at = now();
    for _ in 0..16 {
        policy.on_data(at, 1460, 1460, 1460);
        assert!(policy.is_due());
        policy.on_sent(false);
        at += Duration::from_millis(1);
    }
    // Every millisecond: a second segment would be here within two.
    policy.on_data(at, 1460, 1460, 1460);
    assert!(!policy.is_due());
    assert_eq!(policy.deadline().map(|deadline| deadline - at), Some(most / 8));
    policy.on_timer(at + most / 8);
    assert!(policy.is_due());
    policy.on_sent(false);
    // A slow peer: the delay is the longest.
    for _ in 0..8 {
        at += Duration::from_secs(1);
        policy.on_data(at, 1460, 1460, 1460);
        policy.on_sent(false);
    }
    at += Duration::from_secs(1);
    policy.on_data(at, 1460, 1460, 1460);
    assert_eq!(policy.deadline().map(|deadline| deadline - at), Some(most));
    // Never half a second (RFC 9293 section 3.8.6.3, MUST-58).
    let mut policy = AckPolicy::new(now(), Duration::from_secs(10));
    for _ in 0..40 {
        at += Duration::from_secs(2);
        policy.on_data(at, 100, 100, 1460);
        let delay = policy.deadline().map_or(Duration::ZERO, |deadline| deadline - at);
        assert!(delay < Duration::from_millis(500), "{delay:?}");
        policy.on_sent(false);
    }
}

#[test]
fn timestamps_are_forgotten_after_24_days() {
    let day = Duration::from_secs(24 * 3600);
    let paws = Paws::new(now(), 1000);
    assert!(paws.is_old(now() + 23 * day, 999));
    assert!(!paws.is_old(now() + 23 * day, 1001));
    assert!(!paws.is_old(now() + 24 * day + Duration::from_secs(1), 999));
    // A wrapped clock is later.
    assert!(!Paws::new(now(), u32::MAX).is_old(now(), 0));
}

#[test]
fn the_pool_keeps_to_its_limit() {
    let mut pool = Pool::new(5000);
    let first = pool.take(4000, false).expect("there is room");
    assert_eq!(pool.used(), 4096);
    // The rest is less than requested.
    let second = pool.take(4000, false).expect("a small one");
    assert_eq!(second.capacity(), 256);
    let third = pool.take(200, false).expect("another");
    assert!(pool.is_tight());
    let fourth = pool.take(200, false).expect("another");
    assert!(pool.take(1, false).is_none());
    let forced = pool.take(1, true).expect("it must");
    for block in [first, second, third, fourth, forced] {
        pool.give(block);
    }
    assert_eq!(pool.used(), 0);
}
