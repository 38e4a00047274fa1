//! The kernels in 256-bit vectors: AVX2, and F16C for f16.

use std::arch::x86_64::*;

use super::{HalfVector, kernels_with};
use crate::kernel::fold::{self, Fold};
use crate::kernel::number::{Element, F16, Max, Min, NAN_F32, Number, Op, Prod, Sum};
use crate::kernel::table::{Row, Table, table};

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

impl HalfVector for Vector {
    const LANES: usize = 8;

    #[inline(always)]
    unsafe fn load(at: *const F16) -> Self {
        // SAFETY: 16 bytes, by the caller's promise.
        Self(unsafe { _mm256_cvtph_ps(_mm_loadu_si128(at.cast())) })
    }

    #[inline(always)]
    unsafe fn store(self, at: *mut F16) {
        // SAFETY: 16 bytes, by the caller's promise.
        unsafe {
            let canonical = _mm256_set1_ps(f32::from_bits(NAN_F32));
            let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(self.0, self.0);
            let result = _mm256_blendv_ps(self.0, canonical, nan);
            _mm_storeu_si128(at.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(result));
        }
    }

    #[inline(always)]
    fn divide(self, n: u32) -> Self {
        // SAFETY: a `Vector` exists only where the CPU has these instructions.
        Self(unsafe { _mm256_div_ps(self.0, _mm256_set1_ps(n as f32)) })
    }
}
