//! Reduce-scatter: ranks of a node fold each block of which they have the same number within theirs, and every host sends each
//! other one its share of that one's blocks, where they are folded.
//!
//! ```text
//!   one rank a node     Input --send, receive--> Slot --fold--> Data
//!   one node            Input --copy--> Stage --fold--> Data
//!   several nodes       Input --copy--> Stage --fold--> Node --send, receive--> Slot --fold--> Node --copy--> Data
//! ```
//!
//! Contributions are folded in the order of [`direct`](super::direct): an element has the bits that it has after an all-reduce.

use super::blocks::{self, Pieces, every_chunk, others, send, wait_all};
use super::builder::{Builder, Chunk};
use super::direct::fold_from_nodes;
use super::sub::signal;
use super::{Buffer, BufferOffset, StepId};
use crate::grid::Rank;
use crate::transport::LaneFlag;

/// The whole operation, chunk by chunk.
pub(super) fn reduce_scatter(b: &mut Builder) {
    every_chunk(b, |b, chunk, free| match free {
        Some(free) => through_node(b, chunk, free),
        None => directly(b, chunk),
    });
}

fn directly(b: &mut Builder, chunk: Chunk) -> Vec<StepId> {
    let (pieces, me) = (Pieces::new(b, chunk), b.problem.rank);
    for node in others(b) {
        let (from, len) = (pieces.of(Buffer::Input, Rank(node)), pieces.len(Rank(node)));
        if pieces.is_sent(len) {
            send(b, chunk, (node, chunk.index), from, len, &[]);
        }
    }
    let (own, into) = (pieces.of(Buffer::Input, me), pieces.alone(Buffer::Data));
    let (len, room) = (pieces.len(me), pieces.node_room(b, me.0));
    if pieces.is_sent(len) {
        fold_from_nodes(b, chunk, (own, &[]), chunk.index, into, (len, room, 0));
    }
    Vec::new()
}

fn through_node(b: &mut Builder, chunk: Chunk, free: StepId) -> Vec<StepId> {
    let (grid, me, local) = (b.problem.grid, b.problem.rank, b.problem.local());
    let (pieces, device) = (Pieces::new(b, chunk), b.problem.access.is_device());
    let locals = grid.per_node();
    let mut copied = vec![free];
    for rank in (0..grid.ranks()).map(Rank).filter(|&rank| device || grid.local_of(rank) != local) {
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
    for node in 0..grid.nodes() {
        let block = grid.rank_at(node, local);
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
        let mut last = Vec::new();
        for node in others(b) {
            let (from, len) = (pieces.of_node(Buffer::Node, node), pieces.node_len(node));
            if pieces.is_sent(len) {
                last.push(send(b, chunk, (node, chunk.index), from, len, &all));
            }
        }
        let node = b.problem.node();
        let own = pieces.of_node(Buffer::Node, node);
        let (len, room) = (pieces.node_len(node), pieces.node_room(b, node));
        let there = match pieces.is_sent(len) {
            true => fold_from_nodes(b, chunk, (own, &all), chunk.index, own, (len, room, 0)),
            false => all.clone(),
        };
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
