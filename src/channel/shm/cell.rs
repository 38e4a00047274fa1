//! Cells: what a rank publishes for a small operation, and the others read.
//!
//! A rank has a ring of [`CELLS`]. It writes a cell again only when all others have read it, which their own cells say: a rank publishes
//! operation n when it has read all that it needs of those before, and has [compared](LEAD) the tags of all ranks through n - `LEAD`. A rank
//! may therefore be `LEAD` operations ahead of another one, and no counter of what was read is needed. The cells of an operation that a
//! rank has yet to compare are intact: cell n is written again for n + `CELLS`, ahead of which all ranks have published
//! n + `CELLS` - `LEAD`, and so have compared n + `CELLS` - 2 `LEAD`, which is n.

use std::sync::atomic::Ordering;

use super::NodeSegment;
use super::layout::{CELL_PAYLOAD, CELLS, LINE};

/// How many operations a rank may be ahead of the slowest one.
pub(crate) const LEAD: u64 = CELLS / 2;
const _: () = assert!(LEAD >= 1 && CELLS >= 2 * LEAD, "cells that are compared are intact");

/// Bytes of payload that travel in the cell's first line, beside its sequence word.
const INLINE: usize = 40;

/// Offsets in the first line: the operation, the payload there, and the number of started operations.
const OPERATION_AT: usize = 8;
const INLINE_AT: usize = 16;
const STARTED_AT: usize = INLINE_AT + INLINE;
const _: () = assert!(STARTED_AT + 8 <= LINE, "it lies in the same line");

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
    /// Small operations that this rank has published.
    #[inline]
    pub(crate) fn small_published(&self) -> u64 {
        self.published.load(Ordering::Acquire)
    }

    /// Whether a local rank has published small operation `number`, or a later one.
    pub(crate) fn has_begun_small(&self, local: u32, number: u64) -> bool {
        (0..CELLS).any(|cell| self.word(self.layout.cell(local, cell)).load(Ordering::Acquire) >= number)
    }

    /// The cell of a local rank for small operation `number`, from 1.
    #[inline]
    pub(crate) fn cell(&self, local: u32, number: u64) -> Cell<'_> {
        Cell { segment: self, local, number }
    }
}

/// The place of bytes in their cell: in its first line, or in its payload.
#[derive(Clone, Copy)]
enum Place {
    Line(usize),
    Payload(usize),
}

/// Whether a cell has room for so many bytes, and so many behind them.
pub(crate) fn fits_cell(first: usize, second: usize) -> bool {
    place_behind(first, second).is_some()
}

/// The place of so many bytes.
#[inline]
fn place(len: usize) -> Place {
    if len <= INLINE { Place::Line(INLINE_AT) } else { Place::Payload(0) }
}

/// The place of so many bytes behind so many others: in the first line if it has room, else where the payload goes on.
#[inline]
fn place_behind(first: usize, second: usize) -> Option<Place> {
    let (in_line, beyond) = match first <= INLINE {
        true => (second <= INLINE - first, 0),
        false => (false, first),
    };
    let fits = second <= CELL_PAYLOAD.checked_sub(beyond)?;
    fits.then_some(if in_line { Place::Line(INLINE_AT + first) } else { Place::Payload(beyond) })
}

impl<'a> Cell<'a> {
    /// Publishes `bytes` (at most [`CELL_PAYLOAD`]) with a tag; false if they are too many. Only for this rank's own cell, in the order of
    /// numbers, after this rank has read what it needs of all operations before and has compared the tags of all ranks through
    /// `number - LEAD`.
    #[inline]
    pub(crate) fn publish(&self, tag: Tag, bytes: &[u8]) -> bool {
        self.publish_both(tag, bytes, &[])
    }

    /// The same of bytes whose number all ranks know, and of others behind them, for which there must be [room](fits_cell).
    #[inline]
    pub(crate) fn publish_both(&self, tag: Tag, first: &[u8], second: &[u8]) -> bool {
        let segment = self.segment;
        let Some(at) = segment.layout.cell(self.local, self.number) else { return false };
        let Some(behind) = place_behind(first.len(), second.len()) else { return false };
        let store = |place, bytes: &[u8]| {
            bytes.is_empty() || self.offset(place).is_some_and(|at| segment.mapping.store(at, bytes))
        };
        let stored = store(place(first.len()), first) && store(behind, second);
        if stored {
            segment.word(Some(at + OPERATION_AT)).store(tag.operation, Ordering::Relaxed);
            segment.word(Some(at + STARTED_AT)).store(tag.started, Ordering::Relaxed);
            segment.word(Some(at)).store(self.number, Ordering::Release);
            segment.published.store(self.number, Ordering::Release);
        }
        stored
    }

    #[inline]
    fn offset(&self, place: Place) -> Option<usize> {
        let layout = &self.segment.layout;
        Some(match place {
            Place::Line(at) => layout.cell(self.local, self.number)? + at,
            Place::Payload(at) => layout.cell_payload(self.local, self.number)? + at,
        })
    }

    /// Whether the rank has published this operation.
    pub(crate) fn is_published(&self) -> bool {
        let number = self.segment.word(self.segment.layout.cell(self.local, self.number));
        number.load(Ordering::Acquire) == self.number
    }

    /// The tag alone, while the rank has published this operation and not the one that uses the cell next.
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
        let (len, offset) = (len.min(CELL_PAYLOAD), self.offset(place(len))?);
        // SAFETY: the sequence word says that they are published. Their rank writes there again for operation `number + CELLS`, ahead of
        // which it has seen that this rank has published `number + CELLS - LEAD`: a later one, which it does not while it uses them.
        let bytes = unsafe { self.segment.mapping.published(offset, len) }?;
        Some((tag, bytes))
    }

    /// The `second` bytes behind the `first` ones.
    ///
    /// # Safety
    /// As for [`read`](Self::read), which has returned the first ones.
    #[allow(unsafe_code)]
    #[inline]
    pub(crate) unsafe fn read_behind(&self, first: usize, second: usize) -> Option<&'a [u8]> {
        let offset = self.offset(place_behind(first, second)?)?;
        // SAFETY: they were published with those that the caller has read.
        unsafe { self.segment.mapping.published(offset, second) }
    }
}
