//! Collectives in XLA's programs: [`run`] is called by the handler of `shouter.jax` (handler.cc), on XLA's threads.
//!
//! A compiled program outlives the groups of the process, so it has a group's number, not its address.
#![allow(unsafe_code, reason = "buffers of XLA, which are valid during a call")]

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use pyo3::prelude::*;
use shouter::Error;

use crate::call::{self, Call, Counts, Span};
use crate::error::raised;
use crate::sys;

/// The number of the group that `shouter.init` has made last.
const WORLD: i64 = 0;

/// The groups that programs name, by number.
static GROUPS: Mutex<BTreeMap<i64, Weak<shouter::Group>>> = Mutex::new(BTreeMap::new());

/// From now on programs without a number use this group.
pub(crate) fn set_world(group: &Arc<shouter::Group>) {
    GROUPS.lock().unwrap_or_else(PoisonError::into_inner).insert(WORLD, Arc::downgrade(group));
}

/// A number for a group, by which programs find it.
pub(crate) fn add(group: &Arc<shouter::Group>) -> i64 {
    /// Numbers are not used again: a program of a group that has ended must not reach another one.
    static LAST: AtomicI64 = AtomicI64::new(WORLD);
    let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    let mut groups = GROUPS.lock().unwrap_or_else(PoisonError::into_inner);
    groups.retain(|_, group| group.strong_count() > 0);
    groups.insert(number, Arc::downgrade(group));
    number
}

/// Refuses an element type that the library does not have, and, where there is one, a reduction that makes no sense for it.
#[pyfunction]
#[pyo3(signature = (dtype, op=None))]
pub(crate) fn check_type(py: Python<'_>, dtype: &str, op: Option<&str>) -> PyResult<()> {
    let check = || {
        let known = call::dtype(dtype)?;
        let Some(op) = op.map(call::op).transpose()? else { return Ok(()) };
        op.check(known).map_err(|why| Error::Argument(why.to_string()))
    };
    check().map_err(|why| raised(py, &why))
}

/// One buffer's part of a collective, as handler.cc has it.
#[repr(C)]
pub(crate) struct Part {
    input: *const u8,
    input_bytes: usize,
    output: *mut u8,
    output_bytes: usize,
    /// The elements' type, as a string.
    dtype: *const c_char,
}

/// The address of [`run`].
pub(crate) fn address() -> usize {
    run as *const () as usize
}

/// Runs a collective of a group on `count` buffers, which are all started before the first is waited for. The program was compiled for rank
/// `rank` of `size`. Returns whether it ended well; else `error` has the reason, a string of at most `room` bytes.
///
/// # Safety
/// `kind` and `op` are strings; the parts' inputs can be read and their outputs written until it returns; `error` has `room` bytes.
unsafe extern "C" fn run(
    group: i64,
    rank: u32,
    size: u32,
    kind: *const c_char,
    op: *const c_char,
    root: u32,
    parts: *const Part,
    count: usize,
    error: *mut c_char,
    room: usize,
) -> bool {
    let ran = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: the caller's promises; no part is no array.
        let (kind, op, parts) = unsafe {
            let parts = if count == 0 { &[][..] } else { std::slice::from_raw_parts(parts, count) };
            (text(kind)?, text(op)?, parts)
        };
        let call = Collective { kind: call::kind(kind)?, op: call::op(op)?, root };
        call.run(|| find(group, (rank, size)), parts)
    }));
    let why = match ran {
        Ok(Ok(())) => return true,
        Ok(Err(why)) => why.to_string(),
        Err(_) => "a call panicked".to_owned(),
    };
    let most = why.len().min(room.saturating_sub(1));
    let length = (0..=most).rev().find(|&at| why.is_char_boundary(at)).unwrap_or_default();
    if room > 0 {
        // SAFETY: the caller promises `room` bytes, of which `length` and a zero byte are written.
        unsafe {
            std::ptr::copy_nonoverlapping(why.as_ptr(), error.cast(), length);
            error.add(length).write(0);
        }
    }
    false
}

/// # Safety
/// It is a string.
unsafe fn text<'a>(at: *const c_char) -> Result<&'a str, Error> {
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(at) };
    text.to_str().map_err(|why| Error::Argument(why.to_string()))
}

/// The group of a program that was compiled for this rank of so many.
fn find(number: i64, compiled_for: (u32, u32)) -> Result<Arc<shouter::Group>, Error> {
    let group = GROUPS.lock().unwrap_or_else(PoisonError::into_inner).get(&number).and_then(Weak::upgrade);
    let group = group.ok_or_else(|| {
        Error::Argument(match number {
            WORLD => "there is no group, or it has been closed; call shouter.init".into(),
            _ => "the group of this compiled program is closed; trace it anew with another group".into(),
        })
    })?;
    let (rank, size) = (group.rank(), group.size());
    if compiled_for != (rank, size) {
        let (old_rank, old_size) = compiled_for;
        return Err(Error::Argument(format!(
            "this program was compiled for rank {old_rank} of {old_size}, and this is rank {rank} of {size} now; trace it anew, as by jax.clear_caches()"
        )));
    }
    Ok(group)
}

/// A collective of all its buffers.
struct Collective {
    kind: shouter::Collective,
    op: shouter::ReduceOp,
    root: u32,
}

impl Collective {
    fn run(
        &self,
        group: impl Fn() -> Result<Arc<shouter::Group>, Error>,
        parts: &[Part],
    ) -> Result<(), Error> {
        let mut works = Vec::with_capacity(parts.len());
        let mut ended = Ok(());
        for part in parts {
            match self.start(&group, part) {
                Ok(work) => works.push(work),
                Err(why) => {
                    ended = Err(why);
                    break;
                }
            }
        }
        // The group is not held meanwhile: another thread that leaves it ends these operations. Each is waited for, since the buffers are XLA's
        // again when this returns. (That a device still uses them would be an operation with tensors on GPUs, which XLA's programs for CPUs have
        // none of.)
        for work in works {
            let result = work.wait(None);
            ended = ended.and(result);
        }
        ended
    }

    fn start(
        &self,
        group: impl Fn() -> Result<Arc<shouter::Group>, Error>,
        part: &Part,
    ) -> Result<shouter::Work, Error> {
        let Self { kind, op, root } = *self;
        // SAFETY: handler.cc gives constants.
        let dtype = call::dtype(unsafe { text(part.dtype) }?)?;
        let mut input: Span = (part.input as usize, part.input_bytes);
        let output: Span = (part.output as usize, part.output_bytes);
        if kind == shouter::Collective::Broadcast {
            // It has one tensor.
            if group()?.rank() == root && input.0 != output.0 {
                // SAFETY: both are `bytes` long, and XLA's buffers are the same or apart.
                unsafe { std::ptr::copy_nonoverlapping(part.input, part.output, input.1.min(output.1)) };
            }
            input = (0, 0);
        }
        let counts = Counts::default();
        let call = Call { kind, input, output, dtype, op, root, factor: None, counts, stream: None };
        loop {
            // Found anew each time: another thread may end the group meanwhile.
            match sys::start(&*group()?, &call) {
                Err(Error::WouldBlock { .. }) => {}
                started => return started,
            }
        }
    }
}
