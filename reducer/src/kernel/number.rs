//! The arithmetic of one element, which every instruction set shares.
//!
//! All of it is straight-line code: choices are made by selecting a value, never by branching, so that a loop
//! over it becomes vector instructions wherever the surrounding function allows them. The order of operations,
//! and with it every bit of the result, is that of the source text: Rust neither reassociates nor contracts.

use crate::float8::{F8E4M3, F8E5M2};

/// A type that arithmetic is done in: `f32`, `f64` or an integer.
pub(super) trait Number: Copy {
    fn sum(self, other: Self) -> Self;
    fn prod(self, other: Self) -> Self;
    fn min(self, other: Self) -> Self;
    fn max(self, other: Self) -> Self;
}

/// A type that has bits, or a truth value as its only bit.
pub(super) trait Bits: Copy {
    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    fn xor(self, other: Self) -> Self;
}

/// A reduction of two `N`. All are commutative to the bit, once NaN is canonical.
pub(super) trait Op<N> {
    fn apply(a: N, b: N) -> N;
}

macro_rules! ops {
    ($trait:ident: $($name:ident $method:ident)+) => {$(
        pub(super) struct $name;

        impl<N: $trait> Op<N> for $name {
            #[inline(always)]
            fn apply(a: N, b: N) -> N {
                a.$method(b)
            }
        }
    )+};
}
ops! { Number: Sum sum Min min Max max Prod prod }
ops! { Bits: And and Or or Xor xor }

/// Complex numbers are only multiplied here: they are added part by part, as floats.
macro_rules! complex_products {
    ($($t:ty)+) => {$(
        impl Op<Complex<$t>> for Prod {
            /// (a + bi)(c + di) = (ac - bd) + (ad + bc)i: both products and their sum are rounded.
            #[inline(always)]
            fn apply(Complex(a, b): Complex<$t>, Complex(c, d): Complex<$t>) -> Complex<$t> {
                Complex(a * c - b * d, a * d + b * c)
            }
        }
    )+};
}
complex_products! { f32 f64 }

/// The real and the imaginary part.
#[derive(Clone, Copy)]
pub(super) struct Complex<N>(pub(super) N, pub(super) N);

impl Bits for u8 {
    #[inline(always)]
    fn and(self, other: Self) -> Self {
        self & other
    }
    #[inline(always)]
    fn or(self, other: Self) -> Self {
        self | other
    }
    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        self ^ other
    }
}

macro_rules! integers {
    ($($t:ty)+) => {$(
        impl Number for $t {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn prod(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            #[inline(always)]
            fn min(self, other: Self) -> Self {
                if self < other { self } else { other }
            }
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                if self > other { self } else { other }
            }
        }
    )+};
}
integers! { i8 i16 i32 i64 u8 u16 u32 u64 }

macro_rules! floats {
    ($($t:ty)+) => {$(
        impl Number for $t {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn prod(self, other: Self) -> Self {
                self * other
            }
            /// IEEE 754-2019 `minimum`. The comparison that a CPU's `min` makes gives its second operand when
            /// either is NaN or both are zero, so it is made both ways: OR keeps a NaN, and the sign of a zero.
            #[inline(always)]
            fn min(self, other: Self) -> Self {
                let forth = if self < other { self } else { other };
                let back = if other < self { other } else { self };
                Self::from_bits(forth.to_bits() | back.to_bits())
            }
            /// IEEE 754-2019 `maximum`, as the above; AND clears the sign of a zero but may lose a NaN.
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                let forth = if self > other { self } else { other };
                let back = if other > self { other } else { self };
                let greatest = Self::from_bits(forth.to_bits() & back.to_bits());
                let nan = self.is_nan() | other.is_nan();
                if nan { Self::NAN } else { greatest }
            }
        }
    )+};
}
floats! { f32 f64 }

/// An element as it lies in a tensor, at any alignment, and the number that it is reduced as.
pub(super) trait Element: Copy {
    type Wide: Copy;

    fn widen(self) -> Self::Wide;
    /// Rounds to nearest even; every NaN becomes the type's one canonical NaN.
    fn narrow(wide: Self::Wide) -> Self;
}

/// An element that has averages.
pub(super) trait Quotient: Element {
    /// Divides by `n`, which is not zero.
    fn divide(self, n: u32) -> Self;
}

/// An element that can be multiplied by a real factor.
pub(super) trait Scaled: Element {
    /// Multiplies in the type that it is reduced in, to which the factor is rounded first; the product is rounded to the element's type.
    fn scale(self, factor: f64) -> Self;
}

/// A number between two passes of a fold: neither rounded nor made canonical.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Accumulator<N>(pub(super) N);

impl<N: Copy> Element for Accumulator<N> {
    type Wide = N;

    #[inline(always)]
    fn widen(self) -> N {
        self.0
    }
    #[inline(always)]
    fn narrow(wide: N) -> Self {
        Self(wide)
    }
}

/// The canonical NaN of each type: positive, quiet, without payload.
pub(super) const NAN_F16: u16 = 0x7e00;
pub(super) const NAN_BF16: u16 = 0x7fc0;
pub(super) const NAN_F32: u32 = 0x7fc0_0000;
pub(super) const NAN_F64: u64 = 0x7ff8_0000_0000_0000;

/// Defines an element over its bytes. `$divide`, if there is one, is given the widened number and `n`.
macro_rules! elements {
    ($($name:ident [$byte:ty; $size:literal] $wide:ty: $widen:expr, $narrow:expr $(, $divide:expr)?;)+) => {$(
        #[derive(Clone, Copy)]
        #[repr(transparent)]
        pub(super) struct $name(pub(super) [$byte; $size]);

        impl Element for $name {
            type Wide = $wide;

            #[inline(always)]
            fn widen(self) -> $wide {
                $widen(self.0)
            }
            #[inline(always)]
            fn narrow(wide: $wide) -> Self {
                Self($narrow(wide))
            }
        }

        $(impl Quotient for $name {
            #[inline(always)]
            fn divide(self, n: u32) -> Self {
                Self::narrow($divide(self.widen(), n))
            }
        })?
    )+};
}

// A quotient of 8 or 16 bits is rounded twice, first to f32, which shows only if the first rounding lands on a tie of the
// second. x/n is at least 1/(n * 2^12) (f16; 2^9 for bf16, 2^5 for e4m3, 2^4 for e5m2) away from such a tie, relative to
// itself, and f32 errs by 2^-24 at most: no tie is met for n up to 2^12 (f16; 2^15 for bf16, 2^19 for e4m3, 2^20 for e5m2).
//
// Integers of up to 32 bits divide exactly in floating point: unless x/n is an integer, it is at least 1/x away
// from the next, relative to itself, which is far more than the rounding error.
elements! {
    F16 [u8; 2] f32: |b| f16_to_f32(u16::from_ne_bytes(b)), |w| f32_to_f16(w).to_ne_bytes(), |x: f32, n: u32| x / n as f32;
    Bf16 [u8; 2] f32: |b| bf16_to_f32(u16::from_ne_bytes(b)), |w| f32_to_bf16(w).to_ne_bytes(), |x: f32, n: u32| x / n as f32;
    F32 [u8; 4] f32: f32::from_ne_bytes, canonical_f32, |x: f32, n: u32| x / n as f32;
    F64 [u8; 8] f64: f64::from_ne_bytes, canonical_f64, |x: f64, n: u32| x / f64::from(n);
    I8 [u8; 1] i8: i8::from_ne_bytes, i8::to_ne_bytes, |x: i8, n: u32| (f32::from(x) / n as f32) as i8;
    I16 [u8; 2] i16: i16::from_ne_bytes, i16::to_ne_bytes, |x: i16, n: u32| (f32::from(x) / n as f32) as i16;
    I32 [u8; 4] i32: i32::from_ne_bytes, i32::to_ne_bytes, |x: i32, n: u32| (f64::from(x) / f64::from(n)) as i32;
    I64 [u8; 8] i64: i64::from_ne_bytes, i64::to_ne_bytes, |x: i64, n: u32| x / i64::from(n);
    U8 [u8; 1] u8: u8::from_ne_bytes, u8::to_ne_bytes, |x: u8, n: u32| (f32::from(x) / n as f32) as u8;
    U16 [u8; 2] u16: u16::from_ne_bytes, u16::to_ne_bytes, |x: u16, n: u32| (f32::from(x) / n as f32) as u16;
    U32 [u8; 4] u32: u32::from_ne_bytes, u32::to_ne_bytes, |x: u32, n: u32| (f64::from(x) / f64::from(n)) as u32;
    U64 [u8; 8] u64: u64::from_ne_bytes, u64::to_ne_bytes, |x: u64, n: u32| x / u64::from(n);
    E4M3 [u8; 1] f32: |[b]: [u8; 1]| F8E4M3::from_bits(b).to_f32(), |w| [F8E4M3::from_f32(w).to_bits()], |x: f32, n: u32| x / n as f32;
    E5M2 [u8; 1] f32: |[b]: [u8; 1]| F8E5M2::from_bits(b).to_f32(), |w| [F8E5M2::from_f32(w).to_bits()], |x: f32, n: u32| x / n as f32;
    Complex64 [[u8; 4]; 2] Complex<f32>: |[re, im]: [[u8; 4]; 2]| Complex(f32::from_ne_bytes(re), f32::from_ne_bytes(im)), |w: Complex<f32>| [canonical_f32(w.0), canonical_f32(w.1)];
    Complex128 [[u8; 8]; 2] Complex<f64>: |[re, im]: [[u8; 8]; 2]| Complex(f64::from_ne_bytes(re), f64::from_ne_bytes(im)), |w: Complex<f64>| [canonical_f64(w.0), canonical_f64(w.1)];
    Bool [u8; 1] u8: |[b]: [u8; 1]| u8::from(b != 0), |w| [w];
}

macro_rules! scaled {
    ($($name:ident)+) => {$(
        impl Scaled for $name {
            #[inline(always)]
            fn scale(self, factor: f64) -> Self {
                Self::narrow(self.widen() * factor as <Self as Element>::Wide)
            }
        }
    )+};
}
scaled! { F16 Bf16 F32 F64 E4M3 E5M2 }

#[inline(always)]
fn canonical_f32(x: f32) -> [u8; 4] {
    let bits = if x.is_nan() { NAN_F32 } else { x.to_bits() };
    bits.to_ne_bytes()
}

#[inline(always)]
fn canonical_f64(x: f64) -> [u8; 8] {
    let bits = if x.is_nan() { NAN_F64 } else { x.to_bits() };
    bits.to_ne_bytes()
}

/// Exact: every binary16 is a binary32.
#[inline(always)]
pub(super) fn f16_to_f32(half: u16) -> f32 {
    const REBIAS: f32 = f32::from_bits((127 + 127 - 15) << 23); // 2^112
    let magnitude = u32::from(half & 0x7fff);
    // Exponent and significand moved into place; the product corrects the exponent's bias, of subnormals too.
    let finite = (f32::from_bits(magnitude << 13) * REBIAS).to_bits();
    let special = 0x7f80_0000 | magnitude << 13;
    let bits = if magnitude >= 0x7c00 { special } else { finite };
    f32::from_bits(bits | u32::from(half & 0x8000) << 16)
}

/// Rounds to nearest even; overflows to infinity, underflows through the subnormals.
#[inline(always)]
pub(super) fn f32_to_f16(x: f32) -> u16 {
    const LEAST_NORMAL: u32 = (127 - 14) << 23; // 2^-14
    const OVERFLOW: u32 = (127 + 16) << 23; // 2^16
    let bits = x.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    // 0.5 has its last bit at 2^-24, as the f16 subnormals have: the addition rounds just as they need.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    // Half of the last bit that stays, less one unless that bit is odd; a carry runs on into the exponent.
    let odd = magnitude >> 13 & 1;
    let normal = magnitude.wrapping_add(0xfff + odd).wrapping_sub((127 - 15) << 23) >> 13;
    let finite = if magnitude < LEAST_NORMAL { subnormal } else { normal };
    let special = if magnitude > 0x7f80_0000 { u32::from(NAN_F16) } else { 0x7c00 };
    let result = if magnitude >= OVERFLOW { special } else { finite };
    let sign = if magnitude > 0x7f80_0000 { 0 } else { bits >> 16 & 0x8000 };
    (result | sign) as u16
}

/// Exact: a bfloat16 is the upper half of a binary32.
#[inline(always)]
pub(super) fn bf16_to_f32(bf16: u16) -> f32 {
    f32::from_bits(u32::from(bf16) << 16)
}

/// Rounds to nearest even; subnormals are kept.
#[inline(always)]
pub(super) fn f32_to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let odd = bits >> 16 & 1;
    let rounded = bits.wrapping_add(0x7fff + odd) >> 16;
    let result = if x.is_nan() { u32::from(NAN_BF16) } else { rounded };
    result as u16
}
