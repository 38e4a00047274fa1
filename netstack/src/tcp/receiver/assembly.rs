//! Data that arrived out of order: runs with holes between them.

use super::pool::Pool;
use super::run::{Cut, Run};
use crate::tcp::Payload;
use crate::wire::tcp::{SackBlocks, SeqNumber, SeqRange};

/// Most runs of a connection. A peer that leaves more holes has the rest dropped, and sends it again.
const MAX_RUNS: usize = 256;

/// Runs of which one was extended last come first in the SACK option.
const RECENT: usize = 4;

/// Runs beyond the next expected byte, in order, neither overlapping nor touching.
#[derive(Debug, Default)]
pub(super) struct Assembly {
    runs: Vec<Piece>,
    /// A number within each of the runs that changed last, the latest first.
    recent: [Option<SeqNumber>; RECENT],
}

#[derive(Debug)]
struct Piece {
    start: SeqNumber,
    run: Run,
}

impl Piece {
    #[inline]
    fn end(&self) -> SeqNumber {
        self.start + self.run.len()
    }

    fn range(&self) -> SeqRange {
        SeqRange { start: self.start, end: self.end() }
    }
}

impl Assembly {
    /// Whether nothing is held.
    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The end of the last run.
    pub(super) fn end(&self) -> Option<SeqNumber> {
        self.runs.last().map(Piece::end)
    }

    /// The beginning of the first run.
    pub(super) fn start(&self) -> Option<SeqNumber> {
        self.runs.first().map(|piece| piece.start)
    }

    /// The first part of `range` that is held already.
    pub(super) fn overlap(&self, range: SeqRange) -> Option<SeqRange> {
        self.runs.iter().find_map(|piece| {
            let (start, end) = (piece.start.max(range.start), piece.end().min(range.end));
            start.is_before(end).then_some(SeqRange { start, end })
        })
    }

    /// The run around `number`.
    pub(super) fn around(&self, number: SeqNumber) -> Option<SeqRange> {
        self.runs.iter().map(Piece::range).find(|range| contains(range, number))
    }

    /// Takes the new part of the payload from `start` up to `end`; `offset` is where `start` is in it. Bytes that were
    /// received before stay as they are. Returns whether all found room.
    pub(super) fn insert(
        &mut self,
        start: SeqNumber,
        end: SeqNumber,
        payload: Payload<'_>,
        offset: usize,
        pool: &mut Pool,
    ) -> bool {
        let mut at = start;
        let index = self.runs.partition_point(|piece| piece.end().is_before(start));
        while at.is_before(end) {
            // Here `index` is the first run that ends at `at` or behind it.
            if self.runs.get(index).is_none_or(|piece| piece.start.is_after(at)) {
                if self.runs.len() >= MAX_RUNS {
                    return false;
                }
                self.runs.insert(index, Piece { start: at, run: Run::default() });
            }
            let stop = self.runs.get(index + 1).map_or(end, |next| next.start.min(end));
            let Some(piece) = self.runs.get_mut(index) else { return false };
            at = at.max(piece.end());
            if at.is_before(stop) {
                let skip = offset + at.distance(start) as usize;
                let len = stop.distance(at);
                let cut = Cut::new(payload, skip, skip + len as usize);
                let taken = piece.run.append(&cut, pool, false);
                at += taken;
                if taken < len {
                    if piece.run.len() == 0 {
                        self.runs.remove(index);
                    }
                    return false;
                }
            }
            self.join(index, pool);
        }
        self.touch(start);
        true
    }

    /// Joins the run with its successor if they touch.
    fn join(&mut self, index: usize, pool: &mut Pool) {
        let end = self.runs.get(index).map(Piece::end);
        if self.runs.get(index + 1).map(|next| next.start) == end && end.is_some() {
            let next = self.runs.remove(index + 1);
            if let Some(piece) = self.runs.get_mut(index) {
                piece.run.join(next.run, pool);
            }
        }
    }

    /// The run that begins at `next`, which has become the next expected number.
    pub(super) fn take(&mut self, next: SeqNumber) -> Option<Run> {
        let first = self.runs.first()?;
        if first.start != next {
            return None;
        }
        Some(self.runs.remove(0).run)
    }

    /// The run around `number` changed last.
    pub(super) fn touch(&mut self, number: SeqNumber) {
        let Some(range) = self.around(number) else { return };
        let mut recent = [Some(number), None, None, None];
        let others = self.recent.iter().flatten().filter(|&&other| !contains(&range, other));
        for (slot, other) in recent.iter_mut().skip(1).zip(others) {
            *slot = Some(*other);
        }
        self.recent = recent;
    }

    //= RFC 2018 section 4: the first block has the segment that arrived last, the others repeat what was reported
    //= last; as many as there is room for.
    /// Appends blocks for the SACK option.
    pub(super) fn blocks(&self, into: &mut SackBlocks) {
        for number in self.recent.iter().flatten() {
            if let Some(range) = self.around(*number)
                && !into.as_slice().contains(&range)
                && !into.push(range)
            {
                return;
            }
        }
        // Room that is left reports the oldest holes.
        for piece in self.runs.iter().take(RECENT) {
            let range = piece.range();
            if !into.as_slice().contains(&range) && !into.push(range) {
                return;
            }
        }
    }

    /// Drops all runs.
    pub(super) fn clear(&mut self, pool: &mut Pool) {
        for mut piece in self.runs.drain(..) {
            piece.run.clear(pool);
        }
        self.recent = [None; RECENT];
    }
}

fn contains(range: &SeqRange, number: SeqNumber) -> bool {
    !number.is_before(range.start) && number.is_before(range.end)
}
