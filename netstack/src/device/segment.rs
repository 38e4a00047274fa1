//! Offloads in software: a super-segment of TCP cut into the segments that a device would have made of it, and transport
//! checksums.
//!
//! The headers of a cut are copies of the super-segment's, except for IP's length and checksum, IPv4's identification,
//! TCP's sequence number and flags. Payload is not copied; a segment refers to parts of the extents.

use super::{Frame, MAX_EXTENTS, Offload, Transport};
use crate::region::Extent;
use crate::wire::checksum::{self, Sum};
use crate::wire::ip::Protocol;
use crate::wire::tcp::Flags;

#[cfg(test)]
mod tests;

/// Offset of the checksum in TCP's header.
const TCP_CHECKSUM: usize = 16;
/// Offset of the checksum in UDP's header.
const UDP_CHECKSUM: usize = 6;
/// Offset of the flags in TCP's header.
const TCP_FLAGS: usize = 13;

/// The number of frames that a frame is cut into: 1 unless it is to be split and has more payload than a segment holds.
#[inline]
pub(crate) fn segment_count(frame: &Frame) -> usize {
    match frame.offload().segment_size {
        0 => 1,
        size => payload_len(frame).div_ceil(usize::from(size)).max(1),
    }
}

/// Bytes in the extents: all of a super-segment's payload.
fn payload_len(frame: &Frame) -> usize {
    frame.len() - frame.header().len()
}

/// Cuts a super-segment into segments in order, each with its checksum still to be filled in. A frame that is not to be
/// split is its only segment.
pub(crate) fn segments(frame: &Frame) -> impl Iterator<Item = Frame> + '_ {
    let size = match frame.offload().segment_size {
        0 => payload_len(frame),
        size => usize::from(size),
    };
    let last = segment_count(frame) - 1;
    (0..=last).filter_map(move |index| cut(frame, index, size, index == last))
}

/// Segment number `index`, of `size` bytes of payload unless it is the last.
fn cut(frame: &Frame, index: usize, size: usize, last: bool) -> Option<Frame> {
    let offload = frame.offload();
    if offload.segment_size == 0 {
        return Some(*frame);
    }
    let offset = index * size;
    let len = size.min(payload_len(frame).checked_sub(offset)?);
    let (extents, count) = slice(frame.extents(), offset, len)?;
    let whole = Offload { segment_size: 0, ..offload };
    let mut segment = Frame::with_extents(&[frame.header()], extents.get(..count)?, whole)?;
    let (l3, l4) = (usize::from(offload.l3_offset), usize::from(offload.l4_offset));
    let ip_len = segment.len() - l3;
    let header = segment.header_mut();
    fix_ip(header.get_mut(l3..l4)?, ip_len, index)?;
    let tcp = header.get_mut(l4..)?;
    let sequence = tcp.get_mut(4..)?.first_chunk_mut::<4>()?;
    *sequence = u32::from_be_bytes(*sequence).wrapping_add(offset as u32).to_be_bytes();
    let flags = tcp.get_mut(TCP_FLAGS)?;
    if !last {
        *flags &= !(Flags::FIN.0 | Flags::PSH.0);
    }
    if index > 0 {
        //= RFC 3168 section 6.1.2: one reduction of the window is reported once, with the first new data.
        *flags &= !Flags::CWR.0;
    }
    Some(segment)
}

/// Sets the length, and for IPv4 identification and checksum, of the IP header `header` (extension headers included) of
/// segment number `index`.
fn fix_ip(header: &mut [u8], ip_len: usize, index: usize) -> Option<()> {
    let ip_len = u16::try_from(ip_len).ok()?;
    if header.first()? >> 4 == 6 {
        //= RFC 8200 section 3: the payload's length counts what follows the fixed header, extension headers too.
        header.get_mut(4..6)?.copy_from_slice(&ip_len.checked_sub(40)?.to_be_bytes());
        return Some(());
    }
    header.get_mut(2..4)?.copy_from_slice(&ip_len.to_be_bytes());
    //= RFC 6864 section 4.1: with Don't Fragment any identification will do; without it numbers in a row differ.
    let id = header.get_mut(4..6)?.first_chunk_mut::<2>()?;
    *id = u16::from_be_bytes(*id).wrapping_add(index as u16).to_be_bytes();
    header.get_mut(10..12)?.fill(0);
    let sum = checksum::checksum(header);
    header.get_mut(10..12)?.copy_from_slice(&sum.to_be_bytes());
    Some(())
}

/// `len` bytes from `offset` of the extents one after the other.
fn slice(extents: &[Extent], mut offset: usize, mut len: usize) -> Option<([Extent; MAX_EXTENTS], usize)> {
    let mut out = [Extent::EMPTY; MAX_EXTENTS];
    let mut count = 0;
    for extent in extents {
        if offset >= extent.len() {
            offset -= extent.len();
            continue;
        }
        if len == 0 {
            break;
        }
        let part = extent.slice(offset, len.min(extent.len() - offset))?;
        (offset, len) = (0, len - part.len());
        *out.get_mut(count)? = part;
        count += 1;
    }
    (len == 0).then_some((out, count))
}

/// Fills in the transport checksum that the frame leaves out; afterwards it leaves nothing to the device. A super-segment
/// is cut before.
pub(crate) fn fill_checksum(mut frame: Frame) -> Option<Frame> {
    let offload = frame.offload();
    add_checksum(&mut frame, offload)?;
    frame.resolve();
    Some(frame)
}

/// Fills in the transport checksum that `offload` would leave to the device, in the frame's place.
fn add_checksum(frame: &mut Frame, offload: Offload) -> Option<()> {
    if offload.is_none() {
        return Some(());
    }
    let len = frame.len().checked_sub(usize::from(offload.l4_offset))?;
    let pseudo = pseudo_header(frame, offload, len)?;
    add_checksum_from(pseudo, frame, offload)
}

/// The same from the sum over the frame's pseudo header on.
#[inline]
pub(crate) fn add_checksum_from(pseudo: Sum, frame: &mut Frame, offload: Offload) -> Option<()> {
    let (place, zero) = match offload.transport {
        Transport::None => return Some(()),
        Transport::Tcp => (TCP_CHECKSUM, 0),
        //= RFC 768: a sum that comes out as zero is sent as all ones, as zero says that there is none.
        Transport::Udp => (UDP_CHECKSUM, 0xffff),
    };
    let l4 = usize::from(offload.l4_offset);
    let mut sum = pseudo.over(frame.header().get(l4..)?);
    for extent in frame.extents() {
        sum = sum.over(extent.as_bytes());
    }
    let sum = match sum.finish() {
        0 => zero,
        sum => sum,
    };
    frame.header_mut().get_mut(l4 + place..)?.first_chunk_mut::<2>()?.copy_from_slice(&sum.to_be_bytes());
    Some(())
}

/// The sum over the pseudo header of a frame that leaves out its checksum, with `len` bytes from the transport header on.
/// `None` if the frame does not match `offload`.
pub(crate) fn pseudo_header(frame: &Frame, offload: Offload, len: usize) -> Option<Sum> {
    let ip = frame.header().get(usize::from(offload.l3_offset)..)?;
    let addresses = match ip.first()? >> 4 {
        4 => Sum::new().over(ip.get(12..)?.first_chunk::<8>()?),
        6 => Sum::new().over(ip.get(8..)?.first_chunk::<32>()?),
        _ => return None,
    };
    let protocol = match offload.transport {
        Transport::None => return None,
        Transport::Tcp => Protocol::Tcp,
        Transport::Udp => Protocol::Udp,
    };
    //= RFC 9293 section 3.1, RFC 8200 section 8.1: addresses, protocol and length stand before header and payload.
    Some(addresses.add_u16(u8::from(protocol).into()).add_u16(u16::try_from(len).ok()?))
}
