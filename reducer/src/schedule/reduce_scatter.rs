//! Reduce-scatter: ranks of a node fold each block of which they have the same number within theirs, and every host sends each
//! other one its share of that one's blocks, where they are folded.
//!
//! ```text
//!   one rank a node     Input --send, receive--> Slot --fold--> Data
//!   one node            Input --copy--> Stage --fold--> Data
//!   several nodes       Input --copy--> Stage --fold--> Node --send, receive--> Slot --fold--> Node --copy--> Data
//! ```
//!
//! Contributions are folded in the order of [`direct`](super::direct), so an element has the bits that it has after an all-reduce; but by a
//! [`ring`](super::ring) in the order in which it passes the nodes.

use super::blocks::{self, Pieces, every_chunk, others, send, wait_all};
use super::builder::{Builder, Chunk, ChunkResult};
use super::direct::fold_from_nodes;
use super::sub::signal;
use super::{Algorithm, Buffer, BufferOffset, StepId, ring};
use crate::grid::Rank;
use crate::transport::LaneFlag;

/// The whole operation, chunk by chunk.
pub(super) fn reduce_scatter(b: &mut Builder, algorithm: Algorithm) {
    every_chunk(b, |b, chunk, free| match free {
        Some(free) => through_node(b, algorithm, chunk, free),
        None => directly(b, algorithm, chunk),
    });
}

/// One chunk over the nodes: each has its share of every node's blocks after `ready`, and ends with the sum of its own in `into`. Returns the
/// steps after which that is there, and sends.
fn across(
    b: &mut Builder,
    algorithm: Algorithm,
    chunk: Chunk,
    (of, into): (impl Fn(u32) -> BufferOffset, BufferOffset),
    ready: &[StepId],
    (len, room): (usize, u64),
) -> ChunkResult {
    if algorithm == Algorithm::Ring && b.problem.grid.nodes() > 1 {
        return ring::reduce_scatter(b, chunk, (of, into), ready, (len, room));
    }
    let peers = others(b);
    let sends = peers.map(|node| send(b, chunk, (node, chunk.index), of(node), len, ready)).collect();
    let own = of(b.problem.node());
    let result = fold_from_nodes(b, chunk, (own, ready), chunk.index, into, (len, room, 0));
    ChunkResult { result, sends }
}

fn directly(b: &mut Builder, algorithm: Algorithm, chunk: Chunk) -> Vec<StepId> {
    let pieces = Pieces::new(b, chunk);
    let of = |node| pieces.of(Buffer::Input, Rank(node));
    let sizes = (pieces.len, b.full_chunk().end);
    across(b, algorithm, chunk, (of, pieces.alone(Buffer::Data)), &[], sizes);
    Vec::new()
}

fn through_node(b: &mut Builder, algorithm: Algorithm, chunk: Chunk, free: StepId) -> Vec<StepId> {
    let (grid, me, local) = (b.problem.grid, b.problem.rank, b.problem.local());
    let (pieces, device) = (Pieces::new(b, chunk), b.problem.access.is_device());
    let locals = grid.per_node();
    let mut copied = vec![free];
    for rank in (0..grid.ranks()).map(Rank).filter(|&rank| device || grid.local_of(rank) != local) {
        let (from, into) = (pieces.of(Buffer::Input, rank), pieces.in_lane(Buffer::Stage(local), rank.0));
        copied.extend(b.copy(chunk, from, into, pieces.len, &[free]));
    }
    let staged = signal(b, chunk, LaneFlag::Staged, &copied);
    let all = wait_all(b, chunk, LaneFlag::Staged, &[staged]);
    // The node's contribution to a block: this rank's from its tensor, if the CPU can.
    let sources = |block: Rank| -> Vec<BufferOffset> {
        let of = |from: u32| match from == local && !device {
            true => pieces.of(Buffer::Input, block),
            false => pieces.in_lane(Buffer::Stage(from), block.0),
        };
        (0..locals).map(of).collect()
    };
    let output = pieces.alone(Buffer::Data);
    if grid.nodes() == 1 && !device {
        let folded = b.fold(chunk, output, &sources(me), pieces.len, &all);
        return b.finish_sum(chunk, output, pieces.len, folded);
    }
    let mut folded = vec![staged];
    for node in 0..grid.nodes() {
        let block = grid.rank_at(node, local);
        let into = pieces.in_lane(Buffer::Node, block.0);
        folded.extend(b.fold(chunk, into, &sources(block), pieces.len, &all));
    }
    let place = pieces.in_lane(Buffer::Node, me.0);
    if grid.nodes() == 1 {
        let finished = b.finish_sum(chunk, place, pieces.len, folded);
        return b.copy(chunk, place, output, pieces.len, &finished);
    }
    let reduced = signal(b, chunk, LaneFlag::Reduced, &folded);
    let (mut last, there) = if local == 0 {
        let all = wait_all(b, chunk, LaneFlag::Reduced, &[reduced]);
        let of = |node| pieces.of_node(Buffer::Node, node);
        let sizes = (pieces.node_len, b.full_chunk().end * u64::from(locals));
        let ChunkResult { result: there, sends: mut last } =
            across(b, algorithm, chunk, (of, of(b.problem.node())), &all, sizes);
        if locals > 1 {
            last.push(signal(b, chunk, LaneFlag::Final, &there));
        }
        (last, there)
    } else {
        (Vec::new(), blocks::wait(b, chunk, (0, LaneFlag::Final), &[reduced]))
    };
    last.extend(b.copy(chunk, place, output, pieces.len, &there));
    last.extend(there);
    last
}
