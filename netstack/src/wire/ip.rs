//! Common parts of IPv4 and IPv6: protocol numbers, ECN, and a header of either version as bytes.

use core::net::IpAddr;

use super::{Malformed, ipv4, ipv6};

/// The protocol of an IP packet's payload (the IANA registry "Protocol Numbers", shared by both versions).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// ICMP for IPv4 (1).
    Icmp,
    /// TCP (6).
    Tcp,
    /// UDP (17).
    Udp,
    /// ICMP for IPv6 (58).
    Icmpv6,
    /// Any other number.
    Other(u8),
}

super::numbered!(Protocol: u8, 1 => Icmp, 6 => Tcp, 17 => Udp, 58 => Icmpv6);

/// Bytes of an IP header in front of packets to `remote`, without options or extension headers.
#[inline]
pub(crate) const fn header_len(remote: &IpAddr) -> usize {
    match remote {
        IpAddr::V4(_) => ipv4::HEADER_LEN,
        IpAddr::V6(_) => ipv6::HEADER_LEN,
    }
}

/// An address's 16 bytes, IPv4 as mapped (RFC 4291 section 2.5.5.2).
#[inline]
pub(crate) fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// The fixed header of a packet of `version`, and the bytes that follow it.
#[inline]
pub(super) fn split_header<const LEN: usize>(
    bytes: &[u8],
    version: u8,
) -> Result<(&[u8; LEN], &[u8]), Malformed> {
    let (header, rest) = bytes.split_first_chunk::<LEN>().ok_or(Malformed::Truncated)?;
    if header[0] >> 4 == version { Ok((header, rest)) } else { Err(Malformed::Unsupported) }
}

/// The `len` bytes behind a fixed header, of which `rest_len` lie elsewhere and the others at the front of `bytes`.
#[inline]
pub(super) fn trim(bytes: &[u8], len: usize, rest_len: usize) -> Result<&[u8], Malformed> {
    match rest_len {
        0 => bytes.get(..len).ok_or(Malformed::Truncated),
        _ if bytes.len().checked_add(rest_len) == Some(len) => Ok(bytes),
        _ => Err(Malformed::Length),
    }
}

/// Explicit congestion notification: the two low bits of the traffic class (RFC 3168 section 5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Ecn {
    /// The transport does not take part.
    #[default]
    NotEct = 0,
    /// ECN-capable, codepoint ECT(1).
    Ect1 = 1,
    /// ECN-capable, codepoint ECT(0).
    Ect0 = 2,
    /// A router met congestion.
    Ce = 3,
}

impl Ecn {
    /// The codepoint within a traffic class byte.
    #[inline]
    pub const fn of(traffic_class: u8) -> Self {
        match traffic_class & 3 {
            0 => Self::NotEct,
            1 => Self::Ect1,
            2 => Self::Ect0,
            _ => Self::Ce,
        }
    }

    /// The codepoint as a number from 0 to 3.
    #[inline]
    pub const fn bits(self) -> u8 {
        self as u8
    }
}

/// An IPv4 header (20 bytes) or IPv6 header (40 bytes), complete, without options or extension headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpHeader {
    bytes: [u8; ipv6::HEADER_LEN],
    len: u8,
}

impl IpHeader {
    /// A header for `payload_len` bytes with 64 hops; IPv4 has Don't Fragment set and its checksum filled in. `None`
    /// if the addresses are not of one version, or the packet would be too long.
    pub fn new(
        source: IpAddr,
        destination: IpAddr,
        protocol: Protocol,
        payload_len: usize,
        ecn: Ecn,
    ) -> Option<Self> {
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let mut repr = ipv4::Repr::new(source, destination, protocol, payload_len)?;
                repr.traffic_class = ecn.bits();
                Some(Self::from_v4(&repr.emit()))
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let mut repr = ipv6::Repr::new(source, destination, protocol, payload_len)?;
                repr.traffic_class = ecn.bits();
                Some(Self { bytes: repr.emit(), len: ipv6::HEADER_LEN as u8 })
            }
            _ => None,
        }
    }

    /// An IPv4 header that is ready.
    fn from_v4(header: &[u8; ipv4::HEADER_LEN]) -> Self {
        let mut bytes = [0; ipv6::HEADER_LEN];
        bytes[..ipv4::HEADER_LEN].copy_from_slice(header);
        Self { bytes, len: ipv4::HEADER_LEN as u8 }
    }

    /// The header as it goes on the wire.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        // `len` is one of two constants, both within the array.
        self.bytes.get(..usize::from(self.len)).unwrap_or(&self.bytes)
    }

    /// Bytes of the header: 20 or 40.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "a header is never empty")]
    pub fn len(&self) -> usize {
        usize::from(self.len)
    }
}
