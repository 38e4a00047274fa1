//! The kernel's calls about its interfaces, which take a `struct ifreq` (netdevice(7)).
#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;

use rustix::io::Result;
use rustix::ioctl::{Opcode, Updater, ioctl};

use super::Name;

/// `SIOCGIFINDEX`.
const GET_INDEX: Opcode = 0x8933;
/// `SIOCGIFNAME`.
const GET_NAME: Opcode = 0x8910;
/// `SIOCGIFFLAGS`.
const GET_FLAGS: Opcode = 0x8913;

/// `struct ifreq`: a name, and a union of 24 bytes.
#[repr(C, align(8))]
pub(in super::super) struct Request {
    pub(in super::super) name: Name,
    pub(in super::super) value: [u8; 24],
}

impl Request {
    pub(in super::super) fn new(name: Name) -> Self {
        Self { name, value: [0; 24] }
    }

    /// Makes the call `OPCODE`, and returns the request as the kernel leaves it.
    ///
    /// # Safety
    /// The call reads and writes a `struct ifreq` at most, and keeps no pointer to it.
    pub(in super::super) unsafe fn call<const OPCODE: Opcode>(mut self, fd: BorrowedFd<'_>) -> Result<Self> {
        // SAFETY: the caller's promise; `Request` is a `struct ifreq` of 64-bit Linux: 16 bytes and 24 bytes.
        unsafe { ioctl(fd, Updater::<OPCODE, Self>::new(&mut self)) }?;
        Ok(self)
    }
}

/// The index of the interface `name`; `socket` is any socket of its namespace.
pub(super) fn index(socket: BorrowedFd<'_>, name: Name) -> Result<u32> {
    // SAFETY: it reads the name, and writes the index.
    let [a, b, c, d, ..] = unsafe { Request::new(name).call::<GET_INDEX>(socket) }?.value;
    Ok(u32::from_ne_bytes([a, b, c, d]))
}

/// The name that the interface `index` has now; `socket` is any socket of its namespace.
pub(super) fn name(socket: BorrowedFd<'_>, index: u32) -> Result<Name> {
    let mut request = Request::new(Name::default());
    request.value[..4].copy_from_slice(&index.to_ne_bytes());
    // SAFETY: it reads the index, and writes the name.
    Ok(unsafe { request.call::<GET_NAME>(socket) }?.name)
}

/// The flags (`IFF_*`) of the interface `name`; `socket` is any socket of its namespace.
pub(super) fn flags(socket: BorrowedFd<'_>, name: Name) -> Result<u16> {
    // SAFETY: it reads the name, and writes the flags.
    let [a, b, ..] = unsafe { Request::new(name).call::<GET_FLAGS>(socket) }?.value;
    Ok(u16::from_ne_bytes([a, b]))
}
