//! Hierarchical: at each level a reduce-scatter within the group, then a full mesh of the roots above the last level, and back.
//!
//! At a level, the slice that a node works on (at first the chunk) is cut into as many slices as a group has units. Being a *root* is a
//! role per slice, so no node carries more than its share:
//!
//! ```text
//!   A  level by level: the units' roots in a group send slice q to the root of q, which folds, and goes on with it at the next level
//!   B  above the last level the roots of the slice (one a group) exchange: root r gets part r of it from all others, and folds
//!   C  each root sends its finished part to the other roots
//!   D  level by level, back: each root sends the finished slice to the other units' roots in its group
//! ```
//!
//! Each node sends 2(H - 1)/H of the chunk when groups are full. Where just two contributions meet, fragments are
//! reduced as they arrive (on a device they wait in a slot, and are folded in the same order); where more meet, they wait in
//! slots and are folded in rank order. A slot is as large as a slice of its level: in all a node has slots for less than a chunk when groups
//! are full.

use super::blocks::{receive, send};
use super::builder::{Area, Builder, Chunk, ChunkResult, Slice};
use super::{Action, StepId};
use crate::grid::{Grid, Levels};

/// One chunk over the up grid; the area holds this node's contribution after `ready`.
pub(super) fn up(b: &mut Builder, chunk: Chunk, area: Area, ready: &[StepId]) -> ChunkResult {
    let grid = b.problem.grid;
    let rounds = MessageNumbers { grid, chunks: b.chunk_count(), chunk: chunk.index };
    let mut climb =
        Climb { chunk, area, rounds, path: Vec::new(), slots: [0; Levels::MOST + 1], sends: Vec::new() };
    let result = climb.level(b, chunk.slice, ready);
    ChunkResult { result, sends: climb.sends }
}

/// One chunk on its way up and back.
struct Climb {
    chunk: Chunk,
    area: Area,
    rounds: MessageNumbers,
    /// The slices chosen at the levels so far: this node is its unit's root of that path.
    path: Vec<u32>,
    /// Slots in use by level; the last is above the last level.
    slots: [usize; Levels::MOST + 1],
    /// Sends that read the area, and that nothing waits for.
    sends: Vec<StepId>,
}

impl Climb {
    /// Phases A and D at the level that the path has led to, and all between them. The slice holds the contribution of this node's unit
    /// after `ready`; returns the steps after which it holds the result.
    fn level(&mut self, b: &mut Builder, slice: Slice, ready: &[StepId]) -> Vec<StepId> {
        let (grid, me, level, chunk) = (b.problem.grid, b.problem.node(), self.path.len(), self.chunk);
        let Some(&slices) = grid.levels().get(level) else { return self.mesh(b, slice, ready) };
        let members = self.roots(&grid, me);
        let (size, mut result) = (members.len() as u32, Vec::new());
        for q in 0..slices {
            let slice = slice.part(q, slices);
            if slice.is_empty() {
                continue;
            }
            let [up, down] = [0, 1].map(|phase| self.rounds.number(phase, level, (q, size)));
            let root = members[(q % size) as usize];
            let (at, len) = (b.at(self.area, slice), b.bytes(slice));
            if root != me {
                let sent = send(b, chunk, (root, up), at, len, ready);
                result.push(receive(b, chunk, (root, down), at, len, &[sent]));
                continue;
            }
            let folded = self.gather(b, slice, (&members, up), ready);
            self.path.push(q);
            let done = self.level(b, slice, &folded);
            self.path.pop();
            for &member in members.iter().filter(|&&node| node != me) {
                self.sends.push(send(b, chunk, (member, down), at, len, &done));
            }
            result.extend(done);
        }
        result
    }

    /// Phases B and C, above the last level.
    fn mesh(&mut self, b: &mut Builder, slice: Slice, folded: &[StepId]) -> Vec<StepId> {
        let (grid, me, level, chunk) = (b.problem.grid, b.problem.node(), self.path.len(), self.chunk);
        let roots = self.roots(&grid, me);
        let groups = roots.len() as u32;
        let own = grid.unit_of(level, me);
        let [up, down] = [0, 1].map(|phase| self.rounds.number(phase, level, (0, groups)));
        let mut scattered = Vec::new();
        for (g, &root) in (0..).zip(&roots).filter(|&(g, _)| g != own) {
            let theirs = slice.part(g, groups);
            let mut sent = None;
            if !theirs.is_empty() {
                let (from, len) = (b.at(self.area, theirs), b.bytes(theirs));
                sent = Some(send(b, chunk, (root, up), from, len, folded));
            }
            scattered.push((root, theirs, sent));
        }
        let part = slice.part(own, groups);
        let summed = self.gather(b, part, (&roots, up), folded);
        let (at, len) = (b.at(self.area, part), b.bytes(part));
        let mut done = b.finish_sum(chunk, at, len, summed);
        let finished = done.clone();
        for (root, theirs, sent) in scattered {
            if len > 0 {
                self.sends.push(send(b, chunk, (root, down), at, len, &finished));
            }
            if let Some(sent) = sent {
                let (into, len) = (b.at(self.area, theirs), b.bytes(theirs));
                done.push(receive(b, chunk, (root, down), into, len, &[sent]));
            }
        }
        done
    }

    /// The roots of the path in this node's group, one for each unit.
    fn roots(&self, grid: &Grid, me: u32) -> Vec<u32> {
        let level = self.path.len();
        grid.group(level, grid.group_of(level, me)).map(|unit| grid.root(unit, &self.path)).collect()
    }

    /// The contributions of several nodes (all of them, this one included, in rank order) to a slice meet at this one. Returns the steps after
    /// which the slice holds their sum.
    fn gather(
        &mut self,
        b: &mut Builder,
        slice: Slice,
        (nodes, round): (&[u32], u32),
        ready: &[StepId],
    ) -> Vec<StepId> {
        let (grid, me, chunk) = (b.problem.grid, b.problem.node(), self.chunk);
        let (at, len) = (b.at(self.area, slice), b.bytes(slice));
        if len == 0 || nodes.len() == 1 {
            return ready.to_vec();
        }
        if let &[x, y] = nodes {
            let from = grid.leader_of(if x == me { y } else { x });
            if !b.problem.works_on_device() {
                return vec![b.step(chunk, Action::ReceiveReduce { from, round, into: at, len }, ready)];
            }
        }
        let (level, room) = (self.path.len(), self.room(b));
        // Each level has numbers of its own: a slot is as large in any other chunk, whatever slices are empty there.
        let number = |index: usize| index * (grid.levels().len() + 1) + level;
        let first = self.slots[level];
        let (mut sources, mut after) = (Vec::new(), ready.to_vec());
        if nodes.len() == 2 {
            // As fragments are reduced that arrive.
            sources.push(at);
        }
        for &node in nodes {
            if node == me {
                if nodes.len() > 2 {
                    sources.push(at);
                }
                continue;
            }
            let (into, free) = b.slot(chunk, number(self.slots[level]), room);
            self.slots[level] += 1;
            after.push(receive(b, chunk, (node, round), into, len, &free));
            sources.push(into);
        }
        let folded = b.fold(chunk, at, &sources, len, &after);
        for index in first..self.slots[level] {
            b.slot_used(chunk, number(index), &folded);
        }
        folded
    }

    /// Elements of the largest slice that meets at the level that the path has led to. The first group of a level is full.
    fn room(&self, b: &Builder) -> u64 {
        (0..=self.path.len()).fold(b.full_chunk().end, |elems, level| {
            let units = b.problem.grid.group(level, 0).len() as u32;
            Slice { start: 0, end: elems }.largest_part(units)
        })
    }
}

/// Numbers of the messages between two nodes. They run through the chunks of one phase, so that a receiver can grant
/// many with one credit message.
///
/// Two nodes speak at one level only: that of the group in which their units differ. They share one path there, since at most one of two
/// units is not full: it is the last. In a full unit each node is the root of one path.
struct MessageNumbers {
    grid: Grid,
    chunks: u32,
    chunk: u32,
}

impl MessageNumbers {
    /// On the way up (phase 0) or back (1): slice `q` of a level, in a group of `size` units, where a unit owns every size-th slice.
    fn number(&self, phase: u32, level: usize, (q, size): (u32, u32)) -> u32 {
        let slices = self.grid.levels().get(level).copied().unwrap_or(1);
        (phase * self.chunks + self.chunk) * slices.div_ceil(size) + q / size
    }
}
