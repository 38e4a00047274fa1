//! The speed of kernels and copies, by the device's clock. Successive calls use the tensors of a pool of ten, so that none is
//! in the device's cache when a call uses it.
#![allow(unsafe_code)]

use rand::rngs::SmallRng;
use rand::{RngCore, SeedableRng};
use shouter::{DType, ReduceOp};
use shouter_reducer::cuda::kernel::{CudaKernels, Fold};
use shouter_reducer::cuda::{DeviceBuffer, Pinned};

use super::device::{Device, FRAGMENT, failed, not_launched};
use super::table::{Row, RowVerdict, Table};
use super::{GpuArgs, Part};
use crate::failure::CommandError;

/// Tensors of the pool: eight sources, a destination, and one more.
const POOL: usize = 10;
/// Calls in a sample.
const CALLS: u32 = 4;
/// The longest copy of page-locked memory, in bytes.
const PINNED: u64 = 256 << 20;

/// The pool, and the number of samples and calls.
struct Pool<'a> {
    device: &'a Device,
    tensors: Vec<DeviceBuffer>,
    bytes: u64,
    rounds: (u32, u32),
}

impl<'a> Pool<'a> {
    /// Allocates tensors as long as given, halved until they fit.
    fn new(device: &'a Device, args: &GpuArgs) -> Result<Self, CommandError> {
        let wanted = args.bytes.unwrap_or(if device.simulated { 256 << 10 } else { 1 << 30 });
        let (tensors, bytes) = device.buffers(POOL, wanted)?;
        let samples = args.samples.unwrap_or(if device.simulated { 3 } else { 21 });
        Ok(Self { device, tensors, bytes, rounds: (samples, CALLS) })
    }

    /// The address of tensor `number` modulo the pool's length.
    fn at(&self, number: usize) -> u64 {
        self.tensors.get(number % POOL).map_or(0, DeviceBuffer::address)
    }

    /// Fills the pool with random bytes: gradients are not memory of one value.
    fn fill(&self) -> Result<(), CommandError> {
        let tile = self.bytes.min(16 << 20);
        let pinned = Pinned::new(&self.device.context, tile as usize).map_err(failed)?;
        let mut bytes = vec![0; tile as usize];
        SmallRng::from_os_rng().fill_bytes(&mut bytes);
        // SAFETY: both are so long, and no copy is under way.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), pinned.as_ptr().as_ptr(), bytes.len()) };
        for number in 0..POOL {
            for from in (0..self.bytes).step_by(tile as usize) {
                let len = tile.min(self.bytes - from) as usize;
                self.copy(self.at(number) + from, pinned.device_address(), len)?;
            }
        }
        self.device.wait()
    }

    /// Puts a copy on the stream; ranges lie in the pool, or in page-locked memory that outlives the wait.
    fn copy(&self, dst: u64, src: u64, bytes: usize) -> Result<(), CommandError> {
        // SAFETY: private to this module, whose callers pass ranges as described, of so many bytes, and wait.
        unsafe { self.device.stream.copy(dst, src, bytes) }.map_err(failed)
    }

    /// Seconds of a copy from one tensor to another.
    fn copy_seconds(&self) -> Result<f64, CommandError> {
        self.device.time(self.rounds, |call| self.copy(self.at(call), self.at(call + 1), self.bytes as usize))
    }

    /// Bytes a second to the device, and from it.
    fn pinned_rates(&self) -> Result<[f64; 2], CommandError> {
        let bytes = self.bytes.min(PINNED) as usize;
        let host = Pinned::new(&self.device.context, bytes).map_err(failed)?;
        let host = host.device_address();
        let to = self.device.time(self.rounds, |call| self.copy(self.at(call), host, bytes))?;
        let from = self.device.time(self.rounds, |call| self.copy(host, self.at(call), bytes))?;
        Ok([bytes as f64 / to, bytes as f64 / from])
    }

    /// Seconds of a sum of `k` tensors into another.
    fn sum_seconds(&self, kernels: &CudaKernels, dtype: DType, k: usize) -> Result<f64, CommandError> {
        let count = self.bytes / dtype.size() as u64;
        self.device.time(self.rounds, |call| {
            let sources: Vec<u64> = (1..=k).map(|number| self.at(call + number)).collect();
            let (op, destinations, sources) = (ReduceOp::Sum, &[self.at(call)], &sources);
            let fold = Fold { dtype, op, destinations, sources, count, divide_by: None };
            // SAFETY: tensors of the pool, the destination apart from the sources.
            unsafe { kernels.fold(&self.device.stream, &fold) }.map_err(not_launched)
        })
    }

    /// Seconds of a tensor's checksums.
    fn checksum_seconds(&self, kernels: &CudaKernels) -> Result<f64, CommandError> {
        let results = self.bytes / FRAGMENT * 4;
        let results = DeviceBuffer::new(&self.device.context, results as usize).map_err(failed)?;
        self.device.time(self.rounds, |call| {
            // SAFETY: a tensor of the pool, and a result for each of its fragments.
            unsafe {
                kernels.crc32c(&self.device.stream, self.at(call), self.bytes, FRAGMENT, results.address())
            }
            .map_err(not_launched)
        })
    }

    /// The row of a kernel that moves `moved` bytes (a checksum only reads them) in these seconds; the ceiling is a
    /// copy's rate in bytes a second.
    fn kernel(&self, row: Row, moved: u64, ceiling: f64, seconds: Result<f64, CommandError>) -> Row {
        match seconds {
            Ok(seconds) => row.figure(moved as f64 / seconds / 1e9, "GB/s", ceiling / 1e9),
            Err(why) => row.failed(&why),
        }
    }

    fn row(&self, row: Row, kernels: &CudaKernels, copied: f64) -> Row {
        let bytes = self.bytes;
        let sum = |row, dtype, k: usize| {
            self.kernel(row, (k as u64 + 1) * bytes, 2.0 * copied, self.sum_seconds(kernels, dtype, k))
        };
        match row.row {
            "sum f32" => sum(row, DType::F32, 2),
            "sum f16" => sum(row, DType::F16, 2),
            "sum bf16" => sum(row, DType::Bf16, 2),
            "sum f32 of 8" => sum(row, DType::F32, 8),
            _ => self.kernel(row, bytes, copied, self.checksum_seconds(kernels)),
        }
    }
}

/// The rates of copies, in bytes a second; none where it was not measured, or could not be.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rates {
    /// The slower direction between page-locked memory and the device, for the staged all-reduce.
    pub(super) pinned: Option<f64>,
    /// Bytes read within the device, which writes as many, for the all-reduce of one host.
    pub(super) copied: Option<f64>,
}

/// Measures; returns the rates of copies.
pub(super) fn run(args: &GpuArgs, device: &Device, table: &mut Table) -> Result<Rates, CommandError> {
    if ![Part::Speed, Part::Staged, Part::Ipc].into_iter().any(|part| args.wants(part)) {
        return Ok(Rates::default());
    }
    let pool = Pool::new(device, args)?;
    pool.fill()?;
    let pinned = pool.pinned_rates();
    // Bytes that a copy reads in a second; it writes as many.
    let copied = pool.copy_seconds().map(|seconds| pool.bytes as f64 / seconds);
    let rates = Rates {
        pinned: pinned.as_ref().ok().map(|[to, from]| to.min(*from)),
        copied: copied.as_ref().ok().copied(),
    };
    if !args.wants(Part::Speed) {
        return Ok(rates);
    }
    table.say(&format!("Tensors of {} MiB are timed, in rotation.", pool.bytes as f64 / f64::from(1 << 20)));
    for (name, aim) in args.rows(Part::Speed) {
        let row = Row::new(name, aim);
        let ceiling = |rate: Result<f64, &CommandError>| match rate {
            Ok(rate) => Row { measured: Some(rate / 1e9), unit: "GB/s", ..row.clone() },
            Err(why) => row.clone().failed(why),
        };
        table.push(match (name, &device.kernels, &copied) {
            // Bytes read and bytes written both count.
            ("copy on the device", _, _) => ceiling(copied.as_ref().map(|rate| 2.0 * rate)),
            ("copy to the device", _, _) => ceiling(pinned.as_ref().map(|rates| rates[0])),
            ("copy from the device", _, _) => ceiling(pinned.as_ref().map(|rates| rates[1])),
            (_, Err(why), _) => Row { verdict: Some(RowVerdict::Skipped), note: Some(why.clone()), ..row },
            (_, _, Err(why)) => row.failed(why),
            (_, Ok(kernels), Ok(copied)) => pool.row(row, kernels, *copied),
        })?;
    }
    Ok(rates)
}
