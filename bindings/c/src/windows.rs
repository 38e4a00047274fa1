//! Windows: memory of each rank that the others read and write without the owner's participation.
//!
//! [`shouter_window_create`] documents the common rules, for readers of the C header.
#![allow(unsafe_code, reason = "pointers from C, checked for NULL; the rest is the caller's promise")]

use std::ffi::c_void;

use shouter::{AccessCall, Error, WindowAction};

use crate::error::{Status, guard, not_null, null};
use crate::handle::{Shouter, group};
use crate::p2p::SHOUTER_ANY_RANK;
use crate::types::{self, Dtype, Op};

/// In the place of a reduction of shouter_window_accumulate or shouter_window_fetch_and_op: writes the elements.
pub const SHOUTER_REPLACE: i32 = 32;
/// The same: changes nothing, so that shouter_window_fetch_and_op reads. `data` is not looked at.
pub const SHOUTER_KEEP: i32 = 33;

/// Two elements, aligned for any type.
#[repr(C, align(16))]
struct Pair([u8; 32]);

/// Makes a window of `count` elements at `memory` of each rank, which all ranks may access from then on; `*window` is its number. Every rank
/// calls it, as it would a collective, with one dtype and as many elements as it likes. The memory must be aligned to its elements and
/// stay where it is until shouter_window_free or shouter_finalize has returned; meanwhile this process may touch what no access is under
/// way to: after shouter_window_fence, say. Its bytes belong to one open window at a time, which is not checked.
///
/// This and the following functions: windows are of one group, and number its ranks as it does. An access names the rank `target` and the first element
/// `offset` of its part. Those of one rank to one target take effect in the order in which they were made, reads among them; each element is
/// accessed atomically. Where the target's memory is of shouter_alloc, with elements of up to 8 bytes, ranks of its host access it by themselves,
/// within the call. Other accesses are served by the target whenever its group is driven: all the time with mode=dedicated, else within calls, and by a
/// helper thread every 0.5 to 5 ms. The group goes on after SHOUTER_ERROR_ARGUMENT (no such window or rank, a range that is not within the
/// target's part, another dtype than the window's), SHOUTER_ERROR_MISMATCH (the target has freed the window, or ranks make different ones)
/// and SHOUTER_ERROR_DEADLINE (the target has not served it within the group's own deadline).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_window_create(
    shouter: *const Shouter,
    memory: *mut c_void,
    count: usize,
    dtype: Dtype,
    window: *mut u32,
) -> Status {
    guard(|| {
        // SAFETY: no other thread ends it meanwhile, as the modules `handle` and `work` demand of their callers.
        let group = unsafe { group(shouter) }?;
        not_null(window, "window")?;
        // SAFETY: the caller's promise about the memory.
        let id = unsafe { group.open_window(memory.cast(), count, types::dtype(dtype)?) }?;
        // SAFETY: not NULL; the caller promises room for a number.
        unsafe { window.write(id) };
        Ok(())
    })
}

/// Writes `count` elements at `data`, which may be changed when shouter_window_flush, or shouter_window_fence, has returned. Returns when it
/// has started, and where this rank accesses the target's memory by itself, when it has taken effect; so do the next two.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_window_put(
    shouter: *const Shouter,
    window: u32,
    data: *const c_void,
    count: usize,
    dtype: Dtype,
    target: u32,
    offset: u64,
) -> Status {
    // SAFETY: the caller's promise.
    guard(|| unsafe {
        let call =
            call((window, target, offset), WindowAction::Put, (data, std::ptr::null_mut()), (count, dtype))?;
        group(shouter)?.start_window_access(&call)
    })
}

/// Reads `count` elements to `into`, where they are when shouter_window_flush, or shouter_window_fence, has returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_window_get(
    shouter: *const Shouter,
    window: u32,
    into: *mut c_void,
    count: usize,
    dtype: Dtype,
    target: u32,
    offset: u64,
) -> Status {
    // SAFETY: the caller's promise.
    guard(|| unsafe {
        let call =
            call((window, target, offset), WindowAction::Get, (std::ptr::null(), into), (count, dtype))?;
        group(shouter)?.start_window_access(&call)
    })
}

/// Changes the target's elements with the `count` at `data`: `op` is SHOUTER_SUM or its like, but no SHOUTER_AVG, or
/// SHOUTER_REPLACE. They may be changed when shouter_window_flush, or shouter_window_fence, has returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_window_accumulate(
    shouter: *const Shouter,
    window: u32,
    data: *const c_void,
    count: usize,
    dtype: Dtype,
    op: Op,
    target: u32,
    offset: u64,
) -> Status {
    // SAFETY: the caller's promise.
    guard(|| unsafe {
        let action = match op {
            SHOUTER_REPLACE => WindowAction::Put,
            SHOUTER_KEEP => {
                let why = "an accumulate with SHOUTER_KEEP changes nothing; use shouter_window_get to read";
                return Err(Error::Argument(why.into()));
            }
            op => WindowAction::Accumulate(types::op(op)?),
        };
        let call = call((window, target, offset), action, (data, std::ptr::null_mut()), (count, dtype))?;
        group(shouter)?.start_window_access(&call)
    })
}

/// As shouter_window_accumulate, and writes what the elements were before to `before`; `op` may be SHOUTER_KEEP, too. Returns when that is
/// there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_window_fetch_and_op(
    shouter: *const Shouter,
    window: u32,
    data: *const c_void,
    before: *mut c_void,
    count: usize,
    dtype: Dtype,
    op: Op,
    target: u32,
    offset: u64,
) -> Status {
    // SAFETY: the caller's promise.
    guard(|| unsafe {
        let action = match op {
            SHOUTER_REPLACE => WindowAction::Swap,
            SHOUTER_KEEP => WindowAction::Get,
            op => WindowAction::FetchAndOp(types::op(op)?),
        };
        let call = call((window, target, offset), action, (data, before), (count, dtype))?;
        group(shouter)?.window_access(&call)
    })
}

/// Writes the element at `desired` if the target's has the bits of that at `expected`, and writes what it was before to `before`. Returns
/// when that is there. Only integers and truth values have it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_window_compare_and_swap(
    shouter: *const Shouter,
    window: u32,
    expected: *const c_void,
    desired: *const c_void,
    before: *mut c_void,
    dtype: Dtype,
    target: u32,
    offset: u64,
) -> Status {
    guard(|| {
        // SAFETY: no other thread ends it meanwhile, as the modules `handle` and `work` demand of their callers.
        let group = unsafe { group(shouter) }?;
        if expected.is_null() || desired.is_null() || before.is_null() {
            return Err(null("expected, desired or before"));
        }
        let size = types::dtype(dtype)?.size();
        let (mut data, mut into) = (Pair([0; 32]), Pair([0; 32]));
        // SAFETY: none is NULL; the caller promises an element at each, which is 16 bytes at most. The buffers outlive the access.
        unsafe {
            data.0.as_mut_ptr().copy_from_nonoverlapping(expected.cast(), size);
            data.0.as_mut_ptr().add(size).copy_from_nonoverlapping(desired.cast(), size);
            let buffers = (data.0.as_ptr().cast(), into.0.as_mut_ptr().cast());
            group.window_access(&call(
                (window, target, offset),
                WindowAction::CompareAndSwap,
                buffers,
                (1, dtype),
            )?)?;
            before.cast::<u8>().copy_from_nonoverlapping(into.0.as_ptr(), size);
        }
        Ok(())
    })
}

/// Waits until all accesses of this rank to the part of rank `target`, or with SHOUTER_ANY_RANK to those of all, have taken effect there. The
/// status is that of one that has failed, the first of its target; the next flush says another's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_window_flush(shouter: *const Shouter, window: u32, target: i64) -> Status {
    guard(|| {
        // SAFETY: no other thread ends it meanwhile, as the modules `handle` and `work` demand of their callers.
        let group = unsafe { group(shouter) }?;
        let target = match u32::try_from(target) {
            Ok(rank) => Some(rank),
            Err(_) if target == SHOUTER_ANY_RANK => None,
            Err(_) => {
                return Err(Error::Argument(format!("{target} is no rank; use SHOUTER_ANY_RANK for all")));
            }
        };
        group.flush_window(window, target)
    })
}

/// Waits until all accesses of all ranks have taken effect. Every rank calls it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_window_fence(shouter: *const Shouter, window: u32) -> Status {
    // SAFETY: no other thread ends it meanwhile, as the modules `handle` and `work` demand of their callers.
    guard(|| unsafe { group(shouter) }?.fence_window(window))
}

/// Ends a window, together with all ranks, when all accesses have taken effect; the memory is the caller's again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_window_free(shouter: *const Shouter, window: u32) -> Status {
    // SAFETY: no other thread ends it meanwhile, as the modules `handle` and `work` demand of their callers.
    guard(|| unsafe { group(shouter) }?.close_window(window))
}

/// An access, with the dtype checked.
fn call(
    (window, target, offset): (u32, u32, u64),
    action: WindowAction,
    (data, into): (*const c_void, *mut c_void),
    (count, dtype): (usize, Dtype),
) -> Result<AccessCall, Error> {
    let (dtype, data, into) = (types::dtype(dtype)?, data.cast(), into.cast());
    Ok(AccessCall { window, action, target, offset, count, dtype, data, into })
}
