//! The receiving half of a session: the PSNs that have arrived, and the acknowledgements to send.
//!
//! ```text
//!        floor                                   highest
//!          |                                        |
//!  ........|1 1 0 1 1 1|1 1 r 1 1 1|1 0 1 1 ........|
//!          '--- word --'--- word --'                      64 words of 64 PSNs, a ring
//! ```
//!
//! Below `floor` everything is settled. Above it, a PSN is consumed (1), refused (r) or missing (0). A refused PSN
//! holds the floor until the sender's base passes it, for only then has the sender certainly got the refusal; so the
//! refusal can be reported again as often as its report is lost.

use std::collections::VecDeque;

use crate::wire::rud::{Block, MAX_BLOCKS, MAX_WINDOW, Psn, WORDS};

#[cfg(test)]
mod tests;

/// How a datagram's PSN compares with those that have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// Seen for the first time.
    New,
    /// Consumed or refused before.
    Duplicate,
    /// Further ahead than a sender may be.
    OutOfWindow,
}

/// A bundle of which the sink has consumed some messages and refused others.
#[derive(Debug)]
struct Mixed {
    psn: Psn,
    consumed: u64,
    refused: u64,
    is_reported: bool,
}

/// The bitmap of received PSNs. A PSN's word is `psn / 64` modulo 64, which stays right when PSNs wrap.
#[derive(Debug)]
pub(super) struct Receiver {
    floor: Psn,
    /// One past the highest PSN that has arrived; at least `floor`.
    highest: Psn,
    received: [u64; WORDS as usize],
    refused: [u64; WORDS as usize],
    /// Words above the floor with arrivals that were not reported.
    fresh: u64,
    /// Words that were reported once; reported again where there is room, for acknowledgements get lost.
    again: u64,
    /// Words with refusals that were not reported.
    refusals: u64,
    /// Above the floor, which they hold as refused PSNs do, in the order of their PSNs. They are in neither bitmap.
    mixed: VecDeque<Mixed>,
    /// Of these, those that were not reported.
    mixed_unreported: usize,
}

fn word(psn: Psn) -> u32 {
    psn.0 / 64 % WORDS
}

fn bit(psn: Psn) -> u64 {
    1 << (psn.0 % 64)
}

impl Receiver {
    /// Nothing has arrived; the first PSN will be `first`.
    pub(super) fn new(first: Psn) -> Self {
        Self {
            floor: first,
            highest: first,
            received: [0; WORDS as usize],
            refused: [0; WORDS as usize],
            fresh: 0,
            again: 0,
            refusals: 0,
            mixed: VecDeque::new(),
            mixed_unreported: 0,
        }
    }

    /// Every PSN before this one is settled.
    pub(super) fn floor(&self) -> Psn {
        self.floor
    }

    /// Whether there is something to report besides the floor.
    #[inline]
    pub(super) fn ack_pending(&self) -> bool {
        self.fresh | self.refusals != 0 || self.mixed_unreported != 0
    }

    /// The place of a bundle among the mixed ones, or where it would be.
    #[cold]
    fn find_mixed(&self, psn: Psn) -> Result<usize, usize> {
        let ahead = |psn: Psn| psn.since(self.floor);
        self.mixed.binary_search_by_key(&ahead(psn), |mixed| ahead(mixed.psn))
    }

    /// How `psn` compares with those that have arrived.
    #[inline(always)]
    pub(super) fn classify(&self, psn: Psn) -> Arrival {
        //= rud/spec.md section 5.2, RUD-19, RUD-20
        let ahead = psn.since(self.floor);
        if ahead < MAX_WINDOW {
            let index = word(psn) as usize;
            let known = (self.received[index] | self.refused[index]) & bit(psn) != 0;
            if !known && (self.mixed.is_empty() || self.find_mixed(psn).is_err()) {
                Arrival::New
            } else {
                Arrival::Duplicate
            }
        } else if psn.is_before(self.floor) {
            Arrival::Duplicate
        } else {
            Arrival::OutOfWindow
        }
    }

    /// The sink consumed `psn`, which was [`Arrival::New`].
    #[inline]
    pub(super) fn consumed(&mut self, psn: Psn) {
        self.received[word(psn) as usize] |= bit(psn);
        self.raise_highest(psn);
        if psn == self.floor {
            self.advance();
        } else {
            self.fresh |= 1 << word(psn);
        }
    }

    /// The sink refused `psn`, which was [`Arrival::New`].
    pub(super) fn refused(&mut self, psn: Psn) {
        //= rud/spec.md section 5.3, RUD-22
        // A refused PSN is never delivered, even if copies of it are still in flight.
        self.refused[word(psn) as usize] |= bit(psn);
        self.refusals |= 1 << word(psn);
        self.raise_highest(psn);
    }

    /// Of the bundle `psn`, which was [`Arrival::New`], the sink consumed these messages and refused those.
    #[cold]
    pub(super) fn mixed(&mut self, psn: Psn, consumed: u64, refused: u64) {
        //= rud/spec.md section 5.3, RUD-23
        // It holds the floor until the sender knows which of its messages were refused.
        if let Err(at) = self.find_mixed(psn) {
            self.mixed.insert(at, Mixed { psn, consumed, refused, is_reported: false });
            self.mixed_unreported += 1;
        }
        self.raise_highest(psn);
    }

    /// `psn` arrived again: our acknowledgement of it was lost or late.
    pub(super) fn duplicate(&mut self, psn: Psn) {
        //= rud/spec.md section 5.5, RUD-30, RUD-31
        // A duplicate makes its own word unreported again; the others are repeated where there is room. To report
        // all of them at once would answer every lost acknowledgement with a volley, and the volley's losses with
        // another.
        self.again |= self.occupied();
        if psn.since(self.floor) < MAX_WINDOW {
            self.fresh |= 1 << word(psn);
            if self.refused[word(psn) as usize] & bit(psn) != 0 {
                self.refusals |= 1 << word(psn);
            }
            self.unreport_mixed(psn);
        }
    }

    /// Whether one report says all that was not reported.
    pub(super) fn fits_one_report(&self) -> bool {
        // The header says one word.
        let in_header = u32::from(self.fresh & !self.refusals != 0);
        let blocks = (self.fresh | self.refusals).count_ones() - in_header;
        blocks as usize + self.mixed_unreported <= MAX_BLOCKS
    }

    /// A report was made and then not sent: the word of its header and its blocks are unreported again.
    #[cold]
    pub(super) fn take_back(&mut self, sack_word: u16, blocks: &[Block]) {
        let start = self.floor.word_start();
        for block in blocks {
            match block.bundle() {
                Some(ahead) => self.unreport_mixed(start.plus(ahead)),
                None => self.unreport(block.word.into()),
            }
        }
        self.unreport(sack_word.into());
    }

    /// The bundle `psn`, if some of its messages were refused, counts as unreported.
    fn unreport_mixed(&mut self, psn: Psn) {
        if let Ok(at) = self.find_mixed(psn) {
            self.mixed_unreported += usize::from(core::mem::take(&mut self.mixed[at].is_reported));
        }
    }

    /// The word so far behind the floor's counts as unreported, if it has arrivals.
    fn unreport(&mut self, offset: u32) {
        let index = (word(self.floor) + offset) % WORDS;
        self.fresh |= (1 << index) & self.occupied();
        self.refusals |= u64::from(self.refused[index as usize] != 0) << index;
    }

    /// A report is asked for anew: everything above the floor counts as unreported.
    pub(super) fn unreported(&mut self) {
        self.fresh |= self.occupied();
        for (index, refused) in self.refused.iter().enumerate() {
            if *refused != 0 {
                self.refusals |= 1 << index;
            }
        }
        self.mixed.iter_mut().for_each(|mixed| mixed.is_reported = false);
        self.mixed_unreported = self.mixed.len();
    }

    /// The words from the floor's to the last one with arrivals.
    fn occupied(&self) -> u64 {
        if self.highest == self.floor {
            return 0;
        }
        let words = self.highest.since(self.floor.word_start()).div_ceil(64);
        let mask = if words >= WORDS { u64::MAX } else { (1 << words) - 1 };
        mask.rotate_left(word(self.floor))
    }

    /// The sender has settled everything before `base`. False, and nothing done, if that is beyond any window.
    #[inline]
    pub(super) fn base(&mut self, base: Psn) -> bool {
        let ahead = base.since(self.floor);
        if ahead == 0 || base.is_before(self.floor) {
            return true;
        }
        //= rud/spec.md section 5.4, RUD-25
        if ahead > MAX_WINDOW {
            return false;
        }
        self.raise_floor(base);
        true
    }

    /// The floor becomes `base`, or is raised further by what has arrived.
    fn raise_floor(&mut self, base: Psn) {
        //= rud/spec.md section 5.4
        // The floor follows the sender's base.
        while self.floor.word_start() != base.word_start() {
            self.clear(word(self.floor));
            self.floor = self.floor.word_start().plus(64);
        }
        self.floor = base;
        while let Some(mixed) = self.mixed.front()
            && mixed.psn.is_before(base)
        {
            self.mixed_unreported -= usize::from(!mixed.is_reported);
            self.mixed.pop_front();
        }
        if self.highest.is_before(base) {
            self.highest = base;
        }
        self.advance();
    }

    /// The report of a data datagram: the word to name (counted from the floor's) and its consumed PSNs.
    #[inline]
    pub(super) fn piggyback(&mut self) -> (u16, u64) {
        match self.next_word() {
            //= rud/spec.md section 4.3, RUD-11
            Some((offset, index)) => (offset as u16, self.received[index as usize]),
            None => (0, self.received[word(self.floor) as usize]),
        }
    }

    /// The report of a pure acknowledgement: the word in its header, and up to [`MAX_BLOCKS`] blocks.
    pub(super) fn report(&mut self, blocks: &mut [Block; MAX_BLOCKS]) -> ((u16, u64), usize) {
        let mut count = 0;
        // Refusals fit only into blocks, so they go first.
        let start = self.floor.word_start();
        let unreported = if self.mixed_unreported == 0 { 0 } else { MAX_BLOCKS };
        for mixed in self.mixed.iter_mut().filter(|mixed| !mixed.is_reported).take(unreported) {
            mixed.is_reported = true;
            self.mixed_unreported -= 1;
            let Mixed { psn, consumed: received, refused, .. } = *mixed;
            blocks[count] = Block { word: Block::BUNDLE | psn.since(start) as u16, received, refused };
            count += 1;
        }
        while self.refusals != 0 && count < MAX_BLOCKS {
            let (offset, index) = self.lowest(self.refusals);
            self.refusals &= !(1 << index);
            self.reported(index);
            blocks[count] = self.block(offset, index);
            count += 1;
        }
        let sack = self.piggyback();
        while count < MAX_BLOCKS
            && let Some((offset, index)) = self.next_word()
        {
            blocks[count] = self.block(offset, index);
            count += 1;
        }
        (sack, count)
    }

    /// Takes the word to report next: the oldest unreported one, otherwise the youngest of those to be repeated,
    /// whose report may be the one that the sender misses.
    #[inline]
    fn next_word(&mut self) -> Option<(u32, u32)> {
        let (offset, index) = if self.fresh != 0 {
            self.lowest(self.fresh)
        } else if self.again != 0 {
            let floor = word(self.floor);
            let offset = 63 - self.again.rotate_right(floor).leading_zeros();
            (offset, (floor + offset) % WORDS)
        } else {
            return None;
        };
        self.reported(index);
        Some((offset, index))
    }

    fn block(&self, offset: u32, index: u32) -> Block {
        let index = index as usize;
        Block { word: offset as u16, received: self.received[index], refused: self.refused[index] }
    }

    /// The first word of the set at or after the floor's: its distance from the floor's, and its index.
    fn lowest(&self, set: u64) -> (u32, u32) {
        let floor = word(self.floor);
        let offset = set.rotate_right(floor).trailing_zeros();
        (offset, (floor + offset) % WORDS)
    }

    fn reported(&mut self, index: u32) {
        let mask = 1 << index;
        self.again = if self.fresh & mask != 0 { self.again | mask } else { self.again & !mask };
        self.fresh &= !mask;
    }

    fn raise_highest(&mut self, psn: Psn) {
        if !psn.is_before(self.highest) {
            self.highest = psn.plus(1);
        }
    }

    /// Moves the floor over consumed PSNs, and empties the words that it leaves for their next use.
    #[inline]
    fn advance(&mut self) {
        loop {
            let at = self.floor.0 % 64;
            //= rud/spec.md section 5.4, RUD-24
            let run = (self.received[word(self.floor) as usize] >> at).trailing_ones();
            if at + run < 64 {
                self.floor = self.floor.plus(run);
                return;
            }
            self.clear(word(self.floor));
            self.floor = self.floor.plus(run);
        }
    }

    fn clear(&mut self, index: u32) {
        self.received[index as usize] = 0;
        self.refused[index as usize] = 0;
        let keep = !(1 << index);
        self.fresh &= keep;
        self.again &= keep;
        self.refusals &= keep;
    }
}
