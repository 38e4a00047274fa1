//! A tensor on a GPU, as in a trainer: filled and read by copies in a stream of its own.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::time::{Duration, Instant};

use shouter::{Group, ReduceOp};
use shouter_reducer::cuda::{Context, Cuda, CudaError, DeviceBuffer, Pinned, Stream};

use super::numbers::Number;
use crate::failure::CommandError;

/// The time limit of one of the bench's own copies; the device hangs if a copy takes longer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Elements in device memory, and a page-locked copy of them.
pub(super) struct OnGpu<T> {
    stream: Stream,
    device: DeviceBuffer,
    host: Pinned,
    count: usize,
    _elements: PhantomData<T>,
}

fn failed(why: CudaError) -> CommandError {
    CommandError::Failed(why.to_string())
}

impl<T: Number> OnGpu<T> {
    /// Allocates on the GPU with the rank's local number; ranks share GPUs where there are fewer.
    pub(super) fn new(group: &Group, count: usize) -> Result<Self, CommandError> {
        let cuda = Cuda::probe().map_err(|why| CommandError::Failed(format!("--memory gpu: {why}")))?;
        let devices = cuda.devices().map_err(failed)?;
        let device = devices
            .get(group.local_rank() as usize % devices.len().max(1))
            .ok_or_else(|| CommandError::Failed("there is no GPU".into()))?;
        let context = Context::primary(cuda, device.ordinal).map_err(failed)?;
        let bytes = (count * size_of::<T>()).max(1);
        Ok(Self {
            stream: Stream::new(&context).map_err(failed)?,
            device: DeviceBuffer::new(&context, bytes).map_err(failed)?,
            host: Pinned::new(&context, bytes).map_err(failed)?,
            count,
            _elements: PhantomData,
        })
    }

    fn host(&mut self) -> &mut [T] {
        // SAFETY: page-locked memory of so many elements, plain numbers, which no copy touches: every copy from or to it is
        // waited for before the next call.
        unsafe { std::slice::from_raw_parts_mut(self.host.as_ptr().as_ptr().cast(), self.count) }
    }

    fn wait(&self) -> Result<(), CommandError> {
        let until = Instant::now() + PATIENCE;
        while !self.stream.is_done().map_err(failed)? {
            if Instant::now() > until {
                return Err(CommandError::Failed("a copy on the GPU does not end".into()));
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    pub(super) fn fill(&mut self, value: impl Fn(usize) -> T, wait: bool) -> Result<(), CommandError> {
        self.wait()?;
        self.host().iter_mut().enumerate().for_each(|(index, element)| *element = value(index));
        let bytes = self.count * size_of::<T>();
        // SAFETY: both have so many bytes, and stay as they are until the stream was waited for.
        unsafe { self.stream.copy(self.device.address(), self.host.device_address(), bytes) }
            .map_err(failed)?;
        if wait { self.wait() } else { Ok(()) }
    }

    pub(super) fn reduce(&mut self, group: &Group) -> Result<(), CommandError> {
        let (data, stream) = (self.device.address(), self.stream.as_raw());
        // SAFETY: so many elements, of which nobody else knows; the stream lives as long as this value.
        Ok(unsafe { group.all_reduce_cuda(data, self.count, T::DTYPE, ReduceOp::Sum, stream) }?)
    }

    pub(super) fn elements(&mut self) -> Result<&[T], CommandError> {
        let bytes = self.count * size_of::<T>();
        // SAFETY: as in `fill`.
        unsafe { self.stream.copy(self.host.device_address(), self.device.address(), bytes) }
            .map_err(failed)?;
        self.wait()?;
        Ok(self.host())
    }
}
