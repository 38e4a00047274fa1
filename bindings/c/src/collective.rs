//! What a trainer does with a group: register its gradients, push each when it is ready, wait before using it.
//!
//! What C promises about buffers is said at each function; about a `shouter_t *`, in [`handle`](crate::handle).
#![allow(
    unsafe_code,
    reason = "pointers from C; each is checked for NULL, and its validity is the caller's promise"
)]
#![allow(
    clippy::missing_safety_doc,
    reason = "the documentation is written for C; the promise is in the module's"
)]

use std::ffi::c_void;
use std::time::Duration;

use shouter::{DType, Error, TensorId, TensorSpec, WaitError};

use crate::error::{Status, guard, null};
use crate::handle::{Shouter, group, live, text};
use crate::types::{self, Dtype, Op, Pending, Tensor};

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
        // SAFETY: NULL or live, as the module demands of its callers.
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
        // SAFETY: NULL or live, as the module demands of its callers.
        let group = unsafe { group(shouter) }?;
        let (dtype, op) = (types::dtype(dtype)?, types::op(op)?);
        let data = buffer(data, count, dtype)?;
        #[cfg(feature = "cuda")]
        // SAFETY: checked for NULL, alignment and length; the rest is the caller's promise.
        return unsafe { group.all_reduce_cuda(data.addr() as u64, count, dtype, op, stream.addr() as u64) };
        #[cfg(not(feature = "cuda"))]
        {
            let _ = (group, data, op, stream);
            Err(no_cuda())
        }
    })
}

/// Agrees with all ranks on the `n` tensors that each step reduces, and writes a number for each to `ids`.
///
/// Every rank calls it with the same names, counts, types and operations in the same order; a rank that differs is named in
/// the error that every rank gets. The order is the priority: give the tensors that are needed first, first (forward order).
/// Registering again, for instance when a framework has changed its buckets, is a new generation: it has numbers of its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_register(
    shouter: *const Shouter,
    tensors: *const Tensor,
    n: usize,
    ids: *mut u32,
) -> Status {
    guard(|| {
        // SAFETY: NULL or live, as the module demands of its callers.
        let group = unsafe { group(shouter) }?;
        if n == 0 || tensors.is_null() || ids.is_null() {
            return Err(Error::Argument("tensors or ids is NULL, or n is 0".into()));
        }
        // SAFETY: not NULL; the caller promises n entries.
        let tensors = unsafe { std::slice::from_raw_parts(tensors, n) };
        let mut specs = Vec::with_capacity(n);
        for (i, tensor) in tensors.iter().enumerate() {
            specs.push(TensorSpec {
                // SAFETY: the caller promises that each name is a string.
                name: unsafe { text(tensor.name, &format!("tensors[{i}].name")) }?.to_owned(),
                dtype: types::dtype(tensor.dtype)?,
                count: tensor.count as u64,
                op: types::op(tensor.op)?,
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

/// Starts to reduce a registered tensor, whose elements lie at `data`, in place; writes to `*out` what to wait for.
///
/// Returns at once. `data` must be aligned to its elements; it may be NULL if the tensor has none. From now until shouter_wait has
/// returned, it must stay where it is and nobody may touch it. Every rank pushes the tensors of a step in the same order; one that
/// differs is named in the error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_push(
    shouter: *const Shouter,
    tensor: u32,
    data: *mut c_void,
    out: *mut Pending,
) -> Status {
    guard(|| {
        // SAFETY: NULL or live, as the module demands of its callers.
        let shouter = unsafe { live(shouter) }?;
        if out.is_null() {
            return Err(null("out"));
        }
        // SAFETY: the caller promises the registered number of elements, his alone to touch until the wait; NULL is refused if
        // there are any.
        let pending = unsafe { shouter.group.push(TensorId(tensor), data.cast()) }?;
        // SAFETY: not NULL; the caller promises room for a shouter_pending_t.
        unsafe { out.write(shouter.under_way.add(pending)) };
        Ok(())
    })
}

/// As shouter_push, for a tensor in the memory of an NVIDIA GPU: see shouter_allreduce_cuda for `data`, `stream` and what is refused.
///
/// Returns at once; what the trainer enqueues in `stream` afterwards runs while the tensor travels. The elements are read after
/// what `stream` holds at the call, and nobody else touches them until shouter_wait has returned; then the result is there for
/// any stream. `stream` may be destroyed after the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_push_cuda(
    shouter: *const Shouter,
    tensor: u32,
    data: *mut c_void,
    stream: *mut c_void,
    out: *mut Pending,
) -> Status {
    guard(|| {
        // SAFETY: NULL or live, as the module demands of its callers.
        let shouter = unsafe { live(shouter) }?;
        if out.is_null() {
            return Err(null("out"));
        }
        #[cfg(feature = "cuda")]
        {
            let (data, stream) = (data.addr() as u64, stream.addr() as u64);
            // SAFETY: not NULL; the rest is the caller's promise.
            let pending = unsafe { shouter.group.push_cuda(TensorId(tensor), data, stream) }?;
            // SAFETY: not NULL; the caller promises room for a shouter_pending_t.
            unsafe { out.write(shouter.under_way.add(pending)) };
            Ok(())
        }
        #[cfg(not(feature = "cuda"))]
        {
            let _ = (shouter, data, tensor, stream);
            Err(no_cuda())
        }
    })
}

/// Waits until a pushed tensor holds its result and is the caller's again. Once for each push.
///
/// `timeout_ms` is SHOUTER_DEFAULT_TIMEOUT, or a time in milliseconds. After SHOUTER_ERROR_TIMEOUT the operation is still under
/// way and may be waited for again; every other status ends it, and the buffer is the caller's again. SHOUTER_ERROR_ARGUMENT at once
/// where `pending` is no operation under way of this group: it was waited for before, or another thread waits for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_wait(shouter: *const Shouter, pending: Pending, timeout_ms: i64) -> Status {
    guard(|| {
        // SAFETY: NULL or live, as the module demands of its callers.
        let shouter = unsafe { live(shouter) }?;
        let timeout = match timeout_ms {
            types::SHOUTER_DEFAULT_TIMEOUT => None,
            0.. => Some(Duration::from_millis(timeout_ms.unsigned_abs()).min(types::LONGEST_WAIT)),
            _ => {
                let why = format!("timeout_ms is {timeout_ms}; use SHOUTER_DEFAULT_TIMEOUT, or 0 or more");
                return Err(Error::Argument(why));
            }
        };
        let operation = shouter.under_way.take(pending)?;
        shouter.group.wait(operation, timeout).map_err(|WaitError { error, pending: left }| {
            if let Some(operation) = left {
                shouter.under_way.put_back(pending, operation);
            }
            error
        })
    })
}

/// Waits until every rank has called it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_barrier(shouter: *const Shouter) -> Status {
    // SAFETY: NULL or live, as the module demands of its callers.
    guard(|| unsafe { group(shouter) }?.barrier())
}

/// Tells which step of the training the next operations belong to: for error messages and traces.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_set_step(shouter: *const Shouter, step: u64) -> Status {
    guard(|| {
        // SAFETY: NULL or live, as the module demands of its callers.
        unsafe { group(shouter) }?.set_step(step);
        Ok(())
    })
}

/// What a library without CUDA says.
#[cfg(not(feature = "cuda"))]
fn no_cuda() -> Error {
    Error::accelerator("this libshouter.a has no CUDA; build it with the feature cuda")
}

/// Checks what can be checked of a buffer from C: NULL (allowed when empty), alignment, a length that fits memory.
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
