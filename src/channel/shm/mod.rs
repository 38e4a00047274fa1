//! The channel between the ranks of one node: one memfd that all of them map.
//!
//! ```text
//!  page 0    identity: magic, ranks, lanes, lane bytes; the abort message; rounds of the measurement at the join
//!  per rank  a liveness line: heartbeat, process id
//!            a doorbell: which of the rank's rings may hold something new
//!            how many accesses to exposed pieces it has made; the versions of its own ones
//!            announcements: what the rank has started, by which waiting ranks detect divergence, and where its tensor lies
//!            a ring of cells for small messages
//!            four flags for each lane, a cache line each
//!  per lane  a staging area for each rank, and the node's result
//!  per pair  a ring of messages, and how far it was read; two more rings for each rank
//!  per rank  its shared tensors: the arena, mostly untouched
//!  per part  all of that but the arena, for a duplicate of the group of all
//! ```
//!
//! Nothing of it has a name in the file system: the descriptor is passed over a UNIX socket, and the memory goes
//! with the last process, however that ends.

mod arena;
mod cell;
mod exposure;
mod gauge;
mod layout;
pub(crate) mod pass;
mod rings;
mod segment;
mod sys;
mod view;

pub use arena::SharedMemory;
pub(crate) use cell::{LEAD, Tag, fits_cell};
pub(crate) use exposure::{ExposedPiece, Exposure, Place};
pub(crate) use gauge::{Round, Task};
pub(crate) use layout::ANNOUNCEMENTS;
pub use layout::SegmentShape;
pub(crate) use layout::{CELL_PAYLOAD, RING};
pub(crate) use rings::Ring;
pub(crate) use segment::{Abort, Announcement, shortened};
pub use segment::{NodeSegment, SegmentError};
pub(crate) use view::{pack, pack_identity, pack_small, unpack, unpack_small};

#[cfg(test)]
mod tests;
