//! The end of a group on this rank: the vote before it where ranks have diverged, the abort messages, and for how long outcomes are held
//! back. The group of all ranks ends so, and so does each group of some of them.

use std::sync::Arc;
use std::time::Duration;

use shouter_netstack::time::Instant;
use shouter_reducer::executor::{AbortCause, Executor};
use shouter_reducer::header::Header;
use shouter_reducer::transport::NodeMemory;

use super::divergence::Ballot;
use crate::channel::shm::NodeSegment;
use crate::group::watch::Notice;

/// How long operations wait for the acknowledgement of the abort message before they return; the process may exit then.
pub(super) const FLOOD: Duration = Duration::from_millis(200);

/// How far a group has ended here.
#[derive(Default)]
pub(super) struct EndState {
    /// Once ranks have diverged.
    ballot: Option<Ballot>,
    /// The abort messages have been handed over.
    is_flooded: bool,
    /// Outcomes are held back: until then, if no memory is referred to by that time.
    held_until: Option<Instant>,
    /// Reports the end over the group's control connection; of the group of all, once it has one.
    notice: Option<Notice>,
}

impl EndState {
    /// From now on the end is also reported by `notice`.
    pub(super) fn report_to(&mut self, notice: Notice) {
        self.notice = Some(notice);
    }

    /// What reports the end over the control connection, if there is one.
    pub(super) fn notice(&self) -> Option<&Notice> {
        self.notice.as_ref()
    }

    /// Whether the group has ended in error, and the others are notified.
    #[inline]
    pub(super) fn is_flooded(&self) -> bool {
        self.is_flooded
    }

    /// Whether outcomes are held back.
    #[inline]
    pub(super) fn is_settling(&self) -> bool {
        self.held_until.is_some()
    }

    /// The cause to be sent to all other ranks, once.
    #[inline]
    pub(super) fn take_cause(&mut self, executor: &Executor) -> Option<Arc<AbortCause>> {
        if self.is_flooded {
            return None;
        }
        let cause = executor.aborted()?.clone();
        self.is_flooded = true;
        Some(cause)
    }

    /// From now on outcomes are held back.
    pub(super) fn hold_until(&mut self, until: Instant) {
        self.held_until = Some(until);
    }

    /// The others learn of the end in other ways, and nothing refers to any memory.
    pub(super) fn end_at_once(&mut self) {
        (self.is_flooded, self.held_until) = (true, None);
    }

    /// Whether outcomes are held back no longer: no memory is referred to, and the others are notified, or the time for that is over.
    pub(super) fn settle(&mut self, now: Instant, is_memory_free: bool, are_notified: bool) -> bool {
        let Some(until) = self.held_until else { return false };
        let is_late = now >= until;
        if is_memory_free && (is_late || are_notified) {
            self.held_until = None;
        } else if is_late {
            self.held_until = Some(now + FLOOD);
        }
        self.held_until.is_none()
    }

    /// When a poll is due.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let vote = self.ballot.as_ref().filter(|_| !self.is_flooded).map(Ballot::next_look);
        [vote, self.held_until].into_iter().flatten().min()
    }

    /// While ranks disagree about an operation: votes, and ends the group when the votes of all are in, or late. A rank that is no
    /// leader takes its leader's verdict. `send` hands a vote to all other leaders.
    #[cold]
    pub(super) fn deliberate(
        &mut self,
        now: Instant,
        executor: &mut Executor,
        node: Option<&NodeSegment>,
        mut send: impl FnMut(&Header),
    ) {
        let Some(seq) = executor.diverged() else { return };
        let ballot = self.ballot.get_or_insert_with(|| Ballot::begin(now));
        ballot.looked(now);
        if let Some(node) = node {
            node.set_dispute(seq);
        }
        if let Some(found) = node.and_then(NodeSegment::verdict) {
            let own = executor.own(node, found.seq);
            executor.blame(Some(found), own);
            return;
        }
        // Operations of a rank that is behind go on, so it may yet come to this one.
        let is_known = match node {
            Some(node) => (0..node.ranks()).all(|l| node.view(l, seq).is_some() || node.is_gone(l)),
            None => executor.own(node, seq).is_some(),
        };
        if ballot.is_vote_due(now, seq, is_known) {
            executor.vote(node).iter().for_each(&mut send);
        }
        let is_leader = executor.config().grid.is_leader(executor.config().rank);
        let is_complete = is_leader && ballot.has_voted_on(seq) && executor.has_all_votes();
        if is_complete || ballot.is_late(now) {
            let found = executor.conclude(node);
            if let (Some(node), Some(found)) = (node, found) {
                node.set_verdict(&found);
            }
        }
    }
}
