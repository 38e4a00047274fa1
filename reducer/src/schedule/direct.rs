//! Direct: one round. Every node sends its whole contribution to all others, and each folds everything: the contributions of each group in
//! rank order, level by level. That is how [`hierarchical`](super::hierarchical) folds, so the bits of an element do not depend on the
//! tensor's size.
//!
//! Latency is one message; the traffic is (H - 1) times the tensor for each node, so it is for small tensors. The
//! contribution is copied to a slot before it is sent: then no step waits for an acknowledgement before the result is
//! written over it.

use super::binomial::Placed;
use super::blocks::{others, receive, send};
use super::builder::{Area, Builder, Chunk, ChunkResult};
use super::{Buffer, BufferOffset, StepId};
use crate::grid::Grid;

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

/// Folds all nodes' contributions, each there after its steps: those of each group in rank order, level by level. The sums of the groups go
/// to `sums`, if there are any, which have a place for each group of the first level; else over a contribution that lies in a slot.
pub(super) fn fold_nodes(
    b: &mut Builder,
    chunk: Chunk,
    (contributions, sums): (&[Placed], Option<&[Placed]>),
    into: BufferOffset,
    len: usize,
) -> Vec<StepId> {
    let (grid, level) = (b.problem.grid, b.problem.grid.top());
    let folds = Folds { grid, contributions, sums, len };
    let (sources, after) = folds.members(b, chunk, level, 0);
    b.fold(chunk, into, &sources, len, &after)
}

/// The folds within groups.
struct Folds<'a> {
    grid: Grid,
    contributions: &'a [Placed],
    sums: Option<&'a [Placed]>,
    len: usize,
}

impl Folds<'_> {
    /// What the units of a group give, in rank order, and the steps after which it is there.
    fn members(
        &self,
        b: &mut Builder,
        chunk: Chunk,
        level: usize,
        group: u32,
    ) -> (Vec<BufferOffset>, Vec<StepId>) {
        let (mut places, mut there) = (Vec::new(), Vec::new());
        for unit in self.grid.group(level, group) {
            let Some(below) = level.checked_sub(1) else {
                let (place, after) = &self.contributions[unit as usize];
                places.push(*place);
                there.extend(after);
                continue;
            };
            let (sources, mut after) = self.members(b, chunk, below, unit);
            let scratch = match self.sums {
                Some(sums) => {
                    let first = self.grid.group_of(0, unit * self.grid.unit_size(level));
                    sums.get(first as usize).map(|(place, free)| {
                        after.extend(free);
                        *place
                    })
                }
                None => sources.iter().copied().find(|place| place.buffer == Buffer::Slot),
            };
            match scratch {
                Some(scratch) if sources.len() > 1 => {
                    there.extend(b.fold(chunk, scratch, &sources, self.len, &after));
                    places.push(scratch);
                }
                _ => {
                    there.extend(after);
                    places.extend(sources);
                }
            }
        }
        (places, there)
    }
}
