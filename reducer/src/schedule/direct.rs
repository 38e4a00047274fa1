//! Direct: one round. Every node sends its whole contribution to all others, and each folds everything: the contributions of each leaf group in
//! rank order, then the groups' in theirs. That is how [`hierarchical`](super::hierarchical) folds, so the bits of an element do not
//! depend on the tensor's size.
//!
//! Latency is one message; the traffic is (H - 1) times the tensor for each node, so it is for small tensors. The
//! contribution is copied to a slot before it is sent: then no step waits for an acknowledgement before the result is
//! written over it.

use super::builder::{Area, Builder, Chunk, ChunkResult};
use super::{Action, Buffer, BufferOffset, StepId};

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

    let mut contributions = Vec::new();
    let mut numbers = Vec::new();
    for node in 0..grid.nodes() {
        if node == me {
            // The contribution is overwritten only when its copy is there to be sent.
            contributions.push((at, copied.clone()));
            continue;
        }
        let number = 1 + numbers.len();
        let (into, free) = b.slot(chunk, number, elems);
        let received = b.step(chunk, Action::Receive { from: grid.leader_of(node), round, into, len }, &free);
        contributions.push((into, vec![received]));
        numbers.push(number);
    }
    let folded = fold_nodes(b, chunk, &contributions, at, len);
    for number in numbers {
        b.slot_used(chunk, number, &folded);
    }
    ChunkResult { result: b.finish_sum(chunk, at, len, folded), sends: Vec::new() }
}

/// Folds all nodes' contributions, each there after its steps: those of each leaf group in rank order, then the groups' in theirs.
/// Those of the other nodes lie in slots, which are overwritten.
pub(super) fn fold_nodes(
    b: &mut Builder,
    chunk: Chunk,
    contributions: &[(BufferOffset, Vec<StepId>)],
    into: BufferOffset,
    len: usize,
) -> Vec<StepId> {
    let grid = b.problem.grid;
    let (mut sums, mut summed) = (Vec::new(), Vec::new());
    let groups = grid.leaf_groups();
    for group in 0..groups {
        let nodes = grid.leaf_group(group);
        let group = &contributions[nodes.start as usize..nodes.end as usize];
        let sources: Vec<_> = group.iter().map(|(place, _)| *place).collect();
        let after: Vec<_> = group.iter().flat_map(|(_, after)| after).copied().collect();
        let scratch = sources.iter().copied().find(|place| place.buffer == Buffer::Slot);
        match scratch {
            Some(scratch) if groups > 1 && sources.len() > 1 => {
                summed.extend(b.fold(chunk, scratch, &sources, len, &after));
                sums.push(scratch);
            }
            _ => {
                summed.extend(after);
                sums.extend(sources);
            }
        }
    }
    b.fold(chunk, into, &sums, len, &summed)
}
