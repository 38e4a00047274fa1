//! Calls that are refused before the driver sees them.

use super::*;
use crate::cuda::kernel::MAX_SOURCES;

/// A fold of these tensors of f32.
fn fold<'a>(destinations: &'a [u64], sources: &'a [u64], count: u64) -> Fold<'a> {
    Fold { dtype: DType::F32, op: ReduceOp::Sum, destinations, sources, count, divide_by: None }
}

#[test]
fn every_kernel_has_its_place_and_its_name() {
    let names: std::collections::HashSet<String> = Kernel::all().map(Kernel::name).collect();
    assert_eq!(names.len(), Kernel::all().count());
    for (i, kernel) in Kernel::all().enumerate() {
        assert_eq!(kernel.index(), Some(i), "{kernel:?}");
    }
    let name = |divide_by| {
        let fold = Fold { op: ReduceOp::Avg, divide_by, ..fold(&[64], &[64, 128], 8) };
        call::fold(&fold, 1).unwrap().unwrap().kernel.name()
    };
    for plain in [None, Some(0), Some(1)] {
        assert_eq!(name(plain), "fold_sum_f32");
    }
    assert_eq!(name(Some(2)), "fold_sum_f32_divided");
}

#[test]
fn wrong_arguments_are_named() {
    let check = |destinations: &[u64], sources: &[u64], count| {
        call::fold(&fold(destinations, sources, count), 1).map(|c| c.is_some())
    };
    let top = u64::MAX - 15;
    assert_eq!(check(&[4096], &[8192], 4), Ok(true));
    assert_eq!(check(&[0], &[0], 0), Ok(false));
    assert_eq!(check(&[4096], &[], 4), Err(CallError::Sources(0)));
    assert_eq!(check(&[4096], &[8192; MAX_SOURCES + 1], 4), Err(CallError::Sources(MAX_SOURCES + 1)));
    assert_eq!(check(&[], &[8192], 4), Err(CallError::Destinations(0)));
    let many: Vec<u64> = (1..=MAX_DESTINATIONS as u64 + 1).map(|i| i << 12).collect();
    assert_eq!(check(&many, &[1 << 30], 4), Err(CallError::Destinations(MAX_DESTINATIONS + 1)));
    assert_eq!(check(&many[1..], &many[..MAX_SOURCES], 1024), Ok(true));
    assert_eq!(check(&[0], &[8192], 4), Err(CallError::Null { what: "a destination" }));
    assert_eq!(check(&[4096], &[8192, 0], 4), Err(CallError::Null { what: "a source" }));
    let misaligned = |what, address| Err(CallError::Misaligned { what, address, align: 4 });
    assert_eq!(check(&[4096], &[8194], 4), misaligned("a source", 8194));
    assert_eq!(check(&[4096, 12289], &[8192], 4), misaligned("a destination", 12289));
    let too_long = |what, address| Err(CallError::TooLong { what, address });
    assert_eq!(check(&[(top - 1) & !3], &[8192], 8), too_long("a destination", (top - 1) & !3));
    assert_eq!(check(&[4096], &[8192], u64::MAX / 2), too_long("a source", 8192));
    let overlap = |dst, src| Err(CallError::Overlap { dst, src });
    assert_eq!(check(&[4096], &[4100], 4), overlap(4096, 4100));
    assert_eq!(check(&[4100], &[4096], 4), overlap(4100, 4096));
    assert_eq!(check(&[8192, 4100], &[8192, 4096], 4), overlap(4100, 4096));
    assert_eq!(check(&[4112], &[4096], 4), Ok(true), "beside one another");
    let meet = |one, other| Err(CallError::Destination { one, other });
    assert_eq!(check(&[4096, 64, 4096], &[4096], 4), meet(4096, 4096));
    assert_eq!(check(&[4096, 4108], &[8192], 4), meet(4096, 4108));
    assert_eq!(check(&[4096, 4084], &[8192], 4), meet(4096, 4084));
    assert_eq!(check(&[4096, 4112, 4080], &[8192], 4), Ok(true), "beside one another");

    let crc = |bytes, fragment| call::crc32c(4096, bytes, fragment, 64, 1).map(|c| c.is_some());
    assert_eq!(crc(0, 0), Ok(false));
    assert_eq!(crc(10, 0), Err(CallError::Fragments { bytes: 10, fragment: 0 }));
    assert_eq!(crc(1 << 40, 16), Err(CallError::Fragments { bytes: 1 << 40, fragment: 16 }));
    assert_eq!(crc(1 << 40, 1 << 20), Ok(true));
    assert_eq!(call::pack(Packing::Pack, 8, 0, 0, 0, 1).map(|c| c.is_some()), Ok(false));
    let pack = call::pack(Packing::Unpack, 12, 1, 0, 64, 1).map(|c| c.is_some());
    assert_eq!(pack, Err(CallError::Misaligned { what: "the table of pieces", address: 12, align: 8 }));
}

#[test]
fn grids_stay_within_what_devices_take() {
    for processors in [0, 1, 132, u32::MAX] {
        for count in [1, 255, 256, 1 << 20, 1 << 40] {
            let grids = [
                call::fold(&fold(&[16, 1 << 49], &[1 << 50, 1 << 51], count), processors)
                    .map(|c| c.map(|c| c.grid)),
                call::pack(Packing::Pack, 16, 100_000, count, 16, processors).map(|c| c.map(|c| c.grid)),
                call::crc32c(16, count, count.min(1 << 30), 16, processors).map(|c| c.map(|c| c.grid)),
                call::crc32c(16, count, count.div_ceil(1 << 20), 16, processors).map(|c| c.map(|c| c.grid)),
            ];
            for grid in grids {
                let [x, y] = grid.unwrap().unwrap();
                assert!((1..1 << 31).contains(&x) && (1..1 << 16).contains(&y), "{count}: {x} by {y}");
            }
        }
    }
}

#[test]
fn what_a_type_has_has_a_kernel_and_nothing_else_has() {
    for &dtype in DType::ALL {
        for &op in ReduceOp::ALL {
            for divide_by in [None, Some(3)] {
                let fold = Fold { dtype, op, divide_by, ..fold(&[4096], &[4096, 8192], 5) };
                let due = match op.check(dtype) {
                    Err(why) => Err(CallError::NoReduction(why)),
                    Ok(()) if divide_by.is_some() && !is_divided(dtype, op) => {
                        Err(CallError::NoDivision { dtype, op })
                    }
                    Ok(()) => Ok(true),
                };
                let call = call::fold(&fold, 1);
                assert_eq!(
                    call.map(|c| c.is_some_and(|c| c.kernel.index().is_some())),
                    due,
                    "{op} of {dtype}"
                );
            }
        }
    }
    // Complex numbers lie where their parts may, and a count of them may be too large only in parts.
    let complex = |address, count| {
        let addresses = [address];
        let fold = Fold { dtype: DType::Complex128, ..fold(&addresses, &[1 << 20], count) };
        call::fold(&fold, 1).map(|c| c.is_some())
    };
    assert_eq!(complex(4104, 5), Ok(true));
    let misaligned = CallError::Misaligned { what: "a destination", address: 4100, align: 8 };
    assert_eq!(complex(4100, 5), Err(misaligned));
    assert!(matches!(complex(4096, 1 << 63), Err(CallError::TooLong { .. })));
}
