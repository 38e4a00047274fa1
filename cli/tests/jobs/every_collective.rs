//! Every collective between real processes, in place and apart, from every root, over every transport, against its definition.

#![allow(unsafe_code)]

use std::ops::DerefMut;
use std::time::Duration;

use crate::ranks::values::{fill, reduced, reduced_over, value};
use crate::ranks::{Play, job, join, names_only, parameter, play, tell};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use shouter::{
    Bool, Collective, CollectiveCall, Complex, DType, Error, Group, ReduceOp, Staging, TensorSpec, UnevenCall,
};

/// Elements of a tensor, or of a rank's block.
const COUNTS: [usize; 5] = [0, 1, 7, 1000, 60_007];

/// One of each kind and size.
const DTYPES: [DType; 7] =
    [DType::F32, DType::I8, DType::Bf16, DType::U64, DType::F8E5M2, DType::Complex128, DType::Bool];

/// The body of a rank; as a test of its own it does nothing.
#[test]
fn rank_body() {
    let plays: [(&str, Play); 6] = [
        ("all", all),
        ("row", row),
        ("safe", safe),
        ("mismatch", mismatch),
        ("die", die),
        ("stream", stream),
    ];
    play(&plays, join);
}

/// One rank's view of a collective: its input, and its expected output.
struct Case {
    call: CollectiveCall,
    input: Vec<u8>,
    output: Vec<u8>,
    /// The offsets of both in one buffer, in place.
    input_at: usize,
    output_at: usize,
}

/// A rank's input is `value` at each index, from 0.
fn case(group: &Group, collective: Collective, dtype: DType, op: ReduceOp, count: usize, root: u32) -> Case {
    use Collective::*;
    let (ranks, rank, size) = (group.size(), group.rank(), dtype.size());
    let (all, is_root, own) = (count * ranks as usize, rank == root, rank as usize * count * size);
    let of = |from: u32, start: usize, count: usize| {
        fill(dtype, count, |index| value(op, dtype, ranks, from, start + index))
    };
    let sums =
        |start: usize, count: usize| fill(dtype, count, |index| reduced(op, dtype, ranks, start + index));
    let each = |start: usize| (0..ranks).flat_map(|from| of(from, start, count)).collect::<Vec<_>>();
    let (own_start, case_count) = (rank as usize * count, count);
    let (input, output, input_at, output_at) = match collective {
        AllReduce => (of(rank, 0, count), sums(0, count), 0, 0),
        Reduce => (of(rank, 0, count), if is_root { sums(0, count) } else { vec![] }, 0, 0),
        Broadcast => (if is_root { of(rank, 0, count) } else { vec![] }, of(root, 0, count), 0, 0),
        AllGather => (of(rank, 0, count), each(0), own, 0),
        Gather if is_root => (of(rank, 0, count), each(0), own, 0),
        Gather => (of(rank, 0, count), vec![], 0, 0),
        Scatter if is_root => (of(rank, 0, all), of(root, own_start, count), 0, own),
        Scatter => (vec![], of(root, own_start, count), 0, 0),
        ReduceScatter => (of(rank, 0, all), sums(own_start, count), 0, own),
        AllToAll => (of(rank, 0, all), each(own_start), 0, 0),
        Scan | ExScan => {
            let over = 0..rank + u32::from(collective == Scan);
            let count = if over.is_empty() { 0 } else { count };
            let prefix = fill(dtype, count, |index| reduced_over(op, dtype, ranks, over.clone(), index));
            (of(rank, 0, case_count), prefix, 0, 0)
        }
        _ => unreachable!("no elements, or several counts"),
    };
    let call = CollectiveCall {
        collective,
        input: std::ptr::null(),
        output: std::ptr::null_mut(),
        count,
        dtype,
        op,
        root,
    };
    Case { call, input, output, input_at, output_at }
}

impl Case {
    fn run(&self, group: &Group, in_place: bool) -> Result<(), Error> {
        const GUARD: u8 = 0xa5;
        let Self { call, input, output, input_at, output_at } = self;
        let what =
            format!("{} {} of {} x {}, root {}", call.collective, call.op, call.count, call.dtype, call.root);
        if in_place || call.collective == Collective::Broadcast {
            let len = (input_at + input.len()).max(output_at + output.len());
            let mut data = memory(group, &vec![GUARD; len])?;
            data[*input_at..input_at + input.len()].copy_from_slice(input);
            let base = data.as_mut_ptr();
            let call = CollectiveCall {
                input: base.wrapping_add(*input_at),
                output: base.wrapping_add(*output_at),
                ..*call
            };
            // SAFETY: the buffer is as long as the collective says, and this call's alone.
            unsafe { group.run_collective(&call) }?;
            assert!(data[*output_at..output_at + output.len()] == *output, "{what}, in place");
            return Ok(());
        }
        let (given, mut result) = (memory(group, input)?, memory(group, &vec![GUARD; output.len() + 8])?);
        let call = CollectiveCall { input: given.as_ptr(), output: result.as_mut_ptr(), ..*call };
        // SAFETY: as above; the input is only read.
        unsafe { group.run_collective(&call) }?;
        assert!(result[..output.len()] == *output, "{what}");
        assert!(result[output.len()..].iter().all(|&byte| byte == GUARD), "{what} wrote behind its output");
        assert!(given[..] == *input, "{what} wrote to its input");
        Ok(())
    }
}

/// Memory with these bytes, in the memory that the host's ranks share if the test says so.
fn memory(group: &Group, bytes: &[u8]) -> Result<Box<dyn DerefMut<Target = [u8]>>, Error> {
    let mut memory: Box<dyn DerefMut<Target = [u8]>> = match parameter("SHARED") {
        Some(_) => Box::new(group.alloc::<u8>(bytes.len())?),
        None => Box::new(vec![0; bytes.len()]),
    };
    memory.copy_from_slice(bytes);
    Ok(memory)
}

/// Every collective with some types and all reductions; each rank chooses at random whether it runs in place.
fn all(group: &Group) -> Result<(), Error> {
    let mut root = 0;
    // Each rank has another pattern, so all mixtures occur.
    let mut rng = SmallRng::seed_from_u64(group.rank().into());
    for count in COUNTS {
        let with_memory = |&c: &Collective| c != Collective::Barrier && !c.has_counts();
        for collective in Collective::ALL.into_iter().filter(with_memory) {
            for dtype in DTYPES {
                let ops = if collective.reduces() { ReduceOp::ALL } else { &ReduceOp::ALL[..1] };
                let is_there = |op: &&ReduceOp| {
                    let scanned = **op == ReduceOp::Avg && collective.is_scan();
                    !scanned && (!collective.reduces() || op.is_of(dtype))
                };
                for &op in ops.iter().filter(is_there) {
                    let in_place = rng.random();
                    case(group, collective, dtype, op, count, root).run(group, in_place)?;
                    root = (root + 1) % group.size();
                }
            }
        }
    }
    let reads = parameter("SHARED").is_some() && group.nodes() == 1;
    assert!(!reads || group.stats().in_place > 100, "{:?}", group.stats());
    Ok(())
}

/// The safe functions.
fn safe(group: &Group) -> Result<(), Error> {
    let (ranks, rank) = (group.size() as usize, group.rank());
    for root in 0..group.size() {
        let mut data = [i64::from(rank); 5];
        group.broadcast(&mut data, root)?;
        assert_eq!(data, [i64::from(root); 5]);
        let mut data = [i64::from(rank) + 1; 5];
        group.reduce(&mut data, ReduceOp::Sum, root)?;
        let sum = (1..=i64::from(group.size())).sum();
        assert_eq!(data, [if rank == root { sum } else { i64::from(rank) + 1 }; 5]);
        let mut gathered = vec![0u16; if rank == root { 2 * ranks } else { 0 }];
        group.gather(&[rank as u16, 7], &mut gathered, root)?;
        assert!(gathered.chunks(2).enumerate().all(|(from, pair)| *pair == [from as u16, 7]));
        let blocks: Vec<u32> = (0..ranks as u32 * 3).collect();
        let mut mine = [0; 3];
        group.scatter(if rank == root { &blocks } else { &[] }, &mut mine, root)?;
        assert_eq!(mine, [0, 1, 2].map(|i| rank * 3 + i));
        group.barrier()?;
    }
    let mut sums = [0f64; 2];
    group.all_reduce_into(&[f64::from(rank), 1.0], &mut sums, ReduceOp::Sum)?;
    assert_eq!(sums, [(0..group.size()).map(f64::from).sum(), f64::from(group.size())]);
    let mut all = vec![0u32; ranks];
    group.all_gather(&[rank * rank], &mut all)?;
    assert!((0..).zip(&all).all(|(from, &found)| found == from * from));
    let input: Vec<i32> = (0..ranks as i32).collect();
    let mut mine = [0i32];
    group.reduce_scatter(&input, &mut mine, ReduceOp::Sum)?;
    assert_eq!(mine, [rank as i32 * ranks as i32]);
    let input: Vec<u32> = (0..group.size()).map(|to| rank * 100 + to).collect();
    let mut output = vec![0; ranks];
    group.all_to_all(&input, &mut output)?;
    assert!((0..).zip(&output).all(|(from, &found)| found == from * 100 + rank));
    // Invalid calls are refused before anything is sent, and the group goes on.
    let refused = |result: Result<(), Error>, with: &str| {
        let error = result.unwrap_err();
        assert!(matches!(&error, Error::Argument(text) if text.contains(with)), "{error}");
    };
    refused(group.broadcast(&mut [1u8], group.size()), "root");
    refused(group.all_gather(&[1u8], &mut vec![0; ranks + 1]), "output has");
    refused(group.reduce_scatter(&vec![1u8; ranks + 1], &mut [0; 1], ReduceOp::Sum), "input has");
    if ranks > 1 {
        refused(group.all_to_all(&[1u8], &mut [0]), "are needed");
    }
    let mut data = vec![0u32; 8 * ranks];
    let overlapping = CollectiveCall {
        collective: Collective::AllToAll,
        input: data.as_ptr().cast(),
        output: data[1..].as_mut_ptr().cast(),
        count: 4,
        dtype: DType::U32,
        op: ReduceOp::Sum,
        root: 0,
    };
    // SAFETY: the buffer has room for what would be touched.
    refused(unsafe { group.run_collective(&overlapping) }, "overlap");
    let null = CollectiveCall { input: std::ptr::null(), ..overlapping };
    // SAFETY: as above.
    refused(unsafe { group.run_collective(&null) }, "NULL");
    let huge = CollectiveCall { count: usize::MAX / 4, ..overlapping };
    // SAFETY: as above.
    refused(unsafe { group.run_collective(&huge) }, "fit");
    // Every reduction that a type lacks.
    for &dtype in DType::ALL {
        for &op in ReduceOp::ALL.iter().filter(|op| !op.is_of(dtype)) {
            let name = format!("there is no {op} of {dtype}");
            let mut room = [0u128; 2];
            let data = room.as_mut_ptr().cast();
            // SAFETY: the buffer has room for what would be touched.
            refused(unsafe { group.all_reduce_raw(data, 1, dtype, op) }, &name);
            for collective in Collective::ALL.into_iter().filter(|collective| collective.reduces()) {
                let call =
                    CollectiveCall { collective, input: data, output: data, count: 1, dtype, op, root: 0 };
                let (one, all) = ([1], vec![1; ranks]);
                let (given, taken) = (&all[..], &one[..]);
                let uneven =
                    UnevenCall { collective, input: data, output: data, given, taken, dtype, op, root: 0 };
                let refusal = match collective.has_counts() {
                    // SAFETY: as above.
                    true => unsafe { group.run_uneven(&uneven, &Staging::default()) },
                    // SAFETY: as above.
                    false => unsafe { group.run_collective(&call) },
                };
                refused(refusal, &name);
            }
            let spec = TensorSpec::all_reduce("t", dtype, 1, op);
            refused(group.register(&[spec]).map(|_| ()), &name);
        }
    }
    let mut flags = [Bool::from(rank == 0), Bool::from(true)];
    group.all_reduce(&mut flags, ReduceOp::Land)?;
    assert_eq!(flags.map(Bool::get), [ranks == 1, true]);
    let mut turned = [Complex::new(0f32, 1.0)];
    group.all_reduce(&mut turned, ReduceOp::Prod)?;
    let power =
        [Complex::new(1f32, 0.0), Complex::new(0.0, 1.0), Complex::new(-1.0, 0.0), Complex::new(0.0, -1.0)];
    assert_eq!(turned, [power[ranks % 4]]);
    let counted = CollectiveCall { collective: Collective::AllToAllV, ..overlapping };
    // SAFETY: as above.
    refused(unsafe { group.run_collective(&counted) }, "run_uneven");
    refused(group.scan(&[1f32], &mut [0.0], ReduceOp::Avg), "avg");
    refused(group.exscan(&[1f32], &mut [0.0, 1.0], ReduceOp::Sum), "output has");
    let mut before = [77u64];
    group.exscan(&[u64::from(rank)], &mut before, ReduceOp::Sum)?;
    let sum = (0..u64::from(rank)).sum::<u64>();
    assert_eq!(before, [if rank == 0 { 77 } else { sum }], "rank 0's stays as it is");
    group.barrier()
}

/// One rank makes another call than the others: every rank gets an error with both.
fn mismatch(group: &Group) -> Result<(), Error> {
    let odd = parameter("CULPRIT").unwrap().parse() == Ok(group.rank());
    // Small tensors take another path within a host.
    let elements = if parameter("SMALL").is_some() { 10 } else { 3000 };
    let mut data = vec![1f32; elements * group.size() as usize];
    let mut block = vec![0f32; elements];
    let result = match parameter("HOW").as_deref() {
        Some("root") => group.broadcast(&mut data, u32::from(odd)),
        Some("collective") if odd => group.reduce_scatter(&data, &mut block, ReduceOp::Sum),
        Some("collective") => group.all_gather(&block, &mut data),
        Some("count") => {
            let count = if odd { elements } else { elements - 1 };
            group.all_gather(&block[..count], &mut data[..count * group.size() as usize])
        }
        how => panic!("{how:?}"),
    };
    // A rank that has its part may already have returned.
    result.and_then(|()| group.barrier())
}

/// Each collective from one root more often than ranks keep what they have announced, then a sum.
fn row(group: &Group) -> Result<(), Error> {
    let served = |one: &Collective| !one.has_counts() && *one != Collective::Barrier;
    for collective in Collective::ALL.into_iter().filter(served) {
        let of = |collective| case(group, collective, DType::F32, ReduceOp::Sum, 3000, 0);
        let case = of(collective);
        for _ in 0..600 {
            case.run(group, false)?;
        }
        of(Collective::AllReduce).run(group, false)?;
    }
    row_with_counts(group)
}

/// The same of collectives with counts: a rank gives, or takes, as many blocks of 700 elements as its number and one.
fn row_with_counts(group: &Group) -> Result<(), Error> {
    let (ranks, rank) = (group.size() as usize, group.rank() as usize);
    let counts: Vec<usize> = (1..=ranks).map(|blocks| 700 * blocks).collect();
    let all: Vec<u32> = (0..).zip(&counts).flat_map(|(rank, &count)| vec![rank; count]).collect();
    let mine = vec![rank as u32; counts[rank]];
    let (at_root, given) = if rank == 0 { (&all[..], &counts[..]) } else { (&[][..], &[][..]) };
    let served = |collective: Collective| {
        let mut taken =
            vec![u32::MAX; if collective == Collective::ScatterV { mine.len() } else { all.len() }];
        let due = match collective {
            Collective::GatherV => {
                taken.truncate(at_root.len());
                group.gather_v(&mine, &mut taken, given, 0)?;
                at_root
            }
            Collective::ScatterV => {
                group.scatter_v(at_root, given, &mut taken, 0)?;
                &mine
            }
            _ => {
                group.all_gather_v(&mine, &mut taken, &counts)?;
                &all
            }
        };
        assert!(taken == due, "{collective}");
        Ok::<(), Error>(())
    };
    for collective in [Collective::GatherV, Collective::ScatterV, Collective::AllGatherV] {
        (0..600).try_for_each(|_| served(collective))?;
        case(group, Collective::AllReduce, DType::F32, ReduceOp::Sum, 3000, 0).run(group, false)?;
    }
    Ok(())
}

/// One rank ends before its part of a collective.
fn die(group: &Group) -> Result<(), Error> {
    let number = |name| parameter(name).unwrap().parse::<usize>().unwrap();
    let culprit = number("CULPRIT") as u32;
    let root = (culprit + 1) % group.size();
    let case = case(group, Collective::ALL[number("COLLECTIVE")], DType::F32, ReduceOp::Sum, 3000, root);
    group.barrier()?;
    if group.rank() == culprit {
        std::process::exit(1);
    }
    // A rank that needs nothing of the culprit may already have returned.
    case.run(group, false).and_then(|()| group.barrier())
}

/// Small collectives of which a rank often has only to give, one after the other, until the group has ended.
fn stream(group: &Group) -> Result<(), Error> {
    let rooted = [Collective::Broadcast, Collective::Reduce, Collective::Gather, Collective::Scatter];
    for round in 0.. {
        // For a while the root is the same, and so are the ranks that are ahead.
        let (collective, root) = (rooted[round / 7 % rooted.len()], (round / 50) as u32 % group.size());
        case(group, collective, DType::F32, ReduceOp::Sum, 7, root).run(group, false)?;
        if round == 1000 {
            tell("streams");
        }
    }
    Ok(())
}

const TOPOLOGIES: [(u32, u32); 5] = [(1, 1), (3, 1), (4, 2), (2, 2), (3, 3)];

#[test]
fn every_collective_is_exact_on_every_topology() {
    for (ranks, hosts) in TOPOLOGIES {
        job!(ranks, hosts, "all").run().assert_success();
    }
}

#[test]
fn many_in_a_row_hold_up_no_other() {
    for (ranks, hosts) in [(2, 1), (4, 2)] {
        job!(ranks, hosts, "row").env("SHOUTER_DEADLINE", "20").run().assert_success();
    }
}

#[test]
fn the_safe_functions_are_right_and_refuse_what_cannot_be() {
    for (ranks, hosts) in TOPOLOGIES {
        job!(ranks, hosts, "safe").run().assert_success();
    }
}

#[test]
fn other_transports_are_as_good() {
    for (ranks, hosts) in [(2, 2), (4, 2)] {
        job!(ranks, hosts, "all").env("SHOUTER_TRANSPORT", "tcp").run().assert_success();
        job!(ranks, hosts, "all").args(&["--transport", "kernel"]).run().assert_success();
    }
}

/// On one host, tensors in shared memory are read in place.
#[test]
fn memory_of_the_host_is_as_good() {
    for (ranks, hosts) in [(2, 1), (3, 1), (4, 2)] {
        job!(ranks, hosts, "all").env("SHOUTER_TEST_SHARED", "1").run().assert_success();
    }
}

#[test]
fn loss_and_bit_flips_do_not_show() {
    for (ranks, hosts) in [(3, 3), (4, 2)] {
        let faults = ["--loss", "2%", "--corrupt", "1%", "--seed", "11"];
        job!(ranks, hosts, "all").args(&faults).run().assert_success();
    }
}

#[test]
fn ranks_that_call_differently_are_told_both_views() {
    let mut culprits = 0..;
    for (ranks, hosts) in [(3, 1), (3, 3), (4, 2), (2, 2)] {
        for how in ["root", "collective", "count"] {
            for small in [false, true] {
                let culprit = culprits.next().unwrap() % ranks;
                let mut job = job!(ranks, hosts, "mismatch").env("SHOUTER_TEST_HOW", how);
                job = job.env("SHOUTER_TEST_CULPRIT", culprit);
                if small {
                    job = job.env("SHOUTER_TEST_SMALL", "1");
                }
                let state = job.run();
                for rank in &state.ranks {
                    let said = rank.error();
                    let words = match (how, small) {
                        ("root", _) => ["root 0", "root 1"],
                        ("collective", _) => ["all-gather", "reduce-scatter"],
                        (_, true) => ["blocks of 10 x", "blocks of 9 x"],
                        (_, false) => ["blocks of 3000 x", "blocks of 2999 x"],
                    };
                    assert!(
                        words.iter().all(|word| said.contains(word)),
                        "{culprit}, {how}: {said}\n{state}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_rank_that_dies_in_any_collective_is_named_by_all_others() {
    for (ranks, hosts) in [(3, 1), (3, 3)] {
        for (number, collective) in Collective::ALL.iter().enumerate() {
            if *collective == Collective::Barrier || collective.has_counts() {
                continue;
            }
            let culprit = number % ranks as usize;
            let job = job!(ranks, hosts, "die").env("SHOUTER_TEST_CULPRIT", culprit);
            let state = job.env("SHOUTER_TEST_COLLECTIVE", number).run();
            for (rank, survivor) in state.ranks.iter().enumerate().filter(|(rank, _)| *rank != culprit) {
                let named = survivor.error().contains(&format!("rank {culprit}"));
                assert!(named, "{collective}: rank {rank} of {ranks} on {hosts} hosts\n{state}");
            }
        }
    }
}

/// Ranks that have returned before others came learn of a death as all others do.
#[test]
fn a_rank_that_is_killed_while_others_are_ahead_of_it_is_named_by_all() {
    for (ranks, victim) in (2..=4).flat_map(|ranks| (0..ranks).map(move |victim| (ranks, victim))) {
        let job = job!(ranks, 1, "stream").start();
        job.until("all ranks call", Duration::from_secs(60), |state| state.all_told("streams"));
        job.signal(victim, "KILL");
        let state = job.finish();
        assert_eq!(state.ranks[victim as usize].signal, Some(9), "{state}");
        for survivor in state.others(victim) {
            assert!(survivor.lost_its_group() && names_only(survivor.error(), victim), "{state}");
        }
    }
}
