//! A GPU as the executor's accelerator: copies, folds, and the tensors of the node's other ranks.
//!
//! Folds read and write the memory of other processes, and page-locked memory of the host, where it lies. They are put on the
//! [`Copier`]'s streams, so its fences report when they are done. Ranks signal to one another through flags of the host that they have handed over their
//! tensors, and that they are done: no stream waits for another process.
#![allow(unsafe_code)]

use core::ptr::NonNull;
use std::collections::HashMap;
use std::sync::Arc;

use super::kernel::{self as kernels, CudaKernels};
use super::{Context, Copier, CopyDirection, CudaError, MemoryHandle, PeerMemory, Pointer, PointerKind};
use crate::dtype::{DType, ReduceOp};
use crate::memory::{MemoryKind, Span, TensorRegion};
use crate::transport::{Accelerator, AcceleratorError, DeviceFence, DeviceFold, ExportedTensor, StreamEvent};

/// Up to so many bytes a kernel copies to and from page-locked memory, which it accesses directly, in place of a copy engine. Meant to
/// begin sooner; not measured on a GPU yet.
const DIRECT: usize = 16 << 10;

// A fold of a schedule has at most so many sources and destinations.
const _: () = assert!(kernels::MAX_SOURCES >= 64 && kernels::MAX_DESTINATIONS >= 64);

/// Allocations whose handles are kept.
const HANDLES: usize = 1 << 12;

/// Copies and folds in one context, for one thread at a time.
#[derive(Debug)]
pub struct CudaAccelerator {
    copier: Copier,
    /// None where they could not be compiled or loaded: then nothing is folded here.
    kernels: Option<Arc<CudaKernels>>,
    peers: PeerMemory,
    /// By the number of an allocation of this process: how others open it, if they can.
    handles: HashMap<u64, Option<MemoryHandle>>,
    addresses: Vec<u64>,
    /// Host memory that the device accesses, as far as it was asked about: address, length, the device's address. It stays for as long
    /// as the group has its lanes.
    mapped: Vec<(u64, u64, u64)>,
    share_failure: ShareFailure,
}

/// Why a tensor could not be shared, the first time.
#[derive(Debug)]
enum ShareFailure {
    None,
    Pending(CudaError),
    Reported,
}

impl ShareFailure {
    fn set(&mut self, why: CudaError) {
        if let Self::None = self {
            *self = Self::Pending(why);
        }
    }
}

impl CudaAccelerator {
    /// Copies of `copier`, and folds by `kernels` of the same context.
    pub fn new(copier: Copier, kernels: Option<Arc<CudaKernels>>) -> Self {
        let peers = PeerMemory::new(copier.context());
        Self {
            copier,
            kernels,
            peers,
            handles: HashMap::new(),
            addresses: Vec::new(),
            mapped: Vec::new(),
            share_failure: ShareFailure::None,
        }
    }

    /// The copies.
    pub fn copier(&mut self) -> &mut Copier {
        &mut self.copier
    }

    /// Whether it folds.
    fn folds(&self) -> bool {
        self.kernels.is_some()
    }

    /// Why a tensor could not be exported to other processes, or opened, if that has happened: once.
    pub fn take_share_failure(&mut self) -> Option<CudaError> {
        if !matches!(self.share_failure, ShareFailure::Pending(_)) {
            return None;
        }
        match core::mem::replace(&mut self.share_failure, ShareFailure::Reported) {
            ShareFailure::Pending(why) => Some(why),
            ShareFailure::None | ShareFailure::Reported => None,
        }
    }

    /// How other ranks of the host find elements that begin at `pointer`; `None` where they could not be folded.
    pub fn export(&mut self, pointer: &Pointer, dtype: DType) -> Option<ExportedTensor> {
        let aligned = pointer.address.is_multiple_of(dtype.align() as u64);
        if !self.folds() || !aligned || pointer.kind != PointerKind::Device {
            return None;
        }
        if self.handles.len() >= HANDLES {
            self.handles.clear();
        }
        let (context, share_failure) = (self.copier.context(), &mut self.share_failure);
        // Without a handle, ranks in the same process can use it all the same.
        let handle = *self.handles.entry(pointer.allocation).or_insert_with(|| {
            let handle = MemoryHandle::export(context, pointer);
            handle.map_err(|error| share_failure.set(error)).ok()
        });
        let handle = handle
            .and_then(|handle| handle.at(pointer))
            .map_or([0; ExportedTensor::HANDLE], |handle| handle.to_bytes());
        Some(ExportedTensor { address: pointer.address, handle, is_own: true })
    }

    /// The address of another rank's tensor here.
    fn address_of(&mut self, tensor: &ExportedTensor, len: usize) -> Result<u64, CudaError> {
        let context = self.copier.context();
        if tensor.is_own {
            let pointer = context.cuda().classify_range(tensor.address, len as u64)?;
            return match Context::of(context.cuda(), &pointer)?.is(context) {
                true => Ok(tensor.address),
                false => Err(CudaError::NoIpcHandle { address: tensor.address }),
            };
        }
        let none = CudaError::NoIpcHandle { address: tensor.address };
        let handle = MemoryHandle::from_bytes(&tensor.handle).filter(|handle| handle.len() >= len as u64);
        self.peers.open(&handle.ok_or(none)?)
    }

    /// The address by which the device accesses a range.
    fn device_address(&mut self, span: &Span) -> Result<u64, CudaError> {
        let (address, len) = (span.as_ptr() as u64, span.len() as u64);
        if span.region().kind() == MemoryKind::Device {
            return Ok(address);
        }
        let inside = |&&(base, size, _): &&(u64, u64, u64)| base <= address && address - base + len <= size;
        if let Some(&(base, _, device)) = self.mapped.iter().find(inside) {
            return Ok(device + (address - base));
        }
        let context = self.copier.context();
        let pointer = context.cuda().classify_range(address, len)?;
        if pointer.kind != PointerKind::Pinned {
            return Err(CudaError::NotPinned { address });
        }
        let device = context.address_of_pinned(address)?;
        let begin = device.checked_sub(pointer.offset()).ok_or(CudaError::NotPinned { address })?;
        self.mapped.push((pointer.base, pointer.size, begin));
        Ok(device)
    }

    /// # Safety
    /// The ranges are kept from others, by a schedule, until the fence is done.
    unsafe fn enqueue(&mut self, fold: &DeviceFold<'_>) -> Result<DeviceFence, AcceleratorError> {
        let mut addresses = core::mem::take(&mut self.addresses);
        addresses.clear();
        for span in fold.destinations.iter().chain(fold.sources) {
            addresses.push(self.device_address(span)?);
        }
        let Some(kernels) = &self.kernels else {
            return Err(AcceleratorError("there are no kernels".into()));
        };
        let on_device = |span: &Span| span.region().kind() == MemoryKind::Device;
        let direction =
            if fold.sources.iter().any(on_device) { CopyDirection::In } else { CopyDirection::Out };
        let (destinations, sources) = addresses.split_at(fold.destinations.len());
        let bytes = fold.sources.first().map_or(0, Span::len);
        let job = kernels::Fold {
            dtype: fold.dtype,
            op: fold.op,
            destinations,
            sources,
            count: (bytes / fold.dtype.size()) as u64,
            divide_by: fold.divide_by,
        };
        // SAFETY: the stream is of the kernels' context. The ranges were checked when the spans were made and have one length, as
        // below; that they stay and are kept from others is the caller's promise.
        unsafe { kernels.fold(self.copier.stream(direction), &job) }
            .map_err(|error| AcceleratorError(error.to_string().into()))?;
        self.addresses = addresses;
        Ok(DeviceFence(self.copier.fence(direction)?.to_word()))
    }
}

impl Accelerator for CudaAccelerator {
    fn copy(&mut self, into: Span, from: Span) -> Result<DeviceFence, AcceleratorError> {
        if self.folds() && from.len() <= DIRECT && into.len() == from.len() && !from.is_empty() {
            let (destinations, sources) = (&[into], &[from]);
            let copy =
                DeviceFold { dtype: DType::U8, op: ReduceOp::Sum, destinations, sources, divide_by: None };
            // SAFETY: as in `Copier::copy_span`.
            return unsafe { self.enqueue(&copy) };
        }
        Ok(DeviceFence(self.copier.copy_span(into, from)?.to_word()))
    }

    fn open(&mut self, tensor: &ExportedTensor, len: usize) -> Option<TensorRegion> {
        let address = match self.address_of(tensor, len) {
            Ok(address) => address,
            Err(error) => {
                self.share_failure.set(error);
                return None;
            }
        };
        let base = NonNull::new(address as *mut u8)?;
        // SAFETY: the range lies in an allocation that is open, or of this process. Its owner keeps it until its own operation
        // has ended, which is after all folds of it.
        Some(unsafe { TensorRegion::from_raw_parts(MemoryKind::Device, base, len, 0) })
    }

    fn fold(&mut self, fold: &DeviceFold<'_>) -> Result<DeviceFence, AcceleratorError> {
        let mut lengths = fold.destinations.iter().chain(fold.sources).map(Span::len);
        let first = lengths.next().unwrap_or(0);
        if fold.sources.is_empty() || fold.destinations.is_empty() || lengths.any(|len| len != first) {
            return Err(AcceleratorError(
                "a fold of nothing, or of different lengths; please report this".into(),
            ));
        }
        // SAFETY: the executor's schedule keeps the ranges from others until the step has ended (proved by `check`), and
        // their regions promise that the memory stays.
        unsafe { self.enqueue(fold) }
    }

    fn is_done(&mut self, started: DeviceFence) -> Result<bool, AcceleratorError> {
        Ok(self.copier.is_done(super::CopyFence::from_word(started.0))?)
    }

    fn is_reached(&mut self, event: StreamEvent) -> Result<bool, AcceleratorError> {
        Ok(self.copier.is_reached(event)?)
    }

    fn is_idle(&mut self) -> Result<bool, AcceleratorError> {
        Ok(self.copier.pending()? == 0)
    }
}

impl From<CudaError> for AcceleratorError {
    fn from(error: CudaError) -> Self {
        Self(error.to_string().into())
    }
}
