//! Small collectives within one node: a straight line, not a schedule.
//!
//! Each rank publishes its input in its own cell, waits for those of all ranks, and takes the parts that it needs.
//! Reductions are folded in rank order, so all end with the same bits. Two cells a rank suffice: no rank publishes
//! operation n + 1 before it has read all of operation n, so a rank that writes a cell again has seen that all ranks
//! have read it. Up to 40 bytes travel in one cache line with the sequence word: the latency is that of one line going
//! from core to core.

mod blocks;

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use shouter_reducer::dtype::ReduceOp;
use shouter_reducer::executor::{AbortCause, AbortReason, Divergence, Tally, Vote};
use shouter_reducer::grid::Rank;
use shouter_reducer::header::{Collective, Identity, View};
use shouter_reducer::kernel::Kernels;
use shouter_reducer::recorder::{Record, RecordKind, Recorder};
use shouter_reducer::schedule::Problem;

use super::Group;
use super::collectives::published;
use super::element::Buffer;
use super::outcomes::Outcomes;
use crate::channel::CELL_BYTES;
use crate::channel::shm::{Abort, NodeSegment, Tag, pack_small, unpack_small};
use crate::engine::divergence::{VERDICT, VIEWS, instead_of_small, started_instead};
use crate::engine::executor_time;
use crate::engine::liveness::ended;
use crate::error::Error;
use crate::runtime::lock;
use crate::runtime::{Activity, Backoff, Clock, IdlePolicy, Instant};
pub(super) use blocks::Telling;

/// Rounds of waiting between two checks of everything else: the engine, the end of the group, the deadline.
const LOOK_EVERY: u32 = 256;

/// After this wait the rank checks which operation the other one runs instead.
const SLOW: Duration = Duration::from_millis(50);

/// The cells of a node whose ranks are the whole group.
pub(super) struct Cells {
    segment: Arc<NodeSegment>,
    kernels: Kernels,
    idle: IdlePolicy,
    /// Operations of their size that were started rather than called: those go by the engine.
    started: Arc<AtomicU64>,
    state: Mutex<SmallState>,
}

struct SmallState {
    /// Small operations so far.
    number: u64,
    /// The last one failed.
    is_broken: bool,
    /// Keeps the start of each: the next one's shows that it has ended.
    recorder: Recorder,
}

/// One rank's part of a small operation.
#[derive(Clone)]
pub(super) struct Part {
    pub(super) problem: Problem,
    /// The published bytes. A broadcast's root has them in the output.
    pub(super) input: Buffer,
    pub(super) output: Buffer,
}

impl Part {
    /// This rank's view of the operation.
    fn view(&self) -> View {
        View { identity: self.problem.identity(), shape: self.problem.shape }
    }

    /// Bytes that a rank publishes.
    #[inline]
    fn input_of(&self, rank: u32) -> usize {
        let problem = &self.problem;
        match (problem.shape.collective.base(), &problem.counts) {
            (Collective::Broadcast | Collective::Scatter, _) if rank != problem.root.0 => 0,
            (Collective::Broadcast | Collective::Scatter, _) => problem.bytes() as usize,
            (Collective::AllGather | Collective::Gather, Some(counts)) => {
                counts.of(Rank(rank)) as usize * problem.elem()
            }
            (Collective::AllToAll, Some(counts)) => {
                counts.given_by(Rank(rank)).sum::<u64>() as usize * problem.elem()
            }
            _ => self.input.len(),
        }
    }
}

/// A small operation under way.
struct SmallCall<'a> {
    group: &'a Group,
    begin: Instant,
    step: u64,
    part: &'a Part,
    number: u64,
    tag: Tag,
}

/// Counts the operations that go by the engine since they are started, and by the cells where they are called; none where there are no
/// cells.
#[derive(Clone, Default)]
pub(super) struct Starts(Option<Arc<AtomicU64>>);

impl Starts {
    /// The identity of an operation outside the table that is started, other than that of a call.
    pub(super) fn identity(&self, problem: &Problem) -> Identity {
        match &self.0 {
            Some(_) if published(problem) <= CELL_BYTES => Identity::Started { root: problem.tag() },
            _ => problem.identity(),
        }
    }

    /// One has been started.
    pub(super) fn count(&self, identity: &Identity) {
        if let (Some(started), Identity::Started { .. }) = (&self.0, identity) {
            started.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Cells {
    pub(super) fn new(
        segment: Arc<NodeSegment>,
        kernels: Kernels,
        idle: IdlePolicy,
        recorder: Recorder,
    ) -> Self {
        let state = SmallState { number: 0, is_broken: false, recorder };
        Self { segment, kernels, idle, started: Arc::default(), state: Mutex::new(state) }
    }

    /// The counter of operations that are started rather than called.
    pub(super) fn starts(&self) -> Starts {
        Starts(Some(self.started.clone()))
    }

    /// Runs an operation over all ranks of the node to its end.
    pub(super) fn run(&self, group: &Group, begin: Instant, part: &Part, step: u64) -> Result<(), Error> {
        self.run_as(group, begin, part, step, |call| self.exchange(call))
    }

    /// Runs an operation with this exchange.
    #[inline]
    fn run_as<R>(
        &self,
        group: &Group,
        begin: Instant,
        part: &Part,
        step: u64,
        exchange: impl FnOnce(&SmallCall<'_>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        // The others order this rank's published input behind the operations that it has announced.
        if group.start_queue.submissions().is_some_and(|submissions| !submissions.are_all_started()) {
            group.await_started()?;
        }
        let mut state = lock(&self.state);
        let seq = state.number + 1;
        if let Some(abort) = self.segment.abort()
            && let Some(error) = self.refusal(group, abort, state.is_broken, &part.view(), step)
        {
            return Err(self.failed(group, &mut state.recorder, (begin, seq), error));
        }
        state.number = seq;
        let (at, bytes) = (executor_time(begin), part.input.len() as u64);
        state.recorder.record(Record { at, seq, value: step, bytes, ..Record::of(RecordKind::Started) });
        let operation = pack_small(&part.problem.shape, part.problem.tag());
        let tag = Tag { operation, started: self.started.load(Ordering::Relaxed) };
        let result = exchange(&SmallCall { group, begin, step, part, number: state.number, tag });
        state.is_broken = result.is_err();
        result.map_err(|error| self.failed(group, &mut state.recorder, (Clock.now(), seq), error))
    }

    /// An operation has failed, and the group ends with it: all groups of the job have ended on this rank when the caller reads the error.
    #[cold]
    fn failed(
        &self,
        group: &Group,
        recorder: &mut Recorder,
        (at, seq): (Instant, u64),
        error: Error,
    ) -> Error {
        let rank = self.segment.abort().map(|abort| Rank(abort.culprit));
        recorder.record(Record { at: executor_time(at), seq, rank, ..Record::of(RecordKind::Failed) });
        // An engine that is of no more use has ended, too.
        let _ = group.drive.with(|engine| engine.end_with_node(Clock.now()));
        group.outcomes.recorded(error)
    }

    /// The error after the group has ended, when nothing is published any more. Where ranks diverge, this one still
    /// publishes.
    #[cold]
    fn refusal(&self, group: &Group, abort: Abort, is_broken: bool, view: &View, step: u64) -> Option<Error> {
        // Cells are safe to write again only after all ranks have read those before.
        if abort.reason == diverged() && !is_broken {
            return None;
        }
        Some(match self.segment.verdict() {
            Some(divergence) => group.outcomes.diverged(Some(divergence), view, step),
            None => {
                let cause = cause(group, &self.segment, abort);
                Error::closed_by(&cause, format!("{view} was not started: {cause}"))
            }
        })
    }

    /// Publishes this rank's input, waits for those of all ranks, and makes the output of them.
    #[inline]
    fn exchange(&self, call: &SmallCall<'_>) -> Result<(), Error> {
        let Part { problem, input, output } = call.part;
        let mine = self.segment.cell(self.segment.local(), call.number);
        if !mine.publish(call.tag, input.as_slice()) {
            return Err(Error::Internal(format!("{} bytes do not fit a cell", input.len())));
        }
        // The own input is safe in its cell: the output may lie where it was.
        let output = output.as_mut_slice();
        let (me, is_root, root) = (problem.rank.0, problem.rank == problem.root, problem.root.0);
        // This rank's block of another one's input, and another one's block of the output.
        let own = |from| block(problem, from, me);
        let into = |from| match &problem.counts {
            Some(counts) if counts.are_of_pairs() => {
                let start = problem.output_block(Rank(from)) as usize;
                start..start + own(from).len()
            }
            _ => block(problem, me, from),
        };
        match problem.shape.collective.base() {
            Collective::AllReduce | Collective::Barrier => {
                self.fold(call, output, 0..output.len(), self.segment.ranks())
            }
            Collective::ReduceScatter => self.fold(call, output, own(me), self.segment.ranks()),
            Collective::Reduce if is_root => self.fold(call, output, 0..output.len(), self.segment.ranks()),
            Collective::Scan => self.fold(call, output, 0..output.len(), me + 1),
            Collective::ExScan => self.fold(call, output, 0..output.len(), me),
            collective => self.for_each(call, |from, bytes| match collective {
                Collective::Broadcast if from == root => output.copy_from_slice(bytes),
                Collective::Scatter if from == root => output.copy_from_slice(&bytes[own(from)]),
                Collective::AllGather => output[into(from)].copy_from_slice(bytes),
                Collective::Gather if is_root => output[into(from)].copy_from_slice(bytes),
                Collective::AllToAll => output[into(from)].copy_from_slice(&bytes[own(from)]),
                // No rank goes on before all have come: cells are written again.
                _ => {}
            }),
        }
    }

    /// Does something with the input of each rank, in rank order.
    #[inline]
    #[allow(unsafe_code)]
    fn for_each(&self, call: &SmallCall<'_>, mut act: impl FnMut(u32, &[u8])) -> Result<(), Error> {
        for local in 0..self.segment.ranks() {
            // SAFETY: used within this call, and the next operation begins after that: the state is locked.
            act(local, unsafe { self.wait(call, local, call.part.input_of(local)) }?);
        }
        Ok(())
    }

    /// Folds a part of the input of each of the first `over` ranks, in rank order; of none, nothing is written.
    #[inline]
    #[allow(unsafe_code)]
    fn fold(
        &self,
        call: &SmallCall<'_>,
        output: &mut [u8],
        part: Range<usize>,
        over: u32,
    ) -> Result<(), Error> {
        let (shape, ranks) = (&call.part.problem.shape, self.segment.ranks());
        if ranks <= 2 {
            self.for_each(call, |local, bytes| match local {
                beyond if beyond >= over => {}
                0 => output.copy_from_slice(&bytes[part.clone()]),
                _ => self.kernels.accumulate(shape.dtype, shape.op, output, &bytes[part.clone()]),
            })?;
        } else {
            // All at once: a fold in f32 is rounded once, as everywhere else.
            let mut contributions = Vec::with_capacity(ranks as usize);
            for local in 0..ranks {
                // SAFETY: as in `for_each`.
                let input = unsafe { self.wait(call, local, call.part.input_of(local)) }?;
                contributions.push(&input[part.clone()]);
            }
            match contributions[..over as usize] {
                [] => {}
                [only] => output.copy_from_slice(only),
                ref first => self.kernels.fold(shape.dtype, shape.op, output, first),
            }
        }
        if shape.op == ReduceOp::Avg {
            self.kernels.finish_avg(shape.dtype, output, ranks);
        }
        Ok(())
    }

    /// Waits for a rank's input of `len` bytes, driving the engine now and then.
    ///
    /// # Safety
    /// The bytes are not used any more once this rank has published its next operation.
    #[inline]
    #[allow(unsafe_code)]
    unsafe fn wait(&self, call: &SmallCall<'_>, local: u32, len: usize) -> Result<&[u8], Error> {
        let cell = self.segment.cell(local, call.number);
        let mut idle = Backoff::new(self.idle);
        let mut rounds = 0u32;
        loop {
            // SAFETY: passed on to the caller.
            if let Some((tag, bytes)) = unsafe { cell.read(len) } {
                if tag != call.tag {
                    return Err(self.disagree(call));
                }
                return Ok(bytes);
            }
            rounds = rounds.wrapping_add(1);
            let parked = idle.wait(Activity::Idle, None);
            if (parked || rounds.is_multiple_of(LOOK_EVERY))
                && let Err(error) = self.look_around(call, local)
                // An input published in the meantime counts, though its rank may have left since.
                && !cell.is_published()
            {
                return Err(error);
            }
        }
    }

    #[cold]
    fn look_around(&self, call: &SmallCall<'_>, local: u32) -> Result<(), Error> {
        let &SmallCall { group, begin, step, number, .. } = call;
        group.drive.poll()?;
        let waited = Clock.now() - begin;
        if self.segment.has_left(local) && !self.segment.cell(local, number).is_published() {
            // It will not publish: all name it.
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
                return Err(self.disagree(call));
            }
        }
        if let Some(abort) = aborted {
            return Err(Outcomes::aborted(&cause(group, &self.segment, abort), &call.part.view(), step));
        }
        if waited > group.deadline {
            // Else the others would name this rank, which leaves, as the cause.
            self.segment.set_abort(local, AbortReason::Late.code() as u8);
            return Err(group.outcomes.late(Rank(local), waited, &call.part.view(), step));
        }
        Ok(())
    }

    /// Ranks run different operations in the place of small operation `number`: waits until the differing rank is known.
    #[cold]
    fn disagree(&self, call: &SmallCall<'_>) -> Error {
        let &SmallCall { group, step, number, .. } = call;
        let view = call.part.view();
        let begin = Clock.now();
        let mut idle = Backoff::new(self.idle);
        loop {
            let waited = Clock.now() - begin;
            if let Some(divergence) = self.segment.verdict() {
                return group.outcomes.diverged(Some(divergence), &view, step);
            }
            // Where an operation of the engine is in dispute, its votes give the verdict.
            if self.segment.dispute().is_none()
                && (waited > VIEWS || self.have_all_published(number))
                && let Some(divergence) = self.judge(group, number, view)
            {
                self.segment.set_verdict(&divergence);
                self.segment.set_abort(divergence.rank.0, diverged());
                continue;
            }
            if waited > VERDICT {
                return group.outcomes.diverged(None, &view, step);
            }
            if let Err(error) = group.drive.poll() {
                return error;
            }
            idle.wait(Activity::Idle, None);
        }
    }

    /// Whether all ranks have published their small operation `number`, but for those that are gone.
    fn have_all_published(&self, number: u64) -> bool {
        let segment = &self.segment;
        (0..segment.ranks()).all(|local| {
            segment.cell(local, number).tag().is_some() || segment.has_left(local) || segment.is_gone(local)
        })
    }

    /// The differing rank among those that have published small operation `number`: it calls another one, or has started fewer of them
    /// before, or more.
    fn judge(&self, group: &Group, number: u64, own: View) -> Option<Divergence> {
        let segment = &self.segment;
        let tags: Vec<_> = (0..segment.ranks()).map(|local| segment.cell(local, number).tag()).collect();
        let fewest = tags.iter().flatten().map(|tag| tag.started).min()?;
        let large = group.drive.with(|engine| engine.started()).unwrap_or(0);
        let mut votes: Vec<Vote> = Vec::new();
        for (local, tag) in (0..).zip(tags) {
            let Some(tag) = tag else { continue };
            let started =
                if tag.started == fewest { None } else { started_instead(segment, local, number, large) };
            let Some(view) = started.or_else(|| unpack_small(tag.operation)) else { continue };
            match votes.iter_mut().find(|vote| vote.view == view) {
                Some(vote) => vote.ranks += 1,
                None => votes.push(Vote { view, rank: Rank(local), ranks: 1 }),
            }
        }
        let mut tally = Tally::new(number - 1);
        tally.cast(0, votes);
        tally.judge(Some(own))
    }
}

/// The block of rank `of` in the input of rank `from`.
#[inline]
fn block(problem: &Problem, from: u32, of: u32) -> Range<usize> {
    let Some(counts) = &problem.counts else {
        let len = problem.block_bytes() as usize;
        return of as usize * len..(of as usize + 1) * len;
    };
    let mut given = counts.given_by(Rank(from)).map(|count| count as usize * problem.elem());
    let start = given.by_ref().take(of as usize).sum();
    start..start + given.next().unwrap_or(0)
}

/// The reason that the node's abort has where ranks diverge.
fn diverged() -> u8 {
    AbortReason::Diverged(None).code() as u8
}

/// The cause of the group's end.
fn cause(group: &Group, segment: &NodeSegment, abort: Abort) -> AbortCause {
    let (culprit, why) = ended(segment, abort);
    AbortCause::seen_by(group.rank, culprit, why)
}
