//! The polled side: runs ready steps, posts fragments, checks flags.

use super::agreement::{Agreement, NodeAgreement};
use super::api::{AbortReason, ExecutorConfig, Progress};
use super::control::Control;
use super::op::{Op, OpState};
use super::queues::Queues;
use super::scratch::Scratch;
use super::trace::Phase;
use super::waits::{Awaited, LaneWait, LaneWaits, Locals};
use super::{Counters, Executor};
use crate::grid::Rank;
use crate::header::Header;
use crate::memory::{self, MemoryKind};
use crate::recorder::{Record, RecordKind};
use crate::schedule::{Action, Buffer, BufferOffset, Schedule};
use crate::transport::{
    Accelerator, AcceleratorError, LaneFlag, NodeMemory, SendError, SendToken, Transport,
};
use core::time::Duration;

/// Large operations behind a small one move this part of the usual bytes in a poll.
const BEHIND_SMALL: usize = 16;

/// The outcome of running a step.
pub(super) enum StepOutcome {
    /// It is done.
    Done,
    /// It needs no more polls; an acknowledgement finishes it.
    Posted,
    /// It could go on only in part.
    Partly,
    /// It cannot go on now.
    NotYet,
    /// It is ready again when flags of the node's ranks say so.
    Waits,
    /// Its memory is not what the schedule was built for.
    Broken,
}

/// The reason why no more steps run in this poll.
enum Stop {
    /// A step cannot be what the schedule says.
    Broken,
    /// Ranks of the node run different operations as this one.
    Diverged(u64),
    /// The accelerator failed.
    Accelerator(AcceleratorError),
}

/// All that steps need to run, besides the operation.
pub(super) struct StepContext<'a, 'b, T, N> {
    transport: &'a mut T,
    pub(super) accelerator: &'a mut Option<&'b mut dyn Accelerator>,
    node: Option<&'a N>,
    config: &'a ExecutorConfig,
    locals: Locals,
    pub(super) scratch: &'a mut Scratch,
    pub(super) control: &'a mut Control,
    counters: &'a mut Counters,
    queues: &'a mut Queues,
    waits: &'a mut LaneWaits,
    agreement: &'a mut Agreement,
    /// Bytes that may still be moved.
    budget: usize,
    stop: Option<Stop>,
}

impl Executor {
    /// Runs what can be run: at most about `poll_bytes` of copying and reducing, and all posts that find room. Tensors in
    /// an accelerator's memory need the `accelerator`.
    pub fn poll<T: Transport, N: NodeMemory>(
        &mut self,
        now: Duration,
        transport: &mut T,
        node: Option<&N>,
        mut accelerator: Option<&mut dyn Accelerator>,
    ) -> Progress {
        let mut worked = self.control.flush(transport);
        if self.deadlines.has_passed(now) {
            worked |= self.check_deadlines(now, node);
        }
        if self.agreement.takes_turn(self.ring.next_seq()) {
            self.follow_node(node);
        }
        if self.ring.undecided().is_some() {
            worked |= self.decide(node, &mut accelerator);
        }
        let mut turn = self.queues.next_poll();
        if let Some(node) = node {
            self.waits.wake(&mut self.ring, node, self.locals);
        }
        let mut budget = self.config.poll_bytes.max(1);
        let mut index = 0;
        loop {
            let (seq, runs) = match turn.take() {
                Some(seq) => (seq, self.ring.op(seq).runs(seq)),
                None => {
                    let Some(next) = self.ring.due(index) else { break };
                    index += 1;
                    next
                }
            };
            if !runs || self.agreement.is_disputed(seq) {
                continue;
            }
            if self.ring.is_behind_small(seq) {
                // Messages of the small one are looked for soon.
                budget = budget.min(self.config.poll_bytes / BEHIND_SMALL).max(1);
            }
            if self.ring.op(seq).early.is_due() {
                self.replay(seq);
                worked = true;
            }
            if self.ring.op(seq).background.is_pending() {
                match self.ask(seq, &mut accelerator) {
                    Ok(Some(came)) => worked |= came,
                    Ok(None) => continue,
                    Err(error) => {
                        self.accelerator_failed(seq, error);
                        break;
                    }
                }
            }
            let mut context = StepContext {
                accelerator: &mut accelerator,
                transport: &mut *transport,
                node,
                config: &self.config,
                locals: self.locals,
                scratch: &mut self.scratch,
                control: &mut self.control,
                counters: &mut self.counters,
                queues: &mut self.queues,
                waits: &mut self.waits,
                agreement: &mut self.agreement,
                budget,
                stop: None,
            };
            let (ran, is_done) = self.ring.edit(seq, |op| (context.run(op), op.steps.are_done()));
            worked |= ran;
            budget = context.budget;
            if let Some(stop) = context.stop {
                match stop {
                    Stop::Broken => self.abort(self.config.rank, AbortReason::Protocol),
                    Stop::Diverged(seq) => {
                        if let Some(node) = node {
                            self.found_on_node(node, seq);
                        }
                    }
                    Stop::Accelerator(error) => self.accelerator_failed(seq, error),
                }
                break;
            }
            if is_done {
                self.succeed(seq);
            }
            if budget == 0 {
                break;
            }
            // This rank has set flags, or others have meanwhile.
            if let (true, Some(node)) = (ran, node)
                && self.waits.wake(&mut self.ring, node, self.locals)
            {
                // It may be this operation that can go on.
                index = index.saturating_sub(1);
            }
        }
        self.ring.sweep();
        worked |= self.control.flush(transport);
        Progress { worked }
    }
}

impl<T: Transport, N: NodeMemory> StepContext<'_, '_, T, N> {
    /// Runs an operation until nothing is ready, nothing ready can go on, or the budget is used up.
    fn run(&mut self, op: &mut Op) -> bool {
        if op.state() != OpState::Running || !op.steps.are_ready() {
            return false;
        }
        op.with_schedule(|op, schedule| self.run_steps(op, schedule)) == Some(true)
    }

    #[inline]
    fn run_steps(&mut self, op: &mut Op, schedule: &Schedule) -> bool {
        let mut worked = false;
        loop {
            // The range of words is found anew: steps that become ready widen it again.
            let (mut word, mut last) = op.steps.take_range();
            let mut progressed = false;
            while word <= last {
                let mut tried = 0;
                while self.budget > 0 && !self.is_over() {
                    let Some(step) = op.steps.next_ready(word, &mut tried) else { break };
                    progressed |= self.advance(op, schedule, step);
                }
                last = op.steps.put_back(word, last);
                word += 1;
            }
            worked |= progressed;
            if !progressed || self.budget == 0 || self.is_over() || !op.steps.are_ready() {
                return worked;
            }
        }
    }

    /// Runs one ready step; returns whether anything happened.
    #[inline]
    fn advance(&mut self, op: &mut Op, schedule: &Schedule, step: u32) -> bool {
        let ran = self.step(op, schedule, step);
        match ran {
            StepOutcome::NotYet => return false,
            StepOutcome::Waits => {
                op.steps.unready(step);
                return false;
            }
            StepOutcome::Partly => return true,
            StepOutcome::Broken => {
                self.stop = Some(Stop::Broken);
                return true;
            }
            StepOutcome::Done | StepOutcome::Posted => {}
        }
        op.steps.unready(step);
        if matches!(ran, StepOutcome::Done) {
            op.done_with(schedule, step, self.control);
        }
        true
    }

    #[inline]
    fn step(&mut self, op: &mut Op, schedule: &Schedule, step: u32) -> StepOutcome {
        // All ranks of the node write to the result area: one that runs something else may have.
        if self.locals.count > 1 && self.agreement.through() <= op.seq() && schedule.reads_node(step) {
            match self.agreed(op) {
                StepOutcome::Done => {}
                other => return other,
            }
        }
        let plan = &schedule.steps[step as usize];
        let chunk = plan.chunk;
        let done = |used: Option<()>| if used.is_some() { StepOutcome::Done } else { StepOutcome::Broken };
        match plan.action {
            Action::Send { to, round, from, len } => self.send(op, step, chunk, (to, round), from, len),
            Action::Copy { from, into, len } => {
                let (Some(from), Some(into)) =
                    (op.buffers.resolve(from, chunk), op.buffers.resolve(into, chunk))
                else {
                    return StepOutcome::Broken;
                };
                if from.0.kind() == MemoryKind::Device || into.0.kind() == MemoryKind::Device {
                    return self.copy_in_background(op, step, into, from, len);
                }
                self.budget = self.budget.saturating_sub(len);
                op.marks.begin(step, self.control.now());
                let copied = memory::copy(into, from, len);
                op.ends(schedule, step, Phase::Copy, self.control);
                done(copied)
            }
            Action::Fold { first, destinations, sources, len, finish } => {
                let places = schedule.fold_places(first, destinations, sources);
                let divide_by = finish.then_some(self.config.grid.ranks());
                if places.0.iter().chain(places.1).any(|place| op.buffers.is_device(*place)) {
                    return self.fold_in_background(op, (step, chunk), places, len, divide_by);
                }
                self.budget = self.budget.saturating_sub(len);
                let [into, sources] =
                    [places.0, places.1].map(|all| all.iter().map(|&place| op.buffers.resolve(place, chunk)));
                let kind = (op.dtype(), op.reduction());
                let begin = self.control.now();
                let folded = memory::fold(
                    self.config.kernels,
                    kind,
                    into,
                    sources,
                    (len, divide_by),
                    self.scratch.addresses(),
                );
                op.marks.begin(step, begin);
                op.ends(schedule, step, Phase::Fold, self.control);
                done(folded)
            }
            Action::Finish { at, len } if op.buffers.is_device(at) => self.fold_in_background(
                op,
                (step, chunk),
                (&[at], &[at]),
                len,
                Some(self.config.grid.ranks()),
            ),
            Action::Finish { at, len } => {
                self.budget = self.budget.saturating_sub(len);
                let Some(at) = op.buffers.resolve(at, chunk) else { return StepOutcome::Broken };
                op.marks.begin(step, self.control.now());
                let finished =
                    memory::finish_avg(self.config.kernels, op.dtype(), at, len, self.config.grid.ranks());
                op.ends(schedule, step, Phase::Fold, self.control);
                done(finished)
            }
            Action::Signal { flag } => {
                let Some(node) = self.node else { return StepOutcome::NotYet };
                let (lane, used) = op.buffers.lane(chunk, schedule.params.lanes);
                node.signal(lane, flag, used);
                if flag == LaneFlag::Consumed {
                    self.waits.consumed(lane, used);
                }
                StepOutcome::Done
            }
            Action::Wait { local, flag } => {
                let (lane, number) = op.buffers.lane(chunk, schedule.params.lanes);
                self.wait(op, step, LaneWait { lane, flag, number, of: Awaited::Rank(local) })
            }
            Action::WaitAll { flag } => {
                let (lane, number) = op.buffers.lane(chunk, schedule.params.lanes);
                self.wait(op, step, LaneWait { lane, flag, number, of: Awaited::Others })
            }
            Action::WaitFree => {
                let (lane, used) = op.buffers.lane(chunk, schedule.params.lanes);
                let (flag, number) = (LaneFlag::Consumed, used - 1);
                self.wait(op, step, LaneWait { lane, flag, number, of: Awaited::All })
            }
            // Receives are driven by fragments and never in the ready set.
            Action::Receive { .. } | Action::ReceiveReduce { .. } => StepOutcome::NotYet,
        }
    }

    /// Waits for flags in the node's memory. The contents that other ranks have left in a lane are used only if they run the same
    /// operations; a lane that is free has none.
    #[inline]
    fn wait(&mut self, op: &Op, step: u32, wait: LaneWait) -> StepOutcome {
        let Some(node) = self.node else { return StepOutcome::NotYet };
        if !wait.is_reached(node, self.locals) {
            let is_kept = self.waits.add(op.seq(), step, wait);
            return if is_kept { StepOutcome::Waits } else { StepOutcome::NotYet };
        }
        match wait.of {
            Awaited::All => StepOutcome::Done,
            Awaited::Rank(_) | Awaited::Others => self.agreed(op),
        }
    }

    /// Whether the ranks of the node run the same operations: the contents of a lane are used only then.
    #[inline]
    fn agreed(&mut self, op: &Op) -> StepOutcome {
        let Some(node) = self.node.filter(|_| self.locals.count > 1) else { return StepOutcome::Done };
        match self.agreement.reaches(node, op.seq()) {
            NodeAgreement::Same => StepOutcome::Done,
            NodeAgreement::Unknown => StepOutcome::NotYet,
            NodeAgreement::Differs(seq) => {
                self.stop = Some(Stop::Diverged(seq));
                StepOutcome::NotYet
            }
        }
    }

    /// Whether the group ends here.
    #[inline]
    fn is_over(&self) -> bool {
        self.stop.is_some()
    }

    /// The accelerator has failed: no more steps run in this poll.
    pub(super) fn accelerator_failed(&mut self, error: AcceleratorError) {
        self.stop = Some(Stop::Accelerator(error));
    }

    /// Posts fragments until the message is out or the queue is full.
    fn send(
        &mut self,
        op: &mut Op,
        step: u32,
        chunk: u32,
        (to, round): (Rank, u32),
        from: BufferOffset,
        len: usize,
    ) -> StepOutcome {
        let node = self.config.grid.node_of(to);
        if op.sends.wait_for_credit() && self.queues.is_full(node, op.seq()) {
            return StepOutcome::NotYet;
        }
        let Some((region, base)) = op.buffers.resolve(from, chunk) else { return StepOutcome::Broken };
        let Some(&state) = op.steps.of(step) else { return StepOutcome::Broken };
        let mut granule = state.granule;
        if granule == 0 {
            granule = crate::header::granule(self.transport.max_fragment(to));
        }
        if state.progress == 0 {
            op.marks.begin(step, self.control.now());
        }
        let token = SendToken::new(op.seq(), step);
        let (mut sent, mut posted) = (state.progress, 0);
        let mut ran = StepOutcome::Posted;
        loop {
            let offset = sent as usize;
            let bytes = (len - offset).min(granule as usize);
            let Some(payload) = region.span(base + offset, bytes) else { return StepOutcome::Broken };
            let offset = offset as u64;
            let header = Header { round, offset, granule, len: bytes as u32, ..*op.template() };
            match self.transport.send(to, &header, payload, token) {
                Ok(()) => {}
                // The transport reports the loss of a peer to its owner, which decides what becomes of the group.
                Err(SendError::Full | SendError::PeerFailed) => {
                    self.queues.found_full(node, op.seq());
                    ran = if posted > 0 { StepOutcome::Partly } else { StepOutcome::NotYet };
                    break;
                }
            }
            sent += bytes as u32;
            posted += 1;
            if sent as usize == len {
                break;
            }
        }
        self.counters.posted += u64::from(posted);
        if state.progress == 0 && posted > 0 {
            let (rank, seq, bytes) = (Some(to), op.seq(), len as u64);
            self.control.note(Record { rank, seq, bytes, ..Record::of(RecordKind::Sent) });
            if self.control.is_traced() {
                op.first_sent(step, (to, len), self.control);
            }
        }
        op.sent((step, from.buffer), granule, (sent - state.progress, posted));
        if matches!(ran, StepOutcome::Posted) {
            if from.buffer != Buffer::Slot {
                self.transport.request_ack(to);
            }
            op.posted(step, from.buffer);
        }
        ran
    }
}
