//! Random accesses against a sequential model, and counters that all ranks share.

use super::harness::{Buffer, Faults, Group, access, word, words};
use super::*;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const BAD: Faults = Faults { duplicate: 15, full: 20, refuse: 10, in_order: false };

/// Elements of each rank's window that belong to one origin.
const OWN: u64 = 60;

/// One access that was started, with what the model says it brings.
struct Started {
    rank: u32,
    id: AccessId,
    waited: bool,
    _data: Buffer,
    into: Buffer,
    expected: Vec<u64>,
}

fn group(seed: u64, rng: &mut SmallRng, elements: u64, ranks: u32) -> Group {
    let faults = if rng.random_range(0..4) > 0 { BAD } else { Faults::default() };
    let room = [1 << 10, 4 << 10, 1 << 20][rng.random_range(0..3)];
    let copied = [0, 8, 4 << 10][rng.random_range(0..3)];
    let copies = [0, 256, 1 << 20][rng.random_range(0..3)];
    let mut group = Group::new(seed, ranks, elements, faults, |config| {
        (config.in_flight_bytes, config.answer_bytes) = (room, room);
        (config.copied_bytes, config.copy_bytes) = (copied, copies);
    });
    group.net.fragment = [64 * rng.random_range(1..=3), 64 * rng.random_range(1..=3)];
    group
}

/// Some of what may happen.
fn go_on(group: &mut Group) {
    let ranks = group.ranks.len();
    for _ in 0..group.rng.random_range(0..6) {
        if group.rng.random() {
            let rank = group.rng.random_range(0..ranks);
            group.poll(rank);
        } else {
            group.network();
        }
    }
}

/// Applies an access to the model of its elements; returns the elements that it reads.
fn play(action: WindowAction, model: &mut [u64], given: &[u64]) -> Vec<u64> {
    let before = model.to_vec();
    for (at, element) in model.iter_mut().enumerate() {
        match action {
            WindowAction::Get => {}
            WindowAction::Put | WindowAction::Swap => *element = given[at],
            WindowAction::Accumulate(op) | WindowAction::FetchAndOp(op) => {
                *element = match op {
                    ReduceOp::Sum => element.wrapping_add(given[at]),
                    ReduceOp::Prod => element.wrapping_mul(given[at]),
                    ReduceOp::Max => (*element).max(given[at]),
                    ReduceOp::Bxor => *element ^ given[at],
                    other => panic!("{other} is not played"),
                }
            }
            WindowAction::CompareAndSwap if *element == given[0] => *element = given[1],
            WindowAction::CompareAndSwap => {}
        }
    }
    before
}

/// Each origin has elements of its own in each window: it reads the results of its accesses before, in their order.
fn run_seed(seed: u64) -> WindowCounters {
    let mut rng = SmallRng::seed_from_u64(seed);
    let ranks = rng.random_range(1..=4u32);
    let mut group = group(seed, &mut rng, OWN * u64::from(ranks), ranks);
    let mut models = vec![vec![vec![0u64; OWN as usize]; ranks as usize]; ranks as usize];
    let mut started = vec![];
    for _ in 0..rng.random_range(1..=60) {
        let (rank, target) = (rng.random_range(0..ranks), rng.random_range(0..ranks));
        let op = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Bxor][rng.random_range(0..4)];
        let actions = [
            WindowAction::Put,
            WindowAction::Get,
            WindowAction::Accumulate(op),
            WindowAction::FetchAndOp(op),
            WindowAction::Swap,
            WindowAction::CompareAndSwap,
        ];
        let action = actions[rng.random_range(0..actions.len())];
        let single = action == WindowAction::CompareAndSwap;
        let count = if single { 1 } else { [0, 1, 1, 2, 17, OWN][rng.random_range(0..6)] };
        let offset = rng.random_range(0..=OWN - count);
        let model = &mut models[rank as usize][target as usize][offset as usize..(offset + count) as usize];
        let mut given: Vec<u64> = (0..action.bytes_given(count as usize)).map(|_| rng.random()).collect();
        if single && rng.random() {
            given[0] = model[0];
        }
        let expected = play(action, model, &given);
        let expected = if action.answers() { expected } else { vec![] };
        let (data, into) = (words(&given), words(&vec![u64::MAX; expected.len()]));
        let waited = rng.random();
        let offset = offset + u64::from(rank) * OWN;
        let request = AccessRequest { offset, waited, ..access(action, target, &data, &into) };
        let id = group.start(rank, request);
        started.push(Started { rank, id, waited, _data: data, into, expected });
        go_on(&mut group);
    }
    group.settle();
    let what = format!("seed {seed}");
    for Started { rank, id, waited, into, expected, .. } in &started {
        let result = group.result(*rank, *id);
        assert_eq!(result, waited.then_some(&Ok(())), "{what}: {id:?} of rank {rank}");
        assert_eq!(into.words(), *expected, "{what}: {id:?} of rank {rank}");
    }
    for (target, window) in group.windows.iter().enumerate() {
        let expected: Vec<u64> = models.iter().flat_map(|of| of[target].clone()).collect();
        assert_eq!(window.words(), expected, "{what}: the window of rank {target}");
    }
    group.assert_given_back(&what);
    let all = group.ranks.iter().map(Windows::counters);
    all.fold(WindowCounters::default(), |sum, one| WindowCounters {
        served: sum.served + one.served,
        held: sum.held + one.held,
        duplicates: sum.duplicates + one.duplicates,
        ..sum
    })
}

fn seed_of_environment() -> Option<u64> {
    std::env::var("SHOUTER_SEED").ok().and_then(|seed| seed.parse().ok())
}

/// Replay one with `SHOUTER_SEED=n cargo test -p shouter-reducer windows`.
#[test]
fn thousands_of_seeds_do_what_a_sequential_model_does() {
    if let Some(seed) = seed_of_environment() {
        run_seed(seed);
        return;
    }
    let mut sums = [0; 3];
    for seed in 0..2000 {
        let WindowCounters { served, held, duplicates, .. } = run_seed(seed);
        for (sum, one) in sums.iter_mut().zip([served, held, duplicates]) {
            *sum += one;
        }
    }
    assert!(sums.iter().all(|sum| *sum > 3000), "{sums:?}");
}

/// All ranks count with one element, swap another, and add to a third by comparing and swapping.
fn run_shared_seed(seed: u64) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let ranks = rng.random_range(2..=5u32);
    let mut group = group(seed, &mut rng, 3, ranks);
    let what = format!("seed {seed}");
    let target = rng.random_range(0..ranks);
    let (mut counts, mut swaps) = ((0..ranks).map(|_| vec![]).collect::<Vec<Vec<Buffer>>>(), vec![]);
    let one = word(1);
    for number in 1..=rng.random_range(10..60u64) {
        let rank = rng.random_range(0..ranks);
        let into = word(u64::MAX);
        let count = access(WindowAction::FetchAndOp(ReduceOp::Sum), target, &one, &into);
        group.start(rank, count);
        counts[rank as usize].push(into);
        let (data, into) = (word(number), word(u64::MAX));
        group.start(rank, AccessRequest { offset: 1, ..access(WindowAction::Swap, target, &data, &into) });
        swaps.push((number, data, into));
        go_on(&mut group);
    }
    // Each rank adds 1 to the third element five times.
    let mut tries: Vec<_> =
        (0..ranks).map(|rank| (rank, 0, 0u64, None::<(AccessId, Buffer, Buffer)>)).collect();
    while tries.iter().any(|(_, done, ..)| *done < 5) {
        for (rank, done, expected, under_way) in &mut tries {
            match under_way.take() {
                Some((id, data, into)) if group.result(*rank, id).is_none() => {
                    *under_way = Some((id, data, into))
                }
                Some((_, _, into)) => {
                    let found = into.words()[0];
                    *done += u32::from(found == *expected);
                    *expected = if found == *expected { found + 1 } else { found };
                }
                None if *done < 5 => {
                    let (data, into) = (words(&[*expected, *expected + 1]), word(0));
                    let request = AccessRequest {
                        offset: 2,
                        ..access(WindowAction::CompareAndSwap, target, &data, &into)
                    };
                    *under_way = Some((group.start(*rank, request), data, into));
                }
                None => {}
            }
        }
        go_on(&mut group);
    }
    group.settle();
    let mut seen = vec![];
    for of_one in &counts {
        let values: Vec<u64> = of_one.iter().map(|into| into.words()[0]).collect();
        assert!(values.is_sorted(), "{what}: a rank's accesses take effect in its order: {values:?}");
        seen.extend(values);
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..seen.len() as u64).collect::<Vec<_>>(), "{what}: each value is given once");
    let window = group.windows[target as usize].words();
    // The value that a swap returns was written by another swap, or is the first.
    let mut chain: Vec<u64> = swaps.iter().map(|(_, _, into)| into.words()[0]).chain([window[1]]).collect();
    chain.sort_unstable();
    assert_eq!(chain, (0..=swaps.len() as u64).collect::<Vec<_>>(), "{what}: swaps are a chain");
    assert_eq!((window[0], window[2]), (seen.len() as u64, 5 * u64::from(ranks)), "{what}");
    group.assert_given_back(&what);
}

#[test]
fn thousands_of_seeds_give_each_count_once_in_each_ranks_order() {
    match seed_of_environment() {
        Some(seed) => run_shared_seed(seed),
        None => (0..1500).for_each(run_shared_seed),
    }
}

/// Puts and swaps of several origins to a rank whose window is shorter than they were told, and is freed in between.
fn run_denied_seed(seed: u64) {
    const ELEMENTS: u64 = 64;
    let mut rng = SmallRng::seed_from_u64(seed);
    let ranks = rng.random_range(2..=4u32);
    let mut group = group(seed, &mut rng, ELEMENTS, ranks);
    let what = format!("seed {seed}");
    let len = rng.random_range(1..=ELEMENTS);
    group.reopen(0, len as usize, DType::U64);
    let freed_at = rng.random_range(0..2 * ELEMENTS);
    let mut started = vec![];
    for number in 0..ELEMENTS {
        if number == freed_at {
            assert!(group.ranks[0].close(WindowId(0)));
        }
        let rank = rng.random_range(1..ranks);
        let action = [WindowAction::Put, WindowAction::Accumulate(ReduceOp::Sum), WindowAction::Swap]
            [rng.random_range(0..3)];
        // Each has an element of its own.
        let offset = number * 37 % ELEMENTS;
        let (data, into) = (word(number + 1), if action.answers() { word(9) } else { Buffer::none() });
        let id = group.start(rank, AccessRequest { offset, ..access(action, 0, &data, &into) });
        started.push((rank, id, offset, data, into));
        go_on(&mut group);
    }
    group.settle();
    let window = group.windows[0].words();
    let mut freed = vec![false; ranks as usize];
    let mut late = vec![false; ranks as usize];
    for (rank, id, offset, data, _into) in &started {
        let is_there = window[*offset as usize] == data.words()[0];
        let is_freed = &mut freed[*rank as usize];
        match group.result(*rank, *id) {
            Some(Ok(())) if is_there => assert!(!*is_freed, "{what}: {id:?} of rank {rank} came behind"),
            Some(Err(AccessError::Denied { why, .. })) => {
                assert!(
                    !is_there && (*offset >= len || *why == Denial::Window),
                    "{what}: {id:?} of rank {rank}"
                );
                *is_freed |= *why == Denial::Window;
            }
            // It was copied, and ended at once.
            Some(Ok(())) => late[*rank as usize] = true,
            other => panic!("{what}: {id:?} of rank {rank}: {other:?}"),
        }
    }
    for (rank, late) in (0..).zip(late) {
        assert!(group.ranks[rank].is_flushed(WindowId(0), None), "{what}: rank {rank}");
        let error = group.ranks[rank].take_late(WindowId(0), None);
        assert!(!late || error.is_some(), "{what}: rank {rank}");
    }
    group.assert_given_back(&what);
}

#[test]
fn thousands_of_seeds_tell_denied_accesses_from_others() {
    match seed_of_environment() {
        Some(seed) => run_denied_seed(seed),
        None => (0..1500).for_each(run_denied_seed),
    }
}
