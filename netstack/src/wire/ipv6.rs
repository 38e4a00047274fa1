//! IPv6 headers (RFC 8200): the fixed header, and the chain of extension headers behind it.

mod extensions;

use core::net::Ipv6Addr;
use core::num::NonZeroU8;

use super::ip::Protocol;
use super::{Malformed, ip};
pub(crate) use extensions::FRAGMENT;
pub use extensions::{Chain, Fragment, Problem, walk};

/// Bytes of the fixed header.
pub const HEADER_LEN: usize = 40;

/// Bytes of a fragment header.
pub const FRAGMENT_LEN: usize = 8;

/// The least MTU of a link (RFC 8200 section 5).
pub const MIN_MTU: u16 = 1280;

/// Largest payload of a packet; jumbograms (RFC 2675) are not supported.
pub const MAX_PAYLOAD: usize = u16::MAX as usize;

/// A view of an IPv6 packet whose version and length have been checked.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    header: &'a [u8; HEADER_LEN],
    payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// A view of `bytes`, trimmed to the packet's own length (Ethernet pads short frames).
    ///
    /// # Errors
    /// [`Malformed::Truncated`] if bytes are missing, [`Malformed::Unsupported`] if it is not version 6.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<Self, Malformed> {
        Self::with_rest(bytes, 0)
    }

    /// A view of a packet of which `bytes` are only the beginning, with `rest_len` more elsewhere.
    ///
    /// # Errors
    /// As [`Packet::new`]; [`Malformed::Length`] if there is a rest and it does not end where the packet does.
    #[inline]
    pub fn with_rest(bytes: &'a [u8], rest_len: usize) -> Result<Self, Malformed> {
        let (header, rest) = ip::split_header::<HEADER_LEN>(bytes, 6)?;
        let len = usize::from(u16::from_be_bytes([header[4], header[5]]));
        Ok(Self { header, payload: ip::trim(rest, len, rest_len)? })
    }

    /// A view of how a packet began, as an ICMP error quotes it: the payload is as much as is there.
    ///
    /// # Errors
    /// [`Malformed::Truncated`] without a whole header, [`Malformed::Unsupported`] if it is not version 6.
    pub fn quoted(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (header, payload) = ip::split_header::<HEADER_LEN>(bytes, 6)?;
        Ok(Self { header, payload })
    }

    /// The source address.
    #[inline]
    pub fn source(&self) -> Ipv6Addr {
        address(self.header, 8)
    }

    /// The destination address.
    #[inline]
    pub fn destination(&self) -> Ipv6Addr {
        address(self.header, 24)
    }

    /// The type of the bytes behind the fixed header: an extension header or the payload's protocol.
    #[inline]
    pub fn next_header(&self) -> u8 {
        self.header[6]
    }

    /// Hops it may still take.
    #[inline]
    pub fn hop_limit(&self) -> u8 {
        self.header[7]
    }

    /// Differentiated services code point and ECN bits.
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        self.header[0] << 4 | self.header[1] >> 4
    }

    /// The bytes behind the fixed header.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

#[inline]
fn address(header: &[u8; HEADER_LEN], at: usize) -> Ipv6Addr {
    Ipv6Addr::from(core::array::from_fn(|i| header[at + i]))
}

/// A fixed header as a value, without extension headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The source address.
    pub source: Ipv6Addr,
    /// The destination address.
    pub destination: Ipv6Addr,
    /// The protocol of the bytes behind the header.
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

    /// The header of `packet`.
    ///
    /// # Errors
    /// [`Malformed::Unsupported`] if its hop limit is zero, [`Malformed::Length`] if its payload is not all there.
    pub fn parse(packet: &Packet<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            source: packet.source(),
            destination: packet.destination(),
            next_header: packet.next_header().into(),
            hop_limit: NonZeroU8::new(packet.hop_limit()).ok_or(Malformed::Unsupported)?,
            traffic_class: packet.traffic_class(),
            payload_len: u16::try_from(packet.payload().len()).map_err(|_| Malformed::Length)?,
        })
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

#[cfg(test)]
mod tests;
