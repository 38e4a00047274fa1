//! ICMP and ICMPv6 errors about packets of ours, in one form for both.

use core::net::IpAddr;

pub use crate::wire::icmp::ErrorKind as IcmpErrorKind;
use crate::wire::ip::Protocol;

/// An ICMP error about a packet that claims to be ours. Nothing about it is authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcmpError<'a> {
    /// The error.
    pub kind: IcmpErrorKind,
    /// Its source: an address of ours.
    pub local: IpAddr,
    /// Its destination.
    pub remote: IpAddr,
    /// Its transport protocol.
    pub protocol: Protocol,
    /// How its transport header began: 8 bytes at least.
    pub transport_prefix: &'a [u8],
}
