//! The memory of this rank that its windows expose, and the requests that act on it.

use super::api::{Denial, WindowId, WindowRefused};
use super::part::Part;
use super::wire::Piece;
use crate::dtype::DType;
use crate::kernel::Kernels;
use crate::memory::{MemoryKind, RegionOffset, TensorRegion};
use std::collections::BTreeMap;

/// A window of this rank.
#[derive(Debug)]
struct Window {
    part: Part,
    /// Elements of each rank's part, once all have said so.
    lengths: Option<Box<[u64]>>,
}

/// This rank's parts of the group's windows.
#[derive(Debug)]
pub(super) struct Exposed {
    kernels: Kernels,
    windows: BTreeMap<WindowId, Window>,
    next: u32,
}

impl Exposed {
    pub(super) fn new() -> Self {
        Self { kernels: Kernels::detect(), windows: BTreeMap::new(), next: 0 }
    }

    /// Opens this rank's part of the next window.
    pub(super) fn open(&mut self, memory: TensorRegion, dtype: DType) -> Result<WindowId, WindowRefused> {
        let (bytes, address) = (memory.len(), memory.as_ptr().addr());
        let is_whole = bytes.is_multiple_of(dtype.size());
        let is_aligned = bytes == 0 || address.is_multiple_of(dtype.align());
        if !is_whole || !is_aligned || memory.kind() == MemoryKind::Device && bytes > 0 {
            return Err(WindowRefused::Memory { bytes, address, dtype });
        }
        let id = WindowId(self.next);
        self.next = self.next.wrapping_add(1);
        self.windows.insert(id, Window { part: Part::new(memory, dtype), lengths: None });
        Ok(id)
    }

    /// Sets the elements of each rank's part of a window.
    pub(super) fn set_lengths(&mut self, window: WindowId, lengths: Box<[u64]>) {
        if let Some(window) = self.windows.get_mut(&window) {
            window.lengths = Some(lengths);
        }
    }

    pub(super) fn has(&self, window: WindowId) -> bool {
        self.windows.contains_key(&window)
    }

    /// The type of a window's elements, and how many each rank has; `None` before this is known.
    pub(super) fn extents(&self, window: WindowId) -> Option<(DType, &[u64])> {
        let window = self.windows.get(&window)?;
        Some((window.part.dtype(), window.lengths.as_deref()?))
    }

    /// Closes this rank's part of a window. False if it is closed.
    pub(super) fn close(&mut self, window: WindowId) -> bool {
        self.windows.remove(&window).is_some()
    }

    /// Closes this rank's part of all windows.
    pub(super) fn close_all(&mut self) {
        self.windows.clear();
    }

    /// The next window is number 0 again.
    #[cfg(test)]
    pub(super) fn renumber(&mut self) {
        self.next = 0;
    }

    /// Applies a piece to this rank's memory, and writes the elements that were there before to `before`, if it is asked for. All fields of
    /// the piece are checked.
    pub(super) fn apply(&self, piece: &Piece, given: &[u8], before: RegionOffset) -> Result<(), Denial> {
        let window = self.windows.get(&piece.window()).ok_or(Denial::Window)?;
        window.part.apply(self.kernels, piece, given, before)
    }
}
