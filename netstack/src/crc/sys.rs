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
pub(super) fn between(_front: [u8; 4], _bytes: &[u8], _back: [u8; 4]) -> Option<u32> {
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

/// The CRC32C of `bytes` between two words; `None` as for [`behind`].
#[cfg(target_arch = "x86_64")]
#[inline]
pub(super) fn between(front: [u8; 4], bytes: &[u8], back: [u8; 4]) -> Option<u32> {
    if bytes.len() <= SHORT && has_instruction() {
        // SAFETY: as above.
        return Some(unsafe { framed(front, bytes, back) });
    }
    None
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn has_instruction() -> bool {
    is_x86_feature_detected!("sse4.2")
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse4.2")]
fn framed(front: [u8; 4], bytes: &[u8], back: [u8; 4]) -> u32 {
    !continued(continued(continued(!0, &front), bytes), &back)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse4.2")]
fn continued(state: u32, bytes: &[u8]) -> u32 {
    use core::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u16, _mm_crc32_u32, _mm_crc32_u64};

    let (words, rest) = bytes.as_chunks();
    let state =
        words.iter().fold(state.into(), |state, word| _mm_crc32_u64(state, u64::from_le_bytes(*word)));
    let (words, rest) = rest.as_chunks();
    let state =
        words.iter().fold(state as u32, |state, word| _mm_crc32_u32(state, u32::from_le_bytes(*word)));
    let (words, rest) = rest.as_chunks();
    let state = words.iter().fold(state, |state, word| _mm_crc32_u16(state, u16::from_le_bytes(*word)));
    rest.iter().fold(state, |state, byte| _mm_crc32_u8(state, *byte))
}
