//! Reductions on the host: many tensors in, one out, element by element, the same bits on every machine.
//!
//! The promise that matters is not speed but that **every rank computes the same bits**, whatever its CPU: a
//! gradient that differs in its last bit between replicas lets them drift apart unseen. Hence
//!
//! - floats round to nearest even, subnormals are kept (whatever floating-point mode the calling thread has set for
//!   flushing them), and nothing is contracted into a fused multiply-add;
//! - f16, bf16 and the 8-bit floats are folded in f32 and rounded once per fold, not once per source;
//! - complex numbers are added and divided part by part, and multiplied as (ac - bd) + (ad + bc)i, each part by itself canonical;
//! - every NaN that leaves a kernel is the type's one canonical NaN (positive, quiet, no payload);
//! - minimum and maximum are those of IEEE 754-2019: a NaN wins, and -0 is less than +0;
//! - integers wrap;
//! - a truth value is 0 or 1 when it leaves a kernel, whatever byte stood for true.
//!
//! A reduction that a type does not have ([`ReduceOp::check`]) is refused before it comes here; should one come, nothing is written.
//!
//! The arithmetic is written once (`number`), and so are the loops (`fold`). Each instruction set compiles them
//! under its own `#[target_feature]` and puts the functions into a `table`; [`Kernels`] chooses a table when the
//! program runs, and a function once per call.
#![allow(unsafe_code)]

mod float_env;
mod fold;
mod number;
mod portable;
mod table;
#[cfg(test)]
pub(crate) mod tests;
#[cfg(target_arch = "x86_64")]
mod x86;

use self::float_env::FloatEnv;
use self::fold::Fold;
use self::table::Table;
use crate::dtype::{DType, ReduceOp};

/// The instructions that kernels may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// The instructions that every CPU of this architecture has.
    Portable,
    /// AVX2 and F16C: 256-bit vectors.
    Avx2,
    /// AVX-512 F, BW, DQ and VL: 512-bit vectors.
    Avx512,
}

impl Level {
    /// Every level, the least first.
    pub const ALL: &'static [Self] = &[Self::Portable, Self::Avx2, Self::Avx512];

    /// The functions of this level, if the CPU can execute them.
    fn table(self) -> Option<&'static Table> {
        match self {
            Self::Portable => Some(&portable::TABLE),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c"))
                .then_some(&x86::avx2::TABLE),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => (is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl"))
            .then_some(&x86::avx512::TABLE),
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx2 | Self::Avx512 => None,
        }
    }
}

/// The kernels of one instruction set. Cheap to copy; choose once, with [`detect`](Self::detect).
#[derive(Clone, Copy)]
pub struct Kernels {
    level: Level,
    table: &'static Table,
}

impl std::fmt::Debug for Kernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kernels").field("level", &self.level).finish_non_exhaustive()
    }
}

impl Kernels {
    /// The widest vectors that this CPU has.
    pub fn detect() -> Self {
        let portable = Self { level: Level::Portable, table: &portable::TABLE };
        Level::ALL.iter().rev().find_map(|&level| Self::with_level(level)).unwrap_or(portable)
    }

    /// The kernels of this level, or `None` where the CPU lacks its instructions. All levels give the same bits.
    pub fn with_level(level: Level) -> Option<Self> {
        level.table().map(|table| Self { level, table })
    }

    /// The instructions in use.
    pub fn level(&self) -> Level {
        self.level
    }

    /// `dst[i] = dst[i] op src[i]`. The slices hold elements of `dtype` at any alignment; of two lengths the
    /// shorter counts, and bytes after the last whole element are left as they are.
    pub fn accumulate(&self, dtype: DType, op: ReduceOp, dst: &mut [u8], src: &[u8]) {
        debug_assert_eq!(dst.len(), src.len(), "a tensor is reduced with one of the same length");
        let bytes = dst.len().min(src.len());
        let dst = dst.as_mut_ptr();
        // SAFETY: both are valid for `bytes`, disjoint from the source by the rules of `&mut`.
        unsafe { self.fold_raw(dtype, op, dst, &[dst, src.as_ptr()], bytes) }
    }

    /// `dst[i] = sources[0][i] op sources[1][i] op ...`, folded in that order. All hold elements of `dtype` at any alignment; the
    /// shortest of them counts.
    pub fn fold(&self, dtype: DType, op: ReduceOp, dst: &mut [u8], sources: &[&[u8]]) {
        let bytes = sources.iter().map(|source| source.len()).fold(dst.len(), usize::min);
        let sources: Vec<_> = sources.iter().map(|source| source.as_ptr()).collect();
        // SAFETY: all are valid for `bytes`, and the destination is apart from the sources by the rules of `&mut`.
        unsafe { self.fold_raw(dtype, op, dst.as_mut_ptr(), &sources, bytes) }
    }

    /// `dst = sources[0] op sources[1] op ...`, folded in that order, `bytes` long (a multiple of the element's
    /// size; bytes after the last whole element are left as they are). No sources: nothing is written.
    ///
    /// # Safety
    ///
    /// `dst` is valid for writes and each source for reads of `bytes`, at any alignment. `dst` may be exactly one
    /// of the sources, but overlaps none otherwise. Nothing else writes any of them, or reads `dst`, meanwhile.
    pub unsafe fn fold_raw(
        &self,
        dtype: DType,
        op: ReduceOp,
        dst: *mut u8,
        sources: &[*const u8],
        bytes: usize,
    ) {
        // SAFETY: the caller's promise is the same.
        unsafe { self.fold_raw2(dtype, op, dst, std::ptr::null_mut(), sources, bytes) }
    }

    /// As [`fold_raw`](Self::fold_raw), writing the result to two places in one pass: a rank's own tensor and
    /// the node's result in shared memory.
    ///
    /// # Safety
    ///
    /// As [`fold_raw`](Self::fold_raw), for each of `dst` and `dst2`, which may be the same but do not overlap
    /// otherwise. There may be no `dst2`: it is null then.
    pub unsafe fn fold_raw2(
        &self,
        dtype: DType,
        op: ReduceOp,
        dst: *mut u8,
        dst2: *mut u8,
        sources: &[*const u8],
        bytes: usize,
    ) {
        if sources.is_empty() {
            return;
        }
        let Some((fold, unit)) = self.table.fold(dtype, op) else {
            debug_assert!(false, "{op} of {dtype} was not refused");
            return;
        };
        let _ieee = FloatEnv::ieee();
        let job = Fold { dst, dst2, sources, count: units(bytes, dtype, unit) };
        // SAFETY: the memory is the caller's promise; `Level::table` has found the CPU to have the instructions.
        unsafe { fold(&job) }
    }

    /// Makes an average of a sum: divides each element by `n`. Floats are divided and rounded once; integers
    /// truncate toward zero. An `n` of 0 is taken for 1.
    ///
    /// [`ReduceOp::Avg`] folds as [`ReduceOp::Sum`]; the holder of the complete sum calls this, once. The
    /// quotient is correctly rounded for `n` up to 2^12 in f16, 2^15 in bf16, 2^19 in e4m3, 2^20 in e5m2, 2^24 in f32,
    /// and for every `n` in f64 and the integers.
    pub fn finish_avg(&self, dtype: DType, dst: &mut [u8], n: u32) {
        let Some((divide, unit)) = self.table.divide(dtype) else {
            debug_assert!(false, "avg of {dtype} was not refused");
            return;
        };
        let _ieee = FloatEnv::ieee();
        let count = units(dst.len(), dtype, unit);
        // SAFETY: the slice is valid for that many elements, `n` is at least 1, and `Level::table` has found
        // the CPU to have the instructions.
        unsafe { divide(dst.as_mut_ptr(), count, n.max(1)) }
    }

    /// Refuses types that [`scale`](Self::scale) does not have.
    ///
    /// # Errors
    /// [`NoFactor`] names the type.
    pub fn check_factor(&self, dtype: DType) -> Result<(), NoFactor> {
        self.table.scale(dtype).map(drop).ok_or(NoFactor(dtype))
    }

    /// `dst[i] = src[i] * factor`, of elements of `dtype` at any alignment; of two lengths the shorter counts. The factor is rounded to
    /// the type that sums are accumulated in (f32 for floats of up to 32 bits and complex numbers of them, else f64), the
    /// product to the element's type; complex numbers are multiplied part by part. Of a type without factors nothing is written.
    pub fn scale(&self, dtype: DType, dst: &mut [u8], src: &[u8], factor: f64) {
        let bytes = dst.len().min(src.len());
        // SAFETY: both are valid for `bytes`, and apart by the rules of `&mut`.
        unsafe { self.scale_raw(dtype, dst.as_mut_ptr(), src.as_ptr(), bytes, factor) }
    }

    /// Multiplies as [`scale`](Self::scale), in place.
    pub fn scale_in_place(&self, dtype: DType, data: &mut [u8], factor: f64) {
        let at = data.as_mut_ptr();
        // SAFETY: the slice is valid for as many bytes.
        unsafe { self.scale_raw(dtype, at, at, data.len(), factor) }
    }

    /// # Safety
    ///
    /// Both are valid for `bytes`; `dst` may be exactly `src` and does not overlap it otherwise.
    unsafe fn scale_raw(&self, dtype: DType, dst: *mut u8, src: *const u8, bytes: usize, factor: f64) {
        let Some((scale, unit)) = self.table.scale(dtype) else {
            debug_assert!(false, "a factor of {dtype} was not refused");
            return;
        };
        let _ieee = FloatEnv::ieee();
        // SAFETY: the memory is the caller's promise; `Level::table` has found the CPU to have the instructions.
        unsafe { scale(dst, src, units(bytes, dtype, unit), factor) }
    }
}

/// A type whose elements no real factor multiplies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no factor for {0}: floats and complex numbers have one; convert the elements, or multiply them where they are made"
)]
pub struct NoFactor(pub DType);

/// How many of `unit` there are in the whole elements of so many bytes. All sizes are powers of two.
#[inline]
fn units(bytes: usize, dtype: DType, unit: DType) -> usize {
    (bytes & !(dtype.size() - 1)) >> unit.size().trailing_zeros()
}
