//! The kernels of one context, put on streams. Nothing here waits.
#![allow(unsafe_code)]

use std::ffi::{CString, c_void};
use std::ptr;

use cudarc::driver::sys::{CUfunction, CUmodule};
use thiserror::Error;

use super::super::{Context, CudaError, Entered, Stream};
use super::call::{self, Call, CallError, Fold, Kernel, Packing, THREADS};
use super::compile::Image;

/// Why kernels were not put on a stream.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LaunchError {
    /// The arguments are wrong; nothing was put on the stream.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The driver refused a call, or the stream is another context's.
    #[error(transparent)]
    Driver(#[from] CudaError),
}

/// The kernels, loaded into one context. Every call puts work on the stream that it names, which belongs to that context,
/// and returns at once; results are there when the stream has come so far. Addresses are those of the device, and all
/// that a call names must stay allocated until then, the kernels themselves included.
pub struct CudaKernels {
    context: Context,
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
    /// Loads an image into a context, all functions at once: a function that the driver loads when it is first launched
    /// may wait for the device.
    ///
    /// # Errors
    /// The image is not for the context's device, lacks a kernel, or the driver's.
    pub fn load(context: &Context, image: &Image) -> Result<Self, CudaError> {
        let entered = context.enter()?;
        let processors = context.processors();
        // Assembly is a text that ends with NUL; machine code does not mind one more byte.
        let mut bytes = image.bytes().to_vec();
        bytes.push(0);
        let mut module = ptr::null_mut();
        // SAFETY: valid for writes; the image is alive for the call.
        unsafe { entered.cuda().api.cuModuleLoadData(&mut module, bytes.as_ptr().cast()) }.ok()?;
        let mut kernels = Self { context: context.clone(), module, functions: Vec::new(), processors };
        for kernel in Kernel::all() {
            let function = kernels.function(&entered, kernel)?;
            kernels.functions.push(function);
        }
        Ok(kernels)
    }

    /// The module's function, loaded at once if the driver can.
    fn function(&self, entered: &Entered<'_>, kernel: Kernel) -> Result<CUfunction, CudaError> {
        let api = &entered.cuda().api;
        let mut function = ptr::null_mut();
        let name = CString::new(kernel.name()).unwrap_or_default();
        // SAFETY: valid for writes; the module is loaded, the name ends with NUL.
        unsafe { api.cuModuleGetFunction(&mut function, self.module, name.as_ptr()) }.ok()?;
        // SAFETY: the function is the module's.
        if let Some(outcome) = unsafe { api.cuFuncLoad(function) } {
            outcome.ok()?;
        }
        Ok(function)
    }

    /// Multiprocessors of the device.
    pub fn processors(&self) -> u32 {
        self.processors
    }

    /// Folds sources and writes every destination, in one pass over all of them.
    ///
    /// # Errors
    /// No kernel takes these arguments, or the driver's; nothing was enqueued.
    ///
    /// # Safety
    ///
    /// All memory is accessible from the device, at these addresses, until the stream has done the work: its own, mapped
    /// memory of the host, or memory of peers. In the order of streams and events, nothing else writes any of it, or reads
    /// a destination, meanwhile.
    pub unsafe fn fold(&self, stream: &Stream, fold: &Fold<'_>) -> Result<(), LaunchError> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.launch(stream, call::fold(fold, self.processors)?) }
    }

    /// Copies `pieces_len` tensors into `buffer`, each to its offset, or back from there. `largest` is the length of the
    /// longest, in bytes.
    ///
    /// # Errors
    /// As [`fold`](Self::fold).
    ///
    /// # Safety
    ///
    /// As [`fold`](Self::fold), for the table at `pieces`, which holds as many [`PackedPiece`](super::PackedPiece)s, for the
    /// tensors that it names, and for the buffer, which reaches to the end of each; no two of them overlap where they are
    /// written.
    pub unsafe fn pack(
        &self,
        stream: &Stream,
        way: Packing,
        buffer: u64,
        pieces: u64,
        pieces_len: u32,
        largest: u64,
    ) -> Result<(), LaunchError> {
        let call = call::pack(way, pieces, pieces_len, largest, buffer, self.processors)?;
        // SAFETY: the caller's promise is the same.
        unsafe { self.launch(stream, call) }
    }

    /// Cuts `bytes` from `address` on into fragments of `fragment` bytes (the last may be shorter) and writes the CRC32C
    /// (RFC 3720 section 12.1) of each into `results`, 32 bits each. Whole lines of 4 KiB and more are the fastest.
    ///
    /// # Errors
    /// As [`fold`](Self::fold).
    ///
    /// # Safety
    ///
    /// As [`fold`](Self::fold), for the range and the results; these lie in the device's own memory (they are
    /// combined there by atomic operations), apart from the range.
    pub unsafe fn crc32c(
        &self,
        stream: &Stream,
        address: u64,
        bytes: u64,
        fragment: u64,
        results: u64,
    ) -> Result<(), LaunchError> {
        let Some(call) = call::crc32c(address, bytes, fragment, results, self.processors)? else {
            return Ok(());
        };
        let entered = self.enter(stream)?;
        let (words, raw) = (call.args.fragments as usize, stream.raw());
        // SAFETY: the caller vouches for the results; the kernel comes after it on the same stream.
        unsafe { entered.cuda().api.cuMemsetD32Async(results, 0, words, raw) }.ok()?;
        // SAFETY: the caller's promise is the same.
        unsafe { self.launch_in(&entered, stream, call) }
    }

    /// # Safety
    ///
    /// As the call's own function.
    unsafe fn launch<A>(&self, stream: &Stream, call: Option<Call<A>>) -> Result<(), LaunchError> {
        let Some(call) = call else { return Ok(()) };
        // SAFETY: the caller's promise is the same.
        unsafe { self.launch_in(&self.enter(stream)?, stream, call) }
    }

    /// The context, for a stream that is one of its own.
    fn enter(&self, stream: &Stream) -> Result<Entered<'_>, CudaError> {
        if !stream.context().is(&self.context) {
            return Err(CudaError::ForeignStream { call: "cuLaunchKernel" });
        }
        self.context.enter()
    }

    /// # Safety
    ///
    /// As the call's own function.
    unsafe fn launch_in<A>(
        &self,
        entered: &Entered<'_>,
        stream: &Stream,
        mut call: Call<A>,
    ) -> Result<(), LaunchError> {
        let function = call.kernel.index().and_then(|at| self.functions.get(at));
        let function = function.copied().unwrap_or(ptr::null_mut());
        let mut params: [*mut c_void; 1] = [(&raw mut call.args).cast()];
        let ([x, y], raw) = (call.grid, stream.raw());
        // SAFETY: the function is the module's and takes one argument of this layout, which the driver copies before it
        // returns; the caller vouches for what it points to. A null function, which `load` excludes, is an error.
        unsafe {
            entered.cuda().api.cuLaunchKernel(
                function,
                x,
                y,
                1,
                THREADS,
                1,
                1,
                0,
                raw,
                params.as_mut_ptr(),
                ptr::null_mut(),
            )
        }
        .ok()?;
        Ok(())
    }
}

impl Drop for CudaKernels {
    fn drop(&mut self) {
        if let Ok(entered) = self.context.enter() {
            // SAFETY: loaded in `load`, and unloaded once.
            let _ = unsafe { entered.cuda().api.cuModuleUnload(self.module) }.ok();
        }
    }
}
