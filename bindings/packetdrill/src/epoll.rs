//! `epoll`: watched files, their events, and the last report.

use crate::errno::{Errno, Result};

/// Events that are always reported.
const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;

/// Bits that are not events.
const MODES: u32 = (libc::EPOLLET | libc::EPOLLONESHOT) as u32;

/// One watched file.
#[derive(Debug)]
struct Watched {
    fd: i32,
    events: u32,
    data: u64,
    /// The socket's edge at the last report; `None`: report any event.
    reported: Option<u64>,
}

/// An epoll instance.
#[derive(Debug, Default)]
pub(crate) struct Epoll {
    watched: Vec<Watched>,
}

/// A reported event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadyEvent {
    pub(crate) events: u32,
    pub(crate) data: u64,
}

impl Epoll {
    /// `epoll_ctl`.
    pub(crate) fn control(&mut self, operation: i32, fd: i32, event: Option<(u32, u64)>) -> Result<()> {
        let place = self.watched.iter().position(|watched| watched.fd == fd);
        match (operation, place) {
            (libc::EPOLL_CTL_ADD, Some(_)) => Err(Errno(libc::EEXIST)),
            (libc::EPOLL_CTL_ADD, None) => {
                let (events, data) = event.ok_or(Errno(libc::EFAULT))?;
                self.watched.push(Watched { fd, events, data, reported: None });
                Ok(())
            }
            (libc::EPOLL_CTL_MOD, Some(place)) => {
                let (events, data) = event.ok_or(Errno(libc::EFAULT))?;
                if let Some(watched) = self.watched.get_mut(place) {
                    *watched = Watched { fd, events, data, reported: None };
                }
                Ok(())
            }
            (libc::EPOLL_CTL_DEL, Some(place)) => {
                self.watched.remove(place);
                Ok(())
            }
            (libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL, None) => Err(Errno(libc::ENOENT)),
            _ => Err(Errno(libc::EINVAL)),
        }
    }

    /// Removes a closed file.
    pub(crate) fn forget(&mut self, fd: i32) {
        self.watched.retain(|watched| watched.fd != fd);
    }

    /// Collects up to `limit` events. `look` returns a file's `poll` bits and its edge.
    pub(crate) fn collect(&mut self, limit: usize, look: impl Fn(i32) -> (i16, u64)) -> Vec<ReadyEvent> {
        let mut all = Vec::new();
        for watched in &mut self.watched {
            if all.len() >= limit {
                break;
            }
            let (bits, edge) = look(watched.fd);
            // The bits of poll and epoll are the same numbers on Linux.
            let asked = if watched.events & !MODES == 0 { 0 } else { watched.events & !MODES | ALWAYS };
            let events = u32::from(bits.cast_unsigned()) & asked;
            let is_edge = watched.events & libc::EPOLLET as u32 != 0;
            if events == 0 || (is_edge && watched.reported == Some(edge)) {
                continue;
            }
            watched.reported = Some(edge);
            all.push(ReadyEvent { events, data: watched.data });
            if watched.events & libc::EPOLLONESHOT as u32 != 0 {
                watched.events &= MODES;
            }
        }
        all
    }
}
