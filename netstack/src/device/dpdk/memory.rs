//! Memory of the process that a port reads where it lies.
#![allow(unsafe_code)]

use core::ptr::NonNull;
use std::sync::{Arc, Weak};

use super::DeviceSpec;
use super::port::Shared;
use super::sys::{self, Errno, NotMapped, PAGE};

/// A handle to a port with which memory can be registered. It does not keep the port open.
#[derive(Clone, Debug)]
pub struct PortMemory(Weak<Shared>);

/// Why a port does not read memory where it lies, so that what is sent from there is copied.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// Its driver takes no frame of two buffers, or the device is none that reads the process's memory.
    #[error("{device}: the driver does not read payload where it lies")]
    Driver {
        /// The device.
        device: DeviceSpec,
    },
    /// There is no IOMMU that translates.
    #[error(
        "{device}: DPDK addresses memory on the bus physically (IOVA as PA), and so reaches its own alone; bind the NIC to vfio-pci behind an \
         IOMMU (docs/deploy.md)"
    )]
    PhysicalAddresses {
        /// The device.
        device: DeviceSpec,
    },
    /// Other memory that is registered has some of these pages.
    #[error("{device}: some of the {bytes} bytes are registered already")]
    Overlaps {
        /// The device.
        device: DeviceSpec,
        /// Bytes to be registered.
        bytes: usize,
    },
    /// There is no whole page in it.
    #[error("{device}: {bytes} bytes hold no whole page")]
    Small {
        /// The device.
        device: DeviceSpec,
        /// Bytes to be registered.
        bytes: usize,
    },
    /// DPDK or the kernel refuses.
    #[error(
        "{device}: {bytes} bytes are not mapped for the NIC: {error}; the kernel counts them as locked memory: raise the limit (`ulimit -l`, \
         LimitMEMLOCK of systemd); an IOMMU has to translate 48 bits of address, and DPDK keeps about 100 ranges. DPDK's log ends: {log}"
    )]
    Refused {
        /// The device.
        device: DeviceSpec,
        /// Bytes to be registered.
        bytes: usize,
        /// DPDK's error.
        error: Errno,
        /// The last lines of its log.
        log: String,
    },
    /// The port was closed.
    #[error("the port is closed")]
    Closed,
}

impl PortMemory {
    pub(super) fn of(port: &Arc<Shared>) -> Self {
        Self(Arc::downgrade(port))
    }

    /// Lets the port read `len` bytes at `base` where they lie: all whole pages of them. Frames whose payload is [lent](crate::region::Extent) from
    /// there are not copied. The pages take memory at once, and count as locked.
    ///
    /// # Errors
    /// [`MemoryError`]; what is sent from there is copied then.
    ///
    /// # Safety
    /// The memory stays mapped until the registration is dropped.
    pub unsafe fn register(&self, base: NonNull<u8>, len: usize) -> Result<PortRegistration, MemoryError> {
        let port = self.0.upgrade().ok_or(MemoryError::Closed)?;
        let device = || port.config.device.clone();
        let (true, Some(started)) = (port.lends, port.started()) else {
            return Err(MemoryError::Driver { device: device() });
        };
        let address = base.as_ptr().expose_provenance();
        let start = address.next_multiple_of(PAGE);
        let end = address.saturating_add(len) / PAGE * PAGE;
        if start >= end {
            return Err(MemoryError::Small { device: device(), bytes: len });
        }
        let mark = sys::log_position();
        // SAFETY: the caller's promise.
        match unsafe { started.map(start..end) } {
            Ok(()) => Ok(PortRegistration { port: self.clone(), start }),
            Err(NotMapped::PhysicalAddresses) => Err(MemoryError::PhysicalAddresses { device: device() }),
            Err(NotMapped::Overlaps) => Err(MemoryError::Overlaps { device: device(), bytes: len }),
            Err(NotMapped::Refused(error)) => Err(MemoryError::Refused {
                device: device(),
                bytes: end - start,
                error,
                log: sys::log_since(mark),
            }),
        }
    }
}

/// Memory that a port reads where it lies, until this is dropped or the port is closed. Nothing may be under way from there by then, or its
/// sender has given it up: a NIC that still finds it in its ring does not get at it, and may send nothing more.
#[derive(Debug)]
pub struct PortRegistration {
    port: PortMemory,
    start: usize,
}

impl Drop for PortRegistration {
    fn drop(&mut self) {
        // A port that is gone has ended its registrations; in a forked child they are the parent's.
        let port = self.port.0.upgrade().filter(|port| port.is_ours());
        if let Some(started) = port.as_ref().and_then(|port| port.started()) {
            // What the kernel does not let go of stays mapped for the device, and is never registered again.
            let _ = started.unmap(self.start);
        }
    }
}

#[cfg(test)]
mod tests;
