//! A queue pair as a [`Device`].

use std::sync::Arc;

use super::DeviceSpec;
use super::port::Shared;
use super::sys::{BURST, Queue};
use crate::device::{Announce, Capabilities, Device, DeviceCounters, Frame, RxFrame, TxBatch, Wakes};
use crate::region::Extent;
use crate::time::Instant;

/// Payload of this many bytes and more is chained where the driver allows it, shorter payload is copied: about where
/// the two cost the same (see [`PayloadMode`](super::PayloadMode)).
const CHAIN_FROM: usize = 2560;

/// Lent payload of this many bytes and more stays where it lies, if the NIC reads memory there; shorter payload is copied, since a second buffer and
/// descriptor cost something, too. Not measured on a NIC.
const LEND_FROM: usize = 512;

/// Bytes of frames in the first burst of a batch, at least; every further one may have twice as many as the one before. The peer
/// then sees the first frames while the others are being copied, and short frames share a burst all the same.
pub(super) const FIRST_BURST: usize = 16 << 10;

/// The longest super-segment, as an IP packet: its length is a number of 16 bits.
const SUPER_SEGMENT: u32 = u16::MAX as u32;

/// One queue pair of a [`Port`](super::Port), driven by one thread at a time.
///
/// Nothing here waits: `transmit` takes as many frames as the ring has room for, `receive` those that are there.
#[derive(Debug)]
pub struct DpdkDevice {
    // Dropped before the port that it belongs to.
    queue: Queue,
    shared: Arc<Shared>,
    /// Whether super-segments pass depends on the client of this (vhost) port.
    asks_client: bool,
    /// A receive interrupt has come: they may be lost on the way to the process, although the driver reports no error.
    has_announced: bool,
    capabilities: Capabilities,
    counters: DeviceCounters,
    /// Frames that requested more than the port offers.
    refused: u64,
}

impl DpdkDevice {
    pub(super) fn new(shared: &Arc<Shared>, index: u16) -> Option<Self> {
        let offloads = shared.offloads.unwrap_or_default();
        let asks_client = offloads.split && matches!(shared.config.device, DeviceSpec::Vhost(_));
        let capabilities = Capabilities {
            tx_ipv4_checksum: shared.tx_ipv4_checksum,
            tx_tcp_checksum: offloads.tcp_checksum,
            tx_udp_checksum: offloads.udp_checksum,
            // vhost's client is not there yet.
            tso_max: if offloads.split && !asks_client { SUPER_SEGMENT } else { 0 },
            rx_checksum: offloads.rx_checksum,
            lro: offloads.merge,
            ..Capabilities::plain(shared.config.device.kind(), shared.config.mtu, BURST as u16)
        };
        let queue = shared.queue(index)?;
        let counters = DeviceCounters::default();
        let (shared, has_announced) = (shared.clone(), false);
        Some(Self { queue, shared, asks_client, has_announced, capabilities, counters, refused: 0 })
    }

    /// Queries whether the client takes super-segments.
    fn ask_client(&mut self) {
        let takes = self.queue.port().client_takes_super_segments();
        self.capabilities.tso_max = if takes { SUPER_SEGMENT } else { 0 };
    }

    /// Sends frames to a driver that has read them when it returns.
    #[inline]
    #[allow(unsafe_code)]
    fn send_chained(&mut self, frames: &[Frame]) -> usize {
        let chained = |frame: &Frame| single(frame).filter(|extent| extent.len() >= CHAIN_FROM);
        // SAFETY: such is the driver of a port that chains (`DeviceSpec::reads_any_address`).
        unsafe { self.queue.send_chained(frames, chained) }
    }

    /// Sends frames to a driver that keeps them in its ring, lent payload from where it lies if the device reads memory there.
    #[inline]
    #[allow(unsafe_code)]
    fn send_lent(&mut self, frames: &[Frame]) -> usize {
        let Some(started) = self.shared.started().filter(|_| self.shared.lends) else {
            return self.queue.send_copied(frames);
        };
        let Some(memory) = started.readable() else { return self.queue.send_copied(frames) };
        let lent = |frame: &Frame| {
            let is_readable = |extent: &Extent| {
                extent.len() >= LEND_FROM && memory.holds(extent.as_ptr().addr(), extent.len())
            };
            single(frame).filter(|extent| extent.is_lent() && is_readable(extent))
        };
        // SAFETY: it is lent, and mapped as long as `memory` is held at least; the end of its mapping is the end of the device's reading.
        unsafe { self.queue.send_chained(frames, lent) }
    }

    /// Whether the first frame is a super-segment that waits in vain: another client came, which takes none.
    #[cold]
    fn is_stuck(&mut self, batch: &TxBatch) -> bool {
        if batch.frames().first().is_none_or(|frame| frame.offload().segment_size == 0) {
            return false;
        }
        let up = self.queue.port().link_up();
        if up {
            self.ask_client();
        }
        up && self.capabilities.tso_max == 0
    }
}

// SAFETY: frames are copied into DPDK's buffers within `transmit`, or read by the driver in there, and stay in their batch until then; but lent extents in
// memory that was registered with the port, which a NIC reads later.
#[allow(unsafe_code)]
unsafe impl Device for DpdkDevice {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn mac(&self) -> [u8; 6] {
        self.shared.mac
    }

    /// May make a system call: call it now and then, not per burst.
    fn link_up(&mut self) -> bool {
        let up = self.shared.link_up();
        if self.asks_client && up {
            self.ask_client();
        }
        up
    }

    #[inline]
    fn transmit(&mut self, _now: Instant, batch: &mut TxBatch) -> usize {
        let (mut total, mut limit) = (0, FIRST_BURST);
        loop {
            let frames = burst(batch.frames(), limit);
            if frames.is_empty() {
                self.queue.flush();
                break;
            }
            limit *= 2;
            let taken = match (self.shared.offloads.is_some(), self.shared.chains) {
                (false, true) => self.send_chained(frames),
                (false, false) => self.send_lent(frames),
                (true, true) => self.queue.send_offloaded_chained(frames, CHAIN_FROM),
                (true, false) => self.queue.send_offloaded_copied(frames),
            };
            if taken == 0 {
                if self.asks_client && self.is_stuck(batch) {
                    batch.consume(1);
                    self.refused += 1;
                    continue;
                }
                break;
            }
            let bytes: usize = frames[..taken].iter().map(|f| f.len()).sum();
            self.counters.tx_bytes += bytes as u64;
            batch.consume(taken);
            total += taken;
        }
        self.counters.tx_frames += total as u64;
        total
    }

    #[inline]
    fn receive(&mut self, _now: Instant, budget: usize, sink: &mut impl FnMut(RxFrame<'_>)) -> usize {
        // Frames that were taken and found no room go out even if the stack has nothing more to send.
        self.queue.flush();
        let mut total = 0;
        while total < budget {
            let want = (budget - total).min(BURST);
            let (frames, bytes, more) = self.queue.receive(want, sink);
            total += frames;
            self.counters.rx_bytes += bytes as u64;
            if !more {
                break;
            }
        }
        self.counters.rx_frames += total as u64;
        total
    }

    fn arm(&mut self, announce: &mut Announce<'_>) -> Wakes {
        let Some(descriptor) = self.queue.arm() else { return Wakes::Never };
        announce(descriptor);
        // Nothing announces room in the ring.
        if self.queue.has_staged() || !self.has_announced { Wakes::Partly } else { Wakes::Always }
    }

    fn disarm(&mut self) {
        self.has_announced = self.has_announced || self.queue.has_announced();
        self.queue.disarm();
    }

    /// Reads the driver's loss counters: not for the hot path. Losses of a port of several queues are counted with each
    /// of them.
    fn counters(&self) -> DeviceCounters {
        let dropped = self.queue.oversized + self.queue.damaged + self.refused + self.queue.port().missed();
        DeviceCounters { dropped, tx_uncopied: self.queue.uncopied, ..self.counters }
    }
}

/// The payload of a frame that has it in one piece.
#[inline]
fn single(frame: &Frame) -> Option<Extent> {
    match frame.extents() {
        [extent] => Some(*extent),
        _ => None,
    }
}

/// The frames of the next burst: as many as it takes to reach `limit` bytes, and no more than [`BURST`].
#[inline]
pub(super) fn burst(frames: &[Frame], limit: usize) -> &[Frame] {
    let mut bytes = 0;
    let fitting = frames.iter().take(BURST).take_while(|frame| {
        let fits = bytes < limit;
        bytes += frame.len();
        fits
    });
    &frames[..fitting.count()]
}
