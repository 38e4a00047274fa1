//! Lower bounds of the time of a collective, whatever the algorithm.
//!
//! Bytes: Chan, Heimlich, Purkayastha and van de Geijn, "Collective communication: theory, practice, and experience" (2007), table 1,
//! with hosts for its nodes. Latency: one message where there are several hosts, one flag where there are several ranks.

use super::{Costs, Picoseconds};
use crate::header::Collective;
use crate::schedule::Problem;

pub(super) fn lower_bound(costs: &Costs, problem: &Problem) -> Picoseconds {
    use Collective::*;
    let grid = problem.grid;
    let (hosts, ranks) = (u64::from(grid.nodes()), u64::from(grid.ranks()));
    let block = problem.block_bytes();
    let (host, network) = (costs.host, costs.network);
    // The start and end of a schedule. Cells (`Model::in_cells`) serve small operations of one host without one.
    let through_cells = hosts == 1 && ranks > 1;
    let mut bound = Picoseconds::of_ns(if through_cells { 0 } else { host.call_ns });
    if hosts > 1 {
        // Bytes that a host with so many ranks sends and receives.
        let crossing = |locals: u64| {
            let own = block.saturating_mul(locals);
            let others = block.saturating_mul(ranks - locals);
            match problem.shape.collective.base() {
                AllReduce => {
                    let share = block.saturating_mul(hosts - 1) / hosts * 2;
                    (share, share)
                }
                Reduce => (0, block),
                Broadcast | Scan | ExScan => (block, 0),
                AllGather => (own, others),
                Gather => (0, others),
                Scatter => (others, 0),
                ReduceScatter => (others, own),
                AllToAll => (others.saturating_mul(locals), others.saturating_mul(locals)),
                _ => (0, 0),
            }
        };
        let message = Picoseconds::of_ns(network.message_ns).times(2);
        let takes = |locals: u32| {
            let (sent, received) = crossing(locals.into());
            let wire = Picoseconds::of_bytes(sent.max(received), network.wire_mb_s);
            let core = Picoseconds::of_bytes(sent.saturating_add(received), network.core_mb_s);
            message.max(wire.max(core))
        };
        let busiest = match problem.shape.collective.has_root() {
            true => takes(grid.locals(grid.node_of(problem.root))),
            false => grid.numbers_of_locals().map(takes).max().unwrap_or(message),
        };
        return bound + Picoseconds::of_ns(network.latency_ns) + busiest;
    }
    let locals = ranks;
    if locals > 1 {
        bound = bound + Picoseconds::of_ns(host.flag_ns);
        // Bytes that the busiest rank writes, each once.
        let written = match problem.shape.collective.base() {
            AllReduce | Reduce | Broadcast | Scatter | ReduceScatter | Scan | ExScan => block,
            AllGather | Gather | AllToAll => block.saturating_mul(locals - 1),
            _ => 0,
        };
        let rate = host.copy_mb_s.max(host.fold_mb_s);
        bound = bound + Picoseconds::of_bytes(written, rate);
    }
    bound
}
