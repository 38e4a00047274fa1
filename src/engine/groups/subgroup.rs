//! A group of some ranks on this rank: an executor of its own, so an order, numbers, deadlines and an end of its own, and messages and
//! windows of its own.
//!
//! Each member is a node of its own for the executor: its messages go over the channels and nothing of it lies in memory that ranks share. But a
//! group of all ranks of a job on one host may have a part of the host's segment: its operations meet there, in lanes, as those of the group of
//! all do; its messages, its end and its members' leaving go over the channels as those of other groups. It polls no clock, holds no thread and no socket; it keeps a few dozen bytes for each member.
//!
//! An error ends it on all members, by messages among them, and nothing else. The channels go on, so unlike at the end of the group of
//! all no payload is taken back from them: an operation's outcome is held back until every fragment that was posted of the
//! trainer's memory is acknowledged. A member that lives acknowledges all that comes, also after the end; one that does not
//! ends the group of all.

use std::sync::Arc;

use shouter_netstack::time::Instant;
use shouter_reducer::executor::{
    AbortCause, AbortReason, Completed, Disposition, Executor, OpId, Refusal, Request, StartError,
};
use shouter_reducer::grid::{Grid, Rank};
use shouter_reducer::header::Header;
use shouter_reducer::recorder::Recorder;
use shouter_reducer::transport::SendToken;

use super::lineage::{Greeting, Lineage};
use super::route::{Peers, Route};
use crate::channel::shm::NodeSegment;
use crate::channel::up::UpChannels;
use crate::engine::end::abort_header;
use crate::engine::ending::{EndState, FLOOD};
use crate::engine::executor_time;
use crate::engine::members::Members;
use crate::engine::operations::Operations;
use crate::engine::pairwise::Pairwise;
use crate::engine::submitted::Submissions;
use crate::engine::submitted::marks::Mark;
use crate::engine::trace::Phases;
use crate::observe::Timeline;
use crate::observe::flight::Labels;

/// A group of some ranks.
pub(super) struct Subgroup {
    peers: Peers,
    executor: Executor,
    pairwise: Pairwise,
    operations: Operations,
    ending: EndState,
    /// The memory with its lanes; after the executor, which works there.
    node: Option<Arc<NodeSegment>>,
    /// This rank has left. The group goes when nothing refers to it and its members know, or are not notified any more: from this time on.
    closing: Option<Instant>,
}

impl Subgroup {
    pub(super) fn new(
        (id, owner): (u32, u32),
        lineage: Lineage,
        (members, job): (Arc<Members>, Grid),
        (executor, node): (Executor, Option<Arc<NodeSegment>>),
        mark: Mark,
    ) -> Self {
        let pairwise = Pairwise::new(id, members.own(), members.size());
        let mut peers = Peers::new((id, owner), lineage, (members, job));
        if node.is_some() {
            peers.greet_all();
        }
        Self {
            peers,
            executor,
            pairwise,
            operations: Operations::of_some(mark),
            ending: EndState::default(),
            node,
            closing: None,
        }
    }

    /// Puts phases on the timeline, too. Called before the first operation.
    pub(super) fn draw(&mut self, timeline: Arc<Timeline>) {
        let phases = Phases::of_some(timeline, self.peers.job(), self.peers.members().clone());
        self.executor.attach_trace(Box::new(phases));
    }

    /// Keeps the last events, and the program's names of operations. Before the first one.
    pub(super) fn record(&mut self, recorder: &Recorder, labels: Arc<Labels>) {
        // Places are taken anew, and sixteen groups in a row have different numbers. None is 0, the number of the group of all.
        let number = self.id() as u16;
        self.executor.attach_recorder(recorder.of_group(number, self.peers.members().ranks().clone()));
        self.operations.label(labels, number);
    }

    #[inline]
    pub(super) fn id(&self) -> u32 {
        self.peers.id()
    }

    pub(super) fn lineage(&self) -> Lineage {
        self.peers.lineage()
    }

    pub(super) fn executor(&self) -> &Executor {
        &self.executor
    }

    /// Its messages and windows.
    #[inline]
    pub(super) fn pairwise(&mut self) -> &mut Pairwise {
        &mut self.pairwise
    }

    /// Whether outcomes are held back.
    #[inline]
    pub(super) fn is_settling(&self) -> bool {
        self.ending.is_settling()
    }

    /// Whether it has ended in error, and its members are notified.
    #[cfg(feature = "cuda")]
    pub(super) fn is_flooded(&self) -> bool {
        self.ending.is_flooded()
    }

    /// It ends because of this rank.
    #[cfg(feature = "cuda")]
    pub(super) fn fail(&mut self, why: AbortReason) {
        self.executor.abort(self.peers.own(), why);
    }

    /// The queue of operations that are started without waiting.
    pub(super) fn submissions(&mut self) -> Arc<Submissions> {
        self.operations.queue()
    }

    /// Starts an operation: the next one of this group.
    pub(super) fn start(&mut self, now: Instant, request: Request) -> Result<OpId, StartError> {
        self.operations.start(now, &mut self.executor, self.node.as_deref(), request)
    }

    /// Reports the ends of submitted operations and of messages, once outcomes are not held back.
    fn report(&mut self) -> bool {
        !self.ending.is_settling() && (self.pairwise.messages.report() | self.operations.report())
    }

    /// Takes the outcome of an operation, once it has ended.
    pub(super) fn take_finished(&mut self, op: OpId) -> Option<Completed> {
        if self.ending.is_settling() {
            return None;
        }
        self.operations.take_finished(op)
    }

    /// Whether nothing is under way and all outcomes can be taken.
    pub(super) fn is_idle(&self) -> bool {
        !self.operations.is_running()
            && !self.pairwise.is_running()
            && !self.ending.is_settling()
            && self.operations.are_all_started()
    }

    /// Takes a message to this group.
    #[inline]
    pub(super) fn fragment(&mut self, header: &Header, payload: &[u8]) -> Disposition {
        let Some(src) = self.peers.members().number(header.src) else {
            return Disposition::Refused(Refusal::Malformed);
        };
        let header = Header { src, ..*header };
        match self.closing {
            // Members may still ask for what was sent before this rank left.
            _ if Pairwise::takes(&header) => self.pairwise.on_message(&header, payload),
            None => self.executor.on_fragment(&header, payload),
            Some(_) => Disposition::Refused(Refusal::Aborted),
        }
    }

    /// Nothing refers to a posted fragment any more.
    #[inline]
    pub(super) fn released(&mut self, token: SendToken) {
        let token = token.owned_by(0);
        match Pairwise::has_posted(token) {
            true => self.pairwise.on_released(token),
            false => self.executor.on_released(token),
        }
    }

    /// Takes a rank's message about the group.
    pub(super) fn greeted(&mut self, rank: Rank, greeting: Greeting) {
        if let Some(left) = self.peers.greeted(rank, greeting) {
            self.pairwise.left(left);
        }
    }

    /// A rank has left the job: a member that may never have made the group, or a leader that others are reached by.
    pub(super) fn departed(&mut self, rank: Rank) {
        if let Some(left) = self.peers.departed(rank) {
            self.pairwise.left(left);
        }
    }

    /// Whether a poll at this time can do something, or what is under way may end by itself. Where not, nothing changes that but a call, a message,
    /// or the [next deadline](Self::next_deadline).
    #[inline]
    pub(super) fn is_active(&self, now: Instant) -> bool {
        let time = executor_time(now);
        let ended = self.executor.aborted().is_some();
        self.operations.is_running()
            || self.peers.has_messages()
            || !self.operations.are_all_started()
            || self.pairwise.has_work()
            || self.pairwise.is_running()
            || self.pairwise.next_deadline().is_some_and(|deadline| deadline <= time)
            || self.operations.next_deadline().is_some_and(|deadline| deadline <= now)
            || self.ending.is_settling()
            || ended != self.ending.is_flooded()
            || !ended && self.executor.diverged().is_some()
    }

    /// Whether an operation is under way whose ranks meet in lanes.
    pub(super) fn waits_for_lanes(&self) -> bool {
        self.node.is_some() && self.operations.is_running()
    }

    /// One poll; whether it did something.
    pub(super) fn poll(&mut self, now: Instant, up: &mut UpChannels) -> bool {
        if !self.is_active(now) {
            return false;
        }
        let mut busy = self.peers.greet(up);
        self.operations.admit(now, &mut self.executor, self.node.as_deref());
        busy |= self.operations.take_change();
        let time = executor_time(now);
        let mut route = Route { up, peers: &mut self.peers };
        if self.operations.is_running() {
            self.executor.set_time(time);
            busy |= self.executor.poll(time, &mut route, self.node.as_deref(), None).worked;
        }
        busy |= self.pairwise.poll(time, &mut route);
        busy |= self.operations.gather(&mut self.executor);
        if self.operations.is_compare_due(now) {
            self.executor.compare(self.node.as_deref());
        }
        if self.peers.has_left() {
            self.end_for_departed(now);
        }
        if let Some(seq) = self.node.as_deref().and_then(NodeSegment::dispute) {
            self.executor.diverge(seq, self.peers.own());
        }
        if self.executor.diverged().is_some() && self.executor.aborted().is_none() {
            let Self { ending, executor, peers, node, .. } = self;
            ending.deliberate(now, executor, node.as_deref(), false, |vote| peers.send_to_all(vote));
        }
        busy |= self.flood_abort(now);
        busy |= self.peers.send_waiting(up);
        if self.ending.is_settling() {
            // The ends of messages and accesses are reported after that.
            let is_memory_free = self.executor.is_quiesced() && !self.pairwise.has_unended();
            busy |= self.ending.settle(now, is_memory_free, self.peers.has_sent_all(), || false);
        }
        busy | self.report()
    }

    /// A rank of the job among these that a message or an access waits for.
    #[cold]
    pub(super) fn awaited(&self, among: impl Fn(Rank) -> bool + Copy) -> Option<Rank> {
        let members = self.peers.members();
        let number = self.pairwise.awaited(|number| members.rank(number).is_some_and(among))?;
        members.rank(number)
    }

    /// When the next poll is needed although nothing may arrive.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let since_start = |deadline| Instant::ZERO + deadline;
        [
            self.executor.next_deadline().map(since_start),
            self.pairwise.next_deadline().map(since_start),
            self.operations.next_deadline(),
            self.ending.next_deadline(),
            self.closing,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Ends the group when its oldest operation is one in which a member that has left takes no part, or when a message or an access waits
    /// for such a member.
    #[cold]
    fn end_for_departed(&mut self, now: Instant) {
        if self.closing.is_some() || self.executor.aborted().is_some() || self.executor.diverged().is_some() {
            return;
        }
        let absent = self.operations.oldest().and_then(|oldest| self.peers.absent_from(now, oldest));
        let culprit = absent.or_else(|| self.pairwise.awaited_departed(now, self.peers.behind()));
        if let Some(culprit) = culprit {
            self.executor.abort(culprit, AbortReason::Aborted);
        }
    }

    /// Notifies all members that the group has ended, once; whether it does.
    #[inline]
    fn flood_abort(&mut self, now: Instant) -> bool {
        let cause = self.ending.take_cause(&self.executor);
        cause.iter().for_each(|cause| self.send_abort(now, cause));
        cause.is_some()
    }

    #[cold]
    fn send_abort(&mut self, now: Instant, cause: &Arc<AbortCause>) {
        self.operations.close();
        self.pairwise.abort(cause);
        let members = self.peers.members();
        let culprit = members.named(cause.culprit).0;
        tracing::error!(%culprit, why = %cause.reason, ranks = members.size(), "a group of some ranks has ended");
        self.peers.send_to_all(&abort_header(self.peers.own(), cause, &self.executor));
        self.operations.gather(&mut self.executor);
        self.ending.hold_until(now + FLOOD);
    }

    /// The group of all has ended because of a rank of the job, and so does this one. The channels refer to no memory any more.
    pub(super) fn end_with_all(&mut self, culprit: Rank, why: AbortReason, seen: Option<Box<str>>) {
        self.executor.abort_seen(self.peers.members().name(culprit), why, seen);
        if self.executor.aborted().is_none() {
            // Members disagree, and no more votes will come.
            self.executor.conclude(self.node.as_deref());
        }
        self.operations.gather(&mut self.executor);
        self.executor.fenced();
        if let Some(cause) = self.executor.aborted().cloned() {
            self.pairwise.abort(&cause);
            self.pairwise.fenced();
        }
        // Each member is notified by the group of all.
        self.ending.end_at_once();
        self.peers.forget_waiting();
        self.operations.close();
        self.report();
    }

    /// This rank leaves the group: in good order where every operation has ended here, else as the member that all others name.
    /// With `is_busy` copies for operations are under way.
    pub(super) fn leave(&mut self, now: Instant, is_busy: bool) {
        self.operations.admit(now, &mut self.executor, self.node.as_deref());
        let has_operations = self.operations.is_running() || !self.operations.are_all_started();
        if has_operations || self.pairwise.is_running() || is_busy {
            self.executor.abort(self.peers.own(), AbortReason::Aborted);
        }
        self.flood_abort(now);
        if self.executor.aborted().is_none() {
            self.operations.leave();
            self.peers.leave(self.operations.started());
        } else {
            self.peers.leave_ended();
        }
        // Their memory is the caller's again.
        self.pairwise.windows.machine.close_all();
        self.closing = Some(now + FLOOD);
    }

    /// Whether nothing refers to the memory of its operations, and the ends of those that were started are reported.
    pub(super) fn is_quiesced(&self) -> bool {
        self.executor.is_quiesced() && !self.pairwise.is_running() && self.operations.are_all_reported()
    }

    /// Whether a member has left.
    #[cfg(test)]
    pub(super) fn has_left(&self) -> bool {
        self.peers.has_left()
    }

    /// Whether this rank has left and nothing is left to do. Control messages that wait are dropped after a while; messages that were sent before
    /// have until their deadline, as long as their receivers are there.
    pub(super) fn is_closed(&mut self, now: Instant) -> bool {
        let Some(until) = self.closing else { return false };
        let is_late = now >= until;
        if is_late {
            self.peers.forget_waiting();
            self.closing = Some(now + FLOOD);
        }
        self.is_quiesced()
            && self.peers.has_sent_all()
            && self.pairwise.is_quiesced()
            && (is_late || !self.pairwise.has_work())
            && !self.pairwise.messages.machine.has_unacknowledged(|number| self.peers.is_within_reach(number))
    }
}
