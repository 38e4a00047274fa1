//! Tensors in the memory of an NVIDIA GPU: classified, ordered with the trainer's stream, and reduced by the GPUs of
//! the host's ranks where they can open each other's, else staged through lanes that the GPU copies to and from.
//!
//! A group serves one GPU of its process, that of the first tensor that lies on one: one process for each GPU is how frameworks train.
//! Copies go by streams of ours. A tensor's copies begin when the work that the trainer's stream held at its hand-over
//! has ended, which is checked for each tensor by itself: later hand-overs hold up nothing. Their end is seen before
//! `all_reduce_cuda` or `wait` returns; nothing waits for the whole device.
#![allow(unsafe_code)]

mod collectives;
mod device;
mod direct;
mod staged;

use std::any::Any;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};
use std::thread;

use shouter_reducer::cuda::kernel::CudaKernels;
use shouter_reducer::cuda::{
    Context, Copier, Cuda, CudaAccelerator, CudaError, Pinned, Pointer, PointerKind, Registered,
};
use shouter_reducer::dtype::{DType, ReduceOp};
use shouter_reducer::executor::AbortReason;
use shouter_reducer::grid::Rank;
use shouter_reducer::header::{Collective, Shape};
use shouter_reducer::kernel::Kernels;
use shouter_reducer::memory::{MemoryKind, Span, TensorRegion};
use shouter_reducer::schedule::{Access, Problem};
use shouter_reducer::solo::Solo;
use shouter_reducer::transport::{Accelerator, AcceleratorError, DeviceTensor, StreamEvent};

use super::collectives::{is_given_in_output, published};
use super::element::Buffer;
use super::{CollectiveCall, Group, Memory, Work, element, small};
use crate::channel::CELL_BYTES;
use crate::config::Config;
use crate::engine::AcceleratorParts;
use crate::error::TensorId;
use crate::error::{Call, Error, Operation};
use crate::runtime::lock;
use crate::runtime::{Clock, Instant};
use device::{Gpu, Shared, kernels, say};
use direct::{Direct, DirectParts};
use staged::Areas;

/// The GPU of a group, once a tensor was there.
pub(super) struct Bound {
    gpu: Mutex<Option<Arc<Gpu>>>,
    /// For operations that work on a copy in host memory, once there was one.
    areas: Mutex<Option<Arc<Areas>>>,
    /// Whether the host's other ranks may open its tensors.
    peers: bool,
    /// A folder with compiled kernels.
    kernels: Option<PathBuf>,
    /// Whether NICs may read and write its tensors.
    direct: bool,
}

impl Bound {
    /// None yet.
    pub(super) fn new(config: &Config) -> Self {
        Self {
            gpu: Mutex::default(),
            areas: Mutex::default(),
            peers: config.gpu_peers,
            kernels: config.gpu_kernels.clone(),
            direct: config.gpu_direct,
        }
    }

    /// Of a group of some ranks: there all operations work on copies.
    pub(super) fn of_some() -> Self {
        Self { gpu: Mutex::default(), areas: Mutex::default(), peers: false, kernels: None, direct: false }
    }
}

impl Group {
    /// As [`all_reduce_raw`](Self::all_reduce_raw), for elements in GPU memory, which the CPU does not touch. It reads
    /// them after the work that `stream` holds at the call; when it returns, the results are there for any stream.
    /// Ranks with tensors in host memory may take part.
    ///
    /// `data` is a device address, or one of managed memory; `stream` a `cudaStream_t` of the same device, 0 for the default
    /// stream.
    ///
    /// # Errors
    /// [`Error::Argument`] for memory that is no GPU's, another GPU's than before, or shorter than said, and for a stream that is
    /// of another device or being captured into a graph; [`Error::Accelerator`] if there is no usable driver or GPU, or
    /// when it fails; else as [`all_reduce`](Self::all_reduce).
    ///
    /// # Safety
    /// Nobody else touches the elements from what `stream` held on until the call returns. The stream is not destroyed
    /// during the call. The context lives until the group is dropped.
    pub unsafe fn all_reduce_cuda(
        &self,
        data: u64,
        count: usize,
        dtype: DType,
        op: ReduceOp,
        stream: u64,
    ) -> Result<(), Error> {
        self.drive.check_process()?;
        element::check(dtype, op)?;
        if self.subset.is_some() {
            let call = CollectiveCall::all_reduce(data, count, dtype, op);
            // SAFETY: passed on to the caller.
            return unsafe { self.run_staged(&call, &super::Staging::on_cuda(stream)) };
        }
        let shape = Shape { collective: Collective::AllReduce, dtype, op, count: count as u64 };
        // SAFETY: passed on to the caller.
        let (data, device) = unsafe { self.on_gpu(data, count, dtype, stream) }?;
        let problem = Problem { access: self.access(&data), ..self.tables.problem(&shape, Rank(0)) };
        self.run_on_gpu(&problem, (data, data), device, None)
    }

    /// Runs this rank's part of an operation, whose input and output lie on the GPU or are empty, to its end. A factor is only applied to one
    /// that goes by the cells.
    fn run_on_gpu(
        &self,
        problem: &Problem,
        (input, output): (TensorRegion, TensorRegion),
        device: Option<DeviceTensor>,
        factor: Option<f64>,
    ) -> Result<(), Error> {
        // The first time, kernels may have been compiled.
        let begin = Clock.now();
        let bytes = input.len().max(output.len());
        let result = match self.cells_for(published(problem)) {
            Some(cells) => {
                let step = self.annotations.step();
                let ready_event = device.and_then(|device| device.ready_event);
                let (input, output) = match is_given_in_output(problem) {
                    // It stays as it is, and is not copied back.
                    true => (output, TensorRegion::empty()),
                    false => (input, output),
                };
                self.by_the_host(
                    (begin, problem.shape.collective.into()),
                    (input, output),
                    ready_event,
                    |input, output| {
                        if let Some(factor) = factor {
                            Kernels::detect().scale_in_place(
                                problem.shape.dtype,
                                input.as_mut_slice(),
                                factor,
                            );
                        }
                        cells.run(self, Some(begin), &small::Part::new(problem, input, output), step)
                    },
                )
            }
            None => {
                let input = if problem.has_input() { input } else { TensorRegion::empty() };
                self.run(begin, problem, Memory { output, input }, device)
            }
        };
        self.ended(begin, problem.shape.collective, bytes, result)
    }

    /// Buffers on the GPU, ready when it has passed what `stream` holds; `None` where all are empty.
    ///
    /// # Safety
    /// The stream is not destroyed during the call.
    unsafe fn ready_after(&self, buffers: [Buffer; 2], stream: u64) -> Result<Option<DeviceTensor>, Error> {
        let mut bound = None;
        for buffer in buffers.into_iter().filter(|buffer| buffer.len() > 0) {
            bound = Some(self.gpu(buffer.as_ptr().addr() as u64, buffer.len())?.0);
        }
        let Some(gpu) = bound else { return Ok(None) };
        // SAFETY: the caller's promise.
        Ok(Some(DeviceTensor { ready_event: Some(unsafe { gpu.passed(stream) }?), export: None }))
    }

    /// Runs this rank's part of an operation that goes by the cells, with its memory at these addresses on the GPU.
    ///
    /// # Safety
    /// As for [`run_collective_cuda`](Self::run_collective_cuda).
    pub(super) unsafe fn run_small_on_gpu(
        &self,
        problem: &Problem,
        (input, output): (Buffer, Buffer),
        (factor, stream): (Option<f64>, u64),
    ) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        let Some(device) = unsafe { self.ready_after([input, output], stream) }? else {
            return self.run_part(problem, input, output);
        };
        let memory = (input.region(MemoryKind::Device), output.region(MemoryKind::Device));
        self.run_on_gpu(problem, memory, Some(device), factor)
    }

    /// As [`start`](Self::start), for an all-reduce in place in GPU memory; see [`all_reduce_cuda`](Self::all_reduce_cuda).
    ///
    /// # Errors
    /// As [`start`](Self::start) and [`all_reduce_cuda`](Self::all_reduce_cuda).
    ///
    /// # Safety
    /// Nobody else touches the elements from what `stream` held on until the operation has ended, or the group has been dropped; else
    /// as for [`all_reduce_cuda`](Self::all_reduce_cuda).
    pub unsafe fn start_cuda(
        &self,
        data: u64,
        count: usize,
        dtype: DType,
        op: ReduceOp,
        stream: u64,
    ) -> Result<Work, Error> {
        self.drive.check_process()?;
        let shape = self.shape(Collective::AllReduce, count, dtype, op)?;
        if self.subset.is_some() {
            let call = CollectiveCall::all_reduce(data, count, dtype, op);
            // SAFETY: passed on to the caller.
            return unsafe { self.start_staged(&call, &super::Staging::on_cuda(stream)) };
        }
        // SAFETY: passed on to the caller.
        let (data, device) = unsafe { self.on_gpu(data, count, dtype, stream) }?;
        self.start_device(Clock.now(), &shape, data, device)
    }

    /// As [`push`](Self::push), for a tensor in GPU memory, of any collective; see [`all_reduce_cuda`](Self::all_reduce_cuda).
    ///
    /// # Errors
    /// As [`push`](Self::push) and [`all_reduce_cuda`](Self::all_reduce_cuda).
    ///
    /// # Safety
    /// Nobody else touches the tensor from what `stream` held on until the operation has ended, or the
    /// group has been dropped; else as for [`all_reduce_cuda`](Self::all_reduce_cuda).
    pub unsafe fn push_cuda(&self, tensor: TensorId, data: u64, stream: u64) -> Result<Work, Error> {
        self.drive.check_process()?;
        let entry = self.tables.entry(tensor)?;
        let Shape { collective, dtype, count, .. } = entry.problem.shape;
        if collective != Collective::AllReduce || self.subset.is_some() {
            let data: *mut u8 = std::ptr::without_provenance_mut(data as usize);
            let (input_at, output_at) = entry.problem.in_place();
            let (input, output) =
                (data.wrapping_add(input_at as usize), data.wrapping_add(output_at as usize));
            // SAFETY: passed on to the caller.
            return unsafe { self.push_entry(entry, input, output, &super::Staging::on_cuda(stream)) };
        }
        // SAFETY: passed on to the caller.
        let on_gpu = unsafe { self.on_gpu(data, count as usize, dtype, stream) };
        let (data, device) = on_gpu?;
        let begin = Clock.now();
        self.push_device(begin, entry, data, device)
    }

    /// The elements as memory of the GPU, when they are there, and how other ranks find them.
    ///
    /// # Safety
    /// As for [`all_reduce_cuda`](Self::all_reduce_cuda).
    unsafe fn on_gpu(
        &self,
        data: u64,
        count: usize,
        dtype: DType,
        stream: u64,
    ) -> Result<(TensorRegion, Option<DeviceTensor>), Error> {
        // SAFETY: not accessed: only the address and the length are checked.
        let buffer = unsafe { element::Buffer::from_raw(data as *mut u8, count, dtype) }?;
        let mut device = None;
        if buffer.len() > 0 {
            let (gpu, pointer) = self.gpu(data, buffer.len())?;
            // SAFETY: the caller's promise.
            let ready_event = Some(unsafe { gpu.passed(stream) }?);
            let shares = self.node.is_some() && self.gpu.peers;
            let export = shares.then(|| {
                let mut accelerator = lock(&gpu.shared.0);
                let export = accelerator.export(&pointer, dtype);
                say(&mut accelerator);
                export
            });
            let export = export.flatten();
            device = Some(DeviceTensor { ready_event, export });
            if let Some(direct) = &gpu.direct {
                self.make_known(direct, &pointer, buffer.len() as u64)?;
            }
        }
        Ok((buffer.region(MemoryKind::Device), device))
    }

    /// The context that memory belongs to, which is that of all of the group's, and the driver's facts about the
    /// memory.
    fn context_of(&self, address: u64, bytes: usize) -> Result<(Context, Pointer), Error> {
        let cuda = Cuda::probe().map_err(Error::accelerator)?;
        let pointer = cuda.classify_range(address, bytes as u64).map_err(gpu_error)?;
        if pointer.kind == PointerKind::Pinned {
            return Err(Error::Argument(format!(
                "{address:#x} is page-locked host memory; give it as host memory (in C SHOUTER_MEMORY_HOST)"
            )));
        }
        let context = Context::of(cuda, &pointer).map_err(gpu_error)?;
        let of_gpu = lock(&self.gpu.gpu).as_ref().map(|gpu| gpu.context.clone());
        let known = of_gpu.or_else(|| lock(&self.gpu.areas).as_ref().map(|areas| areas.context.clone()));
        match known.filter(|known| !known.is(&context)) {
            Some(known) => Err(Error::Argument(format!(
                "{address:#x} lies on GPU {}, and the group's tensors on GPU {} or in another context of it; use one process for \
                 each GPU",
                context.ordinal(),
                known.ordinal()
            ))),
            None => Ok((context, pointer)),
        }
    }

    /// The GPU that memory lies on, which is the group's from then on, and the driver's facts about the memory.
    fn gpu(&self, address: u64, bytes: usize) -> Result<(Arc<Gpu>, Pointer), Error> {
        let (context, pointer) = self.context_of(address, bytes)?;
        let mut bound = lock(&self.gpu.gpu);
        if let Some(gpu) = &*bound {
            return Ok((gpu.clone(), pointer));
        }
        let copier = Copier::new(&context).map_err(gpu_error)?;
        let kernels = kernels(&context, self.gpu.kernels.as_deref()).map(Arc::new);
        let accelerator = CudaAccelerator::new(copier, kernels.clone());
        let shared = Shared(Arc::new(Mutex::new(accelerator)), None);
        // An input, and an output with a block of each rank.
        let room = CELL_BYTES * (self.local_size() as usize + 1);
        let small = Mutex::new(Some(Pinned::new(&context, room).map_err(gpu_error)?));
        let direct = self.stage(&context, shared.clone(), kernels)?;
        tracing::info!(gpu = context.ordinal(), "the group's tensors lie on this GPU");
        Ok((bound.insert(Arc::new(Gpu { context, shared, direct, small })).clone(), pointer))
    }

    /// Gives the engine its parts: lanes that the GPU copies to and from, the copier, and the slots and CRCs of NICs
    /// that reach the GPU.
    fn stage(
        &self,
        context: &Context,
        mut shared: Shared,
        kernels: Option<Arc<CudaKernels>>,
    ) -> Result<Option<Direct>, Error> {
        let (lanes, bytes) = self.tables.lanes();
        let (direct, parts) = self.go_direct(context, kernels).unzip();
        shared.1 = parts.as_ref().map(|parts: &DirectParts| parts.crcs.clone());
        let accelerator = Box::new(shared);
        // Where each rank folds for itself, it does so in a slot, and blocks of tensors go through slots.
        let slots = registered(context, self.drive.with(|engine| engine.slots())?)?;
        let parts = parts.map(|parts| (parts.crcs, parts.slots));
        let staging = match &self.node {
            None => {
                let memory = Pinned::new(context, Solo::memory_bytes(lanes, bytes)).map_err(gpu_error)?;
                // SAFETY: it goes with the engine, which uses the lanes and ends all copies before.
                let solo = Solo::new(unsafe { memory.region(0) }, lanes, bytes);
                AcceleratorParts { accelerator, solo, memory: Box::new((memory, slots, parts)) }
            }
            Some(node) => {
                // The ranks' shared memory goes when the last part of the group does; the registration goes with the
                // engine.
                let memory: Box<dyn Any + Send> =
                    Box::new((registered(context, node.lanes_memory())?, slots, node.clone(), parts));
                AcceleratorParts { accelerator, solo: None, memory }
            }
        };
        let attached = self.drive.with(move |engine| engine.attach(staging))?;
        attached.map_err(|why| Error::Internal(why.to_string()))?;
        Ok(direct)
    }

    /// The access to a tensor that was handed over.
    pub(super) fn access(&self, data: &TensorRegion) -> Access {
        // Without elements there may be no GPU yet.
        if data.kind() != MemoryKind::Device || data.is_empty() {
            return Access::Host;
        }
        let gpu = lock(&self.gpu.gpu).clone();
        let direct = gpu
            .as_ref()
            .and_then(|gpu| gpu.direct.as_ref())
            .filter(|_| self.tables.is_credited(data.len() as u64));
        direct.map_or(Access::Copies, |direct| direct.access(data))
    }

    /// Does a small operation in host memory, on a copy of the input and for one of the output.
    fn by_the_host(
        &self,
        (begin, operation): (Instant, Operation),
        (input, output): (TensorRegion, TensorRegion),
        ready_event: Option<StreamEvent>,
        run: impl FnOnce(element::Buffer, element::Buffer) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let Some(gpu) = lock(&self.gpu.gpu).clone().filter(|_| !input.is_empty() || !output.is_empty())
        else {
            return run(element::Buffer::empty(), element::Buffer::empty());
        };
        let mut place = lock(&gpu.small);
        let gone = || Error::closed("a copy between GPU and host has failed before");
        let memory = place.as_ref().ok_or_else(gone)?;
        // SAFETY: locked until all copies have ended; else it is kept for ever.
        let whole = unsafe { memory.region(0) };
        let base = memory.as_ptr().as_ptr();
        let outside = || Error::Internal("a small tensor does not fit its place".into());
        // One behind the other, both aligned to any element.
        let behind = input.len().next_multiple_of(64);
        let spans = |region: &TensorRegion, at| {
            whole.span(at, region.len()).zip(region.span(0, region.len())).ok_or_else(outside)
        };
        let (given, result) = (spans(&input, 0)?, spans(&output, behind)?);
        let mut shared = gpu.shared.clone();
        let copied = self.until((begin, operation), || {
            ready_event.map_or(Ok(true), |ready_event| shared.is_reached(ready_event))
        });
        let copied = copied.and_then(|()| self.copied((begin, operation), &gpu, given.0, given.1));
        // SAFETY: the bytes are this call's alone, as long as it holds the lock, and inside of the place.
        let buffer = |at, len| unsafe { element::Buffer::from_raw(base.wrapping_add(at), len, DType::U8) };
        let (from, into) = (buffer(0, input.len())?, buffer(behind, output.len())?);
        let reduced = match copied {
            // The others get the data that they wait for, or the error.
            Ok(()) => run(from, into).map(|()| self.copied((begin, operation), &gpu, result.1, result.0)),
            Err(error) => Ok(Err(error)),
        };
        if let Err(error) = reduced? {
            // A copy may be under way yet.
            std::mem::forget(place.take());
            let why = if matches!(error, Error::Deadline { .. }) {
                AbortReason::Late
            } else {
                AbortReason::Accelerator
            };
            if let Some(node) = &self.node {
                node.set_abort(self.rank.0, why.code() as u8);
            }
            self.drive.poll()?;
            return Err(error);
        }
        Ok(())
    }

    /// Copies, and waits until that is done.
    fn copied(&self, call: (Instant, Operation), gpu: &Gpu, into: Span, from: Span) -> Result<(), Error> {
        if from.is_empty() {
            return Ok(());
        }
        let mut shared = gpu.shared.clone();
        let fence = shared.copy(into, from).map_err(Error::accelerator)?;
        self.until(call, || shared.is_done(fence))
    }

    /// Polls a GPU until `ask` returns true.
    fn until(
        &self,
        (begin, operation): (Instant, Operation),
        mut ask: impl FnMut() -> Result<bool, AcceleratorError>,
    ) -> Result<(), Error> {
        let until = begin + self.deadline;
        while !ask().map_err(Error::accelerator)? {
            if Clock.now() >= until {
                let step = self.annotations.step();
                let call = Call { operation, tensor: None, step };
                let text = "a copy between GPU and host has not ended; a kernel that it waits for may hang. The tensor's memory \
                            must stay as it is until that has ended";
                return Err(
                    Error::deadline(call, vec![], self.deadline, text).with_memory_in_use(self.rank.0)
                );
            }
            thread::yield_now();
        }
        Ok(())
    }
}

/// Page-locks memory for a GPU.
fn registered(context: &Context, memory: TensorRegion) -> Result<Registered, Error> {
    let base = NonNull::new(memory.as_ptr()).filter(|_| !memory.is_empty());
    let base = base.ok_or_else(|| Error::Internal("there is no memory to stage in".into()))?;
    // SAFETY: kept beside what it lies in, or in the engine that owns the slots.
    unsafe { Registered::new(context, base, memory.len()) }.map_err(gpu_error)
}

/// An error that the caller can mend is an argument's fault, others are the GPU's.
fn gpu_error(error: CudaError) -> Error {
    match error {
        CudaError::NotDevice { .. }
        | CudaError::Range { .. }
        | CudaError::ForeignStream { .. }
        | CudaError::Capturing
        | CudaError::Capture { .. } => Error::Argument(error.to_string()),
        other => Error::accelerator(other),
    }
}
