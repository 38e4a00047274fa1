//! RDMA verbs: queue pairs on RoCE v2 (and InfiniBand), through libibverbs.
//!
//! A thin safe layer. A [`Context`] is an opened device; memory is registered with it ([`Buffer`], [`MemoryRegion`]); a
//! [`QueuePair`] carries requests to one peer, whose outcome a [`CompletionQueue`] reports. All of them keep their
//! dependencies alive. Nothing here waits, and posting and polling do not allocate. Both ends exchange queue pair
//! numbers, GIDs, PSNs, addresses and keys over a connection of the caller's own.
//!
//! The library is linked dynamically: a program with this feature does not start on a host without `libibverbs.so.1` (Debian:
//! libibverbs1). With it, but without a device, [`devices`] says what is missing.
//!
//! # Example
//!
//! An RDMA write with immediate value to a peer that announced its GIDs, the number of its queue pair, and a region:
//!
//! ```no_run
//! use shouter_netstack::verbs::{
//!     Access, Completion, Connection, Context, Destination, Operation, QpConfig, WorkRequest, devices, route,
//! };
//!
//! # struct Peer { gids: Vec<[u8; 16]>, qp: u32, address: u64, rkey: u32 }
//! # fn exchange(_: u32) -> Peer { unimplemented!() }
//! let info = devices()?.remove(0);
//! let context = Context::open(&info.name)?;
//! let queue = context.create_completion_queue(256)?;
//! let config = QpConfig { max_send: 64, max_recv: 64, max_inline_wanted: 64 };
//! let pair = context.create_rc(&queue, config)?;
//! let mut buffer = context.register_owned(1 << 20, Access::REMOTE_WRITE)?;
//! let port = &info.ports[0];
//! pair.init(port.number, Access::REMOTE_WRITE)?;
//!
//! let peer = exchange(pair.number());
//! let (ours, theirs) = route(&port.gids, &peer.gids)?.ok_or("no route to the peer")?;
//! let mut connection = Connection::new(port.number, Destination::roce(&ours, theirs), peer.qp);
//! connection.path_mtu = port.active_mtu;
//! pair.connect(&connection)?;
//!
//! buffer.write(0, b"a gradient, say");
//! let bytes = buffer.sge(0, 15).ok_or("outside of the buffer")?;
//! let operation = Operation::WriteImm { remote: peer.address, rkey: peer.rkey, imm: 7 };
//! pair.post_send(&[WorkRequest::new(1, operation, bytes)])?;
//!
//! let mut done = [Completion::default(); 16];
//! while queue.poll(&mut done)? == 0 {}
//! assert!(done[0].is_ok(), "{}", done[0].status);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Not supported
//!
//! **Atomics, unreliable services, shared receive queues, memory windows, receives with memory, completion channels
//! (waiting is polling), rdma_cm.** InfiniBand proper, dma-bufs, and the memory of other devices by its address are
//! written and have never run on hardware.

mod completion;
mod context;
mod device;
mod error;
mod gid;
mod memory;
mod queue_pair;
mod sys;

pub use completion::{Completion, CompletionQueue, Opcode, Status};
pub use context::{AsyncEvent, Context};
pub use device::{DeviceInfo, LinkLayer, PortInfo, PortState, devices};
pub use error::VerbsError;
pub use gid::{Gid, GidKind, route};
pub use memory::{Access, Buffer, MemoryRegion, Sge};
pub use queue_pair::{
    BATCH, Connection, Destination, MAX_SGE, Operation, PostError, QpConfig, QpState, QueuePair, Sges,
    WorkRequest,
};
pub use sys::Errno;
