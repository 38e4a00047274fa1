//! The library's log, for programs not written in Rust: on standard error, or through a callback.
#![allow(unsafe_code, reason = "a callback and a string from C; what they promise is said at the function")]

use std::ffi::{CString, c_char, c_void};

use shouter::Error;
use shouter::log::{self, Line, Sink};

use crate::error::{Status, guard};
use crate::handle::text;

/// Something failed, for good.
pub const SHOUTER_LOG_ERROR: i32 = 1;
/// Something is not as it should be; the group goes on.
pub const SHOUTER_LOG_WARN: i32 = 2;
/// What was chosen, and why; which ports, devices and addresses were found.
pub const SHOUTER_LOG_INFO: i32 = 3;
/// Single events, such as a connection that is tried again.
pub const SHOUTER_LOG_DEBUG: i32 = 4;
/// The least of all.
pub const SHOUTER_LOG_TRACE: i32 = 5;

/// What takes a line of the log: `context` as it was given, one of SHOUTER_LOG_ERROR to SHOUTER_LOG_TRACE, the rank that says it
/// (-1 as long as it has none), and one line of text in UTF-8 without a line end, which is valid during the call.
pub type Log = Option<unsafe extern "C" fn(context: *mut c_void, level: i32, rank: i32, text: *const c_char)>;

/// A callback and its context.
struct Callback {
    call: unsafe extern "C" fn(*mut c_void, i32, i32, *const c_char),
    context: *mut c_void,
}

// SAFETY: shouter_set_log demands a callback that may be called from any thread with this context.
unsafe impl Send for Callback {}
// SAFETY: as for Send, and from several threads at once.
unsafe impl Sync for Callback {}

impl Callback {
    fn take(&self, line: &Line<'_>) {
        // A line has no control characters, and so no zero.
        let Ok(text) = CString::new(line.text) else { return };
        let level = match line.level.as_str() {
            "ERROR" => SHOUTER_LOG_ERROR,
            "WARN" => SHOUTER_LOG_WARN,
            "INFO" => SHOUTER_LOG_INFO,
            "DEBUG" => SHOUTER_LOG_DEBUG,
            _ => SHOUTER_LOG_TRACE,
        };
        let rank = line.rank.and_then(|rank| i32::try_from(rank).ok()).unwrap_or(-1);
        // SAFETY: the promise of the caller of shouter_set_log; the text lives until the call has returned.
        unsafe { (self.call)(self.context, level, rank, text.as_ptr()) }
    }
}

/// Sets what the library logs, and where to. Without this call it logs to standard error what SHOUTER_LOG says, from
/// shouter_init on.
///
/// `filter` is a level (error, warn, info, debug, trace or off), or levels by module such as "warn,shouter::channel=debug"; NULL is
/// what SHOUTER_LOG says, and warnings if it is not set. `log` takes each line in place of standard error; NULL is standard
/// error. It is called from any thread, also from several at once and from those that drive the network: it returns soon, throws
/// nothing, and calls nothing of this library. What was set before is not called any more when this has returned.
/// May be called before shouter_init, and at any time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shouter_set_log(filter: *const c_char, log: Log, context: *mut c_void) -> Status {
    guard(|| {
        let filter = match filter.is_null() {
            true => None,
            // SAFETY: not NULL; the caller promises a string.
            false => Some(unsafe { text(filter, "filter") }?),
        };
        let sink = log.map(|call| {
            let callback = Callback { call, context };
            Box::new(move |line: &Line<'_>| callback.take(line)) as Sink
        });
        log::set(filter, sink).map_err(|why| Error::Argument(why.to_string()))
    })
}
