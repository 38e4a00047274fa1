//! Every level against an oracle that is written another way: one element at a time, by comparison of integer
//! keys, with the `half` crate's conversions.

use half::{bf16, f16};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::*;
use crate::float8::tests::{E4M3, E5M2, Format};

mod complex;
mod narrow;
mod scale;

/// The types with elements of up to 64 bits, of which each is a whole.
pub(crate) fn scalars() -> impl Iterator<Item = DType> {
    DType::ALL.iter().copied().filter(|dtype| !matches!(dtype, DType::Complex64 | DType::Complex128))
}

/// The reductions of a type; without the average, which folds as the sum.
pub(crate) fn folds(dtype: DType) -> impl Iterator<Item = ReduceOp> {
    ReduceOp::ALL.iter().copied().filter(move |op| op.is_of(dtype) && *op != ReduceOp::Avg)
}

fn levels() -> Vec<Kernels> {
    Level::ALL.iter().filter_map(|&level| Kernels::with_level(level)).collect()
}

pub(crate) fn is_float(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::Bf16 | DType::F32 | DType::F64) || float8(dtype).is_some()
}

fn float8(dtype: DType) -> Option<Format> {
    match dtype {
        DType::F8E4M3 => Some(E4M3),
        DType::F8E5M2 => Some(E5M2),
        _ => None,
    }
}

/// The element's bytes as a number, and back.
fn bits(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |bits, &byte| bits << 8 | u64::from(byte))
}

/// A key that orders floats as IEEE 754's totalOrder does.
fn f32_key(x: f32) -> i32 {
    let bits = x.to_bits() as i32;
    if bits < 0 { bits ^ i32::MAX } else { bits }
}

fn f64_key(x: f64) -> i64 {
    let bits = x.to_bits() as i64;
    if bits < 0 { bits ^ i64::MAX } else { bits }
}

fn f32_fold(op: ReduceOp, values: impl Iterator<Item = f32>) -> f32 {
    let fold = |a: f32, b: f32| match op {
        ReduceOp::Sum | ReduceOp::Avg => a + b,
        ReduceOp::Prod => a * b,
        _ if a.is_nan() || b.is_nan() => f32::NAN,
        ReduceOp::Min => std::cmp::min_by_key(a, b, |&x| f32_key(x)),
        ReduceOp::Max => std::cmp::max_by_key(a, b, |&x| f32_key(x)),
        _ => panic!("{op} of floats"),
    };
    values.reduce(fold).unwrap()
}

fn f64_fold(op: ReduceOp, values: impl Iterator<Item = f64>) -> f64 {
    let fold = |a: f64, b: f64| match op {
        ReduceOp::Sum | ReduceOp::Avg => a + b,
        ReduceOp::Prod => a * b,
        _ if a.is_nan() || b.is_nan() => f64::NAN,
        ReduceOp::Min => std::cmp::min_by_key(a, b, |&x| f64_key(x)),
        ReduceOp::Max => std::cmp::max_by_key(a, b, |&x| f64_key(x)),
        _ => panic!("{op} of floats"),
    };
    values.reduce(fold).unwrap()
}

/// Integers in i128, where nothing wraps but the product, which wraps above every bit that counts.
fn integer_fold(op: ReduceOp, values: impl Iterator<Item = i128>) -> i128 {
    let fold = |a: i128, b: i128| match op {
        ReduceOp::Sum | ReduceOp::Avg => a.wrapping_add(b),
        ReduceOp::Prod => a.wrapping_mul(b),
        ReduceOp::Min => a.min(b),
        ReduceOp::Max => a.max(b),
        ReduceOp::Band => a & b,
        ReduceOp::Bor => a | b,
        ReduceOp::Bxor => a ^ b,
        _ => panic!("{op} of integers"),
    };
    values.reduce(fold).unwrap()
}

fn as_integer(dtype: DType, bits: u64) -> i128 {
    match dtype {
        DType::I8 => i128::from(bits as i8),
        DType::I16 => i128::from(bits as i16),
        DType::I32 => i128::from(bits as i32),
        DType::I64 => i128::from(bits as i64),
        _ => i128::from(bits),
    }
}

fn low_bits(dtype: DType, value: i128) -> u64 {
    value as u64 & (u64::MAX >> (64 - 8 * dtype.size()))
}

fn narrow_f16(x: f32) -> u64 {
    u64::from(if x.is_nan() { 0x7e00 } else { f16::from_f32_const(x).to_bits() })
}

fn narrow_bf16(x: f32) -> u64 {
    u64::from(if x.is_nan() { 0x7fc0 } else { bf16::from_f32(x).to_bits() })
}

fn narrow_f32(x: f32) -> u64 {
    u64::from(if x.is_nan() { 0x7fc0_0000 } else { x.to_bits() })
}

fn narrow_f64(x: f64) -> u64 {
    if x.is_nan() { 0x7ff8_0000_0000_0000 } else { x.to_bits() }
}

/// One element's fold, in bits.
fn oracle(dtype: DType, op: ReduceOp, sources: &[u64]) -> u64 {
    let values = sources.iter().copied();
    if let Some(format) = float8(dtype) {
        let wide = f32_fold(op, values.map(|b| format.value(b as u8) as f32));
        return format.nearest(f64::from(wide)).into();
    }
    match dtype {
        DType::Bool => {
            let trues = sources.iter().filter(|&&byte| byte != 0).count();
            u64::from(match op {
                ReduceOp::Land => trues == sources.len(),
                ReduceOp::Lor => trues > 0,
                ReduceOp::Lxor => trues % 2 == 1,
                _ => panic!("{op} of truth values"),
            })
        }
        DType::F16 => narrow_f16(f32_fold(op, values.map(|b| f16::from_bits(b as u16).to_f32_const()))),
        DType::Bf16 => narrow_bf16(f32_fold(op, values.map(|b| bf16::from_bits(b as u16).to_f32()))),
        DType::F32 => narrow_f32(f32_fold(op, values.map(|b| f32::from_bits(b as u32)))),
        DType::F64 => narrow_f64(f64_fold(op, values.map(f64::from_bits))),
        _ => low_bits(dtype, integer_fold(op, values.map(|b| as_integer(dtype, b)))),
    }
}

/// Values that every fold must cope with: zeros, the least and largest of everything, infinities, NaNs of all kinds, and
/// values where the narrow types round to even.
pub(crate) fn specials(dtype: DType) -> Vec<u64> {
    let (significand, width): (u32, u32) = match dtype {
        // Zero, the subnormals, numbers about 1, the largest, infinity and NaN, whichever format has them; `narrow` tries all.
        DType::F8E4M3 | DType::F8E5M2 => {
            let magnitudes =
                [0, 1, 2, 3, 7, 8, 0x37, 0x38, 0x3b, 0x3c, 0x58, 0x7a, 0x7b, 0x7c, 0x7d, 0x7e, 0x7f];
            return magnitudes.iter().flat_map(|&m| [m, m | 0x80]).collect();
        }
        DType::F16 => (10, 16),
        DType::Bf16 => (7, 16),
        DType::F32 => (23, 32),
        DType::F64 => (52, 64),
        _ => {
            let top = 1u64 << (8 * dtype.size() - 1);
            let all = low_bits(dtype, -1);
            return vec![0, 1, 2, 3, 7, all, all - 1, top, top - 1, top + 1, all / 3];
        }
    };
    let one_ulp = 1u64;
    let hidden = 1u64 << significand;
    let infinity = ((1u64 << (width - 1)) - 1) & !(hidden - 1);
    let one = (infinity >> 1) & !(hidden - 1);
    let magnitudes = [
        0,
        one_ulp,
        2,
        3,
        hidden - 1,
        hidden,
        hidden + 1,
        one - 1,
        one,
        one + 1,
        one + hidden,
        one + (u64::from(significand) << significand),
        one + ((u64::from(significand) + 1) << significand),
        infinity - hidden,
        infinity - 1,
        infinity,
        infinity + 1,          // signalling NaN
        infinity + hidden / 2, // quiet NaN
        infinity + hidden / 2 + 1,
        infinity + hidden - 1,
    ];
    let sign = 1u64 << (width - 1);
    magnitudes.iter().flat_map(|&m| [m, m | sign]).collect()
}

/// `count` elements, a third of them special, the rest of a size that makes rounding matter or any bits at all.
pub(crate) fn random(rng: &mut SmallRng, dtype: DType, count: usize) -> Vec<u64> {
    let specials = specials(dtype);
    let mut element = || match rng.random_range(0..3) {
        0 => specials[rng.random_range(0..specials.len())],
        1 => low_bits(dtype, i128::from(rng.random::<u64>())),
        _ => {
            let x: f32 = rng.random_range(-8.0..8.0);
            match dtype {
                DType::F16 => u64::from(f16::from_f32_const(x).to_bits()),
                DType::Bf16 => u64::from(bf16::from_f32(x).to_bits()),
                DType::F32 => u64::from(x.to_bits()),
                DType::F64 => (f64::from(x) * rng.random::<f64>()).to_bits(),
                DType::F8E4M3 => E4M3.nearest(x.into()).into(),
                DType::F8E5M2 => E5M2.nearest(x.into()).into(),
                _ => low_bits(dtype, x as i128),
            }
        }
    };
    (0..count).map(|_| element()).collect()
}

/// Elements laid out `shift` bytes behind an aligned address, with guard bytes around them.
pub(crate) struct Laid {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Laid {
    const GUARD: u8 = 0xa5;

    pub(crate) fn new(dtype: DType, elements: &[u64], shift: usize) -> Self {
        let len = elements.len() * dtype.size();
        let mut bytes = vec![Self::GUARD; len + shift + 192];
        let start = bytes.as_ptr().align_offset(64) + 64 + shift;
        for (slot, element) in bytes[start..start + len].chunks_exact_mut(dtype.size()).zip(elements) {
            slot.copy_from_slice(&element.to_le_bytes()[..dtype.size()]);
        }
        Self { bytes, start, len }
    }

    pub(crate) fn ptr(&mut self) -> *mut u8 {
        self.bytes[self.start..].as_mut_ptr()
    }

    pub(crate) fn elements(&self, dtype: DType) -> Vec<u64> {
        let (before, rest) = self.bytes.split_at(self.start);
        let (inside, after) = rest.split_at(self.len);
        assert!(before.iter().chain(after).all(|&b| b == Self::GUARD), "wrote outside of the destination");
        inside.chunks_exact(dtype.size()).map(bits).collect()
    }
}

/// Where a fold's result goes.
#[derive(Debug, Clone, Copy)]
enum Into {
    Elsewhere,
    Source(usize),
    ElsewhereTwice,
    SourceAndElsewhere(usize),
}

/// Folds the columns at misaligned addresses and compares with the oracle.
fn check(kernels: Kernels, dtype: DType, op: ReduceOp, into: Into, columns: &[Vec<u64>], shifts: &[usize]) {
    let count = columns[0].len();
    let bytes = count * dtype.size();
    let shift = |i: usize| shifts[i % shifts.len()];
    let mut sources: Vec<Laid> =
        columns.iter().enumerate().map(|(i, c)| Laid::new(dtype, c, shift(i))).collect();
    let mut outs = [0, 1].map(|i| Laid::new(dtype, &vec![0; count], shift(columns.len() + i)));
    let pointers: Vec<*const u8> = sources.iter_mut().map(|s| s.ptr().cast_const()).collect();
    let [out, out2] = &mut outs;
    // SAFETY: all columns hold `bytes`, and the destination is one of them or apart from all.
    unsafe {
        match into {
            Into::Elsewhere => kernels.fold_raw(dtype, op, out.ptr(), &pointers, bytes),
            Into::Source(i) => kernels.fold_raw(dtype, op, pointers[i].cast_mut(), &pointers, bytes),
            Into::ElsewhereTwice => kernels.fold_raw2(dtype, op, out.ptr(), out2.ptr(), &pointers, bytes),
            Into::SourceAndElsewhere(i) => {
                kernels.fold_raw2(dtype, op, pointers[i].cast_mut(), out2.ptr(), &pointers, bytes)
            }
        }
    }
    let expected: Vec<u64> = (0..count)
        .map(|i| oracle(dtype, op, &columns.iter().map(|column| column[i]).collect::<Vec<_>>()))
        .collect();
    let results = match into {
        Into::Elsewhere => vec![outs[0].elements(dtype)],
        Into::Source(i) => vec![sources[i].elements(dtype)],
        Into::ElsewhereTwice => outs.iter().map(|o| o.elements(dtype)).collect(),
        Into::SourceAndElsewhere(i) => vec![sources[i].elements(dtype), outs[1].elements(dtype)],
    };
    for result in results {
        for i in 0..count {
            assert_eq!(
                result[i],
                expected[i],
                "{:?} {dtype} {op} {into:?} {shifts:?}, element {i} of {count}: {:#x?} gave {:#x}, not {:#x}",
                kernels.level(),
                columns.iter().map(|column| column[i]).collect::<Vec<_>>(),
                result[i],
                expected[i],
            );
        }
    }
}

#[test]
fn this_machine_tests_what_it_can() {
    let detected = Kernels::detect();
    assert!(Kernels::with_level(detected.level()).is_some());
    assert!(Level::ALL.iter().filter_map(|&l| Kernels::with_level(l)).all(|k| k.level() <= detected.level()));
    assert_eq!(Kernels::with_level(Level::Portable).unwrap().level(), Level::Portable);
}

#[test]
fn every_pair_of_special_values() {
    for kernels in levels() {
        for dtype in scalars() {
            let specials = specials(dtype);
            let pairs = || specials.iter().flat_map(|&a| specials.iter().map(move |&b| (a, b)));
            let columns = [pairs().map(|p| p.0).collect(), pairs().map(|p| p.1).collect::<Vec<_>>()];
            for op in folds(dtype) {
                check(kernels, dtype, op, Into::Elsewhere, &columns, &[0]);
                check(kernels, dtype, op, Into::Source(1), &columns, &[0]);
            }
        }
    }
}

#[test]
fn every_16_bit_value_with_random_partners() {
    let mut rng = SmallRng::seed_from_u64(16);
    for dtype in [DType::F16, DType::Bf16, DType::I16, DType::U16] {
        let all: Vec<u64> = (0..=0xffff).collect();
        for round in 0..3 {
            let partners = random(&mut rng, dtype, all.len());
            let third = random(&mut rng, dtype, all.len());
            let two = [all.clone(), partners.clone()];
            let three = [partners, all.clone(), third];
            for kernels in levels() {
                for op in folds(dtype) {
                    check(kernels, dtype, op, Into::Source(0), &two, &[round]);
                    check(kernels, dtype, op, Into::Elsewhere, &three, &[0, round]);
                }
            }
        }
    }
}

#[test]
fn every_bit_pattern_of_f32_narrows_alike() {
    // A step that is coprime to 2^32 and visits every exponent with varied significands.
    for bits in (0..=u32::MAX).step_by(9973) {
        for bits in [bits, bits & !0x1fff | 0x1000, bits & !0xffff | 0x8000, bits & !0x1fff | 0x1001] {
            let x = f32::from_bits(bits);
            assert_eq!(u64::from(number::f32_to_f16(x)), narrow_f16(x), "{bits:#x} to f16");
            assert_eq!(u64::from(number::f32_to_bf16(x)), narrow_bf16(x), "{bits:#x} to bf16");
        }
    }
    for half in 0..=u16::MAX {
        let (ours, theirs) = (number::f16_to_f32(half), f16::from_bits(half).to_f32_const());
        assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(), "{half:#x} from f16");
    }
}

#[test]
fn odd_lengths_and_any_alignment() {
    let mut rng = SmallRng::seed_from_u64(4);
    for kernels in levels() {
        for dtype in scalars() {
            for op in folds(dtype) {
                for count in (0..=70).chain([127, 128, 129, 255, 257]) {
                    let columns = [random(&mut rng, dtype, count), random(&mut rng, dtype, count)];
                    let shifts = [0; 3].map(|_| rng.random_range(0..64));
                    check(kernels, dtype, op, Into::Elsewhere, &columns, &shifts);
                    check(kernels, dtype, op, Into::Source(0), &columns, &shifts);
                }
            }
            for shift in 0..64 {
                let columns = [random(&mut rng, dtype, 67), random(&mut rng, dtype, 67)];
                for op in folds(dtype) {
                    check(kernels, dtype, op, Into::Source(0), &columns, &[shift, 0]);
                    check(kernels, dtype, op, Into::Elsewhere, &columns, &[0, 63 - shift, shift]);
                }
            }
        }
    }
}

#[test]
fn many_sources_in_order_to_one_place_or_two() {
    let mut rng = SmallRng::seed_from_u64(8);
    for kernels in levels() {
        for dtype in scalars() {
            for op in ReduceOp::ALL.iter().copied().filter(|op| op.is_of(dtype)) {
                for k in 1..=9 {
                    // Beyond a tile, and not a multiple of one.
                    let count = rng.random_range(1..1400);
                    let columns: Vec<Vec<u64>> = (0..k).map(|_| random(&mut rng, dtype, count)).collect();
                    let source = rng.random_range(0..k);
                    let shifts = [0; 5].map(|_| rng.random_range(0..64));
                    for into in [
                        Into::Elsewhere,
                        Into::Source(source),
                        Into::ElsewhereTwice,
                        Into::SourceAndElsewhere(source),
                    ] {
                        check(kernels, dtype, op, into, &columns, &shifts);
                    }
                }
            }
        }
    }
}

#[test]
fn one_source_given_twice_is_doubled() {
    for kernels in levels() {
        let mut x = 1.5f32.to_le_bytes();
        let p = x.as_mut_ptr();
        // SAFETY: one element, which is both sources and the destination.
        unsafe { kernels.fold_raw(DType::F32, ReduceOp::Sum, p, &[p, p], 4) }
        assert_eq!(f32::from_le_bytes(x), 3.0);
    }
}

#[test]
fn nothing_is_written_without_sources_or_beyond_the_last_element() {
    for kernels in levels() {
        let mut dst = [1u8; 7];
        // SAFETY: no source is read.
        unsafe { kernels.fold_raw(DType::F32, ReduceOp::Sum, dst.as_mut_ptr(), &[], 7) }
        assert_eq!(dst, [1; 7]);
        kernels.accumulate(DType::U32, ReduceOp::Sum, &mut dst, &[1; 7]);
        assert_eq!(dst, [2, 2, 2, 2, 1, 1, 1]);
        kernels.finish_avg(DType::U32, &mut dst, 2);
        assert_eq!(dst, [1; 7]);
    }
}

#[test]
fn a_fold_of_halves_is_rounded_once() {
    // 2048 + 1 is a tie in f16 that rounds down to 2048, so rounding after each source would lose every one.
    let columns: Vec<Vec<u64>> = [2048.0, 1.0, 1.0, 1.0]
        .iter()
        .map(|&x| vec![u64::from(f16::from_f32_const(x).to_bits()); 40])
        .collect();
    for kernels in levels() {
        check(kernels, DType::F16, ReduceOp::Sum, Into::Elsewhere, &columns, &[0]);
        let mut dst = [0u8; 2];
        let sources: Vec<[u8; 2]> = columns.iter().map(|c| (c[0] as u16).to_le_bytes()).collect();
        let pointers: Vec<*const u8> = sources.iter().map(|s| s.as_ptr()).collect();
        // SAFETY: one element each.
        unsafe { kernels.fold_raw(DType::F16, ReduceOp::Sum, dst.as_mut_ptr(), &pointers, 2) }
        assert_eq!(f16::from_le_bytes(dst).to_f32_const(), 2052.0); // 2051 rounded to even, once
    }
}

/// Against f64: half of the result's last place, and the error that `k - 1` roundings in f32 may add.
#[test]
fn narrow_folds_err_by_one_rounding_to_the_type() {
    let mut rng = SmallRng::seed_from_u64(53);
    for kernels in levels() {
        for (dtype, digits, least_exponent) in [(DType::F16, 11, -14), (DType::Bf16, 8, -126)] {
            for k in 2..=8 {
                let columns: Vec<Vec<u64>> = (0..k)
                    .map(|_| {
                        let narrow =
                            |x: f32| if dtype == DType::F16 { narrow_f16(x) } else { narrow_bf16(x) };
                        (0..333).map(|_| narrow(rng.random_range(-1.0..1.0f32).powi(3))).collect()
                    })
                    .collect();
                let mut laid: Vec<Laid> = columns.iter().map(|c| Laid::new(dtype, c, 2)).collect();
                let pointers: Vec<*const u8> = laid.iter_mut().map(|l| l.ptr().cast_const()).collect();
                let mut out = Laid::new(dtype, &[0; 333], 6);
                // SAFETY: `k` columns and a destination of 333 elements, all apart.
                unsafe { kernels.fold_raw(dtype, ReduceOp::Sum, out.ptr(), &pointers, 666) }
                for (i, result) in out.elements(dtype).into_iter().enumerate() {
                    let value = |bits: u64| match dtype {
                        DType::F16 => f16::from_bits(bits as u16).to_f64_const(),
                        _ => bf16::from_bits(bits as u16).to_f64(),
                    };
                    let exact: f64 = columns.iter().map(|c| value(c[i])).sum();
                    let magnitude: f64 = columns.iter().map(|c| value(c[i]).abs()).sum();
                    let exponent = (exact.abs().log2().floor() as i32).max(least_exponent);
                    let half_a_place = 2f64.powi(exponent - digits);
                    let in_f32 = (k - 1) as f64 * magnitude * 2f64.powi(-24);
                    let error = (value(result) - exact).abs();
                    assert!(
                        error <= half_a_place + in_f32,
                        "{:?} {dtype}, {k} sources, element {i}: {exact} gave {}, off by {error:e}",
                        kernels.level(),
                        value(result),
                    );
                }
            }
        }
    }
}

#[test]
fn averages_are_correctly_rounded_and_integers_truncate() {
    let mut rng = SmallRng::seed_from_u64(32);
    for dtype in scalars().filter(|dtype| ReduceOp::Avg.is_of(*dtype)) {
        for n in [0, 1, 2, 3, 5, 7, 8, 12, 100, 255, 256, 1000, 4093, 4096] {
            let elements = if dtype.size() == 2 {
                (0..=0xffff).collect()
            } else {
                [specials(dtype), random(&mut rng, dtype, 1001)].concat()
            };
            let divisor = u64::from(n.max(1));
            let quotient = |bits: u64| match dtype {
                DType::F8E4M3 => E4M3.nearest(E4M3.value(bits as u8) / divisor as f64).into(),
                DType::F8E5M2 => E5M2.nearest(E5M2.value(bits as u8) / divisor as f64).into(),
                // Rounded from f64, whose quotient is so much finer that no tie is met on the way.
                DType::F16 => {
                    let x = f64::from(f16::from_bits(bits as u16).to_f32_const()) / divisor as f64;
                    if x.is_nan() { 0x7e00 } else { u64::from(f16::from_f64_const(x).to_bits()) }
                }
                DType::Bf16 => {
                    let x = f64::from(bf16::from_bits(bits as u16).to_f32()) / divisor as f64;
                    if x.is_nan() { 0x7fc0 } else { u64::from(bf16::from_f64(x).to_bits()) }
                }
                DType::F32 => narrow_f32((f64::from(f32::from_bits(bits as u32)) / divisor as f64) as f32),
                DType::F64 => narrow_f64(f64::from_bits(bits) / divisor as f64),
                _ => low_bits(dtype, as_integer(dtype, bits) / i128::from(divisor)),
            };
            for kernels in levels() {
                let mut laid = Laid::new(dtype, &elements, 3);
                let (start, len) = (laid.start, laid.len);
                kernels.finish_avg(dtype, &mut laid.bytes[start..start + len], n);
                for (&element, result) in elements.iter().zip(laid.elements(dtype)) {
                    let expected = quotient(element);
                    assert_eq!(result, expected, "{:?} {dtype} {element:#x} / {n}", kernels.level());
                }
            }
        }
    }
}

/// Runs `work` with the thread's floating point flushing subnormals and rounding toward zero, as a trainer may.
#[cfg(target_arch = "x86_64")]
fn with_hostile_mxcsr(work: impl FnOnce()) {
    use std::arch::asm;
    let mut saved = 0u32;
    // Flush to zero, round toward zero, all masked, subnormals are zeros, and a sticky flag that must survive.
    let hostile = 0x8000u32 | 0x6000 | 0x1f80 | 0x0040 | 0x0004;
    let mut after = 0u32;
    // SAFETY: MXCSR is put back at once after `work`, whose own arithmetic is done by the kernels.
    unsafe {
        asm!("stmxcsr [{}]", in(reg) &raw mut saved, options(nostack));
        asm!("ldmxcsr [{}]", in(reg) &raw const hostile, options(nostack));
        work();
        asm!("stmxcsr [{}]", in(reg) &raw mut after, options(nostack));
        asm!("ldmxcsr [{}]", in(reg) &raw const saved, options(nostack));
    }
    assert_eq!(after, hostile, "the trainer's mode is left as it was");
}

#[cfg(target_arch = "x86_64")]
#[test]
fn the_trainers_flush_to_zero_does_not_reach_the_kernels() {
    let mut rng = SmallRng::seed_from_u64(64);
    for kernels in levels() {
        for dtype in scalars().filter(|&d| is_float(d)) {
            for op in folds(dtype) {
                // Sums of subnormals, products that become subnormal, and quotients of them.
                let columns = [0, 1, 2].map(|_| random(&mut rng, dtype, 1000));
                let mut laid = [0, 1, 2].map(|i: usize| Laid::new(dtype, &columns[i], 0));
                let pointers = laid.each_mut().map(|l| l.ptr().cast_const());
                let bytes = laid[0].len;
                let out = laid[0].ptr();
                // SAFETY: three columns of `bytes`; the first is the destination.
                with_hostile_mxcsr(|| unsafe { kernels.fold_raw(dtype, op, out, &pointers, bytes) });
                for (i, result) in laid[0].elements(dtype).into_iter().enumerate() {
                    let sources = columns.each_ref().map(|c| c[i]);
                    let expected = oracle(dtype, op, &sources);
                    assert_eq!(result, expected, "{:?} {dtype} {op} {sources:#x?}", kernels.level());
                }
            }
            let specials = specials(dtype);
            let mut calm = Laid::new(dtype, &specials, 0);
            let mut hostile = Laid::new(dtype, &specials, 0);
            let (start, len) = (calm.start, calm.len);
            kernels.finish_avg(dtype, &mut calm.bytes[start..start + len], 3);
            let start = hostile.start;
            with_hostile_mxcsr(|| {
                kernels.finish_avg(dtype, &mut hostile.bytes[start..start + len], 3);
            });
            assert_eq!(calm.elements(dtype), hostile.elements(dtype), "{:?} {dtype}", kernels.level());
        }
    }
}
