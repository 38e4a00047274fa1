//! Whom a loss is to be blamed on: the rank that does not answer any more, or this one, whose host may be the one that is cut off, in one
//! direction or in both. Such a host loses one peer first, which works, or is reset by one that has lost it.
//!
//! So all other leaders are asked before one of them is blamed for a loss that may be its own ([`Loss::may_be_own`]). If any acknowledges anything,
//! packets go from this host and come back, and the lost rank is to blame. If none does for a quarter of the heartbeat time-out, this rank blames
//! itself: nothing gets through, or all others are down. In a job of two hosts there is nobody to ask.

use std::time::Duration;

use shouter_netstack::time::Instant;
use shouter_reducer::executor::AbortReason;
use shouter_reducer::grid::Rank;

use super::Engine;
use super::groups::{Greeting, Lineage};
use super::losses::Finding;
#[cfg(doc)]
use crate::channel::loss::Loss;

/// Questions that wait for an answer.
pub(super) struct Inquiry {
    /// What holds if anybody answers.
    finding: Finding,
    /// The leaders that were asked, and how much each had acknowledged then.
    asked: Vec<(Rank, u64)>,
    patience: Duration,
    until: Instant,
}

impl Inquiry {
    /// When nobody is waited for any longer.
    pub(super) fn until(&self) -> Instant {
        self.until
    }

    /// What it was about.
    pub(super) fn into_finding(self) -> Finding {
        self.finding
    }
}

impl Engine {
    /// Asks the other leaders about a loss. Gives the finding back where there is nobody to ask, where the end of the group or a divergence is
    /// known already, and where this process was stopped, so that others may have dropped it; while others are asked already, the first finding
    /// is the one that holds.
    #[cold]
    pub(super) fn inquire(&mut self, now: Instant, lost: Rank, finding: Finding) -> Option<Finding> {
        if self.losses.inquiry.is_some() {
            return None;
        }
        let (grid, own) = (self.executor.config().grid, self.rank);
        let leaders = (0..grid.nodes()).map(|node| grid.leader_of(node));
        let others =
            leaders.filter(|leader| ![own, lost].contains(leader) && !self.departures.has_left(*leader));
        let asked: Vec<_> = others.map(|leader| (leader, self.up.acknowledged_by(leader))).collect();
        // Peers leave for it.
        let is_ending = self.executor.aborted().is_some()
            || self.executor.diverged().is_some()
            || self.executor.given_up().is_some();
        if asked.is_empty() || self.times.was_stopped() || is_ending {
            return Some(finding);
        }
        // It has no effect there.
        self.up.broadcast(&Lineage::ALL.message(own, Greeting::Made(0)));
        let patience = self.times.dead_after() / 4;
        self.losses.inquiry = Some(Inquiry { finding, asked, patience, until: now + patience });
        None
    }

    /// Looks for an answer; whether the inquiry has ended.
    #[cold]
    pub(super) fn conclude(&mut self, now: Instant) -> bool {
        let Some(inquiry) = &mut self.losses.inquiry else { return false };
        // Who has left answers no more.
        inquiry.asked.retain(|(rank, _)| !self.departures.has_left(*rank));
        let is_answered = inquiry.asked.iter_mut().any(|(rank, before)| {
            let acknowledged = self.up.acknowledged_by(*rank);
            // That of a connection that has closed does not count any more.
            *before = acknowledged.min(*before);
            acknowledged > *before
        });
        let is_known = is_answered || inquiry.asked.is_empty();
        let has_ended = self.executor.aborted().is_some();
        if !is_known && now < inquiry.until && !has_ended {
            return false;
        }
        let Some(Inquiry { finding, asked, patience, .. }) = self.losses.inquiry.take() else { return false };
        if has_ended {
            return false;
        }
        if is_known {
            self.losses.note(finding);
            return true;
        }
        let lost = finding.culprit;
        let evidence = format!(
            "no other host has acknowledged anything for {patience:?} after {lost} was lost (asked: {}), so this host is cut off, or all \
             of them are; see its link, cable, switch port and firewall. Of {lost}: {}",
            asked.len(),
            finding.evidence
        );
        self.losses.note(Finding { culprit: self.rank, why: AbortReason::Disconnected, evidence });
        true
    }
}
