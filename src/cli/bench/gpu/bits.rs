//! Whether kernels give the bits of the host's. Inputs lie in an image of memory between guards; the device works on a copy
//! of it, the host on another, and the two have to be alike in every byte, those that nobody should touch included.
#![allow(unsafe_code)]

use rand::rngs::SmallRng;
use rand::{RngCore, SeedableRng};
use shouter::{DType, ReduceOp};
use shouter_reducer::kernel::Kernels;
use shouter_reducer::kernel::cuda::CudaKernels;

use super::device::{Arena, Device};
use super::float::{element, elements};
use super::table::{Row, Table};
use super::{GpuArgs, Part, gather, reference};
use crate::cli::bench::BenchError;

/// Bytes between two ranges of an image, at least.
const GUARD: usize = 48;
/// The most tensors that are reduced at once here.
pub(super) const MOST_SOURCES: usize = 8;

/// What every check is given.
pub(super) struct Bench<'a> {
    pub(super) kernels: &'a CudaKernels,
    pub(super) arena: Arena<'a>,
    pub(super) rng: SmallRng,
    /// Elements of the longest tensor.
    pub(super) longest: usize,
}

/// How many cases were tried, and what was wrong with the first that was not right.
pub(super) type Outcome = Result<(u64, Option<String>), BenchError>;

/// An image of memory: ranges between guards.
#[derive(Default)]
pub(super) struct Image(Vec<u8>);

impl Image {
    /// Adds a range that begins `shift` bytes behind a multiple of 16; where that is.
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

/// Where two images differ first.
pub(super) fn difference(expected: &[u8], got: &[u8]) -> Option<usize> {
    expected.iter().zip(got).position(|(expected, got)| expected != got)
}

/// Checks the bits, a row for each operation and kind of kernel.
pub(super) fn run(
    args: &GpuArgs,
    device: &Device,
    kernels: &CudaKernels,
    table: &mut Table,
) -> Result<(), BenchError> {
    if !args.wants(Part::Bits) {
        return Ok(());
    }
    let seed = args.seed.unwrap_or_else(|| SmallRng::from_os_rng().next_u64());
    table.say(&format!("Random inputs are those of --seed {seed}."));
    let longest = args.elements.unwrap_or(if device.simulated { 3001 } else { 70_001 }) as usize;
    let room = (MOST_SOURCES + 1) * (8 * longest.max(8192) + 2 * GUARD);
    let mut bench = Bench {
        kernels,
        arena: Arena::new(device, room.max(gather::ROOM))?,
        rng: SmallRng::seed_from_u64(seed),
        longest,
    };
    for (row, aim) in args.rows(Part::Bits) {
        let outcome = match row {
            "float64 reference" => reference::folds(&mut bench),
            "convert" => reference::conversions(&mut bench),
            "pack and unpack" => gather::pieces(&mut bench),
            "crc32c" => gather::checksums(&mut bench),
            op => ReduceOp::parse(op)
                .map_err(|why| BenchError::Failed(why.to_string()))
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

/// Shifts of the tensors of a case, in elements: all alike modulo 16 bytes, aligned or not, and unlike.
const SHIFTS: [&[usize]; 3] = [&[0], &[1], &[0, 1, 3]];

/// One operation with every element type, 1 to 8 sources, odd lengths, misaligned and in place.
fn reductions(bench: &mut Bench<'_>, op: ReduceOp) -> Outcome {
    let mut cases = 0;
    for &dtype in DType::ALL {
        for k in 1..=MOST_SOURCES {
            let mut counts = vec![1, 77, 1003.min(bench.longest)];
            if [1, 2, MOST_SOURCES].contains(&k) {
                counts.push(bench.longest);
            }
            for (turn, (count, shifts)) in
                counts.iter().flat_map(|count| SHIFTS.map(|shifts| (*count, shifts))).enumerate()
            {
                let into = [None, Some(0), Some(k - 1)][(turn + k) % 3];
                cases += 1;
                if let Some(wrong) = reduction(bench, &Fold { op, dtype, k, count, shifts, into })? {
                    return Ok((cases, Some(wrong)));
                }
            }
        }
    }
    Ok((cases, None))
}

/// One reduction: `k` sources of `count` elements, into one of them or apart.
struct Fold<'a> {
    op: ReduceOp,
    dtype: DType,
    k: usize,
    count: usize,
    shifts: &'a [usize],
    into: Option<usize>,
}

fn reduction(bench: &mut Bench<'_>, fold: &Fold<'_>) -> Result<Option<String>, BenchError> {
    let Fold { op, dtype, k, count, shifts, into } = *fold;
    let bytes = count * dtype.size();
    let mut image = Image::default();
    let shift = |i: usize| shifts[i % shifts.len()] * dtype.size();
    let mut sources = vec![];
    for source in 0..k {
        let column = elements(dtype, count, |_| element(&mut bench.rng, dtype));
        sources.push(image.add(&column, shift(source)));
    }
    let dst = match into {
        Some(source) => sources[source],
        None => image.add(&vec![0xa5; bytes], shift(k)),
    };
    let image = image.end();
    let mut expected = image.clone();
    let host = Kernels::detect();
    let base = expected.as_mut_ptr();
    // SAFETY: the offsets are those of ranges of so many bytes in the image.
    let on_host: Vec<*const u8> = sources.iter().map(|at| unsafe { base.add(*at) }.cast_const()).collect();
    // SAFETY: as above; the destination is one of the sources or apart, and nobody else knows of the image.
    unsafe { host.fold_raw(dtype, op, base.add(dst), &on_host, bytes) };
    if op == ReduceOp::Avg {
        host.finish_avg(dtype, &mut expected[dst..dst + bytes], k as u32);
    }
    let (kernels, address) = (bench.kernels, bench.arena.address());
    let on_device: Vec<u64> = sources.iter().map(|at| address + *at as u64).collect();
    let got = bench.arena.run(&image, |stream| {
        let (stream, dst) = (stream.as_raw() as *mut _, address + dst as u64);
        // SAFETY: the arena runs this in the device's context and waits; the ranges are those of the image.
        unsafe {
            kernels.reduce(stream, dtype, op, dst, &on_device, count as u64)?;
            if op == ReduceOp::Avg {
                kernels.finish_avg(stream, dtype, dst, count as u64, k as u32)?;
            }
        }
        Ok(())
    })?;
    Ok(difference(&expected, got).map(|at| {
        let what = match at.checked_sub(dst).map(|behind| behind / dtype.size()) {
            Some(element) if element < count => format!("element {element}"),
            _ => "a byte that is not the destination's".into(),
        };
        format!("{op} of {k} x {count} {dtype}, shifted by {shifts:?}, into {into:?}: {what} differs from the host's")
    }))
}
