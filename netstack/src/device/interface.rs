//! An interface of the kernel's that a device stands on.

mod sys;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Result;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

#[cfg(feature = "tap")]
pub(super) use sys::Request;

/// An interface's name, with a zero behind it (`IFNAMSIZ`).
pub(super) type Name = [u8; 16];

/// The name as the kernel takes it; `None` if it takes none such.
pub(super) fn name(text: &str) -> Option<Name> {
    let bytes = text.as_bytes();
    let unfit = |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, 0 | b'/' | b'%' | b':');
    let mut name = Name::default();
    if bytes.is_empty() || bytes.len() >= name.len() || bytes.iter().any(unfit) || matches!(text, "." | "..")
    {
        return None;
    }
    name[..bytes.len()].copy_from_slice(bytes);
    Some(name)
}

/// `IFF_UP` and `IFF_RUNNING` of netdevice(7).
const PASSING: u16 = 0x01 | 0x40;

/// One interface, whatever its name becomes, in the network namespace in which it was found.
#[derive(Debug)]
pub(super) struct Interface {
    /// Any socket: it belongs to the namespace, and the thread that asks may be in another one later.
    socket: OwnedFd,
    index: u32,
}

impl Interface {
    /// The interface `name` of the calling thread's network namespace.
    ///
    /// # Errors
    /// The system's: there is none, or no descriptor is left.
    pub(super) fn named(name: Name) -> Result<Self> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        let index = sys::index(socket.as_fd(), name)?;
        Ok(Self { socket, index })
    }

    /// Whether it passes frames: it is up, and has a carrier. One that was deleted, or went to another namespace, passes none.
    pub(super) fn is_up(&self) -> bool {
        let socket = self.socket.as_fd();
        let flags = sys::name(socket, self.index).and_then(|name| sys::flags(socket, name));
        flags.is_ok_and(|flags| flags & PASSING == PASSING)
    }
}

/// The socket that questions about the interface are asked through.
impl AsFd for Interface {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
