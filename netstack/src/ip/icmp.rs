//! What ICMP and ICMPv6 say about packets of ours, in one form for both.

use core::net::IpAddr;

use crate::wire::ip::Protocol;

/// What an ICMP error says about a packet of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum IcmpErrorKind {
    /// Not delivered; the code is that of the message, of ICMP or ICMPv6 as the addresses are of IPv4 or IPv6.
    Unreachable {
        /// Why (RFC 792, RFC 1122 section 3.2.2.1, RFC 4443 section 3.1).
        code: u8,
    },
    /// Longer than a link on the way allows.
    PacketTooBig {
        /// The largest packet that the link takes; for old routers that do not say, a guess.
        mtu: u16,
    },
    /// It took too many hops, or its fragments too much time.
    TimeExceeded {
        /// 0 for hops, 1 for fragments.
        code: u8,
    },
    /// Somebody could not make sense of its header.
    ParameterProblem {
        /// Why (RFC 4443 section 3.4).
        code: u8,
        /// Where in the packet.
        pointer: u32,
    },
}

/// An ICMP error about a packet that claims to be ours. Nothing about it is authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcmpError<'a> {
    /// What happened to it.
    pub kind: IcmpErrorKind,
    /// Its source: an address of ours.
    pub local: IpAddr,
    /// Its destination.
    pub remote: IpAddr,
    /// What it carried.
    pub protocol: Protocol,
    /// How its transport header began: 8 bytes at least.
    pub transport_prefix: &'a [u8],
}
