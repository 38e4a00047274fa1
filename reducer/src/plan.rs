//! The plan: everything about performance on which ranks must agree.
//!
//! Two ranks that chose different chunks would exchange messages that do not fit together, so the plan is part of
//! the join. It also decides which algorithm serves which size, as a function of the plan, the grid and the
//! operation alone.

use crate::grid::{Grid, Rank};
use crate::header::{Collective, Shape};
use crate::schedule::{self, Algorithm, Params, Problem, Schedule, ScheduleError};

/// Up to so many nodes, a message of each to each other one takes less time than log2(nodes) rounds, of which each waits for the one before:
/// posting and taking one is about an eighth of the way from one node to another.
const MESH_NODES: u32 = 16;

/// The same for messages from all nodes to one, or back.
const STAR_NODES: u32 = 32;

/// The same on every rank. Sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Use this algorithm for every size of the collectives that it serves; `None` picks by size.
    pub forced: Option<Algorithm>,
    /// Nodes in a leaf group.
    pub leaf_size: u32,
    /// Connections within one channel: RUD paths, TCP connections, queue pairs.
    pub channel_num: u32,
    /// Up to this size of the whole tensor, operations go out without waiting for credit.
    pub eager_bytes: u64,
    /// Up to this much for each rank to send or fold, everyone sends everything to everyone.
    pub direct_bytes: u64,
    /// A chunk on the up grid where a node has one rank.
    pub chunk_bytes: u64,
    /// Lanes of the memory shared by a node.
    pub lanes: u32,
    /// A lane's areas, and so a chunk where a node has several ranks. A multiple of 512.
    pub lane_bytes: u64,
    /// Chunks that may hold slots at the same time.
    pub depth: u32,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            forced: None,
            leaf_size: 8,
            channel_num: 1,
            eager_bytes: 16 << 10,
            direct_bytes: 16 << 10,
            chunk_bytes: 512 << 10,
            lanes: 4,
            lane_bytes: 256 << 10,
            depth: 4,
        }
    }
}

impl Plan {
    /// All of it by name, to be compared with other ranks': a forced algorithm by its code, 0 for none.
    pub fn fields(&self) -> [(&'static str, u64); 9] {
        let Self { forced, leaf_size, channel_num, eager_bytes, direct_bytes, .. } = *self;
        let Self { chunk_bytes, lanes, lane_bytes, depth, .. } = *self;
        [
            ("channel_num", channel_num.into()),
            ("algorithm", forced.map_or(0, Algorithm::code).into()),
            ("leaf_size", leaf_size.into()),
            ("eager_bytes", eager_bytes),
            ("direct_bytes", direct_bytes),
            ("chunk_bytes", chunk_bytes),
            ("lanes", lanes.into()),
            ("lane_bytes", lane_bytes),
            ("depth", depth.into()),
        ]
    }

    /// The algorithm for an operation: the one that is forced, if it serves the collective. Else it depends on the size and the grid alone,
    /// and of those that reduce it is one of those that fold in the same order.
    pub fn algorithm(&self, problem: &Problem) -> Algorithm {
        let collective = problem.shape.collective;
        match self.forced {
            Some(algorithm) if algorithm.applies_to(collective) => algorithm,
            _ => self.usual(problem),
        }
    }

    /// The traffic of direct exchange grows with the nodes, and its folds with the ranks of a node, so the size up to which it serves shrinks
    /// with either. With many nodes it is rounds that count, and not one message for each of them.
    fn usual(&self, problem: &Problem) -> Algorithm {
        let Problem { grid, shape, .. } = *problem;
        let nodes = grid.nodes();
        let others = nodes - 1;
        let direct = |bytes: u64, peers: u32| bytes.saturating_mul(peers.max(1).into()) <= self.direct_bytes;
        let small = direct(problem.bytes(), others.max(grid.per_node() - 1));
        let (all_to_all, to_one) = (nodes > MESH_NODES, nodes > STAR_NODES);
        match shape.collective {
            Collective::Barrier if all_to_all => Algorithm::Dissemination,
            Collective::AllReduce if small && all_to_all => Algorithm::Bruck,
            Collective::Reduce if small && to_one => Algorithm::Binomial,
            Collective::AllReduce | Collective::Reduce | Collective::Scan | Collective::ExScan if small => {
                Algorithm::Direct
            }
            Collective::Broadcast if small && !to_one => Algorithm::Direct,
            Collective::Broadcast if self.is_for_chain(problem) => Algorithm::Chain,
            Collective::Gather | Collective::Scatter if to_one && direct(problem.bytes(), 1) => {
                Algorithm::Binomial
            }
            Collective::AllGather | Collective::AllToAll if all_to_all && direct(problem.bytes(), 1) => {
                Algorithm::Bruck
            }
            Collective::AllGather if all_to_all => Algorithm::Ring,
            Collective::AllToAll if all_to_all => Algorithm::Pairwise,
            other => Algorithm::general(other),
        }
    }

    /// Whether a broadcast's bytes leave the root sooner one time, chunk by chunk along all nodes, than once for each of its children in a
    /// binomial tree.
    fn is_for_chain(&self, problem: &Problem) -> bool {
        let nodes = problem.grid.nodes();
        let children = u32::BITS - (nodes - 1).leading_zeros();
        let chunk = self.params().chunk_bytes_on(&problem.grid) as u64;
        let [chain, tree] = [nodes - 1, children].map(u64::from);
        nodes > 2 && problem.bytes().saturating_mul(tree - 1) > chunk.saturating_mul(chain)
    }

    /// What schedules need to know of the plan.
    pub fn params(&self) -> Params {
        Params {
            chunk_bytes: self.chunk_bytes as usize,
            lanes: self.lanes,
            lane_bytes: self.lane_bytes as usize,
            depth: self.depth,
        }
    }

    /// The schedule of one rank for an operation; `root` matters for broadcasts only. Build it once per shape and
    /// keep it: it is shared by all operations of that shape.
    pub fn schedule(
        &self,
        grid: &Grid,
        rank: Rank,
        shape: &Shape,
        root: Rank,
    ) -> Result<Schedule, ScheduleError> {
        self.schedule_for(&Problem::new(*grid, rank, shape, root))
    }

    /// The same for a problem of any kind, such as a tensor on an accelerator.
    pub fn schedule_for(&self, problem: &Problem) -> Result<Schedule, ScheduleError> {
        let grid = problem.grid.with_leaf_size(self.leaf_size)?;
        let problem = Problem { grid, ..problem.clone() };
        schedule::build(self.algorithm(&problem), &problem, &self.params())
    }
}

#[cfg(test)]
mod tests;
