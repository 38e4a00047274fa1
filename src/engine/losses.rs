//! The losses of peers that the channels report, and the reasons that are waited for. One poll finds a loss, and the next one acts upon it, since
//! its time shows whether this process was stopped in the midst of the first.

use std::time::Duration;

use shouter_netstack::time::Instant;
use shouter_reducer::executor::AbortReason;
use shouter_reducer::grid::Rank;

use super::inquiry::Inquiry;
use super::trace::LINK_REMEDY;
use super::{Engine, end};
use crate::channel::loss::{Loss, PeerLoss};
use crate::channel::verbs::Fault;

/// How much later than the abort message the reason of a rank that has given up may arrive.
const REASON_TIMEOUT: Duration = Duration::from_secs(1);

/// Whom a loss is blamed on.
pub(super) struct Finding {
    pub(super) culprit: Rank,
    pub(super) why: AbortReason,
    /// How the loss showed: for the texts of errors.
    pub(super) evidence: String,
}

/// The losses that the group has not ended for yet.
#[derive(Default)]
pub(super) struct Losses {
    /// A loss whose culprit is not known yet.
    pub(super) inquiry: Option<Inquiry>,
    /// The first loss since the last poll: the rank to blame, and why.
    unhandled: Option<(Rank, AbortReason)>,
    /// How the first loss of all showed, and the rank to blame for it: for the texts of errors.
    evidence: Option<(Rank, Box<str>)>,
    /// Until when the reason of a rank that has given up is waited for.
    reason_due: Option<Instant>,
}

impl Losses {
    /// It is known whom a loss is to be blamed on.
    pub(super) fn note(&mut self, Finding { culprit, why, evidence }: Finding) {
        self.inquiry = None;
        self.evidence.get_or_insert_with(|| (culprit, evidence.into()));
        self.unhandled.get_or_insert((culprit, why));
    }

    /// The loss that the last poll has found.
    #[inline]
    pub(super) fn take(&mut self) -> Option<(Rank, AbortReason)> {
        self.unhandled.take()
    }

    /// How the first loss showed, if this rank is to blame for it. The group ends: no answer is waited for any longer.
    fn take_evidence(&mut self, culprit: Rank) -> Option<Box<str>> {
        let open =
            self.inquiry.take().map(Inquiry::into_finding).filter(|finding| finding.culprit == culprit);
        let seen = self.evidence.take_if(|(rank, _)| *rank == culprit).map(|(_, text)| text);
        seen.or_else(|| open.map(|finding| finding.evidence.into()))
    }

    /// Until when the reason of a rank that has given up, as is known now at the latest, is waited for.
    fn await_reason(&mut self, now: Instant) -> Instant {
        *self.reason_due.get_or_insert(now + REASON_TIMEOUT)
    }

    /// When a poll is due: now for a loss, and once a reason or an answer is late, until the group `has_ended`.
    pub(super) fn next_deadline(&self, polled_at: Instant, has_ended: bool) -> Option<Instant> {
        let loss = self.unhandled.as_ref().map(|_| polled_at);
        let reason = self.reason_due.filter(|_| !has_ended);
        let answer = self.inquiry.as_ref().filter(|_| !has_ended).map(Inquiry::until);
        [loss, reason, answer].into_iter().flatten().min()
    }
}

impl Engine {
    /// A channel has lost a leader. The next poll ends the group for it, or one as soon as it is known whom it is to be blamed on, unless nothing
    /// waits for that rank; whether it does.
    #[cold]
    pub(super) fn on_loss(&mut self, now: Instant, loss: PeerLoss) -> bool {
        if self.liveness.departures_expected() {
            return false;
        }
        tracing::error!(rank = loss.rank.0, why = %loss.why, "a leader is lost");
        self.watch.lost(now, loss.rank, &mut self.executor);
        let has_left = self.departures.has_left(loss.rank);
        // The loss of an accelerator names some peer, which has nothing to do with it.
        let is_device = loss.why == Loss::Verbs(Fault::Accelerator);
        // Traffic on other paths goes on.
        let (grid, own, lost) = (self.executor.config().grid, self.rank, loss.rank);
        let is_behind = |rank| rank == lost || end::is_behind(&grid, own, lost, rank);
        let waits = || self.operations.is_running() || self.pairwise.waits_for(is_behind);
        if has_left && !is_device && !waits() {
            return false;
        }
        // A rank that has lost its own port or accelerator blames itself: the peer works.
        let (culprit, why) = match &loss.why {
            _ if is_device => (self.rank, AbortReason::Accelerator),
            why if why.is_own() => (self.rank, AbortReason::Disconnected),
            _ if has_left => (loss.rank, AbortReason::Aborted),
            why => (loss.rank, why.reason()),
        };
        let evidence = match self.links_down() {
            Some(links) => format!("{}. {links}", loss.why),
            None => loss.why.to_string(),
        };
        let mut finding = Some(Finding { culprit, why, evidence });
        // One that has left is expected to go.
        if loss.why.may_be_own() && !has_left {
            finding = finding.and_then(|finding| self.inquire(now, lost, finding));
        }
        finding.into_iter().for_each(|finding| self.losses.note(finding));
        true
    }

    fn links_down(&self) -> Option<String> {
        let ports = self.up.ports_down()?;
        Some(format!("The link of port {ports} of this host is down: {LINK_REMEDY}"))
    }

    /// What this rank has seen of the one that the group ends with. Where it is itself the one that the others have given up, its own links may say why.
    pub(super) fn take_account(&mut self, culprit: Rank) -> Option<Box<str>> {
        let seen = self.losses.take_evidence(culprit);
        seen.or_else(|| self.links_down().filter(|_| culprit == self.rank).map(Into::into))
    }

    /// A leader says that a rank has given up. Its reason arrives separately, over the control connections: later, or not at all. Of several
    /// engines of this rank one has these.
    #[cold]
    pub(super) fn await_abort_text(&mut self, now: Instant, rank: Rank) {
        let due = self.losses.await_reason(now);
        if now >= due || self.ending.notice().is_none() && !self.has_siblings() {
            self.end(rank, AbortReason::GaveUp(None));
        }
    }
}
