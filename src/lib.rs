//! Shouter keeps the replicas of a training job in step: the shard-per-core runtime, channels, groups.
//!
//! A trainer calls [`init`], registers its gradients with [`Group::register`], pushes each when it is ready
//! ([`Group::push`]) and waits before it uses the sum ([`Group::wait`]); [`Group::all_reduce`] does it in one call.
//!
//! ```text
//!   communicator   the group as a trainer sees it
//!   engine         executor, channels and liveness of one rank, turned by the runtime
//!   channel        shm within a host, rud between hosts, ports
//!   group          rendezvous: handshake, hellos, the roster
//!   net            sockets for a shard's tasks
//!   runtime        shards, tasks, timers, who drives
//!   observe        log, timeline, flight recorder
//!   config         file, environment, lists
//!   key            the job's secret: HMACs and what is derived from it
//!   wire           how control messages are encoded
//! ```
#![deny(unsafe_code)]

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
pub mod runtime;
mod wire;

pub use communicator::{
    CollectiveCall, Element, Group, Lend, LendError, Lent, Pending, Stats, Tensor, TensorSpec, Transport,
    WaitError, init, leaders,
};
pub use config::Config;
pub use error::{Error, NamedTensor, Operation, Reason, TensorId};
pub use half::{bf16, f16};
pub use shouter_reducer::dtype::{DType, ReduceOp};
pub use shouter_reducer::header::Collective;
