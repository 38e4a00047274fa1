//! Collectives of tensors on GPUs between real processes. They need a CUDA device, or the simulated driver of
//! scripts/lib/cuda-sim in LD_LIBRARY_PATH, which also injects the failures of some tests.
#![cfg(feature = "cuda")]
#![allow(unsafe_code)]

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::ranks::gpu::{Trainer, broken, device, named, of_some, on_gpu, simulated, wait_value};
use crate::ranks::values::{self, COUNTS, TOPOLOGIES};
use crate::ranks::{
    ACCELERATOR, ARGUMENT, CLOSED, DEADLINE, ERROR, LOST_GROUP, PEER_FAILED, Play, job, join, parameter,
    play, tell,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use shouter::{Collective, CollectiveCall, DType, Error, Group, ReduceOp, TensorSpec};
use shouter_reducer::cuda::{DeviceBuffer, Pinned};

/// The body of a rank; as a test of its own it does nothing.
#[test]
fn rank_body() {
    let plays: [(&str, Play); 8] = [
        ("matrix", matrix),
        ("collectives", collectives),
        ("members", |group| collectives(&of_some(group)?)),
        ("push", push),
        ("refused", refused),
        ("steps", steps),
        ("held", held),
        ("traced", traced),
    ];
    play(&plays, || {
        broken();
        join()
    });
}

/// Checks whether tensors were reduced in place, if the test has an expectation.
fn check_in_place(group: &Group) {
    if let Some(expected) = parameter("IN_PLACE") {
        assert_eq!(group.stats().in_place > 0, expected == "yes", "{:?}", group.stats());
    }
}

fn matrix(group: &Group) -> Result<(), Error> {
    let mut trainer = on_gpu(group).then(|| Trainer::new(group, COUNTS[3] * 16 + 64));
    values::matrix(group, |data, dtype, op| {
        let count = data.len() / dtype.size();
        let Some(trainer) = &mut trainer else {
            // SAFETY: the elements are those of a slice that this call alone uses.
            return unsafe { group.all_reduce_raw(data.as_mut_ptr(), count, dtype, op) };
        };
        // At some offset in the allocation; the bytes around the tensor must not change.
        let at = count % 2 * dtype.size();
        let end = at + data.len();
        trainer.put(0, &vec![0xa5; end + 9]);
        trainer.put(at, data);
        trainer.reduce(group, at, count, dtype, op)?;
        let all = trainer.get(0, end + 9);
        data.copy_from_slice(&all[at..end]);
        let kept = all[..at].iter().chain(&all[end..]).all(|byte| *byte == 0xa5);
        assert!(kept, "{op} of {count} x {dtype} wrote beside its tensor");
        Ok(())
    })?;
    check_in_place(group);
    Ok(())
}

/// Every collective with tensors on the GPU, in place and apart, gives the same as with tensors of the host.
fn collectives(group: &Group) -> Result<(), Error> {
    use Collective::*;
    const GUARD: u8 = 0xa5;
    let (ranks, rank) = (group.size() as usize, group.rank());
    let counts = [0, 1, 7, 1000, 60_007];
    let mut trainer = on_gpu(group).then(|| Trainer::new(group, 2 * ranks * counts[4] * 4 + 128));
    // Each rank chooses at random.
    let mut rng = SmallRng::seed_from_u64(rank.into());
    let (mut root, mut started) = (0, false);
    for count in counts {
        let with_memory = |&one: &Collective| one != Barrier && !one.has_counts();
        for collective in Collective::ALL.into_iter().filter(with_memory) {
            started = !started;
            root = (root + 1) % group.size();
            let (block, is_root) = (count * 4, root == rank);
            let all = block * ranks;
            let own = rank as usize * block;
            // Bytes of input and output, and their offsets in one buffer.
            let (input, output, from, into) = match collective {
                AllReduce => (block, block, 0, 0),
                Reduce => (block, if is_root { block } else { 0 }, 0, 0),
                Broadcast => (0, block, 0, 0),
                AllGather => (block, all, own, 0),
                Gather => (block, if is_root { all } else { 0 }, if is_root { own } else { 0 }, 0),
                Scatter => (if is_root { all } else { 0 }, block, 0, if is_root { own } else { 0 }),
                ReduceScatter => (all, block, 0, own),
                AllToAll => (all, all, 0, 0),
                Scan => (block, block, 0, 0),
                ExScan => (block, if rank == 0 { 0 } else { block }, 0, 0),
                _ => unreachable!("no elements, or several counts"),
            };
            let given: Vec<u8> = (0..input.max(output) / 4)
                .flat_map(|at| ((rank as usize * 7 + at) as f32).to_le_bytes())
                .collect();
            let (dtype, op) = (DType::F32, ReduceOp::Sum);
            let call = |input: usize, output: usize| CollectiveCall {
                collective,
                input: std::ptr::without_provenance(input),
                output: std::ptr::without_provenance_mut(output),
                count,
                dtype,
                op,
                root,
            };
            // A broadcast's root has its input in the output.
            let begun = if collective == Broadcast && is_root { &given[..output] } else { &[] };
            let mut expected = vec![GUARD; output];
            expected[..begun.len()].copy_from_slice(begun);
            let host = CollectiveCall { input: given.as_ptr(), output: expected.as_mut_ptr(), ..call(0, 0) };
            // SAFETY: as long as the collective says, and this call's alone.
            unsafe { group.run_collective(&host) }?;
            let what = format!("{collective} of {count} from {root}");
            let Some(trainer) = &mut trainer else {
                let mut result = vec![GUARD; output];
                result[..begun.len()].copy_from_slice(begun);
                let host = CollectiveCall { output: result.as_mut_ptr(), ..host };
                match started {
                    // SAFETY: as above; it is waited for at once.
                    true => unsafe { group.start(&host) }?.wait(None)?,
                    // SAFETY: as above.
                    false => unsafe { group.run_collective(&host) }?,
                }
                assert!(result == expected, "{what}");
                continue;
            };
            let apart = rng.random::<bool>() && collective != Broadcast;
            let (from, into) = if apart { (0, input.next_multiple_of(64)) } else { (from, into) };
            let end = (from + input).max(into + output);
            trainer.put(0, &vec![GUARD; end + 9]);
            trainer.put(from, &given[..input]);
            trainer.put(into, begun);
            let call = call(trainer.address(from) as usize, trainer.address(into) as usize);
            match started {
                // SAFETY: inside of the device's memory, which the stream alone has touched; it is waited for at once.
                true => unsafe { group.start_collective_cuda(&call, trainer.stream.as_raw()) }?.wait(None)?,
                // SAFETY: as for the start.
                false => unsafe { group.run_collective_cuda(&call, trainer.stream.as_raw()) }?,
            }
            let found = trainer.get(0, end + 9);
            assert!(found[into..into + output] == expected, "{what}, apart: {apart}");
            assert!(found[end..].iter().all(|byte| *byte == GUARD), "{what} wrote beside its output");
            assert!(!apart || found[..input] == given[..input], "{what} wrote to its input");
        }
    }
    Ok(())
}

#[test]
fn every_collective_takes_tensors_on_gpus() {
    if device() {
        for (ranks, hosts, on) in
            [(1, 1, 1), (3, 1, 0b111), (3, 1, 0b101), (2, 2, 0b11), (4, 2, 0b1111), (4, 2, 0b0110)]
        {
            job!(ranks, hosts, "collectives").with("ON", on).run().assert_success();
            job!(ranks, hosts, "members").with("ON", on).run().assert_success();
        }
    }
}

/// Eight tensors a step, pushed as soon as their copies are enqueued, and waited for in another order.
fn push(group: &Group) -> Result<(), Error> {
    const TENSORS: usize = 8;
    let count = |tensor: usize| [1, 40, 1500, 300_000][tensor % 4] + tensor;
    let at = |tensor: usize| tensor * (300_010 * 4);
    let specs: Vec<_> = (0..TENSORS)
        .map(|tensor| {
            TensorSpec::all_reduce(format!("layer.{tensor}"), DType::F32, count(tensor) as u64, ReduceOp::Sum)
        })
        .collect();
    let ids = group.register(&specs)?;
    let mut trainer = Trainer::new(group, at(TENSORS));
    for step in 0..4 {
        let value = |rank: u32, tensor: usize| (rank as usize * 3 + tensor + step) as f32;
        let mut pending = vec![];
        for (tensor, id) in ids.iter().enumerate() {
            let bytes = value(group.rank(), tensor).to_le_bytes().repeat(count(tensor));
            trainer.put(at(tensor), &bytes);
            // SAFETY: the tensor is touched again only after `wait` has returned for it.
            let pushed =
                unsafe { group.push_cuda(*id, trainer.address(at(tensor)), trainer.stream.as_raw()) };
            pending.push(Some(pushed?));
        }
        for tensor in (0..TENSORS).map(|index| (index * 3 + 1) % TENSORS) {
            pending[tensor].take().unwrap().wait(None)?;
            let expected = (0..group.size()).map(|rank| value(rank, tensor)).sum::<f32>();
            let bytes = trainer.get(at(tensor), count(tensor) * 4);
            assert!(bytes == expected.to_le_bytes().repeat(count(tensor)), "tensor {tensor} of step {step}");
        }
    }
    check_in_place(group);
    Ok(())
}

/// Invalid calls are refused before anything is started, and the group goes on.
fn refused(group: &Group) -> Result<(), Error> {
    let mut trainer = Trainer::new(group, 4096);
    trainer.put(0, &vec![0; 4096]);
    let context = trainer.stream.context().clone();
    let mut host = [0f32; 16];
    let call = |address: u64, count: usize, stream: u64| {
        // SAFETY: whatever the address is, it is refused before it is accessed.
        let result = unsafe { group.all_reduce_cuda(address, count, DType::F32, ReduceOp::Sum, stream) };
        let error = result.expect_err("it is refused");
        assert_eq!(ERROR + error.code(), ARGUMENT, "{error}");
        error.to_string()
    };
    let stream = trainer.stream.as_raw();
    assert!(call(host.as_mut_ptr() as u64, 16, stream).contains("not CUDA memory"));
    assert!(call(0, 16, stream).contains("NULL"));
    assert!(call(trainer.address(0), 1025, stream).contains("do not lie within"));
    assert!(call(trainer.host.as_ptr().as_ptr() as u64, 16, stream).contains("page-locked"));
    assert!(call(trainer.address(0), usize::MAX / 2, stream).contains("do not fit"));
    let freed = DeviceBuffer::new(&context, 8192).unwrap();
    let address = freed.address();
    drop(freed);
    assert!(call(address, 16, stream).contains("not CUDA memory"));
    trainer.reduce(group, 0, 1024, DType::F32, ReduceOp::Sum)
}

/// Reduces again and again, until the group ends.
fn steps(group: &Group) -> Result<(), Error> {
    let count = parameter("COUNT").map_or(1 << 20, |count| count.parse().unwrap());
    // After an error a copy may be in progress, and freeing would wait for it.
    let mut trainer = on_gpu(group).then(|| ManuallyDrop::new(Trainer::new(group, count * 4)));
    let mut host = vec![1f32; count];
    for step in 0.. {
        group.set_step(step);
        match &mut trainer {
            Some(trainer) => trainer.reduce(group, 0, count, DType::F32, ReduceOp::Sum)?,
            None => group.all_reduce(&mut host, ReduceOp::Sum)?,
        }
        if step == 3 {
            tell("steps");
        }
    }
    Ok(())
}

/// The second of two tensors waits for work in its stream that ends only after the first has been reduced.
fn held(group: &Group) -> Result<(), Error> {
    const COUNT: usize = 1_000_000;
    let spec = |name: &str| TensorSpec::all_reduce(name, DType::F32, COUNT as u64, ReduceOp::Sum);
    let ids = group.register(&[spec("first"), spec("second")])?;
    let (mut first, mut second) = (Trainer::new(group, COUNT * 4), Trainer::new(group, COUNT * 4));
    let ones = 1f32.to_le_bytes().repeat(COUNT);
    let word = Pinned::new(first.stream.context(), 64).unwrap();
    // The first operation registers memory and loads kernels, and for that a driver may wait for all that the device does.
    first.put(0, &ones);
    first.reduce(group, 0, COUNT, DType::F32, ReduceOp::Sum)?;
    first.put(0, &ones);
    // SAFETY: a word of memory that outlives the wait, which ends with the write below.
    unsafe { wait_value(&second.stream, word.device_address()) };
    let host = second.host.device_address();
    // SAFETY: the host's copy is written here, and not read before the stream was waited for.
    unsafe {
        second.host.as_ptr().as_ptr().copy_from(ones.as_ptr(), ones.len());
        second.stream.copy(second.address(0), host, ones.len()).unwrap();
    }
    let push = |id, trainer: &Trainer| {
        // SAFETY: the tensor is touched again only after `wait` has returned for it.
        unsafe { group.push_cuda(id, trainer.address(0), trainer.stream.as_raw()) }
    };
    let pending = [push(ids[0], &first)?, push(ids[1], &second)?];
    let [earlier, later] = pending;
    earlier.wait(None)?;
    let sum = (group.size() as f32).to_le_bytes().repeat(COUNT);
    assert!(first.get(0, COUNT * 4) == sum);
    assert!(!second.stream.is_done().unwrap(), "the second was held up");
    // SAFETY: the allocation is aligned to a page, and alive; only the stream reads the word.
    unsafe { AtomicU32::from_ptr(word.as_ptr().as_ptr().cast()) }.store(1, Ordering::SeqCst);
    later.wait(None)?;
    assert!(second.get(0, COUNT * 4) == sum);
    Ok(())
}

/// The only driver calls of an all-reduce whose shape is known. None waits for a stream or the device, and none
/// allocates or frees memory, streams or events.
const QUIET: [&str; 14] = [
    "cuCtxPopCurrent",
    "cuCtxPushCurrent",
    "cuDeviceGet",
    "cuDevicePrimaryCtxGetState",
    "cuDevicePrimaryCtxRelease",
    "cuDevicePrimaryCtxRetain",
    "cuEventQuery",
    "cuEventRecord",
    "cuLaunchKernel",
    "cuMemcpyAsync",
    "cuPointerGetAttributes",
    "cuStreamGetCtx",
    "cuStreamIsCapturing",
    "cuThreadExchangeStreamCaptureMode",
];

/// This process's calls in the trace of the simulated driver, by any thread.
fn traced_calls() -> Vec<String> {
    let text = std::fs::read_to_string(parameter("TRACE").unwrap()).unwrap();
    let own = format!("{} ", std::process::id());
    let lines = text.lines().filter(|line| line.starts_with(&own));
    lines.map(|line| line.rsplit(' ').next().unwrap().to_owned()).collect()
}

/// From the third operation of a shape on, only quiet calls are made.
fn traced(group: &Group) -> Result<(), Error> {
    // Through the cells, if all ranks are on one host; in one chunk; in several.
    const COUNTS: [usize; 3] = [16, 5_000, 300_000];
    let (trainer, some) = (Trainer::new(group, COUNTS[2] * 4), of_some(group)?);
    // In the group of all, and in a group of some, which work on a copy.
    for (count, group) in COUNTS.into_iter().flat_map(|count| [(count, group), (count, &some)]) {
        let reduce = || trainer.reduce(group, 0, count, DType::F32, ReduceOp::Sum);
        reduce()?;
        reduce()?;
        let before = traced_calls().len();
        for _ in 0..8 {
            reduce()?;
        }
        let calls = traced_calls();
        let loud: Vec<_> = calls[before..].iter().filter(|call| !QUIET.contains(&call.as_str())).collect();
        assert!(loud.is_empty(), "all-reduce of {count}: {loud:?}");
        // A rank with no slice of a small tensor has nothing to fold.
        let records = calls[before..].iter().filter(|call| *call == "cuEventRecord").count();
        assert!(records >= 8, "the trace is not of these operations");
    }
    // The trace does record allocations: the first operation took memory.
    assert!(traced_calls().iter().any(|call| call == "cuMemHostAlloc"));
    Ok(())
}

#[test]
fn in_steady_state_nothing_waits_for_the_device_or_allocates() {
    if !device() || !simulated() {
        return;
    }
    let path = std::env::temp_dir().join(format!("shouter-trace-{}", std::process::id()));
    for (ranks, hosts, mode) in [(2, 1, "caller"), (3, 1, "dedicated"), (2, 2, "caller"), (4, 2, "dedicated")]
    {
        let job = job!(ranks, hosts, "traced").env("SHOUTER_MODE", mode).with("TRACE", path.display());
        let state = job.env("CUDA_SIM", format!("trace={}", path.display())).run();
        std::fs::remove_file(&path).unwrap();
        state.assert_success();
    }
}

#[test]
fn a_tensor_that_is_not_ready_holds_up_no_other() {
    if device() {
        for (ranks, hosts) in TOPOLOGIES {
            job!(ranks, hosts, "held").run().assert_success();
        }
    }
}

#[test]
fn every_type_and_reduction_is_exact_on_every_topology() {
    if !device() {
        return;
    }
    for (ranks, hosts) in TOPOLOGIES.into_iter().chain([(1, 1)]) {
        let job = job!(ranks, hosts, "matrix").args(&["--transport", "auto"]);
        job.with("IN_PLACE", if ranks > hosts { "yes" } else { "no" }).run().assert_success();
    }
}

/// Each failure affects only the first rank; the others learn of it.
#[test]
fn where_gpus_cannot_open_each_others_tensors_they_are_staged() {
    if !device() || !simulated() {
        return;
    }
    let reasons = [
        "fail=cuIpcOpenMemHandle:*:CUDA_ERROR_MAP_FAILED",
        "fail=cuIpcGetMemHandle:*:CUDA_ERROR_NOT_SUPPORTED",
        "fail=cuModuleLoadData:*:CUDA_ERROR_INVALID_IMAGE",
    ];
    for (ranks, hosts) in [(3, 1), (4, 2)] {
        let staged = || {
            let job = job!(ranks, hosts, "matrix").with("DTYPES", "f32 bf16");
            job.with("IN_PLACE", "no")
        };
        staged().env("SHOUTER_GPU_PEERS", "off").run().assert_success();
        if hosts == 1 {
            for reason in reasons {
                staged().with("BROKEN", reason).run().assert_success();
            }
        }
    }
}

#[test]
fn ranks_with_tensors_on_hosts_take_part() {
    if !device() {
        return;
    }
    for (ranks, hosts, on) in [(3, 1, 0b010), (4, 2, 0b0110), (2, 2, 0b10), (2, 1, 0b01)] {
        let job = job!(ranks, hosts, "matrix").with("ON", on);
        let job = job.with("DTYPES", "f32 bf16 i8");
        job.with("IN_PLACE", "no").run().assert_success();
    }
}

#[test]
fn pushed_tensors_wait_for_the_trainers_stream() {
    if !device() {
        return;
    }
    for (ranks, hosts) in TOPOLOGIES {
        // A real device ignores the delays.
        let job = job!(ranks, hosts, "push").env("CUDA_SIM", "delay_us=300,seed=5");
        job.with("IN_PLACE", if ranks > hosts { "yes" } else { "no" }).run().assert_success();
    }
    job!(4, 2, "push").env("SHOUTER_MODE", "dedicated").run().assert_success();
}

#[test]
fn what_is_no_gpu_memory_is_refused_by_name() {
    if device() {
        job!(2, 1, "refused").run().assert_success();
        job!(2, 2, "refused").run().assert_success();
    }
}

#[test]
fn two_devices_serve_two_ranks() {
    if device() && simulated() {
        let job = job!(2, 1, "matrix").env("CUDA_SIM", "devices=2");
        job.with("DTYPES", "f32").run().assert_success();
    }
}

#[test]
fn loss_and_bit_flips_do_not_show() {
    if device() {
        let faults = ["--loss", "5%", "--corrupt", "1%", "--seed", "11"];
        job!(2, 2, "push").args(&faults).run().assert_success();
    }
}

#[test]
fn a_device_that_is_lost_ends_the_group_by_name() {
    if !device() || !simulated() {
        return;
    }
    // The last job uses the cells of the host.
    let (copy, fold) = ("cuMemcpyAsync", "cuLaunchKernel");
    let jobs = [
        (2, 2, 0b11, 1 << 20, copy),
        (2, 1, 0b11, 1 << 20, fold),
        (4, 2, 0b1111, 1 << 20, fold),
        (4, 2, 0b0001, 1 << 20, copy),
        (3, 1, 0b101, 16, fold),
    ];
    for (ranks, hosts, on, count, call) in jobs {
        let job = job!(ranks, hosts, "steps").with("ON", on).with("COUNT", count);
        let state = job.with("BROKEN", format!("fail={call}:40:lost")).run();
        assert_eq!(state.ranks[0].code, Some(ACCELERATOR), "{state}");
        assert!(state.ranks[0].error().contains("has failed"), "{}", state.ranks[0].error());
        named(&state, 0, &LOST_GROUP, &["accelerator"]);
    }
}

/// Jobs whose last rank has a copy that never ends: the deadline ends the group, no rank waits for the copy any longer,
/// and the error of that rank says that its tensor must stay as it is. A job: ranks, hosts, ranks on a GPU, the call
/// that hangs.
fn hang(jobs: &[(u32, u32, u32, &str)], count: usize, codes: &[i32], words: &[&str]) {
    let start = |&(ranks, hosts, on, call): &(u32, u32, u32, &str)| {
        let job = job!(ranks, hosts, "steps").with("ON", on).with("COUNT", count);
        // Long enough for the first operation, which sets up all that GPUs need.
        let job = job.with("CULPRIT", ranks - 1).env("SHOUTER_DEADLINE", "3s");
        job.with("BROKEN", format!("hang={call}")).start()
    };
    // Kernels are compiled before, so that no deadline passes meanwhile.
    job!(2, 1, "matrix").with("DTYPES", "u8").run().assert_success();
    // The jobs wait most of the time; with more at once ranks would run too late to name the culprit in time.
    for few in jobs.chunks(2) {
        let jobs: Vec<_> = few.iter().map(start).collect();
        for job in jobs {
            let state = job.finish();
            let culprit = state.ranks.len() - 1;
            let (code, error) = (state.ranks[culprit].code, state.ranks[culprit].error());
            assert!(code.is_some_and(|code| codes.contains(&code)), "{code:?}\n{state}");
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
            // The rank that started first may find the deadline first.
            named(&state, culprit, &[PEER_FAILED, CLOSED, DEADLINE], &["accelerator", "deadline"]);
        }
    }
}

#[test]
fn a_copy_that_hangs_ends_the_group_at_the_deadline() {
    if device() && simulated() {
        let jobs = [
            (2, 2, 0b11, "cuMemcpyAsync:40"),
            (2, 2, 0b11, "cuMemcpyAsync:41"),
            (2, 1, 0b11, "cuLaunchKernel:20"),
            (3, 1, 0b101, "cuMemcpyAsync:41"),
            (4, 2, 0b1001, "cuMemcpyAsync:40"),
            (4, 2, 0b1111, "cuLaunchKernel:40"),
        ];
        hang(&jobs, 1 << 20, &[ACCELERATOR], &["GPU", "leave the tensor's memory as it is"]);
    }
}

#[test]
fn a_small_copy_that_hangs_ends_the_group_at_the_deadline() {
    if device() && simulated() {
        // One copy to the host, one to the GPU.
        let jobs = [(2, 1, 0b11, "cuLaunchKernel:9"), (3, 1, 0b101, "cuLaunchKernel:10")];
        hang(&jobs, 16, &[DEADLINE], &["copy between GPU and host", "memory must stay as it is"]);
    }
}

#[test]
fn a_rank_that_is_killed_is_named_by_those_with_gpus() {
    if !device() {
        return;
    }
    for (ranks, hosts) in [(2, 2), (3, 1)] {
        let job = job!(ranks, hosts, "steps").start();
        job.until("all are under way", crate::ranks::LIMIT, |state| state.all_told("steps"));
        job.signal(0, "KILL");
        job.until("the survivors end", Duration::from_secs(15), |state| state.all_over_but(0));
        named(&job.finish(), 0, &LOST_GROUP, &["dead or unreachable"]);
    }
}
