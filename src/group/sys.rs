//! Waiting for several sockets at once, and keeping them from forked children (by libc: `pthread_atfork` is the C library's).
#![allow(unsafe_code)]

use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Instant;
use std::{io, ptr};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Waits until one of the descriptors is ready, or `until` has come. Each descriptor waits for bytes to read (and for the
/// peer's end), and where its flag says so also for room to write. Returns for each whether it is ready.
pub(super) fn wait(fds: &[(BorrowedFd<'_>, bool)], until: Instant) -> io::Result<Vec<bool>> {
    let events = |writes: bool| if writes { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
    let mut polls: Vec<_> =
        fds.iter().map(|(fd, writes)| PollFd::from_borrowed_fd(*fd, events(*writes))).collect();
    // A time that is too long for the system is none.
    let timeout = Timespec::try_from(until.saturating_duration_since(Instant::now())).ok();
    match poll(&mut polls, timeout.as_ref()) {
        Ok(_) => Ok(polls.iter().map(|poll| !poll.revents().is_empty()).collect()),
        Err(Errno::INTR) => Ok(vec![false; fds.len()]),
        Err(error) => Err(error.into()),
    }
}

/// Lists of sockets that a forked child gives up; few, as a process has one group.
static GIVEN_UP: [AtomicPtr<Vec<RawFd>>; 16] = [const { AtomicPtr::new(ptr::null_mut()) }; 16];

extern "C" fn in_child() {
    for list in &GIVEN_UP {
        // SAFETY: a list is freed only after it was taken out of its place, and never in a child, where its owner's thread does
        // not exist; so what is found is alive.
        let Some(sockets) = (unsafe { list.load(Ordering::Acquire).as_ref() }) else { continue };
        for socket in sockets {
            // SAFETY: `close` has no precondition, and may be called between fork and exec. The descriptor is that of a socket, which
            // its owner closes only after it has taken the list away; the owner's thread does not exist in the child.
            unsafe { rustix::io::close(*socket) };
        }
    }
}

/// Sockets that are this process's alone: a child that is forked while this exists does not hold them open.
pub(super) struct Unshared(&'static AtomicPtr<Vec<RawFd>>);

impl Unshared {
    /// `None` if there is no place left. It must be dropped before any of the sockets is closed, and by a thread of its own.
    pub(super) fn new(sockets: Vec<RawFd>) -> Option<Self> {
        static REGISTER: Once = Once::new();
        REGISTER.call_once(|| {
            // SAFETY: `in_child` only reads atomics and closes descriptors, both async-signal-safe and therefore allowed in the
            // child of a multi-threaded process; it is a static function. A failure (ENOMEM) leaves children with the sockets.
            unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        });
        let list = Box::into_raw(Box::new(sockets));
        let take = |place: &&AtomicPtr<_>| {
            place.compare_exchange(ptr::null_mut(), list, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let place = GIVEN_UP.iter().find(take);
        if place.is_none() {
            // SAFETY: `list` came from a box a moment ago and has been put nowhere.
            drop(unsafe { Box::from_raw(list) });
        }
        place.map(Self)
    }
}

impl Drop for Unshared {
    fn drop(&mut self) {
        let list = self.0.swap(ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: the place held the box that `new` has put there, which only this takes out.
        drop(unsafe { Box::from_raw(list) });
    }
}
