//! Lower bounds: what no algorithm can do without.
//!
//! Bytes: Chan, Heimlich, Purkayastha and van de Geijn, "Collective communication: theory, practice, and experience" (2007), table 1,
//! with hosts for its nodes. Latency: one message where there are several hosts, one flag where there are several ranks.

use super::{Costs, Picoseconds};
use crate::header::Collective;
use crate::schedule::Problem;

pub(super) fn lower_bound(costs: &Costs, problem: &Problem) -> Picoseconds {
    use Collective::*;
    let grid = problem.grid;
    let (hosts, locals) = (u64::from(grid.nodes()), u64::from(grid.per_node()));
    let block = problem.block_bytes();
    let (host, network) = (costs.host, costs.network);
    let mut bound = Picoseconds::of_ns(host.call_ns);
    if hosts > 1 {
        // Bytes that the busiest host sends and receives.
        let others = block.saturating_mul(locals).saturating_mul(hosts - 1);
        let (sent, received) = match problem.shape.collective.base() {
            AllReduce => {
                (block.saturating_mul(hosts - 1) / hosts * 2, block.saturating_mul(hosts - 1) / hosts * 2)
            }
            Reduce => (0, block),
            Broadcast | Scan | ExScan => (block, 0),
            AllGather => (block.saturating_mul(locals), others),
            Gather => (0, others),
            Scatter => (others, 0),
            ReduceScatter => (others, block.saturating_mul(locals)),
            AllToAll => (others.saturating_mul(locals), others.saturating_mul(locals)),
            _ => (0, 0),
        };
        let wire = Picoseconds::of_bytes(sent.max(received), network.wire_mb_s);
        let core = Picoseconds::of_bytes(sent.saturating_add(received), network.core_mb_s);
        let message = Picoseconds::of_ns(network.message_ns).times(2);
        return bound + Picoseconds::of_ns(network.latency_ns) + message.max(wire.max(core));
    }
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
