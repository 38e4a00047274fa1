//! The kernels in the vectors of x86.
//!
//! The compiler makes vectors of the loops in [`fold`](super::fold) by itself, given leave to use the
//! instructions; [`kernels_with`] gives it. It does not find the CPU's conversions of f16, though, so f16 has
//! its own loop here over vectors of f32 that are loaded from and stored to f16.

use super::fold::{self, Fold};
use super::number::{F16, Number, Op};

pub(super) mod avx2;
pub(super) mod avx512;

/// A vector of f32 that lies in memory as f16. Its arithmetic is that of [`number`](super::number), to the bit.
trait HalfVector: Number {
    /// f16 elements in a vector.
    const LANES: usize;

    /// # Safety
    ///
    /// `at` is valid for reads of `LANES` elements, at any alignment; the CPU has the instructions.
    unsafe fn load(at: *const F16) -> Self;
    /// Rounds to nearest even; NaN becomes the canonical one.
    ///
    /// # Safety
    ///
    /// `at` is valid for writes of `LANES` elements, at any alignment; the CPU has the instructions.
    unsafe fn store(self, at: *mut F16);
    /// Every lane divided by `n`.
    fn divide(self, n: u32) -> Self;
}

/// Vectors in flight, so that additions do not wait for one another.
const UNROLL: usize = 4;

/// As [`fold::fold`], for f16. Accumulators stay in registers over all sources.
///
/// # Safety
///
/// As [`fold::fold`]; the CPU has the instructions of `V`.
#[inline(always)]
unsafe fn fold<V: HalfVector, O: Op>(job: &Fold<'_>) {
    let Fold { dst, dst2, sources, count } = *job;
    let [first, rest @ ..] = sources else { return };
    let block = UNROLL * V::LANES;
    let mut done = 0;
    while count - done >= block {
        // SAFETY: `done + block <= count`, so all pointers stay within what the caller vouches for. The block is
        // read from every source before it is written, so a destination may be a source.
        unsafe {
            let load = |source: *const u8, i: usize| V::load(source.cast::<F16>().add(done + i * V::LANES));
            let mut accumulators: [V; UNROLL] = std::array::from_fn(|i| load(*first, i));
            for source in rest {
                accumulators = std::array::from_fn(|i| O::apply(accumulators[i], load(*source, i)));
            }
            for (i, accumulator) in accumulators.iter().enumerate() {
                accumulator.store(dst.cast::<F16>().add(done + i * V::LANES));
            }
            if !dst2.is_null() {
                for (i, accumulator) in accumulators.iter().enumerate() {
                    accumulator.store(dst2.cast::<F16>().add(done + i * V::LANES));
                }
            }
        }
        done += block;
    }
    // SAFETY: the caller's promise is the same; `done <= count`.
    unsafe { fold::fold_from::<F16, O>(job, done) }
}

/// As [`fold::divide`], for f16.
///
/// # Safety
///
/// As [`fold::divide`]; the CPU has the instructions of `V`.
#[inline(always)]
unsafe fn divide<V: HalfVector>(dst: *mut u8, count: usize, n: u32) {
    let dst = dst.cast::<F16>();
    let whole = count - count % V::LANES;
    for done in (0..whole).step_by(V::LANES) {
        // SAFETY: `done + LANES <= count`.
        unsafe { V::load(dst.add(done)).divide(n).store(dst.add(done)) }
    }
    // SAFETY: the caller's promise is the same; `whole <= count`.
    unsafe { fold::divide::<F16>(dst.add(whole).cast(), count - whole, n) }
}

/// Compiles the kernels with `$features` into a `TABLE`, with f16 in vectors of `$register`, whose arithmetic
/// `$method` is `$result`.
macro_rules! kernels_with {
    ($features:literal, $register:ty { $($method:ident($a:ident, $b:ident) = $result:expr;)+ }) => {
        #[target_feature(enable = $features)]
        unsafe fn fold<E: Element, O: Op>(job: &Fold<'_>) {
            // SAFETY: the caller's promise is the same.
            unsafe { fold::fold::<E, O>(job) }
        }

        #[target_feature(enable = $features)]
        unsafe fn divide<E: Element>(dst: *mut u8, count: usize, n: u32) {
            // SAFETY: the caller's promise is the same.
            unsafe { fold::divide::<E>(dst, count, n) }
        }

        #[target_feature(enable = $features)]
        unsafe fn fold_half<O: Op>(job: &Fold<'_>) {
            // SAFETY: the caller's promise is the same; the instructions are those of this function.
            unsafe { super::fold::<Vector, O>(job) }
        }

        #[target_feature(enable = $features)]
        unsafe fn divide_half(dst: *mut u8, count: usize, n: u32) {
            // SAFETY: the caller's promise is the same; the instructions are those of this function.
            unsafe { super::divide::<Vector>(dst, count, n) }
        }

        pub(in crate::kernel) static TABLE: Table = table!(
            fold,
            divide,
            Row {
                sum: fold_half::<Sum>,
                min: fold_half::<Min>,
                max: fold_half::<Max>,
                prod: fold_half::<Prod>,
                divide: divide_half,
            }
        );

        /// A register of f32. Made only by [`load`](HalfVector::load), whose caller knows the CPU to have the
        /// instructions.
        #[derive(Clone, Copy)]
        struct Vector($register);

        impl Number for Vector {$(
            #[inline(always)]
            fn $method(self, other: Self) -> Self {
                let (Self($a), Self($b)) = (self, other);
                // SAFETY: a `Vector` exists only where the CPU has these instructions.
                Self(unsafe { $result })
            }
        )+}
    };
}
use kernels_with;
