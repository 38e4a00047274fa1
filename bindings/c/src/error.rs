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
/// The operation's own deadline passed, which ends it.
pub const SHOUTER_ERROR_DEADLINE: i32 = 7;
/// The group was closed, or failed before.
pub const SHOUTER_ERROR_CLOSED: i32 = 8;
/// A fault of this library; please report it.
pub const SHOUTER_ERROR_INTERNAL: i32 = 9;
/// The time-out given to shouter_wait passed: the operation is still under way, and its buffer not the caller's yet.
pub const SHOUTER_ERROR_TIMEOUT: i32 = 10;
/// A GPU or its driver cannot be used, or has failed.
pub const SHOUTER_ERROR_ACCELERATOR: i32 = 11;

thread_local! {
    static LAST: RefCell<Option<CString>> = const { RefCell::new(None) };
}

/// Runs a call: its error, or its panic, becomes the thread's last error and a status.
pub(crate) fn guard(call: impl FnOnce() -> Result<(), Error>) -> Status {
    let outcome = catch_unwind(AssertUnwindSafe(call))
        .unwrap_or_else(|panic| Err(Error::Internal(format!("a panic: {}", message_of(&*panic)))));
    match outcome {
        Ok(()) => SHOUTER_OK,
        Err(error) => {
            remember(&error.to_string());
            error.code()
        }
    }
}

/// Runs a getter, which has a value to fall back to instead of a status.
pub(crate) fn guard_value<T>(fallback: T, call: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or(fallback)
}

/// An argument that must not be null, was.
pub(crate) fn null(what: &str) -> Error {
    Error::Argument(format!("{what} is NULL"))
}

/// Keeps a message for the calling thread. A thread that is being torn down keeps none.
fn remember(message: &str) {
    let bytes: Vec<u8> = message.bytes().filter(|&b| b != 0).collect();
    let _ = LAST.try_with(|last| *last.borrow_mut() = CString::new(bytes).ok());
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
    LAST.try_with(|last| last.borrow().as_deref().unwrap_or(NONE).as_ptr()).unwrap_or(NONE.as_ptr())
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
        _ => c"unknown",
    };
    name.as_ptr()
}
