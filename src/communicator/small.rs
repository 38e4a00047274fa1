//! Small all-reduces within one node: a straight line, not a schedule.
//!
//! Each rank publishes its elements in its own cell and folds those of all ranks in rank order, so all end with the same
//! bits. Two cells a rank suffice: no rank publishes operation n + 1 before it has read all of operation n, so a rank that
//! writes a cell again has seen that all ranks have read it. Up to 40 bytes travel in one cache line with the sequence
//! word: the latency is that of one line going from core to core.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use shouter_reducer::dtype::ReduceOp;
use shouter_reducer::executor::{AbortCause, AbortReason, Divergence, Tally, Vote};
use shouter_reducer::grid::Rank;
use shouter_reducer::header::Shape;
use shouter_reducer::kernel::Kernels;
use shouter_reducer::recorder::{Record, RecordKind, Recorder};

use super::Group;
use super::element::Buffer;
use super::stats::lock;
use crate::channel::shm::{Abort, CELL_PAYLOAD, Cell, NodeSegment, pack, unpack};
use crate::engine::divergence::{VERDICT, VIEWS, instead_of_small};
use crate::engine::executor_time;
use crate::error::Error;
use crate::runtime::{Activity, Backoff, Clock, IdlePolicy, Instant};

/// Operations up to this many bytes are small.
pub(super) const CELL_BYTES: usize = CELL_PAYLOAD;

/// Turns of waiting between two looks at everything else: the engine, the end of the group, the deadline.
const LOOK_EVERY: u32 = 256;

/// After this wait the rank checks what the other one runs instead.
const SLOW: Duration = Duration::from_millis(50);

/// The cells of a node whose ranks are the whole group.
pub(super) struct Cells {
    segment: Arc<NodeSegment>,
    kernels: Kernels,
    idle: IdlePolicy,
    state: Mutex<SmallState>,
}

struct SmallState {
    /// Small operations so far.
    number: u64,
    /// The last one failed.
    is_broken: bool,
    /// Keeps the start of each: the next one's says that it has ended.
    recorder: Recorder,
}

impl Cells {
    pub(super) fn new(
        segment: Arc<NodeSegment>,
        kernels: Kernels,
        idle: IdlePolicy,
        recorder: Recorder,
    ) -> Self {
        let state = SmallState { number: 0, is_broken: false, recorder };
        Self { segment, kernels, idle, state: Mutex::new(state) }
    }

    /// Reduces `data` over all ranks of the node.
    pub(super) fn all_reduce(
        &self,
        group: &Group,
        begin: Instant,
        shape: &Shape,
        data: Buffer,
        step: u64,
    ) -> Result<(), Error> {
        let mut state = lock(&self.state);
        if let Some(abort) = self.segment.abort()
            && let Some(error) = self.refusal(group, abort, state.is_broken, shape, step)
        {
            return Err(group.recorded(error));
        }
        state.number += 1;
        let (at, seq, bytes) = (executor_time(begin), state.number, data.len() as u64);
        state.recorder.record(Record { at, seq, value: step, bytes, ..Record::of(RecordKind::Started) });
        let result = self.exchange(group, begin, shape, data, step, state.number);
        state.is_broken = result.is_err();
        result.map_err(|error| {
            let rank = self.segment.abort().map(|abort| Rank(abort.culprit));
            let at = executor_time(Clock.now());
            state.recorder.record(Record { at, seq, rank, ..Record::of(RecordKind::Failed) });
            group.recorded(error)
        })
    }

    /// Why nothing is published any more, after the group has ended. Where ranks diverge, this one says what it runs.
    #[cold]
    fn refusal(
        &self,
        group: &Group,
        abort: Abort,
        is_broken: bool,
        shape: &Shape,
        step: u64,
    ) -> Option<Error> {
        // Cells are safe to write again only after all ranks have read those before.
        if abort.reason == diverged() && !is_broken {
            return None;
        }
        Some(match self.segment.verdict() {
            Some(divergence) => group.diverged(Some(divergence), shape, step),
            None => {
                let cause = cause(group, abort);
                Error::closed_by(&cause, format!("{shape} was not started: {cause}"))
            }
        })
    }

    /// Publishes this rank's elements as small operation `number`, and folds those of all ranks.
    #[inline]
    #[allow(unsafe_code)]
    fn exchange(
        &self,
        group: &Group,
        begin: Instant,
        shape: &Shape,
        data: Buffer,
        step: u64,
        number: u64,
    ) -> Result<(), Error> {
        let tag = pack(shape);
        let mine = self.segment.local();
        let data = data.as_mut_slice();
        if !self.segment.cell(mine, number).publish(tag, data) {
            return Err(Error::Internal(format!("{} bytes do not fit a cell", data.len())));
        }
        let (ranks, len) = (self.segment.ranks(), data.len());
        let wait = |local: u32| {
            let cell = self.segment.cell(local, number);
            // SAFETY: used below only, and the next operation begins after this one has returned: the state is locked.
            unsafe { self.wait(group, &cell, (local, number), begin, shape, step, len) }
        };
        // The own contribution is safe in its cell: the tensor is where the fold happens.
        if ranks <= 2 {
            for local in 0..ranks {
                let bytes = wait(local)?;
                if local == 0 {
                    data.copy_from_slice(bytes);
                } else {
                    self.kernels.accumulate(shape.dtype, shape.op, data, bytes);
                }
            }
        } else {
            // All at once: what is folded in f32 is rounded once, as everywhere else.
            let mut contributions = Vec::with_capacity(ranks as usize);
            for local in 0..ranks {
                contributions.push(wait(local)?);
            }
            self.kernels.fold(shape.dtype, shape.op, data, &contributions);
        }
        if shape.op == ReduceOp::Avg {
            self.kernels.finish_avg(shape.dtype, data, self.segment.ranks());
        }
        Ok(())
    }

    /// Waits for a rank's contribution, driving the engine now and then.
    ///
    /// # Safety
    /// As for [`Cell::read`].
    #[inline]
    #[allow(clippy::too_many_arguments, unsafe_code)]
    unsafe fn wait<'a>(
        &self,
        group: &Group,
        cell: &Cell<'a>,
        (local, number): (u32, u64),
        begin: Instant,
        shape: &Shape,
        step: u64,
        len: usize,
    ) -> Result<&'a [u8], Error> {
        let mut idle = Backoff::new(self.idle);
        let mut turns = 0u32;
        loop {
            // SAFETY: passed on to the caller.
            if let Some((tag, bytes)) = unsafe { cell.read(len) } {
                if tag != pack(shape) {
                    return Err(self.disagree(group, shape, step, number));
                }
                return Ok(bytes);
            }
            turns = turns.wrapping_add(1);
            let parked = idle.wait(Activity::Idle, None);
            if (parked || turns.is_multiple_of(LOOK_EVERY))
                && let Err(error) = self.look_around(group, (local, number), begin, shape, step)
                // What was published in the meantime counts, though its rank may have left since.
                && !cell.is_published()
            {
                return Err(error);
            }
        }
    }

    #[cold]
    fn look_around(
        &self,
        group: &Group,
        (local, number): (u32, u64),
        begin: Instant,
        shape: &Shape,
        step: u64,
    ) -> Result<(), Error> {
        group.drive.poll()?;
        let waited = Clock.now() - begin;
        if self.segment.has_left(local) && !self.segment.cell(local, number).is_published() {
            // It will not: all name it.
            self.segment.set_abort(local, AbortReason::Aborted.code() as u8);
        }
        let aborted = self.segment.abort();
        if waited > SLOW || aborted.is_some() {
            let segment = self.segment.clone();
            let differs = group.drive.with(move |engine| {
                let found = instead_of_small(&segment, local, number, engine.started()).is_some();
                if found {
                    engine.diverge(engine.started(), Rank(local));
                }
                found
            })?;
            if differs || aborted.is_some_and(|abort| abort.reason == diverged()) {
                return Err(self.disagree(group, shape, step, number));
            }
        }
        if let Some(abort) = aborted {
            return Err(Group::aborted(&cause(group, abort), shape, step));
        }
        if waited > group.deadline {
            // Else the others would take this rank, which leaves, for the cause.
            self.segment.set_abort(local, AbortReason::Late.code() as u8);
            return Err(group.late(Rank(local), waited, shape, step));
        }
        Ok(())
    }

    /// Ranks run different operations in the place of small operation `number`: waits until the differing rank is known.
    #[cold]
    fn disagree(&self, group: &Group, shape: &Shape, step: u64, number: u64) -> Error {
        let begin = Clock.now();
        let mut idle = Backoff::new(self.idle);
        loop {
            let waited = Clock.now() - begin;
            if let Some(divergence) = self.segment.verdict() {
                return group.diverged(Some(divergence), shape, step);
            }
            // Where an operation of the engine is in dispute, that finds out.
            if self.segment.dispute().is_none()
                && (waited > VIEWS || self.have_all_published(number))
                && let Some(divergence) = self.judge(number, shape)
            {
                self.segment.set_verdict(&divergence);
                self.segment.set_abort(divergence.rank.0, diverged());
                continue;
            }
            if waited > VERDICT {
                return group.diverged(None, shape, step);
            }
            if let Err(error) = group.drive.poll() {
                return error;
            }
            idle.wait(Activity::Idle, None);
        }
    }

    /// Whether all ranks have said what they run as small operation `number`, but for those that are gone.
    fn have_all_published(&self, number: u64) -> bool {
        let segment = &self.segment;
        (0..segment.ranks()).all(|local| {
            segment.cell(local, number).tag().is_some() || segment.has_left(local) || segment.is_gone(local)
        })
    }

    /// The differing rank among those that have published small operation `number`.
    fn judge(&self, number: u64, shape: &Shape) -> Option<Divergence> {
        let mut votes: Vec<Vote> = Vec::new();
        for local in 0..self.segment.ranks() {
            let tag = self.segment.cell(local, number).tag();
            let Some(view) = tag.and_then(|tag| unpack(tag, 0)) else { continue };
            match votes.iter_mut().find(|vote| vote.view == view) {
                Some(vote) => vote.ranks += 1,
                None => votes.push(Vote { view, rank: Rank(local), ranks: 1 }),
            }
        }
        let mut tally = Tally::new(number - 1);
        tally.cast(0, votes);
        tally.judge(unpack(pack(shape), 0))
    }
}

/// The reason that the node's abort has where ranks diverge.
fn diverged() -> u8 {
    AbortReason::Diverged(None).code() as u8
}

/// Why the group has ended.
fn cause(group: &Group, abort: Abort) -> AbortCause {
    AbortCause::seen_by(group.rank, Rank(abort.culprit), AbortReason::from_code(abort.reason.into()))
}
