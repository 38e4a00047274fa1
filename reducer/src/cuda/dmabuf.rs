//! Device memory as a dmabuf, which an RDMA NIC can register (`ibv_reg_dmabuf_mr`). **Not run on a GPU yet**: written against
//! the driver's manual, and tried with a simulated driver only.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_uint};
use std::os::fd::{FromRawFd, OwnedFd};

use cudarc::driver::sys::CUmemRangeHandleType;

use super::{Context, CudaError};

/// A range of device memory behind a file descriptor.
#[derive(Debug)]
pub struct Dmabuf {
    /// The dmabuf, of whole pages.
    pub fd: OwnedFd,
    /// Where the range begins in it, in bytes.
    pub offset: u64,
    /// Length of the range in bytes.
    pub len: u64,
}

impl Dmabuf {
    /// `len` bytes at `address`, within one allocation of device memory. `page` is the host's page size in bytes, a power of
    /// two: the driver wants whole pages, and the range is widened to them.
    ///
    /// # Errors
    /// The range is empty or not within one allocation of the device, or the driver or the device has no DMA-BUF.
    pub fn export(context: &Context, address: u64, len: u64, page: u64) -> Result<Self, CudaError> {
        let pointer = context.cuda().classify_range(address, len)?;
        let refused = CudaError::Range { address, bytes: len, base: pointer.base, size: pointer.size };
        if len == 0 || !page.is_power_of_two() {
            return Err(CudaError::Empty);
        }
        let start = address & !(page - 1);
        let end =
            address.checked_add(len).and_then(|end| end.checked_next_multiple_of(page)).ok_or(refused)?;
        let entered = context.enter()?;
        let mut fd: c_int = -1;
        let kind = CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD as c_uint;
        let handle = core::ptr::from_mut(&mut fd).cast();
        // SAFETY: for this kind the driver writes an int; the addresses are only looked up.
        unsafe {
            entered.cuda().api.cuMemGetHandleForAddressRange(handle, start, (end - start) as usize, kind, 0)
        }
        .ok()?;
        if fd < 0 {
            return Err(CudaError::NoDmabuf { code: 0, name: String::from("no descriptor") });
        }
        // SAFETY: the driver has made this descriptor for the caller to close.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { fd, offset: address - start, len })
    }
}
