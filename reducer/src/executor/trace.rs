//! The phases of operations, reported while they run: for a timeline. Without a trace attached, nothing is measured.

use super::control::Control;
use super::op::Op;
use crate::grid::Rank;
use crate::header::Collective;
use crate::schedule::{Action, Schedule};
use core::fmt;
use core::time::Duration;
use std::sync::Arc;

/// A phase of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// From the caller's push to the first thing that was done: a fragment sent or received, a copy or a fold; where there was nothing to do
    /// before something came from others, to the start. Reported at the end.
    Queue,
    /// From the first fragment sent to another host, or received from one, to the last that was received; where none comes, to the last release.
    /// Reported at the end.
    Wire,
    /// A message was ready to send, but its receiver had not granted it yet.
    Credit,
    /// From a message's first fragment to the release of its last.
    Send,
    /// From a message's first fragment to its last.
    Receive,
    /// A reduction. Of a message that is reduced as it comes, the time of all its fragments, as one interval at the end.
    Fold,
    /// A copy within the host, or between it and an accelerator.
    Copy,
}

/// A phase that has ended.
#[derive(Clone, Debug)]
pub struct PhaseRecord {
    /// The phase.
    pub phase: Phase,
    /// The tensor's name.
    pub name: Arc<str>,
    /// The operation's collective.
    pub collective: Collective,
    /// The trainer's step.
    pub step: u64,
    /// The peer of a message.
    pub peer: Option<Rank>,
    /// When it began.
    pub start: Duration,
    /// When it ended.
    pub end: Duration,
    /// Bytes sent, received, folded or copied; of the wire both ways.
    pub bytes: usize,
}

/// The receiver of phase records.
pub trait Trace: fmt::Debug + Send {
    /// The time now, of the clock whose readings the executor is polled with.
    fn now(&self) -> Duration;

    /// Whether this rank is on another host.
    fn leaves_host(&self, peer: Rank) -> bool;

    /// A phase has ended.
    fn record(&mut self, record: PhaseRecord);
}

/// The times of a step, kept if a trace is attached.
#[derive(Clone, Copy, Debug)]
struct Mark {
    /// When its present phase began.
    since: Duration,
    /// Time in reductions of its fragments.
    folded: Duration,
}

/// The times and bytes of an operation's messages between hosts.
#[derive(Clone, Copy, Debug, Default)]
struct Wire {
    /// Its first fragment was sent, or came.
    since: Option<Duration>,
    /// The last message that has come whole.
    received: Option<Duration>,
    /// The last message sent that was released.
    released: Option<Duration>,
    /// Bytes of the messages both ways.
    bytes: usize,
}

/// The times of an operation, and by step; without a trace only that of the push.
#[derive(Debug, Default)]
pub(super) struct Marks {
    steps: Vec<Mark>,
    pushed: Duration,
    /// Its steps were chosen.
    chosen: Duration,
    /// Something was done first.
    works: Option<Duration>,
    wire: Wire,
}

impl Marks {
    /// An operation that the caller has given then.
    pub(super) fn start(&mut self, pushed: Duration) {
        self.pushed = pushed;
    }

    /// Makes room for the marks of so many steps.
    pub(super) fn reset(&mut self, steps: usize, control: &Control) {
        self.steps.clear();
        if let Some(now) = control.now() {
            self.steps.resize(steps, Mark::NONE);
            (self.chosen, self.works, self.wire) = (now, None, Wire::default());
        }
    }

    /// Something of the operation was done then, if a trace is attached.
    #[inline]
    pub(super) fn works(&mut self, then: Option<Duration>) {
        if let Some(then) = then {
            self.works = Some(self.works.map_or(then, |first| first.min(then)));
        }
    }

    /// The last fragment of a message was released then, if a trace is attached.
    #[inline]
    pub(super) fn released(&mut self, then: Option<Duration>) {
        if then.is_some() {
            self.wire.released = then;
        }
    }

    /// A message of the operation between hosts began.
    fn on_wire(&mut self, then: Duration, bytes: usize) {
        self.wire.since.get_or_insert(then);
        self.wire.bytes += bytes;
    }

    /// A phase of the step began then, if a trace is attached.
    #[inline]
    pub(super) fn begin(&mut self, step: u32, then: Option<Duration>) {
        if let Some(since) = then
            && let Some(mark) = self.steps.get_mut(step as usize)
        {
            *mark = Mark { since, ..Mark::NONE };
        }
    }
}

impl Mark {
    const NONE: Self = Self { since: Duration::ZERO, folded: Duration::ZERO };
}

impl Op {
    /// A fragment came, which was handled since `begin`: the message's first, one that was reduced, its last.
    #[cold]
    pub(super) fn came(
        &mut self,
        step: u32,
        begin: Option<Duration>,
        (first, reduced, last): (bool, bool, bool),
        control: &mut Control,
    ) {
        let now = control.now();
        let message = self.schedule().and_then(|schedule| match schedule.steps.get(step as usize)?.action {
            Action::Receive { from, len, .. } | Action::ReceiveReduce { from, len, .. } => Some((from, len)),
            _ => None,
        });
        let message = message.filter(|(from, _)| (first || last) && control.leaves_host(*from));
        if first {
            self.marks.begin(step, begin);
            self.marks.works(begin);
            if let (Some((_, len)), Some(begin)) = (message, begin) {
                self.marks.on_wire(begin, len);
            }
        }
        if let (Some(begin), Some(now), Some(mark)) = (begin, now, self.marks.steps.get_mut(step as usize))
            && reduced
        {
            mark.folded += now.saturating_sub(begin);
        }
        if last && message.is_some() {
            self.marks.wire.received = now;
        }
        if let Some(schedule) = self.schedule().filter(|_| last).cloned() {
            self.ends(&schedule, step, Phase::Receive, control);
        }
    }

    /// The first fragment of a message to this rank was sent.
    #[cold]
    pub(super) fn first_sent(&mut self, step: u32, (to, bytes): (Rank, usize), control: &Control) {
        let Some(Mark { since, .. }) = self.marks.steps.get(step as usize).copied() else { return };
        self.marks.works(Some(since));
        if control.leaves_host(to) {
            self.marks.on_wire(since, bytes);
        }
    }

    /// The operation has ended well: reports what is of it as a whole.
    #[cold]
    pub(super) fn sum_up(&self, control: &mut Control) {
        let Some(now) = control.now() else { return };
        let Marks { pushed, chosen, works, wire, .. } = &self.marks;
        let (name, step) = self.name_and_step();
        let end = works.unwrap_or(*chosen);
        let queue = PhaseRecord {
            phase: Phase::Queue,
            name,
            collective: self.template().shape.collective,
            step,
            peer: None,
            start: (*pushed).min(end),
            end,
            bytes: 0,
        };
        if let Some(start) = wire.since {
            let end = wire.received.or(wire.released).unwrap_or(now);
            control.report(PhaseRecord {
                phase: Phase::Wire,
                start,
                end,
                bytes: wire.bytes,
                ..queue.clone()
            });
        }
        control.report(queue);
    }

    /// The phase that began last for the step has ended; of a message that was reduced as it came, the reductions, too.
    #[inline]
    pub(super) fn ends(&mut self, schedule: &Schedule, step: u32, phase: Phase, control: &mut Control) {
        if control.is_traced() {
            self.report(schedule, step, phase, control);
        }
    }

    /// An accelerator's work for the step has ended.
    pub(super) fn ended_in_background(&mut self, step: u32, control: &mut Control) {
        let Some(schedule) = self.schedule().filter(|_| control.is_traced()).cloned() else { return };
        let copies =
            schedule.steps.get(step as usize).is_some_and(|step| matches!(step.action, Action::Copy { .. }));
        self.ends(&schedule, step, if copies { Phase::Copy } else { Phase::Fold }, control);
    }

    #[cold]
    fn report(&mut self, schedule: &Schedule, step: u32, phase: Phase, control: &mut Control) {
        let mark = self.marks.steps.get(step as usize).copied();
        let (Some(mark), Some(plan)) = (mark, schedule.steps.get(step as usize)) else { return };
        let Some(end) = control.now() else { return };
        let (peer, bytes, reduces) = match plan.action {
            Action::Send { to, len, .. } => (Some(to), len, false),
            Action::Receive { from, len, .. } => (Some(from), len, false),
            Action::ReceiveReduce { from, len, .. } => (Some(from), len, true),
            Action::Copy { len, .. } | Action::Fold { len, .. } | Action::Finish { len, .. } => {
                (None, len, false)
            }
            _ => (None, 0, false),
        };
        let (name, trainer_step) = self.name_and_step();
        if matches!(phase, Phase::Fold | Phase::Copy) {
            self.marks.works(Some(mark.since));
        }
        let collective = self.template().shape.collective;
        let record =
            PhaseRecord { phase, name, collective, step: trainer_step, peer, start: mark.since, end, bytes };
        if reduces {
            let start = end.saturating_sub(mark.folded);
            control.report(PhaseRecord { phase: Phase::Fold, start, ..record.clone() });
        }
        control.report(record);
    }
}
