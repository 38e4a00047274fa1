//! Memory that collectives read and write: a [`TensorRegion`] is registered once, and every operation names
//! (region, offset, length), never a slice.
//!
//! A slice would be unsound: while a collective runs, the peer processes of a node write to the same pages, and a NIC
//! reads them. The schedule (proved by `check`) orders these accesses, not the borrow checker.
//! So a region is a promise made once, in `unsafe`, by the owner of the memory; `sys` holds all the pointer work and
//! checks every range.

mod atomic;
mod sys;

pub(crate) use self::atomic::AtomicRegion;
pub(crate) use self::sys::{
    Addresses, Pool, Pooled, RegionOffset, accumulate, copy, finish_avg, fold, read, write,
};
pub use self::sys::{Owned, Span, TensorRegion};

/// The kind of memory of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryKind {
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
