//! Payloads in this rank's arena that entries of its rings refer to: they are released when the readers have read the entries.

use std::collections::VecDeque;

use shouter_reducer::transport::SendToken;

use super::ring::Writer;
use crate::channel::shm::NodeSegment;

/// Bytes of a payload from which an entry refers to it. Messages of up to 16 KiB are copied anyway, so that their sends end at once: most
/// payloads that are referred to are whole fragments of larger ones.
pub(super) const MIN_BYTES: usize = 4 << 10;

/// A payload that an entry refers to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reference {
    /// The end of the entry, in bytes since the ring's beginning.
    pub(super) end: u64,
    /// Its place in the arena.
    pub(super) offset: usize,
    pub(super) len: usize,
    pub(super) token: SendToken,
}

/// The payloads that the entries of all rings of this rank refer to. Of a ring they are in the order of the entries.
#[derive(Debug)]
pub(super) struct References {
    by_reader: Vec<VecDeque<Reference>>,
    count: usize,
}

impl References {
    /// None, for rings to so many ranks.
    pub(super) fn new(ranks: u32) -> Self {
        Self { by_reader: (0..ranks).map(|_| VecDeque::new()).collect(), count: 0 }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds the newest of the ring to a local rank.
    pub(super) fn add(&mut self, reader: u32, reference: Reference) {
        if let Some(references) = self.by_reader.get_mut(reader as usize) {
            references.push_back(reference);
            self.count += 1;
        }
    }

    /// Removes those that have been read, or whose reader has left, and gives their tokens to `released`; whether there were any. `lost`
    /// gets the local rank of a reader that has written nonsense.
    pub(super) fn release(
        &mut self,
        segment: &NodeSegment,
        writers: &mut [Writer],
        mut released: impl FnMut(SendToken),
        mut lost: impl FnMut(u32),
    ) -> bool {
        let before = self.count;
        for ((reader, writer), references) in (0..).zip(writers).zip(&mut self.by_reader) {
            if references.is_empty() {
                continue;
            }
            let (has_left, held, mut is_garbled) = (segment.has_left(reader), references.len(), false);
            references.retain(|reference| {
                let is_read = writer.has_read(segment, reference.end);
                is_garbled |= is_read.is_err();
                let is_done = has_left || is_read.unwrap_or(false);
                if is_done {
                    released(reference.token);
                }
                !is_done
            });
            self.count -= held - references.len();
            if is_garbled && !has_left {
                lost(reader);
            }
        }
        self.count != before
    }

    /// Removes all. Readers that come later find in the segment the bytes that are there now.
    pub(super) fn fence(&mut self, segment: &NodeSegment) {
        self.count = 0;
        for reference in self.by_reader.iter_mut().flat_map(|references| references.drain(..)) {
            segment.fence(reference.offset, reference.len);
        }
    }
}

#[cfg(test)]
mod tests;
