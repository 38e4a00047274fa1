//! All-gather and gather: every host sends its ranks' blocks to each host that needs them, at once or by way of others.
//!
//! ```text
//!   one rank a node     Input --send, receive--> Data
//!   several             Input --copy--> Node --send, receive--> Node --copy--> Data
//! ```

use super::blocks::{self, Pieces, others, receive, send, wait_all};
use super::bruck::Gathered;
use super::builder::{Builder, Chunk, ChunkResult};
use super::sub::signal;
use super::{Algorithm, Buffer, BufferOffset, StepId, binomial, bruck, ring};
use crate::grid::Rank;
use crate::header::Collective;
use crate::transport::LaneFlag;

/// Whether a node has a rank that ends with the blocks.
fn takes(b: &Builder, node: u32) -> bool {
    let all = b.problem.shape.collective.base() == Collective::AllGather;
    all || node == b.problem.grid.node_of(b.problem.root)
}

/// Whether this rank does.
fn takes_here(b: &Builder) -> bool {
    b.problem.shape.collective.base() == Collective::AllGather || b.problem.rank == b.problem.root
}

/// One chunk over the nodes: each gives its blocks at `own` after `ready`, and those that take them get each other one's at its place,
/// which may be written after `free`. Returns the steps after which they are there, and the others that read `own` and the places.
fn across(
    b: &mut Builder,
    algorithm: Algorithm,
    pieces: &Pieces,
    (own, ready): (BufferOffset, &[StepId]),
    (place, free): (impl Fn(u32) -> BufferOffset, &[StepId]),
) -> ChunkResult {
    let (node, chunk) = (b.problem.node(), pieces.chunk);
    let (len, room, round) = (pieces.node_len(node), pieces.node_room(b, node), chunk.index);
    let mut outcome = ChunkResult { result: ready.to_vec(), sends: Vec::new() };
    let (blocks, sends) = match algorithm {
        Algorithm::Ring => return ring::all_gather(b, chunk, (own, ready), (place, free), len),
        Algorithm::Bruck => {
            let Gathered { blocks, sends } = bruck::all_gather(b, chunk, (own, ready), (0, room), len);
            (blocks, sends)
        }
        Algorithm::Binomial => {
            let (last, blocks) = binomial::gather(b, chunk, (own, ready), (0, room), len);
            outcome.sends = last;
            if blocks.is_empty() {
                return outcome;
            }
            (blocks, Vec::new())
        }
        // Blocks may differ.
        _ => {
            for other in others(b) {
                if takes(b, other) && pieces.is_sent(len) {
                    outcome.sends.push(send(b, chunk, (other, round), own, len, ready));
                }
                let theirs = pieces.node_len(other);
                if takes(b, node) && pieces.is_sent(theirs) {
                    outcome.result.push(receive(b, chunk, (other, round), place(other), theirs, free));
                }
            }
            return outcome;
        }
    };
    // They have come to a slot, this node's own among them.
    let mut copied = free.to_vec();
    for (other, (block, there)) in (0..).zip(blocks) {
        if other == node {
            outcome.sends.extend(there);
            continue;
        }
        copied.extend(b.copy(chunk, block, place(other), len, &[free, &there].concat()));
    }
    b.slot_used(chunk, 0, &[copied.as_slice(), &sends].concat());
    outcome.result.extend(copied);
    outcome
}

/// A chunk that does not go through the memory of a node.
pub(super) fn directly(b: &mut Builder, algorithm: Algorithm, chunk: Chunk) -> Vec<StepId> {
    let pieces = Pieces::new(b, chunk);
    let own = pieces.alone(Buffer::Input);
    let place = |node| pieces.of(Buffer::Data, Rank(node));
    across(b, algorithm, &pieces, (own, &[]), (place, &[]));
    if takes_here(b) {
        let place = pieces.of(Buffer::Data, b.problem.rank);
        pieces.keep(b, own, place);
    }
    Vec::new()
}

/// A chunk through the memory of the node, where it may be written after `free`. Returns the last steps there.
pub(super) fn through_node(b: &mut Builder, algorithm: Algorithm, chunk: Chunk, free: StepId) -> Vec<StepId> {
    let (grid, me, node) = (b.problem.grid, b.problem.rank, b.problem.node());
    let (pieces, here) = (Pieces::new(b, chunk), takes_here(b));
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
        let (place, own) = (|node| pieces.of_node(Buffer::Node, node), pieces.of_node(Buffer::Node, node));
        let outcome = across(b, algorithm, &pieces, (own, &all), (place, &[free]));
        there = outcome.result;
        last.extend(outcome.sends);
        if takes(b, node) && b.problem.locals() > 1 {
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
