//! The phases of operations, reported while they run: for a timeline. Without a trace attached, nothing is measured.

use super::control::Control;
use super::op::Op;
use crate::grid::Rank;
use crate::schedule::{Action, Schedule};
use core::fmt;
use core::time::Duration;
use std::sync::Arc;

/// A phase of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
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
    /// The trainer's step.
    pub step: u64,
    /// The peer of a message.
    pub peer: Option<Rank>,
    /// When it began.
    pub start: Duration,
    /// When it ended.
    pub end: Duration,
    /// Bytes sent, received, folded or copied.
    pub bytes: usize,
}

/// The receiver of phase records.
pub trait Trace: fmt::Debug + Send {
    /// The time now, of the clock whose readings the executor is polled with.
    fn now(&self) -> Duration;

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

/// By step; empty without a trace.
#[derive(Debug, Default)]
pub(super) struct Marks(Vec<Mark>);

impl Marks {
    /// Makes room for the marks of so many steps.
    pub(super) fn reset(&mut self, steps: usize, control: &Control) {
        self.0.clear();
        if control.is_traced() {
            self.0.resize(steps, Mark::NONE);
        }
    }

    /// A phase of the step began then, if a trace is attached.
    #[inline]
    pub(super) fn begin(&mut self, step: u32, then: Option<Duration>) {
        if let Some(since) = then
            && let Some(mark) = self.0.get_mut(step as usize)
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
        if first {
            self.marks.begin(step, begin);
        }
        if let (Some(begin), Some(now), Some(mark)) =
            (begin, control.now(), self.marks.0.get_mut(step as usize))
            && reduced
        {
            mark.folded += now.saturating_sub(begin);
        }
        if let Some(schedule) = self.schedule().filter(|_| last) {
            self.ends(schedule, step, Phase::Receive, control);
        }
    }

    /// The phase that began last for the step has ended; of a message that was reduced as it came, the reductions, too.
    #[inline]
    pub(super) fn ends(&self, schedule: &Schedule, step: u32, phase: Phase, control: &mut Control) {
        if control.is_traced() {
            self.report(schedule, step, phase, control);
        }
    }

    /// What an accelerator did for the step has ended.
    pub(super) fn ended_in_background(&self, step: u32, control: &mut Control) {
        let Some(schedule) = self.schedule() else { return };
        let copies =
            schedule.steps.get(step as usize).is_some_and(|step| matches!(step.action, Action::Copy { .. }));
        self.ends(schedule, step, if copies { Phase::Copy } else { Phase::Fold }, control);
    }

    #[cold]
    fn report(&self, schedule: &Schedule, step: u32, phase: Phase, control: &mut Control) {
        let (Some(mark), Some(plan)) = (self.marks.0.get(step as usize), schedule.steps.get(step as usize))
        else {
            return;
        };
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
        let (name, annotation) = self.called();
        let record = PhaseRecord { phase, name, step: annotation, peer, start: mark.since, end, bytes };
        if reduces {
            let start = end.saturating_sub(mark.folded);
            control.report(PhaseRecord { phase: Phase::Fold, start, ..record.clone() });
        }
        control.report(record);
    }
}
