//! Statuses, the last error of each thread, and the guard that every call runs under.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use shouter::Error;

/// What a call returns: SHOUTER_OK, or one of the SHOUTER_ERROR_ numbers. shouter_last_error says more.
pub type Status = i32;

/// The call did what it promises.
pub const SHOUTER_OK: i32 = 0;
/// The configuration cannot be used; nothing was started.
pub const SHOUTER_ERROR_CONFIG: i32 = 1;
/// The group did not come together.
pub const SHOUTER_ERROR_JOIN: i32 = 2;
/// A port, a link or memory could not be opened.
pub const SHOUTER_ERROR_DEVICE: i32 = 3;
/// An argument cannot be used: a null pointer, an unknown number; nothing was started.
pub const SHOUTER_ERROR_ARGUMENT: i32 = 4;
/// Ranks disagree about a tensor or an operation.
pub const SHOUTER_ERROR_MISMATCH: i32 = 5;
/// A rank is gone; the content of the buffers under way is undefined.
pub const SHOUTER_ERROR_PEER_FAILED: i32 = 6;
/// The operation's deadline passed, here or on another rank that waited for the same ones, which ends it.
pub const SHOUTER_ERROR_DEADLINE: i32 = 7;
/// The group was closed, or failed before.
pub const SHOUTER_ERROR_CLOSED: i32 = 8;
/// A fault of this library; please report it.
pub const SHOUTER_ERROR_INTERNAL: i32 = 9;
/// The time-out given to shouter_wait passed: the operation is still under way, and its memory not the caller's yet.
pub const SHOUTER_ERROR_TIMEOUT: i32 = 10;
/// A GPU or its driver cannot be used, or has failed.
pub const SHOUTER_ERROR_ACCELERATOR: i32 = 11;
/// As many operations are under way as can be, and none has ended within a second; nothing was started.
pub const SHOUTER_ERROR_WOULD_BLOCK: i32 = 12;

/// A rank's process was killed or has crashed, or its host or every connection to it is gone.
pub const SHOUTER_REASON_LOST: i32 = 1;
/// A rank left while operations were under way.
pub const SHOUTER_REASON_ABORTED: i32 = 2;
/// A rank did not take part in an operation before the deadline.
pub const SHOUTER_REASON_LATE: i32 = 3;
/// A rank runs other operations than the other ranks.
pub const SHOUTER_REASON_DIVERGED: i32 = 4;
/// A rank sent what no rank of this version and configuration sends.
pub const SHOUTER_REASON_PROTOCOL: i32 = 5;
/// A rank's GPU failed.
pub const SHOUTER_REASON_ACCELERATOR: i32 = 6;
/// A rank has lost its own port, device or address, or no other host answers it, as it said itself.
pub const SHOUTER_REASON_DISCONNECTED: i32 = 7;
/// This rank was stopped or cut off for longer than heartbeat_timeout, as it has found out itself, and the others have given it up: there it is
/// SHOUTER_REASON_LOST.
pub const SHOUTER_REASON_STOPPED: i32 = 8;
/// A rank is alive, and messages to it do not arrive: the network drops packets of their size, say.
pub const SHOUTER_REASON_UNREACHABLE: i32 = 9;

/// An all-reduce.
pub const SHOUTER_OPERATION_ALLREDUCE: i32 = 1;
/// shouter_broadcast.
pub const SHOUTER_OPERATION_BROADCAST: i32 = 2;
/// shouter_barrier.
pub const SHOUTER_OPERATION_BARRIER: i32 = 3;
/// shouter_register.
pub const SHOUTER_OPERATION_REGISTER: i32 = 4;
/// shouter_finalize.
pub const SHOUTER_OPERATION_FINALIZE: i32 = 5;
/// shouter_reduce.
pub const SHOUTER_OPERATION_REDUCE: i32 = 6;
/// shouter_allgather.
pub const SHOUTER_OPERATION_ALLGATHER: i32 = 7;
/// shouter_reduce_scatter.
pub const SHOUTER_OPERATION_REDUCE_SCATTER: i32 = 8;
/// shouter_gather.
pub const SHOUTER_OPERATION_GATHER: i32 = 9;
/// shouter_scatter.
pub const SHOUTER_OPERATION_SCATTER: i32 = 10;
/// shouter_alltoall.
pub const SHOUTER_OPERATION_ALLTOALL: i32 = 11;
/// shouter_allgatherv.
pub const SHOUTER_OPERATION_ALLGATHERV: i32 = 12;
/// shouter_gatherv.
pub const SHOUTER_OPERATION_GATHERV: i32 = 13;
/// shouter_scatterv.
pub const SHOUTER_OPERATION_SCATTERV: i32 = 14;
/// shouter_reduce_scatterv.
pub const SHOUTER_OPERATION_REDUCE_SCATTERV: i32 = 15;
/// shouter_alltoallv.
pub const SHOUTER_OPERATION_ALLTOALLV: i32 = 16;
/// shouter_scan.
pub const SHOUTER_OPERATION_SCAN: i32 = 17;
/// shouter_exscan.
pub const SHOUTER_OPERATION_EXSCAN: i32 = 18;
/// shouter_send, or a send of shouter_exchange.
pub const SHOUTER_OPERATION_SEND: i32 = 30;
/// shouter_recv, or a receive of shouter_exchange.
pub const SHOUTER_OPERATION_RECV: i32 = 31;
/// shouter_window_put.
pub const SHOUTER_OPERATION_PUT: i32 = 40;
/// shouter_window_get.
pub const SHOUTER_OPERATION_GET: i32 = 41;
/// shouter_window_accumulate.
pub const SHOUTER_OPERATION_ACCUMULATE: i32 = 42;
/// shouter_window_fetch_and_op.
pub const SHOUTER_OPERATION_FETCH_AND_OP: i32 = 43;
/// shouter_window_compare_and_swap.
pub const SHOUTER_OPERATION_COMPARE_AND_SWAP: i32 = 44;
/// shouter_window_create.
pub const SHOUTER_OPERATION_WINDOW: i32 = 45;
/// shouter_group_create, shouter_group_split, shouter_group_duplicate.
pub const SHOUTER_OPERATION_GROUP: i32 = 46;

/// How many missing ranks shouter_error_info_t names.
pub const SHOUTER_MISSING_NAMED: usize = 16;
/// Bytes for a tensor's name in shouter_error_info_t, the zero at its end included.
pub const SHOUTER_NAME_BYTES: usize = 128;
/// Bytes for the text in shouter_error_info_t, the zero at its end included.
pub const SHOUTER_TEXT_BYTES: usize = 1024;

/// What is known of an error, for programs: see shouter_last_error_info. Later versions may add fields at the end.
#[repr(C)]
#[derive(Clone, Debug)]
pub struct ErrorInfo {
    /// Before the call: sizeof(shouter_error_info_t). After it: how many bytes of it this library has filled.
    pub size: usize,
    /// The status of the call that failed; SHOUTER_OK if none has failed on this thread.
    pub status: Status,
    /// The rank that is to blame; -1 if there is none, or it is not known.
    pub rank: i32,
    /// What happened to it: one of SHOUTER_REASON_LOST to SHOUTER_REASON_UNREACHABLE; 0 if there is none. With SHOUTER_ERROR_MISMATCH it is
    /// SHOUTER_REASON_DIVERGED where the group has ended, and 0 where it goes on.
    pub reason: i32,
    /// The call: one of SHOUTER_OPERATION_ALLREDUCE to SHOUTER_OPERATION_GROUP; 0 if it is none of these.
    pub operation: i32,
    /// The tensor, as shouter_register has numbered it; -1 if there is none, or it is not registered.
    pub tensor: i64,
    /// The trainer's step at the call, as shouter_set_step gave it; 0 before that, and if there is none.
    pub step: u64,
    /// Nanoseconds that the operation had (SHOUTER_ERROR_DEADLINE), or that were waited (SHOUTER_ERROR_TIMEOUT,
    /// SHOUTER_ERROR_WOULD_BLOCK); else 0.
    pub after_ns: u64,
    /// The rank whose GPU may still use the tensor, whose memory must stay as it is then; -1 if there is none.
    pub in_use_by: i32,
    /// How many entries of `missing` are filled.
    pub missing_count: u32,
    /// The ranks that did not come in time, in order: the first SHOUTER_MISSING_NAMED of them.
    pub missing: [u32; SHOUTER_MISSING_NAMED],
    /// The tensor's name in UTF-8, cut off where it is longer; empty if there is none.
    pub tensor_name: [c_char; SHOUTER_NAME_BYTES],
    /// The text of shouter_last_error, cut off where it is longer.
    pub text: [c_char; SHOUTER_TEXT_BYTES],
}

/// The last error of a thread.
struct Last {
    text: CString,
    error: Error,
}

thread_local! {
    static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
}

/// Runs a call: its error, or its panic, becomes the thread's last error and a status.
pub(crate) fn guard(call: impl FnOnce() -> Result<(), Error>) -> Status {
    let outcome = catch_unwind(AssertUnwindSafe(call))
        .unwrap_or_else(|panic| Err(Error::Internal(format!("a panic: {}", message_of(&*panic)))));
    match outcome {
        Ok(()) => SHOUTER_OK,
        Err(error) => {
            let code = error.code();
            remember(error);
            code
        }
    }
}

/// Runs a getter, which has a value to fall back to instead of a status.
pub(crate) fn guard_value<T>(fallback: T, call: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or(fallback)
}

/// The error for a null pointer that is not allowed.
pub(crate) fn null(what: &str) -> Error {
    Error::Argument(format!("{what} is NULL"))
}

/// Checks that a pointer from C is not NULL.
pub(crate) fn not_null<T>(pointer: *const T, what: &str) -> Result<(), Error> {
    if pointer.is_null() { Err(null(what)) } else { Ok(()) }
}

/// Keeps an error for the calling thread. A thread that is being torn down keeps none.
pub(crate) fn remember(error: Error) {
    let bytes: Vec<u8> = error.to_string().bytes().filter(|&b| b != 0).collect();
    let text = CString::new(bytes).unwrap_or_default();
    let _ = LAST.try_with(|last| *last.borrow_mut() = Some(Last { text, error }));
}

/// As much of a text as fits, cut between characters, with a zero at its end.
fn fill<const N: usize>(text: &str) -> [c_char; N] {
    let mut filled = [0; N];
    let end = (0..N.min(text.len() + 1)).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    for (into, byte) in filled.iter_mut().zip(text.bytes().take(end).filter(|&byte| byte != 0)) {
        *into = byte as c_char;
    }
    filled
}

impl ErrorInfo {
    fn new(last: Option<&Last>) -> Self {
        let error = last.map(|last| &last.error);
        let rank = |rank: Option<u32>| rank.and_then(|rank| i32::try_from(rank).ok()).unwrap_or(-1);
        let all = error.map(Error::missing).unwrap_or_default();
        let mut missing = [0; SHOUTER_MISSING_NAMED];
        missing.iter_mut().zip(all).for_each(|(into, rank)| *into = *rank);
        let tensor = error.and_then(Error::tensor);
        let after = error.and_then(Error::after).unwrap_or_default();
        Self {
            size: size_of::<Self>(),
            status: error.map_or(SHOUTER_OK, Error::code),
            rank: rank(error.and_then(Error::rank)),
            reason: error.and_then(Error::reason).map_or(0, |reason| reason as i32),
            operation: error.and_then(Error::operation).map_or(0, |operation| operation as i32),
            tensor: tensor.map_or(-1, |tensor| tensor.id.0.into()),
            step: error.and_then(Error::step).unwrap_or(0),
            after_ns: u64::try_from(after.as_nanos()).unwrap_or(u64::MAX),
            in_use_by: rank(error.and_then(Error::in_use_by)),
            missing_count: all.len().min(SHOUTER_MISSING_NAMED) as u32,
            missing,
            tensor_name: fill(tensor.map_or("", |tensor| &tensor.name)),
            text: fill(last.and_then(|last| last.text.to_str().ok()).unwrap_or("")),
        }
    }
}

fn message_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}

/// Why the calling thread's last failed call failed: who, what, and what to do next. An empty string if none has failed.
/// The text is valid until the next call of this library on the same thread.
#[allow(unsafe_code, reason = "an exported symbol")]
#[unsafe(no_mangle)]
pub extern "C" fn shouter_last_error() -> *const c_char {
    const NONE: &CStr = c"";
    let text = |last: &RefCell<Option<Last>>| last.borrow().as_ref().map_or(NONE, |last| &last.text).as_ptr();
    LAST.try_with(text).unwrap_or(NONE.as_ptr())
}

/// What is known of the calling thread's last error, copied to `*info`: which rank, why, during which call, of which tensor.
///
/// ```c
/// shouter_error_info_t why;
/// why.size = sizeof why;
/// if (shouter_wait(work, SHOUTER_DEFAULT_TIMEOUT) != SHOUTER_OK
///     && shouter_last_error_info(&why) == SHOUTER_OK && why.status == SHOUTER_ERROR_PEER_FAILED)
///     fprintf(stderr, "without rank %d from step %llu on\n", (int)why.rank, (unsigned long long)why.step);
/// ```
///
/// `info->size` must be set before the call; at most so many bytes are written, so a program that was compiled with an earlier
/// header gets the fields that it knows. After the call `info->size` is how many bytes of it are filled. SHOUTER_ERROR_ARGUMENT if
/// `info` is NULL or its size below that of the first two fields. This call leaves the thread's last error as it is.
#[allow(unsafe_code, reason = "a pointer from C, which is checked for NULL")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_last_error_info(info: *mut ErrorInfo) -> Status {
    if info.is_null() {
        return SHOUTER_ERROR_ARGUMENT;
    }
    // SAFETY: not NULL; the caller promises a struct of at least the size that its first field says.
    let room = unsafe { (&raw const (*info).size).read() };
    if room < std::mem::offset_of!(ErrorInfo, rank) {
        return SHOUTER_ERROR_ARGUMENT;
    }
    let filled = guard_value(None, || {
        let known = |last: &RefCell<Option<Last>>| ErrorInfo::new(last.borrow().as_ref());
        Some(LAST.try_with(known).unwrap_or_else(|_| ErrorInfo::new(None)))
    });
    let Some(mut filled) = filled else { return SHOUTER_ERROR_INTERNAL };
    filled.size = room.min(size_of::<ErrorInfo>());
    // SAFETY: so many bytes are there on both sides.
    unsafe { info.cast::<u8>().copy_from_nonoverlapping((&raw const filled).cast(), filled.size) };
    SHOUTER_OK
}

/// The name of a status, such as "deadline"; "unknown" for a number that is none. The text is static.
#[allow(unsafe_code, reason = "an exported symbol")]
#[unsafe(no_mangle)]
pub extern "C" fn shouter_error_name(status: Status) -> *const c_char {
    let name = match status {
        SHOUTER_OK => c"ok",
        SHOUTER_ERROR_CONFIG => c"configuration",
        SHOUTER_ERROR_JOIN => c"join",
        SHOUTER_ERROR_DEVICE => c"device",
        SHOUTER_ERROR_ARGUMENT => c"argument",
        SHOUTER_ERROR_MISMATCH => c"mismatch",
        SHOUTER_ERROR_PEER_FAILED => c"peer failed",
        SHOUTER_ERROR_DEADLINE => c"deadline",
        SHOUTER_ERROR_CLOSED => c"closed",
        SHOUTER_ERROR_INTERNAL => c"internal",
        SHOUTER_ERROR_TIMEOUT => c"timeout",
        SHOUTER_ERROR_ACCELERATOR => c"accelerator",
        SHOUTER_ERROR_WOULD_BLOCK => c"would block",
        _ => c"unknown",
    };
    name.as_ptr()
}
