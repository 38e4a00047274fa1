//! Reduce: as an all-reduce, but only the root gets the result. A node folds its ranks' tensors; then each node folds a slice of all
//! nodes' and sends it to the root's. Small tensors go to the root's node at once, or up a binomial tree; large ones may go along a chain.

use super::blocks::{every_chunk, receive, send, wait, wait_all};
use super::builder::{Area, Builder, Chunk};
use super::direct::{fold_from_nodes, fold_nodes};
use super::sub::{fold_slice, node_area, signal};
use super::{Algorithm, Buffer, BufferOffset, StepId, binomial, chain};
use crate::transport::LaneFlag;

/// The whole operation, chunk by chunk.
pub(super) fn reduce(b: &mut Builder, algorithm: Algorithm) {
    let [from, into] = [Buffer::Input, Buffer::Data].map(|buffer| Area { buffer, base: 0 });
    let directly = |b: &mut Builder, algorithm, chunk| across(b, algorithm, chunk, from, into, &[]);
    every_chunk(b, algorithm, through_node, directly);
}

fn through_node(b: &mut Builder, algorithm: Algorithm, chunk: Chunk, free: StepId) -> Vec<StepId> {
    let (grid, root) = (b.problem.grid, b.problem.root);
    let home = b.problem.node() == grid.node_of(root);
    let (area, len) = (node_area(chunk), b.bytes(chunk.slice));
    let place = b.at(area, chunk.slice);
    let mut last = if b.problem.locals() == 1 {
        let own = b.input(chunk.slice);
        b.copy(chunk, own, place, len, &[free])
    } else {
        fold_slice(b, chunk, free, grid.nodes() == 1).0
    };
    let mut there = last.clone();
    if grid.nodes() == 1 {
        if b.problem.rank == root {
            there = wait_all(b, chunk, LaneFlag::Reduced, &last);
        }
    } else if b.problem.local() == 0 {
        let all = wait_all(b, chunk, LaneFlag::Reduced, &last);
        there = across(b, algorithm, chunk, area, area, &all);
        if home && b.problem.locals() > 1 {
            last.push(signal(b, chunk, LaneFlag::Final, &there));
        }
    } else if b.problem.rank == root {
        there = wait(b, chunk, (0, LaneFlag::Final), &last);
    }
    if b.problem.rank == root {
        let output = b.data(chunk.slice);
        last.extend(b.copy(chunk, place, output, len, &there));
    }
    last.extend(there);
    last
}

/// One chunk over the nodes: each has its contribution in `from` after `ready`, and the root's gets the result in `into`. Returns the
/// steps after which that is there, and `from` may be written.
fn across(
    b: &mut Builder,
    algorithm: Algorithm,
    chunk: Chunk,
    from: Area,
    into: Area,
    ready: &[StepId],
) -> Vec<StepId> {
    let (grid, me) = (b.problem.grid, b.problem.node());
    let home = grid.node_of(b.problem.root);
    // The nodes that fold, each a slice.
    let folders = match algorithm {
        Algorithm::Direct => home..home + 1,
        Algorithm::Binomial | Algorithm::Chain if grid.nodes() > 1 => {
            let places = (b.at(from, chunk.slice), b.at(into, chunk.slice));
            let sizes = (b.bytes(chunk.slice), b.full_chunk().end);
            return match algorithm {
                Algorithm::Chain => chain::reduce(b, chunk, places, ready, sizes),
                _ => gathered(b, chunk, places, ready, sizes),
            };
        }
        _ => 0..grid.nodes(),
    };
    let room = b.full_chunk().largest_part(folders.len() as u32);
    let slices = folders.len() as u32;
    let rounds = [2 * chunk.index, 2 * chunk.index + 1];
    let mut last = ready.to_vec();
    for (q, folder) in (0..).zip(folders) {
        let slice = chunk.slice.part(q, slices);
        if slice.is_empty() && slices > 1 {
            continue;
        }
        let (own, result, len) = (b.at(from, slice), b.at(into, slice), b.bytes(slice));
        if folder == me {
            if me == home {
                last.extend(fold_from_nodes(b, chunk, (own, ready), rounds[0], result, (len, room, 1)));
                continue;
            }
            // The input is not written: the sum has a slot.
            let (sum, mut after) = b.slot(chunk, 0, room);
            after.extend(ready);
            let done = fold_from_nodes(b, chunk, (own, &after), rounds[0], sum, (len, room, 1));
            let sent = send(b, chunk, (home, rounds[1]), sum, len, &done);
            b.slot_used(chunk, 0, &[sent]);
            last.push(sent);
            continue;
        }
        let sent = send(b, chunk, (folder, rounds[0]), own, len, ready);
        last.push(sent);
        if me == home {
            last.push(receive(b, chunk, (folder, rounds[1]), result, len, &[sent]));
        }
    }
    last
}

/// The same over a binomial tree: the root's node gathers all contributions and folds them.
fn gathered(
    b: &mut Builder,
    chunk: Chunk,
    (own, into): (BufferOffset, BufferOffset),
    ready: &[StepId],
    (len, room): (usize, u64),
) -> Vec<StepId> {
    let (last, contributions) = binomial::gather(b, chunk, (own, ready), (0, room), len);
    if contributions.is_empty() {
        return last;
    }
    let folded = fold_nodes(b, chunk, (&contributions, None), into, len);
    b.slot_used(chunk, 0, &folded);
    b.finish_sum(chunk, into, len, folded)
}
