//! Dissemination: a barrier in ceil(log2(H)) rounds, for any number of nodes.
//!
//! In round k a node sends to the one 2^k further on, and receives from the one 2^k before it. It sends only after it has received in all
//! rounds before, so its message covers 2^k nodes. (Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", 1988.)

use super::StepId;
use super::blocks::{receive, send};
use super::builder::{Builder, Chunk, ChunkResult};

/// The barrier over the up grid, once this node's ranks have come.
pub(super) fn up(b: &mut Builder, chunk: Chunk, ready: &[StepId]) -> ChunkResult {
    let (me, nodes) = (b.problem.node(), b.problem.grid.nodes());
    let (nothing, _) = b.slot(chunk, 0, 0);
    let mut heard = ready.to_vec();
    let mut sends = Vec::new();
    for distance in distances(nodes) {
        let (next, before) = ((me + distance) % nodes, (me + nodes - distance) % nodes);
        sends.push(send(b, chunk, (next, chunk.index), nothing, 0, &heard));
        heard.push(receive(b, chunk, (before, chunk.index), nothing, 0, &[]));
    }
    ChunkResult { result: heard, sends }
}

/// 1, 2, 4 and so on, below the number of nodes.
pub(super) fn distances(nodes: u32) -> impl Iterator<Item = u32> {
    (0..u32::BITS - (nodes - 1).leading_zeros()).map(|round| 1 << round)
}
