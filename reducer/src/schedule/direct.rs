//! Direct: one round. Every node sends all it has to all others, and each folds everything in rank order.
//!
//! Latency is one message; the traffic is (H - 1) times the tensor for each node, so it is for small tensors. The
//! contribution is copied to a slot before it is sent: then nobody waits for an acknowledgement before the result is
//! written over it.

use super::builder::{Area, Builder, Chunk, Outcome};
use super::{Action, StepId};

/// One chunk over the up grid; the area holds this node's contribution after `ready`.
pub(super) fn up(b: &mut Builder, chunk: Chunk, area: Area, ready: &[StepId]) -> Outcome {
    let (grid, me) = (b.problem.grid, b.problem.node());
    let (len, at) = (b.bytes(chunk.slice), b.at(area, chunk.slice));
    let elems = b.full_chunk().end;
    let round = chunk.index;

    let (own, free) = b.slot(chunk, 0, elems);
    let after: Vec<_> = ready.iter().copied().chain(free).collect();
    let copied = b.copy(chunk, at, own, len, &after);
    let others = (0..grid.nodes()).filter(|&node| node != me);
    let sends: Vec<_> = others
        .map(|node| b.step(chunk, Action::Send { to: grid.leader_of(node), round, from: own, len }, &copied))
        .collect();
    b.slot_used(chunk, 0, &sends);

    let (mut sources, mut after, mut numbers) = (Vec::new(), copied, Vec::new());
    for node in 0..grid.nodes() {
        if node == me {
            sources.push(at);
            continue;
        }
        let number = 1 + numbers.len();
        let (into, free) = b.slot(chunk, number, elems);
        after.push(b.step(chunk, Action::Receive { from: grid.leader_of(node), round, into, len }, &free));
        sources.push(into);
        numbers.push(number);
    }
    let folded = b.fold(chunk, at, &sources, len, &after);
    for number in numbers {
        b.slot_used(chunk, number, &folded);
    }
    Outcome { result: b.finish_sum(chunk, at, len, folded), sends: Vec::new() }
}
