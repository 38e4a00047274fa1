//! Ranges of addresses, of either version.

use core::fmt;
use core::hash::Hash;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::str::FromStr;

use super::{is_unicast, is_unicast_v6};

mod sealed {
    pub trait Sealed {}
    impl Sealed for core::net::Ipv4Addr {}
    impl Sealed for core::net::Ipv6Addr {}
}

/// An IPv4 or an IPv6 address.
pub trait Address:
    sealed::Sealed + Copy + Ord + Hash + fmt::Debug + fmt::Display + FromStr + Into<IpAddr>
{
    /// Bits of an address: 32 or 128.
    const BITS: u8;

    /// All zero.
    const UNSPECIFIED: Self;

    /// The address as a number, right-aligned.
    fn to_number(self) -> u128;

    /// The address that is the low bits of `number`.
    fn from_number(number: u128) -> Self;

    /// Whether it can be one host's on a network: neither unspecified, loopback nor a group.
    fn is_host_address(self) -> bool;

    /// Whether a host may have `self` although the host part, of `host_bits` bits, is all ones.
    fn last_is_host(host_bits: u8) -> bool;
}

impl Address for Ipv4Addr {
    const BITS: u8 = 32;
    const UNSPECIFIED: Self = Self::UNSPECIFIED;

    fn to_number(self) -> u128 {
        u128::from(self.to_bits())
    }

    fn from_number(number: u128) -> Self {
        Self::from_bits(number as u32)
    }

    fn is_host_address(self) -> bool {
        is_unicast(self) && !self.is_loopback()
    }

    fn last_is_host(host_bits: u8) -> bool {
        //= RFC 3021 section 2.1: of a 31-bit prefix both addresses are hosts; of others, the last one is all hosts.
        host_bits <= 1
    }
}

impl Address for Ipv6Addr {
    const BITS: u8 = 128;
    const UNSPECIFIED: Self = Self::UNSPECIFIED;

    fn to_number(self) -> u128 {
        self.to_bits()
    }

    fn from_number(number: u128) -> Self {
        Self::from_bits(number)
    }

    fn is_host_address(self) -> bool {
        //= RFC 4291 section 2.5.5.2: addresses that hold an IPv4 address are not for the wire.
        is_unicast_v6(self) && !self.is_loopback() && self.to_ipv4_mapped().is_none()
    }

    fn last_is_host(_: u8) -> bool {
        true
    }
}

/// A range of addresses that share their leading bits, such as 10.1.0.0/16 (RFC 4632) or fd00:1::/64 (RFC 4291).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix<A = Ipv4Addr> {
    network: A,
    len: u8,
}

/// Text that is not a prefix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a prefix: write an address, a slash and how many bits are shared, such as 10.1.0.0/16 or fd00:1::/64"
)]
pub struct PrefixError {
    /// The text given.
    pub text: String,
}

impl<A: Address> Prefix<A> {
    /// All addresses: the destination of a default route.
    pub const ALL: Self = Self { network: A::UNSPECIFIED, len: 0 };

    /// The addresses that share their first `len` bits with `address`. `None` above 32 or 128 bits.
    pub fn new(address: A, len: u8) -> Option<Self> {
        if len > A::BITS {
            return None;
        }
        Some(Self { network: A::from_number(address.to_number() & !host_mask::<A>(len)), len })
    }

    /// The lowest address.
    pub fn network(self) -> A {
        self.network
    }

    /// The highest address: of IPv4 the directed broadcast address, unless the prefix has 31 or 32 bits.
    pub fn last(self) -> A {
        A::from_number(self.network.to_number() | host_mask::<A>(self.len))
    }

    /// How many leading bits are shared.
    pub fn bits(self) -> u8 {
        self.len
    }

    /// Whether `address` is in it.
    #[inline]
    pub fn contains(self, address: A) -> bool {
        (address.to_number() ^ self.network.to_number()) & !host_mask::<A>(self.len) == 0
    }

    /// Whether `address` stands for all hosts of the network: of IPv4 its last address, and its first one, which did so before.
    pub fn is_broadcast(self, address: A) -> bool {
        //= RFC 1122 section 3.2.1.3: a host part of ones is all hosts of the network; one of zeros is the obsolete form.
        !A::last_is_host(A::BITS.saturating_sub(self.len))
            && (address == self.last() || address == self.network)
    }

    /// Whether a host may have `address`: in the prefix, and neither its first address (of IPv4 the network, of IPv6 its
    /// routers) nor its broadcast address.
    pub fn is_host(self, address: A) -> bool {
        let host_bits = A::BITS.saturating_sub(self.len);
        //= RFC 6164 section 5.1: of a 127-bit prefix both addresses are hosts, as of IPv4's 31-bit ones.
        self.contains(address)
            && (host_bits <= 1 || address != self.network)
            && (A::last_is_host(host_bits) || address != self.last())
    }
}

/// Ones where the host part is.
#[inline]
fn host_mask<A: Address>(len: u8) -> u128 {
    match A::BITS.saturating_sub(len) {
        128.. => u128::MAX,
        bits => (1 << bits) - 1,
    }
}

impl<A: fmt::Display> fmt::Display for Prefix<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.len)
    }
}

impl<A: Address> FromStr for Prefix<A> {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<Self, PrefixError> {
        text.split_once('/')
            .and_then(|(address, len)| Self::new(address.parse().ok()?, len.parse().ok()?))
            .ok_or_else(|| PrefixError { text: text.to_owned() })
    }
}
