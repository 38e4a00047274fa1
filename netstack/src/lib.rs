//! Shouter's network stack: frames in, messages out.
//!
//! Everything here is *sans-IO*: time, randomness and frames are arguments; a protocol returns what to send and
//! when to wake. There are no threads, no clock and no globals, so the same code runs on a NIC queue, in the
//! simulator under virtual time, and under a fuzzer.
#![deny(unsafe_code)]

pub mod device;
pub mod ip;
pub mod region;
pub mod rud;
mod scratch;
pub mod time;
pub mod udp;
pub mod wheel;
pub mod wire;
