//! The ranks of a job as a group: its members, how they find each other, and their agreement before step 0.
//!
//! ```text
//!   rank 1 ──┐
//!   rank 2 ──┼── rank 0: one TCP connection each, over the management network
//!   rank 3 ──┘
//! ```
//!
//! The roster, which all get from rank 0 and which grows with the job, goes down a tree of ranks (`relay.rs`); rank 0
//! itself sends its digest.
//!
//! No gradient crosses the star. It serves set-up, later agreements, and the report that a rank's process has ended. It
//! is authenticated and not encrypted: an observer of the network sees addresses and the names of tensors, but can
//! neither take part nor change a byte unnoticed, and the session's secret is derived at both ends and never sent.

mod client;
mod conn;
pub mod error;
mod frame;
mod handshake;
pub mod hello;
pub mod link;
mod listen;
mod matrix;
pub mod meeting;
mod member_conn;
mod message;
mod proving;
mod rejections;
mod relay;
pub mod rendezvous;
mod rendezvous_config;
pub mod roster;
mod server;
pub mod store;
mod sys;
mod waker;
pub mod watch;

#[cfg(test)]
mod tests;
