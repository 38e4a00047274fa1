//! Written bytes that are not yet acknowledged: runs of the endpoint's [`Memory`] and extents of the caller's.
//!
//! Bytes are named by their position in the stream, which does not wrap around.

use std::collections::VecDeque;

use crate::region::{Extent, SharedBytes};
use crate::tcp::ReleaseToken;
use crate::tcp::memory::{Allocation, Memory};

#[cfg(test)]
mod tests;

#[derive(Debug)]
enum Holder {
    /// Copied bytes.
    Allocation(Allocation),
    /// The caller's.
    Token(ReleaseToken),
    /// Kept here.
    Shared(SharedBytes),
}

#[derive(Debug)]
struct Piece {
    /// Stream position of the first byte.
    start: u64,
    extent: Extent,
    holder: Holder,
}

impl Piece {
    fn end(&self) -> u64 {
        self.start + self.extent.len() as u64
    }
}

/// The bytes from the first that is not acknowledged to the last that was written.
#[derive(Debug, Default)]
pub(super) struct Queue {
    pieces: VecDeque<Piece>,
    head: u64,
    tail: u64,
    /// Stream positions where records end, in order; hardly any user has records.
    #[allow(clippy::box_collection)]
    marks: Option<Box<VecDeque<u64>>>,
}

impl Queue {
    /// Stream position of the first byte that is not acknowledged.
    #[inline]
    pub(super) fn head(&self) -> u64 {
        self.head
    }

    /// Stream position after the last byte.
    #[inline]
    pub(super) fn tail(&self) -> u64 {
        self.tail
    }

    /// Bytes in the queue.
    #[inline]
    pub(super) fn len(&self) -> u64 {
        self.tail - self.head
    }

    /// Bytes of the only piece, if there is one and none of it is acknowledged.
    #[inline]
    pub(super) fn len_of_only(&self) -> Option<u64> {
        let whole =
            self.pieces.len() == 1 && self.pieces.front().is_some_and(|piece| piece.start == self.head);
        whole.then_some(self.tail - self.head)
    }

    /// Copies the beginning of `bytes`, `room` at most. Returns how many were taken.
    pub(super) fn write(&mut self, memory: &mut Memory, bytes: &[u8], room: usize) -> usize {
        let mut rest = bytes.get(..room).unwrap_or(bytes);
        let wanted = rest.len();
        while !rest.is_empty() {
            let last = match self.pieces.back_mut() {
                Some(Piece { holder: Holder::Allocation(run), .. }) => Some(run),
                _ => None,
            };
            let (run, taken) = memory.append(last, rest);
            if taken == 0 {
                break;
            }
            match run {
                Some(run) => self.pieces.push_back(Piece {
                    start: self.tail,
                    extent: memory.extent(&run),
                    holder: Holder::Allocation(run),
                }),
                None => {
                    if let Some(Piece { extent, holder: Holder::Allocation(run), .. }) =
                        self.pieces.back_mut()
                    {
                        *extent = memory.extent(run);
                    }
                }
            }
            self.tail += taken as u64;
            rest = rest.get(taken..).unwrap_or_default();
        }
        wanted - rest.len()
    }

    /// Appends an extent as it is.
    pub(super) fn push(&mut self, extent: Extent, token: ReleaseToken) {
        self.append(extent, Holder::Token(token));
    }

    /// Appends shared bytes as they are.
    #[allow(unsafe_code)]
    pub(super) fn push_shared(&mut self, bytes: SharedBytes) {
        // SAFETY: the piece has the bytes until they are acknowledged or given up, then `Memory` until no frame refers to them.
        let extent = unsafe { bytes.extent() };
        self.append(extent, Holder::Shared(bytes));
    }

    fn append(&mut self, extent: Extent, holder: Holder) {
        self.pieces.push_back(Piece { start: self.tail, extent, holder });
        self.tail += extent.len() as u64;
    }

    /// Ends a record after the bytes written so far.
    pub(super) fn mark(&mut self) {
        if self.len() > 0 && self.last_mark() != Some(self.tail) {
            self.marks.get_or_insert_default().push_back(self.tail);
        }
    }

    fn last_mark(&self) -> Option<u64> {
        self.marks.as_ref().and_then(|marks| marks.back().copied())
    }

    /// Whether a record ends at or behind the first byte.
    #[inline]
    pub(super) fn has_marks(&self) -> bool {
        self.marks.is_some()
    }

    /// Whether a record ends at `position`.
    pub(super) fn ends_record(&self, position: u64) -> bool {
        self.marks.as_ref().is_some_and(|marks| marks.binary_search(&position).is_ok())
    }

    /// How many of `len` bytes from `position` are of one record.
    pub(super) fn within_record(&self, position: u64, len: u32) -> u32 {
        let Some(marks) = &self.marks else { return len };
        let end = marks.get(marks.partition_point(|&mark| mark <= position));
        end.map_or(len, |end| u32::try_from(end - position).unwrap_or(u32::MAX).min(len))
    }

    /// Everything before `position` is acknowledged.
    pub(super) fn acknowledge(
        &mut self,
        position: u64,
        memory: &mut Memory,
        released: &mut Vec<ReleaseToken>,
    ) {
        self.head = position.clamp(self.head, self.tail);
        if let Some(marks) = &mut self.marks {
            while marks.front().is_some_and(|&mark| mark <= self.head) {
                marks.pop_front();
            }
            if marks.is_empty() {
                self.marks = None;
            }
        }
        while self.pieces.front().is_some_and(|piece| piece.end() <= self.head) {
            match self.pieces.pop_front().map(|piece| piece.holder) {
                Some(Holder::Allocation(run)) => memory.release(run),
                Some(Holder::Token(token)) => released.push(token),
                Some(Holder::Shared(bytes)) => memory.release_shared(bytes),
                None => {}
            }
        }
    }

    /// The pieces from the one that `position` lies in.
    fn from(&self, position: u64) -> impl Iterator<Item = &Piece> {
        let first = match self.pieces.front() {
            // Mostly there is one, or the position lies in the first.
            Some(front) if front.end() > position => 0,
            _ => self.pieces.partition_point(|piece| piece.end() <= position),
        };
        self.pieces.range(first..)
    }

    /// How many bytes from `position`, `len` at most, lie in `extents` pieces and are of one record.
    pub(super) fn span(&self, position: u64, len: u32, extents: usize) -> u32 {
        let len = self.within_record(position, len);
        if extents >= self.pieces.len() {
            return u32::try_from(self.tail.saturating_sub(position)).unwrap_or(u32::MAX).min(len);
        }
        let end = self.from(position).take(extents.max(1)).last().map_or(position, Piece::end);
        u32::try_from(end.saturating_sub(position)).unwrap_or(u32::MAX).min(len)
    }

    /// Appends the extents of `len` bytes from `position`.
    #[inline]
    pub(super) fn extents(&self, position: u64, len: u32, into: &mut Vec<Extent>) {
        if let Some(piece) = self.pieces.front()
            && piece.start <= position
            && position + u64::from(len) <= piece.end()
        {
            into.extend(piece.extent.slice((position - piece.start) as usize, len as usize));
            return;
        }
        self.extents_of_several(position, len, into);
    }

    /// The same if they are not all of the first piece.
    fn extents_of_several(&self, position: u64, len: u32, into: &mut Vec<Extent>) {
        let (mut at, end) = (position, position + u64::from(len));
        for piece in self.from(position) {
            if at >= end {
                break;
            }
            let offset = at.saturating_sub(piece.start);
            let part = (piece.end().min(end)).saturating_sub(at);
            if let Some(extent) = piece.extent.slice(offset as usize, part as usize) {
                into.push(extent);
            }
            at += part;
        }
    }

    /// Gives everything back.
    pub(super) fn clear(&mut self, memory: &mut Memory, released: &mut Vec<ReleaseToken>) {
        self.acknowledge(self.tail, memory, released);
        self.trim();
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.pieces.capacity()
    }

    /// Frees the memory that an empty queue does not need.
    pub(super) fn trim(&mut self) {
        if self.pieces.is_empty() {
            self.pieces = VecDeque::new();
        }
    }
}
