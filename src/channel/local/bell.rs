//! The doorbell, by which a rank learns which of its rings hold something new.
//!
//! A rank has a doorbell, a word with a bit for each ring that it reads. A writer sets its bit behind each entry; the
//! rank takes all bits at once. That costs both sides the exchange of a cache line for each message. So the few rings
//! that bring messages now are *watched*: the rank looks at their next entries in every poll, and lists them in a
//! second word, which hardly ever changes; their writers leave the doorbell alone.
//!
//! Nothing is missed when a rank stops watching: it takes its word back, then looks once more, while a writer completes
//! an entry, then looks at that word, with a sequentially consistent fence between the two on either side. At least one
//! of the two looks sees the other side's write.

use std::sync::atomic::{Ordering, fence};

use crate::channel::shm::NodeSegment;

/// Rings that are watched at a time: a load each in every poll.
const SLOTS: usize = 4;

/// Polls without a message after which a ring is not watched any more: a millisecond or so of a rank that waits.
/// In tests it happens all the time.
const QUIET: u32 = if cfg!(test) { 20 } else { 10_000 };

/// Says to a local rank that the ring of a bit has something new.
#[inline]
pub(super) fn ring(segment: &NodeSegment, local: u32, bit: u64) {
    fence(Ordering::SeqCst);
    if segment.watched(local).load(Ordering::Relaxed) & bit == 0 {
        segment.doorbell(local).fetch_or(bit, Ordering::Release);
    }
}

/// A ring that is watched.
#[derive(Clone, Copy, Debug)]
struct Slot {
    /// The number of its bit.
    at: u32,
    /// Polls since it brought something.
    quiet: u32,
}

/// The reader's side.
#[derive(Debug, Default)]
pub(super) struct Bell {
    slots: [Option<Slot>; SLOTS],
    mask: u64,
}

impl Bell {
    /// The rings that were rung, a bit each; cheap, and perhaps too old.
    #[inline]
    pub(super) fn has_rung(segment: &NodeSegment) -> bool {
        segment.doorbell(segment.local()).load(Ordering::Relaxed) != 0
    }

    /// Takes the bits of the rings that were rung.
    pub(super) fn take(segment: &NodeSegment) -> u64 {
        segment.doorbell(segment.local()).swap(0, Ordering::Acquire)
    }

    /// The bits of the watched rings that are to be looked at; `has_entry` gives by a bit's number whether its ring has
    /// something.
    #[inline]
    pub(super) fn look(&mut self, segment: &NodeSegment, has_entry: impl Fn(u32) -> bool) -> u64 {
        if self.mask == 0 { 0 } else { self.look_at_slots(segment, has_entry) }
    }

    fn look_at_slots(&mut self, segment: &NodeSegment, has_entry: impl Fn(u32) -> bool) -> u64 {
        let (mut due, mut quiet) = (0, 0);
        for slot in &mut self.slots {
            let Some(Slot { at, quiet: polls }) = slot else { continue };
            if has_entry(*at) {
                *polls = 0;
                due |= 1 << *at;
            } else if *polls < QUIET {
                *polls += 1;
            } else {
                quiet |= 1 << *at;
                *slot = None;
            }
        }
        if quiet != 0 {
            self.mask &= !quiet;
            segment.watched(segment.local()).store(self.mask, Ordering::Relaxed);
            fence(Ordering::SeqCst);
        }
        due | quiet
    }

    /// From now on the ring of a bit is watched, if there is room for it. No other ring may have that bit.
    #[inline]
    pub(super) fn watch(&mut self, segment: &NodeSegment, at: u32) {
        if self.mask & 1 << at == 0
            && let Some(slot) = self.slots.iter_mut().find(|slot| slot.is_none())
        {
            *slot = Some(Slot { at, quiet: 0 });
            self.mask |= 1 << at;
            segment.watched(segment.local()).store(self.mask, Ordering::Relaxed);
        }
    }
}
