//! Elements whose reduction over the ranks is exact in every type.

use std::ops::Range;

use shouter::{DType, Error, F8E4M3, F8E5M2, Group, ReduceOp};

use super::parameter;

/// (ranks, hosts)
pub(crate) const TOPOLOGIES: [(u32, u32); 3] = [(3, 1), (4, 2), (2, 2)];

/// Elements of a tensor.
pub(crate) const COUNTS: [usize; 4] = [1, 7, 1000, 100_003];

/// The period of [`value`] in the index, for any type, operation and rank: a multiple of all its divisors.
const PERIOD: usize = 19 * 5 * 4 * 3;

/// Small whole numbers whose reduction over the ranks is exact in every type.
pub(crate) fn value(op: ReduceOp, dtype: DType, ranks: u32, rank: u32, index: usize) -> i64 {
    let (mix, unsigned) = (index * 7 + rank as usize * 13, dtype.name().starts_with('u'));
    let narrow = matches!(dtype, DType::F8E4M3 | DType::F8E5M2);
    match op {
        // E5M2 has all whole numbers up to 8, and powers of two.
        ReduceOp::Prod if narrow => 1 + (mix % 2) as i64,
        ReduceOp::Avg if narrow => (index % 3) as i64,
        _ if narrow => (mix % 5) as i64 - 2,
        // Most of them true, or most of them false, so that both results occur.
        ReduceOp::Land => i64::from(!mix.is_multiple_of(5)),
        _ if dtype == DType::Bool => i64::from(mix.is_multiple_of(5)),
        ReduceOp::Prod => 1 + (mix % 3) as i64,
        ReduceOp::Avg => i64::from(ranks) * (mix % 4) as i64,
        _ => (mix % 19) as i64 - if unsigned { 0 } else { 9 },
    }
}

/// The reduction of the values of all ranks.
pub(crate) fn reduced(op: ReduceOp, dtype: DType, ranks: u32, index: usize) -> i64 {
    reduced_over(op, dtype, ranks, 0..ranks, index)
}

/// The reduction of the values of some ranks.
pub(crate) fn reduced_over(op: ReduceOp, dtype: DType, ranks: u32, over: Range<u32>, index: usize) -> i64 {
    let values = over.map(|rank| value(op, dtype, ranks, rank, index));
    match op {
        ReduceOp::Sum => values.sum(),
        ReduceOp::Min => values.min().unwrap(),
        ReduceOp::Max => values.max().unwrap(),
        ReduceOp::Prod => values.product(),
        ReduceOp::Avg => values.sum::<i64>() / i64::from(ranks),
        ReduceOp::Band | ReduceOp::Land => values.reduce(|a, b| a & b).unwrap(),
        ReduceOp::Bor | ReduceOp::Lor => values.reduce(|a, b| a | b).unwrap(),
        ReduceOp::Bxor | ReduceOp::Lxor => values.reduce(|a, b| a ^ b).unwrap(),
    }
}

/// A small whole number as an element.
fn element(dtype: DType, value: i64) -> Vec<u8> {
    let bits = (value as f32).to_bits();
    match dtype {
        DType::F16 if value == 0 => vec![0; 2],
        // Normal numbers: the exponent's bias is 15 instead of 127, and 10 bits of the fraction are kept.
        DType::F16 => {
            let half = (bits >> 16 & 0x8000) | ((bits & 0x7fff_ffff) - (112 << 23)) >> 13;
            (half as u16).to_le_bytes().to_vec()
        }
        DType::Bf16 => ((bits >> 16) as u16).to_le_bytes().to_vec(),
        DType::F32 => (value as f32).to_le_bytes().to_vec(),
        DType::F64 => (value as f64).to_le_bytes().to_vec(),
        DType::F8E4M3 => vec![F8E4M3::from_f32(value as f32).to_bits()],
        DType::F8E5M2 => vec![F8E5M2::from_f32(value as f32).to_bits()],
        DType::Complex64 => [value as f32, 0.0].map(f32::to_le_bytes).concat(),
        DType::Complex128 => [value as f64, 0.0].map(f64::to_le_bytes).concat(),
        // Whole numbers are in two's complement: the low bytes are the element. So are truth values of 0 and 1.
        integer => value.to_le_bytes()[..integer.size()].to_vec(),
    }
}

/// `count` elements with the period of [`value`]: only one period is computed.
pub(crate) fn fill(dtype: DType, count: usize, value: impl Fn(usize) -> i64) -> Vec<u8> {
    let mut data: Vec<u8> = (0..count.min(PERIOD)).flat_map(|index| element(dtype, value(index))).collect();
    let bytes = count * dtype.size();
    while data.len() < bytes {
        data.extend_from_within(..data.len().min(bytes - data.len()));
    }
    data
}

/// Every type and every reduction at every count, reduced in place by `reduce`; `DTYPES` selects types.
pub(crate) fn matrix(
    group: &Group,
    mut reduce: impl FnMut(&mut [u8], DType, ReduceOp) -> Result<(), Error>,
) -> Result<(), Error> {
    let narrow = parameter("DTYPES");
    let (ranks, rank) = (group.size(), group.rank());
    let wanted = |dtype: &&DType| narrow.as_ref().is_none_or(|list| list.contains(dtype.name()));
    for &dtype in DType::ALL.iter().filter(wanted) {
        for &op in ReduceOp::ALL.iter().filter(|op| op.is_of(dtype)) {
            for count in COUNTS {
                let mut data = fill(dtype, count, |index| value(op, dtype, ranks, rank, index));
                reduce(&mut data, dtype, op)?;
                let expected = fill(dtype, count, |index| reduced(op, dtype, ranks, index));
                assert!(data == expected, "{op} of {count} x {dtype}");
            }
        }
    }
    Ok(())
}
