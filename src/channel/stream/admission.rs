//! Accepted connections whose peers have not authenticated themselves yet.

use std::collections::VecDeque;
use std::time::Duration;

use shouter_netstack::time::Instant;

use super::handshake::Nonce;

/// The most connections that have not authenticated themselves, beside those that are expected. Beyond it the oldest is
/// refused.
pub(super) const MAX_UNAUTHENTICATED: usize = 64;

/// The most connections that are expected at one time, however many peers there are.
pub(super) const MAX_EXPECTED: usize = 1024;

/// How long authentication may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// An accepted connection whose peer has not authenticated itself yet.
#[derive(Debug)]
pub(super) struct Candidate<Id> {
    id: Id,
    until: Instant,
    pub(super) challenge: Nonce,
    /// The part of its hello received so far.
    pub(super) said: Vec<u8>,
}

/// The candidates, and the connections that peers may still make.
#[derive(Debug)]
pub(super) struct Admission<Id> {
    /// In the order in which they came, which is that of their deadlines.
    candidates: VecDeque<Candidate<Id>>,
    /// Connections with peers that do not exist yet: either side may make them.
    missing: usize,
    /// Connections that were refused.
    refused: u64,
}

impl<Id: Copy + PartialEq> Admission<Id> {
    /// There are to be so many connections with peers.
    pub(super) fn new(missing: usize) -> Self {
        Self { candidates: VecDeque::new(), missing, refused: 0 }
    }

    /// The candidate that has to go before another can be admitted: the oldest, where there are too many. So many peers may connect at
    /// once as there may be; one that is crowded out dials again.
    pub(super) fn crowded_out(&self) -> Option<Id> {
        let is_full = self.candidates.len() >= MAX_UNAUTHENTICATED + self.missing.min(MAX_EXPECTED);
        self.candidates.front().filter(|_| is_full).map(|oldest| oldest.id)
    }

    /// Takes in a connection that was sent this challenge; returns by when it has to answer.
    pub(super) fn admit(&mut self, now: Instant, id: Id, challenge: Nonce) -> Instant {
        let until = now + PATIENCE;
        self.candidates.push_back(Candidate { id, until, challenge, said: vec![] });
        until
    }

    /// Candidates.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.candidates.len()
    }

    pub(super) fn get_mut(&mut self, id: Id) -> Option<&mut Candidate<Id>> {
        self.candidates.iter_mut().find(|candidate| candidate.id == id)
    }

    /// One of the connections with peers exists from now on; whether all do.
    pub(super) fn made(&mut self) -> bool {
        self.missing = self.missing.saturating_sub(1);
        self.missing == 0
    }

    /// The connection is refused; whether it is the first.
    pub(super) fn refuse(&mut self, id: Id) -> bool {
        self.forget(id);
        self.refused += 1;
        self.refused == 1
    }

    /// It is no candidate any more.
    pub(super) fn forget(&mut self, id: Id) {
        self.candidates.retain(|candidate| candidate.id != id);
    }

    /// The candidate that has to answer next, and by when.
    pub(super) fn next_due(&self) -> Option<(Id, Instant)> {
        self.candidates.front().map(|candidate| (candidate.id, candidate.until))
    }

    /// Connections that were refused.
    pub(super) fn refused(&self) -> u64 {
        self.refused
    }
}
