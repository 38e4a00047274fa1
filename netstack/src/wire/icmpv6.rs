//! ICMPv6 (RFC 4443): echo and errors, and the part of neighbour discovery (RFC 4861) that finds stations.

use core::net::{IpAddr, Ipv6Addr};
use core::num::NonZeroU8;

use super::ethernet::Mac;
pub use super::icmp::{Echo, EchoKind, ErrorKind};
use super::ip::Protocol;
use super::{Malformed, checksum};

/// Bytes of a header, of echo messages and of errors.
pub const HEADER_LEN: usize = 8;

/// Bytes of a neighbour solicitation or advertisement with a link-layer address.
pub const NEIGHBOUR_LEN: usize = 32;

/// The hop limit that neighbour discovery is sent with: a packet that crossed a router has less.
pub const NEIGHBOUR_HOP_LIMIT: NonZeroU8 = NonZeroU8::MAX;

/// Codes of destination unreachable (RFC 4443 section 3.1).
pub mod unreachable {
    /// Nothing listens at the port.
    pub const PORT: u8 = 4;
}

/// Codes of parameter problem (RFC 4443 section 3.4).
pub mod parameter {
    /// A header field that cannot be.
    pub const FIELD: u8 = 0;
    /// A next header that this host does not support.
    pub const NEXT_HEADER: u8 = 1;
    /// An option that this host does not support, and must.
    pub const OPTION: u8 = 2;
}

/// A request for the station of an address (RFC 4861 section 4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Solicitation {
    /// The address requested.
    pub target: Ipv6Addr,
    /// The station that requests it.
    pub source: Option<Mac>,
}

/// The station of an address (RFC 4861 section 4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advertisement {
    /// The address.
    pub target: Ipv6Addr,
    /// The station that has it.
    pub station: Option<Mac>,
    /// The sender is a router.
    pub router: bool,
    /// It answers a solicitation.
    pub solicited: bool,
    /// The entry known before is to be replaced.
    pub overriding: bool,
}

/// An ICMPv6 message that this stack reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// Types 128 and 129.
    Echo(Echo<'a>),
    /// Types 1 to 4.
    Error {
        /// The error.
        kind: ErrorKind,
        /// The beginning of the packet that caused it.
        quoted: &'a [u8],
    },
    /// Type 135.
    Solicitation(Solicitation),
    /// Type 136.
    Advertisement(Advertisement),
}

impl<'a> Message<'a> {
    /// Parses an ICMPv6 packet between two addresses, its checksum verified. The hop limit of neighbour discovery is
    /// the caller's to check.
    ///
    /// # Errors
    /// [`Malformed::Truncated`] if bytes are missing, [`Malformed::Checksum`], [`Malformed::Length`] for an option of
    /// no length, [`Malformed::Unsupported`] for other types and for messages that neighbour discovery forbids.
    pub fn parse(source: Ipv6Addr, destination: Ipv6Addr, bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (header, data) = bytes.split_first_chunk::<HEADER_LEN>().ok_or(Malformed::Truncated)?;
        //= RFC 4443 section 2.3: the checksum covers the pseudo header too.
        if !pseudo_header(source, destination, bytes.len()).over(bytes).is_valid() {
            return Err(Malformed::Checksum);
        }
        let &[kind, code, _, _, a, b, c, d] = header;
        let field = u32::from_be_bytes([a, b, c, d]);
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
            (1, code) => error(ErrorKind::Unreachable { code }),
            (2, _) => error(ErrorKind::PacketTooBig { mtu: u16::try_from(field).unwrap_or(u16::MAX) }),
            (3, code) => error(ErrorKind::TimeExceeded { code }),
            (4, code) => error(ErrorKind::ParameterProblem { code, pointer: field }),
            (128, 0) => echo(EchoKind::Request),
            (129, 0) => echo(EchoKind::Reply),
            (135, 0) => {
                let (target, station) = neighbour(data, OPTION_SOURCE)?;
                //= RFC 4861 section 7.1.1: from the unspecified address only to a solicited-node group, without option.
                if source.is_unspecified() && (station.is_some() || !is_solicited_node(destination)) {
                    return Err(Malformed::Unsupported);
                }
                Self::Solicitation(Solicitation { target, source: station })
            }
            (136, 0) => {
                let (target, station) = neighbour(data, OPTION_TARGET)?;
                let solicited = a & 0x40 != 0;
                //= RFC 4861 section 7.1.2: a solicited advertisement is never multicast.
                if solicited && destination.is_multicast() {
                    return Err(Malformed::Unsupported);
                }
                Self::Advertisement(Advertisement {
                    target,
                    station,
                    router: a & 0x80 != 0,
                    solicited,
                    overriding: a & 0x20 != 0,
                })
            }
            _ => return Err(Malformed::Unsupported),
        })
    }
}

/// The header of an echo message as bytes, with its checksum. The data follows it on the wire.
pub fn emit_echo(source: Ipv6Addr, destination: Ipv6Addr, echo: &Echo<'_>) -> [u8; HEADER_LEN] {
    let mut out = [0; HEADER_LEN];
    out[0] = match echo.kind {
        EchoKind::Request => 128,
        EchoKind::Reply => 129,
    };
    out[4..6].copy_from_slice(&echo.identifier.to_be_bytes());
    out[6..].copy_from_slice(&echo.sequence.to_be_bytes());
    seal(source, destination, out, echo.data)
}

/// The header of an error as bytes, with its checksum. The quoted packet follows it on the wire.
pub fn emit_error(
    source: Ipv6Addr,
    destination: Ipv6Addr,
    kind: ErrorKind,
    quoted: &[u8],
) -> [u8; HEADER_LEN] {
    let mut out = [0; HEADER_LEN];
    let (number, code, field) = match kind {
        ErrorKind::Unreachable { code } => (1, code, 0),
        ErrorKind::PacketTooBig { mtu } => (2, 0, u32::from(mtu)),
        ErrorKind::TimeExceeded { code } => (3, code, 0),
        ErrorKind::ParameterProblem { code, pointer } => (4, code, pointer),
    };
    (out[0], out[1]) = (number, code);
    out[4..].copy_from_slice(&field.to_be_bytes());
    seal(source, destination, out, quoted)
}

impl Solicitation {
    /// The message as bytes. Without a `source` the last eight are not sent: see [`Solicitation::len`].
    pub fn emit(&self, source: Ipv6Addr, destination: Ipv6Addr) -> [u8; NEIGHBOUR_LEN] {
        neighbour_message(source, destination, 135, 0, self.target, OPTION_SOURCE, self.source)
    }

    /// Bytes of the message.
    #[allow(clippy::len_without_is_empty, reason = "a message is never empty")]
    pub fn len(&self) -> usize {
        if self.source.is_some() { NEIGHBOUR_LEN } else { NEIGHBOUR_LEN - 8 }
    }
}

impl Advertisement {
    /// The message as bytes. Without a `station` the last eight are not sent: see [`Advertisement::len`].
    pub fn emit(&self, source: Ipv6Addr, destination: Ipv6Addr) -> [u8; NEIGHBOUR_LEN] {
        let flags =
            u8::from(self.router) << 7 | u8::from(self.solicited) << 6 | u8::from(self.overriding) << 5;
        neighbour_message(source, destination, 136, flags, self.target, OPTION_TARGET, self.station)
    }

    /// Bytes of the message.
    #[allow(clippy::len_without_is_empty, reason = "a message is never empty")]
    pub fn len(&self) -> usize {
        if self.station.is_some() { NEIGHBOUR_LEN } else { NEIGHBOUR_LEN - 8 }
    }
}

/// Source link-layer address (RFC 4861 section 4.6.1).
const OPTION_SOURCE: u8 = 1;

/// Target link-layer address (RFC 4861 section 4.6.1).
const OPTION_TARGET: u8 = 2;

/// The group that the station with `address` listens to (RFC 4291 section 2.7.1).
pub const fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    const PREFIX: u128 = 0xff02_0000_0000_0000_0000_0001_ff00_0000;
    Ipv6Addr::from_bits(PREFIX | address.to_bits() & 0x00ff_ffff)
}

fn is_solicited_node(address: Ipv6Addr) -> bool {
    solicited_node(address) == address
}

/// The station address that frames to a group go to (RFC 2464 section 7).
pub const fn multicast_mac(group: Ipv6Addr) -> Mac {
    let [.., a, b, c, d] = group.octets();
    Mac([0x33, 0x33, a, b, c, d])
}

fn pseudo_header(source: Ipv6Addr, destination: Ipv6Addr, len: usize) -> checksum::Sum {
    checksum::pseudo_header_ip(IpAddr::V6(source), IpAddr::V6(destination), Protocol::Icmpv6, len as u32)
}

fn seal(
    source: Ipv6Addr,
    destination: Ipv6Addr,
    mut header: [u8; HEADER_LEN],
    data: &[u8],
) -> [u8; HEADER_LEN] {
    let sum = pseudo_header(source, destination, HEADER_LEN + data.len()).over(&header).over(data).finish();
    header[2..4].copy_from_slice(&sum.to_be_bytes());
    header
}

/// The target of a solicitation or advertisement, and the Ethernet address in the option of the given kind.
fn neighbour(data: &[u8], wanted: u8) -> Result<(Ipv6Addr, Option<Mac>), Malformed> {
    let (target, mut options) = data.split_first_chunk::<16>().ok_or(Malformed::Truncated)?;
    let target = Ipv6Addr::from(*target);
    if target.is_multicast() {
        return Err(Malformed::Unsupported);
    }
    let mut station = None;
    while let [kind, units, ..] = *options {
        //= RFC 4861 section 4.6: a packet with an option of length zero is silently discarded; unknown ones are skipped.
        if units == 0 {
            return Err(Malformed::Length);
        }
        let (option, rest) = options.split_at_checked(usize::from(units) * 8).ok_or(Malformed::Truncated)?;
        if kind == wanted
            && let [_, 1, a, b, c, d, e, f] = *option
        {
            let mac = Mac([a, b, c, d, e, f]);
            if !mac.is_station() {
                return Err(Malformed::Unsupported);
            }
            station = Some(mac);
        }
        options = rest;
    }
    if options.is_empty() { Ok((target, station)) } else { Err(Malformed::Truncated) }
}

fn neighbour_message(
    source: Ipv6Addr,
    destination: Ipv6Addr,
    kind: u8,
    flags: u8,
    target: Ipv6Addr,
    option: u8,
    station: Option<Mac>,
) -> [u8; NEIGHBOUR_LEN] {
    let mut out = [0; NEIGHBOUR_LEN];
    (out[0], out[4]) = (kind, flags);
    out[8..24].copy_from_slice(&target.octets());
    let mut len = NEIGHBOUR_LEN - 8;
    if let Some(Mac(mac)) = station {
        (out[24], out[25]) = (option, 1);
        out[26..].copy_from_slice(&mac);
        len = NEIGHBOUR_LEN;
    }
    // Bytes that are not sent are zero, and add nothing.
    let sum = pseudo_header(source, destination, len).over(&out).finish();
    out[2..4].copy_from_slice(&sum.to_be_bytes());
    out
}

#[cfg(test)]
mod tests;
