//! A rank that runs another operation than the others, between real processes: every kind, every culprit, every grid
//! and transport. No rank ends with OK and a wrong sum. All end with both views, and name the culprit where there is a
//! majority.
//!
//! `SHOUTER_DIVERGENCES=all` runs every combination; otherwise each kind of divergence meets each grid once or twice,
//! with the rest varied.

#![allow(unsafe_code)]

use crate::ranks::{MISMATCH, job, join, parameter, play, tell};
use shouter::{DType, Error, Group, ReduceOp, TensorSpec};

const KINDS: [&str; 9] =
    ["order", "skip", "repeat", "dtype", "op", "count", "empty", "finalize", "generation"];

/// Ranks and hosts.
const GRIDS: [(u32, u32); 4] = [(4, 1), (4, 2), (4, 4), (6, 2)];

/// Elements: the small path within a host, one message, several chunks.
const COUNTS: [usize; 3] = [10, 3000, 100_000];

/// One action of a rank.
#[derive(Clone, Copy, PartialEq)]
enum Item {
    /// Pushes tensor `n` of the table and waits.
    Push(usize),
    /// Reduces this many elements outside the table.
    Reduce(DType, ReduceOp, usize),
    Finalize,
}

/// The body of a rank; as a test of its own it does nothing.
#[test]
fn rank_body() {
    play(&[("diverge", diverge), ("die", die)], join);
}

fn is_culprit(group: &Group) -> bool {
    parameter("CULPRIT").unwrap() == group.rank().to_string()
}

/// The culprit starts another operation than the others, and dies at once.
fn die(group: &Group) -> Result<(), Error> {
    let spec = |name: &str, count| TensorSpec::all_reduce(name, DType::F32, count, ReduceOp::Sum);
    let ids = group.register(&[spec("small", 700), spec("large", 300_000)])?;
    for _ in 0..5 {
        group.all_reduce(&mut vec![1f32; 20_000], ReduceOp::Sum)?;
    }
    if is_culprit(group) {
        let _work = group.lend(ids[1], vec![1f32; 300_000])?;
        // SAFETY: the process ends here.
        unsafe { libc::raise(libc::SIGKILL) };
    }
    group.lend(ids[0], vec![1f32; 700])?.wait()?;
    Ok(())
}

fn diverge(group: &Group) -> Result<(), Error> {
    let count: usize = parameter("COUNT").unwrap().parse().unwrap();
    let spec = |name: &str| TensorSpec::all_reduce(name, DType::F32, count as u64, ReduceOp::Sum);
    // Two generations, so that two tensors have the same name.
    let mut ids = group.register(&[spec("left"), spec("right")])?;
    ids.extend(group.register(&[spec("left")])?);
    group.all_reduce(&mut [1u8], ReduceOp::Sum)?;
    let sum = |count| Item::Reduce(DType::F32, ReduceOp::Sum, count);
    let common = [Item::Push(0), Item::Push(1), sum(count), Item::Push(1), Item::Finalize];
    let mut list = common.to_vec();
    if is_culprit(group) {
        match parameter("KIND").unwrap().as_str() {
            "order" => list.swap(0, 1),
            "skip" => drop(list.remove(1)),
            "repeat" => list.insert(1, Item::Push(0)),
            "dtype" => list[2] = Item::Reduce(DType::I32, ReduceOp::Sum, count),
            "op" => list[2] = Item::Reduce(DType::F32, ReduceOp::Max, count),
            "count" => list[2] = sum(count + 1),
            "empty" => list[2] = sum(0),
            "generation" => list[0] = Item::Push(2),
            "finalize" => list = vec![Item::Push(0), Item::Finalize],
            other => panic!("no kind {other}"),
        }
    }
    let shared = parameter("SHARED").is_some();
    for (at, item) in list.iter().enumerate() {
        let (bytes, expected) = match *item {
            Item::Finalize => return Ok(()),
            Item::Push(_) => (count * 4, Some(count)),
            Item::Reduce(dtype, _, count) => (count * dtype.size(), Some(count)),
        };
        // Each operation of each rank has its own numbers.
        let value = |rank: u32| ((rank + 1) * 10 + at as u32) as f32;
        let mut own = vec![0f32; bytes.div_ceil(4)];
        let mut memory = if shared { Some(group.alloc::<f32>(own.len())?) } else { None };
        let data: &mut [f32] = memory.as_deref_mut().unwrap_or(&mut own);
        data.fill(value(group.rank()));
        match *item {
            Item::Push(tensor) => {
                // SAFETY: the tensor is touched again only after `wait` has returned.
                let pending = unsafe { group.push(ids[tensor], data.as_mut_ptr().cast()) }?;
                pending.wait(None)?;
            }
            Item::Reduce(dtype, op, count) => {
                // SAFETY: the elements are those of a slice that this call alone uses.
                unsafe { group.all_reduce_raw(data.as_mut_ptr().cast(), count, dtype, op) }?;
            }
            Item::Finalize => {}
        }
        let sum: f32 = (0..group.size()).map(value).sum();
        // A result is right only if all ranks ran the same operations; this rank's own list may differ.
        let right =
            common.get(at) == Some(item) && data.iter().take(expected.unwrap_or(0)).all(|&x| x == sum);
        if !right {
            tell(format_args!("wrong operation {at} gave {:?} instead of {sum}", data.first()));
        }
    }
    Ok(())
}

/// One job.
fn run(kind: &str, (ranks, hosts): (u32, u32), culprit: u32, transport: &str, count: usize, shared: bool) {
    let mut plan = job!(ranks, hosts, "diverge").env("SHOUTER_DEADLINE", "20s");
    plan = match transport {
        "tcp" => plan.env("SHOUTER_TRANSPORT", "tcp"),
        "kernel" => plan.args(&["--transport", "kernel"]),
        _ => plan,
    };
    for (name, value) in
        [("KIND", kind.to_string()), ("CULPRIT", culprit.to_string()), ("COUNT", count.to_string())]
    {
        plan = plan.env(&format!("SHOUTER_TEST_{name}"), value);
    }
    if shared {
        plan = plan.with("SHARED", 1);
    }
    let state = plan.run();
    let what = format!(
        "{kind} by rank {culprit} of {ranks} on {hosts} hosts over {transport}, {count} elements, shared: {shared}"
    );
    for (number, rank) in state.ranks.iter().enumerate() {
        assert!(!rank.told.iter().any(|line| line.starts_with("wrong")), "{what}: rank {number}\n{state}");
        assert_eq!(rank.code, Some(MISMATCH), "{what}: rank {number}: {}\n{state}", rank.error());
        assert!(
            rank.error().contains(&format!("rank {culprit}: it runs")),
            "{what}: rank {number}: {}",
            rank.error()
        );
    }
}

#[test]
fn nobody_gets_a_wrong_sum_when_any_rank_runs_something_else() {
    let all = std::env::var("SHOUTER_DIVERGENCES").is_ok_and(|wanted| wanted == "all");
    let transports = ["rud", "tcp", "kernel"];
    let mut case = 0usize;
    for kind in KINDS {
        for grid in GRIDS {
            let over = if grid.1 == 1 { &transports[..1] } else { &transports[..] };
            if all {
                for culprit in 0..grid.0 {
                    for transport in over {
                        for count in COUNTS {
                            run(kind, grid, culprit, transport, count, false);
                            run(kind, grid, culprit, transport, count, true);
                        }
                    }
                }
            } else {
                let culprit = case as u32 % grid.0;
                run(kind, grid, culprit, over[case / 2 % over.len()], COUNTS[case % 3], case % 5 < 2);
            }
            case += 1;
        }
    }
}

/// It has sent something to some of the others only, and its vote does not come.
#[test]
fn a_rank_that_runs_something_else_and_dies_is_named_by_all() {
    for culprit in 0..8 {
        let plan = job!(8, 8, "die").with("CULPRIT", culprit).env("SHOUTER_LEVELS", "2,2");
        let state = plan.args(&["--transport", "kernel"]).run();
        for (number, rank) in (0..).zip(&state.ranks).filter(|(number, _)| *number != culprit) {
            // It has run something else and is dead: who comes late hears of its death first.
            let [runs, dead] =
                ["it runs", "the process is dead"].map(|what| format!("rank {culprit}: {what}"));
            let error = rank.error();
            assert!(rank.code != Some(0), "rank {number}: {error}\n{state}");
            assert!(error.contains(&runs) || error.contains(&dead), "rank {number}: {error}\n{state}");
        }
    }
}
