//! The datagram's CRC32C (spec.md section 4.5), nested so that a payload's part is computed once for all resends.

use core::net::IpAddr;

use crate::crc::{crc32c, crc32c_between};
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

/// The CRC of the datagram of these header and body, from this one of the addresses and that of the payload.
#[inline]
fn of(
    fixed: &[u8; HEADER_LEN],
    body: &[u8],
    addresses: u32,
    (src_port, dst_port): (u16, u16),
    payload: u32,
) -> u32 {
    //= rud/spec.md section 4.5
    // The seed stands in the CRC field, the payload's CRC behind the body.
    let seed = addresses ^ (u32::from(src_port) << 16 | u32::from(dst_port));
    let behind_field = fixed.last_chunk::<{ HEADER_LEN - FIELD }>().unwrap_or(&[0; HEADER_LEN - FIELD]);
    crc32c_between(seed.to_be_bytes(), behind_field, body, payload.to_be_bytes())
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
    let crc = of(fixed, body, addresses, ports, payload_crc);
    fixed[..FIELD].copy_from_slice(&crc.to_be_bytes());
}

/// Whether the CRC of `datagram`, with a body of `body_len` bytes, is right.
#[inline(always)]
pub(super) fn verify(datagram: &[u8], body_len: u8, addresses: u32, ports: (u16, u16)) -> bool {
    let Some((fixed, rest)) = datagram.split_first_chunk::<HEADER_LEN>() else { return false };
    let Some((body, payload)) = rest.split_at_checked(body_len.into()) else { return false };
    let crc = of(fixed, body, addresses, ports, crc32c(payload));
    fixed.first_chunk::<FIELD>() == Some(&crc.to_be_bytes())
}
