//! The members of a group of some ranks: a rank has one number in the job and another in the group.

use std::sync::Arc;

use shouter_reducer::grid::Rank;

/// The members of a group, in the order of their numbers there.
#[derive(Debug)]
pub(crate) struct Members {
    /// By number in the group: the rank in the job.
    ranks: Arc<[Rank]>,
    /// Both, by rank in the job.
    numbers: Box<[(Rank, Rank)]>,
    /// This rank's number.
    own: Rank,
    /// This rank in the job: `ranks[own]`.
    own_in_job: Rank,
}

/// Why ranks are no members of a group that this rank makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MembersError {
    /// This rank comes twice.
    Twice(Rank),
    /// The rank that makes the group is not among them.
    NotOne,
}

impl Members {
    /// These ranks of the job, as rank `own_in_job` sees them.
    pub(crate) fn new(ranks: Vec<Rank>, own_in_job: Rank) -> Result<Self, MembersError> {
        let mut numbers: Vec<_> = ranks.iter().copied().zip((0..).map(Rank)).collect();
        numbers.sort_unstable();
        if let Some(pair) = numbers.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(MembersError::Twice(pair[0].0));
        }
        let at =
            numbers.binary_search_by_key(&own_in_job, |(rank, _)| *rank).map_err(|_| MembersError::NotOne)?;
        let own = numbers[at].1;
        Ok(Self { ranks: ranks.into(), numbers: numbers.into(), own, own_in_job })
    }

    /// How many they are.
    pub(crate) fn size(&self) -> u32 {
        self.ranks.len() as u32
    }

    /// This rank's number in the group.
    pub(crate) fn own(&self) -> Rank {
        self.own
    }

    /// This rank in the job.
    pub(crate) fn own_in_job(&self) -> Rank {
        self.own_in_job
    }

    /// The ranks in the job, in the order of the numbers in the group.
    pub(crate) fn ranks(&self) -> &Arc<[Rank]> {
        &self.ranks
    }

    /// The rank in the job of the member with this number.
    #[inline]
    pub(crate) fn rank(&self, number: Rank) -> Option<Rank> {
        self.ranks.get(number.0 as usize).copied()
    }

    /// The number in the group of a rank of the job, if it is a member.
    #[inline]
    pub(crate) fn number(&self, rank: Rank) -> Option<Rank> {
        let at = self.numbers.binary_search_by_key(&rank, |(rank, _)| *rank).ok()?;
        Some(self.numbers[at].1)
    }

    /// How an error of the group names a rank of the job: by its number in the group; one that is no member has a number behind those.
    pub(crate) fn name(&self, rank: Rank) -> Rank {
        self.number(rank).unwrap_or(Rank(self.size().saturating_add(rank.0)))
    }

    /// The reverse: the rank of the job, and whether it is a member.
    pub(crate) fn named(&self, number: Rank) -> (Rank, bool) {
        match self.rank(number) {
            Some(rank) => (rank, true),
            None => (Rank(number.0 - self.size()), false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_ranks_lead_to_each_other() {
        let members = Members::new([7, 2, 5].map(Rank).into(), Rank(5)).unwrap();
        assert_eq!((members.size(), members.own(), members.own_in_job()), (3, Rank(2), Rank(5)));
        assert_eq!(
            [0, 1, 2, 3].map(|number| members.rank(Rank(number))),
            [Some(Rank(7)), Some(Rank(2)), Some(Rank(5)), None]
        );
        assert_eq!(
            [2, 5, 7, 6].map(|rank| members.number(Rank(rank))),
            [Some(Rank(1)), Some(Rank(2)), Some(Rank(0)), None]
        );
        for rank in 0..10 {
            let (named, is_member) = members.named(members.name(Rank(rank)));
            assert_eq!((named, is_member), (Rank(rank), [7, 2, 5].contains(&rank)));
        }
    }

    #[test]
    fn who_is_no_member_or_comes_twice_is_refused() {
        let of =
            |ranks: &[u32], own| Members::new(ranks.iter().copied().map(Rank).collect(), Rank(own)).err();
        assert_eq!(of(&[1, 2], 0), Some(MembersError::NotOne));
        assert_eq!(of(&[], 0), Some(MembersError::NotOne));
        assert_eq!(of(&[0, 2, 2], 0), Some(MembersError::Twice(Rank(2))));
        assert_eq!(of(&[0], 0), None);
    }
}
