//! Memory registered with the channel to other hosts, so that an RDMA device or a NIC reads it without a copy.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::Weak;

use shouter_reducer::memory::{MemoryKind, TensorRegion};

use super::Group;
use super::drive::{Drive, RankEngine};
use crate::error::Error;
use crate::runtime::Driver;

/// Registers memory with the channel to other hosts; true if that succeeded. The device's part may take seconds, so it
/// runs in this thread: meanwhile others drive the engine, and peers get heartbeats from this rank.
///
/// # Safety
/// The memory stays mapped until it was unregistered, or for ever.
unsafe fn make_known(drive: &Drive, memory: TensorRegion) -> Result<bool, Error> {
    // SAFETY: passed on to the caller.
    let registering = drive.with(move |engine| unsafe { engine.registry()?.registering(memory) })?;
    let Some(registering) = registering else {
        return Ok(false);
    };
    let registered = registering();
    drive.with(move |engine| engine.registry().is_some_and(|registry| registry.adopt(memory, registered)))
}

/// Memory that is known for as long as this is not [ended](Self::end).
pub(super) struct Registration {
    driver: Weak<Driver<RankEngine>>,
    address: usize,
}

impl Registration {
    /// Makes memory known; `None` if it is copied as before.
    ///
    /// # Safety
    /// The memory stays mapped until [`end`](Self::end) has returned true, or for ever.
    pub(super) unsafe fn new(drive: &Drive, memory: TensorRegion) -> Option<Self> {
        // SAFETY: passed on to the caller.
        let known = unsafe { make_known(drive, memory) };
        known.is_ok_and(|known| known).then(|| Self { driver: drive.weak(), address: memory.as_ptr().addr() })
    }

    /// Whether the memory may go now; otherwise it has to stay for ever.
    pub(super) fn end(self) -> bool {
        // Where there is no engine any more, its registrations went with it.
        let Some(driver) = self.driver.upgrade() else { return true };
        let address = self.address;
        // The registration is dropped in this thread: that may take seconds, too.
        driver.with(move |engine| engine.registry()?.unregister(address)).is_ok()
    }
}

impl Group {
    /// Promises that `bytes` bytes at `data` stay where they are, so that RDMA devices can send tensors of them, and
    /// write peers' messages to them, without a copy, and NICs that DPDK drives (`pci:`) can send them by RUD without one. Worth it for
    /// memory of the trainer's own that is pushed again and again; memory of [`alloc`](Self::alloc) needs no promise. It takes a while: every
    /// page is looked up, and from then on stays in memory.
    ///
    /// Where it is of no use (another transport, no room below `rdma_memory_mb` or the limit of locked memory, a NIC without an IOMMU, which the log
    /// says once), nothing changes. A forked child does not have the pages that the memory touches.
    ///
    /// # Errors
    /// [`Error::Argument`] for an address that is null; [`Error::Closed`] in a forked child.
    ///
    /// # Safety
    /// The memory stays mapped, at this address, until [`unpin`](Self::unpin) has returned for it or the group was dropped.
    pub unsafe fn pin(&self, data: *mut u8, bytes: usize) -> Result<(), Error> {
        self.drive.check_process()?;
        let data =
            NonNull::new(data).ok_or_else(|| Error::Argument("the address of what to pin is null".into()))?;
        if !self.channels.take_memory || bytes == 0 {
            return Ok(());
        }
        // SAFETY: no operation is made with this region; it says which memory is meant.
        let memory = unsafe { TensorRegion::from_raw_parts(MemoryKind::Pinned, data, bytes, 0) };
        // SAFETY: the caller's promise.
        unsafe { make_known(&self.drive, memory) }.map(drop)
    }

    /// Takes the promise of [`pin`](Self::pin) back for memory that begins at `data`. No operation may be under way in it.
    /// For memory that was not pinned nothing happens.
    ///
    /// # Errors
    /// [`Error::Closed`] in a forked child; the memory must stay mapped then.
    pub fn unpin(&self, data: *const u8) -> Result<(), Error> {
        self.drive.check_process()?;
        if !self.channels.take_memory {
            return Ok(());
        }
        let address = data.addr();
        // Dropped in this thread, as it may take seconds.
        self.drive.with(move |engine| engine.registry()?.unregister(address)).map(drop)
    }
}
