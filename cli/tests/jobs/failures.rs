//! Failures between real processes: killed, stopped and late ranks, ranks that disagree, wrong keys, leftovers.
//!
//! The rule: every call of every survivor returns, names the operation, the tensor and the same rank, and no process
//! hangs or aborts.

#![allow(unsafe_code)]

use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use crate::ranks::{
    CONFIG, DEADLINE, Gates, HEARTBEAT, JOIN, Job, MISMATCH, Play, RankState, State, await_gate, end, job,
    names_only, parameter, play, run_all, scenario, side_by_side, tell,
};
use shouter::config::Builder;
use shouter::{Config, DType, Error, Group, ReduceOp, TensorSpec, Work};

/// The time limit of detection: the heartbeat's two seconds, with a margin for a busy machine.
const FOUND: Duration = Duration::from_secs(15);

/// The body of a rank; as a test of its own it does nothing.
#[test]
fn rank_body() {
    if scenario().as_deref() == Some("again") {
        end(again());
    }
    let plays: [(&str, Play); 12] = [
        ("steps", steps),
        ("late", late),
        ("absent", absent),
        ("register", register),
        ("wide", wide),
        ("awaited", awaited),
        ("aside", aside),
        ("diverge", diverge),
        ("once", once),
        ("ahead", ahead),
        ("beside", beside),
        ("narrow", narrow),
    ];
    play(&plays, join);
}

/// Lowers a limit of this process, the soft one to `now` and the hard one to `most`.
fn limit(resource: libc::__rlimit_resource_t, now: u64, most: u64) {
    let limit = libc::rlimit { rlim_cur: now, rlim_max: most };
    // SAFETY: `limit` is valid for the read.
    assert_eq!(unsafe { libc::setrlimit(resource, &raw const limit) }, 0);
}

/// Joins as the launcher says, with the changes of the scenario.
fn join() -> Result<Group, Error> {
    for (name, resource) in [("ADDRESS_SPACE", libc::RLIMIT_AS), ("FILE_SIZE", libc::RLIMIT_FSIZE)] {
        if let Some(bytes) = parameter(name).filter(|_| odd_one() || parameter("RANK").is_none()) {
            let bytes = bytes.parse().unwrap();
            limit(resource, bytes, bytes);
        }
    }
    if let Some(most) = parameter("OPEN_FILES").filter(|_| odd_one()) {
        limit(libc::RLIMIT_NOFILE, 128, most.parse().unwrap());
    }
    let config = |why: shouter::config::ConfigError| Error::Config(why.to_string());
    let mut builder = Builder::from_process().map_err(config)?;
    if let Some(path) = parameter("KEY_FILE").filter(|_| odd_one()) {
        builder = builder.set("key_file", &path).map_err(config)?;
    }
    if let (Some(key), Some(value), true) = (parameter("KEY"), parameter("VALUE"), odd_one()) {
        builder = builder.set(&key, &value).map_err(config)?;
    }
    let built: Config = builder.build().map_err(config)?;
    if parameter("STALE").is_some() {
        for path in built.ports.iter().filter_map(|port| port.device.strip_prefix("vhost:")) {
            // A process that has died leaves its socket behind; dropping the listener does the same.
            drop(UnixListener::bind(path).unwrap());
            tell(format_args!("stale {path}"));
        }
    }
    shouter::init(built)
}

/// Whether this is the special rank of the scenario.
fn odd_one() -> bool {
    parameter("RANK").is_some() && parameter("RANK") == std::env::var("SHOUTER_RANK").ok()
}

fn spec(name: &str, dtype: DType, count: u64, op: ReduceOp) -> TensorSpec {
    TensorSpec::all_reduce(name, dtype, count, op)
}

/// Steps with tensors of 4 B to 4 MiB until a rank fails; reports after a few.
fn steps(group: &Group) -> Result<(), Error> {
    let counts = [1, 1000, 30_000, 1 << 20];
    let specs = counts.map(|count| spec(&format!("layer.{count}"), DType::F32, count, ReduceOp::Sum));
    let ids = group.register(&specs)?;
    // Some tensors are in memory that all ranks of the host share, some only on a few of them, some on none.
    let mut private = counts.map(|count| vec![1f32; count as usize]);
    let mut shared = vec![];
    for (index, count) in counts.into_iter().enumerate() {
        shared.push(if index != 2 || group.rank() == 0 {
            Some(group.alloc::<f32>(count as usize)?)
        } else {
            None
        });
    }
    let tensors = private.iter_mut().zip(&mut shared);
    let mut tensors: Vec<&mut [f32]> =
        tensors.map(|(private, shared)| shared.as_deref_mut().unwrap_or(private)).collect();
    let until = Instant::now() + Duration::from_secs(45);
    let mut small = [1f32; 1];
    let mut middle = vec![1f32; 5000];
    for step in 0.. {
        if step == 3 {
            tell("steps");
        }
        assert!(Instant::now() < until, "nobody has failed");
        group.set_step(step);
        tensors.iter_mut().for_each(|tensor| tensor.fill(1.0));
        let mut pending = vec![];
        for (id, tensor) in ids.iter().zip(&mut tensors) {
            // SAFETY: the tensor is touched again only after `wait` has returned; after an error the process ends.
            pending.push(unsafe { group.push(*id, tensor.as_mut_ptr().cast()) }?);
        }
        pending.into_iter().rev().try_for_each(|pending| pending.wait(None))?;
        group.all_reduce(&mut small, ReduceOp::Max)?;
        group.all_reduce(&mut middle, ReduceOp::Max)?;
    }
    Ok(())
}

/// One rank computes for longer than the heartbeat's timeout, between operations and between push and wait.
fn late(group: &Group) -> Result<(), Error> {
    let id = group.register(&[spec("late", DType::F32, 100_000, ReduceOp::Sum)])?[0];
    let size = group.size() as f32;
    let mut tensor = vec![1f32; 100_000];
    group.all_reduce(&mut tensor, ReduceOp::Sum)?;
    if odd_one() {
        std::thread::sleep(Duration::from_secs(4));
    }
    group.all_reduce(&mut [1f32], ReduceOp::Sum)?;
    // SAFETY: the tensor is touched again only after `wait` has returned.
    let pending = unsafe { group.push(id, tensor.as_mut_ptr().cast()) }?;
    if odd_one() {
        std::thread::sleep(Duration::from_secs(3));
    }
    pending.wait(None)?;
    assert!(tensor.iter().all(|&x| x == size * size));
    Ok(())
}

/// One rank never starts the operation that the others run.
fn absent(group: &Group) -> Result<(), Error> {
    let count: usize = parameter("COUNT").unwrap().parse().unwrap();
    let mut tensor = vec![1f32; count];
    group.all_reduce(&mut tensor, ReduceOp::Sum)?;
    if odd_one() {
        std::thread::sleep(Duration::from_secs(5));
        return Ok(());
    }
    group.all_reduce(&mut tensor, ReduceOp::Sum)
}

/// A series of tables on which one rank disagrees; the last one is the same on all ranks.
fn register(group: &Group) -> Result<(), Error> {
    let agreed = || {
        vec![spec("embedding", DType::F32, 4096, ReduceOp::Sum), spec("head", DType::Bf16, 77, ReduceOp::Avg)]
    };
    let change: [fn(&mut Vec<TensorSpec>); 6] = [
        |specs| specs[1].dtype = DType::F16,
        |specs| specs[1].count = 78,
        |specs| specs[1].name = "tail".into(),
        |specs| specs.swap(0, 1),
        |specs| specs.truncate(1),
        |specs| specs[1].op = ReduceOp::Max,
    ];
    for change in change {
        let mut specs = agreed();
        if odd_one() {
            change(&mut specs);
        }
        match group.register(&specs) {
            Err(Error::Mismatch { text, .. }) => tell(format_args!("mismatch {text}")),
            other => panic!("{other:?}"),
        }
    }
    let ids = group.register(&agreed())?;
    let mut tensor = vec![1f32; 4096];
    // SAFETY: the tensor is touched again only after `wait` has returned.
    let pending = unsafe { group.push(ids[0], tensor.as_mut_ptr().cast()) }?;
    pending.wait(None)?;
    assert!(tensor.iter().all(|&x| x == group.size() as f32));
    Ok(())
}

/// A table of 24 MiB.
fn wide(group: &Group) -> Result<(), Error> {
    let name = |index| format!("{index:01000}");
    let specs: Vec<_> = (0..24_000).map(|index| spec(&name(index), DType::F32, 8, ReduceOp::Sum)).collect();
    let mut other = specs.clone();
    if odd_one() {
        other[17_001].count = 9;
    }
    match group.register(&other) {
        Err(Error::Mismatch { text, .. }) => tell(format_args!("mismatch {text}")),
        other => panic!("{:?}", other.map(|ids| ids.len())),
    }
    assert_eq!(group.register(&specs)?.len(), specs.len());
    Ok(())
}

/// One rank never registers the tensors that the others register.
fn awaited(group: &Group) -> Result<(), Error> {
    group.barrier()?;
    tell("steps");
    if odd_one() {
        std::thread::sleep(Duration::from_secs(45));
    }
    group.register(&[spec("late", DType::F32, 8, ReduceOp::Sum)]).map(drop)
}

/// Pushes go on while another thread waits for one rank to register.
fn aside(group: &Group) -> Result<(), Error> {
    let specs = |name| [spec(name, DType::F32, 50_000, ReduceOp::Sum)];
    let id = group.register(&specs("first"))?[0];
    std::thread::scope(|scope| {
        let second = || group.register(&specs("second")).map(|ids| ids[0]);
        let waits = (!odd_one()).then(|| scope.spawn(second));
        // Long enough that the others wait when they push.
        std::thread::sleep(Duration::from_millis(500));
        for _ in 0..5 {
            let mut tensor = vec![1f32; 50_000];
            // SAFETY: the tensor is touched again only after `wait` has returned.
            let pending = unsafe { group.push(id, tensor.as_mut_ptr().cast()) }?;
            pending.wait(Some(Duration::from_secs(20)))?;
            assert!(tensor.iter().all(|&x| x == group.size() as f32));
        }
        tell("pushed");
        let second = waits.map_or_else(second, |waits| waits.join().unwrap())?;
        assert_ne!(id, second);
        Ok(())
    })
}

/// One rank runs another operation than the others.
fn diverge(group: &Group) -> Result<(), Error> {
    let ids = group.register(&[
        spec("left", DType::F32, 50_000, ReduceOp::Sum),
        spec("right", DType::F32, 50_000, ReduceOp::Sum),
    ])?;
    group.all_reduce(&mut [1u8], ReduceOp::Sum)?;
    group.all_reduce(&mut vec![1f32; 10_000], ReduceOp::Sum)?;
    let which = parameter(if odd_one() { "THEIRS" } else { "OURS" }).unwrap();
    let floats = |count: usize| group.all_reduce(&mut vec![1f32; count], ReduceOp::Sum);
    match which.as_str() {
        "barrier" => group.barrier()?,
        "max" => group.all_reduce(&mut vec![1f32; 50_000], ReduceOp::Max)?,
        "whole" => group.all_reduce(&mut vec![1i32; 50_000], ReduceOp::Sum)?,
        "left" | "right" => {
            let mut tensor = vec![1f32; 50_000];
            // SAFETY: the tensor is touched again only after `wait` has returned.
            let pending =
                unsafe { group.push(ids[usize::from(which == "right")], tensor.as_mut_ptr().cast()) }?;
            pending.wait(None)?;
        }
        count => floats(count.parse().unwrap())?,
    }
    Ok(())
}

/// One operation.
fn once(group: &Group) -> Result<(), Error> {
    let mut one = [1f32];
    group.all_reduce(&mut one, ReduceOp::Sum)?;
    assert_eq!(one, [group.size() as f32]);
    Ok(())
}

/// Tensors of 16 KiB, the most urgent last, as in a backward pass. One rank comes late, if there are gates, and waits
/// after each push. The others push all before they wait, and report the bytes that their host sends during a wait in
/// vain.
fn ahead(group: &Group) -> Result<(), Error> {
    const TENSORS: usize = 250;
    let specs: Vec<_> =
        (0..TENSORS).map(|index| spec(&format!("layer.{index}"), DType::F32, 4096, ReduceOp::Sum)).collect();
    let ids = group.register(&specs)?;
    let mut tensors = vec![vec![group.rank() as f32 + 1.0; 4096]; TENSORS];
    let is_late = parameter("GATES").is_some();
    if odd_one() && is_late {
        await_gate("go");
    }
    let mut pending = vec![];
    for (id, tensor) in ids.iter().zip(&mut tensors).rev() {
        // SAFETY: the tensor is touched again only after `wait` has returned; after an error the process ends.
        let push = unsafe { group.push(*id, tensor.as_mut_ptr().cast()) }?;
        match odd_one() {
            true => push.wait(None)?,
            false => pending.push(push),
        }
    }
    if let (Some(first), true) = (pending.first(), is_late) {
        // By then all data that has room at the late rank has been sent.
        wait_in_vain(first, 2 * HEARTBEAT);
        let before = group.stats().bytes_sent;
        wait_in_vain(first, HEARTBEAT);
        tell(format_args!("sent in vain {}", group.stats().bytes_sent - before));
    }
    pending.into_iter().try_for_each(|push| push.wait(None))?;
    let sum: f32 = (1..=group.size()).map(|rank| rank as f32).sum();
    assert!(tensors.iter().flatten().all(|&x| x == sum));
    Ok(())
}

/// Waits for an operation that does not end within `time`.
fn wait_in_vain(work: &Work, time: Duration) {
    let ended = work.wait(Some(time));
    assert!(matches!(ended, Err(Error::Timeout { .. })), "{ended:?}");
}

/// Several groups, one after another, in one process with the same configuration. Reports the time of each join, and
/// the shortest time of an end.
fn again() -> Result<(), Error> {
    let mut ends = vec![];
    for _ in 0..4 {
        let begin = Instant::now();
        let group = join()?;
        tell(format_args!("joined {}", begin.elapsed().as_millis()));
        once(&group)?;
        group.barrier()?;
        let begin = Instant::now();
        group.finalize()?;
        ends.push(begin.elapsed());
    }
    tell(format_args!("ended {}", ends.into_iter().min().unwrap().as_millis()));
    Ok(())
}

/// A second group beside the first one, which holds the ports and goes on.
fn beside(group: &Group) -> Result<(), Error> {
    once(group)?;
    let begin = Instant::now();
    match join() {
        Err(error) => tell(format_args!("refused after {} ms: {error}", begin.elapsed().as_millis())),
        Ok(_) => tell("joined"),
    }
    once(group)
}

/// Tensors of a process with limited address space: one that fits into memory shared by the host's ranks, and one that
/// does not.
fn narrow(group: &Group) -> Result<(), Error> {
    for mebibytes in [1, 1500] {
        let mut tensor = group.alloc::<f32>(mebibytes << 18)?;
        tensor[..100_000].fill(1.0);
        group.all_reduce(&mut tensor[..100_000], ReduceOp::Sum)?;
        assert!(tensor[..100_000].iter().all(|&x| x == group.size() as f32));
    }
    Ok(())
}

/// A survivor's error names the operation, the tensor and the lost rank.
fn assert_survivor(survivor: &RankState, victim: u32, state: &State) {
    assert!(survivor.lost_its_group(), "{survivor:?}\n{state}");
    let error = survivor.error();
    assert!(names_only(error, victim), "rank {victim} is the one to be named: {error}\n{state}");
    let tensor =
        ["\"layer.", "all-reduce sum of", "all-reduce max of"].iter().any(|what| error.contains(what));
    assert!(error.contains("all-reduce") && tensor, "no operation or no tensor is named: {error}\n{state}");
}

/// Starts the steps and waits until every rank is in the midst of them.
fn mid_step(plan: crate::ranks::Plan, pause: u64) -> Job {
    let job = plan.start();
    job.until("steps are made", crate::ranks::LIMIT, |state| state.all_told("steps"));
    // The moment within the step.
    std::thread::sleep(Duration::from_millis(pause));
    job
}

/// The kernel closes the sockets of a process that ends, and its peers see that.
#[test]
fn survivors_of_a_killed_rank_name_it_at_once() {
    let within = [(3, 1, 0), (3, 1, 2), (4, 2, 0), (4, 2, 3)];
    killed_ranks_are_named_at_once("auto", &within);
}

#[test]
fn survivors_of_a_killed_rank_name_it_at_once_over_tcp() {
    killed_ranks_are_named_at_once("tcp", &[]);
}

#[test]
fn survivors_of_a_killed_rank_name_it_at_once_over_kernel_sockets() {
    killed_ranks_are_named_at_once("kernel", &[]);
}

fn killed_ranks_are_named_at_once(transport: &str, more: &[(u32, u32, u32)]) {
    let between = [(2, 2, 0), (2, 2, 1), (4, 2, 1), (4, 2, 2), (3, 3, 0), (3, 3, 2)];
    for (index, &(ranks, hosts, victim)) in (0..).zip(between.iter().chain(more)) {
        let plan = job!(ranks, hosts, "steps").env("SHOUTER_TRANSPORT", transport);
        let job = mid_step(plan, index * 7);
        job.signal(victim, "KILL");
        let killed = job.elapsed();
        let state = job.finish();
        assert_eq!(state.ranks[victim as usize].signal, Some(9), "{state}");
        for survivor in state.others(victim) {
            assert_survivor(survivor, victim, &state);
        }
        state.assert_known_at_once(victim, killed);
    }
}

/// A rank that waits for others to register learns at once that one of them has died.
#[test]
fn a_rank_that_dies_before_it_registers_ends_the_register_of_the_others() {
    for (ranks, hosts, victim) in [(3, 1, 1), (3, 1, 0), (2, 2, 1), (2, 2, 0), (4, 2, 2), (4, 2, 3)] {
        let job = mid_step(job!(ranks, hosts, "awaited").with("RANK", victim), 50);
        job.signal(victim, "KILL");
        let killed = job.elapsed();
        let state = job.finish();
        for survivor in state.others(victim) {
            assert!(survivor.lost_its_group(), "{state}");
            let error = survivor.error();
            assert!(names_only(error, victim) && error.contains("table"), "{error}\n{state}");
        }
        state.assert_known_at_once(victim, killed);
    }
}

#[test]
fn pushes_go_on_while_a_register_waits() {
    for (ranks, hosts, rank) in [(3, 1, 1), (2, 2, 0), (4, 2, 3)] {
        let state = job!(ranks, hosts, "aside").with("RANK", rank).run();
        state.assert_success();
        assert!(state.all_told("pushed"), "{state}");
    }
}

#[test]
fn a_stopped_rank_is_found_by_its_heartbeat_and_fenced() {
    stopped_ranks_are_found(|plan| plan, &[(3, 1, 1), (2, 2, 1), (2, 2, 0), (4, 2, 0), (4, 2, 3)]);
}

/// The kernel of a stopped process goes on acknowledging.
#[test]
fn a_stopped_rank_is_found_over_kernel_sockets() {
    stopped_ranks_are_found(over_sockets, &[(2, 2, 1), (2, 2, 0), (4, 2, 2), (4, 2, 3)]);
}

fn over_sockets(plan: crate::ranks::Plan) -> crate::ranks::Plan {
    plan.args(&["--transport", "kernel"])
}

fn stopped_ranks_are_found(
    with: impl Fn(crate::ranks::Plan) -> crate::ranks::Plan + Sync,
    cases: &[(u32, u32, u32)],
) {
    let case = |&(ranks, hosts, victim): &(u32, u32, u32)| {
        let job = mid_step(with(job!(ranks, hosts, "steps").silence_is_found()), 5);
        job.signal(victim, "STOP");
        let state = job.until("the survivors have ended", FOUND, |state| state.all_over_but(victim));
        for survivor in state.others(victim) {
            assert_survivor(survivor, victim, &state);
        }
        job.signal(victim, "CONT");
        job.until("the zombie has ended", FOUND, |state| state.all_over_but(ranks));
        let state = job.finish();
        let resumed = &state.ranks[victim as usize];
        assert!(resumed.lost_its_group(), "{state}");
        let error = resumed.error();
        assert!(names_only(error, victim) && error.contains("was stopped"), "{error}\n{state}");
    };
    // The ranks compute until one of them is stopped, so two jobs at once and no more.
    cases.chunks(2).for_each(|pair| side_by_side(pair, case));
}

#[test]
fn a_late_rank_is_not_taken_for_dead() {
    late_ranks_are_waited_for(|plan| plan, [(3, 1, 1), (4, 2, 2), (4, 2, 3)]);
}

#[test]
fn a_late_rank_is_not_taken_for_dead_over_kernel_sockets() {
    late_ranks_are_waited_for(over_sockets, [(2, 2, 0), (4, 2, 2), (4, 2, 3)]);
}

fn late_ranks_are_waited_for(
    with: impl Fn(crate::ranks::Plan) -> crate::ranks::Plan,
    cases: [(u32, u32, u32); 3],
) {
    let plan = |ranks, hosts| job!(ranks, hosts, "late").silence_is_found();
    let plans = cases.map(|(ranks, hosts, rank)| with(plan(ranks, hosts)).with("RANK", rank));
    run_all(plans).iter().for_each(State::assert_success);
}

/// Over no transport does a rank send data that the receiver has no room for: such data would be retransmitted, or
/// block connections for longer than the heartbeat's time-out.
#[test]
fn a_rank_that_is_late_for_many_small_tensors_is_not_taken_for_dead() {
    for transport in ["auto", "tcp", "kernel"] {
        let jobs = [(2, 2, 1), (4, 2, 2), (4, 2, 3)].map(|(ranks, hosts, rank)| {
            let job = job!(ranks, hosts, "ahead").args(&["--transport", transport]).silence_is_found();
            let gates = Gates::new();
            (job.with("RANK", rank).with("GATES", &gates).start(), gates, ranks as usize)
        });
        for (job, gates, ranks) in jobs {
            let has_told = |state: &State| told(state, "sent in vain ").len() == ranks - 1;
            let state = job.until("all have waited for the late rank", crate::ranks::LIMIT, has_told);
            gates.open("go");
            // Only heartbeats, and none of the 250 tensors.
            let most = told(&state, "sent in vain ").into_iter().max().unwrap();
            assert!(most < 16 << 10, "{transport}: {most} bytes\n{state}");
            job.finish().assert_success();
        }
    }
}

#[test]
fn one_rank_waits_after_each_push_and_the_others_at_the_end() {
    for transport in ["auto", "tcp", "kernel"] {
        for (ranks, hosts, rank) in [(2, 2, 0), (2, 2, 1), (4, 2, 2), (4, 2, 3)] {
            let job = job!(ranks, hosts, "ahead").args(&["--transport", transport]);
            job.with("RANK", rank).run().assert_success();
        }
    }
}

#[test]
fn ranks_that_have_another_transport_or_crc_are_refused_by_name() {
    let cases = [
        (
            "transport",
            "tcp",
            "rank 0 has transport = \"kernel\" and rank 1 has \"tcp\"",
            "rank 1 has transport = \"tcp\"",
        ),
        ("crc", "off", "rank 0 has crc = \"on\" and rank 1 has \"off\"", "rank 1 has crc = \"off\""),
    ];
    for (key, value, at_first, at_odd) in cases {
        let job = over_sockets(job!(2, 2, "once")).with("RANK", 1).with("KEY", key);
        let state = job.with("VALUE", value).run();
        for (rank, says) in state.ranks.iter().zip([at_first, at_odd]) {
            assert_eq!(rank.code, Some(CONFIG), "{state}");
            assert!(rank.error().contains(says), "{}: {says:?}\n{state}", rank.error());
        }
    }
}

#[test]
fn another_algorithm_on_one_rank_is_refused_with_the_collective() {
    let plan = over_sockets(job!(2, 2, "once")).with("RANK", 1).with("KEY", "schedule");
    let state = plan.with("VALUE", "all_reduce:ring").run();
    for rank in &state.ranks {
        assert_eq!(rank.code, Some(JOIN), "{state}");
        assert!(
            rank.error().contains("schedule of all-reduce: rank 1 has ring and rank 0 has none"),
            "{state}"
        );
    }
}

#[test]
fn a_plan_that_differs_is_refused_with_the_key() {
    for (given, says) in [(None, "the default (not set)"), (Some(10), "10")] {
        let job =
            over_sockets(job!(3, 3, "once")).with("RANK", 1).with("KEY", "channel_num").with("VALUE", 4);
        let state = match given {
            Some(number) => job.env("SHOUTER_CHANNEL_NUM", number).run(),
            None => job.run(),
        };
        for rank in &state.ranks {
            assert_eq!(rank.code, Some(JOIN), "{state}");
            let said = format!("channel_num: rank 1 has 4 and rank 0 has {says}");
            assert!(rank.error().contains(&said), "{state}");
            assert!(rank.ended.unwrap() < FOUND, "{state}");
        }
    }
}

#[test]
fn one_rank_that_seals_and_one_that_does_not_are_refused_with_the_key() {
    for (rank, other) in
        [(1, "rud_seal: rank 1 has on and rank 0 has off"), (0, "rud_seal: rank 1 has off and rank 0 has on")]
    {
        let plan = job!(2, 2, "once").with("RANK", rank).with("KEY", "rud_seal").with("VALUE", "on");
        let state = plan.run();
        for rank in &state.ranks {
            assert_eq!(rank.code, Some(JOIN), "{state}");
            assert!(rank.error().contains(other), "{state}");
            assert!(rank.ended.unwrap() < FOUND, "{state}");
        }
    }
}

#[test]
fn a_name_that_does_not_resolve_is_tried_until_the_deadline() {
    let plan = over_sockets(job!(2, 2, "once")).with("RANK", 1).with("KEY", "addr");
    let plan = plan.with("VALUE", "no-such-host.invalid");
    let state = plan.env("SHOUTER_RENDEZVOUS_DEADLINE", "3s").run();
    let lost = &state.ranks[1];
    assert_eq!(lost.code, Some(JOIN), "{state}");
    for part in ["no-such-host.invalid", "cannot be resolved", "SHOUTER_ADDR"] {
        assert!(lost.error().contains(part), "{part}: {}", lost.error());
    }
    assert!(!lost.error().contains("kernel_address"), "{}", lost.error());
    assert!(lost.ended.unwrap() > Duration::from_secs(3), "{state}");
}

#[test]
fn an_operation_that_a_rank_never_calls_ends_at_its_deadline() {
    let cases = [
        (3, 1, 1, 1),
        (3, 1, 0, 50_000),
        (2, 2, 1, 1),
        (2, 2, 0, 50_000),
        (4, 2, 2, 50_000),
        (4, 2, 3, 50_000),
    ];
    let plans = cases.map(|(ranks, hosts, rank, count)| {
        let job = job!(ranks, hosts, "absent").env("SHOUTER_DEADLINE", "1s");
        job.with("RANK", rank).with("COUNT", count)
    });
    for (state, (_, _, rank, _)) in run_all(plans).iter().zip(cases) {
        for survivor in state.others(rank) {
            // Some have heard of it from the one whose deadline passed first.
            assert_eq!(survivor.code, Some(DEADLINE), "{state}");
            assert!(names_only(survivor.error(), rank) && survivor.error().contains("all-reduce"), "{state}");
        }
    }
}

#[test]
fn tables_that_differ_are_refused_on_every_rank() {
    let views: [&[&str]; 6] = [
        &["tensor head", "77 x bf16", "77 x f16"],
        &["tensor head", "77 x bf16", "78 x bf16"],
        &["\"head\"", "\"tail\""],
        &["tensor embedding", "\"embedding\"", "\"head\""],
        &["tensor head", "77 x bf16", "no such tensor"],
        &["tensor head", "avg", "max"],
    ];
    for (ranks, hosts, rank) in [(3, 1, 1), (4, 2, 3), (2, 2, 0)] {
        let state = job!(ranks, hosts, "register").with("RANK", rank).run();
        state.assert_success();
        for told in state.ranks.iter().map(|rank| &rank.told) {
            assert_eq!(told.len(), views.len(), "{state}");
            for (line, views) in told.iter().zip(views) {
                // The odd rank's own view of the swapped tables begins with the other tensor.
                let all = views
                    .iter()
                    .all(|view| line.contains(view) || *view == "tensor embedding" || *view == "tensor head");
                assert!(all && line.contains("tensor "), "{line} lacks one of {views:?}\n{state}");
            }
        }
    }
}

#[test]
fn tables_are_compared_by_digest_whatever_their_size() {
    let job = job!(3, 1, "wide").with("RANK", 1).start();
    let state = job.finish();
    state.assert_success();
    for told in state.ranks.iter().map(|rank| &rank.told) {
        assert_eq!(told.len(), 1, "{state}");
        let (views, tensor) = (["(9 x f32, sum)", "(8 x f32, sum)"], format!("tensor {:01000}:", 17_001));
        assert!(views.iter().all(|view| told[0].contains(view)) && told[0].contains(&tensor), "{}", told[0]);
    }
}

/// Runs a job in which `rank` plays `theirs` and the others play `ours`; all must fail, soon.
fn diverging(ranks: u32, hosts: u32, rank: u32, ours: &str, theirs: &str) -> State {
    let job = job!(ranks, hosts, "diverge").with("RANK", rank);
    let job = job.with("OURS", ours).with("THEIRS", theirs).start();
    job.until("every rank has ended", FOUND, |state| state.all_over_but(ranks));
    job.finish()
}

#[test]
fn different_operations_are_errors_that_show_both_views() {
    let sums = "sum of 50000 x f32";
    let cases = [
        // Cells, lanes of as many and of more chunks, another type and reduction of the same length, another tensor.
        ("1", "2", "1 x f32", "2 x f32"),
        ("50000", "50001", sums, "50001 x f32"),
        ("50000", "300000", sums, "300000 x f32"),
        ("50000", "max", sums, "max of 50000"),
        ("50000", "whole", sums, "50000 x i32"),
        ("50000", "10", sums, "10 x f32"),
        ("10", "50000", "10 x f32", "50000 x f32"),
        ("50000", "barrier", sums, "barrier"),
        ("left", "right", "\"left\" (tensor 0", "\"right\" (tensor 1"),
        ("left", "50000", "\"left\" (tensor 0", "runs all-reduce sum of 50000 x f32"),
    ];
    for (ours, theirs, one, other) in cases {
        for (ranks, hosts, rank) in [(3, 1, 1), (2, 2, 1), (4, 2, 3)] {
            let state = diverging(ranks, hosts, rank, ours, theirs);
            for (number, found) in (0u32..).zip(&state.ranks) {
                let error = found.error();
                let what = format!("{ours}, {theirs}: rank {number}: {error}\n{state}");
                assert_eq!(found.code, Some(MISMATCH), "{what}");
                assert!(error.contains(one) && error.contains(other), "not both {one} and {other}: {what}");
                // With two ranks each names the other; with more, the differing one is named.
                let (culprit, verdict) = match ranks {
                    2 => (1 - number, format!("where rank {number} runs")),
                    _ => (rank, "where most ranks run".into()),
                };
                assert!(error.contains(&format!("rank {culprit}: it runs")), "{what}");
                assert!(error.contains(&verdict), "{what}");
            }
        }
    }
}

#[test]
fn a_rank_with_another_key_is_left_out() {
    let path = std::env::temp_dir().join(format!("shouter-other-key-{}", std::process::id()));
    std::fs::write(&path, "an entirely different key of good length").unwrap();
    let job = job!(3, 1, "once").with("KEY_FILE", path.display()).with("RANK", 2);
    let state = job.env("SHOUTER_RENDEZVOUS_DEADLINE", "3s").run();
    std::fs::remove_file(&path).unwrap();
    for rank in &state.ranks {
        assert_eq!(rank.code, Some(JOIN), "{state}");
    }
    assert!(state.ranks[..2].iter().all(|rank| names_only(rank.error(), 2)), "{state}");
    assert!(state.ranks[2].error().contains("key"), "{state}");
}

#[test]
fn a_socket_of_a_dead_process_is_no_obstacle() {
    let state = job!(2, 2, "once").with("STALE", 1).run();
    state.assert_success();
    let stale = state.ranks.iter().flat_map(|rank| &rank.told).any(|line| line.starts_with("stale "));
    assert!(stale, "no link has a vhost side, so nothing was tested\n{state}");
}

#[test]
fn a_leader_that_makes_no_shared_memory_is_heard_of_at_once() {
    for (ranks, hosts, leader) in [(3, 1, 0), (4, 2, 2)] {
        let job = job!(ranks, hosts, "once").with("RANK", leader);
        let job = job.with("FILE_SIZE", 1 << 20).start();
        // The deadline of everything at the start is a minute.
        job.until("every rank has ended", FOUND, |state| state.all_over_but(ranks));
        let state = job.finish();
        for rank in &state.ranks {
            assert_eq!(rank.code, Some(JOIN), "{state}");
            assert!(rank.error().contains("RLIMIT_FSIZE"), "{state}");
        }
        let told = state.ranks[leader as usize + 1].error();
        assert!(names_only(told, leader), "{told}\n{state}");
    }
}

#[test]
fn a_process_with_little_address_space_can_be_a_rank() {
    // The limit applies to one rank, or to all.
    for (ranks, hosts, odd) in [(3, 1, Some(1)), (3, 1, Some(0)), (4, 2, None)] {
        let mut job = job!(ranks, hosts, "narrow").with("ADDRESS_SPACE", 6u64 << 30);
        if let Some(odd) = odd {
            job = job.with("RANK", odd);
        }
        job.run().assert_success();
    }
}

/// Connections are made at their first use: by then it would be too late to say so.
#[test]
fn too_few_open_files_are_raised_at_the_join_or_refused_with_the_numbers() {
    side_by_side([0, 1], |odd| {
        let job = |most: u64| {
            let job = over_sockets(job!(2, 2, "narrow")).env("SHOUTER_CHANNEL_NUM", 150);
            job.with("RANK", odd).with("OPEN_FILES", most).run()
        };
        job(4096).assert_success();
        let state = job(160);
        let [short, other] = [odd, 1 - odd].map(|rank| &state.ranks[rank as usize]);
        assert_eq!((short.code, other.code), (Some(CONFIG), Some(JOIN)), "{state}");
        for part in ["151 sockets", "may open 160", "ulimit -n", "channel_num"] {
            assert!([short, other].iter().all(|rank| rank.error().contains(part)), "{part}\n{state}");
        }
        assert!(names_only(other.error(), odd), "{state}");
        assert!(other.ended.unwrap() < FOUND, "{state}");
    });
}

#[test]
fn a_transport_between_hosts_is_no_error_on_one_host() {
    for transport in ["kernel", "tcp"] {
        job!(2, 1, "once").env("SHOUTER_TRANSPORT", transport).run().assert_success();
    }
}

/// The numbers in the ranks' lines with this prefix.
fn told(state: &State, start: &str) -> Vec<u64> {
    let lines = state.ranks.iter().flat_map(|rank| &rank.told);
    lines.filter_map(|line| line.strip_prefix(start)?.trim().parse().ok()).collect()
}

#[test]
fn one_group_after_another_finds_the_same_ports() {
    for (ranks, hosts) in [(2, 2), (4, 2)] {
        let state = job!(ranks, hosts, "again").run();
        state.assert_success();
        let times = told(&state, "joined");
        assert_eq!(times.len(), 4 * ranks as usize, "{state}");
        assert!(times.iter().all(|time| *time < 5_000), "{times:?}\n{state}");
    }
}

#[test]
fn a_second_group_over_the_same_ports_is_refused_at_once_and_the_first_goes_on() {
    for (ranks, hosts) in [(2, 2), (4, 2)] {
        let job = job!(ranks, hosts, "beside").start();
        job.until("every rank has ended", FOUND / 2, |state| state.all_over_but(ranks));
        let state = job.finish();
        state.assert_success();
        for (number, rank) in (0u32..).zip(&state.ranks) {
            let leads = number % (ranks / hosts) == 0;
            let says = if leads { "another group of this process has this port open" } else { " left " };
            let refused = rank.told.iter().find(|line| line.starts_with("refused after "));
            assert!(refused.is_some_and(|line| line.contains(says)), "{says}: {refused:?}\n{state}");
        }
    }
}

/// An idle dedicated thread is stopped, and checks by itself whether all is quiet.
#[test]
fn dedicated_ranks_leave_as_soon_as_others() {
    for (ranks, hosts) in [(2, 1), (2, 2)] {
        // Side by side, so that the machine is equally busy for both.
        let plans = ["caller", "dedicated"].map(|mode| job!(ranks, hosts, "again").env("SHOUTER_MODE", mode));
        let states = run_all(plans);
        let [called, dedicated] = [0, 1].map(|mode| {
            states[mode].assert_success();
            let times = told(&states[mode], "ended");
            assert_eq!(times.len(), ranks as usize, "{}", states[mode]);
            times.into_iter().max().unwrap()
        });
        // A thread that is not stopped runs on for 200 ms.
        assert!(dedicated < 90 + 2 * called, "{dedicated} ms, and {called} ms\n{}", states[1]);
    }
}
