//! Hierarchical: reduce-scatter within the leaf group, a full mesh of the slice's roots across groups, and back.
//!
//! A chunk is cut into as many slices as a leaf group has nodes. Being a *root* is a role per slice, so no node
//! carries more than its share:
//!
//! ```text
//!   A  members of a group send slice q to the group's root of q, which folds
//!   B  the roots of q (one a group) exchange: root r gets part r of the slice from all others, and folds
//!   C  each root sends its finished part to the other roots of q
//!   D  each root sends the finished slice to the members of its group
//! ```
//!
//! Each node sends 2(H - 1)/H of the chunk when groups are full. Where just two contributions meet, fragments are
//! reduced as they arrive (on a device they wait in a slot, and are folded in the same order); where more meet, they wait in
//! slots and are folded in rank order.

use super::blocks::{receive, send};
use super::builder::{Area, Builder, Chunk, ChunkResult, Slice};
use super::{Action, StepId};
use crate::grid::Grid;

/// One chunk over the up grid; the area holds this node's contribution after `ready`.
pub(super) fn up(b: &mut Builder, chunk: Chunk, area: Area, ready: &[StepId]) -> ChunkResult {
    let (grid, me) = (b.problem.grid, b.problem.node());
    let slices = grid.leaf_size();
    let group = grid.leaf_group_of(me);
    let rounds = MessageNumbers { grid, chunks: b.chunk_count(), chunk: chunk.index };
    let mut outcome = ChunkResult::default();
    let mut slot = 0;
    for q in 0..slices {
        let slice = chunk.slice.part(q, slices);
        if slice.is_empty() {
            continue;
        }
        let root = grid.slice_root(group, q);
        let (at, len) = (b.at(area, slice), b.bytes(slice));
        if root != me {
            let sent = send(b, chunk, (root, rounds.leaf(0, q, root)), at, len, ready);
            outcome.result.push(receive(b, chunk, (root, rounds.leaf(1, q, root)), at, len, &[sent]));
            continue;
        }
        let up = rounds.leaf(0, q, me);
        let members: Vec<_> = grid.leaf_group(group).collect();
        let gather = Gather { area, slice, nodes: &members, round: up };
        let folded = gather.build(b, chunk, ready, &mut slot);
        let done = mesh(b, chunk, area, &rounds, (q, slice), folded, &mut slot, &mut outcome.sends);
        for &member in members.iter().filter(|&&node| node != me) {
            outcome.sends.push(send(b, chunk, (member, rounds.leaf(1, q, me)), at, len, &done));
        }
        outcome.result.extend(done);
    }
    outcome
}

/// Phases B and C for one slice that this node is a root of; returns the steps after which the slice is final.
#[expect(clippy::too_many_arguments, reason = "the parts of one chunk's state, used here only")]
fn mesh(
    b: &mut Builder,
    chunk: Chunk,
    area: Area,
    rounds: &MessageNumbers,
    (q, slice): (u32, Slice),
    folded: Vec<StepId>,
    slot: &mut usize,
    sends: &mut Vec<StepId>,
) -> Vec<StepId> {
    let (grid, me) = (b.problem.grid, b.problem.node());
    let groups = grid.leaf_groups();
    let own = grid.leaf_group_of(me);
    let roots: Vec<u32> = (0..groups).map(|g| grid.slice_root(g, q)).collect();
    let part = slice.part(own, groups);
    let mut scattered = Vec::new();
    for g in (0..groups).filter(|&g| g != own) {
        let theirs = slice.part(g, groups);
        let mut sent = None;
        if !theirs.is_empty() {
            let (from, len) = (b.at(area, theirs), b.bytes(theirs));
            sent = Some(send(b, chunk, (roots[g as usize], rounds.mesh(0, q)), from, len, &folded));
        }
        scattered.push((g, theirs, sent));
    }
    let summed =
        Gather { area, slice: part, nodes: &roots, round: rounds.mesh(0, q) }.build(b, chunk, &folded, slot);
    let (at, len) = (b.at(area, part), b.bytes(part));
    let mut done = b.finish_sum(chunk, at, len, summed);
    let finished = done.clone();
    for (g, theirs, sent) in scattered {
        let peer = (roots[g as usize], rounds.mesh(1, q));
        if len > 0 {
            sends.push(send(b, chunk, peer, at, len, &finished));
        }
        if let Some(sent) = sent {
            let (into, len) = (b.at(area, theirs), b.bytes(theirs));
            done.push(receive(b, chunk, peer, into, len, &[sent]));
        }
    }
    done
}

/// Several nodes' contributions to one slice meet at this one.
struct Gather<'a> {
    area: Area,
    slice: Slice,
    /// All of them, this one included, in rank order.
    nodes: &'a [u32],
    round: u32,
}

impl Gather<'_> {
    /// Returns the steps after which the slice holds all contributions. `slot` is the next free slot's number.
    fn build(&self, b: &mut Builder, chunk: Chunk, ready: &[StepId], slot: &mut usize) -> Vec<StepId> {
        let (grid, me, round) = (b.problem.grid, b.problem.node(), self.round);
        let (at, len) = (b.at(self.area, self.slice), b.bytes(self.slice));
        if len == 0 || self.nodes.len() == 1 {
            return ready.to_vec();
        }
        if let &[x, y] = self.nodes {
            let from = grid.leader_of(if x == me { y } else { x });
            if !b.problem.works_on_device() {
                return vec![b.step(chunk, Action::ReceiveReduce { from, round, into: at, len }, ready)];
            }
        }
        // All slots are as large as the largest slice, whatever they are for: a number may serve another purpose in
        // another chunk.
        let room = b.full_chunk().largest_part(grid.leaf_size());
        let first = *slot;
        let (mut sources, mut after) = (Vec::new(), ready.to_vec());
        if self.nodes.len() == 2 {
            // As fragments are reduced that arrive.
            sources.push(at);
        }
        for &node in self.nodes {
            if node == me {
                if self.nodes.len() > 2 {
                    sources.push(at);
                }
                continue;
            }
            let (into, free) = b.slot(chunk, *slot, room);
            *slot += 1;
            after.push(receive(b, chunk, (node, round), into, len, &free));
            sources.push(into);
        }
        let folded = b.fold(chunk, at, &sources, len, &after);
        for number in first..*slot {
            b.slot_used(chunk, number, &folded);
        }
        folded
    }
}

/// Numbers of the messages between two nodes. They run through the chunks of one phase, so that a receiver can grant
/// many with one credit message.
struct MessageNumbers {
    grid: Grid,
    chunks: u32,
    chunk: u32,
}

impl MessageNumbers {
    /// Phases A (0) and D (1): slice `q` of `root`, which owns every size-th slice of its group.
    fn leaf(&self, phase: u32, q: u32, root: u32) -> u32 {
        let nodes = self.grid.leaf_group(self.grid.leaf_group_of(root));
        let size = nodes.end - nodes.start;
        let each = self.grid.leaf_size().div_ceil(size);
        (phase * self.chunks + self.chunk) * each + q / size
    }

    /// Phases B (0) and C (1): two roots share one slice when both groups are full, else perhaps several.
    fn mesh(&self, phase: u32, q: u32) -> u32 {
        let slices = self.grid.leaf_size();
        let even = self.grid.nodes().is_multiple_of(slices);
        let (each, index) = if even { (1, 0) } else { (slices, q) };
        (phase * self.chunks + self.chunk) * each + index
    }
}
