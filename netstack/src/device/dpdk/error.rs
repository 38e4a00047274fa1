//! Why a port could not be opened.

use std::io;

use super::DeviceSpec;
use super::sys::{self, Errno};

/// Why a port could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PortError {
    /// The other side does not serve the socket yet. Try again until your deadline.
    #[error("{device}: no process serves the socket yet ({source}); start the other side, or check the path")]
    NotYet {
        /// The device.
        device: DeviceSpec,
        /// The error of `connect`.
        source: io::Error,
    },
    /// Another process serves this socket.
    #[error("{device}: another process listens on this socket; end it, or choose another path")]
    SocketInUse {
        /// The device.
        device: DeviceSpec,
    },
    /// This process has the port open already: its other side would talk to the first, and this one wait for it.
    #[error(
        "{device}: another group of this process has this port open; finalize that first, or give each group ports of \
         its own"
    )]
    Open {
        /// The device.
        device: DeviceSpec,
    },
    /// The socket's path cannot be used.
    #[error("{device}: {what}: {source}; choose a path in a directory that exists and that you may write to")]
    Socket {
        /// The device.
        device: DeviceSpec,
        /// The step that failed.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// A value that this device cannot take.
    #[error("{device}: {what} is {asked}, and this device takes {least} to {most}")]
    Limit {
        /// The device.
        device: DeviceSpec,
        /// The field.
        what: &'static str,
        /// Its value.
        asked: u16,
        /// The least it may be.
        least: u16,
        /// The most it may be.
        most: u16,
    },
    /// A NIC that does not spread what it receives over several queues.
    #[error(
        "{device}: it is to spread what it receives over {queues} queues by its flows' ports (RSS), and {lacks}; take one queue, or \
         another NIC"
    )]
    Spread {
        /// The device.
        device: DeviceSpec,
        /// Queues wanted.
        queues: u16,
        /// Why it does not.
        lacks: String,
    },
    /// The device could not be attached.
    #[error("{device}: {error}; {remedy}. DPDK's log ends: {log}", remedy = device.remedy())]
    Attach {
        /// The device.
        device: DeviceSpec,
        /// DPDK's error.
        error: Errno,
        /// The last lines of its log.
        log: String,
    },
    /// There is too little memory for the port's buffers.
    #[error(
        "{device}: {buffers} buffers of {room} bytes, {needed_mb} MiB in all, do not fit into DPDK's memory ({error}), which \
         all ports of the process share; raise EalConfig::memory_mb (now {memory_mb}), or take a smaller ring or MTU"
    )]
    Memory {
        /// The device.
        device: DeviceSpec,
        /// Buffers wanted.
        buffers: u32,
        /// Bytes of each.
        room: u16,
        /// What they take, in MiB.
        needed_mb: u32,
        /// Memory that DPDK was started with, in MiB.
        memory_mb: u32,
        /// DPDK's error.
        error: Errno,
    },
    /// The process has too many queues open.
    #[error("{device}: {error}: the ports of a process may have {max} queues together; open fewer", max = sys::MAX_QUEUES)]
    TooManyQueues {
        /// The device.
        device: DeviceSpec,
        /// DPDK's error.
        error: Errno,
    },
    /// The driver refused a step of the set-up.
    #[error("{device}: {step}: {error}; {remedy}. DPDK's log ends: {log}", remedy = device.remedy())]
    SetUp {
        /// The device.
        device: DeviceSpec,
        /// The step.
        step: &'static str,
        /// DPDK's error.
        error: Errno,
        /// The last lines of its log.
        log: String,
    },
}
