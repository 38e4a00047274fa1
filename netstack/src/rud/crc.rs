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

/// The CRC of the datagram that starts with `head`, its header and body, from this one of the addresses and that of the
/// payload.
#[inline]
fn of(head: &[u8], addresses: u32, src_port: u16, dst_port: u16, payload: u32) -> u32 {
    //= rud/spec.md section 4.5
    // The seed stands in the CRC field, the payload's CRC behind the body.
    let seed = addresses ^ (u32::from(src_port) << 16 | u32::from(dst_port));
    let behind_field = head.get(FIELD..).unwrap_or_default();
    crc32c_between(seed.to_be_bytes(), behind_field, payload.to_be_bytes())
}

/// Sets the CRC in `head`, the header and body of a datagram.
#[inline]
pub(super) fn seal(head: &mut [u8], addresses: u32, src_port: u16, dst_port: u16, payload_crc: u32) {
    let crc = of(head, addresses, src_port, dst_port, payload_crc);
    if let Some(field) = head.first_chunk_mut::<FIELD>() {
        *field = crc.to_be_bytes();
    }
}

/// Whether the CRC of `datagram`, whose payload starts at `offset`, is right.
#[inline]
pub(super) fn verify(datagram: &[u8], offset: usize, addresses: u32, src_port: u16, dst_port: u16) -> bool {
    let (head, payload) = datagram.split_at(offset.min(datagram.len()));
    let crc = of(head, addresses, src_port, dst_port, crc32c(payload));
    head.first_chunk::<FIELD>() == Some(&crc.to_be_bytes())
}
