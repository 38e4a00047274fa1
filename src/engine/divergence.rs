//! Divergence: ranks run different operations in one place of the order, as they say in shared memory or in messages.
//!
//! Every rank announces each operation that it starts: number, shape, tensor. No rank uses what another has put into a lane
//! before the announcements were compared ([`NodeMemory::agrees`](shouter_reducer::transport::NodeMemory::agrees)), so no wrong
//! sum is handed out, or leaves the host. Small operations within one node have numbers of their own (those of their cells),
//! hence each announcement says how many of them came before it.

use std::time::Duration;

use shouter_netstack::time::Instant;
use shouter_reducer::executor::AbortReason;
use shouter_reducer::grid::Rank;
use shouter_reducer::header::{Identity, View};

use super::Engine;
use crate::channel::shm::{ANNOUNCEMENTS, NodeSegment, unpack};

/// After ranks have diverged: how long a leader waits for what its node's ranks run...
pub(crate) const VIEWS: Duration = Duration::from_millis(200);

/// ...and every rank for the votes of all.
pub(crate) const VERDICT: Duration = Duration::from_millis(600);

/// How long, in all, where the connections for the votes are being made meanwhile, or those of several hosts are missing.
const CONNECTED: Duration = Duration::from_millis(2500);

/// Between two looks at the votes.
const LOOK_EVERY: Duration = Duration::from_micros(200);

/// The vote on an operation that ranks disagree about.
pub(super) struct Ballot {
    begun: Instant,
    /// The votes of all are waited for until then.
    until: Instant,
    /// The operation that this rank has voted on.
    voted: Option<u64>,
    next_look: Instant,
}

impl Ballot {
    /// Ranks have diverged.
    pub(super) fn begin(now: Instant) -> Self {
        Self { begun: now, until: now + VERDICT, voted: None, next_look: now }
    }

    /// The votes are looked at now.
    pub(super) fn looked(&mut self, now: Instant) {
        self.next_look = now + LOOK_EVERY;
    }

    /// The next look at the votes.
    pub(super) fn next_look(&self) -> Instant {
        self.next_look
    }

    /// Whether the votes of all are waited for no longer.
    pub(super) fn is_late(&self, now: Instant) -> bool {
        now >= self.until
    }

    /// A connection with another leader is being made, or it isn't known yet whose votes will never come: votes are waited for so long
    /// from now on.
    pub(super) fn await_votes(&mut self, now: Instant) {
        self.until = self.until.max((now + VIEWS).min(self.begun + CONNECTED));
    }

    /// The leader of this rank's node may wait for connections, and its verdict is that of the node.
    pub(super) fn await_leader(&mut self) {
        self.until = self.begun + CONNECTED + VIEWS;
    }

    /// Whether this rank votes on operation `seq` now, once for each: as soon as it `is_known` what this node's ranks run, or that is late.
    pub(super) fn is_vote_due(&mut self, now: Instant, seq: u64, is_known: bool) -> bool {
        let is_due = !self.has_voted_on(seq) && (is_known || self.is_late(now) || now >= self.begun + VIEWS);
        if is_due {
            self.voted = Some(seq);
        }
        is_due
    }

    /// Whether this rank has voted on operation `seq`.
    pub(super) fn has_voted_on(&self, seq: u64) -> bool {
        self.voted == Some(seq)
    }
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
                let evidence = self.take_account(culprit);
                self.executor.abort_seen(culprit, why, evidence);
            }
        }
    }

    /// Ranks of the node run different things in the place of operation `seq`.
    pub(crate) fn diverge(&mut self, seq: u64, suspect: Rank) {
        self.executor.diverge(seq, suspect);
    }
}

/// The operation that local rank `local` runs instead of this rank's small operation `number`, after `large` others: something with
/// an announcement, if it made that right after the same small operations.
pub(crate) fn instead_of_small(node: &NodeSegment, local: u32, number: u64, large: u64) -> Option<View> {
    let theirs = node.announcement(local, large + 1)?;
    if theirs.small_before + 1 != number || node.has_begun_small(local, number) {
        return None;
    }
    unpack(theirs.shape, theirs.identity)
}

/// The operation that local rank `local` has started, without waiting, after as many small operations as came before this rank's small operation
/// `number`, where other ranks have not: the first that it has announced.
pub(crate) fn started_instead(node: &NodeSegment, local: u32, number: u64, large: u64) -> Option<View> {
    let around = large.saturating_sub(ANNOUNCEMENTS as u64) + 1..=large + ANNOUNCEMENTS as u64;
    around.filter_map(|at| node.announcement(local, at)).find_map(|theirs| {
        let view = unpack(theirs.shape, theirs.identity)?;
        let is_started = matches!(view.identity, Identity::Started { .. });
        (is_started && theirs.small_before + 1 == number).then_some(view)
    })
}
