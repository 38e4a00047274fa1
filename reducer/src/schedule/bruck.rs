//! Bruck: small blocks reach all nodes in ceil(log2(H)) rounds, for any number of nodes.
//!
//! An all-gather collects blocks in a slot, that of the node itself first and then those of the nodes behind it: in round k a node sends the
//! first 2^k to the node 2^k before it, and gets as many more from the one 2^k after it. An all-reduce does the same with contributions and
//! folds them all in the order of [`direct`](super::direct), so it ends with the same bits. An all-to-all numbers blocks by the
//! distance that they have to go; round k moves those with bit k set by 2^k nodes. (Bruck, Ho, Kipnis, Upfal and Weathersby,
//! "Efficient algorithms for all-to-all communications in multiport message-passing systems", 1997.)

use super::binomial::Placed;
use super::blocks::{receive, send};
use super::builder::{Area, Builder, Chunk, ChunkResult};
use super::direct::fold_nodes;
use super::dissemination::distances;
use super::{BufferOffset, StepId};

/// One chunk of an all-reduce over the up grid; the area holds this node's contribution after `ready`.
pub(super) fn up(b: &mut Builder, chunk: Chunk, area: Area, ready: &[StepId]) -> ChunkResult {
    let (len, at, room) = (b.bytes(chunk.slice), b.at(area, chunk.slice), b.full_chunk().end);
    let Gathered { blocks, sends } = all_gather(b, chunk, (at, ready), (0, room), len);
    // Other nodes' contributions are sent on from where they lie, so the groups' sums go elsewhere.
    let groups = b.problem.grid.groups(0);
    let mut sums = Vec::new();
    for group in 0..if groups > 1 { groups as usize } else { 0 } {
        sums.push(b.slot(chunk, group + 1, room));
    }
    let folded = fold_nodes(b, chunk, (&blocks, Some(&sums)), at, len);
    for group in 0..sums.len() {
        b.slot_used(chunk, group + 1, &folded);
    }
    b.slot_used(chunk, 0, &[folded.as_slice(), &sends].concat());
    let result = b.finish_sum(chunk, at, len, folded);
    ChunkResult { result, sends: Vec::new() }
}

/// The result of an all-gather.
pub(super) struct Gathered {
    /// By node, in a slot.
    pub(super) blocks: Vec<Placed>,
    /// Sends from that slot.
    pub(super) sends: Vec<StepId>,
}

/// Every node gives `len` bytes, there after `ready`, and gets those of all in slot `number`, with room for `room` elements of each.
pub(super) fn all_gather(
    b: &mut Builder,
    chunk: Chunk,
    (own, ready): (BufferOffset, &[StepId]),
    (number, room): (usize, u64),
    len: usize,
) -> Gathered {
    let (me, nodes) = (b.problem.node(), b.problem.grid.nodes());
    let (slot, free) = b.slot(chunk, number, room * u64::from(nodes));
    let at = |index: u32| BufferOffset { offset: slot.offset + index as usize * len, ..slot };
    let after: Vec<_> = ready.iter().chain(&free).copied().collect();
    let mut have = b.copy(chunk, own, slot, len, &after);
    let mut blocks = vec![(slot, have.clone()); nodes as usize];
    let mut sends = Vec::new();
    for distance in distances(nodes) {
        let (to, from) = ((me + nodes - distance) % nodes, (me + distance) % nodes);
        let count = distance.min(nodes - distance);
        let bytes = count as usize * len;
        sends.push(send(b, chunk, (to, chunk.index), slot, bytes, &have));
        let came = receive(b, chunk, (from, chunk.index), at(distance), bytes, &free);
        for index in distance..distance + count {
            blocks[((me + index) % nodes) as usize] = (at(index), vec![came]);
        }
        have.push(came);
    }
    Gathered { blocks, sends }
}

/// Every node has `len` bytes for each other one, in parts of `part` bytes at `of`, all there after `ready`, and gets as many from each at
/// `into`, which may be what it had for that one. Slots from number 0 on have room for `room` elements of a node's block. Returns the
/// steps after which all is there, and its own blocks are read.
pub(super) fn all_to_all(
    b: &mut Builder,
    chunk: Chunk,
    (of, into): (impl Fn(u32) -> Vec<BufferOffset>, impl Fn(u32) -> BufferOffset),
    ready: &[StepId],
    room: u64,
    (len, part): (usize, usize),
) -> Vec<StepId> {
    let (me, nodes) = (b.problem.node(), b.problem.grid.nodes());
    // By distance: the block that is on its way, once it has been moved, in a slot that holds all blocks of a round.
    let mut moved: Vec<Option<(usize, Placed)>> = vec![None; nodes as usize];
    // By distance: the steps that have read this node's own block.
    let mut read: Vec<Vec<StepId>> = vec![Vec::new(); nodes as usize];
    // By slot: the steps that must be done before it is used again.
    let mut used: Vec<Vec<StepId>> = Vec::new();
    for distance in distances(nodes) {
        let indices: Vec<u32> = (1..nodes).filter(|index| index & distance != 0).collect();
        let (elems, number) = (room * indices.len() as u64, used.len());
        let (packed, free) = b.slot(chunk, number, elems);
        let (arrived, come) = b.slot(chunk, number + 1, elems);
        let mut packs = Vec::new();
        for (place, &index) in indices.iter().enumerate() {
            let to = |part: usize| BufferOffset { offset: packed.offset + place * len + part, ..packed };
            if let Some((slot, (from, there))) = &moved[index as usize] {
                let copied = b.copy(chunk, *from, to(0), len, &[there.as_slice(), &free].concat());
                used[*slot].extend(&copied);
                packs.extend(copied);
                continue;
            }
            let after = [ready, &free].concat();
            for (i, from) in of((me + index) % nodes).into_iter().enumerate() {
                read[index as usize].extend(b.copy(chunk, from, to(i * part), part, &after));
            }
            packs.extend(&read[index as usize]);
        }
        let (to, from) = ((me + distance) % nodes, (me + nodes - distance) % nodes);
        let bytes = indices.len() * len;
        let sent = send(b, chunk, (to, chunk.index), packed, bytes, &packs);
        let came = receive(b, chunk, (from, chunk.index), arrived, bytes, &come);
        for (place, index) in indices.into_iter().enumerate() {
            let block = BufferOffset { offset: arrived.offset + place * len, ..arrived };
            moved[index as usize] = Some((number + 1, (block, vec![came])));
        }
        packs.push(sent);
        used.push(packs);
        used.push(Vec::new());
    }
    let mut last = ready.to_vec();
    for (index, block) in (0..nodes).zip(moved) {
        let Some((slot, (from, mut after))) = block else { continue };
        let node = (me + nodes - index) % nodes;
        after.extend(&read[(nodes - index) as usize]);
        let copied = b.copy(chunk, from, into(node), len, &after);
        used[slot].extend(&copied);
        last.extend(copied);
    }
    for (number, last) in used.into_iter().enumerate() {
        b.slot_used(chunk, number, &last);
    }
    last
}
