//! The plan: everything about performance on which ranks must agree, fixed by rank 0 for all.
//!
//! Two ranks that chose different chunks would exchange messages that do not fit together, so the plan's digest is
//! part of the join. It also decides which algorithm serves which size, as a function of the plan, the grid and the
//! operation alone.

use crate::grid::{Grid, GridError, Rank};
use crate::header::Shape;
use crate::schedule::{self, Algorithm, Params, Problem, Schedule, ScheduleError};
use sha2::{Digest, Sha256};
use thiserror::Error;

/// Why bytes are no plan.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PlanError {
    /// Not the length of a plan.
    #[error("a plan has {len} bytes, not {0}; run the same version on all ranks", len = Plan::BYTES)]
    Length(usize),
    /// A number that cannot be used.
    #[error("the plan's {field} is {value}, which cannot be; {remedy}")]
    Value {
        /// Which.
        field: &'static str,
        /// Its value.
        value: u64,
        /// What would do.
        remedy: &'static str,
    },
    /// The plan's leaf size makes no grid.
    #[error(transparent)]
    Grid(#[from] GridError),
}

/// Fixed by rank 0, the same on every rank. Sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Use this algorithm for every size; `None` picks by size.
    pub forced: Option<Algorithm>,
    /// Nodes in a leaf group.
    pub leaf_size: u32,
    /// Lanes within one channel: RUD paths, TCP connections, queue pairs.
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
    /// Bytes of an encoded plan.
    pub const BYTES: usize = 56;

    /// The plan as bytes, for the other ranks.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[0] = 1;
        out[1] = self.forced.map_or(0, Algorithm::code);
        for (at, value) in [(4, self.leaf_size), (8, self.channel_num), (12, self.lanes), (16, self.depth)] {
            out[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        let sizes = [self.eager_bytes, self.direct_bytes, self.chunk_bytes, self.lane_bytes];
        for (at, value) in (24..).step_by(8).zip(sizes) {
            out[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        out
    }

    /// Reads a plan and checks it.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, PlanError> {
        let bytes: &[u8; Self::BYTES] = bytes.try_into().map_err(|_| PlanError::Length(bytes.len()))?;
        let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        if bytes[0] != 1 {
            return Err(PlanError::Value {
                field: "version",
                value: bytes[0].into(),
                remedy: "run the same version on all ranks",
            });
        }
        let forced = match bytes[1] {
            0 => None,
            code => Some(Algorithm::from_code(code).ok_or(PlanError::Value {
                field: "algorithm",
                value: code.into(),
                remedy: "run the same version on all ranks",
            })?),
        };
        let plan = Self {
            forced,
            leaf_size: u32_at(4),
            channel_num: u32_at(8),
            lanes: u32_at(12),
            depth: u32_at(16),
            eager_bytes: u64_at(24),
            direct_bytes: u64_at(32),
            chunk_bytes: u64_at(40),
            lane_bytes: u64_at(48),
        };
        plan.check()?;
        Ok(plan)
    }

    /// Whether the plan's numbers can be used.
    pub fn check(&self) -> Result<(), PlanError> {
        let value = |field, value, remedy| Err(PlanError::Value { field, value, remedy });
        for (field, n) in [
            ("leaf_size", self.leaf_size),
            ("channel_num", self.channel_num),
            ("lanes", self.lanes),
            ("depth", self.depth),
        ] {
            if n == 0 || n > 1 << 16 {
                return value(field, n.into(), "use 1 to 65536");
            }
        }
        for (field, n) in [("chunk_bytes", self.chunk_bytes), ("lane_bytes", self.lane_bytes)] {
            if n == 0 || n % 512 != 0 || n > 1 << 31 {
                return value(field, n, "use a multiple of 512 up to 2 GiB");
            }
        }
        for (field, n) in [("eager_bytes", self.eager_bytes), ("direct_bytes", self.direct_bytes)] {
            if n > 1 << 31 {
                return value(field, n, "use 2 GiB at most");
            }
        }
        Ok(())
    }

    /// SHA-256 of the plan's bytes; part of the join.
    pub fn digest(&self) -> [u8; 32] {
        Sha256::digest(self.to_bytes()).into()
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
        let problem = Problem { grid, ..*problem };
        schedule::build(self.algorithm(&grid, problem.bytes()), &problem, &self.params())
    }
}

#[cfg(test)]
mod tests;
