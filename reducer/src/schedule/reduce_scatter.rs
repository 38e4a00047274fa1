//! Reduce-scatter: the ranks of a node share all blocks out to be folded: each takes those of the ranks that have its number on their
//! nodes. Every host sends each other one its share of that one's blocks, where they are folded.
//!
//! ```text
//!   one rank a node     Input --send, receive--> Slot --fold--> Data
//!   one node            Input --copy--> Stage --fold--> Data
//!   several nodes       Input --copy--> Stage --fold--> Node --send, receive--> Slot --fold--> Node --copy--> Data
//! ```
//!
//! Contributions are folded in the order of [`direct`](super::direct), so an element has the bits that it has after an all-reduce; but by a
//! [`ring`] in the order in which it passes the nodes.

use super::blocks::{self, Pieces, others, send, wait_all};
use super::builder::{Builder, Chunk, ChunkResult};
use super::direct::fold_from_nodes;
use super::sub::signal;
use super::{Algorithm, Buffer, BufferOffset, StepId, ring};
use crate::grid::Rank;
use crate::transport::LaneFlag;

/// One chunk over the nodes: each has its share of every node's blocks after `ready`, and ends with the sum of its own in `into`. Returns the
/// steps after which that is there, and sends.
fn across(
    b: &mut Builder,
    algorithm: Algorithm,
    pieces: &Pieces,
    (of, into): (impl Fn(u32) -> BufferOffset, BufferOffset),
    ready: &[StepId],
) -> ChunkResult {
    let (node, chunk) = (b.problem.node(), pieces.chunk);
    let (len, room) = (pieces.node_len(node), pieces.node_room(b, node));
    if algorithm == Algorithm::Ring && b.problem.grid.nodes() > 1 {
        return ring::reduce_scatter(b, chunk, (of, into), ready, (len, room));
    }
    // Blocks may differ.
    let mut sends = Vec::new();
    for other in others(b).filter(|&other| pieces.is_sent(pieces.node_len(other))) {
        sends.push(send(b, chunk, (other, chunk.index), of(other), pieces.node_len(other), ready));
    }
    let result = match pieces.is_sent(len) {
        true => fold_from_nodes(b, chunk, (of(node), ready), chunk.index, into, (len, room, 0)),
        false => ready.to_vec(),
    };
    ChunkResult { result, sends }
}

/// A chunk that does not go through the memory of a node.
pub(super) fn directly(b: &mut Builder, algorithm: Algorithm, chunk: Chunk) -> Vec<StepId> {
    let pieces = Pieces::new(b, chunk);
    let of = |node| pieces.of(Buffer::Input, Rank(node));
    across(b, algorithm, &pieces, (of, pieces.alone(Buffer::Data)), &[]);
    Vec::new()
}

/// A chunk through the memory of the node, where it may be written after `free`. Returns the last steps there.
pub(super) fn through_node(b: &mut Builder, algorithm: Algorithm, chunk: Chunk, free: StepId) -> Vec<StepId> {
    let (grid, me, local, locals) = (b.problem.grid, b.problem.rank, b.problem.local(), b.problem.locals());
    let (pieces, device) = (Pieces::new(b, chunk), b.problem.access.is_device());
    // The local rank that folds a block. Nodes with more ranks than this one have blocks of higher numbers.
    let folder = |block: Rank| grid.local_of(block) % locals;
    let mut copied = vec![free];
    for rank in (0..grid.ranks()).map(Rank).filter(|&rank| device || folder(rank) != local) {
        let (from, into) = (pieces.of(Buffer::Input, rank), pieces.in_lane(Buffer::Stage(local), rank));
        copied.extend(b.copy(chunk, from, into, pieces.len(rank), &[free]));
    }
    let staged = signal(b, chunk, LaneFlag::Staged, &copied);
    let all = wait_all(b, chunk, LaneFlag::Staged, &[staged]);
    // The node's contribution to a block: this rank's from its tensor, if the CPU can.
    let sources = |block: Rank| -> Vec<BufferOffset> {
        let of = |from: u32| match from == local && !device {
            true => pieces.of(Buffer::Input, block),
            false => pieces.in_lane(Buffer::Stage(from), block),
        };
        (0..locals).map(of).collect()
    };
    let (output, len) = (pieces.alone(Buffer::Data), pieces.len(me));
    if grid.nodes() == 1 && !device {
        let folded = b.fold(chunk, output, &sources(me), len, &all);
        return b.finish_sum(chunk, output, len, folded);
    }
    let mut folded = vec![staged];
    for block in (0..grid.ranks()).map(Rank).filter(|&block| folder(block) == local) {
        let into = pieces.in_lane(Buffer::Node, block);
        folded.extend(b.fold(chunk, into, &sources(block), pieces.len(block), &all));
    }
    let place = pieces.in_lane(Buffer::Node, me);
    if grid.nodes() == 1 {
        let finished = b.finish_sum(chunk, place, len, folded);
        return b.copy(chunk, place, output, len, &finished);
    }
    let reduced = signal(b, chunk, LaneFlag::Reduced, &folded);
    let (mut last, there) = if local == 0 {
        let all = wait_all(b, chunk, LaneFlag::Reduced, &[reduced]);
        let of = |node| pieces.of_node(Buffer::Node, node);
        let into = of(b.problem.node());
        let ChunkResult { result: there, sends: mut last } = across(b, algorithm, &pieces, (of, into), &all);
        if locals > 1 {
            last.push(signal(b, chunk, LaneFlag::Final, &there));
        }
        (last, there)
    } else {
        (Vec::new(), blocks::wait(b, chunk, (0, LaneFlag::Final), &[reduced]))
    };
    last.extend(b.copy(chunk, place, output, len, &there));
    last.extend(there);
    last
}
