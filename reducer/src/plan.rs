//! The plan: everything about performance on which ranks must agree.
//!
//! Two ranks that chose different chunks would exchange messages that do not fit together, so the plan is part of
//! the join. It also decides which algorithm serves which size, as a function of the plan, the grid and the
//! operation alone.

use crate::grid::{Grid, Rank};
use crate::header::Shape;
use crate::schedule::{self, Algorithm, Params, Problem, Schedule, ScheduleError};

/// The same on every rank. Sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Use this algorithm for every size; `None` picks by size.
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

    /// The algorithm for a tensor of `bytes` bytes. The traffic of the direct one grows with the nodes, and its folds
    /// with the ranks of a node, so the size up to which it serves shrinks with either.
    pub fn algorithm(&self, grid: &Grid, bytes: u64) -> Algorithm {
        let peers = (grid.nodes() - 1).max(grid.per_node() - 1).max(1);
        match self.forced {
            Some(algorithm) => algorithm,
            None if bytes.saturating_mul(peers.into()) <= self.direct_bytes => Algorithm::Direct,
            None => Algorithm::Hierarchical,
        }
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
        schedule::build(self.algorithm(&grid, problem.bytes()), &problem, &self.params())
    }
}

#[cfg(test)]
mod tests;
