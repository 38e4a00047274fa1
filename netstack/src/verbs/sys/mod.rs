//! The unsafe part: every call into libibverbs. Its exports uphold the library's rules by their types:
//!
//! - a [`Domain`] is an opened device with its protection domain; all that was made on it holds it by `Arc`, so it is
//!   closed last;
//! - a [`Pair`] holds its [`Queue`], so a completion queue outlives the queue pairs that report to it;
//! - a [`Registration`] takes its registration back before the memory that it owns is unmapped, and keeps the memory for ever
//!   where that fails; a scatter/gather element borrows its region until it is posted.
//!
//! libibverbs' functions may be called from any thread (ibv_* take their own locks), so all types are `Send` and `Sync`.
#![allow(unsafe_code)]

mod completion;
mod device;
mod ffi;
mod memory;
mod queue_pair;
mod route;
#[cfg(test)]
mod tests;

use core::fmt;

pub(super) use completion::Queue;
pub(super) use device::{DeviceEvent, Domain, ListedDevice, list};
pub(super) use memory::{DmabufError, Registration, memory_lock_limit};
pub(super) use queue_pair::Pair;
pub(super) use route::{ask_routes, interface_index, interface_name};

/// An error number of errno(3).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    fn last() -> Self {
        Self::of(std::io::Error::last_os_error())
    }

    /// Of an error of the operating system's.
    fn of(error: std::io::Error) -> Self {
        Self(error.raw_os_error().unwrap_or(0))
    }

    /// The error of a function that returns an error number; some drivers return it negated.
    fn check(result: core::ffi::c_int) -> Result<(), Self> {
        if result == 0 { Ok(()) } else { Err(Self(result.saturating_abs())) }
    }
}

impl From<rustix::io::Errno> for Errno {
    fn from(errno: rustix::io::Errno) -> Self {
        Self(errno.raw_os_error())
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
