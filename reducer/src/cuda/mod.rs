//! Memory of NVIDIA GPUs and reductions there, through the CUDA driver. The driver is loaded at run time; where it is absent,
//! [`Cuda::probe`] says why.
//!
//! | file | what |
//! |---|---|
//! | `sys` | the driver's functions |
//! | `device` | the devices, and their properties |
//! | `pointer` | the kind of an address: host, pinned, device, managed |
//! | `context` | the trainer's contexts, entered and left |
//! | `stream` | streams, events, copies |
//! | `buffer`, `pinned` | our own device memory; page-locked host memory |
//! | `copier` | copies between host and device with fences |
//! | `accelerator` | copies, folds and other ranks' tensors, for the executor |
//! | `ipc` | memory of other processes of the host |
//! | `dmabuf` | device memory for NICs |
//! | [`kernel`] | reductions, and other kernels for tensors |
//! | `crcs` | CRCs of fragments that NICs send from there and write there |
//!
//! Rules of this module:
//!
//! - The trainer's contexts are used, never replaced. A [`Context`] is entered for a few calls and left as it was.
//! - While a context is entered, the thread's capture mode is relaxed, so no call of ours invalidates a capture that the
//!   trainer has under way on another thread. Streams that are being captured themselves are refused.
//! - Nothing synchronises a device. Order comes from events; a host asks whether one is done. Calls that make the driver
//!   synchronise (freeing memory, unregistering it) happen when buffers are dropped, not in between.
//! - The per-thread default stream belongs to the thread that names it: every call about it is made there.

mod accelerator;
mod buffer;
mod context;
mod copier;
mod crcs;
mod device;
mod dmabuf;
mod error;
mod ipc;
pub mod kernel;
mod pinned;
mod pointer;
mod stream;
mod sys;

#[cfg(test)]
pub(crate) mod tests;

use std::sync::OnceLock;

use thiserror::Error;

pub use self::accelerator::CudaAccelerator;
pub use self::buffer::DeviceBuffer;
pub use self::context::{Context, Entered};
pub use self::copier::{Copier, CopyDirection, CopyFence};
pub use self::crcs::{CudaCrcs, NicWrites};
pub use self::device::{ComputeMode, DeviceInfo};
pub use self::dmabuf::Dmabuf;
pub use self::error::CudaError;
pub use self::ipc::{MemoryHandle, PeerMemory};
pub use self::pinned::{Pinned, Registered};
pub use self::pointer::{Pointer, PointerKind};
pub use self::stream::{CudaEvent, Stream};
use self::sys::{Api, code};

/// The oldest driver that is used, as the driver counts: 1000 * major + 10 * minor of the CUDA version.
const OLDEST: i32 = 12_000;

/// The loaded driver.
pub struct Cuda {
    pub(crate) api: Api,
    version: i32,
}

impl core::fmt::Debug for Cuda {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Cuda").field("version", &self.version).finish_non_exhaustive()
    }
}

/// Why CUDA cannot be used here.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Absent {
    /// No library of the driver was found.
    #[error(
        "no libcuda.so.1; install the NVIDIA driver, or start the container with GPUs (`--gpus all`, NVIDIA Container Toolkit)"
    )]
    NoDriver,
    /// The driver is older than what is needed.
    #[error("the NVIDIA driver knows CUDA {}.{}; install one for CUDA {}.{} or later (driver 525)",
        found / 1000, found % 1000 / 10, needed / 1000, needed % 1000 / 10)]
    TooOld {
        /// The driver's CUDA version, as it counts: 1000 * major + 10 * minor.
        found: i32,
        /// The oldest that is used, counted likewise.
        needed: i32,
    },
    /// The library has not all functions.
    #[error(
        "libcuda.so.1 has no {symbol}; install a complete NVIDIA driver instead of the toolkit's stub library"
    )]
    Incomplete {
        /// The missing function.
        symbol: &'static str,
    },
    /// There is a driver, but no device that this process may use.
    #[error(
        "the NVIDIA driver finds no device; look at `nvidia-smi`, at CUDA_VISIBLE_DEVICES, and in a container at what it was given (`--gpus all`)"
    )]
    NoDevice,
    /// The driver does not start.
    #[error("the NVIDIA driver does not start: {0}; look at `nvidia-smi` and the kernel's log (`dmesg`)")]
    Failed(#[source] CudaError),
}

impl Cuda {
    /// The driver, loaded and started by the first call in the process; later calls give the same answer.
    ///
    /// # Errors
    /// Why there is none: no library, one that is too old, no device, or a driver that does not start.
    pub fn probe() -> Result<&'static Self, Absent> {
        static CUDA: OnceLock<Result<Cuda, Absent>> = OnceLock::new();
        CUDA.get_or_init(Self::load).as_ref().map_err(Clone::clone)
    }

    #[allow(unsafe_code)]
    fn load() -> Result<Self, Absent> {
        let api = Api::load().map_err(|missing| match missing {
            None => Absent::NoDriver,
            Some(symbol) => Absent::Incomplete { symbol },
        })?;
        let mut version = 0;
        // SAFETY: `version` is writable; the driver allows this call before it is started.
        unsafe { api.cuDriverGetVersion(&mut version) }.ok().map_err(Absent::Failed)?;
        if version < OLDEST {
            return Err(Absent::TooOld { found: version, needed: OLDEST });
        }
        // SAFETY: no arguments; it may be called any number of times.
        let started = unsafe { api.cuInit(0) };
        if started.code == code::NO_DEVICE {
            return Err(Absent::NoDevice);
        }
        started.ok().map_err(Absent::Failed)?;
        let cuda = Self { api, version };
        match cuda.device_count() {
            Ok(0) => Err(Absent::NoDevice),
            Ok(_) => Ok(cuda),
            Err(error) => Err(Absent::Failed(error)),
        }
    }

    /// The CUDA version of the driver (major, minor).
    pub fn version(&self) -> (u32, u32) {
        let version = self.version.unsigned_abs();
        (version / 1000, version % 1000 / 10)
    }
}
