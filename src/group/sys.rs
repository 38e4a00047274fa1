//! Waiting for several sockets at once.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Waits until one of the descriptors is ready, or `until` has come. Each descriptor waits for bytes to read (and for the
/// peer's end), and where its flag says so also for room to write. Returns for each whether it is ready.
pub(super) fn wait(fds: &[(BorrowedFd<'_>, bool)], until: Instant) -> io::Result<Vec<bool>> {
    let mut polls: Vec<libc::pollfd> = fds
        .iter()
        .map(|(fd, writes)| libc::pollfd {
            fd: fd.as_raw_fd(),
            events: if *writes { libc::POLLIN | libc::POLLOUT } else { libc::POLLIN },
            revents: 0,
        })
        .collect();
    let timeout = until.saturating_duration_since(Instant::now());
    // Rounded up, so that a wait never ends just before its time and turns into spinning.
    let millis = timeout.saturating_add(Duration::from_micros(999)).as_millis();
    let millis = i32::try_from(millis).unwrap_or(i32::MAX);
    // SAFETY: `polls` is an array of `polls.len()` pollfd records, writable and alive through the call; the borrowed
    // descriptors are open through it.
    let ready = unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as libc::nfds_t, millis) };
    if ready < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
        return Ok(vec![false; fds.len()]);
    }
    Ok(polls.iter().map(|poll| poll.revents != 0).collect())
}
