//! The system's services to the runtime: the monotonic clock as a number, and notice of a fork or of a signal that ends
//! the program.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, Once, PoisonError};

use rustix::time::{ClockId, clock_gettime};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// CLOCK_MONOTONIC in nanoseconds. Unlike `std::time::Instant` it is a number, and the same number in every
/// process of one host, which lines up the ranks' timelines.
#[inline]
pub(super) fn monotonic_nanos() -> u64 {
    nanos(ClockId::Monotonic)
}

#[inline]
fn nanos(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

/// Nanoseconds of CPU time of this process's threads but the calling one.
pub(super) fn cpu_nanos_of_other_threads() -> u64 {
    // In this order, so that the difference is never below zero.
    let own = nanos(ClockId::ThreadCPUTime);
    nanos(ClockId::ProcessCPUTime).saturating_sub(own)
}

static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn in_child() {
    FORKS.fetch_add(1, Relaxed);
}

/// The number of forks between the first process that called this and the present one. Equal values mean the same
/// process.
#[inline]
pub(crate) fn fork_generation() -> u32 {
    FORKS.load(Relaxed)
}

/// Starts counting forks (once; later calls do nothing).
pub(crate) fn count_forks() {
    static REGISTER: Once = Once::new();
    REGISTER.call_once(|| {
        // SAFETY: `in_child` only increments an atomic, which is async-signal-safe and therefore allowed in the
        // child of a multi-threaded process; it is a static function and never unloaded before the process ends.
        // A failure (ENOMEM) leaves forks uncounted: the check is a safety net, not something relied upon.
        // By libc: it is a function of the C library, no system call.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
static TERMINATED: AtomicBool = AtomicBool::new(false);

/// Whether SIGINT or SIGTERM has come since [`catch_signals`].
#[inline]
pub(super) fn was_signalled() -> bool {
    INTERRUPTED.load(Relaxed) || TERMINATED.load(Relaxed)
}

/// From here on the first SIGINT or SIGTERM is only noted; a second of the same kind ends the process, as without this call.
/// Later calls do nothing.
pub(super) fn catch_signals() -> io::Result<()> {
    static REGISTERED: Mutex<bool> = Mutex::new(false);
    let mut registered = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
    if !*registered {
        for (signal, seen) in [(SIGINT, &INTERRUPTED), (SIGTERM, &TERMINATED)] {
            // In this order: the first action checks whether an earlier signal has set the flag.
            flag::register_conditional_default(signal, seen)?;
            flag::register(signal, seen)?;
        }
        *registered = true;
    }
    Ok(())
}

/// Runs `child` in a forked child and returns the status with which it exits: `child`'s result, or 101 if it panics.
#[cfg(test)]
pub(crate) fn in_forked_child(child: impl FnOnce() -> u8) -> i32 {
    let run = std::panic::AssertUnwindSafe(child);
    // SAFETY: the child runs only `child` and leaves by `_exit`, so no destructor or exit handler of the parent runs
    // twice. Other threads are gone there; the tests that use this touch no lock that one of them could hold.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork failed: {}", std::io::Error::last_os_error());
    if pid == 0 {
        let status = std::panic::catch_unwind(run).unwrap_or(101);
        // SAFETY: `_exit` has no precondition.
        unsafe { libc::_exit(i32::from(status)) }
    }
    let mut status = 0;
    // SAFETY: `pid` is a child of this process that nobody else waits for, and `status` is writable.
    let waited = unsafe { libc::waitpid(pid, &mut status, 0) };
    assert_eq!(waited, pid);
    if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -1 }
}
