//! The datagram's CRC32C (spec.md section 4.5), nested so that a payload's part is computed once for all resends.

use core::net::IpAddr;

use crate::crc::crc32c;
use crate::wire::rud::{HEADER_LEN, MAX_BODY};

/// Room for a datagram's head, which is the fixed header and the body, and behind it for the payload's CRC while the head's is
/// computed.
pub(super) const HEAD_ROOM: usize = HEADER_LEN + MAX_BODY + 4;

/// The CRC32C of the addresses: constant over a session's direction.
pub(super) fn addresses(src: IpAddr, dst: IpAddr) -> u32 {
    let octets = |ip| match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(&octets(src));
    bytes[16..].copy_from_slice(&octets(dst));
    crc32c(&bytes)
}

/// The value that stands in the CRC field while the CRC is computed.
#[inline]
fn seed(addresses: u32, src_port: u16, dst_port: u16) -> u32 {
    addresses ^ (u32::from(src_port) << 16 | u32::from(dst_port))
}

/// Sets the CRC of the header and body in `head[..len]`.
#[inline]
pub(super) fn seal(
    head: &mut [u8; HEAD_ROOM],
    len: usize,
    addresses: u32,
    src_port: u16,
    dst_port: u16,
    payload_crc: u32,
) {
    //= rud/spec.md section 4.5
    // The seed stands in the CRC field, the payload's CRC behind the body.
    head[..4].copy_from_slice(&seed(addresses, src_port, dst_port).to_be_bytes());
    head[len..len + 4].copy_from_slice(&payload_crc.to_be_bytes());
    let crc = crc32c(&head[..len + 4]);
    head[..4].copy_from_slice(&crc.to_be_bytes());
}

/// Whether the CRC of `datagram`, whose payload starts at `offset` (at most header and body), is right.
#[inline]
pub(super) fn verify(datagram: &[u8], offset: usize, addresses: u32, src_port: u16, dst_port: u16) -> bool {
    let mut head = [0; HEAD_ROOM];
    match datagram.first_chunk::<{ HEADER_LEN + MAX_BODY }>() {
        Some(all) => head[..HEADER_LEN + MAX_BODY].copy_from_slice(all),
        None => head[..datagram.len()].copy_from_slice(datagram),
    }
    let stated = [head[0], head[1], head[2], head[3]];
    seal(&mut head, offset, addresses, src_port, dst_port, crc32c(&datagram[offset..]));
    head[..4] == stated
}
