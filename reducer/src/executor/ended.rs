//! The end of operations, and of the group: the reports, and when a place of the ring is free again.

use super::Executor;
use super::api::{AbortCause, AbortReason, Completed, OpError, OpId, OpSubject};
use super::op::{Op, OpState};
use crate::grid::Rank;
use crate::recorder::{Record, RecordKind};
use crate::transport::SendToken;
use std::collections::VecDeque;
use std::sync::Arc;

/// Operations that have ended, and the end of the group.
#[derive(Debug)]
pub(super) struct Ended {
    /// Operations that are not reported yet.
    completed: VecDeque<Completed>,
    /// Why the group has ended.
    cause: Option<Arc<AbortCause>>,
    /// The rank that has given up, as another one says. The reason arrives separately.
    gave_up: Option<Rank>,
}

impl Ended {
    /// Nothing; with room for so many operations.
    pub(super) fn new(operations: usize) -> Self {
        Self { completed: VecDeque::with_capacity(operations), cause: None, gave_up: None }
    }

    /// Why the group has ended, if it has.
    #[inline]
    pub(super) fn cause(&self) -> Option<&Arc<AbortCause>> {
        self.cause.as_ref()
    }

    /// Another rank says that this one has given up.
    pub(super) fn on_gave_up(&mut self, rank: Rank) {
        self.gave_up.get_or_insert(rank);
    }

    /// Whether the group has ended.
    #[inline]
    pub(super) fn is_over(&self) -> bool {
        self.cause.is_some()
    }
}

impl Executor {
    /// Ends the group on this rank: all operations fail, and no other can start. The first cause stays. The caller notifies the
    /// other ranks.
    pub fn abort(&mut self, culprit: Rank, why: AbortReason) {
        self.abort_seen(culprit, why, None);
    }

    /// Ends the group, and notes how the failure showed on this rank.
    pub fn abort_seen(&mut self, culprit: Rank, why: AbortReason, seen: Option<Box<str>>) {
        // After a divergence peers leave as soon as they know the votes, which this rank waits for.
        if self.agreement.disputed().is_some() && !self.ended.is_over() && why == AbortReason::Failed {
            self.agreement.died(culprit);
            return;
        }
        self.end_for(culprit, why, seen);
    }

    /// Ends the group on this rank, votes or not.
    pub(super) fn end_for(&mut self, culprit: Rank, why: AbortReason, seen: Option<Box<str>>) {
        let own = self.config.rank;
        if !self.ended.is_over() {
            self.control.note(Record {
                rank: Some(culprit),
                value: why.code().into(),
                ..Record::of(RecordKind::Ended)
            });
        }
        let cause = self
            .ended
            .cause
            .get_or_insert_with(|| Arc::new(AbortCause { seen, ..AbortCause::seen_by(own, culprit, why) }));
        let cause = Arc::clone(cause);
        while let Some(seq) = self.ring.most_urgent() {
            let cause = Arc::clone(&cause);
            self.fail(seq, |subject| OpError::Aborted { subject, cause });
        }
    }

    /// The rank that has given up, as another one says: in the group of all that does not end the group, for the reason arrives over
    /// the control connections.
    pub fn given_up(&self) -> Option<Rank> {
        self.ended.gave_up.filter(|_| !self.ended.is_over())
    }

    /// Why the group has ended, if it has.
    pub fn aborted(&self) -> Option<&Arc<AbortCause>> {
        self.ended.cause()
    }

    /// Nothing refers to a posted fragment any more.
    pub fn on_released(&mut self, token: SendToken) {
        if token == SendToken::CONTROL {
            return;
        }
        let released = self.ring.edit(token.seq(), |op| {
            if op.state() == OpState::Vacant || !token.is_of(op.seq()) {
                return None;
            }
            op.released(token.step(), &mut self.control);
            let may_end = op.steps.are_done() || op.state() == OpState::Lingering;
            may_end.then_some(op.seq())
        });
        if let Some(seq) = released {
            self.finish_if_done(seq);
            self.vacate_if_free(seq);
        }
    }

    /// After an error: transports and accelerators refer to nothing of this executor any more, and will not.
    pub fn fenced(&mut self) {
        let lingers = |op: &&Op| op.state() == OpState::Lingering;
        let lingering: Vec<u64> = self.ring.iter().filter(lingers).map(Op::seq).collect();
        for seq in lingering {
            self.ring.edit(seq, Op::fenced);
            self.vacate_if_free(seq);
        }
    }

    /// Whether no operation runs, and no transport or accelerator refers to anything of this executor or of its operations.
    pub fn is_quiesced(&self) -> bool {
        self.ring.iter().all(|op| op.state() == OpState::Vacant)
    }

    /// The next operation that has ended, in the order in which they ended.
    pub fn take_completed(&mut self) -> Option<Completed> {
        self.ended.completed.pop_front()
    }

    #[inline]
    pub(super) fn finish_if_done(&mut self, seq: u64) {
        if self.ring.op(seq).steps.are_done() {
            self.succeed(seq);
        }
    }

    /// All steps of an operation are done.
    pub(super) fn succeed(&mut self, seq: u64) {
        self.end(seq, |_| Ok(()));
    }

    pub(super) fn fail(&mut self, seq: u64, error: impl FnOnce(Box<OpSubject>) -> OpError) {
        self.end(seq, |op| Err(error(op.subject())));
    }

    /// Ends an operation, if it runs.
    fn end(&mut self, seq: u64, result: impl FnOnce(&Op) -> Result<(), OpError>) {
        let Some(op) = self.ring.end(seq) else { return };
        let (result, outstanding) = (result(op), op.outstanding());
        if result.is_ok() && self.control.is_traced() {
            op.sum_up(&mut self.control);
        }
        let (small, early) = (!op.sends.wait_for_credit(), !op.early.is_empty());
        if self.running() == 0 {
            self.deadlines.clear();
        }
        if early {
            self.drop_parked(seq);
        }
        if small {
            self.raise_floor(seq);
        }
        let (what, rank) = match &result {
            Ok(()) => (RecordKind::Done, None),
            Err(_) => (RecordKind::Failed, self.ended.cause().map(|cause| cause.culprit)),
        };
        self.control.note(Record { rank, seq, ..Record::of(what) });
        self.ended.completed.push_back(Completed { op: OpId(seq), result, outstanding });
        self.vacate_if_free(seq);
    }

    fn vacate_if_free(&mut self, seq: u64) {
        if let Some(slots) = self.ring.vacate_if_free(seq) {
            self.slots.put(slots);
        }
    }
}
