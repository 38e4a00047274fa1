//! The table of open files.

use crate::epoll::Epoll;
use crate::errno::{Errno, Result};
use crate::pipe::PipeId;
use crate::socket::tcp::TcpSocket;
use crate::socket::udp::UdpSocket;

/// The first descriptor: 0 to 2 are never used here.
const FIRST: usize = 3;

/// The largest number of open files.
const MAX_FILES: usize = 1 << 16;

/// The kind of a file.
#[derive(Debug)]
pub(crate) enum FileKind {
    Tcp(Box<TcpSocket>),
    Udp(Box<UdpSocket>),
    Epoll(Epoll),
    PipeOut(PipeId),
    PipeIn(PipeId),
}

/// An open file.
#[derive(Debug)]
pub(crate) struct File {
    pub(crate) kind: FileKind,
    pub(crate) nonblocking: bool,
}

/// All of them, by descriptor.
#[derive(Debug, Default)]
pub(crate) struct Files {
    slots: Vec<Option<File>>,
}

impl Files {
    fn slot(fd: i32) -> Option<usize> {
        usize::try_from(fd).ok()?.checked_sub(FIRST)
    }

    /// Opens a file under the least free descriptor.
    pub(crate) fn open(&mut self, kind: FileKind, nonblocking: bool) -> Result<i32> {
        let free = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
        if free >= MAX_FILES {
            return Err(Errno(libc::EMFILE));
        }
        if free == self.slots.len() {
            self.slots.push(None);
        }
        if let Some(slot) = self.slots.get_mut(free) {
            *slot = Some(File { kind, nonblocking });
        }
        i32::try_from(free + FIRST).map_err(|_| Errno(libc::EMFILE))
    }

    pub(crate) fn get(&self, fd: i32) -> Result<&File> {
        let slot = Self::slot(fd).and_then(|slot| self.slots.get(slot));
        slot.and_then(Option::as_ref).ok_or(Errno(libc::EBADF))
    }

    pub(crate) fn get_mut(&mut self, fd: i32) -> Result<&mut File> {
        let slot = Self::slot(fd).and_then(|slot| self.slots.get_mut(slot));
        slot.and_then(Option::as_mut).ok_or(Errno(libc::EBADF))
    }

    pub(crate) fn take(&mut self, fd: i32) -> Result<File> {
        let slot = Self::slot(fd).and_then(|slot| self.slots.get_mut(slot));
        slot.and_then(Option::take).ok_or(Errno(libc::EBADF))
    }

    /// The TCP socket of a descriptor.
    pub(crate) fn tcp(&mut self, fd: i32) -> Result<&mut TcpSocket> {
        match &mut self.get_mut(fd)?.kind {
            FileKind::Tcp(socket) => Ok(socket),
            FileKind::Udp(_) => Err(Errno(libc::EOPNOTSUPP)),
            _ => Err(Errno(libc::ENOTSOCK)),
        }
    }

    /// All open files.
    pub(crate) fn all_mut(&mut self) -> impl Iterator<Item = &mut File> {
        self.slots.iter_mut().flatten()
    }

    /// All open files and their descriptors.
    pub(crate) fn all(&self) -> impl Iterator<Item = (i32, &File)> {
        self.slots
            .iter()
            .enumerate()
            .filter_map(|(slot, file)| Some((i32::try_from(slot + FIRST).ok()?, file.as_ref()?)))
    }
}
