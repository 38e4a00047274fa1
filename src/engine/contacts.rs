//! Messages and accesses that wait for ranks of other hosts. Channels between hosts are opened at their first use, and a rank that only waits sends
//! nothing; but the loss of a host is found by those that have a channel to it. So a rank that has waited for a while tells the
//! rank that it waits for so, once: that opens the channels between both. An operation asks those that it waits for by itself, see
//! [`Executor::compare`](shouter_reducer::executor::Executor::compare).

use std::collections::BTreeSet;
use std::time::Duration;

use shouter_netstack::time::Instant;
use shouter_reducer::grid::Rank;
use shouter_reducer::transport::{PayloadRange, SendError, SendToken, Transport};

use super::Engine;
use super::groups::{Greeting, Lineage};

/// Between two looks at what waits.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The ranks of other hosts that were told that this one waits for them.
pub(super) struct Contacts {
    told: BTreeSet<Rank>,
    /// None where there are no other hosts.
    next_look: Option<Instant>,
}

impl Contacts {
    /// Nobody was told anything yet.
    pub(super) fn new(now: Instant, has_other_hosts: bool) -> Self {
        Self { told: BTreeSet::new(), next_look: has_other_hosts.then(|| now + LOOK_EVERY) }
    }

    /// Whether a look is due; then the next one is due later.
    #[inline]
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.next_look.is_some_and(|at| at <= now);
        if is_due {
            self.next_look = Some(now + LOOK_EVERY);
        }
        is_due
    }

    /// The next look.
    pub(super) fn next_look(&self) -> Option<Instant> {
        self.next_look
    }
}

impl Engine {
    /// Tells ranks of other hosts that messages or accesses of this one wait for them.
    #[cold]
    pub(super) fn make_contact(&mut self) {
        if self.executor.aborted().is_some() || self.liveness.departures_expected() {
            return;
        }
        let (grid, own) = (self.executor.config().grid, self.rank);
        // It has no effect there.
        let header = Lineage::ALL.message(own, Greeting::Made(0));
        loop {
            let Self { contacts, departures, pairwise, groups, .. } = self;
            let is_new = |rank: Rank| {
                let leader = grid.leader_of(grid.node_of(rank));
                grid.node_of(rank) != grid.node_of(own)
                    && !contacts.told.contains(&rank)
                    && !departures.has_left(rank)
                    && !departures.has_left(leader)
            };
            let Some(rank) = pairwise.awaited(is_new).or_else(|| groups.awaited(is_new)) else { return };
            match self.up.send(rank, &header, PayloadRange::empty(), SendToken::CONTROL) {
                // The next look finds it again.
                Err(SendError::Full) => return,
                Ok(()) | Err(SendError::PeerFailed) => drop(self.contacts.told.insert(rank)),
            }
        }
    }
}
