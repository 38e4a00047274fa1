//! CRC32C (RFC 3720 section 12.1; the polynomial of Castagnoli), by the processor's own instructions where it has them.

/// The CRC32C of `bytes`; zero for none.
#[inline]
pub fn crc32c(bytes: &[u8]) -> u32 {
    if bytes.is_empty() { 0 } else { crc_fast::crc32_iscsi(bytes) }
}

/// The CRC32C of `first` with `second` behind it.
#[inline]
pub fn crc32c_of_two(first: &[u8], second: &[u8]) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(first);
    digest.update(second);
    digest.finalize() as u32
}

/// Continues a CRC32C: `first` is that of the bytes before `second`, computed elsewhere.
#[inline]
pub fn crc32c_behind(first: u32, second: &[u8]) -> u32 {
    let state = u64::from(!first);
    let mut digest = crc_fast::Digest::new_with_init_state(crc_fast::CrcAlgorithm::Crc32Iscsi, state);
    digest.update(second);
    digest.finalize() as u32
}

#[cfg(test)]
mod tests;
