//! Divergence: ranks that run different operations, and the vote on which of them is wrong.
//!
//! A difference is found where two views of one operation meet: on a node, before any rank uses what another has staged, and
//! between nodes, in the header of every message. From then on that operation and later ones are suspended; earlier ones continue.
//! Every leader sends the others the views that the ranks of its node have of the operation in dispute: its *votes*. All tally the
//! same votes, so the group ends with the same culprit for all: the lowest rank whose view is not that of the majority. Where no
//! view has a majority, both are shown.

use super::Executor;
use super::agreement::NodeAgreement;
use super::api::{AbortReason, Divergence};
use super::deadlines::missing;
use super::op::OpState;
use crate::grid::Rank;
use crate::header::{GRANULE_UNIT, Header, MatchKey, MessageKind, View};
use crate::recorder::{Record, RecordKind};
use crate::transport::NodeMemory;
use std::collections::BTreeMap;

/// Ranks of a node that have the same view of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vote {
    /// The view that they have.
    pub view: View,
    /// The lowest of them.
    pub rank: Rank,
    /// How many they are.
    pub ranks: u32,
}

/// The votes on one operation.
#[derive(Debug)]
pub struct Tally {
    seq: u64,
    /// By node: its votes, and whether it has cast all.
    nodes: BTreeMap<u32, (Vec<Vote>, bool)>,
}

impl Tally {
    /// No votes on operation `seq`.
    pub fn new(seq: u64) -> Self {
        Self { seq, nodes: BTreeMap::new() }
    }

    /// The operation's number.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// A view that a rank of a node was seen to have; counts until the node votes.
    fn add_view(&mut self, node: u32, view: View, rank: Rank) {
        self.nodes.entry(node).or_insert_with(|| (vec![Vote { view, rank, ranks: 1 }], false));
    }

    /// All votes of a node.
    pub fn cast(&mut self, node: u32, votes: Vec<Vote>) {
        self.nodes.insert(node, (votes, true));
    }

    /// One vote of a node, with or without more to come.
    fn add(&mut self, node: u32, vote: Vote, is_last: bool) {
        let (votes, all) = self.nodes.entry(node).or_default();
        votes.retain(|other| other.rank != vote.rank);
        if vote.ranks > 0 {
            votes.push(vote);
        }
        *all |= is_last;
    }

    /// Whether so many nodes have voted.
    fn is_complete(&self, nodes: u32) -> bool {
        self.nodes.values().filter(|(_, all)| *all).count() as u64 >= u64::from(nodes)
    }

    /// The nodes that have not cast all their votes.
    fn absent(&self, nodes: u32) -> impl Iterator<Item = u32> {
        (0..nodes).filter(|node| self.nodes.get(node).is_none_or(|(_, all)| !all))
    }

    /// The verdict of the votes for a rank whose own view is this one; `None` where they show no difference.
    pub fn judge(&self, own: Option<View>) -> Option<Divergence> {
        let mut views: Vec<Vote> = Vec::new();
        for vote in self.nodes.values().flat_map(|(votes, _)| votes) {
            match views.iter_mut().find(|other| other.view == vote.view) {
                Some(other) => {
                    other.rank = other.rank.min(vote.rank);
                    other.ranks += vote.ranks;
                }
                None => views.push(*vote),
            }
        }
        views.sort_by_key(|vote| (std::cmp::Reverse(vote.ranks), vote.rank));
        let (first, second) = (*views.first()?, *views.get(1)?);
        let is_majority = first.ranks > second.ranks;
        // Without a majority a rank sees its own view, and another one.
        let ours = views.iter().find(|vote| Some(vote.view) == own).filter(|_| !is_majority);
        let expected = ours.copied().unwrap_or(first);
        let others = views.iter().filter(|vote| vote.view != expected.view);
        let odd = others.min_by_key(|vote| vote.rank)?;
        Some(Divergence {
            seq: self.seq,
            rank: odd.rank,
            found: odd.view,
            other: expected.rank,
            expected: expected.view,
            is_majority,
        })
    }
}

impl Executor {
    /// Ranks run different operations as `seq`, as was found here or reported by a peer: that operation and later ones are suspended
    /// until the votes are in and [`conclude`](Self::conclude) ends the group.
    pub fn diverge(&mut self, seq: u64, suspect: Rank) {
        if !self.ended.is_over() && self.agreement.dispute(seq, suspect) {
            self.control.note(Record { rank: Some(suspect), seq, ..Record::of(RecordKind::Diverged) });
        }
    }

    /// The operation that ranks disagree about.
    pub fn diverged(&self) -> Option<u64> {
        self.agreement.disputed()
    }

    /// The views that the ranks of this node have of the operation in dispute, as messages for the other leaders.
    pub fn vote<N: NodeMemory>(&mut self, node: Option<&N>) -> Vec<Header> {
        let (grid, me) = (self.config.grid, self.config.rank);
        let Some(seq) = self.diverged() else { return Vec::new() };
        self.control.note(Record { rank: Some(me), seq, ..Record::of(RecordKind::Voted) });
        let own = self.own_view(seq);
        let mut votes: Vec<Vote> = Vec::new();
        for (rank, local) in grid.ranks_on(grid.node_of(me)).zip(0..) {
            let told = node.and_then(|node| node.view(local, seq));
            let Some(view) = told.or(own.filter(|_| rank == me)) else { continue };
            match votes.iter_mut().find(|vote| vote.view == view) {
                Some(vote) => vote.ranks += 1,
                None => votes.push(Vote { view, rank, ranks: 1 }),
            }
        }
        if let Some(tally) = self.agreement.tally_of(seq) {
            tally.cast(grid.node_of(me), votes.clone());
        }
        let template = Header {
            kind: MessageKind::Vote,
            src: me,
            key: MatchKey { group: self.config.group, epoch: self.config.epoch, seq },
            ..*self.ring.op(0).template()
        };
        if votes.is_empty() {
            return vec![Header { round: me.0, offset: 0, granule: 0, len: 0, ..template }];
        }
        let last = votes.len() - 1;
        let message = |(index, vote): (usize, &Vote)| Header {
            identity: vote.view.identity,
            shape: vote.view.shape,
            round: vote.rank.0,
            offset: 0,
            granule: if index == last { 0 } else { GRANULE_UNIT as u32 },
            len: vote.ranks,
            ..template
        };
        votes.iter().enumerate().map(message).collect()
    }

    /// Whether all nodes have voted.
    pub fn has_all_votes(&self) -> bool {
        self.agreement.tally().is_none_or(|tally| tally.is_complete(self.config.grid.nodes()))
    }

    /// Whether the votes show no difference, those of several nodes are missing, and none of these is known to be dead: which has died
    /// is known when the others' votes have come.
    pub fn lacks_votes_of_several(&self) -> bool {
        let (Some(votes), Some(seq)) = (self.agreement.tally(), self.diverged()) else { return false };
        let grid = self.config.grid;
        votes.absent(grid.nodes()).nth(1).is_some()
            && votes.judge(self.own_view(seq)).is_none()
            && self.dead_without_vote().is_none()
    }

    /// The first rank that was reported dead of those whose node has not voted. Ranks that hear of a death before they hear of the
    /// dispute leave without a vote as well, later.
    fn dead_without_vote(&self) -> Option<Rank> {
        let (votes, grid) = (self.agreement.tally()?, self.config.grid);
        let has_voted = |rank: Rank| votes.absent(grid.nodes()).all(|node| node != grid.node_of(rank));
        self.agreement.dead().iter().copied().find(|rank| !has_voted(*rank))
    }

    /// Ends the group with what the votes say; with what is known if not all have voted.
    pub fn conclude<N: NodeMemory>(&mut self, node: Option<&N>) -> Option<Divergence> {
        let seq = self.diverged()?;
        let own = self.own(node, seq);
        let found = self.agreement.tally()?.judge(own);
        self.blame(found, own);
        found
    }

    /// Ends the group with a divergence, as a rank of the node has found it; this rank's own view is `own`.
    pub fn blame(&mut self, found: Option<Divergence>, own: Option<View>) {
        let (culprit, why) = match found.map(|divergence| divergence.seen_with(own)) {
            Some(found) => (found.rank, AbortReason::Diverged(Some(Box::new(found)))),
            None => match self.dead_without_vote() {
                Some(dead) => (dead, AbortReason::Failed),
                None => (self.suspect(), AbortReason::Diverged(None)),
            },
        };
        self.end_for(culprit, why, None);
    }

    /// The culprit where the votes show no difference. All that have voted run the same, so a leader names one that has not: it may have
    /// died, and what differs was seen by others only.
    fn suspect(&self) -> Rank {
        let (grid, rank) = (self.config.grid, self.config.rank);
        let votes = self.agreement.tally().filter(|_| grid.is_leader(rank));
        let absent = votes.and_then(|votes| votes.absent(grid.nodes()).next());
        absent.map_or(self.agreement.suspect(), |node| grid.leader_of(node))
    }

    /// This rank's view of operation `seq`: that of the operation that it runs under this number.
    pub fn own<N: NodeMemory>(&self, node: Option<&N>, seq: u64) -> Option<View> {
        let me = self.config.grid.local_of(self.config.rank);
        node.and_then(|node| node.view(me, seq)).or(self.own_view(seq))
    }

    /// This rank's view of an operation, as long as no later one has taken its place.
    pub(super) fn own_view(&self, seq: u64) -> Option<View> {
        let op = self.ring.op(seq);
        (op.seq() == seq).then(|| op.view())
    }

    /// A message of another operation than the one that runs here in its place.
    pub(super) fn differs(&mut self, header: &Header) {
        let seq = header.key.seq;
        self.diverge(seq, header.src);
        let view = header.view();
        if let Some(tally) = self.agreement.tally_of(seq) {
            tally.add_view(self.config.grid.node_of(header.src), view, header.src);
        }
    }

    /// Another leader's vote.
    pub(super) fn on_vote(&mut self, header: &Header) {
        let grid = self.config.grid;
        let node = grid.node_of(header.src);
        let rank = Rank(header.round);
        if !grid.contains(rank) || grid.node_of(rank) != node || header.len > grid.locals(node) {
            self.counters.malformed += 1;
            return;
        }
        let (src, seq) = (Some(header.src), header.key.seq);
        self.control.note(Record { rank: src, seq, ..Record::of(RecordKind::VoteReceived) });
        self.diverge(seq, rank);
        let view = header.view();
        if let Some(tally) = self.agreement.tally_of(seq) {
            tally.add(node, Vote { view, rank, ranks: header.len }, header.granule == 0);
        }
    }
}

impl Executor {
    /// For operations that wait for long: looks whether a rank of the node runs something else than this rank, and tells the
    /// nodes that it waits for which operation this is, once for each. The group ends where they run something else. To be called again and
    /// again: whom an operation waits for changes as it goes on.
    #[cold]
    pub fn compare<N: NodeMemory>(&mut self, node: Option<&N>) {
        if let Some(node) = node {
            self.compare_on_node(node);
        }
        let (grid, rank) = (self.config.grid, self.config.rank);
        // Later ones may only wait for the first.
        let Some(op) = self.ring.running().min_by_key(|op| op.seq()) else { return };
        // A credit for nothing.
        let question = Header { kind: MessageKind::Credit, ..*op.template() };
        for other in missing(op, grid, rank, node) {
            if grid.node_of(other) != grid.node_of(rank) && self.agreement.asks(op.seq(), other) {
                self.control.push(other, question);
            }
        }
    }

    /// Compares what the ranks of the node have started, as far as all have; whether that is the same.
    #[cold]
    pub(super) fn follow_node<N: NodeMemory>(&mut self, node: Option<&N>) -> bool {
        let (Some(node), Some(last)) = (node, self.ring.next_seq().checked_sub(1)) else { return true };
        match self.agreement.reaches(node, last) {
            NodeAgreement::Differs(seq) => {
                self.found_on_node(node, seq);
                false
            }
            _ => true,
        }
    }

    /// What another rank has begun in the place of the next operation that starts here: as its node's memory says, or, of a leader of another
    /// node, its messages.
    #[cold]
    pub fn begun_by<N: NodeMemory>(&self, node: Option<&N>, rank: Rank) -> Option<View> {
        let (grid, next) = (self.config.grid, self.ring.next_seq());
        match grid.node_of(rank) == grid.node_of(self.config.rank) {
            true => node?.view(grid.local_of(rank), next),
            false => self.ring.op(next).early.view_of(next, rank),
        }
    }

    fn compare_on_node<N: NodeMemory>(&mut self, node: &N) {
        if !self.follow_node(Some(node)) {
            return;
        }
        // A rank that has not come so far may run something without a number of its own there.
        let seq = self.agreement.through();
        let running = self.ring.op(seq).state() == OpState::Running;
        let Some(own) = self.own_view(seq).filter(|_| running) else { return };
        if (0..self.config.locals()).any(|l| node.view(l, seq).is_some_and(|view| view != own)) {
            self.found_on_node(node, seq);
        }
    }

    /// The ranks of the node differ: names one that this rank differs from, until all have voted.
    #[cold]
    pub(super) fn found_on_node<N: NodeMemory>(&mut self, node: &N, seq: u64) {
        let (grid, rank) = (self.config.grid, self.config.rank);
        let own = node.view(grid.local_of(rank), seq).or(self.own_view(seq));
        let odd =
            (0..self.config.locals()).find(|&local| node.view(local, seq).is_some_and(|v| Some(v) != own));
        let suspect = grid.rank_at(grid.node_of(rank), odd.unwrap_or(grid.local_of(rank)));
        self.diverge(seq, suspect);
    }
}
