//! The channel between the ranks of one node: one memfd that all of them map.
//!
//! ```text
//!  page 0    identity: magic, ranks, lanes, lane bytes; the abort message
//!  per rank  a liveness line: heartbeat, process id
//!            announcements: what the rank has started, so that those who wait can see who differs, and where its tensor lies
//!            two cells for small messages
//!            four flags for each lane, a cache line each
//!  per lane  a staging area for each rank, and the node's result
//!  per rank  its shared tensors: the arena, mostly untouched
//! ```
//!
//! Nothing of it has a name in the file system: the descriptor is [passed](pass) over a UNIX socket, and the memory goes
//! with the last process, however that ends.

mod arena;
mod layout;
pub(crate) mod pass;
mod segment;
mod sys;
mod view;

pub(crate) use arena::SharedMemory;
pub(crate) use layout::ANNOUNCEMENTS;
pub(crate) use layout::{CELL_PAYLOAD, Shape};
pub(crate) use segment::{Abort, Announcement, NodeSegment};
pub(crate) use view::{pack, pack_identity, pack_small, started_before, unpack, unpack_small};

#[cfg(test)]
mod tests;
