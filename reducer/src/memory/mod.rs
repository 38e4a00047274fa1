//! Memory that collectives read and write: a [`Region`] is registered once, and every operation names
//! (region, offset, length), never a slice.
//!
//! A slice would be a lie: while a collective runs, the peer processes of a node write to the same pages, and a NIC
//! reads them. What keeps this in order is the schedule (proved by `check`), not the borrow checker.
//! So a region is a promise made once, in `unsafe`, by whoever owns the memory; `sys` holds all the pointer work and
//! checks every range.

mod sys;

pub(crate) use self::sys::{Addresses, Pool, Pooled, Spot, accumulate, copy, finish_avg, fold, write};
pub use self::sys::{Owned, Region, Span};

/// What kind of memory a region is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// This process's own memory.
    Host,
    /// Memory that the ranks of a node share.
    Shared,
    /// Host memory that a NIC or an accelerator may access directly.
    Pinned,
    /// Memory of an accelerator; host kernels cannot touch it.
    Device,
}

#[cfg(test)]
mod tests;
