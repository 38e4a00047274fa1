//! A parameter server over a group's messages: actors by name, servers that own shards of parameters, and clients that push gradients and
//! pull parameters. `docs/ps.md` says what is promised.
//!
//! ```text
//!   names       the names of ranks
//!   message     header and elements in one message
//!   actors      messages between names
//!   plan        who serves, who trains, how far trainers may be apart: the same on all actors
//!   link        the groups between a client and a server
//!   protocol    requests and answers (data), membership and the end (control)
//!   client      set, push, pull
//!   server      threads that answer
//!   state       who has pushed how often, and who waits
//!   parameter   rows and their updates; optimizer, shard
//!   checkpoint  files of safetensors
//!   sys         a send that owns its memory
//! ```

mod actors;
mod checkpoint;
mod client;
mod error;
mod link;
mod message;
mod names;
mod optimizer;
mod parameter;
mod plan;
mod protocol;
mod server;
mod shard;
mod state;
mod sys;

pub use actors::{Actors, Received, Receiving, Sending};
pub use client::Client;
pub use error::Error;
pub use message::{Array, Layout, Meta};
pub use optimizer::Optimizer;
pub use plan::{Lost, Mode, Plan};
pub use server::{Served, Server};
pub use shard::Sharding;
