//! One entry of the neighbour cache, and the orders in which entries make room.

use core::net::IpAddr;
use std::collections::{BTreeSet, VecDeque};

use super::{Config, Requester};
use crate::ip::limit::TokenBucket;
use crate::time::{Instant, whole_nanos};
use crate::wire::ethernet::Mac;

#[derive(Clone, Copy, Debug)]
pub(super) enum EntryState {
    Static(Mac),
    Incomplete {
        asked: u8,
        next: Instant,
    },
    Unreachable {
        until: Instant,
    },
    /// Not confirmed lately, and not used since.
    Stale(Mac),
    /// In use; a request verifies it unless progress above does.
    Delay {
        mac: Mac,
        until: Instant,
    },
    Probe {
        mac: Mac,
        asked: u8,
        next: Instant,
    },
    Reachable {
        mac: Mac,
        until: Instant,
    },
}

/// The budget that an entry counts in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Budget {
    Incomplete,
    Known,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) state: EntryState,
    /// The most important requester so far.
    pub(super) requester: Requester,
    /// When it was learned, confirmed or found in use: the oldest goes first.
    pub(super) since: Instant,
    /// It was given out since the generation changed for it last.
    pub(super) used: bool,
    /// Packets that wait, and whether they are replies to unauthenticated peers.
    pub(super) waiting: VecDeque<(bool, Vec<u8>)>,
}

impl Entry {
    pub(super) fn due(&self) -> Option<Instant> {
        match self.state {
            EntryState::Static(_) | EntryState::Stale(_) => None,
            EntryState::Incomplete { next, .. } | EntryState::Probe { next, .. } => Some(next),
            EntryState::Delay { until, .. }
            | EntryState::Reachable { until, .. }
            | EntryState::Unreachable { until } => Some(until),
        }
    }

    pub(super) fn budget(&self) -> Option<Budget> {
        match self.state {
            EntryState::Static(_) => None,
            EntryState::Incomplete { .. } | EntryState::Unreachable { .. } => {
                (self.requester < Requester::Session).then_some(Budget::Incomplete)
            }
            _ => Some(Budget::Known),
        }
    }

    /// The station, and the time from which on progress above proves that it is there, if that needs a proof. Packets that
    /// peers acknowledge in the first half of the delay may have been sent to another station.
    pub(super) fn provable(&self, config: &Config) -> Option<(Mac, Instant)> {
        match self.state {
            EntryState::Delay { mac, until } => {
                let half = whole_nanos(config.request_interval / 2);
                Some((mac, Instant::from_nanos(until.as_nanos().saturating_sub(half))))
            }
            EntryState::Probe { mac, .. } => Some((mac, Instant::ZERO)),
            _ => None,
        }
    }
}

/// One IP version's entries, packets and rate, each with a budget.
#[derive(Debug)]
pub(super) struct Family {
    /// Entries in the order in which they make room.
    pub(super) incomplete: BTreeSet<(Requester, Instant, IpAddr)>,
    pub(super) known: BTreeSet<(Requester, Instant, IpAddr)>,
    pub(super) unauthenticated: TokenBucket,
    /// Packets that wait: our own, and replies to unauthenticated peers.
    pub(super) held: [usize; 2],
}

impl Family {
    pub(super) fn new(config: &Config) -> Self {
        let rate = config.unauthenticated_per_second;
        Self {
            incomplete: BTreeSet::new(),
            known: BTreeSet::new(),
            unauthenticated: TokenBucket::new(rate, rate),
            held: [0; 2],
        }
    }

    pub(super) fn order(&mut self, budget: Budget) -> &mut BTreeSet<(Requester, Instant, IpAddr)> {
        match budget {
            Budget::Incomplete => &mut self.incomplete,
            Budget::Known => &mut self.known,
        }
    }
}

/// The one of the two that an address belongs to.
pub(super) fn family<'a>(ipv4: &'a mut Family, ipv6: &'a mut Family, address: IpAddr) -> &'a mut Family {
    if address.is_ipv4() { ipv4 } else { ipv6 }
}
