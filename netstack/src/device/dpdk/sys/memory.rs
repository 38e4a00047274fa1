//! Memory of the process that devices read where it lies: DPDK's external memory, mapped for a device's accesses (DMA).
//!
//! The kernel keeps pages that are mapped through VFIO in memory, whatever the process does with their addresses, and the IOMMU lets a device access
//! nothing that is not mapped. So a device never reads memory that has come to be something else's.

use core::ffi::c_void;
use core::ops::Range;
use core::ptr;
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard};

use super::{Errno, StartedPort};

/// Bytes of a page, in which memory is mapped.
pub(in super::super) const PAGE: usize = 4096;

/// Memory that is registered with some port of this process.
struct Known {
    range: Range<usize>,
    /// Ports that it is registered with.
    ports: u32,
    /// Those of them that share VFIO's container, in which a range is mapped once.
    in_container: u32,
}

/// None of these ranges overlap: VFIO takes a range of which it has a part for one that it has.
static KNOWN: Mutex<Vec<Known>> = Mutex::new(Vec::new());

/// The memory that a port may read.
#[derive(Debug, Default)]
pub(super) struct Mapped {
    /// In order.
    ranges: RwLock<Vec<Range<usize>>>,
}

impl Mapped {
    fn insert(&self, range: Range<usize>) {
        let mut ranges = self.ranges.write().unwrap_or_else(PoisonError::into_inner);
        let at = ranges.partition_point(|other| other.start < range.start);
        ranges.insert(at, range);
    }

    /// Takes a range out. Afterwards no burst refers to it that has not been handed to the driver.
    fn remove(&self, start: usize) -> Option<Range<usize>> {
        let mut ranges = self.ranges.write().unwrap_or_else(PoisonError::into_inner);
        let at = ranges.binary_search_by_key(&start, |range| range.start).ok()?;
        Some(ranges.remove(at))
    }

    /// The ranges, which stay mapped as long as this is held; `None` if there is none, or they are being changed.
    #[inline]
    pub(super) fn read(&self) -> Option<Readable<'_>> {
        let ranges = self.ranges.try_read().ok()?;
        (!ranges.is_empty()).then_some(Readable(ranges))
    }
}

/// The memory that a port may read, for one burst.
pub(in super::super) struct Readable<'a>(RwLockReadGuard<'a, Vec<Range<usize>>>);

impl Readable<'_> {
    /// Whether the port may read all of `len` bytes at `address`.
    #[inline]
    pub(in super::super) fn holds(&self, address: usize, len: usize) -> bool {
        let after = self.0.partition_point(|range| range.start <= address);
        let range = after.checked_sub(1).and_then(|at| self.0.get(at));
        range.is_some_and(|range| address <= range.end && len <= range.end - address)
    }
}

/// Why a port does not read memory where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum NotMapped {
    /// DPDK uses physical addresses on the bus.
    PhysicalAddresses,
    /// Some of it is registered already.
    Overlaps,
    /// DPDK has no room for it, or the device has no mapping, or the kernel refuses.
    Refused(Errno),
}

impl StartedPort {
    /// Lets the port read whole pages, where they lie, from now on.
    ///
    /// # Safety
    /// They stay mapped in this process until [`unmap`](Self::unmap) was called for them or the port is dropped.
    pub(in super::super) unsafe fn map(&self, pages: Range<usize>) -> Result<(), NotMapped> {
        // SAFETY: has no preconditions.
        if unsafe { dpdk_sys::rte_eal_iova_mode() } != dpdk_sys::RTE_IOVA_VA {
            return Err(NotMapped::PhysicalAddresses);
        }
        let mut all = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let at =
            match all.iter().position(|other| other.range.start < pages.end && pages.start < other.range.end)
            {
                Some(at) if all[at].range != pages => return Err(NotMapped::Overlaps),
                Some(at) => at,
                None => {
                    add(&pages).map_err(NotMapped::Refused)?;
                    all.push(Known { range: pages.clone(), ports: 0, in_container: 0 });
                    all.len() - 1
                }
            };
        let known = &mut all[at];
        let mapped = match self.is_in_container && known.in_container > 0 {
            true => Ok(()),
            // SAFETY: the device lives as long as the port is attached, and the pages are registered.
            false => Errno::check(unsafe {
                dpdk_sys::rte_dev_dma_map(self.device, address(&pages), pages.start as u64, pages.len())
            }),
        };
        match mapped {
            Ok(()) => {
                known.ports += 1;
                known.in_container += u32::from(self.is_in_container);
                self.mapped.insert(pages);
                Ok(())
            }
            Err(error) => {
                if known.ports == 0 && forget(&pages).is_ok() {
                    all.swap_remove(at);
                }
                Err(NotMapped::Refused(error))
            }
        }
    }

    /// Ends what [`map`](Self::map) has begun for pages from `start`: afterwards the device cannot access them. What its ring still refers
    /// to there it does not send.
    pub(in super::super) fn unmap(&self, start: usize) -> Result<(), Errno> {
        let Some(pages) = self.mapped.remove(start) else { return Ok(()) };
        let mut all = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(at) = all.iter().position(|other| other.range == pages) else { return Ok(()) };
        let known = &mut all[at];
        if !self.is_in_container || known.in_container == 1 {
            // SAFETY: as in `map`, which has mapped them.
            let result = unsafe {
                dpdk_sys::rte_dev_dma_unmap(self.device, address(&pages), pages.start as u64, pages.len())
            };
            // Pages that stay mapped stay known, so that no others are mapped at these addresses.
            Errno::check(result)?;
        }
        known.in_container -= u32::from(self.is_in_container);
        known.ports -= 1;
        if known.ports == 0 {
            forget(&pages)?;
            all.swap_remove(at);
        }
        Ok(())
    }

    /// Ends all that [`map`](Self::map) has begun. The port is stopped.
    pub(super) fn unmap_all(&self) {
        let starts: Vec<usize> = {
            let ranges = self.mapped.ranges.read().unwrap_or_else(PoisonError::into_inner);
            ranges.iter().map(|range| range.start).collect()
        };
        for start in starts {
            // What fails stays mapped for this process, and known.
            let _ = self.unmap(start);
        }
    }
}

fn address(pages: &Range<usize>) -> *mut c_void {
    ptr::with_exposed_provenance_mut(pages.start)
}

/// Makes pages known to DPDK.
fn add(pages: &Range<usize>) -> Result<(), Errno> {
    let count = u32::try_from(pages.len() / PAGE).map_err(|_| Errno(22))?;
    // SAFETY: DPDK notes the range, and does not touch it; without a table it has no bus addresses of it.
    Errno::check(unsafe {
        dpdk_sys::rte_extmem_register(address(pages), pages.len(), ptr::null_mut(), count, PAGE)
    })
}

/// Makes DPDK forget them.
fn forget(pages: &Range<usize>) -> Result<(), Errno> {
    // SAFETY: registered in `add`, and mapped for no device any more.
    Errno::check(unsafe { dpdk_sys::rte_extmem_unregister(address(pages), pages.len()) })
}
