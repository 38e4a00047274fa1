//! The kernels in 512-bit vectors: AVX-512 F, BW, DQ and VL.

use std::arch::x86_64::*;

use super::{HalfVector, kernels_with};
use crate::kernel::fold::{self, Fold};
use crate::kernel::number::{Element, F16, Max, Min, NAN_F32, Number, Op, Prod, Sum};
use crate::kernel::table::{Row, Table, table};

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

impl HalfVector for Vector {
    const LANES: usize = 16;

    #[inline(always)]
    unsafe fn load(at: *const F16) -> Self {
        // SAFETY: 32 bytes, by the caller's promise.
        Self(unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(at.cast())) })
    }

    #[inline(always)]
    unsafe fn store(self, at: *mut F16) {
        // SAFETY: 32 bytes, by the caller's promise.
        unsafe {
            let canonical = _mm512_set1_ps(f32::from_bits(NAN_F32));
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(self.0, self.0);
            let result = _mm512_mask_mov_ps(self.0, nan, canonical);
            let halves = _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(result);
            _mm256_storeu_si256(at.cast(), halves);
        }
    }

    #[inline(always)]
    fn divide(self, n: u32) -> Self {
        // SAFETY: a `Vector` exists only where the CPU has these instructions.
        Self(unsafe { _mm512_div_ps(self.0, _mm512_set1_ps(n as f32)) })
    }
}
