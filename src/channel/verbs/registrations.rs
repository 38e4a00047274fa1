//! Memory beside the slots that a device may read, and peers write, within a budget.
#![allow(unsafe_code)]

use std::os::fd::AsFd;
use std::ptr::NonNull;

use shouter_netstack::verbs::{Access, Context, MemoryRegion, Sge};
use shouter_reducer::memory::{MemoryKind, TensorRegion};

use super::fabric::{Export, Reach, RegisterError, Registered, Registering, Remote, Source};

/// Ranges of devices' memory that are registered at the same time, at most.
const DEVICE_RANGES: usize = 256;

/// A registration.
struct Registration {
    region: MemoryRegion,
    /// Whether it is memory of a device.
    device: bool,
}

/// Registrations by number.
pub(super) struct Registrations {
    all: Vec<Option<Registration>>,
    /// Bytes that more may have.
    left: usize,
}

impl Registrations {
    /// None yet; all together may have so many bytes.
    pub(super) fn new(budget: usize) -> Self {
        Self { all: vec![], left: budget }
    }

    /// A closure that registers memory for writes from it, and for peers' writes to it.
    ///
    /// # Safety
    /// The memory stays mapped until the registration is dropped.
    pub(super) unsafe fn registering(
        &self,
        context: &Context,
        memory: TensorRegion,
    ) -> Result<Registering, RegisterError> {
        let bytes = memory.len();
        if bytes > self.left {
            return Err(RegisterError::Budget { bytes });
        }
        if memory.kind() == MemoryKind::Device {
            return Err(RegisterError::Device { bytes, why: "the memory is an accelerator's".into() });
        }
        let context = context.clone();
        Ok(Box::new(move || {
            let base = NonNull::new(memory.as_ptr()).ok_or(RegisterError::Refused)?;
            // SAFETY: mapped for as long as the caller says. Peers that know the key may write it: those to whom the executor
            // granted a message that goes there.
            let region = unsafe { context.register(base, bytes, Access::REMOTE_WRITE) };
            let region = region.map_err(|why| RegisterError::Device { bytes, why: why.to_string() })?;
            Ok(Box::new(region) as Registered)
        }))
    }

    /// Takes a registration; returns its number.
    pub(super) fn adopt(&mut self, memory: Registered) -> Result<usize, RegisterError> {
        let region = memory.downcast::<MemoryRegion>().map_err(|_| RegisterError::Refused)?;
        let bytes = region.len();
        self.left = self.left.checked_sub(bytes).ok_or(RegisterError::Budget { bytes })?;
        Ok(self.keep(Registration { region: *region, device: false }))
    }

    /// The same for memory of a device, which is outside of the budget.
    ///
    /// # Safety
    /// The memory stays allocated until the registration is removed or dropped, or nothing of it is sent or asked for any more.
    pub(super) unsafe fn add_device(
        &mut self,
        context: &Context,
        memory: TensorRegion,
        export: Option<Export>,
    ) -> Result<(usize, Reach), RegisterError> {
        let devices = self.all.iter().flatten().filter(|known| known.device).count();
        if devices >= DEVICE_RANGES {
            return Err(RegisterError::Ranges(devices));
        }
        let (bytes, address) = (memory.len(), memory.as_ptr() as u64);
        let mut refused = String::new();
        if let Some(Export { fd, offset }) = export {
            match context.register_dmabuf(fd.as_fd(), offset, bytes, address, Access::REMOTE_WRITE) {
                Ok(region) => return Ok((self.keep(Registration { region, device: true }), Reach::Dmabuf)),
                Err(why) => refused = format!("{why}; "),
            }
        }
        // SAFETY: passed on to the caller; peers that know the key may write it, as in `add`.
        let region = unsafe { context.register_peer(address, bytes, Access::REMOTE_WRITE) };
        let region = region.map_err(|why| RegisterError::Device { bytes, why: format!("{refused}{why}") })?;
        Ok((self.keep(Registration { region, device: true }), Reach::Address))
    }

    fn keep(&mut self, known: Registration) -> usize {
        let key = self.all.iter().position(Option::is_none).unwrap_or(self.all.len());
        match self.all.get_mut(key) {
            Some(place) => *place = Some(known),
            None => self.all.push(Some(known)),
        }
        key
    }

    /// Takes a registration back.
    pub(super) fn remove(&mut self, key: usize) -> Option<Registered> {
        let Registration { region, device } = self.all.get_mut(key).and_then(Option::take)?;
        if !device {
            self.left += region.len();
        }
        Some(Box::new(region))
    }

    /// The range as peers name it; `None` if it is not registered (any more).
    pub(super) fn remote(&self, range: Source) -> Option<Remote> {
        let region = &self.all.get(range.key)?.as_ref()?.region;
        let end = range.offset.checked_add(range.len as usize)?;
        let address = region.address().checked_add(range.offset as u64)?;
        (end <= region.len()).then(|| Remote { address, rkey: region.rkey() })
    }

    /// The range as the device reads it; `None` if it is not registered (any more).
    #[inline]
    pub(super) fn sge(&self, source: Source) -> Option<Sge<'_>> {
        self.all.get(source.key)?.as_ref()?.region.sge(source.offset, source.len as usize)
    }
}
