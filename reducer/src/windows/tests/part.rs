//! Actions on shared parts: the same as on those of one rank alone, and atomic for each element.

use super::*;
use crate::dtype::DType;
use crate::kernel::Kernels;
use crate::memory::{MemoryKind, RegionOffset};
use crate::windows::part::Part;
use crate::windows::wire::Piece;
use proptest::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes on both sides of a part that belong to nobody.
const BESIDE: usize = 24;

fn piece(action: WindowAction, dtype: DType, offset: u64, count: u64) -> Piece {
    Piece::new(WindowId(0), action, dtype, offset, count).unwrap()
}

/// The bytes, and a part in the middle of them that begins `skip` bytes behind a word.
fn part_in(bytes: &[u8], skip: usize, dtype: DType, kind: MemoryKind) -> (Buffer, Part) {
    let buffer = Buffer::new(bytes);
    let region = buffer.as_kind(kind).sub(BESIDE + skip, bytes.len() - 2 * BESIDE - skip).unwrap();
    (buffer, Part::new(region, dtype))
}

fn actions(dtype: DType) -> Vec<WindowAction> {
    let ops = ReduceOp::ALL.iter().filter(|op| op.is_of(dtype) && **op != ReduceOp::Avg);
    let reduce = ops.flat_map(|op| [WindowAction::Accumulate(*op), WindowAction::FetchAndOp(*op)]);
    let others = [WindowAction::Put, WindowAction::Get, WindowAction::Swap, WindowAction::CompareAndSwap];
    reduce.chain(others).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn a_shared_part_is_as_one_of_a_rank_alone(
        bytes in prop::collection::vec(any::<u8>(), 2 * BESIDE + 8..1_200),
        (dtype, action) in prop::sample::select(DType::ALL).prop_flat_map(|dtype| {
            (Just(dtype), prop::sample::select(actions(dtype)))
        }),
        (skip, from, to) in (0usize..8, any::<prop::sample::Index>(), any::<prop::sample::Index>()),
        given in prop::collection::vec(any::<u8>(), 1_200),
        is_expected in any::<bool>(),
    ) {
        let size = dtype.size();
        let skip = skip / size.min(8) * size.min(8);
        let elements = (bytes.len() - 2 * BESIDE - skip) / size;
        prop_assume!(elements > 0 && size <= 8);
        // Bytes behind the last element belong to nobody.
        let bytes = &bytes[..2 * BESIDE + skip + elements * size];
        let (mut from, mut to) = (from.index(elements), to.index(elements));
        (from, to) = (from.min(to), from.max(to));
        if action == WindowAction::CompareAndSwap {
            to = from;
        }
        let len = (to - from + 1) * size;
        let piece = piece(action, dtype, from as u64, (to - from + 1) as u64);
        let mut given = given[..action.bytes_given(len)].to_vec();
        if action == WindowAction::CompareAndSwap && is_expected {
            let at = BESIDE + skip + from * size;
            given[..size].copy_from_slice(&bytes[at..at + size]);
        }
        let run = |kind| {
            let (buffer, part) = part_in(bytes, skip, dtype, kind);
            assert_eq!(part.is_shared(), kind == MemoryKind::Shared, "{dtype} {skip}");
            let before = Buffer::new(&vec![0xa5; len + 16]);
            part.apply(Kernels::detect(), &piece, &given, (before.region, 8)).unwrap();
            (buffer.bytes(), before.bytes())
        };
        prop_assert_eq!(run(MemoryKind::Shared), run(MemoryKind::Host));
    }
}

#[test]
fn elements_without_cells_make_no_shared_part() {
    let buffer = Buffer::new(&[0; 64]);
    let shared = |at: usize, len: usize, dtype| {
        Part::new(buffer.as_kind(MemoryKind::Shared).sub(at, len).unwrap(), dtype).is_shared()
    };
    assert!(shared(0, 64, DType::U64) && shared(8, 8, DType::Complex64) && shared(3, 1, DType::U8));
    assert!(!shared(0, 64, DType::Complex128), "wider than a word");
    assert!(!shared(4, 16, DType::Complex64), "lies in two words");
    assert!(!Part::new(buffer.region, DType::U64).is_shared(), "nobody else sees it");
}

#[test]
fn a_shared_part_refuses_what_one_of_a_rank_alone_refuses() {
    let (buffer, part) = part_in(&[7; 2 * BESIDE + 64], 0, DType::U32, MemoryKind::Shared);
    let apply =
        |piece: &Piece, given: &[u8]| part.apply(Kernels::detect(), piece, given, (TensorRegion::empty(), 0));
    let put = |offset, count| {
        apply(&piece(WindowAction::Put, DType::U32, offset, count), &vec![1; 4 * count as usize])
    };
    assert_eq!(put(15, 2), Err(Denial::Range));
    assert_eq!(put(u64::MAX, 1), Err(Denial::Range));
    assert_eq!(put(1 << 62, 1), Err(Denial::Range));
    assert_eq!(apply(&piece(WindowAction::Put, DType::I32, 0, 1), &[1; 4]), Err(Denial::Type));
    assert_eq!(apply(&piece(WindowAction::Put, DType::U32, 0, 1), &[1; 3]), Err(Denial::Operation));
    let average = piece(WindowAction::Accumulate(ReduceOp::Avg), DType::U32, 0, 1);
    assert_eq!(apply(&average, &[1; 4]), Err(Denial::Operation));
    // The answer has no room.
    assert_eq!(apply(&piece(WindowAction::Swap, DType::U32, 0, 1), &[1; 4]), Err(Denial::Range));
    assert!(buffer.bytes().iter().all(|byte| *byte == 7));
}

/// Threads that act on one part at once, as processes do that share it.
fn at_once(threads: usize, act: impl Fn(usize) + Sync) {
    std::thread::scope(|scope| {
        for number in 0..threads {
            let act = &act;
            scope.spawn(move || act(number));
        }
    });
}

fn apply(part: &Part, piece: &Piece, given: &[u8], into: RegionOffset) {
    part.apply(Kernels::detect(), piece, given, into).unwrap();
}

#[test]
fn sums_of_neighbours_are_exact_when_many_add_at_once() {
    const EACH: usize = 20_000;
    for (dtype, one) in [
        (DType::U8, &1u8.to_ne_bytes()[..]),
        (DType::I16, &1i16.to_ne_bytes()[..]),
        (DType::U32, &1u32.to_ne_bytes()[..]),
        (DType::F32, &1f32.to_ne_bytes()[..]),
        (DType::F64, &1f64.to_ne_bytes()[..]),
        (DType::I64, &1i64.to_ne_bytes()[..]),
    ] {
        let size = dtype.size();
        // Not at a word's begin: the first elements and the last ones have cells of their own.
        let skip = size % 8;
        let (buffer, part) =
            part_in(&vec![0; 2 * BESIDE + skip + 21 * size], skip, dtype, MemoryKind::Shared);
        at_once(4, |number| {
            for round in 0..EACH {
                // All elements, or this thread's own ones.
                let (offset, count) = if round % 2 == 0 { (0, 21) } else { (number as u64, 1) };
                let action = WindowAction::Accumulate(ReduceOp::Sum);
                apply(
                    &part,
                    &piece(action, dtype, offset, count),
                    &one.repeat(count as usize),
                    (TensorRegion::empty(), 0),
                );
            }
        });
        let bytes = buffer.bytes();
        let inside = &bytes[BESIDE + skip..bytes.len() - BESIDE];
        for (index, element) in inside.chunks(size).enumerate() {
            let due = (2 * EACH + if index < 4 { EACH / 2 } else { 0 }) as u64;
            let found = match dtype {
                DType::U8 => (u64::from(element[0]), due & 0xff),
                DType::I16 => (i16::from_ne_bytes(element.try_into().unwrap()) as u16 as u64, due & 0xffff),
                DType::U32 => (u32::from_ne_bytes(element.try_into().unwrap()).into(), due),
                DType::F32 => (f32::from_ne_bytes(element.try_into().unwrap()) as u64, due),
                DType::F64 => (f64::from_ne_bytes(element.try_into().unwrap()) as u64, due),
                _ => (u64::from_ne_bytes(element.try_into().unwrap()), due),
            };
            assert_eq!(found.0, found.1, "element {index} of {dtype}");
        }
    }
}

#[test]
fn tickets_are_given_once_and_swaps_lose_nothing() {
    const EACH: usize = 20_000;
    let (_buffer, part) = part_in(&[0; 2 * BESIDE + 32], 0, DType::U32, MemoryKind::Shared);
    let tickets: Vec<std::sync::Mutex<Vec<u32>>> = (0..4).map(|_| Default::default()).collect();
    let swapped: Vec<std::sync::Mutex<Vec<u32>>> = (0..4).map(|_| Default::default()).collect();
    let word = |buffer: &Buffer| u32::from_ne_bytes(buffer.bytes().try_into().unwrap());
    at_once(4, |number| {
        let into = Buffer::new(&[0; 4]);
        let act = |action, offset, given: &[u8]| {
            apply(&part, &piece(action, DType::U32, offset, 1), given, (into.region, 0));
            word(&into)
        };
        for round in 0..EACH {
            let ticket = act(WindowAction::FetchAndOp(ReduceOp::Sum), 1, &1u32.to_ne_bytes());
            tickets[number].lock().unwrap().push(ticket);
            let mark = (1 + number * EACH + round) as u32;
            swapped[number].lock().unwrap().push(act(WindowAction::Swap, 2, &mark.to_ne_bytes()));
            let mut expected = 0u32;
            loop {
                let given = [expected.to_ne_bytes(), (expected + 1).to_ne_bytes()].concat();
                match act(WindowAction::CompareAndSwap, 3, &given) {
                    before if before == expected => break,
                    before => expected = before,
                }
            }
        }
    });
    let sorted = |lists: Vec<std::sync::Mutex<Vec<u32>>>, last: Option<u32>| {
        let mut all: Vec<u32> =
            lists.into_iter().flat_map(|list| list.into_inner().unwrap()).chain(last).collect();
        all.sort_unstable();
        all
    };
    let into = Buffer::new(&[0; 16]);
    apply(&part, &piece(WindowAction::Get, DType::U32, 0, 4), &[], (into.region, 0));
    let ends: Vec<u32> =
        into.bytes().chunks(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap())).collect();
    let all = 4 * EACH as u32;
    assert!(sorted(tickets, None) == (0..all).collect::<Vec<_>>());
    assert!(sorted(swapped, Some(ends[2])) == (0..=all).collect::<Vec<_>>());
    assert_eq!([ends[0], ends[1], ends[3]], [0, all, all]);
}

#[test]
fn nobody_reads_half_of_an_element_and_all_keep_the_order_of_accesses() {
    let (_buffer, part) = part_in(&[0; 2 * BESIDE + 800], 0, DType::U64, MemoryKind::Shared);
    let is_over = AtomicBool::new(false);
    at_once(3, |number| {
        if number == 0 {
            for round in 1..=50_000u64 {
                let mark = (round << 32 | round).to_ne_bytes();
                // The last element follows the others.
                apply(
                    &part,
                    &piece(WindowAction::Put, DType::U64, 0, 99),
                    &mark.repeat(99),
                    (TensorRegion::empty(), 0),
                );
                apply(&part, &piece(WindowAction::Put, DType::U64, 99, 1), &mark, (TensorRegion::empty(), 0));
            }
            is_over.store(true, Ordering::Release);
            return;
        }
        let into = Buffer::new(&[0; 800]);
        while !is_over.load(Ordering::Acquire) {
            apply(&part, &piece(WindowAction::Get, DType::U64, 99, 1), &[], (into.region, 99 * 8));
            apply(&part, &piece(WindowAction::Get, DType::U64, 0, 99), &[], (into.region, 0));
            let words = into.words();
            assert!(words.iter().all(|word| word >> 32 == word & 0xffff_ffff), "half of an element");
            assert!(
                words[..99].iter().all(|word| *word >= words[99]),
                "a later put is seen before an earlier one"
            );
        }
    });
}
