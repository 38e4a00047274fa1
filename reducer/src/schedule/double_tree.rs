//! Double binary tree: two trees, each for half of a chunk. A node has children in one of them at most, so it sends each byte about once, as
//! in a chain, and is log2(H) hops away from the root.
//!
//! Both are binary trees in which a node's number lies between those of its left and its right subtree; so the odd numbers are leaves. The
//! other tree has the nodes in reverse order if their number is even, else moved on by one, which makes inner nodes of leaves. (Sanders,
//! Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009.)
//!
//! In a broadcast the root sends to both trees, which have the other nodes. In an all-reduce all nodes are in both trees: sums go up and
//! results down. A node folds the sum of its left subtree, its own contribution, and the sum of its right one, so in the
//! first tree contributions keep their order. f16 and bf16 are rounded at every inner node.

use super::StepId;
use super::blocks::{receive, send};
use super::builder::{Area, Builder, Chunk, ChunkResult};
use super::tree::Tree;

/// The number above `at` of 1 to `count`, if it is not the root.
fn parent(at: u32, count: u32) -> Option<u32> {
    let lowest = at & at.wrapping_neg();
    let up = (at ^ lowest) | lowest << 1;
    let up = if up <= count { up } else { at ^ lowest };
    (up > 0).then_some(up)
}

/// The number of node `at` of 1 to `count` in the other tree.
fn other(at: u32, count: u32) -> u32 {
    if count.is_multiple_of(2) { count + 1 - at } else { at % count + 1 }
}

/// The places of number `me` of 1 to `count`.
fn both(me: u32, count: u32) -> [Tree; 2] {
    let place = |number: &dyn Fn(u32) -> u32| {
        let named = |wanted: u32| (1..=count).find(|&at| number(at) == wanted);
        let mine = number(me);
        let below = (1..=count).filter(|&at| parent(at, count) == Some(mine));
        Tree { parent: parent(mine, count).and_then(named), children: below.filter_map(named).collect() }
    };
    [place(&|at| at), place(&|at| other(at, count))]
}

/// The places of relative number `me` in two trees of all but the root, which is above both.
pub(super) fn below_root(me: u32, nodes: u32) -> [Tree; 2] {
    let count = nodes - 1;
    if me == 0 {
        let top = |number: &dyn Fn(u32) -> u32| {
            let children = (1..=count).filter(|&at| parent(number(at), count).is_none()).collect();
            Tree { parent: None, children }
        };
        return [top(&|at| at), top(&|at| other(at, count))];
    }
    both(me, count).map(|tree| Tree { parent: tree.parent.or(Some(0)), ..tree })
}

/// One chunk of an all-reduce over the up grid; the area holds this node's contribution after `ready`.
pub(super) fn up(b: &mut Builder, chunk: Chunk, area: Area, ready: &[StepId]) -> ChunkResult {
    let (me, nodes) = (b.problem.node(), b.problem.grid.nodes());
    let room = b.full_chunk().largest_part(2);
    let mut outcome = ChunkResult::default();
    let mut number = 0;
    for (part, Tree { parent, children }) in (0..).zip(both(me + 1, nodes)) {
        let slice = chunk.slice.part(part, 2);
        if slice.is_empty() {
            continue;
        }
        let (at, len) = (b.at(area, slice), b.bytes(slice));
        let round = |phase: u32| (2 * phase + part) * b.chunk_count() + chunk.index;
        let (up, down) = (round(0), round(1));
        let first = number;
        let position = |node: u32| if part == 0 { node } else { other(node, nodes) };
        let mut sources = vec![(position(me + 1), at)];
        let mut after = ready.to_vec();
        for &child in &children {
            let (slot, free) = b.slot(chunk, number, room);
            after.push(receive(b, chunk, (child - 1, up), slot, len, &free));
            sources.push((position(child), slot));
            number += 1;
        }
        let mut have = after.clone();
        if !children.is_empty() {
            sources.sort_unstable_by_key(|(position, _)| *position);
            let sources: Vec<_> = sources.into_iter().map(|(_, place)| place).collect();
            have = b.fold(chunk, at, &sources, len, &after);
        }
        for slot in first..number {
            b.slot_used(chunk, slot, &have);
        }
        have = match parent {
            None => b.finish_sum(chunk, at, len, have),
            Some(parent) => {
                let sent = send(b, chunk, (parent - 1, up), at, len, &have);
                vec![receive(b, chunk, (parent - 1, down), at, len, &[sent])]
            }
        };
        for &child in &children {
            outcome.sends.push(send(b, chunk, (child - 1, down), at, len, &have));
        }
        outcome.result.extend(have);
    }
    outcome
}

#[cfg(test)]
mod tests;
