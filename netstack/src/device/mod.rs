//! The interface to Ethernet devices: bursts of frames in and out, and the devices' capabilities.
//!
//! Only a shard's stack is generic over the device. Protocols fill a [`TxBatch`] with header bytes and extents and
//! never name a device; devices wrap one another (`Fault<Pcap<Loopback>>`).

mod batch;
mod dealing;
mod fault;
mod loopback;
mod pcap;
mod received;
pub(crate) mod segment;
mod spread;
mod steer;

#[cfg(feature = "dpdk")]
pub mod dpdk;
#[cfg(any(feature = "dpdk", feature = "tap"))]
mod interface;
#[cfg(feature = "tap")]
mod tap;
#[cfg(test)]
mod tests;

pub use batch::{Frame, HEADER_CAPACITY, MAX_EXTENTS, Offload, Transport, TxBatch};
pub use fault::{Fault, FaultConfig, FaultConfigError, FaultCounters};
pub use loopback::Loopback;
pub use pcap::Pcap;
pub use received::{HEAD_MIN, RxChecksum, RxFrame};
pub use spread::{Spread, spread};
pub use steer::{Steered, steer};
#[cfg(feature = "tap")]
pub use tap::{Tap, TapError};

use std::os::fd::BorrowedFd;

use crate::time::Instant;

/// What ends a thread's wait for work; see [`Device::arm`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wakes {
    /// Nothing does: all has to be polled.
    #[default]
    Never,
    /// Some of the work, as far as it is announced at descriptors; the rest has to be polled.
    Partly,
    /// All of it is announced at descriptors, or has a deadline.
    Always,
}

impl Wakes {
    /// For two sources of work together.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Always, Self::Always) => Self::Always,
            (Self::Never, Self::Never) => Self::Never,
            _ => Self::Partly,
        }
    }

    /// Where something beside has to be polled.
    #[must_use]
    pub const fn with_polling(self) -> Self {
        self.and(Self::Never)
    }
}

/// Takes the descriptors at which work is announced, for [`Device::arm`]. Nothing is read from them: each announcement makes an event, also
/// where the one before has left the descriptor readable (`EPOLLIN | EPOLLET` of epoll(7)).
pub type Announce<'a> = dyn FnMut(BorrowedFd<'_>) + 'a;

/// The state of frames that refer to extents, which may still be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum FramesOut {
    /// None.
    #[default]
    None,
    /// Frames that no device has taken yet. They leave in order: one whose arrival was acknowledged is not among them,
    /// unless it was sent again.
    Waiting,
    /// Frames that a device has taken and keeps.
    Held,
}

/// A device's capabilities. Fixed after it was opened.
#[derive(Clone, Debug)]
pub struct Capabilities {
    /// A short name for people: `virtio`, `vhost`, `memif`, `loopback`...
    pub kind: &'static str,
    /// Largest IP packet in bytes (the Ethernet header is not counted).
    pub mtu: u16,
    /// Frames worth handing over at once.
    pub burst: u16,
    /// The device fills in the IPv4 header checksum of frames that it sends.
    pub tx_ipv4_checksum: bool,
    /// It fills in the TCP checksum of frames whose [`Offload`] requests it.
    pub tx_tcp_checksum: bool,
    /// It fills in the UDP checksum of frames whose [`Offload`] requests it.
    pub tx_udp_checksum: bool,
    /// The longest super-segment that it splits (or passes whole), as an IP packet in bytes; 0: none.
    pub tso_max: u32,
    /// How many extents a frame may have, 1 to [`MAX_EXTENTS`].
    pub max_extents: usize,
    /// It checks transport checksums of received frames, which may be [`RxChecksum::Verified`].
    pub rx_checksum: bool,
    /// It may hand over frames longer than the MTU: segments that were merged, or super-segments passed whole.
    pub lro: bool,
}

impl Capabilities {
    /// A device that sends and receives frames as they are.
    pub const fn plain(kind: &'static str, mtu: u16, burst: u16) -> Self {
        Self {
            kind,
            mtu,
            burst,
            tx_ipv4_checksum: false,
            tx_tcp_checksum: false,
            tx_udp_checksum: false,
            tso_max: 0,
            max_extents: MAX_EXTENTS,
            rx_checksum: false,
            lro: false,
        }
    }

    /// A device whose other side does all that a frame leaves undone: checksums, and super-segments, which pass whole both ways.
    pub(crate) const fn offloading(kind: &'static str, mtu: u16, burst: u16) -> Self {
        Self {
            tx_tcp_checksum: true,
            tx_udp_checksum: true,
            tso_max: u16::MAX as u32,
            rx_checksum: true,
            lro: true,
            ..Self::plain(kind, mtu, burst)
        }
    }

    /// Whether the device does the work that a frame of `ip_len` bytes (Ethernet header not counted) leaves to it.
    #[inline]
    pub fn can(&self, offload: Offload, ip_len: usize) -> bool {
        let checksum = match offload.transport {
            Transport::None => true,
            Transport::Tcp => self.tx_tcp_checksum,
            Transport::Udp => self.tx_udp_checksum,
        };
        checksum && (offload.segment_size == 0 || ip_len <= self.tso_max as usize)
    }
}

/// Frame counters, since the device was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    /// Frames handed to the stack.
    pub rx_frames: u64,
    /// Bytes of those frames, Ethernet header included.
    pub rx_bytes: u64,
    /// Frames accepted from the stack.
    pub tx_frames: u64,
    /// Bytes of those frames, Ethernet header included.
    pub tx_bytes: u64,
    /// Of the frames accepted, those whose payload was not copied: the driver, or the NIC, reads it where it lies.
    pub tx_uncopied: u64,
    /// Frames the device itself dropped, in either direction.
    pub dropped: u64,
}

/// One queue pair of an Ethernet port.
///
/// # Safety
/// Frames refer to memory that their sender frees, or writes, when the stack says that nothing reads it any more. So the bytes of a frame are read
/// only within the call of [`transmit`](Self::transmit) that was given it, or else while [`holds_extents`](Self::holds_extents) returns true; and the frames of a batch
/// that are not taken are left in it.
///
/// One exception: an extent that is *lent*, as those of RUD's datagrams are that are sent for the first time, and lies in memory that was registered with the device (an unsafe call, see
/// `dpdk::PortMemory`) may be read until the device has sent the frame. A device sends frames in the order in which it was given them, so that the arrival
/// of this frame, or of a later one to the same destination, says that it reads the extent no more. If neither arrives (the sender has given
/// up), the end of the registration says so. A receiver that checks what it gets (RUD's CRC) drops a frame that was read after its sender wrote there.
#[allow(unsafe_code)]
pub unsafe trait Device {
    /// The device's capabilities.
    fn capabilities(&self) -> &Capabilities;

    /// The port's own MAC address.
    fn mac(&self) -> [u8; 6];

    /// Whether frames can pass at present (an embedded link is down until its peer is there).
    fn link_up(&mut self) -> bool;

    /// Takes frames from the front of `batch` (and removes them), as many as there is room for, and returns how
    /// many. Payload extents are read before this returns, or are held until [`Device::holds_extents`] is false.
    /// A frame may request only the offloads in the device's [`Capabilities`]; one that requests more is dropped and
    /// counted.
    fn transmit(&mut self, now: Instant, batch: &mut TxBatch) -> usize;

    /// Hands up to `budget` received frames to `sink`, each borrowed for the call, and returns how many.
    fn receive(&mut self, now: Instant, budget: usize, sink: &mut impl FnMut(RxFrame<'_>)) -> usize;

    /// When the device itself needs the next call although nothing arrives (simulated delay).
    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    /// Whether transmitted extents may still be read by the device.
    fn holds_extents(&self) -> bool {
        false
    }

    /// A thread is about to wait: from now on, until [`disarm`](Self::disarm), frames that arrive are announced at the descriptors that
    /// `announce` is given. Frames that arrived before are not, so receive once more before the wait. A device without receive interrupts does nothing, and
    /// [`Wakes::Never`] says so.
    fn arm(&mut self, _announce: &mut Announce<'_>) -> Wakes {
        Wakes::Never
    }

    /// The wait is over: frames are polled again, and announcing them would only cost something.
    fn disarm(&mut self) {}

    /// Drops frames that wait in the device, as if they were lost in transit: the memory that they refer to is about to go.
    fn drop_waiting(&mut self) {}

    /// Counters since the device was opened.
    fn counters(&self) -> DeviceCounters;
}
