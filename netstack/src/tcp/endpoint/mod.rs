//! All TCP connections of one shard: finds a segment's connection, opens and closes connections, gives them turns to
//! send, and keeps their timers.
//!
//! ```text
//!   segment -> table -> connection          (slab of boxes, one wheel timer each)
//!                    -> TIME-WAIT record    (small, aged by the same wheel)
//!                    -> listener: SYN queue, cookies, accept queue
//!                    -> nobody: a reset
//!   answers of no connection, then ready connections in turn -> Emit
//! ```
//!
//! What this module expects of [`Connection`](super::connection::Connection) is in `connection/mod.rs`; what a
//! connection finds here is [`Terms`](cookie::Terms) out of a SYN cookie and [`TimeWait`](time_wait::Record) to leave
//! behind.

