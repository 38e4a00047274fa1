//! Collectives over blocks, one for each rank: where the blocks lie, and how hosts exchange theirs.
//!
//! A chunk is the same piece of every block, so that all hosts send and receive all the time. In the memory of a node the pieces of a
//! chunk lie one behind another, in rank order: those of a host's ranks are one message. A host sends each other one just what
//! it needs, at once, so no byte crosses the network twice.

use super::builder::{Builder, Chunk};
use super::{Action, Buffer, BufferOffset, Placement, Problem, StepId};
use crate::grid::Rank;
use crate::header::Collective;
use crate::transport::LaneFlag;

/// Pieces of one chunk that an area of a lane has room for. The same on all ranks.
pub(super) fn pieces(problem: &Problem) -> u64 {
    let (ranks, locals) = (u64::from(problem.grid.ranks()), u64::from(problem.grid.per_node()));
    match problem.shape.collective {
        // What comes from other hosts: a piece of each of their ranks for each of this one's.
        Collective::AllToAll => ranks.max(locals * (ranks - locals)),
        other if other.is_blocked() => ranks,
        _ => 1,
    }
}

/// The blocks of a chunk, for one rank.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pieces {
    pub(super) chunk: Chunk,
    /// Bytes of a piece.
    pub(super) len: usize,
    /// Bytes of those of a node's ranks.
    pub(super) node_len: usize,
    elem: usize,
    count: usize,
    locals: u32,
}

impl Pieces {
    pub(super) fn new(b: &Builder, chunk: Chunk) -> Self {
        let (len, locals) = (b.bytes(chunk.slice), b.problem.grid.per_node());
        let (elem, count) = (b.problem.elem(), b.problem.shape.count as usize);
        Self { chunk, len, node_len: len * locals as usize, elem, count, locals }
    }

    /// The piece of the block of `rank`, in a tensor of blocks.
    pub(super) fn of(&self, buffer: Buffer, rank: Rank) -> BufferOffset {
        let at = rank.0 as usize * self.count + self.chunk.slice.start as usize;
        BufferOffset { buffer, offset: at * self.elem }
    }

    /// The piece of a tensor that is one block.
    pub(super) fn alone(&self, buffer: Buffer) -> BufferOffset {
        self.of(buffer, Rank(0))
    }

    /// Piece `index` in an area of the chunk's lane.
    pub(super) fn in_lane(&self, buffer: Buffer, index: u32) -> BufferOffset {
        BufferOffset { buffer, offset: index as usize * self.len }
    }

    /// The pieces of a node's ranks in an area of the chunk's lane.
    pub(super) fn of_node(&self, buffer: Buffer, node: u32) -> BufferOffset {
        self.in_lane(buffer, node * self.locals)
    }

    /// Copies this rank's own piece from input to output, unless it is there.
    pub(super) fn keep(&self, b: &mut Builder, from: BufferOffset, into: BufferOffset) -> Vec<StepId> {
        match b.problem.placement {
            Placement::InPlace => Vec::new(),
            Placement::Separate => b.copy(self.chunk, from, into, self.len, &[]),
        }
    }
}

/// Runs `each` on every chunk: with the step after which the chunk's lane may be written, where the operation goes through the
/// memory of the node. It returns the last steps, after which the lane is consumed.
pub(super) fn every_chunk(
    b: &mut Builder,
    mut each: impl FnMut(&mut Builder, Chunk, Option<StepId>) -> Vec<StepId>,
) {
    let shares = b.shares();
    if shares {
        b.use_lanes();
    }
    let mut consumed = Vec::new();
    for chunk in b.chunks() {
        let free = shares.then(|| super::sub::wait_free(b, chunk, &consumed));
        let last = each(b, chunk, free);
        if shares {
            consumed.push(super::sub::signal(b, chunk, LaneFlag::Consumed, &last));
        }
    }
}

/// The other nodes.
pub(super) fn others(b: &Builder) -> impl Iterator<Item = u32> + use<> {
    let me = b.problem.node();
    (0..b.problem.grid.nodes()).filter(move |&node| node != me)
}

/// Sends to the leader of a node.
pub(super) fn send(
    b: &mut Builder,
    chunk: Chunk,
    (node, round): (u32, u32),
    from: BufferOffset,
    len: usize,
    after: &[StepId],
) -> StepId {
    let to = b.problem.grid.leader_of(node);
    b.step(chunk, Action::Send { to, round, from, len }, after)
}

/// Receives from the leader of a node.
pub(super) fn receive(
    b: &mut Builder,
    chunk: Chunk,
    (node, round): (u32, u32),
    into: BufferOffset,
    len: usize,
    after: &[StepId],
) -> StepId {
    let from = b.problem.grid.leader_of(node);
    b.step(chunk, Action::Receive { from, round, into, len }, after)
}

/// Waits for a flag of all other ranks of the node, if there are any.
pub(super) fn wait_all(b: &mut Builder, chunk: Chunk, flag: LaneFlag, after: &[StepId]) -> Vec<StepId> {
    if b.problem.grid.per_node() == 1 {
        return after.to_vec();
    }
    vec![b.step(chunk, Action::WaitAll { flag }, after)]
}

/// Waits for a flag of one other rank of the node.
pub(super) fn wait(
    b: &mut Builder,
    chunk: Chunk,
    (local, flag): (u32, LaneFlag),
    after: &[StepId],
) -> Vec<StepId> {
    vec![b.step(chunk, Action::Wait { local, flag }, after)]
}
