//! The operations that the channel uses of a provider of byte streams: our own TCP ([`StackStreams`]) or the kernel's
//! ([`KernelStreams`]).
//!
//! [`StackStreams`]: super::StackStreams
//! [`KernelStreams`]: super::KernelStreams

use std::fmt::Debug;
use std::hash::Hash;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Deref;

use shouter_netstack::device::{Announce, DeviceCounters, Wakes};
use shouter_netstack::region::Extent;
use shouter_netstack::tcp::{self, Error, Failure, ReleaseToken};
use shouter_netstack::time::Instant;

use crate::channel::Links;

/// A change of state; each is reported once, in order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StreamEvent<Id> {
    /// A connection can be accepted.
    Acceptable,
    /// There is something to read: data, or the end of the data.
    Readable(Id),
    /// The extent of this token was taken, as far as the provider knows, and nothing of it refers to the extent any
    /// more.
    Released(Id, ReleaseToken),
    /// The connection has ended before the extent of this token was taken, and nothing refers to the extent any more.
    Dropped(Id, ReleaseToken),
    /// The connection has failed.
    Failed(Id, Failure),
    /// Both directions are finished.
    Closed(Id),
}

/// The present state of a connection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConnectionInfo {
    /// The peer's address.
    pub remote: SocketAddr,
    /// Bytes that can be written.
    pub writable: usize,
    /// Bytes written and not yet acknowledged.
    pub unacknowledged: usize,
    /// Of these, bytes that were not sent, as far as is known.
    pub unsent: usize,
    /// Bytes per second that it moves.
    pub rate: f64,
    /// Bytes acknowledged by the peer.
    pub acknowledged: u64,
    /// Segments sent again.
    pub retransmitted: u64,
}

/// Why there is no connection attempt.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// Our own TCP has refused.
    #[error(transparent)]
    Tcp(#[from] tcp::ConnectError),
    /// The kernel has.
    #[error("a socket towards {remote}: {why}; see the limits of open files and the routes of this host")]
    Socket {
        /// The peer.
        remote: SocketAddr,
        /// The system's error.
        why: io::Error,
    },
}

impl ConnectError {
    /// The system's number of the error, where it is one of the system's.
    pub(super) fn errno(&self) -> Option<i32> {
        match self {
            Self::Tcp(_) => None,
            Self::Socket { why, .. } => why.raw_os_error(),
        }
    }
}

/// Why the listener could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// The port is taken.
    #[error(transparent)]
    Tcp(#[from] tcp::ListenError),
    /// The kernel has refused.
    #[error(
        "a socket that listens on {local}: {why}; give an address of this host (kernel_address), and see the limit of open \
         files"
    )]
    Socket {
        /// The address at which it was to listen.
        local: SocketAddr,
        /// The system's error.
        why: io::Error,
    },
}

/// A provider of byte streams: one listener, any number of connections; polled, never blocking. It holds memory that
/// was given as extents until it reports [`StreamEvent::Released`] or [`StreamEvent::Dropped`], or until the connection
/// is aborted and [`drop_waiting`](Self::drop_waiting) was called.
pub trait Streams: 'static {
    /// A connection; a stale one finds nothing.
    type Id: Copy + Eq + Hash + Debug + Send;

    /// Received bytes.
    type Chunk<'a>: Deref<Target = [u8]>
    where
        Self: 'a;

    /// Whether a peer's acknowledgements show that its process runs. The kernel acknowledges for a process that is
    /// stopped; then the channel has to ask.
    const PROVES_LIFE: bool;

    /// Opens the listener, for at most so many connections at a time.
    ///
    /// # Errors
    /// [`ListenError`] says why that cannot be.
    fn listen(&mut self, connections: usize) -> Result<(), ListenError>;

    /// Closes the listener; accepted connections stay open.
    fn stop_listening(&mut self, now: Instant);

    /// Opens a connection; `local` is this host's address on the way, where the provider does not find it by itself.
    ///
    /// # Errors
    /// [`ConnectError`]; the peer's answer is reported as an event.
    fn connect(&mut self, now: Instant, local: IpAddr, remote: SocketAddr) -> Result<Self::Id, ConnectError>;

    /// The next connection that was made to this side.
    fn accept(&mut self, now: Instant) -> Option<Self::Id>;

    /// Takes as many of the bytes as find room, and returns how many.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if there is no room; else why not, which comes as an event too.
    fn write(&mut self, now: Instant, id: Self::Id, bytes: &[u8]) -> Result<usize, Error>;

    /// Queues bytes that stay where they are until [`StreamEvent::Released`] gives `token` back.
    ///
    /// # Errors
    /// As [`write`](Self::write); then nothing was taken.
    fn write_extent(
        &mut self,
        now: Instant,
        id: Self::Id,
        extent: Extent,
        token: ReleaseToken,
    ) -> Result<(), Error>;

    /// Copies received bytes into `buffer`, not more than it holds, and returns how many; 0 is the end of the data.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if there are none; [`StreamEvent::Readable`] follows. Else the failure, which comes as an
    /// event too.
    fn read(&mut self, now: Instant, id: Self::Id, buffer: &mut [u8]) -> Result<usize, Error>;

    /// Hands out received bytes; `None` is the end of the data.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    fn read_chunk(&mut self, now: Instant, id: Self::Id) -> Result<Option<Self::Chunk<'_>>, Error>;

    /// The state of a connection; `None` if it is no more.
    fn info(&self, id: Self::Id) -> Option<ConnectionInfo>;

    /// Closes a connection at once, with a reset.
    fn abort(&mut self, now: Instant, id: Self::Id);

    /// The next change.
    fn next_event(&mut self) -> Option<StreamEvent<Self::Id>>;

    /// Receives. True if anything was received.
    fn receive(&mut self, now: Instant) -> bool;

    /// Sends written bytes. True if anything was sent.
    fn transmit(&mut self, now: Instant) -> bool;

    /// When the next poll is needed although nothing may arrive.
    fn next_deadline(&self) -> Option<Instant>;

    /// A thread is about to wait; see [`Poller::arm`](crate::runtime::Poller::arm).
    fn arm(&mut self, _announce: &mut Announce<'_>) -> Wakes {
        Wakes::Never
    }

    /// The wait is over.
    fn disarm(&mut self) {}

    /// Gives up bytes that were handed over and wait for a device.
    fn drop_waiting(&mut self);

    /// Segments dropped because their checksum was wrong.
    fn checksum_dropped(&self) -> u64;

    /// The counters of the devices.
    fn device_counters(&self) -> DeviceCounters;

    /// The links of its ports; none for a channel without ports.
    fn links(&self) -> Links {
        Links::default()
    }

    /// The addresses of those ports whose link is down.
    fn addresses_down(&self) -> Vec<IpAddr> {
        vec![]
    }
}
