//! Frames that leave work to the device, and that work in software on a port whose device cannot do it.

use super::port::Port;
use crate::device::{Capabilities, Device, Frame, Offload, segment};
use crate::region::Extent;
use crate::wire::checksum::Sum;

#[cfg(test)]
mod tests;

/// The checksum of an IP packet of up to so many bytes is filled in here even if the device would do it: so short a sum
/// takes less time than the request and the peer driver's search for a checksum that was left out.
const SUM_UP_TO: usize = 256;

/// The part of a frame's offload that is left to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    /// All of it.
    AsIs,
    /// Checksums; splitting is done here.
    Checksums,
    /// Nothing.
    Nothing,
}

impl Plan {
    #[inline]
    fn of(frame: &Frame, capabilities: &Capabilities) -> Self {
        let offload = frame.offload();
        if offload.is_none() {
            return Self::AsIs;
        }
        let ip_len = frame.len() - usize::from(offload.l3_offset).min(frame.len());
        let whole = Offload { segment_size: 0, ..offload };
        if capabilities.can(offload, ip_len) {
            Self::AsIs
        } else if capabilities.can(whole, ip_len) {
            Self::Checksums
        } else {
            Self::Nothing
        }
    }
}

impl<D: Device> Port<D> {
    /// Whether [`Port::push_offloaded`] would take the frame.
    #[inline]
    pub(super) fn room_for(&self, frame: &Frame) -> bool {
        let frames = match Plan::of(frame, self.device.capabilities()) {
            Plan::AsIs => 1,
            Plan::Checksums | Plan::Nothing => segment::segment_count(frame),
        };
        frames <= self.iface.room()
    }

    /// The longest super-segment, as an IP packet in bytes, that this port takes when nothing else waits for it, if its
    /// segments are IP packets of `segment_ip_len` bytes. A super-segment that the device does not split may fill half
    /// of the batch, so that others find room too.
    pub(super) fn super_segment_max(&self, segment_ip_len: usize) -> usize {
        let longest = match self.device.capabilities().tso_max as usize {
            0 => (self.iface.capacity() / 2).max(1).saturating_mul(segment_ip_len),
            longest => longest,
        };
        longest.min(usize::from(u16::MAX))
    }

    /// The number of segments that a super-segment may be cut into: any if the device splits it, half of the batch
    /// else.
    pub(super) fn segments_max(&self) -> u32 {
        match self.device.capabilities().tso_max {
            0 => u32::try_from(self.iface.capacity() / 2).unwrap_or(u32::MAX).max(1),
            _ => u32::MAX,
        }
    }

    /// The same as [`Port::push_offloaded`] with the frame whose header of `header_len` bytes was written to
    /// [`next_header`](super::port::Interface::next_header), and the payload, `ip_len` bytes from the IP header on; `pseudo` is the sum over
    /// its pseudo header. `None` if they make none.
    #[inline]
    pub(super) fn push_written_offloaded(
        &mut self,
        header_len: usize,
        payload: &[Extent],
        offload: Offload,
        ip_len: usize,
        pseudo: Sum,
    ) -> Option<bool> {
        let single = offload.segment_size == 0;
        if !(single && ip_len <= SUM_UP_TO) && self.device.capabilities().can(offload, ip_len) {
            return self.iface.push_written(header_len, payload, offload).then_some(true);
        }
        if single {
            return self.iface.push_written_summed(header_len, payload, offload, pseudo).then_some(true);
        }
        let frame = self.iface.written(header_len, payload, offload)?;
        Some(self.push_offloaded(frame))
    }

    /// Puts a frame into the batch, as it is if the device does its offload; else with its checksum filled in, or cut
    /// into its segments. All of them or none: false if there is no room.
    #[inline]
    pub(super) fn push_offloaded(&mut self, frame: Frame) -> bool {
        let plan = Plan::of(&frame, self.device.capabilities());
        if plan == Plan::AsIs {
            return self.iface.room() > 0 && self.iface.push(frame);
        }
        if !self.room_for(&frame) {
            return false;
        }
        for segment in segment::segments(&frame) {
            let segment = if plan == Plan::Nothing { segment::fill_checksum(segment) } else { Some(segment) };
            // A segment that cannot be made into a frame could not be sent: it is lost, as on a wire.
            segment.map(|segment| self.iface.push(segment));
        }
        true
    }
}
