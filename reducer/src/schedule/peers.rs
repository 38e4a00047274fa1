//! Peers: on one node, where all inputs lie in memory that the node shares. Each rank reads what it needs of the others' inputs where they
//! lie: every byte of a result is written once, where staging moves it twice.
//!
//! ```text
//!   Input, Peer (inputs of the others) --copy or fold--> Data
//! ```
//!
//! Two rounds of flags order everything: all ranks have entered, and all have read. A lane is used for its flags alone.

use super::blocks::Pieces;
use super::builder::{Builder, Chunk, Slice};
use super::sub::in_pieces;
use super::{Buffer, BufferOffset, Params, Placement, Problem, Schedule, ScheduleError, StepId};
use crate::grid::Rank;
use crate::header::Collective;

/// Bytes that are copied or folded in one step, so that a poll does not take long.
const PIECE: usize = 128 << 10;

/// Whether a rank's part can be run so. Memory that other ranks read is not to be overwritten, as an all-to-all in place does.
pub(super) fn apply(problem: &Problem) -> bool {
    let Problem { grid, shape, access, placement, counts, .. } = problem;
    let on_node = grid.nodes() == 1 && problem.locals() > 1;
    on_node
        && shape.count > 0
        && !access.is_device()
        && counts.is_none()
        && match shape.collective {
            Collective::AllReduce | Collective::Barrier | Collective::Scan | Collective::ExScan => false,
            Collective::AllToAll => *placement == Placement::Separate,
            _ => true,
        }
}

/// The steps of one rank.
pub(super) fn read(problem: Problem, params: Params) -> Result<Schedule, ScheduleError> {
    let whole = Slice { start: 0, end: problem.shape.count };
    let mut b = Builder::new(problem, params)?;
    in_pieces(&mut b, whole, PIECE, piece)?;
    b.finish()
}

/// The steps for the same piece of each block, or of the tensor.
fn piece(b: &mut Builder, chunk: Chunk, there: StepId) -> Vec<StepId> {
    let (me, root, ranks) = (b.problem.rank, b.problem.root, b.problem.grid.ranks());
    let (pieces, len) = (Pieces::new(b, chunk), b.bytes(chunk.slice));
    // The piece of block `block` of the contribution of rank `from`.
    let given = |from: Rank, block: Rank| {
        pieces.of(if from == me { b.problem.given_in() } else { Buffer::Peer(from.0) }, block)
    };
    let alone = Rank(0);
    let contributions = |block: Rank| (0..ranks).map(|from| given(Rank(from), block)).collect::<Vec<_>>();
    // Ranks begin with different ones, so that not all read from the same one at once.
    let all = (0..ranks).map(|i| Rank((me.0 + i) % ranks));
    let into = |block: Rank| pieces.of(Buffer::Data, block);
    let copies: Vec<_> = match b.problem.shape.collective {
        Collective::Reduce if me == root => return fold(b, chunk, &contributions(alone), there),
        Collective::ReduceScatter => return fold(b, chunk, &contributions(me), there),
        Collective::Broadcast if me != root => vec![(given(root, alone), into(alone))],
        Collective::Scatter => vec![(given(root, me), into(alone))],
        Collective::Gather if me != root => Vec::new(),
        Collective::AllGather | Collective::Gather => {
            all.map(|from| (given(from, alone), into(from))).collect()
        }
        Collective::AllToAll => all.map(|from| (given(from, me), into(from))).collect(),
        _ => Vec::new(),
    };
    let kept = b.problem.placement == Placement::InPlace;
    let needed = copies.into_iter().filter(|(from, _)| !(kept && from.buffer == Buffer::Input));
    needed.flat_map(|(from, into)| b.copy(chunk, from, into, len, &[there])).collect()
}

fn fold(b: &mut Builder, chunk: Chunk, sources: &[BufferOffset], there: StepId) -> Vec<StepId> {
    let (into, finish, len) = (b.data(chunk.slice), b.averages(), b.bytes(chunk.slice));
    b.fold_all(chunk, (&[into], finish), sources, len, &[there])
}
