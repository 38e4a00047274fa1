//! CRC32C of a few bytes by SSE4.2's instruction. The library that computes long ones aligns its input first, and takes a
//! short one's first and last bytes one by one.
#![allow(unsafe_code)]

/// Other processors have none of it.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn behind(_first: u32, _bytes: &[u8]) -> Option<u32> {
    None
}

/// As above.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn between<const N: usize>(_: [u8; 4], _: &[u8; N], _: &[u8], _: [u8; 4]) -> Option<u32> {
    None
}

/// As above.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn nested<const N: usize>(_: [u8; 4], _: &[u8; N], _: &[u8], _: &[u8]) -> Option<u32> {
    None
}

/// The longest input for which vector instructions gain nothing.
#[cfg(target_arch = "x86_64")]
const SHORT: usize = 256;

/// Continues the CRC32C `first` with `bytes`; `None` if they are many, or if the processor lacks the instruction.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(super) fn behind(first: u32, bytes: &[u8]) -> Option<u32> {
    if bytes.len() <= SHORT && has_instruction() {
        // SAFETY: the processor has SSE4.2 (just asked), the only requirement.
        return Some(unsafe { !continued(!first, bytes) });
    }
    None
}

/// The CRC32C of `fixed` and `bytes` between two words; `None` as for [`behind`].
#[cfg(target_arch = "x86_64")]
#[inline]
pub(super) fn between<const N: usize>(
    front: [u8; 4],
    fixed: &[u8; N],
    bytes: &[u8],
    back: [u8; 4],
) -> Option<u32> {
    const { assert!(N % 8 == 4, "it begins with the second half of a word") };
    if bytes.len() <= SHORT && has_instruction() {
        // SAFETY: as above.
        return Some(unsafe { framed(front, fixed, bytes, back) });
    }
    None
}

/// The same with the CRC32C of `inner` as the second word, most significant byte first.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(super) fn nested<const N: usize>(
    front: [u8; 4],
    fixed: &[u8; N],
    bytes: &[u8],
    inner: &[u8],
) -> Option<u32> {
    const { assert!(N % 8 == 4, "it begins with the second half of a word") };
    if bytes.len() <= SHORT && inner.len() <= SHORT && has_instruction() {
        // SAFETY: as above.
        return Some(unsafe { framed_nested(front, fixed, bytes, inner) });
    }
    None
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse4.2")]
fn framed_nested<const N: usize>(front: [u8; 4], fixed: &[u8; N], bytes: &[u8], inner: &[u8]) -> u32 {
    framed(front, fixed, bytes, (!continued(!0, inner)).to_be_bytes())
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn has_instruction() -> bool {
    is_x86_feature_detected!("sse4.2")
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse4.2")]
#[inline]
fn framed<const N: usize>(front: [u8; 4], fixed: &[u8; N], bytes: &[u8], back: [u8; 4]) -> u32 {
    use core::arch::x86_64::{_mm_crc32_u32, _mm_crc32_u64};

    let (half, words) = fixed.as_rchunks::<8>();
    let half = half.first_chunk().map_or(0, |half| u32::from_le_bytes(*half));
    let first = u64::from(half) << 32 | u64::from(u32::from_le_bytes(front));
    let mut state = _mm_crc32_u64(u64::from(!0_u32), first);
    for word in words {
        state = _mm_crc32_u64(state, u64::from_le_bytes(*word));
    }
    !_mm_crc32_u32(continued(state as u32, bytes), u32::from_le_bytes(back))
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse4.2")]
#[inline]
fn continued(state: u32, bytes: &[u8]) -> u32 {
    use core::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u16, _mm_crc32_u32, _mm_crc32_u64};

    // Of 32 bytes, four instructions of the loop are those that it is for.
    let (blocks, rest) = bytes.as_chunks::<32>();
    let (words, rest) = rest.as_chunks();
    let mut state = u64::from(state);
    for block in blocks {
        for word in block.as_chunks().0 {
            state = _mm_crc32_u64(state, u64::from_le_bytes(*word));
        }
    }
    for word in words {
        state = _mm_crc32_u64(state, u64::from_le_bytes(*word));
    }
    let mut state = state as u32;
    if rest.is_empty() {
        return state;
    }
    let (words, rest) = rest.as_chunks();
    for word in words {
        state = _mm_crc32_u32(state, u32::from_le_bytes(*word));
    }
    let (words, rest) = rest.as_chunks();
    for word in words {
        state = _mm_crc32_u16(state, u16::from_le_bytes(*word));
    }
    rest.iter().fold(state, |state, byte| _mm_crc32_u8(state, *byte))
}
