//! The functions of one instruction set, found by element type and reduction.

use super::fold::Fold;
use crate::dtype::{DType, ReduceOp};

/// Folds; as unsafe as [`fold`](super::fold::fold), and the CPU must have the instructions.
pub(super) type FoldFn = unsafe fn(&Fold<'_>);
/// Divides `(dst, count, n)`; as unsafe as [`divide`](super::fold::divide), and the CPU must have the instructions.
pub(super) type DivideFn = unsafe fn(*mut u8, usize, u32);

/// Multiplies `(dst, src, count, factor)`; as unsafe as [`scale`](super::fold::scale), and the CPU must have the instructions.
pub(super) type ScaleFn = unsafe fn(*mut u8, *const u8, usize, f64);

/// The functions for one type of numbers.
pub(super) struct Row {
    pub(super) sum: FoldFn,
    pub(super) min: FoldFn,
    pub(super) max: FoldFn,
    pub(super) prod: FoldFn,
    pub(super) divide: DivideFn,
}

/// The functions for bits.
pub(super) struct BitsRow {
    pub(super) and: FoldFn,
    pub(super) or: FoldFn,
    pub(super) xor: FoldFn,
}

/// The functions, as far as types have them.
pub(super) struct Table {
    /// A row per type of real numbers, in the order of their numbers.
    pub(super) numbers: [Row; NUMBERS],
    pub(super) product_of_complex64: FoldFn,
    pub(super) product_of_complex128: FoldFn,
    /// Of bytes.
    pub(super) bits: BitsRow,
    pub(super) truths: BitsRow,
    /// Of the floats up to 64 bits, in the order of their numbers.
    pub(super) scales: [ScaleFn; 4],
    /// Of the 8-bit floats, in the order of their numbers.
    pub(super) narrow_scales: [ScaleFn; 2],
}

/// The types of real numbers: those before the complex ones.
const NUMBERS: usize = DType::Complex64 as usize;

impl Table {
    /// The function and the type of the elements that it takes; `None` where the type does not have the reduction.
    #[inline]
    pub(super) fn fold(&self, dtype: DType, op: ReduceOp) -> Option<(FoldFn, DType)> {
        if !op.is_of(dtype) {
            return None;
        }
        let unit = op.folds_as(dtype);
        let row = self.numbers.get(unit as usize);
        let fold = match (op, row) {
            (ReduceOp::Sum | ReduceOp::Avg, Some(row)) => row.sum,
            (ReduceOp::Min, Some(row)) => row.min,
            (ReduceOp::Max, Some(row)) => row.max,
            (ReduceOp::Prod, Some(row)) => row.prod,
            (ReduceOp::Prod, None) if unit == DType::Complex64 => self.product_of_complex64,
            (ReduceOp::Prod, None) => self.product_of_complex128,
            (ReduceOp::Band, _) => self.bits.and,
            (ReduceOp::Bor, _) => self.bits.or,
            (ReduceOp::Bxor, _) => self.bits.xor,
            (ReduceOp::Land, _) => self.truths.and,
            (ReduceOp::Lor, _) => self.truths.or,
            (ReduceOp::Lxor, _) => self.truths.xor,
            (ReduceOp::Sum | ReduceOp::Avg | ReduceOp::Min | ReduceOp::Max, None) => return None,
        };
        Some((fold, unit))
    }

    /// The division and the type of the elements that it takes.
    pub(super) fn divide(&self, dtype: DType) -> Option<(DivideFn, DType)> {
        let unit = ReduceOp::Avg.folds_as(dtype);
        Some((self.numbers.get(unit as usize)?.divide, unit))
    }

    /// The multiplication by a real factor and the type of the elements that it takes.
    pub(super) fn scale(&self, dtype: DType) -> Option<(ScaleFn, DType)> {
        let unit = ReduceOp::Sum.folds_as(dtype);
        let scale = match unit {
            DType::F8E4M3 => self.narrow_scales.first(),
            DType::F8E5M2 => self.narrow_scales.last(),
            unit => self.scales.get(unit as usize),
        };
        Some((*scale?, unit))
    }
}

/// A [`Row`] of the generic functions `$fold` and `$divide` for one element type.
macro_rules! row {
    ($fold:ident, $divide:ident, $element:ident) => {{
        use $crate::kernel::number::{Max, Min, Prod, Sum, $element as E};
        $crate::kernel::table::Row {
            sum: $fold::<E, Sum>,
            min: $fold::<E, Min>,
            max: $fold::<E, Max>,
            prod: $fold::<E, Prod>,
            divide: $divide::<E>,
        }
    }};
}
pub(super) use row;

/// A [`BitsRow`] of the generic function `$fold` for one element type.
macro_rules! bits_row {
    ($fold:ident, $element:ident) => {{
        use $crate::kernel::number::{And, Or, Xor, $element as E};
        $crate::kernel::table::BitsRow { and: $fold::<E, And>, or: $fold::<E, Or>, xor: $fold::<E, Xor> }
    }};
}
pub(super) use bits_row;

/// A [`Table`] of the generic functions `$fold`, `$divide` and `$scale`; for the types that are reduced in f32 others may be given.
macro_rules! table {
    ($fold:ident, $divide:ident, $scale:ident) => {
        table!($fold, $divide, $scale, $fold, $divide)
    };
    ($fold:ident, $divide:ident, $scale:ident, $fold32:ident, $divide32:ident) => {{
        use $crate::kernel::number::{Bf16, Complex64, Complex128, E4M3, E5M2, F16, F32, F64, Prod};
        use $crate::kernel::table::{bits_row, row};
        Table {
            numbers: [
                row!($fold32, $divide32, F16),
                row!($fold32, $divide32, Bf16),
                row!($fold32, $divide32, F32),
                row!($fold, $divide, F64),
                row!($fold, $divide, I8),
                row!($fold, $divide, I16),
                row!($fold, $divide, I32),
                row!($fold, $divide, I64),
                row!($fold, $divide, U8),
                row!($fold, $divide, U16),
                row!($fold, $divide, U32),
                row!($fold, $divide, U64),
                row!($fold, $divide, E4M3),
                row!($fold, $divide, E5M2),
            ],
            product_of_complex64: $fold::<Complex64, Prod>,
            product_of_complex128: $fold::<Complex128, Prod>,
            bits: bits_row!($fold, U8),
            truths: bits_row!($fold, Bool),
            scales: [$scale::<F16>, $scale::<Bf16>, $scale::<F32>, $scale::<F64>],
            narrow_scales: [$scale::<E4M3>, $scale::<E5M2>],
        }
    }};
}
pub(super) use table;
