//! The short form of a header, which leaves room for a small payload in the same cache line. Within a host it stands for that of a message
//! between two ranks in one fragment: the place says who has sent it, and the payload's length how many elements there are.
//!
//! ```text
//!    0..4   group        16..20  tag
//!    4..8   epoch        20..22  the shape's code
//!    8..16  seq          22..24  zero
//! ```

use super::{GRANULE_UNIT, Header, HeaderError, Identity, MatchKey, MessageKind, Shape};
use crate::grid::Rank;

/// Bytes of the short form.
pub const SHORT_HEADER_BYTES: usize = 24;

impl Header {
    /// The short form; `None` if another message has no such form.
    #[inline]
    pub fn to_short(&self) -> Option<[u8; SHORT_HEADER_BYTES]> {
        let Self { kind, src: _, key, identity, shape, round, offset, granule: _, len } = *self;
        let Identity::AdHoc { root: Rank(tag) } = identity else { return None };
        let is_whole = shape.count * shape.dtype.size() as u64 == u64::from(len) && offset == 0;
        if kind != MessageKind::Message || round != 0 || !is_whole || len as usize > GRANULE_UNIT {
            return None;
        }
        let mut out = [0; SHORT_HEADER_BYTES];
        out[0..4].copy_from_slice(&key.group.to_le_bytes());
        out[4..8].copy_from_slice(&key.epoch.to_le_bytes());
        out[8..16].copy_from_slice(&key.seq.to_le_bytes());
        out[16..20].copy_from_slice(&tag.to_le_bytes());
        out[20..22].copy_from_slice(&shape.code().to_le_bytes());
        Some(out)
    }

    /// The header of a message of `len` payload bytes that `src` has sent with this short form.
    ///
    /// # Errors
    /// The bytes are of no short form, or the payload is too long, or no whole number of elements.
    #[inline]
    pub fn of_short(src: Rank, bytes: &[u8], len: usize) -> Result<Self, HeaderError> {
        let short: &[u8; SHORT_HEADER_BYTES] =
            bytes.try_into().map_err(|_| HeaderError::Short(bytes.len()))?;
        let u32_at = |at: usize| u32::from_le_bytes([short[at], short[at + 1], short[at + 2], short[at + 3]]);
        let seq = u64::from(u32_at(8)) | u64::from(u32_at(12)) << 32;
        let shape = Shape::from_code(u16::from_le_bytes([short[20], short[21]]), 0)?;
        let (granule, len32) = (GRANULE_UNIT as u32, len as u32);
        if len > GRANULE_UNIT || !len.is_multiple_of(shape.dtype.size()) {
            return Err(HeaderError::Granule { len: len32, granule });
        }
        let key = MatchKey { group: u32_at(0), epoch: u32_at(4), seq };
        let (identity, count) =
            (Identity::AdHoc { root: Rank(u32_at(16)) }, (len / shape.dtype.size()) as u64);
        let shape = Shape { count, ..shape };
        Ok(Self { identity, shape, granule, len: len32, ..Self::new(MessageKind::Message, src, key) })
    }
}
