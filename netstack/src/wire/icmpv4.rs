//! ICMP for IPv4 (RFC 792): echo request and echo reply. Other messages are recognised by type and not read.

use super::{Malformed, checksum};

/// Bytes of an echo header.
pub const HEADER_LEN: usize = 8;

/// Echo request or echo reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EchoKind {
    /// Type 8: please send this back.
    Request,
    /// Type 0: here it is.
    Reply,
}

/// An echo message as a value; its data stays where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Echo<'a> {
    /// Request or reply.
    pub kind: EchoKind,
    /// Tells the pings of one sender apart.
    pub identifier: u16,
    /// Counts the requests.
    pub sequence: u16,
    /// Sent back unchanged.
    pub data: &'a [u8],
}

impl<'a> Echo<'a> {
    /// Parses the payload of an ICMP packet, its checksum verified.
    ///
    /// # Errors
    /// [`Malformed::Truncated`] below 8 bytes, [`Malformed::Checksum`], [`Malformed::Unsupported`] for other types.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (header, data) = bytes.split_first_chunk::<HEADER_LEN>().ok_or(Malformed::Truncated)?;
        if !checksum::Sum::new().over(bytes).is_valid() {
            return Err(Malformed::Checksum);
        }
        let kind = match (header[0], header[1]) {
            (8, 0) => EchoKind::Request,
            (0, 0) => EchoKind::Reply,
            _ => return Err(Malformed::Unsupported),
        };
        Ok(Self {
            kind,
            identifier: u16::from_be_bytes([header[4], header[5]]),
            sequence: u16::from_be_bytes([header[6], header[7]]),
            data,
        })
    }

    /// The header as bytes, with the checksum over header and data. The data follows it on the wire.
    pub fn emit(&self) -> [u8; HEADER_LEN] {
        let mut out = [0; HEADER_LEN];
        out[0] = match self.kind {
            EchoKind::Request => 8,
            EchoKind::Reply => 0,
        };
        out[4..6].copy_from_slice(&self.identifier.to_be_bytes());
        out[6..].copy_from_slice(&self.sequence.to_be_bytes());
        let sum = checksum::Sum::new().over(&out).over(self.data).finish();
        out[2..4].copy_from_slice(&sum.to_be_bytes());
        out
    }
}
