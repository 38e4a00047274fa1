//! The functions of one instruction set, found by element type and reduction.

use super::fold::Fold;
use crate::dtype::{DType, ReduceOp};

/// Folds; as unsafe as [`fold`](super::fold::fold), and the CPU must have the instructions.
pub(super) type FoldFn = unsafe fn(&Fold<'_>);
/// Divides `(dst, count, n)`; as unsafe as [`divide`](super::fold::divide), and the CPU must have the instructions.
pub(super) type DivideFn = unsafe fn(*mut u8, usize, u32);

/// What can be done with one element type.
pub(super) struct Row {
    pub(super) sum: FoldFn,
    pub(super) min: FoldFn,
    pub(super) max: FoldFn,
    pub(super) prod: FoldFn,
    pub(super) divide: DivideFn,
}

/// A row per element type, in the order of their numbers.
pub(super) struct Table(pub(super) [Row; DType::ALL.len()]);

impl Table {
    pub(super) fn fold(&self, dtype: DType, op: ReduceOp) -> FoldFn {
        let row = &self.0[dtype as usize];
        match op {
            ReduceOp::Sum | ReduceOp::Avg => row.sum,
            ReduceOp::Min => row.min,
            ReduceOp::Max => row.max,
            ReduceOp::Prod => row.prod,
        }
    }

    pub(super) fn divide(&self, dtype: DType) -> DivideFn {
        self.0[dtype as usize].divide
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

/// A [`Table`] of the generic functions `$fold` and `$divide`; for the types that are reduced in f32 others may be given.
macro_rules! table {
    ($fold:ident, $divide:ident) => {
        table!($fold, $divide, $fold, $divide)
    };
    ($fold:ident, $divide:ident, $fold32:ident, $divide32:ident) => {
        table!(@rows $fold32, $divide32, F16 Bf16 F32; $fold, $divide, F64 I8 I16 I32 I64 U8 U16 U32 U64)
    };
    (@rows $fold32:ident, $divide32:ident, $a:ident $b:ident $c:ident; $fold:ident, $divide:ident, $($element:ident)+) => {{
        use $crate::kernel::table::row;
        Table([row!($fold32, $divide32, $a), row!($fold32, $divide32, $b), row!($fold32, $divide32, $c), $(row!($fold, $divide, $element)),+])
    }};
}
pub(super) use table;
