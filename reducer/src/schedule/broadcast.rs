//! Broadcast: down one tree over the nodes, or several, from the root's; within a node through the result area.
//!
//! Chunks follow one another down the tree.

use super::blocks::{receive, send};
use super::builder::{Area, Builder, Chunk, ChunkResult};
use super::sub::{give_result, node_area, take_result, wait_free};
use super::tree::{self, Tree, relative, trees};
use super::{Action, Algorithm, Buffer, StepId};
use crate::transport::LaneFlag;

/// The whole broadcast, chunk by chunk.
pub(super) fn broadcast(b: &mut Builder, algorithm: Algorithm) {
    let trees = trees(algorithm, relative(b), b.problem.grid.nodes());
    let shared = b.problem.locals() > 1 || b.problem.access.is_device();
    if shared {
        b.use_lanes();
    }
    let mut consumed = Vec::new();
    for chunk in b.chunks() {
        if shared {
            let free = wait_free(b, chunk, &consumed);
            consumed.push(on_node(b, &trees, chunk, free));
        } else {
            let area = Area { buffer: Buffer::Data, base: 0 };
            pass(b, &trees, chunk, area, &[]);
        }
    }
}

fn on_node(b: &mut Builder, trees: &[Tree], chunk: Chunk, free: StepId) -> StepId {
    let (grid, root, area) = (b.problem.grid, b.problem.root, node_area(chunk));
    let (leader, home) = (b.problem.local() == 0, b.problem.node() == grid.node_of(root));
    let (data, at, len) = (b.data(chunk.slice), b.at(area, chunk.slice), b.bytes(chunk.slice));
    if b.problem.rank == root {
        let copied = b.copy(chunk, data, at, len, &[free]);
        let reduced = b.step(chunk, Action::Signal { flag: LaneFlag::Reduced }, &copied);
        let mut last = vec![reduced];
        if leader {
            last.extend(pass(b, trees, chunk, area, &copied).sends);
        }
        return b.step(chunk, Action::Signal { flag: LaneFlag::Consumed }, &last);
    }
    if home {
        let wait = Action::Wait { local: grid.local_of(root), flag: LaneFlag::Reduced };
        let there = b.step(chunk, wait, &[free]);
        let mut last = b.copy(chunk, at, data, len, &[there]);
        if leader {
            last.extend(pass(b, trees, chunk, area, &[there]).sends);
        }
        return b.step(chunk, Action::Signal { flag: LaneFlag::Consumed }, &last);
    }
    if leader {
        let outcome = pass(b, trees, chunk, area, &[free]);
        return give_result(b, chunk, outcome);
    }
    take_result(b, chunk, &[free])
}

/// Passes a chunk on down the trees: at the root's node it is there after `ready`, elsewhere the area may be written.
fn pass(b: &mut Builder, trees: &[Tree], chunk: Chunk, area: Area, ready: &[StepId]) -> ChunkResult {
    let mut outcome = ChunkResult::default();
    let parts = trees.len() as u32;
    for (part, Tree { parent, children }) in (0..parts).zip(trees) {
        let (slice, round) = (chunk.slice.part(part, parts), part * b.chunk_count() + chunk.index);
        if slice.is_empty() && parts > 1 {
            outcome.result.extend(ready);
            continue;
        }
        let (place, len) = (b.at(area, slice), b.bytes(slice));
        let have = match *parent {
            Some(parent) => {
                let from = tree::node(b, parent);
                vec![receive(b, chunk, (from, round), place, len, ready)]
            }
            None => ready.to_vec(),
        };
        for &child in children {
            let to = tree::node(b, child);
            outcome.sends.push(send(b, chunk, (to, round), place, len, &have));
        }
        outcome.result.extend(have);
    }
    outcome
}
