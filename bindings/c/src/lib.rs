//! Shouter's C ABI: the exports of `libshouter.a` and the declarations of `include/shouter.h`.
//!
//! Every function checks its arguments, catches panics, and returns a status; the reason for a failure is kept for the
//! calling thread ([`error::shouter_last_error`]). Nothing here aborts the trainer's process. cbindgen generates the
//! header from this source, documentation included, and a test keeps the committed copy up to date. This is the only
//! crate that exports `shouter_*` symbols for others to link against.
//!
//! [`types`] has the common types, [`error`] the statuses and the guard around every call, [`handle`] the life of a
//! group, [`collective`] a trainer's calls, [`blocks`] the other collectives, [`uneven`] those with a count for each
//! rank, [`groups`] groups of some ranks, [`work`] started operations ([`work::started`]: with counts, and messages),
//! `live` the tables of handles, [`p2p`] messages between two ranks, [`windows`] memory that all ranks access, [`log`] the library's log.

#![deny(unsafe_code)]
#![allow(clippy::missing_safety_doc, reason = "written for C; the promise is in it, or in the module's")]

pub mod blocks;
pub mod collective;
pub mod error;
pub mod groups;
pub mod handle;
mod live;
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
