//! The kernel's facts about a connection. By libc: neither rustix nor socket2 reads SIOCOUTQ or TCP_INFO.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Bytes written to a TCP socket that the peer has not acknowledged (SIOCOUTQ of tcp(7)); zero if the kernel gives no
/// number.
pub(super) fn unacknowledged(fd: BorrowedFd<'_>) -> usize {
    let mut bytes: c_int = 0;
    // SAFETY: the descriptor is open, and SIOCOUTQ (the same number as TIOCOUTQ) writes one int.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if result == 0 { usize::try_from(bytes).unwrap_or(0) } else { 0 }
}

/// The TCP_INFO of tcp(7).
pub(super) fn tcp_info(fd: BorrowedFd<'_>) -> Option<libc::tcp_info> {
    // SAFETY: the structure is plain numbers, for which zeroes are valid.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and the kernel writes at most `len` bytes of `info`.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut len,
        )
    };
    (result == 0).then_some(info)
}
