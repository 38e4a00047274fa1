//! A rank's shared tensors: memory that the node's other ranks see too, so that nothing must be staged.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, PoisonError};

use super::layout::{HUGE, PAGE};
use super::segment::NodeSegment;

/// The ranges of an arena that are handed out: lengths by offset, all multiples of a page. First fit.
#[derive(Debug, Default)]
pub(super) struct Arena {
    live: BTreeMap<usize, usize>,
}

impl Arena {
    /// Room for `len` bytes (more than none) in an arena of `capacity`; large pieces begin on a huge page.
    pub(super) fn take(&mut self, len: usize, capacity: usize) -> Option<usize> {
        let align = if len >= HUGE { HUGE } else { PAGE };
        let len = len.max(1).checked_next_multiple_of(PAGE)?;
        let mut at = 0usize;
        for (&offset, &taken) in &self.live {
            if at.checked_add(len)? <= offset {
                break;
            }
            at = offset.checked_add(taken)?.checked_next_multiple_of(align)?;
        }
        if at.checked_add(len)? > capacity {
            return None;
        }
        self.live.insert(at, len);
        Some(at)
    }

    /// Takes a piece back; returns its length.
    pub(super) fn put(&mut self, offset: usize) -> Option<usize> {
        self.live.remove(&offset)
    }
}

/// A piece of this rank's arena, zeroed when it is made, which goes back when it is dropped. It outlives the group.
#[derive(Debug)]
pub struct SharedMemory {
    segment: Arc<NodeSegment>,
    base: NonNull<u8>,
    offset: usize,
}

impl SharedMemory {
    /// `len` bytes of this rank's arena; `None` where there is no room, or the group has ended.
    pub fn new(segment: &Arc<NodeSegment>, len: usize) -> Option<Self> {
        if segment.is_fenced() {
            return None;
        }
        let mut arena = segment.arena.lock().unwrap_or_else(PoisonError::into_inner);
        let offset = arena.take(len, segment.arena_bytes())?;
        let Some(base) = segment.arena_at(offset, len) else {
            arena.put(offset);
            return None;
        };
        drop(arena);
        Some(Self { segment: segment.clone(), base, offset })
    }

    /// The first byte's address.
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.base
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        if !self.segment.is_here() {
            return;
        }
        let mut arena = self.segment.arena.lock().unwrap_or_else(PoisonError::into_inner);
        // The pages are released under the lock, before they can be handed out again.
        if let Some(len) = arena.put(self.offset) {
            self.segment.empty(self.offset, len);
        }
    }
}
