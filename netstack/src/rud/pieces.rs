//! Messages whose datagram is too long for the path come in pieces: those of which some have come (spec.md section 6.8).

use crate::rud::api::MAX_DATAGRAM;
use crate::wire::rud::{Psn, SPLIT_UNIT, Split};

#[cfg(test)]
mod tests;

/// Units of the longest payload, in words of 64.
const WORDS: usize = MAX_DATAGRAM.div_ceil(64 * SPLIT_UNIT);

/// A message of which some pieces have come. Bit i of `have` stands for unit i of the payload.
#[derive(Debug)]
struct Partial {
    psn: Psn,
    payload: Vec<u8>,
    have: [u64; WORDS],
    missing: u32,
}

/// What became of a piece.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// The message is whole: its payload.
    Whole(Vec<u8>),
    /// Others are missing.
    Kept,
    /// There is no room for it, or it makes no sense.
    Dropped,
}

/// The messages of which pieces have come. Together their payloads have at most `most` bytes, but for the one with the lowest PSN.
#[derive(Debug)]
pub(super) struct Pieces {
    most: usize,
    held: usize,
    partial: Vec<Partial>,
}

impl Pieces {
    pub(super) fn new(most: usize) -> Self {
        Self { most, held: 0, partial: Vec::new() }
    }

    /// Whether there are none.
    #[inline]
    pub(super) fn are_none(&self) -> bool {
        self.partial.is_empty()
    }

    /// The message with this PSN came in one.
    #[cold]
    pub(super) fn forget(&mut self, psn: Psn) {
        if let Some(at) = self.partial.iter().position(|partial| partial.psn == psn) {
            self.held -= self.partial.swap_remove(at).payload.len();
        }
    }

    /// The messages with PSNs before `base` are settled.
    #[cold]
    pub(super) fn forget_before(&mut self, base: Psn) {
        self.partial.retain(|partial| !partial.psn.is_before(base));
        self.held = self.partial.iter().map(|partial| partial.payload.len()).sum();
    }

    /// A piece of the message with this PSN, which is not settled.
    pub(super) fn take(&mut self, psn: Psn, split: Split, bytes: &[u8]) -> Piece {
        let (from, total) = (usize::from(split.unit) * SPLIT_UNIT, usize::from(split.total));
        let end = from + bytes.len();
        //= rud/spec.md section 4.2, RUD-9
        if bytes.is_empty() || end > total || !(end == total || end.is_multiple_of(SPLIT_UNIT)) {
            return Piece::Dropped;
        }
        let Some(at) = self.find(psn, total) else { return Piece::Dropped };
        let partial = &mut self.partial[at];
        partial.payload[from..end].copy_from_slice(bytes);
        for unit in split.unit.into()..end.div_ceil(SPLIT_UNIT) {
            let (word, bit) = (&mut partial.have[unit / 64], 1 << (unit % 64));
            partial.missing -= u32::from(*word & bit == 0);
            *word |= bit;
        }
        if partial.missing != 0 {
            return Piece::Kept;
        }
        self.held -= total;
        Piece::Whole(self.partial.swap_remove(at).payload)
    }

    /// The place of a message's pieces, made if there is room.
    fn find(&mut self, psn: Psn, total: usize) -> Option<usize> {
        if let Some(at) = self.partial.iter().position(|partial| partial.psn == psn) {
            if self.partial[at].payload.len() == total {
                return Some(at);
            }
            //= rud/spec.md section 6.8, RUD-68
            // One of the two is false, and what is true is sent again.
            self.held -= self.partial.swap_remove(at).payload.len();
        }
        //= rud/spec.md section 6.8, RUD-67
        // Where there is no room, the youngest give way: their sender sends them again.
        while self.held + total > self.most
            && let Some((at, youngest)) =
                self.partial.iter().enumerate().reduce(|a, b| if a.1.psn.is_before(b.1.psn) { b } else { a })
        {
            if youngest.psn.is_before(psn) {
                return None;
            }
            self.held -= self.partial.swap_remove(at).payload.len();
        }
        let missing = total.div_ceil(SPLIT_UNIT) as u32;
        self.partial.push(Partial { psn, payload: vec![0; total], have: [0; WORDS], missing });
        self.held += total;
        Some(self.partial.len() - 1)
    }
}
