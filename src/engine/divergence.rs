//! Operations as this rank has started them, and what the ranks of a node say of theirs in shared memory.
//!
//! Every rank announces each operation that it starts: number, shape, tensor. No rank uses what another has put into a lane
//! before the announcements were compared ([`NodeMemory::agrees`](shouter_reducer::transport::NodeMemory::agrees)), so no wrong
//! sum is handed out, or leaves the host. Small operations within one node have numbers of their own (those of their cells),
//! hence each announcement says how many of them came before it.

use std::time::Duration;

use shouter_netstack::time::Instant;
use shouter_reducer::executor::{AbortReason, OpId, Request};
use shouter_reducer::fusion::Ends;
use shouter_reducer::grid::Rank;
use shouter_reducer::header::{Identity, View};
use shouter_reducer::memory::MemoryKind;
use shouter_reducer::transport::{ExportedTensor, NodeMemory};

use super::Engine;
use super::submitted::Due;
use crate::channel::shm::{ANNOUNCEMENTS, Announcement, NodeSegment, pack, pack_identity, unpack};

/// An operation as this rank has started it, until its outcome has been taken.
pub(super) struct Open {
    pub(super) op: OpId,
    view: View,
    /// Where in the rank's arena that lies which it gives, and its bytes; none if others cannot use it there.
    pub(super) shared: Option<(usize, usize)>,
    /// How the others open the tensor, if it lies in an accelerator's memory and they may.
    pub(super) export: Option<ExportedTensor>,
    /// Small operations before it, if that is not what the node's memory says when it is announced.
    pub(super) small_before: Option<u64>,
    /// Who hears of its end; nobody where its outcome is taken.
    pub(super) ends: Option<Ends<Due>>,
}

impl Open {
    pub(super) fn new(request: &Request, node: Option<&NodeSegment>) -> Self {
        // Others use it where it lies only if this rank has steps for that, too.
        let given = request.schedule.in_place().map(|_| request.given());
        let shared = given.zip(node).and_then(|(given, node)| match given.kind() {
            _ if given.is_empty() => Some((0, 0)),
            MemoryKind::Shared => Some((node.locate(given.as_ptr(), given.len())?, given.len())),
            _ => None,
        });
        let export = given.and(request.device).and_then(|device| device.export);
        let view = View { identity: request.identity, shape: request.shape };
        Self { op: OpId(0), view, shared, export, small_before: None, ends: None }
    }

    /// Announces the operation to the other ranks of the node.
    #[inline]
    pub(super) fn announce(&self, node: &NodeSegment) {
        let announcement = Announcement {
            number: self.op.0 + 1,
            shape: pack(&self.view.shape),
            identity: pack_identity(&self.view.identity),
            tensor: match (self.shared, self.export) {
                (Some((offset, _)), _) => offset as u64 + 1,
                (None, Some(_)) => Announcement::EXPORTED,
                (None, None) => 0,
            },
            small_before: self.small_before.unwrap_or_else(|| node.small_started(node.local())),
        };
        node.announce(announcement, self.export.as_ref());
    }
}

/// After ranks have diverged: how long a leader waits for what its node's ranks run...
pub(crate) const VIEWS: Duration = Duration::from_millis(200);

/// ...and every rank for the votes of all.
pub(crate) const VERDICT: Duration = Duration::from_millis(600);

/// Between two looks at the votes.
pub(super) const LOOK_EVERY: Duration = Duration::from_micros(200);

/// The vote on an operation that ranks disagree about.
pub(super) struct Ballot {
    begun: Instant,
    /// The operation that this rank has voted on.
    voted: Option<u64>,
    pub(super) next: Instant,
}

impl Engine {
    /// Ends the group here as a rank of the node, or this rank's channel, has ended it.
    #[cold]
    pub(super) fn follow(&mut self, (culprit, why): (Rank, AbortReason)) {
        let verdict = self.node.as_ref().and_then(|node| node.verdict());
        match (&why, verdict) {
            (AbortReason::Diverged(_), Some(found)) => {
                let own = self.executor.own(self.node.as_deref(), found.seq);
                self.executor.blame(Some(found), own);
            }
            _ => {
                let seen = self.seen.take_if(|(rank, _)| *rank == culprit).map(|(_, text)| text);
                self.executor.abort_seen(culprit, why, seen);
            }
        }
    }

    /// Ranks of the node run different things in the place of operation `seq`.
    pub(crate) fn diverge(&mut self, seq: u64, suspect: Rank) {
        self.executor.diverge(seq, suspect);
    }

    /// While ranks disagree about an operation: votes, and ends the group when the votes of all are in, or late.
    #[cold]
    pub(super) fn deliberate(&mut self, now: Instant) {
        let ballot = self.ballot.get_or_insert(Ballot { begun: now, voted: None, next: now });
        ballot.next = now + LOOK_EVERY;
        let Self { executor, node, up, rank, first, .. } = self;
        let node = node.as_deref();
        let Some(seq) = executor.diverged() else { return };
        if let Some(node) = node {
            node.set_dispute(seq);
        }
        let late = now >= ballot.begun + VERDICT;
        if let Some(found) = node.and_then(NodeSegment::verdict) {
            let own = executor.own(node, found.seq);
            executor.blame(Some(found), own);
            return;
        }
        // Operations of a rank that is behind go on, so it may yet come to this one.
        let known = match node {
            Some(node) => (0..node.ranks()).all(|l| node.view(l, seq).is_some() || node.is_gone(l)),
            None => executor.own(node, seq).is_some(),
        };
        if ballot.voted != Some(seq) && (known || late || now >= ballot.begun + VIEWS) {
            ballot.voted = Some(seq);
            let votes = executor.vote(node);
            votes.iter().for_each(|vote| up.broadcast(vote));
        }
        // A rank that is no leader takes its leader's verdict.
        let complete = rank == first && ballot.voted == Some(seq) && executor.has_all_votes();
        if complete || late {
            let found = executor.conclude(node);
            if let (Some(node), Some(found)) = (node, found) {
                node.set_verdict(&found);
            }
        }
    }
}

/// What local rank `local` runs instead of this rank's small operation `number`, after `large` others: something with
/// an announcement, if it made that right after the same small operations.
pub(crate) fn instead_of_small(node: &NodeSegment, local: u32, number: u64, large: u64) -> Option<View> {
    let theirs = node.announcement(local, large + 1)?;
    if theirs.small_before + 1 != number || node.small_started(local) >= number {
        return None;
    }
    unpack(theirs.shape, theirs.identity)
}

/// What local rank `local` has started, without waiting, after as many small operations as came before this rank's small operation
/// `number`, where other ranks have not: the first that it has announced.
pub(crate) fn started_instead(node: &NodeSegment, local: u32, number: u64, large: u64) -> Option<View> {
    let around = large.saturating_sub(ANNOUNCEMENTS as u64) + 1..=large + ANNOUNCEMENTS as u64;
    around.filter_map(|at| node.announcement(local, at)).find_map(|theirs| {
        let view = unpack(theirs.shape, theirs.identity)?;
        let is_started = matches!(view.identity, Identity::Started { .. });
        (is_started && theirs.small_before + 1 == number).then_some(view)
    })
}
