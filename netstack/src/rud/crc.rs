//! The datagram's CRC32C (spec.md section 4.4), nested so that a payload's part is computed once for all resends.

use core::net::IpAddr;

use crate::crc::crc32c;
use crate::wire::rud::{HEADER_LEN, MAX_BODY};

/// Room for the fixed header, the body, and the payload's CRC behind them while the CRC is computed.
pub(super) const SCRATCH: usize = HEADER_LEN + MAX_BODY + 4;

/// What stands for the addresses: constant over a session's direction.
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

/// Sets the CRC of the header and body in `scratch[..len]`.
#[inline]
pub(super) fn seal(
    scratch: &mut [u8; SCRATCH],
    len: usize,
    addresses: u32,
    src_port: u16,
    dst_port: u16,
    payload_crc: u32,
) {
    //= rud/spec.md section 4.4
    // The seed stands in the CRC field, the payload's CRC behind the body.
    scratch[..4].copy_from_slice(&seed(addresses, src_port, dst_port).to_be_bytes());
    scratch[len..len + 4].copy_from_slice(&payload_crc.to_be_bytes());
    let crc = crc32c(&scratch[..len + 4]);
    scratch[..4].copy_from_slice(&crc.to_be_bytes());
}

/// Whether the CRC of `datagram`, whose payload starts at `offset` (at most header and body), is right.
#[inline]
pub(super) fn verify(datagram: &[u8], offset: usize, addresses: u32, src_port: u16, dst_port: u16) -> bool {
    let mut scratch = [0; SCRATCH];
    match datagram.first_chunk::<{ HEADER_LEN + MAX_BODY }>() {
        Some(all) => scratch[..HEADER_LEN + MAX_BODY].copy_from_slice(all),
        None => scratch[..datagram.len()].copy_from_slice(datagram),
    }
    let stated = [scratch[0], scratch[1], scratch[2], scratch[3]];
    seal(&mut scratch, offset, addresses, src_port, dst_port, crc32c(&datagram[offset..]));
    scratch[..4] == stated
}
