//! All-to-all: every host sends each other one what its ranks have for that one's, a message for each of its ranks; small blocks may go by
//! way of others.
//!
//! ```text
//!   one rank a node     Input --send, receive--> Data               (in place: through a slot)
//!   several             Input --copy--> Stage --copy--> Data        (of the same node)
//!                                       Stage --send, receive--> Node --copy--> Data
//! ```

use super::blocks::{keep, others, receive, send, wait, wait_all};
use super::builder::{Builder, Chunk};
use super::sub::signal;
use super::{Algorithm, Buffer, BufferOffset, Placement, StepId, bruck, pairwise};
use crate::grid::{Grid, Rank};
use crate::transport::LaneFlag;

/// The pieces of a chunk, for one rank: one for each pair of ranks.
struct Pairs {
    chunk: Chunk,
    grid: Grid,
    node: u32,
    elem: usize,
    layout: ExchangePlaces,
}

enum ExchangePlaces {
    Equal {
        /// Bytes of a piece.
        len: usize,
        /// Elements of a block.
        count: usize,
    },
    /// In bytes.
    Uneven {
        /// By rank: where the piece for it begins in the input.
        input: Vec<usize>,
        /// By rank: where the piece from it begins in the output, and the most bytes that it has in any chunk.
        output: Vec<(usize, usize)>,
        /// By local rank: where its pieces begin in its staging area, and where the last one ends.
        staged: Vec<Vec<usize>>,
        /// The same for the pieces that arrive from other nodes, in the node's area.
        arrived: Vec<usize>,
    },
}

impl Pairs {
    fn new(b: &Builder, chunk: Chunk) -> Self {
        let (grid, elem, me, node) = (b.problem.grid, b.problem.elem(), b.problem.rank, b.problem.node());
        let Some((counts, cuts)) = b.uneven() else {
            let layout =
                ExchangePlaces::Equal { len: b.bytes(chunk.slice), count: b.problem.shape.count as usize };
            return Self { chunk, grid, node, elem, layout };
        };
        let start = |block: &mut usize, count: u64| {
            let at = *block + cuts.start(count, chunk.index) as usize * elem;
            *block += count as usize * elem;
            at
        };
        let (mut given, mut taken) = (0, 0);
        let input = counts.given_by(me).map(|count| start(&mut given, count)).collect();
        let output = counts
            .taken_by(me)
            .map(|count| (start(&mut taken, count), cuts.largest(count) as usize * elem))
            .collect();
        let ends = |counts: &mut dyn Iterator<Item = u64>| -> Vec<usize> {
            let mut end = 0;
            let ends = counts.map(|count| {
                end += cuts.len(count, chunk.index) as usize * elem;
                end
            });
            std::iter::once(0).chain(ends).collect()
        };
        let locals = || grid.ranks_on(node);
        let staged = locals().map(|from| ends(&mut counts.given_by(from))).collect();
        let mut elsewhere = others(b).flat_map(|other| grid.ranks_on(other)).flat_map(|from| {
            locals().map(move |to| counts.taken(to).get(from.0 as usize).copied().unwrap_or(0))
        });
        let arrived = ends(&mut elsewhere);
        Self { chunk, grid, node, elem, layout: ExchangePlaces::Uneven { input, output, staged, arrived } }
    }

    /// The piece for `to`, in the input.
    fn input(&self, to: Rank) -> BufferOffset {
        let offset = match &self.layout {
            ExchangePlaces::Equal { .. } => self.in_block(to),
            ExchangePlaces::Uneven { input, .. } => input[to.0 as usize],
        };
        BufferOffset { buffer: Buffer::Input, offset }
    }

    /// The piece from `from`, in the output.
    fn output(&self, from: Rank) -> BufferOffset {
        let offset = match &self.layout {
            ExchangePlaces::Equal { .. } => self.in_block(from),
            ExchangePlaces::Uneven { output, .. } => output[from.0 as usize].0,
        };
        BufferOffset { buffer: Buffer::Data, offset }
    }

    fn in_block(&self, rank: Rank) -> usize {
        let ExchangePlaces::Equal { count, .. } = self.layout else { return 0 };
        (rank.0 as usize * count + self.chunk.slice.start as usize) * self.elem
    }

    /// Elements that the piece from `from` has at most, in any chunk.
    fn room(&self, b: &Builder, from: Rank) -> u64 {
        match &self.layout {
            ExchangePlaces::Equal { .. } => b.full_chunk().end,
            ExchangePlaces::Uneven { output, .. } => (output[from.0 as usize].1 / self.elem) as u64,
        }
    }

    /// The pieces of a local rank for `ranks` ranks from `to` on, in its staging area, and their bytes.
    fn staged(&self, local: u32, to: Rank, ranks: u32) -> (BufferOffset, usize) {
        let ends = match &self.layout {
            ExchangePlaces::Equal { len, .. } => [to.0 as usize * len, (to.0 + ranks) as usize * len],
            ExchangePlaces::Uneven { staged, .. } => {
                let row = &staged[local as usize];
                [row[to.0 as usize], row[(to.0 + ranks) as usize]]
            }
        };
        (BufferOffset { buffer: Buffer::Stage(local), offset: ends[0] }, ends[1] - ends[0])
    }

    /// The pieces of a rank of another node for `ranks` local ranks from `to` on, in this one's area, and their bytes.
    fn arrived(&self, from: Rank, to: u32, ranks: u32) -> (BufferOffset, usize) {
        let locals = self.grid.locals(self.node);
        let here = if self.grid.node_of(from) > self.node { locals } else { 0 };
        let first = ((from.0 - here) * locals + to) as usize;
        let ends = match &self.layout {
            ExchangePlaces::Equal { len, .. } => [first * len, (first + ranks as usize) * len],
            ExchangePlaces::Uneven { arrived, .. } => [arrived[first], arrived[first + ranks as usize]],
        };
        (BufferOffset { buffer: Buffer::Node, offset: ends[0] }, ends[1] - ends[0])
    }

    /// Bytes of the pieces for and from a rank of another node that is alone on it, as this one is.
    fn lens(&self, other: Rank) -> (usize, usize) {
        (self.staged(0, other, 1).1, self.arrived(other, 0, 1).1)
    }

    /// Whether a message of so many bytes is sent. Before blocks that differ are exchanged, all have met over their counts.
    fn is_sent(&self, len: usize) -> bool {
        len > 0 || matches!(self.layout, ExchangePlaces::Equal { .. })
    }
}

/// The other nodes, in the order in which they are sent to.
fn partners(b: &Builder, algorithm: Algorithm) -> Vec<u32> {
    match algorithm {
        Algorithm::Pairwise => pairwise::partners(b.problem.node(), b.problem.grid.nodes()).collect(),
        _ => others(b).collect(),
    }
}

/// A chunk that does not go through the memory of a node.
pub(super) fn directly(b: &mut Builder, algorithm: Algorithm, chunk: Chunk) -> Vec<StepId> {
    let (pairs, round, me) = (Pairs::new(b, chunk), chunk.index, b.problem.rank);
    let own = pairs.staged(0, me, 1).1;
    if algorithm == Algorithm::Bruck {
        let places = (|node| vec![pairs.input(Rank(node))], |node| pairs.output(Rank(node)));
        bruck::all_to_all(b, chunk, places, &[], pairs.room(b, me), (own, own));
        keep(b, chunk, pairs.input(me), pairs.output(me), own);
        return Vec::new();
    }
    // Steps that the next round waits for.
    let mut before = Vec::new();
    for (number, node) in partners(b, algorithm).into_iter().enumerate() {
        let peer = Rank(node);
        let (from, into, (given, taken)) = (pairs.input(peer), pairs.output(peer), pairs.lens(peer));
        let mut sent = None;
        if pairs.is_sent(given) {
            sent = Some(send(b, chunk, (node, round), from, given, &before));
        }
        if b.problem.placement == Placement::Separate {
            if pairs.is_sent(taken) {
                let received = receive(b, chunk, (node, round), into, taken, &[]);
                begin_next(algorithm, &mut before, &[received]);
            }
            continue;
        }
        // A block that arrives would overwrite one that may have to be sent again.
        let (slot, free) = b.slot(chunk, number, pairs.room(b, peer));
        if !pairs.is_sent(taken) {
            continue;
        }
        let received = receive(b, chunk, (node, round), slot, taken, &free);
        begin_next(algorithm, &mut before, &[received]);
        let after: Vec<_> = std::iter::once(received).chain(sent).collect();
        let copied = b.copy(chunk, slot, into, taken, &after);
        b.slot_used(chunk, number, &copied);
    }
    keep(b, chunk, pairs.input(me), pairs.output(me), own);
    Vec::new()
}

/// Pairwise, a round is begun when the last one's messages have come.
fn begin_next(algorithm: Algorithm, before: &mut Vec<StepId>, came: &[StepId]) {
    if algorithm == Algorithm::Pairwise {
        *before = came.to_vec();
    }
}

/// A chunk through the memory of the node, where it may be written after `free`. Returns the last steps there.
pub(super) fn through_node(b: &mut Builder, algorithm: Algorithm, chunk: Chunk, free: StepId) -> Vec<StepId> {
    let (grid, me, local) = (b.problem.grid, b.problem.rank, b.problem.local());
    let (pairs, node, locals) = (Pairs::new(b, chunk), b.problem.node(), b.problem.locals());
    // The own block goes from tensor to tensor, where the CPU can.
    let kept = !b.problem.access.is_device();
    let mut copied = vec![free];
    for rank in (0..grid.ranks()).map(Rank).filter(|&rank| !kept || rank != me) {
        let (from, (into, len)) = (pairs.input(rank), pairs.staged(local, rank, 1));
        copied.extend(b.copy(chunk, from, into, len, &[free]));
    }
    let staged = signal(b, chunk, LaneFlag::Staged, &copied);
    let mut last = vec![staged];
    if kept {
        let own = pairs.staged(local, me, 1).1;
        last.extend(keep(b, chunk, pairs.input(me), pairs.output(me), own));
    }
    for from in (0..locals).map(|i| (local + i) % locals).filter(|&from| !kept || from != local) {
        let there = match from == local {
            true => vec![staged],
            false => wait(b, chunk, (from, LaneFlag::Staged), &[staged]),
        };
        let (place, len) = pairs.staged(from, me, 1);
        let into = pairs.output(grid.rank_at(node, from));
        last.extend(b.copy(chunk, place, into, len, &there));
    }
    if grid.nodes() == 1 {
        return last;
    }
    let mut there = Vec::new();
    if local == 0 {
        let all = wait_all(b, chunk, LaneFlag::Staged, &[staged]);
        if algorithm == Algorithm::Bruck {
            let stages =
                |node| (0..locals).map(|from| pairs.staged(from, grid.leader_of(node), locals).0).collect();
            let places = (stages, |node| pairs.arrived(grid.leader_of(node), 0, locals).0);
            let room = pairs.room(b, me) * u64::from(locals * locals);
            let part = pairs.staged(0, grid.leader_of(node), locals).1;
            there = bruck::all_to_all(b, chunk, places, &all, room, (part * locals as usize, part));
        } else {
            let mut before = all.clone();
            for other in partners(b, algorithm) {
                let mut came = Vec::new();
                let theirs = grid.locals(other);
                for from in 0..locals {
                    let (place, len) = pairs.staged(from, grid.leader_of(other), theirs);
                    if pairs.is_sent(len) {
                        let message = (other, chunk.index * locals + from);
                        last.push(send(b, chunk, message, place, len, &before));
                    }
                }
                for from in 0..theirs {
                    let (into, len) = pairs.arrived(grid.rank_at(other, from), 0, locals);
                    if pairs.is_sent(len) {
                        let message = (other, chunk.index * theirs + from);
                        came.push(receive(b, chunk, message, into, len, &[free]));
                    }
                }
                there.extend(&came);
                begin_next(algorithm, &mut before, &[all.as_slice(), &came].concat());
            }
        }
        // In place, blocks that arrive are written only when all that was there is staged.
        there.push(staged);
        if locals > 1 {
            last.push(signal(b, chunk, LaneFlag::Final, &there));
        }
    } else {
        there = wait(b, chunk, (0, LaneFlag::Final), &[staged]);
    }
    for other in others(b) {
        for from in grid.ranks_on(other) {
            let ((place, len), into) = (pairs.arrived(from, local, 1), pairs.output(from));
            last.extend(b.copy(chunk, place, into, len, &there));
        }
    }
    last.extend(there);
    last
}
