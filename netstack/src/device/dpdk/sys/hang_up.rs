//! Ends conversations on UNIX sockets that the driver holds and blocks on.

use std::os::fd::RawFd;
use std::path::Path;

/// Shuts down every connection of this process to the server at `path`: a peer that waits there for an answer learns that
/// there will be none. Returns how many there were.
pub(in super::super) fn hang_up(path: &Path) -> usize {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return 0 };
    let fds: Vec<RawFd> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    let reached = fds.into_iter().filter(|&fd| peer_is(fd, path));
    // SAFETY: shutdown touches no memory and neither closes nor frees the descriptor, so its owner keeps it.
    reached.filter(|&fd| unsafe { libc::shutdown(fd, libc::SHUT_RDWR) } == 0).count()
}

/// Whether a descriptor is a connection to the server at `path`.
fn peer_is(fd: RawFd, path: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt;
    // SAFETY: a socket address is plain data, for which zeroes are valid.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: the address is writable for `len` bytes; a descriptor that is no socket is an error and nothing else.
    let result = unsafe { libc::getpeername(fd, (&raw mut address).cast(), &mut len) };
    if result != 0 || address.sun_family != libc::AF_UNIX as libc::sa_family_t {
        return false;
    }
    let name = address.sun_path.iter().map(|&byte| byte as u8).take_while(|&byte| byte != 0);
    name.eq(path.as_os_str().as_bytes().iter().copied())
}
