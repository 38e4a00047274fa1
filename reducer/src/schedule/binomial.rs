//! Binomial trees: collectives with a root in ceil(log2(H)) rounds.
//!
//! Node numbers are taken relative to the root's. A node's parent is its number without the lowest set bit, so its subtree is a range that
//! begins with itself, and all blocks of a subtree are one message. Blocks of inner nodes wait in a slot, in the order of that range.
//!
//! A reduce does not fold on the way: the root gathers all contributions and folds them in the order of [`direct`](super::direct), so that it
//! ends with the same bits. That sends more bytes than partial sums, so it is for small tensors.

use super::blocks::{receive, send};
use super::builder::{Builder, Chunk};
use super::tree::{self, Tree};
use super::{BufferOffset, StepId};

/// The place of relative number `me`; the child with the largest subtree comes first.
pub(super) fn tree(me: u32, nodes: u32) -> Tree {
    let bits = if me == 0 { u32::BITS - nodes.leading_zeros() } else { me.trailing_zeros() };
    let children = (0..bits).rev().map(|bit| me + (1 << bit)).filter(|&child| child < nodes).collect();
    Tree { parent: (me > 0).then(|| me & (me - 1)), children }
}

/// Nodes of the subtree of relative number `me`.
fn subtree(me: u32, nodes: u32) -> u32 {
    if me == 0 { nodes } else { (1 << me.trailing_zeros()).min(nodes - me) }
}

/// A node's contribution, or its part of the result, and the steps after which it is there.
pub(super) type Placed = (BufferOffset, Vec<StepId>);

/// Every node gives `len` bytes, there after `ready`; slot `number` has room for `room` elements of each. Returns the steps after which
/// `own` may be written; and at the root what all nodes have given, by node, which lies in the slot but for the root's own.
pub(super) fn gather(
    b: &mut Builder,
    chunk: Chunk,
    (own, ready): (BufferOffset, &[StepId]),
    (number, room): (usize, u64),
    len: usize,
) -> (Vec<StepId>, Vec<Placed>) {
    let (me, nodes) = (tree::relative(b), b.problem.grid.nodes());
    let (place, size) = (tree(me, nodes), subtree(me, nodes));
    let parent = place.parent.map(|parent| tree::node(b, parent));
    if let Some(parent) = parent.filter(|_| size == 1) {
        return (vec![send(b, chunk, (parent, chunk.index), own, len, ready)], Vec::new());
    }
    let (slot, free) = b.slot(chunk, number, room * u64::from(size));
    let at = |relative: u32| BufferOffset { offset: slot.offset + (relative - me) as usize * len, ..slot };
    let mut gathered: Vec<Placed> = vec![(own, ready.to_vec()); nodes as usize];
    let mut there = Vec::new();
    for &child in &place.children {
        let (from, size) = (tree::node(b, child), subtree(child, nodes));
        let came = receive(b, chunk, (from, chunk.index), at(child), size as usize * len, &free);
        there.push(came);
        for relative in child..child + size {
            gathered[tree::node(b, relative) as usize] = (at(relative), vec![came]);
        }
    }
    let Some(parent) = parent else { return (ready.to_vec(), gathered) };
    let after: Vec<_> = ready.iter().chain(&free).copied().collect();
    let copied = b.copy(chunk, own, slot, len, &after);
    there.extend(&copied);
    let sent = send(b, chunk, (parent, chunk.index), slot, size as usize * len, &there);
    there.push(sent);
    b.slot_used(chunk, number, &there);
    (copied, Vec::new())
}

/// The root has `len` bytes for each node at `of`, there after `ready`; each node but the root gets its own in `into`, which may be written
/// after `ready`. Returns the steps after which it is there, and those after which what was there may be written.
pub(super) fn scatter(
    b: &mut Builder,
    chunk: Chunk,
    (of, into): (impl Fn(u32) -> BufferOffset, BufferOffset),
    ready: &[StepId],
    (number, room): (usize, u64),
    len: usize,
) -> (Vec<StepId>, Vec<StepId>) {
    let (me, nodes) = (tree::relative(b), b.problem.grid.nodes());
    let (place, size) = (tree(me, nodes), subtree(me, nodes));
    let parent = place.parent.map(|parent| tree::node(b, parent));
    if let Some(parent) = parent.filter(|_| size == 1) {
        return (vec![receive(b, chunk, (parent, chunk.index), into, len, ready)], Vec::new());
    }
    let (slot, free) = b.slot(chunk, number, room * u64::from(size));
    let at = |relative: u32| BufferOffset { offset: slot.offset + (relative - me) as usize * len, ..slot };
    let (mut here, mut there) = (Vec::new(), ready.to_vec());
    match parent {
        Some(parent) => {
            here.push(receive(b, chunk, (parent, chunk.index), slot, size as usize * len, &free));
            let after: Vec<_> = ready.iter().chain(&here).copied().collect();
            there = b.copy(chunk, slot, into, len, &after);
        }
        None => {
            let after: Vec<_> = ready.iter().chain(&free).copied().collect();
            for relative in 1..size {
                let from = of(tree::node(b, relative));
                here.extend(b.copy(chunk, from, at(relative), len, &after));
            }
        }
    }
    let mut used = [here.as_slice(), &there].concat();
    for &child in &place.children {
        let (to, size) = (tree::node(b, child), subtree(child, nodes));
        // The root's children wait for their own blocks only.
        let after = match parent {
            None if len > 0 => &here[child as usize - 1..(child + size) as usize - 1],
            _ => &here[..],
        };
        let after = after.to_vec();
        used.push(send(b, chunk, (to, chunk.index), at(child), size as usize * len, &after));
    }
    b.slot_used(chunk, number, &used);
    let copied = if parent.is_none() { here } else { Vec::new() };
    (there, copied)
}
