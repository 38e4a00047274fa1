//! Collectives over blocks, one for each rank: where the blocks lie, and how hosts exchange theirs.
//!
//! A chunk is the same piece of every block, so that all hosts send and receive all the time. In the memory of a node the pieces of a
//! chunk lie one behind another, in rank order: those of a host's ranks are one message. A host sends each other one just what
//! it needs, at once, so no byte crosses the network twice.
//!
//! Blocks that differ are cut into as many pieces each, so that a chunk has the same share of all of them, and all are at work until the
//! end however much they differ.

use super::builder::{Builder, Chunk, MAX_CHUNKS, UNIT};
use super::{Action, Buffer, BufferOffset, Placement, Problem, ScheduleError, StepId};
use crate::counts::Counts;
use crate::grid::{Grid, Rank};
use crate::header::Collective;
use crate::transport::LaneFlag;

/// Pieces of one chunk that an area of a lane has room for. The same on all ranks.
pub(super) fn pieces(problem: &Problem) -> u64 {
    let (grid, ranks) = (problem.grid, u64::from(problem.grid.ranks()));
    // On the node where that is most.
    let from_elsewhere = |locals: u32| u64::from(locals) * (ranks - u64::from(locals));
    match problem.shape.collective {
        // The pieces from other hosts: one of each of their ranks for each of this one's.
        Collective::AllToAll => ranks.max(grid.numbers_of_locals().map(from_elsewhere).max().unwrap_or(0)),
        other if other.is_blocked() => ranks,
        _ => 1,
    }
}

/// How blocks that differ are cut: each into as many pieces, nearly equal.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cuts {
    pub(super) chunks: u32,
    /// Pieces but the last are multiples of this many elements.
    unit: u64,
}

impl Cuts {
    /// So few that the pieces of a chunk fit in areas of so many elements.
    pub(super) fn new(problem: &Problem, counts: &Counts, room: u64) -> Result<Self, ScheduleError> {
        let areas = areas(problem, counts);
        let cut_at_units = areas.iter().all(|area| area.blocks * UNIT * 16 <= room / area.of);
        let unit = if cut_at_units { UNIT } else { 1 };
        // A piece is longer than its part of the block by less than this.
        let more = if unit > 1 { 2 * unit } else { 1 };
        let mut chunks = 1;
        for area in &areas {
            let room = room / area.of;
            if area.count <= room {
                continue;
            }
            let exact = room.checked_sub(more * area.blocks).filter(|&exact| exact > 0);
            let needed = exact.map(|exact| area.count.div_ceil(exact)).filter(|&needed| needed <= MAX_CHUNKS);
            let what = "the ranks for a lane: raise lane_bytes; the blocks";
            let too_large = ScheduleError::TooLarge { what, count: problem.shape.count };
            chunks = needed.ok_or(too_large)?.max(chunks);
        }
        Ok(Self { chunks: chunks as u32, unit })
    }

    /// The first element of a piece, in a block of so many.
    pub(super) fn start(self, count: u64, index: u32) -> u64 {
        let (units, chunks, index) = (count.div_ceil(self.unit), u64::from(self.chunks), u64::from(index));
        // As `units * index / chunks`, which may be larger than a word.
        let before = units / chunks * index + units % chunks * index / chunks;
        count.min(before * self.unit)
    }

    /// Elements of a piece.
    pub(super) fn len(self, count: u64, index: u32) -> u64 {
        self.start(count, index + 1) - self.start(count, index)
    }

    /// The most elements of a piece.
    pub(super) fn largest(self, count: u64) -> u64 {
        count.min(count.div_ceil(self.unit).div_ceil(self.chunks.into()) * self.unit)
    }
}

/// The elements that must fit in an area of a lane, chunk by chunk.
#[derive(Clone, Copy)]
struct AreaLoad {
    count: u64,
    /// Blocks that are not empty.
    blocks: u64,
    /// The area is one of so many that share the room.
    of: u64,
}

impl AreaLoad {
    fn new(counts: impl Iterator<Item = u64>, of: u32) -> Self {
        counts.fold(Self { count: 0, blocks: 0, of: of.into() }, |area, count| Self {
            count: area.count.saturating_add(count),
            blocks: area.blocks + u64::from(count > 0),
            ..area
        })
    }
}

/// The areas that fill most; the same on all ranks.
fn areas(problem: &Problem, counts: &Counts) -> Vec<AreaLoad> {
    let grid = problem.grid;
    if problem.shape.collective != Collective::AllToAllV {
        let mut areas = vec![AreaLoad::new(counts.given_by(problem.rank), 1)];
        if problem.shape.collective == Collective::ReduceScatterV {
            // The blocks for a node have a slot from each other node.
            let blocks = |node| grid.ranks_on(node).map(|rank| counts.of(rank));
            areas.extend((0..grid.nodes()).map(|node| AreaLoad::new(blocks(node), grid.nodes())));
        }
        return areas;
    }
    let load = |count, blocks: u32| AreaLoad { count, blocks: blocks.into(), of: 1 };
    let given = counts.shares().iter().map(|share| load(share.given, share.given_blocks));
    // The blocks from other hosts, by the node that they are for.
    let arriving = (0..grid.nodes()).map(|node| {
        let shares = grid.ranks_on(node).filter_map(|rank| counts.shares().get(rank.0 as usize));
        shares.fold(load(0, 0), |area, share| AreaLoad {
            count: area.count.saturating_add(share.arriving),
            blocks: area.blocks + u64::from(share.arriving_blocks),
            ..area
        })
    });
    given.chain(arriving).collect()
}

/// The blocks of a chunk, for one rank.
#[derive(Clone, Debug)]
pub(super) struct Pieces {
    pub(super) chunk: Chunk,
    elem: usize,
    grid: Grid,
    me: Rank,
    layout: BlockPlaces,
}

#[derive(Clone, Debug)]
enum BlockPlaces {
    Equal {
        /// Bytes of a piece.
        len: usize,
        /// Elements of a block.
        count: usize,
    },
    /// In bytes, by rank.
    Uneven {
        /// Where the piece begins in a tensor of blocks.
        first: Vec<usize>,
        /// Where it begins in an area of a lane, and behind the last one the end.
        lane: Vec<usize>,
        /// Where the own piece begins in a tensor that is the block.
        alone: usize,
        /// The most bytes of a piece, in any chunk.
        largest: Vec<usize>,
    },
}

impl Pieces {
    pub(super) fn new(b: &Builder, chunk: Chunk) -> Self {
        let (elem, grid, me) = (b.problem.elem(), b.problem.grid, b.problem.rank);
        let Some((counts, cuts)) = b.uneven() else {
            let layout =
                BlockPlaces::Equal { len: b.bytes(chunk.slice), count: b.problem.shape.count as usize };
            return Self { chunk, elem, grid, me, layout };
        };
        let (mut first, mut lane, mut largest) = (Vec::new(), vec![0], Vec::new());
        let (mut block, mut end, mut alone) = (0, 0, 0);
        for (rank, count) in (0..).map(Rank).zip(counts.given_by(me)) {
            let start = cuts.start(count, chunk.index) as usize * elem;
            if rank == me {
                alone = start;
            }
            first.push(block + start);
            block += count as usize * elem;
            end += cuts.len(count, chunk.index) as usize * elem;
            lane.push(end);
            largest.push(cuts.largest(count) as usize * elem);
        }
        Self { chunk, elem, grid, me, layout: BlockPlaces::Uneven { first, lane, alone, largest } }
    }

    /// Bytes of the piece of `rank`.
    pub(super) fn len(&self, rank: Rank) -> usize {
        self.lens(rank, 1)
    }

    /// Bytes of the pieces of a node's ranks.
    pub(super) fn node_len(&self, node: u32) -> usize {
        self.lens(self.grid.leader_of(node), self.grid.locals(node))
    }

    fn lens(&self, first: Rank, ranks: u32) -> usize {
        match &self.layout {
            BlockPlaces::Equal { len, .. } => len * ranks as usize,
            BlockPlaces::Uneven { lane, .. } => lane[(first.0 + ranks) as usize] - lane[first.0 as usize],
        }
    }

    /// Elements that [`node_len`](Self::node_len) is at most, in any chunk.
    pub(super) fn node_room(&self, b: &Builder, node: u32) -> u64 {
        let (first, locals) = (self.grid.leader_of(node).0 as usize, self.grid.locals(node));
        match &self.layout {
            BlockPlaces::Equal { .. } => b.full_chunk().end * u64::from(locals),
            BlockPlaces::Uneven { largest, .. } => {
                let bytes: usize = largest[first..first + locals as usize].iter().sum();
                (bytes / self.elem) as u64
            }
        }
    }

    /// Whether a message of so many bytes is sent. Where blocks differ, only the first is sent although it is empty: a rank that runs
    /// something else is to be found.
    pub(super) fn is_sent(&self, len: usize) -> bool {
        len > 0 || self.chunk.index == 0 || matches!(self.layout, BlockPlaces::Equal { .. })
    }

    /// The piece of the block of `rank`, in a tensor of blocks.
    pub(super) fn of(&self, buffer: Buffer, rank: Rank) -> BufferOffset {
        let offset = match &self.layout {
            BlockPlaces::Equal { count, .. } => {
                (rank.0 as usize * count + self.chunk.slice.start as usize) * self.elem
            }
            BlockPlaces::Uneven { first, .. } => first[rank.0 as usize],
        };
        BufferOffset { buffer, offset }
    }

    /// The piece of a tensor that is this rank's block.
    pub(super) fn alone(&self, buffer: Buffer) -> BufferOffset {
        let offset = match &self.layout {
            BlockPlaces::Equal { .. } => self.chunk.slice.start as usize * self.elem,
            BlockPlaces::Uneven { alone, .. } => *alone,
        };
        BufferOffset { buffer, offset }
    }

    /// The piece of `rank` in an area of the chunk's lane.
    pub(super) fn in_lane(&self, buffer: Buffer, rank: Rank) -> BufferOffset {
        let offset = match &self.layout {
            BlockPlaces::Equal { len, .. } => rank.0 as usize * len,
            BlockPlaces::Uneven { lane, .. } => lane[rank.0 as usize],
        };
        BufferOffset { buffer, offset }
    }

    /// The pieces of a node's ranks in an area of the chunk's lane.
    pub(super) fn of_node(&self, buffer: Buffer, node: u32) -> BufferOffset {
        self.in_lane(buffer, self.grid.leader_of(node))
    }

    /// Copies this rank's own piece from input to output, unless it is there.
    pub(super) fn keep(&self, b: &mut Builder, from: BufferOffset, into: BufferOffset) -> Vec<StepId> {
        keep(b, self.chunk, from, into, self.len(self.me))
    }
}

/// Copies a piece from input to output, unless both are in one tensor.
pub(super) fn keep(
    b: &mut Builder,
    chunk: Chunk,
    from: BufferOffset,
    into: BufferOffset,
    len: usize,
) -> Vec<StepId> {
    match b.problem.placement {
        Placement::InPlace => Vec::new(),
        Placement::Separate => b.copy(chunk, from, into, len, &[]),
    }
}

/// The whole operation, chunk by chunk `with` an algorithm: `through_node` with the step after which the chunk's lane may be written, where
/// the operation goes through the memory of the node. It returns the last steps, after which the lane is consumed.
pub(super) fn every_chunk<A: Copy>(
    b: &mut Builder,
    with: A,
    through_node: impl Fn(&mut Builder, A, Chunk, StepId) -> Vec<StepId>,
    directly: impl Fn(&mut Builder, A, Chunk) -> Vec<StepId>,
) {
    if !b.shares() {
        b.chunks().for_each(|chunk| drop(directly(b, with, chunk)));
        return;
    }
    b.use_lanes();
    let mut consumed = Vec::new();
    for chunk in b.chunks() {
        let free = super::sub::wait_free(b, chunk, &consumed);
        let last = through_node(b, with, chunk, free);
        consumed.push(super::sub::signal(b, chunk, LaneFlag::Consumed, &last));
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
    if b.problem.locals() == 1 {
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
