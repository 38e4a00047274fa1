//! The deadlines of operations, and the ranks that the errors name.

use super::Executor;
use super::api::{AbortReason, OpError};
use super::op::Op;
use crate::grid::{Grid, Rank};
use crate::schedule::Action;
use crate::transport::{AcceleratorError, LaneFlag, NodeMemory, TensorView};
use core::time::Duration;

/// How long an operation that missed its deadline waits for other ranks to name the culprit, at least and at most.
const SHORTEST_GRACE: Duration = Duration::from_millis(500);
const LONGEST_GRACE: Duration = Duration::from_secs(30);

/// The wait for an operation that may take so long. Ranks call an operation at different times, and each counts from its own call: a rank
/// that had called it when the deadline of another one passed names the culprit no later than that time after it.
pub(super) fn grace(allowed: Duration) -> Duration {
    allowed.clamp(SHORTEST_GRACE, LONGEST_GRACE)
}

/// The next deadline. Operations end long before theirs as a rule, so it is not looked for at every end, but only when
/// it has passed: a search for each deadline that passes, not for each poll.
#[derive(Debug)]
pub(super) struct Deadlines {
    /// No running operation's deadline is earlier.
    earliest: Duration,
}

impl Deadlines {
    /// No deadline.
    pub(super) fn new() -> Self {
        Self { earliest: Duration::MAX }
    }

    /// One more.
    pub(super) fn add(&mut self, deadline: Duration) {
        self.earliest = self.earliest.min(deadline);
    }

    /// No operation runs any more.
    pub(super) fn clear(&mut self) {
        self.earliest = Duration::MAX;
    }

    /// Whether one may have passed.
    #[inline]
    pub(super) fn has_passed(&self, now: Duration) -> bool {
        now >= self.earliest
    }

    /// Takes the earliest deadline of the operations that run now.
    fn reset<'a>(&mut self, running: impl Iterator<Item = &'a Op>) {
        self.earliest = running.map(Op::deadline).min().unwrap_or(Duration::MAX);
    }
}

impl Executor {
    /// When [`poll`](Self::poll) must be called at the latest; `None` if no operation has a deadline. It may be
    /// earlier than needed.
    pub fn next_deadline(&self) -> Option<Duration> {
        (self.deadlines.earliest < Duration::MAX).then_some(self.deadlines.earliest)
    }

    /// Fails the operations whose time has come, and finds the next deadline.
    pub(super) fn check_deadlines<N: NodeMemory>(&mut self, now: Duration, node: Option<&N>) -> bool {
        let late = self.ring.running().filter(|op| op.deadline() <= now);
        // The one that is most overdue: others may only wait for what it holds.
        let Some(op) = late.min_by_key(|op| op.deadline()) else {
            self.deadlines.reset(self.ring.running());
            return false;
        };
        let seq = op.seq();
        let (grid, rank) = (self.config.grid, self.config.rank);
        let missing = missing(op, grid, rank, node);
        if missing.is_empty() && op.background.is_pending() {
            // No other rank is nearer to the cause, and the ranks that wait for this one must learn of it in time.
            let what = "a copy has not ended before the deadline; a kernel that it waits for has not ended, or the GPU hangs";
            self.accelerator_failed(seq, AcceleratorError(what.into()));
            return true;
        }
        // The rank waited for may itself wait for another rank, and would be the wrong culprit. A rank of this node that has not
        // started the operation is the culprit, else one from which nothing of it has come; where there is none, ranks nearer to the cause are
        // given time to name it.
        let started = |other: &Rank| {
            let node = node.filter(|_| grid.node_of(*other) == grid.node_of(rank));
            let says = node.and_then(|node| node.has_started(grid.local_of(*other), seq));
            says.or_else(|| op.has_received_from(*other).then_some(true))
        };
        let asked: Vec<_> = missing.iter().map(|other| (*other, started(other))).collect();
        let those = |is: fn(Option<bool>) -> bool| -> Vec<Rank> {
            asked.iter().filter(|(_, started)| is(*started)).map(|(other, _)| *other).collect()
        };
        let (absent, silent) =
            (those(|started| started == Some(false)), those(|started| started != Some(true)));
        let known = node.is_some_and(|node| node.has_started(grid.local_of(rank), seq).is_some());
        let others_know = absent.is_empty() && (known || silent.is_empty() && grid.ranks() > 2);
        if others_know && self.ring.edit(seq, |op| op.extend_deadline(now)) {
            return true;
        }
        let missing = [absent, silent].into_iter().find(|ranks| !ranks.is_empty()).unwrap_or(missing);
        let culprit = missing.first().copied().unwrap_or(self.config.rank);
        self.fail(seq, |subject| OpError::Deadline { subject, missing });
        self.abort(culprit, AbortReason::Late);
        true
    }
}

/// The ranks that an operation waits for.
pub(super) fn missing<N: NodeMemory>(op: &Op, grid: Grid, rank: Rank, node: Option<&N>) -> Vec<Rank> {
    let Some(schedule) = op.schedule() else { return Vec::new() };
    let locals = grid.locals(grid.node_of(rank));
    if op.is_undecided() {
        let silent = |local: &u32| {
            node.is_some_and(|node| {
                let seq = op.seq();
                matches!(node.tensor(*local, seq, 0), TensorView::Unknown)
                    || op.buffers.opened().is_some() && node.has_agreed(*local, seq).is_none()
            })
        };
        return (0..locals).filter(silent).map(|local| grid.rank_at(grid.node_of(rank), local)).collect();
    }
    let mut ranks = std::collections::BTreeSet::new();
    let absent = |node: &&N, local: &u32| node.has_started(*local, op.seq()) == Some(false);
    for ((number, step), state) in (0..).zip(&schedule.steps).zip(op.steps.iter()) {
        if state.pending == 0 && !state.done && schedule.reads_node(number) {
            let absent = node.iter().flat_map(|node| (0..locals).filter(move |local| absent(node, local)));
            ranks.extend(absent.map(|local| grid.rank_at(grid.node_of(rank), local)));
        }
        let mut lacks = |local: u32, flag: LaneFlag, last: bool| {
            let Some(node) = node.filter(|_| schedule.params.lanes > 0) else { return };
            let (lane, used) = op.buffers.lane(step.chunk, schedule.params.lanes);
            if node.observe(local, lane, flag) < if last { used - 1 } else { used } {
                ranks.insert(grid.rank_at(grid.node_of(rank), local));
            }
        };
        let is_waiting = state.pending == 0 && !state.done;
        let others = || (0..locals).filter(|&local| local != grid.local_of(rank));
        match step.action {
            Action::Send { to, .. } => {
                let waits = !state.credited && state.pending == 1;
                if waits || state.aux > 0 {
                    ranks.insert(to);
                }
            }
            _ if !is_waiting => {}
            Action::Wait { local, flag } => lacks(local, flag, false),
            Action::WaitAll { flag } => others().for_each(|local| lacks(local, flag, false)),
            // This rank's own flag is left out: where it still uses the lane, it waits there for others.
            Action::WaitFree => others().for_each(|local| lacks(local, LaneFlag::Consumed, true)),
            Action::Receive { from, .. } | Action::ReceiveReduce { from, .. } => {
                ranks.insert(from);
            }
            _ => {}
        }
    }
    ranks.into_iter().collect()
}
