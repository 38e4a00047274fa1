//! One operation: its counters, and what is ready.

use super::api::{Request, Subject};
use super::park::Parked;
use super::trace::{Mark, Phase};
use super::{Control, Lanes, sent_from};
use crate::dtype::ReduceOp;
use crate::grid::Rank;
use crate::header::{Collective, Header, Identity, Kind, MatchKey, Shape};
use crate::memory::{self, Pooled, Region, Span};
use crate::schedule::{Action, Buffer, EdgeKind, Place, Schedule, Step};
use crate::transport::{Fence, Moment};
use core::time::Duration;
use std::sync::Arc;

/// Where an operation is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// No operation.
    Vacant,
    /// Its steps run.
    Running,
    /// It was reported; a transport may still refer to its slots.
    Lingering,
}

/// One step's counters.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StepState {
    /// Edges (and a credit) that it still waits for.
    pub(super) pending: u32,
    /// Bytes sent or received.
    pub(super) progress: u32,
    /// Bytes of a fragment; 0 before the first.
    pub(super) granule: u32,
    /// A send's fragments that are not released; a receive's first word in `bits`.
    pub(super) aux: u32,
    /// A send needs no credit, or it has come.
    pub(super) credited: bool,
    /// A send is posted, or any other step done.
    pub(super) done: bool,
}

/// Steps that can run, as a bit per step.
#[derive(Debug, Default)]
pub(super) struct ReadySet {
    pub(super) words: Vec<u64>,
    /// All bits lie in `words[first..=last]`.
    pub(super) first: usize,
    pub(super) last: usize,
}

impl ReadySet {
    fn reset(&mut self, steps: usize) {
        self.words.clear();
        self.words.resize(steps.div_ceil(64), 0);
        (self.first, self.last) = (usize::MAX, 0);
    }

    #[inline]
    fn insert(&mut self, step: u32) {
        let word = step as usize / 64;
        self.words[word] |= 1 << (step % 64);
        self.first = self.first.min(word);
        self.last = self.last.max(word);
    }
}

/// What an operation's steps are counted with.
#[derive(Debug, Default)]
pub(super) struct Desk {
    steps: Vec<StepState>,
    ready: Vec<u64>,
    bits: Vec<u64>,
}

#[derive(Debug)]
pub(super) struct Op {
    pub(super) state: State,
    /// What every message of the operation has in common.
    pub(super) template: Header,
    pub(super) schedule: Option<Arc<Schedule>>,
    pub(super) data: Region,
    pub(super) slots: Region,
    /// The tensors of all local ranks, where the operation works in place.
    pub(super) peers: Vec<Region>,
    /// The tensor was exported to the other ranks of the node.
    pub(super) exported: bool,
    /// Whether the others' could be opened, once that was tried.
    pub(super) opened: Option<bool>,
    pooled: Option<Pooled>,
    pub(super) priority: u32,
    pub(super) deadline: Duration,
    /// The deadline has passed, but who is late is for others to say: it was put off once.
    pub(super) put_off: bool,
    name: Option<Arc<str>>,
    annotation: u64,
    /// The reduction that folds use (an average is a sum until it is finished).
    pub(super) fold: ReduceOp,
    pub(super) lane_base: u64,
    /// The node's shared memory.
    pub(super) lanes: Option<Arc<Lanes>>,
    /// Its steps are not chosen yet: `schedule` is what it would run with tensors that are not shared.
    pub(super) undecided: bool,
    /// All messages wait for credit.
    pub(super) credit: bool,
    /// Where it begins and ends among the small operations.
    pub(super) begins: u64,
    pub(super) ends: u64,
    pub(super) steps: Vec<StepState>,
    pub(super) ready: ReadySet,
    /// A bit per fragment of the messages that have several.
    pub(super) bits: Vec<u64>,
    /// What the tensor holds is there from then on; nothing once that has come.
    pub(super) moment: Option<Moment>,
    /// By step, where somebody listens.
    pub(super) marks: Vec<Mark>,
    /// Copies of an accelerator that are not known to be done, with their steps.
    pub(super) copies: Vec<(u32, Fence)>,
    /// Steps to do before the operation is complete.
    pub(super) left: u32,
    /// Fragments that are not released, and those of them that lie in the tensor.
    pub(super) unreleased: u32,
    pub(super) data_unreleased: u32,
    /// Early messages, for this operation or a later one at the same place of the ring.
    pub(super) parked: Vec<Parked>,
    /// A receiving step became ready that may have parked messages.
    pub(super) replay: bool,
}

impl Op {
    pub(super) fn vacant() -> Self {
        let shape = Shape {
            collective: Collective::Barrier,
            dtype: crate::dtype::DType::U8,
            op: ReduceOp::Sum,
            count: 0,
        };
        let template = Header {
            kind: Kind::Data,
            src: Rank(0),
            key: MatchKey { group: 0, epoch: 0, seq: u64::MAX },
            identity: Identity::AdHoc(0),
            shape,
            round: 0,
            offset: 0,
            granule: 0,
            len: 0,
        };
        Self {
            state: State::Vacant,
            template,
            schedule: None,
            data: Region::empty(),
            slots: Region::empty(),
            peers: Vec::new(),
            exported: false,
            opened: None,
            pooled: None,
            priority: 0,
            deadline: Duration::MAX,
            put_off: false,
            name: None,
            annotation: 0,
            fold: ReduceOp::Sum,
            lane_base: 0,
            lanes: None,
            undecided: false,
            credit: false,
            begins: 0,
            ends: 0,
            steps: Vec::new(),
            ready: ReadySet::default(),
            bits: Vec::new(),
            moment: None,
            marks: Vec::new(),
            copies: Vec::new(),
            left: 0,
            unreleased: 0,
            data_unreleased: 0,
            parked: Vec::new(),
            replay: false,
        }
    }

    /// Takes the request; [`choose`](Self::choose) follows.
    pub(super) fn start(
        &mut self,
        request: Request,
        template: Header,
        slots: Option<Pooled>,
        credit: bool,
        desk: Desk,
    ) {
        (self.steps, self.ready.words, self.bits) = (desk.steps, desk.ready, desk.bits);
        let Request { identity: _, shape, data, schedule, priority, deadline, name, step, device } = request;
        self.state = State::Running;
        self.template = template;
        self.data = data;
        self.slots = slots.as_ref().map_or(Region::empty(), Pooled::region);
        self.pooled = slots;
        (self.priority, self.deadline, self.put_off) = (priority, deadline, false);
        (self.name, self.annotation) = (Some(name), step);
        self.moment = device.and_then(|device| device.moment);
        self.exported = device.is_some_and(|device| device.export.is_some());
        self.opened = None;
        self.fold = if shape.op == ReduceOp::Avg { ReduceOp::Sum } else { shape.op };
        self.credit = credit;
        (self.unreleased, self.data_unreleased, self.replay) = (0, 0, false);
        // Until the steps are chosen there is one thing to do.
        self.left = 1;
        self.undecided = true;
        self.bits.clear();
        self.copies.clear();
        self.peers.clear();
        self.steps.clear();
        self.ready.reset(0);
        self.schedule = Some(schedule);
    }

    /// Sets all counters to the schedule's, and asks for the messages that can be received at once. The lanes that the
    /// steps use are numbered from `lane_base`.
    pub(super) fn choose(&mut self, schedule: Arc<Schedule>, lane_base: u64, control: &mut Control) {
        self.undecided = false;
        self.lane_base = lane_base;
        let credit = self.credit;
        self.left = schedule.steps.len() as u32;
        self.ready.reset(schedule.steps.len());
        self.mark_all(schedule.steps.len(), control);
        self.steps.clear();
        self.steps
            .extend(schedule.indegree.iter().map(|&pending| StepState { pending, ..StepState::default() }));
        for (index, step) in schedule.steps.iter().enumerate() {
            let state = &mut self.steps[index];
            let mut asks = false;
            if let Action::Send { to, .. } = step.action {
                let node = schedule.problem.grid.node_of(to);
                state.credited = !credit && control.budget.covers(node, self.ends);
                asks = !state.credited;
                state.pending += u32::from(asks);
            }
            if asks && state.pending == 1 {
                self.begins(index as u32, control);
            } else if state.pending == 0 {
                self.make_ready(&schedule, index as u32, credit, control);
            } else if credit && schedule.behind_sends[index] {
                // What overwrites a range that was sent from cannot come before the peers have used what was sent, and
                // then its release is as good as here: granting now saves a message's time.
                self.grant(step, control);
            }
        }
        self.schedule = Some(schedule);
    }

    /// Counts down the steps that wait for this one. An ordinary step is done then; a send was acknowledged.
    #[inline]
    fn complete(&mut self, schedule: &Schedule, step: u32, control: &mut Control) {
        for &next in schedule.successors(crate::schedule::StepId(step)) {
            let state = &mut self.steps[next as usize];
            state.pending = state.pending.saturating_sub(1);
            if state.pending == 0 {
                let credit = self.credit && !schedule.behind_sends[next as usize];
                self.replay |= self.make_ready(schedule, next, credit, control);
            } else if state.pending == 1 && control.trace.is_some() {
                // Only its credit may be missing now.
                self.begins(next, control);
            }
        }
    }

    /// Asks for the message of a receiving step.
    #[inline]
    fn grant(&self, step: &Step, control: &mut Control) {
        match step.action {
            Action::Receive { from, round, into, len } => {
                control.grant(from, &self.template, round, self.landing(into, step.chunk, len));
            }
            Action::ReceiveReduce { from, round, .. } => control.grant(from, &self.template, round, None),
            _ => {}
        }
    }

    /// A step can run. For a receive this means that messages are welcome, and those of a large operation are asked for with `credit`;
    /// returns whether it is one.
    #[inline]
    fn make_ready(&mut self, schedule: &Schedule, index: u32, credit: bool, control: &mut Control) -> bool {
        let step = &schedule.steps[index as usize];
        let (Action::Receive { from, .. } | Action::ReceiveReduce { from, .. }) = step.action else {
            self.ready.insert(index);
            return false;
        };
        let ask = match self.credit {
            true => credit,
            false => {
                let node = schedule.problem.grid.node_of(from);
                control.must_ask((from, node), &self.template, self.ends)
            }
        };
        if ask {
            self.grant(step, control);
        }
        true
    }

    /// Whether a place lies in an accelerator's memory.
    #[inline]
    pub(super) fn is_device(&self, place: Place) -> bool {
        self.data.kind() == memory::Kind::Device && matches!(place.buffer, Buffer::Data | Buffer::Peer(_))
    }

    /// Where a place of the operation lies in memory.
    #[inline]
    pub(super) fn spot(&self, place: Place, chunk: u32) -> Option<(Region, usize)> {
        let of_lane = |first: u32, all: fn(&Lanes) -> &[Region]| {
            let lanes = self.lanes.as_deref()?;
            let lane = (self.lane_base + u64::from(chunk)) % u64::from(lanes.count);
            all(lanes).get(first as usize * lanes.count as usize + lane as usize).copied()
        };
        let region = match place.buffer {
            Buffer::Data => self.data,
            Buffer::Slot => self.slots,
            Buffer::Peer(local) => *self.peers.get(local as usize)?,
            Buffer::Stage(local) => of_lane(local, |lanes| &lanes.stage)?,
            Buffer::Node => of_lane(0, |lanes| &lanes.result)?,
        };
        Some((region, place.offset))
    }

    /// Where a message that is only placed may be written by the peer itself: in memory that outlives the operation. Slots of the
    /// host's are no such place, for no NIC knows them; those on a device are known.
    #[inline]
    pub(super) fn landing(&self, into: Place, chunk: u32, len: usize) -> Option<Span> {
        if len == 0 {
            return None;
        }
        let (region, offset) = self.spot(into, chunk)?;
        let known = match into.buffer {
            Buffer::Data | Buffer::Node => true,
            Buffer::Slot => region.kind() == crate::memory::Kind::Device,
            Buffer::Stage(_) | Buffer::Peer(_) => false,
        };
        if !known {
            return None;
        }
        region.span(offset, len)
    }

    /// A step other than a send is done.
    #[inline]
    pub(super) fn done_with(&mut self, schedule: &Schedule, step: u32, control: &mut Control) {
        self.steps[step as usize].done = true;
        self.left -= 1;
        self.complete(schedule, step, control);
    }

    /// As [`done_with`](Self::done_with), for callers that do not hold the schedule.
    #[inline]
    pub(super) fn done(&mut self, step: u32, control: &mut Control) {
        if let Some(schedule) = self.schedule.take() {
            self.done_with(&schedule, step, control);
            self.schedule = Some(schedule);
        }
    }

    /// A send's credit has come.
    pub(super) fn credited(&mut self, schedule: &Schedule, step: u32, control: &mut Control) {
        let state = &mut self.steps[step as usize];
        if state.credited {
            return;
        }
        state.credited = true;
        state.pending = state.pending.saturating_sub(1);
        if state.pending == 0 {
            self.ready.insert(step);
            self.ends(schedule, step, Phase::Credit, control);
        }
    }

    /// A peer takes more of small operations: what goes to it needs no credit any more, if it takes that much.
    pub(super) fn cover(&mut self, peer: Rank, node: u32, control: &mut Control) {
        if self.credit || self.undecided || !control.budget.covers(node, self.ends) {
            return;
        }
        let Some(schedule) = self.schedule.clone() else { return };
        for (index, step) in schedule.steps.iter().enumerate() {
            if matches!(step.action, Action::Send { to, .. } if to == peer) {
                self.credited(&schedule, index as u32, control);
            }
        }
    }

    /// A send is posted to its end. From a slot, nobody waits for more.
    pub(super) fn posted(&mut self, step: u32, from: Buffer) {
        self.steps[step as usize].done = true;
        if from == Buffer::Slot {
            self.left -= 1;
        }
    }

    /// One fragment of a send is released.
    pub(super) fn released(&mut self, step: u32, control: &mut Control) {
        let Some(schedule) = self.schedule.take() else { return };
        self.released_with(&schedule, step, control);
        self.schedule = Some(schedule);
    }

    fn released_with(&mut self, schedule: &Schedule, step: u32, control: &mut Control) {
        let (Some(state), Some(from)) = (
            self.steps.get_mut(step as usize),
            schedule.steps.get(step as usize).and_then(|step| sent_from(&step.action)),
        ) else {
            return;
        };
        if state.aux == 0 {
            return;
        }
        state.aux -= 1;
        self.unreleased = self.unreleased.saturating_sub(1);
        if from == Buffer::Data {
            self.data_unreleased = self.data_unreleased.saturating_sub(1);
        }
        let over = state.done && state.aux == 0;
        if over {
            self.ends(schedule, step, Phase::Send, control);
        }
        if over && self.state == State::Running {
            debug_assert_eq!(schedule.steps[step as usize].edge_kind(), EdgeKind::Reusable);
            if from != Buffer::Slot {
                self.left -= 1;
            }
            self.complete(schedule, step, control);
        }
    }

    /// Forgets the operation; returns its slots, and what it worked with for the next operation: there is as much of that as
    /// operations run at once, wherever in the ring they are.
    pub(super) fn vacate(&mut self) -> (Option<Pooled>, Desk) {
        self.state = State::Vacant;
        let steps = core::mem::take(&mut self.steps);
        let (ready, bits) = (core::mem::take(&mut self.ready.words), core::mem::take(&mut self.bits));
        self.schedule = None;
        self.name = None;
        (self.data, self.slots) = (Region::empty(), Region::empty());
        self.peers.clear();
        (self.pooled.take(), Desk { steps, ready, bits })
    }

    /// Whether an accelerator has to be asked something.
    #[inline]
    pub(super) fn asks(&self) -> bool {
        self.moment.is_some() || !self.copies.is_empty()
    }

    /// Its tensor's name, and the trainer's step.
    pub(super) fn called(&self) -> (Arc<str>, u64) {
        (self.name.clone().unwrap_or_else(|| Arc::from("")), self.annotation)
    }

    /// Which operation this is, for errors.
    pub(super) fn subject(&self) -> Box<Subject> {
        let (name, step) = self.called();
        Box::new(Subject {
            seq: self.template.key.seq,
            shape: self.template.shape,
            identity: self.template.identity,
            name,
            step,
        })
    }
}
