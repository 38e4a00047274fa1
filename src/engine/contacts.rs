//! Messages and accesses that wait for ranks of other hosts. Channels between hosts are opened at their first use, and a rank that only waits sends
//! nothing; but the loss of a host is found by those that have a channel to it. So a rank that has waited for a while tells the
//! rank that it waits for so, once: that opens the channels between both. An operation asks those that it waits for by itself, see
//! [`Executor::compare`](shouter_reducer::executor::Executor::compare). In an exchange over the control connections, which no channel carries,
//! leaders wait for rank 0, and rank 0 for all of them.

use std::collections::BTreeSet;
use std::time::Duration;

use shouter_netstack::time::Instant;
use shouter_reducer::grid::Rank;
use shouter_reducer::transport::{PayloadRange, SendError, SendToken, Transport};

use super::Engine;
use super::groups::{Greeting, Lineage};

/// Between two looks at what waits.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The ranks that are told at one look: each may make a connection, and rank 0 may wait for all leaders.
const MOST_AT_A_LOOK: usize = 64;

/// An exchange over the control connections is waited for so long before leaders make contact.
const EXCHANGE_AFTER: Duration = Duration::from_millis(500);

/// The ranks of other hosts that were told that this one waits for them.
pub(super) struct Contacts {
    told: BTreeSet<Rank>,
    /// None where there are no other hosts.
    next_look: Option<Instant>,
    /// Exchanges over the control connections that this rank waits in, and since when there is one.
    exchanges: u32,
    exchange_begun: Instant,
}

impl Contacts {
    /// Nobody was told anything yet.
    pub(super) fn new(now: Instant, has_other_hosts: bool) -> Self {
        let next_look = has_other_hosts.then(|| now + LOOK_EVERY);
        Self { told: BTreeSet::new(), next_look, exchanges: 0, exchange_begun: now }
    }

    /// Whether ranks have waited for long in an exchange over the control connections.
    fn is_exchange_late(&self, now: Instant) -> bool {
        self.exchanges > 0 && now.saturating_since(self.exchange_begun) >= EXCHANGE_AFTER
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
    /// This rank begins to wait in an exchange of all ranks over the control connections.
    pub(crate) fn begin_exchange(&mut self, now: Instant) {
        if self.contacts.exchanges == 0 {
            self.contacts.exchange_begun = now;
        }
        self.contacts.exchanges += 1;
    }

    /// One of these exchanges has ended.
    pub(crate) fn end_exchange(&mut self) {
        self.contacts.exchanges = self.contacts.exchanges.saturating_sub(1);
    }

    /// Tells ranks of other hosts that messages, accesses or exchanges of this one wait for them.
    #[cold]
    pub(super) fn make_contact(&mut self, now: Instant) {
        if self.executor.aborted().is_some() || self.liveness.departures_expected() {
            return;
        }
        let (grid, own) = (self.executor.config().grid, self.rank);
        // It has no effect there.
        let header = Lineage::ALL.message(own, Greeting::Made(0));
        let is_late = grid.is_leader(own) && self.contacts.is_exchange_late(now);
        let in_exchange = |is_new: &dyn Fn(Rank) -> bool| {
            let leaders = (0..grid.nodes()).map(|node| grid.leader_of(node)).filter(|_| is_late);
            leaders.filter(|leader| own == Rank(0) || *leader == Rank(0)).find(|leader| is_new(*leader))
        };
        for _ in 0..MOST_AT_A_LOOK {
            let Self { contacts, departures, pairwise, groups, .. } = self;
            let is_new = |rank: Rank| {
                let leader = grid.leader_of(grid.node_of(rank));
                grid.node_of(rank) != grid.node_of(own)
                    && !contacts.told.contains(&rank)
                    && !departures.has_left(rank)
                    && !departures.has_left(leader)
            };
            let awaited = pairwise.awaited(is_new).or_else(|| groups.awaited(is_new));
            let Some(rank) = awaited.or_else(|| in_exchange(&is_new)) else { return };
            match self.up.send(rank, &header, PayloadRange::empty(), SendToken::CONTROL) {
                // The next look finds it again.
                Err(SendError::Full) => return,
                Ok(()) | Err(SendError::PeerFailed) => drop(self.contacts.told.insert(rank)),
            }
        }
    }
}
