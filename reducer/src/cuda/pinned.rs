//! Page-locked host memory: devices copy from and to it without the host's help, and can access it directly.
#![allow(unsafe_code)]

use core::ffi::{c_uint, c_void};
use core::ptr::NonNull;

use cudarc::driver::sys::{
    CU_MEMHOSTALLOC_DEVICEMAP, CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTREGISTER_DEVICEMAP,
    CU_MEMHOSTREGISTER_PORTABLE,
};

use super::{Context, CudaError, Entered};
use crate::memory::{MemoryKind, TensorRegion};

/// Page-locked memory that the driver allocated: zeroed, aligned to a page, and mapped for all devices.
#[derive(Debug)]
pub struct Pinned {
    context: Context,
    base: NonNull<u8>,
    len: usize,
    device_address: u64,
}

// SAFETY: the allocation belongs to the value; it is accessed through the promise of `region` only.
unsafe impl Send for Pinned {}
// SAFETY: as for Send.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// `len` bytes.
    ///
    /// # Errors
    /// `len` is 0, or the driver's: not so much memory can be page-locked.
    pub fn new(context: &Context, len: usize) -> Result<Self, CudaError> {
        if len == 0 {
            return Err(CudaError::Empty);
        }
        let entered = context.enter()?;
        let mut raw = core::ptr::null_mut();
        let flags = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: `raw` is writable.
        unsafe { entered.cuda().api.cuMemHostAlloc(&mut raw, len, flags as c_uint) }.ok()?;
        let Some(base) = NonNull::new(raw.cast::<u8>()) else {
            return Err(CudaError::OutOfMemory { call: "cuMemHostAlloc" });
        };
        // SAFETY: the allocation has `len` bytes, which no one else knows of yet.
        unsafe { base.write_bytes(0, len) };
        // From here on dropping it frees it.
        let mut pinned = Self { context: context.clone(), base, len, device_address: 0 };
        pinned.device_address = device_address(&entered, base.as_ptr() as u64)?;
        Ok(pinned)
    }

    /// The first byte's address.
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.base
    }

    /// The address by which devices access it.
    pub fn device_address(&self) -> u64 {
        self.device_address
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: there is at least one byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The memory as a region.
    ///
    /// # Safety
    /// As for [`TensorRegion::from_raw_parts`]; in particular the value outlives every operation that names the region, and
    /// every copy from or to it.
    pub unsafe fn region(&self, generation: u32) -> TensorRegion {
        // SAFETY: passed on to the caller.
        unsafe { TensorRegion::from_raw_parts(MemoryKind::Pinned, self.base, self.len, generation) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Ok(entered) = self.context.enter() {
            // SAFETY: allocated in `new`, and freed once.
            let _ = unsafe { entered.cuda().api.cuMemFreeHost(self.base.as_ptr().cast()) }.ok();
        }
    }
}

/// Host memory of another owner (the trainer's, or what the ranks of a host share), page-locked and mapped for all devices
/// until the value is dropped.
#[derive(Debug)]
pub struct Registered {
    context: Context,
    base: NonNull<u8>,
    len: usize,
    device_address: u64,
}

// SAFETY: an address and a length; the memory is not accessed through the value.
unsafe impl Send for Registered {}
// SAFETY: as for Send.
unsafe impl Sync for Registered {}

impl Registered {
    /// Registers `len` bytes at `base`. Memory that is registered already, even in part, is refused.
    ///
    /// # Errors
    /// `len` is 0, or the driver's: not so much memory can be page-locked, or some of it is already.
    ///
    /// # Safety
    /// The memory stays mapped until the value is dropped.
    pub unsafe fn new(context: &Context, base: NonNull<u8>, len: usize) -> Result<Self, CudaError> {
        if len == 0 {
            return Err(CudaError::Empty);
        }
        let entered = context.enter()?;
        let flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: the range is mapped, by the caller's promise.
        unsafe { entered.cuda().api.cuMemHostRegister_v2(base.as_ptr().cast(), len, flags as c_uint) }
            .ok()?;
        let mut registered = Self { context: context.clone(), base, len, device_address: 0 };
        registered.device_address = device_address(&entered, base.as_ptr() as u64)?;
        Ok(registered)
    }

    /// The address by which devices access the first byte.
    pub fn device_address(&self) -> u64 {
        self.device_address
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: there is at least one byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if let Ok(entered) = self.context.enter() {
            // SAFETY: registered in `new`, and still mapped by the promise made there.
            let _ = unsafe { entered.cuda().api.cuMemHostUnregister(self.base.as_ptr().cast()) }.ok();
        }
    }
}

impl Context {
    /// The address by which the device accesses page-locked host memory. The driver knows it only for a context: without a
    /// current one, `cuPointerGetAttributes` gives zero.
    ///
    /// # Errors
    /// The driver's: the memory is not page-locked.
    pub(super) fn address_of_pinned(&self, host: u64) -> Result<u64, CudaError> {
        device_address(&self.enter()?, host)
    }
}

/// The same, in a context that is current.
fn device_address(entered: &Entered<'_>, host: u64) -> Result<u64, CudaError> {
    let mut address = 0;
    // SAFETY: `address` is writable; the host's address is only looked up.
    unsafe { entered.cuda().api.cuMemHostGetDevicePointer_v2(&mut address, host as *mut c_void, 0) }.ok()?;
    Ok(address)
}
