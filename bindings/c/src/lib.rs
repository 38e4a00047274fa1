//! Shouter's C ABI: what `libshouter.a` exports and `include/shouter.h` declares.
//!
//! Every function checks its arguments, catches panics, and returns a status; the reason for a failure is kept for the
//! calling thread ([`error::shouter_last_error`]). Nothing here aborts the trainer's process. The header is generated
//! from this source by cbindgen, documentation included, and a test keeps the committed copy fresh. This is the only
//! crate that exports `shouter_*` symbols for others to link against.
//!
//! [`types`] is the vocabulary, [`error`] the statuses and the guard around every call, [`handle`] the life of a group,
//! [`collective`] what a trainer does with it, [`blocks`] the other collectives, [`uneven`] those with a count for
//! each rank, [`groups`] those of some ranks, [`work`] what is started and waited for later ([`work::started`]: with counts, and messages), [`p2p`] messages between two ranks, [`windows`] memory that all ranks access, [`log`] what
//! the library says meanwhile.

#![deny(unsafe_code)]

pub mod blocks;
pub mod collective;
pub mod error;
pub mod groups;
pub mod handle;
pub mod log;
pub mod p2p;
mod sigpipe;
pub mod types;
pub mod uneven;
pub mod windows;
pub mod work;

#[cfg(test)]
#[allow(unsafe_code, reason = "calls what C calls")]
mod tests;
