//! Shouter's reducer: tensors in, messages out. It knows no socket and no NIC, and has neither threads nor a clock: points in time come as
//! arguments, as a `Duration` since an origin that the owner chose (monotonic; never wall-clock time).
//!
//! A *lane* is a staging buffer of shared memory in which the ranks of a host meet. The word has no other meaning in this crate.
//!
//! | module | what it holds |
//! |---|---|
//! | [`table`] | the tensors that will be reduced, agreed on beforehand |
//! | [`plan`] | what else all ranks agree on, and which algorithm serves what |
//! | [`cost`] | how long a collective takes with an algorithm, by a model |
//! | [`fusion`] | small tensors of the table that are reduced as one |
//! | [`grid`] | ranks, nodes, levels, roots |
//! | [`schedule`] | collectives as data: one rank's steps and their order |
//! | [`counts`] | elements of each block, where blocks differ |
//! |  `check` | for tests: proves that the schedules of all ranks fit together |
//! | [`executor`] | runs schedules, fragment by fragment |
//! | [`p2p`] | messages from one rank to another, matched by sender and tag |
//! | [`machine`] | what those two have in common |
//! | [`windows`] | memory of each rank that the others access |
//! | [`recorder`] | the last events of a shard, kept for when its group fails |
//! | [`header`] | the header of every message |
//! | [`transport`] | the interfaces to the network, the node's shared memory and accelerators |
//! | [`memory`] | regions: memory that collectives read and write |
//! |  `coded` | enums whose variants have numbers in messages |
//! | [`dtype`], [`kernel`] | element types, and reductions over them |
//! | [`float8`] | the 8-bit floats |
//! | [`layout`] | elements in blocks at equal distances, packed and unpacked |
//! | `cuda` | the same on NVIDIA GPUs, and their memory |
#![deny(unsafe_code)]

#[macro_use]
mod coded;

#[cfg(test)]
mod check;
pub mod cost;
pub mod counts;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod dtype;
pub mod executor;
pub mod float8;
pub mod fusion;
pub mod grid;
pub mod header;
pub mod kernel;
pub mod layout;
pub mod machine;
pub mod memory;
pub mod p2p;
pub mod plan;
pub mod recorder;
pub mod schedule;
#[cfg(test)]
mod simulation;
pub mod solo;
pub mod table;
pub mod transport;
pub mod windows;
