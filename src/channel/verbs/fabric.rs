//! The operations on queue pairs that the channel uses: slots that the peer writes to, slots and registered memory to
//! write from, and SENDs with an immediate value and no slot. Over libibverbs it is [`rdma`](super::rdma); a test has
//! one of its own.

use std::any::Any;
use std::net::Ipv6Addr;
use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};
use shouter_reducer::memory::TensorRegion;

/// The address of a connection: its queue pair and its slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueuePairAddress {
    /// Number of the queue pair.
    pub queue_pair: u32,
    /// The first packet's sequence number, 24 bits.
    pub psn: u32,
    /// The port's GID; an IPv4 address is mapped.
    pub gid: Ipv6Addr,
    /// The port's LID, on InfiniBand proper.
    pub lid: u16,
    /// The port's active MTU in bytes.
    pub mtu: u16,
    /// The address of the connection's first slot.
    pub slots: u64,
    /// The key to them.
    pub rkey: u32,
}

/// The sizes that both ends of a connection must have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sizes {
    /// Slots of a connection, each way.
    pub window: u32,
    /// Bytes of a slot.
    pub slot_bytes: u32,
}

/// An event of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FabricEvent {
    /// The peer wrote to a slot.
    Written {
        /// The connection.
        connection: usize,
        /// The slot's index.
        slot: u32,
        /// Bytes written.
        len: u32,
    },
    /// The peer sent an immediate value without a slot.
    Immediate {
        /// The connection.
        connection: usize,
        /// The value.
        value: u32,
    },
    /// The queue pair is of no use any more.
    Broken {
        /// The connection.
        connection: usize,
        /// The fault.
        why: Fault,
    },
}

/// A fault of a queue pair or its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The peer's NIC did not acknowledge.
    #[error(
        "its NIC does not answer (retries exceeded); look at cables, switches, MTU and firewalls (UDP port 4791) on the way, and \
         whether its port is up"
    )]
    RetryExceeded,
    /// The peer had no receive posted, for too long.
    #[error(
        "it posts no receives (receiver-not-ready retries exceeded); see that its process runs, with the same version"
    )]
    ReceiverNotReady,
    /// The peer's NIC refused the access.
    #[error(
        "its NIC refuses access to its memory (remote access error); run the same version on all ranks, and look for a restart \
         of its device"
    )]
    RemoteAccess,
    /// The peer's NIC could not execute a request.
    #[error("its NIC cannot do what it is asked (remote error); look at the kernel's log on its host")]
    Remote,
    /// Our own NIC could not execute a request.
    #[error("this host's NIC cannot do what it is asked (local error); look at the kernel's log")]
    Local,
    /// Our port is down.
    #[error("this host's RDMA port is down; look at the cable and at `rdma link`")]
    PortDown,
    /// Our device is gone or has failed.
    #[error("this host's RDMA device is gone or has failed; look at the kernel's log and at `rdma link`")]
    DeviceGone,
    /// Our address has changed.
    #[error("the address of this host's RDMA port has changed; keep addresses fixed while a job runs")]
    AddressChanged,
    /// The queue pair was closed while something was under way.
    #[error("its queue pair was closed; look at its log")]
    Flushed,
    /// A queue pair cannot be made or connected.
    #[error(
        "a queue pair cannot be set up (error {0}); look at limits of the device (`ibv_devinfo -v`) and at memlock"
    )]
    Setup(i32),
    /// Our own accelerator failed under a request about a payload.
    #[error(
        "this host's accelerator does not answer; look at the log of this rank, and at the device (`nvidia-smi`)"
    )]
    Accelerator,
    /// The ends do not agree about the connections.
    #[error("it uses other settings (channel_num, crc, rdma_memory_mb); give all ranks the same")]
    Settings,
    /// A set-up message has no encoding.
    #[error("a message to it cannot be encoded; report it")]
    Unencodable,
    /// Its messages make no sense.
    #[error("it sent what makes no sense; run the same version on all ranks")]
    Protocol,
}

/// A payload that lies in registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// The registration, as [`Fabric::registering`] called it.
    pub key: usize,
    /// Bytes from its start.
    pub offset: usize,
    /// Bytes.
    pub len: u32,
}

/// Memory of the peer, as it names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Its address.
    pub address: u64,
    /// The key to it.
    pub rkey: u32,
}

/// A range of a device's memory behind a file descriptor (a dma-buf).
#[derive(Debug)]
pub struct Export {
    /// The dma-buf.
    pub fd: OwnedFd,
    /// The offset of the range in it, in bytes.
    pub offset: u64,
}

/// The way by which a NIC reaches a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// By a dma-buf.
    Dmabuf,
    /// By its address, which a driver of the device translates for the kernel (nvidia-peermem).
    Address,
}

impl Reach {
    /// The name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Dmabuf => "dma-buf",
            Self::Address => "nvidia-peermem",
        }
    }
}

/// Memory was not registered; it can be sent from all the same, by way of the slots.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RegisterError {
    /// There is no room in the budget.
    #[error(
        "{bytes} bytes more would go beyond rdma_memory_mb; raise it, on all ranks, to send from there without a copy"
    )]
    Budget {
        /// Bytes to be registered.
        bytes: usize,
    },
    /// The device does not take it.
    #[error("the RDMA device does not take {bytes} bytes: {why}")]
    Device {
        /// Bytes to be registered.
        bytes: usize,
        /// Its error.
        why: String,
    },
    /// No NIC takes it.
    #[error("{0}")]
    Nic(String),
    /// There are as many ranges of devices' memory as are kept.
    #[error(
        "{0} ranges of GPU memory are registered, which is as many as are kept; tensors elsewhere are staged"
    )]
    Ranges(usize),
    /// The channel makes no use of it, has ended, or has some of that memory registered already.
    #[error("the channel takes no more memory")]
    Refused,
}

/// Memory registered with a device, in either way; the registration ends when this is dropped. Both may take seconds.
pub type Registered = Box<dyn Any + Send>;

/// The part of a registration that may take long, to be made in any thread: no poll of the channel waits for it.
pub type Registering = Box<dyn FnOnce() -> Result<Registered, RegisterError> + Send>;

/// Queue pairs by connection, with slots for each. A connection has one queue pair at a time.
pub trait Fabric: 'static {
    /// The sizes that all connections have.
    fn sizes(&self) -> Sizes;

    /// Makes a new queue pair for a connection, ready to receive. A former one was closed.
    fn open(&mut self, connection: usize) -> Result<QueuePairAddress, Fault>;

    /// Connects the connection's queue pair to the peer's.
    fn connect(&mut self, connection: usize, remote: &QueuePairAddress) -> Result<(), Fault>;

    /// Ends the connection's queue pair: when this returns, it touches no memory and no event of it is to come.
    fn close(&mut self, connection: usize);

    /// A slot to write from; it may be filled while no fragment is out from it.
    fn outgoing(&mut self, connection: usize, slot: u32) -> &mut [u8];

    /// A slot that the peer has written to.
    fn incoming(&self, connection: usize, slot: u32) -> &[u8];

    /// Whether `more` writes or SENDs can be queued for a connection.
    fn has_room(&self, connection: usize, more: u32) -> bool;

    /// Queues the write of a slot's first `len` bytes to the peer's slot of the same index.
    fn write(&mut self, connection: usize, slot: u32, len: u32);

    /// The same, but the first bytes of them are read from registered memory: the slot's own are those behind
    /// `payload.len`. The memory must not change, nor be unregistered, until the peer has it or the connection is closed.
    fn gather(&mut self, connection: usize, slot: u32, payload: Source, len: u32);

    /// Queues two writes, in this order: of registered memory to memory of the peer, and of the slot's bytes behind
    /// `payload.len`, up to `len`, to the beginning of the peer's slot. Otherwise as [`gather`](Self::gather).
    fn place(&mut self, connection: usize, slot: u32, payload: Source, into: Remote, len: u32);

    /// The name of a range of registered memory for peers; `None` outside of it.
    fn remote(&self, range: Source) -> Option<Remote>;

    /// A closure that registers memory with the device, which may read it, and let peers that have the key write it,
    /// once the fabric has [adopted](Self::adopt) the result.
    ///
    /// # Errors
    /// [`RegisterError`] if there is no room for it.
    ///
    /// # Safety
    /// The memory stays mapped until the registration is dropped.
    #[allow(unsafe_code)]
    unsafe fn registering(&self, memory: TensorRegion) -> Result<Registering, RegisterError>;

    /// Takes registered memory; returns the registration's number.
    ///
    /// # Errors
    /// [`RegisterError`] if there is no room for it any more; then the registration is dropped.
    fn adopt(&mut self, memory: Registered) -> Result<usize, RegisterError>;

    /// The same for memory of a device ([`MemoryKind::Device`](shouter_reducer::memory::MemoryKind::Device)): by its dma-buf where there is one, else by
    /// its address. It does not count in the budget, which is one of host memory.
    ///
    /// # Errors
    /// As [`registering`](Self::registering).
    ///
    /// # Safety
    /// The memory stays allocated until the registration ends, or no connection uses it any more.
    #[allow(unsafe_code)]
    unsafe fn register_device(
        &mut self,
        memory: TensorRegion,
        export: Option<Export>,
    ) -> Result<(usize, Reach), RegisterError>;

    /// Ends a registration, with the drop of the returned value. A connection that still sends from there breaks.
    fn unregister(&mut self, key: usize) -> Option<Registered>;

    /// Queues a SEND with this immediate value.
    fn send_immediate(&mut self, connection: usize, value: u32);

    /// Posts queued requests; true if there were any.
    fn flush(&mut self) -> bool;

    /// The events since the last call, in each connection's order; a bounded number.
    fn poll(&mut self, events: &mut Vec<FabricEvent>);
}
