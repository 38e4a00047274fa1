//! Several shards a rank: large all-reduces are reduced in parts, with the bits of one shard, and an error of one part is that of the whole.

#![allow(unsafe_code)]

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngCore, SeedableRng};
use shouter::log::Line;
use shouter::{Collective, CollectiveCall, DType, Error, Group, ReduceOp, TensorSpec};

use crate::ranks::{
    CONFIG, DEADLINE, LIMIT, LOST_GROUP, MISMATCH, Plan, Play, State, job, join, names_only, parameter, play,
    run_all, side_by_side, tell,
};

/// Elements of a tensor that is cut into parts, whatever its type: some 600,000 bytes, and no whole number of elements for two parts or four.
fn count(dtype: DType) -> usize {
    (600_011 / dtype.size()) | 1
}

/// The body of a rank; as a test of its own it does nothing.
#[test]
fn rank_body() {
    let plays: [(&str, Play); 8] = [
        ("bits", bits),
        ("mixed", mixed),
        ("steps", steps),
        ("give up", give_up),
        ("differ", differ),
        ("absent", absent),
        ("leave", leave),
        ("panic", panics),
    ];
    play(&plays, join);
}

/// A job of so many hosts of one rank, each with so many shards.
fn sharded(ranks: u32, shards: u32, scenario: &str) -> Plan {
    on_hosts(ranks, ranks, shards, scenario)
}

/// A job of ranks on these hosts, each rank with so many shards.
fn on_hosts(ranks: u32, hosts: impl ToString, shards: u32, scenario: &str) -> Plan {
    let plan = job!(ranks, hosts, scenario).env("SHOUTER_MODE", "dedicated").env("SHOUTER_SHARDS", shards);
    plan.args(&["--cores", "none"])
}

/// Whether this is the special rank of the scenario.
fn odd_one(group: &Group) -> bool {
    parameter("RANK").is_some_and(|rank| rank == group.rank().to_string())
}

/// Contributions of a rank: any bits, but truth values.
fn contribution(dtype: DType, rank: u32) -> Vec<u8> {
    let mut rng = SmallRng::seed_from_u64(u64::from(rank) << 8 | dtype as u64);
    let mut bytes = vec![0; count(dtype) * dtype.size()];
    rng.fill_bytes(&mut bytes);
    if dtype == DType::Bool {
        bytes.iter_mut().for_each(|byte| *byte &= 1);
    }
    bytes
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

/// Sums of all types, in all ways to run them, whose bits are told.
fn bits(group: &Group) -> Result<(), Error> {
    for dtype in DType::ALL.iter().copied() {
        let op = if dtype == DType::Bool { ReduceOp::Lor } else { ReduceOp::Sum };
        let (count, given) = (count(dtype), contribution(dtype, group.rank()));
        let mut called = given.clone();
        // SAFETY: as many elements as the call says, which nothing else touches.
        unsafe { group.all_reduce_raw(called.as_mut_ptr(), count, dtype, op) }?;
        let mut apart = vec![0; given.len()];
        let call = CollectiveCall {
            collective: Collective::AllReduce,
            input: given.as_ptr(),
            output: apart.as_mut_ptr(),
            count,
            dtype,
            op,
            root: 0,
        };
        // SAFETY: as above, until the wait has returned.
        unsafe { group.start(&call) }?.wait(None)?;
        assert!(apart == called, "{dtype}, started");
        let id = group.register(&[TensorSpec::all_reduce(format!("{dtype}"), dtype, count as u64, op)])?[0];
        for _ in 0..2 {
            let (mut pushed, mut into) = (given.clone(), vec![0; given.len()]);
            // SAFETY: as above.
            let works = unsafe {
                [
                    group.push(id, pushed.as_mut_ptr())?,
                    group.push_into(id, given.as_ptr(), into.as_mut_ptr())?,
                ]
            };
            works.iter().rev().try_for_each(|work| work.wait(None))?;
            assert!(pushed == called && into == called, "{dtype}, pushed");
        }
        assert!(given == contribution(dtype, group.rank()), "{dtype}: the input was written");
        tell(format_args!("{dtype} {:016x}", hash(&called)));
    }
    // In memory that the ranks of a host share: the first shard knows it, and the others take it for the rank's own.
    let (mut shared, ranks) = (group.alloc::<u32>(count(DType::U32))?, group.size());
    for _ in 0..2 {
        shared.fill(1 + group.rank());
        group.all_reduce(&mut shared, ReduceOp::Sum)?;
        assert!(shared.iter().all(|sum| *sum == ranks * (ranks + 1) / 2));
    }
    Ok(())
}

/// Operations of all kinds and sizes under way together, and what they count.
fn mixed(group: &Group) -> Result<(), Error> {
    let (ranks, rank) = (group.size() as f32, group.rank());
    let counts = [1, 5_000, 70_001, 1 << 20];
    let spec = |count: usize| {
        TensorSpec::all_reduce(format!("layer.{count}"), DType::F32, count as u64, ReduceOp::Sum)
    };
    let ids = group.register(&counts.map(spec))?;
    for step in 0..20 {
        group.set_step(step);
        let mut tensors = counts.map(|count| vec![1f32 + step as f32; count]);
        let mut works = vec![];
        for (id, tensor) in ids.iter().zip(&mut tensors) {
            // SAFETY: the tensor is touched again only after `wait` has returned.
            works.push(unsafe { group.push(*id, tensor.as_mut_ptr().cast()) }?);
        }
        let mut large = vec![rank; 300_000];
        group.all_reduce(&mut large, ReduceOp::Max)?;
        assert!(large.iter().all(|&x| x == group.size() - 1));
        let mut all = vec![0; 2 * group.size() as usize];
        group.all_gather(&[rank, step as u32], &mut all)?;
        let first = shouter::Work::wait_any(&works, None)?;
        works[first].wait(None)?;
        works.iter().try_for_each(|work| work.wait(None))?;
        assert!(tensors.iter().flatten().all(|&x| x == ranks * (1. + step as f32)));
    }
    let told = std::sync::mpsc::channel();
    let mut last = vec![1f32; 1 << 20];
    // SAFETY: as above.
    let work = unsafe { group.push(ids[3], last.as_mut_ptr().cast()) }?;
    work.on_done(move |result| told.0.send(result).unwrap())?;
    told.1.recv_timeout(LIMIT).unwrap()?;
    assert!(last.iter().all(|&x| x == ranks));
    group.barrier()?;
    let stats = group.stats();
    let reduced: usize = 20 * (counts.iter().sum::<usize>() + 300_000) * 4 + (4 << 20);
    assert!(stats.bytes_reduced as usize >= reduced, "{stats:?}");
    // Each leader sends what its host gives of the others' parts, and its own part's result.
    let leads = group.local_rank() == 0;
    let others = parameter("HOSTS").map_or(group.size(), |hosts| hosts.parse().unwrap()) - 1;
    assert_eq!(stats.bytes_sent as usize >= reduced / 2, leads, "{stats:?}");
    assert_eq!(stats.channels, if leads { others.into() } else { 0 });
    assert!(stats.ops > 20 * 6, "{stats:?}");
    Ok(())
}

/// After an error the memory is this rank's again: nothing writes there.
fn nothing_writes(tensors: &mut [Vec<f32>]) {
    tensors.iter_mut().for_each(|tensor| tensor.fill(-7.0));
    std::thread::sleep(Duration::from_millis(300));
    assert!(tensors.iter().flatten().all(|&x| x == -7.0), "memory was written after the error");
}

/// Pushes and calls until the group ends.
fn until_the_end(group: &Group) -> Result<(), Error> {
    let spec = |name: &str| TensorSpec::all_reduce(name, DType::F32, 1 << 20, ReduceOp::Sum);
    let ids = group.register(&[spec("layer.0"), spec("layer.1")])?;
    let mut tensors = vec![vec![1f32; 1 << 20]; 3];
    for step in 0.. {
        if step == 3 {
            tell("steps");
        }
        group.set_step(step);
        let mut works = vec![];
        let mut ended = Ok(());
        for (id, tensor) in ids.iter().zip(&mut tensors) {
            // SAFETY: the tensor is touched again only after `wait` has returned.
            match unsafe { group.push(*id, tensor.as_mut_ptr().cast()) } {
                Ok(work) => works.push(work),
                Err(why) => ended = ended.and(Err(why)),
            }
        }
        ended = ended.and(group.all_reduce(&mut tensors[2], ReduceOp::Max));
        // The first error is that of the operation that was under way.
        let results: Vec<_> = works.iter().map(|work| work.wait(None)).collect();
        let ended = results.into_iter().collect::<Result<(), _>>().and(ended);
        if let Err(why) = ended {
            nothing_writes(&mut tensors);
            let later = group.barrier().expect_err("the group has ended");
            let has_panicked = |error: &Error| error.to_string().contains("the network engine panicked");
            let is_over =
                matches!(later, Error::Closed { .. } | Error::PeerFailed { .. } | Error::Mismatch { .. });
            assert!(if has_panicked(&why) { has_panicked(&later) } else { is_over }, "{later}");
            return Err(why);
        }
    }
    Ok(())
}

fn steps(group: &Group) -> Result<(), Error> {
    until_the_end(group)
}

/// A rank gives up while the others wait for its parts.
fn give_up(group: &Group) -> Result<(), Error> {
    let mut tensor = vec![1f32; 1 << 20];
    group.all_reduce(&mut tensor, ReduceOp::Sum)?;
    if odd_one(group) {
        std::thread::sleep(Duration::from_millis(300));
        group.abort("the loss is not a number")?;
    }
    let ended = group.all_reduce(&mut tensor, ReduceOp::Sum);
    nothing_writes(std::slice::from_mut(&mut tensor));
    ended
}

/// One rank runs another operation than the others.
fn differ(group: &Group) -> Result<(), Error> {
    group.all_reduce(&mut vec![1f32; 1 << 20], ReduceOp::Sum)?;
    let count = 1 << 20;
    let (count, op) = match parameter("HOW").as_deref().filter(|_| odd_one(group)) {
        None => (count, ReduceOp::Sum),
        // Only the last part differs.
        Some("longer") => (count + 1, ReduceOp::Sum),
        // The whole is as long as a part of what the others reduce.
        Some("whole") => (30_000, ReduceOp::Sum),
        Some(_) => (count, ReduceOp::Max),
    };
    let count = if parameter("HOW").as_deref() == Some("whole") && !odd_one(group) { 60_000 } else { count };
    let mut tensor = vec![1f32; count];
    let ended = group.all_reduce(&mut tensor, op);
    nothing_writes(std::slice::from_mut(&mut tensor));
    ended
}

/// One rank does not come to the second operation.
fn absent(group: &Group) -> Result<(), Error> {
    let mut tensor = vec![1f32; 1 << 20];
    group.all_reduce(&mut tensor, ReduceOp::Sum)?;
    if odd_one(group) {
        std::thread::sleep(Duration::from_secs(4));
        return Ok(());
    }
    let ended = group.all_reduce(&mut tensor, ReduceOp::Sum);
    nothing_writes(std::slice::from_mut(&mut tensor));
    ended
}

/// A rank leaves, and the others go on among themselves for longer than it takes to find that it is silent.
fn leave(group: &Group) -> Result<(), Error> {
    group.all_reduce(&mut vec![1f32; 1 << 20], ReduceOp::Sum)?;
    let leaves = group.rank() == group.size() - 1;
    let Some(rest) = group.split((!leaves).then_some(0), 0)? else { return Ok(()) };
    for _ in 0..10 {
        let mut data = vec![1f32; 1 << 18];
        rest.all_reduce(&mut data, ReduceOp::Sum)?;
        assert!(data.iter().all(|&x| x == rest.size() as f32));
        std::thread::sleep(Duration::from_millis(400));
    }
    Ok(())
}

/// The program's callback of the log panics, in the thread of an engine: the first or second of those that say that they were stopped.
fn panics(group: &Group) -> Result<(), Error> {
    if odd_one(group) {
        let last = parameter("LINE").unwrap().parse::<u32>().unwrap();
        let lines = AtomicU32::new(0);
        let sink = move |line: &Line<'_>| {
            if line.text.contains("this process was stopped") && lines.fetch_add(1, Relaxed) + 1 == last {
                panic!("a callback that panics");
            }
        };
        shouter::log::set(None, Some(Box::new(sink))).unwrap();
    }
    steps(group)
}

#[test]
fn several_shards_give_the_bits_of_one() {
    let told = |shards, transport: &str| {
        let state = sharded(3, shards, "bits").env("SHOUTER_TRANSPORT", transport).run();
        state.assert_success();
        let told: Vec<_> = state.ranks.iter().map(|rank| rank.told.clone()).collect();
        assert_eq!(told[0].len(), DType::ALL.len(), "{state}");
        assert!(told.iter().all(|rank| *rank == told[0]), "{state}");
        told
    };
    let one = told(1, "rud");
    for (shards, transport) in [(2, "rud"), (4, "rud"), (2, "tcp")] {
        assert_eq!(told(shards, transport), one, "{shards} shards over {transport}");
    }
}

#[test]
fn several_shards_give_the_bits_of_one_where_hosts_have_several_ranks() {
    let told = |shards, hosts: &str, transport: &str| {
        let state = on_hosts(4, hosts, shards, "bits").env("SHOUTER_TRANSPORT", transport).run();
        state.assert_success();
        let told: Vec<_> = state.ranks.iter().map(|rank| rank.told.clone()).collect();
        assert_eq!(told[0].len(), DType::ALL.len(), "{state}");
        assert!(told.iter().all(|rank| *rank == told[0]), "{state}");
        told
    };
    for (hosts, cases) in [("2", &[(2, "auto"), (3, "tcp")][..]), ("3,1", &[(2, "auto")])] {
        let one = told(1, hosts, "auto");
        for (shards, transport) in cases {
            let several = told(*shards, hosts, transport);
            assert_eq!(several, one, "{shards} shards on hosts {hosts} over {transport}");
        }
    }
}

#[test]
fn operations_of_all_sizes_run_side_by_side_on_several_shards() {
    for (ranks, shards, args) in [(2, 2, &[][..]), (3, 3, &[]), (2, 2, &["--loss", "1%"])] {
        for transport in ["rud", "tcp"] {
            sharded(ranks, shards, "mixed")
                .env("SHOUTER_TRANSPORT", transport)
                .args(args)
                .run()
                .assert_success();
        }
    }
    for (hosts, transport) in [("2", "auto"), ("3,1", "tcp")] {
        let plan = on_hosts(4, hosts, 2, "mixed").with("HOSTS", 2).env("SHOUTER_TRANSPORT", transport);
        plan.args(&["--loss", "0.5%"]).run().assert_success();
    }
    for shards in [2, 4] {
        sharded(2, shards, "mixed").args(&["--link", "memif"]).run().assert_success();
    }
    // Tensors that share a message are one shard's.
    let fused = sharded(2, 2, "mixed").env("SHOUTER_FUSE_BELOW", 4 << 20).env("SHOUTER_FUSE_BYTES", 4 << 20);
    fused.run().assert_success();
}

/// Every rank but one has ended with an error that names that one alone.
fn assert_named(state: &State, rank: u32, codes: &[i32], text: &str) {
    for survivor in state.others(rank) {
        assert!(survivor.code.is_some_and(|code| codes.contains(&code)), "{state}");
        let error = survivor.error();
        assert!(names_only(error, rank) && error.contains(text), "{error}\n{state}");
    }
}

#[test]
fn a_rank_that_dies_in_a_part_is_named_at_once() {
    let alone = [(2, 1, "rud"), (2, 0, "rud"), (3, 1, "rud"), (2, 1, "tcp")];
    let alone = alone.map(|(ranks, victim, transport)| (ranks, ranks, victim, transport));
    // Leaders and others, of either host.
    let several = [(4, 2, 0, "auto"), (4, 2, 1, "tcp"), (4, 2, 2, "auto"), (4, 2, 3, "auto")];
    for (ranks, hosts, victim, transport) in alone.into_iter().chain(several) {
        let job = on_hosts(ranks, hosts, 2, "steps").env("SHOUTER_TRANSPORT", transport).start();
        job.until("steps are made", LIMIT, |state| state.all_told("steps"));
        job.signal(victim, "KILL");
        let killed = job.elapsed();
        let state = job.finish();
        assert_named(&state, victim, &LOST_GROUP, "all-reduce");
        state.assert_known_at_once(victim, killed);
    }
}

#[test]
fn a_rank_that_is_stopped_in_a_part_is_named() {
    for (ranks, hosts) in [(3, 3), (3, 2), (4, 2)] {
        let (job, last) = (on_hosts(ranks, hosts, 2, "steps").silence_is_found().start(), ranks - 1);
        job.until("steps are made", LIMIT, |state| state.all_told("steps"));
        job.signal(last, "STOP");
        let state = job.until("the others have ended", LIMIT, |state| state.all_over_but(last));
        assert_named(&state, last, &LOST_GROUP, "all-reduce");
        job.signal(last, "KILL");
        job.finish();
    }
}

#[test]
fn a_panic_of_one_engine_ends_the_whole_operation_on_all_ranks() {
    let jobs = [(2, 2, 1, 1, "rud"), (3, 3, 0, 2, "rud"), (2, 2, 1, 2, "tcp"), (4, 2, 3, 2, "auto")];
    let case = |&(ranks, hosts, victim, line, transport): &(u32, u32, u32, u32, &str)| {
        let plan = on_hosts(ranks, hosts, 2, "panic").with("RANK", victim).with("LINE", line);
        // Between three quarters of it, from which a rank says that it was stopped, and all of it.
        let plan = plan.env("SHOUTER_HEARTBEAT_TIMEOUT", "8s").env("SHOUTER_TRANSPORT", transport);
        let job = plan.start();
        job.until("steps are made", LIMIT, |state| state.all_told("steps"));
        job.signal(victim, "STOP");
        std::thread::sleep(Duration::from_secs(7));
        job.signal(victim, "CONT");
        let state = job.finish();
        let error = state.ranks[victim as usize].error();
        assert!(error.contains("the network engine panicked: a callback that panics"), "{error}\n{state}");
        assert_named(&state, victim, &LOST_GROUP, "all-reduce");
    };
    // The ranks make steps until one of them is stopped, so two jobs at once and no more.
    jobs.chunks(2).for_each(|pair| side_by_side(pair, case));
}

#[test]
fn the_words_of_a_rank_that_gives_up_reach_all() {
    let plan = |ranks, hosts, rank| on_hosts(ranks, hosts, 3, "give up").with("RANK", rank);
    for (state, rank) in run_all([plan(2, 2, 1), plan(3, 3, 0), plan(4, 2, 3)]).into_iter().zip([1, 0, 3]) {
        assert_named(&state, rank, &LOST_GROUP, "the loss is not a number");
    }
}

#[test]
fn ranks_that_differ_in_a_part_hear_of_it() {
    for (ranks, hosts) in [(3, 3), (4, 2)] {
        for how in ["longer", "whole", "max"] {
            let state = on_hosts(ranks, hosts, 2, "differ").with("RANK", 1).with("HOW", how).run();
            assert_named(
                &state,
                1,
                &[MISMATCH],
                if how == "longer" { "part 2 of a larger one" } else { "all-reduce" },
            );
        }
    }
}

#[test]
fn a_rank_that_does_not_come_is_named_at_the_deadline() {
    let jobs = [(2, 0, "rud"), (2, 1, "rud"), (2, 1, "tcp"), (4, 1, "auto"), (4, 2, "auto")];
    for pair in jobs.chunks(2) {
        let plans = pair.iter().map(|(ranks, rank, transport)| {
            let plan = on_hosts(*ranks, 2, 2, "absent").with("RANK", rank).env("SHOUTER_DEADLINE", "1s");
            plan.env("SHOUTER_TRANSPORT", transport)
        });
        for (state, (_, rank, _)) in run_all(plans).into_iter().zip(pair) {
            assert_named(&state, *rank, &[DEADLINE], "all-reduce");
        }
    }
}

#[test]
fn ranks_go_on_without_one_that_has_left() {
    let plans = [sharded(3, 2, "leave"), on_hosts(4, 2, 2, "leave")].map(Plan::silence_is_found);
    run_all(plans).iter().for_each(State::assert_success);
}

#[test]
fn what_shards_do_not_serve_is_refused() {
    let refused = |plan: Plan, code: i32, text: &str| {
        let state = plan.run();
        for rank in &state.ranks {
            assert!(rank.code == Some(code) && rank.error().contains(text), "{text}\n{state}");
        }
    };
    refused(sharded(2, 2, "leave").env("SHOUTER_MODE", "caller"), CONFIG, "mode = \"dedicated\"");
    refused(sharded(2, 2, "leave").env("SHOUTER_TRANSPORT", "kernel"), CONFIG, "transport = \"kernel\"");
    refused(
        sharded(2, 2, "leave").env("SHOUTER_SCHEDULE", "allreduce:ring"),
        CONFIG,
        "order of all-reduces by ring",
    );
    let crowded = job!(2, 1, "leave").env("SHOUTER_MODE", "dedicated").env("SHOUTER_SHARDS", 2);
    refused(crowded, CONFIG, "all 2 ranks are on this one");
}
