//! All-gather and gather: every host sends its ranks' blocks to each host that needs them.
//!
//! ```text
//!   one rank a node     Input --send, receive--> Data
//!   several             Input --copy--> Node --send, receive--> Node --copy--> Data
//! ```

use super::blocks::{self, Pieces, every_chunk, others, receive, send, wait_all};
use super::builder::{Builder, Chunk};
use super::sub::signal;
use super::{Buffer, StepId};
use crate::grid::Rank;
use crate::header::Collective;
use crate::transport::LaneFlag;

/// The whole operation, chunk by chunk.
pub(super) fn gather(b: &mut Builder) {
    every_chunk(b, |b, chunk, free| match free {
        Some(free) => through_node(b, chunk, free),
        None => directly(b, chunk),
    });
}

/// Whether a node has a rank that ends with the blocks.
fn takes(b: &Builder, node: u32) -> bool {
    let all = b.problem.shape.collective.base() == Collective::AllGather;
    all || node == b.problem.grid.node_of(b.problem.root)
}

/// Whether this rank does.
fn takes_here(b: &Builder) -> bool {
    b.problem.shape.collective.base() == Collective::AllGather || b.problem.rank == b.problem.root
}

fn directly(b: &mut Builder, chunk: Chunk) -> Vec<StepId> {
    let (pieces, round) = (Pieces::new(b, chunk), chunk.index);
    let (own, here) = (pieces.alone(Buffer::Input), takes_here(b));
    let len = pieces.len(b.problem.rank);
    for node in others(b) {
        if takes(b, node) && pieces.is_sent(len) {
            send(b, chunk, (node, round), own, len, &[]);
        }
        let theirs = pieces.len(Rank(node));
        if here && pieces.is_sent(theirs) {
            receive(b, chunk, (node, round), pieces.of(Buffer::Data, Rank(node)), theirs, &[]);
        }
    }
    if here {
        let place = pieces.of(Buffer::Data, b.problem.rank);
        pieces.keep(b, own, place);
    }
    Vec::new()
}

fn through_node(b: &mut Builder, chunk: Chunk, free: StepId) -> Vec<StepId> {
    let (grid, me, node) = (b.problem.grid, b.problem.rank, b.problem.node());
    let (pieces, round, here) = (Pieces::new(b, chunk), chunk.index, takes_here(b));
    let (own, place) = (pieces.alone(Buffer::Input), pieces.in_lane(Buffer::Node, me));
    let copied = b.copy(chunk, own, place, pieces.len(me), &[free]);
    let staged = signal(b, chunk, LaneFlag::Reduced, &copied);
    let mut last = vec![staged];
    let mut there = Vec::new();
    if grid.nodes() == 1 {
        if here {
            there = wait_all(b, chunk, LaneFlag::Reduced, &[staged]);
        }
    } else if b.problem.local() == 0 {
        let all = wait_all(b, chunk, LaneFlag::Reduced, &[staged]);
        there.clone_from(&all);
        for other in others(b) {
            let (len, theirs) = (pieces.node_len(node), pieces.node_len(other));
            if takes(b, other) && pieces.is_sent(len) {
                let from = pieces.of_node(Buffer::Node, node);
                last.push(send(b, chunk, (other, round), from, len, &all));
            }
            if takes(b, node) && pieces.is_sent(theirs) {
                let into = pieces.of_node(Buffer::Node, other);
                there.push(receive(b, chunk, (other, round), into, theirs, &[free]));
            }
        }
        if takes(b, node) && grid.per_node() > 1 {
            last.push(signal(b, chunk, LaneFlag::Final, &there));
        }
    } else if here {
        there = blocks::wait(b, chunk, (0, LaneFlag::Final), &[staged]);
    }
    if here {
        // The own block goes from tensor to tensor, where the CPU can.
        let kept = !b.problem.access.is_device();
        if kept {
            let place = pieces.of(Buffer::Data, me);
            last.extend(pieces.keep(b, own, place));
        }
        for rank in (0..grid.ranks()).map(Rank).filter(|&rank| !kept || rank != me) {
            let (from, into) = (pieces.in_lane(Buffer::Node, rank), pieces.of(Buffer::Data, rank));
            last.extend(b.copy(chunk, from, into, pieces.len(rank), &there));
        }
    }
    last
}
