//! Ring: reduce-scatter and all-gather around all nodes, each chunk a ring of its own; an all-reduce does one after the other.
//!
//! Of an all-reduce, a chunk has one piece per node. In H - 1 rounds each piece travels once around, every node reducing its own part
//! into it; in H - 1 more rounds the finished pieces travel around. Each node sends 2(H - 1)/H of the chunk, and
//! every round has one contribution per element, so fragments are reduced as they arrive. (Patarasuk and Yuan,
//! "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.) On a device they wait in one of two slots, and
//! are folded when all have come.

use super::builder::{Area, Builder, Chunk, ChunkResult, Slice};
use super::{Action, BufferOffset, StepId, blocks};

/// One chunk over the up grid; the area holds this node's contribution after `ready`.
pub(super) fn up(b: &mut Builder, chunk: Chunk, area: Area, ready: &[StepId]) -> ChunkResult {
    let (me, nodes) = (b.problem.node(), b.problem.grid.nodes());
    let (next, prev) = ((me + 1) % nodes, (me + nodes - 1) % nodes);
    let piece = |back: u32| -> Slice { chunk.slice.part((me + nodes - back % nodes) % nodes, nodes) };
    let hops = nodes - 1;
    let round = |phase: u32, hop: u32| (phase * b.chunk_count() + chunk.index) * hops + hop;
    let (scatter, gather) = (round(0, 0), round(1, 0));
    let mut outcome = ChunkResult::default();

    // Reduce-scatter: hop s sends the piece s places back and receives the one before it.
    let mut have: Vec<StepId> = ready.to_vec();
    let mut sent: Vec<Vec<StepId>> = Vec::new();
    for hop in 0..hops {
        sent.push(send(b, chunk, area, piece(hop), (next, scatter + hop), &have).into_iter().collect());
        let slice = piece(hop + 1);
        have = ready.to_vec();
        if !slice.is_empty() {
            let (into, len) = (b.at(area, slice), b.bytes(slice));
            have = reduce(b, chunk, (into, len), (prev, scatter + hop), hop, ready);
        }
    }
    let own = piece(hops);
    let (at, len) = (b.at(area, own), b.bytes(own));
    let mut have = b.finish_sum(chunk, at, len, have);
    outcome.result.extend(&have);

    // Allgather: hop s passes on the piece that came last and receives the piece that was sent in hop s above.
    for hop in 0..hops {
        outcome.sends.extend(send(b, chunk, area, piece(hops + hop), (next, gather + hop), &have));
        let slice = piece(hop);
        have = sent[hop as usize].clone();
        if !slice.is_empty() {
            let (into, len) = (b.at(area, slice), b.bytes(slice));
            have = vec![blocks::receive(b, chunk, (prev, gather + hop), into, len, &have)];
            outcome.result.extend(&have);
        }
    }
    outcome
}

/// Receives the piece of one hop, and reduces it into place.
fn reduce(
    b: &mut Builder,
    chunk: Chunk,
    (into, len): (BufferOffset, usize),
    (node, round): (u32, u32),
    hop: u32,
    ready: &[StepId],
) -> Vec<StepId> {
    if !b.problem.works_on_device() {
        let from = b.problem.grid.leader_of(node);
        return vec![b.step(chunk, Action::ReceiveReduce { from, round, into, len }, ready)];
    }
    let (number, room) = (hop as usize % 2, b.full_chunk().largest_part(b.problem.grid.nodes()));
    let (slot, free) = b.slot(chunk, number, room);
    let mut after = ready.to_vec();
    after.push(blocks::receive(b, chunk, (node, round), slot, len, &free));
    let folded = b.fold(chunk, into, &[into, slot], len, &after);
    b.slot_used(chunk, number, &folded);
    folded
}

fn send(
    b: &mut Builder,
    chunk: Chunk,
    area: Area,
    slice: Slice,
    to: (u32, u32),
    after: &[StepId],
) -> Option<StepId> {
    if slice.is_empty() {
        return None;
    }
    let (from, len) = (b.at(area, slice), b.bytes(slice));
    Some(blocks::send(b, chunk, to, from, len, after))
}

/// One chunk of an all-gather: every node gives `len` bytes at `own` after `ready`, and gets each other one's at its place, which may be
/// written after `free`. A block is passed on as soon as it has come.
pub(super) fn all_gather(
    b: &mut Builder,
    chunk: Chunk,
    (own, ready): (BufferOffset, &[StepId]),
    (place, free): (impl Fn(u32) -> BufferOffset, &[StepId]),
    len: usize,
) -> ChunkResult {
    let (me, nodes) = (b.problem.node(), b.problem.grid.nodes());
    let (next, prev) = ((me + 1) % nodes, (me + nodes - 1) % nodes);
    let mut outcome = ChunkResult { result: ready.to_vec(), sends: Vec::new() };
    let (mut at, mut have) = (own, ready.to_vec());
    for hop in 0..nodes - 1 {
        let round = chunk.index * (nodes - 1) + hop;
        outcome.sends.push(blocks::send(b, chunk, (next, round), at, len, &have));
        at = place((me + nodes - 1 - hop) % nodes);
        have = vec![blocks::receive(b, chunk, (prev, round), at, len, free)];
        outcome.result.extend(&have);
    }
    outcome
}

/// One chunk of a reduce-scatter: every node has `len` bytes for each at `of` after `ready`, and gets the sum of its own in `into`.
/// Returns the result and the other steps that read there. The sum of a node's block begins at the node after it and goes around; each
/// node folds its contribution into it.
pub(super) fn reduce_scatter(
    b: &mut Builder,
    chunk: Chunk,
    (of, into): (impl Fn(u32) -> BufferOffset, BufferOffset),
    ready: &[StepId],
    (len, room): (usize, u64),
) -> ChunkResult {
    let (me, nodes) = (b.problem.node(), b.problem.grid.nodes());
    let (next, prev) = ((me + 1) % nodes, (me + nodes - 1) % nodes);
    let mut outcome = ChunkResult::default();
    let (mut at, mut have, mut folded) = (of(prev), ready.to_vec(), None);
    for hop in 0..nodes - 1 {
        let (round, number) = (chunk.index * (nodes - 1) + hop, hop as usize % 2);
        let sent = blocks::send(b, chunk, (next, round), at, len, &have);
        match folded.take() {
            Some(folded) => {
                b.slot_used(chunk, 1 - number, &[folded, sent]);
                outcome.sends.push(folded);
            }
            None => outcome.sends.push(sent),
        }
        let (slot, free) = b.slot(chunk, number, room);
        let came = blocks::receive(b, chunk, (prev, round), slot, len, &free);
        let own = of((me + 2 * nodes - 2 - hop) % nodes);
        at = if hop == nodes - 2 { into } else { slot };
        have = b.fold(chunk, at, &[slot, own], len, &[ready, &[came]].concat());
        folded = have.first().copied();
        if at == into {
            b.slot_used(chunk, number, &have);
        }
    }
    outcome.result = b.finish_sum(chunk, into, len, have);
    outcome
}
