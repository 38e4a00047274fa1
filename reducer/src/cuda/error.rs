//! The driver's errors, and what to do about them.

use core::ffi::c_int;

use thiserror::Error;

/// Why a call of the CUDA driver failed. None of these leaves the trainer's context in an error state that it was not in.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CudaError {
    /// The GPU or its driver has failed.
    #[error(
        "{call}: the GPU or its driver has failed ({name}, {code}); look for Xid in the kernel's log (`dmesg`), reset the GPU and start the job again"
    )]
    DeviceLost {
        /// The driver's function.
        call: &'static str,
        /// The driver's result.
        code: i32,
        /// The driver's name of the result.
        name: String,
    },
    /// An earlier kernel of this process has broken its context; nothing in it works any more.
    #[error(
        "{call}: a kernel that ran earlier in this process has broken the CUDA context ({name}, {code}); run the trainer under \
         compute-sanitizer, or with CUDA_LAUNCH_BLOCKING=1, to find it"
    )]
    ContextBroken {
        /// The driver's function.
        call: &'static str,
        /// The driver's result.
        code: i32,
        /// The driver's name of the result.
        name: String,
    },
    /// The context was destroyed while it was in use.
    #[error(
        "{call}: the CUDA context is gone ({code}); leave the group before cudaDeviceReset, cuCtxDestroy or the end of main"
    )]
    ContextGone {
        /// The driver's function.
        call: &'static str,
        /// The driver's result.
        code: i32,
    },
    /// The process was forked after the driver had been loaded.
    #[error(
        "{call}: the CUDA driver is not initialised in this process, which happens after a fork; start workers by spawn or exec"
    )]
    Forked {
        /// The driver's function.
        call: &'static str,
    },
    /// No memory is left, on the device or to lock pages in.
    #[error(
        "{call}: out of memory; on the device leave some to others (PyTorch: torch.cuda.set_per_process_memory_fraction), for \
         pinned memory raise the container's memory limit"
    )]
    OutOfMemory {
        /// The driver's function.
        call: &'static str,
    },
    /// The driver refused an address.
    #[error("{call}: an address was refused; it was freed, or belongs to another process or context")]
    Refused {
        /// The driver's function.
        call: &'static str,
    },
    /// An address that no device can access.
    #[error(
        "{address:#x} is not CUDA memory of this process; it is ordinary host memory, was freed, or belongs to another process"
    )]
    NotDevice {
        /// The address.
        address: u64,
    },
    /// Host memory that copies would have to wait for.
    #[error(
        "host memory at {address:#x} is not page-locked; allocate it as pinned memory, or register it first"
    )]
    NotPinned {
        /// The address.
        address: u64,
    },
    /// A range that goes beyond its allocation.
    #[error(
        "{bytes} bytes at {address:#x} do not lie within their allocation, {size} bytes at {base:#x}; check pointer and length"
    )]
    Range {
        /// The first byte's address.
        address: u64,
        /// Length of the range in bytes.
        bytes: u64,
        /// The allocation's address.
        base: u64,
        /// The allocation's length in bytes.
        size: u64,
    },
    /// A range without bytes, where there must be one.
    #[error("no bytes to allocate, register or share; give a length of at least one byte")]
    Empty,
    /// Host memory that is registered already.
    #[error(
        "the host memory is registered with CUDA already; use it as it is, or unregister it where it was registered"
    )]
    AlreadyRegistered,
    /// The stream or event belongs to another context than the memory, or was destroyed.
    #[error(
        "{call}: the stream or event belongs to another CUDA context, or was destroyed; pass a stream of the device that the tensor is on"
    )]
    ForeignStream {
        /// The driver's function.
        call: &'static str,
    },
    /// The device lets no further process in.
    #[error(
        "{call}: the GPU is taken by another process (compute mode exclusive); use MPS, one process per GPU, or `nvidia-smi -c DEFAULT`"
    )]
    Exclusive {
        /// The driver's function.
        call: &'static str,
    },
    /// The device lets no process in.
    #[error(
        "GPU {ordinal} is in compute mode prohibited; `nvidia-smi -i {ordinal} -c DEFAULT` allows contexts on it"
    )]
    Prohibited {
        /// The device's ordinal.
        ordinal: i32,
    },
    /// The memory's kind has no handle for other processes.
    #[error(
        "memory at {address:#x} has no CUDA IPC handle, since it does not come from cudaMalloc; turn off cudaMallocAsync \
         (PYTORCH_CUDA_ALLOC_CONF=backend:native) and expandable segments (expandable_segments:False), or let it be staged \
         through pinned memory that the host's ranks share"
    )]
    NoIpcHandle {
        /// The address.
        address: u64,
    },
    /// A handle of another process could not be opened.
    #[error(
        "{call}: another process's GPU memory could not be opened ({name}, {code}); in containers share the IPC \
         namespace (`--ipc=host`, or one pod) and show the same GPUs to all ranks; the process that exported it must live and \
         cannot open it itself. Otherwise memory is staged through pinned memory that the host's ranks share"
    )]
    IpcRefused {
        /// The driver's function.
        call: &'static str,
        /// The driver's result.
        code: i32,
        /// The driver's name of the result.
        name: String,
    },
    /// The stream is being captured into a graph, which cannot hold what was asked.
    #[error(
        "the stream is being captured into a CUDA graph, which cannot hold what the network does; reduce outside of the capture"
    )]
    Capturing,
    /// A capture was invalidated, or would have been.
    #[error(
        "{call}: refused because of a capture into a CUDA graph ({code}); capture with cudaStreamCaptureModeThreadLocal, and \
         reduce outside of it"
    )]
    Capture {
        /// The driver's function.
        call: &'static str,
        /// The driver's result.
        code: i32,
    },
    /// The memory cannot be handed to a NIC as a dmabuf.
    #[error(
        "the driver gives no dmabuf for this GPU's memory ({name}, {code}); it needs the open kernel modules and Linux 5.12; \
         otherwise load nvidia-peermem, or let gradients be staged through pinned memory"
    )]
    NoDmabuf {
        /// The driver's result.
        code: i32,
        /// The driver's name of the result.
        name: String,
    },
    /// The device cannot run the compiled kernels.
    #[error(
        "{call}: the kernels' image was refused ({name}, {code}); it is damaged, was compiled for another GPU, or by a newer \
         NVRTC than the driver knows: compile it for this GPU, with the NVRTC of the driver's CUDA version"
    )]
    Image {
        /// The driver's function.
        call: &'static str,
        /// The driver's result.
        code: i32,
        /// The driver's name of the result.
        name: String,
    },
    /// Copies that did not end in time.
    #[error(
        "{pending} copies did not end before the deadline; a kernel that they wait for has not ended, or the GPU hangs"
    )]
    Deadline {
        /// How many copies have not ended.
        pending: u64,
    },
    /// Anything else.
    #[error("{call}: {name} ({code}); see the CUDA Driver API manual for this function")]
    Other {
        /// The driver's function.
        call: &'static str,
        /// The driver's result.
        code: i32,
        /// The driver's name of the result.
        name: String,
    },
}

impl CudaError {
    /// The error for result `code` of the driver's function `call`; `name` is asked for where it is shown.
    pub(super) fn new(call: &'static str, code: c_int, name: impl FnOnce() -> String) -> Self {
        // The numbers of `CUresult` in the CUDA Driver API manual, "Data types used by CUDA driver".
        match code {
            1 if call.starts_with("cuMemcpy")
                || call.starts_with("cuMemset")
                || call.contains("Value32")
                || call.contains("Free") =>
            {
                Self::Refused { call }
            }
            1 | 101 | 201 | 205 | 217 | 304 | 400 | 711 | 800 | 801 | 999
                if call.starts_with("cuIpcOpen") =>
            {
                Self::IpcRefused { call, code, name: name() }
            }
            1 | 101 | 304 | 800 | 801 if call == "cuMemGetHandleForAddressRange" => {
                Self::NoDmabuf { code, name: name() }
            }
            2 => Self::OutOfMemory { call },
            3 => Self::Forked { call },
            4 | 201 | 709 => Self::ContextGone { call, code },
            200 | 209 | 218 | 222 | 300 | 301 | 500 if call.starts_with("cuModule") => {
                Self::Image { call, code, name: name() }
            }
            46 if call == "cuDevicePrimaryCtxRetain" => Self::Exclusive { call },
            46 | 214 | 220 | 226 | 227 | 999 => Self::DeviceLost { call, code, name: name() },
            400 => Self::ForeignStream { call },
            700 | 702 | 710 | 714..=719 => Self::ContextBroken { call, code, name: name() },
            712 => Self::AlreadyRegistered,
            900..=908 => Self::Capture { call, code },
            _ => Self::Other { call, code, name: name() },
        }
    }
}
