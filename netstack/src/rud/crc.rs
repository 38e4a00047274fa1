//! The datagram's CRC32C (spec.md section 4.5), nested so that a payload's part is computed once for all resends.

use core::net::IpAddr;

use crate::crc::{crc32c, crc32c_between, crc32c_nested};
use crate::wire::ip::octets;
use crate::wire::rud::{HEADER_LEN, MAX_BODY};

/// Room for a datagram's head, which is the fixed header and the body.
pub(super) const HEAD_ROOM: usize = HEADER_LEN + MAX_BODY;

/// Length of the CRC field, the header's first.
const FIELD: usize = 4;

/// The CRC32C of the addresses: constant over a session's direction.
pub(super) fn addresses(src: IpAddr, dst: IpAddr) -> u32 {
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(&octets(src));
    bytes[16..].copy_from_slice(&octets(dst));
    crc32c(&bytes)
}

/// Seed of a datagram's CRC, and what stands behind the field.
#[inline]
fn parts(
    fixed: &[u8; HEADER_LEN],
    addresses: u32,
    (src_port, dst_port): (u16, u16),
) -> ([u8; FIELD], &[u8; HEADER_LEN - FIELD]) {
    //= rud/spec.md section 4.5, RUD-15
    // The seed stands in the CRC field, the payload's CRC behind the body.
    let seed = addresses ^ (u32::from(src_port) << 16 | u32::from(dst_port));
    let behind_field = fixed.last_chunk::<{ HEADER_LEN - FIELD }>().unwrap_or(&[0; HEADER_LEN - FIELD]);
    (seed.to_be_bytes(), behind_field)
}

/// Sets the CRC in the header of a datagram with this body, from a source to a destination port.
#[inline]
pub(super) fn seal(
    fixed: &mut [u8; HEADER_LEN],
    body: &[u8],
    addresses: u32,
    ports: (u16, u16),
    payload_crc: u32,
) {
    let (seed, behind_field) = parts(fixed, addresses, ports);
    let crc = crc32c_between(seed, behind_field, body, payload_crc.to_be_bytes());
    fixed[..FIELD].copy_from_slice(&crc.to_be_bytes());
}

/// Whether the CRC of `datagram`, with a body of `body_len` bytes, is right.
#[inline(always)]
pub(super) fn verify(datagram: &[u8], body_len: u8, addresses: u32, ports: (u16, u16)) -> bool {
    let Some((fixed, rest)) = datagram.split_first_chunk::<HEADER_LEN>() else { return false };
    let Some((body, payload)) = rest.split_at_checked(body_len.into()) else { return false };
    let (seed, behind_field) = parts(fixed, addresses, ports);
    let crc = crc32c_nested(seed, behind_field, body, payload);
    fixed.first_chunk::<FIELD>() == Some(&crc.to_be_bytes())
}
