//! One operation: its life, and the parts that count for it.

mod buffers;
mod sends;
mod steps;

pub(super) use self::buffers::OperationBuffers;
pub(super) use self::sends::Sends;
pub(super) use self::steps::{FragmentState, Steps};

use super::api::{OpSubject, Request};
use super::background::Background;
use super::control::Control;
use super::deadlines;
use super::park::Early;
use super::trace::{Marks, Phase};
use crate::dtype::{DType, ReduceOp};
use crate::grid::Rank;
use crate::header::{Header, MatchKey, MessageKind, View};
use crate::memory::Pooled;
use crate::recorder::{Record, RecordKind};
use crate::schedule::{Action, Buffer, EdgeKind, Schedule, Step, StepId};
use core::time::Duration;
use std::sync::Arc;

/// The state of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpState {
    /// No operation.
    Vacant,
    /// Its steps run.
    Running,
    /// It was reported; a transport may still refer to its slots.
    Lingering,
}

/// The deadline of an operation.
#[derive(Debug)]
struct OpDeadline {
    deadline: Duration,
    /// It is extended by so much when it has passed, once, so that a rank nearer to the cause can name the culprit.
    grace: Option<Duration>,
}

#[derive(Debug)]
pub(super) struct Op {
    state: OpState,
    /// The fields that all messages of the operation have in common.
    template: Header,
    schedule: Option<Arc<Schedule>>,
    /// Its steps are not chosen yet: `schedule` is what it would run with tensors that are not shared.
    undecided: bool,
    priority: u32,
    deadline: OpDeadline,
    name: Option<Arc<str>>,
    /// The trainer's step.
    trainer_step: u64,
    pub(super) buffers: OperationBuffers,
    pub(super) steps: Steps,
    pub(super) sends: Sends,
    pub(super) background: Background,
    pub(super) early: Early,
    pub(super) marks: Marks,
    /// It may have become due since the last look.
    may_be_due: bool,
}

impl Op {
    pub(super) fn vacant() -> Self {
        let key = MatchKey { group: 0, epoch: 0, seq: u64::MAX };
        Self {
            state: OpState::Vacant,
            template: Header::new(MessageKind::Data, Rank(0), key),
            schedule: None,
            undecided: false,
            priority: 0,
            deadline: OpDeadline { deadline: Duration::MAX, grace: None },
            name: None,
            trainer_step: 0,
            buffers: OperationBuffers::new(),
            steps: Steps::default(),
            sends: Sends::default(),
            background: Background::default(),
            early: Early::default(),
            marks: Marks::default(),
            may_be_due: false,
        }
    }

    /// Takes the request at the time `now`; [`choose`](Self::choose) follows. It lies between these two positions of the small operations, and counts
    /// its steps with `steps`.
    pub(super) fn start(
        &mut self,
        request: Request,
        template: Header,
        slots: Option<Pooled>,
        (credit, positions): (bool, (u64, u64)),
        steps: Steps,
        now: Duration,
    ) {
        let given = request.given();
        let Request {
            identity: _,
            shape: _,
            data,
            input,
            schedule,
            priority,
            deadline,
            name,
            step,
            pushed,
            device,
        } = request;
        self.state = OpState::Running;
        self.template = template;
        self.schedule = Some(schedule);
        self.undecided = true;
        self.priority = priority;
        self.deadline = OpDeadline { deadline, grace: Some(deadlines::grace(deadline.saturating_sub(now))) };
        (self.name, self.trainer_step) = (Some(name), step);
        self.buffers.start((data, input, given), device.is_some_and(|device| device.export.is_some()), slots);
        self.steps = steps;
        self.steps.start();
        self.sends.start(credit, positions);
        self.background.start(device.and_then(|device| device.ready_event));
        self.early.start();
        self.marks.start(pushed);
        self.may_be_due = self.background.is_pending();
    }

    /// Sets all counters to the schedule's, and asks for the messages that can be received at once. The lanes that the
    /// steps use are numbered from `lane_base`.
    pub(super) fn choose(&mut self, schedule: Arc<Schedule>, lane_base: u64, control: &mut Control) {
        self.undecided = false;
        self.buffers.set_lanes(lane_base);
        let credit = self.sends.wait_for_credit();
        self.marks.reset(schedule.steps.len(), control);
        self.steps.reset(&schedule.indegree);
        let mut has_work = false;
        for (index, step) in (0u32..).zip(&schedule.steps) {
            let mut asks = false;
            let mut pending = schedule.indegree[index as usize];
            if let Action::Send { to, .. } = step.action {
                let node = schedule.problem.grid.node_of(to);
                asks = credit || !control.budget.covers(node, self.sends.ends());
                pending = self.steps.set_credit(index, !asks);
            }
            has_work |= asks && pending == 1;
            if asks && pending == 1 {
                self.waits_for_credit(index, step, control);
            } else if pending == 0 {
                self.make_ready(&schedule, index, credit, control);
            } else if credit && schedule.behind_sends[index as usize] {
                // A message that overwrites a range that was sent from cannot come before the peers have used what was sent. The
                // release of that range is as good as here then: a grant now saves a message's time.
                self.grant(step, control);
            }
        }
        if !has_work && !self.steps.are_ready() {
            // There is nothing to do before something comes from others.
            self.marks.works(control.now());
        }
        self.schedule = Some(schedule);
    }

    /// Where it is in its life.
    #[inline]
    pub(super) fn state(&self) -> OpState {
        self.state
    }

    /// Its number, or that of the one before it at this place of the ring.
    #[inline]
    pub(super) fn seq(&self) -> u64 {
        self.template.key.seq
    }

    /// Whether it is this operation, and runs.
    #[inline]
    pub(super) fn runs(&self, seq: u64) -> bool {
        self.state == OpState::Running && self.seq() == seq
    }

    /// Whether it may have become [due](Self::is_due) since the last call: every change that can make it due sets this.
    #[inline]
    pub(super) fn take_may_be_due(&mut self) -> bool {
        core::mem::take(&mut self.may_be_due)
    }

    /// A step can run: the flags that it waits for are set.
    #[inline]
    pub(super) fn wake(&mut self, step: u32) {
        self.steps.make_ready(step);
        self.may_be_due = true;
    }

    /// Whether a poll can do something for it.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.state == OpState::Running
            && (self.steps.are_ready() || self.background.is_pending() || self.early.is_due())
    }

    /// The fields that all messages of the operation have in common.
    #[inline]
    pub(super) fn template(&self) -> &Header {
        &self.template
    }

    /// The operation as this rank sees it.
    pub(super) fn view(&self) -> View {
        self.template.view()
    }

    /// The elements' type.
    #[inline]
    pub(super) fn dtype(&self) -> DType {
        self.template.shape.dtype
    }

    /// The reduction that folds use: an average is a sum until it is finished.
    #[inline]
    pub(super) fn reduction(&self) -> ReduceOp {
        match self.template.shape.op {
            ReduceOp::Avg => ReduceOp::Sum,
            op => op,
        }
    }

    /// Whether its steps are not chosen yet.
    #[inline]
    pub(super) fn is_undecided(&self) -> bool {
        self.undecided
    }

    /// Its place in the order of running operations.
    pub(super) fn entry(&self) -> (u32, bool, u64) {
        (self.priority, self.sends.wait_for_credit(), self.seq())
    }

    /// The deadline.
    #[inline]
    pub(super) fn deadline(&self) -> Duration {
        self.deadline.deadline
    }

    /// Gives it more time from now on, once; whether that was the first time.
    pub(super) fn extend_deadline(&mut self, now: Duration) -> bool {
        let Some(grace) = self.deadline.grace.take() else { return false };
        self.deadline.deadline = now.saturating_add(grace);
        true
    }

    /// Whether a whole message of it has come from a rank, which has started it then.
    pub(super) fn has_received_from(&self, rank: Rank) -> bool {
        let Some(schedule) = &self.schedule else { return false };
        schedule.steps.iter().zip(self.steps.iter()).any(|(step, state)| {
            let from = match step.action {
                Action::Receive { from, .. } | Action::ReceiveReduce { from, .. } => Some(from),
                _ => None,
            };
            state.done && from == Some(rank)
        })
    }

    /// Its steps; those that it would run with tensors that are not shared, before they are chosen.
    #[inline]
    pub(super) fn schedule(&self) -> Option<&Arc<Schedule>> {
        self.schedule.as_ref()
    }

    /// Does something with the schedule, which the operation does not have meanwhile.
    #[inline]
    pub(super) fn with_schedule<R>(&mut self, act: impl FnOnce(&mut Self, &Arc<Schedule>) -> R) -> Option<R> {
        let schedule = self.schedule.take()?;
        let result = act(self, &schedule);
        self.schedule = Some(schedule);
        Some(result)
    }

    /// It has ended; whether it was running.
    pub(super) fn end(&mut self) -> bool {
        let ran = self.state == OpState::Running;
        if ran {
            self.state = OpState::Lingering;
        }
        ran
    }

    /// Fragments and copies of the tensor itself that a transport or an accelerator may still refer to.
    pub(super) fn outstanding(&self) -> u32 {
        self.sends.data_unreleased() + self.background.copies() as u32
    }

    /// Whether it was reported, and nothing refers to its memory any more.
    pub(super) fn is_free(&self) -> bool {
        self.state == OpState::Lingering && self.sends.unreleased() == 0 && self.background.copies() == 0
    }

    /// Transports and accelerators refer to nothing of it any more.
    pub(super) fn fenced(&mut self) {
        self.sends.fenced();
        self.background.fenced();
    }

    /// Counts down the steps that wait for this one. An ordinary step is done then; a send was acknowledged.
    #[inline]
    fn complete(&mut self, schedule: &Schedule, step: u32, control: &mut Control) {
        for &next in schedule.successors(StepId(step)) {
            let pending = self.steps.count_down(next);
            if pending == 0 {
                let credit = self.sends.wait_for_credit() && !schedule.behind_sends[next as usize];
                if self.make_ready(schedule, next, credit, control) {
                    self.early.look_again();
                    self.may_be_due = true;
                }
            } else if pending == 1 && self.steps.of(next).is_some_and(|step| !step.credited) {
                self.waits_for_credit(next, &schedule.steps[next as usize], control);
            }
        }
    }

    /// If the step, for which one thing is missing, is a send without credit, that is what it waits for.
    fn waits_for_credit(&mut self, index: u32, step: &Step, control: &mut Control) {
        if let Action::Send { to, len, .. } = step.action {
            let (rank, seq, bytes) = (Some(to), self.seq(), len as u64);
            control.note(Record { rank, seq, bytes, ..Record::of(RecordKind::CreditWait) });
            self.marks.begin(index, control.now());
        }
    }

    /// Grants the message of a receiving step.
    #[inline]
    fn grant(&self, step: &Step, control: &mut Control) {
        match step.action {
            Action::Receive { from, round, into, len } => {
                control.grant(from, &self.template, round, self.buffers.landing(into, step.chunk, len));
            }
            Action::ReceiveReduce { from, round, .. } => control.grant(from, &self.template, round, None),
            _ => {}
        }
    }

    /// A step can run. For a receive this means that messages are accepted, and those of a large operation are granted with
    /// `credit`; returns whether the step is a receive.
    #[inline]
    fn make_ready(&mut self, schedule: &Schedule, index: u32, credit: bool, control: &mut Control) -> bool {
        let step = &schedule.steps[index as usize];
        let (Action::Receive { from, .. } | Action::ReceiveReduce { from, .. }) = step.action else {
            self.steps.make_ready(index);
            self.may_be_due = true;
            return false;
        };
        let ask = match self.sends.wait_for_credit() {
            true => credit,
            false => {
                let node = schedule.problem.grid.node_of(from);
                control.must_grant((from, node), &self.template, self.sends.ends())
            }
        };
        if ask {
            self.grant(step, control);
        }
        true
    }

    /// A step other than a send is done.
    #[inline]
    pub(super) fn done_with(&mut self, schedule: &Schedule, step: u32, control: &mut Control) {
        self.steps.done(step);
        self.complete(schedule, step, control);
    }

    /// As [`done_with`](Self::done_with), for callers that do not hold the schedule.
    #[inline]
    pub(super) fn done(&mut self, step: u32, control: &mut Control) {
        self.with_schedule(|op, schedule| op.done_with(schedule, step, control));
    }

    /// A send's credit has come.
    pub(super) fn credited(&mut self, schedule: &Schedule, step: u32, control: &mut Control) {
        if self.steps.credit(step) == Some(true) {
            self.may_be_due = true;
            self.ends(schedule, step, Phase::Credit, control);
        }
    }

    /// A peer takes more of small operations: messages to it need no credit any more, if it takes that much.
    pub(super) fn cover(&mut self, peer: Rank, node: u32, control: &mut Control) {
        let covered = control.budget.covers(node, self.sends.ends());
        if self.sends.wait_for_credit() || self.undecided || !covered {
            return;
        }
        self.with_schedule(|op, schedule| {
            for (index, step) in (0u32..).zip(&schedule.steps) {
                if matches!(step.action, Action::Send { to, .. } if to == peer) {
                    op.credited(schedule, index, control);
                }
            }
        });
    }

    /// Of a send in fragments of `granule` bytes, so many more and their bytes are posted.
    #[inline]
    pub(super) fn sent(&mut self, (step, from): (u32, Buffer), granule: u32, (bytes, fragments): (u32, u32)) {
        self.steps.sent(step, granule, (bytes, fragments));
        self.sends.posted(fragments, from);
    }

    /// A send is posted completely. A send from a slot is then done.
    pub(super) fn posted(&mut self, step: u32, from: Buffer) {
        self.steps.posted(step, from != Buffer::Slot);
    }

    /// One fragment of a send is released.
    pub(super) fn released(&mut self, step: u32, control: &mut Control) {
        self.with_schedule(|op, schedule| op.released_with(schedule, step, control));
    }

    fn released_with(&mut self, schedule: &Schedule, step: u32, control: &mut Control) {
        let Some(plan) = schedule.steps.get(step as usize) else { return };
        let Action::Send { from, .. } = plan.action else { return };
        let Some(last) = self.steps.released(step) else { return };
        self.sends.released(from.buffer);
        if last {
            self.ends(schedule, step, Phase::Send, control);
            self.marks.released(control.now());
        }
        if last && self.state == OpState::Running {
            debug_assert_eq!(plan.edge_kind(), EdgeKind::Reusable);
            if from.buffer != Buffer::Slot {
                self.steps.is_released();
            }
            self.complete(schedule, step, control);
        }
    }

    /// Forgets the operation; returns its slots, and the counters of its steps for the next operation: there are as many of
    /// them as operations that run at once, wherever in the ring they are.
    pub(super) fn vacate(&mut self) -> (Option<Pooled>, Steps) {
        self.state = OpState::Vacant;
        self.schedule = None;
        self.name = None;
        (self.buffers.vacate(), self.steps.take())
    }

    /// Its tensor's name, and the trainer's step.
    pub(super) fn name_and_step(&self) -> (Arc<str>, u64) {
        (self.name.clone().unwrap_or_else(|| Arc::from("")), self.trainer_step)
    }

    /// The operation's description, for errors.
    pub(super) fn subject(&self) -> Box<OpSubject> {
        let (name, step) = self.name_and_step();
        let View { identity, shape } = self.view();
        Box::new(OpSubject { seq: self.seq(), shape, identity, name, step })
    }
}
