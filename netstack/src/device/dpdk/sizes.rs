//! The sizes of a port's rings and buffers.

use super::{DeviceSpec, DpdkPortConfig, sys};

/// Ethernet header and two VLAN tags: a frame's overhead over its IP packet.
pub(super) const LINK_HEADER: u16 = 14 + 2 * 4;

/// Buffers that each queue keeps at hand. They are used last in, first out, so that a few that are warm serve for all; without
/// a cache they would alternate, and each would be fetched from memory.
pub(super) const CACHE: u32 = 128;

/// Bytes of frame in a buffer of a port with offloads, at least: a super-segment takes a few buffers, not dozens. A NIC's
/// are [`NIC_ROOM_MAX`] at most.
const OFFLOAD_ROOM: u16 = 16 << 10;

/// Descriptors of each ring of a port with offloads, unless set otherwise. Time of both ends of a link together for
/// super-segments, as Gb/s of one core's time, payload cold: 32 descriptors 82, 128 75 and 256 74 to vhost, 122, 101 and
/// 100 to virtio; frames of 1500 bytes on a link without offloads: 42 and 41.
const OFFLOAD_RING: u32 = 128;

/// Bytes that the buffers of a ring take together, at most, unless set otherwise.
const RING_BYTES: u32 = 640 << 10;

/// Bytes of frames that a NIC's ring holds, unless set otherwise: 0.67 ms at 100 Gb/s. No peer waits for room there, as that of an
/// embedded link does: what finds the ring full, while the thread that polls is away, is lost.
const NIC_RING_BYTES: u32 = 8 << 20;

/// Descriptors of each ring of a NIC, unless set otherwise. Drivers for 10 Gb/s and more take 4,096.
const NIC_RING: core::ops::RangeInclusive<u32> = 1024..=4096;

/// The longest receive buffer that every driver here takes, in the steps of 1 KiB that some count in: i40e, ice and iavf take
/// 16 KiB less 128 bytes (`I40E_RX_MAX_DATA_BUF_SIZE`), and vmxnet3's length has 14 bits. DPDK 22.11 does not report it
/// (`max_rx_bufsize` is of 23.11). Longer frames come in several buffers.
const NIC_ROOM_MAX: u32 = 15 << 10;

/// Descriptors of each ring of an XDP socket: the driver's default (ETH_AF_XDP_DFLT_NUM_DESCS). It keeps as many
/// buffers ready for reception, besides those of the rings.
const XDP_RING: u32 = 2048;

/// Bytes of each ring of a packet socket, about.
pub(super) const PACKET_RING: u32 = 4 << 20;

/// How a port was set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Descriptors of each receive ring and of each transmit ring, as the driver was asked for them.
    pub rings: (u16, u16),
    /// Buffers of the port.
    pub buffers: u32,
    /// Bytes of frame that a buffer holds.
    pub room: u16,
    /// The NUMA node of a NIC, where the system knows it.
    pub node: Option<u32>,
    /// Whether the buffers are of that node's memory: false where too little of that is free. Without hugepages DPDK does not know.
    pub is_near: bool,
}

/// Descriptors of each ring: a power of two.
pub(super) fn ring(config: &DpdkPortConfig) -> u16 {
    let fitting = match config.leaves_work() {
        // Frames that arrive while the thread is not running have no other place.
        _ if matches!(config.device, DeviceSpec::AfXdp(_)) => XDP_RING,
        // Each descriptor may take a super-segment, of several buffers.
        true if matches!(config.device, DeviceSpec::Pci(_)) => *NIC_RING.start(),
        _ if matches!(config.device, DeviceSpec::Pci(_)) => {
            (NIC_RING_BYTES / u32::from(config.mtu.max(1))).clamp(*NIC_RING.start(), *NIC_RING.end())
        }
        // Sent buffers come back at once, so that the length costs little; two ends that share a core need it.
        true => OFFLOAD_RING,
        false => (RING_BYTES / u32::from(config.mtu.max(1))).clamp(64, 256),
    };
    match config.ring_size {
        0 => 1 << fitting.ilog2(),
        asked => asked.min(1 << 15).next_power_of_two(),
    }
}

/// Bytes of frame that a buffer holds, of a device that takes frames of up to `max_frame` bytes. A frame fits into one buffer, so that it
/// is contiguous, unless it is a super-segment, or longer than a NIC's buffers may be.
pub(super) fn frame_room(config: &DpdkPortConfig, max_frame: u32) -> u16 {
    let frame = config.mtu + LINK_HEADER;
    if let DeviceSpec::Pci(_) = config.device {
        return nic_room(u32::from(frame), config.leaves_work(), max_frame);
    }
    let frame = if config.leaves_work() { frame.max(OFFLOAD_ROOM) } else { frame };
    match config.device {
        // The driver counts its own header of 12 bytes as part of the frame, although it goes into the headroom.
        DeviceSpec::Virtio(_) => (frame + 12).next_multiple_of(64),
        // The driver requires a buffer as large as a slot of its ring.
        DeviceSpec::AfPacket(_) => u16::try_from(packet_slot(config)).unwrap_or(u16::MAX / 64 * 64),
        // XDP takes no chunks of less than 2048 bytes (XDP_UMEM_MIN_CHUNK_SIZE).
        DeviceSpec::AfXdp(_) => frame.next_multiple_of(64).max(2048),
        _ => frame.next_multiple_of(64),
    }
}

/// The same on a NIC: NICs take buffers in steps of 1 KiB; their frames carry a check sequence. With offloads a buffer is as long as the
/// longest frame on the wire, and not longer: where the driver merges segments, it takes several.
fn nic_room(frame: u32, leaves_work: bool, max_frame: u32) -> u16 {
    let whole = (frame + 4).next_multiple_of(1 << 10);
    let longest = u32::from(OFFLOAD_ROOM).min(max_frame) / 1024 * 1024;
    let wanted = if leaves_work { whole.max(longest) } else { whole };
    // Fits: 15 KiB at most.
    wanted.min(NIC_ROOM_MAX) as u16
}

/// Bytes of a slot in a packet socket's ring: a power of two, so that slots fill blocks of whole pages; with 128 bytes
/// for the kernel's header in front of the frame (packet_mmap).
pub(super) fn packet_slot(config: &DpdkPortConfig) -> u32 {
    (u32::from(config.mtu) + u32::from(LINK_HEADER) + 128).next_power_of_two().max(2048)
}

/// Buffers of `room` bytes in the pool of a port with these receive and transmit rings, which may send payload from where it lies (`lends`).
pub(super) fn pool_size(config: &DpdkPortConfig, rings: (u16, u16), room: u16, lends: bool) -> u32 {
    let (receive, transmit) = (u32::from(rings.0), u32::from(rings.1));
    // As many frames may wait in the transmit ring as it has descriptors, each of as many buffers as a super-segment
    // takes: if the pool ran dry, the driver would not be called any more to give back sent buffers.
    let frame = if config.leaves_work() {
        u32::from(u16::MAX).div_ceil(u32::from(room.max(1))) + 1
    } else {
        1 + u32::from(lends)
    };
    let rings = if config.device.keeps_buffers() { receive + frame * transmit } else { 0 };
    // Received, staged for sending (two each when chained), and in the queue's cache (which holds half as many again).
    let in_hand = 4 * sys::BURST as u32 + CACHE * 3 / 2;
    let driver = if matches!(config.device, DeviceSpec::AfXdp(_)) { XDP_RING } else { 0 };
    u32::from(config.queues) * (rings + driver + in_hand)
}

/// What a pool takes, in MiB, rounded up.
pub(super) fn pool_mb(buffers: u32, room: u16) -> u32 {
    let bytes = u64::from(buffers) * (u64::from(room) + sys::BUFFER_OVERHEAD);
    u32::try_from(bytes.div_ceil(1 << 20)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
