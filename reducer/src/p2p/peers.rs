//! All peers, and the lists of those that a poll looks at.

use super::peer::Peer;
use crate::grid::Rank;
use core::time::Duration;

/// The time from a message that was taken until the report to its sender, so that others join the report.
pub(super) const REPORT_DELAY: Duration = Duration::from_millis(1);

/// The peers by rank; each is made at the first use.
#[derive(Debug)]
pub(super) struct Peers {
    all: Vec<Option<Box<Peer>>>,
    active: Vec<Rank>,
    reports: Vec<Rank>,
    /// The time of the next reports.
    pub(super) report_at: Duration,
}

impl Default for Peers {
    fn default() -> Self {
        Self { all: vec![], active: vec![], reports: vec![], report_at: Duration::MAX }
    }
}

impl Peers {
    /// One, which is a rank of the group.
    #[inline]
    pub(super) fn at(&mut self, rank: Rank) -> &mut Peer {
        let index = rank.0 as usize;
        if index >= self.all.len() {
            self.all.resize_with(index + 1, || None);
        }
        self.all[index].get_or_insert_default()
    }

    /// A peer that is there.
    pub(super) fn get(&self, rank: Rank) -> Option<&Peer> {
        self.all.get(rank.0 as usize)?.as_deref()
    }

    /// The peers that are there.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Rank, &Peer)> {
        (0..).map(Rank).zip(&self.all).filter_map(|(rank, peer)| Some((rank, peer.as_deref()?)))
    }

    /// The peers that are there, to be changed.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (Rank, &mut Peer)> {
        (0..).map(Rank).zip(&mut self.all).filter_map(|(rank, peer)| Some((rank, peer.as_deref_mut()?)))
    }

    /// The next poll looks at this one.
    #[inline]
    pub(super) fn activate(&mut self, rank: Rank) {
        let peer = self.at(rank);
        if !peer.active {
            peer.active = true;
            self.active.push(rank);
        }
    }

    pub(super) fn are_active(&self) -> bool {
        !self.active.is_empty()
    }

    /// An active one; `None` behind the last.
    pub(super) fn active(&self, at: usize) -> Option<Rank> {
        self.active.get(at).copied()
    }

    /// Nothing is left to do for an active one; the last one takes its place.
    pub(super) fn deactivate(&mut self, at: usize) {
        let rank = self.active.swap_remove(at);
        self.at(rank).active = false;
    }

    /// Notes that a rank gets a report of the messages that were taken.
    pub(super) fn report_later(&mut self, rank: Rank, now: Duration) {
        let peer = self.at(rank);
        if !peer.report_due {
            peer.report_due = true;
            self.reports.push(rank);
            self.report_at = self.report_at.min(now.saturating_add(REPORT_DELAY));
        }
    }

    /// The last one that gets a report.
    pub(super) fn next_to_report(&mut self) -> Option<Rank> {
        let Some(rank) = self.reports.pop() else {
            self.report_at = Duration::MAX;
            return None;
        };
        self.at(rank).report_due = false;
        Some(rank)
    }

    /// Forgets all of them.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}
