//! Fused tensors between real processes: the same bits as single ones on every transport, in any order of pushes and
//! with late ranks; and the errors when a rank dies with a part of a bucket pushed, or waits at another place.

#![allow(unsafe_code)]

use std::time::{Duration, Instant};

use crate::ranks::{MISMATCH, job, join, parameter, play, tell};
use shouter::{DType, Error, Group, ReduceOp, TensorId, TensorSpec, Work};

/// Elements of the tensors, in the order of the table: small ones with large ones between.
const COUNTS: [usize; 14] = [40_000, 64, 64, 700, 5, 1, 30_000, 900, 64, 256, 1000, 3, 12_000, 10];

/// A time limit that no wait reaches.
const PATIENCE: Duration = Duration::from_secs(50);

/// The body of a rank; as a test of its own it does nothing.
#[test]
fn rank_body() {
    let plays: &[(&str, crate::ranks::Play)] = &[
        ("steps", steps),
        ("die", die),
        ("diverge", diverge),
        ("poll", poll),
        ("between", between),
        ("finalize", finalize),
    ];
    play(plays, join);
}

/// Numbers with rounded sums, the same in each run.
fn noise(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}

fn register(group: &Group, op: ReduceOp) -> Result<Vec<TensorId>, Error> {
    let spec = |(at, count): (usize, &usize)| {
        TensorSpec::all_reduce(format!("{op}.{at}"), DType::F32, *count as u64, op)
    };
    group.register(&COUNTS.iter().enumerate().map(spec).collect::<Vec<_>>())
}

/// Steps that push all tensors or some, backwards, and wait forwards, in changing ways; reports the results' digest.
fn steps(group: &Group) -> Result<(), Error> {
    let tables = [register(group, ReduceOp::Sum)?, register(group, ReduceOp::Avg)?];
    let half = group.duplicate()?;
    let halves = register(&half, ReduceOp::Sum)?;
    let mut common = noise(7);
    let mut own = noise(u64::from(group.rank()) * 977 + std::process::id() as u64);
    let mut digest = 0xcbf2_9ce4_8422_2325u64;
    for step in 0..24u64 {
        let (group, ids) = match step % 3 {
            2 => (&half, &halves),
            table => (group, &tables[table as usize]),
        };
        group.set_step(step);
        let mut values = noise(step * 1000 + u64::from(group.rank()) + 1);
        let mut number = || f32::from_bits(0x3c00_0000 | (values() as u32 & 0x83ff_ffff));
        // Private memory, or one piece of memory that the host's ranks share.
        let total = COUNTS.iter().sum();
        let mut shared = group.alloc::<f32>(total)?;
        let mut private = vec![0f32; total];
        let data = if step % 4 == 1 { &mut shared[..] } else { &mut private[..] };
        data.fill_with(&mut number);
        let starts = COUNTS.iter().scan(0, |start, count| Some(std::mem::replace(start, *start + count)));
        let starts: Vec<usize> = starts.collect();
        let mut works: Vec<(usize, Work)> = vec![];
        let base = data.as_mut_ptr();
        let mut apart: Vec<(usize, Vec<f32>)> = vec![];
        for at in (0..COUNTS.len()).rev() {
            if step % 5 == 3 && common().is_multiple_of(3) {
                continue;
            }
            if own().is_multiple_of(4) {
                std::thread::sleep(Duration::from_micros(own() % 3000));
            }
            // SAFETY: elements of `data`, each pushed once, which are left alone until the waits.
            let tensor = unsafe { base.add(starts[at]) };
            let work = if step % 6 == 5 && at % 2 == 0 {
                apart.push((at, vec![0f32; COUNTS[at]]));
                let output = apart.last_mut().map(|(_, output)| output.as_mut_ptr()).unwrap();
                // SAFETY: as above, and an output of as many elements.
                unsafe { group.push_into(ids[at], tensor.cast(), output.cast()) }?
            } else {
                // SAFETY: as above.
                unsafe { group.push(ids[at], tensor.cast()) }?
            };
            works.push((at, work));
            match common() % 40 {
                0 => works.last().map_or(Ok(()), |(_, work)| work.wait(None))?,
                1 => group.barrier()?,
                2 => {
                    let mut one = [1i64];
                    group.all_reduce(&mut one, ReduceOp::Sum)?;
                    assert_eq!(one, [i64::from(group.size())]);
                }
                3 => drop(Work::wait_any(
                    &works.iter().map(|(_, work)| work.clone()).collect::<Vec<_>>(),
                    None,
                )?),
                _ => {}
            }
        }
        if step % 2 == 0 {
            // Two threads wait, after all pushes.
            let waits: Vec<Work> = works.iter().map(|(_, work)| work.clone()).collect();
            let other =
                std::thread::spawn(move || waits.iter().try_for_each(|work| work.wait(Some(PATIENCE))));
            works.iter().rev().try_for_each(|(_, work)| work.wait(Some(PATIENCE)))?;
            other.join().unwrap()?;
        } else {
            works.iter().rev().try_for_each(|(_, work)| work.wait(Some(PATIENCE)))?;
        }
        let pushed = works.iter().map(|(at, _)| *at);
        let place = |at: usize| &data[starts[at]..starts[at] + COUNTS[at]];
        let apart = |at: usize| apart.iter().find(|(of, _)| *of == at).map(|(_, output)| &output[..]);
        for value in pushed.flat_map(|at| apart(at).unwrap_or(place(at))) {
            digest = (digest ^ u64::from(value.to_bits())).wrapping_mul(0x0100_0000_01b3);
        }
    }
    tell(format_args!("digest {digest:x}"));
    half.finalize()
}

/// The last rank dies with a part of a bucket pushed.
fn die(group: &Group) -> Result<(), Error> {
    let ids = register(group, ReduceOp::Sum)?;
    let mut data: Vec<_> = COUNTS.iter().map(|count| vec![1f32; *count]).collect();
    let culprit = group.size() - 1;
    let pushes = if parameter("PARTLY").is_some() { 3 } else { 14 };
    group.barrier()?;
    let (mut works, mut refused) = (vec![], None);
    for (id, data) in ids.iter().zip(&mut data).skip(1).take(pushes) {
        if group.rank() == culprit && works.len() == 2 {
            std::process::abort();
        }
        // SAFETY: left alone until the group has gone.
        match unsafe { group.push(*id, data.as_mut_ptr().cast()) } {
            Ok(work) => works.push(work),
            // The rank already knows of the death.
            Err(error) => {
                assert_eq!(error.rank(), Some(culprit), "{error}");
                refused = Some(error);
            }
        }
    }
    let mut named = None;
    for (at, work) in works.iter().enumerate().rev() {
        let error = work.wait(Some(PATIENCE)).unwrap_err();
        assert_eq!(error.rank(), Some(culprit), "{error}");
        if let Some(tensor) = error.tensor() {
            assert_eq!(tensor.name, format!("sum.{}", at + 1), "{error}");
            named = Some(error);
        }
    }
    Err(named.or(refused).unwrap_or_else(|| works[0].wait(None).unwrap_err()))
}

/// The last rank waits for a tensor before its whole bucket was pushed.
fn diverge(group: &Group) -> Result<(), Error> {
    let ids = register(group, ReduceOp::Sum)?;
    let mut data: Vec<_> = COUNTS.iter().map(|count| vec![1f32; *count]).collect();
    let mut works = vec![];
    // Tensors of one bucket.
    for (id, data) in ids.iter().zip(&mut data).filter(|(_, data)| data.len() < 1024) {
        // SAFETY: left alone until the group has gone.
        works.push(unsafe { group.push(*id, data.as_mut_ptr().cast()) }?);
        if works.len() == 4 && group.rank() + 1 == group.size() {
            works[1].wait(None)?;
        }
    }
    works.iter().try_for_each(|work| work.wait(None))
}

/// A part of a bucket is pushed and no rank waits: it fails at its deadline.
fn poll(group: &Group) -> Result<(), Error> {
    let ids = register(group, ReduceOp::Sum)?;
    let mut data = vec![1f32; COUNTS[1]];
    group.barrier()?;
    let begun = Instant::now();
    // SAFETY: left alone until it has ended.
    let work = unsafe { group.push(ids[1], data.as_mut_ptr().cast()) }?;
    let ended = loop {
        if let Some(ended) = work.test() {
            break ended;
        }
        assert!(begun.elapsed() < PATIENCE, "it is held for ever");
        std::thread::sleep(Duration::from_millis(1));
    };
    assert!(begun.elapsed() > Duration::from_millis(1500), "{:?}", begun.elapsed());
    tell("over");
    ended
}

/// A small operation between a push and its wait, to which the last rank comes late.
fn between(group: &Group) -> Result<(), Error> {
    let ids = register(group, ReduceOp::Sum)?;
    let mut data = vec![1f32; COUNTS[1]];
    // SAFETY: left alone until the wait.
    let work = unsafe { group.push(ids[1], data.as_mut_ptr().cast()) }?;
    let mut one = [1i64];
    group.all_reduce(&mut one, ReduceOp::Sum)?;
    if group.rank() + 1 == group.size() {
        // Longer than the time after which ranks compare their operations.
        std::thread::sleep(Duration::from_millis(300));
    }
    work.wait(Some(PATIENCE))?;
    assert!(data.iter().all(|sum| *sum == group.size() as f32));
    Ok(())
}

/// The end of the group completes a part of a bucket.
fn finalize(group: &Group) -> Result<(), Error> {
    let ids = register(group, ReduceOp::Sum)?;
    let mut data = vec![1f32; COUNTS[1]];
    // SAFETY: left alone until the barrier has ended.
    let work = unsafe { group.push(ids[1], data.as_mut_ptr().cast()) }?;
    assert!(work.test().is_none());
    group.barrier()?;
    work.wait(None)?;
    assert!(data.iter().all(|sum| *sum == group.size() as f32));
    // SAFETY: it is leaked.
    drop(unsafe { group.push(ids[2], vec![1f32; COUNTS[2]].leak().as_mut_ptr().cast()) }?);
    Ok(())
}

/// Jobs on all transports: ranks, hosts and transport.
const JOBS: [(u32, u32, &str); 6] =
    [(1, 1, "auto"), (3, 1, "shm"), (2, 2, "rud"), (4, 2, "tcp"), (2, 2, "kernel"), (4, 2, "auto")];

#[test]
fn fused_tensors_have_the_bits_of_single_ones_on_every_transport() {
    for (ranks, hosts, transport) in JOBS {
        let mut digests: Vec<Vec<String>> = vec![];
        for (below, bytes, mode) in [(0, 65536, "caller"), (4096, 65536, "caller"), (4096, 6000, "dedicated")]
        {
            let job = job!(ranks, hosts, "steps").args(&["--transport", transport]);
            let job = job.env("SHOUTER_FUSE_BELOW", below).env("SHOUTER_FUSE_BYTES", bytes);
            let state = job.env("SHOUTER_MODE", mode).run();
            state.assert_success();
            digests.push(state.ranks.iter().map(|rank| rank.told[0].clone()).collect());
        }
        assert!(digests.iter().flatten().all(|digest| *digest == digests[0][0]), "{transport}: {digests:?}");
    }
}

#[test]
fn a_rank_that_dies_in_a_bucket_is_named_by_all() {
    for (ranks, hosts) in [(3, 1), (2, 2)] {
        for partly in [false, true] {
            let mut job = job!(ranks, hosts, "die").env("SHOUTER_FUSE_BELOW", 4096);
            if partly {
                job = job.with("PARTLY", 1);
            }
            let state = job.run();
            for survivor in state.others(ranks - 1) {
                let error = survivor.error();
                assert!(error.contains(&format!("rank {}", ranks - 1)), "{error}\n{state}");
            }
        }
    }
}

#[test]
fn a_turn_that_ends_elsewhere_is_a_divergence_which_names_the_bucket() {
    for (ranks, hosts) in [(3, 1), (3, 3), (4, 2)] {
        let state = job!(ranks, hosts, "diverge").env("SHOUTER_FUSE_BELOW", 4096).run();
        for rank in &state.ranks {
            let error = rank.error();
            assert_eq!(rank.code, Some(MISMATCH), "{error}\n{state}");
            assert!(error.contains("\"sum.1\"") || error.contains("sum.1 + sum.2"), "{error}");
        }
        assert!(state.ranks.iter().any(|rank| rank.error().contains("sum.1 + sum.2 + sum.3")), "{state}");
    }
}

#[test]
fn a_part_of_a_bucket_is_not_held_for_ever() {
    let held = || job!(2, 2, "poll").env("SHOUTER_FUSE_BELOW", 4096).env("SHOUTER_DEADLINE", "2s");
    for rank in &held().run().ranks {
        assert!(rank.told.iter().any(|line| line == "over"), "{rank:?}");
    }
    for (ranks, hosts) in [(1, 1), (3, 1), (2, 2)] {
        job!(ranks, hosts, "finalize").env("SHOUTER_FUSE_BELOW", 4096).run().assert_success();
    }
}

#[test]
fn a_late_wait_behind_a_small_operation_is_no_divergence() {
    for (ranks, hosts) in [(2, 1), (3, 1), (4, 2)] {
        job!(ranks, hosts, "between").env("SHOUTER_FUSE_BELOW", 4096).run().assert_success();
    }
}
