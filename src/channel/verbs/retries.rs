//! Fragments that a peer has refused, until they are sent again.

use std::collections::VecDeque;

use shouter_netstack::time::Instant;

/// A refused fragment.
#[derive(Debug)]
pub(super) struct Retry {
    /// When it is due again.
    at: Instant,
    /// Its payload and trailer.
    pub(super) bytes: Box<[u8]>,
    /// How often the peer has had no room for it.
    pub(super) refusals: u32,
}

/// The refused fragments of one peer, in the order in which they are due.
#[derive(Debug, Default)]
pub(super) struct Retries(VecDeque<Retry>);

impl Retries {
    /// Keeps a fragment until `at`, behind those that are due by then.
    pub(super) fn insert(&mut self, at: Instant, bytes: Box<[u8]>, refusals: u32) {
        let place = self.0.partition_point(|other| other.at <= at);
        self.0.insert(place, Retry { at, bytes, refusals });
    }

    /// When the first is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.0.front().map(|retry| retry.at)
    }

    /// Takes the first.
    pub(super) fn pop(&mut self) -> Option<Retry> {
        self.0.pop_front()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
