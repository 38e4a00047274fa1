//! The loops, written once; each instruction set compiles them for itself.
//!
//! Two sources are reduced straight into the destination. More go through a tile of accumulators that stays in
//! the first-level cache, so that memory sees every source read once and the destination written once, and
//! narrow floats are rounded once, at the end.

use std::mem::MaybeUninit;
use std::slice::{from_raw_parts, from_raw_parts_mut};

use super::number::{Accumulator, Element, Op, Quotient, Scaled};

/// Elements per tile: 8 KiB of accumulators at most.
const TILE: usize = 512;

/// One fold: `dst[i] = sources[0][i] op sources[1][i] op ...`.
pub(super) struct Fold<'a> {
    /// Where the result goes.
    pub(super) dst: *mut u8,
    /// Where it also goes, unless null.
    pub(super) dst2: *mut u8,
    /// The sources, in the order in which they are folded.
    pub(super) sources: &'a [*const u8],
    /// Elements in each of them.
    pub(super) count: usize,
}

/// # Safety
///
/// Destinations and sources are valid for `count` elements; a destination may be exactly one of the sources (or
/// the other destination) and overlaps none otherwise. Nothing else writes any of it meanwhile.
#[inline(always)]
pub(super) unsafe fn fold<E: Element, O: Op<E::Wide>>(job: &Fold<'_>) {
    let Fold { dst, dst2, sources, count } = *job;
    // Two sources for one destination need no tile.
    let step = if sources.len() == 2 && dst2.is_null() { count } else { TILE };
    let mut done = 0;
    while done < count {
        let n = step.min(count - done);
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
/// As [`fold`]; `n <= TILE` unless there are two sources.
#[inline(always)]
unsafe fn tile<E: Element, O: Op<E::Wide>>(out: *mut E, sources: &[*const u8], start: usize, n: usize) {
    let at = |source: *const u8| source.cast::<E>().wrapping_add(start);
    match *sources {
        [] => {}
        [only] => {
            // SAFETY: in bounds by the caller's promise, and the same or disjoint; elements have alignment 1.
            unsafe {
                out.copy_from(at(only), n);
                for x in from_raw_parts_mut(out, n) {
                    *x = E::narrow(x.widen());
                }
            }
        }
        // SAFETY: in bounds by the caller's promise.
        [a, b] => unsafe { zip::<E, E, E, O>(out, at(a), at(b), n) },
        [a, b, ref middle @ .., last] => {
            let mut tile = [const { MaybeUninit::<Accumulator<E::Wide>>::uninit() }; TILE];
            let tile = tile.as_mut_ptr().cast::<Accumulator<E::Wide>>();
            // SAFETY: in bounds by the caller's promise; the tile overlaps nothing, and its first `n` accumulators
            // are written before they are read.
            unsafe {
                apart::<_, E, E, O>(tile, at(a), at(b), n);
                for &source in middle {
                    onto::<_, E, O>(tile, at(source), n);
                }
                zip::<E, _, E, O>(out, tile, at(last), n);
            }
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
    O: Op<Out::Wide>,
{
    let (is_a, is_b) = (std::ptr::addr_eq(out, a), std::ptr::addr_eq(out, b));
    // SAFETY: as the caller promises; the cases differ in where `out` lies. That the operations commute, to
    // the bit, allows the third.
    unsafe {
        match (is_a, is_b) {
            (false, false) => apart::<Out, A, B, O>(out, a, b, n),
            (true, false) => onto::<Out, B, O>(out, b, n),
            (false, true) => onto::<Out, A, O>(out, a, n),
            (true, true) => {
                for x in from_raw_parts_mut(out, n) {
                    *x = Out::narrow(O::apply(x.widen(), x.widen()));
                }
            }
        }
    }
}

/// `out[i] = a[i] op b[i]`.
///
/// # Safety
///
/// All are valid for `n` elements, and `out` overlaps neither `a` nor `b`.
#[inline(always)]
unsafe fn apart<Out, A, B, O>(out: *mut Out, a: *const A, b: *const B, n: usize)
where
    Out: Element,
    A: Element<Wide = Out::Wide>,
    B: Element<Wide = Out::Wide>,
    O: Op<Out::Wide>,
{
    // SAFETY: the caller vouches for the memory. Elements have alignment 1; accumulators lie in an aligned tile.
    let (out, a, b) = unsafe {
        (from_raw_parts_mut(out.cast::<MaybeUninit<Out>>(), n), from_raw_parts(a, n), from_raw_parts(b, n))
    };
    for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
        out.write(Out::narrow(O::apply(a.widen(), b.widen())));
    }
}

/// `out[i] = out[i] op b[i]`.
///
/// # Safety
///
/// Both are valid for `n` elements, and disjoint.
#[inline(always)]
unsafe fn onto<Out, B, O>(out: *mut Out, b: *const B, n: usize)
where
    Out: Element,
    B: Element<Wide = Out::Wide>,
    O: Op<Out::Wide>,
{
    // SAFETY: as in `apart`.
    let (out, b) = unsafe { (from_raw_parts_mut(out, n), from_raw_parts(b, n)) };
    for (out, b) in out.iter_mut().zip(b) {
        *out = Out::narrow(O::apply(out.widen(), b.widen()));
    }
}

/// `dst[i] = dst[i] / n`.
///
/// # Safety
///
/// `dst` is valid for `count` elements; `n` is not zero.
#[inline(always)]
pub(super) unsafe fn divide<E: Quotient>(dst: *mut u8, count: usize, n: u32) {
    // SAFETY: the caller vouches for the memory; elements have alignment 1.
    for x in unsafe { from_raw_parts_mut(dst.cast::<E>(), count) } {
        *x = x.divide(n);
    }
}

/// `dst[i] = src[i] * factor`.
///
/// # Safety
///
/// Both are valid for `count` elements; `dst` may be exactly `src` and does not overlap it otherwise.
#[inline(always)]
pub(super) unsafe fn scale<E: Scaled>(dst: *mut u8, src: *const u8, count: usize, factor: f64) {
    // SAFETY: the caller vouches for the memory; elements have alignment 1. The first case has no other slice of it.
    unsafe {
        if std::ptr::addr_eq(dst, src) {
            for x in from_raw_parts_mut(dst.cast::<E>(), count) {
                *x = x.scale(factor);
            }
            return;
        }
        let out = from_raw_parts_mut(dst.cast::<MaybeUninit<E>>(), count);
        for (out, x) in out.iter_mut().zip(from_raw_parts(src.cast::<E>(), count)) {
            out.write(x.scale(factor));
        }
    }
}
