//! The staging area of an operation under way: it is emptied, kept or freed when the operation has ended.

use std::mem::ManuallyDrop;
use std::sync::Arc;

use shouter_reducer::layout::{Layout, unpack};
use shouter_reducer::memory::Owned;

use super::device::{Copies, Device, Progress};
use crate::communicator::element::Buffer;
use crate::communicator::table::Entry;
use crate::error::Error;

/// The end of an operation, for its staging area.
pub(in crate::communicator) enum Ended {
    Well,
    Badly,
    /// A device may still read or write its memory.
    InUse,
}

impl Ended {
    /// The end of a call that waits.
    pub(in crate::communicator) fn of<T>(result: &Result<T, Error>) -> Self {
        match result {
            Ok(_) => Self::Well,
            // After a panic of the engine it is unknown.
            Err(Error::Internal(_)) => Self::InUse,
            Err(error) if error.in_use_by().is_some() => Self::InUse,
            Err(_) => Self::Badly,
        }
    }
}

/// The destination of an output after the operation.
pub(super) struct Unpack {
    pub(super) layout: Layout,
    pub(super) size: usize,
    pub(super) from: Buffer,
    pub(super) into: *mut u8,
}

/// The staging area of an operation under way. One that is dropped has none under way any more: nothing is written.
pub(in crate::communicator) struct Staged {
    /// None of a GPU's.
    memory: ManuallyDrop<Option<Owned>>,
    pub(super) output: Option<Unpack>,
    /// The tensor that keeps the memory.
    keeper: Option<Arc<Entry>>,
    device: Option<Device>,
}

// SAFETY: the memory belongs to the value, and so does the destination until the operation has ended, by the promise of who started it.
unsafe impl Send for Staged {}
// SAFETY: a reference gives nothing of it.
unsafe impl Sync for Staged {}

impl Staged {
    pub(super) fn new(memory: Owned, output: Option<Unpack>, keeper: Option<Arc<Entry>>) -> Self {
        Self { memory: ManuallyDrop::new(Some(memory)), output, keeper, device: None }
    }

    /// One that copies of a GPU fill and empty.
    #[cfg(feature = "cuda")]
    pub(in crate::communicator) fn on_device(device: Device) -> Self {
        Self { memory: ManuallyDrop::new(None), output: None, keeper: None, device: Some(device) }
    }

    /// The progress that the operation and its copies share, where there are copies.
    pub(in crate::communicator) fn progress(&self) -> Option<&Arc<Progress>> {
        self.device.as_ref().map(|device| &device.progress)
    }

    /// Takes its copies, to be handed over to the engine.
    pub(in crate::communicator) fn take_copies(&mut self) -> Option<Box<dyn Copies>> {
        self.device.as_mut()?.copies.take()
    }

    /// The operation has ended.
    pub(in crate::communicator) fn end(self, how: Ended) {
        match (how, &self.output) {
            (Ended::Well, Some(output)) => output.run(usize::MAX),
            (Ended::InUse, _) => std::mem::forget(self),
            _ => {}
        }
    }

    /// A message of so many elements has been received.
    pub(in crate::communicator) fn received(self, elements: u64) {
        if let Some(output) = &self.output {
            output.run(usize::try_from(elements).unwrap_or(usize::MAX));
        }
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // SAFETY: taken once, here.
        let memory = unsafe { ManuallyDrop::take(&mut self.memory) };
        if let (Some(keeper), Some(memory)) = (&self.keeper, memory) {
            keeper.keep(memory);
        }
    }
}

impl Unpack {
    fn run(&self, elements: usize) {
        let bytes = elements.saturating_mul(self.size).min(self.from.len());
        // SAFETY: the operation has ended, so the staging area is nobody else's, and the promise of who started it covers the blocks.
        unsafe { unpack(&self.layout, self.size, &self.from.as_slice()[..bytes], self.into) }
    }
}
