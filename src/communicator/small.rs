//! Small collectives within one node: a straight line, not a schedule.
//!
//! Each rank publishes its input in its own cell, waits for those of the ranks that it takes something from, and takes the parts that it
//! needs. Reductions are folded in rank order, so all end with the same bits. Up to 40 bytes travel in one cache line with the sequence
//! word: the latency is that of one line going from core to core.
//!
//! A rank that only gives (a broadcast's root, say) returns when it has published. So ranks may be some operations apart, but no more than
//! [`LEAD`]: before a rank publishes operation n it has compared the tags of all ranks through n - `LEAD` with its own ones, and waits for
//! those that are missing. That is what makes it safe to write a cell again ([`crate::channel::shm`]). A rank's input is used only after all
//! its tags through that operation were found to be the same as the own ones, so no result is made of different operations; a difference
//! between ranks of which neither takes anything is found a few calls later, by the next call that waits for all, or ahead of the next
//! operation that the engine runs ([`Cells::settle`]).

mod apart;
mod blocks;

use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use shouter_reducer::dtype::ReduceOp;
use shouter_reducer::executor::{AbortCause, AbortReason};
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
use crate::channel::shm::{Abort, LEAD, NodeSegment, Tag, pack_small};
use crate::engine::executor_time;
use crate::engine::liveness::ended;
use crate::error::Error;
use crate::runtime::lock;
use crate::runtime::{Clock, IdlePolicy, Instant};
use apart::Compared;
pub(super) use blocks::Telling;

/// The cells of a node whose ranks are the whole group.
pub(super) struct Cells {
    segment: Arc<NodeSegment>,
    kernels: Kernels,
    idle: IdlePolicy,
    /// Operations of their size that were started rather than called: those go by the engine.
    started: Arc<AtomicU64>,
    /// Not all ranks were compared through the last operation: this rank has returned before all had come.
    is_ahead: AtomicBool,
    state: Mutex<SmallState>,
}

struct SmallState {
    /// Small operations so far.
    number: u64,
    /// The last one failed.
    is_broken: bool,
    compared: Compared,
    /// Keeps the start of each: the next one's shows that it has ended.
    recorder: Recorder,
}

/// One rank's part of a small operation.
pub(super) struct Part<'a> {
    problem: &'a Problem,
    /// The published bytes. A broadcast's root has them in the output.
    input: Buffer,
    output: Buffer,
    counted: Option<usize>,
}

impl<'a> Part<'a> {
    /// One that is not counted.
    #[inline]
    pub(super) fn new(problem: &'a Problem, input: Buffer, output: Buffer) -> Self {
        Self { problem, input, output, counted: None }
    }

    /// The same of a call of so many bytes, which counts when it has ended well.
    #[inline]
    pub(super) fn counted(self, bytes: usize) -> Self {
        Self { counted: Some(bytes), ..self }
    }

    /// This rank's view of the operation.
    fn view(&self) -> View {
        View { identity: self.problem.identity(), shape: self.problem.shape }
    }

    /// Bytes that a rank publishes.
    #[inline]
    fn input_of(&self, rank: u32) -> usize {
        let problem = self.problem;
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

/// What the caller runs.
enum Subject<'a> {
    Small(&'a Part<'a>),
    /// Behind small operations.
    Other(View),
}

/// A small operation under way.
struct SmallCall<'a> {
    group: &'a Group,
    /// The time of the call, once it was read.
    begin: Cell<Option<Instant>>,
    /// Where the start is noted; nowhere, once it was.
    recorder: Cell<Option<&'a mut Recorder>>,
    step: u64,
    subject: Subject<'a>,
    /// The last small operation that this rank has published, or is about to.
    number: u64,
    tag: Tag,
    compared: &'a Compared,
}

impl SmallCall<'_> {
    /// The time of the call: read once the input is published, or before a long wait, since to read the clock takes as long as the cache line
    /// on its way.
    #[inline]
    fn begin(&self) -> Instant {
        self.begin.get().unwrap_or_else(|| {
            let now = Clock.now();
            self.begin.set(Some(now));
            now
        })
    }

    /// Notes the start, once.
    #[inline]
    fn note_start(&self) {
        if let (Some(recorder), Subject::Small(part)) = (self.recorder.take(), &self.subject) {
            let (at, bytes) = (executor_time(self.begin()), part.input.len() as u64);
            let (seq, value) = (self.number, self.step);
            recorder.record(Record { at, seq, value, bytes, ..Record::of(RecordKind::Started) });
        }
    }

    fn view(&self) -> View {
        match self.subject {
            Subject::Small(part) => part.view(),
            Subject::Other(view) => view,
        }
    }
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
        let compared = Compared::new(segment.ranks());
        let state = Mutex::new(SmallState { number: 0, is_broken: false, compared, recorder });
        Self { segment, kernels, idle, started: Arc::default(), is_ahead: AtomicBool::new(false), state }
    }

    /// The counter of operations that are started rather than called.
    pub(super) fn starts(&self) -> Starts {
        Starts(Some(self.started.clone()))
    }

    /// Runs an operation over all ranks of the node to its end on this rank. `begin` is the time of the call, if the caller has read it.
    pub(super) fn run(
        &self,
        group: &Group,
        begin: Option<Instant>,
        part: &Part<'_>,
        step: u64,
    ) -> Result<(), Error> {
        self.run_as(group, begin, part, step, |call| self.exchange(call, part))
    }

    /// Runs an operation with this exchange.
    #[inline]
    fn run_as<R>(
        &self,
        group: &Group,
        begin: Option<Instant>,
        part: &Part<'_>,
        step: u64,
        exchange: impl FnOnce(&SmallCall<'_>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        // The others order this rank's published input behind the operations that it has announced.
        if group.start_queue.submissions().is_some_and(|submissions| !submissions.are_all_started()) {
            group.await_started()?;
        }
        let mut state = lock(&self.state);
        let (seq, abort) = (state.number + 1, self.segment.abort());
        if let Some(abort) = abort
            && let Some(error) = self.refusal(group, abort, state.is_broken, &part.view(), step)
        {
            return Err(self.failed(group, &mut state.recorder, (Clock.now(), seq), error));
        }
        state.number = seq;
        let operation = pack_small(&part.problem.shape, part.problem.tag());
        let tag = Tag { operation, started: self.started.load(Ordering::Relaxed) };
        let SmallState { compared, is_broken, recorder, .. } = &mut *state;
        let subject = Subject::Small(part);
        let (begin, notes) = (Cell::new(begin), Cell::new(Some(&mut *recorder)));
        let call = SmallCall { group, begin, recorder: notes, step, subject, number: seq, tag, compared };
        let may_publish = match compared.all.get() + LEAD {
            known if known < seq => {
                call.note_start();
                self.compare_all(&call, seq - LEAD)
            }
            _ => Ok(()),
        };
        let mut result = may_publish.and_then(|()| exchange(&call));
        let is_ahead = compared.all.get() < seq;
        if self.is_ahead.load(Ordering::Relaxed) != is_ahead {
            self.is_ahead.store(is_ahead, Ordering::Relaxed);
        }
        // Ranks have diverged, and this one has now said what it runs.
        if is_ahead && abort.is_some() && result.is_ok() {
            result = Err(self.disagree(&call, seq));
        }
        if let (Some(bytes), true) = (part.counted, result.is_ok()) {
            group.outcomes.tally.finished_small(call.begin(), Clock.now(), bytes);
        }
        *is_broken = result.is_err();
        result.map_err(|error| self.failed(group, recorder, (Clock.now(), seq), error))
    }

    /// Ahead of an operation that the engine runs, which the caller calls it: waits for all ranks to come to the last small one, if this
    /// rank has returned from that before, and compares what they run. So ranks that order them in different ways find it out.
    #[inline]
    pub(super) fn settle(&self, group: &Group, view: View, step: u64) -> Result<(), Error> {
        if self.is_ahead.load(Ordering::Relaxed) { self.settle_now(group, view, step) } else { Ok(()) }
    }

    #[cold]
    fn settle_now(&self, group: &Group, view: View, step: u64) -> Result<(), Error> {
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(state)) => PoisonError::into_inner(state),
            // Another thread runs a small operation, which has no order with this one.
            Err(TryLockError::WouldBlock) => return Ok(()),
        };
        let SmallState { number, compared, is_broken, recorder } = &mut *state;
        let (number, begin) = (*number, Clock.now());
        // Where the group has ended, the engine's refusal says why.
        if *is_broken || compared.all.get() >= number || self.segment.abort().is_some() {
            return Ok(());
        }
        let tag = Tag { operation: 0, started: 0 };
        let subject = Subject::Other(view);
        let (begin, recorder_of_start) = (Cell::new(Some(begin)), Cell::new(None));
        let call =
            SmallCall { group, begin, recorder: recorder_of_start, step, subject, number, tag, compared };
        let result = self.compare_all(&call, number);
        *is_broken = result.is_err();
        self.is_ahead.store(result.is_err(), Ordering::Relaxed);
        result.map_err(|error| self.failed(group, recorder, (Clock.now(), number), error))
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
            Some(divergence) => self.diverged(group, divergence, view, step),
            None => {
                let cause = cause(group, &self.segment, abort);
                let call = Outcomes::unnamed_call(&view.shape, step);
                Error::closed_by(&cause, format!("{view} was not started: {cause}")).of(call, view)
            }
        })
    }

    /// Publishes this rank's input, waits for those that it takes something of, and makes the output of them.
    #[inline]
    fn exchange(&self, call: &SmallCall<'_>, part: &Part<'_>) -> Result<(), Error> {
        let &Part { problem, input, output, .. } = part;
        let mine = self.segment.cell(self.segment.local(), call.number);
        if !mine.publish(call.tag, input.as_slice()) {
            return Err(Error::Internal(format!("{} bytes do not fit a cell", input.len())));
        }
        call.note_start();
        // The own input is safe in its cell: the output may lie where it was.
        let output = output.as_mut_slice();
        let (me, is_root, root) = (problem.rank.0, problem.rank == problem.root, problem.root.0);
        let all = self.segment.ranks();
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
            Collective::Barrier => self.meet(call),
            Collective::AllReduce => self.fold(call, part, output, 0..output.len(), all),
            Collective::ReduceScatter => self.fold(call, part, output, own(me), all),
            Collective::Reduce if is_root => self.fold(call, part, output, 0..output.len(), all),
            Collective::Scan => self.fold(call, part, output, 0..output.len(), me + 1),
            Collective::ExScan => self.fold(call, part, output, 0..output.len(), me),
            Collective::Gather if !is_root => Ok(()),
            Collective::AllGather | Collective::Gather => {
                self.for_each(call, part, 0..all, |from, bytes| output[into(from)].copy_from_slice(bytes))
            }
            Collective::AllToAll => self.for_each(call, part, 0..all, |from, bytes| {
                output[into(from)].copy_from_slice(&bytes[own(from)])
            }),
            Collective::Broadcast if !is_root => {
                self.for_each(call, part, root..root + 1, |_, bytes| output.copy_from_slice(bytes))
            }
            Collective::Scatter => self.for_each(call, part, root..root + 1, |from, bytes| {
                output.copy_from_slice(&bytes[own(from)])
            }),
            // It only gives.
            _ => Ok(()),
        }
    }

    /// Waits for all other ranks.
    #[inline]
    #[allow(unsafe_code)]
    fn meet(&self, call: &SmallCall<'_>) -> Result<(), Error> {
        let (ranks, me) = (0..self.segment.ranks(), self.segment.local());
        for local in ranks.clone().filter(|local| *local != me) {
            // SAFETY: no bytes.
            unsafe { self.wait(call, local, 0) }?;
        }
        self.waited_for(call, &ranks);
        Ok(())
    }

    /// Does something with the inputs of these ranks, in rank order.
    #[inline]
    #[allow(unsafe_code)]
    fn for_each(
        &self,
        call: &SmallCall<'_>,
        part: &Part<'_>,
        ranks: Range<u32>,
        mut act: impl FnMut(u32, &[u8]),
    ) -> Result<(), Error> {
        for local in ranks.clone() {
            // SAFETY: used within this call, and the next operation begins after that: the state is locked.
            act(local, unsafe { self.input(call, local, part.input_of(local)) }?);
        }
        self.waited_for(call, &ranks);
        Ok(())
    }

    /// The inputs of these ranks have come.
    #[inline]
    fn waited_for(&self, call: &SmallCall<'_>, ranks: &Range<u32>) {
        if *ranks == (0..self.segment.ranks()) {
            call.compared.all.set(call.number);
        }
    }

    /// Folds a part of the input of each of the first `over` ranks, in rank order; of none, nothing is written.
    #[inline]
    #[allow(unsafe_code)]
    fn fold(
        &self,
        call: &SmallCall<'_>,
        own: &Part<'_>,
        output: &mut [u8],
        part: Range<usize>,
        over: u32,
    ) -> Result<(), Error> {
        let (shape, ranks) = (&own.problem.shape, self.segment.ranks());
        if over <= 2 {
            self.for_each(call, own, 0..over, |local, bytes| match local {
                0 => output.copy_from_slice(&bytes[part.clone()]),
                _ => self.kernels.accumulate(shape.dtype, shape.op, output, &bytes[part.clone()]),
            })?;
        } else {
            // All at once: a fold in f32 is rounded once, as everywhere else.
            let mut contributions = Vec::with_capacity(over as usize);
            for local in 0..over {
                // SAFETY: as in `for_each`.
                let input = unsafe { self.input(call, local, own.input_of(local)) }?;
                contributions.push(&input[part.clone()]);
            }
            self.waited_for(call, &(0..over));
            self.kernels.fold(shape.dtype, shape.op, output, &contributions);
        }
        if shape.op == ReduceOp::Avg {
            self.kernels.finish_avg(shape.dtype, output, ranks);
        }
        Ok(())
    }

    /// A rank's input of `len` bytes: this rank's own, which it has published, or that of another one, which is waited for.
    ///
    /// # Safety
    /// The bytes are not used any more once this rank has published its next operation.
    #[inline]
    #[allow(unsafe_code)]
    unsafe fn input(&self, call: &SmallCall<'_>, local: u32, len: usize) -> Result<&[u8], Error> {
        if local == self.segment.local() {
            // SAFETY: passed on to the caller.
            let own = unsafe { self.segment.cell(local, call.number).read(len) };
            return own
                .map(|(_, bytes)| bytes)
                .ok_or_else(|| Error::Internal("the own cell is empty".into()));
        }
        // SAFETY: passed on to the caller.
        unsafe { self.wait(call, local, len) }
    }

    /// Waits for another rank's input of `len` bytes. It has run the same operations as this rank until then.
    ///
    /// # Safety
    /// The bytes are not used any more once this rank has published its next operation.
    #[inline]
    #[allow(unsafe_code)]
    unsafe fn wait(&self, call: &SmallCall<'_>, local: u32, len: usize) -> Result<&[u8], Error> {
        let cell = self.segment.cell(local, call.number);
        // SAFETY: passed on to the caller.
        let (tag, bytes) = self.until(call, (local, call.number), || unsafe { cell.read(len) })?;
        if call.compared.of(local) + 1 < call.number {
            self.compare(call, local, call.number - 1)?;
        }
        if tag != call.tag {
            return Err(self.disagree(call, call.number));
        }
        call.compared.set(local, call.number);
        Ok(bytes)
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

#[cfg(test)]
mod tests;
