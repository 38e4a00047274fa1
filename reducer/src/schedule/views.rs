//! Views: all ranks share one node, and all their tensors lie in memory that the node shares.
//!
//! Each rank owns a slice. It folds that slice of everybody's tensor, and writes the result into everybody's tensor:
//! a line goes from core to core once, where staging moves it four times. Nobody touches another's slice, so two
//! rounds of flags order everything: all have come, and all slices are written. A lane is used for its flags alone.

use super::builder::{Builder, Chunk, Slice};
use super::{Action, Buffer, Params, Place, Problem, Schedule, ScheduleError, StepId};
use crate::dtype::ReduceOp;
use crate::transport::Flag;

/// Bytes that are folded, and then copied to the third rank and those after it, while they are in the nearest cache.
const PIECE: usize = 64 << 10;

/// The steps of one rank.
pub(super) fn all_reduce(problem: Problem, params: Params) -> Result<Schedule, ScheduleError> {
    let mut b = Builder::new(problem, params)?;
    b.use_one_lane();
    let (me, locals) = (problem.local(), problem.grid.per_node());
    let whole = Chunk { index: 0, slice: Slice { start: 0, end: problem.shape.count } };
    let free = b.step(whole, Action::WaitFree, &[]);
    let told = b.step(whole, Action::Signal { flag: Flag::Staged }, &[free]);
    let all = b.step(whole, Action::WaitAll { flag: Flag::Staged }, &[told]);
    let mut written = vec![all];
    let slice = whole.slice.part(me, locals);
    let pieces = b.bytes(slice).div_ceil(PIECE).max(1);
    let pieces = u32::try_from(pieces)
        .map_err(|_| ScheduleError::TooLarge { what: "the pieces", count: problem.shape.count })?;
    for index in 0..pieces {
        written.extend(piece(&mut b, whole, slice.part(index, pieces), all));
    }
    let told = b.step(whole, Action::Signal { flag: Flag::Reduced }, &written);
    let all = b.step(whole, Action::WaitAll { flag: Flag::Reduced }, &[told]);
    b.step(whole, Action::Signal { flag: Flag::Consumed }, &[all]);
    b.finish()
}

/// Folds one piece of all tensors and writes it to all of them; returns the last steps.
fn piece(b: &mut Builder, whole: Chunk, slice: Slice, ready: StepId) -> Vec<StepId> {
    let (me, locals) = (b.problem.local(), b.problem.grid.per_node());
    let (own, len) = (b.data(slice), b.bytes(slice));
    let tensor =
        |local| if local == me { own } else { Place { buffer: Buffer::Peer(local), offset: own.offset } };
    let sources: Vec<_> = (0..locals).map(tensor).collect();
    // Ranks begin with different peers, so that they do not all write to the same one at once.
    let mut others = (1..locals).map(|i| tensor((me + i) % locals));
    // An average is finished in one place before it goes anywhere.
    let also = if b.problem.shape.op == ReduceOp::Avg { None } else { others.next() };
    let folded = b.fold_both(whole, (own, also), &sources, len, &[ready]);
    let finished = b.finish_sum(whole, own, len, folded);
    let mut last = finished.clone();
    for other in others {
        last.extend(b.copy(whole, own, other, len, &finished));
    }
    last
}
