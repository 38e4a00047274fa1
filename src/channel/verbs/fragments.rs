//! The send and receive windows of one connection: the fragments in flight, those taken, those to be acknowledged or
//! refused, and those to be sent again after the queue pair failed.
//!
//! Fragments are numbered from 0 for the life of the channel, not of the queue pair; number n goes to slot n modulo the
//! window. A reliable connection delivers in order, so a count gives the fragments that the peer has taken. A fragment
//! that was taken but refused is remembered in a bitmap as long as its refusal may have been lost with a queue pair.

use std::collections::VecDeque;

use shouter_reducer::memory::Span;
use shouter_reducer::transport::SendToken;

use super::message::{NUMBER_BITS, Notification, widen};

/// The largest window: one bit a fragment remembers the refused ones.
pub(super) const MAX_WINDOW: u32 = 64;

/// A payload that is sent from where it lies.
#[derive(Clone, Copy, Debug)]
pub(super) struct ZeroCopyPayload {
    /// The payload's place.
    pub(super) span: Span,
    /// The token that is released when nothing refers to the payload any more.
    pub(super) token: SendToken,
}

/// A fragment on its way.
#[derive(Clone, Copy, Debug, Default)]
struct InFlight {
    /// Bytes of payload and trailer.
    len: u32,
    /// The payload and its token, released when the peer has taken it; nothing, if it was copied to the slot.
    zero_copy: Option<ZeroCopyPayload>,
    /// The peer has refused it.
    refused: bool,
    /// How often the peer has had no room for it before.
    refusals: u32,
}

/// The fragments that the receiver has taken; it reports this after a queue pair failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    /// Fragments taken.
    pub(super) count: u64,
    /// Bit i: fragment `count - 1 - i` was refused.
    pub(super) refused: u64,
}

/// Why the receiver refused a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RefusalReason {
    /// It was damaged on the way.
    Damaged,
    /// The peer had no room for it.
    NotReady,
}

/// A refused fragment to be sent again, perhaps under a new number. Its bytes are still in its slot, except a zero-copy payload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Returned {
    /// Its slot.
    pub(super) slot: u32,
    /// Bytes of payload and trailer.
    pub(super) len: u32,
    /// Why it was refused.
    pub(super) why: RefusalReason,
    /// How often the peer has had no room for it, before this.
    pub(super) refusals: u32,
    /// The payload, if it is not in the slot.
    pub(super) zero_copy: Option<ZeroCopyPayload>,
}

/// The peer acknowledged or refused a fragment that was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it acknowledges what it was not sent")]
pub(super) struct InvalidAck;

/// The sending direction.
#[derive(Debug)]
pub(super) struct Sender {
    window: u64,
    next: u64,
    acked: u64,
    flights: Box<[InFlight]>,
}

impl Sender {
    pub(super) fn new(window: u32) -> Self {
        let window = window.clamp(1, MAX_WINDOW);
        Self {
            window: window.into(),
            next: 0,
            acked: 0,
            flights: vec![InFlight::default(); window as usize].into(),
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
    pub(super) fn sent(&mut self, len: u32, zero_copy: Option<ZeroCopyPayload>) {
        let at = (self.next % self.window) as usize;
        if let Some(flight) = self.flights.get_mut(at) {
            *flight = InFlight { len, zero_copy, refused: false, refusals: 0 };
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
    ) -> Result<(), InvalidAck> {
        let count = widen(self.acked, low, bits);
        if count > self.next {
            // A fragment posted again on a new queue pair carries an old count, which looks like one far ahead.
            let old = widen(self.acked.saturating_sub(1 << (bits - 1)), low, bits) < self.acked;
            return if old { Ok(()) } else { Err(InvalidAck) };
        }
        while self.acked < count {
            let at = (self.acked % self.window) as usize;
            if let Some(flight) = self.flights.get_mut(at)
                && let Some(zero_copy) = flight.zero_copy.take()
            {
                release(zero_copy.token);
            }
            self.acked += 1;
        }
        Ok(())
    }

    /// The peer refused a fragment (the low bits of its number).
    pub(super) fn refused(&mut self, low: u32, why: RefusalReason) -> Result<Returned, InvalidAck> {
        let number = widen(self.acked, low, NUMBER_BITS);
        if number >= self.next {
            return Err(InvalidAck);
        }
        self.give_back(number, why).ok_or(InvalidAck)
    }

    fn give_back(&mut self, number: u64, why: RefusalReason) -> Option<Returned> {
        let slot = (number % self.window) as usize;
        let flight = self.flights.get_mut(slot).filter(|flight| !flight.refused)?;
        flight.refused = true;
        let (len, refusals) = (flight.len, flight.refusals);
        Some(Returned { slot: slot as u32, len, why, refusals, zero_copy: flight.zero_copy.take() })
    }

    /// Resumes after a queue pair failed: fragments that the peer has taken are released, those that it refused are
    /// returned.
    pub(super) fn resume(
        &mut self,
        taken: Taken,
        mut release: impl FnMut(SendToken),
        mut returned: impl FnMut(Returned),
    ) -> Result<(), InvalidAck> {
        if taken.count < self.acked || taken.count > self.next {
            return Err(InvalidAck);
        }
        for number in self.acked..taken.count {
            let behind = taken.count - 1 - number;
            if behind < 64 && taken.refused >> behind & 1 == 1 {
                // The refusal may have been received before.
                if let Some(fragment) = self.give_back(number, RefusalReason::NotReady) {
                    returned(fragment);
                }
            }
        }
        self.acknowledged(taken.count as u32, 32, &mut release)
    }

    /// The fragments to be posted again on a new queue pair, in order: slot, bytes of payload and trailer, and the payload, if it is not in the
    /// slot. The caller copies zero-copy payloads to their slots; they
    /// are no longer zero-copy here.
    pub(super) fn outstanding(&mut self) -> impl Iterator<Item = (u32, u32, Option<ZeroCopyPayload>)> + '_ {
        (self.acked..self.next).map(|number| {
            let slot = (number % self.window) as usize;
            let flight = self.flights.get_mut(slot);
            let (len, zero_copy) = flight.map_or((0, None), |flight| (flight.len, flight.zero_copy.take()));
            (slot as u32, len, zero_copy)
        })
    }

    /// Forgets everything that is out; nothing is released.
    pub(super) fn abandon(&mut self) {
        self.acked = self.next;
        self.flights.fill(InFlight::default());
    }
}

/// The state of a received fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FragmentState {
    /// It was taken, or refused.
    Settled(Option<RefusalReason>),
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
    /// The fragments behind the taken ones: an open one, and those behind it. Kept when the queue pair fails, so that a
    /// fragment that was handed on is not handed on again.
    states: VecDeque<FragmentState>,
    /// The part of `taken.count` that was reported to the peer.
    reported: u64,
    /// Refusals to be sent, with the fragments' numbers.
    refusals: VecDeque<(u64, Notification)>,
    /// The peer has requested an immediate acknowledgement.
    asked: bool,
}

impl Receiver {
    pub(super) fn new(window: u32) -> Self {
        Self {
            window: window.clamp(1, MAX_WINDOW).into(),
            taken: Taken { count: 0, refused: 0 },
            next: 0,
            states: VecDeque::new(),
            reported: 0,
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

    /// The state of the next fragment, if a former queue pair has delivered it.
    #[inline]
    pub(super) fn known(&self) -> Option<FragmentState> {
        match self.next.checked_sub(self.taken.count) {
            Some(behind) => self.states.get(behind as usize).copied(),
            // It was settled after the count was reported to the peer.
            None => Some(FragmentState::Settled(None)),
        }
    }

    /// The next fragment has come.
    #[inline]
    pub(super) fn came(&mut self, state: FragmentState) {
        let number = self.next;
        self.next += 1;
        match (number.checked_sub(self.taken.count), state) {
            (Some(0), FragmentState::Settled(refused)) if self.states.is_empty() => self.took(refused),
            (Some(behind), _) if behind as usize == self.states.len() => self.states.push_back(state),
            _ => self.settle(number, state),
        }
    }

    /// The outcome of a fragment is known now.
    pub(super) fn settle(&mut self, number: u64, state: FragmentState) {
        let behind = number.checked_sub(self.taken.count);
        if let Some(known) = behind.and_then(|behind| self.states.get_mut(behind as usize)) {
            *known = state;
        }
        while let Some(FragmentState::Settled(refused)) = self.states.front().copied() {
            self.states.pop_front();
            self.took(refused);
        }
    }

    /// The oldest fragment that was not taken was taken, or refused.
    #[inline]
    fn took(&mut self, refused: Option<RefusalReason>) {
        let count = self.taken.count;
        let number = count as u32;
        self.taken.count += 1;
        self.taken.refused = self.taken.refused << 1 | u64::from(refused.is_some());
        self.refusals.extend(refused.map(|why| (count, Notification::Refused(why, number))));
    }

    /// The peer waits for the count.
    #[inline]
    pub(super) fn ask(&mut self) {
        self.asked = true;
    }

    /// Whether the peer has requested an acknowledgement that is not sent yet.
    pub(super) fn is_asked(&self) -> bool {
        self.asked
    }

    /// The report of this direction for a new queue pair.
    pub(super) fn taken(&self) -> Taken {
        self.taken
    }

    /// The acknowledged count to put into the message sent now. It does not advance while refusals are pending.
    #[inline]
    pub(super) fn report(&mut self) -> u64 {
        if self.refusals.is_empty() {
            self.reported = self.reportable();
            self.asked = false;
        }
        self.reported
    }

    /// The count that may be reported. It excludes fragments that the peer has yet to send again on this queue pair.
    #[inline]
    fn reportable(&self) -> u64 {
        self.taken.count.min(self.next)
    }

    /// The next refusal; it is sent before any later count.
    #[inline]
    pub(super) fn refusal(&mut self) -> Option<Notification> {
        self.refusals.front().filter(|(number, _)| *number < self.next).map(|(_, notification)| *notification)
    }

    /// The refusal was sent.
    pub(super) fn refusal_said(&mut self) {
        self.refusals.pop_front();
    }

    /// Whether a count is to be sent without a fragment: at once if the peer has requested it or a quarter of the window is
    /// unacknowledged, else when idle.
    #[inline]
    pub(super) fn due(&self, idle: bool) -> bool {
        let unreported = self.reportable() - self.reported;
        unreported > 0 && (idle || self.asked || unreported * 4 >= self.window)
    }

    /// The queue pair is new: [`taken`](Self::taken) has reported everything to the peer.
    pub(super) fn resume(&mut self) {
        self.reported = self.taken.count;
        self.next = self.taken.count;
        self.asked = false;
        self.refusals.clear();
    }
}

#[cfg(test)]
mod tests;
