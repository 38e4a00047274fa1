//! The mapping of the segment and the system calls around it.
#![allow(unsafe_code)]

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{Advice, MmapOptions, MmapRaw};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use rustix::process::{Pid, PidfdFlags, Resource, geteuid, getrlimit, pidfd_open};
use shouter_reducer::memory::{MemoryKind, TensorRegion};

use super::layout::PAGE;
use crate::runtime::{count_forks, fork_generation};

/// A shared mapping of a whole memfd.
struct Mapped {
    map: ManuallyDrop<MmapRaw>,
    fd: OwnedFd,
    /// The process that has it: a forked child does not, and may have other memory there.
    forks: u32,
}

/// A range of whole pages of a mapping; offsets are from its start. It is only reached through atomics and through regions, whose users keep
/// to the order of their schedules.
pub(super) struct Mapping {
    mapped: Arc<Mapped>,
    start: usize,
    len: usize,
}

impl Mapping {
    /// A new memfd of `len` zeroed bytes whose size can never change.
    pub(super) fn create(len: usize) -> io::Result<Self> {
        if file_limit().is_some_and(|limit| limit < len as u64) {
            // ftruncate would end this process with SIGXFSZ.
            return Err(Errno::FBIG.into());
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create(c"shouter-node", flags)?;
        rustix::fs::ftruncate(&fd, len as u64)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)?;
        Self::map(fd, len)
    }

    /// Maps a descriptor that another process passed; its size must be `len` and sealed, so that no access can fault.
    pub(super) fn attach(fd: OwnedFd, len: usize) -> io::Result<Self> {
        let size = rustix::fs::fstat(&fd)?.st_size;
        let seals = rustix::fs::fcntl_get_seals(&fd)?;
        if usize::try_from(size) != Ok(len) || !seals.contains(SealFlags::SHRINK) {
            return Err(io::Error::other(format!(
                "the segment has {size} bytes (seals {:#x}) where {len} are due; run the same version and plan on all ranks of \
                 the host",
                seals.bits()
            )));
        }
        Self::map(fd, len)
    }

    fn map(fd: OwnedFd, len: usize) -> io::Result<Self> {
        let map = ManuallyDrop::new(MmapOptions::new().len(len).map_raw(&fd)?);
        count_forks();
        let mapped = Mapped { map, fd, forks: fork_generation() };
        // Only advice: a failure does no harm.
        let _ = mapped.map.advise(Advice::HugePage);
        mapped.map.advise(Advice::DontFork)?;
        Ok(Self { mapped: Arc::new(mapped), start: 0, len })
    }

    /// A part of it, of whole pages; `None` unless it lies inside.
    pub(super) fn part(&self, offset: usize, len: usize) -> Option<Self> {
        self.pages(offset, len).ok()?;
        Some(Self { mapped: self.mapped.clone(), start: self.start + offset, len })
    }

    /// Whether this is the process that mapped it, and no child forked from that.
    pub(super) fn is_here(&self) -> bool {
        self.mapped.is_here()
    }

    /// Frees the pages of a range; it reads as zero afterwards, in every process.
    pub(super) fn empty(&self, offset: usize, len: usize) -> io::Result<()> {
        self.pages(offset, len)?;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(&self.mapped.fd, flags, (self.start + offset) as u64, len as u64)?)
    }

    /// Takes the pages of a range, rounded out to whole ones, out of the shared memory: this process keeps their
    /// content, and later writes of others stay theirs. This process's threads may go on reading and writing meanwhile.
    pub(super) fn make_private(&self, offset: usize, len: usize) -> io::Result<()> {
        let start = offset / PAGE * PAGE;
        let end = offset.checked_add(len).and_then(|end| end.checked_next_multiple_of(PAGE));
        let len = end.and_then(|end| end.checked_sub(start)).ok_or_else(outside)?;
        if len == 0 {
            return Ok(());
        }
        let base = self.pages(start, len)?;
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::FIXED);
        // SAFETY: replaces pages of this mapping by a private view of the same bytes of the same file, in one step for all
        // threads. The mapping stays as long as before.
        unsafe {
            rustix::mm::mmap(base.cast(), len, access, flags, &self.mapped.fd, (self.start + start) as u64)
        }?;
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
        let whole = offset.is_multiple_of(PAGE) && len.is_multiple_of(PAGE);
        self.at(offset, len).filter(|_| whole).ok_or_else(outside)
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.mapped.fd.as_fd()
    }

    /// The address of `len` bytes at `offset`; `None` unless they lie inside.
    #[inline]
    fn at(&self, offset: usize, len: usize) -> Option<*mut u8> {
        let inside = offset.checked_add(len)? <= self.len;
        inside.then(|| self.mapped.map.as_mut_ptr().wrapping_add(self.start + offset))
    }

    /// The word at `offset`; `None` unless it is aligned and lies inside.
    #[inline]
    pub(super) fn word(&self, offset: usize) -> Option<&AtomicU64> {
        let word = self.at(offset, 8).filter(|_| offset.is_multiple_of(8))?;
        // SAFETY: inside the mapping, aligned, initialised (zeroed), and only ever accessed as an atomic.
        Some(unsafe { &*word.cast::<AtomicU64>() })
    }

    /// `len` bytes at `offset` as the reducer's memory.
    #[inline]
    pub(super) fn region(&self, offset: usize, len: usize) -> Option<TensorRegion> {
        let base = NonNull::new(self.at(offset, len)?)?;
        // SAFETY: inside the mapping, which lives as long as what uses the region: the engine, which owns both, or an exposed piece, which
        // holds the segment. In schedules the other processes keep to the order that the flags carry; exposed pieces are accessed by
        // atomic operations alone.
        Some(unsafe { TensorRegion::from_raw_parts(MemoryKind::Shared, base, len, 0) })
    }

    /// Copies `bytes` to `offset`; false if they do not fit. The caller owns that range until it publishes it.
    #[inline]
    pub(super) fn store(&self, offset: usize, bytes: &[u8]) -> bool {
        let Some(into) = self.at(offset, bytes.len()) else { return false };
        // SAFETY: inside the mapping; no other process reads the range before its sequence word is published.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), into, bytes.len()) };
        true
    }

    /// The bytes at `offset`.
    ///
    /// # Safety
    /// Nobody writes them for as long as the slice is used: the caller has seen them published, and they are not written again
    /// before it says that it has read them.
    #[inline]
    pub(super) unsafe fn published(&self, offset: usize, len: usize) -> Option<&[u8]> {
        let first = self.at(offset, len)?;
        // SAFETY: inside the mapping; unwritten for now, as the caller promises.
        Some(unsafe { std::slice::from_raw_parts(first, len) })
    }
}

fn outside() -> io::Error {
    io::Error::other("the range is not of the segment")
}

impl Mapped {
    fn is_here(&self) -> bool {
        fork_generation() == self.forks
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if self.is_here() {
            // SAFETY: dropped here only, and nothing refers to it any more.
            unsafe { ManuallyDrop::drop(&mut self.map) };
        }
    }
}

/// A watch for the end of a process.
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
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Watch::Blind };
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(fd) => Watch::Process(fd),
        Err(Errno::SRCH) => Watch::Ended,
        Err(_) => Watch::Blind,
    }
}

/// Whether the process behind a pidfd has ended.
pub(super) fn has_ended(pidfd: BorrowedFd<'_>) -> bool {
    let mut asked = [PollFd::from_borrowed_fd(pidfd, PollFlags::IN)];
    let ready = poll(&mut asked, Some(&Timespec::default()));
    ready == Ok(1) && asked[0].revents().contains(PollFlags::IN)
}

/// Fails unless the process at the other end belongs to the same user.
pub(super) fn same_user(stream: &UnixStream) -> io::Result<()> {
    // By hand: rustix takes the process id to be no zero, and it is zero for a process of another pid namespace.
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
    let ours = geteuid().as_raw();
    if peer.uid == ours {
        Ok(())
    } else {
        Err(io::Error::other(format!("the other process is of user {}, this one of {ours}", peer.uid)))
    }
}

/// Sends a descriptor along with one byte.
pub(super) fn send_descriptor(stream: &UnixStream, byte: u8, fd: BorrowedFd<'_>) -> io::Result<()> {
    let (mut room, fds) = ([MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))], [fd]);
    let mut control = SendAncillaryBuffer::new(&mut room);
    control.push(SendAncillaryMessage::ScmRights(&fds));
    sendmsg(stream, &[IoSlice::new(&[byte])], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives one byte, and the descriptor that came along with it, if one did; `None` where nothing comes any more.
pub(super) fn receive_descriptor(stream: &UnixStream) -> io::Result<Option<(u8, Option<OwnedFd>)>> {
    let (mut room, mut byte) = ([MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))], [0]);
    let mut control = RecvAncillaryBuffer::new(&mut room);
    let received = recvmsg(stream, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let fd = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    Ok((received.bytes != 0).then_some((byte[0], fd)))
}

/// The bytes of address space that this process may have in all, where they are limited.
pub(super) fn address_limit() -> Option<u64> {
    getrlimit(Resource::As).current
}

/// The bytes of the largest file that this process may make, where they are limited.
pub(super) fn file_limit() -> Option<u64> {
    getrlimit(Resource::Fsize).current
}

/// Bytes of address space that this process may still map; `u64::MAX` where they are not limited.
pub(super) fn address_room() -> u64 {
    let Some(limit) = address_limit() else { return u64::MAX };
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split_whitespace().next().and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0);
    limit.saturating_sub(pages.saturating_mul(rustix::param::page_size() as u64))
}
