//! Collectives between real processes: every type and reduction on every topology, against a reference.

#![allow(unsafe_code)]

use std::sync::Barrier;

use crate::ranks::values::{self, COUNTS, TOPOLOGIES};
use crate::ranks::{Play, job, join, parameter, play, tell};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use sha2::{Digest, Sha256};
use shouter::{DType, Error, Group, ReduceOp, TensorSpec};

/// The body of a rank; as a test of its own it does nothing.
#[test]
fn rank_body() {
    let plays: [(&str, Play); 6] = [
        ("matrix", matrix),
        ("push", push_out_of_order),
        ("threads", threads),
        ("bits", random_bits),
        ("paths", every_path),
        ("count", count),
    ];
    play(&plays, join);
}

/// All-reduces `data`, which holds whole elements of `dtype`.
fn reduce(group: &Group, data: &mut [u8], dtype: DType, op: ReduceOp) -> Result<(), Error> {
    // SAFETY: the elements are those of a slice that this call alone uses.
    unsafe { group.all_reduce_raw(data.as_mut_ptr(), data.len() / dtype.size(), dtype, op) }
}

/// Checks that a sum counts all ranks.
fn count(group: &Group) -> Result<(), Error> {
    let mut ranks = [1u8];
    reduce(group, &mut ranks, DType::U8, ReduceOp::Sum)?;
    assert_eq!(u32::from(ranks[0]), group.size());
    Ok(())
}

/// `SHARED` is the number of ranks with tensors in the memory that the host's ranks share.
fn matrix(group: &Group) -> Result<(), Error> {
    let shared = parameter("SHARED").is_some_and(|number| group.rank() < number.parse().unwrap());
    let mut memory = if shared { Some(group.alloc::<u8>((COUNTS[3] + 1) * 16)?) } else { None };
    values::matrix(group, |data, dtype, op| {
        let Some(memory) = &mut memory else { return reduce(group, data, dtype, op) };
        // Tensors begin at any element; the bytes around them must not change.
        let count = data.len() / dtype.size();
        let (tensor, rest) = memory[count % 2 * dtype.size()..].split_at_mut(data.len());
        tensor.copy_from_slice(data);
        rest.fill(0xa5);
        reduce(group, tensor, dtype, op)?;
        data.copy_from_slice(tensor);
        let kept = rest.iter().all(|byte| *byte == 0xa5);
        assert!(kept, "{op} of {count} x {dtype} wrote behind its tensor");
        Ok(())
    })
}

/// Twenty tensors a step, pushed in order and waited for in another order.
fn push_out_of_order(group: &Group) -> Result<(), Error> {
    const TENSORS: usize = 20;
    let count = |tensor: usize| [1, 40, 1500, 30_000, 200_001][tensor % 5] + tensor;
    let specs: Vec<_> = (0..TENSORS)
        .map(|tensor| {
            TensorSpec::all_reduce(format!("layer.{tensor}"), DType::F32, count(tensor) as u64, ReduceOp::Sum)
        })
        .collect();
    let ids = group.register(&specs)?;
    let ranks = group.size() as f32;
    for step in 0..5 {
        group.set_step(step);
        let value = |rank: u32, tensor: usize| (rank as usize + tensor) as f32 + step as f32;
        let mut tensors: Vec<Vec<f32>> =
            (0..TENSORS).map(|tensor| vec![value(group.rank(), tensor); count(tensor)]).collect();
        let mut pending = vec![];
        for (id, tensor) in ids.iter().zip(&mut tensors) {
            // SAFETY: the tensor is touched again only after `wait` has returned for it.
            pending.push(Some(unsafe { group.push(*id, tensor.as_mut_ptr().cast()) }?));
        }
        for index in (0..TENSORS).map(|index| (index * 7 + 3) % TENSORS) {
            pending[index].take().unwrap().wait(None)?;
            let expected = (0..group.size()).map(|rank| value(rank, index)).sum::<f32>();
            assert!(
                tensors[index].iter().all(|&x| x == expected),
                "tensor {index} of step {step}, {ranks} ranks"
            );
        }
    }
    Ok(())
}

/// Several threads wait at once for tensors that one of them has pushed, and in turn make calls of their own.
fn threads(group: &Group) -> Result<(), Error> {
    const THREADS: usize = 4;
    let spec = |thread| {
        TensorSpec::all_reduce(format!("thread.{thread}"), DType::I64, 10_000 + thread as u64, ReduceOp::Sum)
    };
    let ids = group.register(&(0..THREADS).map(spec).collect::<Vec<_>>())?;
    let expected: i64 = (1..=i64::from(group.size())).sum();
    let gate = Barrier::new(THREADS);
    let body = |thread: usize| -> Result<(), Error> {
        let mut data = vec![0i64; 10_000 + thread];
        for _ in 0..10 {
            data.fill(i64::from(group.rank()) + 1);
            let mut pending = None;
            // The order of operations is the same on all ranks; the order of the waits is free.
            for turn in 0..THREADS {
                if turn == thread {
                    // SAFETY: the data is touched again only after `wait` has returned.
                    pending = Some(unsafe { group.push(ids[thread], data.as_mut_ptr().cast()) });
                }
                gate.wait();
            }
            pending.unwrap()?.wait(None)?;
            assert!(data.iter().all(|&x| x == expected));
            gate.wait();
            for turn in 0..THREADS {
                let mut one = [i64::from(group.rank()) + 1];
                let result = if turn == thread { group.all_reduce(&mut one, ReduceOp::Sum) } else { Ok(()) };
                gate.wait();
                result?;
                assert!(turn != thread || one == [expected]);
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let body = &body;
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || body(thread))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap())
    })
}

/// The bytes of a random number with an exponent in the middle of the range, so that sums are finite and most round.
fn random(rng: &mut SmallRng, dtype: DType) -> Vec<u8> {
    let bits: u32 = rng.random();
    match dtype {
        DType::F32 => (bits & 0x87ff_ffff | 0x3c00_0000).to_le_bytes().to_vec(),
        DType::Bf16 => (bits as u16 & 0x83ff | 0x3c00).to_le_bytes().to_vec(),
        _ => (bits as u16 & 0x8fff | 0x3000).to_le_bytes().to_vec(),
    }
}

/// Random finite floating-point numbers: reports the hash of every result.
fn random_bits(group: &Group) -> Result<(), Error> {
    let mut rng = SmallRng::seed_from_u64(7 + u64::from(group.rank()));
    let mut hash = Sha256::new();
    for dtype in [DType::F32, DType::Bf16, DType::F16] {
        for count in COUNTS {
            for op in [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Prod, ReduceOp::Max] {
                let mut data: Vec<u8> = (0..count).flat_map(|_| random(&mut rng, dtype)).collect();
                reduce(group, &mut data, dtype, op)?;
                hash.update(&data);
            }
        }
    }
    let text: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    tell(format_args!("hash {text}"));
    Ok(())
}

/// The same numbers by every path of an element: alone or in a tensor of any size, at once or pushed, in the rank's own
/// memory or in the host's.
fn every_path(group: &Group) -> Result<(), Error> {
    const COMMON: usize = 8;
    let counts = [COMMON, 1000, 4096, 10_000, 200_000];
    for (dtype, op) in [DType::F16, DType::Bf16, DType::F32]
        .into_iter()
        .flat_map(|d| [ReduceOp::Sum, ReduceOp::Avg].map(|op| (d, op)))
    {
        let mut rng = SmallRng::seed_from_u64(99 + u64::from(group.rank()));
        let size = dtype.size();
        let mut number = move || random(&mut rng, dtype);
        let common: Vec<u8> = (0..COMMON).flat_map(|_| number()).collect();
        let mut results = Vec::new();
        for count in counts {
            let spec = TensorSpec::all_reduce(format!("{dtype}.{op}.{count}"), dtype, count as u64, op);
            let id = group.register(&[spec])?[0];
            for (pushed, shared) in [(false, false), (true, false), (false, true), (true, true)] {
                let mut own = vec![0u8; count * size];
                let mut memory = if shared { Some(group.alloc::<u8>(count * size)?) } else { None };
                let data: &mut [u8] = memory.as_deref_mut().unwrap_or(&mut own);
                data[..common.len()].copy_from_slice(&common);
                for element in data[common.len()..].chunks_mut(size) {
                    element.copy_from_slice(&number());
                }
                if pushed {
                    // SAFETY: the tensor is touched again only after `wait` has returned.
                    let pending = unsafe { group.push(id, data.as_mut_ptr()) }?;
                    pending.wait(None)?;
                } else {
                    reduce(group, data, dtype, op)?;
                }
                results.push((
                    format!("{count}, pushed: {pushed}, shared: {shared}"),
                    data[..common.len()].to_vec(),
                ));
            }
        }
        for (how, result) in &results {
            assert_eq!(*result, results[0].1, "{op} of {dtype}, {how}, differs from {}", results[0].0);
        }
    }
    Ok(())
}

#[test]
fn the_bits_of_an_element_do_not_depend_on_its_path() {
    for (ranks, hosts) in [(3, 1), (4, 2), (3, 3), (6, 2)] {
        job!(ranks, hosts, "paths").run().assert_success();
    }
}

#[test]
fn every_type_and_reduction_is_exact_on_every_topology() {
    for (ranks, hosts) in TOPOLOGIES {
        job!(ranks, hosts, "matrix").run().assert_success();
    }
}

#[test]
fn tensors_in_shared_memory_are_exact_with_any_number_of_sharing_ranks() {
    for (ranks, hosts, shared) in [(3, 1, 3), (3, 1, 2), (2, 1, 2), (4, 2, 4), (1, 1, 1)] {
        job!(ranks, hosts, "matrix").with("SHARED", shared).run().assert_success();
    }
}

#[test]
fn twenty_tensors_are_waited_for_out_of_order() {
    for (ranks, hosts) in TOPOLOGIES {
        job!(ranks, hosts, "push").run().assert_success();
    }
}

#[test]
fn several_threads_share_a_group() {
    for (ranks, hosts) in TOPOLOGIES {
        job!(ranks, hosts, "threads").run().assert_success();
    }
}

#[test]
fn a_dedicated_thread_drives_as_well() {
    for (ranks, hosts) in TOPOLOGIES {
        for play in ["push", "threads"] {
            job!(ranks, hosts, play).env("SHOUTER_MODE", "dedicated").run().assert_success();
        }
    }
}

#[test]
fn eight_ranks_on_two_hosts_make_progress() {
    job!(8, 2, "push").run().assert_success();
    job!(8, 2, "matrix").with("DTYPES", "bf16 i8").run().assert_success();
}

/// From rank 17 on, a rank gets the list of members from another rank than 0.
#[test]
fn twenty_processes_join() {
    job!(20, 20, "count").args(&["--transport", "kernel"]).run().assert_success();
}

#[test]
fn the_most_connections_of_a_channel_carry_everything() {
    for transport in ["rud", "tcp", "kernel"] {
        let job = job!(2, 2, "push").env("SHOUTER_TRANSPORT", transport).env("SHOUTER_CHANNEL_NUM", 256);
        job.run().assert_success();
    }
}

#[test]
fn loss_and_bit_flips_do_not_show() {
    for (ranks, hosts) in [(2, 2), (4, 2)] {
        let faults = ["--loss", "5%", "--corrupt", "1%", "--seed", "11"];
        job!(ranks, hosts, "push").args(&faults).run().assert_success();
        job!(ranks, hosts, "matrix").with("DTYPES", "f16 i32").args(&faults).run().assert_success();
    }
}

#[test]
fn all_ranks_end_with_the_same_bits() {
    for (ranks, hosts) in TOPOLOGIES {
        let state = job!(ranks, hosts, "bits").run();
        state.assert_success();
        assert!(state.all_told(&state.ranks[0].told[0]), "{state}");
    }
}

#[test]
fn sealed_sessions_between_hosts_give_the_same_bits_with_loss_and_without() {
    for (ranks, hosts) in [(2, 2), (4, 2)] {
        let sealed = |play| job!(ranks, hosts, play).env("SHOUTER_RUD_SEAL", "on");
        sealed("matrix").with("DTYPES", "f32 i8").run().assert_success();
        sealed("push").args(&["--loss", "1%", "--corrupt", "1%", "--seed", "13"]).run().assert_success();
        let (with, without) = (sealed("bits").run(), job!(ranks, hosts, "bits").run());
        with.assert_success();
        without.assert_success();
        let bits = &without.ranks[0].told[0];
        assert!(with.all_told(bits) && without.all_told(bits), "{with}\n{without}");
    }
    // A pair of hosts without ports has nothing that seals.
    let state = job!(2, 2, "push").args(&["--transport", "kernel"]).env("SHOUTER_RUD_SEAL", "on").run();
    for rank in &state.ranks {
        assert!(rank.error().contains("`rud_seal`"), "{state}");
    }
}

#[test]
fn tcp_between_hosts_is_as_good() {
    for (ranks, hosts) in [(2, 2), (4, 2), (3, 3)] {
        let tcp = |play| job!(ranks, hosts, play).env("SHOUTER_TRANSPORT", "tcp");
        tcp("matrix").with("DTYPES", "f32 i8").run().assert_success();
        tcp("push").run().assert_success();
    }
    let state = job!(2, 2, "bits").env("SHOUTER_TRANSPORT", "tcp").run();
    state.assert_success();
    assert!(state.all_told(&state.ranks[0].told[0]), "{state}");
}

/// Opens no port: for hosts without DPDK, and builds without.
#[test]
fn the_kernels_sockets_between_hosts_are_as_good() {
    for (ranks, hosts) in [(2, 2), (4, 2), (3, 3)] {
        let kernel = |play| job!(ranks, hosts, play).args(&["--transport", "kernel"]);
        kernel("matrix").with("DTYPES", "f32 i8").run().assert_success();
        kernel("push").run().assert_success();
        kernel("push").env("SHOUTER_CRC", "off").run().assert_success();
    }
    for (play, mode) in [("threads", "caller"), ("push", "dedicated")] {
        let job = job!(4, 2, play).args(&["--transport", "kernel"]);
        job.env("SHOUTER_MODE", mode).run().assert_success();
    }
    let state = job!(4, 2, "bits").args(&["--transport", "kernel"]).run();
    state.assert_success();
    assert!(state.all_told(&state.ranks[0].told[0]), "{state}");
}

#[test]
fn loss_does_not_show_over_tcp() {
    for (ranks, hosts) in [(2, 2), (4, 2)] {
        let lossy = |faults: &[&str]| {
            job!(ranks, hosts, "push")
                .env("SHOUTER_TRANSPORT", "tcp")
                .args(faults)
                .args(&["--seed", "12"])
                .run()
        };
        lossy(&["--loss", "1%"]).assert_success();
        // Two flipped bits can pass TCP's checksum of 16 bits. Then the frame's CRC32C ends the group, and no sum is
        // wrong.
        let damaged = lossy(&["--corrupt", "0.2%"]);
        if damaged.status != Some(0) {
            assert!(damaged.ranks.iter().any(|rank| rank.error().contains("CRC32C is wrong")), "{damaged}");
            assert!(damaged.ranks.iter().all(|rank| rank.error().contains("was given up")), "{damaged}");
        }
    }
}
