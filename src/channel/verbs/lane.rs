//! One queue pair's bookkeeping, without the queue pair: which fragments are out, which were taken, what is to be said
//! to the peer, and what is sent again after the queue pair failed.
//!
//! Fragments are numbered from 0 for the life of the channel, not of the queue pair; number n goes to slot n modulo the
//! window. A reliable connection delivers in order, so what the peer has taken is a count. A fragment that was taken but
//! refused is remembered in a bitmap as long as its refusal may have been lost with a queue pair.

use std::collections::VecDeque;

use shouter_netstack::time::Instant;
use shouter_reducer::memory::Span;
use shouter_reducer::transport::SendToken;

use super::message::{WORD_BITS, Word, widen};

/// The largest window: one bit a fragment remembers the refused ones.
pub(super) const MAX_WINDOW: u32 = 64;

/// A payload that is sent from where it lies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lent {
    /// Where that is.
    pub(super) span: Span,
    /// What is released when nothing refers to it any more.
    pub(super) token: SendToken,
}

/// A fragment on its way.
#[derive(Clone, Copy, Debug, Default)]
struct Flight {
    /// Bytes of payload and trailer.
    len: u32,
    /// The payload and what is released when the peer has taken it; nothing, if it was copied to the slot.
    lent: Option<Lent>,
    /// The peer has refused it, so it is another's business.
    refused: bool,
    /// How often the peer has had no room for it before.
    refusals: u32,
}

/// What the other end has taken, as it says after a queue pair failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    /// Fragments taken.
    pub(super) count: u64,
    /// Bit i: fragment `count - 1 - i` was refused.
    pub(super) refused: u64,
}

/// Why a fragment comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// It was damaged on the way.
    Damaged,
    /// The peer had no room for it.
    NotReady,
}

/// A fragment to be sent again, perhaps under a new number; its bytes are still in its slot, but for a payload that was lent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Returned {
    /// Its slot.
    pub(super) slot: u32,
    /// Bytes of payload and trailer.
    pub(super) len: u32,
    /// Why.
    pub(super) why: Why,
    /// How often the peer has had no room for it, before this.
    pub(super) refusals: u32,
    /// The payload, if it is not in the slot.
    pub(super) lent: Option<Lent>,
}

/// A fragment to be posted again from its slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outstanding {
    /// Its slot.
    pub(super) slot: u32,
    /// Bytes of payload and trailer.
    pub(super) len: u32,
    /// The payload, if it is not in the slot.
    pub(super) lent: Option<Lent>,
}

/// What the peer said fits nothing that it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it acknowledges what it was not sent")]
pub(super) struct Nonsense;

/// The sending direction.
#[derive(Debug)]
pub(super) struct Sender {
    window: u64,
    next: u64,
    acked: u64,
    flights: Box<[Flight]>,
}

impl Sender {
    pub(super) fn new(window: u32) -> Self {
        let window = window.clamp(1, MAX_WINDOW);
        Self {
            window: window.into(),
            next: 0,
            acked: 0,
            flights: vec![Flight::default(); window as usize].into(),
        }
    }

    /// Fragments that the peer has not taken.
    #[inline]
    pub(super) fn in_flight(&self) -> u64 {
        self.next - self.acked
    }

    /// Fragments that the peer has taken.
    #[inline]
    pub(super) fn acked(&self) -> u64 {
        self.acked
    }

    /// The slot of the next fragment, if the window has room.
    #[inline]
    pub(super) fn slot(&self) -> Option<u32> {
        (self.in_flight() < self.window).then_some((self.next % self.window) as u32)
    }

    /// Whether the window has room for so many fragments.
    #[inline]
    pub(super) fn has_slots(&self, count: u64) -> bool {
        self.in_flight() + count <= self.window
    }

    /// The number of the next fragment.
    #[inline]
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// The next fragment goes out from its slot, with so many bytes of payload and trailer.
    #[inline]
    pub(super) fn sent(&mut self, len: u32, lent: Option<Lent>) {
        let at = (self.next % self.window) as usize;
        if let Some(flight) = self.flights.get_mut(at) {
            *flight = Flight { len, lent, refused: false, refusals: 0 };
        }
        self.next += 1;
    }

    /// The peer has had no room so often for the fragment that went out last.
    pub(super) fn was_refused(&mut self, refusals: u32) {
        let at = (self.next.wrapping_sub(1) % self.window) as usize;
        if let Some(flight) = self.flights.get_mut(at) {
            flight.refusals = refusals;
        }
    }

    /// The peer has taken all fragments up to `count` (its low bits).
    #[inline]
    pub(super) fn acknowledged(
        &mut self,
        low: u32,
        bits: u32,
        mut release: impl FnMut(SendToken),
    ) -> Result<(), Nonsense> {
        let count = widen(self.acked, low, bits);
        if count > self.next {
            // What was posted again on a new queue pair tells an old count, which looks like one far ahead.
            let old = widen(self.acked.saturating_sub(1 << (bits - 1)), low, bits) < self.acked;
            return if old { Ok(()) } else { Err(Nonsense) };
        }
        while self.acked < count {
            let at = (self.acked % self.window) as usize;
            if let Some(flight) = self.flights.get_mut(at)
                && let Some(lent) = flight.lent.take()
            {
                release(lent.token);
            }
            self.acked += 1;
        }
        Ok(())
    }

    /// The peer refused a fragment (the low bits of its number).
    pub(super) fn refused(&mut self, low: u32, why: Why) -> Result<Returned, Nonsense> {
        let number = widen(self.acked, low, WORD_BITS);
        if number >= self.next {
            return Err(Nonsense);
        }
        self.give_back(number, why).ok_or(Nonsense)
    }

    fn give_back(&mut self, number: u64, why: Why) -> Option<Returned> {
        let slot = (number % self.window) as usize;
        let flight = self.flights.get_mut(slot).filter(|flight| !flight.refused)?;
        flight.refused = true;
        let (len, refusals) = (flight.len, flight.refusals);
        Some(Returned { slot: slot as u32, len, why, refusals, lent: flight.lent.take() })
    }

    /// After a queue pair failed: what the peer has taken is released, what it refused comes back.
    pub(super) fn resume(
        &mut self,
        taken: Taken,
        mut release: impl FnMut(SendToken),
        mut returned: impl FnMut(Returned),
    ) -> Result<(), Nonsense> {
        if taken.count < self.acked || taken.count > self.next {
            return Err(Nonsense);
        }
        for number in self.acked..taken.count {
            let behind = taken.count - 1 - number;
            if behind < 64 && taken.refused >> behind & 1 == 1 {
                // It was perhaps told before.
                if let Some(fragment) = self.give_back(number, Why::NotReady) {
                    returned(fragment);
                }
            }
        }
        self.acknowledged(taken.count as u32, 32, &mut release)
    }

    /// What has to be posted again on a new queue pair, in order. Payloads that were lent are to be put into their slots,
    /// and are no longer lent here.
    pub(super) fn outstanding(&mut self) -> impl Iterator<Item = Outstanding> + '_ {
        (self.acked..self.next).map(|number| {
            let slot = (number % self.window) as usize;
            let flight = self.flights.get_mut(slot);
            let (len, lent) = flight.map_or((0, None), |flight| (flight.len, flight.lent.take()));
            Outstanding { slot: slot as u32, len, lent }
        })
    }

    /// Forgets everything that is out; nothing is released.
    pub(super) fn abandon(&mut self) {
        self.acked = self.next;
        self.flights.fill(Flight::default());
    }
}

/// What has been made of a fragment that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It was taken, or refused.
    Settled(Option<Why>),
    /// Whether it is sound is not known yet.
    Open,
}

/// The receiving direction.
#[derive(Debug)]
pub(super) struct Receiver {
    window: u64,
    taken: Taken,
    /// The number of the next fragment on this queue pair.
    next: u64,
    /// What has come behind the taken ones: an open one, and those behind it. Kept when the queue pair fails, so that what was
    /// handed on is not handed on again.
    verdicts: VecDeque<Verdict>,
    /// What the peer knows of `taken.count`.
    told: u64,
    /// Refusals to be said, with the fragments' numbers.
    refusals: VecDeque<(u64, Word)>,
    /// The peer has asked to be told at once.
    asked: bool,
}

impl Receiver {
    pub(super) fn new(window: u32) -> Self {
        Self {
            window: window.clamp(1, MAX_WINDOW).into(),
            taken: Taken { count: 0, refused: 0 },
            next: 0,
            verdicts: VecDeque::new(),
            told: 0,
            refusals: VecDeque::new(),
            asked: false,
        }
    }

    /// The number of the next fragment.
    #[inline]
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Whether a write to this slot is the next one.
    #[inline]
    pub(super) fn expects(&self, slot: u32) -> bool {
        self.next % self.window == u64::from(slot)
    }

    /// Whether the next fragment has this number (its low 32 bits).
    #[inline]
    pub(super) fn is_next(&self, number: u32) -> bool {
        self.next as u32 == number
    }

    /// What was made of the next fragment when it came by a former queue pair.
    #[inline]
    pub(super) fn known(&self) -> Option<Verdict> {
        match self.next.checked_sub(self.taken.count) {
            Some(behind) => self.verdicts.get(behind as usize).copied(),
            // It was settled after the peer was told how far this end was.
            None => Some(Verdict::Settled(None)),
        }
    }

    /// The next fragment has come.
    #[inline]
    pub(super) fn came(&mut self, verdict: Verdict) {
        let number = self.next;
        self.next += 1;
        match (number.checked_sub(self.taken.count), verdict) {
            (Some(0), Verdict::Settled(refused)) if self.verdicts.is_empty() => self.took(refused),
            (Some(behind), _) if behind as usize == self.verdicts.len() => self.verdicts.push_back(verdict),
            _ => self.settle(number, verdict),
        }
    }

    /// It is known now what is made of a fragment.
    pub(super) fn settle(&mut self, number: u64, verdict: Verdict) {
        let behind = number.checked_sub(self.taken.count);
        if let Some(known) = behind.and_then(|behind| self.verdicts.get_mut(behind as usize)) {
            *known = verdict;
        }
        while let Some(Verdict::Settled(refused)) = self.verdicts.front().copied() {
            self.verdicts.pop_front();
            self.took(refused);
        }
    }

    /// The oldest fragment that was not taken was taken, or refused.
    #[inline]
    fn took(&mut self, refused: Option<Why>) {
        let count = self.taken.count;
        let number = count as u32;
        self.taken.count += 1;
        self.taken.refused = self.taken.refused << 1 | u64::from(refused.is_some());
        match refused {
            None => {}
            Some(Why::Damaged) => self.refusals.push_back((count, Word::Damaged(number))),
            Some(Why::NotReady) => self.refusals.push_back((count, Word::NotReady(number))),
        }
    }

    /// The peer waits for the count.
    #[inline]
    pub(super) fn ask(&mut self) {
        self.asked = true;
    }

    /// Whether the peer waits for a count that it could be told.
    pub(super) fn is_asked(&self) -> bool {
        self.asked
    }

    /// What the peer should be told of this direction on a new queue pair.
    pub(super) fn taken(&self) -> Taken {
        self.taken
    }

    /// The count for a fragment that goes out now, and that will say it: only where refusals have gone ahead.
    #[inline]
    pub(super) fn tell(&mut self) -> u64 {
        if self.refusals.is_empty() {
            self.told = self.tellable();
            self.asked = false;
        }
        self.told
    }

    /// What the peer can be told: nothing that it has yet to send again on this queue pair.
    #[inline]
    fn tellable(&self) -> u64 {
        self.taken.count.min(self.next)
    }

    /// A refusal to be said before any later count.
    #[inline]
    pub(super) fn refusal(&mut self) -> Option<Word> {
        self.refusals.front().filter(|(number, _)| *number < self.next).map(|(_, word)| *word)
    }

    /// The refusal was said.
    pub(super) fn refusal_said(&mut self) {
        self.refusals.pop_front();
    }

    /// A count that the peer should be told without a fragment: at once if the peer has asked or a quarter of the window
    /// waits for it, else when nothing else is to do.
    #[inline]
    pub(super) fn due(&self, idle: bool) -> bool {
        let untold = self.tellable() - self.told;
        untold > 0 && (idle || self.asked || untold * 4 >= self.window)
    }

    /// The queue pair is new: the peer has been told everything by [`taken`](Self::taken).
    pub(super) fn resume(&mut self) {
        self.told = self.taken.count;
        self.next = self.taken.count;
        self.asked = false;
        self.refusals.clear();
    }
}

/// When a refused fragment is tried again.
#[derive(Debug)]
pub(super) struct Retry {
    /// Then.
    pub(super) at: Instant,
    /// Its payload and trailer.
    pub(super) bytes: Box<[u8]>,
    /// How often the peer has had no room for it.
    pub(super) refusals: u32,
}

#[cfg(test)]
mod tests;
