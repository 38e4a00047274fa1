//! IPv6 headers (RFC 8200).

use core::net::Ipv6Addr;
use core::num::NonZeroU8;

use super::ip::Protocol;

/// Bytes of the fixed header.
pub const HEADER_LEN: usize = 40;

/// Largest payload of a packet; jumbograms (RFC 2675) are not supported.
pub const MAX_PAYLOAD: usize = u16::MAX as usize;

/// A fixed header as a value, without extension headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Where the packet comes from.
    pub source: Ipv6Addr,
    /// Where it goes.
    pub destination: Ipv6Addr,
    /// What follows the header.
    pub next_header: Protocol,
    /// Hops it may take.
    pub hop_limit: NonZeroU8,
    /// Differentiated services code point and ECN bits.
    pub traffic_class: u8,
    payload_len: u16,
}

impl Repr {
    /// A header for `payload_len` bytes, with 64 hops and traffic class 0. `None` above [`MAX_PAYLOAD`].
    pub fn new(
        source: Ipv6Addr,
        destination: Ipv6Addr,
        next_header: Protocol,
        payload_len: usize,
    ) -> Option<Self> {
        let payload_len = u16::try_from(payload_len).ok()?;
        let hop_limit = NonZeroU8::new(64)?;
        Some(Self { source, destination, next_header, hop_limit, traffic_class: 0, payload_len })
    }

    /// Bytes behind the header.
    pub fn payload_len(&self) -> usize {
        usize::from(self.payload_len)
    }

    /// The header as bytes. The flow label is zero (RFC 6437 section 3 allows that).
    pub fn emit(&self) -> [u8; HEADER_LEN] {
        let mut out = [0; HEADER_LEN];
        out[0] = 0x60 | self.traffic_class >> 4;
        out[1] = self.traffic_class << 4;
        out[4..6].copy_from_slice(&self.payload_len.to_be_bytes());
        out[6] = self.next_header.into();
        out[7] = self.hop_limit.get();
        out[8..24].copy_from_slice(&self.source.octets());
        out[24..].copy_from_slice(&self.destination.octets());
        out
    }
}
