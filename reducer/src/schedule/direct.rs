//! Direct: one round. Every node sends its whole contribution to all others, and each folds everything: the contributions of each leaf group in
//! rank order, then the groups' in theirs. That is how [`hierarchical`](super::hierarchical) folds, so the bits of an element do not
//! depend on the tensor's size.
//!
//! Latency is one message; the traffic is (H - 1) times the tensor for each node, so it is for small tensors. The
//! contribution is copied to a slot before it is sent: then no step waits for an acknowledgement before the result is
//! written over it.

use super::binomial::Placed;
use super::blocks::{others, receive, send};
use super::builder::{Area, Builder, Chunk, ChunkResult};
use super::{Buffer, BufferOffset, StepId};

/// One chunk over the up grid; the area holds this node's contribution after `ready`.
pub(super) fn up(b: &mut Builder, chunk: Chunk, area: Area, ready: &[StepId]) -> ChunkResult {
    let (len, at) = (b.bytes(chunk.slice), b.at(area, chunk.slice));
    let elems = b.full_chunk().end;
    let round = chunk.index;

    let (own, free) = b.slot(chunk, 0, elems);
    let after: Vec<_> = ready.iter().copied().chain(free).collect();
    let copied = b.copy(chunk, at, own, len, &after);
    let sends: Vec<_> = others(b).map(|node| send(b, chunk, (node, round), own, len, &copied)).collect();
    b.slot_used(chunk, 0, &sends);

    // The contribution is overwritten only when its copy is there to be sent.
    let result = fold_from_nodes(b, chunk, (at, &copied), round, at, (len, elems, 1));
    ChunkResult { result, sends: Vec::new() }
}

/// Receives the other nodes' contributions into slots from number `first` on, each with room for `room` elements; folds all `len` bytes,
/// this node's `own` among them, into one place; divides an average. Returns the steps after which the result is there.
pub(super) fn fold_from_nodes(
    b: &mut Builder,
    chunk: Chunk,
    (own, ready): (BufferOffset, &[StepId]),
    round: u32,
    into: BufferOffset,
    (len, room, first): (usize, u64, usize),
) -> Vec<StepId> {
    let (grid, me) = (b.problem.grid, b.problem.node());
    let mut contributions = Vec::with_capacity(grid.nodes() as usize);
    let mut number = first;
    for node in 0..grid.nodes() {
        if node == me {
            contributions.push((own, ready.to_vec()));
            continue;
        }
        let (slot, free) = b.slot(chunk, number, room);
        number += 1;
        contributions.push((slot, vec![receive(b, chunk, (node, round), slot, len, &free)]));
    }
    let folded = fold_nodes(b, chunk, (&contributions, None), into, len);
    for slot in first..number {
        b.slot_used(chunk, slot, &folded);
    }
    b.finish_sum(chunk, into, len, folded)
}

/// Folds all nodes' contributions, each there after its steps: those of each leaf group in rank order, then the groups' in theirs. The sums
/// of the groups go to their places in `sums`, if there are any; else over a contribution that lies in a slot.
pub(super) fn fold_nodes(
    b: &mut Builder,
    chunk: Chunk,
    (contributions, places): (&[Placed], Option<&[Placed]>),
    into: BufferOffset,
    len: usize,
) -> Vec<StepId> {
    let grid = b.problem.grid;
    let (mut sums, mut summed) = (Vec::new(), Vec::new());
    let groups = grid.leaf_groups();
    for group in 0..groups {
        let nodes = grid.leaf_group(group);
        let members = &contributions[nodes.start as usize..nodes.end as usize];
        let sources: Vec<_> = members.iter().map(|(place, _)| *place).collect();
        let mut after: Vec<_> = members.iter().flat_map(|(_, after)| after).copied().collect();
        let scratch = match places {
            Some(places) => places.get(group as usize).map(|(place, free)| {
                after.extend(free);
                *place
            }),
            None => sources.iter().copied().find(|place| place.buffer == Buffer::Slot),
        };
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
