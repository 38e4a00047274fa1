//! Device memory of our own: slots for what is reduced on the device, and flags.
#![allow(unsafe_code)]

use super::{Context, CudaError};

/// Device memory, allocated as by cudaMalloc, so that other processes can open it. Its bytes are undefined at first.
#[derive(Debug)]
pub struct DeviceBuffer {
    context: Context,
    address: u64,
    len: usize,
}

impl DeviceBuffer {
    /// `len` bytes on the context's device.
    ///
    /// # Errors
    /// `len` is 0, or the driver's: out of memory, a device that is lost.
    pub fn new(context: &Context, len: usize) -> Result<Self, CudaError> {
        if len == 0 {
            return Err(CudaError::Empty);
        }
        let entered = context.enter()?;
        let mut address = 0;
        // SAFETY: `address` is writable.
        unsafe { entered.cuda().api.cuMemAlloc_v2(&mut address, len) }.ok()?;
        Ok(Self { context: context.clone(), address, len })
    }

    /// The first byte's address, on the device.
    pub fn address(&self) -> u64 {
        self.address
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

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if let Ok(entered) = self.context.enter() {
            // SAFETY: allocated in `new`, and freed once. The driver waits for the device to finish with it.
            let _ = unsafe { entered.cuda().api.cuMemFree_v2(self.address) }.ok();
        }
    }
}
