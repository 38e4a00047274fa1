//! Shuts down connections on UNIX sockets that the driver holds and blocks on.

use std::os::fd::{BorrowedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::net::{Shutdown, SocketAddrUnix, getpeername, shutdown};

/// Shuts down every connection of this process to the server at `path`: a peer that waits there for an answer learns that
/// there will be none. Returns how many there were.
pub(in super::super) fn hang_up(path: &Path) -> usize {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return 0 };
    let fds: Vec<RawFd> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    // SAFETY: asked for its peer and shut down only, neither of which closes the descriptor; one that was closed meanwhile is
    // refused by the kernel.
    let sockets = fds.into_iter().map(|fd| unsafe { BorrowedFd::borrow_raw(fd) });
    sockets.filter(|socket| peer_is(*socket, path) && shutdown(socket, Shutdown::Both).is_ok()).count()
}

/// Whether a descriptor is a connection to the server at `path`.
fn peer_is(socket: BorrowedFd<'_>, path: &Path) -> bool {
    let peer = getpeername(socket).ok().flatten().and_then(|peer| SocketAddrUnix::try_from(peer).ok());
    peer.as_ref().and_then(SocketAddrUnix::path_bytes) == Some(path.as_os_str().as_bytes())
}
