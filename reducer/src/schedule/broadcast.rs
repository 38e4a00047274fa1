//! Broadcast: a binomial tree over the nodes, from the root's; within a node through the result area.
//!
//! Node numbers are taken relative to the root's. A node's parent is its number without the lowest set bit, so that
//! the tree has depth log2(H). Chunks follow one another down the tree.

use super::builder::{Area, Builder, Chunk, ChunkResult};
use super::sub::{give_result, node_area, take_result, wait_free};
use super::{Action, Buffer, StepId};
use crate::grid::Rank;
use crate::transport::LaneFlag;

/// The whole broadcast, chunk by chunk.
pub(super) fn broadcast(b: &mut Builder) {
    let shared = b.problem.grid.per_node() > 1 || b.problem.access.is_device();
    if shared {
        b.use_lanes();
    }
    let mut consumed = Vec::new();
    for chunk in b.chunks() {
        if shared {
            let free = wait_free(b, chunk, &consumed);
            consumed.push(on_node(b, chunk, free));
        } else {
            let area = Area { buffer: Buffer::Data, base: 0 };
            let have = receive(b, chunk, area, &[]);
            pass_on(b, chunk, area, &have);
        }
    }
}

fn on_node(b: &mut Builder, chunk: Chunk, free: StepId) -> StepId {
    let (grid, root, area) = (b.problem.grid, b.problem.root, node_area(chunk));
    let (leader, home) = (b.problem.local() == 0, b.problem.node() == grid.node_of(root));
    let (data, at, len) = (b.data(chunk.slice), b.at(area, chunk.slice), b.bytes(chunk.slice));
    if b.problem.rank == root {
        let copied = b.copy(chunk, data, at, len, &[free]);
        let reduced = b.step(chunk, Action::Signal { flag: LaneFlag::Reduced }, &copied);
        let mut last = vec![reduced];
        if leader {
            last.extend(pass_on(b, chunk, area, &copied));
        }
        return b.step(chunk, Action::Signal { flag: LaneFlag::Consumed }, &last);
    }
    if home {
        let wait = Action::Wait { local: grid.local_of(root), flag: LaneFlag::Reduced };
        let there = b.step(chunk, wait, &[free]);
        let mut last = b.copy(chunk, at, data, len, &[there]);
        if leader {
            last.extend(pass_on(b, chunk, area, &[there]));
        }
        return b.step(chunk, Action::Signal { flag: LaneFlag::Consumed }, &last);
    }
    if leader {
        let result = receive(b, chunk, area, &[free]);
        let sends = pass_on(b, chunk, area, &result);
        return give_result(b, chunk, ChunkResult { result, sends });
    }
    take_result(b, chunk, &[free])
}

/// This node's number, counted from the root's node.
fn relative(b: &Builder) -> u32 {
    let (grid, nodes) = (b.problem.grid, b.problem.grid.nodes());
    (b.problem.node() + nodes - grid.node_of(b.problem.root)) % nodes
}

fn leader(b: &Builder, relative: u32) -> Rank {
    let grid = b.problem.grid;
    grid.leader_of((relative + grid.node_of(b.problem.root)) % grid.nodes())
}

/// Receives from the parent, if there is one.
fn receive(b: &mut Builder, chunk: Chunk, area: Area, after: &[StepId]) -> Vec<StepId> {
    let me = relative(b);
    if me == 0 {
        return after.to_vec();
    }
    let from = leader(b, me & (me - 1));
    let (into, len) = (b.at(area, chunk.slice), b.bytes(chunk.slice));
    vec![b.step(chunk, Action::Receive { from, round: chunk.index, into, len }, after)]
}

/// Sends to the children, the one with the largest subtree first.
fn pass_on(b: &mut Builder, chunk: Chunk, area: Area, have: &[StepId]) -> Vec<StepId> {
    let (me, nodes) = (relative(b), b.problem.grid.nodes());
    let bits = if me == 0 { u32::BITS - nodes.leading_zeros() } else { me.trailing_zeros() };
    let (from, len) = (b.at(area, chunk.slice), b.bytes(chunk.slice));
    let children = (0..bits).rev().map(|bit| me + (1 << bit)).filter(|&child| child < nodes);
    let children: Vec<Rank> = children.map(|child| leader(b, child)).collect();
    let round = chunk.index;
    children.into_iter().map(|to| b.step(chunk, Action::Send { to, round, from, len }, have)).collect()
}
