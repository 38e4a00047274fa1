//! The kernels in 256-bit vectors: AVX2, and F16C for f16.

use std::arch::x86_64::*;

use super::{Divide, Pair, Stored, kernels_with};
use crate::kernel::fold::{self, Fold};
use crate::kernel::number::{Bf16, Element, F16, F32, NAN_F32, Number, Op, Quotient, Scaled};
use crate::kernel::table::{Table, table};

kernels_with! {
    "avx2,f16c", __m256 {
        sum(a, b) = _mm256_add_ps(a, b);
        prod(a, b) = _mm256_mul_ps(a, b);
        min(a, b) = _mm256_or_ps(_mm256_min_ps(a, b), _mm256_min_ps(b, a));
        max(a, b) = {
            let greatest = _mm256_and_ps(_mm256_max_ps(a, b), _mm256_max_ps(b, a));
            // All ones, where either is NaN: a NaN again.
            _mm256_or_ps(greatest, _mm256_cmp_ps::<_CMP_UNORD_Q>(a, b))
        };
    }
}

impl Divide for Vector {
    #[inline(always)]
    fn divide(self, n: u32) -> Self {
        // SAFETY: a `Vector` exists only where the CPU has these instructions.
        Self(unsafe { _mm256_div_ps(self.0, _mm256_set1_ps(n as f32)) })
    }
}

/// `of`, with the canonical NaN wherever `x` is NaN.
#[inline]
#[target_feature(enable = "avx2")]
fn canonical(of: __m256, x: __m256) -> __m256 {
    let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(x, x);
    _mm256_blendv_ps(of, _mm256_set1_ps(f32::from_bits(NAN_F32)), nan)
}

/// Each element rounded to bf16, in its upper half; the bits in the lower half are to be ignored.
#[inline]
#[target_feature(enable = "avx2")]
fn round_to_bf16(x: __m256) -> __m256i {
    let bits = _mm256_castps_si256(x);
    let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
    let rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    _mm256_castps_si256(canonical(_mm256_castsi256_ps(rounded), x))
}

/// The first eight elements, and the next eight.
impl Stored<F32> for Vector {
    const PAIR: usize = 16;

    #[inline(always)]
    unsafe fn load(at: *const F32) -> Pair<Self> {
        // SAFETY: 64 bytes, by the caller's promise.
        unsafe { Pair(Self(_mm256_loadu_ps(at.cast())), Self(_mm256_loadu_ps(at.add(8).cast()))) }
    }

    #[inline(always)]
    unsafe fn store(Pair(a, b): Pair<Self>, at: *mut F32) {
        // SAFETY: 64 bytes, by the caller's promise.
        unsafe {
            _mm256_storeu_ps(at.cast(), canonical(a.0, a.0));
            _mm256_storeu_ps(at.add(8).cast(), canonical(b.0, b.0));
        }
    }
}

/// The first eight elements, and the next eight.
impl Stored<F16> for Vector {
    const PAIR: usize = 16;

    #[inline(always)]
    unsafe fn load(at: *const F16) -> Pair<Self> {
        // SAFETY: 32 bytes, by the caller's promise.
        unsafe {
            let at = at.cast::<__m128i>();
            let [a, b] = [0, 1].map(|i| Self(_mm256_cvtph_ps(_mm_loadu_si128(at.add(i)))));
            Pair(a, b)
        }
    }

    #[inline(always)]
    unsafe fn store(Pair(a, b): Pair<Self>, at: *mut F16) {
        // SAFETY: 32 bytes, by the caller's promise.
        unsafe {
            let at = at.cast::<__m128i>();
            for (i, Self(x)) in [a, b].into_iter().enumerate() {
                let halves = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(canonical(x, x));
                _mm_storeu_si128(at.add(i), halves);
            }
        }
    }
}

/// The elements at even places, and those at odd places.
impl Stored<Bf16> for Vector {
    const PAIR: usize = 16;

    #[inline(always)]
    unsafe fn load(at: *const Bf16) -> Pair<Self> {
        // SAFETY: 32 bytes, by the caller's promise.
        unsafe {
            let both = _mm256_loadu_si256(at.cast());
            let even = _mm256_slli_epi32::<16>(both);
            let odd = _mm256_and_si256(both, _mm256_set1_epi32(0xffff_0000_u32 as i32));
            Pair(Self(_mm256_castsi256_ps(even)), Self(_mm256_castsi256_ps(odd)))
        }
    }

    #[inline(always)]
    unsafe fn store(Pair(even, odd): Pair<Self>, at: *mut Bf16) {
        // SAFETY: 32 bytes, by the caller's promise.
        unsafe {
            let even = _mm256_srli_epi32::<16>(round_to_bf16(even.0));
            let both = _mm256_blend_epi16::<0b1010_1010>(even, round_to_bf16(odd.0));
            _mm256_storeu_si256(at.cast(), both);
        }
    }
}
