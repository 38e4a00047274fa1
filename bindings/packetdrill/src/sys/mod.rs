//! The C interface. All unsafe code is here and below: pointers are read and written, nothing else.
//!
//! The caller's side of the contract is packetdrill's: `userdata` came from `packetdrill_interface_init` and was not
//! given to `free`, buffers are as long as their lengths say, and pointers that may be null are checked.
#![allow(unsafe_code, reason = "the interface is C's")]

mod address;
mod calls;
mod control;
mod memory;
mod table;

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::errno::{Errno, Result};
use crate::flags::Setup;
use crate::host::Host;
pub use table::PacketdrillInterface;

/// Sets errno.
fn set_errno(number: c_int) {
    // SAFETY: the location is the calling thread's own, and valid as long as the thread.
    unsafe { *libc::__errno_location() = number };
}

/// Runs a call on the host behind `userdata`. An error or a panic becomes -1 and errno.
fn run<T: From<i8>>(userdata: *mut c_void, call: impl FnOnce(&Host) -> Result<T>) -> T {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        if userdata.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        // SAFETY: the host that packetdrill_interface_init made and that free has not let go of; the count goes up by one for
        // the Arc that goes away at the end of the call, so that the host is there until then even if free is called meanwhile.
        let host = unsafe {
            Arc::increment_strong_count(userdata.cast::<Host>());
            Arc::from_raw(userdata.cast::<Host>())
        };
        call(&host)
    }));
    match outcome.unwrap_or(Err(Errno(libc::EIO))) {
        Ok(value) => value,
        Err(Errno(number)) => {
            set_errno(number);
            T::from(-1)
        }
    }
}

/// Makes a stack and fills `interface`. If `flags` are invalid, prints the error on standard error and leaves
/// `userdata` null: every call then fails with EFAULT.
///
/// # Safety
/// `flags` is null or a string; `interface` is null or has room for the structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn packetdrill_interface_init(
    flags: *const c_char,
    interface: *mut PacketdrillInterface,
) {
    if interface.is_null() {
        return;
    }
    let made = catch_unwind(|| {
        let flags = if flags.is_null() {
            ""
        } else {
            // SAFETY: the caller's string, which ends with a zero.
            unsafe { CStr::from_ptr(flags) }.to_str().map_err(|error| error.to_string())?
        };
        Setup::parse(flags).and_then(Host::new)
    });
    let userdata = match made.unwrap_or_else(|_| Err("a panic".to_owned())) {
        Ok(host) => Arc::into_raw(Arc::new(host)).cast_mut().cast(),
        Err(why) => {
            eprintln!("libshouter_packetdrill: {why}");
            ptr::null_mut()
        }
    };
    // SAFETY: the caller's room for the structure, which needs not be initialised.
    unsafe { interface.write(table::filled(userdata)) };
}

/// Releases the stack. Waiting calls end with EBADF first.
///
/// # Safety
/// `userdata` is as in the module's documentation; no call begins after this one.
unsafe extern "C" fn free(userdata: *mut c_void) {
    if userdata.is_null() {
        return;
    }
    // A panic cannot be reported any more.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: made by Arc::into_raw in packetdrill_interface_init, and not let go of before.
        let host = unsafe { Arc::from_raw(userdata.cast::<Host>()) };
        host.close();
    }));
}
