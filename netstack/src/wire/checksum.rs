//! The Internet checksum (RFC 1071): the ones' complement of the ones' complement sum of 16-bit words.
//!
//! The sum does not depend on byte order (RFC 1071 section 2 (B)), so words are added as the machine loads them and
//! the two bytes are put in network order once, at the end. Wider words are added, whose carries are kept until the sum is folded.

use core::net::IpAddr;

use super::ip::{Protocol, octets};

/// From so many bytes on a sum in lanes takes less time than one with carries.
const LONG: usize = 256;

/// A checksum in the making. Pieces may have any length, odd ones too.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum {
    /// Not yet folded, in the machine's byte order.
    acc: u64,
    /// Whether an odd number of bytes has been added so far.
    odd: bool,
}

impl Sum {
    /// The sum of nothing.
    #[inline]
    pub const fn new() -> Self {
        Self { acc: 0, odd: false }
    }

    /// The sum continued over `bytes`.
    #[inline(always)]
    #[must_use]
    pub fn over(self, bytes: &[u8]) -> Self {
        let piece = sum_words(bytes);
        //= RFC 1071 section 2 (B): a piece at an odd offset contributes its sum with the two bytes swapped.
        let piece = if self.odd { u64::from(fold(piece).swap_bytes()) } else { piece };
        Self { acc: add_carry(self.acc, piece), odd: self.odd ^ (bytes.len() % 2 == 1) }
    }

    /// The sum continued over one 16-bit number, which must start at an even offset.
    #[inline]
    #[must_use]
    pub fn add_u16(self, value: u16) -> Self {
        Self { acc: add_carry(self.acc, u64::from(value.to_be())), odd: self.odd }
    }

    /// The checksum to put into a header, as a number (write its big-endian bytes).
    #[inline]
    pub fn finish(self) -> u16 {
        !u16::from_be(fold(self.acc))
    }

    /// Whether bytes that contain their own checksum add up.
    #[inline]
    pub fn is_valid(self) -> bool {
        //= RFC 1071 section 1: the sum over data and checksum is all ones.
        fold(self.acc) == 0xffff
    }
}

/// The checksum over one piece of bytes.
#[inline]
pub fn checksum(bytes: &[u8]) -> u16 {
    Sum::new().over(bytes).finish()
}

/// The checksum after one 16-bit word under it changed from `old` to `new`.
#[inline]
pub fn update(checksum: u16, old: u16, new: u16) -> u16 {
    //= RFC 1624 section 3, equation 3: HC' = ~(~HC + ~m + m').
    let sum = u32::from(!checksum) + u32::from(!old) + u32::from(new);
    let sum = (sum & 0xffff) + (sum >> 16);
    !(((sum & 0xffff) + (sum >> 16)) as u16)
}

/// The pseudo header that UDP and TCP put under their checksums.
#[inline]
pub fn pseudo_header(source: [u8; 4], destination: [u8; 4], protocol: Protocol, len: u16) -> Sum {
    //= RFC 768: source, destination, zero, protocol, length.
    let mut bytes = [0; 12];
    bytes[..4].copy_from_slice(&source);
    bytes[4..8].copy_from_slice(&destination);
    bytes[9] = protocol.into();
    bytes[10..].copy_from_slice(&len.to_be_bytes());
    Sum::new().over(&bytes)
}

/// The pseudo header for addresses of either version, `len` bytes of transport header and payload following. Addresses
/// of different versions give a sum that fits no packet.
#[inline]
pub fn pseudo_header_ip(source: IpAddr, destination: IpAddr, protocol: Protocol, len: u32) -> Sum {
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            pseudo_header(source.octets(), destination.octets(), protocol, len as u16)
        }
        //= RFC 8200 section 8.1: addresses, the length in 32 bits, three zero bytes, the next header.
        (source, destination) => {
            let sum = Sum::new().over(&octets(source)).over(&octets(destination)).over(&len.to_be_bytes());
            sum.add_u16(u16::from(u8::from(protocol)))
        }
    }
}

#[inline]
fn sum_words(bytes: &[u8]) -> u64 {
    if bytes.len() >= LONG {
        return sum_lanes(bytes);
    }
    // Of 32 bytes, four additions of the loop are those that it is for.
    let (blocks, rest) = bytes.as_chunks::<32>();
    let mut sum = 0;
    for block in blocks {
        for word in block.as_chunks::<8>().0 {
            sum = add_carry(sum, u64::from_ne_bytes(*word));
        }
    }
    let (words, rest) = rest.as_chunks::<4>();
    for word in words {
        sum = add_carry(sum, u64::from(u32::from_ne_bytes(*word)));
    }
    let (pairs, last) = rest.as_chunks::<2>();
    for pair in pairs {
        sum = add_carry(sum, u64::from(u16::from_ne_bytes(*pair)));
    }
    if let [byte] = last {
        //= RFC 1071 section 1: an odd byte counts as if a zero byte followed.
        sum = add_carry(sum, u64::from(u16::from_ne_bytes([*byte, 0])));
    }
    sum
}

/// The same in lanes, of which the compiler makes vectors.
fn sum_lanes(bytes: &[u8]) -> u64 {
    let (blocks, rest) = bytes.as_chunks::<32>();
    let mut lanes = [0u64; 8];
    for block in blocks {
        let (words, _) = block.as_chunks::<4>();
        for (lane, word) in lanes.iter_mut().zip(words) {
            *lane += u64::from(u32::from_ne_bytes(*word));
        }
    }
    add_carry(lanes.iter().sum(), sum_words(rest))
}

#[inline]
const fn add_carry(a: u64, b: u64) -> u64 {
    let (sum, carry) = a.overflowing_add(b);
    sum + carry as u64
}

#[inline]
const fn fold(sum: u64) -> u16 {
    // Two halves give one carry at most, and adding that gives no other.
    let (sum, carry) = (sum as u32).overflowing_add((sum >> 32) as u32);
    let sum = sum + carry as u32;
    let (sum, carry) = (sum as u16).overflowing_add((sum >> 16) as u16);
    sum + carry as u16
}
