//! What a frame leaves to the other side, as the header in front of it: `struct virtio_net_hdr` (Virtio 1.2 section 5.1.6),
//! little endian and without the number of buffers.

use crate::device::segment;
use crate::device::{Frame, RxChecksum, Transport};

/// Bytes of the header.
pub(super) const LEN: usize = 10;

/// The checksum is still to be filled in.
const NEEDS_CHECKSUM: u8 = 1;
/// The checksum was checked.
const CHECKED: u8 = 2;
/// A super-segment of TCP over IPv4.
const TCP4: u8 = 1;
/// A super-segment of TCP over IPv6.
const TCP6: u8 = 4;

/// The header in front of `frame`. The frame's checksum field gets the sum over its pseudo header, as the receiver adds only
/// the rest. `None` if the frame does not match its offload.
pub(super) fn describe(frame: &mut Frame) -> Option<[u8; LEN]> {
    let mut header = [0; LEN];
    let offload = frame.offload();
    let checksum_at: usize = match offload.transport {
        Transport::None => return Some(header),
        Transport::Tcp => 16,
        Transport::Udp => 6,
    };
    let (l3, l4) = (usize::from(offload.l3_offset), usize::from(offload.l4_offset));
    let sum = segment::pseudo_header(frame, offload, frame.len().checked_sub(l4)?)?;
    let is_ipv6 = frame.header().get(l3)? >> 4 == 6;
    let headers_len = frame.header().len() as u16;
    // The sum itself, not its complement.
    let field = frame.header_mut().get_mut(l4 + checksum_at..)?.first_chunk_mut::<2>()?;
    *field = (!sum.finish()).to_be_bytes();
    header[0] = NEEDS_CHECKSUM;
    if offload.segment_size > 0 {
        header[1] = if is_ipv6 { TCP6 } else { TCP4 };
        header[2..4].copy_from_slice(&headers_len.to_le_bytes());
        header[4..6].copy_from_slice(&offload.segment_size.to_le_bytes());
    }
    header[6..8].copy_from_slice(&(l4 as u16).to_le_bytes());
    header[8..].copy_from_slice(&(checksum_at as u16).to_le_bytes());
    Some(header)
}

/// What the header in front of a received frame says: the result for its checksum, and the size of the segments that it is
/// made of, 0 if it is one.
pub(super) fn read(header: [u8; LEN]) -> (RxChecksum, u16) {
    let [flags, kind, _, _, size @ ..] = header;
    let checksum = match flags & (NEEDS_CHECKSUM | CHECKED) {
        0 => RxChecksum::Unknown,
        _ => RxChecksum::Verified,
    };
    let [a, b, ..] = size;
    (checksum, if kind == 0 { 0 } else { u16::from_le_bytes([a, b]) })
}
