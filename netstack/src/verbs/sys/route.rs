//! A question to the kernel's routing, over rtnetlink(7).

use core::ffi::c_void;
use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::Errno;

/// How long the kernel may take to answer, in seconds. It answers at once.
const DEADLINE: libc::time_t = 1;

/// Sends each request on one rtnetlink socket, and hands its answer to `answer`.
pub(in super::super) fn ask_routes(
    requests: &[Vec<u8>],
    mut answer: impl FnMut(usize, &[u8]),
) -> Result<(), Errno> {
    // SAFETY: no pointers.
    let fd =
        unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_ROUTE) };
    if fd == -1 {
        return Err(Errno::last());
    }
    // SAFETY: opened above, owned by nobody else.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let deadline = libc::timeval { tv_sec: DEADLINE, tv_usec: 0 };
    // SAFETY: an open socket and a structure of the size that is given.
    check(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVTIMEO,
            (&raw const deadline).cast(),
            size_of::<libc::timeval>() as libc::socklen_t,
        )
    } as isize)?;
    for (index, request) in requests.iter().enumerate() {
        // SAFETY: an open socket; the request's bytes are only read. Without an address it goes to the kernel.
        check(unsafe {
            libc::send(socket.as_raw_fd(), request.as_ptr().cast::<c_void>(), request.len(), 0)
        })?;
        let mut reply = [0_u8; 4096];
        // SAFETY: an open socket, and room for as many bytes as are given.
        let len =
            check(unsafe { libc::recv(socket.as_raw_fd(), reply.as_mut_ptr().cast(), reply.len(), 0) })?;
        answer(index, reply.get(..len).unwrap_or_default());
    }
    Ok(())
}

fn check(result: isize) -> Result<usize, Errno> {
    usize::try_from(result).map_err(|_| Errno::last())
}

/// The number of network interface `name`.
pub(in super::super) fn interface_index(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    // SAFETY: a terminated string.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    (index != 0).then_some(index)
}

/// The name of network interface `index`.
pub(in super::super) fn interface_name(index: u32) -> Option<String> {
    let mut name = [0_u8; libc::IF_NAMESIZE];
    // SAFETY: room for IF_NAMESIZE bytes, its terminator included.
    if unsafe { libc::if_indextoname(index, name.as_mut_ptr().cast()) }.is_null() {
        return None;
    }
    let len = name.iter().position(|&b| b == 0)?;
    Some(String::from_utf8_lossy(&name[..len]).into_owned())
}
