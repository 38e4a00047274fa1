//! Ethernet II frames (RFC 894), without preamble and frame check sequence.

use core::fmt;

use super::Malformed;

/// Bytes of an Ethernet header.
pub const HEADER_LEN: usize = 14;

/// A 48-bit Ethernet address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// All stations.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// Whether frames to it go to all stations.
    pub const fn is_broadcast(self) -> bool {
        matches!(self.0, [0xff, 0xff, 0xff, 0xff, 0xff, 0xff])
    }

    /// Whether it names a group of stations (broadcast too).
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Whether a station may have it: neither a group address nor all zero.
    pub const fn is_station(self) -> bool {
        !self.is_multicast() && !matches!(self.0, [0, 0, 0, 0, 0, 0])
    }
}

impl From<[u8; 6]> for Mac {
    fn from(bytes: [u8; 6]) -> Self {
        Self(bytes)
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// The protocol of an Ethernet frame's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EtherType {
    /// IPv4 (0x0800).
    Ipv4,
    /// ARP (0x0806).
    Arp,
    /// IPv6 (0x86dd).
    Ipv6,
    /// An 802.1Q tag follows (0x8100).
    Vlan,
    /// Any other number.
    Other(u16),
}

super::numbered!(EtherType: u16, 0x0800 => Ipv4, 0x0806 => Arp, 0x86dd => Ipv6, 0x8100 => Vlan);

/// A view of an Ethernet frame.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    header: &'a [u8; HEADER_LEN],
    payload: &'a [u8],
}

impl<'a> Frame<'a> {
    /// A view of `bytes`.
    ///
    /// # Errors
    /// [`Malformed::Truncated`] if there is no whole header.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (header, payload) = bytes.split_first_chunk().ok_or(Malformed::Truncated)?;
        Ok(Self { header, payload })
    }

    /// The station that the frame is for.
    #[inline]
    pub fn destination(&self) -> Mac {
        let [a, b, c, d, e, f, ..] = *self.header;
        Mac([a, b, c, d, e, f])
    }

    /// The station that sent it.
    #[inline]
    pub fn source(&self) -> Mac {
        let [_, _, _, _, _, _, a, b, c, d, e, f, ..] = *self.header;
        Mac([a, b, c, d, e, f])
    }

    /// The payload's type.
    #[inline]
    pub fn ethertype(&self) -> EtherType {
        u16::from_be_bytes([self.header[12], self.header[13]]).into()
    }

    /// The bytes behind the header, padding included.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// An Ethernet header as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The station that the frame is for.
    pub destination: Mac,
    /// The station that sends it.
    pub source: Mac,
    /// The payload's type.
    pub ethertype: EtherType,
}

impl Repr {
    /// The header of `frame`.
    pub fn parse(frame: &Frame<'_>) -> Self {
        Self { destination: frame.destination(), source: frame.source(), ethertype: frame.ethertype() }
    }

    /// The header as bytes.
    pub fn emit(&self) -> [u8; HEADER_LEN] {
        let mut out = [0; HEADER_LEN];
        out[..6].copy_from_slice(&self.destination.0);
        out[6..12].copy_from_slice(&self.source.0);
        out[12..].copy_from_slice(&u16::from(self.ethertype).to_be_bytes());
        out
    }
}
