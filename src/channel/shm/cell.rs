//! Cells: what a rank publishes for a small operation, and the others read.

use std::sync::atomic::Ordering;

use super::NodeSegment;
use super::layout::{CELL_HEADER, CELL_PAYLOAD, LINE};

/// Bytes of payload that travel in the cell's first line, beside its sequence word.
const INLINE: usize = 40;

/// Offsets in the first line: the operation, the payload there, and the number of started operations.
const OPERATION_AT: usize = 8;
const INLINE_AT: usize = 16;
const STARTED_AT: usize = INLINE_AT + INLINE;
const _: () = assert!(STARTED_AT + 8 <= LINE && LINE == CELL_HEADER, "it lies in the same line");

/// A rank's facts about the small operation in a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag {
    /// The operation, [packed](super::pack_small).
    pub(crate) operation: u64,
    /// Small operations that the rank had started before it rather than called. Ranks whose numbers differ have made different calls.
    pub(crate) started: u64,
}

/// A small-message cell of one rank, for one operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell<'a> {
    segment: &'a NodeSegment,
    local: u32,
    number: u64,
}

impl NodeSegment {
    /// Small operations that a local rank has started: the later number of its two cells.
    pub(crate) fn small_started(&self, local: u32) -> u64 {
        let number = |parity| self.word(self.layout.cell(local, parity)).load(Ordering::Acquire);
        number(0).max(number(1))
    }

    /// The cell of a local rank for small operation `number`, from 1.
    #[inline]
    pub(crate) fn cell(&self, local: u32, number: u64) -> Cell<'_> {
        Cell { segment: self, local, number }
    }
}

/// Whether a cell has room for so many bytes, and so many behind them.
pub(crate) fn fits_cell(first: usize, second: usize) -> bool {
    place_behind(first, second).is_some()
}

/// The place of a payload in its cell.
#[inline]
fn place(len: usize) -> usize {
    if len <= INLINE { INLINE_AT } else { CELL_HEADER }
}

/// The place of so many bytes behind so many others: in the first line if it has room, else where the payload goes on.
#[inline]
fn place_behind(first: usize, second: usize) -> Option<usize> {
    let (in_line, beyond) = match first <= INLINE {
        true => (second <= INLINE - first, 0),
        false => (false, first),
    };
    let fits = second <= CELL_PAYLOAD.checked_sub(beyond)?;
    fits.then_some(if in_line { INLINE_AT + first } else { CELL_HEADER + beyond })
}

impl<'a> Cell<'a> {
    /// Publishes `bytes` (at most [`CELL_PAYLOAD`]) with a tag; false if they are too many. Only for this rank's own
    /// cell, and only after every rank has finished operation `number - 2`, which follows from having finished
    /// `number - 1`: nobody publishes that before it has read the one before.
    #[inline]
    pub(crate) fn publish(&self, tag: Tag, bytes: &[u8]) -> bool {
        self.publish_both(tag, bytes, &[])
    }

    /// The same of bytes whose number all ranks know, and of others behind them, for which there must be [room](fits_cell).
    #[inline]
    pub(crate) fn publish_both(&self, tag: Tag, first: &[u8], second: &[u8]) -> bool {
        let Some(at) = self.segment.layout.cell(self.local, self.number) else { return false };
        let Some(behind) = place_behind(first.len(), second.len()) else { return false };
        let mapping = &self.segment.mapping;
        let stored = mapping.store(at + place(first.len()), first)
            && (second.is_empty() || mapping.store(at + behind, second));
        if stored {
            self.segment.word(Some(at + OPERATION_AT)).store(tag.operation, Ordering::Relaxed);
            self.segment.word(Some(at + STARTED_AT)).store(tag.started, Ordering::Relaxed);
            self.segment.word(Some(at)).store(self.number, Ordering::Release);
        }
        stored
    }

    /// Whether the rank has published this operation.
    pub(crate) fn is_published(&self) -> bool {
        let number = self.segment.word(self.segment.layout.cell(self.local, self.number));
        number.load(Ordering::Acquire) == self.number
    }

    /// The tag alone, while the rank has published this operation and not the one after the next.
    pub(crate) fn tag(&self) -> Option<Tag> {
        let at = self.segment.layout.cell(self.local, self.number)?;
        let number = || self.segment.word(Some(at)).load(Ordering::Acquire);
        let before = number();
        let tag = Tag {
            operation: self.segment.word(Some(at + OPERATION_AT)).load(Ordering::Acquire),
            started: self.segment.word(Some(at + STARTED_AT)).load(Ordering::Acquire),
        };
        (before == self.number && number() == before).then_some(tag)
    }

    /// The tag and the first `len` bytes, once the rank has published them.
    ///
    /// # Safety
    /// The bytes are not used any more once this rank has published its next operation: from then on they may be written again.
    #[allow(unsafe_code)]
    #[inline]
    pub(crate) unsafe fn read(&self, len: usize) -> Option<(Tag, &'a [u8])> {
        let at = self.segment.layout.cell(self.local, self.number)?;
        if self.segment.word(Some(at)).load(Ordering::Acquire) != self.number {
            return None;
        }
        let tag = Tag {
            operation: self.segment.word(Some(at + OPERATION_AT)).load(Ordering::Relaxed),
            started: self.segment.word(Some(at + STARTED_AT)).load(Ordering::Relaxed),
        };
        // SAFETY: the sequence word says that they are published; nobody publishes the operation that writes there again before all
        // have published the one between, which this rank does not while it uses them.
        let bytes = unsafe { self.segment.mapping.published(at + place(len), len.min(CELL_PAYLOAD)) }?;
        Some((tag, bytes))
    }

    /// The `second` bytes behind the `first` ones.
    ///
    /// # Safety
    /// As for [`read`](Self::read), which has returned the first ones.
    #[allow(unsafe_code)]
    #[inline]
    pub(crate) unsafe fn read_behind(&self, first: usize, second: usize) -> Option<&'a [u8]> {
        let at = self.segment.layout.cell(self.local, self.number)?;
        // SAFETY: they were published with those that the caller has read.
        unsafe { self.segment.mapping.published(at + place_behind(first, second)?, second) }
    }
}
