//! The driver's functions, looked up once. cudarc finds and opens the library; the table is ours, for two reasons:
//! cudarc looks a symbol up at its first call and panics where it is missing, and it reads results as Rust enums, which a
//! newer driver's numbers do not fit. Here a missing symbol is an error of the probe, unless older drivers may lack it, and
//! results are plain numbers.
//!
//! Names and signatures are those of the CUDA Driver API reference manual; `_v2` is what `cuda.h` makes of the plain name.
#![allow(unsafe_code, non_snake_case)]

use core::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};

use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUipcMemHandle, CUmodule, CUstream, CUuuid, culib,
    is_culib_present,
};

use super::error::CudaError;

/// Results that the code decides by; all others go through [`CudaError`].
pub(super) mod code {
    use core::ffi::c_int;
    pub(in super::super) const SUCCESS: c_int = 0;
    pub(in super::super) const INVALID_VALUE: c_int = 1;
    pub(in super::super) const NO_DEVICE: c_int = 100;
    pub(in super::super) const NOT_READY: c_int = 600;
    pub(in super::super) const NOT_SUPPORTED: c_int = 801;
}

/// The result of a call of the driver.
#[must_use]
pub(crate) struct CallOutcome<'a> {
    api: &'a Api,
    call: &'static str,
    pub(super) code: c_int,
}

impl CallOutcome<'_> {
    /// Success, or the typed error.
    pub(crate) fn ok(self) -> Result<(), CudaError> {
        match self.code {
            code::SUCCESS => Ok(()),
            _ => Err(self.into_error()),
        }
    }

    /// For queries: whether it is done.
    pub(super) fn ready(self) -> Result<bool, CudaError> {
        match self.code {
            code::SUCCESS => Ok(true),
            code::NOT_READY => Ok(false),
            _ => Err(self.into_error()),
        }
    }

    /// The typed error, whatever the result was.
    pub(super) fn into_error(self) -> CudaError {
        CudaError::new(self.call, self.code, || self.api.error_name(self.code))
    }
}

macro_rules! api {
    (
        required { $($name:ident($($argument:ident: $type:ty),*);)* }
        optional { $($later:ident($($later_argument:ident: $later_type:ty),*);)* }
    ) => {
        /// The functions of the driver that are used.
        pub(crate) struct Api {
            $($name: unsafe extern "C" fn($($type),*) -> c_int,)*
            $($later: Option<unsafe extern "C" fn($($later_type),*) -> c_int>,)*
        }

        impl Api {
            /// The functions' names.
            #[cfg(test)]
            pub(super) const NAMES: &[&str] = &[$(stringify!($name),)* $(stringify!($later)),*];

            /// Opens the library and looks all functions up; gives the missing symbol otherwise, or `None` where
            /// there is no library.
            pub(super) fn load() -> Result<Self, Option<&'static str>> {
                // SAFETY: opening a library runs its initialisers; those of the CUDA driver ask for nothing.
                if !unsafe { is_culib_present() } {
                    return Err(None);
                }
                // SAFETY: as above; it is present, so this does not panic. It is never closed.
                let library = unsafe { culib() };
                Ok(Self {
                    $($name: {
                        // SAFETY: the type is the function's signature in the driver's manual.
                        let symbol = unsafe {
                            library.get::<unsafe extern "C" fn($($type),*) -> c_int>(stringify!($name).as_bytes())
                        };
                        *symbol.map_err(|_| Some(stringify!($name)))?
                    },)*
                    $($later: {
                        // SAFETY: as above.
                        let symbol = unsafe {
                            library
                                .get::<unsafe extern "C" fn($($later_type),*) -> c_int>(stringify!($later).as_bytes())
                        };
                        symbol.ok().map(|symbol| *symbol)
                    },)*
                })
            }

            $(
                /// The driver's function of this name.
                ///
                /// # Safety
                /// Pointers are valid for what the driver's manual says that it reads and writes, handles are alive.
                #[allow(clippy::too_many_arguments)]
                pub(crate) unsafe fn $name(&self, $($argument: $type),*) -> CallOutcome<'_> {
                    // SAFETY: passed on to the caller.
                    let code = unsafe { (self.$name)($($argument),*) };
                    CallOutcome { api: self, call: stringify!($name), code }
                }
            )*

            $(
                /// The driver's function of this name, or `None` where the driver has none.
                ///
                /// # Safety
                /// As above.
                pub(crate) unsafe fn $later(&self, $($later_argument: $later_type),*) -> Option<CallOutcome<'_>> {
                    self.$later.map(|function| {
                        // SAFETY: passed on to the caller.
                        let code = unsafe { function($($later_argument),*) };
                        CallOutcome { api: self, call: stringify!($later), code }
                    })
                }
            )*
        }
    };
}

api! {
    required {
        cuInit(flags: c_uint);
        cuDriverGetVersion(version: *mut c_int);
        cuGetErrorName(error: c_int, name: *mut *const c_char);
        cuDeviceGetCount(count: *mut c_int);
        cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
        cuDeviceGetName(name: *mut c_char, len: c_int, device: CUdevice);
        cuDeviceGetUuid_v2(uuid: *mut CUuuid, device: CUdevice);
        cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice);
        cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: CUdevice);
        cuDeviceGetPCIBusId(id: *mut c_char, len: c_int, device: CUdevice);
        cuDeviceCanAccessPeer(can: *mut c_int, device: CUdevice, peer: CUdevice);
        cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
        cuDevicePrimaryCtxRelease_v2(device: CUdevice);
        cuDevicePrimaryCtxGetState(device: CUdevice, flags: *mut c_uint, active: *mut c_int);
        cuCtxPushCurrent_v2(context: CUcontext);
        cuCtxPopCurrent_v2(context: *mut CUcontext);
        cuThreadExchangeStreamCaptureMode(mode: *mut c_int);
        cuPointerGetAttributes(count: c_uint, attributes: *mut c_int, data: *mut *mut c_void, pointer: CUdeviceptr);
        cuMemAlloc_v2(pointer: *mut CUdeviceptr, bytes: usize);
        cuMemFree_v2(pointer: CUdeviceptr);
        cuMemHostAlloc(pointer: *mut *mut c_void, bytes: usize, flags: c_uint);
        cuMemFreeHost(pointer: *mut c_void);
        cuMemHostRegister_v2(pointer: *mut c_void, bytes: usize, flags: c_uint);
        cuMemHostUnregister(pointer: *mut c_void);
        cuMemHostGetDevicePointer_v2(device: *mut CUdeviceptr, host: *mut c_void, flags: c_uint);
        cuMemcpyAsync(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream);
        cuStreamCreate(stream: *mut CUstream, flags: c_uint);
        cuStreamDestroy_v2(stream: CUstream);
        cuStreamQuery(stream: CUstream);
        cuStreamGetCtx(stream: CUstream, context: *mut CUcontext);
        cuStreamIsCapturing(stream: CUstream, status: *mut c_int);
        cuEventCreate(event: *mut CUevent, flags: c_uint);
        cuEventDestroy_v2(event: CUevent);
        cuEventRecord(event: CUevent, stream: CUstream);
        cuEventQuery(event: CUevent);
        cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent);
        cuIpcGetMemHandle(handle: *mut CUipcMemHandle, pointer: CUdeviceptr);
        cuIpcOpenMemHandle_v2(pointer: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint);
        cuIpcCloseMemHandle(pointer: CUdeviceptr);
        cuMemGetHandleForAddressRange(
            handle: *mut c_void, pointer: CUdeviceptr, bytes: usize, kind: c_uint, flags: c_ulonglong
        );
        cuMemsetD32Async(pointer: CUdeviceptr, value: c_uint, words: usize, stream: CUstream);
        cuModuleLoadData(module: *mut CUmodule, image: *const c_void);
        cuModuleUnload(module: CUmodule);
        cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char);
        cuLaunchKernel(
            function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
            block_z: c_uint, shared_bytes: c_uint, stream: CUstream, params: *mut *mut c_void, extra: *mut *mut c_void
        );
    }
    optional {
        // Of CUDA 12.4.
        cuFuncLoad(function: CUfunction);
        // Of CUDA 11.3, where a GPU is within reach of NICs.
        cuFlushGPUDirectRDMAWrites(target: c_uint, scope: c_uint);
    }
}

impl Api {
    /// The driver's own name of a result, such as `CUDA_ERROR_INVALID_VALUE`.
    fn error_name(&self, code: c_int) -> String {
        let mut name = core::ptr::null();
        // SAFETY: `name` is writable; the driver knows every number it returns, and says so of those that it does not.
        let outcome = unsafe { self.cuGetErrorName(code, &mut name) };
        if outcome.code != code::SUCCESS || name.is_null() {
            return String::from("an unknown error");
        }
        // SAFETY: on success the name is a static string of the driver, ended by a zero.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }
}
