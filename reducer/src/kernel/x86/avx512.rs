//! The kernels in 512-bit vectors: AVX-512 F, BW, DQ and VL.
//!
//! The instructions of AVX512-BF16 are not used: they flush subnormals, whatever MXCSR says.

use std::arch::x86_64::*;

use super::{Divide, Pair, Stored, kernels_with};
use crate::kernel::fold::{self, Fold};
use crate::kernel::number::{Bf16, Element, F16, F32, NAN_F32, Number, Op, Quotient, Scaled};
use crate::kernel::table::{Table, table};

kernels_with! {
    "avx512f,avx512bw,avx512dq,avx512vl", __m512 {
        sum(a, b) = _mm512_add_ps(a, b);
        prod(a, b) = _mm512_mul_ps(a, b);
        min(a, b) = _mm512_or_ps(_mm512_min_ps(a, b), _mm512_min_ps(b, a));
        max(a, b) = {
            let greatest = _mm512_and_ps(_mm512_max_ps(a, b), _mm512_max_ps(b, a));
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a, b);
            _mm512_mask_mov_ps(greatest, nan, _mm512_set1_ps(f32::from_bits(NAN_F32)))
        };
    }
}

impl Divide for Vector {
    #[inline(always)]
    fn divide(self, n: u32) -> Self {
        // SAFETY: a `Vector` exists only where the CPU has these instructions.
        Self(unsafe { _mm512_div_ps(self.0, _mm512_set1_ps(n as f32)) })
    }
}

/// `of`, with the canonical NaN wherever `x` is NaN.
#[inline]
#[target_feature(enable = "avx512f")]
fn canonical(of: __m512, x: __m512) -> __m512 {
    let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x);
    _mm512_mask_mov_ps(of, nan, _mm512_set1_ps(f32::from_bits(NAN_F32)))
}

/// Each element rounded to bf16, in its upper half; the bits in the lower half are to be ignored.
#[inline]
#[target_feature(enable = "avx512f")]
fn round_to_bf16(x: __m512) -> __m512i {
    let bits = _mm512_castps_si512(x);
    // Half of the last bit that stays, less one unless that bit is odd.
    let odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x1_0000));
    let half = _mm512_mask_mov_epi32(_mm512_set1_epi32(0x7fff), odd, _mm512_set1_epi32(0x8000));
    let rounded = _mm512_add_epi32(bits, half);
    _mm512_castps_si512(canonical(_mm512_castsi512_ps(rounded), x))
}

/// The first sixteen elements, and the next sixteen.
impl Stored<F32> for Vector {
    const PAIR: usize = 32;

    #[inline(always)]
    unsafe fn load(at: *const F32) -> Pair<Self> {
        // SAFETY: 128 bytes, by the caller's promise.
        unsafe { Pair(Self(_mm512_loadu_ps(at.cast())), Self(_mm512_loadu_ps(at.add(16).cast()))) }
    }

    #[inline(always)]
    unsafe fn store(Pair(a, b): Pair<Self>, at: *mut F32) {
        // SAFETY: 128 bytes, by the caller's promise.
        unsafe {
            _mm512_storeu_ps(at.cast(), canonical(a.0, a.0));
            _mm512_storeu_ps(at.add(16).cast(), canonical(b.0, b.0));
        }
    }
}

/// The first sixteen elements, and the next sixteen.
impl Stored<F16> for Vector {
    const PAIR: usize = 32;

    #[inline(always)]
    unsafe fn load(at: *const F16) -> Pair<Self> {
        // SAFETY: 64 bytes, by the caller's promise.
        unsafe {
            let at = at.cast::<__m256i>();
            let [a, b] = [0, 1].map(|i| Self(_mm512_cvtph_ps(_mm256_loadu_si256(at.add(i)))));
            Pair(a, b)
        }
    }

    #[inline(always)]
    unsafe fn store(Pair(a, b): Pair<Self>, at: *mut F16) {
        // SAFETY: 64 bytes, by the caller's promise.
        unsafe {
            let at = at.cast::<__m256i>();
            for (i, Self(x)) in [a, b].into_iter().enumerate() {
                let halves = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(canonical(x, x));
                _mm256_storeu_si256(at.add(i), halves);
            }
        }
    }
}

/// The elements at even places, and those at odd places.
impl Stored<Bf16> for Vector {
    const PAIR: usize = 32;

    #[inline(always)]
    unsafe fn load(at: *const Bf16) -> Pair<Self> {
        // SAFETY: 64 bytes, by the caller's promise.
        unsafe {
            let both = _mm512_loadu_si512(at.cast());
            let even = _mm512_slli_epi32::<16>(both);
            let odd = _mm512_and_si512(both, _mm512_set1_epi32(0xffff_0000_u32 as i32));
            Pair(Self(_mm512_castsi512_ps(even)), Self(_mm512_castsi512_ps(odd)))
        }
    }

    #[inline(always)]
    unsafe fn store(Pair(even, odd): Pair<Self>, at: *mut Bf16) {
        // SAFETY: 64 bytes, by the caller's promise.
        unsafe {
            let even = _mm512_srli_epi32::<16>(round_to_bf16(even.0));
            let both = _mm512_mask_mov_epi16(even, 0xaaaa_aaaa, round_to_bf16(odd.0));
            _mm512_storeu_si512(at.cast(), both);
        }
    }
}
