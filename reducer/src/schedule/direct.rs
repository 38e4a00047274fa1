//! Direct: one round. Every node sends its whole contribution to all others, and each folds everything: the contributions of each leaf group in
//! rank order, then the groups' in theirs. That is how [`hierarchical`](super::hierarchical) folds, so the bits of an element do not
//! depend on the tensor's size.
//!
//! Latency is one message; the traffic is (H - 1) times the tensor for each node, so it is for small tensors. The
//! contribution is copied to a slot before it is sent: then no step waits for an acknowledgement before the result is
//! written over it.

use super::builder::{Area, Builder, Chunk, ChunkResult};
use super::{Action, StepId};

/// One chunk over the up grid; the area holds this node's contribution after `ready`.
pub(super) fn up(b: &mut Builder, chunk: Chunk, area: Area, ready: &[StepId]) -> ChunkResult {
    let (grid, me) = (b.problem.grid, b.problem.node());
    let (len, at) = (b.bytes(chunk.slice), b.at(area, chunk.slice));
    let elems = b.full_chunk().end;
    let round = chunk.index;

    let (own, free) = b.slot(chunk, 0, elems);
    let after: Vec<_> = ready.iter().copied().chain(free).collect();
    let copied = b.copy(chunk, at, own, len, &after);
    let others = (0..grid.nodes()).filter(|&node| node != me);
    let sends: Vec<_> = others
        .map(|node| b.step(chunk, Action::Send { to: grid.leader_of(node), round, from: own, len }, &copied))
        .collect();
    b.slot_used(chunk, 0, &sends);

    let (mut sums, mut summed, mut numbers) = (Vec::new(), Vec::new(), Vec::new());
    let groups = grid.leaf_groups();
    for group in 0..groups {
        let (mut sources, mut after) = (Vec::new(), Vec::new());
        for node in grid.leaf_group(group) {
            if node == me {
                // The contribution is overwritten only when its copy is there to be sent.
                sources.push(at);
                after.extend(&copied);
                continue;
            }
            let number = 1 + numbers.len();
            let (into, free) = b.slot(chunk, number, elems);
            after.push(b.step(
                chunk,
                Action::Receive { from: grid.leader_of(node), round, into, len },
                &free,
            ));
            sources.push(into);
            numbers.push(number);
        }
        if groups > 1 && sources.len() > 1 {
            summed.extend(b.fold(chunk, sources[0], &sources, len, &after));
            sums.push(sources[0]);
        } else {
            summed.extend(after);
            sums.extend(sources);
        }
    }
    let folded = b.fold(chunk, at, &sums, len, &summed);
    for number in numbers {
        b.slot_used(chunk, number, &folded);
    }
    ChunkResult { result: b.finish_sum(chunk, at, len, folded), sends: Vec::new() }
}
