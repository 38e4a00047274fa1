//! The blocking calls of a trainer, and the tensor table; operations that it starts are in [`work`](crate::work).
//!
//! Each function documents C's promises about buffers; [`handle`](crate::handle) those about a `shouter_t *`.
#![allow(unsafe_code, reason = "pointers from C, checked for NULL; the rest is the caller's promise")]

use std::ffi::{c_char, c_void};

use shouter::{BlockCounts, Collective, DType, Error, Group, ReduceOp, TensorSpec};

use crate::error::{Status, guard, null};
use crate::handle::{Shouter, group, text};
use crate::types::{self, Dtype, Op, Tensor};
use crate::uneven::Counts;

/// Reduces `count` elements at `data` with those of all ranks, in place, and returns when the result is there.
///
/// For what is not worth an entry in the tensor table: every rank calls it in the same order with the same count, type and
/// operation. `data` must be aligned to its elements; nobody else may touch it during the call. Waits for the group's own
/// deadline at most. After an error the content of `data` is undefined.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_allreduce(
    shouter: *const Shouter,
    data: *mut c_void,
    count: usize,
    dtype: Dtype,
    op: Op,
) -> Status {
    guard(|| {
        // SAFETY: no other thread ends it meanwhile, as the modules `handle` and `work` demand of their callers.
        let group = unsafe { group(shouter) }?;
        let (dtype, op) = (types::dtype(dtype)?, types::op(op)?);
        let data = buffer(data, count, dtype)?;
        // SAFETY: checked for NULL, alignment and length; the caller promises `count` elements that are his alone to touch.
        unsafe { group.all_reduce_raw(data, count, dtype, op) }
    })
}

/// As shouter_allreduce, for `count` elements in the memory of an NVIDIA GPU.
///
/// `data` is a device address (cudaMalloc and its like) or one of managed memory. `stream` is the cudaStream_t or CUstream on which
/// they are produced, of the same device; NULL is the default stream, and a trainer compiled for per-thread default streams
/// passes cudaStreamPerThread. The elements are read after what `stream` holds at the call; when the call returns, the result
/// is there for any stream. Nothing waits for the whole device. Ranks with tensors in host memory may take part.
///
/// Nobody else touches the elements from what `stream` held on until the call returns, and the CUDA context lives until
/// shouter_finalize has returned. A process uses one GPU, that of its first such call. SHOUTER_ERROR_ARGUMENT: memory that is not a
/// GPU's (page-locked host memory goes to shouter_allreduce), too short, or of another GPU; a stream of another device, or one that is
/// being captured into a graph. SHOUTER_ERROR_ACCELERATOR: no usable driver or GPU, one that fails, or a library built without CUDA.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_allreduce_cuda(
    shouter: *const Shouter,
    data: *mut c_void,
    count: usize,
    dtype: Dtype,
    op: Op,
    stream: *mut c_void,
) -> Status {
    guard(|| {
        // SAFETY: no other thread ends it meanwhile, as the modules `handle` and `work` demand of their callers.
        let group = unsafe { group(shouter) }?;
        let (dtype, op) = (types::dtype(dtype)?, types::op(op)?);
        let data = buffer(data, count, dtype)?;
        #[cfg(feature = "cuda")]
        // SAFETY: checked for NULL, alignment and length; the rest is the caller's promise.
        return unsafe { group.all_reduce_cuda(data.addr() as u64, count, dtype, op, stream.addr() as u64) };
        #[cfg(not(feature = "cuda"))]
        {
            let _ = (group, data, op, stream);
            Err(types::no_cuda())
        }
    })
}

/// Agrees with all ranks on the `n` tensors that each step reduces, or moves otherwise, and writes a number for each to `ids`.
///
/// Every rank calls it with the same names, kinds, roots, counts (but for those of an ALLTOALLV), types and operations in the same order;
/// a rank that differs is named in the error that every rank gets. The order is the priority: give the tensors that are needed first, first (forward order).
/// Registering again, for instance when a framework has changed its buckets, is a new generation: it has numbers of its own.
///
/// Where there is a count for each rank, counts are given here, on every rank, and shouter_start sends none. After SHOUTER_ERROR_MISMATCH nothing
/// is registered, and the group goes on. After SHOUTER_ERROR_DEADLINE it goes on as well, but registers nothing more; a group of some ranks has
/// ended then. Where there is an ALLTOALLV among the tensors, the call is one of the group's operations, in
/// their order.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_register(
    shouter: *const Shouter,
    tensors: *const Tensor,
    n: usize,
    ids: *mut u32,
) -> Status {
    guard(|| {
        // SAFETY: no other thread ends it meanwhile, as the modules `handle` and `work` demand of their callers.
        let group = unsafe { group(shouter) }?;
        if n == 0 || tensors.is_null() || ids.is_null() {
            return Err(Error::Argument("tensors or ids is NULL, or n is 0".into()));
        }
        // SAFETY: not NULL; the caller promises n entries.
        let tensors = unsafe { std::slice::from_raw_parts(tensors, n) };
        let mut specs = Vec::with_capacity(n);
        for (i, tensor) in tensors.iter().enumerate() {
            let collective = types::collective(tensor.kind)?;
            specs.push(TensorSpec {
                // SAFETY: the caller promises that each name is a string.
                name: unsafe { text(tensor.name, &format!("tensors[{i}].name")) }?.to_owned(),
                collective,
                dtype: types::dtype(tensor.dtype)?,
                count: tensor.count as u64,
                op: if collective.reduces() { types::op(tensor.op)? } else { ReduceOp::Sum },
                root: tensor.root,
                // SAFETY: the caller promises a count for each rank where there is an address.
                counts: unsafe { counts(group, collective, tensor, i) }?,
            });
        }
        let agreed = group.register(&specs)?;
        for (i, id) in agreed.iter().take(n).enumerate() {
            // SAFETY: i < n, and the caller promises room for n numbers.
            unsafe { ids.add(i).write(id.0) };
        }
        Ok(())
    })
}

/// The counts of a tensor to be registered.
///
/// # Safety
/// The addresses of counts are NULL, or have as many as the group has ranks.
unsafe fn counts(
    group: &Group,
    collective: Collective,
    tensor: &Tensor,
    at: usize,
) -> Result<BlockCounts, Error> {
    let Tensor { input_counts, output_counts, .. } = *tensor;
    let (given, taken) = if collective.has_counts() { collective.sides_of_all() } else { (false, false) };
    let words = |name: &str, counts: *const usize, has: bool| {
        if !has && counts.is_null() {
            return Ok(None);
        }
        if has == counts.is_null() {
            let remedy = if has { "give one for each rank" } else { "it is NULL for this kind" };
            return Err(Error::Argument(format!("tensors[{at}].{name} of {collective}: {remedy}")));
        }
        let each = Counts::Each(counts);
        // SAFETY: passed on to the caller.
        let counts = unsafe { each.as_slice(group, 0) }?;
        Ok(Some(counts.iter().map(|count| *count as u64).collect::<Vec<_>>()))
    };
    let given = words("input_counts", input_counts, given)?;
    let taken = words("output_counts", output_counts, taken)?;
    Ok(match (given, taken) {
        (None, None) => BlockCounts::None,
        (Some(given), Some(taken)) => BlockCounts::OfPairs { given, taken },
        (Some(counts), None) | (None, Some(counts)) => BlockCounts::OfRanks(counts),
    })
}

/// Waits until every rank has called it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_barrier(shouter: *const Shouter) -> Status {
    // SAFETY: no other thread ends it meanwhile, as the modules `handle` and `work` demand of their callers.
    guard(|| unsafe { group(shouter) }?.barrier())
}

/// Tells which step of the training the next operations belong to: for error messages and traces.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_set_step(shouter: *const Shouter, step: u64) -> Status {
    guard(|| {
        // SAFETY: no other thread ends it meanwhile, as the modules `handle` and `work` demand of their callers.
        unsafe { group(shouter) }?.set_step(step);
        Ok(())
    })
}

/// Names the operations without a tensor's name that this rank starts in this group from now on, in timelines and dumps: after the tensors in
/// a bucket, say. An empty label is none, and so is NULL. The label is copied; ranks need not have the same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_set_label(shouter: *const Shouter, label: *const c_char) -> Status {
    guard(|| {
        // SAFETY: no other thread ends it meanwhile, as the modules `handle` and `work` demand of their callers.
        let group = unsafe { group(shouter) }?;
        // SAFETY: not NULL; the caller promises a string.
        let label = if label.is_null() { "" } else { unsafe { text(label, "label") }? };
        group.set_label(label);
        Ok(())
    })
}

/// Checks a buffer from C as far as possible: NULL (allowed when empty), alignment, a length that fits memory.
fn buffer(data: *mut c_void, count: usize, dtype: DType) -> Result<*mut u8, Error> {
    let (size, align) = (dtype.size(), dtype.align());
    if data.is_null() && count > 0 {
        return Err(null("data"));
    }
    if !data.addr().is_multiple_of(align) {
        return Err(Error::Argument(format!(
            "data is no multiple of {align} bytes, to which {dtype} is aligned"
        )));
    }
    if count.checked_mul(size).is_none_or(|bytes| isize::try_from(bytes).is_err()) {
        return Err(Error::Argument(format!("{count} elements of {size} bytes do not fit in memory")));
    }
    Ok(data.cast())
}
