//! The sub grid: ranks of a node meet in shared memory, and its leader carries the result to the other nodes.
//!
//! *Sliced* (large tensors): each local rank owns a slice of the chunk. It stages what the others own, folds its own
//! slice from their staging areas and its tensor into the node's result, so every core reduces. *Direct* (small
//! tensors) saves a round of flags: every rank stages all it has, and each rank that needs the result folds all of it: on a
//! single node all ranks; else the leader. With one rank a node there is nothing to stage: the up grid works
//! on the tensor itself.
//!
//! A tensor in an accelerator's memory is only copied, to a lane and back: a rank that has one stages its own slice too, and where a
//! node has one rank, the up grid works on the node's result area as if there were more. Messages and flags are the same, so
//! ranks with tensors of either kind meet in one operation. Where NICs reach that memory, and the rank is alone on its node, the up
//! grid works on the tensor itself, as it does on a host's.

use super::builder::{Area, Builder, Chunk, ChunkResult, Slice};
use super::{
    Action, Algorithm, Buffer, BufferOffset, ScheduleError, StepId, bruck, direct, dissemination,
    double_tree, halving_doubling, hierarchical, recursive_doubling, ring,
};
use crate::dtype::ReduceOp;
use crate::header::Collective;
use crate::transport::LaneFlag;

/// The whole all-reduce, chunk by chunk.
pub(super) fn all_reduce(b: &mut Builder, algorithm: Algorithm) {
    let alone = b.problem.locals() == 1;
    if !b.shares() {
        for chunk in b.chunks() {
            let (from, into, len) = (b.input(chunk.slice), b.data(chunk.slice), b.bytes(chunk.slice));
            let mut ready = Vec::new();
            if from != into {
                ready = b.copy(chunk, from, into, len, &[]);
            }
            up(b, algorithm, chunk, Area { buffer: Buffer::Data, base: 0 }, &ready);
        }
        return;
    }
    b.use_lanes();
    let one_node = b.problem.grid.nodes() == 1;
    let mut consumed: Vec<StepId> = Vec::new();
    for chunk in b.chunks() {
        let free = wait_free(b, chunk, &consumed);
        consumed.push(match (algorithm, one_node) {
            _ if alone => through_lane(b, algorithm, chunk, free),
            (small, true) if small.is_for_small() => direct_one_node(b, chunk, free),
            (small, false) if small.is_for_small() => direct_nodes(b, small, chunk, free),
            (_, true) => sliced_one_node(b, chunk, free),
            (_, false) => sliced_nodes(b, algorithm, chunk, free),
        });
    }
}

/// Waits for the chunk's lane. `consumed` has this rank's last step of each earlier chunk.
pub(super) fn wait_free(b: &mut Builder, chunk: Chunk, consumed: &[StepId]) -> StepId {
    let before = (chunk.index as usize).checked_sub(b.params.lanes as usize);
    let after: Vec<_> = before.and_then(|c| consumed.get(c).copied()).into_iter().collect();
    b.step(chunk, Action::WaitFree, &after)
}

pub(super) fn up(
    b: &mut Builder,
    algorithm: Algorithm,
    chunk: Chunk,
    area: Area,
    ready: &[StepId],
) -> ChunkResult {
    if b.problem.grid.nodes() == 1 {
        return ChunkResult { result: ready.to_vec(), sends: Vec::new() };
    }
    match algorithm {
        Algorithm::Direct => direct::up(b, chunk, area, ready),
        Algorithm::Ring => ring::up(b, chunk, area, ready),
        Algorithm::RecursiveDoubling => recursive_doubling::up(b, chunk, area, ready),
        Algorithm::HalvingDoubling => halving_doubling::up(b, chunk, area, ready),
        Algorithm::DoubleTree => double_tree::up(b, chunk, area, ready),
        Algorithm::Bruck => bruck::up(b, chunk, area, ready),
        Algorithm::Dissemination => dissemination::up(b, chunk, ready),
        // The others serve other collectives.
        Algorithm::Hierarchical | Algorithm::Binomial | Algorithm::Chain | Algorithm::Pairwise => {
            hierarchical::up(b, chunk, area, ready)
        }
    }
}

pub(super) fn signal(b: &mut Builder, chunk: Chunk, flag: LaneFlag, after: &[StepId]) -> StepId {
    b.step(chunk, Action::Signal { flag }, after)
}

pub(super) fn node_area(chunk: Chunk) -> Area {
    Area { buffer: Buffer::Node, base: chunk.slice.start }
}

/// Where a slice lies in a local rank's staging area.
fn staged(b: &Builder, chunk: Chunk, local: u32, slice: Slice) -> BufferOffset {
    b.at(Area { buffer: Buffer::Stage(local), base: chunk.slice.start }, slice)
}

/// All local contributions to a slice, in rank order: this rank's from its tensor, if the CPU can, the others' as staged.
fn contributions(b: &Builder, chunk: Chunk, slice: Slice) -> Vec<BufferOffset> {
    let me = b.problem.local();
    (0..b.problem.locals())
        .map(|local| {
            if local == me && !b.problem.access.is_device() {
                b.input(slice)
            } else {
                staged(b, chunk, local, slice)
            }
        })
        .collect()
}

fn stage(b: &mut Builder, chunk: Chunk, slice: Slice, after: &[StepId]) -> Vec<StepId> {
    let (from, into) = (b.input(slice), staged(b, chunk, b.problem.local(), slice));
    let len = b.bytes(slice);
    b.copy(chunk, from, into, len, after)
}

/// Everyone stages all and folds all.
fn direct_one_node(b: &mut Builder, chunk: Chunk, free: StepId) -> StepId {
    let copied = stage(b, chunk, chunk.slice, &[free]);
    let staged = signal(b, chunk, LaneFlag::Staged, &copied);
    let all = b.step(chunk, Action::WaitAll { flag: LaneFlag::Staged }, &[staged]);
    let (data, len) = (b.data(chunk.slice), b.bytes(chunk.slice));
    let (mut at, mut ready) = (data, vec![all]);
    if b.problem.access.is_device() {
        let elems = b.full_chunk().end;
        let (slot, free) = b.slot(chunk, 0, elems);
        at = slot;
        ready.extend(free);
    }
    let sources = contributions(b, chunk, chunk.slice);
    let folded = b.fold(chunk, at, &sources, len, &ready);
    let consumed = signal(b, chunk, LaneFlag::Consumed, &folded);
    let finished = b.finish_sum(chunk, at, len, folded);
    if b.problem.access.is_device() {
        let copied = b.copy(chunk, at, data, len, &finished);
        b.slot_used(chunk, 0, &copied);
    }
    consumed
}

/// Everyone but the leader stages all; the leader folds.
fn direct_nodes(b: &mut Builder, algorithm: Algorithm, chunk: Chunk, free: StepId) -> StepId {
    if b.problem.local() != 0 {
        let copied = stage(b, chunk, chunk.slice, &[free]);
        let staged = signal(b, chunk, LaneFlag::Staged, &copied);
        return take_result(b, chunk, &[staged]);
    }
    let own = if b.problem.access.is_device() { stage(b, chunk, chunk.slice, &[free]) } else { vec![free] };
    let all = b.step(chunk, Action::WaitAll { flag: LaneFlag::Staged }, &own);
    let (area, len) = (node_area(chunk), b.bytes(chunk.slice));
    let sources = contributions(b, chunk, chunk.slice);
    let into = b.at(area, chunk.slice);
    let folded = b.fold(chunk, into, &sources, len, &[all]);
    let outcome = up(b, algorithm, chunk, area, &folded);
    give_result(b, chunk, outcome)
}

/// The only rank of its node, with a tensor that is only copied: the up grid works on the lane.
fn through_lane(b: &mut Builder, algorithm: Algorithm, chunk: Chunk, free: StepId) -> StepId {
    let (area, len) = (node_area(chunk), b.bytes(chunk.slice));
    let (from, into) = (b.input(chunk.slice), b.at(area, chunk.slice));
    let copied = b.copy(chunk, from, into, len, &[free]);
    let outcome = up(b, algorithm, chunk, area, &copied);
    give_result(b, chunk, outcome)
}

/// Stages the slices of the others and folds this rank's slice into the node's result, which is signalled. Where that is the
/// final result (`last`) of every rank, the same pass puts it into the tensor, unless an average must be finished first; returns
/// also whether it did.
pub(super) fn fold_slice(b: &mut Builder, chunk: Chunk, free: StepId, last: bool) -> (Vec<StepId>, bool) {
    let slice = chunk.slice.part(b.problem.local(), b.problem.locals());
    let copied = if b.problem.access.is_device() {
        stage(b, chunk, chunk.slice, &[free])
    } else {
        let mut before = stage(b, chunk, Slice { start: chunk.slice.start, end: slice.start }, &[free]);
        before.extend(stage(b, chunk, Slice { start: slice.end, end: chunk.slice.end }, &[free]));
        before
    };
    let staged = signal(b, chunk, LaneFlag::Staged, &copied);
    let mut ready = vec![staged];
    if !slice.is_empty() {
        ready = vec![b.step(chunk, Action::WaitAll { flag: LaneFlag::Staged }, &[staged])];
    }
    let (into, len) = (b.at(node_area(chunk), slice), b.bytes(slice));
    let sources = contributions(b, chunk, slice);
    let everywhere = b.problem.shape.collective == Collective::AllReduce;
    let placed = last && everywhere && b.problem.shape.op != ReduceOp::Avg && !b.problem.access.is_device();
    let both = [into, b.data(slice)];
    let folds_to = if placed { &both[..] } else { &both[..1] };
    let mut folded = b.fold_all(chunk, (folds_to, false), &sources, len, &ready);
    if last {
        folded = b.finish_sum(chunk, into, len, folded);
    }
    (vec![signal(b, chunk, LaneFlag::Reduced, &folded)], placed)
}

/// Sliced, and the node's result is the result: everyone copies it, each slice as soon as it is there.
fn sliced_one_node(b: &mut Builder, chunk: Chunk, free: StepId) -> StepId {
    let (me, locals) = (b.problem.local(), b.problem.locals());
    let (reduced, placed) = fold_slice(b, chunk, free, true);
    let mut copied = reduced.clone();
    // Own slice first, while it is in the cache; then round-robin, so that not all ranks read the same slice at once.
    for local in (u32::from(placed)..locals).map(|i| (me + i) % locals) {
        let slice = chunk.slice.part(local, locals);
        let mut after = reduced.clone();
        if local != me {
            after = vec![b.step(chunk, Action::Wait { local, flag: LaneFlag::Reduced }, &after)];
        }
        let (from, into, len) = (b.at(node_area(chunk), slice), b.data(slice), b.bytes(slice));
        copied.extend(b.copy(chunk, from, into, len, &after));
    }
    signal(b, chunk, LaneFlag::Consumed, &copied)
}

/// Sliced, with the leader carrying the node's result over the up grid.
fn sliced_nodes(b: &mut Builder, algorithm: Algorithm, chunk: Chunk, free: StepId) -> StepId {
    let (reduced, _) = fold_slice(b, chunk, free, false);
    if b.problem.local() != 0 {
        return take_result(b, chunk, &reduced);
    }
    let all = b.step(chunk, Action::WaitAll { flag: LaneFlag::Reduced }, &reduced);
    let outcome = up(b, algorithm, chunk, node_area(chunk), &[all]);
    give_result(b, chunk, outcome)
}

/// The leader signals the result, if its node has other ranks, and copies it to its own tensor.
pub(super) fn give_result(b: &mut Builder, chunk: Chunk, outcome: ChunkResult) -> StepId {
    if b.problem.locals() > 1 {
        signal(b, chunk, LaneFlag::Final, &outcome.result);
    }
    let (from, into, len) = (b.at(node_area(chunk), chunk.slice), b.data(chunk.slice), b.bytes(chunk.slice));
    let mut last = b.copy(chunk, from, into, len, &outcome.result);
    last.extend(outcome.sends);
    signal(b, chunk, LaneFlag::Consumed, &last)
}

/// Another rank waits for the leader's result and takes it.
pub(super) fn take_result(b: &mut Builder, chunk: Chunk, after: &[StepId]) -> StepId {
    let there = b.step(chunk, Action::Wait { local: 0, flag: LaneFlag::Final }, after);
    let (from, into, len) = (b.at(node_area(chunk), chunk.slice), b.data(chunk.slice), b.bytes(chunk.slice));
    let copied = b.copy(chunk, from, into, len, &[there]);
    signal(b, chunk, LaneFlag::Consumed, &copied)
}

/// This rank says that its tensor is there, and waits for the others'.
pub(super) fn all_come(b: &mut Builder, chunk: Chunk, free: StepId) -> StepId {
    let staged = signal(b, chunk, LaneFlag::Staged, &[free]);
    b.step(chunk, Action::WaitAll { flag: LaneFlag::Staged }, &[staged])
}

/// A slice in pieces of so many bytes, with one lane for its flags alone: `each` has its piece and the step after which all ranks have come;
/// in the end this one waits until all are done with the others' tensors.
pub(super) fn in_pieces(
    b: &mut Builder,
    slice: Slice,
    bytes: usize,
    mut each: impl FnMut(&mut Builder, Chunk, StepId) -> Vec<StepId>,
) -> Result<(), ScheduleError> {
    b.use_one_lane();
    let (whole, count) = (Chunk { index: 0, slice }, b.problem.shape.count);
    let free = b.step(whole, Action::WaitFree, &[]);
    let there = all_come(b, whole, free);
    let mut last = vec![there];
    let too_many = |_| ScheduleError::TooLarge { what: "the pieces", count };
    let pieces = u32::try_from(b.bytes(slice).div_ceil(bytes).max(1)).map_err(too_many)?;
    for index in 0..pieces {
        last.extend(each(b, Chunk { slice: slice.part(index, pieces), ..whole }, there));
    }
    let reduced = signal(b, whole, LaneFlag::Reduced, &last);
    let all = b.step(whole, Action::WaitAll { flag: LaneFlag::Reduced }, &[reduced]);
    signal(b, whole, LaneFlag::Consumed, &[all]);
    Ok(())
}
