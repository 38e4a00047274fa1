//! Peers: on one node, where all inputs lie in memory that the node shares. Each rank reads what it needs of the others' inputs where they
//! lie: every byte of a result is written once, where staging moves it twice.
//!
//! ```text
//!   Input, Peer (inputs of the others) --copy or fold--> Data
//! ```
//!
//! Two rounds of flags order everything: all ranks have entered, and all have read. A lane is used for its flags alone. What a rank does
//! between the rounds is its own affair, so blocks may differ.

use super::builder::{Builder, Chunk, Slice};
use super::sub::in_pieces;
use super::{Buffer, BufferOffset, Params, Placement, Problem, Schedule, ScheduleError, StepId};
use crate::grid::Rank;
use crate::header::Collective;

/// Bytes that are copied or folded in one step, so that a poll does not take long.
const PIECE: usize = 128 << 10;

/// Whether a rank's part can be run so. Memory that other ranks read is not to be overwritten, as an all-to-all or a scan in place does.
pub(super) fn apply(problem: &Problem) -> bool {
    let Problem { grid, shape, access, placement, .. } = problem;
    let on_node = grid.nodes() == 1 && problem.locals() > 1;
    on_node
        && shape.count > 0
        && !access.is_device()
        && match shape.collective.base() {
            Collective::AllReduce | Collective::Barrier => false,
            Collective::AllToAll | Collective::Scan | Collective::ExScan => *placement == Placement::Separate,
            _ => true,
        }
}

/// The steps of one rank.
pub(super) fn read(problem: Problem, params: Params) -> Result<Schedule, ScheduleError> {
    let (reads, folds) = (reads(&problem), problem.shape.collective.reduces());
    let longest = reads.iter().map(|read| read.count).max().unwrap_or(0);
    let mut b = Builder::new(problem, params)?;
    in_pieces(&mut b, Slice { start: 0, end: longest }, PIECE, |b, chunk, there| match folds {
        true => fold(b, chunk, &reads, there),
        false => copy(b, chunk, &reads, there),
    })?;
    b.finish()
}

/// A block that a rank reads, of its own input or of another rank's.
struct Read {
    /// Its start.
    from: BufferOffset,
    /// Its place in the output, in bytes.
    into: usize,
    /// Elements.
    count: u64,
}

/// The blocks that a rank needs.
fn reads(problem: &Problem) -> Vec<Read> {
    let (me, root, ranks) = (problem.rank, problem.root, problem.grid.ranks());
    let place = |from: Rank, offset| {
        let buffer = if from == me { problem.given_in() } else { Buffer::Peer(from.0) };
        BufferOffset { buffer, offset }
    };
    // The block for this rank in an input that has one for each.
    let block_for_me = |from| {
        let theirs = Problem { rank: from, ..problem.clone() };
        place(from, theirs.input_block(me) as usize)
    };
    let count_of = |rank| problem.counts.as_ref().map_or(problem.shape.count, |counts| counts.of(rank));
    // Ranks begin with different ones, so that not all read from the same one at once.
    let all = (0..ranks).map(|i| Rank((me.0 + i) % ranks));
    let alone = |from, count| vec![Read { from, into: 0, count }];
    let whole = |from| Read { from: place(from, 0), into: 0, count: problem.shape.count };
    match problem.shape.collective.base() {
        Collective::Broadcast if me != root => alone(place(root, 0), problem.shape.count),
        Collective::Scatter => alone(block_for_me(root), count_of(me)),
        Collective::Gather if me != root => Vec::new(),
        Collective::AllGather | Collective::Gather => all
            .map(|from| {
                let into = problem.output_block(from) as usize;
                Read { from: place(from, 0), into, count: count_of(from) }
            })
            .collect(),
        Collective::AllToAll => {
            let taken = |from: Rank| match &problem.counts {
                Some(counts) => counts.taken(me).get(from.0 as usize).copied().unwrap_or(0),
                None => problem.shape.count,
            };
            let read = |from| {
                let into = problem.output_block(from) as usize;
                Read { from: block_for_me(from), into, count: taken(from) }
            };
            all.map(read).collect()
        }
        // Folds are in rank order.
        Collective::Reduce if me == root => (0..ranks).map(Rank).map(whole).collect(),
        Collective::Scan => (0..=me.0).map(Rank).map(whole).collect(),
        Collective::ExScan => (0..me.0).map(Rank).map(whole).collect(),
        Collective::ReduceScatter => (0..ranks)
            .map(|from| Read { from: block_for_me(Rank(from)), into: 0, count: count_of(me) })
            .collect(),
        _ => Vec::new(),
    }
}

/// Copies the piece of each block.
fn copy(b: &mut Builder, chunk: Chunk, reads: &[Read], there: StepId) -> Vec<StepId> {
    let kept = b.problem.placement == Placement::InPlace;
    let needed = reads.iter().filter(|read| !(kept && read.from.buffer == Buffer::Input));
    let steps = needed.flat_map(|read| {
        let Slice { start, end } = chunk.slice;
        let piece = Slice { start: start.min(read.count), end: end.min(read.count) };
        if piece.is_empty() {
            return Vec::new();
        }
        let at = |offset: usize| offset + b.bytes(Slice { start: 0, end: piece.start });
        let from = BufferOffset { offset: at(read.from.offset), ..read.from };
        let into = BufferOffset { buffer: Buffer::Data, offset: at(read.into) };
        b.copy(chunk, from, into, b.bytes(piece), &[there])
    });
    steps.collect()
}

/// Folds the piece of all blocks, which are as long as each other.
fn fold(b: &mut Builder, chunk: Chunk, reads: &[Read], there: StepId) -> Vec<StepId> {
    if let [_] | [] = reads {
        return copy(b, chunk, reads, there);
    }
    let (into, finish, len) = (b.data(chunk.slice), b.averages(), b.bytes(chunk.slice));
    let at = |read: &Read| BufferOffset { offset: read.from.offset + into.offset, ..read.from };
    let sources: Vec<_> = reads.iter().map(at).collect();
    b.fold_all(chunk, (&[into], finish), &sources, len, &[there])
}
