//! Pipes, for `splice`.

use std::collections::{BTreeMap, VecDeque};

use crate::errno::{Errno, Result};

/// The capacity of a pipe in bytes, as on Linux.
const CAPACITY: usize = 1 << 16;

/// The number of a pipe.
pub(crate) type PipeId = u64;

#[derive(Debug)]
struct Pipe {
    bytes: VecDeque<u8>,
    has_reader: bool,
    has_writer: bool,
    /// The number of events that would wake a waiter.
    edge: u64,
}

/// All pipes.
#[derive(Debug, Default)]
pub(crate) struct Pipes {
    pipes: BTreeMap<PipeId, Pipe>,
    next: PipeId,
}

impl Pipes {
    pub(crate) fn open(&mut self) -> PipeId {
        self.next += 1;
        self.pipes
            .insert(self.next, Pipe { bytes: VecDeque::new(), has_reader: true, has_writer: true, edge: 0 });
        self.next
    }

    /// Closes one end.
    pub(crate) fn close(&mut self, id: PipeId, reader: bool) {
        if let Some(pipe) = self.pipes.get_mut(&id) {
            pipe.edge += 1;
            if reader {
                pipe.has_reader = false;
            } else {
                pipe.has_writer = false;
            }
            if !pipe.has_reader && !pipe.has_writer {
                self.pipes.remove(&id);
            }
        }
    }

    /// Bytes that can be written now.
    pub(crate) fn room(&self, id: PipeId) -> Result<usize> {
        let pipe = self.pipes.get(&id).ok_or(Errno(libc::EBADF))?;
        if pipe.has_reader { Ok(CAPACITY - pipe.bytes.len().min(CAPACITY)) } else { Err(Errno(libc::EPIPE)) }
    }

    /// Writes as many bytes as fit; `None` if none does.
    pub(crate) fn write(&mut self, id: PipeId, bytes: &[u8]) -> Result<Option<usize>> {
        let room = self.room(id)?;
        let pipe = self.pipes.get_mut(&id).ok_or(Errno(libc::EBADF))?;
        let count = room.min(bytes.len());
        pipe.bytes.extend(bytes.iter().take(count));
        pipe.edge += u64::from(count > 0);
        Ok(if count == 0 && !bytes.is_empty() { None } else { Some(count) })
    }

    /// The first bytes, at most `limit`, without removing them; `None` if more may come, none at the end.
    pub(crate) fn peek(&self, id: PipeId, limit: usize) -> Result<Option<Vec<u8>>> {
        let pipe = self.pipes.get(&id).ok_or(Errno(libc::EBADF))?;
        if pipe.bytes.is_empty() && pipe.has_writer {
            return Ok(None);
        }
        Ok(Some(pipe.bytes.iter().take(limit).copied().collect()))
    }

    /// Removes peeked bytes.
    pub(crate) fn consume(&mut self, id: PipeId, count: usize) {
        if let Some(pipe) = self.pipes.get_mut(&id) {
            pipe.bytes.drain(..count.min(pipe.bytes.len()));
            pipe.edge += 1;
        }
    }

    /// The `poll` bits of one end, and a number that changes when waiters must look again.
    pub(crate) fn readiness(&self, id: PipeId, reader: bool) -> (i16, u64) {
        let Some(pipe) = self.pipes.get(&id) else { return (libc::POLLERR, 0) };
        let mut bits = 0;
        if reader {
            if !pipe.bytes.is_empty() {
                bits |= libc::POLLIN | libc::POLLRDNORM;
            }
            if !pipe.has_writer {
                bits |= libc::POLLHUP;
            }
        } else if !pipe.has_reader {
            bits |= libc::POLLERR | libc::POLLOUT;
        } else if pipe.bytes.len() < CAPACITY {
            bits |= libc::POLLOUT | libc::POLLWRNORM;
        }
        (bits, pipe.edge)
    }
}
