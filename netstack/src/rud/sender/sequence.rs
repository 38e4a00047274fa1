//! The PSNs of a sender: which slot's message each belongs to, and which are settled.

use crate::wire::rud::{MAX_WINDOW, Psn, WORDS};

#[cfg(test)]
mod tests;

/// No slot: no endpoint has so many.
pub(super) const NIL: u16 = u16::MAX;

const RING: usize = 64 * WORDS as usize;

/// The PSNs between `base`, the lowest that is not settled, and `next`, the next to be sent for the first time: at most
/// [`MAX_WINDOW`]. Of each that is not settled `slots` has the slot. Bits and slots of other PSNs are left over; the first
/// PSN of a word clears it.
#[derive(Debug)]
pub(super) struct Sequence {
    slots: Box<[u16; RING]>,
    settled: [u64; WORDS as usize],
    base: Psn,
    next: Psn,
}

#[inline]
fn ring_index(psn: Psn) -> usize {
    psn.0 as usize % RING
}

impl Sequence {
    /// Nothing was sent; the first PSN is `first`.
    pub(super) fn new(first: Psn) -> Self {
        Self { slots: Box::new([NIL; RING]), settled: [0; WORDS as usize], base: first, next: first }
    }

    /// The lowest PSN that is not settled.
    #[inline]
    pub(super) fn base(&self) -> Psn {
        self.base
    }

    /// The next PSN to be sent for the first time.
    #[inline]
    pub(super) fn next(&self) -> Psn {
        self.next
    }

    /// How many PSNs may follow before the lowest is settled.
    #[inline]
    pub(super) fn room(&self) -> u32 {
        //= rud/spec.md section 6.1, RUD-33
        // A PSN is never further than the window from the lowest unsettled one.
        MAX_WINDOW.saturating_sub(self.next.since(self.base))
    }

    /// The message in `slot` was sent under the next PSN.
    #[inline]
    pub(super) fn assign(&mut self, slot: u16) {
        let index = ring_index(self.next);
        self.slots[index] = slot;
        // The first PSN of a word takes over the word of 4,096 PSNs ago, which is settled.
        let keep = if index.is_multiple_of(64) { 0 } else { !(1 << (index % 64)) };
        self.settled[index / 64] &= keep;
        self.next = self.next.plus(1);
    }

    /// Whether every PSN before `cumulative` can be settled: it was sent.
    #[inline]
    pub(super) fn covers(&self, cumulative: Psn) -> bool {
        cumulative.since(self.base) <= self.next.since(self.base)
    }

    /// Settles the lowest unsettled PSN before `cumulative`, which is [covered](Self::covers): its slot.
    #[inline]
    pub(super) fn settle_before(&mut self, cumulative: Psn) -> Option<usize> {
        while self.base != cumulative {
            let index = ring_index(self.base);
            self.base = self.base.plus(1);
            // Settled PSNs between are skipped; each is looked at once in its life.
            if self.settled[index / 64] >> (index % 64) & 1 == 0 {
                self.settled[index / 64] |= 1 << (index % 64);
                return Some(self.slots[index].into());
            }
        }
        None
    }

    /// The PSNs of a set that are not known to be settled. Bit i stands for the PSN i after `start`, the first of a
    /// word.
    #[inline]
    pub(super) fn unsettled(&self, start: Psn, psns: u64) -> u64 {
        psns & !self.settled[ring_index(start) / 64]
    }

    /// The slot of a PSN that was sent and is not settled.
    pub(super) fn slot_of(&self, psn: Psn) -> Option<usize> {
        let index = ring_index(psn);
        let is_open = psn.since(self.base) < self.next.since(self.base)
            && self.settled[index / 64] >> (index % 64) & 1 == 0;
        is_open.then_some(self.slots[index].into())
    }

    /// Settles a PSN that is not settled, if it was sent: its slot.
    #[inline]
    pub(super) fn settle(&mut self, psn: Psn) -> Option<usize> {
        //= rud/spec.md section 6.2, RUD-39
        if psn.since(self.base) >= self.next.since(self.base) {
            return None;
        }
        let index = ring_index(psn);
        self.settled[index / 64] |= 1 << (index % 64);
        Some(self.slots[index].into())
    }

    /// Moves the base over settled PSNs.
    #[inline]
    pub(super) fn advance(&mut self) {
        while self.base != self.next {
            let index = ring_index(self.base);
            //= rud/spec.md section 5.4, RUD-26
            let run = (self.settled[index / 64] >> (index % 64)).trailing_ones();
            if run == 0 {
                return;
            }
            self.base = self.base.plus(run.min(self.next.since(self.base)));
        }
    }
}
