//! UDP headers (RFC 768).

use core::net::IpAddr;

use super::ip::Protocol;
use super::{Malformed, checksum, ipv4};

/// Bytes of a UDP header.
pub const HEADER_LEN: usize = 8;

/// Largest payload over IPv4 without options.
pub const MAX_PAYLOAD: usize = ipv4::MAX_PAYLOAD - HEADER_LEN;

/// A view of a UDP datagram whose length has been checked; its checksum has not.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    header: &'a [u8; HEADER_LEN],
    payload: &'a [u8],
}

impl<'a> Datagram<'a> {
    /// A view of `bytes`, trimmed to the datagram's own length.
    ///
    /// # Errors
    /// [`Malformed::Truncated`] if bytes are missing, [`Malformed::Length`] if the length field is below 8.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (header, rest) = bytes.split_first_chunk::<HEADER_LEN>().ok_or(Malformed::Truncated)?;
        let len = usize::from(u16::from_be_bytes([header[4], header[5]]));
        let payload_len = len.checked_sub(HEADER_LEN).ok_or(Malformed::Length)?;
        let payload = rest.get(..payload_len).ok_or(Malformed::Truncated)?;
        Ok(Self { header, payload })
    }

    /// The sender's port; zero if no answer is expected.
    #[inline]
    pub fn source_port(&self) -> u16 {
        u16::from_be_bytes([self.header[0], self.header[1]])
    }

    /// The receiver's port.
    #[inline]
    pub fn destination_port(&self) -> u16 {
        u16::from_be_bytes([self.header[2], self.header[3]])
    }

    /// Whether the sender computed a checksum.
    #[inline]
    pub fn has_checksum(&self) -> bool {
        //= RFC 768: an all zero checksum means that the sender generated none.
        self.header[6] != 0 || self.header[7] != 0
    }

    /// Whether the checksum is right, or was not computed.
    #[inline]
    pub fn checksum_ok(&self, source: impl Into<IpAddr>, destination: impl Into<IpAddr>) -> bool {
        //= RFC 1122 section 4.1.3.4: a non-zero checksum that does not match means that the datagram is discarded.
        if !self.has_checksum() {
            return true;
        }
        let len = (self.payload.len() + HEADER_LEN) as u32;
        checksum::pseudo_header_ip(source.into(), destination.into(), Protocol::Udp, len)
            .over(self.header)
            .over(self.payload)
            .is_valid()
    }

    /// The datagram's payload.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// A UDP header as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The sender's port.
    pub source_port: u16,
    /// The receiver's port.
    pub destination_port: u16,
    payload_len: u16,
}

impl Repr {
    /// A header for `payload_len` bytes. `None` above [`MAX_PAYLOAD`], or for destination port zero.
    pub fn new(source_port: u16, destination_port: u16, payload_len: usize) -> Option<Self> {
        if payload_len > MAX_PAYLOAD || destination_port == 0 {
            return None;
        }
        Some(Self { source_port, destination_port, payload_len: payload_len as u16 })
    }

    /// The header of `datagram`.
    ///
    /// # Errors
    /// [`Malformed::Unsupported`] if its destination port is zero.
    pub fn parse(datagram: &Datagram<'_>) -> Result<Self, Malformed> {
        Self::new(datagram.source_port(), datagram.destination_port(), datagram.payload().len())
            .ok_or(Malformed::Unsupported)
    }

    /// Bytes behind the header.
    pub fn payload_len(&self) -> usize {
        usize::from(self.payload_len)
    }

    /// The header as bytes, without a checksum.
    pub fn emit(&self) -> [u8; HEADER_LEN] {
        let mut out = [0; HEADER_LEN];
        out[..2].copy_from_slice(&self.source_port.to_be_bytes());
        out[2..4].copy_from_slice(&self.destination_port.to_be_bytes());
        out[4..6].copy_from_slice(&(self.payload_len + HEADER_LEN as u16).to_be_bytes());
        out
    }

    /// The header as bytes, with the checksum over the pseudo header, itself and the pieces of the payload.
    pub fn emit_with_checksum(
        &self,
        source: impl Into<IpAddr>,
        destination: impl Into<IpAddr>,
        payload: &[&[u8]],
    ) -> [u8; HEADER_LEN] {
        let mut out = self.emit();
        let len = u32::from(self.payload_len) + HEADER_LEN as u32;
        let mut sum =
            checksum::pseudo_header_ip(source.into(), destination.into(), Protocol::Udp, len).over(&out);
        for piece in payload {
            sum = sum.over(piece);
        }
        //= RFC 768: a computed checksum of zero is transmitted as all ones.
        let sum = match sum.finish() {
            0 => 0xffff,
            sum => sum,
        };
        out[6..].copy_from_slice(&sum.to_be_bytes());
        out
    }
}
