//! The element types that collectives are measured with, and test numbers with known sums.

use std::fmt::Display;

use shouter::{Bool, Complex, DType, Element, F8E4M3, F8E5M2, Group, ReduceOp, bf16, f16};

use super::super::report::ReportLine;
use super::super::sizes::Sizes;
use super::worker::{WorkerArgs, measure};
use crate::failure::CommandError;

/// An element type that whole numbers convert to.
pub(super) trait Number: Element + Default + Display + PartialEq {
    /// The largest whole number up to which numbers, and so their sums, are exact.
    const EXACT: u64;

    /// Converts a number to this type: integers wrap, as their sums do.
    fn of(number: u64) -> Self;
}

macro_rules! numbers {
    ($($name:literal $rust:ty: $exact:expr, $of:expr);* $(;)?) => {
        /// The values of `--dtype`.
        pub(super) const DTYPES: [&str; [$($name),*].len()] = [$($name),*];

        $(impl Number for $rust {
            const EXACT: u64 = $exact;

            fn of(number: u64) -> Self {
                let of: fn(u64) -> Self = $of;
                of(number)
            }
        })*

        /// Measures one size with elements of the type that `--dtype` names.
        pub(super) fn measure_as(group: &Group, bytes: u64, args: &WorkerArgs) -> Result<ReportLine, CommandError> {
            match args.dtype.as_str() {
                $($name => measure::<$rust>(group, bytes, args),)*
                other => Err(CommandError::Usage(format!("--dtype {other} cannot be measured"))),
            }
        }

        /// Refuses types without a sum, and more ranks than have exact sums.
        pub(super) fn exact(ranks: u32, dtype: &str) -> Result<(), CommandError> {
            let known = DType::parse(dtype).map_err(|why| CommandError::Usage(why.to_string()))?;
            ReduceOp::Sum.check(known).map_err(|why| CommandError::Usage(format!("--dtype {dtype}: {why}")))?;
            let most = match dtype {
                $($name => <$rust>::EXACT / 2,)*
                _ => u64::MAX,
            };
            if u64::from(ranks) <= most {
                return Ok(());
            }
            Err(CommandError::Usage(format!(
                "--dtype {dtype} has exact sums of up to {most} ranks only, and there are {ranks}; give fewer ranks or another type"
            )))
        }
    };
}

numbers! {
    "f16" f16: 1 << 11, |number| f16::from_f32(number as f32);
    "bf16" bf16: 1 << 8, |number| bf16::from_f32(number as f32);
    "f32" f32: 1 << 24, |number| number as f32;
    "f64" f64: 1 << 53, |number| number as f64;
    "i8" i8: u64::MAX, |number| number as i8;
    "i16" i16: u64::MAX, |number| number as i16;
    "i32" i32: u64::MAX, |number| number as i32;
    "i64" i64: u64::MAX, |number| number as i64;
    "u8" u8: u64::MAX, |number| number as u8;
    "u16" u16: u64::MAX, |number| number as u16;
    "u32" u32: u64::MAX, |number| number as u32;
    "u64" u64: u64::MAX, |number| number;
    "f8e4m3" F8E4M3: 1 << 4, |number| F8E4M3::from_f32(number as f32);
    "f8e5m2" F8E5M2: 1 << 3, |number| F8E5M2::from_f32(number as f32);
    "complex64" Complex<f32>: 1 << 24, |number| Complex::new(number as f32, -(number as f32));
    "complex128" Complex<f64>: 1 << 53, |number| Complex::new(number as f64, -(number as f64));
    // Only moved: it has no sum.
    "bool" Bool: 1 << 1, |number| Bool::from(number % 2 == 1);
}

/// Refuses sizes that end within an element, or within one of so many blocks of equal length.
pub(super) fn whole(sizes: &Sizes, dtype: &str, blocks: u32) -> Result<(), CommandError> {
    let size = DType::parse(dtype).map_err(|why| CommandError::Usage(why.to_string()))?.size() as u64;
    let unit = size * u64::from(blocks);
    match sizes.0.iter().find(|bytes| **bytes % unit != 0) {
        None => Ok(()),
        Some(bytes) if blocks > 1 => Err(CommandError::Usage(format!(
            "--bytes {bytes} is no whole number of {dtype} for each of {blocks} ranks; give multiples of {unit}"
        ))),
        Some(bytes) => Err(CommandError::Usage(format!(
            "--bytes {bytes} is no whole number of {dtype}, which has {size} bytes; give multiples of {size}, or --dtype u8 \
             for any size"
        ))),
    }
}

/// The inputs of an iteration: small numbers, whose sums are exact in floating point.
#[derive(Clone, Copy)]
pub(super) struct Inputs {
    /// The number of inputs that are summed; 1 for a collective without a reduction.
    pub(super) summands: u32,
    /// The iteration.
    pub(super) round: usize,
}

impl Inputs {
    /// Element `index` of the input of `rank`.
    pub(super) fn of<T: Number>(self, rank: u32, index: usize) -> T {
        T::of(self.small::<T>(rank, index))
    }

    /// The sum of element `index` over the inputs of so many ranks, from rank 0 on.
    pub(super) fn sum<T: Number>(self, ranks: u32, index: usize) -> T {
        T::of((0..ranks).map(|rank| self.small::<T>(rank, index)).sum())
    }

    fn small<T: Number>(self, rank: u32, index: usize) -> u64 {
        let range = (T::EXACT / u64::from(self.summands.max(1))).clamp(1, 1021);
        (index * 7 + self.round * 3 + rank as usize * 5) as u64 % range
    }
}
