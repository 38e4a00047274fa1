//! TCP (RFC 9293) as state machines: segments, bytes and time in; segments, events and deadlines out.

mod api;
mod connection;
mod endpoint;
mod memory;
mod receiver;
mod sender;

pub use api::{
    Config, ConnectError, ConnectionId, Destination, Emit, Emitted, Error, Event, Failure, Info, KeepAlive,
    ListenError, ListenerId, Options, Path, Payload, Segment, SegmentMeta, StateName, Token,
};
pub use connection::IcmpKind;
pub use endpoint::{Counters, Endpoint, IcmpError};
pub use receiver::Chunk;
