//! ICMP for IPv4 (RFC 792): echo, and errors about packets. Other messages are recognised by type and not read.

pub use super::icmp::{Echo, EchoKind, ErrorKind};
use super::{Malformed, checksum};

/// Bytes of a header, of echo messages and of errors.
pub const HEADER_LEN: usize = 8;

/// Bytes of a packet's payload that an error quotes at least (RFC 792).
pub const QUOTED_PAYLOAD: usize = 8;

/// Destination unreachable, with these codes among others (RFC 792, RFC 1122 section 3.2.2.1).
pub mod unreachable {
    /// The host does not support the protocol.
    pub const PROTOCOL: u8 = 2;
    /// Nothing listens at the port.
    pub const PORT: u8 = 3;
    /// Longer than a link allows, and must not be fragmented: [`ErrorKind::PacketTooBig`](super::ErrorKind).
    pub const FRAGMENTATION_NEEDED: u8 = 4;
}

/// An ICMP message that this stack reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// Types 8 and 0.
    Echo(Echo<'a>),
    /// Types 3, 11 and 12.
    Error {
        /// The error.
        kind: ErrorKind,
        /// The beginning of the packet that caused it.
        quoted: &'a [u8],
    },
}

impl<'a> Message<'a> {
    /// Parses the payload of an ICMP packet, its checksum verified.
    ///
    /// # Errors
    /// [`Malformed::Truncated`] below 8 bytes, [`Malformed::Checksum`], [`Malformed::Unsupported`] for other types.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (header, data) = bytes.split_first_chunk::<HEADER_LEN>().ok_or(Malformed::Truncated)?;
        if !checksum::Sum::new().over(bytes).is_valid() {
            return Err(Malformed::Checksum);
        }
        let &[kind, code, _, _, a, b, c, d] = header;
        let echo = |kind| {
            Self::Echo(Echo {
                kind,
                identifier: u16::from_be_bytes([a, b]),
                sequence: u16::from_be_bytes([c, d]),
                data,
            })
        };
        let error = |kind| Self::Error { kind, quoted: data };
        Ok(match (kind, code) {
            (8, 0) => echo(EchoKind::Request),
            (0, 0) => echo(EchoKind::Reply),
            //= RFC 1191 section 4: the next hop's MTU is in the low 16 bits of the field that was unused.
            (3, unreachable::FRAGMENTATION_NEEDED) => {
                error(ErrorKind::PacketTooBig { mtu: u16::from_be_bytes([c, d]) })
            }
            (3, code) => error(ErrorKind::Unreachable { code }),
            (11, code) => error(ErrorKind::TimeExceeded { code }),
            (12, code) => error(ErrorKind::ParameterProblem { code, pointer: u32::from(a) }),
            //= RFC 9293 section 3.9.2.2, MUST-55: source quench (type 4) is dropped, as RFC 6633 section 4 has it.
            _ => return Err(Malformed::Unsupported),
        })
    }

    /// The header as bytes, with the checksum over it and over the data or quoted packet, which follows it on the wire.
    pub fn emit(&self) -> [u8; HEADER_LEN] {
        let mut out = [0; HEADER_LEN];
        let data = match *self {
            Self::Echo(Echo { kind, identifier, sequence, data }) => {
                out[0] = match kind {
                    EchoKind::Request => 8,
                    EchoKind::Reply => 0,
                };
                out[4..6].copy_from_slice(&identifier.to_be_bytes());
                out[6..].copy_from_slice(&sequence.to_be_bytes());
                data
            }
            Self::Error { kind, quoted } => {
                match kind {
                    ErrorKind::Unreachable { code } => (out[0], out[1]) = (3, code),
                    ErrorKind::PacketTooBig { mtu } => {
                        (out[0], out[1]) = (3, unreachable::FRAGMENTATION_NEEDED);
                        out[6..].copy_from_slice(&mtu.to_be_bytes());
                    }
                    ErrorKind::TimeExceeded { code } => (out[0], out[1]) = (11, code),
                    ErrorKind::ParameterProblem { code, pointer } => {
                        (out[0], out[1], out[4]) = (12, code, u8::try_from(pointer).unwrap_or(u8::MAX));
                    }
                }
                quoted
            }
        };
        let sum = checksum::Sum::new().over(&out).over(data).finish();
        out[2..4].copy_from_slice(&sum.to_be_bytes());
        out
    }
}
