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

#[cfg(test)]
mod tests;
