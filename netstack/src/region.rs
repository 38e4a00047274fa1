//! Memory that frames are sent from: a [`Region`] is registered once, an [`Extent`] is a range of it.
//!
//! Protocols emit header bytes plus an extent; the device reads the payload when it transmits, as a NIC does.
#![allow(unsafe_code)]

use core::ptr::NonNull;
use std::sync::Arc;

/// A registered range of memory.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a Region is an address and a length; the contract of `from_raw_parts` makes reads through it valid from
// any thread.
unsafe impl Send for Region {}

impl Region {
    /// Registers `len` bytes at `base`.
    ///
    /// # Safety
    /// The memory stays readable until every extent made from the region has been released, and the bytes of an
    /// extent are not written between its post and its release.
    pub unsafe fn from_raw_parts(base: NonNull<u8>, len: usize) -> Self {
        Self { base, len }
    }

    /// Registers memory that lives for ever and is never written: constants, and buffers leaked on purpose.
    pub fn from_static(bytes: &'static [u8]) -> Self {
        Self { base: NonNull::from(bytes).cast(), len: bytes.len() }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the region holds no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// `len` bytes from `offset`; `None` if they do not lie inside the region.
    pub fn extent(&self, offset: usize, len: u32) -> Option<Extent> {
        let end = offset.checked_add(len as usize)?;
        if end > self.len {
            return None;
        }
        // SAFETY: offset <= self.len, so the pointer stays within (or one past) the region.
        let base = unsafe { self.base.add(offset) };
        Some(Extent { base, len, lent: false })
    }
}

/// Bytes that protocols send without a copy, and keep as long as anything refers to them: the safe counterpart of a [`Region`].
/// Cloning it is cheap.
#[derive(Clone, Debug)]
pub struct SharedBytes {
    bytes: Arc<[u8]>,
}

impl SharedBytes {
    /// All of `bytes`; `None` for 4 GiB and more.
    pub fn new(bytes: impl Into<Arc<[u8]>>) -> Option<Self> {
        let bytes = bytes.into();
        u32::try_from(bytes.len()).ok()?;
        Some(Self { bytes })
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The bytes as an extent.
    ///
    /// # Safety
    /// The caller keeps this, or a clone of it, until nothing refers to the extent any more.
    pub(crate) unsafe fn extent(&self) -> Extent {
        // The bytes do not move, and nobody can write them, since there is no `&mut` to what a shared Arc holds. `new` has checked
        // their number.
        Extent { base: NonNull::from(&*self.bytes).cast(), len: self.bytes.len() as u32, lent: false }
    }
}

/// A range of a region, immutable from its post until its release.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    base: NonNull<u8>,
    len: u32,
    /// See [`lend`](Self::lend).
    lent: bool,
}

// SAFETY: as for Region.
unsafe impl Send for Extent {}

impl Extent {
    /// No bytes, of no region.
    pub(crate) const EMPTY: Self = Self { base: NonNull::dangling(), len: 0, lent: false };

    /// `len` of the extent's bytes from `offset`; `None` if they do not lie inside it.
    #[inline]
    pub fn slice(&self, offset: usize, len: usize) -> Option<Self> {
        if offset.checked_add(len)? > self.len() {
            return None;
        }
        // SAFETY: offset <= self.len, so the pointer stays within (or one past) the extent.
        let base = unsafe { self.base.add(offset) };
        Some(Self { base, len: u32::try_from(len).ok()?, lent: self.lent })
    }

    /// The same extent for the one frame in which its sender lends it: no other frame is sent from there before it is known that this one, or one that was
    /// sent after it to the same destination, has arrived. A device that memory is registered with may read a lent extent after it has
    /// taken the frame; see [`Device`](crate::device::Device).
    #[cfg(any(test, feature = "rud"))]
    #[inline]
    pub(crate) fn lend(self) -> Self {
        Self { lent: true, ..self }
    }

    /// The same extent, not lent.
    #[inline]
    pub(crate) fn keep(self) -> Self {
        Self { lent: false, ..self }
    }

    /// Whether it is lent.
    #[cfg(any(test, feature = "dpdk"))]
    #[inline]
    pub(crate) fn is_lent(&self) -> bool {
        self.lent
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether the extent holds no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: the extent lies inside its region (checked when it was made), whose creator promised that the
        // bytes stay readable and unwritten until the extent is released; or who took it keeps the shared bytes for as
        // long. Devices promise to tell the stack truly when they read it no more.
        unsafe { core::slice::from_raw_parts(self.base.as_ptr(), self.len as usize) }
    }

    /// The address, for a device that chains the memory instead of copying it.
    pub fn as_ptr(&self) -> *const u8 {
        self.base.as_ptr()
    }
}
