//! TCP segments (RFC 9293 section 3.1) and their options.

use core::fmt;
use core::ops::{Add, AddAssign, Sub};

pub use plain::PlainHeader;

use super::Malformed;

mod plain;
#[cfg(test)]
mod tests;

/// Length of a header without options, in bytes.
pub const HEADER_LEN: usize = 20;

/// The longest header: 15 words of 4 bytes.
pub const MAX_HEADER_LEN: usize = 60;

/// Selective acknowledgement blocks that fit a segment, at most (RFC 2018 section 3).
pub const MAX_SACK_BLOCKS: usize = 4;

/// A sequence number: arithmetic is modulo 2^32, and order is that of RFC 9293 section 3.4, meaningful for numbers
/// less than 2^31 apart.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct SeqNumber(pub u32);

impl SeqNumber {
    /// How far `self` is after `earlier`, in bytes; negative if it is before.
    #[inline]
    pub const fn since(self, earlier: Self) -> i32 {
        self.0.wrapping_sub(earlier.0) as i32
    }

    /// Bytes from `earlier` to `self`, zero if `self` is before.
    #[inline]
    pub const fn distance(self, earlier: Self) -> u32 {
        let since = self.since(earlier);
        if since < 0 { 0 } else { since as u32 }
    }

    /// Whether `self` comes before `other`.
    #[inline]
    pub const fn is_before(self, other: Self) -> bool {
        self.since(other) < 0
    }

    /// Whether `self` comes after `other`.
    #[inline]
    pub const fn is_after(self, other: Self) -> bool {
        self.since(other) > 0
    }

    /// The later of the two.
    #[inline]
    pub const fn max(self, other: Self) -> Self {
        if self.is_before(other) { other } else { self }
    }

    /// The earlier of the two.
    #[inline]
    pub const fn min(self, other: Self) -> Self {
        if self.is_after(other) { other } else { self }
    }
}

impl fmt::Debug for SeqNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

impl Add<u32> for SeqNumber {
    type Output = Self;
    #[inline]
    fn add(self, bytes: u32) -> Self {
        Self(self.0.wrapping_add(bytes))
    }
}

impl AddAssign<u32> for SeqNumber {
    #[inline]
    fn add_assign(&mut self, bytes: u32) {
        *self = *self + bytes;
    }
}

impl Sub<u32> for SeqNumber {
    type Output = Self;
    #[inline]
    fn sub(self, bytes: u32) -> Self {
        Self(self.0.wrapping_sub(bytes))
    }
}

/// Control bits (RFC 9293 section 3.1).
///
/// ```
/// use shouter_netstack::wire::tcp::Flags;
///
/// let flags = Flags::PSH.with(Flags::ACK).with(Flags::URG);
/// assert!(flags.contains(Flags::URG) && !flags.intersects(Flags::SYN));
/// // As tcpdump writes them.
/// assert_eq!(format!("{flags:?}"), "PU.");
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Flags(pub u8);

impl Flags {
    /// No more data from the sender.
    pub const FIN: Self = Self(0x01);
    /// Synchronise sequence numbers.
    pub const SYN: Self = Self(0x02);
    /// Reset the connection.
    pub const RST: Self = Self(0x04);
    /// Push.
    pub const PSH: Self = Self(0x08);
    /// The acknowledgement number counts.
    pub const ACK: Self = Self(0x10);
    /// The urgent pointer counts.
    pub const URG: Self = Self(0x20);
    /// ECN echo (RFC 3168).
    pub const ECE: Self = Self(0x40);
    /// Congestion window reduced (RFC 3168).
    pub const CWR: Self = Self(0x80);

    /// Whether all bits of `other` are set.
    #[inline]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether a SYN requests ECN, or a SYN-ACK reflects it.
    pub(crate) const fn asks_for_ecn(self) -> bool {
        //= RFC 3168 section 6.1.1: an ECN-setup SYN has both ECE and CWR.
        self.contains(Self::ECE.with(Self::CWR))
    }

    /// Whether any bit of `other` is set.
    #[inline]
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// The bits of both.
    #[inline]
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The bits of `self` that are not in `other`.
    #[inline]
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // As tcpdump prints them.
        let names =
            [(0x02, 'S'), (0x01, 'F'), (0x04, 'R'), (0x08, 'P'), (0x20, 'U'), (0x40, 'E'), (0x80, 'W')];
        for (bit, name) in names {
            if self.0 & bit != 0 {
                write!(f, "{name}")?;
            }
        }
        if self.0 & 0x10 != 0 { write!(f, ".") } else { Ok(()) }
    }
}

/// Sequence numbers from `start` up to, and without, `end`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SeqRange {
    /// The first.
    pub start: SeqNumber,
    /// The one after the last.
    pub end: SeqNumber,
}

/// Up to [`MAX_SACK_BLOCKS`] blocks (RFC 2018), in the order of the option.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct SackBlocks {
    blocks: [SeqRange; MAX_SACK_BLOCKS],
    len: u8,
}

impl SackBlocks {
    /// No blocks.
    pub const NONE: Self =
        Self { blocks: [SeqRange { start: SeqNumber(0), end: SeqNumber(0) }; MAX_SACK_BLOCKS], len: 0 };

    /// Adds a block; false if there is no room.
    pub fn push(&mut self, block: SeqRange) -> bool {
        match self.blocks.get_mut(usize::from(self.len)) {
            Some(slot) => {
                *slot = block;
                self.len += 1;
                true
            }
            None => false,
        }
    }

    /// Keeps the first `len` blocks.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(u8::try_from(len).unwrap_or(u8::MAX));
    }

    /// The blocks.
    #[inline]
    pub fn as_slice(&self) -> &[SeqRange] {
        self.blocks.get(..usize::from(self.len)).unwrap_or(&self.blocks)
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl fmt::Debug for SackBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.as_slice()).finish()
    }
}

/// The timestamps option (RFC 7323 section 3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timestamps {
    /// The sender's clock.
    pub value: u32,
    /// The echo of the receiver's clock; meaningful with ACK.
    pub echo: u32,
}

/// The user timeout option (RFC 5482 section 3), in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserTimeout {
    /// Seconds.
    pub seconds: u32,
}

/// The options that this stack supports. Others are skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Largest segment that the sender of the option can receive (RFC 9293 section 3.7.1); on SYN.
    pub mss: Option<u16>,
    /// Shift of later windows, 0 to 14 (RFC 7323 section 2); on SYN.
    pub window_scale: Option<u8>,
    /// Selective acknowledgement may be used (RFC 2018 section 2); on SYN.
    pub sack_permitted: bool,
    /// Timestamps.
    pub timestamps: Option<Timestamps>,
    /// The ranges that arrived out of order.
    pub sack: SackBlocks,
    /// How long the sender keeps unacknowledged data.
    pub user_timeout: Option<UserTimeout>,
}

/// A TCP header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// Number of the first byte, or of the SYN.
    pub seq: SeqNumber,
    /// The next number that the sender expects, if ACK is set.
    pub ack: SeqNumber,
    /// Control bits.
    pub flags: Flags,
    /// The window as it is in the header, not scaled.
    pub window: u16,
    /// The urgent pointer.
    pub urgent: u16,
    /// The options.
    pub options: Options,
}

/// An emitted header.
pub type HeaderBytes = super::HeaderBytes<MAX_HEADER_LEN>;

mod kind {
    pub(super) const END: u8 = 0;
    pub(super) const NOP: u8 = 1;
    pub(super) const MSS: u8 = 2;
    pub(super) const WINDOW_SCALE: u8 = 3;
    pub(super) const SACK_PERMITTED: u8 = 4;
    pub(super) const SACK: u8 = 5;
    pub(super) const TIMESTAMPS: u8 = 8;
    pub(super) const USER_TIMEOUT: u8 = 28;
}

impl Options {
    /// Reads options.
    ///
    /// # Errors
    /// [`Malformed`] if an option's length is impossible.
    pub fn parse(mut bytes: &[u8]) -> Result<Self, Malformed> {
        let mut options = Self::default();
        //= RFC 9293 section 3.1, MUST-4 to MUST-7, MUST-68: END and NOP are one byte long; others have a length, and one that
        //= cannot be is handled without harm; section 3.2, MUST-64: at any alignment.
        while let Some((&kind, rest)) = bytes.split_first() {
            if kind == kind::END {
                break;
            }
            if kind == kind::NOP {
                bytes = rest;
                continue;
            }
            let len = usize::from(*rest.first().ok_or(Malformed::Length)?);
            let body = bytes.get(2..len).ok_or(Malformed::Length)?;
            options.take(kind, body);
            bytes = bytes.get(len..).ok_or(Malformed::Length)?;
        }
        Ok(options)
    }

    fn take(&mut self, kind: u8, body: &[u8]) {
        match (kind, body) {
            (kind::MSS, &[a, b]) => self.mss = Some(u16::from_be_bytes([a, b])),
            //= RFC 7323 section 2.3: a shift above 14 is taken for 14.
            (kind::WINDOW_SCALE, &[shift]) => self.window_scale = Some(shift.min(14)),
            (kind::SACK_PERMITTED, []) => self.sack_permitted = true,
            (kind::TIMESTAMPS, &[a, b, c, d, e, f, g, h]) => {
                self.timestamps = Some(Timestamps {
                    value: u32::from_be_bytes([a, b, c, d]),
                    echo: u32::from_be_bytes([e, f, g, h]),
                });
            }
            (kind::SACK, blocks) if blocks.len() % 8 == 0 => {
                for block in blocks.chunks_exact(8) {
                    let &[a, b, c, d, e, f, g, h] = block else { return };
                    self.sack.push(SeqRange {
                        start: SeqNumber(u32::from_be_bytes([a, b, c, d])),
                        end: SeqNumber(u32::from_be_bytes([e, f, g, h])),
                    });
                }
            }
            (kind::USER_TIMEOUT, &[a, b]) => {
                //= RFC 5482 section 3: the first bit says minutes, the other fifteen how many.
                let value = u32::from(u16::from_be_bytes([a, b]));
                let unit = if value & 0x8000 != 0 { 60 } else { 1 };
                self.user_timeout = Some(UserTimeout { seconds: (value & 0x7fff) * unit });
            }
            //= RFC 9293 section 3.1, MUST-6: an option that is not known is ignored.
            _ => {}
        }
    }
}

impl Header {
    /// Reads a header, and returns it with its length in bytes: the payload follows.
    ///
    /// # Errors
    /// [`Malformed`] if the bytes are too few or an option cannot be.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Self, usize), Malformed> {
        let (fixed, _) = bytes.split_first_chunk::<HEADER_LEN>().ok_or(Malformed::Truncated)?;
        let len = usize::from(fixed[12] >> 4) * 4;
        let options = bytes.get(HEADER_LEN..len).ok_or(Malformed::Length)?;
        let half = |at: usize| u16::from_be_bytes([fixed[at], fixed[at + 1]]);
        let word = |at: usize| u32::from_be_bytes([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]]);
        let header = Self {
            source_port: half(0),
            destination_port: half(2),
            seq: SeqNumber(word(4)),
            ack: SeqNumber(word(8)),
            //= RFC 9293 section 3.1: the bits between data offset and CWR are reserved and ignored.
            flags: Flags(fixed[13]),
            window: half(14),
            urgent: half(18),
            options: match options {
                // The layout of all segments of an established connection with timestamps (RFC 7323 appendix A).
                &[1, 1, 8, 10, a, b, c, d, e, f, g, h] => Options {
                    timestamps: Some(Timestamps {
                        value: u32::from_be_bytes([a, b, c, d]),
                        echo: u32::from_be_bytes([e, f, g, h]),
                    }),
                    ..Options::default()
                },
                [] => Options::default(),
                options => Options::parse(options)?,
            },
        };
        Ok((header, len))
    }

    /// The header's bytes, padded to a word, with a checksum of zero. As many SACK blocks as fit beside the other
    /// options; options are aligned as RFC 7323 appendix A recommends.
    #[inline]
    pub fn emit(&self) -> HeaderBytes {
        if let Some(stamps) = self.only_timestamps() {
            return self.emit_plain(stamps);
        }
        let mut out = Writer { bytes: [0; MAX_HEADER_LEN], len: HEADER_LEN };
        let Options { mss, window_scale, sack_permitted, timestamps, sack, user_timeout } = &self.options;
        if let Some(mss) = mss {
            let [a, b] = mss.to_be_bytes();
            out.put(&[kind::MSS, 4, a, b]);
        }
        match (timestamps, sack_permitted) {
            (Some(_), true) => out.put(&[kind::SACK_PERMITTED, 2]),
            (Some(_), false) => out.put(&[kind::NOP, kind::NOP]),
            (None, true) => out.put(&[kind::NOP, kind::NOP, kind::SACK_PERMITTED, 2]),
            (None, false) => {}
        }
        if let Some(Timestamps { value, echo }) = timestamps {
            let ([a, b, c, d], [e, f, g, h]) = (value.to_be_bytes(), echo.to_be_bytes());
            out.put(&[kind::TIMESTAMPS, 10, a, b, c, d, e, f, g, h]);
        }
        if let Some(shift) = window_scale {
            out.put(&[kind::NOP, kind::WINDOW_SCALE, 3, *shift]);
        }
        if let Some(UserTimeout { seconds }) = user_timeout {
            let value = if *seconds < 0x8000 { *seconds } else { (*seconds / 60).min(0x7fff) | 0x8000 };
            let [a, b] = (value as u16).to_be_bytes();
            out.put(&[kind::USER_TIMEOUT, 4, a, b]);
        }
        let room = (MAX_HEADER_LEN - out.len).saturating_sub(4) / 8;
        let blocks = sack.as_slice();
        let blocks = blocks.get(..room).unwrap_or(blocks);
        if !blocks.is_empty() {
            out.put(&[kind::NOP, kind::NOP, kind::SACK, 2 + 8 * blocks.len() as u8]);
            for SeqRange { start, end } in blocks {
                out.put(&start.0.to_be_bytes());
                out.put(&end.0.to_be_bytes());
            }
        }
        //= RFC 9293 section 3.1, MUST-69: nothing but zeros may follow the last option. Every piece above is a whole number
        //= of words, so nothing follows.
        let Writer { mut bytes, len } = out;
        self.put_fixed(&mut bytes, len);
        HeaderBytes { bytes, len: len as u8 }
    }

    /// The timestamps, if there is no other option.
    #[inline]
    fn only_timestamps(&self) -> Option<Timestamps> {
        let Options { mss, window_scale, sack_permitted, timestamps, sack, user_timeout } = &self.options;
        let others = mss.is_some() || window_scale.is_some() || *sack_permitted || user_timeout.is_some();
        if others || !sack.is_empty() { None } else { *timestamps }
    }

    /// A header with timestamps alone, as most segments have it: the same bytes with less effort.
    #[inline]
    fn emit_plain(&self, stamps: Timestamps) -> HeaderBytes {
        const LEN: usize = HEADER_LEN + 12;
        let mut bytes = [0; MAX_HEADER_LEN];
        self.put_fixed(&mut bytes, LEN);
        bytes[20..24].copy_from_slice(&[kind::NOP, kind::NOP, kind::TIMESTAMPS, 10]);
        bytes[24..28].copy_from_slice(&stamps.value.to_be_bytes());
        bytes[28..LEN].copy_from_slice(&stamps.echo.to_be_bytes());
        HeaderBytes { bytes, len: LEN as u8 }
    }

    /// Writes the fields of all headers; `len` is the length with options.
    #[inline]
    fn put_fixed(&self, bytes: &mut [u8; MAX_HEADER_LEN], len: usize) {
        bytes[0..2].copy_from_slice(&self.source_port.to_be_bytes());
        bytes[2..4].copy_from_slice(&self.destination_port.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.seq.0.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.ack.0.to_be_bytes());
        bytes[12] = (len as u8 / 4) << 4;
        bytes[13] = self.flags.0;
        bytes[14..16].copy_from_slice(&self.window.to_be_bytes());
        bytes[18..20].copy_from_slice(&self.urgent.to_be_bytes());
    }
}

struct Writer {
    bytes: [u8; MAX_HEADER_LEN],
    len: usize,
}

impl Writer {
    /// Appends a part, or leaves it out if it does not fit (all options together take 40 bytes at most).
    #[inline]
    fn put(&mut self, part: &[u8]) {
        if let Some(slot) = self.bytes.get_mut(self.len..self.len + part.len()) {
            slot.copy_from_slice(part);
            self.len += part.len();
        }
    }
}
