//! A group's way to its members: the reducer's [`Transport`] with the group's numbers, over the channels with those of the job.
//!
//! This is the one place where numbers of members become ranks of the job; the way back is [`Subgroup::fragment`](super::subgroup::Subgroup).
//! Every member gives the group a number of its own, which no other group of its process has, and messages to it carry that. So two groups
//! cannot be taken for each other, and no member has to know which numbers are free elsewhere. A member says its number when it
//! is first sent something, or sends something, and nothing but that goes to a member whose number is not known.

use shouter_reducer::grid::Rank;
use shouter_reducer::header::{Header, MatchKey};
use shouter_reducer::transport::{PayloadRange, SendError, SendToken, Transport};

use super::lineage::{Greeting, Lineage};
use super::members::Members;
use crate::channel::up::UpChannels;

/// What is known of a member.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Peer {
    /// The number that it has given the group.
    pub(super) id: Option<u32>,
    /// It was told the number that this rank has given the group.
    pub(super) greeted: bool,
    /// It has left after so many operations.
    pub(super) left: Option<u64>,
}

/// Where a group's messages go.
pub(super) struct Route<'a> {
    pub(super) up: &'a mut UpChannels,
    pub(super) members: &'a Members,
    pub(super) peers: &'a mut [Peer],
    pub(super) lineage: Lineage,
    /// The number that this rank has given the group.
    pub(super) id: u32,
    /// Whose its tokens are.
    pub(super) owner: u32,
}

impl Route<'_> {
    /// This rank's number in the job, and that of a member.
    #[inline]
    fn ends(&self, to: Rank) -> Option<(Rank, Rank)> {
        Some((self.members.rank(self.members.own())?, self.members.rank(to)?))
    }

    /// Tells a member the number that this rank has given the group.
    #[cold]
    pub(super) fn greet(&mut self, to: Rank) -> Result<(), SendError> {
        let (own, rank) = self.ends(to).ok_or(SendError::PeerFailed)?;
        let greeting = self.lineage.message(own, Greeting::Made(self.id));
        self.up.send(rank, &greeting, PayloadRange::empty(), SendToken::CONTROL)?;
        if let Some(peer) = self.peers.get_mut(to.0 as usize) {
            peer.greeted = true;
        }
        Ok(())
    }
}

impl Transport for Route<'_> {
    #[inline]
    fn max_fragment(&self, to: Rank) -> usize {
        self.members.rank(to).map_or(64, |rank| self.up.max_fragment(rank))
    }

    #[inline]
    fn send(
        &mut self,
        to: Rank,
        header: &Header,
        payload: PayloadRange,
        token: SendToken,
    ) -> Result<(), SendError> {
        let (own, rank) = self.ends(to).ok_or(SendError::PeerFailed)?;
        let Some(&peer) = self.peers.get(to.0 as usize) else { return Err(SendError::PeerFailed) };
        let Some(group) = peer.id else {
            if peer.left.is_some() {
                return Err(SendError::PeerFailed);
            }
            if !peer.greeted {
                self.greet(to)?;
            }
            // Its answer brings the number.
            return Err(SendError::Full);
        };
        let header = Header { src: own, key: MatchKey { group, ..header.key }, ..*header };
        self.up.send(rank, &header, payload, token.owned_by(self.owner))
    }

    #[inline]
    fn request_ack(&mut self, to: Rank) {
        if let Some(rank) = self.members.rank(to) {
            self.up.request_ack(rank);
        }
    }
}
