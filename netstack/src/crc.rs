//! CRC32C (RFC 3720 section 12.1; the polynomial of Castagnoli), by the processor's own instructions where it has them.

mod sys;

/// The CRC32C of `bytes`; zero for none.
#[inline]
pub fn crc32c(bytes: &[u8]) -> u32 {
    sys::behind(0, bytes).unwrap_or_else(|| long(bytes))
}

/// Continues a CRC32C: `first` is that of the bytes before `second`, computed elsewhere.
#[inline]
pub fn crc32c_behind(first: u32, second: &[u8]) -> u32 {
    sys::behind(first, second).unwrap_or_else(|| long_behind(first, second))
}

// The library's functions are generic: not inlined, they are compiled here alone, and not with every caller.

#[inline(never)]
fn long(bytes: &[u8]) -> u32 {
    if bytes.is_empty() { 0 } else { crc_fast::crc32_iscsi(bytes) }
}

#[inline(never)]
fn long_between(front: [u8; 4], fixed: &[u8], bytes: &[u8], back: [u8; 4]) -> u32 {
    [fixed, bytes, &back].into_iter().fold(crc32c(&front), crc32c_behind)
}

#[inline(never)]
fn long_behind(first: u32, second: &[u8]) -> u32 {
    let state = u64::from(!first);
    let mut digest = crc_fast::Digest::new_with_init_state(crc_fast::CrcAlgorithm::Crc32Iscsi, state);
    digest.update(second);
    digest.finalize() as u32
}

/// The CRC32C of `fixed` and `bytes` between two words. The first word and `fixed` are whole words of 8 bytes together.
#[inline]
pub(crate) fn crc32c_between<const N: usize>(
    front: [u8; 4],
    fixed: &[u8; N],
    bytes: &[u8],
    back: [u8; 4],
) -> u32 {
    sys::between(front, fixed, bytes, back).unwrap_or_else(|| long_between(front, fixed, bytes, back))
}

/// The same with the CRC32C of `inner` as the second word, most significant byte first.
#[inline]
pub(crate) fn crc32c_nested<const N: usize>(
    front: [u8; 4],
    fixed: &[u8; N],
    bytes: &[u8],
    inner: &[u8],
) -> u32 {
    let apart = || crc32c_between(front, fixed, bytes, crc32c(inner).to_be_bytes());
    sys::nested(front, fixed, bytes, inner).unwrap_or_else(apart)
}

#[cfg(test)]
mod tests;
