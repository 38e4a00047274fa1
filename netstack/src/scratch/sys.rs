//! Memory that is written here and read through extents.
#![allow(unsafe_code)]

use core::ptr::NonNull;

use crate::region::{Extent, Region};

/// Heap memory reached only through its address, so that extents and writes to other slots may coexist.
#[derive(Debug)]
pub(crate) struct Memory {
    base: NonNull<[u8]>,
}

// SAFETY: Memory owns its bytes as a box does; nothing in it is tied to a thread.
unsafe impl Send for Memory {}

impl Memory {
    /// `len` zero bytes.
    pub(crate) fn new(len: usize) -> Self {
        Self { base: NonNull::from(Box::leak(vec![0; len].into_boxed_slice())) }
    }

    /// Copies `bytes` to `at`. The slot written to has no live extent (see `Scratch`). Out of range does nothing.
    pub(crate) fn write(&mut self, at: usize, bytes: &[u8]) {
        if at.checked_add(bytes.len()).is_none_or(|end| end > self.base.len()) {
            return;
        }
        // SAFETY: the range lies inside the allocation (just checked); `bytes` cannot overlap it, as only extents
        // give out references into it and the owner has none over a slot that it fills.
        unsafe {
            core::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                self.base.cast::<u8>().as_ptr().add(at),
                bytes.len(),
            );
        }
    }

    /// Lets `write` fill the `len` bytes at `at`, over which there is no live extent (see `Scratch`). Out of range does nothing.
    #[cfg(feature = "rud")]
    pub(super) fn with(&mut self, at: usize, len: usize, write: impl FnOnce(&mut [u8])) {
        if at.checked_add(len).is_none_or(|end| end > self.base.len()) {
            return;
        }
        // SAFETY: the range lies inside the allocation (just checked), which is initialised; the owner has no extent over a slot that it
        // fills, and `self` is borrowed until the reference is gone.
        write(unsafe { core::slice::from_raw_parts_mut(self.base.cast::<u8>().as_ptr().add(at), len) });
    }

    /// Inverts the bits of `mask` at `at`, before the extent over it is handed to a device.
    pub(crate) fn flip(&mut self, at: usize, mask: u8) {
        if at < self.base.len() {
            // SAFETY: `at` lies inside the allocation, and no reference over the slot is live.
            unsafe { *self.base.cast::<u8>().as_ptr().add(at) ^= mask };
        }
    }

    /// The bytes from `at` on as an extent.
    pub(crate) fn extent(&self, at: usize, len: usize) -> Option<Extent> {
        // SAFETY: the bytes live until `self` is dropped, and a slot is not written while an extent over it is
        // posted: the owner keeps both promises (stated at `Scratch`).
        let region = unsafe { Region::from_raw_parts(self.base.cast(), self.base.len()) };
        region.extent(at, u32::try_from(len).ok()?)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: `base` came from a leaked box, is unique, and is dropped once.
        drop(unsafe { Box::from_raw(self.base.as_ptr()) });
    }
}
