//! A collective is data: a [`Schedule`] lists one rank's steps and the order between them.
//!
//! An algorithm is a pure function of (grid, shape, rank, plan); it runs nothing. The same schedule is executed by
//! the `executor`, proved by `check`, and can be printed and counted. So an
//! algorithm is one file here, with nothing about fragments, credit or acknowledgements in it.
//!
//! A tensor is cut into *chunks* so that the parts of a large operation overlap. Within a chunk, steps depend on one
//! another by edges. The condition of an edge follows from the step that it leaves ([`EdgeKind`]): an ordinary step
//! must be done; a *send* must be acknowledged, since an edge that leaves a send guards memory that is about to be
//! written; a wait for a lane must have seen that its last use was consumed by all.
//!
//! ```text
//!      sub grid (memory of the node)          up grid (leaders)               sub grid
//!   Data --copy--> Stage --fold--> Node --send, receive-reduce, receive--> Node --copy--> Data
//!   Data ------------------------------- one rank a node: directly --------------------> Data
//!   Data (device) --copy--> Node --------------------------------------> Node --copy--> Data (device)
//!   Data (device, direct) --send, receive, fold by the accelerator--------------------> Data (device)
//!   Input, Peer ------copy or fold-----------------> Data                                     (peers)
//!   Data, Peer -------fold on the accelerator------> Node ... Node --fold--> Data, Peer       (views)
//! ```
//!
//! Other collectives have an `Input` beside `Data`, which may be a part of it or the other way round ([`Placement`]). Where there is a block
//! for each rank, a chunk is the same piece of all blocks (`blocks`).

mod algorithm;
mod all_to_all;
mod binomial;
mod blocks;
mod broadcast;
mod bruck;
mod builder;
mod chain;
mod direct;
mod dissemination;
mod double_tree;
mod gather;
mod halving_doubling;
mod hierarchical;
mod messages;
mod pairwise;
mod peers;
mod problem;
mod recursive_doubling;
mod reduce;
mod reduce_scatter;
mod ring;
mod scan;
mod scatter;
mod sub;
mod tree;
mod views;

pub use self::algorithm::Algorithm;
pub use self::problem::{Access, Placement, Problem};

use self::messages::MessageTable;
use crate::counts::Counts;
use crate::dtype::ReduceOp;
use crate::grid::{Grid, Rank};
use crate::header::Collective;
use crate::transport::LaneFlag;
use std::sync::Arc;
use thiserror::Error;

/// The plan's numbers that schedules depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// Bytes of a chunk where each node has one rank.
    pub chunk_bytes: usize,
    /// Lanes of the node's memory.
    pub lanes: u32,
    /// Bytes of a lane's areas, and so of a chunk where some node has several ranks.
    pub lane_bytes: usize,
    /// Chunks that may hold slots at the same time.
    pub depth: u32,
}

impl Params {
    /// Bytes of a chunk, and of a lane's areas where there are lanes.
    pub fn chunk_bytes_on(&self, grid: &Grid) -> usize {
        if grid.most_locals() > 1 { self.lane_bytes } else { self.chunk_bytes }
    }
}

/// Why there is no schedule.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ScheduleError {
    /// More memory than can be addressed, or more steps than a schedule can have.
    #[error("{what} of a tensor of {count} elements are too many; split the tensor or use larger chunks")]
    TooLarge {
        /// The things that are too many.
        what: &'static str,
        /// The tensor's elements.
        count: u64,
    },
    /// A number of the plan, or a rank, that cannot be.
    #[error("{what} cannot be used: {remedy}")]
    Params {
        /// Which.
        what: &'static str,
        /// A remedy.
        remedy: &'static str,
    },
}

/// Index of a step within its schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StepId(pub u32);

/// A buffer that steps work on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Buffer {
    /// The caller's tensor: the output, and where that is one tensor the input, too.
    Data,
    /// The caller's input, of collectives other than broadcasts, where it is apart, or lies otherwise than the output.
    Input,
    /// Private room of the operation, [`Schedule::slot_bytes`] long.
    Slot,
    /// The staging area of a local rank, in the chunk's lane.
    Stage(u32),
    /// The node's result area, in the chunk's lane.
    Node,
    /// The input that another local rank [gives](Problem::input_bytes), where it lies in memory which the node shares.
    Peer(u32),
}

/// A position in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BufferOffset {
    /// The buffer.
    pub buffer: Buffer,
    /// Bytes from its start.
    pub offset: usize,
}

/// The action of a step. Lengths are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Sends a message to another leader.
    Send {
        /// The receiver.
        to: Rank,
        /// Distinguishes the messages between these two ranks.
        round: u32,
        /// The bytes; unwritten until the message is acknowledged.
        from: BufferOffset,
        /// Bytes.
        len: usize,
    },
    /// Receives a message.
    Receive {
        /// The sender.
        from: Rank,
        /// As for the send.
        round: u32,
        /// Where it goes.
        into: BufferOffset,
        /// Bytes.
        len: usize,
    },
    /// Receives a message and reduces it into place, fragment by fragment.
    ReceiveReduce {
        /// The sender.
        from: Rank,
        /// As for the send.
        round: u32,
        /// Where it is reduced into.
        into: BufferOffset,
        /// Bytes.
        len: usize,
    },
    /// Reduces sources in their order, and writes the result to one destination or more. A source may be one of these.
    Fold {
        /// Its operands, as an index for [`Schedule::fold_places`]: where the result goes, then the sources.
        first: u32,
        /// Number of destinations.
        destinations: u32,
        /// Number of sources.
        sources: u32,
        /// Bytes.
        len: usize,
        /// The sums are divided by the number of ranks first, as [`Finish`](Self::Finish) does.
        finish: bool,
    },
    /// Copies.
    Copy {
        /// From here.
        from: BufferOffset,
        /// To here.
        into: BufferOffset,
        /// Bytes.
        len: usize,
    },
    /// Divides by the number of ranks (average only).
    Finish {
        /// The sums.
        at: BufferOffset,
        /// Bytes.
        len: usize,
    },
    /// Sets this rank's flag in the chunk's lane.
    Signal {
        /// Which.
        flag: LaneFlag,
    },
    /// Waits for one local rank's flag.
    Wait {
        /// The local rank.
        local: u32,
        /// Which.
        flag: LaneFlag,
    },
    /// Waits for the flag of every other local rank.
    WaitAll {
        /// Which.
        flag: LaneFlag,
    },
    /// Waits until all local ranks have consumed the previous use of the chunk's lane.
    WaitFree,
}

/// The condition that an edge which leaves a step waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EdgeKind {
    /// The step is done.
    Data,
    /// The message was sent and nothing refers to its bytes any more: they may be written.
    Reusable,
    /// Every local rank has consumed what was there: the lane may be written.
    Consumed,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Its action.
    pub action: Action,
    /// The chunk that it belongs to, which picks its lane.
    pub chunk: u32,
}

impl Step {
    /// The condition that the edges which leave this step wait for.
    pub fn edge_kind(&self) -> EdgeKind {
        match self.action {
            Action::Send { .. } => EdgeKind::Reusable,
            Action::WaitFree => EdgeKind::Consumed,
            _ => EdgeKind::Data,
        }
    }
}

/// The weight of a message, beyond its bytes, in the [cost](Schedule::cost) of an operation.
pub(crate) const MESSAGE_COST: usize = 64;

/// The steps of one rank for operations of one shape. Shared by all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    pub(crate) problem: Problem,
    pub(crate) params: Params,
    pub(crate) steps: Vec<Step>,
    /// Destinations and sources of all folds.
    pub(crate) places: Vec<BufferOffset>,
    /// Successors of step i: `edges[edge_start[i]..edge_start[i + 1]]`.
    pub(crate) edges: Vec<u32>,
    pub(crate) edge_start: Vec<u32>,
    pub(crate) indegree: Vec<u32>,
    /// Receiving steps that wait for nothing but this rank's own sends from the range that they overwrite.
    pub(crate) behind_sends: Vec<bool>,
    pub(crate) slot_bytes: usize,
    pub(crate) lane_chunks: u32,
    pub(crate) cost: u64,
    pub(crate) receives: MessageTable,
    pub(crate) sends: MessageTable,
    /// The schedule to run instead where every local rank's tensor can be accessed by all of them: it lies in memory that the node
    /// shares, or in that of accelerators which open it to one another.
    pub(crate) in_place: Option<Arc<Schedule>>,
}

impl Schedule {
    /// The operation and the rank that the schedule is for.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// The plan's numbers it was built with.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// The steps of the same operation for tensors that all ranks of the node can access, if such a schedule exists.
    pub fn in_place(&self) -> Option<&Arc<Schedule>> {
        self.in_place.as_ref()
    }

    /// The steps, chunk by chunk.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The steps that wait for this one.
    pub fn successors(&self, step: StepId) -> &[u32] {
        let at = step.0 as usize;
        &self.edges[self.edge_start[at] as usize..self.edge_start[at + 1] as usize]
    }

    /// How many edges lead to this step.
    pub fn indegree(&self, step: StepId) -> u32 {
        self.indegree[step.0 as usize]
    }

    /// Where the result of a fold goes, and its sources.
    pub fn fold_places(
        &self,
        first: u32,
        destinations: u32,
        sources: u32,
    ) -> (&[BufferOffset], &[BufferOffset]) {
        let places = &self.places[first as usize..];
        (&places[..destinations as usize], &places[destinations as usize..][..sources as usize])
    }

    /// Whether a step reads what this rank or another one has left in the node's result area.
    pub(crate) fn reads_node(&self, step: u32) -> bool {
        let Some(step) = self.steps.get(step as usize) else { return false };
        match step.action {
            Action::Send { from, .. } | Action::Copy { from, .. } => from.buffer == Buffer::Node,
            Action::Fold { first, destinations, sources, .. } => {
                let (_, sources) = self.fold_places(first, destinations, sources);
                sources.iter().any(|source| source.buffer == Buffer::Node)
            }
            Action::Finish { at, .. } => at.buffer == Buffer::Node,
            _ => false,
        }
    }

    /// Private memory that one run needs, in bytes.
    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// An upper bound, the same on all ranks, for what a rank sends to another one: its bytes, and 64 for each message.
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// Chunks that use a lane of the node's memory; the same on all ranks of a node.
    pub fn lane_chunks(&self) -> u32 {
        self.lane_chunks
    }

    /// The step that receives this message.
    #[inline]
    pub fn receive(&self, from: Rank, round: u32) -> Option<StepId> {
        self.receives.step(&self.problem.grid, from, round)
    }

    /// The step that sends this message.
    #[inline]
    pub fn send(&self, to: Rank, round: u32) -> Option<StepId> {
        self.sends.step(&self.problem.grid, to, round)
    }

    /// The ranks that this one receives from.
    pub fn sources(&self) -> impl Iterator<Item = Rank> + '_ {
        self.receives.nodes().map(|node| self.problem.grid.leader_of(node))
    }
}

/// Elements of a chunk of the tensor, or of each block: the same on all ranks.
pub(crate) fn chunk_elements(problem: &Problem, params: &Params) -> Result<u64, ScheduleError> {
    builder::Builder::new(problem.clone(), *params).map(|builder| builder.chunk_elements())
}

/// Builds a rank's schedule. Where the algorithm does not serve the collective, its [general](Algorithm::general) one does.
///
/// # Errors
/// The problem cannot be: a root or a count that does not fit the grid, a tensor that is too large.
pub fn build(algorithm: Algorithm, problem: &Problem, params: &Params) -> Result<Schedule, ScheduleError> {
    let Problem { grid, rank, shape, root, access, placement, .. } = *problem;
    let wrong = |what, remedy| Err(ScheduleError::Params { what, remedy });
    if !grid.contains(rank) || !grid.contains(root) {
        return wrong("a rank outside the grid", "number ranks from 0");
    }
    if params.chunk_bytes == 0 || params.chunk_bytes > 1 << 31 {
        return wrong("chunk_bytes", "use 1 to 2^31");
    }
    if params.depth == 0 {
        return wrong("depth", "use 1 or more");
    }
    let small = problem.meets() && (params.lane_bytes < 512 || params.lane_bytes > 1 << 31);
    if small || (problem.meets() || access.is_device()) && params.lanes == 0 {
        return wrong("the node's memory", "give it at least one lane of 512 bytes");
    }
    let counts = problem.counts.as_deref();
    let fitting = |counts: &Counts| {
        let pairs = shape.collective == Collective::AllToAllV;
        counts.are_of_pairs() == pairs && counts.are_for(&grid, problem.node())
    };
    if shape.collective.has_counts() != counts.is_some() || !counts.is_none_or(fitting) {
        return wrong("the counts", "give one for each rank, or each pair of ranks, where blocks may differ");
    }
    if placement == Placement::InPlace && !problem.fits_in_place() {
        return wrong(
            "one tensor for input and output",
            "take from each rank as much as is given to it, or use two",
        );
    }
    if shape.collective.is_scan() && shape.op == ReduceOp::Avg {
        return wrong("the average of a scan", "use sum, and divide by the ranks so far");
    }
    if problem.bytes() > isize::MAX as u64 {
        return Err(ScheduleError::TooLarge { what: "the bytes", count: shape.count });
    }
    let algorithm = algorithm.serving(problem);
    let mut builder = match shape.collective.is_scan() {
        true => scan::builder(algorithm, problem, params)?,
        false => builder::Builder::new(problem.clone(), *params)?,
    };
    let reachable =
        if access.is_device() { problem.locals() <= views::DEVICE_TENSORS } else { grid.nodes() == 1 };
    let separate = placement == Placement::Separate;
    let views = problem.locals() > 1 && shape.count > 0 && reachable && !separate;
    let in_place = match shape.collective {
        Collective::AllReduce if views => {
            Some(Arc::new(views::all_reduce(algorithm, problem.clone(), *params)?))
        }
        _ if peers::apply(problem) => Some(Arc::new(peers::read(problem.clone(), *params)?)),
        _ => None,
    };
    let cost = algorithm::cost(algorithm, problem, builder.chunk_count());
    // The result of a single rank is there already, unless it is to be elsewhere.
    if grid.ranks() > 1 || separate {
        match shape.collective.base() {
            Collective::AllReduce | Collective::Barrier => sub::all_reduce(&mut builder, algorithm),
            Collective::Broadcast => broadcast::broadcast(&mut builder, algorithm),
            Collective::Reduce => reduce::reduce(&mut builder, algorithm),
            Collective::AllGather | Collective::Gather => {
                blocks::every_chunk(&mut builder, algorithm, gather::through_node, gather::directly)
            }
            Collective::Scatter => {
                blocks::every_chunk(&mut builder, algorithm, scatter::through_node, scatter::directly)
            }
            Collective::ReduceScatter => blocks::every_chunk(
                &mut builder,
                algorithm,
                reduce_scatter::through_node,
                reduce_scatter::directly,
            ),
            Collective::AllToAll => {
                blocks::every_chunk(&mut builder, algorithm, all_to_all::through_node, all_to_all::directly)
            }
            _ => scan::scan(&mut builder, algorithm),
        }
    }
    Ok(Schedule { in_place, cost, ..builder.finish()? })
}
