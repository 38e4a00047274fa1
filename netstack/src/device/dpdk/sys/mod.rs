//! The unsafe part: every call into DPDK. Its exports uphold DPDK's rules by their types:
//!
//! - [`eal_init`] is called before anything else (by [`Eal`](super::Eal), a reference to which each port needs);
//! - a [`Pool`] outlives the port that draws on it, since the port holds it;
//! - a [`Queue`] can be made once per index of a started port and holds the port, and its bursts take `&mut`: one
//!   thread at a time drives a queue, and never a stopped one;
//! - an [`Lcore`] belongs to one queue, whose thread alone uses its caches;
//! - what buffers in a driver's ring refer to outlives them: their count is the port's ([`external`]), and payload is memory that a device reads while it is
//!   mapped for it ([`memory`]), or that its driver has read when a burst returns.
#![allow(unsafe_code)]

mod ethdev;
mod external;
mod hang_up;
mod interrupts;
mod lcore;
mod mbuf;
mod memory;
mod offload;

use core::ffi::{CStr, c_char, c_int};
use core::{fmt, ptr};
use std::ffi::CString;

pub(super) use ethdev::{Attached, Info, RxOffloads, Setup, Spread, StartedPort, TxOffloads};
pub(super) use hang_up::hang_up;
pub(super) use lcore::{Lcore, MAX_QUEUES};
pub(super) use mbuf::{BUFFER_OVERHEAD, BURST, Duties, Pool, Queue};
pub(super) use memory::{NotMapped, PAGE};

pub(super) use dpdk_sys::DRIVERS;

/// An error number of DPDK: those of errno(3), and a few of its own.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub(super) i32);

impl Errno {
    /// The thread that called DPDK ended without a result.
    pub(super) const UNKNOWN: Self = Self(0);
    /// `ENOTSUP` of errno(3).
    pub(super) const NOT_SUPPORTED: Self = Self(95);
    /// `ENODEV` of errno(3).
    pub(super) const NO_DEVICE: Self = Self(19);

    fn last() -> Self {
        // SAFETY: reads a thread-local of DPDK.
        Self(unsafe { dpdk_sys::shouter_dpdk_errno() })
    }

    /// The error of a function that returns a negative error number, or -1 with `rte_errno` set.
    fn of(result: c_int) -> Self {
        match (result, Self::last()) {
            (-1, last) if last.0 != 0 => last,
            _ => Self(result.saturating_neg()),
        }
    }

    fn check(result: c_int) -> Result<(), Self> {
        if result < 0 { Err(Self::of(result)) } else { Ok(()) }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: rte_strerror returns a terminated string, in a buffer of the thread or static.
        let text = unsafe { CStr::from_ptr(dpdk_sys::rte_strerror(self.0)) };
        write!(f, "{} (error {})", text.to_string_lossy(), self.0)
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Runs `rte_eal_init`. A text with a NUL inside is refused.
pub(super) fn eal_init(arguments: &[String]) -> Result<(), Errno> {
    let texts: Result<Vec<CString>, _> = arguments.iter().map(|a| CString::new(a.as_str())).collect();
    let Ok(texts) = texts else { return Err(Errno(22)) };
    let Ok(count) = c_int::try_from(texts.len()) else { return Err(Errno(7)) };
    // DPDK may keep pointers into its command line for as long as it runs, which is for ever.
    let mut pointers: Vec<*mut c_char> = texts.into_iter().map(CString::into_raw).collect();
    pointers.push(core::ptr::null_mut());
    let pointers = Box::leak(pointers.into_boxed_slice());
    // SAFETY: `pointers` is an argv: `count` terminated strings and a null pointer, writable and never freed.
    let result = unsafe { dpdk_sys::rte_eal_init(count, pointers.as_mut_ptr()) };
    Errno::check(result)
}

/// Pages that the calling thread touches first come from NUMA node `node`, where it has some. A kernel without NUMA refuses, which is no harm.
pub(super) fn prefer_node(node: u32) {
    let Some(mask) = 1_u64.checked_shl(node) else { return };
    // SAFETY: set_mempolicy(2) reads `mask`, of whose bits there are 64; the kernel takes one off their number.
    unsafe {
        libc::syscall(libc::SYS_set_mempolicy, libc::MPOL_PREFERRED, ptr::from_ref(&mask), 65_u64);
    }
}

/// The directory that DPDK has made for files of this process; none are put there.
pub(super) fn runtime_directory() -> String {
    // SAFETY: returns a terminated string in static memory.
    unsafe { CStr::from_ptr(dpdk_sys::rte_eal_get_runtime_dir()) }.to_string_lossy().into_owned()
}

/// Makes DPDK's vhost thread look at its list of sockets again; `path` has a listener.
pub(super) fn wake_vhost(path: &str) {
    if let Ok(path) = CString::new(path) {
        // SAFETY: a terminated string.
        unsafe { dpdk_sys::shouter_dpdk_vhost_wake(path.as_ptr()) };
    }
}

/// `DPDK 22.11.11` or the like.
pub(super) fn version() -> String {
    // SAFETY: returns a static terminated string.
    unsafe { CStr::from_ptr(dpdk_sys::rte_version()) }.to_string_lossy().into_owned()
}

/// Keeps DPDK's log in memory from now on. A failure leaves it on standard error, which is no harm.
pub(super) fn capture_log(echo: bool) {
    // SAFETY: has no preconditions.
    unsafe { dpdk_sys::shouter_dpdk_log_capture(c_int::from(echo)) };
}

/// A mark for [`log_since`].
pub(super) fn log_position() -> u64 {
    // SAFETY: has no preconditions.
    unsafe { dpdk_sys::shouter_dpdk_log_position() }
}

/// The last lines (1 KiB at most) that DPDK has logged since `mark`, on one line.
pub(super) fn log_since(mark: u64) -> String {
    let mut buffer = [0_u8; 1024];
    let wanted = log_position().saturating_sub(mark).min(buffer.len() as u64) as usize;
    // SAFETY: the buffer has room for `wanted` bytes.
    let length = unsafe { dpdk_sys::shouter_dpdk_log_tail(buffer.as_mut_ptr().cast(), wanted) };
    let text = String::from_utf8_lossy(&buffer[..length]);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    if lines.is_empty() { "(nothing)".into() } else { lines.join("; ") }
}

/// The log types that constructors have registered: one per linked driver at least.
#[cfg(test)]
pub(super) fn log_types() -> String {
    let mut buffer = vec![0_u8; 64 << 10];
    // SAFETY: the buffer has room for its length.
    let length = unsafe { dpdk_sys::shouter_dpdk_log_types(buffer.as_mut_ptr().cast(), buffer.len()) };
    buffer.truncate(length);
    String::from_utf8_lossy(&buffer).into_owned()
}
