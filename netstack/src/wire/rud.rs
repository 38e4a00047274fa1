//! The RUD header (`rud/spec.md` section 4): parsed into and emitted from [`Header`], without allocation.
//!
//! ```text
//!  0      4  5  6    8            16    20    24            32    34    36    38    40
//!  | crc  |k |b | len|    tag      | psn | cum |    sack     | lag |word |marks|held | body (<= 64) | payload ...
//! ```
//!
//! All integers are in network order. Bit 15 of `word` says that the network marks datagrams, that of `held` that the time is only a bound.
//! The CRC is not checked here: it covers addresses that only the endpoint knows. A sealed datagram has its number in the CRC's place, body and
//! payload encrypted, and 16 bytes behind them (section 10).
#![forbid(unsafe_code)]

use core::fmt;

#[cfg(test)]
mod tests;

/// Bytes of the fixed header.
pub const HEADER_LEN: usize = 40;

/// Largest body behind the fixed header, in bytes: an upper layer's message header, or acknowledgement blocks.
pub const MAX_BODY: usize = 64;

/// Bytes behind the message header in the body of a piece: which part of the payload it has.
pub const SPLIT_LEN: usize = 4;

/// Pieces begin at multiples of so many bytes of payload.
pub const SPLIT_UNIT: usize = 64;

/// Bytes of one acknowledgement block.
pub const BLOCK_LEN: usize = 18;

/// Bytes of a stamp, which means something to the end alone that wrote it.
pub const STAMP_LEN: usize = 8;

/// Most acknowledgement blocks in one datagram.
pub const MAX_BLOCKS: usize = MAX_BODY / BLOCK_LEN;

/// Most messages in one bundle: as many as a block has bits for.
pub const MAX_BUNDLED: usize = 64;

/// Bytes in front of each message of a bundle: the lengths of its header and of its payload.
pub const RECORD_LEN: usize = 2;

/// PSNs from the lowest unsettled one that may be in use at once.
pub const MAX_WINDOW: u32 = 64 * (WORDS - 1);

/// 64-PSN words in a receiver's bitmap.
pub const WORDS: u32 = 64;

/// Bytes behind the payload of a sealed datagram: its authentication tag.
pub const SEAL_LEN: usize = 16;

const VERSION: u8 = 4;
const SEALED: u8 = 0x08;
const ACK_REQUEST: u8 = 0x80;
const NETWORK_MARKS: u16 = 0x8000;

/// A packet sequence number. The order is that of RFC 1982: it wraps.
#[derive(Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Psn(pub u32);

impl Psn {
    /// The PSN `count` later.
    #[inline]
    pub const fn plus(self, count: u32) -> Self {
        Self(self.0.wrapping_add(count))
    }

    /// The PSN `count` earlier.
    #[inline]
    pub const fn minus(self, count: u32) -> Self {
        Self(self.0.wrapping_sub(count))
    }

    /// How far `self` lies behind `earlier`, modulo 2^32.
    #[inline]
    pub const fn since(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }

    /// Whether `self` comes before `other`.
    #[inline]
    pub const fn is_before(self, other: Self) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }

    /// The first PSN of the 64-PSN word that `self` lies in.
    #[inline]
    pub const fn word_start(self) -> Self {
        Self(self.0 & !63)
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "psn {}", self.0)
    }
}

/// How long an end has had the datagram that arrived last, in units of 128 ns; the upper bit is set if it may have been there for
/// longer than that end can tell exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held(u16);

impl Held {
    const LATE: u16 = 1 << 15;
    const UNIT: u32 = 7;

    /// `nanos` nanoseconds; `late`: the end cannot tell exactly.
    #[inline]
    pub const fn new(nanos: u64, late: bool) -> Self {
        let most = (Self::LATE - 1) as u64;
        let units = if nanos >> Self::UNIT < most { nanos >> Self::UNIT } else { most };
        Self(units as u16 | if late { Self::LATE } else { 0 })
    }

    /// Nanoseconds; `None` if it was longer than can be said.
    #[inline]
    pub const fn nanos(self) -> Option<u64> {
        let units = self.0 & !Self::LATE;
        if units == Self::LATE - 1 { None } else { Some((units as u64) << Self::UNIT) }
    }

    /// Whether the end cannot tell exactly.
    #[inline]
    pub const fn is_late(self) -> bool {
        self.0 & Self::LATE != 0
    }
}

/// The kinds of datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatagramKind {
    /// A message: the body is the upper layer's header, the payload follows.
    Data = 0,
    /// An acknowledgement: the body is acknowledgement blocks, there is no payload.
    Ack = 1,
    /// An acknowledgement with a stamp behind its blocks, to be answered at once. A heartbeat is one.
    Probe = 2,
    /// An acknowledgement that brings a probe's stamp back.
    Answer = 3,
    /// A part of a message whose datagram is too long for the path.
    Piece = 4,
    /// Several small messages: the payload is a record of each, there is no body.
    Bundle = 5,
}

impl DatagramKind {
    /// Whether it brings messages, or a part of one.
    #[inline]
    pub const fn has_message(self) -> bool {
        matches!(self, Self::Data | Self::Piece | Self::Bundle)
    }

    /// Bytes of stamp in the body.
    const fn stamp_len(self) -> usize {
        match self {
            Self::Data | Self::Ack | Self::Piece | Self::Bundle => 0,
            Self::Probe | Self::Answer => STAMP_LEN,
        }
    }
}

/// Why bytes are not a RUD datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MalformedDatagram {
    /// Shorter than the fixed header.
    #[error("a RUD datagram has at least 40 bytes")]
    Short,
    /// Another version, or no RUD at all.
    #[error("not version 4 of RUD; run the same version on every host")]
    Version,
    /// A kind of datagram that version 4 does not have.
    #[error("unknown kind of RUD datagram")]
    Kind,
    /// The lengths in the header do not add up to the datagram's.
    #[error("the lengths in the RUD header do not add up to the datagram's length")]
    Length,
    /// A field is out of its range.
    #[error("a field of the RUD header is out of its range")]
    Range,
}

/// The fixed header, without the CRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The datagram's kind.
    pub kind: DatagramKind,
    /// The sender requests an acknowledgement without delay.
    pub ack_request: bool,
    /// Bytes of body behind the fixed header, at most [`MAX_BODY`]; in a piece [`SPLIT_LEN`] more.
    pub body_len: u8,
    /// Bytes of payload behind the body.
    pub payload_len: u16,
    /// The receiver's session tag.
    pub tag: u64,
    /// This datagram's PSN; in an acknowledgement, the next PSN that will be sent first.
    pub psn: Psn,
    /// Distance from the sender's lowest unsettled PSN up to `psn`, at most [`MAX_WINDOW`].
    pub base_lag: u16,
    /// Every PSN before this one has arrived.
    pub cumulative: Psn,
    /// The 64-PSN word that `sack` describes, counted from the word that `cumulative` lies in; below [`WORDS`].
    pub sack_word: u16,
    /// Bit i is set if PSN i of the described word has been consumed.
    pub sack: u64,
    /// Data datagrams that have arrived here with a mark (ECN: Congestion Experienced), modulo 2^16.
    pub marks: u16,
    /// The network marks datagrams, as far as this end knows.
    pub network_marks: bool,
    /// How long this end has had the data datagram that arrived last.
    pub held: Held,
}

impl Header {
    /// Parses the header of `datagram`, which is the whole UDP payload: the lengths have to add up.
    ///
    /// # Errors
    /// The bytes are no datagram of this version, or a field is outside its range.
    #[inline]
    pub fn parse(datagram: &[u8]) -> Result<Self, MalformedDatagram> {
        let fixed = datagram.first_chunk::<HEADER_LEN>().ok_or(MalformedDatagram::Short)?;
        Self::parse_fixed(fixed, fixed[4], datagram.len())
    }

    /// The same of a sealed datagram, and the lower half of its number. Nothing of it is to be believed before the seal was checked.
    ///
    /// # Errors
    /// As [`parse`](Self::parse), and for a datagram that is not sealed.
    pub fn parse_sealed(datagram: &[u8]) -> Result<(Self, u32), MalformedDatagram> {
        let fixed = datagram.first_chunk::<HEADER_LEN>().ok_or(MalformedDatagram::Short)?;
        if fixed[4] & SEALED == 0 {
            return Err(MalformedDatagram::Kind);
        }
        let len = datagram.len().checked_sub(SEAL_LEN).ok_or(MalformedDatagram::Short)?;
        Ok((Self::parse_fixed(fixed, fixed[4] & !SEALED, len)?, u32_at(fixed, 0)))
    }

    /// `kind` is the byte of version and kind; `len` the bytes of header, body and payload.
    #[inline(always)]
    fn parse_fixed(fixed: &[u8; HEADER_LEN], kind: u8, len: usize) -> Result<Self, MalformedDatagram> {
        if kind >> 4 != VERSION {
            return Err(MalformedDatagram::Version);
        }
        let kind = match kind & 0x0f {
            0 => DatagramKind::Data,
            1 => DatagramKind::Ack,
            2 => DatagramKind::Probe,
            3 => DatagramKind::Answer,
            4 => DatagramKind::Piece,
            5 => DatagramKind::Bundle,
            _ => return Err(MalformedDatagram::Kind),
        };
        let header = Self {
            kind,
            ack_request: fixed[5] & ACK_REQUEST != 0,
            body_len: fixed[5] & !ACK_REQUEST,
            payload_len: u16_at(fixed, 6),
            tag: u64_at(fixed, 8),
            psn: Psn(u32_at(fixed, 16)),
            cumulative: Psn(u32_at(fixed, 20)),
            sack: u64_at(fixed, 24),
            base_lag: u16_at(fixed, 32),
            sack_word: u16_at(fixed, 34) & !NETWORK_MARKS,
            marks: u16_at(fixed, 36),
            network_marks: u16_at(fixed, 34) & NETWORK_MARKS != 0,
            held: Held(u16_at(fixed, 38)),
        };
        //= rud/spec.md section 4.1, RUD-8
        if header.body_len as usize > MAX_BODY && !header.is_long_piece()
            || u32::from(header.base_lag) > MAX_WINDOW
            || u32::from(header.sack_word) >= WORDS
        {
            return Err(MalformedDatagram::Range);
        }
        //= rud/spec.md section 4.1, RUD-7
        if HEADER_LEN + header.body_len as usize + header.payload_len as usize != len {
            return Err(MalformedDatagram::Length);
        }
        if kind != DatagramKind::Data && !header.has_right_body() {
            return Err(MalformedDatagram::Length);
        }
        Ok(header)
    }

    /// Whether it is a piece with a body of up to [`SPLIT_LEN`] more than others have.
    #[cold]
    fn is_long_piece(&self) -> bool {
        self.kind == DatagramKind::Piece && usize::from(self.body_len) <= MAX_BODY + SPLIT_LEN
    }

    /// Whether body and payload are such as the kind has, which is not data.
    fn has_right_body(&self) -> bool {
        let body = usize::from(self.body_len);
        match self.kind {
            DatagramKind::Piece => return body >= SPLIT_LEN,
            DatagramKind::Bundle => return body == 0,
            _ => {}
        }
        let blocks = body.checked_sub(self.kind.stamp_len());
        (self.payload_len == 0 || self.kind == DatagramKind::Probe)
            && blocks.is_some_and(|len| len.is_multiple_of(BLOCK_LEN))
    }

    /// The tag in `datagram`, even if the rest of it is malformed.
    #[inline]
    pub fn tag_of(datagram: &[u8]) -> Option<u64> {
        datagram.first_chunk::<HEADER_LEN>().map(|fixed| u64_at(fixed, 8))
    }

    /// Writes the header; the CRC field is left as it is.
    #[inline]
    pub fn emit(&self, out: &mut [u8; HEADER_LEN]) {
        out[4] = VERSION << 4 | self.kind as u8;
        out[5] = self.body_len | if self.ack_request { ACK_REQUEST } else { 0 };
        out[6..8].copy_from_slice(&self.payload_len.to_be_bytes());
        out[8..16].copy_from_slice(&self.tag.to_be_bytes());
        out[16..20].copy_from_slice(&self.psn.0.to_be_bytes());
        out[20..24].copy_from_slice(&self.cumulative.0.to_be_bytes());
        out[24..32].copy_from_slice(&self.sack.to_be_bytes());
        out[32..34].copy_from_slice(&self.base_lag.to_be_bytes());
        let word = self.sack_word | if self.network_marks { NETWORK_MARKS } else { 0 };
        out[34..36].copy_from_slice(&word.to_be_bytes());
        out[36..38].copy_from_slice(&self.marks.to_be_bytes());
        out[38..40].copy_from_slice(&self.held.0.to_be_bytes());
    }

    /// Marks a header that was emitted as that of a sealed datagram with this number.
    pub fn mark_sealed(fixed: &mut [u8; HEADER_LEN], number: u64) {
        //= rud/spec.md section 10.1, RUD-91
        fixed[..4].copy_from_slice(&(number as u32).to_be_bytes());
        fixed[4] |= SEALED;
    }

    /// The stamp in `datagram`, if it has one.
    #[inline]
    pub fn stamp(&self, datagram: &[u8]) -> Option<u64> {
        if self.kind.stamp_len() == 0 {
            return None;
        }
        datagram
            .get(..self.payload_offset())?
            .last_chunk::<STAMP_LEN>()
            .map(|bytes| u64::from_be_bytes(*bytes))
    }

    /// Which part of a message's payload `datagram` has, if it is a piece.
    #[inline]
    pub fn split(&self, datagram: &[u8]) -> Option<Split> {
        if self.kind != DatagramKind::Piece {
            return None;
        }
        let bytes = datagram.get(..self.payload_offset())?.last_chunk::<SPLIT_LEN>()?;
        Some(Split { unit: u16_at(bytes, 0), total: u16_at(bytes, 2) })
    }

    /// The sender's base: everything before it is settled.
    #[must_use]
    #[inline]
    pub fn base(&self) -> Psn {
        self.psn.minus(u32::from(self.base_lag))
    }

    /// The offset of the payload in the datagram.
    #[inline]
    pub fn payload_offset(&self) -> usize {
        HEADER_LEN + self.body_len as usize
    }
}

/// Which part of a message's payload a piece has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    /// Where it begins, in units of [`SPLIT_UNIT`] bytes.
    pub unit: u16,
    /// Bytes of the whole payload.
    pub total: u16,
}

impl Split {
    /// Writes it.
    #[inline]
    pub fn emit(&self, out: &mut [u8; SPLIT_LEN]) {
        out[0..2].copy_from_slice(&self.unit.to_be_bytes());
        out[2..4].copy_from_slice(&self.total.to_be_bytes());
    }
}

/// The messages in the payload of a bundle, as header and payload each: those up to the first that is cut off.
#[derive(Clone, Debug)]
pub struct Bundled<'a>(&'a [u8]);

impl<'a> Bundled<'a> {
    /// Those in `payload`, which was received.
    #[inline]
    pub const fn new(payload: &'a [u8]) -> Self {
        Self(payload)
    }

    /// Whether `payload` is that of a bundle: one message to [`MAX_BUNDLED`], the last of which ends with it, and each with a header of
    /// at most [`MAX_BODY`] bytes.
    #[inline]
    pub fn are_whole(payload: &'a [u8]) -> bool {
        let mut messages = Self(payload);
        let mut count = 0;
        for (header, _) in messages.by_ref() {
            count += 1;
            //= rud/spec.md section 4.2, RUD-10
            if count > MAX_BUNDLED || header.len() > MAX_BODY {
                return false;
            }
        }
        count != 0 && messages.0.is_empty()
    }
}

impl<'a> Iterator for Bundled<'a> {
    type Item = (&'a [u8], &'a [u8]);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let (lengths, rest) = self.0.split_first_chunk::<RECORD_LEN>()?;
        let (header, rest) = rest.split_at_checked(lengths[0].into())?;
        let (payload, rest) = rest.split_at_checked(lengths[1].into())?;
        self.0 = rest;
        Some((header, payload))
    }
}

/// The state of the 64 PSNs of one word, or of the messages of one bundle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// The word, counted from the one that the cumulative acknowledgement lies in; or with [`Block::BUNDLE`] a PSN, counted from the
    /// first of that word.
    pub word: u16,
    /// Bit i: PSN i of the word, or message i of the bundle, was consumed.
    pub received: u64,
    /// Bit i: it was refused, and has to be sent again under another PSN.
    pub refused: u64,
}

impl Block {
    /// The bit of `word` in the block of a bundle.
    pub const BUNDLE: u16 = 1 << 15;

    /// Of a bundle's block, its PSN, counted from the first of the word that the cumulative acknowledgement lies in.
    #[inline]
    pub fn bundle(&self) -> Option<u32> {
        (self.word & Self::BUNDLE != 0).then_some(u32::from(self.word & !Self::BUNDLE))
    }

    fn is_in_range(&self) -> bool {
        self.bundle().map_or(u32::from(self.word) < WORDS, |psn| psn < 64 * WORDS)
    }

    /// The blocks in the body of an acknowledgement. A block whose word is out of range ends them.
    #[inline]
    pub fn parse_all(body: &[u8]) -> impl Iterator<Item = Self> + '_ {
        let (chunks, _) = body.as_chunks::<BLOCK_LEN>();
        chunks
            .iter()
            .map(|bytes| Self {
                word: u16_at(bytes, 0),
                received: u64_at(bytes, 2),
                refused: u64_at(bytes, 10),
            })
            .take_while(Self::is_in_range)
    }

    /// Writes the block.
    #[inline]
    pub fn emit(&self, out: &mut [u8; BLOCK_LEN]) {
        out[0..2].copy_from_slice(&self.word.to_be_bytes());
        out[2..10].copy_from_slice(&self.received.to_be_bytes());
        out[10..18].copy_from_slice(&self.refused.to_be_bytes());
    }
}

#[inline]
fn u16_at<const N: usize>(bytes: &[u8; N], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

#[inline]
fn u32_at<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[inline]
fn u64_at<const N: usize>(bytes: &[u8; N], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) << 32 | u64::from(u32_at(bytes, at + 4))
}
