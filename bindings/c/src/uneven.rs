//! The collectives with a count for each rank, each in one blocking call.
//!
//! [`shouter_allgatherv`] documents the common rules, for readers of the C header.
#![allow(unsafe_code, reason = "pointers from C, checked for NULL; the rest is the caller's promise")]

use std::ffi::c_void;
use std::slice::from_raw_parts;

use shouter::{Collective, Error, Group, Staging, UnevenCall};

use crate::error::{Status, guard, null};
use crate::handle::{Shouter, group};
use crate::types::{self, Dtype, Op, SHOUTER_SUM};

/// The counts of one side of a collective.
pub(crate) enum Counts {
    /// The count of this rank's block.
    Own(usize),
    /// The counts of all ranks, of which this rank's applies.
    Mine(*const usize),
    /// A block for each rank.
    Each(*const usize),
    /// A block for each rank on the root, else none.
    OnRoot(*const usize),
}

impl Counts {
    /// # Safety
    /// The array that it points to has a count for each rank.
    pub(crate) unsafe fn as_slice<'a>(&'a self, group: &Group, root: u32) -> Result<&'a [usize], Error> {
        let each = match self {
            Self::Own(count) => return Ok(std::slice::from_ref(count)),
            Self::OnRoot(_) if group.rank() != root => return Ok(&[]),
            Self::Mine(counts) | Self::Each(counts) | Self::OnRoot(counts) => *counts,
        };
        if each.is_null() {
            return Err(null("an array of counts"));
        }
        if !each.is_aligned() {
            return Err(Error::Argument("the counts' address is not aligned to a size_t".into()));
        }
        // SAFETY: neither NULL nor unaligned; the rest is the caller's promise.
        let each = unsafe { from_raw_parts(each, group.size() as usize) };
        let rank = group.rank() as usize;
        Ok(if matches!(self, Self::Mine(_)) { &each[rank..=rank] } else { each })
    }
}

/// Runs a collective.
///
/// # Safety
/// `shouter` as the module demands, `given` and `taken` as [`Counts::as_slice`]; input and output as [`Group::run_uneven`] does.
unsafe fn run(
    shouter: *const Shouter,
    collective: Collective,
    (input, given): (*const c_void, Counts),
    (output, taken): (*mut c_void, Counts),
    dtype: Dtype,
    (op, factor): (Op, Option<f64>),
    root: u32,
) -> Status {
    guard(|| {
        // SAFETY: no other thread ends it meanwhile, as the modules `handle` and `work` demand of their callers.
        let group = unsafe { group(shouter) }?;
        let (dtype, op) = (types::dtype(dtype)?, types::op(op)?);
        let (input, output) = (input.cast(), output.cast());
        // SAFETY: the caller's promise.
        let (given, taken) = unsafe { (given.as_slice(group, root)?, taken.as_slice(group, root)?) };
        let call = UnevenCall { collective, input, output, given, taken, dtype, op, root };
        // SAFETY: checked there for NULL, alignment, length and overlap; the rest is the caller's promise.
        unsafe { group.run_uneven(&call, &Staging { factor, ..Staging::default() }) }
    })
}

/// As shouter_allgather, with `counts[r]` elements of rank `r`: `input` has this rank's, `output` those of all, one block behind the other.
///
/// This and the following functions: counts may be zero, and are read during the call only. One that ranks do not agree on is an error on
/// every rank: SHOUTER_ERROR_MISMATCH names the ranks and both counts. Where only the root has the counts of all, and for
/// shouter_alltoallv, that is found before any output is written, and the group goes on; else it ends. What is said at shouter_allreduce_to
/// holds here too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_allgatherv(
    shouter: *const Shouter,
    input: *const c_void,
    output: *mut c_void,
    counts: *const usize,
    dtype: Dtype,
) -> Status {
    let (from, into) = ((input, Counts::Mine(counts)), (output, Counts::Each(counts)));
    // SAFETY: the caller's promise.
    unsafe { run(shouter, Collective::AllGatherV, from, into, dtype, (SHOUTER_SUM, None), 0) }
}

/// As shouter_gather, with `count` elements of this rank, and `counts[r]` of rank `r` in the output of rank `root`; the others have
/// neither output nor counts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_gatherv(
    shouter: *const Shouter,
    input: *const c_void,
    count: usize,
    output: *mut c_void,
    counts: *const usize,
    dtype: Dtype,
    root: u32,
) -> Status {
    let (from, into) = ((input, Counts::Own(count)), (output, Counts::OnRoot(counts)));
    // SAFETY: the caller's promise.
    unsafe { run(shouter, Collective::GatherV, from, into, dtype, (SHOUTER_SUM, None), root) }
}

/// As shouter_scatter, with `counts[r]` elements for rank `r` in the input of rank `root`, and `count` for this rank; the others have
/// neither input nor counts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_scatterv(
    shouter: *const Shouter,
    input: *const c_void,
    counts: *const usize,
    output: *mut c_void,
    count: usize,
    dtype: Dtype,
    root: u32,
) -> Status {
    let (from, into) = ((input, Counts::OnRoot(counts)), (output, Counts::Own(count)));
    // SAFETY: the caller's promise.
    unsafe { run(shouter, Collective::ScatterV, from, into, dtype, (SHOUTER_SUM, None), root) }
}

/// As shouter_reduce_scatter, with `counts[r]` elements for rank `r`: `input` has those for all, `output` this rank's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_reduce_scatterv(
    shouter: *const Shouter,
    input: *const c_void,
    output: *mut c_void,
    counts: *const usize,
    dtype: Dtype,
    op: Op,
) -> Status {
    let (from, into) = ((input, Counts::Each(counts)), (output, Counts::Mine(counts)));
    // SAFETY: the caller's promise.
    unsafe { run(shouter, Collective::ReduceScatterV, from, into, dtype, (op, None), 0) }
}

/// The sum of shouter_reduce_scatterv, with each element of this rank's input multiplied by `factor` first, as
/// shouter_operation_t has it. Every rank may choose between this and shouter_reduce_scatterv.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_reduce_scatterv_premul(
    shouter: *const Shouter,
    input: *const c_void,
    output: *mut c_void,
    counts: *const usize,
    dtype: Dtype,
    factor: f64,
) -> Status {
    let (from, into) = ((input, Counts::Each(counts)), (output, Counts::Mine(counts)));
    // SAFETY: the caller's promise.
    unsafe { run(shouter, Collective::ReduceScatterV, from, into, dtype, (SHOUTER_SUM, Some(factor)), 0) }
}

/// As shouter_alltoall, with `input_counts[r]` elements for rank `r`, and `output_counts[r]` from it. In place, both are the same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_alltoallv(
    shouter: *const Shouter,
    input: *const c_void,
    input_counts: *const usize,
    output: *mut c_void,
    output_counts: *const usize,
    dtype: Dtype,
) -> Status {
    let (from, into) = ((input, Counts::Each(input_counts)), (output, Counts::Each(output_counts)));
    // SAFETY: the caller's promise.
    unsafe { run(shouter, Collective::AllToAllV, from, into, dtype, (SHOUTER_SUM, None), 0) }
}
