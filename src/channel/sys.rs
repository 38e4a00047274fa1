//! Conversions of the reducer's memory to the stack's, and a question to the kernel about its interfaces.
#![allow(unsafe_code)]

use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

use shouter_netstack::region::{Extent, Region};
use shouter_reducer::transport::PayloadRange;

/// The range as an extent of the stack; `None` if it holds no bytes.
#[inline]
pub(crate) fn extent_of(range: &PayloadRange) -> Option<Extent> {
    if range.is_empty() {
        return None;
    }
    let base = NonNull::new(range.as_ptr().cast_mut())?;
    // SAFETY: the reducer promises with `Transport::send` that the range stays readable and unwritten until its token
    // is released, which is what the stack asks of an extent.
    let region = unsafe { Region::from_raw_parts(base, range.len()) };
    region.extent(0, u32::try_from(range.len()).ok()?)
}

/// The bytes of a range that was posted and is not released yet, or of a landing that the peer has written; `None` for memory that the
/// CPU cannot access.
#[inline]
pub(crate) fn bytes_of(range: &PayloadRange) -> Option<&[u8]> {
    // SAFETY: the range stays readable and unwritten until its token is released, or until the executor is notified of what has landed;
    // channels read it before they do so.
    unsafe { range.as_bytes() }
}

/// Largest IP packet in bytes that the interface `name` of this process's network namespace takes; `None` if there is none.
pub(crate) fn interface_mtu(name: &str) -> Option<u32> {
    // Any socket will do (netdevice(7)). By libc: rustix has none of these requests, and /sys may show another namespace.
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    // SAFETY: all-zero is a valid ifreq: an empty name, and numbers.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // A terminator has to fit as well.
    let room = request.ifr_name.len() - 1;
    if name.is_empty() || name.len() > room {
        return None;
    }
    for (to, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = byte as libc::c_char;
    }
    let socket = socket.as_raw_fd();
    // SAFETY: the request is a whole ifreq with a terminated name, which the kernel fills in; it writes the MTU as an int.
    let mtu = unsafe {
        (libc::ioctl(socket, libc::SIOCGIFMTU, &mut request) == 0).then_some(request.ifr_ifru.ifru_mtu)
    }?;
    u32::try_from(mtu).ok()
}
