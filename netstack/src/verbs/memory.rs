//! Registered memory, which a device may read and write, and peers through it.

use core::fmt;
use core::marker::PhantomData;
use core::ops::BitOr;
use std::os::fd::BorrowedFd;

use super::{Context, VerbsError, sys};

/// The rights of the device to memory, or of a queue pair's peer through the queue pair. The device may always read it
/// for this side's requests.
///
/// ```
/// use shouter_netstack::verbs::Access;
///
/// // A buffer that this side's RDMA reads fill, and that peers may read.
/// let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
/// assert_eq!(format!("{access:?}"), r#"{"LOCAL_WRITE", "REMOTE_READ"}"#);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Access(u32);

impl Access {
    /// Nothing but this side's sends and writes from it.
    pub const LOCAL_READ: Self = Self(0);
    /// Data that this side reads from peers may be placed there.
    pub const LOCAL_WRITE: Self = Self(1);
    /// Peers that know the key may write it.
    pub const REMOTE_WRITE: Self = Self(1 | 1 << 1);
    /// Peers that know the key may read it.
    pub const REMOTE_READ: Self = Self(1 << 2);

    /// As `enum ibv_access_flags`.
    pub(super) fn bits(self) -> u32 {
        self.0
    }
}

impl BitOr for Access {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = [(1, "LOCAL_WRITE"), (2, "REMOTE_WRITE"), (4, "REMOTE_READ")];
        let names = flags.iter().filter(|(bit, _)| self.0 & bit != 0).map(|(_, name)| *name);
        f.debug_set().entries(names).finish()
    }
}

/// Memory that is registered with a device. Dropping it takes the registration back, after which the device can no longer
/// reach the memory: requests that still name it fail with
/// [`LocalProtection`](super::Status::LocalProtection), peers' with [`RemoteAccess`](super::Status::RemoteAccess).
#[derive(Debug)]
pub struct MemoryRegion {
    raw: sys::Registration,
}

impl MemoryRegion {
    pub(super) fn new(raw: sys::Registration) -> Self {
        Self { raw }
    }

    /// The first byte's address, as peers name it.
    pub fn address(&self) -> u64 {
        self.raw.address()
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.raw.len()
    }

    /// Always false: a region of no bytes cannot be registered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The key for this side's requests.
    pub fn lkey(&self) -> u32 {
        self.raw.lkey()
    }

    /// The key that peers need.
    pub fn rkey(&self) -> u32 {
        self.raw.rkey()
    }

    /// `len` bytes from `offset`, to send from or to read into; `None` outside of the region, or above 4 GiB - 1.
    #[inline]
    pub fn sge(&self, offset: usize, len: usize) -> Option<Sge<'_>> {
        if offset.checked_add(len)? > self.raw.len() {
            return None;
        }
        Some(Sge {
            address: self.raw.address().checked_add(offset as u64)?,
            len: u32::try_from(len).ok()?,
            lkey: self.raw.lkey(),
            mapped: self.raw.is_mapped(),
            region: PhantomData,
        })
    }
}

/// A range of registered memory (a scatter/gather element). It borrows its region only until it is posted.
#[derive(Clone, Copy, Debug)]
pub struct Sge<'m> {
    address: u64,
    len: u32,
    lkey: u32,
    /// Whether this process can read it at that address.
    mapped: bool,
    region: PhantomData<&'m MemoryRegion>,
}

impl Sge<'_> {
    /// No bytes.
    pub(super) const EMPTY: Self = Self { address: 0, len: 0, lkey: 0, mapped: true, region: PhantomData };

    /// Length in bytes.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether it holds no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether this process can read the bytes itself, as it has to for inline data: not those of a dma-buf.
    pub fn is_mapped(&self) -> bool {
        self.mapped
    }

    #[inline]
    pub(super) fn raw(self) -> rdma_sys::ibv_sge {
        rdma_sys::ibv_sge { addr: self.address, length: self.len, lkey: self.lkey }
    }
}

/// Page-aligned memory of its own, zero at first, registered.
///
/// A peer (or an RDMA read of this side) may write to it at any time, if it is registered for that. The protocol above
/// says when it may not: the caller of [`bytes`](Self::bytes) ensures that nothing writes there meanwhile. A peer that
/// breaks the protocol can garble the bytes of this buffer while they are looked at, and no more; so data read from it
/// is checked as any input from the network is, once it is copied or the peer has lost its access. A vhost ring has the
/// same rules.
#[derive(Debug)]
pub struct Buffer {
    region: MemoryRegion,
}

impl Buffer {
    /// Its registration.
    pub fn region(&self) -> &MemoryRegion {
        &self.region
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.region.len()
    }

    /// Always false: a region of no bytes cannot be registered.
    pub fn is_empty(&self) -> bool {
        self.region.is_empty()
    }

    /// As [`MemoryRegion::sge`].
    #[inline]
    pub fn sge(&self, offset: usize, len: usize) -> Option<Sge<'_>> {
        self.region.sge(offset, len)
    }

    /// `len` bytes from `offset`, to which nobody writes now; `None` outside of the buffer.
    #[inline]
    pub fn bytes(&self, offset: usize, len: usize) -> Option<&[u8]> {
        self.region.raw.bytes(offset, len)
    }

    /// The same for writing: no device reads them now either.
    #[inline]
    pub fn bytes_mut(&mut self, offset: usize, len: usize) -> Option<&mut [u8]> {
        self.region.raw.bytes_mut(offset, len)
    }

    /// Copies `bytes` to `offset`; `None` where they do not fit, and then none of them.
    #[inline]
    pub fn write(&mut self, offset: usize, bytes: &[u8]) -> Option<()> {
        self.bytes_mut(offset, bytes.len())?.copy_from_slice(bytes);
        Some(())
    }
}

impl Context {
    /// `len` bytes of new memory (one or more), registered.
    ///
    /// # Errors
    /// [`VerbsError::Empty`] for no bytes; [`VerbsError::MemoryLock`] where the limit of locked memory is too low;
    /// [`VerbsError::OutOfMemory`] where memory is.
    pub fn register_owned(&self, len: usize, access: Access) -> Result<Buffer, VerbsError> {
        if len == 0 {
            return Err(VerbsError::Empty { device: self.name().to_owned() });
        }
        let region = sys::Registration::owned(self.domain(), len, access)
            .map_err(|errno| VerbsError::registration(self.name(), len, errno))?;
        Ok(Buffer { region: MemoryRegion::new(region) })
    }

    /// `len` bytes from `offset` of a dma-buf, such as a GPU's memory exports, which peers address from `iova` on (its low
    /// 12 bits must be those of `offset`). **Not run on an adapter**: soft-RoCE takes no dma-bufs, so only that it is refused
    /// has been seen.
    ///
    /// # Errors
    /// [`VerbsError::DmabufLibrary`] and [`VerbsError::Dmabuf`] where libibverbs, the kernel or the device cannot; else as
    /// [`register_owned`](Self::register_owned).
    pub fn register_dmabuf(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<MemoryRegion, VerbsError> {
        if len == 0 {
            return Err(VerbsError::Empty { device: self.name().to_owned() });
        }
        sys::Registration::dmabuf(self.domain(), fd, offset, len, iova, access)
            .map(MemoryRegion::new)
            .map_err(|error| VerbsError::dmabuf(self.name(), len, error))
    }
}

#[cfg(test)]
mod tests;
