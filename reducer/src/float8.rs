//! The 8-bit floats of the Open Compute Project: OFP8, revision 1.0 ("OCP 8-bit Floating Point Specification", 2023), section 5.
//!
//! | | [`F8E4M3`] | [`F8E5M2`] |
//! |---|---|---|
//! | exponent's bias | 7 | 15 |
//! | largest | 448 | 57,344 |
//! | least normal | 2^-6 | 2^-14 |
//! | least subnormal | 2^-9 | 2^-16 |
//! | infinities | none | S.11111.00 |
//! | NaN | S.1111.111 | S.11111.01 to S.11111.11 |
//!
//! Of the specification's two ways to convert numbers that are too large, this is the one without saturation: the result is NaN in E4M3
//! and an infinity in E5M2, so an overflow shows, as it does in f16. Rounding comes first: a number that rounds to the largest one is not
//! too large.
//! Conversions are straight-line code, so that loops over them become vector instructions, and touch no subnormal f32, which many CPUs
//! are slow with.

use core::fmt;

/// 4 bits of exponent, 3 of fraction.
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub struct F8E4M3(u8);

/// 5 bits of exponent, 2 of fraction: the upper half of an f16.
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub struct F8E5M2(u8);

const SIGN: u8 = 0x80;
/// Exponent bits of an infinity or NaN, and of 1.
const SPECIAL_F32: u32 = 0x7f80_0000;
const BIAS_F32: u32 = 127;

/// The number of a magnitude with `fraction` bits of fraction, a power of two `least` for the last subnormal bit, and a bias.
#[inline(always)]
fn magnitude_to_f32(magnitude: u32, fraction: u32, least: f32, bias: u32) -> u32 {
    let subnormal = (magnitude as i32 as f32 * least).to_bits();
    let normal = (magnitude << (23 - fraction)) + ((BIAS_F32 - bias) << 23);
    if magnitude >> fraction == 0 { subnormal } else { normal }
}

/// A magnitude rounded to nearest even, as if exponents had no end; `magic` has its last bit where the subnormals have theirs.
#[inline(always)]
fn magnitude_from_f32(magnitude: u32, fraction: u32, magic: f32, bias: u32) -> u32 {
    let least_normal = (BIAS_F32 + 1 - bias) << 23;
    // The addition rounds just as the subnormals need.
    let subnormal = (f32::from_bits(magnitude) + magic).to_bits().wrapping_sub(magic.to_bits());
    // Half of the last bit that stays, less one unless that bit is odd; a carry runs on into the exponent.
    let cut = 23 - fraction;
    let odd = magnitude >> cut & 1;
    let normal =
        magnitude.wrapping_add((1 << (cut - 1)) - 1 + odd).wrapping_sub((BIAS_F32 - bias) << 23) >> cut;
    if magnitude < least_normal { subnormal } else { normal }
}

impl F8E4M3 {
    /// The canonical NaN: positive.
    pub const NAN: Self = Self(0x7f);

    /// The number of these bits.
    #[inline(always)]
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// Its bits.
    #[inline(always)]
    pub const fn to_bits(self) -> u8 {
        self.0
    }

    /// Exact.
    #[inline(always)]
    pub fn to_f32(self) -> f32 {
        let magnitude = u32::from(self.0 & !SIGN);
        let finite = magnitude_to_f32(magnitude, 3, 1.0 / 512.0, 7);
        let bits = if magnitude == 0x7f { f32::NAN.to_bits() } else { finite };
        f32::from_bits(bits | u32::from(self.0 & SIGN) << 24)
    }

    /// Rounds to nearest even. Numbers that are too large, infinities and NaNs become the canonical NaN.
    #[inline(always)]
    pub fn from_f32(x: f32) -> Self {
        let bits = x.to_bits();
        let magnitude = magnitude_from_f32(bits & 0x7fff_ffff, 3, 16384.0, 7);
        let sign = if magnitude < 0x7f { bits >> 24 & u32::from(SIGN) } else { 0 };
        Self((magnitude.min(0x7f) | sign) as u8)
    }
}

impl F8E5M2 {
    /// The canonical NaN: positive, quiet, without payload.
    pub const NAN: Self = Self(0x7e);

    /// The number of these bits.
    #[inline(always)]
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// Its bits.
    #[inline(always)]
    pub const fn to_bits(self) -> u8 {
        self.0
    }

    /// Exact.
    #[inline(always)]
    pub fn to_f32(self) -> f32 {
        let magnitude = u32::from(self.0 & !SIGN);
        let finite = magnitude_to_f32(magnitude, 2, 1.0 / 65536.0, 15);
        let bits = if magnitude >= 0x7c { SPECIAL_F32 | magnitude << 21 } else { finite };
        f32::from_bits(bits | u32::from(self.0 & SIGN) << 24)
    }

    /// Rounds to nearest even. A number that is too large becomes an infinity, every NaN the canonical one.
    #[inline(always)]
    pub fn from_f32(x: f32) -> Self {
        let bits = x.to_bits();
        let absolute = bits & 0x7fff_ffff;
        let magnitude = magnitude_from_f32(absolute, 2, 128.0, 15).min(0x7c);
        let number = magnitude | bits >> 24 & u32::from(SIGN);
        Self(if absolute > SPECIAL_F32 { Self::NAN.0 } else { number as u8 })
    }
}

macro_rules! as_numbers {
    ($($name:ident)+) => {$(
        /// As numbers: a NaN is not equal to itself, and the zeros are equal.
        impl PartialEq for $name {
            fn eq(&self, other: &Self) -> bool {
                self.to_f32() == other.to_f32()
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.to_f32(), f)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.to_f32(), f)
            }
        }
    )+};
}
as_numbers! { F8E4M3 F8E5M2 }

#[cfg(test)]
pub(crate) mod tests;
