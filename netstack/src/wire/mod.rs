//! Headers: checked views over bytes, and representations that can only hold valid values.
//!
//! Each protocol comes at two levels. The *view* (`ethernet::Frame`, `ipv4::Packet`...) borrows bytes, checks once
//! that the header is all there, and then reads fields without further checks. The *representation* (`Repr`) is a
//! plain value that holds only what the protocol allows; it parses from a view, and emits as a byte array of fixed
//! size, which cannot fail. Nothing allocates and no input can make a parser panic.
//!
//! ```text
//!   | Ethernet 14 | VLAN 4? | ARP 28                           |
//!   | Ethernet 14 | VLAN 4? | IPv4 20 | ICMP 8 | data          |
//!   | Ethernet 14 | VLAN 4? | IPv4 20 | UDP 8  | RUD | message |
//!   | Ethernet 14 | VLAN 4? | IPv6 40 | extension headers? | ICMPv6 8, UDP 8, TCP 20 | ... |
//! ```
#![forbid(unsafe_code)]

/// Conversions between an enum and its numbers; `Other` has those without a name.
macro_rules! numbered {
    ($kind:ident: $number:ty, $($value:literal => $name:ident),+) => {
        impl From<$number> for $kind {
            #[inline]
            fn from(value: $number) -> Self {
                match value {
                    $($value => Self::$name,)+
                    other => Self::Other(other),
                }
            }
        }

        impl From<$kind> for $number {
            #[inline]
            fn from(value: $kind) -> Self {
                match value {
                    $($kind::$name => $value,)+
                    $kind::Other(other) => other,
                }
            }
        }
    };
}
use numbered;

pub mod arp;
pub mod checksum;
pub mod ethernet;
pub mod icmp;
pub mod icmpv4;
pub mod icmpv6;
pub mod ip;
pub mod ipv4;
pub mod ipv6;
#[cfg(feature = "rud")]
pub mod rud;
pub mod tcp;
pub mod udp;
pub mod vlan;

#[cfg(test)]
mod tests;

/// Why bytes are not the header they were taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Fewer bytes than the header, or than its length field promises.
    #[error(
        "truncated: fewer bytes than the header or its length field asks for; the sender or the link cut it"
    )]
    Truncated,
    /// A length field that cannot be right.
    #[error("a length field contradicts the header it stands in; drop it, the sender is broken")]
    Length,
    /// Another version, hardware type or operation than this stack supports.
    #[error("a version, type or code that this stack does not support; drop it")]
    Unsupported,
    /// The checksum does not match the bytes.
    #[error(
        "the checksum does not match the bytes: they changed in transit; drop it, the sender will resend"
    )]
    Checksum,
    /// An IPv4 fragment, where only a whole packet will do.
    #[error("an IPv4 fragment where only a whole packet will do; lower the sender's MTU to the path's")]
    Fragment,
}

/// A header that was made: the first of at most `N` bytes.
#[derive(Clone, Copy)]
pub struct HeaderBytes<const N: usize> {
    pub(crate) bytes: [u8; N],
    /// At most `N`.
    pub(crate) len: u8,
}

impl<const N: usize> HeaderBytes<N> {
    /// The bytes.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or(&self.bytes)
    }
}

impl<const N: usize> core::fmt::Debug for HeaderBytes<N> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:02x?}", self.as_bytes())
    }
}
