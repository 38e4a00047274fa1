//! The header that most segments have, read with less effort.

use super::{Flags, HEADER_LEN, SeqNumber, Timestamps};

/// The header of a segment as most are once a connection is established: an acknowledgement, perhaps with PSH, and no option
/// but timestamps, laid out as RFC 7323 appendix A recommends. Other fields of [`Header`](super::Header) have no
/// meaning here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlainHeader {
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// Number of the first byte.
    pub seq: SeqNumber,
    /// The next number that the sender expects.
    pub ack: SeqNumber,
    /// The window as it is in the header, not scaled.
    pub window: u16,
    /// Timestamps.
    pub timestamps: Option<Timestamps>,
}

impl PlainHeader {
    /// Reads a header that has nothing else behind it; `None` if it is not of this kind.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (fixed, options) = bytes.split_first_chunk::<HEADER_LEN>()?;
        let timestamps = match options {
            &[1, 1, 8, 10, a, b, c, d, e, f, g, h] => Some(Timestamps {
                value: u32::from_be_bytes([a, b, c, d]),
                echo: u32::from_be_bytes([e, f, g, h]),
            }),
            [] => None,
            _ => return None,
        };
        let fits = usize::from(fixed[12] >> 4) * 4 == bytes.len();
        if !fits || Flags(fixed[13]).without(Flags::PSH) != Flags::ACK {
            return None;
        }
        let half = |at: usize| u16::from_be_bytes([fixed[at], fixed[at + 1]]);
        let word = |at: usize| u32::from_be_bytes([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]]);
        Some(Self {
            source_port: half(0),
            destination_port: half(2),
            seq: SeqNumber(word(4)),
            ack: SeqNumber(word(8)),
            window: half(14),
            timestamps,
        })
    }
}
