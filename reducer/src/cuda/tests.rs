//! With a device, real or simulated, these run the driver; without one they say `skipped: no CUDA device`.
//! `scripts/lib/cuda-sim` makes a simulated driver for `LD_LIBRARY_PATH`.
#![allow(unsafe_code)]

mod copies;
mod crcs;
mod failures;
pub(crate) mod harness;
mod order;
mod peers;
mod pointers;
mod probe;
