//! Recursive doubling: an all-reduce of small tensors in ceil(log2(H)) rounds, two more unless H is a power of two.
//!
//! In round k two nodes whose numbers differ in bit k exchange the sums of their 2^k nodes, and both fold them, the lower node's first. So
//! all end with the same expression: contributions in rank order, in brackets as a balanced tree has them. Where H is no power of two,
//! the odd ones of the first nodes give theirs to the node before them, and get the result from there. (Thakur, Rabenseifner and
//! Gropp, "Optimization of collective communication operations in MPICH", 2005.) f16 and bf16 are rounded in every round.
//!
//! Every sum has its own slot, so no step waits for an acknowledgement.

use super::blocks::{receive, send};
use super::builder::{Area, Builder, Chunk, ChunkResult};
use super::{BufferOffset, StepId};

/// The nodes that take part in the rounds: a power of two of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Participants {
    /// How many there are.
    pub(super) count: u32,
    /// How many of them stand for the node after them, too: the first ones.
    doubled: u32,
}

/// A node's part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// This node stands for it.
    Represented(u32),
    /// Its number among the participants, and the node that it stands for.
    Participant(u32, Option<u32>),
}

impl Participants {
    pub(super) fn of(nodes: u32) -> Self {
        let count = 1 << nodes.ilog2();
        Self { count, doubled: nodes - count }
    }

    pub(super) fn role(self, node: u32) -> Role {
        if node >= 2 * self.doubled {
            return Role::Participant(node - self.doubled, None);
        }
        match node % 2 {
            0 => Role::Participant(node / 2, Some(node + 1)),
            _ => Role::Represented(node - 1),
        }
    }

    /// The node with this number among the participants.
    pub(super) fn node(self, number: u32) -> u32 {
        if number < self.doubled { 2 * number } else { number + self.doubled }
    }
}

/// One chunk over the up grid; the area holds this node's contribution after `ready`.
pub(super) fn up(b: &mut Builder, chunk: Chunk, area: Area, ready: &[StepId]) -> ChunkResult {
    let (len, at, elems) = (b.bytes(chunk.slice), b.at(area, chunk.slice), b.full_chunk().end);
    let (round, participants) = (chunk.index, Participants::of(b.problem.grid.nodes()));
    // Sends are from a slot: then the result may overwrite the area.
    let (own, free) = b.slot(chunk, 0, elems);
    let after: Vec<_> = ready.iter().copied().chain(free).collect();
    let copied = b.copy(chunk, at, own, len, &after);
    let (number, represented) = match participants.role(b.problem.node()) {
        Role::Represented(by) => {
            let sent = send(b, chunk, (by, round), own, len, &copied);
            b.slot_used(chunk, 0, &[copied.as_slice(), &[sent]].concat());
            let result = vec![receive(b, chunk, (by, round), at, len, &copied)];
            return ChunkResult { result, sends: Vec::new() };
        }
        Role::Participant(number, represented) => (number, represented),
    };
    let partners = (0..participants.count.trailing_zeros()).map(|bit| {
        let partner = number ^ (1 << bit);
        (participants.node(partner), partner > number)
    });
    let mut exchange: Vec<(u32, bool, bool)> = Vec::new();
    exchange.extend(represented.map(|node| (node, true, false)));
    exchange.extend(partners.map(|(node, above)| (node, above, true)));
    let (mut sum, mut have) = (own, copied);
    let last = exchange.len() - 1;
    let mut used = Vec::new();
    for (index, (node, above, sends)) in exchange.into_iter().enumerate() {
        let mut reads = Vec::new();
        if sends {
            reads.push(send(b, chunk, (node, round), sum, len, &have));
        }
        let (slot, free) = b.slot(chunk, 2 * index + 1, elems);
        let came = receive(b, chunk, (node, round), slot, len, &free);
        let sources: [BufferOffset; 2] = if above { [sum, slot] } else { [slot, sum] };
        let mut after = [have.as_slice(), &[came]].concat();
        let next = if index == last {
            at
        } else {
            let (next, free) = b.slot(chunk, 2 * index + 2, elems);
            after.extend(free);
            next
        };
        have = b.fold(chunk, next, &sources, len, &after);
        reads.extend(&have);
        b.slot_used(chunk, 2 * index + 1, &have);
        used.push((2 * index, reads));
        sum = next;
    }
    for (number, last) in used {
        b.slot_used(chunk, number, &last);
    }
    let result = b.finish_sum(chunk, at, len, have);
    let sends = represented.map(|node| send(b, chunk, (node, round), at, len, &result));
    ChunkResult { result, sends: sends.into_iter().collect() }
}
