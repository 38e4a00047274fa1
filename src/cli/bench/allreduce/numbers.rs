//! The element types that all-reduce is measured with, and numbers of theirs whose sums are known.

use std::fmt::Display;

use shouter::{DType, Element, Group};

use super::super::BenchError;
use super::super::report::Line;
use super::super::sizes::Sizes;
use super::{WorkerArgs, measure};

/// An element that whole numbers turn into.
pub(super) trait Number: Element + Default + Display + PartialEq {
    /// The number as this type holds it: integers wrap, as sums of theirs do.
    fn of(number: u64) -> Self;
}

macro_rules! numbers {
    ($($rust:ident),* $(,)?) => {
        /// What `--dtype` takes.
        pub(super) const DTYPES: [&str; [$(stringify!($rust)),*].len()] = [$(stringify!($rust)),*];

        $(impl Number for $rust {
            fn of(number: u64) -> Self {
                number as $rust
            }
        })*

        /// Measures one size with elements of the type that `--dtype` names.
        pub(super) fn measure_as(group: &Group, bytes: u64, args: &WorkerArgs) -> Result<Line, BenchError> {
            match args.dtype.as_str() {
                $(stringify!($rust) => measure::<$rust>(group, bytes, args),)*
                other => Err(BenchError::Usage(format!("--dtype {other} cannot be measured"))),
            }
        }
    };
}

numbers! { f32, f64, i8, i16, i32, i64, u8, u16, u32, u64 }

/// Refuses sizes that end within an element.
pub(super) fn whole(sizes: &Sizes, dtype: &str) -> Result<(), BenchError> {
    let size = DType::parse(dtype).map_err(|why| BenchError::Usage(why.to_string()))?.size() as u64;
    match sizes.0.iter().find(|bytes| **bytes % size != 0) {
        None => Ok(()),
        Some(bytes) => Err(BenchError::Usage(format!(
            "--bytes {bytes} is no whole number of {dtype}, which has {size} bytes; give multiples of {size}, or --dtype u8 \
             for any size"
        ))),
    }
}

/// The value of element `index` in iteration `round` on `rank`: small, so that sums of floats are exact.
pub(super) fn input<T: Number>(rank: u32, round: usize, index: usize) -> T {
    T::of(small(rank, round, index))
}

/// What the ranks' inputs add up to.
pub(super) fn expected<T: Number>(ranks: u32, round: usize, index: usize) -> T {
    T::of((0..ranks).map(|rank| small(rank, round, index)).sum())
}

fn small(rank: u32, round: usize, index: usize) -> u64 {
    ((index * 7 + round * 3 + rank as usize * 5) % 1021) as u64
}
