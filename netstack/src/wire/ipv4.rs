//! IPv4 headers (RFC 791). Options are skipped on receive and never sent.

use core::net::Ipv4Addr;
use core::num::NonZeroU8;

pub use super::ip::Protocol;
use super::{Malformed, checksum, ip};

/// Bytes of a header without options: all that this stack sends.
pub const HEADER_LEN: usize = 20;

/// Largest payload of a packet without options.
pub const MAX_PAYLOAD: usize = u16::MAX as usize - HEADER_LEN;

/// A view of an IPv4 packet whose version and lengths have been checked; its checksum has not.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    header: &'a [u8; HEADER_LEN],
    options: &'a [u8],
    payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// A view of `bytes`, trimmed to the packet's own length (Ethernet pads short frames).
    ///
    /// # Errors
    /// [`Malformed::Truncated`] if bytes are missing, [`Malformed::Unsupported`] if it is not version 4, and
    /// [`Malformed::Length`] if the header is shorter than 20 bytes or longer than the packet.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<Self, Malformed> {
        Self::with_rest(bytes, 0)
    }

    /// A view of a packet of which `bytes` are only the beginning, with `rest_len` more elsewhere: its header is checked
    /// as by [`Packet::new`], and [`Packet::payload`] is that part of the payload that is here.
    ///
    /// # Errors
    /// As [`Packet::new`]; [`Malformed::Length`] too if there is a rest and it does not end where the packet does.
    #[inline]
    pub fn with_rest(bytes: &'a [u8], rest_len: usize) -> Result<Self, Malformed> {
        //= RFC 1122 section 3.2.1.1: a datagram whose version is not 4 is silently discarded.
        let (header, rest) = ip::split_header::<HEADER_LEN>(bytes, 4)?;
        let header_len = usize::from(header[0] & 0x0f) * 4;
        let total_len = usize::from(u16::from_be_bytes([header[2], header[3]]));
        let (Some(options_len), Some(behind)) =
            (header_len.checked_sub(HEADER_LEN), total_len.checked_sub(HEADER_LEN))
        else {
            return Err(Malformed::Length);
        };
        //= RFC 9293 section 3.9.2, MUST-50: options are skipped; no protocol above is given any.
        let (options, payload) =
            ip::trim(rest, behind, rest_len)?.split_at_checked(options_len).ok_or(Malformed::Length)?;
        Ok(Self { header, options, payload })
    }

    /// A view of how a packet began, as an ICMP error quotes it: the payload is as much as is there, and a length that
    /// promises more does no harm.
    ///
    /// # Errors
    /// [`Malformed::Truncated`] without a whole header, [`Malformed::Unsupported`] if it is not version 4.
    pub fn quoted(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (header, rest) = ip::split_header::<HEADER_LEN>(bytes, 4)?;
        let header_len = usize::from(header[0] & 0x0f) * 4;
        let options_len = header_len.checked_sub(HEADER_LEN).ok_or(Malformed::Length)?;
        let (options, payload) = rest.split_at_checked(options_len).ok_or(Malformed::Truncated)?;
        Ok(Self { header, options, payload })
    }

    /// Bytes of the whole packet, as its header says.
    #[inline]
    pub fn total_len(&self) -> u16 {
        u16::from_be_bytes([self.header[2], self.header[3]])
    }

    /// The same for all pieces of one datagram.
    #[inline]
    pub fn identification(&self) -> u16 {
        u16::from_be_bytes([self.header[4], self.header[5]])
    }

    /// The offset of a piece in its datagram, in bytes; a multiple of eight.
    #[inline]
    pub fn fragment_offset(&self) -> u16 {
        (u16::from_be_bytes([self.header[6], self.header[7]]) & 0x1fff) << 3
    }

    /// Whether a piece is not the last one of its datagram.
    #[inline]
    pub fn more_fragments(&self) -> bool {
        self.header[6] & 0x20 != 0
    }

    /// Whether the header's checksum is right.
    #[inline]
    pub fn checksum_ok(&self) -> bool {
        //= RFC 1122 section 3.2.1.2: the header checksum of every received datagram is verified.
        let sum = checksum::Sum::new().over(self.header);
        if self.options.is_empty() { sum.is_valid() } else { sum.over(self.options).is_valid() }
    }

    /// The source address.
    #[inline]
    pub fn source(&self) -> Ipv4Addr {
        Ipv4Addr::new(self.header[12], self.header[13], self.header[14], self.header[15])
    }

    /// The destination address.
    #[inline]
    pub fn destination(&self) -> Ipv4Addr {
        Ipv4Addr::new(self.header[16], self.header[17], self.header[18], self.header[19])
    }

    /// The payload's protocol.
    #[inline]
    pub fn protocol(&self) -> Protocol {
        self.header[9].into()
    }

    /// Hops it may still take.
    #[inline]
    pub fn ttl(&self) -> u8 {
        self.header[8]
    }

    /// Differentiated services code point and ECN bits.
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        self.header[1]
    }

    /// Whether it is a piece of a larger datagram.
    #[inline]
    pub fn is_fragment(&self) -> bool {
        // More Fragments, or an offset that is not zero.
        u16::from_be_bytes([self.header[6], self.header[7]]) & 0x3fff != 0
    }

    /// The options, padded to a multiple of four bytes.
    pub fn options(&self) -> &'a [u8] {
        self.options
    }

    /// The packet's payload.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// An IPv4 header without options as a value: a whole packet that must not be fragmented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The source address.
    pub source: Ipv4Addr,
    /// The destination address.
    pub destination: Ipv4Addr,
    /// The payload's protocol.
    pub protocol: Protocol,
    /// Hops it may take.
    pub ttl: NonZeroU8,
    /// Differentiated services code point and ECN bits.
    pub traffic_class: u8,
    payload_len: u16,
}

impl Repr {
    /// A header for `payload_len` bytes, with 64 hops and traffic class 0. `None` above [`MAX_PAYLOAD`].
    pub fn new(
        source: Ipv4Addr,
        destination: Ipv4Addr,
        protocol: Protocol,
        payload_len: usize,
    ) -> Option<Self> {
        if payload_len > MAX_PAYLOAD {
            return None;
        }
        //= RFC 1122 section 3.2.1.7: a default TTL large enough for the Internet; 64 is the assigned number.
        let ttl = NonZeroU8::new(64)?;
        Some(Self { source, destination, protocol, ttl, traffic_class: 0, payload_len: payload_len as u16 })
    }

    /// Bytes behind the header.
    pub fn payload_len(&self) -> usize {
        usize::from(self.payload_len)
    }

    /// The header of `packet`, its checksum verified.
    ///
    /// # Errors
    /// [`Malformed::Checksum`]; [`Malformed::Fragment`]; [`Malformed::Unsupported`] if its TTL is zero.
    pub fn parse(packet: &Packet<'_>) -> Result<Self, Malformed> {
        if !packet.checksum_ok() {
            return Err(Malformed::Checksum);
        }
        if packet.is_fragment() {
            return Err(Malformed::Fragment);
        }
        Ok(Self {
            source: packet.source(),
            destination: packet.destination(),
            protocol: packet.protocol(),
            ttl: NonZeroU8::new(packet.ttl()).ok_or(Malformed::Unsupported)?,
            traffic_class: packet.traffic_class(),
            payload_len: u16::try_from(packet.payload().len()).map_err(|_| Malformed::Length)?,
        })
    }

    /// The header as bytes, checksum included.
    pub fn emit(&self) -> [u8; HEADER_LEN] {
        //= RFC 6864 section 4.1: an atomic datagram (DF set, not a fragment) may carry any ID; it is zero here.
        self.emit_with(0, 0x4000)
    }

    /// The header of a piece of the datagram `identification`, which begins `offset` bytes (a multiple of eight) from that
    /// one's beginning, and is not the last if there is `more`.
    pub fn emit_fragment(&self, identification: u16, offset: u16, more: bool) -> [u8; HEADER_LEN] {
        self.emit_with(identification, u16::from(more) << 13 | offset >> 3)
    }

    fn emit_with(&self, identification: u16, fragment: u16) -> [u8; HEADER_LEN] {
        let mut out = [0; HEADER_LEN];
        out[0] = 0x45;
        out[1] = self.traffic_class;
        out[2..4].copy_from_slice(&(self.payload_len + HEADER_LEN as u16).to_be_bytes());
        out[4..6].copy_from_slice(&identification.to_be_bytes());
        out[6..8].copy_from_slice(&fragment.to_be_bytes());
        out[8] = self.ttl.get();
        out[9] = self.protocol.into();
        out[12..16].copy_from_slice(&self.source.octets());
        out[16..].copy_from_slice(&self.destination.octets());
        let sum = checksum::checksum(&out);
        out[10..12].copy_from_slice(&sum.to_be_bytes());
        out
    }
}
