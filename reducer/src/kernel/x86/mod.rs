//! The kernels in the vectors of x86.
//!
//! The compiler makes vectors of the loops in [`fold`](super::fold) by itself, where the instructions are enabled;
//! [`kernels_with`] enables them. Types that are reduced in f32 (f16, bf16, and f32 itself) have loops of their own
//! here, over vectors that are loaded from and stored to them: the compiler does not find the CPU's conversions of
//! f16, takes bf16 apart in a dearer way, and the accumulators stay in registers however many sources there are.

use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
use std::mem::MaybeUninit;

use super::fold::Fold;
use super::number::{Element, Number, Op};

pub(super) mod avx2;
pub(super) mod avx512;

/// Two vectors of f32 that lie in memory as consecutive elements of some type, in an order that suits the type.
#[derive(Clone, Copy)]
struct Pair<V>(V, V);

/// A vector of f32 whose arithmetic is that of [`number`](super::number), to the bit, and whose pairs lie in memory
/// as `E`.
trait Stored<E: Element>: Number {
    /// Elements of `E` in a pair of vectors.
    const PAIR: usize;

    /// # Safety
    ///
    /// `at` is valid for reads of `PAIR` elements, at any alignment; the CPU has the instructions.
    unsafe fn load(at: *const E) -> Pair<Self>;
    /// Rounds to nearest even; NaN becomes the canonical one.
    ///
    /// # Safety
    ///
    /// `at` is valid for writes of `PAIR` elements, at any alignment; the CPU has the instructions.
    unsafe fn store(pair: Pair<Self>, at: *mut E);
}

/// Division, element by element.
trait Divide {
    fn divide(self, n: u32) -> Self;
}

/// Pairs in flight, so that operations do not wait for one another.
const UNROLL: usize = 2;

/// Bytes from which a fold fetches its sources ahead, for they hardly are in the second-level cache.
const FAR: usize = 1 << 20;

/// How far ahead, in bytes; the best of the measured distances.
const AHEAD: usize = 1024;

/// As [`fold`](super::fold::fold). Accumulators stay in registers over all sources.
///
/// # Safety
///
/// As [`fold`](super::fold::fold); the CPU has the instructions of `V`.
#[inline(always)]
unsafe fn fold<V: Stored<E>, E: Element, O: Op<V>>(job: &Fold<'_>) {
    let Fold { dst, dst2, sources, count } = *job;
    let [first, rest @ ..] = sources else { return };
    // SAFETY: the caller's promise is the same. A pair is read or written only within `count`.
    unsafe {
        let mut done = if count * size_of::<E>() < FAR {
            blocks::<V, E, O, false>(job, *first, rest)
        } else {
            blocks::<V, E, O, true>(job, *first, rest)
        };
        while done < count {
            let n = V::PAIR.min(count - done);
            let [result] = folded::<V, E, O, 1>(
                |source, _| load_part::<V, E>(source.cast::<E>().add(done), n),
                *first,
                rest,
            );
            store_part(result, dst.cast::<E>().add(done), n);
            if !dst2.is_null() {
                store_part(result, dst2.cast::<E>().add(done), n);
            }
            done += n;
        }
    }
}

/// The part of [`fold`] that fills whole blocks of pairs; the number of elements that it did. With `FETCH`, the
/// sources are fetched ahead.
///
/// # Safety
///
/// As [`fold`].
#[inline(always)]
unsafe fn blocks<V: Stored<E>, E: Element, O: Op<V>, const FETCH: bool>(
    job: &Fold<'_>,
    first: *const u8,
    rest: &[*const u8],
) -> usize {
    let mut done = 0;
    while job.count - done >= UNROLL * V::PAIR {
        // SAFETY: a block is read or written only within `count`, which the caller vouches for. It is read from
        // every source before it is written, so a destination may be a source.
        unsafe {
            let load = |source: *const u8, i| {
                let at = source.cast::<E>().add(done + i * V::PAIR);
                if FETCH {
                    prefetch::<V, E>(at);
                }
                V::load(at)
            };
            let result = folded::<V, E, O, UNROLL>(load, first, rest);
            for (i, pair) in result.into_iter().enumerate() {
                let at = done + i * V::PAIR;
                V::store(pair, job.dst.cast::<E>().add(at));
                if !job.dst2.is_null() {
                    V::store(pair, job.dst2.cast::<E>().add(at));
                }
            }
        }
        done += UNROLL * V::PAIR;
    }
    done
}

/// Fetches the memory of a pair that will be loaded soon. Nothing is wrong with an address beyond a tensor's end.
#[inline(always)]
fn prefetch<V: Stored<E>, E: Element>(at: *const E) {
    for line in (0..V::PAIR * size_of::<E>()).step_by(64) {
        // SAFETY: every x86-64 has the instruction, which neither faults nor changes memory.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast::<i8>().wrapping_add(AHEAD + line)) }
    }
}

/// `N` pairs of each source, which `load` gives, folded.
#[inline(always)]
fn folded<V: Stored<E>, E: Element, O: Op<V>, const N: usize>(
    load: impl Fn(*const u8, usize) -> Pair<V>,
    first: *const u8,
    rest: &[*const u8],
) -> [Pair<V>; N] {
    let mut pairs: [Pair<V>; N] = std::array::from_fn(|i| load(first, i));
    for &source in rest {
        for (i, Pair(a, b)) in pairs.iter_mut().enumerate() {
            let next = load(source, i);
            (*a, *b) = (O::apply(*a, next.0), O::apply(*b, next.1));
        }
    }
    pairs
}

/// As [`divide`](super::fold::divide).
///
/// # Safety
///
/// As [`divide`](super::fold::divide); the CPU has the instructions of `V`.
#[inline(always)]
unsafe fn divide<V: Stored<E> + Divide, E: Element>(dst: *mut u8, count: usize, n: u32) {
    let dst = dst.cast::<E>();
    let whole = count - count % V::PAIR;
    let quotient = |Pair(a, b): Pair<V>| Pair(a.divide(n), b.divide(n));
    // SAFETY: a pair is read and written only within `count`, which the caller vouches for.
    unsafe {
        for done in (0..whole).step_by(V::PAIR) {
            V::store(quotient(V::load(dst.add(done))), dst.add(done));
        }
        let rest = load_part::<V, E>(dst.add(whole), count - whole);
        store_part(quotient(rest), dst.add(whole), count - whole);
    }
}

/// Room for a pair in the largest vectors.
type Spill = [MaybeUninit<u8>; 128];

/// A pair of `n` elements and zeros.
///
/// # Safety
///
/// `at` is valid for reads of `n` elements, at most a pair; the CPU has the instructions of `V`.
#[inline(always)]
unsafe fn load_part<V: Stored<E>, E: Element>(at: *const E, n: usize) -> Pair<V> {
    const { assert!(V::PAIR * size_of::<E>() <= size_of::<Spill>()) }
    let mut spill: Spill = [MaybeUninit::new(0); 128];
    // SAFETY: a pair fits the spill, which is initialised.
    unsafe {
        at.copy_to_nonoverlapping(spill.as_mut_ptr().cast(), n);
        V::load(spill.as_ptr().cast())
    }
}

/// The first `n` elements of a pair.
///
/// # Safety
///
/// `at` is valid for writes of `n` elements, at most a pair; the CPU has the instructions of `V`.
#[inline(always)]
unsafe fn store_part<V: Stored<E>, E: Element>(pair: Pair<V>, at: *mut E, n: usize) {
    let mut spill: Spill = [MaybeUninit::uninit(); 128];
    // SAFETY: a pair fits the spill, as `load_part` asserts, and is written before it is read.
    unsafe {
        V::store(pair, spill.as_mut_ptr().cast());
        at.copy_from_nonoverlapping(spill.as_ptr().cast(), n);
    }
}

/// Compiles the kernels with `$features` into a `TABLE`, and makes a `Vector` of `$register`, in which what is
/// reduced in f32 is reduced: its `$method` is `$result`.
macro_rules! kernels_with {
    ($features:literal, $register:ty { $($method:ident($a:ident, $b:ident) = $result:expr;)+ }) => {
        #[target_feature(enable = $features)]
        unsafe fn fold<E: Element, O: Op<E::Wide>>(job: &Fold<'_>) {
            // SAFETY: the caller's promise is the same.
            unsafe { fold::fold::<E, O>(job) }
        }

        #[target_feature(enable = $features)]
        unsafe fn divide<E: Quotient>(dst: *mut u8, count: usize, n: u32) {
            // SAFETY: the caller's promise is the same.
            unsafe { fold::divide::<E>(dst, count, n) }
        }

        #[target_feature(enable = $features)]
        unsafe fn scale<E: Scaled>(dst: *mut u8, src: *const u8, count: usize, factor: f64) {
            // SAFETY: the caller's promise is the same.
            unsafe { fold::scale::<E>(dst, src, count, factor) }
        }

        #[target_feature(enable = $features)]
        unsafe fn fold_f32<E: Element, O: Op<Vector>>(job: &Fold<'_>)
        where
            Vector: Stored<E>,
        {
            // SAFETY: the caller's promise is the same; the instructions are those of this function.
            unsafe { super::fold::<Vector, E, O>(job) }
        }

        #[target_feature(enable = $features)]
        unsafe fn divide_f32<E: Element>(dst: *mut u8, count: usize, n: u32)
        where
            Vector: Stored<E>,
        {
            // SAFETY: the caller's promise is the same; the instructions are those of this function.
            unsafe { super::divide::<Vector, E>(dst, count, n) }
        }

        pub(in crate::kernel) static TABLE: Table = table!(fold, divide, scale, fold_f32, divide_f32);

        /// A register of f32. Made only by [`load`](Stored::load), whose caller knows the CPU to have the
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
