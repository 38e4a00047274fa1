//! Liveness of this node's ranks: heartbeats in shared memory, the abort message, and evidence of death.
//!
//! A heartbeat means that the process lives, not that it polls for its own operations: between blocking calls the
//! runtime's helper thread beats. So a rank that computes for an hour is alive, and one that was stopped or killed is
//! found within `dead_after`.

use std::time::Duration;

use shouter_netstack::time::Instant;
use shouter_reducer::executor::{AbortCause, AbortReason};
use shouter_reducer::grid::Rank;

use crate::channel::shm::{Abort, NodeSegment};

/// The shortest time between two looks: they cost a cache line per rank.
const SHORTEST: Duration = Duration::from_millis(1);

pub(super) struct Liveness {
    first: Rank,
    local: u32,
    dead_after: Duration,
    every: Duration,
    next: Instant,
    /// The last heartbeat seen of each local rank, and when it changed.
    seen: Vec<(u64, Instant)>,
    departing: bool,
    /// An operation that a rank of the node has found to be another one elsewhere.
    dispute: Option<u64>,
}

impl Liveness {
    pub(super) fn new(first: Rank, local: u32, locals: u32, dead_after: Duration, now: Instant) -> Self {
        let every = (dead_after / 100).clamp(SHORTEST, Duration::from_millis(50));
        Self {
            first,
            local,
            dead_after,
            every,
            next: now,
            seen: vec![(0, now); locals as usize],
            departing: false,
            dispute: None,
        }
    }

    pub(super) fn expect_departures(&mut self) {
        self.departing = true;
    }

    #[inline]
    pub(super) fn departures_expected(&self) -> bool {
        self.departing
    }

    /// The first operation that ranks of the node are known to disagree about.
    #[inline]
    pub(super) fn dispute(&self) -> Option<u64> {
        self.dispute
    }

    pub(super) fn next_check(&self) -> Instant {
        self.next
    }

    /// Publishes this rank's heartbeat and looks for dead ranks. Cheap until the next check is due.
    #[inline]
    pub(super) fn check(&mut self, now: Instant, node: &NodeSegment) -> Option<(Rank, AbortReason)> {
        if now < self.next { None } else { self.look(now, node) }
    }

    #[cold]
    fn look(&mut self, now: Instant, node: &NodeSegment) -> Option<(Rank, AbortReason)> {
        // After a pause of our own (this process was stopped, say) the others get their full time again.
        let paused = now.saturating_since(self.next) > self.dead_after / 2;
        self.next = now + self.every;
        node.beat(self.local);
        self.dispute = node.dispute();
        if let Some(abort) = node.abort() {
            return Some(ended(node, abort));
        }
        if self.departing {
            return None;
        }
        // A rank without an engine still joins: it tests its paths to other hosts, say. How long that may last, the join bounds.
        let is_silent =
            |(beats, at): (u64, Instant)| beats != 0 && now.saturating_since(at) > self.dead_after;
        for (local, seen) in (0u32..).zip(&mut self.seen) {
            let beats = node.heartbeat(local);
            if beats != seen.0 || paused {
                *seen = (beats, now);
            } else if local != self.local
                && !node.has_left(local)
                && (is_silent(*seen) || node.is_gone(local))
            {
                return Some((Rank(self.first.0 + local), AbortReason::Failed));
            }
        }
        None
    }
}

/// Writes the reason for the end of the group to the node's shared memory; the first writer wins.
pub(super) fn publish(node: &NodeSegment, cause: &AbortCause) {
    set(node, cause.culprit, &cause.reason);
}

fn set(node: &NodeSegment, culprit: Rank, why: &AbortReason) {
    match why {
        AbortReason::GaveUp(Some(text)) => node.set_abort_text(culprit.0, text),
        // The votes may have been another shard's, whose part of the node's memory this is not.
        AbortReason::Diverged(Some(found)) => node.set_verdict(found),
        _ => {}
    }
    node.set_abort(culprit.0, why.code() as u8);
}

/// How a rank of the node has ended the group, with the rank's text where it has given up.
pub(crate) fn ended(node: &NodeSegment, Abort { culprit, reason }: Abort) -> (Rank, AbortReason) {
    let why = match AbortReason::from_code(reason.into()) {
        AbortReason::GaveUp(None) => AbortReason::GaveUp(node.abort_text(culprit)),
        why => why,
    };
    (Rank(culprit), why)
}

/// Records the culprit, and returns the node's: the first that one of its ranks has written.
pub(super) fn agree(node: &NodeSegment, culprit: Rank, why: AbortReason) -> (Rank, AbortReason) {
    set(node, culprit, &why);
    node.abort().map_or((culprit, why), |abort| ended(node, abort))
}
