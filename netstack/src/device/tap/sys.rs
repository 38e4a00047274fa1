//! The control calls of TAP interfaces (Linux, Documentation/networking/tuntap.rst). Each hands the kernel the structure that its request is
//! defined for.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Result;
use rustix::ioctl::{IntegerSetter, Opcode, Updater, ioctl};

/// Bytes of an interface's name, with the zero behind it (`IFNAMSIZ`).
pub(super) const NAME_LEN: usize = 16;

/// `TUNSETIFF`: makes the descriptor an end of an interface.
const ATTACH: Opcode = 0x4004_54ca;
/// `TUNSETOFFLOAD`: what the frames that are read may leave undone.
const SET_OFFLOAD: Opcode = 0x4004_54d0;
/// `TUNSETVNETHDRSZ`: how long the header in front of a frame is.
const SET_HEADER_LEN: Opcode = 0x4004_54d8;
/// `TUNSETVNETLE`: whether it is little endian.
const SET_LITTLE_ENDIAN: Opcode = 0x4004_54dc;
/// `SIOCGIFHWADDR`.
const GET_MAC: Opcode = 0x8927;
/// `SIOCGIFMTU`.
const GET_MTU: Opcode = 0x8921;
/// `SIOCGIFFLAGS`.
const GET_FLAGS: Opcode = 0x8913;

/// `IFF_TAP`, `IFF_NO_PI` and `IFF_VNET_HDR`: Ethernet frames, each behind a `virtio_net_hdr`.
const MODE: u16 = 0x0002 | 0x1000 | 0x4000;
/// `TUN_F_CSUM`, `TUN_F_TSO4`, `TUN_F_TSO6` and `TUN_F_TSO_ECN`.
const OFFLOAD: usize = 0x01 | 0x02 | 0x04 | 0x08;
/// `IFF_UP` and `IFF_RUNNING`.
const PASSING: u16 = 0x01 | 0x40;

/// `struct ifreq`: a name, and a union of 24 bytes.
#[repr(C, align(8))]
struct Request {
    name: [u8; NAME_LEN],
    value: [u8; 24],
}

impl Request {
    /// Makes the call `OPCODE` about the interface `name`, and returns the union.
    fn call<const OPCODE: Opcode>(fd: BorrowedFd<'_>, name: [u8; NAME_LEN], value: u16) -> Result<[u8; 24]> {
        let mut request = Self { name, value: [0; 24] };
        request.value[..2].copy_from_slice(&value.to_ne_bytes());
        // SAFETY: the calls here read and write a `struct ifreq`, which `Request` is on 64-bit Linux: 16 bytes and 24 bytes. They keep no
        // pointer to it.
        unsafe { ioctl(fd, Updater::<OPCODE, Self>::new(&mut request)) }?;
        Ok(request.value)
    }
}

/// Makes `fd`, an open `/dev/net/tun`, the program's end of the interface `name`, which is created if there is none.
pub(super) fn attach(fd: impl AsFd, name: [u8; NAME_LEN]) -> Result<()> {
    Request::call::<ATTACH>(fd.as_fd(), name, MODE).map(drop)
}

/// Has frames carry a little-endian header of `header_len` bytes, and leave checksums and the cutting of segments undone. An interface keeps what its last
/// user has set.
pub(super) fn set_up(fd: impl AsFd, header_len: i32) -> Result<()> {
    let fd = fd.as_fd();
    let (mut header_len, mut little) = (header_len, 1_i32);
    // SAFETY: both calls read an `int` and keep no pointer to it.
    unsafe {
        ioctl(fd, Updater::<SET_HEADER_LEN, i32>::new(&mut header_len))?;
        ioctl(fd, Updater::<SET_LITTLE_ENDIAN, i32>::new(&mut little))?;
    }
    // SAFETY: the call takes a number by value.
    unsafe { ioctl(fd, IntegerSetter::<SET_OFFLOAD>::new_usize(OFFLOAD)) }
}

/// The address of the kernel's end.
pub(super) fn mac(fd: impl AsFd) -> Result<[u8; 6]> {
    // A `struct sockaddr`: two bytes of family, then the address.
    let [_, _, a, b, c, d, e, f, ..] = Request::call::<GET_MAC>(fd.as_fd(), [0; NAME_LEN], 0)?;
    Ok([a, b, c, d, e, f])
}

/// The interface's MTU in bytes; `socket` is any socket.
pub(super) fn mtu(socket: impl AsFd, name: [u8; NAME_LEN]) -> Result<u32> {
    let [a, b, c, d, ..] = Request::call::<GET_MTU>(socket.as_fd(), name, 0)?;
    Ok(u32::from_ne_bytes([a, b, c, d]))
}

/// Whether the interface passes frames; `socket` is any socket.
pub(super) fn is_up(socket: impl AsFd, name: [u8; NAME_LEN]) -> Result<bool> {
    let [a, b, ..] = Request::call::<GET_FLAGS>(socket.as_fd(), name, 0)?;
    Ok(u16::from_ne_bytes([a, b]) & PASSING == PASSING)
}
