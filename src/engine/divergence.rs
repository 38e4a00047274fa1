//! Operations as this rank has started them, and what the ranks of a node say of theirs in shared memory.
//!
//! Every rank announces each operation that it starts: number, shape, tensor. Nobody uses what another rank has put into a lane
//! before the announcements were compared ([`NodeMemory::agrees`](shouter_reducer::transport::NodeMemory::agrees)), so no wrong
//! sum is handed out, or leaves the host. Small operations within one node have numbers of their own (those of their cells),
//! hence each announcement says how many of them came before it.

use std::time::Duration;

use shouter_netstack::device::Device;
use shouter_netstack::time::Instant;
use shouter_reducer::executor::{OpError, OpId, Request, View, Why};
use shouter_reducer::grid::Rank;
use shouter_reducer::memory::Kind;
use shouter_reducer::transport::{Export, NodeMemory};

use super::Engine;
use crate::channel::shm::{Announcement, NodeSegment, pack, pack_identity, unpack};

/// An operation as this rank has started it, until its outcome has been taken.
pub(super) struct Open {
    pub(super) op: OpId,
    view: View,
    /// Where in the rank's arena the tensor lies, and its bytes, if it does.
    pub(super) shared: Option<(usize, usize)>,
    /// How the others open the tensor, if it lies in an accelerator's memory and they may.
    pub(super) export: Option<Export>,
}

impl Open {
    pub(super) fn new(request: &Request, node: Option<&NodeSegment>) -> Self {
        let len = request.data.len();
        let shared = node
            .filter(|_| request.data.kind() == Kind::Shared)
            .and_then(|node| Some((node.locate(request.data.as_ptr(), len)?, len)));
        Self {
            op: OpId(0),
            view: View { identity: request.identity, shape: request.shape },
            shared,
            export: request.device.and_then(|device| device.export),
        }
    }

    /// Tells the other ranks of the node.
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
            small_before: node.small_started(node.local()),
        };
        node.announce(announcement, self.export.as_ref());
    }
}

/// After ranks have diverged: how long a leader waits for what its node's ranks run...
pub(crate) const VIEWS: Duration = Duration::from_millis(200);

/// ...and everybody for the verdict.
pub(crate) const VERDICT: Duration = Duration::from_millis(600);

/// The vote on what ranks disagree about, from the group's end until all know what there is to know.
pub(super) struct Ballot {
    begun: Instant,
    /// The operation that this rank has voted on.
    voted: Option<u64>,
}

impl<D: Device> Engine<D> {
    /// Ends the group here as a rank of the node has ended it.
    #[cold]
    pub(super) fn follow(&mut self, (culprit, why): (Rank, Why)) {
        let dispute = self.node.as_ref().and_then(|node| node.dispute());
        match (&why, dispute) {
            (Why::Diverged(_), Some(seq)) => self.executor.diverge(seq, culprit),
            _ => self.executor.abort(culprit, why),
        }
    }

    /// Ranks of the node run different things in the place of operation `seq`: the group ends.
    pub(crate) fn diverge(&mut self, seq: u64, suspect: Rank) {
        self.executor.diverge(seq, suspect);
    }

    /// Whether ranks have diverged.
    pub(super) fn has_diverged(&self) -> bool {
        self.executor.aborted().is_some_and(|cause| matches!(cause.why, Why::Diverged(_)))
    }

    /// Says, after the group has ended, what this rank would run as the operation in dispute.
    pub(super) fn testify(&self, mut open: Open) {
        if let (Some(node), Some(seq)) = (&self.node, self.executor.diverged())
            && self.started == seq
        {
            open.op = OpId(seq);
            open.announce(node);
        }
    }

    /// Votes, and looks for the verdict; whether it is there.
    #[cold]
    pub(super) fn deliberate(&mut self, now: Instant) -> bool {
        let ballot = self.ballot.get_or_insert(Ballot { begun: now, voted: None });
        let Self { executor, node, up, rank, first, .. } = self;
        let node = node.as_deref();
        if let Some(seq) = node.and_then(NodeSegment::dispute) {
            executor.diverge(seq, *rank);
        }
        if let Some(found) = node.and_then(NodeSegment::verdict) {
            let own = executor.own(node, found.seq);
            executor.blame(found, own);
            return true;
        }
        let Some(seq) = executor.diverged() else { return false };
        let known = node.is_none_or(|node| {
            (0..node.ranks()).all(|local| node.view(local, seq).is_some() || node.is_gone(local))
        });
        if ballot.voted != Some(seq) && (known || now >= ballot.begun + VIEWS) {
            ballot.voted = Some(seq);
            let votes = executor.vote(node);
            if let Some(up) = up {
                votes.iter().for_each(|vote| up.broadcast(vote));
            }
        }
        // Who is no leader has its leader's verdict.
        let is_leader = rank == first;
        if ballot.voted != Some(seq) || !is_leader || !executor.has_all_votes() {
            return false;
        }
        let found = executor.judge(node);
        if let (Some(node), Some(found)) = (node, found) {
            node.set_verdict(&found);
        }
        found.is_some()
    }

    /// Outcomes of operations that were given up show what is known now.
    #[cold]
    pub(super) fn restate(&mut self) {
        if !self.has_diverged() {
            return;
        }
        let node = self.node.as_deref();
        if self.executor.aborted().is_some_and(|cause| cause.why == Why::Diverged(None)) {
            // Not all have voted in time.
            self.executor.vote(node);
            self.executor.judge(node);
        }
        let Some(known) = self.executor.aborted() else { return };
        for completed in &mut self.finished {
            let mut error = completed.result.as_mut().err();
            while let Some(outer) = error {
                error = match outer {
                    OpError::InUse { error, .. } => Some(&mut **error),
                    OpError::Aborted { cause, .. } => {
                        *cause = known.clone();
                        None
                    }
                    _ => None,
                };
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
