//! Scatter: the root's host sends each host its ranks' blocks.
//!
//! ```text
//!   one rank a node     Input (root) --send, receive--> Data
//!   several             Input (root) --copy--> Node --send, receive--> Node --copy--> Data
//! ```

use super::blocks::{self, Pieces, every_chunk, others, receive, send};
use super::builder::{Builder, Chunk};
use super::sub::signal;
use super::{Buffer, StepId};
use crate::grid::Rank;
use crate::transport::LaneFlag;

/// The whole operation, chunk by chunk.
pub(super) fn scatter(b: &mut Builder) {
    every_chunk(b, |b, chunk, free| match free {
        Some(free) => through_node(b, chunk, free),
        None => directly(b, chunk),
    });
}

fn directly(b: &mut Builder, chunk: Chunk) -> Vec<StepId> {
    let (pieces, round, root) = (Pieces::new(b, chunk), chunk.index, b.problem.root);
    let place = pieces.alone(Buffer::Data);
    if b.problem.rank == root {
        for node in others(b) {
            let (from, len) = (pieces.of(Buffer::Input, Rank(node)), pieces.len(Rank(node)));
            if pieces.is_sent(len) {
                send(b, chunk, (node, round), from, len, &[]);
            }
        }
        pieces.keep(b, pieces.of(Buffer::Input, root), place);
    } else if pieces.is_sent(pieces.len(b.problem.rank)) {
        receive(b, chunk, (root.0, round), place, pieces.len(b.problem.rank), &[]);
    }
    Vec::new()
}

fn through_node(b: &mut Builder, chunk: Chunk, free: StepId) -> Vec<StepId> {
    let (grid, me, root) = (b.problem.grid, b.problem.rank, b.problem.root);
    let (pieces, round, node) = (Pieces::new(b, chunk), chunk.index, b.problem.node());
    let (home, leader) = (grid.node_of(root), b.problem.local() == 0);
    let mut last = Vec::new();
    let there;
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
        let (into, len) = (pieces.of_node(Buffer::Node, node), pieces.node_len(node));
        there = match pieces.is_sent(len) {
            true => vec![receive(b, chunk, (home, round), into, len, &[free])],
            false => vec![free],
        };
        if grid.per_node() > 1 {
            last.push(signal(b, chunk, LaneFlag::Final, &there));
        }
    } else {
        there = blocks::wait(b, chunk, (0, LaneFlag::Final), &[free]);
    }
    if leader && node == home {
        for other in others(b) {
            let (from, len) = (pieces.of_node(Buffer::Node, other), pieces.node_len(other));
            if pieces.is_sent(len) {
                last.push(send(b, chunk, (other, round), from, len, &there));
            }
        }
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
