//! TCP (RFC 9293) as state machines: segments, bytes and time in; segments, events and deadlines out.

mod api;
mod connection;
mod endpoint;
mod memory;
mod options;
mod receiver;
mod sender;

pub use api::{
    ConnectError, ConnectionId, Destination, Emit, Emitted, Error, Event, Failure, Info, ListenError,
    ListenerId, Path, Payload, Repair, Segment, SegmentMeta, Sending, StateName, Token,
};
pub use connection::IcmpKind;
pub use endpoint::{Counters, Endpoint, IcmpError};
pub use options::{Config, KeepAlive, Options};
pub use receiver::Chunk;
