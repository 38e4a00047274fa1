//! Room for the slots of operations, on the host and on a device.

use super::api::StartError;
use crate::memory::{MemoryKind, Pool, Pooled, TensorRegion};

/// Room for the slots of operations.
#[derive(Debug)]
pub(super) struct Slots {
    host: Pool,
    /// On a device, for operations that work there.
    device: Option<Pool>,
}

impl Slots {
    /// So many bytes on the host, allocated now or, if `lazy`, when some are taken first; `None` if they cannot be allocated.
    pub(super) fn new(bytes: usize, lazy: bool) -> Option<Self> {
        let host = if lazy { Pool::lazy(bytes)? } else { Pool::new(bytes)? };
        Some(Self { host, device: None })
    }

    /// Memory of a device.
    pub(super) fn attach(&mut self, memory: TensorRegion) {
        self.device = Some(Pool::of(memory));
    }

    /// All of it that is the host's.
    pub(super) fn on_host(&self) -> TensorRegion {
        self.host.whole()
    }

    /// Bytes in all, of the one or the other.
    pub(super) fn capacity(&self, on_device: bool) -> usize {
        let pool = if on_device { self.device.as_ref() } else { Some(&self.host) };
        pool.map_or(0, Pool::capacity)
    }

    /// Takes so many bytes of slots.
    ///
    /// # Errors
    /// They are not free, or no memory can be allocated.
    pub(super) fn take(&mut self, on_device: bool, bytes: usize) -> Result<Pooled, StartError> {
        let busy = StartError::Busy { what: "slots" };
        let Some(pool) = self.of(on_device) else { return Err(busy) };
        pool.take(bytes).ok_or_else(|| match pool.is_unallocated() {
            true => StartError::SlotMemory(pool.capacity()),
            false => busy,
        })
    }

    /// Nothing refers to these any more.
    pub(super) fn put(&mut self, slots: Pooled) {
        if let Some(pool) = self.of(slots.region().kind() == MemoryKind::Device) {
            pool.put(slots);
        }
    }

    /// Gives all memory up for good.
    pub(super) fn leak(&mut self) {
        self.host.leak();
        self.device.iter_mut().for_each(Pool::leak);
    }

    fn of(&mut self, on_device: bool) -> Option<&mut Pool> {
        if on_device { self.device.as_mut() } else { Some(&mut self.host) }
    }
}
