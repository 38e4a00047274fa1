//! A group's way to its members: the reducer's [`Transport`] with the group's numbers, over the channels with those of the job.
//!
//! This is the one place where numbers of members become ranks of the job; the way back is [`Subgroup::fragment`](super::subgroup::Subgroup).
//! Every member gives the group a number of its own, which no other group of its process has, and messages to it carry that. So two groups
//! cannot be taken for each other, and no member has to know which numbers are free elsewhere. A member says its number when it
//! is first sent something, or sends something, and nothing but that goes to a member whose number is not known.

use std::collections::VecDeque;
use std::sync::Arc;

use shouter_netstack::time::Instant;
use shouter_reducer::executor::OpId;
use shouter_reducer::grid::{Grid, Rank};
use shouter_reducer::header::{Header, MatchKey, MessageKind};
use shouter_reducer::transport::{LEAST_FRAGMENT, PayloadRange, SendError, SendToken, Transport};

use super::lineage::{Greeting, Lineage};
use crate::channel::up::UpChannels;
use crate::engine::end::is_behind;
use crate::engine::members::Members;
use crate::engine::requests::ARRIVES;

/// The state of a member.
#[derive(Clone, Copy, Debug, Default)]
struct Peer {
    /// The number that it has given the group.
    id: Option<u32>,
    /// It was sent the number that this rank has given the group.
    greeted: bool,
    /// It has left after so many operations.
    left: Option<u64>,
}

/// A control message that waits to be posted.
struct Waiting {
    /// A member.
    to: Rank,
    header: Header,
}

/// The members of a group as this rank reaches them: their numbers, the control messages to them, and those that have left.
pub(super) struct Peers {
    /// The number that this rank has given the group.
    id: u32,
    /// The owner of its tokens.
    owner: u32,
    lineage: Lineage,
    members: Arc<Members>,
    /// The hosts of the job's ranks.
    job: Grid,
    states: Box<[Peer]>,
    /// Members that are to be sent this rank's number.
    ungreeted: Vec<Rank>,
    waiting: VecDeque<Waiting>,
    /// A member has left, or a rank by which members are reached.
    has_left: bool,
    /// Such ranks that have left the job, as errors name them, each with the time from which nothing that it has sent on is on its way any more.
    cut: Vec<(Rank, Option<Instant>)>,
}

impl Peers {
    /// The members of a group that this rank makes.
    pub(super) fn new(
        (id, owner): (u32, u32),
        lineage: Lineage,
        (members, job): (Arc<Members>, Grid),
    ) -> Self {
        let states = vec![Peer::default(); members.size() as usize].into();
        Self {
            id,
            owner,
            lineage,
            members,
            job,
            states,
            ungreeted: vec![],
            waiting: VecDeque::new(),
            has_left: false,
            cut: vec![],
        }
    }

    /// The number that this rank has given the group.
    #[inline]
    pub(super) fn id(&self) -> u32 {
        self.id
    }

    pub(super) fn lineage(&self) -> Lineage {
        self.lineage
    }

    #[inline]
    pub(super) fn members(&self) -> &Arc<Members> {
        &self.members
    }

    /// The hosts of the job's ranks.
    pub(super) fn job(&self) -> Grid {
        self.job
    }

    /// This rank's number in the group.
    pub(super) fn own(&self) -> Rank {
        self.members.own()
    }

    /// This rank's number in the job.
    fn own_in_job(&self) -> Rank {
        self.members.own_in_job()
    }

    fn peer(&self, number: Rank) -> Option<&Peer> {
        self.states.get(number.0 as usize)
    }

    /// This rank's number in the job, and that of a member.
    #[inline]
    fn ends(&self, to: Rank) -> Option<(Rank, Rank)> {
        Some((self.members.rank(self.members.own())?, self.members.rank(to)?))
    }

    /// Takes a rank's message about the group. Returns the rank's number in the group if it has left now.
    pub(super) fn greeted(&mut self, rank: Rank, greeting: Greeting) -> Option<Rank> {
        let number = self.members.number(rank)?;
        let peer = self.states.get_mut(number.0 as usize)?;
        match greeting {
            Greeting::Made(id) => {
                peer.id = Some(id);
                if !peer.greeted {
                    self.ungreeted.push(number);
                }
                None
            }
            Greeting::Left(started) => {
                self.has_left = true;
                peer.left.replace(started).is_none().then_some(number)
            }
        }
    }

    /// A rank has left the job. Returns its name in errors if it is a member that may never have made the group, or a leader that
    /// others are reached by.
    pub(super) fn departed(&mut self, rank: Rank) -> Option<Rank> {
        let (job, own) = (self.job, self.own_in_job());
        let is_there = self.members.number(rank).is_some_and(|number| self.is_there(number));
        if !is_there && !self.members.ranks().iter().any(|member| is_behind(&job, own, rank, *member)) {
            return None;
        }
        let name = self.members.name(rank);
        self.cut.push((name, None));
        self.has_left = true;
        Some(name)
    }

    /// Whether a member has left, or a rank by which members are reached.
    #[inline]
    pub(super) fn has_left(&self) -> bool {
        self.has_left
    }

    /// Whether this member has not left the group.
    fn is_there(&self, number: Rank) -> bool {
        self.peer(number).is_some_and(|peer| peer.left.is_none())
    }

    /// Whether this member can be reached, as far as is known.
    pub(super) fn is_within_reach(&self, number: Rank) -> bool {
        self.is_there(number) && self.cut.iter().all(|(name, _)| *name != number)
    }

    /// A rank for which an operation, the oldest under way, waits in vain: a member that takes no part in it, or a rank that has left the job
    /// so long ago that nothing of it is on its way any more.
    #[cold]
    pub(super) fn absent_from(&mut self, now: Instant, OpId(op): OpId) -> Option<Rank> {
        let is_absent = |peer: &Peer| peer.left.is_some_and(|started| started <= op);
        if let Some(number) = self.states.iter().position(is_absent) {
            return Some(Rank(number as u32));
        }
        let states = &self.states;
        // Its messages may be enough where it has left the group before: then it has said how many operations it has started.
        let said_nothing = |name: Rank| states.get(name.0 as usize).is_none_or(|peer| peer.left.is_none());
        let mut passed = self
            .cut
            .iter_mut()
            .filter(|(name, _)| said_nothing(*name))
            .filter_map(|(name, until)| (now >= *until.get_or_insert(now + ARRIVES)).then_some(*name));
        passed.next()
    }

    /// Whether messages from this rank to a member go by a leader, both named as in errors.
    pub(super) fn behind(&self) -> impl Fn(Rank, Rank) -> bool + Copy {
        let (job, members) = (self.job, &*self.members);
        let rank = |number| members.named(number).0;
        move |left, number| is_behind(&job, rank(members.own()), rank(left), rank(number))
    }

    /// Whether a control message waits to be posted.
    #[inline]
    pub(super) fn has_messages(&self) -> bool {
        !self.waiting.is_empty() || !self.ungreeted.is_empty()
    }

    /// Whether all control messages to the members were posted.
    #[inline]
    pub(super) fn has_sent_all(&self) -> bool {
        self.waiting.is_empty()
    }

    /// All other members are sent this rank's number at the next poll. Where operations meet in lanes no message of theirs does that, and
    /// the abort message must find a number even where its receiver is stopped meanwhile.
    pub(super) fn greet_all(&mut self) {
        let own = self.own();
        self.ungreeted = (0..self.members.size()).map(Rank).filter(|number| *number != own).collect();
    }

    /// Answers members that have said their number; whether one was answered.
    pub(super) fn greet(&mut self, up: &mut UpChannels) -> bool {
        let mut ungreeted = std::mem::take(&mut self.ungreeted);
        let asked = ungreeted.len();
        let mut route = Route { up, peers: self };
        ungreeted.retain(|&number| {
            let is_known = route.peers.peer(number).is_none_or(|peer| peer.greeted);
            !is_known && route.greet(number) == Err(SendError::Full)
        });
        let worked = ungreeted.len() < asked;
        self.ungreeted = ungreeted;
        worked
    }

    /// A control message to all members but those that have left.
    pub(super) fn send_to_all(&mut self, header: &Header) {
        let own = self.own();
        let numbers = (0..).map(Rank).zip(&self.states);
        let there = numbers.filter(|(number, peer)| *number != own && peer.left.is_none());
        self.waiting.extend(there.map(|(to, _)| Waiting { to, header: *header }));
    }

    /// Posts the control messages that find room; whether there was one.
    pub(super) fn send_waiting(&mut self, up: &mut UpChannels) -> bool {
        if self.waiting.is_empty() {
            return false;
        }
        let mut waiting = std::mem::take(&mut self.waiting);
        let before = waiting.len();
        let mut route = Route { up, peers: self };
        waiting.retain(|Waiting { to, header }| {
            let nothing = PayloadRange::empty();
            let sent = match (header.kind, route.peers.members.rank(*to)) {
                // It names the group by its lineage, so it needs no number of the receiver's.
                (MessageKind::Member, Some(rank)) => route.up.send(rank, header, nothing, SendToken::CONTROL),
                _ => route.send(*to, header, nothing, SendToken::CONTROL),
            };
            sent == Err(SendError::Full)
        });
        let worked = waiting.len() < before;
        self.waiting = waiting;
        worked
    }

    /// Nothing more is said of what waits.
    pub(super) fn forget_waiting(&mut self) {
        self.waiting.clear();
    }

    /// This rank leaves in good order, after so many operations.
    pub(super) fn leave(&mut self, started: u64) {
        self.send_to_all(&self.lineage.message(self.own_in_job(), Greeting::Left(started)));
    }

    /// This rank leaves a group that has ended: members that have not made it are notified of its end so.
    pub(super) fn leave_ended(&mut self) {
        let left = self.lineage.message(self.own_in_job(), Greeting::Left(0));
        let Self { waiting, states, .. } = self;
        waiting
            .iter_mut()
            .filter(|waiting| states.get(waiting.to.0 as usize).is_some_and(|peer| peer.id.is_none()))
            .for_each(|waiting| waiting.header = left);
    }
}

/// The way of a group's messages.
pub(super) struct Route<'a> {
    pub(super) up: &'a mut UpChannels,
    pub(super) peers: &'a mut Peers,
}

impl Route<'_> {
    /// Sends a member the number that this rank has given the group.
    #[cold]
    fn greet(&mut self, to: Rank) -> Result<(), SendError> {
        let (own, rank) = self.peers.ends(to).ok_or(SendError::PeerFailed)?;
        let greeting = self.peers.lineage.message(own, Greeting::Made(self.peers.id));
        self.up.send(rank, &greeting, PayloadRange::empty(), SendToken::CONTROL)?;
        if let Some(peer) = self.peers.states.get_mut(to.0 as usize) {
            peer.greeted = true;
        }
        Ok(())
    }
}

impl Transport for Route<'_> {
    #[inline]
    fn max_fragment(&self, to: Rank) -> usize {
        self.peers.members.rank(to).map_or(LEAST_FRAGMENT, |rank| self.up.max_fragment(rank))
    }

    #[inline]
    fn send(
        &mut self,
        to: Rank,
        header: &Header,
        payload: PayloadRange,
        token: SendToken,
    ) -> Result<(), SendError> {
        let (own, rank) = self.peers.ends(to).ok_or(SendError::PeerFailed)?;
        let Some(&peer) = self.peers.peer(to) else { return Err(SendError::PeerFailed) };
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
        self.up.send(rank, &header, payload, token.owned_by(self.peers.owner))
    }

    #[inline]
    fn request_ack(&mut self, to: Rank) {
        if let Some(rank) = self.peers.members.rank(to) {
            self.up.request_ack(rank);
        }
    }
}
