//! Halving and doubling: an all-reduce of large tensors in 2 log2(H) rounds, two more unless H is a power of two.
//!
//! In round k two nodes whose numbers differ in bit k halve what they have left: each keeps one half, gets the other one's sum of that and
//! folds, the lower node's first. At the end each has a part of the sum, and the rounds are run backwards to collect the others. A node
//! sends 2(H - 1)/H of the chunk. (Rabenseifner, "Optimization of collective reduction operations", 2004.)
//!
//! Contributions are folded as by [`recursive_doubling`](super::recursive_doubling), of which a node that stands for another
//! one is taken, too: an element has the same bits. Fragments are reduced as they arrive where that is the order.

use super::blocks::{receive, send};
use super::builder::{Area, Builder, Chunk, ChunkResult, Slice};
use super::recursive_doubling::{Participants, Role};
use super::{Action, StepId};

/// A round of halving, as the way back needs it.
struct Halved {
    partner: u32,
    given: Slice,
    sent: Option<StepId>,
}

/// One chunk over the up grid; the area holds this node's contribution after `ready`.
pub(super) fn up(b: &mut Builder, chunk: Chunk, area: Area, ready: &[StepId]) -> ChunkResult {
    let participants = Participants::of(b.problem.grid.nodes());
    let (back, whole) = (b.chunk_count() + chunk.index, chunk.slice);
    let (at, len) = (b.at(area, whole), b.bytes(whole));
    let (number, represented) = match participants.role(b.problem.node()) {
        Role::Represented(by) => {
            let sent = send(b, chunk, (by, chunk.index), at, len, ready);
            let result = vec![receive(b, chunk, (by, back), at, len, &[sent])];
            return ChunkResult { result, sends: Vec::new() };
        }
        Role::Participant(number, represented) => (number, represented),
    };
    let (mut have, mut slot) = (ready.to_vec(), 0);
    if let Some(node) = represented {
        let room = b.full_chunk().end;
        have = reduce(b, chunk, (area, whole), (node, true), (&mut slot, room), &have);
    }
    let mut kept = whole;
    let mut halved = Vec::new();
    for bit in 0..participants.count.trailing_zeros() {
        let (partner, above) = (participants.node(number ^ (1 << bit)), number >> bit & 1 == 0);
        let [low, high] = [kept.part(0, 2), kept.part(1, 2)];
        let (keep, given) = if above { (low, high) } else { (high, low) };
        let sent = (!given.is_empty()).then(|| {
            let (from, len) = (b.at(area, given), b.bytes(given));
            send(b, chunk, (partner, chunk.index), from, len, &have)
        });
        let room = b.full_chunk().largest_part(2 << bit);
        have = reduce(b, chunk, (area, keep), (partner, above), (&mut slot, room), &have);
        kept = keep;
        halved.push(Halved { partner, given, sent });
    }
    let (at, len) = (b.at(area, kept), b.bytes(kept));
    let mut result = b.finish_sum(chunk, at, len, have);
    let mut sends = Vec::new();
    for Halved { partner, given, sent } in halved.into_iter().rev() {
        if !kept.is_empty() {
            let (from, len) = (b.at(area, kept), b.bytes(kept));
            sends.push(send(b, chunk, (partner, back), from, len, &result));
        }
        if let Some(sent) = sent {
            let (into, len) = (b.at(area, given), b.bytes(given));
            result.push(receive(b, chunk, (partner, back), into, len, &[sent]));
        }
        kept = Slice { start: kept.start.min(given.start), end: kept.end.max(given.end) };
    }
    if let Some(node) = represented {
        let (from, len) = (b.at(area, whole), b.bytes(whole));
        sends.push(send(b, chunk, (node, back), from, len, &result));
    }
    ChunkResult { result, sends }
}

/// Receives a node's sum of a slice, and folds it with what is there: after it, if that node is above this one. `slot` is the next free
/// slot's number.
fn reduce(
    b: &mut Builder,
    chunk: Chunk,
    (area, slice): (Area, Slice),
    (node, above): (u32, bool),
    (slot, room): (&mut usize, u64),
    ready: &[StepId],
) -> Vec<StepId> {
    if slice.is_empty() {
        return ready.to_vec();
    }
    let (at, len) = (b.at(area, slice), b.bytes(slice));
    if above && !b.problem.works_on_device() {
        let from = b.problem.grid.leader_of(node);
        return vec![b.step(chunk, Action::ReceiveReduce { from, round: chunk.index, into: at, len }, ready)];
    }
    let number = *slot;
    *slot += 1;
    let (theirs, free) = b.slot(chunk, number, room);
    let came = receive(b, chunk, (node, chunk.index), theirs, len, &free);
    let sources = if above { [at, theirs] } else { [theirs, at] };
    let folded = b.fold(chunk, at, &sources, len, &[ready, &[came]].concat());
    b.slot_used(chunk, number, &folded);
    folded
}
