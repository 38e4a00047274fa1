//! The place of a rank among the peers of a channel.

use shouter_reducer::grid::Rank;

/// Indices of ranks: a look costs one access, and a rank that is no peer has none.
#[derive(Debug, Default)]
pub(super) struct ByRank(Vec<u32>);

/// In the place of a rank that is no peer.
const NONE: u32 = u32::MAX;

impl ByRank {
    /// The index of a rank.
    #[inline]
    pub(super) fn get(&self, rank: Rank) -> Option<usize> {
        self.0.get(rank.0 as usize).filter(|index| **index != NONE).map(|index| *index as usize)
    }
}

impl ByRank {
    /// The index of a rank is this from now on.
    pub(super) fn insert(&mut self, rank: Rank, index: usize) {
        let Self(places) = self;
        let at = rank.0 as usize;
        if places.len() <= at {
            places.resize(at + 1, NONE);
        }
        if let Some(place) = places.get_mut(at) {
            *place = u32::try_from(index).unwrap_or(NONE);
        }
    }
}

impl FromIterator<(Rank, usize)> for ByRank {
    fn from_iter<I: IntoIterator<Item = (Rank, usize)>>(all: I) -> Self {
        let mut by_rank = Self::default();
        all.into_iter().for_each(|(rank, index)| by_rank.insert(rank, index));
        by_rank
    }
}

#[cfg(test)]
mod tests;
