//! The constants of the kernel `crc32c`: powers of x modulo Castagnoli's polynomial, computed when this crate is compiled.
//!
//! Words are polynomials over GF(2) with bit 31 for x^0 and bit 0 for x^31, as CRC32C has them.

/// Threads of a block, as in crc.cu: a row is one vector of 16 bytes for each.
pub(super) const THREADS: u32 = 256;
/// Bytes of a row.
pub(super) const ROW: u64 = 16 * THREADS as u64;

/// Castagnoli's polynomial (RFC 3720 section 12.1), without x^32.
const POLYNOMIAL: u32 = 0x82f6_3b78;
/// x^0 and x^8.
const ONE: u32 = 1 << 31;
const BYTE: u32 = 1 << 23;

/// The powers, laid out as the kernel's arguments have them.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Powers {
    /// x^32: the factor of a word that stands before another.
    word: u32,
    /// For each half byte and each of its values: that times x^(8 * [`ROW`]).
    next_row: [[u32; 16]; 8],
    /// For each thread: x^32 times x^(128 * the threads behind it in the row).
    to_end_of_row: [u32; THREADS as usize],
    /// x^(8 * 2^i).
    doubling: [u32; 48],
}

/// The one value there is.
pub(super) const POWERS: Powers = Powers::new();

impl Powers {
    const fn new() -> Self {
        let word = power(BYTE, 4);
        let vector = power(BYTE, 16);
        let row = power(BYTE, ROW);
        let mut powers =
            Self { word, next_row: [[0; 16]; 8], to_end_of_row: [0; THREADS as usize], doubling: [0; 48] };
        let mut i = 0;
        while i < 8 {
            let mut value = 0;
            while value < 16 {
                powers.next_row[i][value] = multiply((value as u32) << (4 * i), row);
                value += 1;
            }
            i += 1;
        }
        let mut thread = THREADS as usize;
        let mut behind = word;
        while thread > 0 {
            thread -= 1;
            powers.to_end_of_row[thread] = behind;
            behind = multiply(behind, vector);
        }
        let mut i = 0;
        let mut doubled = BYTE;
        while i < powers.doubling.len() {
            powers.doubling[i] = doubled;
            doubled = multiply(doubled, doubled);
            i += 1;
        }
        powers
    }
}

/// `a * b` modulo the polynomial.
const fn multiply(mut a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    while a != 0 {
        if a & ONE != 0 {
            product ^= b;
        }
        a <<= 1;
        b = if b & 1 == 1 { b >> 1 ^ POLYNOMIAL } else { b >> 1 };
    }
    product
}

/// `base` to the power of `exponent`.
const fn power(mut base: u32, mut exponent: u64) -> u32 {
    let mut result = ONE;
    while exponent != 0 {
        if exponent & 1 == 1 {
            result = multiply(result, base);
        }
        base = multiply(base, base);
        exponent >>= 1;
    }
    result
}
