//! The operations of a group on this rank, from their start until their outcome has been taken or reported. The group of all ranks has
//! them, and so has each group of some of them.

use std::sync::Arc;
use std::time::Duration;

use shouter_netstack::time::Instant;
use shouter_reducer::executor::{Completed, Executor, OpError, OpId, Request, StartError};
use shouter_reducer::fusion::Ends;
use shouter_reducer::grid::Rank;
use shouter_reducer::header::{Identity, View};
use shouter_reducer::memory::MemoryKind;
use shouter_reducer::transport::ExportedTensor;

use super::executor_time;
use super::submitted::marks::Mark;
use super::submitted::{Due, Failure, Submissions, Submitted};
use crate::channel::shm::{Announcement, NodeSegment, pack, pack_identity};
use crate::observe::UNNAMED;
use crate::observe::flight::Labels;

/// Between two looks at what other ranks run, while an operation is under way.
const COMPARE_EVERY: Duration = Duration::from_millis(50);

/// An operation as this rank has started it, until its outcome has been taken.
struct Open {
    op: OpId,
    view: View,
    /// The place of what it gives in the rank's arena, and its bytes; none if others cannot use it there.
    shared: Option<(usize, usize)>,
    /// How the others open the tensor, if it lies in an accelerator's memory and they may.
    export: Option<ExportedTensor>,
    /// Small operations before it, if that is not what the node's memory says when it is announced.
    small_before: Option<u64>,
    /// The callbacks of its end; none where its outcome is taken.
    ends: Option<Ends<Due>>,
}

impl Open {
    fn new(request: &Request, node: Option<&NodeSegment>, small_before: Option<u64>) -> Self {
        // Others use it where it lies only if this rank has steps for that, too.
        let given = request.schedule.in_place().map(|_| request.given());
        let shared = given.zip(node).and_then(|(given, node)| match given.kind() {
            _ if given.is_empty() => Some((0, 0)),
            MemoryKind::Shared => Some((node.locate(given.as_ptr(), given.len())?, given.len())),
            _ => None,
        });
        let export = given.and(request.device).and_then(|device| device.export);
        let view = View { identity: request.identity, shape: request.shape };
        Self { op: OpId(0), view, shared, export, small_before, ends: None }
    }

    /// Announces the operation to the other ranks of the node.
    #[inline]
    fn announce(&self, node: &NodeSegment) {
        let announcement = Announcement {
            number: self.op.0 + 1,
            shape: pack(&self.view.shape),
            identity: pack_identity(&self.view.identity),
            tensor: match (self.shared, self.export) {
                (Some((offset, _)), _) => offset as u64 + 1,
                (None, Some(_)) => Announcement::EXPORTED,
                (None, None) => 0,
            },
            small_before: self.small_before.unwrap_or_else(|| node.small_published()),
        };
        node.announce(announcement, self.export.as_ref());
    }
}

/// The program's names of operations, and the number of their group in records: 0 for the group of all.
struct Labelled {
    labels: Arc<Labels>,
    group: u16,
}

impl Labelled {
    /// The name to be kept; none of what the table of the group of all names.
    fn name_of(&self, request: &Request) -> Option<Arc<str>> {
        let is_in_table = self.group == 0 && matches!(request.identity, Identity::Registered { .. });
        (!is_in_table && *request.name != *UNNAMED).then(|| request.name.clone())
    }
}

/// The operations of a group. Where the ranks of a node share memory, they are announced there.
pub(super) struct Operations {
    /// Operations that were started, and whose outcomes are neither taken nor reported.
    open: Vec<Open>,
    /// Operations to be started that nobody waits for here.
    submitted: Submitted,
    /// Outcomes that are neither taken nor reported.
    finished: Vec<Completed>,
    started: u64,
    running: usize,
    next_compare: Instant,
    labels: Option<Labelled>,
}

impl Operations {
    /// None yet, with room for so many.
    pub(super) fn with_capacity(room: usize) -> Self {
        Self {
            open: Vec::with_capacity(room),
            submitted: Submitted::default(),
            finished: Vec::with_capacity(room),
            started: 0,
            running: 0,
            next_compare: Instant::ZERO,
            labels: None,
        }
    }

    /// None yet, of a group of some ranks. This is set when other threads submit one.
    pub(super) fn of_some(mark: Mark) -> Self {
        let mut operations = Self::with_capacity(0);
        operations.submitted.mark_by(mark);
        operations
    }

    /// From now on the program's names are kept, under the group's number in records. Before the first operation.
    pub(super) fn label(&mut self, labels: Arc<Labels>, group: u16) {
        self.labels = Some(Labelled { labels, group });
    }

    /// The queue of operations that are started without waiting.
    pub(super) fn queue(&mut self) -> Arc<Submissions> {
        self.submitted.queue().clone()
    }

    /// Starts an operation: the next one of the group. Those that were submitted before come first.
    pub(super) fn start(
        &mut self,
        now: Instant,
        executor: &mut Executor,
        node: Option<&NodeSegment>,
        request: Request,
    ) -> Result<OpId, StartError> {
        self.admit(now, executor, node);
        if !self.submitted.is_empty() {
            return Err(StartError::Busy { what: "operations" });
        }
        let open = Open::new(&request, node, None);
        self.begin(now, executor, node, request, open)
    }

    /// Starts submitted operations, as far as there is room.
    #[inline]
    pub(super) fn admit(&mut self, now: Instant, executor: &mut Executor, node: Option<&NodeSegment>) {
        if executor_time(now) >= self.submitted.held_until() {
            self.submitted.give_up(now);
        }
        if !self.submitted.is_empty() {
            self.admit_some(now, executor, node);
        }
    }

    fn admit_some(&mut self, now: Instant, executor: &mut Executor, node: Option<&NodeSegment>) {
        while let Some(next) = self.submitted.next() {
            let open = Open::new(&next.request, node, Some(next.small_before));
            match self.begin(now, executor, node, next.request.clone(), open) {
                Ok(_) => {
                    self.submitted.started(&next.ends);
                    if let Some(open) = self.open.last_mut() {
                        open.ends = Some(next.ends);
                    }
                }
                Err(StartError::Busy { .. }) => {
                    self.submitted.put_back(next);
                    break;
                }
                Err(why) => self.submitted.refused(next.ends, why),
            }
        }
    }

    fn begin(
        &mut self,
        now: Instant,
        executor: &mut Executor,
        node: Option<&NodeSegment>,
        request: Request,
        mut open: Open,
    ) -> Result<OpId, StartError> {
        executor.set_time(executor_time(now));
        let name = self.labels.as_ref().and_then(|labels| labels.name_of(&request));
        let op = executor.start(request)?;
        open.op = op;
        if let (Some(Labelled { labels, group }), Some(name)) = (&self.labels, name) {
            labels.keep((*group, op.0), name);
        }
        if self.running == 0 {
            self.next_compare = now + COMPARE_EVERY;
        }
        if let Some(node) = node {
            open.announce(node);
        }
        self.started += 1;
        self.running += 1;
        self.open.push(open);
        Ok(op)
    }

    /// Takes the operations that have ended from the executor; whether there was one.
    #[inline]
    pub(super) fn gather(&mut self, executor: &mut Executor) -> bool {
        let mut any = false;
        while let Some(completed) = executor.take_completed() {
            self.running -= 1;
            self.finished.push(completed);
            any = true;
        }
        any
    }

    /// Takes the outcome of an operation, once it has ended. Callers ask [`EndState`](super::ending::EndState) before whether outcomes are held back.
    #[inline]
    pub(super) fn take_finished(&mut self, op: OpId) -> Option<Completed> {
        let at = self.finished.iter().position(|completed| completed.op == op)?;
        self.open.retain(|open| open.op != op);
        Some(self.finished.swap_remove(at))
    }

    /// Reports the ends of operations that were submitted; whether there was one. Not while outcomes are held back.
    #[inline]
    pub(super) fn report(&mut self) -> bool {
        !self.finished.is_empty() && self.report_some()
    }

    fn report_some(&mut self) -> bool {
        let Self { open, finished, submitted, .. } = self;
        let before = finished.len();
        finished.retain(|completed| {
            let is_due = |open: &Open| open.op == completed.op && open.ends.is_some();
            let Some(at) = open.iter().position(is_due) else { return true };
            if let Some(ends) = open.swap_remove(at).ends {
                submitted.report(ends, completed.result.clone().map_err(Failure::Operation));
            }
            false
        });
        finished.len() < before
    }

    /// Whether callers who wait for a slot, a start or an end may go on: something was taken from the queue.
    #[inline]
    pub(super) fn take_change(&mut self) -> bool {
        self.submitted.take_change()
    }

    /// Whether the views of the node's ranks have to be compared now.
    #[inline]
    pub(super) fn is_compare_due(&mut self, now: Instant) -> bool {
        let is_due = self.running != 0 && now >= self.next_compare;
        if is_due {
            self.next_compare = now + COMPARE_EVERY;
        }
        is_due
    }

    /// When a poll is due: to compare, or for tensors that are held.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let compare = self.is_running().then_some(self.next_compare);
        [compare, self.submitted.next_deadline()].into_iter().flatten().min()
    }

    /// Operations started so far.
    pub(super) fn started(&self) -> u64 {
        self.started
    }

    /// Operations that were started and have not ended.
    #[cfg(test)]
    pub(super) fn running(&self) -> usize {
        self.running
    }

    /// Whether an operation that was started has not ended.
    #[inline]
    pub(super) fn is_running(&self) -> bool {
        self.running != 0
    }

    /// Whether nothing waits to be started.
    #[inline]
    pub(super) fn are_all_started(&self) -> bool {
        self.submitted.is_empty()
    }

    /// Whether all that was submitted has been started, and its end is reported.
    pub(super) fn are_all_reported(&self) -> bool {
        self.submitted.is_empty() && self.open.iter().all(|open| open.ends.is_none())
    }

    /// The first operation that has not ended.
    #[cold]
    pub(super) fn oldest(&self) -> Option<OpId> {
        let has_ended = |op| self.finished.iter().any(|completed| completed.op == op);
        self.open.iter().map(|open| open.op).filter(|op| !has_ended(*op)).min()
    }

    /// The group has ended: an operation that is started now fails.
    pub(super) fn close(&mut self) {
        self.submitted.close();
    }

    /// This rank leaves in good order: operations that are held, or come later, are reported as gone.
    pub(super) fn leave(&mut self) {
        self.submitted.leave();
    }

    /// Takes the tensors of operations back from the other ranks of the node, which may still write to them.
    pub(super) fn fence_tensors(&self, node: &NodeSegment) {
        for (offset, len) in self.open.iter().filter_map(|open| open.shared) {
            node.fence(offset, len);
        }
    }

    /// Whether other ranks may open the tensor of an operation.
    #[inline]
    pub(super) fn has_exported(&self) -> bool {
        self.open.iter().any(|open| open.export.is_some())
    }

    /// The errors of operations with copies under way say that the accelerator of this rank may still use their tensors.
    pub(super) fn keep_copied(&mut self, rank: Rank) {
        for completed in self.finished.iter_mut().filter(|completed| completed.outstanding > 0) {
            keep_memory(completed, rank);
        }
    }

    /// The errors of operations whose tensors others have opened say that the accelerator of this rank may still use them.
    pub(super) fn keep_exported(&mut self, rank: Rank) {
        let Self { open, finished, .. } = self;
        let is_exported = |op| open.iter().any(|open| open.op == op && open.export.is_some());
        for completed in finished.iter_mut().filter(|completed| is_exported(completed.op)) {
            keep_memory(completed, rank);
        }
    }
}

/// Adds to an error that the tensor's memory must stay, since a rank's accelerator may still use it.
fn keep_memory(completed: &mut Completed, rank: Rank) {
    if let Err(error) = &completed.result {
        let error = Box::new(error.clone());
        completed.result = Err(OpError::InUse { error, rank });
    }
}
