//! The end of the group of all: all ranks are notified once, and no memory is returned while it may be accessed.

use std::sync::Arc;
use std::time::Duration;

use shouter_netstack::time::Instant;
use shouter_reducer::executor::{AbortCause, AbortReason, Executor};
use shouter_reducer::grid::{Grid, Rank};
use shouter_reducer::header::{Header, MatchKey, MessageKind};
use shouter_reducer::recorder::{Record, RecordKind};

use super::ending::FLOOD;
use super::{AcceleratorParts, Engine, executor_time, liveness};
use crate::error::Reason;
use crate::group::error::GroupEnd;
use crate::group::watch::Notice;
use crate::runtime::{Clock, Poller};

/// Copies of an accelerator end within this time, or the device hangs.
pub(crate) const COPIES_END: Duration = Duration::from_secs(2);

/// Calls that send an abort to all peers, at most; each sends it to some dozens.
const MOST_TURNS: usize = 64;

impl Engine {
    /// From now on the end of the group is also reported by `notice`.
    pub fn report_to(&mut self, notice: Notice) {
        if self.ending.is_flooded()
            && let Some(cause) = self.executor.aborted()
        {
            notify(&notice, cause);
        }
        self.ending.report_to(notice);
    }

    /// The process of a rank has ended, as its kernel or another rank says.
    pub fn lost(&mut self, now: Instant, rank: Rank) {
        if !self.liveness.departures_expected() {
            self.look_back(now);
            self.end(rank, AbortReason::Failed);
        }
    }

    /// Ends the group because of a rank. A cause that is known here already holds, and one that another rank of the node has
    /// written: the missing rank may have left for that reason.
    #[cold]
    pub(super) fn end(&mut self, culprit: Rank, why: AbortReason) {
        if self.follow_siblings() {
            return;
        }
        if why == AbortReason::Failed && self.executor.diverged().is_some() {
            // After a divergence peers leave as soon as they know the votes, which this rank is about to.
            self.executor.abort(culprit, why);
            return;
        }
        if self.executor.given_up().is_some() && !matches!(why, AbortReason::GaveUp(_)) {
            // Peers close their connections for that reason while its text is awaited.
            return;
        }
        let was_stopped = why == AbortReason::Failed && self.times.was_stopped();
        let cause = match self.executor.aborted() {
            Some(cause) => (cause.culprit, cause.reason.clone()),
            None if was_stopped => (self.rank, AbortReason::Stopped),
            None => (culprit, why),
        };
        let (culprit, why) = match &self.node {
            Some(node) => liveness::agree(node, cause.0, cause.1),
            None => cause,
        };
        self.follow((culprit, why));
    }

    /// Notices a pause of this process itself.
    #[inline]
    pub(super) fn look_back(&mut self, now: Instant) {
        self.executor.set_time(executor_time(now));
        if let Some(pause) = self.times.begin(now) {
            tracing::warn!(
                rank = self.rank.0,
                ?pause,
                dead_after = ?self.times.dead_after(),
                "this process was stopped for about the heartbeat time-out or longer"
            );
        }
    }

    /// After the group has ended: waits until no accelerator touches the tensors of this rank, and its own touches nothing;
    /// returns for how long.
    #[cold]
    fn quiesce(&mut self) -> Duration {
        let begin = Clock.now();
        self.drain_copies(begin);
        self.await_others(begin);
        Clock.now() - begin
    }

    /// Waits until no copy or fold of the accelerator touches any memory, and reports this to the other ranks. If that cannot be known, the
    /// lanes and slots are never freed, and errors say that tensors must not be either.
    fn drain_copies(&mut self, begin: Instant) {
        let at_rest = || self.node.iter().for_each(|node| node.set_at_rest());
        let Some(AcceleratorParts { accelerator, .. }) = &mut self.staging else { return at_rest() };
        loop {
            match accelerator.is_idle() {
                Ok(true) => return at_rest(),
                Ok(false) if Clock.now() - begin < COPIES_END => std::thread::yield_now(),
                Ok(false) => break,
                // Nothing runs on a device that is lost.
                Err(error) => {
                    tracing::error!(%error, "an accelerator does not say whether its copies have ended");
                    return at_rest();
                }
            }
        }
        tracing::error!(
            "copies of an accelerator have not ended after {COPIES_END:?}; their memory is never freed"
        );
        std::mem::forget(self.staging.take());
        self.executor.leak_slots();
        self.operations.keep_copied(self.rank);
    }

    /// Waits until no accelerator of another rank of the node touches this rank's tensors, which it may have opened. Where that
    /// cannot be known, errors say so.
    fn await_others(&mut self, begin: Instant) {
        let Some(node) = &self.node else { return };
        // A rank that has closed gracefully may have left operations running, so its departure proves nothing.
        let moving = |local: &u32| *local != node.local() && !node.is_quiesced(*local);
        while self.operations.has_exported() {
            let Some(local) = (0..node.ranks()).find(moving) else { break };
            // The other ranks begin to wait for their own copies a little later.
            if Clock.now() - begin < 2 * COPIES_END {
                std::thread::yield_now();
                continue;
            }
            let grid = self.executor.config().grid;
            let rank = grid.rank_at(grid.node_of(self.rank), local);
            tracing::error!("{rank} does not say that its GPU has let go of this rank's tensors");
            self.operations.keep_exported(rank);
            break;
        }
    }

    /// Ends the group as a rank of the node has, before the next look at them is due.
    #[cold]
    pub fn end_with_node(&mut self, now: Instant) {
        self.follow_node();
        self.poll(now);
    }

    /// Ends the group here where a rank of the node has ended it.
    pub(super) fn follow_node(&mut self) {
        if self.executor.aborted().is_none()
            && let Some(ended) =
                self.node.as_ref().and_then(|node| Some(liveness::ended(node, node.abort()?)))
        {
            self.follow(ended);
        }
    }

    /// This rank gives up: the group ends, and the errors of all ranks have this text. Nothing is done where it has ended before.
    #[cold]
    pub fn give_up(&mut self, now: Instant, text: &str) {
        self.poll(now);
        if self.executor.aborted().is_none() {
            self.end(self.rank, AbortReason::GaveUp(Some(text.into())));
            // Notifies the others.
            self.poll(now);
        }
    }

    /// Another rank has given up, as the control connections say.
    #[cold]
    pub fn gave_up(&mut self, rank: Rank, text: &str) {
        if !self.liveness.departures_expected() && self.departures.exists(rank) {
            self.end(rank, AbortReason::GaveUp(Some(text.into())));
        }
    }

    /// Sends the abort message to all ranks, once, and releases all memory.
    #[cold]
    pub(super) fn flood_abort(&mut self, now: Instant, cause: &Arc<AbortCause>) {
        self.tell_siblings(cause);
        self.operations.close();
        if let Some(node) = &self.node {
            self.operations.fence_tensors(node);
        }
        self.pairwise.abort(cause);
        tracing::error!(rank = self.rank.0, culprit = cause.culprit.0, why = %cause.reason, "the group has ended");
        let (rank, value) = (Some(cause.culprit), cause.reason.code().into());
        self.executor.note(Record { rank, value, ..Record::of(RecordKind::AbortSent) });
        if let Some(node) = &self.node {
            liveness::publish(node, cause);
        }
        if let Some(notice) = self.ending.notice() {
            if let AbortReason::GaveUp(Some(text)) = &cause.reason {
                notice.gave_up(cause.culprit.0, text);
            }
            notify(notice, cause);
        }
        self.up.fence();
        self.up.broadcast(&abort_header(self.rank, cause, &self.executor));
        // Ahead of the wait for copies. A call sends a turn, which is less than a message to each of many peers.
        let (up, mut inboxes) = self.up_and_inboxes();
        for _ in 0..MOST_TURNS {
            if !up.transmit(now, &mut inboxes) {
                break;
            }
        }
        // Their outcomes say whether the copies have ended.
        self.operations.gather(&mut self.executor);
        let waited = self.quiesce();
        self.executor.fenced();
        self.pairwise.fenced();
        self.groups.end_with_all(cause);
        if !self.up.is_empty() || self.ending.notice().is_some() {
            self.ending.hold_until_connected(now + waited + FLOOD);
        }
    }
}

/// Whether messages from rank `own` to `rank` go by this leader, which is another rank.
pub(super) fn is_behind(grid: &Grid, own: Rank, leader: Rank, rank: Rank) -> bool {
    let (here, there, node) = (grid.node_of(own), grid.node_of(rank), grid.node_of(leader));
    grid.is_leader(leader) && here != there && ![own, rank].contains(&leader) && [here, there].contains(&node)
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.ending.is_flooded() {
            return;
        }
        let Some(node) = &self.node else {
            if self.operations.is_running() {
                self.quiesce();
            }
            return;
        };
        if !self.operations.is_running() {
            node.set_at_rest();
            return;
        }
        // The others would go on, and access tensors that the trainer takes back.
        node.set_abort(self.rank.0, AbortReason::Aborted.code() as u8);
        self.operations.fence_tensors(node);
        self.quiesce();
    }
}

/// Reports the end over the group's control connection. Only a lost rank is acted on there; other causes arrive in order with the data.
pub(super) fn notify(notice: &Notice, cause: &AbortCause) {
    let (rank, reason) = (cause.culprit.0, Reason::from(&cause.reason));
    notice.ended(GroupEnd { rank, reason, text: cause.to_string() });
}

/// The abort message: its `round` is the culprit, its `len` the reason's code; if ranks diverge, it names the operation.
pub(super) fn abort_header(src: Rank, cause: &AbortCause, executor: &Executor) -> Header {
    let key = MatchKey { seq: executor.diverged().unwrap_or(0), ..MatchKey::default() };
    let (round, len) = (cause.culprit.0, cause.reason.code());
    Header { round, len, ..Header::new(MessageKind::Abort, src, key) }
}
