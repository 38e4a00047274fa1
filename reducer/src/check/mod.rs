//! Proves a collective: the schedules of all ranks together, for every order in which things can happen.
//!
//! Nothing is run. Every step becomes two points in time, its start and its end; edges within a rank, messages, flags
//! and lane reuse order them. Then
//!
//! 1. every send meets exactly one receive of the same length, and the other way round; every wait meets a signal;
//! 2. the order has no cycle, even if every send waits for its receiver to be ready and every acknowledgement for the
//!    message to be used up: no deadlock, however late anything comes;
//! 3. any two accesses to the same bytes, one of them a write, are ordered; here an acknowledgement is allowed to come
//!    as early as it can (a message may be kept by its receiver): no race; and a message that is asked for before the sends from
//!    the range that it overwrites are acknowledged is itself sent only after what they brought was used, since a peer's NIC may write it
//!    there at once;
//! 4. executed with symbols in place of numbers, every rank's output is what the collective says: an element that is moved is the one
//!    of its rank and place, and one that is reduced has each rank's contribution exactly once, in an expression that is the same on every
//!    rank (for a reduce-scatter, in every block, with hosts counted from 0 or from the block's): right, and the same bits everywhere; and whether
//!    that is the order which algorithms share, so that they give the same bits as well;
//! 5. a tensor in an accelerator's memory is only copied, or folded by the accelerator, or else everything happens there and nothing is
//!    reduced as it arrives; and no rank accesses another's tensor after that one's last step;
//! 6. slots stay within the schedule's own size, and that within the budget.

mod graph;
mod races;
mod values;

use crate::grid::Rank;
use crate::header::Collective;
use crate::schedule::{Action, Schedule, Step, StepId};
use crate::transport::LaneFlag;
use graph::Graph;
use thiserror::Error;

/// A step of a rank, for reports.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{rank} step {step} ({action:?})")]
pub(crate) struct StepLocation {
    /// The rank.
    pub(crate) rank: Rank,
    /// Index of the step in the rank's schedule.
    pub(crate) step: u32,
    /// The step's action.
    pub(crate) action: Action,
}

/// A flaw in the schedules of a collective. A schedule with a flaw must not run; it is a mistake in the algorithm.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum Flaw {
    /// There is not one schedule per rank, or they are for different problems.
    #[error("the schedules do not belong together ({0}); build one per rank, with the same plan")]
    Set(&'static str),
    /// More steps than the proof has memory for.
    #[error("{0} steps in all are too many to prove; check the same algorithm with fewer chunks or ranks")]
    TooLarge(usize),
    /// A message without a sender or a receiver, or whose lengths differ.
    #[error("{at}: {what}")]
    Message {
        /// Where.
        at: Box<StepLocation>,
        /// A description of the flaw.
        what: &'static str,
    },
    /// A wait for a flag that is never set, or a flag that is set twice.
    #[error("{at}: {what}")]
    LaneFlag {
        /// Where.
        at: Box<StepLocation>,
        /// A description of the flaw.
        what: &'static str,
    },
    /// A rank never says that it has consumed a lane, so that the next user of the lane waits for ever.
    #[error("{rank} never says that it has consumed the lane of chunk {chunk}")]
    NotConsumed {
        /// The rank.
        rank: Rank,
        /// The chunk.
        chunk: u32,
    },
    /// Steps that wait for one another.
    #[error("deadlock: {}", cycle.iter().map(ToString::to_string).collect::<Vec<_>>().join(" waits for "))]
    Deadlock {
        /// The cycle.
        cycle: Vec<StepLocation>,
    },
    /// Two accesses that nothing orders.
    #[error("race: {first} and {second} touch the same bytes, one of them writes, and nothing orders them")]
    Race {
        /// One.
        first: Box<StepLocation>,
        /// The other.
        second: Box<StepLocation>,
    },
    /// An access to another rank's tensor that this one does not wait for.
    #[error("{at} may touch the tensor of {owner} after that one has ended")]
    Late {
        /// The access.
        at: Box<StepLocation>,
        /// The rank whose tensor it is.
        owner: Rank,
    },
    /// A message that may be written to a range whose bytes are still needed.
    #[error("{receive} is asked for early and may come before what {send} brings is used")]
    Early {
        /// The message that overwrites.
        receive: Box<StepLocation>,
        /// The message that was sent from there.
        send: Box<StepLocation>,
    },
    /// A step that reads bytes that no step has written, or combines what does not belong together.
    #[error("{at}: {what}")]
    Value {
        /// Where.
        at: Box<StepLocation>,
        /// A description of the flaw.
        what: &'static str,
    },
    /// A wrong result.
    #[error("{rank} ends with byte {byte} as {found}; expected {expected}")]
    Result {
        /// The rank.
        rank: Rank,
        /// Offset in its tensor.
        byte: usize,
        /// The expression it ends with.
        found: String,
        /// A description of the expected value.
        expected: &'static str,
    },
    /// A rank leaves a barrier before another has entered it.
    #[error("{rank} may leave the barrier before {other} has come")]
    Barrier {
        /// The rank that leaves.
        rank: Rank,
        /// The other.
        other: Rank,
    },
    /// An access outside its buffer, or slots beyond the budget.
    #[error("{at}: {what}")]
    Bounds {
        /// Where.
        at: Box<StepLocation>,
        /// A description of the flaw.
        what: &'static str,
    },
    /// More slots than allowed.
    #[error("{rank} needs {needed} bytes of slots, and {budget} are allowed")]
    Slots {
        /// The rank.
        rank: Rank,
        /// Bytes needed.
        needed: usize,
        /// Bytes allowed.
        budget: usize,
    },
}

/// The size of the schedules that were proved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Proof {
    /// Steps of all ranks.
    pub(crate) steps: usize,
    /// Messages between nodes.
    pub(crate) messages: usize,
    /// The most bytes that one rank sends to other nodes.
    pub(crate) largest_share: u64,
    /// Whether every reduced element is folded over the ranks of a host, then over the hosts of a group, then over the groups of each level,
    /// each in rank order (of two, in any): what algorithms [that keep the order](crate::schedule::Algorithm::keeps_order) promise.
    pub(crate) in_order: bool,
}

/// Proves the schedules of all ranks, in rank order, with at most `slot_budget` bytes of slots each.
///
/// # Errors
/// The first flaw: the rank, the step and what is wrong with it.
pub(crate) fn check(schedules: &[Schedule], slot_budget: usize) -> Result<Proof, Flaw> {
    let first = schedules.first().ok_or(Flaw::Set("there are none"))?;
    let grid = first.problem().grid;
    if schedules.len() != grid.ranks() as usize {
        return Err(Flaw::Set("there is not one for each rank"));
    }
    for (rank, schedule) in schedules.iter().enumerate() {
        let problem = schedule.problem();
        if problem.rank.0 as usize != rank || problem.grid != grid {
            return Err(Flaw::Set("a rank or its grid differs"));
        }
        let same = problem.shape == first.problem().shape && problem.root == first.problem().root;
        if !same || schedule.params() != first.params() {
            return Err(Flaw::Set("the shape or the plan differs"));
        }
        let leader = grid.leader_of(grid.node_of(problem.rank)).0 as usize;
        if schedule.lane_chunks() != schedules[leader].lane_chunks() {
            return Err(Flaw::Set("ranks of a node use different numbers of lanes"));
        }
        let outside = |step: &Step| races::is_out_of_reach(schedule, &step.action);
        if let Some(step) = schedule.steps().iter().position(outside) {
            let what = "touches a tensor that is out of its reach";
            return Err(Flaw::Bounds { at: boxed(schedules, rank, step), what });
        }
        let by_host = |step: &Step| problem.works_on_device() && races::needs_host(schedule, &step.action);
        if let Some(step) = schedule.steps().iter().position(by_host) {
            let what = "reduces what arrives on a device, or uses the host's memory for it";
            return Err(Flaw::Bounds { at: boxed(schedules, rank, step), what });
        }
        if schedule.slot_bytes() > slot_budget {
            let (rank, needed) = (problem.rank, schedule.slot_bytes());
            return Err(Flaw::Slots { rank, needed, budget: slot_budget });
        }
    }
    let graph = Graph::new(schedules)?;
    let order = graph.sort(schedules)?;
    let reach = graph.reach(&order);
    races::check(schedules, &graph, &reach)?;
    races::check_early(schedules, &graph, &reach)?;
    graph.check_flags(schedules, &reach)?;
    let in_order = match first.problem().shape.collective {
        Collective::Barrier => graph.check_barrier(schedules, &reach).map(|()| true)?,
        _ => values::check(schedules, &graph, &order)?,
    };
    Ok(Proof {
        steps: schedules.iter().map(|schedule| schedule.steps().len()).sum(),
        messages: graph.messages.len(),
        largest_share: schedules.iter().map(sent_bytes).max().unwrap_or(0),
        in_order,
    })
}

fn at(schedules: &[Schedule], rank: usize, step: usize) -> StepLocation {
    StepLocation {
        rank: Rank(rank as u32),
        step: step as u32,
        action: schedules[rank].steps()[step].action.clone(),
    }
}

fn boxed(schedules: &[Schedule], rank: usize, step: usize) -> Box<StepLocation> {
    Box::new(at(schedules, rank, step))
}

/// All steps of all ranks.
fn steps(schedules: &[Schedule]) -> impl Iterator<Item = (usize, usize, &crate::schedule::Step)> {
    schedules.iter().enumerate().flat_map(|(rank, schedule)| {
        schedule.steps().iter().enumerate().map(move |(i, step)| (rank, i, step))
    })
}

/// Bytes that a rank sends to other nodes.
fn sent_bytes(schedule: &Schedule) -> u64 {
    let len = |step: &Step| if let Action::Send { len, .. } = step.action { len as u64 } else { 0 };
    schedule.steps().iter().map(len).sum()
}

fn successors(schedule: &Schedule, step: usize) -> &[u32] {
    schedule.successors(StepId(step as u32))
}

/// The chunk whose use of the lane came before this one's.
fn previous_use(schedule: &Schedule, chunk: u32) -> Option<u32> {
    chunk.checked_sub(schedule.params().lanes)
}

const CONSUMED: LaneFlag = LaneFlag::Consumed;

#[cfg(test)]
mod tests;
