//! NVRTC, the run-time compiler, behind calls that are safe. It is looked for under the names that cudarc knows
//! (libnvrtc.so, then libnvrtc.so.13, libnvrtc.so.12 and older): in LD_LIBRARY_PATH, in the loader's cache, and among
//! the libraries that the process has loaded already.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;
use std::sync::OnceLock;

use cudarc::nvrtc::sys::{self, nvrtcProgram, nvrtcResult};

use super::compile::CompileError;

/// The functions that are called here. The oldest NVRTC that has them all is that of CUDA 11.2.
const SYMBOLS: [&str; 13] = [
    "nvrtcVersion",
    "nvrtcGetErrorString",
    "nvrtcGetNumSupportedArchs",
    "nvrtcGetSupportedArchs",
    "nvrtcCreateProgram",
    "nvrtcDestroyProgram",
    "nvrtcCompileProgram",
    "nvrtcGetProgramLogSize",
    "nvrtcGetProgramLog",
    "nvrtcGetCUBINSize",
    "nvrtcGetCUBIN",
    "nvrtcGetPTXSize",
    "nvrtcGetPTX",
];

/// The loaded library, all of whose functions are there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nvrtc(());

/// The form that a program is compiled to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Output {
    /// Machine code of one architecture.
    Cubin,
    /// The portable assembly, for the driver to compile.
    Ptx,
}

impl Nvrtc {
    /// Loads the library, unless that has been tried already.
    pub(super) fn load() -> Result<Self, CompileError> {
        static FOUND: OnceLock<Result<(), CompileError>> = OnceLock::new();
        let found = FOUND.get_or_init(|| {
            // SAFETY: loading runs the library's initialisers, as any program does that links it.
            if !unsafe { sys::is_culib_present() } {
                return Err(CompileError::Absent);
            }
            // SAFETY: as above; it was found, so this does not panic.
            let library = unsafe { sys::culib() };
            for symbol in SYMBOLS {
                // SAFETY: only asked for, never called through this pointer.
                unsafe { library.get::<*const ()>(symbol.as_bytes()) }
                    .map_err(|_| CompileError::TooOld { symbol })?;
            }
            Ok(())
        });
        found.clone().map(|()| Self(()))
    }

    /// Major and minor.
    pub(super) fn version(self) -> Result<(u32, u32), CompileError> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both are valid for writes.
        ok("nvrtcVersion", unsafe { sys::nvrtcVersion(&mut major, &mut minor) })?;
        Ok((major.unsigned_abs(), minor.unsigned_abs()))
    }

    /// The architectures that it compiles for, as 80 for compute capability 8.0, in ascending order.
    pub(super) fn architectures(self) -> Result<Vec<u32>, CompileError> {
        let mut len: c_int = 0;
        // SAFETY: valid for writes.
        ok("nvrtcGetNumSupportedArchs", unsafe { sys::nvrtcGetNumSupportedArchs(&mut len) })?;
        let mut all: Vec<c_int> = vec![0; usize::try_from(len).unwrap_or(0)];
        if !all.is_empty() {
            // SAFETY: valid for as many numbers as it said there are.
            ok("nvrtcGetSupportedArchs", unsafe { sys::nvrtcGetSupportedArchs(all.as_mut_ptr()) })?;
        }
        all.sort_unstable();
        Ok(all.into_iter().map(c_int::unsigned_abs).collect())
    }

    /// Compiles; the error has the compiler's log.
    pub(super) fn compile(
        self,
        source: &str,
        name: &str,
        options: &[String],
        output: Output,
    ) -> Result<Vec<u8>, CompileError> {
        let text = |s: &str| {
            CString::new(s)
                .map_err(|_| CompileError::Failed { log: "a NUL in the source or an option".into() })
        };
        let (source, name) = (text(source)?, text(name)?);
        let options = options.iter().map(|o| text(o)).collect::<Result<Vec<_>, _>>()?;
        let pointers: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();
        let mut program = Program(ptr::null_mut());
        // SAFETY: both texts end with NUL; there are no headers.
        ok("nvrtcCreateProgram", unsafe {
            sys::nvrtcCreateProgram(
                &mut program.0,
                source.as_ptr(),
                name.as_ptr(),
                0,
                ptr::null(),
                ptr::null(),
            )
        })?;
        // SAFETY: the program is alive, and so are the options.
        let result =
            unsafe { sys::nvrtcCompileProgram(program.0, pointers.len() as c_int, pointers.as_ptr()) };
        if result == nvrtcResult::NVRTC_ERROR_COMPILATION {
            let log =
                program.bytes("nvrtcGetProgramLog", sys::nvrtcGetProgramLogSize, sys::nvrtcGetProgramLog)?;
            let log = String::from_utf8_lossy(&log);
            return Err(CompileError::Failed { log: log.trim_end_matches(['\0', '\n']).to_owned() });
        }
        ok("nvrtcCompileProgram", result)?;
        match output {
            Output::Cubin => program.bytes("nvrtcGetCUBIN", sys::nvrtcGetCUBINSize, sys::nvrtcGetCUBIN),
            Output::Ptx => program.bytes("nvrtcGetPTX", sys::nvrtcGetPTXSize, sys::nvrtcGetPTX),
        }
    }
}

/// Destroyed when dropped.
struct Program(nvrtcProgram);

impl Program {
    /// The bytes that `get` copies; `size` gives their number.
    fn bytes(
        &self,
        call: &'static str,
        size: unsafe fn(nvrtcProgram, *mut usize) -> nvrtcResult,
        get: unsafe fn(nvrtcProgram, *mut c_char) -> nvrtcResult,
    ) -> Result<Vec<u8>, CompileError> {
        let mut len = 0;
        // SAFETY: the program is alive, the length valid for writes.
        ok(call, unsafe { size(self.0, &mut len) })?;
        let mut bytes = vec![0u8; len];
        // SAFETY: the buffer has the length that was asked for.
        ok(call, unsafe { get(self.0, bytes.as_mut_ptr().cast()) })?;
        Ok(bytes)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: made by nvrtcCreateProgram, and not used afterwards. A failure leaves memory behind, no more.
            unsafe { sys::nvrtcDestroyProgram(&mut self.0) };
        }
    }
}

/// An error that names the call, unless it succeeded.
fn ok(call: &'static str, result: nvrtcResult) -> Result<(), CompileError> {
    if result == nvrtcResult::NVRTC_SUCCESS {
        return Ok(());
    }
    // SAFETY: gives a static text for every number.
    let why = unsafe {
        let text = sys::nvrtcGetErrorString(result);
        if text.is_null() {
            "unknown error".into()
        } else {
            CStr::from_ptr(text).to_string_lossy().into_owned()
        }
    };
    Err(CompileError::Nvrtc { call, why })
}
