//! The kernels of one context, put on streams. Nothing here waits, and nothing touches a context but the current one.

use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr;

use cudarc::driver::sys::{self, CUcontext, CUdevice_attribute, CUfunction, CUmodule, CUresult, CUstream};
use thiserror::Error;

use super::call::{self, Call, CallError, Kernel, THREADS};
use super::compile::Image;
use crate::dtype::{DType, ReduceOp};

/// Why kernels were not loaded or put on a stream.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LaunchError {
    /// The arguments are wrong; nothing was put on the stream.
    #[error(transparent)]
    Call(#[from] CallError),
    /// No driver was found.
    #[error("the NVIDIA driver (libcuda.so.1) was not found; install it, or reduce on the host")]
    NoDriver,
    /// The calling thread has no current context.
    #[error(
        "this thread has no current CUDA context; make the trainer's current before its kernels are loaded"
    )]
    NoContext,
    /// The driver refused a call.
    #[error("{call} failed: {name} ({why})")]
    Driver {
        /// The driver's function.
        call: &'static str,
        /// The error's name, such as CUDA_ERROR_INVALID_VALUE.
        name: String,
        /// The driver's words for it.
        why: String,
        /// Its number, for those who act on it.
        code: u32,
    },
}

/// The kernels, loaded into one context. Every call puts work on the stream that it names and returns at once; results
/// are there when the stream has come so far. Addresses are those of the device, and all that a call names must stay
/// allocated until then.
///
/// When dropped, the module is unloaded if its context is the thread's current one; else it goes with the context,
/// which may be gone already.
pub struct CudaKernels {
    context: CUcontext,
    module: CUmodule,
    /// In the order of [`Kernel::all`].
    functions: Vec<CUfunction>,
    processors: u32,
}

// SAFETY: the driver's handles may be used by any thread that has the context current, and by several at once.
unsafe impl Send for CudaKernels {}
// SAFETY: as above; nothing changes after loading.
unsafe impl Sync for CudaKernels {}

impl std::fmt::Debug for CudaKernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CudaKernels").field("processors", &self.processors).finish_non_exhaustive()
    }
}

impl CudaKernels {
    /// Loads an image into the calling thread's current context, all functions at once: a function that the driver
    /// loads when it is first launched may wait for the device.
    pub fn load(image: &Image) -> Result<Self, LaunchError> {
        // SAFETY: loading runs the library's initialisers, as any program does that links it.
        if !unsafe { sys::is_culib_present() } {
            return Err(LaunchError::NoDriver);
        }
        let mut context = ptr::null_mut();
        // SAFETY: valid for writes.
        ok("cuCtxGetCurrent", unsafe { sys::cuCtxGetCurrent(&mut context) })?;
        if context.is_null() {
            return Err(LaunchError::NoContext);
        }
        let (mut device, mut processors) = (0, 0);
        let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        // SAFETY: valid for writes; the thread has a context.
        ok("cuCtxGetDevice", unsafe { sys::cuCtxGetDevice(&mut device) })?;
        // SAFETY: valid for writes.
        ok("cuDeviceGetAttribute", unsafe { sys::cuDeviceGetAttribute(&mut processors, attribute, device) })?;
        // Assembly is a text that ends with NUL; machine code does not mind one more byte.
        let mut bytes = image.bytes().to_vec();
        bytes.push(0);
        let mut kernels =
            Self { context, module: ptr::null_mut(), functions: Vec::new(), processors: count(processors) };
        // SAFETY: valid for writes; the image is alive for the call.
        ok("cuModuleLoadData", unsafe { sys::cuModuleLoadData(&mut kernels.module, bytes.as_ptr().cast()) })?;
        // SAFETY: only asked for; CUDA 12.4's driver and later have it.
        let eager = unsafe { sys::culib().get::<*const ()>(b"cuFuncLoad\0").is_ok() };
        for kernel in Kernel::all() {
            let function = kernels.function(kernel, eager)?;
            kernels.functions.push(function);
        }
        Ok(kernels)
    }

    /// The module's function, loaded at once if the driver can.
    fn function(&self, kernel: Kernel, eager: bool) -> Result<CUfunction, LaunchError> {
        let mut function = ptr::null_mut();
        let name = CString::new(kernel.name()).unwrap_or_default();
        // SAFETY: valid for writes; the module is loaded, the name ends with NUL.
        ok("cuModuleGetFunction", unsafe {
            sys::cuModuleGetFunction(&mut function, self.module, name.as_ptr())
        })?;
        if eager {
            // SAFETY: the function is the module's, and the driver has the call.
            ok("cuFuncLoad", unsafe { sys::cuFuncLoad(function) })?;
        }
        Ok(function)
    }

    /// Multiprocessors of the device.
    pub fn processors(&self) -> u32 {
        self.processors
    }

    /// `dst = sources[0] op sources[1] op ...`, folded in that order, `count` elements each: one pass over all of them.
    /// An average folds as a sum ([`finish_avg`](Self::finish_avg)). Fastest where all addresses are alike modulo 16.
    ///
    /// # Safety
    ///
    /// The context is current and the stream one of its own. All memory is accessible from the device, at these
    /// addresses, until the stream has done the work; `dst` may be exactly one of the sources. In the order of streams
    /// and events, nobody else writes any of it, or reads `dst`, meanwhile.
    pub unsafe fn reduce(
        &self,
        stream: CUstream,
        dtype: DType,
        op: ReduceOp,
        dst: u64,
        sources: &[u64],
        count: u64,
    ) -> Result<(), LaunchError> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.launch(stream, call::reduce(op, dtype, dst, sources, count, self.processors)?) }
    }

    /// Makes an average of a sum of `count` elements: divides each by `n`, as
    /// [`Kernels::finish_avg`](crate::kernel::Kernels::finish_avg) does on the host.
    ///
    /// # Safety
    ///
    /// As [`reduce`](Self::reduce).
    pub unsafe fn finish_avg(
        &self,
        stream: CUstream,
        dtype: DType,
        dst: u64,
        count: u64,
        n: u32,
    ) -> Result<(), LaunchError> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.launch(stream, call::divide(dtype, dst, count, n, self.processors)?) }
    }

    /// Copies `pieces_len` tensors into `buffer`, each to its offset. `largest` is the length of the longest, in bytes.
    ///
    /// # Safety
    ///
    /// As [`reduce`](Self::reduce), for the table at `pieces`, which holds as many [`Piece`](super::Piece)s, for the
    /// tensors that it names, and for the buffer, which reaches to the end of each; no two of them overlap in it.
    pub unsafe fn pack(
        &self,
        stream: CUstream,
        buffer: u64,
        pieces: u64,
        pieces_len: u32,
        largest: u64,
    ) -> Result<(), LaunchError> {
        // SAFETY: the caller's promise is the same.
        unsafe {
            self.launch(stream, call::pack(false, pieces, pieces_len, largest, buffer, self.processors)?)
        }
    }

    /// Copies the tensors back to where they came from.
    ///
    /// # Safety
    ///
    /// As [`pack`](Self::pack); no two tensors overlap.
    pub unsafe fn unpack(
        &self,
        stream: CUstream,
        buffer: u64,
        pieces: u64,
        pieces_len: u32,
        largest: u64,
    ) -> Result<(), LaunchError> {
        // SAFETY: the caller's promise is the same.
        unsafe {
            self.launch(stream, call::pack(true, pieces, pieces_len, largest, buffer, self.processors)?)
        }
    }

    /// Converts `count` elements: f32 to f16 or bf16 (to nearest even), or one of them to f32. A NaN becomes the
    /// canonical one.
    ///
    /// # Safety
    ///
    /// As [`reduce`](Self::reduce); source and destination do not overlap.
    pub unsafe fn convert(
        &self,
        stream: CUstream,
        to: DType,
        dst: u64,
        from: DType,
        src: u64,
        count: u64,
    ) -> Result<(), LaunchError> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.launch(stream, call::convert(to, dst, from, src, count, self.processors)?) }
    }

    /// Cuts `bytes` from `address` on into fragments of `fragment` bytes (the last may be shorter) and writes the CRC32C
    /// (RFC 3720 section 12.1) of each into `results`, 32 bits each. Whole lines of 4 KiB and more are the fastest.
    ///
    /// # Safety
    ///
    /// As [`reduce`](Self::reduce), for the range and the results; these lie in the device's own memory (they are
    /// combined there by atomic operations), apart from the range.
    pub unsafe fn crc32c(
        &self,
        stream: CUstream,
        address: u64,
        bytes: u64,
        fragment: u64,
        results: u64,
    ) -> Result<(), LaunchError> {
        let call = call::crc32c(address, bytes, fragment, results, self.processors)?;
        if let Some(Call { args, .. }) = &call {
            // SAFETY: the caller vouches for the results; the kernel comes after it on the same stream.
            ok("cuMemsetD32Async", unsafe {
                sys::cuMemsetD32Async(results, 0, args.fragments as usize, stream)
            })?;
        }
        // SAFETY: the caller's promise is the same.
        unsafe { self.launch(stream, call) }
    }

    /// # Safety
    ///
    /// As the call's own function.
    unsafe fn launch<A>(&self, stream: CUstream, call: Option<Call<A>>) -> Result<(), LaunchError> {
        let Some(mut call) = call else { return Ok(()) };
        let function = self.functions.get(call.kernel.index()).copied().unwrap_or(ptr::null_mut());
        let mut params: [*mut c_void; 1] = [(&raw mut call.args).cast()];
        let [x, y] = call.grid;
        // SAFETY: the function is the module's and takes one argument of this layout, which the driver copies before it
        // returns; the caller vouches for what it points to. A null function, which `load` excludes, is an error.
        ok("cuLaunchKernel", unsafe {
            sys::cuLaunchKernel(
                function,
                x,
                y,
                1,
                THREADS,
                1,
                1,
                0,
                stream,
                params.as_mut_ptr(),
                ptr::null_mut(),
            )
        })
    }
}

impl Drop for CudaKernels {
    fn drop(&mut self) {
        let mut current = ptr::null_mut();
        // SAFETY: valid for writes. The module is unloaded only where its context is alive, for it is the current one.
        unsafe {
            let known = sys::cuCtxGetCurrent(&mut current) == CUresult::CUDA_SUCCESS;
            if known && current == self.context && !self.module.is_null() {
                sys::cuModuleUnload(self.module);
            }
        }
    }
}

/// A number that the driver gives as an int.
fn count(n: c_int) -> u32 {
    u32::try_from(n).unwrap_or(1).max(1)
}

/// An error that names the call, unless it succeeded.
fn ok(call: &'static str, result: CUresult) -> Result<(), LaunchError> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let text = |get: unsafe fn(CUresult, *mut *const std::ffi::c_char) -> CUresult| {
        let mut text = ptr::null();
        // SAFETY: valid for writes; the driver gives a static text or null.
        unsafe {
            get(result, &mut text);
            if text.is_null() { String::new() } else { CStr::from_ptr(text).to_string_lossy().into_owned() }
        }
    };
    Err(LaunchError::Driver {
        call,
        name: text(sys::cuGetErrorName),
        why: text(sys::cuGetErrorString),
        code: result as u32,
    })
}
