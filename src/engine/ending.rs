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

/// How much longer they wait while a connection for it is being made, at most: if the first segment of a kernel's connection is lost, the next one follows
/// after a second.
pub(super) const CONNECTING: Duration = Duration::from_millis(2300);

/// Between two looks at these connections.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// How far a group has ended here.
#[derive(Default)]
pub(super) struct EndState {
    /// Once ranks have diverged.
    ballot: Option<Ballot>,
    /// The abort messages have been handed over.
    is_flooded: bool,
    /// Outcomes are held back: until then, if no memory is referred to by that time.
    held_until: Option<Instant>,
    /// Until then connections that are being made are waited for.
    connected_by: Option<Instant>,
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

    /// The same, and longer while connections for the abort message are being made.
    pub(super) fn hold_until_connected(&mut self, until: Instant) {
        self.hold_until(until);
        self.connected_by = Some(until + CONNECTING);
    }

    /// The others learn of the end in other ways, and nothing refers to any memory.
    pub(super) fn end_at_once(&mut self) {
        (self.is_flooded, self.held_until) = (true, None);
    }

    /// Whether outcomes are held back no longer: no memory is referred to, and the others are notified, or the time for that is over. `is_connecting`: a
    /// connection for that is still being made.
    pub(super) fn settle(
        &mut self,
        now: Instant,
        is_memory_free: bool,
        are_notified: bool,
        is_connecting: impl FnOnce() -> bool,
    ) -> bool {
        let Some(until) = self.held_until else { return false };
        let is_late = now >= until;
        if is_late
            && !are_notified
            && let Some(last) = self.connected_by.filter(|last| now < *last)
            && is_connecting()
        {
            self.held_until = Some(last.min(now + LOOK_EVERY));
            return false;
        }
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
        is_connecting: bool,
        mut send: impl FnMut(&Header),
    ) {
        let Some(seq) = executor.diverged() else { return };
        let ballot = self.ballot.get_or_insert_with(|| Ballot::begin(now));
        ballot.looked(now);
        let grid = executor.config().grid;
        let is_leader = grid.is_leader(executor.config().rank);
        if is_connecting || (is_leader && executor.lacks_votes_of_several()) {
            ballot.await_votes(now);
        } else if !is_leader && grid.nodes() > 1 {
            ballot.await_leader();
        }
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
        let is_complete = is_leader && ballot.has_voted_on(seq) && executor.has_all_votes();
        if is_complete || ballot.is_late(now) {
            let found = executor.conclude(node);
            if let (Some(node), Some(found)) = (node, found) {
                node.set_verdict(&found);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_held_back_longer_while_a_connection_is_being_made() {
        let begin = Instant::ZERO + Duration::from_secs(1);
        let at = |millis| begin + Duration::from_millis(millis);
        let held = || {
            let mut state = EndState::default();
            state.hold_until_connected(begin + FLOOD);
            state
        };
        assert!(held().settle(at(1), true, true, || true), "all are notified");
        assert!(!held().settle(at(199), true, false, || false));
        assert!(held().settle(at(200), true, false, || false), "as before");
        let mut state = held();
        for millis in [200, 1300, 2499] {
            assert!(!state.settle(at(millis), true, false, || true), "{millis}");
            assert!(state.next_deadline().is_some_and(|next| next > at(millis)));
        }
        assert!(state.settle(at(2500), true, false, || true), "not for ever");
        let mut state = held();
        assert!(!state.settle(at(1300), true, false, || true));
        assert!(state.settle(at(1310), true, true, || false), "the connection came, and the message went");
    }

    #[test]
    fn votes_are_waited_for_longer_while_a_connection_is_being_made() {
        let begin = Instant::ZERO + Duration::from_secs(1);
        let at = |millis| begin + Duration::from_millis(millis);
        let mut ballot = Ballot::begin(begin);
        assert!(!ballot.is_late(at(599)) && ballot.is_late(at(600)));
        ballot.await_votes(at(100));
        assert!(ballot.is_late(at(600)), "as before");
        ballot.await_votes(at(1000));
        assert!(!ballot.is_late(at(1199)) && ballot.is_late(at(1200)));
        ballot.await_votes(at(2400));
        assert!(!ballot.is_late(at(2499)) && ballot.is_late(at(2500)), "not for ever");
    }
}
