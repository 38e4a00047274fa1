//! The collectives besides the all-reduce in place, each in one blocking call.
//!
//! [`shouter_allreduce_to`] documents the common rules, for readers of the C header.
#![allow(unsafe_code, reason = "pointers from C, checked for NULL; the rest is the caller's promise")]

use std::ffi::c_void;

use shouter::{Collective, CollectiveCall};

use crate::error::{Status, guard};
use crate::handle::{Shouter, group};
use crate::types::{self, Dtype, Op, SHOUTER_SUM};

/// Runs a collective.
///
/// # Safety
/// `shouter` as the module demands; input and output as [`shouter::Group::run_collective`] does.
#[expect(clippy::too_many_arguments, reason = "those of the C functions")]
unsafe fn run(
    shouter: *const Shouter,
    collective: Collective,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    dtype: Dtype,
    op: Op,
    root: u32,
) -> Status {
    guard(|| {
        // SAFETY: no other thread ends it meanwhile, as the modules `handle` and `work` demand of their callers.
        let group = unsafe { group(shouter) }?;
        let (dtype, op) = (types::dtype(dtype)?, types::op(op)?);
        let (input, output) = (input.cast(), output.cast());
        // SAFETY: checked there for NULL, alignment, length and overlap; the rest is the caller's promise.
        unsafe { group.run_collective(&CollectiveCall { collective, input, output, count, dtype, op, root }) }
    })
}

/// As shouter_allreduce, with the result at `output`: `count` elements each. Every rank may choose between this and shouter_allreduce.
///
/// This and the following functions: every rank makes the same calls in the same order, with the same counts, type, operation and root;
/// one that differs is named in the error. Blocks lie in rank order. Input and output may be the same memory: where one has a block for
/// each rank and the other one block, that is the rank's own block of it. They may not overlap otherwise. Both must be aligned to their
/// elements; where this rank has none the pointer is not looked at. Nobody else may write the input or touch the output during the call,
/// which waits for the group's own deadline at most. After an error the content of the output is undefined.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_allreduce_to(
    shouter: *const Shouter,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    dtype: Dtype,
    op: Op,
) -> Status {
    // SAFETY: the caller's promise.
    unsafe { run(shouter, Collective::AllReduce, input, output, count, dtype, op, 0) }
}

/// Reduces `count` elements of every rank at `input` into `output` of rank `root`; the others have no output.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_reduce(
    shouter: *const Shouter,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    dtype: Dtype,
    op: Op,
    root: u32,
) -> Status {
    // SAFETY: the caller's promise.
    unsafe { run(shouter, Collective::Reduce, input, output, count, dtype, op, root) }
}

/// Gives the `count` elements at `data` of rank `root` to all ranks. A rank that has its result, or takes none, may return before the others
/// have called a collective: this one's root, say. Where one of those calls something else then, that is the error of one of its next calls,
/// of shouter_finalize at the latest.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_broadcast(
    shouter: *const Shouter,
    data: *mut c_void,
    count: usize,
    dtype: Dtype,
    root: u32,
) -> Status {
    // SAFETY: the caller's promise.
    unsafe { run(shouter, Collective::Broadcast, data, data, count, dtype, SHOUTER_SUM, root) }
}

/// Gives all ranks the `count` elements at `input` of each: `output` has a block of `count` for each rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_allgather(
    shouter: *const Shouter,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    dtype: Dtype,
) -> Status {
    // SAFETY: the caller's promise.
    unsafe { run(shouter, Collective::AllGather, input, output, count, dtype, SHOUTER_SUM, 0) }
}

/// Gives rank `root` the `count` elements at `input` of each rank: its `output` has a block of `count` for each; the others have none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_gather(
    shouter: *const Shouter,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    dtype: Dtype,
    root: u32,
) -> Status {
    // SAFETY: the caller's promise.
    unsafe { run(shouter, Collective::Gather, input, output, count, dtype, SHOUTER_SUM, root) }
}

/// Gives each rank its block of `count` elements of `input` of rank `root`, which has one for each rank; the others have no input.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_scatter(
    shouter: *const Shouter,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    dtype: Dtype,
    root: u32,
) -> Status {
    // SAFETY: the caller's promise.
    unsafe { run(shouter, Collective::Scatter, input, output, count, dtype, SHOUTER_SUM, root) }
}

/// Reduces `input`, which has a block of `count` elements for each rank, over all ranks, and gives each rank its block in `output`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_reduce_scatter(
    shouter: *const Shouter,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    dtype: Dtype,
    op: Op,
) -> Status {
    // SAFETY: the caller's promise.
    unsafe { run(shouter, Collective::ReduceScatter, input, output, count, dtype, op, 0) }
}

/// Gives each rank its block of `count` elements of `input`, and puts what this rank gets from each into its block of `output`; both have
/// a block for each rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_alltoall(
    shouter: *const Shouter,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    dtype: Dtype,
) -> Status {
    // SAFETY: the caller's promise.
    unsafe { run(shouter, Collective::AllToAll, input, output, count, dtype, SHOUTER_SUM, 0) }
}

/// Reduces `count` elements of every rank up to this one at `input`, in rank order, into `output`: each rank has another result. There is no
/// SHOUTER_AVG.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_scan(
    shouter: *const Shouter,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    dtype: Dtype,
    op: Op,
) -> Status {
    // SAFETY: the caller's promise.
    unsafe { run(shouter, Collective::Scan, input, output, count, dtype, op, 0) }
}

/// As shouter_scan, over the ranks before this one. The output of rank 0, which has none, stays as it is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_exscan(
    shouter: *const Shouter,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    dtype: Dtype,
    op: Op,
) -> Status {
    // SAFETY: the caller's promise.
    unsafe { run(shouter, Collective::ExScan, input, output, count, dtype, op, 0) }
}
