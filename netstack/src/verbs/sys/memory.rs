//! Registered memory.

use core::ffi::{c_int, c_void};
use core::ptr::NonNull;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use memmap2::{MmapOptions, MmapRaw};
use rustix::process::{Resource, getrlimit};

use super::super::{Access, Context, MemoryRegion, VerbsError};
use super::{Domain, Errno, ffi};

/// Why a dma-buf was not registered.
#[derive(Clone, Copy, Debug)]
pub(in super::super) enum DmabufError {
    /// libibverbs has no function for it.
    Library,
    /// The call failed.
    Call(Errno),
}

/// A registration, and the memory under it where that is its own.
#[derive(Debug)]
pub(in super::super) struct Registration {
    mr: NonNull<rdma_sys::ibv_mr>,
    address: u64,
    len: usize,
    mapped: bool,
    pages: Option<MmapRaw>,
    _domain: Arc<Domain>,
}

// SAFETY: an address, and a registration that libibverbs lets any thread use and take back. References to the bytes follow
// Rust's rules through `&self` and `&mut self`.
unsafe impl Send for Registration {}
// SAFETY: as above.
unsafe impl Sync for Registration {}

impl Registration {
    /// `len` zero bytes, page-aligned.
    pub(in super::super) fn owned(domain: &Arc<Domain>, len: usize, access: Access) -> Result<Self, Errno> {
        let pages = MmapOptions::new().len(len).map_anon().map_err(Errno::of)?;
        let pages = MmapRaw::from(pages);
        // SAFETY: the pages stay mapped until the registration is dropped.
        let mut region = unsafe { Self::over(domain, pages.as_mut_ptr(), len, access) }?;
        region.pages = Some(pages);
        Ok(region)
    }

    /// # Safety
    /// The bytes stay mapped until the region is dropped.
    unsafe fn over(domain: &Arc<Domain>, base: *mut u8, len: usize, access: Access) -> Result<Self, Errno> {
        let address = base.cast::<c_void>();
        // SAFETY: an open domain; the kernel itself checks that the range is mapped.
        let mr = unsafe { rdma_sys::ibv_reg_mr(domain.pd(), address, len, access.bits().cast_signed()) };
        Self::of(mr, domain, address as u64, len, true)
    }

    /// `len` bytes of a dma-buf from `offset` on, which peers address from `iova` on.
    pub(in super::super) fn dmabuf(
        domain: &Arc<Domain>,
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<Self, DmabufError> {
        let register = ffi::reg_dmabuf_mr().ok_or(DmabufError::Library)?;
        let access: c_int = access.bits().cast_signed();
        // SAFETY: an open domain and an open descriptor; the kernel holds the dma-buf for as long as it is registered.
        let mr = unsafe { register(domain.pd(), offset, len, iova, fd.as_raw_fd(), access) };
        Self::of(mr, domain, iova, len, false).map_err(DmabufError::Call)
    }

    /// `len` bytes of a device at `address`, which the kernel knows through a driver of that device (peer memory).
    ///
    /// # Safety
    /// The bytes stay allocated until the region is dropped.
    unsafe fn peer(domain: &Arc<Domain>, address: u64, len: usize, access: Access) -> Result<Self, Errno> {
        let (start, access) = (address as *mut c_void, access.bits().cast_signed());
        // SAFETY: an open domain; the kernel checks the range, which nobody in this process accesses by that address.
        let mr = unsafe { rdma_sys::ibv_reg_mr(domain.pd(), start, len, access) };
        Self::of(mr, domain, address, len, false)
    }

    fn of(
        mr: *mut rdma_sys::ibv_mr,
        domain: &Arc<Domain>,
        address: u64,
        len: usize,
        mapped: bool,
    ) -> Result<Self, Errno> {
        let mr = NonNull::new(mr).ok_or_else(Errno::last)?;
        Ok(Self { mr, address, len, mapped, pages: None, _domain: Arc::clone(domain) })
    }

    /// The first byte's address, as queue pairs and peers name it.
    pub(in super::super) fn address(&self) -> u64 {
        self.address
    }

    /// Length in bytes.
    pub(in super::super) fn len(&self) -> usize {
        self.len
    }

    /// Whether this process has the bytes at that address.
    pub(in super::super) fn is_mapped(&self) -> bool {
        self.mapped
    }

    /// The key for this side's scatter/gather elements.
    pub(in super::super) fn lkey(&self) -> u32 {
        // SAFETY: registered until `self` is dropped.
        unsafe { (*self.mr.as_ptr()).lkey }
    }

    /// The key for peers.
    pub(in super::super) fn rkey(&self) -> u32 {
        // SAFETY: registered until `self` is dropped.
        unsafe { (*self.mr.as_ptr()).rkey }
    }

    /// Finds `len` bytes of the region's own memory; `None` outside of it.
    fn range(&self, offset: usize, len: usize) -> Option<*mut u8> {
        let pages = self.pages.as_ref()?;
        (offset.checked_add(len)? <= pages.len()).then(|| pages.as_mut_ptr().wrapping_add(offset))
    }

    /// Bytes of the region's own memory; `None` outside of it.
    pub(in super::super) fn bytes(&self, offset: usize, len: usize) -> Option<&[u8]> {
        let base = self.range(offset, len)?;
        // SAFETY: inside the mapping, initialised (the kernel zeroes it), borrowed with `self`, so nothing in this process
        // writes to it. That no peer does is the contract of `Buffer`.
        Some(unsafe { core::slice::from_raw_parts(base, len) })
    }

    /// The same, for writing.
    pub(in super::super) fn bytes_mut(&mut self, offset: usize, len: usize) -> Option<&mut [u8]> {
        let base = self.range(offset, len)?;
        // SAFETY: as in `bytes`, with `self` borrowed alone.
        Some(unsafe { core::slice::from_raw_parts_mut(base, len) })
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: registered by `of`, taken back once.
        if unsafe { rdma_sys::ibv_dereg_mr(self.mr.as_ptr()) } != 0 {
            // The device may still write there, so the memory is given to it for ever.
            core::mem::forget(self.pages.take());
        }
    }
}

impl Context {
    /// Registers `len` bytes at `base`, memory of the caller.
    ///
    /// # Errors
    /// As [`register_owned`](Self::register_owned), and [`VerbsError::Call`] with `EFAULT` where the range is not writable
    /// though `access` includes writes. Where it is not mapped, that or [`VerbsError::OutOfMemory`].
    ///
    /// # Safety
    /// The memory stays mapped until the returned region is dropped. The compiler does not see the accesses that `access` allows the
    /// device and peers, so nobody holds references to bytes that they write meanwhile.
    pub unsafe fn register(
        &self,
        base: NonNull<u8>,
        len: usize,
        access: Access,
    ) -> Result<MemoryRegion, VerbsError> {
        // SAFETY: passed on to the caller.
        let region = unsafe { Registration::over(self.domain(), base.as_ptr(), len, access) };
        region.map(MemoryRegion::new).map_err(|errno| VerbsError::registration(self.name(), len, errno))
    }
}

impl Context {
    /// Registers `len` bytes of another device's memory (a GPU's) at `address`, which the kernel knows through a driver of that
    /// device, such as nvidia-peermem. Nobody in this process reads it by that address.
    ///
    /// # Errors
    /// [`VerbsError::PeerMemory`] where the kernel does not recognise the range; else as
    /// [`register_owned`](Self::register_owned).
    ///
    /// # Safety
    /// The memory stays allocated until the returned region is dropped.
    pub unsafe fn register_peer(
        &self,
        address: u64,
        len: usize,
        access: Access,
    ) -> Result<MemoryRegion, VerbsError> {
        if len == 0 {
            return Err(VerbsError::Empty { device: self.name().to_owned() });
        }
        // SAFETY: passed on to the caller.
        let region = unsafe { Registration::peer(self.domain(), address, len, access) };
        region.map(MemoryRegion::new).map_err(|errno| VerbsError::peer_memory(self.name(), len, errno))
    }
}

/// The limit of locked memory of this process (RLIMIT_MEMLOCK), in bytes; `None`: no limit.
pub(in super::super) fn memory_lock_limit() -> Option<u64> {
    getrlimit(Resource::Memlock).current
}
