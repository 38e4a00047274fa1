//! Views: every rank of a node can access the tensors of all others. They lie in memory that the node shares, or in that of
//! accelerators which open it to one another; then the accelerators do all folds.
//!
//! Each rank owns a slice. On one node it folds that slice of every rank's tensor, and writes the result into every rank's
//! tensor: a cache line goes from core to core once, where staging moves it four times. No rank touches another's slice, so two
//! rounds of flags order everything: all ranks have entered, and all slices are written. A lane is used for its flags alone.
//!
//! ```text
//!   one node       Peer, Data (own slice of all) --fold--> Peer, Data
//!   several nodes  Peer, Data (own slice of all) --fold--> Node --up grid--> Node --fold (of one)--> Peer, Data
//! ```
//!
//! With several nodes, slices meet chunk by chunk in the node's result. So each byte crosses the bus to an accelerator once
//! for the whole node, and not once for each of its ranks.

use super::builder::{Builder, Slice};
use super::sub::{all_come, in_pieces, node_area, signal, up, wait_free};
use super::{
    Access, Action, Algorithm, Buffer, BufferOffset, Params, Problem, Schedule, ScheduleError, StepId,
};
use crate::transport::LaneFlag;

/// Bytes that a core folds at once, so that they are in the nearest cache while they are written to the third rank and
/// those after it.
const PIECE: usize = 64 << 10;
/// The same for an accelerator, where a fold should be worth its launch, and leave room between two for work of the trainer's.
const DEVICE_PIECE: usize = 64 << 20;

/// Tensors that an accelerator folds at once, at most.
pub(super) const DEVICE_TENSORS: u32 = 64;

/// The steps of one rank.
pub(super) fn all_reduce(
    algorithm: Algorithm,
    problem: Problem,
    params: Params,
) -> Result<Schedule, ScheduleError> {
    let access = if problem.access.is_device() { Access::Accelerator } else { Access::Host };
    let mut b = Builder::new(Problem { access, ..problem }, params)?;
    if problem.grid.nodes() == 1 {
        one_node(&mut b)?;
    } else {
        nodes(&mut b, algorithm);
    }
    b.finish()
}

fn one_node(b: &mut Builder) -> Result<(), ScheduleError> {
    let (me, locals) = (b.problem.local(), b.problem.locals());
    let own = Slice { start: 0, end: b.problem.shape.count }.part(me, locals);
    let piece = if b.problem.access.is_device() { DEVICE_PIECE } else { PIECE };
    in_pieces(b, own, piece, |b, chunk, all| {
        let (tensors, finish) = (tensors(b, chunk.slice), b.averages());
        let len = b.bytes(chunk.slice);
        b.fold_all(chunk, (&own_first(&tensors, me), finish), &tensors, len, &[all])
    })
}

fn nodes(b: &mut Builder, algorithm: Algorithm) {
    b.use_lanes();
    let (me, locals) = (b.problem.local(), b.problem.locals());
    let mut consumed: Vec<StepId> = Vec::new();
    for chunk in b.chunks() {
        let free = wait_free(b, chunk, &consumed);
        let all = all_come(b, chunk, free);
        let slice = chunk.slice.part(me, locals);
        let (tensors, at, len) = (tensors(b, slice), b.at(node_area(chunk), slice), b.bytes(slice));
        let folded = b.fold(chunk, at, &tensors, len, &[all]);
        let reduced = signal(b, chunk, LaneFlag::Reduced, &folded);
        let (there, sends) = if me == 0 {
            let all = b.step(chunk, Action::WaitAll { flag: LaneFlag::Reduced }, &[reduced]);
            let outcome = up(b, algorithm, chunk, node_area(chunk), &[all]);
            signal(b, chunk, LaneFlag::Final, &outcome.result);
            (outcome.result, outcome.sends)
        } else {
            (vec![b.step(chunk, Action::Wait { local: 0, flag: LaneFlag::Final }, &[reduced])], Vec::new())
        };
        let mut last = b.fold_all(chunk, (&own_first(&tensors, me), false), &[at], len, &there);
        last.extend(sends);
        let signalled = signal(b, chunk, LaneFlag::Consumed, &last);
        consumed.push(signalled);
        // The others write to this rank's tensor.
        b.step(chunk, Action::WaitAll { flag: LaneFlag::Consumed }, &[signalled]);
    }
}

/// A slice of the tensors of all local ranks, in their order.
fn tensors(b: &Builder, slice: Slice) -> Vec<BufferOffset> {
    let (me, locals, own) = (b.problem.local(), b.problem.locals(), b.data(slice));
    let of = |local| if local == me { Buffer::Data } else { Buffer::Peer(local) };
    (0..locals).map(|local| BufferOffset { buffer: of(local), ..own }).collect()
}

/// As destinations: ranks begin with different ones, so that they do not all write to the same one at once.
fn own_first(tensors: &[BufferOffset], me: u32) -> Vec<BufferOffset> {
    let (before, after) = tensors.split_at(me as usize);
    [after, before].concat()
}
