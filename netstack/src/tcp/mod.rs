//! TCP (RFC 9293) as state machines: segments, bytes and time in; segments, events and deadlines out.

mod api;
mod connection;
mod memory;
mod receiver;
mod sender;

pub use api::{
    Config, ConnectError, ConnectionId, Destination, Emit, Emitted, Error, Event, Failure, Info, KeepAlive,
    ListenError, ListenerId, Options, Path, Payload, Segment, SegmentMeta, StateName, Token,
};
pub use receiver::Chunk;
