//! Outstanding data: a record per transmitted range, split where only a part of it was selectively acknowledged or is
//! sent again (RFC 2018, RFC 6675, RFC 8985).

use core::ops::Range;
use std::collections::VecDeque;

use crate::time::Instant;
use crate::wire::tcp::{SeqNumber, SeqRange};

#[cfg(test)]
mod tests;

/// A range that was sent at once: a segment, or several that the device makes of a super-segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub(super) start: SeqNumber,
    /// One after the last, the FIN included.
    pub(super) end: SeqNumber,
    /// When it was sent last.
    pub(super) sent_at: Instant,
    /// The notes of [`Rate`](super::rate::Rate) when it was sent.
    pub(super) stamp: super::rate::Stamp,
    /// Payload per segment.
    pub(super) segment_size: u16,
    /// How often it was sent.
    pub(super) sends: u8,
    pub(super) sacked: bool,
    /// It counts as lost and was not sent again since.
    pub(super) lost: bool,
    /// The last number is that of the FIN.
    pub(super) fin: bool,
    /// It probes for a larger path MTU: its loss says nothing about congestion.
    pub(super) path_mtu: bool,
}

impl Record {
    #[inline]
    pub(super) fn len(&self) -> u32 {
        self.end.distance(self.start)
    }

    /// Bytes of payload in its largest segment.
    #[inline]
    pub(super) fn payload_per_segment(&self) -> u16 {
        self.len().min(u32::from(self.segment_size)) as u16
    }

    #[inline]
    fn segments(&self) -> u32 {
        segments_of(self.len(), self.segment_size)
    }

    /// Whether it is believed to be in flight.
    #[inline]
    fn flies(&self) -> bool {
        !self.sacked && !self.lost
    }

    /// Whether it was sent before the record that was sent at `at` and ends at `end` (RFC 8985 section 6.2 step 2).
    #[inline]
    pub(super) fn sent_before(&self, at: Instant, end: SeqNumber) -> bool {
        self.sent_at < at || (self.sent_at == at && self.end.is_before(end))
    }
}

/// The number of segments of `size` bytes that `len` bytes make.
#[inline]
pub(super) fn segments_of(len: u32, size: u16) -> u32 {
    let size = u32::from(size).max(1);
    // A division takes longer than most of the work for a small message.
    if len <= size { u32::from(len > 0) } else { len.div_ceil(size) }
}

/// Outstanding data, in segments.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SegmentCounts {
    /// All that is.
    pub(super) out: u32,
    pub(super) sacked: u32,
    /// Lost and not sent again.
    pub(super) lost: u32,
    /// Sent more than once, and in flight.
    pub(super) resent: u32,
}

/// The records, in the order of sequence numbers, without gaps.
#[derive(Debug, Default)]
pub(super) struct Scoreboard {
    records: VecDeque<Record>,
    /// Sequence numbers in flight, selectively acknowledged, and lost.
    in_flight: u32,
    sacked: u32,
    lost: u32,
    sacked_segments: u32,
    /// The last blocks, whose records need not be examined again.
    seen: Seen,
}

/// The newest blocks that were worked in.
#[derive(Clone, Copy, Debug, Default)]
struct Seen([SeqRange; 3]);

impl Seen {
    /// The part of `range` behind its known beginning.
    fn without(&self, mut range: SeqRange) -> SeqRange {
        for known in &self.0 {
            if !known.start.is_after(range.start) && known.end.is_after(range.start) {
                range.start = known.end;
            }
        }
        range
    }

    /// Drops the blocks before `ack`.
    fn forget(&mut self, ack: SeqNumber) {
        for known in &mut self.0 {
            if !known.end.is_after(ack) {
                *known = SeqRange::default();
            }
        }
    }

    fn note(&mut self, range: SeqRange) {
        let [first, second, third] = &mut self.0;
        for slot in [&mut *first, &mut *second, &mut *third] {
            // Blocks grow: one that covers a known one replaces it.
            if !slot.start.is_before(range.start) && !slot.end.is_after(range.end) && slot.start != slot.end {
                *slot = range;
                return;
            }
        }
        *third = *second;
        *second = *first;
        *first = range;
    }
}

impl Scoreboard {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Sequence numbers believed to be in flight (RFC 6675: the pipe).
    #[inline]
    pub(super) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Sequence numbers that are lost and wait to be sent again.
    #[inline]
    pub(super) fn lost(&self) -> u32 {
        self.lost
    }

    /// Sequence numbers selectively acknowledged.
    #[inline]
    pub(super) fn sacked(&self) -> u32 {
        self.sacked
    }

    #[inline]
    pub(super) fn sacked_segments(&self) -> u32 {
        self.sacked_segments
    }

    #[inline]
    pub(super) fn front(&self) -> Option<&Record> {
        self.records.front()
    }

    #[inline]
    pub(super) fn back(&self) -> Option<&Record> {
        self.records.back()
    }

    /// The only record that there is.
    #[inline]
    pub(super) fn only(&self) -> Option<&Record> {
        if self.records.len() == 1 { self.records.front() } else { None }
    }

    /// All of the only record is acknowledged.
    #[inline]
    pub(super) fn acknowledge_only(&mut self) {
        self.records.clear();
        (self.in_flight, self.sacked, self.lost, self.sacked_segments) = (0, 0, 0, 0);
        self.seen = Seen::default();
    }

    /// The first record that is believed to be in flight.
    pub(super) fn first_in_flight(&self) -> Option<&Record> {
        self.records.iter().find(|record| record.flies())
    }

    /// Whether one segment at most is out.
    #[inline]
    pub(super) fn at_most_one(&self) -> bool {
        match self.only() {
            Some(record) => record.segments() <= 1,
            None => self.records.is_empty(),
        }
    }

    fn add(&mut self, record: &Record) {
        if record.sacked {
            self.sacked += record.len();
            self.sacked_segments += record.segments();
        } else if record.lost {
            self.lost += record.len();
        } else {
            self.in_flight += record.len();
        }
    }

    fn subtract(&mut self, record: &Record) {
        if record.sacked {
            self.sacked = self.sacked.saturating_sub(record.len());
            self.sacked_segments = self.sacked_segments.saturating_sub(record.segments());
        } else if record.lost {
            self.lost = self.lost.saturating_sub(record.len());
        } else {
            self.in_flight = self.in_flight.saturating_sub(record.len());
        }
    }

    /// A new range left. It begins where the last one ends.
    pub(super) fn push(&mut self, record: Record) {
        self.add(&record);
        self.records.push_back(record);
    }

    /// Changes a record and keeps the sums right.
    fn change(&mut self, index: usize, change: impl FnOnce(&mut Record)) {
        let Some(record) = self.records.get(index).copied() else { return };
        self.subtract(&record);
        let mut changed = record;
        change(&mut changed);
        self.add(&changed);
        if let Some(slot) = self.records.get_mut(index) {
            *slot = changed;
        }
    }

    /// Index of the record that `seq` lies in, or of the first after it.
    fn find(&self, seq: SeqNumber) -> usize {
        self.records.partition_point(|record| !record.end.is_after(seq))
    }

    /// Makes a record begin at `seq`, if it lies within one, and returns the index of the one that does.
    fn split(&mut self, seq: SeqNumber) -> usize {
        let index = self.find(seq);
        let Some(record) = self.records.get(index).copied() else { return index };
        if !seq.is_after(record.start) {
            return index;
        }
        self.subtract(&record);
        let front = Record { end: seq, fin: false, ..record };
        let back = Record { start: seq, ..record };
        self.add(&front);
        self.add(&back);
        if let Some(slot) = self.records.get_mut(index) {
            *slot = front;
        }
        self.records.insert(index + 1, back);
        index + 1
    }

    /// Everything before `ack` is acknowledged. Calls `delivered` with each record, or part of one, that had not been selectively
    /// acknowledged.
    pub(super) fn acknowledge(&mut self, ack: SeqNumber, mut delivered: impl FnMut(&Record)) {
        while let Some(front) = self.records.front().copied() {
            if !ack.is_after(front.start) {
                break;
            }
            self.subtract(&front);
            if ack.is_before(front.end) {
                let rest = Record { start: ack, ..front };
                self.add(&rest);
                if !front.sacked {
                    delivered(&Record { end: ack, fin: false, ..front });
                }
                if let Some(slot) = self.records.front_mut() {
                    *slot = rest;
                }
                break;
            }
            if !front.sacked {
                delivered(&front);
            }
            self.records.pop_front();
        }
        self.seen.forget(ack);
        if self.records.is_empty() {
            self.seen = Seen::default();
        }
    }

    /// A block was selectively acknowledged. Only whole segments count, so that a peer cannot make the records
    /// smaller than segments. Calls `delivered` with each record that it delivers.
    pub(super) fn sack(&mut self, range: SeqRange, mut delivered: impl FnMut(&Record)) {
        let todo = self.seen.without(range);
        if !todo.start.is_before(todo.end) {
            return;
        }
        let mut index = self.find(todo.start);
        let mut known = SeqRange { start: range.start, end: todo.start };
        while let Some(record) = self.records.get(index).copied() {
            if !record.start.is_before(todo.end) {
                break;
            }
            if record.sacked {
                if known.end == record.start || record.start.is_before(todo.start) {
                    known.end = record.end;
                }
                index += 1;
                continue;
            }
            let part = whole_segments(&record, todo);
            if part.start >= part.end {
                index += 1;
                continue;
            }
            // The known part ends at the first gap.
            if !(record.start + part.start).is_after(known.end) {
                known.end = record.start + part.end;
            }
            let first = if part.start > 0 { self.split(record.start + part.start) } else { index };
            if part.end < record.len() {
                self.split(record.start + part.end);
            }
            if let Some(part) = self.records.get(first) {
                delivered(part);
            }
            self.change(first, |record| {
                record.sacked = true;
                record.lost = false;
            });
            index = first + 1;
        }
        if known.start.is_before(known.end) {
            self.seen.note(known);
        }
    }

    /// The peer discarded data that it had selectively acknowledged (RFC 2018 section 8): none of it counts any more.
    pub(super) fn renege(&mut self) {
        for index in 0..self.records.len() {
            self.change(index, |record| record.sacked = false);
        }
        self.seen = Seen::default();
    }

    /// Marks as lost the records in flight for which `lost` returns true; the walk ends with a `None`. Returns how many
    /// sequence numbers they have.
    pub(super) fn lose(&mut self, mut lost: impl FnMut(&Record) -> Option<bool>) -> u32 {
        let before = self.lost;
        for index in 0..self.records.len() {
            let Some(record) = self.records.get(index) else { break };
            if !record.flies() {
                continue;
            }
            match lost(record) {
                None => break,
                Some(false) => {}
                Some(true) => self.change(index, |record| record.lost = true),
            }
        }
        self.lost.saturating_sub(before)
    }

    /// Marks the first `len` sequence numbers as lost, if they are in flight.
    pub(super) fn lose_front(&mut self, len: u32) -> u32 {
        let Some(front) = self.records.front().copied() else { return 0 };
        if !front.flies() {
            return 0;
        }
        if len < front.len() {
            self.split(front.start + len);
        }
        self.change(0, |record| record.lost = true);
        len.min(front.len())
    }

    /// Nothing is lost after all.
    pub(super) fn unlose(&mut self) {
        for index in 0..self.records.len() {
            self.change(index, |record| record.lost = false);
        }
    }

    /// The first record that is lost and not yet sent again.
    pub(super) fn next_lost(&self) -> Option<&Record> {
        if self.lost == 0 { None } else { self.records.iter().find(|record| record.lost && !record.sacked) }
    }

    /// `range` of one record was sent again.
    pub(super) fn resent(&mut self, range: Range<SeqNumber>, change: impl FnOnce(&mut Record)) {
        let first = self.split(range.start);
        let Some(record) = self.records.get(first) else { return };
        if range.end.is_before(record.end) {
            self.split(range.end);
        }
        self.change(first, |record| {
            record.lost = false;
            record.sends = record.sends.saturating_add(1);
            change(record);
        });
    }

    /// Outstanding data, counted in segments.
    pub(super) fn counts(&self) -> SegmentCounts {
        let mut counts = SegmentCounts::default();
        for record in &self.records {
            // The FIN goes with the last segment, or by itself.
            let data = record.len() - u32::from(record.fin);
            let segments = segments_of(data, record.segment_size).max(1);
            counts.out += segments;
            let count = match (record.sacked, record.lost) {
                (true, _) => &mut counts.sacked,
                (false, true) => &mut counts.lost,
                (false, false) if record.sends > 1 => &mut counts.resent,
                (false, false) => continue,
            };
            *count += segments;
        }
        counts
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Frees the memory that an idle connection does not need.
    pub(super) fn trim(&mut self) {
        if self.records.is_empty() {
            self.records = VecDeque::new();
        }
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.records.capacity()
    }

    #[cfg(test)]
    pub(super) fn records(&self) -> impl Iterator<Item = &Record> {
        self.records.iter()
    }

    /// Checks sums and order against the records.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let sum = |which: fn(&Record) -> bool| {
            self.records.iter().filter(|record| which(record)).map(Record::len).sum::<u32>()
        };
        assert_eq!(self.in_flight, sum(Record::flies));
        assert_eq!(self.sacked, sum(|record| record.sacked));
        assert_eq!(self.lost, sum(|record| record.lost && !record.sacked));
        for (a, b) in self.records.iter().zip(self.records.iter().skip(1)) {
            assert_eq!(a.end, b.start);
        }
        assert!(self.records.iter().all(|record| record.start.is_before(record.end)));
    }
}

/// The part of a record that `block` covers in whole segments, as offsets from its start.
fn whole_segments(record: &Record, block: SeqRange) -> Range<u32> {
    let size = u32::from(record.segment_size).max(1);
    let start = block.start.distance(record.start).div_ceil(size).saturating_mul(size);
    let end = if block.end.is_before(record.end) {
        block.end.distance(record.start) / size * size
    } else {
        record.len()
    };
    start..end
}
