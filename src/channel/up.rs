//! The up grid: this leader's channel to the leaders of other nodes, whichever it is.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use shouter_netstack::device::{Device, DeviceCounters};
use shouter_netstack::stack::Stack;
use shouter_netstack::time::Instant;
use shouter_netstack::{rud, tcp};
use shouter_reducer::grid::Rank;
use shouter_reducer::header::Header;
use shouter_reducer::memory::Region;
use shouter_reducer::transport::{Landing, PayloadRange, SendError, Token, Transport};

use super::Inbox;
use super::rud::RudChannel;
use super::stream::{KernelChannel, TcpChannel};
use super::verbs;
pub use mixed::Mixed;

mod mixed;

/// A leader elsewhere.
#[derive(Clone, Copy, Debug)]
pub struct PeerAddress {
    /// Its rank.
    pub rank: Rank,
    /// Its address on the data network.
    pub ip: Ipv4Addr,
    /// The TCP port at which it accepts connections, where the channel makes some.
    pub port: u16,
    /// Our address on the way to it.
    pub local_ip: Ipv4Addr,
}

/// A peer that cannot be reached any more.
#[derive(Clone, Debug)]
pub struct PeerLoss {
    /// The leader that is gone.
    pub rank: Rank,
    /// How it showed.
    pub why: Loss,
}

/// How it shows that a peer is gone.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Loss {
    /// Its RUD session has failed.
    #[error(transparent)]
    Rud(rud::Failure),
    /// A TCP connection has failed.
    #[error(transparent)]
    Tcp(tcp::Failure),
    /// No queue pair to it can be kept up.
    #[error(transparent)]
    Verbs(verbs::Fault),
    /// There never was a connection.
    #[error(
        "TCP connections with {remote} were not made within {waited:?}; see that it runs with the same transport and that \
         nothing on the way drops its packets"
    )]
    Unconnected {
        /// Where it listens, or would.
        remote: SocketAddr,
        /// For how long it was tried.
        waited: Duration,
    },
    /// What came on a connection makes no sense.
    #[error("{remote} sent what makes no frames; run the same version on all ranks")]
    Garbled {
        /// Where it listens, or would.
        remote: SocketAddr,
    },
    /// A frame came damaged through TCP, which cannot bring it again.
    #[error(
        "{remote} sent a frame whose CRC32C is wrong, and a byte stream cannot bring it again: a network card, its driver or          memory on the way damages data. Take that host or path out of the job, or use transport = \"rud\", which sends again"
    )]
    Corrupted {
        /// Where it listens, or would.
        remote: SocketAddr,
    },
    /// One side's frames carry a CRC and the other's do not.
    #[error("{rank} has `crc` otherwise than this rank, where it is {ours}; give all ranks the same `crc`")]
    CrcDiffers {
        /// The peer.
        rank: Rank,
        /// What this rank has: on or off.
        ours: &'static str,
    },
    /// Its host answers and its process gives no sign of life.
    #[error(
        "{remote} has given no sign of life for {after:?}, though its connection is open; see whether its process was stopped"
    )]
    Silent {
        /// Where it listens.
        remote: SocketAddr,
        /// Since when.
        after: Duration,
    },
}

impl Loss {
    /// Whether it is this rank's own host that cannot be reached, rather than the peer's.
    pub fn is_own(&self) -> bool {
        use verbs::Fault;
        matches!(
            self,
            Self::Verbs(Fault::Local | Fault::PortDown | Fault::DeviceGone | Fault::AddressChanged)
        )
    }
}

/// The channel to the leaders of other nodes.
pub enum UpChannel<D: Device> {
    /// Datagrams.
    Rud(Box<RudChannel<D>>),
    /// Connections of our own TCP.
    Tcp(Box<TcpChannel<D>>),
    /// Connections of the kernel's.
    Kernel(Box<KernelChannel>),
    /// Queue pairs, with the kernel's connections beside them.
    #[cfg(feature = "verbs")]
    Verbs(Box<verbs::OverRdma>),
    /// Several, each to some of the leaders.
    Mixed(Box<Mixed<D>>),
}

impl<D: Device> From<RudChannel<D>> for UpChannel<D> {
    fn from(channel: RudChannel<D>) -> Self {
        Self::Rud(Box::new(channel))
    }
}

impl<D: Device> From<TcpChannel<D>> for UpChannel<D> {
    fn from(channel: TcpChannel<D>) -> Self {
        Self::Tcp(Box::new(channel))
    }
}

impl<D: Device> From<KernelChannel> for UpChannel<D> {
    fn from(channel: KernelChannel) -> Self {
        Self::Kernel(Box::new(channel))
    }
}

#[cfg(feature = "verbs")]
impl<D: Device> From<verbs::OverRdma> for UpChannel<D> {
    fn from(channel: verbs::OverRdma) -> Self {
        Self::Verbs(Box::new(channel))
    }
}

/// Calls the channel that there is.
macro_rules! of {
    ($channel:expr, $up:ident => $call:expr) => {
        match $channel {
            UpChannel::Rud($up) => $call,
            UpChannel::Tcp($up) => $call,
            UpChannel::Kernel($up) => $call,
            #[cfg(feature = "verbs")]
            UpChannel::Verbs($up) => $call,
            UpChannel::Mixed($up) => $call,
        }
    };
}

impl<D: Device> UpChannel<D> {
    /// The channel to all of these ranks, each by the one that is given with it.
    pub fn mixed(mut channels: Vec<(Self, Vec<Rank>)>) -> Self {
        match channels.pop() {
            Some((only, _)) if channels.is_empty() => only,
            last => {
                channels.extend(last);
                Self::Mixed(Box::new(Mixed::new(channels)))
            }
        }
    }

    /// Receives and hands fragments to the executor; what it makes of them goes out with the same turn's
    /// [`transmit`](Self::transmit). True if anything came.
    #[inline]
    pub fn receive(&mut self, now: Instant, inbox: &mut impl Inbox) -> bool {
        of!(self, up => up.receive(now, inbox))
    }

    /// Sends what the executor has posted and what the protocols owe. True if anything was sent.
    #[inline]
    pub fn transmit(&mut self, now: Instant, inbox: &mut impl Inbox) -> bool {
        of!(self, up => up.transmit(now, inbox))
    }

    /// When the next turn is needed although nothing may arrive.
    pub fn next_deadline(&self) -> Option<Instant> {
        of!(self, up => up.next_deadline())
    }

    /// A peer that was lost since the last call.
    #[inline]
    pub fn take_lost(&mut self) -> Option<PeerLoss> {
        of!(self, up => up.take_lost())
    }

    /// Gives the peers a sign of life with the next turn, where none is given before a connection is made.
    pub fn announce(&mut self) {
        if let Self::Rud(up) = self {
            up.announce();
        }
    }

    /// Whether a peer has been heard on a channel that goes over ports.
    pub fn hears(&self, rank: Rank) -> bool {
        match self {
            Self::Rud(up) => up.hears(rank),
            Self::Tcp(up) => up.is_connected(rank),
            _ => false,
        }
    }

    /// The stack of a channel that goes over ports.
    pub fn stack_mut(&mut self) -> Option<&mut Stack<D>> {
        match self {
            Self::Rud(up) => Some(up.stack_mut()),
            Self::Tcp(up) => Some(up.stack_mut()),
            _ => None,
        }
    }

    /// Posts a control message to every peer that is still there, as soon as there is room.
    pub fn broadcast(&mut self, header: &Header) {
        of!(self, up => up.broadcast(header));
    }

    /// Gives up everything that waits for an acknowledgement or for a device: afterwards nothing refers to any memory.
    /// Control messages still get through.
    pub fn fence(&mut self) {
        of!(self, up => up.fence());
    }

    /// Tells the peers that this rank leaves in good order, where they would take the end of its connections for a failure.
    pub fn depart(&mut self) {
        match self {
            Self::Rud(_) => {}
            Self::Tcp(up) => up.depart(),
            Self::Kernel(up) => up.depart(),
            #[cfg(feature = "verbs")]
            Self::Verbs(up) => up.depart(),
            Self::Mixed(up) => up.depart(),
        }
    }

    /// Whether it can make use of memory that it knows; elsewhere [`register`](Self::register) does nothing.
    pub fn takes_memory(&self) -> bool {
        match self {
            Self::Rud(_) | Self::Tcp(_) | Self::Kernel(_) => false,
            #[cfg(feature = "verbs")]
            Self::Verbs(_) => true,
            Self::Mixed(up) => up.takes_memory(),
        }
    }

    /// What makes memory known, so that an RDMA device reads it where it lies, once it is [adopted](Self::adopt); `None` if it is copied as
    /// before. A system call, and one that touches every page: it is made where nobody waits for it.
    ///
    /// # Safety
    /// The memory stays mapped until what comes of this is dropped: by [`unregister`](Self::unregister)'s caller, or with the channel.
    #[allow(unsafe_code)]
    pub unsafe fn registering(&mut self, memory: Region) -> Option<verbs::Registering> {
        match self {
            Self::Rud(_) | Self::Tcp(_) | Self::Kernel(_) => None,
            #[cfg(feature = "verbs")]
            // SAFETY: passed on to the caller.
            Self::Verbs(up) => unsafe { up.registering(memory) },
            // SAFETY: passed on to the caller.
            Self::Mixed(up) => unsafe { up.registering(memory) },
        }
    }

    /// Takes what came of [`registering`](Self::registering); whether the memory is known from now on.
    pub fn adopt(
        &mut self,
        memory: Region,
        registered: Result<verbs::Registered, verbs::RegisterError>,
    ) -> bool {
        match self {
            Self::Rud(_) | Self::Tcp(_) | Self::Kernel(_) => false,
            #[cfg(feature = "verbs")]
            Self::Verbs(up) => up.adopt(memory, registered),
            Self::Mixed(up) => up.adopt(memory, registered),
        }
    }

    /// Makes memory known at once; false if it is copied as before.
    ///
    /// # Safety
    /// As for [`registering`](Self::registering).
    #[allow(unsafe_code)]
    pub unsafe fn register(&mut self, memory: Region) -> bool {
        // SAFETY: passed on to the caller.
        let registering = unsafe { self.registering(memory) };
        registering.is_some_and(|registering| self.adopt(memory, registering()))
    }

    /// Whether it takes memory of devices: where all of it is queue pairs.
    pub fn takes_device_memory(&self) -> bool {
        match self {
            #[cfg(feature = "verbs")]
            Self::Verbs(_) => true,
            _ => false,
        }
    }

    /// Makes memory of a device known to the NIC.
    ///
    /// # Errors
    /// [`RegisterError`](verbs::RegisterError); nothing has changed then.
    ///
    /// # Safety
    /// As for [`register`](Self::register), or no operation names the memory any more.
    #[allow(unsafe_code)]
    pub unsafe fn register_device(
        &mut self,
        memory: Region,
        export: Option<verbs::Export>,
    ) -> Result<verbs::Reach, verbs::RegisterError> {
        match self {
            #[cfg(feature = "verbs")]
            // SAFETY: passed on to the caller.
            Self::Verbs(up) => unsafe { up.register_device(memory, export) },
            _ => {
                drop((memory, export));
                Err(verbs::RegisterError::Refused)
            }
        }
    }

    /// From now on payloads may lie in a device's memory, if it takes such.
    pub fn attach_digest(&mut self, digest: Box<dyn verbs::Digest + Send>) {
        match self {
            #[cfg(feature = "verbs")]
            Self::Verbs(up) => up.attach_digest(digest),
            _ => drop(digest),
        }
    }

    /// Forgets memory that begins at `address`, if it is known; the device does with the drop of what is returned. Nothing may be under way
    /// from there.
    pub fn unregister(&mut self, address: usize) -> Option<verbs::Registered> {
        match self {
            Self::Rud(_) | Self::Tcp(_) | Self::Kernel(_) => None,
            #[cfg(feature = "verbs")]
            Self::Verbs(up) => up.unregister(address),
            Self::Mixed(up) => up.unregister(address),
        }
    }

    /// Whether everything that was sent has been acknowledged.
    pub fn is_drained(&self) -> bool {
        of!(self, up => up.is_drained())
    }

    /// Datagrams or segments sent again.
    pub fn resent(&self) -> u64 {
        of!(self, up => up.resent())
    }

    /// Datagrams declared lost, where the channel knows of each.
    pub fn lost(&self) -> u64 {
        match self {
            Self::Rud(up) => up.lost(),
            Self::Mixed(up) => up.lost(),
            _ => 0,
        }
    }

    /// What was sent again last and to whom, where the channel knows.
    pub fn last_resent(&self) -> Option<(Rank, Token)> {
        match self {
            Self::Rud(up) => up.last_resent(),
            Self::Mixed(up) => up.last_resent(),
            _ => None,
        }
    }

    /// Datagrams or segments dropped because their CRC or checksum was wrong.
    pub fn crc_dropped(&self) -> u64 {
        match self {
            Self::Rud(up) => up.crc_dropped(),
            Self::Tcp(up) => up.checksum_dropped(),
            #[cfg(feature = "verbs")]
            Self::Verbs(up) => up.damaged(),
            Self::Mixed(up) => up.crc_dropped(),
            Self::Kernel(up) => up.checksum_dropped(),
        }
    }

    /// The sum of the counters of all ports.
    pub fn device_counters(&self) -> DeviceCounters {
        of!(self, up => up.device_counters())
    }
}

impl<D: Device> Transport for UpChannel<D> {
    #[inline]
    fn max_fragment(&self, to: Rank) -> usize {
        of!(self, up => up.max_fragment(to))
    }

    #[inline]
    fn send(
        &mut self,
        to: Rank,
        header: &Header,
        payload: PayloadRange,
        token: Token,
    ) -> Result<(), SendError> {
        of!(self, up => up.send(to, header, payload, token))
    }

    #[inline]
    fn credit(&mut self, to: Rank, header: &Header, landing: Option<Landing>) -> Result<(), SendError> {
        of!(self, up => up.credit(to, header, landing))
    }

    #[inline]
    fn hurry(&mut self, to: Rank) {
        of!(self, up => up.hurry(to));
    }
}
