//! Collectives in XLA's programs: [`run`] is called by the handler of `shouter.jax` (handler.cc), on XLA's threads.
//!
//! A compiled program outlives the groups of the process, so it has a group's number, not its address.
#![allow(unsafe_code, reason = "buffers of XLA, which are valid during a call")]

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
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

/// The number of a group, the same for each call.
pub(crate) fn number_of(group: &Arc<shouter::Group>) -> i64 {
    let mut groups = GROUPS.lock().unwrap_or_else(PoisonError::into_inner);
    let own = Arc::downgrade(group);
    let known = groups.iter().find(|(number, known)| **number != WORLD && known.ptr_eq(&own));
    if let Some((number, _)) = known {
        return *number;
    }
    // Numbers are not used again: a program of a group that has ended must not reach another one.
    let next = groups.keys().next_back().map_or(WORLD + 1, |last| last + 1);
    groups.insert(next, own);
    next
}

/// Refuses a reduction or an element type that the library does not have.
#[pyfunction]
pub(crate) fn check(py: Python<'_>, op: &str, dtype: &str) -> PyResult<()> {
    let known = call::op(op).and_then(|_| call::dtype(dtype));
    known.map(drop).map_err(|why| raised(py, &why))
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

/// Runs a collective of a group on `count` buffers, which are all started before the first is waited for. Returns whether it ended well;
/// else `error` has the reason, a string of at most `room` bytes.
///
/// # Safety
/// `kind` and `op` are strings; the parts' inputs can be read and their outputs written until it returns; `error` has `room` bytes.
unsafe extern "C" fn run(
    group: i64,
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
        collective(group, kind, op, root, parts)
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

fn collective(number: i64, kind: &str, op: &str, root: u32, parts: &[Part]) -> Result<(), Error> {
    let group = GROUPS.lock().unwrap_or_else(PoisonError::into_inner).get(&number).and_then(Weak::upgrade);
    let group = group.ok_or_else(|| {
        Error::Argument(match number {
            WORLD => "there is no group; call shouter.init first".into(),
            _ => "the group of this compiled program is closed; trace it anew with another group".into(),
        })
    })?;
    let (kind, op) = (call::kind(kind)?, call::op(op)?);
    let mut works = Vec::with_capacity(parts.len());
    let mut ended = Ok(());
    for part in parts {
        match start(&group, (kind, op, root), part) {
            Ok(work) => works.push(work),
            Err(why) => {
                ended = Err(why);
                break;
            }
        }
    }
    for work in works {
        // The buffers are XLA's again when this returns, so each is waited for.
        let result = work.wait(None);
        ended = ended.and(result);
    }
    ended
}

fn start(
    group: &shouter::Group,
    (kind, op, root): (shouter::Collective, shouter::ReduceOp, u32),
    part: &Part,
) -> Result<shouter::Work, Error> {
    // SAFETY: handler.cc gives constants.
    let dtype = call::dtype(unsafe { text(part.dtype) }?)?;
    let (mut input, output): (Span, Span) =
        ((part.input as usize, part.input_bytes), (part.output as usize, part.output_bytes));
    if kind == shouter::Collective::Broadcast {
        // It has one tensor.
        if group.rank() == root && input.0 != output.0 {
            // SAFETY: both are `bytes` long, and XLA's buffers are the same or apart.
            unsafe { std::ptr::copy_nonoverlapping(part.input, part.output, input.1.min(output.1)) };
        }
        input = (0, 0);
    }
    let call =
        Call { kind, input, output, dtype, op, root, factor: None, counts: Counts::default(), stream: None };
    loop {
        match sys::start(group, &call) {
            Err(Error::WouldBlock { .. }) => {}
            started => return started,
        }
    }
}
