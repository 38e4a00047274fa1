//! The requests of this rank to one target.
//!
//! The target counts the requests that it has applied, and those that it has denied. A request without an answer has ended when it was
//! applied, and all denials up to there have come: the count may overtake a denial.

use super::accesses::Part;
use super::slots::Handle;
use super::{OVERHEAD, Outcome, REQUESTS};
use crate::header::Header;
use crate::p2p::fragments::{FragmentIs, Fragments};
use std::collections::VecDeque;

/// A request that has not ended.
#[derive(Debug)]
struct UnsettledRequest {
    seq: u64,
    access: Handle,
    cost: usize,
    answer: Option<AwaitedAnswer>,
    /// Its denial has come. It ends when the target has counted that, so denials are bounded as requests are.
    is_denied: bool,
}

/// The answer that a request waits for.
#[derive(Debug)]
struct AwaitedAnswer {
    /// Its offset in the access's memory.
    at: usize,
    len: usize,
    fragments: Fragments,
}

/// A fragment of an answer.
pub(super) struct Answered {
    pub(super) access: Handle,
    /// Its offset in the access's memory.
    pub(super) at: usize,
    /// The request has ended.
    pub(super) is_last: bool,
}

/// The requests to one target.
#[derive(Debug, Default)]
pub(super) struct Outbound {
    /// The number of the next request.
    next: u64,
    /// Accesses of which not all was asked for, in order.
    queue: VecDeque<Handle>,
    /// Requests that have not ended, in the order of their numbers.
    records: VecDeque<UnsettledRequest>,
    /// Their costs.
    in_flight: usize,
    /// The target has applied the requests before this number...
    applied: u64,
    /// ...and has denied so many of them.
    denied_there: u32,
    /// Denials of requests that have ended.
    denied_here: u32,
    is_active: bool,
}

impl Outbound {
    /// An access is to be posted, behind the earlier ones.
    pub(super) fn enqueue(&mut self, access: Handle) {
        self.queue.push_back(access);
    }

    /// The access that is posted now.
    #[inline]
    pub(super) fn front(&self) -> Option<Handle> {
        self.queue.front().copied()
    }

    /// Takes it off the queue.
    #[inline]
    pub(super) fn dequeue(&mut self) -> Option<Handle> {
        self.queue.pop_front()
    }

    /// Whether a request for so many bytes may be posted, with this bound for all of them. One request always may.
    #[inline]
    pub(super) fn has_room(&self, len: usize, bound: usize) -> bool {
        let has_room = self.in_flight + OVERHEAD + len <= bound && self.records.len() < REQUESTS;
        has_room || self.records.is_empty()
    }

    /// The number of the next request.
    #[inline]
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// The next request was posted.
    #[inline]
    pub(super) fn posted(&mut self, access: Handle, part: &Part) {
        let len = part.piece.bytes();
        let answer = part.answer_at.map(|at| AwaitedAnswer { at, len, fragments: Fragments::default() });
        let cost = OVERHEAD + len;
        self.records.push_back(UnsettledRequest { seq: self.next, access, cost, answer, is_denied: false });
        self.next += 1;
        self.in_flight += cost;
    }

    /// Marks the target as one of those that a poll looks at. False if it is.
    #[inline]
    pub(super) fn activate(&mut self) -> bool {
        !std::mem::replace(&mut self.is_active, true)
    }

    /// A poll looks at it no more.
    #[inline]
    pub(super) fn deactivate(&mut self) {
        self.is_active = false;
    }

    /// The place of the request of a number, if that has not ended.
    fn index_of(&self, seq: u64) -> Result<usize, Outcome> {
        if seq >= self.next {
            return Err(Outcome::Malformed);
        }
        self.records.binary_search_by_key(&seq, |record| record.seq).map_err(|_| Outcome::Repeated)
    }

    /// Takes a request out, which has ended.
    fn settle(&mut self, at: usize) -> Option<UnsettledRequest> {
        let record = self.records.remove(at)?;
        self.in_flight -= record.cost;
        Some(record)
    }

    /// A fragment of an answer has come.
    pub(super) fn on_answer(&mut self, header: &Header, payload: &[u8]) -> Result<Answered, Outcome> {
        let index = self.index_of(header.key.seq)?;
        let UnsettledRequest { access, answer, is_denied, .. } = &mut self.records[index];
        let Some(answer) = answer.as_mut().filter(|_| !*is_denied) else { return Err(Outcome::Malformed) };
        match answer.fragments.note(header, payload, answer.len) {
            FragmentIs::Malformed => return Err(Outcome::Malformed),
            FragmentIs::Repeated => return Err(Outcome::Repeated),
            FragmentIs::New => {}
        }
        let is_last = answer.fragments.are_complete(answer.len);
        let answered = Answered { access: *access, at: answer.at + header.offset as usize, is_last };
        if is_last {
            self.settle(index);
        }
        Ok(answered)
    }

    /// The target has denied a request; the access that it is of.
    pub(super) fn on_denied(&mut self, seq: u64) -> Result<Handle, Outcome> {
        let index = self.index_of(seq)?;
        let record = &mut self.records[index];
        match std::mem::replace(&mut record.is_denied, true) {
            true => Err(Outcome::Repeated),
            false => Ok(record.access),
        }
    }

    /// The target has applied the requests before a number, and denied so many of them.
    pub(super) fn on_applied(&mut self, applied: u64, denied: u32) -> Outcome {
        if applied > self.next {
            return Outcome::Malformed;
        }
        if applied <= self.applied {
            return Outcome::Repeated;
        }
        (self.applied, self.denied_there) = (applied, denied);
        Outcome::Taken
    }

    /// Ends the requests that were applied, unless a denial of one of them has still to come; their accesses.
    pub(super) fn settle_applied(&mut self) -> Vec<Handle> {
        let mut done = vec![];
        // Denials of later requests may be here already, and the target has not counted them.
        let applied = self.records.partition_point(|record| record.seq < self.applied);
        let denied = self.records.range(..applied).filter(|record| record.is_denied).count() as u32;
        if self.denied_here.wrapping_add(denied) == self.denied_there {
            self.denied_here = self.denied_there;
            let mut at = 0;
            while let Some(record) = self.records.get(at).filter(|record| record.seq < self.applied) {
                if record.answer.is_some() && !record.is_denied {
                    at += 1;
                } else if let Some(record) = self.settle(at) {
                    done.push(record.access);
                }
            }
        }
        done
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty() && self.queue.is_empty() && self.in_flight == 0
    }
}
