//! The kernels in whatever instructions the compiler may use on every machine of this architecture.

use super::fold::{self, Fold};
use super::number::{Element, Op, Quotient, Scaled};
use super::table::{Table, table};

unsafe fn fold<E: Element, O: Op<E::Wide>>(job: &Fold<'_>) {
    // SAFETY: the caller's promise is the same.
    unsafe { fold::fold::<E, O>(job) }
}

unsafe fn divide<E: Quotient>(dst: *mut u8, count: usize, n: u32) {
    // SAFETY: the caller's promise is the same.
    unsafe { fold::divide::<E>(dst, count, n) }
}

unsafe fn scale<E: Scaled>(dst: *mut u8, src: *const u8, count: usize, factor: f64) {
    // SAFETY: the caller's promise is the same.
    unsafe { fold::scale::<E>(dst, src, count, factor) }
}

pub(super) static TABLE: Table = table!(fold, divide, scale);
