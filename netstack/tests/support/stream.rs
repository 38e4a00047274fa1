//! A stream whose bytes are known.

/// Byte `i` is `i % 251`.
const PERIOD: usize = 251;
static PATTERN: [u8; PERIOD * 300] = {
    let mut bytes = [0; PERIOD * 300];
    let mut i = 0;
    while i < bytes.len() {
        bytes[i] = (i % PERIOD) as u8;
        i += 1;
    }
    bytes
};

/// The bytes from `at` on, `len` at most.
pub(crate) fn stream(at: u64, len: usize) -> &'static [u8] {
    let from = (at % PERIOD as u64) as usize;
    &PATTERN[from..from + len.min(PATTERN.len() - from)]
}

/// Compares bytes with those from `at` on. The error is the position of the piece that differs.
pub(crate) fn is_stream(mut at: u64, mut bytes: &[u8]) -> Result<(), u64> {
    while !bytes.is_empty() {
        let expected = stream(at, bytes.len());
        if bytes[..expected.len()] != *expected {
            return Err(at);
        }
        at += expected.len() as u64;
        bytes = &bytes[expected.len()..];
    }
    Ok(())
}
