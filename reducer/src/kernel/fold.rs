//! The loops, written once; each instruction set compiles them for itself.
//!
//! Two sources are reduced straight into the destination. More go through a tile of accumulators that stays in
//! the first-level cache, so that memory sees every source read once and the destination written once, and
//! 16-bit floats are rounded once, at the end.

use std::mem::MaybeUninit;
use std::slice::{from_raw_parts, from_raw_parts_mut};

use super::number::{Accumulator, Element, Op};

/// Elements per tile: 4 KiB of accumulators at most.
const TILE: usize = 512;

/// One fold: `dst[i] = sources[0][i] op sources[1][i] op ...`.
pub(super) struct Fold<'a> {
    /// Where the result goes.
    pub(super) dst: *mut u8,
    /// Where it also goes, unless null.
    pub(super) dst2: *mut u8,
    /// What is folded, in this order.
    pub(super) sources: &'a [*const u8],
    /// Elements in each of them.
    pub(super) count: usize,
}

/// # Safety
///
/// Destinations and sources are valid for `count` elements; a destination may be exactly one of the sources (or
/// the other destination) and overlaps none otherwise. Nobody else writes any of it meanwhile.
#[inline(always)]
pub(super) unsafe fn fold<E: Element, O: Op>(job: &Fold<'_>) {
    // SAFETY: the caller's promise is the same.
    unsafe { fold_from::<E, O>(job, 0) }
}

/// The part of [`fold`] from element `done` on.
///
/// # Safety
///
/// As [`fold`]; `done <= count`.
#[inline(always)]
pub(super) unsafe fn fold_from<E: Element, O: Op>(job: &Fold<'_>, mut done: usize) {
    let Fold { dst, dst2, sources, count } = *job;
    while done < count {
        // Without a tile in between and without a second destination there is nothing to interrupt for.
        let whole = sources.len() <= 2 && dst2.is_null();
        let n = if whole { count - done } else { TILE.min(count - done) };
        // SAFETY: `done + n <= count`, so all pointers stay within what the caller vouches for.
        unsafe {
            let out = dst.cast::<E>().add(done);
            tile::<E, O>(out, sources, done, n);
            if !dst2.is_null() {
                out.copy_to(dst2.cast::<E>().add(done), n);
            }
        }
        done += n;
    }
}

/// Folds `n` elements from element `start` of every source; all of them are read before `out` is written.
///
/// # Safety
///
/// As [`fold`]; `n <= TILE` if there are more than two sources.
#[inline(always)]
unsafe fn tile<E: Element, O: Op>(out: *mut E, sources: &[*const u8], start: usize, n: usize) {
    // SAFETY: in bounds by the caller's promise; the tile holds `n` accumulators, all written by the first pass.
    unsafe {
        let at = |source: *const u8| source.cast::<E>().add(start);
        match *sources {
            [] => {}
            [only] => map::<E>(out, at(only), n),
            [a, b] => zip::<E, E, E, O>(out, at(a), at(b), n),
            [a, b, ref middle @ .., last] => {
                let mut tile = [const { MaybeUninit::<Accumulator<E::Wide>>::uninit() }; TILE];
                let tile = tile.as_mut_ptr().cast::<Accumulator<E::Wide>>();
                zip::<_, E, E, O>(tile, at(a), at(b), n);
                for &source in middle {
                    accumulate::<_, E, O>(tile, at(source), n);
                }
                zip::<E, _, E, O>(out, tile, at(last), n);
            }
        }
    }
}

/// `out[i] = a[i]`, made canonical.
///
/// # Safety
///
/// Both are valid for `n` elements and equal or disjoint.
#[inline(always)]
unsafe fn map<E: Element>(out: *mut E, a: *const E, n: usize) {
    // SAFETY: the caller vouches for the memory; the elements have alignment 1.
    unsafe {
        out.copy_from(a, n);
        for x in from_raw_parts_mut(out, n) {
            *x = E::narrow(x.widen());
        }
    }
}

/// `out[i] = a[i] op b[i]`.
///
/// # Safety
///
/// All are valid for `n` elements; `out` may be exactly `a` or `b` and overlaps them not otherwise.
#[inline(always)]
unsafe fn zip<Out, A, B, O>(out: *mut Out, a: *const A, b: *const B, n: usize)
where
    Out: Element,
    A: Element<Wide = Out::Wide>,
    B: Element<Wide = Out::Wide>,
    O: Op,
{
    // SAFETY: the caller vouches for the memory, and each case hands out only references that do not alias a
    // mutable one. Elements have alignment 1; accumulators lie in an aligned tile.
    unsafe {
        if std::ptr::addr_eq(out, a) {
            accumulate::<Out, B, O>(out, b, n);
        } else if std::ptr::addr_eq(out, b) {
            // Every operation is commutative, to the bit.
            accumulate::<Out, A, O>(out, a, n);
        } else {
            let out = from_raw_parts_mut(out.cast::<MaybeUninit<Out>>(), n);
            let (a, b) = (from_raw_parts(a, n), from_raw_parts(b, n));
            for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
                out.write(Out::narrow(O::apply(a.widen(), b.widen())));
            }
        }
    }
}

/// `out[i] = out[i] op b[i]`.
///
/// # Safety
///
/// Both are valid for `n` elements, and disjoint or the same.
#[inline(always)]
unsafe fn accumulate<Out, B, O>(out: *mut Out, b: *const B, n: usize)
where
    Out: Element,
    B: Element<Wide = Out::Wide>,
    O: Op,
{
    // SAFETY: the caller vouches for the memory; the two slices are disjoint, or there is only one.
    unsafe {
        if std::ptr::addr_eq(out, b) {
            for x in from_raw_parts_mut(out, n) {
                *x = Out::narrow(O::apply(x.widen(), x.widen()));
            }
            return;
        }
        let (out, b) = (from_raw_parts_mut(out, n), from_raw_parts(b, n));
        for (out, b) in out.iter_mut().zip(b) {
            *out = Out::narrow(O::apply(out.widen(), b.widen()));
        }
    }
}

/// `dst[i] = dst[i] / n`.
///
/// # Safety
///
/// `dst` is valid for `count` elements; `n` is not zero.
#[inline(always)]
pub(super) unsafe fn divide<E: Element>(dst: *mut u8, count: usize, n: u32) {
    // SAFETY: the caller vouches for the memory; elements have alignment 1.
    for x in unsafe { from_raw_parts_mut(dst.cast::<E>(), count) } {
        *x = x.divide(n);
    }
}
