//! Ranks that leave in good order: this one, and others. A rank that leaves has ended all that it has started, so operations that it has
//! taken part in go on; an operation that needs more of it ends the group.

use std::collections::BTreeSet;
use std::time::Duration;

use shouter_netstack::time::Instant;
use shouter_reducer::executor::{AbortReason, OpId};
use shouter_reducer::grid::Rank;
use shouter_reducer::transport::{PayloadRange, SendError, SendToken, Transport};

use super::Engine;
use super::end::is_behind;
use super::groups::{Greeting, Lineage};
use crate::channel::up::UpChannels;
use crate::group::watch::{Departure, Notice};
use crate::runtime::Poller;

/// A peer whose last acknowledgement was lost asks again within this time.
const QUIET: Duration = Duration::from_millis(10);

/// How long a leaving rank answers peers that go on, once they have acknowledged all that it sent.
const LINGER: Duration = Duration::from_millis(200);

/// A rank that leaves in good order.
struct Leaving {
    begun: Instant,
    /// Ranks that are to be notified.
    to_notify: Vec<Rank>,
    /// The first time that the peers had acknowledged everything.
    drained: Option<Instant>,
}

/// The ranks that have left the job in good order, and how far this one is.
pub(super) struct Departures {
    /// Ranks of the group beside this one.
    others: u32,
    left: Vec<Departure>,
    /// Once this rank leaves.
    leaving: Option<Leaving>,
}

impl Departures {
    /// Of a job with so many other ranks.
    pub(super) fn new(others: u32) -> Self {
        Self { others, left: vec![], leaving: None }
    }

    /// Whether there is such a rank.
    pub(super) fn exists(&self, rank: Rank) -> bool {
        rank.0 <= self.others
    }

    /// Whether no rank has left.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.left.is_empty()
    }

    /// Whether this rank has left.
    pub(super) fn has_left(&self, rank: Rank) -> bool {
        self.left.iter().any(|departure| departure.rank == rank.0)
    }

    /// The ranks that have left.
    pub(super) fn ranks(&self) -> impl Iterator<Item = Rank> {
        self.left.iter().map(|departure| Rank(departure.rank))
    }

    /// The first rank that has left and takes no part in an operation.
    fn absent_from(&self, OpId(op): OpId) -> Option<Rank> {
        let absent = self.left.iter().filter(|departure| departure.started <= op);
        absent.map(|departure| Rank(departure.rank)).min()
    }

    /// Notifies ranks that this one leaves, after so many operations, as far as there is room. Rank 0, which passes that on, may have left before.
    fn notify(&mut self, own: Rank, started: u64, up: &mut UpChannels) {
        let Self { leaving: Some(leaving), left, .. } = self else { return };
        let header = Lineage::ALL.message(own, Greeting::Left(started));
        leaving.to_notify.retain(|to| {
            let has_left = left.iter().any(|departure| departure.rank == to.0);
            let send = |up: &mut UpChannels| up.send(*to, &header, PayloadRange::empty(), SendToken::CONTROL);
            !has_left && send(up) == Err(SendError::Full)
        });
    }

    /// Since when this rank leaves.
    fn begun(&self) -> Option<Instant> {
        self.leaving.as_ref().map(|leaving| leaving.begun)
    }

    /// All is acknowledged; since when that is so for the first time.
    fn drained(&mut self, now: Instant) -> Instant {
        self.leaving.as_mut().map_or(now, |leaving| *leaving.drained.get_or_insert(now))
    }
}

impl Engine {
    /// A rank has left in good order. Operations that it has started go on without it, for it has done its part; an operation behind them
    /// ends the group. The departure is reported over the control connections, and by the rank itself.
    pub fn left(&mut self, departure: Departure) {
        let rank = Rank(departure.rank);
        if self.departures.has_left(rank) || rank == self.rank || !self.departures.exists(rank) {
            return;
        }
        self.pairwise.left(rank);
        self.groups.departed(rank);
        self.departures.left.push(departure);
    }

    /// Takes the departures that ranks have reported themselves.
    #[cold]
    pub(super) fn take_departures(&mut self) {
        for departure in self.groups.take_departures() {
            self.left(departure);
        }
    }

    /// The ranks that are notified that this one leaves, as they would take the end of its process for its death, or may wait for a message: its
    /// host, the other leaders that its channels were used with if it is one, and those that it had messages with. All others learn of it from rank 0.
    fn ranks_to_notify(&self) -> Vec<Rank> {
        let (grid, own) = (self.executor.config().grid, self.rank);
        let known: BTreeSet<Rank> = self.pairwise.known().collect();
        let is_near = |rank: Rank| {
            grid.node_of(rank) == grid.node_of(own)
                || grid.is_leader(own) && grid.is_leader(rank) && self.up.is_used(rank)
        };
        let others = (0..grid.ranks()).map(Rank).filter(|rank| *rank != own);
        others.filter(|rank| is_near(*rank) || known.contains(rank)).collect()
    }

    /// This rank leaves in good order, and so do the others: from now on a peer that disappears is no error. Returns whether it may
    /// go: every peer that has neither left nor been lost has acknowledged what this rank sent, which the heartbeat time-out bounds,
    /// and none asks for an acknowledgement again. That holds for peers that have left, too: they wait for these acknowledgements
    /// before their processes end.
    pub fn depart(&mut self, now: Instant) -> bool {
        let is_first = self.departures.leaving.is_none();
        if is_first {
            let to_notify = self.ranks_to_notify();
            self.departures.leaving = Some(Leaving { begun: now, to_notify, drained: None });
            // Before the host's ranks are notified that nothing more will come.
            self.notify_of_departure();
            self.liveness.expect_departures();
            if let Some(node) = &self.node {
                node.leave();
            }
            self.up.depart();
        }
        self.notify_of_departure();
        if self.up.is_empty() && self.groups.is_empty() {
            return true;
        }
        let begun = self.departures.begun().unwrap_or(now);
        if now.saturating_since(begun) >= self.times.dead_after() {
            tracing::debug!("left before the peers had acknowledged everything");
            return true;
        }
        if !self.is_acknowledged() {
            return false;
        }
        let drained = self.departures.drained(now);
        let has_work = self.pairwise.has_work() || !self.groups.is_empty();
        !has_work && self.times.quiet_for(now) > QUIET || now.saturating_since(drained) >= LINGER
    }

    fn notify_of_departure(&mut self) {
        self.departures.notify(self.rank, self.operations.started(), &mut self.up);
    }

    /// Whether the peers have acknowledged all that was sent, but for those that have left or are lost.
    fn is_acknowledged(&self) -> bool {
        self.up.is_drained_to(&|rank| !self.departures.has_left(rank))
    }

    /// Whether the other ranks know that the group has ended, as far as this rank knows.
    pub(super) fn abort_is_acknowledged(&self) -> bool {
        // One that has failed reads nothing, and may never have had a channel that shows it.
        let failed = self.executor.aborted().filter(|cause| cause.reason == AbortReason::Failed);
        let failed = failed.map(|cause| cause.culprit);
        let is_awaited = |rank| !self.departures.has_left(rank) && failed != Some(rank);
        self.up.is_drained_to(&is_awaited) && self.ending.notice().is_none_or(Notice::peers_notified)
    }

    /// Ends the group when nothing is left under way but operations in which a rank that has left takes no part.
    #[cold]
    pub(super) fn end_operations_of_departed(&mut self) {
        let Some(oldest) = self.operations.oldest() else { return };
        if let Some(rank) = self.departures.absent_from(oldest)
            && !self.liveness.departures_expected()
            && self.executor.aborted().is_none()
            && self.executor.diverged().is_none()
        {
            self.end(rank, AbortReason::Aborted);
        }
    }

    /// Ends the group where a message or an access waits for a rank that has left.
    #[cold]
    pub(super) fn end_requests_of_departed(&mut self, now: Instant) {
        if self.liveness.departures_expected() || self.executor.aborted().is_some() {
            return;
        }
        let (grid, own) = (self.executor.config().grid, self.rank);
        let behind = |left, rank| is_behind(&grid, own, left, rank);
        if let Some(rank) = self.pairwise.awaited_departed(now, behind) {
            self.end(rank, AbortReason::Aborted);
        }
    }

    /// This rank is about to leave. Returns how many operations it has started if all of them have ended. Where some have not,
    /// the group ends, and all ranks name this one; `None` then, and where it had ended before.
    #[cold]
    pub fn withdraw(&mut self, now: Instant) -> Option<u64> {
        self.poll(now);
        self.follow_node();
        let has_operations = self.operations.is_running() || !self.operations.are_all_started();
        let is_busy = has_operations || self.pairwise.is_running() || self.has_tasks(None);
        if self.executor.aborted().is_none() && is_busy {
            self.end(self.rank, AbortReason::Aborted);
        }
        if self.executor.aborted().is_none() {
            // The engine may go on for other groups, and the memory of what is held goes back.
            self.operations.leave();
            return Some(self.operations.started());
        }
        // Notifies the others.
        self.poll(now);
        None
    }
}
