//! Accepted connections whose peers have not authenticated themselves yet.

use std::collections::VecDeque;
use std::time::Duration;

use shouter_netstack::time::Instant;

use super::handshake::Nonce;

/// The most connections that have not authenticated themselves, beside those that are expected, while the job comes together. Beyond it the
/// oldest is refused.
pub(super) const MAX_UNAUTHENTICATED: usize = 64;

/// The most connections that are expected at one time, however many peers there are.
pub(super) const MAX_EXPECTED: usize = 1024;

/// The most connections that have not authenticated themselves after the join, those that are expected included, where a peer makes no
/// more than half as many. Strangers may come all through the job, and every connection takes one of the process's open files.
pub(super) const MAX_LATER: usize = 128;

/// The most connections that are accepted in one poll: a peer's data do not wait for more.
pub(super) const MAX_ACCEPTED: usize = 64;

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
    /// How many of them one peer makes at once.
    each: usize,
    has_joined: bool,
    /// Connections that this poll may still accept.
    left: usize,
    /// There may be more to accept, of which nothing reports any more.
    is_behind: bool,
    /// Connections that were refused.
    refused: u64,
}

impl<Id: Copy + PartialEq> Admission<Id> {
    /// There are to be connections with so many peers, `each` with each.
    pub(super) fn new(peers: usize, each: usize) -> Self {
        Self {
            candidates: VecDeque::new(),
            missing: peers * each,
            each,
            has_joined: false,
            left: MAX_ACCEPTED,
            is_behind: false,
            refused: 0,
        }
    }

    /// A poll begins; whether the last one has left connections to be accepted.
    #[inline]
    pub(super) fn begin_poll(&mut self) -> bool {
        self.left = MAX_ACCEPTED;
        std::mem::take(&mut self.is_behind)
    }

    /// Whether this poll may accept one more. If not, the next one goes on.
    pub(super) fn takes_one_more(&mut self) -> bool {
        self.is_behind = self.left == 0;
        self.left = self.left.saturating_sub(1);
        !self.is_behind
    }

    /// Whether the next poll is to accept connections that no event reports.
    #[inline]
    pub(super) fn is_behind(&self) -> bool {
        self.is_behind
    }

    /// The candidate that has to go before another can be admitted: the oldest, where there are too many. At the join so many peers may
    /// connect at once as there may be. A peer that is crowded out dials again.
    pub(super) fn crowded_out(&self) -> Option<Id> {
        let most = match self.has_joined {
            false => MAX_UNAUTHENTICATED + self.missing.min(MAX_EXPECTED),
            true => MAX_LATER.max(2 * self.each),
        };
        let is_full = self.candidates.len() >= most;
        self.candidates.front().filter(|_| is_full).map(|oldest| oldest.id)
    }

    /// The job has come together.
    pub(super) fn joined(&mut self) {
        self.has_joined = true;
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
