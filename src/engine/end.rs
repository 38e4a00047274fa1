//! The end of a group: all ranks are notified once, and no memory is returned while it may be accessed.

use std::collections::BTreeSet;
use std::time::Duration;

use shouter_netstack::time::Instant;
use shouter_reducer::executor::{AbortCause, AbortReason, Completed, OpError, OpId};
use shouter_reducer::grid::{Grid, Rank};
use shouter_reducer::header::{Header, Identity, MatchKey, MessageKind, Shape};
use shouter_reducer::recorder::{Record, RecordKind};
use shouter_reducer::transport::{PayloadRange, SendError, SendToken, Transport};

use super::groups::{Greeting, Lineage};
use super::{Engine, Inboxes, Staging, liveness};
use crate::channel::up::UpChannels;
use crate::error::Reason;
use crate::group::error::GroupEnd;
use crate::group::watch::{Departure, Notice};
use crate::runtime::{Clock, Poller};

/// Copies of an accelerator end within this time, or the device hangs.
pub(crate) const COPIES_END: Duration = Duration::from_secs(2);

/// How long operations wait for the acknowledgement of the abort message before they return; the process may exit then.
pub(super) const FLOOD: Duration = Duration::from_millis(200);

/// How much later than the abort message the reason of a rank that has given up may arrive.
const REASON_TIMEOUT: Duration = Duration::from_secs(1);

/// A peer whose last acknowledgement was lost asks again within this time.
const QUIET: Duration = Duration::from_millis(10);

/// How long a leaving rank answers peers that go on, once they have acknowledged all that it sent.
const LINGER: Duration = Duration::from_millis(200);

/// A rank that leaves in good order.
pub(super) struct Leaving {
    begun: Instant,
    /// Ranks that are to be told.
    to_notify: Vec<Rank>,
    /// When the peers had acknowledged everything for the first time.
    drained: Option<Instant>,
}

impl Engine {
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
    /// lanes and slots are kept for ever, and errors say that tensors must be, too.
    fn drain_copies(&mut self, begin: Instant) {
        let at_rest = || self.node.iter().for_each(|node| node.set_at_rest());
        let Some(Staging { accelerator, .. }) = &mut self.staging else { return at_rest() };
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
        for completed in self.finished.iter_mut().filter(|completed| completed.outstanding > 0) {
            keep_memory(completed, self.rank);
        }
    }

    /// Waits until no accelerator of another rank of the node touches this rank's tensors, which it may have opened. Where that
    /// cannot be known, errors say so.
    fn await_others(&mut self, begin: Instant) {
        let Some(node) = &self.node else { return };
        // A rank that has closed gracefully may have left operations running, so its departure proves nothing.
        let moving = |local: &u32| *local != node.local() && !node.is_quiesced(*local);
        while self.open.iter().any(|open| open.export.is_some()) {
            let Some(local) = (0..node.ranks()).find(moving) else { break };
            // The other ranks begin to wait for their own copies a little later.
            if Clock.now() - begin < 2 * COPIES_END {
                std::thread::yield_now();
                continue;
            }
            let rank = Rank(self.first.0 + local);
            tracing::error!("{rank} does not say that its GPU has let go of this rank's tensors");
            let exported = |op| self.open.iter().any(|open| open.op == op && open.export.is_some());
            for completed in self.finished.iter_mut().filter(|completed| exported(completed.op)) {
                keep_memory(completed, rank);
            }
            break;
        }
    }

    /// A rank has left in good order. What it has started goes on without it, for it has done its part; an operation behind that
    /// ends the group. It is told over the control connections, and by the rank itself.
    pub fn left(&mut self, departure: Departure) {
        let rank = Rank(departure.rank);
        let is_known = self.left.iter().any(|known| known.rank == departure.rank);
        if is_known || rank == self.rank || rank.0 > self.others {
            return;
        }
        self.beside.left(rank);
        self.groups.departed(rank);
        self.left.push(departure);
    }

    /// Takes what ranks have said of themselves.
    #[cold]
    pub(super) fn take_departures(&mut self) {
        for departure in self.groups.take_departures() {
            self.left(departure);
        }
    }

    /// Tells ranks that this one leaves, as far as there is room: those that would take the end of its process for its death, and those that
    /// may wait for a message. Rank 0, which passes that on, may have left before.
    fn tell_departure(&mut self) {
        let Self { leaving: Some(leaving), up, left, rank, started, .. } = self else { return };
        let header = Lineage::ALL.message(*rank, Greeting::Left(*started));
        leaving.to_notify.retain(|to| {
            let has_left = left.iter().any(|departure| departure.rank == to.0);
            let told = |up: &mut UpChannels| up.send(*to, &header, PayloadRange::empty(), SendToken::CONTROL);
            !has_left && told(up) == Err(SendError::Full)
        });
    }

    /// Who is told that this rank leaves: its host, the other leaders if it is one, and whom it had messages with.
    fn acquaintances(&self) -> Vec<Rank> {
        let (grid, own) = (self.executor.config().grid, self.rank);
        let known: BTreeSet<Rank> = self.beside.known().collect();
        let is_near = |rank: Rank| {
            grid.node_of(rank) == grid.node_of(own) || grid.is_leader(own) && grid.is_leader(rank)
        };
        let others = (0..grid.ranks()).map(Rank).filter(|rank| *rank != own);
        others.filter(|rank| is_near(*rank) || known.contains(rank)).collect()
    }

    /// This rank leaves in good order, and so do the others: from now on a peer that disappears is no error. Returns whether it may
    /// go: nobody needs it any more where all others have left, too. Else every peer that has neither left nor been lost has
    /// acknowledged what this rank sent, which the heartbeat time-out bounds, and none asks for an acknowledgement again.
    pub fn depart(&mut self, now: Instant) -> bool {
        if self.leaving.is_none() {
            self.leaving = Some(Leaving { begun: now, to_notify: self.acquaintances(), drained: None });
            // Before the host's ranks are told that nothing more will come.
            self.tell_departure();
            self.liveness.expect_departures();
            if let Some(node) = &self.node {
                node.leave();
            }
            self.up.depart();
        }
        self.tell_departure();
        let begun = self.leaving.as_ref().map_or(now, |leaving| leaving.begun);
        if self.up.is_empty() && self.groups.is_empty() || self.left.len() as u64 >= u64::from(self.others) {
            return true;
        }
        if now.saturating_since(begun) >= self.dead_after {
            tracing::debug!("left before the peers had acknowledged everything");
            return true;
        }
        if !self.is_acknowledged() {
            return false;
        }
        let drained = self.leaving.as_mut().map_or(now, |leaving| *leaving.drained.get_or_insert(now));
        let has_work = self.beside.has_work() || !self.groups.is_empty();
        !has_work && now.saturating_since(self.last_busy) > QUIET || now.saturating_since(drained) >= LINGER
    }

    /// Whether the peers have acknowledged all that was sent, but for those that have left or are lost.
    fn is_acknowledged(&self) -> bool {
        self.up.is_drained_to(&|rank| !self.left.iter().any(|departure| departure.rank == rank.0))
    }

    /// Whether the other ranks know that the group has ended, as far as this rank can tell.
    pub(super) fn abort_is_acknowledged(&self) -> bool {
        self.is_acknowledged() && self.notice.as_ref().is_none_or(Notice::peers_notified)
    }

    /// Ends the group when nothing is left under way but operations in which a rank that has left takes no part.
    #[cold]
    pub(super) fn look_for_deserted(&mut self) {
        let has_ended = |op| self.finished.iter().any(|completed| completed.op == op);
        let under_way = self.open.iter().map(|open| open.op).filter(|op| !has_ended(*op));
        let Some(OpId(oldest)) = under_way.min() else { return };
        let absent = self.left.iter().filter(|departure| departure.started <= oldest);
        if let Some(rank) = absent.map(|departure| departure.rank).min()
            && !self.liveness.departures_expected()
            && self.executor.aborted().is_none()
            && self.executor.diverged().is_none()
        {
            self.end(Rank(rank), AbortReason::Aborted);
        }
    }

    /// Ends the group where a message or an access waits for a rank that has left.
    #[cold]
    pub(super) fn look_for_deserters(&mut self, now: Instant) {
        if self.liveness.departures_expected() || self.executor.aborted().is_some() {
            return;
        }
        let (grid, own) = (self.executor.config().grid, self.rank);
        if let Some(rank) = self.beside.deserter(now, |left, rank| is_behind(&grid, own, left, rank)) {
            self.end(rank, AbortReason::Aborted);
        }
    }

    /// This rank is about to leave. Returns how many operations it has started if all of them have ended. Where some have not,
    /// the group ends, and all ranks name this one; `None` then, and where it had ended before.
    #[cold]
    pub fn withdraw(&mut self, now: Instant) -> Option<u64> {
        self.poll(now);
        self.follow_node();
        let is_busy = self.running != 0 || !self.submitted.is_empty() || self.beside.is_running();
        let is_busy = is_busy || self.has_tasks(None);
        if self.executor.aborted().is_none() && is_busy {
            self.end(self.rank, AbortReason::Aborted);
        }
        if self.executor.aborted().is_none() {
            // The engine may go on for other groups, and the memory of what is held goes back.
            self.submitted.leave();
            return Some(self.started);
        }
        // Tells the others.
        self.poll(now);
        None
    }

    /// Ends the group as a rank of the node has, before the next look at them is due.
    #[cold]
    pub fn end_with_node(&mut self, now: Instant) {
        self.follow_node();
        self.poll(now);
    }

    fn follow_node(&mut self) {
        if self.executor.aborted().is_none()
            && let Some(ended) =
                self.node.as_ref().and_then(|node| Some(liveness::ended(node, node.abort()?)))
        {
            self.follow(ended);
        }
    }

    /// This rank gives up: the group ends, and the errors of all ranks have these words. Nothing is done where it has ended before.
    #[cold]
    pub fn give_up(&mut self, now: Instant, words: &str) {
        self.poll(now);
        if self.executor.aborted().is_none() {
            self.end(self.rank, AbortReason::GaveUp(Some(words.into())));
            // Tells the others.
            self.poll(now);
        }
    }

    /// Another rank has given up, as the control connections say.
    #[cold]
    pub fn gave_up(&mut self, rank: Rank, words: &str) {
        if !self.liveness.departures_expected() && rank.0 <= self.others {
            self.end(rank, AbortReason::GaveUp(Some(words.into())));
        }
    }

    /// A leader says that a rank has given up. Its reason arrives separately, over the control connections: later, or not at all.
    #[cold]
    pub(super) fn await_words(&mut self, now: Instant, rank: Rank) {
        let due = *self.reason_due.get_or_insert(now + REASON_TIMEOUT);
        if now >= due || self.notice.is_none() {
            self.end(rank, AbortReason::GaveUp(None));
        }
    }

    /// Sends the abort message to all ranks, once, and releases all memory.
    #[cold]
    pub(super) fn flood_abort(&mut self, now: Instant) {
        let Some(cause) = self.executor.aborted().cloned() else { return };
        self.flooded = true;
        self.submitted.close();
        self.fence_tensors();
        self.beside.abort(&cause);
        tracing::error!(rank = self.rank.0, culprit = cause.culprit.0, why = %cause.reason, "the group has ended");
        let (rank, value) = (Some(cause.culprit), cause.reason.code().into());
        self.executor.note(Record { rank, value, ..Record::of(RecordKind::AbortSent) });
        if let Some(node) = &self.node {
            liveness::publish(node, &cause);
        }
        if let Some(notice) = &self.notice {
            if let AbortReason::GaveUp(Some(words)) = &cause.reason {
                notice.gave_up(cause.culprit.0, words);
            }
            notify(notice, &cause);
        }
        self.up.fence();
        self.up.broadcast(&abort_header(self.rank, &cause, self.executor.diverged().unwrap_or(0)));
        // Ahead of the wait for copies.
        let mut inboxes =
            Inboxes { executor: &mut self.executor, beside: &mut self.beside, groups: &mut self.groups };
        self.up.transmit(now, &mut inboxes);
        // Their outcomes say whether the copies have ended.
        self.gather();
        let waited = self.quiesce();
        self.executor.fenced();
        self.beside.fenced();
        self.groups.end_with_all(&cause);
        let others = !self.up.is_empty() || self.notice.is_some();
        self.settling = others.then(|| now + waited + FLOOD);
    }
}

/// Whether messages from rank `own` to `rank` go by this leader, which is another rank.
pub(super) fn is_behind(grid: &Grid, own: Rank, leader: Rank, rank: Rank) -> bool {
    let (here, there, node) = (grid.node_of(own), grid.node_of(rank), grid.node_of(leader));
    grid.is_leader(leader) && here != there && ![own, rank].contains(&leader) && [here, there].contains(&node)
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.flooded {
            return;
        }
        let Some(node) = &self.node else {
            if self.running != 0 {
                self.quiesce();
            }
            return;
        };
        if self.running == 0 {
            node.set_at_rest();
            return;
        }
        // The others would go on, and access tensors that the trainer takes back.
        node.set_abort(self.rank.0, AbortReason::Aborted.code() as u8);
        self.fence_tensors();
        self.quiesce();
    }
}

/// Reports the end over the group's control connection. Only a lost rank is acted on there; other causes arrive in order with the data.
pub(super) fn notify(notice: &Notice, cause: &AbortCause) {
    let (rank, reason) = (cause.culprit.0, Reason::from(&cause.reason));
    notice.ended(GroupEnd { rank, reason, text: cause.to_string() });
}

/// Adds to an error that the tensor's memory must stay, since a rank's accelerator may still use it.
fn keep_memory(completed: &mut Completed, rank: Rank) {
    if let Err(error) = &completed.result {
        let error = Box::new(error.clone());
        completed.result = Err(OpError::InUse { error, rank });
    }
}

/// The abort message: its `round` is the culprit, its `len` the reason's code; if ranks diverge, it names the operation.
pub(super) fn abort_header(src: Rank, cause: &AbortCause, seq: u64) -> Header {
    use shouter_reducer::dtype::{DType, ReduceOp};
    use shouter_reducer::header::Collective;
    Header {
        kind: MessageKind::Abort,
        src,
        key: MatchKey { seq, ..MatchKey::default() },
        identity: Identity::AdHoc { root: Rank(0) },
        shape: Shape { collective: Collective::Barrier, dtype: DType::U8, op: ReduceOp::Sum, count: 0 },
        round: cause.culprit.0,
        offset: 0,
        granule: 0,
        len: cause.reason.code(),
    }
}
