//! Keeps SIGPIPE away from a C program that does not expect it.
//!
//! DPDK's vhost-user drivers use UNIX sockets with plain `sendmsg`. If the other host's process has left first, that
//! raises SIGPIPE, which ends a C program (Rust's and Python's start-up code ignore it, C's does not). A library must
//! not change a program's signal handlers, so the signal is blocked where such writes happen: while a group is set up
//! and taken down, and in every thread made meanwhile, which inherits the mask. SIGPIPE is sent to the thread that
//! wrote.
#![allow(unsafe_code, reason = "signal masks have no safe interface")]

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr;

/// Blocks SIGPIPE in this thread until it is dropped; a signal that came meanwhile is discarded.
pub(crate) struct SigpipeBlocked {
    before: libc::sigset_t,
    was_pending: bool,
    /// The mask belongs to a thread, so this value stays on its thread.
    _not_send: PhantomData<*const ()>,
}

impl SigpipeBlocked {
    /// Blocks it in the calling thread.
    pub(crate) fn new() -> Self {
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: both sets are initialised before they are read: the one by only_sigpipe, `before` by pthread_sigmask, which
        // cannot fail with a valid `how`.
        unsafe {
            libc::sigemptyset(before.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_BLOCK, &only_sigpipe(), before.as_mut_ptr());
            Self { before: before.assume_init(), was_pending: pending(), _not_send: PhantomData }
        }
    }
}

impl Drop for SigpipeBlocked {
    fn drop(&mut self) {
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the sets are initialised; sigtimedwait takes a pending signal without running its handler, and with a
        // zero timeout does not wait.
        unsafe {
            if !self.was_pending && pending() {
                libc::sigtimedwait(&only_sigpipe(), ptr::null_mut(), &now);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, ptr::null_mut());
        }
    }
}

fn only_sigpipe() -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initialises the set, and SIGPIPE is a valid signal.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGPIPE);
        set.assume_init()
    }
}

/// Whether a SIGPIPE waits for the calling thread.
fn pending() -> bool {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigpending fills the set; it fails only for a bad address.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigpending(set.as_mut_ptr());
        libc::sigismember(set.as_ptr(), libc::SIGPIPE) == 1
    }
}
