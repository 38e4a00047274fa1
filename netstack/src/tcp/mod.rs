//! TCP (RFC 9293) as state machines: segments, bytes and time in; segments, events and deadlines out.

mod api;
mod connection;
mod endpoint;
mod memory;
mod options;
mod receiver;
mod sender;

pub use api::{
    ConnectError, ConnectionId, Destination, Emit, Emitted, Error, Failure, Info, ListenError, ListenerId,
    Path, Payload, ReleaseToken, Repair, Segment, SegmentMeta, Sending, StateName, TcpEvent,
};
pub use connection::IcmpKind;
pub use endpoint::{Counters, Endpoint, SegmentIcmpError};
pub use options::{Config, KeepAlive, Options};
pub use receiver::Chunk;
