//! The CUDA C text, run on the host against the host's own kernels; and NVRTC's results for it.

#![allow(unsafe_code)]

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::call::{self, Call, CallError, Kernel};
use super::{Fold, MAX_DESTINATIONS, PackedPiece, Packing, crc};
use crate::dtype::{DType, ReduceOp};
use crate::kernel::Kernels;
use crate::kernel::tests::{Laid, folds, is_float, random, scalars, specials};

mod calls;
mod compiler;
mod device;
mod grid;

use self::grid::Grid;

/// Multiprocessors of the grids here: few, so that threads take several rounds.
const PROCESSORS: u32 = 1;

/// Whether a fold can be divided.
fn is_divided(dtype: DType, op: ReduceOp) -> bool {
    use ReduceOp::*;
    match dtype {
        DType::Complex64 | DType::Complex128 => matches!(op, Sum | Avg),
        _ => matches!(op, Sum | Avg | Min | Max | Prod),
    }
}

/// A fold of columns of elements.
#[derive(Debug)]
struct Case<'a> {
    dtype: DType,
    op: ReduceOp,
    /// Elements by which tensors lie behind an aligned address: sources, then destinations, in rotation.
    shifts: &'a [usize],
    /// The sources that are destinations.
    in_place: &'a [usize],
    /// How many destinations there are besides.
    apart: usize,
    divide_by: Option<u32>,
}

/// Folds the columns as the case says, and compares every destination with what the host's kernels give, and every other
/// source with what it was.
fn check_fold(grid: &Grid, columns: &[Vec<u64>], case: &Case<'_>) {
    let Case { dtype, op, shifts, in_place, apart, divide_by } = *case;
    let divide_by = divide_by.filter(|_| is_divided(dtype, op));
    let count = columns[0].len();
    let lay = |i: usize, column: &[u64]| Laid::new(dtype, column, shifts[i % shifts.len()] * dtype.size());
    let blank = vec![0; count];
    let mut tensors: Vec<Laid> = columns.iter().enumerate().map(|(i, c)| lay(i, c)).collect();
    let mut host = lay(0, &blank);
    let pointers: Vec<*const u8> = tensors.iter_mut().map(|l| l.ptr().cast_const()).collect();
    let bytes = count * dtype.size();
    // SAFETY: all have `count` elements, and the destination is apart.
    unsafe { Kernels::detect().fold_raw(dtype, op, host.ptr(), &pointers, bytes) }
    if let Some(n) = divide_by {
        // SAFETY: as many bytes are laid there, and no one else has them meanwhile.
        let sum = unsafe { std::slice::from_raw_parts_mut(host.ptr(), bytes) };
        Kernels::detect().finish_avg(dtype, sum, n);
    }
    tensors.extend((0..apart).map(|i| lay(columns.len() + i, &blank)));
    let addresses: Vec<u64> = tensors.iter_mut().map(|l| l.ptr() as u64).collect();
    let (sources, others) = addresses.split_at(columns.len());
    let destinations: Vec<u64> = in_place.iter().map(|&i| sources[i]).chain(others.iter().copied()).collect();
    let fold = Fold { dtype, op, destinations: &destinations, sources, count: count as u64, divide_by };
    let call = call::fold(&fold, PROCESSORS).unwrap();
    // SAFETY: all have `count` elements; each destination is a source or apart.
    unsafe { grid.run(call) }
    let expected = host.elements(dtype);
    for (i, tensor) in tensors.iter().enumerate() {
        let got = tensor.elements(dtype);
        let written = i >= columns.len() || in_place.contains(&i);
        let expected = if written { &expected } else { &columns[i] };
        if let Some(at) = (0..count).find(|&at| got[at] != expected[at]) {
            panic!(
                "tensor {i}, element {at} of {count}: {:#x?} gave {:#x}, not {:#x}; {case:?}",
                columns.iter().map(|c| c[at]).collect::<Vec<_>>(),
                got[at],
                expected[at],
            );
        }
    }
}

#[test]
fn folds_give_the_bits_of_the_host() {
    let Some(grid) = Grid::get() else { return };
    let mut rng = SmallRng::seed_from_u64(5);
    for dtype in scalars() {
        let specials = specials(dtype);
        let pairs = || specials.iter().flat_map(|&a| specials.iter().map(move |&b| (a, b)));
        let columns = [pairs().map(|p| p.0).collect::<Vec<_>>(), pairs().map(|p| p.1).collect()];
        for op in ReduceOp::ALL.iter().copied().filter(|op| op.is_of(dtype)) {
            for divide_by in [None, Some(2), Some(7)] {
                let case = Case { dtype, op, shifts: &[0], in_place: &[], apart: 1, divide_by };
                check_fold(&grid, &columns, &case);
            }
            for k in (1..=9).chain([16, 31, 64]) {
                let most = if k < 4 { 2000 } else { 400 };
                for count in [1, 15, 33, rng.random_range(100..most)] {
                    let columns: Vec<_> = (0..k).map(|_| random(&mut rng, dtype, count)).collect();
                    let alike = [rng.random_range(0..16)];
                    let mixed = [0; 5].map(|_| rng.random_range(0..16));
                    let source = rng.random_range(0..k);
                    for shifts in [&alike[..], &mixed[..]] {
                        let n = Some(rng.random_range(0..12));
                        for (in_place, apart, divide_by) in [
                            (&[][..], 1, None),
                            (&[source], 0, None),
                            (&[source], 1, n),
                            (&[source], 4, None),
                            (&[], 2, n),
                        ] {
                            let case = Case { dtype, op, shifts, in_place, apart, divide_by };
                            check_fold(&grid, &columns, &case);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn every_rank_of_a_host_gets_the_result_in_place() {
    let Some(grid) = Grid::get() else { return };
    let mut rng = SmallRng::seed_from_u64(8);
    let all: Vec<usize> = (0..MAX_DESTINATIONS).collect();
    for dtype in scalars() {
        for op in ReduceOp::ALL.iter().copied().filter(|op| op.is_of(dtype)) {
            for k in [1, 2, 3, 8, MAX_DESTINATIONS] {
                for count in [16 / dtype.size(), 700] {
                    let columns: Vec<_> = (0..k).map(|_| random(&mut rng, dtype, count)).collect();
                    for (shifts, divide_by) in [
                        (&[0][..], None),
                        (&[3], Some(k as u32)),
                        (&[0, 1], Some(u32::MAX)),
                        (&[5, 2, 1], None),
                    ] {
                        let in_place = &all[..k];
                        let case = Case { dtype, op, shifts, in_place, apart: 0, divide_by };
                        check_fold(&grid, &columns, &case);
                    }
                }
            }
        }
    }
}

#[test]
fn every_16_bit_value_folds_and_divides_as_on_the_host() {
    let Some(grid) = Grid::get() else { return };
    let mut rng = SmallRng::seed_from_u64(16);
    for dtype in [DType::F16, DType::Bf16, DType::I16, DType::U16] {
        let all: Vec<u64> = (0..=0xffff).collect();
        let two = [all.clone(), random(&mut rng, dtype, all.len())];
        let three = [random(&mut rng, dtype, all.len()), all.clone(), random(&mut rng, dtype, all.len())];
        for op in folds(dtype) {
            let in_place = Case { dtype, op, shifts: &[3], in_place: &[0], apart: 0, divide_by: None };
            check_fold(&grid, &two, &in_place);
            let divided = Case { shifts: &[0], in_place: &[], apart: 1, divide_by: Some(3), ..in_place };
            check_fold(&grid, &two, &divided);
            check_fold(&grid, &three, &Case { shifts: &[0, 1], divide_by: None, ..divided });
        }
    }
    for dtype in scalars().filter(|dtype| ReduceOp::Avg.is_of(*dtype)) {
        let elements = if dtype.size() == 2 {
            (0..=0xffff).collect()
        } else {
            [specials(dtype), random(&mut rng, dtype, 3001)].concat()
        };
        for n in [0, 1, 2, 3, 7, 8, 100, 255, 1000, 4096, u32::MAX] {
            let shift = rng.random_range(0..16) * dtype.size();
            let (mut host, mut device) =
                (Laid::new(dtype, &elements, shift), Laid::new(dtype, &elements, shift));
            let bytes = elements.len() * dtype.size();
            // SAFETY: as many bytes are laid there, and no one else has them meanwhile.
            let slice = unsafe { std::slice::from_raw_parts_mut(host.ptr(), bytes) };
            Kernels::detect().finish_avg(dtype, slice, n);
            let dst = device.ptr() as u64;
            let (op, tensor) = (ReduceOp::Sum, &[dst]);
            let (destinations, count) = (tensor, elements.len() as u64);
            let fold = Fold { dtype, op, destinations, sources: tensor, count, divide_by: Some(n) };
            let call = call::fold(&fold, PROCESSORS).unwrap();
            // SAFETY: as many elements are laid there.
            unsafe { grid.run(call) }
            assert!(device.elements(dtype) == host.elements(dtype), "{dtype} / {n}");
        }
    }
}

#[test]
fn complex_numbers_fold_as_on_the_host() {
    let Some(grid) = Grid::get() else { return };
    let mut rng = SmallRng::seed_from_u64(2);
    for (dtype, part) in [(DType::Complex64, DType::F32), (DType::Complex128, DType::F64)] {
        for op in [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Prod] {
            for (k, count, shifts) in
                [(2, 700, [0; 3]), (3, 701, [0; 3]), (2, 99, [1; 3]), (5, 70, [0, 1, 2])]
            {
                // The parts of each number, one behind the other; they shift by half of one.
                let columns: Vec<_> = (0..k).map(|_| random(&mut rng, part, 2 * count)).collect();
                let mut laid: Vec<Laid> = columns
                    .iter()
                    .enumerate()
                    .map(|(i, column)| Laid::new(part, column, shifts[i % 3] * part.size()))
                    .collect();
                let pointers: Vec<*const u8> = laid.iter_mut().map(|l| l.ptr().cast_const()).collect();
                let sources: Vec<u64> = pointers.iter().map(|&source| source as u64).collect();
                let mut host = Laid::new(part, &columns[0], 0);
                let divide_by = (op == ReduceOp::Avg).then_some(3);
                // SAFETY: all have `count` elements, and the destination is apart.
                unsafe { Kernels::detect().fold_raw(dtype, op, host.ptr(), &pointers, count * dtype.size()) }
                if let Some(n) = divide_by {
                    // SAFETY: as many bytes are laid there, and no one else has them meanwhile.
                    let sum = unsafe { std::slice::from_raw_parts_mut(host.ptr(), count * dtype.size()) };
                    Kernels::detect().finish_avg(dtype, sum, n);
                }
                let (destinations, sources) = (&sources[k - 1..], &sources[..]);
                let fold = Fold { dtype, op, destinations, sources, count: count as u64, divide_by };
                let call = call::fold(&fold, PROCESSORS).unwrap();
                // SAFETY: all have `count` elements; the destination is a source.
                unsafe { grid.run(call) }
                assert_eq!(
                    laid[k - 1].elements(part),
                    host.elements(part),
                    "{op} of {k} x {count} x {dtype}"
                );
            }
        }
    }
}

#[test]
fn tensors_are_packed_and_come_back() {
    let Some(grid) = Grid::get() else { return };
    let mut rng = SmallRng::seed_from_u64(9);
    for pieces in [1, 2, 70, 700] {
        let tensors: Vec<Vec<u8>> = (0..pieces)
            .map(|i| {
                let len = if i == 0 { 9001 } else { rng.random_range(0..300) };
                (0..len + 16).map(|_| rng.random()).collect()
            })
            .collect();
        let mut back: Vec<Vec<u8>> = tensors.iter().map(|t| vec![0; t.len()]).collect();
        let mut offset = rng.random_range(0..32);
        let (mut table, mut back_table) = (Vec::new(), Vec::new());
        for (tensor, back) in tensors.iter().zip(&mut back) {
            let start = rng.random_range(0..16);
            let bytes = tensor.len() as u64 - 16;
            table.push(PackedPiece { address: tensor[start..].as_ptr() as u64, bytes, offset });
            back_table.push(PackedPiece { address: back[start..].as_mut_ptr() as u64, bytes, offset });
            offset += bytes + rng.random_range(0..20);
        }
        let mut buffer = vec![0xa5u8; offset as usize + 32];
        let (at, largest) = (buffer.as_mut_ptr() as u64, 9001);
        let pack = call::pack(Packing::Pack, table.as_ptr() as u64, pieces, largest, at, PROCESSORS).unwrap();
        // SAFETY: the table's tensors are alive, and the buffer reaches beyond the last.
        unsafe { grid.run(pack) }
        let mut expected = vec![0xa5u8; buffer.len()];
        for (piece, tensor) in table.iter().zip(&tensors) {
            let start = (piece.address - tensor.as_ptr() as u64) as usize;
            expected[piece.offset as usize..][..piece.bytes as usize]
                .copy_from_slice(&tensor[start..][..piece.bytes as usize]);
        }
        assert!(buffer == expected, "{pieces} pieces");
        let unpack =
            call::pack(Packing::Unpack, back_table.as_ptr() as u64, pieces, largest, at, PROCESSORS).unwrap();
        // SAFETY: as above.
        unsafe { grid.run(unpack) }
        for ((piece, back), tensor) in back_table.iter().zip(&back).zip(&tensors) {
            let start = (piece.address - back.as_ptr() as u64) as usize;
            let end = start + piece.bytes as usize;
            assert!(back[start..end] == tensor[start..end], "a tensor of {} bytes", piece.bytes);
            assert!(back[..start].iter().chain(&back[end..]).all(|&b| b == 0), "wrote outside of the tensor");
        }
    }
}

/// One bit at a time, as RFC 3720 section 12.1 has it.
fn crc_by_bits(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, &byte| {
        (0..8).fold(
            crc ^ u32::from(byte),
            |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 },
        )
    })
}

#[test]
fn crcs_of_fragments_are_those_of_the_rfc() {
    let Some(grid) = Grid::get() else { return };
    assert_eq!(crc_by_bits(b"123456789"), 0xe306_9283, "the check value of CRC32C");
    let mut rng = SmallRng::seed_from_u64(32);
    let data: Vec<u8> = (0..3 << 20).map(|_| rng.random()).collect();
    let row = crc::ROW as usize;
    let cases =
        [1, 4, 9, 15, 16, 17, 31, 48, 1000, row - 1, row, row + 1, 9 * row, 40 * row + 5, data.len() - 64]
            .into_iter()
            .map(|bytes| (bytes, bytes))
            .chain([
                (100_000, 8192),
                (100_000, 8193),
                (5000, 7),
                (200_000, 65_536),
                (1 << 20, 1 << 20),
                (300, 4000),
            ]);
    for (bytes, fragment) in cases {
        for shift in [0, 1, 7, 15, 16] {
            let range = &data[data.as_ptr().align_offset(16)..][shift..][..bytes];
            let expected: Vec<u32> = range.chunks(fragment).map(crc_by_bits).collect();
            let mut got = vec![0u32; expected.len() + 1];
            let (address, results) = (range.as_ptr() as u64, got.as_mut_ptr() as u64);
            let call = call::crc32c(address, bytes as u64, fragment as u64, results, PROCESSORS).unwrap();
            assert_eq!(call.as_ref().unwrap().args.fragments as usize, expected.len());
            // SAFETY: the range is alive, and there is a result for each fragment.
            unsafe { grid.run(call) }
            assert_eq!(got.pop(), Some(0), "wrote beyond the results");
            assert_eq!(got, expected, "{bytes} bytes in fragments of {fragment}, shifted by {shift}");
        }
    }
}
