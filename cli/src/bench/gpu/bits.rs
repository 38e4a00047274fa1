//! Compares the results of kernels on a GPU with the host's, bit by bit. Inputs lie in an image of memory between
//! guards; the device and the host each work on a copy, and both copies must end with the same bytes, guards included.
#![allow(unsafe_code)]

use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};
use shouter::{DType, ReduceOp};
use shouter_reducer::cuda::kernel::{CudaKernels, Fold};
use shouter_reducer::kernel::Kernels;

use super::device::{Arena, Device};
use super::float::random;
use super::table::{Row, Table};
use super::{GpuArgs, Part, gather, reference};
use crate::failure::CommandError;

/// Bytes between two ranges of an image, at least.
const GUARD: usize = 48;
/// The largest number of source tensors of a reduction here.
pub(super) const MOST_SOURCES: usize = 8;
/// The largest number of destination tensors of a reduction here.
const MOST_DESTINATIONS: usize = 5;

/// Arguments of every check.
pub(super) struct Bench<'a> {
    pub(super) kernels: &'a CudaKernels,
    pub(super) arena: Arena<'a>,
    pub(super) rng: SmallRng,
    /// Elements of the longest tensor.
    pub(super) longest: usize,
}

/// The number of cases tried, and the error of the first wrong one.
pub(super) type CheckResult = Result<(u64, Option<String>), CommandError>;

/// An image of memory: ranges between guards.
#[derive(Default)]
pub(super) struct Image(Vec<u8>);

impl Image {
    /// Adds a range that begins `shift` bytes behind a multiple of 16; returns its offset.
    pub(super) fn add(&mut self, bytes: &[u8], shift: usize) -> usize {
        let at = (self.0.len() + GUARD).next_multiple_of(16) + shift;
        self.0.resize(at, 0x5a);
        self.0.extend_from_slice(bytes);
        at
    }

    /// The image, with a guard behind the last range.
    pub(super) fn end(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + GUARD, 0x5a);
        self.0
    }
}

/// The first offset at which two images differ.
pub(super) fn difference(expected: &[u8], got: &[u8]) -> Option<usize> {
    expected.iter().zip(got).position(|(expected, got)| expected != got)
}

/// Checks the bits, a row for each operation and kind of kernel.
pub(super) fn run(
    args: &GpuArgs,
    device: &Device,
    kernels: &CudaKernels,
    table: &mut Table,
) -> Result<(), CommandError> {
    if !args.wants(Part::Bits) {
        return Ok(());
    }
    let seed = args.seed.unwrap_or_else(|| SmallRng::from_os_rng().next_u64());
    table.say(&format!("Random inputs are those of --seed {seed}."));
    let longest = args.elements.unwrap_or(if device.simulated { 3001 } else { 70_001 }) as usize;
    let room = (MOST_SOURCES + MOST_DESTINATIONS) * (16 * longest.max(8192) + 2 * GUARD);
    let mut bench = Bench {
        kernels,
        arena: Arena::new(device, room.max(gather::ROOM))?,
        rng: SmallRng::seed_from_u64(seed),
        longest,
    };
    for (row, aim) in args.rows(Part::Bits) {
        let outcome = match row {
            "float64 reference" => reference::folds(&mut bench),
            "pack and unpack" => gather::pieces(&mut bench),
            "crc32c" => gather::checksums(&mut bench),
            op => ReduceOp::parse(op)
                .map_err(|why| CommandError::Failed(why.to_string()))
                .and_then(|op| reductions(&mut bench, op)),
        };
        let row = Row::new(row, aim);
        table.push(match outcome {
            Ok((cases, wrong)) => row.cases(cases, wrong.map(|what| format!("{what} (--seed {seed})"))),
            Err(why) => row.failed(&why),
        })?;
    }
    Ok(())
}

/// Shifts of the tensors of a case, in elements: equal modulo 16 bytes, aligned or not, and unequal.
const SHIFTS: [&[usize]; 3] = [&[0], &[1], &[0, 1, 3]];

/// The number of destinations, and how many of them are sources too; the others lie apart.
const DESTINATIONS: [(usize, usize); 5] = [(1, 0), (1, 1), (2, 1), (5, 2), (3, 3)];

/// Tests one operation with every element type: 1 to 8 sources, 1 to 5 destinations, odd lengths, misaligned, in place
/// and apart. Averages are divided by the number of sources, other operations now and then by any number.
fn reductions(bench: &mut Bench<'_>, op: ReduceOp) -> CheckResult {
    use ReduceOp::{Max, Min, Prod, Sum};
    let mut cases = 0;
    for &dtype in DType::ALL.iter().filter(|dtype| op.is_of(**dtype)) {
        // Types that can be divided outside an average.
        let real = !matches!(dtype, DType::Complex64 | DType::Complex128);
        for k in 1..=MOST_SOURCES {
            let mut counts = vec![1, 77, 1003.min(bench.longest)];
            if [1, 2, MOST_SOURCES].contains(&k) {
                counts.push(bench.longest);
            }
            for (index, (count, shifts)) in
                counts.iter().flat_map(|count| SHIFTS.map(|shifts| (*count, shifts))).enumerate()
            {
                let (written, in_place) = DESTINATIONS[(index + k) % DESTINATIONS.len()];
                let divide_by = match op {
                    ReduceOp::Avg => Some(k as u32),
                    Sum | Min | Max | Prod if real => {
                        (index % 4 == 3).then(|| bench.rng.random_range(0..100))
                    }
                    _ => None,
                };
                cases += 1;
                let case =
                    Case { op, dtype, k, count, shifts, written, in_place: in_place.min(k), divide_by };
                if let Some(wrong) = reduction(bench, &case)? {
                    return Ok((cases, Some(wrong)));
                }
            }
        }
    }
    Ok((cases, None))
}

/// One reduction: `k` sources of `count` elements into `written` destinations, the first of which are the last sources.
#[derive(Debug)]
struct Case<'a> {
    op: ReduceOp,
    dtype: DType,
    k: usize,
    count: usize,
    shifts: &'a [usize],
    written: usize,
    in_place: usize,
    divide_by: Option<u32>,
}

fn reduction(bench: &mut Bench<'_>, case: &Case<'_>) -> Result<Option<String>, CommandError> {
    let Case { op, dtype, k, count, shifts, written, in_place, divide_by } = *case;
    let bytes = count * dtype.size();
    let mut image = Image::default();
    let shift = |i: usize| shifts[i % shifts.len()] * dtype.size();
    let mut sources = vec![];
    for source in 0..k {
        let column = random(&mut bench.rng, dtype, count);
        sources.push(image.add(&column, shift(source)));
    }
    let apart = (in_place..written).map(|i| image.add(&vec![0xa5; bytes], shift(k + i)));
    let destinations: Vec<usize> =
        sources.iter().rev().take(in_place).copied().chain(apart.collect::<Vec<_>>()).collect();
    let image = image.end();
    let mut expected = image.clone();
    let host = Kernels::detect();
    let columns: Vec<*const u8> = sources.iter().map(|at| image[*at..*at + bytes].as_ptr()).collect();
    let mut result = vec![0; bytes];
    // SAFETY: each column has so many bytes, and the result is apart.
    unsafe { host.fold_raw(dtype, op, result.as_mut_ptr(), &columns, bytes) };
    if let Some(n) = divide_by {
        host.finish_avg(dtype, &mut result, n);
    }
    destinations.iter().for_each(|at| expected[*at..*at + bytes].copy_from_slice(&result));
    let (kernels, address) = (bench.kernels, bench.arena.address());
    let on_device = |places: &[usize]| places.iter().map(|at| address + *at as u64).collect::<Vec<u64>>();
    let (to, from) = (on_device(&destinations), on_device(&sources));
    let fold = Fold { dtype, op, destinations: &to, sources: &from, count: count as u64, divide_by };
    // SAFETY: the arena waits; the ranges are those of the image.
    let got = bench.arena.run(&image, |stream| unsafe { kernels.fold(stream, &fold) })?;
    Ok(difference(&expected, got).map(|at| {
        let element = |dst: &usize| at.checked_sub(*dst).map(|behind| behind / dtype.size());
        let wrong = destinations.iter().enumerate().find_map(|(i, dst)| {
            element(dst).filter(|element| *element < count).map(|e| format!("element {e} of destination {i}"))
        });
        let what = wrong.unwrap_or_else(|| "a byte that is no destination's".into());
        format!("{case:?}: {what} differs from the host's")
    }))
}
