//! The peers of a channel: found by rank, and lost at most once each.

use shouter_reducer::grid::Rank;

use super::by_rank::ByRank;
use super::loss::{Loss, PeerLoss};

/// A peer and its state.
struct Entry<P> {
    rank: Rank,
    is_lost: bool,
    state: P,
}

/// Peers by index. A peer that was lost stays, for other indices to hold.
pub(super) struct Peers<P> {
    all: Vec<Entry<P>>,
    by_rank: ByRank,
    losses: Vec<PeerLoss>,
}

impl<P> FromIterator<(Rank, P)> for Peers<P> {
    fn from_iter<I: IntoIterator<Item = (Rank, P)>>(peers: I) -> Self {
        let all: Vec<_> =
            peers.into_iter().map(|(rank, state)| Entry { rank, is_lost: false, state }).collect();
        let by_rank = all.iter().zip(0..).map(|(entry, index)| (entry.rank, index)).collect();
        Self { all, by_rank, losses: vec![] }
    }
}

impl<P> Default for Peers<P> {
    fn default() -> Self {
        Self { all: vec![], by_rank: ByRank::default(), losses: vec![] }
    }
}

impl<P> Peers<P> {
    /// One more peer, which is none yet; its index.
    pub(super) fn add(&mut self, rank: Rank, state: P) -> usize {
        let index = self.all.len();
        self.all.push(Entry { rank, is_lost: false, state });
        self.by_rank.insert(rank, index);
        index
    }

    /// All indices.
    pub(super) fn indices(&self) -> std::ops::Range<usize> {
        0..self.all.len()
    }

    /// The index of a peer.
    #[inline]
    pub(super) fn index(&self, rank: Rank) -> Option<usize> {
        self.by_rank.get(rank)
    }

    /// The index of a peer that is not lost.
    #[inline]
    pub(super) fn present(&self, rank: Rank) -> Option<usize> {
        self.index(rank).filter(|index| !self.is_lost(*index))
    }

    /// Whether there is no such peer any more.
    #[inline]
    pub(super) fn is_lost(&self, index: usize) -> bool {
        self.all.get(index).is_none_or(|entry| entry.is_lost)
    }

    /// The rank of a peer.
    #[inline]
    pub(super) fn rank(&self, index: usize) -> Option<Rank> {
        self.all.get(index).map(|entry| entry.rank)
    }

    /// The state of a peer.
    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<&P> {
        self.all.get(index).map(|entry| &entry.state)
    }

    /// The state of a peer.
    #[inline]
    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut P> {
        self.all.get_mut(index).map(|entry| &mut entry.state)
    }

    /// The state of the peer of a rank.
    #[inline]
    pub(super) fn of(&self, rank: Rank) -> Option<&P> {
        self.get(self.index(rank)?)
    }

    /// All peers, lost or not.
    #[inline]
    pub(super) fn iter(&self) -> impl Iterator<Item = (Rank, &P)> {
        self.all.iter().map(|entry| (entry.rank, &entry.state))
    }

    /// All peers, lost or not.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (Rank, &mut P)> {
        self.all.iter_mut().map(|entry| (entry.rank, &mut entry.state))
    }

    /// The peers that are not lost.
    pub(super) fn all_present(&self) -> impl Iterator<Item = (Rank, &P)> {
        self.all.iter().filter(|entry| !entry.is_lost).map(|entry| (entry.rank, &entry.state))
    }

    /// The peers that are not lost, with their indices.
    pub(super) fn all_present_mut(&mut self) -> impl Iterator<Item = (usize, &mut P)> {
        let all = self.all.iter_mut().enumerate().filter(|(_, entry)| !entry.is_lost);
        all.map(|(index, entry)| (index, &mut entry.state))
    }

    /// A peer cannot be reached any more: notes why, the first time. `None` if it was lost before.
    pub(super) fn lose(&mut self, index: usize, why: Loss) -> Option<&mut P> {
        let entry = self.all.get_mut(index).filter(|entry| !entry.is_lost)?;
        entry.is_lost = true;
        self.losses.push(PeerLoss { rank: entry.rank, why });
        Some(&mut entry.state)
    }

    /// The same for a loss that is known already.
    pub(super) fn forget(&mut self, index: usize) {
        if let Some(entry) = self.all.get_mut(index) {
            entry.is_lost = true;
        }
    }

    /// Notes a loss for a reason of this rank's own; the peer counts as present.
    pub(super) fn blame(&mut self, index: usize, why: Loss) {
        self.losses.extend(self.rank(index).map(|rank| PeerLoss { rank, why }));
    }

    /// A loss that was noted since the last call.
    #[inline]
    pub(super) fn take_lost(&mut self) -> Option<PeerLoss> {
        self.losses.pop()
    }
}

#[cfg(test)]
mod tests;
