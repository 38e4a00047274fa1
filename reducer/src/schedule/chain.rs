//! Chain: nodes in a line, through which the chunks follow one another.
//!
//! Every node sends and receives each byte once, so a large broadcast or reduce takes about as long as its bytes take over one link; the
//! first chunk takes H - 1 hops. A reduce goes from the first node to the last, whatever the root: the sum of the nodes so far is
//! folded with the next one's contribution, and the last node sends the result to the root's. So the bits do not depend on the root. Where
//! there is one group this is the order of [`direct`](super::direct), but f16 and bf16 are rounded at every node.

use super::blocks::{receive, send};
use super::builder::{Builder, Chunk};
use super::tree::Tree;
use super::{BufferOffset, StepId};

/// The place of relative number `me`.
pub(super) fn tree(me: u32, nodes: u32) -> Tree {
    Tree { parent: me.checked_sub(1), children: (me + 1..nodes).take(1).collect() }
}

/// One chunk over the nodes: each has its contribution at `own` after `ready`, and the root's gets the result in `into`. Returns the steps
/// after which that is there, and `own` may be written.
pub(super) fn reduce(
    b: &mut Builder,
    chunk: Chunk,
    (own, into): (BufferOffset, BufferOffset),
    ready: &[StepId],
    (len, room): (usize, u64),
) -> Vec<StepId> {
    let (grid, me, round) = (b.problem.grid, b.problem.node(), chunk.index);
    let (home, last) = (grid.node_of(b.problem.root), grid.nodes() - 1);
    let mut read = ready.to_vec();
    if me == 0 {
        read.push(send(b, chunk, (1, round), own, len, ready));
    } else {
        let (slot, free) = b.slot(chunk, 0, room);
        let came = receive(b, chunk, (me - 1, round), slot, len, &free);
        let after = [ready, &[came]].concat();
        let sum = if me == last && home == me { into } else { slot };
        let mut used = b.fold(chunk, sum, &[slot, own], len, &after);
        read.clone_from(&used);
        if me == last && home == me {
            read = b.finish_sum(chunk, into, len, read);
        } else {
            let to = if me == last { home } else { me + 1 };
            used.push(send(b, chunk, (to, round), slot, len, &read));
        }
        b.slot_used(chunk, 0, &used);
    }
    if me == home && me != last {
        let came = receive(b, chunk, (last, round), into, len, &read);
        return b.finish_sum(chunk, into, len, vec![came]);
    }
    read
}
