//! Shouter keeps the replicas of a training job in step: an all-reduce over shared memory within a host, and between hosts
//! over a user-space network stack, RDMA, or the kernel's sockets. Below it there is a runtime with a shard for each core and a
//! TCP/IP stack, which programs of other kinds can use, too.
//!
//! # As a trainer
//!
//! Every rank is a process. It reads its [`Config`], joins by [`init`], and calls the methods of its [`Group`] in the same order
//! as all other ranks. [`Group::all_reduce`] reduces a slice in one call. A trainer overlaps the network with its backward
//! pass: [`Group::register`] once, [`Group::lend`] (or [`Group::push`], in `unsafe`) as each gradient is ready, and
//! [`Lent::wait`] (or [`Work::wait`]) before the update reads it. [`Group::start`] starts any
//! collective so.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use shouter::config::{Builder, Environment};
//! use shouter::{DType, ReduceOp, TensorSpec};
//!
//! // In a job of several ranks: `Config::from_env()?`.
//! let config = Builder::from_environment(Environment::default())?.set("size", "1")?.set("rank", "0")?.build()?;
//! let group = shouter::init(config)?;
//! let weights = TensorSpec::all_reduce("layer.0", DType::F32, 4, ReduceOp::Avg);
//! let ids = group.register(&[weights])?;
//! for step in 0..3 {
//!     group.set_step(step);
//!     let gradient = vec![step as f32; 4]; // The backward pass makes it.
//!     let lent = group.lend(ids[0], gradient)?;
//!     // The backward pass goes on with the layer below.
//!     let mean = lent.wait()?;
//!     assert_eq!(mean, [step as f32; 4]); // The update reads it.
//! }
//! group.finalize()?;
//! # Ok(())
//! # }
//! ```
//!
//! Tensors are flat: a type ([`DType`], for Rust's types [`Element`]) and a number of elements. A tensor of a GPU goes to
//! `Group::push_cuda` and `Group::all_reduce_cuda` (feature `cuda`). An [`Error`] says which rank, call and tensor it is about, and what
//! to do next.
//!
//! # As a TCP/IP stack
//!
//! [`net`] has sockets for the tasks of a shard, with a server in 50 lines; [`runtime`] has the shards. Such a program needs none of the
//! features below: `cargo add shouter --no-default-features`. The stack alone, without a runtime, is the crate
//! [`shouter-netstack`](shouter_netstack).
//!
//! # Cargo features
//!
//! All are on by default. `dpdk`: RUD and our own TCP over DPDK ports. `verbs`: RDMA. `cuda`: tensors on GPUs; the driver is
//! loaded at run time. Without them no C library is needed, and jobs run in shared memory and over the kernel's sockets.
//!
//! # As a parameter server
//!
//! [`ps`] has actors by name, servers of parameters and their clients, over a group's messages.
//!
//! # Modules
//!
//! Those in brackets are private, or open to the workspace's own programs and tests: no part of the API.
//!
//! ```text
//!   ps             the parameter server, over the group
//!   (communicator) the group as a trainer sees it: re-exported here
//!   (engine)       executor, channels and liveness of one rank, polled by the runtime
//!   (channel)      shared memory within a host; RUD, TCP, verbs and kernel sockets between hosts; ports
//!   (group)        the join: rendezvous, handshake, roster
//!   net            sockets for a shard's tasks
//!   runtime        shards, tasks, timers, the driver of an engine
//!   (observe, log) timeline, flight recorder, log
//!   config         file, environment, lists
//!   key            the job's secret: HMACs and derived keys
//!   (whole)        files that are written whole or not at all
//!   (wire)         how control messages are encoded
//! ```
#![deny(unsafe_code)]

#[cfg(test)]
mod allocations;
#[doc(hidden)]
pub mod channel;
mod communicator;
pub mod config;
#[doc(hidden)]
pub mod engine;
mod error;
#[doc(hidden)]
pub mod group;
pub mod key;
#[doc(hidden)]
pub mod log;
pub mod net;
#[doc(hidden)]
pub mod observe;
pub mod ps;
pub mod runtime;
mod whole;
mod wire;

#[doc(hidden)]
pub use communicator::leaders;
pub use communicator::{
    AccessCall, BlockCounts, Bool, CollectiveCall, CostFigures, CostsFrom, Element, Exchange, Group, Lend,
    LendError, Lending, Lent, Premul, Source, Staging, Stats, Status, Strided, StridedMut, Tag, Tensor,
    TensorSpec, Transport, UnevenCall, Update, Window, WindowMemory, Work, init, init_through,
};
pub use config::Config;
pub use error::{Error, NamedTensor, Operation, Reason, TensorId};
pub use group::store::{Store, StoreError};
pub use half::{bf16, f16};
pub use num_complex::Complex;
pub use shouter_reducer::dtype::{DType, NoReduction, ReduceOp};
pub use shouter_reducer::float8::{F8E4M3, F8E5M2};
pub use shouter_reducer::header::Collective;
pub use shouter_reducer::layout::Layout;
pub use shouter_reducer::windows::WindowAction;
