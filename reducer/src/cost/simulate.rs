//! The evaluation: when each step of each rank ends.
//!
//! A rank's core runs one step at a time, of those that are ready the one that became so first. A message's bytes cost its sender's core,
//! the sender's wire, the receiver's wire and the receiver's core; these overlap, but for the latency and the overhead at both ends.

use super::cast::{Cast, StepRef};
use super::{Costs, Picoseconds};
use crate::grid::Rank;
use crate::schedule::{Action, Buffer, Schedule, StepId};
use crate::transport::LaneFlag;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// When the last rank has the operation behind it. With `credit`, messages wait until their receivers are ready for them.
pub(super) fn run(cast: &Cast, costs: &Costs, credit: bool) -> Picoseconds {
    let mut run = Simulation::new(cast, costs, credit);
    run.drain();
    // Where hosts stand for others, a message may have no like: its receive goes on when nothing else does.
    for id in 0..run.states.len() {
        let state = &mut run.states[id];
        if state.edges == 0 && !state.is_due {
            state.others = 0;
            state.ready = state.ready.max(run.end);
            run.maybe_due(id);
            run.drain();
        }
    }
    Picoseconds(run.end)
}

/// One step's state.
#[derive(Clone, Copy, Debug, Default)]
struct SimulatedStep {
    /// Edges within the rank that it waits for.
    edges: u32,
    /// Events of other ranks that it waits for: a message, a grant, flags.
    others: u32,
    /// When the last of what it has waited for was there.
    ready: u64,
    /// When its message's last byte was there.
    arrived: u64,
    /// Whether it is due, or done.
    is_due: bool,
}

struct Simulation<'a> {
    cast: &'a Cast,
    costs: &'a Costs,
    credit: bool,
    /// The first step of each member, among all.
    base: Vec<usize>,
    states: Vec<SimulatedStep>,
    /// The receives of each send's message, and the one that grants it; by step among all, in the order of the links.
    receivers: Vec<Vec<usize>>,
    granted_by: Vec<Option<usize>>,
    grants: Vec<Vec<usize>>,
    /// The steps that wait for each signal.
    waiters: Vec<Vec<usize>>,
    core: Vec<u64>,
    sending: Vec<u64>,
    receiving: Vec<u64>,
    due: BinaryHeap<Reverse<(u64, u32)>>,
    end: u64,
}

impl<'a> Simulation<'a> {
    fn new(cast: &'a Cast, costs: &'a Costs, credit: bool) -> Self {
        let mut base = Vec::with_capacity(cast.schedules.len());
        let mut total = 0;
        for schedule in &cast.schedules {
            base.push(total);
            total += schedule.steps().len();
        }
        let members = cast.schedules.len();
        let mut run = Self {
            cast,
            costs,
            credit,
            base,
            states: vec![SimulatedStep::default(); total],
            receivers: vec![Vec::new(); total],
            granted_by: vec![None; total],
            grants: vec![Vec::new(); total],
            waiters: vec![Vec::new(); total],
            core: vec![0; members],
            sending: vec![0; members],
            receiving: vec![0; members],
            due: BinaryHeap::new(),
            end: 0,
        };
        run.link();
        run.raise_flags();
        for (member, schedule) in cast.schedules.iter().enumerate() {
            for step in 0..schedule.steps().len() {
                // A receive that waits for nothing but this rank's own sends is granted at once; its message comes after them.
                let early = schedule.behind_sends[step] && is_receive(&schedule.steps()[step].action);
                let edges = if early { 0 } else { schedule.indegree(StepId(step as u32)) };
                run.states[run.base[member] + step].edges = edges;
            }
        }
        for id in 0..total {
            if run.states[id].edges == 0 {
                run.own_done(id);
            }
        }
        run
    }

    fn id(&self, place: StepRef) -> usize {
        self.base[place.member] + place.step as usize
    }

    fn link(&mut self) {
        for link in &self.cast.links {
            let (send, receive) = (self.id(link.send), self.id(link.receive));
            self.receivers[send].push(receive);
            self.states[receive].others += 1;
            if self.credit && self.granted_by[send].is_none() {
                self.granted_by[send] = Some(receive);
                self.grants[receive].push(send);
                self.states[send].others += 1;
            }
        }
    }

    /// Notes the steps that wait for each flag of another rank.
    fn raise_flags(&mut self) {
        let mut signals: HashMap<(u32, u32, LaneFlag), usize> = HashMap::new();
        let each = |cast: &'a Cast| {
            cast.schedules.iter().enumerate().flat_map(|(member, schedule)| {
                schedule.steps().iter().zip(0..).map(move |(step, at)| (member, schedule, step, at))
            })
        };
        for (member, schedule, step, at) in each(self.cast) {
            if let Action::Signal { flag } = step.action {
                let id = self.id(StepRef { member, step: at });
                signals.insert((schedule.problem().rank.0, step.chunk, flag), id);
            }
        }
        let evaluated: Vec<Rank> =
            self.cast.schedules.iter().map(|schedule| schedule.problem().rank).collect();
        for (member, schedule, step, at) in each(self.cast) {
            let (problem, lanes) = (schedule.problem(), schedule.params().lanes);
            let (grid, node, me, all) = (problem.grid, problem.node(), problem.local(), 0..problem.locals());
            let (locals, flag, chunk) = match step.action {
                Action::Wait { local, flag } => (local..local + 1, flag, Some(step.chunk)),
                Action::WaitAll { flag } => (all, flag, Some(step.chunk)),
                Action::WaitFree => (all, LaneFlag::Consumed, step.chunk.checked_sub(lanes)),
                _ => continue,
            };
            let Some(chunk) = chunk else { continue };
            let id = self.id(StepRef { member, step: at });
            let awaited = locals.filter(|&local| local != me).map(|local| grid.rank_at(node, local));
            let awaited: Vec<Rank> = match self.cast.stand_ins {
                None => awaited.collect(),
                Some(stand_ins) => {
                    let stand_in = stand_ins.into_iter().find(|rank| *rank != problem.rank);
                    let (here, mut absent): (Vec<_>, Vec<_>) =
                        awaited.partition(|rank| evaluated.contains(rank));
                    absent.truncate(1);
                    here.into_iter().chain(absent.into_iter().filter_map(|_| stand_in)).collect()
                }
            };
            for rank in awaited {
                if let Some(&signal) = signals.get(&(rank.0, chunk, flag)) {
                    self.waiters[signal].push(id);
                    self.states[id].others += 1;
                }
            }
        }
    }

    fn place(&self, id: usize) -> StepRef {
        let member = self.base.partition_point(|&base| base <= id) - 1;
        StepRef { member, step: (id - self.base[member]) as u32 }
    }

    /// All steps of its own rank that a step waits for are done: its message may come.
    fn own_done(&mut self, id: usize) {
        let network = &self.costs.network;
        let granted = ns(network.latency_ns) + ns(network.message_ns);
        let ready = self.states[id].ready;
        for send in std::mem::take(&mut self.grants[id]) {
            self.other_done(send, ready.saturating_add(granted));
        }
        self.maybe_due(id);
    }

    fn other_done(&mut self, id: usize, at: u64) {
        let state = &mut self.states[id];
        state.others = state.others.saturating_sub(1);
        state.ready = state.ready.max(at);
        self.maybe_due(id);
    }

    fn maybe_due(&mut self, id: usize) {
        let state = &mut self.states[id];
        if state.edges == 0 && state.others == 0 && !state.is_due {
            state.is_due = true;
            self.due.push(Reverse((state.ready, id as u32)));
        }
    }

    fn drain(&mut self) {
        while let Some(Reverse((at, id))) = self.due.pop() {
            self.step(at, id as usize);
        }
    }

    fn step(&mut self, at: u64, id: usize) {
        let StepRef { member, step } = self.place(id);
        let schedule = &self.cast.schedules[member];
        let action = &schedule.steps()[step as usize].action;
        let start = at.max(self.core[member]);
        let worked = start + work(self.costs, action, self.cast.counts);
        let network = self.costs.network;
        // The times at which the core is free again, and at which the condition of the step's edges holds.
        let (end, done) = match *action {
            Action::Send { from, len, .. } => {
                let first = (start + ns(network.message_ns)).max(self.sending[member]);
                let last = worked.max(first + self.bytes(len, network.wire_mb_s));
                self.sending[member] = last;
                for receive in std::mem::take(&mut self.receivers[id]) {
                    self.arrive(receive, first, last, len);
                }
                let released = last + 2 * ns(network.latency_ns) + ns(network.message_ns);
                if matches!(from.buffer, Buffer::Data | Buffer::Input) {
                    self.end = self.end.max(released);
                }
                (worked, released)
            }
            Action::Receive { .. } | Action::ReceiveReduce { .. } => {
                let end = worked.max(self.states[id].arrived);
                (end, end)
            }
            Action::Signal { .. } => {
                for waiter in std::mem::take(&mut self.waiters[id]) {
                    self.other_done(waiter, worked + ns(self.costs.host.flag_ns));
                }
                (worked, worked)
            }
            _ => (worked, worked),
        };
        self.core[member] = end;
        self.end = self.end.max(end);
        self.follow(schedule, member, step, done);
    }

    /// How long this many bytes of the schedule take.
    fn bytes(&self, bytes: usize, mb_s: u32) -> u64 {
        scaled(bytes, self.cast.counts, mb_s)
    }

    /// The steps that wait for this one.
    fn follow(&mut self, schedule: &Schedule, member: usize, step: u32, done: u64) {
        for &next in schedule.successors(StepId(step)) {
            let id = self.base[member] + next as usize;
            let state = &mut self.states[id];
            if state.edges == 0 {
                continue;
            }
            state.edges -= 1;
            state.ready = state.ready.max(done);
            if state.edges == 0 {
                self.own_done(id);
            }
        }
    }

    /// A message is on its way: its first and its last byte leave the sender at these times.
    fn arrive(&mut self, receive: usize, first: u64, last: u64, len: usize) {
        let network = &self.costs.network;
        let member = self.place(receive).member;
        let (latency, wire) = (ns(network.latency_ns), self.bytes(len, network.wire_mb_s));
        let there = (last + latency).max(self.receiving[member] + wire);
        self.receiving[member] = there;
        self.states[receive].arrived = there;
        // The core handles bytes as they come, and is done when the last has come.
        let handling = self.bytes(len, network.core_mb_s);
        let begin = (first + latency).max(there.saturating_sub(handling));
        self.other_done(receive, begin);
    }
}

/// How long a step keeps its rank's core.
fn work(costs: &Costs, action: &Action, counts: (u64, u64)) -> u64 {
    let bytes = |bytes, mb_s| scaled(bytes, counts, mb_s);
    let Costs { host, network } = costs;
    let step = ns(host.step_ns);
    match *action {
        Action::Send { len, .. } | Action::Receive { len, .. } => {
            ns(network.message_ns) + bytes(len, network.core_mb_s)
        }
        Action::ReceiveReduce { len, .. } => {
            ns(network.message_ns) + bytes(len, network.core_mb_s) + bytes(len, host.fold_mb_s)
        }
        Action::Fold { destinations, sources, len, .. } => {
            let more = bytes(len * (destinations as usize).saturating_sub(1), host.copy_mb_s);
            step + bytes(len * sources as usize, host.fold_mb_s) + more
        }
        Action::Copy { len, .. } => step + bytes(len, host.copy_mb_s),
        Action::Finish { len, .. } => step + bytes(len, host.fold_mb_s),
        Action::Signal { .. } | Action::Wait { .. } | Action::WaitAll { .. } | Action::WaitFree => step,
    }
}

/// How long bytes take at a rate, where `counts` elements of the real tensor are so many of the schedule's.
fn scaled(bytes: usize, (real, scheduled): (u64, u64), mb_s: u32) -> u64 {
    let bytes = u128::from(bytes as u64) * u128::from(real) / u128::from(scheduled);
    Picoseconds::of_bytes(bytes as u64, mb_s).0
}

/// How long all steps of a rank keep its core.
pub(super) fn work_of(schedule: &Schedule, costs: &Costs) -> Picoseconds {
    let all = schedule.steps().iter().map(|step| work(costs, &step.action, (1, 1)));
    Picoseconds(all.fold(0, u64::saturating_add))
}

fn is_receive(action: &Action) -> bool {
    matches!(action, Action::Receive { .. } | Action::ReceiveReduce { .. })
}

fn ns(ns: u32) -> u64 {
    Picoseconds::of_ns(ns).0
}
