//! Complex numbers against arithmetic on their parts.

use super::*;

/// Sources of `count` complex numbers; their parts are specials and others of a float type.
fn columns(rng: &mut SmallRng, part: DType, k: usize, count: usize) -> Vec<Vec<u64>> {
    (0..k).map(|_| random(rng, part, 2 * count)).collect()
}

/// One number's fold: both parts' bits. `$wide` is how a part is read, `$narrow` how it is written.
macro_rules! oracle_of {
    ($name:ident, $wide:expr, $narrow:expr) => {
        fn $name(op: ReduceOp, numbers: &[[u64; 2]]) -> [u64; 2] {
            let values = numbers.iter().map(|parts| parts.map($wide));
            let fold = values.reduce(|[a, b], [c, d]| match op {
                ReduceOp::Sum | ReduceOp::Avg => [a + c, b + d],
                ReduceOp::Prod => {
                    let (real, minus) = (a * c, b * d);
                    let (one, other) = (a * d, b * c);
                    [real - minus, one + other]
                }
                _ => panic!("{op} of complex numbers"),
            });
            fold.unwrap().map($narrow)
        }
    };
}
oracle_of!(oracle32, |bits| f32::from_bits(bits as u32), narrow_f32);
oracle_of!(oracle64, f64::from_bits, narrow_f64);

#[test]
fn complex_numbers_are_folded_as_their_definition_says() {
    let mut rng = SmallRng::seed_from_u64(64);
    for kernels in levels() {
        for (dtype, part) in [(DType::Complex64, DType::F32), (DType::Complex128, DType::F64)] {
            for op in [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Prod] {
                for k in 1..=5 {
                    for count in (0..=35).chain([511, 512, 1025]) {
                        let columns = columns(&mut rng, part, k, count);
                        // Parts at any address, even one that no part could have.
                        let mut laid: Vec<Laid> = columns
                            .iter()
                            .map(|column| Laid::new(part, column, rng.random_range(0..64)))
                            .collect();
                        let pointers: Vec<*const u8> =
                            laid.iter_mut().map(|l| l.ptr().cast_const()).collect();
                        let mut out = Laid::new(part, &vec![0; 2 * count], rng.random_range(0..64));
                        let in_place: bool = rng.random();
                        let dst = if in_place { pointers[k - 1].cast_mut() } else { out.ptr() };
                        // SAFETY: all have `count` elements; the destination is a source or apart.
                        unsafe { kernels.fold_raw(dtype, op, dst, &pointers, count * dtype.size()) }
                        let found = if in_place { laid[k - 1].elements(part) } else { out.elements(part) };
                        for (i, found) in found.chunks(2).enumerate() {
                            let numbers: Vec<[u64; 2]> =
                                columns.iter().map(|c| [c[2 * i], c[2 * i + 1]]).collect();
                            let due = match part {
                                DType::F32 => oracle32(op, &numbers),
                                _ => oracle64(op, &numbers),
                            };
                            assert_eq!(found, due, "{:?} {dtype} {op} {numbers:#x?}", kernels.level());
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn both_parts_of_an_average_are_divided() {
    for kernels in levels() {
        let mut numbers = [[6f32, -9.0], [1.5, f32::INFINITY]].map(|parts| parts.map(f32::to_le_bytes));
        kernels.finish_avg(DType::Complex64, numbers.as_flattened_mut().as_flattened_mut(), 3);
        let found = numbers.map(|parts| parts.map(f32::from_le_bytes));
        assert_eq!(found, [[2.0, -3.0], [0.5, f32::INFINITY]]);
        // Bytes behind the last whole element stay as they are, even where they are a whole part.
        let mut bytes = [[8f64, 8.0], [8.0, 8.0]].map(|parts| parts.map(f64::to_le_bytes));
        let bytes = &mut bytes.as_flattened_mut().as_flattened_mut()[..24];
        kernels.finish_avg(DType::Complex128, bytes, 2);
        let part = |at: usize| f64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        assert_eq!([0, 8, 16].map(part), [4.0, 4.0, 8.0]);
    }
}
