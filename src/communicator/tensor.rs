//! Memory for tensors, shared with the other ranks of the host where there are any.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use shouter_reducer::memory::{MemoryKind, Owned, TensorRegion};

use super::drive::Drive;
use super::element::Element;
use super::registered::Registration;
use crate::channel::shm::{NodeSegment, SharedMemory};
use crate::error::Error;

/// Elements in memory that suits the group, from [`Group::alloc`](super::Group::alloc): a slice that is its owner's. It
/// may outlive the group.
pub struct Tensor<T: Element> {
    base: NonNull<T>,
    count: usize,
    shared: bool,
    /// The memory of the elements: whole pages of it.
    memory: Option<TensorMemory>,
    registration: Option<Registration>,
    _elements: PhantomData<T>,
}

enum TensorMemory {
    Shared { _piece: SharedMemory },
    Own { _piece: Owned },
}

// SAFETY: the memory belongs to the value, as a Box's would; elements are plain numbers.
unsafe impl<T: Element + Send> Send for Tensor<T> {}
// SAFETY: as for Send; `&Tensor` gives `&[T]` only.
unsafe impl<T: Element + Sync> Sync for Tensor<T> {}

/// Bytes of a page.
const PAGE: usize = 4096;

impl<T: Element> Tensor<T> {
    pub(super) fn new(node: Option<&Arc<NodeSegment>>, count: usize) -> Result<Self, Error> {
        let none = || Error::Argument(format!("there is no memory for {count} elements of {}", T::DTYPE));
        let len = count.checked_mul(size_of::<T>()).filter(|len| isize::try_from(*len).is_ok());
        let len = len.ok_or_else(none)?;
        let piece = node.and_then(|node| SharedMemory::new(node, len));
        if piece.is_none()
            && let Some(node) = node
        {
            if node.is_fenced() {
                return Err(Error::closed("the group has ended; it has no memory to share"));
            }
            tracing::warn!(
                bytes = len,
                arena = node.arena_bytes(),
                "a tensor finds no room in the memory that the ranks of this host share, and is copied at each operation; where \
                 address space is limited (RLIMIT_AS, ulimit -v), that memory is small"
            );
        }
        let (base, memory) = match piece {
            Some(piece) => (piece.as_ptr(), TensorMemory::Shared { _piece: piece }),
            None => {
                // Nothing else shares its pages, for a forked child does not have those that are registered.
                let pages = len.checked_next_multiple_of(PAGE).ok_or_else(none)?;
                let piece = Owned::new(pages).ok_or_else(none)?;
                (piece.as_ptr(), TensorMemory::Own { _piece: piece })
            }
        };
        let shared = matches!(memory, TensorMemory::Shared { .. });
        Ok(Self {
            base: base.cast(),
            count,
            shared,
            memory: Some(memory),
            registration: None,
            _elements: PhantomData,
        })
    }

    /// Makes the memory known to the channel to other hosts, if that takes it.
    pub(super) fn register(&mut self, drive: &Drive) {
        let bytes = self.count * size_of::<T>();
        if bytes == 0 || self.registration.is_some() {
            return;
        }
        // SAFETY: no operation is made with this region; it says which memory is meant: whole pages, as `new` made them.
        let pages = unsafe {
            TensorRegion::from_raw_parts(
                MemoryKind::Pinned,
                self.base.cast(),
                bytes.next_multiple_of(PAGE),
                0,
            )
        };
        // SAFETY: `drop` leaves the memory in place unless the registration has ended.
        self.registration = unsafe { Registration::new(drive, pages) };
    }

    /// Whether the other ranks of the host see the memory.
    pub fn is_shared(&self) -> bool {
        self.shared
    }
}

impl<T: Element> Drop for Tensor<T> {
    fn drop(&mut self) {
        if let Some(registration) = self.registration.take()
            && !registration.end()
        {
            // A device may still read it (or this is a forked child, which does not have it): it stays for ever.
            std::mem::forget(self.memory.take());
        }
    }
}

impl<T: Element> Deref for Tensor<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `count` elements, aligned to a page and zeroed at first, of a type for which zeroes are valid. Other
        // ranks write there only during an operation, for which the owner has lent the memory (`&mut`, or the promise
        // made at `push`); after one that failed it is fenced.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.count) }
    }
}

impl<T: Element> DerefMut for Tensor<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as for `deref`, and `&mut self` is the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.count) }
    }
}

impl<T: Element> std::fmt::Debug for Tensor<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tensor")
            .field("count", &self.count)
            .field("shared", &self.shared)
            .finish_non_exhaustive()
    }
}
