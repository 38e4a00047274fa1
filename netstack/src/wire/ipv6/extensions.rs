//! The chain of extension headers (RFC 8200 section 4).

use super::FRAGMENT_LEN;
use crate::wire::icmpv6::parameter;
use crate::wire::ip::Protocol;

/// Extension headers that a packet may have. RFC 8504 section 5.3 lets a host set such a limit.
const MAX_HEADERS: usize = 8;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
pub(crate) const FRAGMENT: u8 = 44;
const NO_NEXT: u8 = 59;
const DESTINATION: u8 = 60;

/// The protocol at the end of the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chain<'a> {
    /// The number of the protocol, or of a header that is none of those known here.
    pub protocol: u8,
    /// The offset of that number in the packet, in bytes.
    pub protocol_at: usize,
    /// The bytes behind the chain.
    pub payload: &'a [u8],
    /// The offset of those bytes in the packet.
    pub payload_at: usize,
    /// The packet is a piece of a larger one, and `payload` is the piece's; `protocol` says how the larger one
    /// continues.
    pub fragment: Option<Fragment>,
}

/// A fragment header (RFC 8200 section 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// The same for all pieces.
    pub identification: u32,
    /// The offset of the piece, in bytes; a multiple of eight.
    pub offset: u16,
    /// Whether it is not the last one.
    pub more: bool,
}

impl Fragment {
    /// The header as bytes, in front of a piece of a datagram that continues with `next_header`.
    pub fn emit(&self, next_header: Protocol) -> [u8; FRAGMENT_LEN] {
        let mut out = [0; FRAGMENT_LEN];
        out[0] = next_header.into();
        out[2..4].copy_from_slice(&(self.offset | u16::from(self.more)).to_be_bytes());
        out[4..].copy_from_slice(&self.identification.to_be_bytes());
        out
    }
}

/// Why a chain ends before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// It is cut off.
    #[error("an extension header is cut off; drop it, the sender is broken")]
    Truncated,
    /// It is to be dropped silently: an option demands it, nothing follows, or there are too many headers.
    #[error("an extension header asks for the packet to be dropped; drop it")]
    Drop,
    /// An ICMP error is to be sent.
    #[error("an extension header that this host cannot act on; report its position to the sender")]
    Parameter {
        /// The code of the ICMPv6 parameter problem.
        code: u8,
        /// The position of the fault, in bytes from the packet's beginning.
        pointer: u32,
    },
}

/// Walks the chain that begins with a header of kind `next`, at the start of `bytes`, which are at offset `at` in the
/// packet. `to_group` says whether the packet is for a multicast group: some errors are not reported then.
///
/// A fragment header that says that the packet is whole (RFC 6946) is skipped like the others.
///
/// # Errors
/// [`Problem`] says what to do.
pub fn walk(next: u8, bytes: &[u8], at: usize, to_group: bool) -> Result<Chain<'_>, Problem> {
    let (start, mut next, mut rest) = (at, next, bytes);
    let mut next_at = 6;
    for count in 0..MAX_HEADERS {
        let here = start + (bytes.len() - rest.len());
        match next {
            //= RFC 8200 section 4.1: hop-by-hop options come first or not at all.
            HOP_BY_HOP if count > 0 => {
                return Err(Problem::Parameter { code: parameter::NEXT_HEADER, pointer: next_at as u32 });
            }
            HOP_BY_HOP | DESTINATION | ROUTING => {
                let &[following, units, ..] = rest else { return Err(Problem::Truncated) };
                let (header, behind) =
                    rest.split_at_checked(usize::from(units) * 8 + 8).ok_or(Problem::Truncated)?;
                if next == ROUTING {
                    routing(header, here)?;
                } else {
                    options(header, here, to_group)?;
                }
                (next, next_at, rest) = (following, here, behind);
            }
            FRAGMENT => {
                let Some((&[following, _, hi, lo, a, b, c, d], behind)) = rest.split_first_chunk() else {
                    return Err(Problem::Truncated);
                };
                let field = u16::from_be_bytes([hi, lo]);
                let (offset, more) = (field & 0xfff8, field & 1 != 0);
                (next, next_at, rest) = (following, here, behind);
                //= RFC 6946 section 4: a fragment that is the whole packet is processed by itself.
                if offset != 0 || more {
                    let identification = u32::from_be_bytes([a, b, c, d]);
                    let fragment = Some(Fragment { identification, offset, more });
                    let payload_at = here + super::FRAGMENT_LEN;
                    return Ok(Chain {
                        protocol: next,
                        protocol_at: next_at,
                        payload: rest,
                        payload_at,
                        fragment,
                    });
                }
            }
            NO_NEXT => return Err(Problem::Drop),
            protocol => {
                return Ok(Chain {
                    protocol,
                    protocol_at: next_at,
                    payload: rest,
                    payload_at: here,
                    fragment: None,
                });
            }
        }
    }
    Err(Problem::Drop)
}

fn routing(header: &[u8], at: usize) -> Result<(), Problem> {
    //= RFC 8200 section 4.4: without segments left it is skipped; otherwise its type is unknown, type 0 by RFC 5095 too.
    match *header {
        [_, _, _, 0, ..] => Ok(()),
        [_, _, _, _, ..] => Err(Problem::Parameter { code: parameter::FIELD, pointer: at as u32 + 2 }),
        _ => Err(Problem::Truncated),
    }
}

/// Looks for options that must be known, in a header that has been checked to be whole.
fn options(header: &[u8], at: usize, to_group: bool) -> Result<(), Problem> {
    let mut rest = header.get(2..).ok_or(Problem::Truncated)?;
    while let [kind, tail @ ..] = rest {
        let pointer = (at + header.len() - rest.len()) as u32;
        //= RFC 8200 section 4.2: Pad1 has no length.
        if *kind == 0 {
            rest = tail;
            continue;
        }
        let [len, tail @ ..] = tail else { return Err(Problem::Truncated) };
        rest = tail.get(usize::from(*len)..).ok_or(Problem::Truncated)?;
        //= RFC 8200 section 4.2: the two high bits say what a node that does not know the option does with the packet.
        match kind >> 6 {
            0 => {}
            1 => return Err(Problem::Drop),
            3 if to_group => return Err(Problem::Drop),
            _ => return Err(Problem::Parameter { code: parameter::OPTION, pointer }),
        }
    }
    Ok(())
}
