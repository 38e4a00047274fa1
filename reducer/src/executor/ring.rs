//! The ring of operations: each at the place of its seq, in the order of priority, and those that have something to do.
//!
//! A poll visits the operations that are *due* only: running ones with a step that is ready, work of an accelerator to ask about, or
//! early messages to look at again. All changes of an operation pass through [`Ring::edit`], which lists it when it becomes due, so
//! that operations which wait for a message or an acknowledgement cost a poll nothing.

use super::api::Request;
use super::lanes::Lanes;
use super::op::{Op, OpState, Steps};
use crate::header::Header;
use crate::memory::Pooled;
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

/// A running operation as (priority, whether it is large, seq): the lowest is the most urgent. A small one goes before large ones of its
/// priority: it takes next to nothing from them.
type Urgency = (u32, bool, u64);

#[derive(Debug)]
struct OpSlot {
    op: Op,
    /// It is in the list of those that are due.
    listed: bool,
}

/// The operations of an executor.
#[derive(Debug)]
pub(super) struct Ring {
    /// Operation `seq` lives at `seq & mask`.
    places: Vec<OpSlot>,
    mask: u64,
    next_seq: u64,
    /// Operations whose steps are not chosen yet, in their order.
    undecided: VecDeque<u64>,
    /// The most urgent first.
    running: Vec<Urgency>,
    /// All that are due, the most urgent first; also some that are not due any more, or have ended, until the next sweep.
    due: Vec<Urgency>,
    /// Of operations that have ended.
    spare: Vec<Steps>,
}

impl Ring {
    /// Places for so many operations at once, a power of two.
    pub(super) fn new(operations: usize) -> Self {
        Self {
            places: (0..operations).map(|_| OpSlot { op: Op::vacant(), listed: false }).collect(),
            mask: operations as u64 - 1,
            next_seq: 0,
            undecided: VecDeque::new(),
            running: Vec::with_capacity(operations),
            due: Vec::with_capacity(operations),
            spare: Vec::with_capacity(operations),
        }
    }

    #[inline]
    fn place(&self, seq: u64) -> usize {
        (seq & self.mask) as usize
    }

    /// The node's shared memory, for all operations from now on.
    pub(super) fn attach(&mut self, lanes: &Arc<Lanes>) {
        self.places.iter_mut().for_each(|place| place.op.buffers.attach(Arc::clone(lanes)));
    }

    /// The seq of the operation that starts next.
    #[inline]
    pub(super) fn next_seq(&self) -> u64 {
        self.next_seq
    }

    /// Whether no rank can be there: none starts so many operations while one of them is running.
    pub(super) fn is_beyond_reach(&self, seq: u64) -> bool {
        seq.saturating_sub(self.next_seq) > self.mask
    }

    /// Whether another operation can start.
    pub(super) fn has_room(&self) -> bool {
        self.op(self.next_seq).state() == OpState::Vacant
    }

    /// The operation at the place of this one: it, or another of the same place.
    #[inline]
    pub(super) fn op(&self, seq: u64) -> &Op {
        &self.places[self.place(seq)].op
    }

    /// All places.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Op> {
        self.places.iter().map(|place| &place.op)
    }

    /// Changes what is at the place of an operation.
    #[inline(always)]
    pub(super) fn edit<R>(&mut self, seq: u64, act: impl FnOnce(&mut Op) -> R) -> R {
        let at = self.place(seq);
        let place = &mut self.places[at];
        let result = act(&mut place.op);
        if place.op.take_may_be_due() {
            self.list(at);
        }
        result
    }

    /// Lists the operation of a place, if it is due.
    fn list(&mut self, at: usize) {
        let place = &mut self.places[at];
        if !place.listed && place.op.is_due() {
            place.listed = true;
            insert(&mut self.due, place.op.entry());
        }
    }

    /// Changes all running operations.
    pub(super) fn edit_running(&mut self, mut act: impl FnMut(&mut Op)) {
        for index in 0..self.running.len() {
            self.edit(self.running[index].2, &mut act);
        }
    }

    /// Starts the next operation, where there is [room](Self::has_room); its steps are chosen later.
    pub(super) fn start(
        &mut self,
        request: Request,
        template: Header,
        slots: Option<Pooled>,
        sends: (bool, (u64, u64)),
        now: Duration,
    ) {
        let seq = self.next_seq;
        self.next_seq += 1;
        insert(&mut self.running, (request.priority, sends.0, seq));
        self.undecided.push_back(seq);
        let steps = self.spare.pop().unwrap_or_default();
        self.edit(seq, |op| op.start(request, template, slots, sends, steps, now));
    }

    /// The first operation whose steps are not chosen.
    #[inline]
    pub(super) fn undecided(&self) -> Option<u64> {
        self.undecided.front().copied()
    }

    /// The steps of the first such operation are chosen.
    pub(super) fn decided(&mut self) {
        self.undecided.pop_front();
    }

    /// The running operations, the most urgent first.
    pub(super) fn running(&self) -> impl ExactSizeIterator<Item = &Op> {
        self.running.iter().map(|&(.., seq)| self.op(seq))
    }

    /// The most urgent of them.
    pub(super) fn most_urgent(&self) -> Option<u64> {
        self.running.first().map(|&(.., seq)| seq)
    }

    /// Whether the most urgent one is small, and this one is not.
    #[inline]
    pub(super) fn is_behind_small(&self, seq: u64) -> bool {
        self.running.first().is_some_and(|&(_, waits, _)| !waits) && self.op(seq).sends.wait_for_credit()
    }

    /// The operation at a place of the list of those that are due, and whether it still runs.
    #[inline]
    pub(super) fn due(&self, index: usize) -> Option<(u64, bool)> {
        let &(.., seq) = self.due.get(index)?;
        Some((seq, self.op(seq).runs(seq)))
    }

    /// All operations that are due.
    pub(super) fn all_due(&self) -> impl Iterator<Item = &Op> {
        self.due.iter().filter(|&&(.., seq)| self.op(seq).runs(seq)).map(|&(.., seq)| self.op(seq))
    }

    /// Takes the operations that have ended, or nothing to do any more, off the list.
    #[inline]
    pub(super) fn sweep(&mut self) {
        let (places, mask) = (&mut self.places, self.mask);
        self.due.retain(|&(.., seq)| {
            let place = &mut places[(seq & mask) as usize];
            // An operation that has ended may be in the list, and another in its place.
            let runs = place.op.runs(seq);
            if runs {
                place.listed = place.op.is_due();
            }
            runs && place.listed
        });
    }

    /// Whether the list holds the operations that are due and no other, as it does after a poll.
    #[cfg(test)]
    pub(super) fn lists_what_is_due(&self) -> bool {
        let is_right = |place: &OpSlot| {
            let listed = self.due.contains(&place.op.entry()) && place.op.state() == OpState::Running;
            [place.listed, listed] == [place.op.is_due(); 2]
        };
        self.due.is_sorted() && self.places.iter().all(is_right)
    }

    /// How much memory of ended operations is kept for others.
    #[cfg(test)]
    pub(super) fn spares(&self) -> usize {
        self.spare.len()
    }

    /// Ends an operation; `None` if it was not running.
    #[inline]
    pub(super) fn end(&mut self, seq: u64) -> Option<&Op> {
        let at = self.place(seq);
        let place = &mut self.places[at];
        if !place.op.end() {
            return None;
        }
        place.listed = false;
        let entry = place.op.entry();
        if let Ok(index) = self.running.binary_search(&entry) {
            self.running.remove(index);
        }
        Some(&place.op)
    }

    /// Empties the place of an operation to which nothing refers any more, if that is so; returns its slots.
    pub(super) fn vacate_if_free(&mut self, seq: u64) -> Option<Pooled> {
        let at = self.place(seq);
        let op = &mut self.places[at].op;
        if !op.is_free() {
            return None;
        }
        let (slots, steps) = op.vacate();
        self.spare.push(steps);
        slots
    }
}

fn insert(order: &mut Vec<Urgency>, entry: Urgency) {
    match order.last() {
        Some(last) if *last > entry => order.insert(order.partition_point(|&other| other < entry), entry),
        _ => order.push(entry),
    }
}
