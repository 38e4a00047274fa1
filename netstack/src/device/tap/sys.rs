//! The control calls of TAP interfaces (Linux, Documentation/networking/tuntap.rst). Each hands the kernel the structure that its request is
//! defined for.
#![allow(unsafe_code)]

use std::os::fd::AsFd;

use rustix::io::Result;
use rustix::ioctl::{IntegerSetter, Opcode, Updater, ioctl};

use crate::device::interface::{Name, Request};

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

/// `IFF_TAP`, `IFF_NO_PI` and `IFF_VNET_HDR`: Ethernet frames, each behind a `virtio_net_hdr`.
const MODE: u16 = 0x0002 | 0x1000 | 0x4000;
/// `TUN_F_CSUM`, `TUN_F_TSO4`, `TUN_F_TSO6` and `TUN_F_TSO_ECN`.
const OFFLOAD: usize = 0x01 | 0x02 | 0x04 | 0x08;

/// Makes `fd`, an open `/dev/net/tun`, the program's end of the interface `name`, which is created if there is none.
pub(super) fn attach(fd: impl AsFd, name: Name) -> Result<()> {
    let mut request = Request::new(name);
    request.value[..2].copy_from_slice(&MODE.to_ne_bytes());
    // SAFETY: it reads the name and the flags, and writes the name.
    unsafe { request.call::<ATTACH>(fd.as_fd()) }.map(drop)
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
    // SAFETY: it writes that structure, which is 16 bytes.
    let [_, _, a, b, c, d, e, f, ..] =
        unsafe { Request::new(Name::default()).call::<GET_MAC>(fd.as_fd()) }?.value;
    Ok([a, b, c, d, e, f])
}

/// The interface's MTU in bytes; `socket` is any socket.
pub(super) fn mtu(socket: impl AsFd, name: Name) -> Result<u32> {
    // SAFETY: it reads the name, and writes the MTU as an `int`.
    let [a, b, c, d, ..] = unsafe { Request::new(name).call::<GET_MTU>(socket.as_fd()) }?.value;
    Ok(u32::from_ne_bytes([a, b, c, d]))
}
