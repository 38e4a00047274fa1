//! The parts of a segment: each has lanes, announcements and flags of its own, as the segment has, for a duplicate of the group of all, or
//! for a further shard.
//!
//! A shard uses its part as long as the rank is in the job. Of duplicates, a part is used by one at a time, and all ranks have to be done with the
//! last one before: each offers the parts that it does not use, and what all have offered is free. What a rank offers it gives to nobody else
//! before that is decided.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{NodeSegment, SegmentLayout};

/// The parts of a segment that this process uses or offers, a bit for each.
#[derive(Debug, Default)]
pub(super) struct Parts(AtomicU64);

/// A part that this process uses.
#[derive(Debug)]
pub(crate) struct PartUse {
    parts: Arc<Parts>,
    index: u32,
}

impl Drop for PartUse {
    fn drop(&mut self) {
        self.parts.0.fetch_and(!(1 << self.index), Ordering::AcqRel);
    }
}

/// Parts that this rank offers, as long as this exists.
#[derive(Debug)]
pub(crate) struct Offer(Vec<PartUse>);

impl Offer {
    /// A bit for each part.
    pub(crate) fn bits(&self) -> u64 {
        self.0.iter().fold(0, |bits, part| bits | 1 << part.index)
    }

    /// The first of the parts that all ranks have offered, by their bits; the others are no longer offered. None where all have offered none.
    pub(crate) fn first_of(self, bits: u64) -> Option<PartUse> {
        self.0.into_iter().find(|part| bits >> part.index & 1 == 1)
    }
}

impl NodeSegment {
    /// Offers the parts that this process does not use.
    pub(crate) fn offer(&self) -> Offer {
        let count = self.layout.shape().parts;
        let all = (1u64 << count) - 1;
        let free = all & !self.parts.0.fetch_or(all, Ordering::AcqRel);
        let offered = (0..count).filter(|index| free >> index & 1 == 1);
        Offer(offered.map(|index| PartUse { parts: self.parts.clone(), index }).collect())
    }

    /// The parts of a rank's further shards, `count` of them, as segments of their own. At the join: nothing has used them, and all ranks of the host
    /// get the same. `None` if the segment has fewer.
    pub(crate) fn of_shards(&self, count: usize) -> Option<Vec<Self>> {
        let mut free = self.offer().0.into_iter();
        (0..count).map(|_| self.part(free.next()?, self.local)).collect()
    }

    /// Empties a part of what the last group has left there: one rank does, before any begins. Whether it is empty.
    pub(crate) fn empty_part(&self, part: &PartUse) -> bool {
        let emptied = self.layout.part(part.index).map(|(at, len)| self.mapping.empty(at, len));
        match emptied {
            Some(Ok(())) => true,
            Some(Err(error)) => {
                tracing::warn!(%error, "shared memory was not emptied; a duplicate of the group of all goes without");
                false
            }
            None => false,
        }
    }

    /// A part as a segment of its own, which the rank with the number `local` uses from now on.
    pub(crate) fn part(&self, part: PartUse, local: u32) -> Option<Self> {
        let (at, len) = self.layout.part(part.index)?;
        let layout = SegmentLayout::new(self.layout.shape().of_part())?;
        let segment = Self { _use: Some(part), ..Self::new(self.mapping.part(at, len)?, layout, local) };
        segment.arrive();
        Some(segment)
    }
}
