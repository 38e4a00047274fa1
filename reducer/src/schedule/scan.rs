//! Scan and exscan: every rank ends with the fold of the ranks up to itself, or before it, in rank order: x0, then x1 folded into it, then
//! x2... An element has those bits on every grid, in every algorithm.
//!
//! *Chain* (large tensors): each host sends the next one the fold of all ranks up to its last. One tensor crosses each link, and the
//! chunks follow one another. *Raw* (small tensors): every host sends the contributions of its ranks to all later ones, in one round.
//! Where the fold rounds less often than its elements' type would (f16, folded in f32), no partial fold has the bits of the whole, and raw is
//! the only way.
//!
//! ```text
//!   one rank a node, chain   (Slot, Input) --fold--> Data --send, receive--> Slot             (scan)
//!                            (Slot, Input) --fold--> Slot --send, receive--> Slot --copy--> Data (exscan)
//!   one rank a node, raw     Input --copy--> Slot --send, receive--> Slot --fold--> Data
//!   several, chain           Input --copy--> Stage;  (Node, Stages) --fold--> Slot --send, receive--> Node;  --fold--> Data
//!   several, raw             Input --copy--> Stage --send, receive--> Node;  (Node, Stages) --fold--> Data
//! ```

use super::blocks::{every_chunk, receive, send, wait, wait_all};
use super::builder::{Builder, Chunk};
use super::sub::signal;
use super::{Algorithm, Buffer, BufferOffset, Params, Placement, Problem, ScheduleError, StepId};
use crate::header::Collective;
use crate::transport::LaneFlag;

/// Whether hosts send the contributions of their ranks, and not folds of them.
pub(super) fn is_raw(algorithm: Algorithm, problem: &Problem) -> bool {
    algorithm == Algorithm::Direct || problem.shape.dtype.is_folded_wider(problem.shape.op)
}

/// A builder with chunks so short that the blocks that arrive fit in the node's area.
pub(super) fn builder(
    algorithm: Algorithm,
    problem: &Problem,
    params: &Params,
) -> Result<Builder, ScheduleError> {
    let grid = problem.grid;
    // The pieces of all nodes before the last one.
    let pieces = if is_raw(algorithm, problem) { grid.leader_of(grid.nodes() - 1).0 } else { 1 };
    Builder::with_pieces(problem.clone(), *params, u64::from(pieces).max(1))
}

/// The whole operation, chunk by chunk.
pub(super) fn scan(b: &mut Builder, algorithm: Algorithm) {
    let raw = is_raw(algorithm, &b.problem);
    let directly =
        |b: &mut Builder, raw, chunk| if raw { raw_directly(b, chunk) } else { chain_directly(b, chunk) };
    every_chunk(b, raw, through_node, directly);
}

fn is_inclusive(b: &Builder) -> bool {
    b.problem.shape.collective == Collective::Scan
}

/// Every node sends its contribution to all later ones.
fn raw_directly(b: &mut Builder, chunk: Chunk) -> Vec<StepId> {
    let (me, nodes, round) = (b.problem.node(), b.problem.grid.nodes(), chunk.index);
    let (own, into, len) = (b.input(chunk.slice), b.data(chunk.slice), b.bytes(chunk.slice));
    let room = b.full_chunk().end;
    let mut ready = Vec::new();
    if me + 1 < nodes {
        // A copy is sent: nothing waits for an acknowledgement before the result is written over the input.
        let (copy, free) = b.slot(chunk, 0, room);
        ready = b.copy(chunk, own, copy, len, &free);
        let sends: Vec<_> =
            (me + 1..nodes).map(|node| send(b, chunk, (node, round), copy, len, &ready)).collect();
        b.slot_used(chunk, 0, &sends);
    }
    let (mut sources, first) = (Vec::new(), 1);
    for node in 0..me {
        let (slot, free) = b.slot(chunk, first + node as usize, room);
        ready.push(receive(b, chunk, (node, round), slot, len, &free));
        sources.push(slot);
    }
    if is_inclusive(b) {
        sources.push(own);
    }
    let folded = write(b, chunk, &sources, into, len, &ready);
    for number in 0..me as usize {
        b.slot_used(chunk, first + number, &folded);
    }
    folded
}

/// Every node sends the next one the fold of all up to itself.
fn chain_directly(b: &mut Builder, chunk: Chunk) -> Vec<StepId> {
    const BEFORE: usize = 0;
    const SUM: usize = 1;
    let (me, nodes, round) = (b.problem.node(), b.problem.grid.nodes(), chunk.index);
    let (own, into, len) = (b.input(chunk.slice), b.data(chunk.slice), b.bytes(chunk.slice));
    let room = b.full_chunk().end;
    let (mut sources, mut ready) = (Vec::new(), Vec::new());
    if me > 0 {
        let (slot, free) = b.slot(chunk, BEFORE, room);
        ready.push(receive(b, chunk, (me - 1, round), slot, len, &free));
        sources.push(slot);
    }
    let before = sources.clone();
    sources.push(own);
    let is_last = me + 1 == nodes;
    if is_inclusive(b) {
        let folded = write(b, chunk, &sources, into, len, &ready);
        if me > 0 {
            b.slot_used(chunk, BEFORE, &folded);
        }
        if !is_last {
            send(b, chunk, (me + 1, round), into, len, &folded);
        }
        return folded;
    }
    if !is_last {
        // Nothing comes before rank 0: its input is what the next one needs.
        let mut sum = own;
        let mut after = Vec::new();
        if me > 0 {
            let (slot, free) = b.slot(chunk, SUM, room);
            after = [ready.clone(), free].concat();
            after = b.fold(chunk, slot, &sources, len, &after);
            sum = slot;
        }
        let sent = send(b, chunk, (me + 1, round), sum, len, &after);
        if me > 0 {
            b.slot_used(chunk, SUM, &[sent]);
            ready.extend(after);
        }
    }
    let written = write(b, chunk, &before, into, len, &ready);
    if me > 0 {
        b.slot_used(chunk, BEFORE, &written);
    }
    written
}

fn through_node(b: &mut Builder, raw: bool, chunk: Chunk, free: StepId) -> Vec<StepId> {
    let (grid, local, node) = (b.problem.grid, b.problem.local(), b.problem.node());
    let (locals, len) = (b.problem.locals(), b.bytes(chunk.slice));
    let stage = |local| BufferOffset { buffer: Buffer::Stage(local), offset: 0 };
    let arrived = |index: u32| BufferOffset { buffer: Buffer::Node, offset: index as usize * len };
    let (own, into) = (b.input(chunk.slice), b.data(chunk.slice));
    let copied = b.copy(chunk, own, stage(local), len, &[free]);
    let staged = signal(b, chunk, LaneFlag::Staged, &copied);
    let mut last = vec![staged];
    // The contributions of the nodes before.
    let before: Vec<_> = match (node, raw) {
        (0, _) => Vec::new(),
        (_, false) => vec![arrived(0)],
        (_, true) => (0..grid.leader_of(node).0).map(arrived).collect(),
    };
    let mut there = vec![staged];
    if local == 0 && grid.nodes() > 1 {
        let mut received = vec![free];
        for from in 0..node {
            match raw {
                true => received.extend((0..grid.locals(from)).map(|index| {
                    let place = arrived(grid.rank_at(from, index).0);
                    let round = chunk.index * grid.locals(from) + index;
                    receive(b, chunk, (from, round), place, len, &[free])
                })),
                false if from + 1 == node => {
                    received.push(receive(b, chunk, (from, chunk.index), arrived(0), len, &[free]));
                }
                false => {}
            }
        }
        if node > 0 && locals > 1 {
            last.push(signal(b, chunk, LaneFlag::Final, &received));
        }
        if node + 1 < grid.nodes() {
            let all = wait_all(b, chunk, LaneFlag::Staged, &[staged]);
            last.extend(match raw {
                true => send_raw(b, chunk, &all),
                false => {
                    let sources: Vec<_> = before.iter().copied().chain((0..locals).map(stage)).collect();
                    send_fold(b, chunk, &sources, [all, received.clone()].concat())
                }
            });
        }
        there.extend(received);
    } else if node > 0 {
        there = wait(b, chunk, (0, LaneFlag::Final), &there);
    }
    for other in 0..local {
        there = wait(b, chunk, (other, LaneFlag::Staged), &there);
    }
    let ranks = if is_inclusive(b) { local + 1 } else { local };
    let sources: Vec<_> = before.into_iter().chain((0..ranks).map(stage)).collect();
    last.extend(write(b, chunk, &sources, into, len, &there));
    last.extend(there);
    last
}

/// Sends the contributions of the node's ranks to all later nodes.
fn send_raw(b: &mut Builder, chunk: Chunk, ready: &[StepId]) -> Vec<StepId> {
    let (grid, node, len) = (b.problem.grid, b.problem.node(), b.bytes(chunk.slice));
    let locals = b.problem.locals();
    let mut sent = Vec::new();
    for to in node + 1..grid.nodes() {
        for local in 0..locals {
            let from = BufferOffset { buffer: Buffer::Stage(local), offset: 0 };
            sent.push(send(b, chunk, (to, chunk.index * locals + local), from, len, ready));
        }
    }
    sent
}

/// Sends the fold of all ranks up to the node's last to the next node.
fn send_fold(b: &mut Builder, chunk: Chunk, sources: &[BufferOffset], mut ready: Vec<StepId>) -> Vec<StepId> {
    const SUM: usize = 0;
    let (node, len, room) = (b.problem.node(), b.bytes(chunk.slice), b.full_chunk().end);
    let (sum, free) = b.slot(chunk, SUM, room);
    ready.extend(free);
    let folded = b.fold(chunk, sum, sources, len, &ready);
    let sent = send(b, chunk, (node + 1, chunk.index), sum, len, &folded);
    b.slot_used(chunk, SUM, &[sent]);
    // The lane may be written again after the fold, and the operation ends after the message.
    [folded, vec![sent]].concat()
}

/// Folds sources into the tensor, whatever memory it lies in; nothing of none.
fn write(
    b: &mut Builder,
    chunk: Chunk,
    sources: &[BufferOffset],
    into: BufferOffset,
    len: usize,
    after: &[StepId],
) -> Vec<StepId> {
    // A device's tensor is only copied.
    const RESULT: usize = 1;
    match sources {
        [] => after.to_vec(),
        [own] if own.buffer == Buffer::Input && b.problem.placement == Placement::InPlace => after.to_vec(),
        [only] => b.copy(chunk, *only, into, len, after),
        _ if b.problem.access.is_device() => {
            let room = b.full_chunk().end;
            let (slot, free) = b.slot(chunk, RESULT, room);
            let after = [after, &free[..]].concat();
            let folded = b.fold(chunk, slot, sources, len, &after);
            let copied = b.copy(chunk, slot, into, len, &folded);
            b.slot_used(chunk, RESULT, &copied);
            copied
        }
        _ => b.fold(chunk, into, sources, len, after),
    }
}
