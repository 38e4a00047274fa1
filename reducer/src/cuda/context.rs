//! The trainer's contexts: entered for a few calls, and left as they were.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_uint};
use core::marker::PhantomData;
use std::sync::Arc;

use cudarc::driver::sys::{
    CUGPUDirectRDMAWritesOrdering as Ordering, CUcontext, CUdevice, CUdevice_attribute as Attribute,
    CUflushGPUDirectRDMAWritesOptions as FlushOptions, CUflushGPUDirectRDMAWritesScope as FlushScope,
    CUflushGPUDirectRDMAWritesTarget as FlushTarget, CUstreamCaptureMode as CaptureMode,
};

use super::{ComputeMode, Cuda, CudaError, NicWrites, Pointer};

/// A context of the trainer. Clones are cheap and name the same context.
///
/// Where it is its device's primary context (as with the CUDA runtime, and so with every framework) it is retained until the
/// last clone is dropped. Others cannot be retained: the trainer keeps them until it has left the group.
#[derive(Clone, Debug)]
pub struct Context(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    cuda: &'static Cuda,
    raw: CUcontext,
    device: CUdevice,
    ordinal: i32,
    /// Whether it is the primary context, which then counts this reference.
    retained: bool,
}

// SAFETY: the handle may be used by every thread; the driver synchronises by itself.
unsafe impl Send for Inner {}
// SAFETY: as for Send.
unsafe impl Sync for Inner {}

impl Context {
    /// The context that memory belongs to; the primary one of its device where it belongs to none (memory of
    /// cudaMallocAsync, virtual mappings).
    ///
    /// # Errors
    /// The memory is no device's, or as [`primary`](Self::primary).
    pub fn of(cuda: &'static Cuda, pointer: &Pointer) -> Result<Self, CudaError> {
        let ordinal = pointer.device.ok_or(CudaError::NotDevice { address: pointer.address })?;
        if pointer.context.is_null() {
            return Self::primary(cuda, ordinal);
        }
        Self::existing(cuda, pointer.context, cuda.device(ordinal)?, ordinal)
    }

    /// The primary context of a device, which the CUDA runtime uses too. Made if the device has not been used yet.
    ///
    /// # Errors
    /// The device does not exist, its compute mode prohibits contexts, or the driver refuses one.
    pub fn primary(cuda: &'static Cuda, ordinal: i32) -> Result<Self, CudaError> {
        let device = cuda.device(ordinal)?;
        if cuda.compute_mode(device) == ComputeMode::Prohibited {
            return Err(CudaError::Prohibited { ordinal });
        }
        let raw = retain(cuda, device)?;
        Ok(Self(Arc::new(Inner { cuda, raw, device, ordinal, retained: true })))
    }

    /// A context of a device, which is alive.
    pub(super) fn existing(
        cuda: &'static Cuda,
        raw: CUcontext,
        device: CUdevice,
        ordinal: i32,
    ) -> Result<Self, CudaError> {
        let (mut flags, mut active) = (0, 0);
        // SAFETY: both are writable.
        unsafe { cuda.api.cuDevicePrimaryCtxGetState(device, &mut flags, &mut active) }.ok()?;
        let mut retained = false;
        if active != 0 {
            retained = retain(cuda, device)? == raw;
            if !retained {
                // SAFETY: gives back what was retained just now.
                unsafe { cuda.api.cuDevicePrimaryCtxRelease_v2(device) }.ok()?;
            }
        }
        Ok(Self(Arc::new(Inner { cuda, raw, device, ordinal, retained })))
    }

    /// The driver.
    pub fn cuda(&self) -> &'static Cuda {
        self.0.cuda
    }

    /// The device's ordinal.
    pub fn ordinal(&self) -> i32 {
        self.0.ordinal
    }

    /// The driver's handle (`CUcontext`).
    pub fn as_raw(&self) -> u64 {
        self.0.raw as u64
    }

    /// Multiprocessors of the device; one where the driver does not say.
    pub(crate) fn processors(&self) -> u32 {
        let count = self.0.cuda.attribute(self.0.device, Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
        u32::try_from(count).unwrap_or(0).max(1)
    }

    /// When the device's work sees what NICs have written to its memory.
    pub fn nic_writes(&self) -> NicWrites {
        let ordering = Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING;
        let options = Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS;
        let owner = Ordering::CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER as i32;
        let by_host = FlushOptions::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST as i32;
        let attribute = |attribute| self.0.cuda.attribute(self.0.device, attribute);
        if attribute(ordering) >= owner {
            NicWrites::Ordered
        } else if attribute(options) & by_host != 0 {
            NicWrites::Flushed
        } else {
            NicWrites::Unknown
        }
    }

    /// Makes what NICs have written visible to what the device is given later.
    pub(super) fn flush_nic_writes(&self) -> Result<(), CudaError> {
        let entered = self.enter()?;
        let target = FlushTarget::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX as c_uint;
        let scope = FlushScope::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER as c_uint;
        // SAFETY: no pointers; the context is current.
        match unsafe { entered.cuda().api.cuFlushGPUDirectRDMAWrites(target, scope) } {
            Some(outcome) => outcome.ok(),
            // Drivers that ask for it have it.
            None => Ok(()),
        }
    }

    /// Whether two name the same context.
    pub fn is(&self, other: &Self) -> bool {
        self.0.raw == other.0.raw
    }

    /// Makes the context current for the calling thread, with relaxed capture mode, until the guard is dropped. Guards
    /// are dropped in reverse order, as scopes do.
    ///
    /// # Errors
    /// The driver's: the context was destroyed, or its device is lost.
    pub fn enter(&self) -> Result<Entered<'_>, CudaError> {
        let api = &self.0.cuda.api;
        // SAFETY: the context is alive, or the driver says that it is not.
        unsafe { api.cuCtxPushCurrent_v2(self.0.raw) }.ok()?;
        let mut mode = CaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as c_int;
        // SAFETY: `mode` is writable; it holds the former mode afterwards.
        match unsafe { api.cuThreadExchangeStreamCaptureMode(&mut mode) }.ok() {
            Ok(()) => Ok(Entered { context: self, mode, thread: PhantomData }),
            Err(error) => {
                pop(self.0.cuda);
                Err(error)
            }
        }
    }
}

/// Proof that a context is current; see [`Context::enter`].
#[derive(Debug)]
pub struct Entered<'a> {
    context: &'a Context,
    /// The thread's capture mode before.
    mode: c_int,
    /// The mode that it restores belongs to the thread.
    thread: PhantomData<*const ()>,
}

impl Entered<'_> {
    /// The driver.
    pub(crate) fn cuda(&self) -> &'static Cuda {
        self.context.0.cuda
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        // SAFETY: `mode` is writable, and is what the driver gave.
        let _ = unsafe { self.cuda().api.cuThreadExchangeStreamCaptureMode(&mut self.mode) }.ok();
        pop(self.cuda());
    }
}

fn retain(cuda: &Cuda, device: CUdevice) -> Result<CUcontext, CudaError> {
    let mut raw = core::ptr::null_mut();
    // SAFETY: `raw` is writable.
    unsafe { cuda.api.cuDevicePrimaryCtxRetain(&mut raw, device) }.ok()?;
    Ok(raw)
}

/// Takes off what `enter` put on.
fn pop(cuda: &Cuda) {
    let mut raw = core::ptr::null_mut();
    // SAFETY: `raw` is writable. A failure means that the context was destroyed, which has taken it off.
    let _ = unsafe { cuda.api.cuCtxPopCurrent_v2(&mut raw) }.ok();
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.retained {
            // SAFETY: gives back the reference that was counted. At the end of the process the driver may refuse it.
            let _ = unsafe { self.cuda.api.cuDevicePrimaryCtxRelease_v2(self.device) }.ok();
        }
    }
}
