//! All-to-all: every host sends each other one what its ranks have for that one's, a message for each of its ranks; small blocks may go by
//! way of others.
//!
//! ```text
//!   one rank a node     Input --send, receive--> Data               (in place: through a slot)
//!   several             Input --copy--> Stage --copy--> Data        (of the same node)
//!                                       Stage --send, receive--> Node --copy--> Data
//! ```

use super::blocks::{Pieces, every_chunk, others, receive, send, wait, wait_all};
use super::builder::{Builder, Chunk};
use super::sub::signal;
use super::{Algorithm, Buffer, Placement, StepId, bruck, pairwise};
use crate::grid::Rank;
use crate::transport::LaneFlag;

/// The whole operation, chunk by chunk.
pub(super) fn all_to_all(b: &mut Builder, algorithm: Algorithm) {
    every_chunk(b, |b, chunk, free| match free {
        Some(free) => through_node(b, algorithm, chunk, free),
        None => directly(b, algorithm, chunk),
    });
}

/// The other nodes, in the order in which they are sent to.
fn partners(b: &Builder, algorithm: Algorithm) -> Vec<u32> {
    match algorithm {
        Algorithm::Pairwise => pairwise::partners(b.problem.node(), b.problem.grid.nodes()).collect(),
        _ => others(b).collect(),
    }
}

fn directly(b: &mut Builder, algorithm: Algorithm, chunk: Chunk) -> Vec<StepId> {
    let (pieces, round, me) = (Pieces::new(b, chunk), chunk.index, b.problem.rank);
    let elems = b.full_chunk().end;
    if algorithm == Algorithm::Bruck {
        let places =
            (|node| vec![pieces.of(Buffer::Input, Rank(node))], |node| pieces.of(Buffer::Data, Rank(node)));
        bruck::all_to_all(b, chunk, places, &[], elems, (pieces.len, pieces.len));
        pieces.keep(b, pieces.of(Buffer::Input, me), pieces.of(Buffer::Data, me));
        return Vec::new();
    }
    // What begins the next round.
    let mut before = Vec::new();
    for (number, node) in partners(b, algorithm).into_iter().enumerate() {
        let (from, into) = (pieces.of(Buffer::Input, Rank(node)), pieces.of(Buffer::Data, Rank(node)));
        let sent = send(b, chunk, (node, round), from, pieces.len, &before);
        if b.problem.placement == Placement::Separate {
            let received = receive(b, chunk, (node, round), into, pieces.len, &[]);
            begin_next(algorithm, &mut before, &[received]);
            continue;
        }
        // What arrives would overwrite what may still have to be sent again.
        let (slot, free) = b.slot(chunk, number, elems);
        let received = receive(b, chunk, (node, round), slot, pieces.len, &free);
        begin_next(algorithm, &mut before, &[received]);
        let copied = b.copy(chunk, slot, into, pieces.len, &[received, sent]);
        b.slot_used(chunk, number, &copied);
    }
    pieces.keep(b, pieces.of(Buffer::Input, me), pieces.of(Buffer::Data, me));
    Vec::new()
}

/// Pairwise, a round is begun when the last one's messages have come.
fn begin_next(algorithm: Algorithm, before: &mut Vec<StepId>, came: &[StepId]) {
    if algorithm == Algorithm::Pairwise {
        *before = came.to_vec();
    }
}

fn through_node(b: &mut Builder, algorithm: Algorithm, chunk: Chunk, free: StepId) -> Vec<StepId> {
    let (grid, me, local) = (b.problem.grid, b.problem.rank, b.problem.local());
    let (pieces, node, locals) = (Pieces::new(b, chunk), b.problem.node(), grid.per_node());
    // The own block goes from tensor to tensor, where the CPU can.
    let kept = !b.problem.access.is_device();
    let mut copied = vec![free];
    for rank in (0..grid.ranks()).map(Rank).filter(|&rank| !kept || rank != me) {
        let (from, into) = (pieces.of(Buffer::Input, rank), pieces.in_lane(Buffer::Stage(local), rank.0));
        copied.extend(b.copy(chunk, from, into, pieces.len, &[free]));
    }
    let staged = signal(b, chunk, LaneFlag::Staged, &copied);
    let mut last = vec![staged];
    if kept {
        last.extend(pieces.keep(b, pieces.of(Buffer::Input, me), pieces.of(Buffer::Data, me)));
    }
    for from in (0..locals).map(|i| (local + i) % locals).filter(|&from| !kept || from != local) {
        let there = match from == local {
            true => vec![staged],
            false => wait(b, chunk, (from, LaneFlag::Staged), &[staged]),
        };
        let place = pieces.in_lane(Buffer::Stage(from), me.0);
        let into = pieces.of(Buffer::Data, grid.rank_at(node, from));
        last.extend(b.copy(chunk, place, into, pieces.len, &there));
    }
    if grid.nodes() == 1 {
        return last;
    }
    // Where the piece lies that a rank of another node has for one of this one's.
    let arrived = |other: u32, from: u32, to: u32| {
        let nodes_before = other - u32::from(other > node);
        pieces.in_lane(Buffer::Node, (nodes_before * locals + from) * locals + to)
    };
    let mut there = Vec::new();
    if local == 0 {
        let all = wait_all(b, chunk, LaneFlag::Staged, &[staged]);
        if algorithm == Algorithm::Bruck {
            let stages = |node| (0..locals).map(|from| pieces.of_node(Buffer::Stage(from), node)).collect();
            let places = (stages, |node| arrived(node, 0, 0));
            let room = b.full_chunk().end * u64::from(locals * locals);
            let lens = (pieces.node_len * locals as usize, pieces.node_len);
            there = bruck::all_to_all(b, chunk, places, &all, room, lens);
        } else {
            let mut before = all.clone();
            for other in partners(b, algorithm) {
                let mut came = Vec::new();
                for from in 0..locals {
                    let message = (other, chunk.index * locals + from);
                    let place = pieces.of_node(Buffer::Stage(from), other);
                    last.push(send(b, chunk, message, place, pieces.node_len, &before));
                    let into = arrived(other, from, 0);
                    came.push(receive(b, chunk, message, into, pieces.node_len, &[free]));
                }
                there.extend(&came);
                begin_next(algorithm, &mut before, &[all.as_slice(), &came].concat());
            }
        }
        // In place, what arrives is written only when all that was there is staged.
        there.push(staged);
        if locals > 1 {
            last.push(signal(b, chunk, LaneFlag::Final, &there));
        }
    } else {
        there = wait(b, chunk, (0, LaneFlag::Final), &[staged]);
    }
    for other in others(b) {
        for from in 0..locals {
            let (place, into) =
                (arrived(other, from, local), pieces.of(Buffer::Data, grid.rank_at(other, from)));
            last.extend(b.copy(chunk, place, into, pieces.len, &there));
        }
    }
    last.extend(there);
    last
}
