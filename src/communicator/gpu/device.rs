//! The GPU of a group: its state, its accelerator, its kernels.

use std::path::Path;
use std::sync::{Arc, Mutex};

use shouter_reducer::cuda::kernel::{Architecture, CudaKernels, Image, compile};
use shouter_reducer::cuda::{Context, CudaAccelerator, CudaError, Pinned, Stream};
use shouter_reducer::memory::{Span, TensorRegion};
use shouter_reducer::transport::{
    Accelerator, AcceleratorError, DeviceFence, DeviceFold, ExportedTensor, StreamEvent,
};

use super::direct::{Crcs, Direct};
use super::gpu_error;
use crate::error::Error;
use crate::runtime::lock;

/// A group's state for its GPU. The engine has the rest.
pub(super) struct Gpu {
    pub(super) context: Context,
    pub(super) shared: Shared,
    /// For tensors that NICs read and write, if they can.
    pub(super) direct: Option<Direct>,
    /// The memory in which small tensors go through the host's cells; none after a copy has failed.
    pub(super) small: Mutex<Option<Pinned>>,
}

impl Gpu {
    /// The point that the trainer's stream has been given work up to.
    ///
    /// # Safety
    /// The stream lives.
    pub(super) unsafe fn passed(&self, stream: u64) -> Result<StreamEvent, Error> {
        // SAFETY: passed on to the caller.
        let stream = unsafe { Stream::borrow(&self.context, stream) }.map_err(gpu_error)?;
        self.shared.ready_event(&stream).map_err(gpu_error)
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // To free page-locked memory is to wait for the device, and a copy may hang.
        if !self.shared.is_idle().unwrap_or(true) {
            std::mem::forget((lock(&self.small).take(), self.shared.clone()));
        }
    }
}

/// The accelerator, which the engine and the trainer's threads use alike.
#[derive(Clone)]
pub(super) struct Shared(pub(super) Arc<Mutex<CudaAccelerator>>, pub(super) Option<Crcs>);

impl Shared {
    /// The point that a stream has been given work up to. Called by the thread that passed the stream.
    pub(super) fn ready_event(&self, stream: &Stream) -> Result<StreamEvent, CudaError> {
        let event = lock(&self.0).copier().event()?;
        event.record(stream)?;
        Ok(lock(&self.0).copier().expect(event))
    }
}

/// Says, once, why tensors are staged that lie on GPUs of one host.
pub(super) fn say(accelerator: &mut CudaAccelerator) {
    if let Some(why) = accelerator.take_share_failure() {
        tracing::info!(%why, "GPUs of this host cannot share a tensor; such tensors are staged in host memory");
    }
}

impl Accelerator for Shared {
    fn copy(&mut self, into: Span, from: Span) -> Result<DeviceFence, AcceleratorError> {
        Accelerator::copy(&mut *lock(&self.0), into, from)
    }

    fn open(&mut self, tensor: &ExportedTensor, len: usize) -> Option<TensorRegion> {
        let mut accelerator = lock(&self.0);
        let region = accelerator.open(tensor, len);
        say(&mut accelerator);
        region
    }

    fn fold(&mut self, fold: &DeviceFold<'_>) -> Result<DeviceFence, AcceleratorError> {
        lock(&self.0).fold(fold)
    }

    fn is_done(&mut self, started: DeviceFence) -> Result<bool, AcceleratorError> {
        lock(&self.0).is_done(started)
    }

    fn is_reached(&mut self, event: StreamEvent) -> Result<bool, AcceleratorError> {
        lock(&self.0).is_reached(event)
    }

    fn is_idle(&mut self) -> Result<bool, AcceleratorError> {
        let crcs = self.1.as_ref().map_or(Ok(true), Crcs::is_idle)?;
        Ok(crcs && lock(&self.0).is_idle()?)
    }
}

/// The GPU's kernels, compiled unless they have been before or lie in `folder`; without them the CPU reduces.
pub(super) fn kernels(context: &Context, folder: Option<&Path>) -> Option<CudaKernels> {
    let missing = |why: &dyn std::fmt::Display| {
        tracing::warn!(%why, "there are no kernels for this GPU: the CPU reduces its tensors");
    };
    let devices = context.cuda().devices().inspect_err(|why| missing(why)).ok()?;
    let device = devices.into_iter().find(|device| device.ordinal == context.ordinal())?;
    let (major, minor) = device.capability;
    let architecture = Architecture { major, minor };
    let given = folder.and_then(|folder| Image::from_folder(folder, architecture));
    let image = given.map_or_else(|| compile(architecture), Ok).inspect_err(|why| missing(why)).ok()?;
    CudaKernels::load(context, &image).inspect_err(|why| missing(why)).ok()
}
