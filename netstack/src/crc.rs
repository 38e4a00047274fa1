//! CRC32C (RFC 3720 section 12.1; the polynomial of Castagnoli), by the processor's own instructions where it has them.

/// The CRC32C of `bytes`; zero for none.
#[inline]
pub fn crc32c(bytes: &[u8]) -> u32 {
    if bytes.is_empty() { 0 } else { crc_fast::crc32_iscsi(bytes) }
}
