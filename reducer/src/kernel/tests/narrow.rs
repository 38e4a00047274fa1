//! Types of one byte, exhaustively, and which functions there are.

use super::*;

#[test]
fn every_pair_of_bytes() {
    let pairs: Vec<[u8; 2]> = (0..=0xffff).map(u16::to_le_bytes).collect();
    let columns = [0, 1].map(|i| pairs.iter().map(|pair| pair[i]).collect::<Vec<u8>>());
    for dtype in scalars().filter(|dtype| dtype.size() == 1) {
        for op in folds(dtype) {
            let due: Vec<u8> =
                pairs.iter().map(|pair| oracle(dtype, op, &pair.map(u64::from)) as u8).collect();
            for kernels in levels() {
                let mut apart = vec![0; pairs.len()];
                kernels.fold(dtype, op, &mut apart, &columns.each_ref().map(Vec::as_slice));
                let mut in_place = columns[0].clone();
                kernels.accumulate(dtype, op, &mut in_place, &columns[1]);
                for found in [apart, in_place] {
                    let wrong = (0..pairs.len()).find(|&i| found[i] != due[i]);
                    let say = |i: usize| format!("{:x?} gave {:#x}, not {:#x}", pairs[i], found[i], due[i]);
                    assert_eq!(wrong.map(say), None, "{:?} {dtype} {op}", kernels.level());
                }
            }
        }
    }
}

#[test]
fn a_fold_of_8_bit_floats_is_rounded_once() {
    // Each 1 is less than half of 32's last place in both, and so would be lost by itself.
    for (dtype, wide, narrow) in [(DType::F8E4M3, 0x60u64, 0x38u64), (DType::F8E5M2, 0x50, 0x3c)] {
        let format = float8(dtype).unwrap();
        assert_eq!((format.value(wide as u8), format.value(narrow as u8)), (32.0, 1.0));
        let columns: Vec<Vec<u64>> = [wide].into_iter().chain([narrow; 8]).map(|x| vec![x; 70]).collect();
        let due = u64::from(format.nearest(40.0));
        assert_eq!(oracle(dtype, ReduceOp::Sum, &columns.iter().map(|c| c[0]).collect::<Vec<_>>()), due);
        for kernels in levels() {
            check(kernels, dtype, ReduceOp::Sum, Into::Elsewhere, &columns, &[0]);
        }
    }
}

#[test]
fn there_is_a_function_for_what_a_type_has_and_none_else() {
    for kernels in levels() {
        for &dtype in DType::ALL {
            for &op in ReduceOp::ALL {
                let found = kernels.table.fold(dtype, op);
                assert_eq!(found.is_some(), op.is_of(dtype), "{op} of {dtype}");
                // Each element is a whole number of the units that are folded.
                assert!(
                    found.is_none_or(|(_, unit)| dtype.size().is_multiple_of(unit.size())),
                    "{op} of {dtype}"
                );
            }
            assert_eq!(kernels.table.divide(dtype).is_some(), ReduceOp::Avg.is_of(dtype), "{dtype}");
        }
    }
}
