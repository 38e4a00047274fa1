//! Folds compared with a computation in float64 that uses no kernel of ours.
#![allow(unsafe_code)]

use shouter::{DType, ReduceOp};
use shouter_reducer::cuda::kernel::Fold;

use super::bits::{Bench, CheckResult, Image, MOST_SOURCES};
use super::float::{Float, at, elements};
use crate::failure::CommandError;

const NARROW: [(DType, Float); 2] = [(DType::F16, Float::F16), (DType::Bf16, Float::BF16)];
const WIDE: [(DType, Float); 2] = [(DType::F32, Float::F32), (DType::F64, Float::F64)];

/// The result of `op` over the numbers, and its tolerance.
fn reference(op: ReduceOp, dtype: DType, float: Float, numbers: &[f64]) -> (f64, f64) {
    let k = numbers.len() as f64;
    // A fold rounds once for each number but the first: to f32, or to f64, as the reference does then too.
    let unit = if dtype == DType::F64 { 2f64.powi(-52) } else { 2f64.powi(-24) };
    let folding = (k - 1.0) * unit * 1.001;
    // The result is rounded to 16 bits if that is its type, an average after the sum and after the division.
    let narrow = if dtype.size() == 2 { 2f64.powi(-(float.fraction as i32) - 1) * 1.001 } else { 0.0 };
    let magnitude: f64 = numbers.iter().map(|x| x.abs()).sum();
    match op {
        ReduceOp::Sum => {
            let sum: f64 = numbers.iter().sum();
            (sum, folding * magnitude + narrow * (sum.abs() + folding * magnitude))
        }
        ReduceOp::Avg => {
            let mean = numbers.iter().sum::<f64>() / k;
            let folded = folding * magnitude / k;
            (mean, folded + (2.0 * narrow + unit * 1.001) * (mean.abs() + folded))
        }
        ReduceOp::Prod => {
            let product: f64 = numbers.iter().product();
            (product, (folding + narrow * (1.0 + folding)) * product.abs())
        }
        ReduceOp::Min => (numbers.iter().copied().fold(f64::INFINITY, f64::min), 0.0),
        ReduceOp::Max => (numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max), 0.0),
        _ => (f64::NAN, 0.0),
    }
}

/// Every operation with every floating-point type, 1 to 8 sources, against float64.
pub(super) fn folds(bench: &mut Bench<'_>) -> CheckResult {
    let mut cases = 0;
    let count = 3003.min(bench.longest);
    for (dtype, float) in NARROW.into_iter().chain(WIDE) {
        for &op in ReduceOp::ALL.iter().filter(|op| op.is_of(dtype)) {
            // Products stay within f16 when their factors are from a half to two.
            let (least, most) = if op == ReduceOp::Prod { (-1, 0) } else { (-4, 4) };
            for k in 1..=MOST_SOURCES {
                cases += 1;
                let columns: Vec<Vec<u8>> = (0..k)
                    .map(|_| elements(dtype, count, |_| float.ordinary(&mut bench.rng, least, most)))
                    .collect();
                let got = fold(bench, op, dtype, &columns)?;
                for index in 0..count {
                    let numbers: Vec<f64> =
                        columns.iter().map(|c| float.value(at(dtype, c, index))).collect();
                    let (due, off) = reference(op, dtype, float, &numbers);
                    let value = float.value(at(dtype, &got, index));
                    // The comparison is false for a NaN.
                    if (value - due).abs() <= off {
                        continue;
                    }
                    let what = format!("{op} of {numbers:?} in {dtype} is {value:e}, not {due:e} +- {off:e}");
                    return Ok((cases, Some(what)));
                }
            }
        }
    }
    Ok((cases, None))
}

/// Reduces columns into a separate range.
fn fold(
    bench: &mut Bench<'_>,
    op: ReduceOp,
    dtype: DType,
    columns: &[Vec<u8>],
) -> Result<Vec<u8>, CommandError> {
    let bytes = columns.first().map_or(0, Vec::len);
    let count = (bytes / dtype.size()) as u64;
    let mut image = Image::default();
    let places: Vec<usize> = columns.iter().map(|column| image.add(column, 0)).collect();
    let out = image.add(&vec![0; bytes], 0);
    let (kernels, address, k) = (bench.kernels, bench.arena.address(), columns.len() as u32);
    let sources: Vec<u64> = places.iter().map(|at| address + *at as u64).collect();
    let got = bench.arena.run(&image.end(), |stream| {
        let divide_by = (op == ReduceOp::Avg).then_some(k);
        let destinations = &[address + out as u64];
        // SAFETY: the arena waits; the ranges are those of the image.
        unsafe {
            kernels.fold(stream, &Fold { dtype, op, destinations, sources: &sources, count, divide_by })
        }
    })?;
    Ok(got[out..out + bytes].to_vec())
}
