//! The same reductions on NVIDIA GPUs, and the other kernels for tensors there: CUDA C, compiled at run time by NVRTC.
//!
//! | module | what it holds |
//! |---|---|
//! | `source` | the CUDA C text, one program of all files |
//! | `compile`, `cache` | that program for one architecture, compiled once and kept on disk |
//! | `nvrtc` | the raw calls of NVRTC |
//! | `call` | which kernel to call with which grid and arguments, checked: no driver is needed for that |
//! | `crc` | the powers of x that the CRC kernel takes as arguments |
//! | `launch` | the kernels of one context, and how they are put on a stream |
//!
//! The bits are those of the host's kernels ([`Kernels`](crate::kernel::Kernels)), so it does not matter where a slice is
//! reduced. The text keeps to what a C++ compiler takes with a small header in front (scripts/lib/cuda-sim/shim.h):
//! the tests run every kernel on the host and compare it with the host's kernels bit by bit.
//!
//! CUDA's libraries are loaded at run time and may be absent, which is an error here and never a panic. A machine with
//! a driver but without NVRTC can use what was compiled for its architecture elsewhere ([`Image::from_bytes`]).

mod cache;
mod call;
mod compile;
mod crc;
mod launch;
mod nvrtc;
mod source;
#[cfg(test)]
mod tests;

pub use self::call::{CallError, Fold, MAX_DESTINATIONS, MAX_SOURCES, PackedPiece, Packing};
pub use self::compile::{
    Architecture, CompileError, Image, Origin, compile, compile_with_cache, compiler_version,
};
pub use self::launch::{CudaKernels, LaunchError};
