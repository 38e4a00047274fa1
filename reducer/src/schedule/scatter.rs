//! Scatter: the root's host sends each host its ranks' blocks, at once or by way of others.
//!
//! ```text
//!   one rank a node     Input (root) --send, receive--> Data
//!   several             Input (root) --copy--> Node --send, receive--> Node --copy--> Data
//! ```

use super::blocks::{self, Pieces, others, receive, send};
use super::builder::{Builder, Chunk};
use super::sub::signal;
use super::{Algorithm, Buffer, BufferOffset, StepId, binomial};
use crate::grid::Rank;
use crate::transport::LaneFlag;

/// One chunk over the nodes: the root's has each one's blocks at `of` after `ready`, each other one gets its own in `into`, which may be
/// written after that. Returns the steps after which they are there, and those that read at the root's.
fn across(
    b: &mut Builder,
    algorithm: Algorithm,
    pieces: &Pieces,
    (of, into): (impl Fn(u32) -> BufferOffset, BufferOffset),
    ready: &[StepId],
) -> (Vec<StepId>, Vec<StepId>) {
    let (grid, node, chunk) = (b.problem.grid, b.problem.node(), pieces.chunk);
    let (len, round, home) = (pieces.node_len(node), chunk.index, grid.node_of(b.problem.root));
    if algorithm == Algorithm::Binomial && grid.nodes() > 1 {
        let room = pieces.node_room(b, node);
        return binomial::scatter(b, chunk, (of, into), ready, (0, room), len);
    }
    // Blocks may differ.
    if node != home {
        let there = match pieces.is_sent(len) {
            true => vec![receive(b, chunk, (home, round), into, len, ready)],
            false => ready.to_vec(),
        };
        return (there, Vec::new());
    }
    let mut sends = Vec::new();
    for other in others(b).filter(|&other| pieces.is_sent(pieces.node_len(other))) {
        sends.push(send(b, chunk, (other, round), of(other), pieces.node_len(other), ready));
    }
    (ready.to_vec(), sends)
}

/// A chunk that does not go through the memory of a node.
pub(super) fn directly(b: &mut Builder, algorithm: Algorithm, chunk: Chunk) -> Vec<StepId> {
    let (pieces, root) = (Pieces::new(b, chunk), b.problem.root);
    let place = pieces.alone(Buffer::Data);
    let of = |node| pieces.of(Buffer::Input, Rank(node));
    across(b, algorithm, &pieces, (of, place), &[]);
    if b.problem.rank == root {
        pieces.keep(b, of(root.0), place);
    }
    Vec::new()
}

/// A chunk through the memory of the node, where it may be written after `free`. Returns the last steps there.
pub(super) fn through_node(b: &mut Builder, algorithm: Algorithm, chunk: Chunk, free: StepId) -> Vec<StepId> {
    let (grid, me, root) = (b.problem.grid, b.problem.rank, b.problem.root);
    let (pieces, node) = (Pieces::new(b, chunk), b.problem.node());
    let (home, leader) = (grid.node_of(root), b.problem.local() == 0);
    let mut last = Vec::new();
    let there;
    let (of, into) = (|node| pieces.of_node(Buffer::Node, node), pieces.of_node(Buffer::Node, node));
    // The own block goes from tensor to tensor, where the CPU can.
    let kept = me == root && !b.problem.access.is_device();
    if me == root {
        let mut copied = Vec::new();
        for rank in (0..grid.ranks()).map(Rank).filter(|&rank| !kept || rank != me) {
            let (from, into) = (pieces.of(Buffer::Input, rank), pieces.in_lane(Buffer::Node, rank));
            copied.extend(b.copy(chunk, from, into, pieces.len(rank), &[free]));
        }
        copied.push(free);
        there = vec![signal(b, chunk, LaneFlag::Reduced, &copied)];
        last.extend(&there);
    } else if node == home {
        there = blocks::wait(b, chunk, (grid.local_of(root), LaneFlag::Reduced), &[free]);
    } else if leader {
        there = across(b, algorithm, &pieces, (of, into), &[free]).0;
        if b.problem.locals() > 1 {
            last.push(signal(b, chunk, LaneFlag::Final, &there));
        }
    } else {
        there = blocks::wait(b, chunk, (0, LaneFlag::Final), &[free]);
    }
    if leader && node == home {
        last.extend(across(b, algorithm, &pieces, (of, into), &there).1);
    }
    let place = pieces.alone(Buffer::Data);
    if kept {
        last.extend(pieces.keep(b, pieces.of(Buffer::Input, me), place));
    } else {
        let from = pieces.in_lane(Buffer::Node, me);
        last.extend(b.copy(chunk, from, place, pieces.len(me), &there));
    }
    last.extend(there);
    last
}
