//! The GPU that is checked: its context, a stream, the kernels, and the device's clock.
#![allow(unsafe_code)]

use std::path::PathBuf;
use std::time::{Duration, Instant};

use shouter_reducer::cuda::kernel::{CudaKernels, LaunchError};
use shouter_reducer::cuda::{Context, Cuda, CudaError, CudaEvent, DeviceBuffer, DeviceInfo, Pinned, Stream};

use super::{GpuArgs, image};
use crate::bench::report::median;
use crate::failure::CommandError;

/// About the payload of one network datagram, in bytes: lengths of tensors are multiples of it.
pub(super) const FRAGMENT: u64 = 8192;
/// The shortest tensors that are worth a figure, in bytes.
const LEAST: u64 = 64 << 10;
/// The time limit of one row's work on the device; the device hangs if it takes longer.
const PATIENCE: Duration = Duration::from_secs(120);

pub(super) fn failed(why: CudaError) -> CommandError {
    CommandError::Failed(why.to_string())
}

pub(super) fn not_launched(why: LaunchError) -> CommandError {
    CommandError::Failed(why.to_string())
}

/// A device, with its context, stream and kernels for the check.
pub(super) struct Device {
    pub(super) context: Context,
    pub(super) stream: Stream,
    /// The kernels, or why there are none.
    pub(super) kernels: Result<CudaKernels, String>,
    pub(super) info: DeviceInfo,
    /// The driver is scripts/lib/cuda-sim.
    pub(super) simulated: bool,
    version: (u32, u32),
    /// Whether no other GPU is visible.
    alone: bool,
}

/// The facts about a device that outlive its context.
pub(super) struct Left {
    /// As CUDA_VISIBLE_DEVICES names it.
    pub(super) name: String,
    pub(super) simulated: bool,
    /// Whether processes see no other GPU.
    pub(super) alone: bool,
    /// The folder with compiled kernels for the ranks, if given.
    pub(super) kernels: Option<PathBuf>,
}

impl Device {
    /// Opens the GPU that `--device` names.
    pub(super) fn open(cuda: &'static Cuda, args: &GpuArgs) -> Result<Self, CommandError> {
        let devices = cuda.devices().map_err(failed)?;
        let many = devices.len();
        let info = devices.into_iter().nth(args.device.into()).ok_or_else(|| {
            CommandError::Usage(format!("--device {}: there are {many}, counted from 0", args.device))
        })?;
        let context = Context::primary(cuda, info.ordinal).map_err(failed)?;
        let stream = Stream::new(&context).map_err(failed)?;
        let kernels = image::find(args, &info)
            .and_then(|image| CudaKernels::load(&context, &image).map_err(|why| why.to_string()));
        let simulated = info.name.starts_with("Simulated");
        Ok(Self { context, stream, kernels, info, simulated, version: cuda.version(), alone: many == 1 })
    }

    /// A line that describes it.
    pub(super) fn description(&self) -> String {
        let DeviceInfo { ordinal, name, capability: (major, minor), memory, .. } = &self.info;
        let (cuda, of_cuda) = self.version;
        format!(
            "GPU {ordinal}: {name}, compute capability {major}.{minor}, {} MiB, CUDA {cuda}.{of_cuda}",
            memory >> 20
        )
    }

    /// Frees the device, so that other processes can use its memory.
    pub(super) fn free(self, args: &GpuArgs) -> Left {
        let kernels = args.kernels.clone();
        Left { name: self.info.uuid_text(), simulated: self.simulated, alone: self.alone, kernels }
    }

    /// Allocates `many` buffers of `bytes` bytes, halved until they fit; returns them with their size.
    pub(super) fn buffers(&self, many: usize, bytes: u64) -> Result<(Vec<DeviceBuffer>, u64), CommandError> {
        let mut bytes = bytes.max(LEAST).next_multiple_of(FRAGMENT);
        loop {
            let buffers: Result<Vec<_>, CudaError> =
                (0..many).map(|_| DeviceBuffer::new(&self.context, bytes as usize)).collect();
            match buffers {
                Ok(buffers) => return Ok((buffers, bytes)),
                Err(CudaError::OutOfMemory { .. }) if bytes > LEAST => {
                    bytes = (bytes / 2).next_multiple_of(FRAGMENT);
                }
                Err(why) => return Err(failed(why)),
            }
        }
    }

    /// Waits until the stream is done.
    pub(super) fn wait(&self) -> Result<(), CommandError> {
        let until = Instant::now() + PATIENCE;
        while !self.stream.is_done().map_err(failed)? {
            if Instant::now() > until {
                return Err(CommandError::Failed("the GPU does not end what it was given".into()));
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Seconds of one call by the device's clock: the median over `samples`, each of `calls` in a row. One untimed call
    /// comes first: the timed ones are enqueued while it runs, so that no gap is measured. `enqueue` gets the number of
    /// the call, to rotate buffers by.
    pub(super) fn time(
        &self,
        (samples, calls): (u32, u32),
        mut enqueue: impl FnMut(usize) -> Result<(), CommandError>,
    ) -> Result<f64, CommandError> {
        let [start, end] = [CudaEvent::timing(&self.context), CudaEvent::timing(&self.context)]
            .map(|event| event.map_err(failed));
        let (start, end) = (start?, end?);
        let mut seconds = vec![];
        let mut numbers = 0..;
        let mut call = || enqueue(numbers.next().unwrap_or(0));
        for sample in 0..=samples {
            call()?;
            start.record(&self.stream).map_err(failed)?;
            for _ in 0..calls {
                call()?;
            }
            end.record(&self.stream).map_err(failed)?;
            self.wait()?;
            // The first sample warms up.
            if sample > 0 {
                seconds.push(end.seconds_since(&start).map_err(failed)? / f64::from(calls));
            }
        }
        // The clock may not have advanced: no time is zero.
        Ok(median(&mut seconds).max(1e-9))
    }
}

/// Memory on the device, and two images of it in page-locked memory: the one sent and the one received.
pub(super) struct Arena<'a> {
    device: &'a Device,
    memory: DeviceBuffer,
    host: Pinned,
    len: usize,
}

impl<'a> Arena<'a> {
    /// Room for `len` bytes.
    pub(super) fn new(device: &'a Device, len: usize) -> Result<Self, CommandError> {
        let memory = DeviceBuffer::new(&device.context, len).map_err(failed)?;
        let host = Pinned::new(&device.context, 2 * len).map_err(failed)?;
        Ok(Self { device, memory, host, len })
    }

    /// The device address of byte 0.
    pub(super) fn address(&self) -> u64 {
        self.memory.address()
    }

    /// Sends an image, runs the `work` on the stream, and returns the memory after it. An image longer than the arena
    /// is an error.
    pub(super) fn run(
        &mut self,
        image: &[u8],
        work: impl FnOnce(&Stream) -> Result<(), LaunchError>,
    ) -> Result<&[u8], CommandError> {
        let bytes = image.len();
        if bytes > self.len {
            return Err(CommandError::Failed(format!("{bytes} bytes do not fit an arena of {}", self.len)));
        }
        let stream = &self.device.stream;
        let (there, back) = (self.host.device_address(), self.host.device_address() + self.len as u64);
        // SAFETY: the first half is so long, and no copy is under way: each call waits for its own, or is the last.
        unsafe { std::ptr::copy_nonoverlapping(image.as_ptr(), self.host.as_ptr().as_ptr(), bytes) };
        // SAFETY: both are so long, apart, and stay until the stream was waited for.
        unsafe { stream.copy(self.memory.address(), there, bytes) }.map_err(failed)?;
        let launched = work(stream);
        // SAFETY: as above.
        unsafe { stream.copy(back, self.memory.address(), bytes) }.map_err(failed)?;
        self.device.wait()?;
        launched.map_err(not_launched)?;
        // SAFETY: the second half, which is initialised, and which no copy writes until the next call borrows this mutably.
        Ok(unsafe { std::slice::from_raw_parts(self.host.as_ptr().as_ptr().add(self.len), bytes) })
    }
}
