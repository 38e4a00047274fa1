//! Any messages from the wire: no panic, and no byte outside of the window changes.

use super::harness::{Faults, Group, access, words};
use super::*;
use crate::header::HEADER_BYTES;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// The header of something that makes sense, and some of its bytes changed.
fn header(rng: &mut SmallRng) -> Option<(Header, Vec<u8>)> {
    let actions = [
        WindowAction::Put,
        WindowAction::Get,
        WindowAction::Accumulate(ReduceOp::Sum),
        WindowAction::FetchAndOp(ReduceOp::Max),
        WindowAction::Swap,
        WindowAction::CompareAndSwap,
    ];
    let kinds = [
        MessageKind::Access,
        MessageKind::Access,
        MessageKind::Answer,
        MessageKind::Denied,
        MessageKind::Applied,
    ];
    let window = WindowId(u32::from(rng.random_range(0..8) == 0));
    let action = actions[rng.random_range(0..6)];
    let offset = [0, 3, 7, 8, u64::MAX, 1 << 61][rng.random_range(0..6)];
    let count = [0, 1, 2, 8, 9, crate::header::MAX_COUNT][rng.random_range(0..6)];
    let piece = wire::Piece::new(window, action, DType::U64, offset, count)?;
    let config = WindowsConfig::new(Rank(rng.random_range(0..4)), 3);
    let len = rng.random_range(0..=80);
    let header = piece.header(&config, kinds[rng.random_range(0..5)], rng.random_range(0..6));
    let header = Header { granule: 128, len, ..header };
    let mut bytes = [0; HEADER_BYTES];
    header.encode(&mut bytes);
    for _ in 0..rng.random_range(0..3) {
        bytes[rng.random_range(0..HEADER_BYTES)] = rng.random();
    }
    let payload = (0..rng.random_range(0..=len.max(1))).map(|_| rng.random()).collect();
    Some((Header::parse(&bytes).ok()?, payload))
}

fn run_seed(seed: u64) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut group = Group::new(seed, 3, 16, Faults { in_order: true, ..Faults::default() }, |config| {
        config.in_flight_bytes = 1 << 10;
    });
    // The window is the middle of what the others believe it to be.
    let whole = group.windows[0].region;
    let edge = [0xa5u8; 32];
    memory::write((whole, 0), &edge).unwrap();
    memory::write((whole, 96), &edge).unwrap();
    group.ranks[0].close(WindowId(0));
    group.ranks[0].exposed.renumber();
    let id = group.ranks[0].open(whole.sub(32, 64).unwrap(), DType::U64).unwrap();
    group.ranks[0].set_lengths(id, [8, 16, 16].into());
    let (data, into) = (words(&[1; 4]), words(&[0; 4]));
    for action in [WindowAction::Swap, WindowAction::FetchAndOp(ReduceOp::Sum)] {
        group.start(0, access(action, 1, &data, &into));
    }
    group.poll(0);
    for _ in 0..rng.random_range(1..30) {
        if let Some((header, payload)) = header(&mut rng) {
            let _ = group.ranks[0].on_message(&header, &payload);
        }
        if rng.random_range(0..4) == 0 {
            group.poll(0);
        }
    }
    let bytes = group.windows[0].words();
    let edge = u64::from_le_bytes([0xa5; 8]);
    assert!(bytes[..4].iter().chain(&bytes[12..]).all(|word| *word == edge), "seed {seed}: {bytes:x?}");
}

/// As many seeds as `SHOUTER_FUZZ_SEEDS` says (`0..n`); else 20,000.
#[test]
fn no_bytes_of_a_message_reach_beyond_the_window() {
    let range = std::env::var("SHOUTER_FUZZ_SEEDS").ok();
    let range =
        range.as_deref().and_then(|range| range.split_once("..")).map_or((0, 20_000), |(first, end)| {
            (first.parse().expect("a number"), end.parse().expect("a number"))
        });
    (range.0..range.1).for_each(run_seed);
}
