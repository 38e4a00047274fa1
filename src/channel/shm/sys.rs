//! The mapping of the segment and the system calls around it.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use shouter_reducer::memory::{MemoryKind, TensorRegion};

use super::layout::PAGE;
use crate::runtime::{count_forks, fork_generation};

/// A shared mapping of a whole memfd.
pub(super) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    fd: OwnedFd,
    /// The process that has it: a forked child does not, and may have other memory there.
    forks: u32,
}

// SAFETY: the mapping is shared memory that is only reached through atomics and through regions, whose users keep to
// the order of their schedules; nothing of it belongs to a thread.
unsafe impl Send for Mapping {}
// SAFETY: as for Send.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// A new memfd of `len` zeroed bytes whose size can never change.
    pub(super) fn create(len: usize) -> io::Result<Self> {
        let size = libc::off_t::try_from(len).map_err(io::Error::other)?;
        if file_limit().is_some_and(|limit| limit < len as u64) {
            // ftruncate would end this process with SIGXFSZ.
            return Err(io::Error::from_raw_os_error(libc::EFBIG));
        }
        // SAFETY: the name is a C string; the flags are documented ones.
        let fd = unsafe {
            libc::memfd_create(c"shouter-node".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: memfd_create has just returned it, and nobody else has it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: plain calls on an owned descriptor.
        let sized = unsafe {
            libc::ftruncate(fd.as_raw_fd(), size) == 0
                && libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW)
                    == 0
        };
        if !sized {
            return Err(io::Error::last_os_error());
        }
        Self::map(fd, len)
    }

    /// Maps a descriptor that another process passed; its size must be `len` and sealed, so that no access can fault.
    pub(super) fn attach(fd: OwnedFd, len: usize) -> io::Result<Self> {
        // SAFETY: stat is plain data, for which zeroes are valid.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the descriptor is owned and `stat` is valid for the write.
        if unsafe { libc::fstat(fd.as_raw_fd(), &raw mut stat) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a plain call on an owned descriptor.
        let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
        if usize::try_from(stat.st_size) != Ok(len) || seals & libc::F_SEAL_SHRINK == 0 {
            return Err(io::Error::other(format!(
                "the segment has {} bytes (seals {seals:#x}) where {len} are due; run the same version and plan on \
                 all ranks of the host",
                stat.st_size
            )));
        }
        Self::map(fd, len)
    }

    fn map(fd: OwnedFd, len: usize) -> io::Result<Self> {
        // SAFETY: a new shared mapping at an address of the kernel's choice; it aliases nothing of this process.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        let base = match NonNull::new(base.cast::<u8>()) {
            Some(base) if base.as_ptr().cast() != libc::MAP_FAILED => base,
            _ => return Err(io::Error::last_os_error()),
        };
        count_forks();
        let this = Self { base, len, fd, forks: fork_generation() };
        // SAFETY: both calls are about the mapping just made, which they neither move nor shrink. Huge pages are a wish.
        let kept_from_children = unsafe {
            libc::madvise(base.as_ptr().cast(), len, libc::MADV_HUGEPAGE);
            libc::madvise(base.as_ptr().cast(), len, libc::MADV_DONTFORK)
        };
        if kept_from_children != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(this)
    }

    /// Whether this is the process that mapped it, and no child forked from that.
    pub(super) fn is_here(&self) -> bool {
        fork_generation() == self.forks
    }

    /// Frees the pages of a range; it reads as zero afterwards, in every process.
    pub(super) fn empty(&self, offset: usize, len: usize) -> io::Result<()> {
        let base = self.pages(offset, len)?;
        // SAFETY: inside the mapping, on page boundaries. The range was handed out and has come back: nobody reads it.
        if unsafe { libc::madvise(base.cast(), len, libc::MADV_REMOVE) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Takes the pages of a range, rounded out to whole ones, out of the shared memory: this process keeps what they hold,
    /// and what others write from now on stays theirs. This process's threads may go on reading and writing meanwhile.
    pub(super) fn make_private(&self, offset: usize, len: usize) -> io::Result<()> {
        let start = offset / PAGE * PAGE;
        let end = offset.checked_add(len).and_then(|end| end.checked_next_multiple_of(PAGE));
        let len = end.and_then(|end| end.checked_sub(start)).ok_or_else(outside)?;
        if len == 0 {
            return Ok(());
        }
        let base = self.pages(start, len)?;
        let at = libc::off_t::try_from(start).map_err(io::Error::other)?;
        // SAFETY: replaces pages of this mapping by a private view of the same bytes of the same file, in one step for all
        // threads. The mapping stays as long as before.
        let view = unsafe {
            libc::mmap(
                base.cast(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_FIXED,
                self.fd.as_raw_fd(),
                at,
            )
        };
        if view == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // A private page is the file's until it is written to. Exchanging a word for itself writes, and loses no other
        // thread's write; where it fails, another thread has written. (Adding zero would be compiled to a load.)
        for page in (0..len).step_by(PAGE) {
            // SAFETY: inside the mapping and aligned; other threads' accesses meet a word that does not change.
            let word = unsafe { &*base.add(page).cast::<AtomicU64>() };
            let value = word.load(Ordering::Relaxed);
            let _ = word.compare_exchange(value, value, Ordering::Relaxed, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The address of whole pages inside the mapping.
    fn pages(&self, offset: usize, len: usize) -> io::Result<*mut u8> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        if !inside || !offset.is_multiple_of(PAGE) || !len.is_multiple_of(PAGE) {
            return Err(outside());
        }
        // SAFETY: inside the mapping.
        Ok(unsafe { self.base.as_ptr().add(offset) })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The word at `offset`; `None` unless it is aligned and lies inside.
    #[inline]
    pub(super) fn word(&self, offset: usize) -> Option<&AtomicU64> {
        if !offset.is_multiple_of(8) || offset.checked_add(8)? > self.len {
            return None;
        }
        // SAFETY: inside the mapping, aligned, initialised (zeroed), and only ever accessed as an atomic.
        Some(unsafe { &*self.base.as_ptr().add(offset).cast::<AtomicU64>() })
    }

    /// `len` bytes at `offset` as the reducer's memory.
    #[inline]
    pub(super) fn region(&self, offset: usize, len: usize) -> Option<TensorRegion> {
        if offset.checked_add(len)? > self.len {
            return None;
        }
        // SAFETY: inside the mapping, which lives as long as the engine that uses the region (it owns both); the other
        // processes keep to the order of the schedules, which the flags carry.
        unsafe {
            Some(TensorRegion::from_raw_parts(
                MemoryKind::Shared,
                NonNull::new(self.base.as_ptr().add(offset))?,
                len,
                0,
            ))
        }
    }

    /// Copies `bytes` to `offset`; false if they do not fit. The caller owns that range until it publishes it.
    #[inline]
    pub(super) fn store(&self, offset: usize, bytes: &[u8]) -> bool {
        if offset.checked_add(bytes.len()).is_none_or(|end| end > self.len) {
            return false;
        }
        // SAFETY: inside the mapping; no other process reads the range before its sequence word is published.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.as_ptr().add(offset), bytes.len()) };
        true
    }

    /// The bytes at `offset`.
    ///
    /// # Safety
    /// Nobody writes them for as long as the slice is used: the caller has seen them published, and they are not written again
    /// before it says that it has read them.
    #[inline]
    pub(super) unsafe fn published(&self, offset: usize, len: usize) -> Option<&[u8]> {
        if offset.checked_add(len)? > self.len {
            return None;
        }
        // SAFETY: inside the mapping; unwritten for now, as the caller promises.
        Some(unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(offset), len) })
    }
}

fn outside() -> io::Error {
    io::Error::other("the range is not of the segment")
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.is_here() {
            // SAFETY: the mapping was made by `map` and nothing refers to it any more.
            unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
        }
    }
}

/// A process whose end is looked for.
#[derive(Debug)]
pub(super) enum Watch {
    /// By a descriptor that becomes readable then.
    Process(OwnedFd),
    /// It had ended before.
    Ended,
    /// The kernel does not report it.
    Blind,
}

/// Watches a process.
pub(super) fn watch(pid: u64) -> Watch {
    let Some(pid) = libc::pid_t::try_from(pid).ok().filter(|pid| *pid > 0) else { return Watch::Blind };
    // SAFETY: pidfd_open takes a process id and flags and returns a new descriptor or an error.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    match i32::try_from(fd) {
        // SAFETY: just opened, and nobody else has it.
        Ok(fd) if fd >= 0 => Watch::Process(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ if io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH) => Watch::Ended,
        _ => Watch::Blind,
    }
}

/// Whether the process behind a pidfd has ended.
pub(super) fn has_ended(pidfd: BorrowedFd<'_>) -> bool {
    let mut poll = libc::pollfd { fd: pidfd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid pollfd, no waiting.
    unsafe { libc::poll(&raw mut poll, 1, 0) == 1 && poll.revents & libc::POLLIN != 0 }
}

/// Fails unless the process at the other end belongs to the same user.
pub(super) fn same_user(stream: &UnixStream) -> io::Result<()> {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `peer` and `len` are valid for the write, and `len` is the size of `peer`.
    let asked = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut len,
        )
    };
    if asked != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: geteuid cannot fail.
    let ours = unsafe { libc::geteuid() };
    if peer.uid == ours {
        Ok(())
    } else {
        Err(io::Error::other(format!("the other process is of user {}, this one of {ours}", peer.uid)))
    }
}

/// Room for one descriptor in a control message, aligned as `cmsghdr` must be.
#[repr(C, align(8))]
struct Control([u8; 32]);

/// Calls `f` with a message of one byte and a control buffer.
fn with_message<R>(byte: &mut u8, control: &mut Control, f: impl FnOnce(&mut libc::msghdr) -> R) -> R {
    let mut piece = libc::iovec { iov_base: std::ptr::from_mut(byte).cast(), iov_len: 1 };
    // SAFETY: msghdr is plain data, for which zeroes are valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut piece;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    // SAFETY: CMSG_SPACE only computes.
    message.msg_controllen = unsafe { libc::CMSG_SPACE(size_of::<i32>() as u32) } as usize;
    f(&mut message)
}

/// Sends a descriptor along with one byte.
pub(super) fn send_descriptor(stream: &UnixStream, mut byte: u8, fd: BorrowedFd<'_>) -> io::Result<()> {
    let mut control = Control([0; 32]);
    with_message(&mut byte, &mut control, |message| {
        // SAFETY: the control buffer has room for one header and one descriptor (CMSG_SPACE of it is set), so the first
        // header exists and its data is valid for the write.
        let sent = unsafe {
            let header = libc::CMSG_FIRSTHDR(message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size_of::<i32>() as u32) as usize;
            libc::CMSG_DATA(header).cast::<i32>().write_unaligned(fd.as_raw_fd());
            libc::sendmsg(stream.as_raw_fd(), message, libc::MSG_NOSIGNAL)
        };
        if sent == 1 { Ok(()) } else { Err(io::Error::last_os_error()) }
    })
}

/// Receives one byte, and the descriptor that came along with it, if one did; `None` where nothing comes any more.
pub(super) fn receive_descriptor(stream: &UnixStream) -> io::Result<Option<(u8, Option<OwnedFd>)>> {
    let (mut byte, mut control) = (0u8, Control([0; 32]));
    let received = with_message(&mut byte, &mut control, |message| {
        // SAFETY: all pointers in the message are valid for the call.
        let received = unsafe { libc::recvmsg(stream.as_raw_fd(), message, libc::MSG_CMSG_CLOEXEC) };
        if received < 0 {
            return Err(io::Error::last_os_error());
        }
        if received == 0 {
            return Ok(None);
        }
        // SAFETY: the kernel has filled the control buffer up to msg_controllen; the header is checked before its data is
        // read, and the descriptor in it is new and nobody else's.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(message);
            let carries = !header.is_null()
                && (*header).cmsg_level == libc::SOL_SOCKET
                && (*header).cmsg_type == libc::SCM_RIGHTS
                && (*header).cmsg_len >= libc::CMSG_LEN(size_of::<i32>() as u32) as usize;
            Ok(Some(
                carries.then(|| OwnedFd::from_raw_fd(libc::CMSG_DATA(header).cast::<i32>().read_unaligned())),
            ))
        }
    });
    Ok(received?.map(|fd| (byte, fd)))
}

/// A limit on resources (getrlimit(2)), in bytes; `None` where there is none.
fn limit(resource: libc::__rlimit_resource_t) -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: `limit` is valid for the write.
    let asked = unsafe { libc::getrlimit(resource, &raw mut limit) };
    (asked == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// The bytes of address space that this process may have in all, where they are limited.
pub(super) fn address_limit() -> Option<u64> {
    limit(libc::RLIMIT_AS)
}

/// The bytes of the largest file that this process may make, where they are limited.
pub(super) fn file_limit() -> Option<u64> {
    limit(libc::RLIMIT_FSIZE)
}

/// Bytes of address space that this process may still map; `u64::MAX` where they are not limited.
pub(super) fn address_room() -> u64 {
    let Some(limit) = address_limit() else { return u64::MAX };
    // SAFETY: sysconf touches no memory of ours.
    let page = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(PAGE as u64);
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split_whitespace().next().and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0);
    limit.saturating_sub(pages.saturating_mul(page))
}
