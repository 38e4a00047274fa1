//! The plan: everything about performance on which ranks must agree.
//!
//! Two ranks that chose different chunks, or different algorithms, would exchange messages that do not fit together, so the plan is part
//! of the join. The settings of each rank are compared there by name. The figures of the cost model ([`Costs`]) are rank 0's, which
//! all others take, and then the digests of all plans are compared.
//!
//! Which algorithm serves an operation follows from the plan, the grid and the operation alone: the one that the cost
//! model predicts to be the fastest, unless the plan names one. So every rank finds it by itself, when it first needs it, and all find the
//! same. Sums of floats have the same bits whatever their size, so for those only algorithms that keep the
//! order (`Algorithm::keeps_order`) are taken unasked.

use crate::cost::{self, Costs, Model};
use crate::grid::{Grid, Levels, Rank};
use crate::header::{Collective, Shape};
use crate::schedule::{self, Algorithm, Params, Problem, Schedule, ScheduleError};
use sha2::{Digest, Sha256};
use std::collections::HashMap;

pub use overrides::{OverrideError, Overrides, collective, word};

mod overrides;

/// The name of the number of connections in [`Plan::fields`].
const CHANNEL_NUM: &str = "channel_num";

/// An algorithm that is neither direct nor general must save one part in so many of their time: predictions are no closer than that.
const MARGIN: u64 = 8;

/// Up to this much for each rank to send or fold, the hosts of a scan send all that their ranks have to all later ones.
const RAW_SCAN_BYTES: u64 = 16 << 10;

/// The same on every rank. Sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The algorithms that collectives use whatever the model says.
    pub overrides: Overrides,
    /// How hosts are grouped.
    pub levels: Levels,
    /// Connections within one channel: RUD paths, TCP connections, queue pairs; `None`: as many as transports have by default.
    pub channel_num: Option<u32>,
    /// Up to this size of the whole tensor, operations go out without waiting for credit.
    pub eager_bytes: u64,
    /// A chunk on the up grid where a node has one rank.
    pub chunk_bytes: u64,
    /// Lanes of the memory shared by a node.
    pub lanes: u32,
    /// A lane's areas, and so a chunk where a node has several ranks. A multiple of 512.
    pub lane_bytes: u64,
    /// Chunks that may hold slots at the same time.
    pub depth: u32,
    /// All-reduces of the table below this size are fused with others; 0: none.
    pub fuse_below: u64,
    /// Fused operations have at most so many bytes in all.
    pub fuse_bytes: u64,
    /// The costs of steps and messages.
    pub costs: Costs,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            overrides: Overrides::default(),
            levels: Levels::default(),
            channel_num: None,
            eager_bytes: 16 << 10,
            chunk_bytes: 512 << 10,
            lanes: 4,
            lane_bytes: 256 << 10,
            depth: 4,
            fuse_below: 0,
            fuse_bytes: 64 << 10,
            costs: Costs::default(),
        }
    }
}

impl Plan {
    /// This rank's settings by name, to be compared with other ranks': a named algorithm by its code, and 0 for none, as for a level that
    /// there is not. The number of connections is left out where none is given.
    pub fn fields(&self) -> Vec<(String, u64)> {
        let Self { channel_num, eager_bytes, chunk_bytes, lanes, lane_bytes, depth, .. } = *self;
        let Self { fuse_below, fuse_bytes, .. } = *self;
        let fields = [
            ("eager_bytes", eager_bytes),
            ("chunk_bytes", chunk_bytes),
            ("lanes", lanes.into()),
            ("lane_bytes", lane_bytes),
            ("depth", depth.into()),
            ("fuse_below", fuse_below),
            ("fuse_bytes", fuse_bytes),
        ];
        let overrides = Collective::ALL.map(|collective| {
            let code = self.overrides.of(collective).map_or(0, |algorithm| algorithm as u8);
            (format!("{SCHEDULE}{collective}"), code.into())
        });
        let levels = (0..)
            .zip(self.levels.all())
            .map(|(level, size): (usize, _)| (format!("levels[{level}]"), size.into()));
        let channel_num = channel_num.map(|number| (CHANNEL_NUM.to_owned(), number.into()));
        channel_num
            .into_iter()
            .chain(fields.map(|(name, value)| (name.to_owned(), value)))
            .chain(levels)
            .chain(overrides)
            .collect()
    }

    /// A digest of all of it, the costs included.
    pub fn digest(&self) -> [u8; 32] {
        let mut digest = Sha256::new_with_prefix(b"shouter plan v1\0");
        let costs = self.costs.fields().map(|(name, value)| (name.to_owned(), value.into()));
        for (name, value) in self.fields().into_iter().chain(costs) {
            digest.update((name.len() as u64).to_le_bytes());
            digest.update(name.as_bytes());
            digest.update(value.to_le_bytes());
        }
        digest.finalize().into()
    }

    /// The cost model with this plan's numbers.
    pub fn model(&self) -> Model {
        Model { costs: self.costs, params: self.params(), eager_bytes: self.eager_bytes }
    }

    /// The algorithm for an operation: the one that the plan names, else the one that is predicted to be the fastest, for the
    /// [class](cost::size_class) of its size; but the direct and the [general](Algorithm::general) one give way only to one that is clearly
    /// faster. To find it takes a few milliseconds at most; [`Choices`] keep what was found.
    pub fn algorithm(&self, grid: &Grid, shape: &Shape) -> Algorithm {
        if let Some(named) = self.overrides.of(shape.collective) {
            return named;
        }
        if !cost::is_modelled(shape.collective) {
            return Self::unmodelled(grid, shape);
        }
        let serves = |algorithm: &Algorithm| algorithm.serves(shape.collective, grid);
        let candidates: Vec<_> = cost::candidates(shape).filter(serves).collect();
        let first = candidates.first().copied().unwrap_or(Algorithm::Direct);
        let grid = grid.with_levels(self.levels);
        if candidates.len() == 1 {
            return first;
        }
        let class = Shape { count: cost::size_class(shape.count), ..*shape };
        let model = self.model();
        let usual = [Algorithm::Direct, Algorithm::general(shape.collective)];
        let [best, usual] = [&candidates, &usual[..]].map(|of| model.fastest(of, &grid, &class));
        match (best, usual) {
            (Some((_, time)), Some((usual, of_usual))) if time.0 / (MARGIN - 1) >= of_usual.0 / MARGIN => {
                usual
            }
            (Some((best, _)), _) => best,
            _ => first,
        }
    }

    /// Blocks that differ have one way. A scan is raw where its bytes are few on all links: the other way has a hop for each host.
    fn unmodelled(grid: &Grid, shape: &Shape) -> Algorithm {
        let peers = (grid.nodes() - 1).max(grid.most_locals() - 1).max(1);
        let bytes = shape.count.saturating_mul(shape.dtype.size() as u64).saturating_mul(peers.into());
        match shape.collective.is_scan() && bytes > RAW_SCAN_BYTES {
            true => Algorithm::Hierarchical,
            false => Algorithm::Direct,
        }
    }

    /// The settings that schedules depend on.
    pub fn params(&self) -> Params {
        Params {
            chunk_bytes: self.chunk_bytes as usize,
            lanes: self.lanes,
            lane_bytes: self.lane_bytes as usize,
            depth: self.depth,
        }
    }

    /// The schedule of one rank for an operation; `root` matters where the collective has one. Build it once per shape and
    /// keep it: it is shared by all operations of that shape.
    ///
    /// # Errors
    /// The problem cannot be: [`ScheduleError`] says why.
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
    ///
    /// # Errors
    /// As [`schedule`](Self::schedule).
    pub fn schedule_for(&self, problem: &Problem) -> Result<Schedule, ScheduleError> {
        self.build(self.algorithm(&problem.grid, &problem.shape), problem)
    }

    /// The same with an algorithm that [`algorithm`](Self::algorithm) or [`Choices`] have found.
    ///
    /// # Errors
    /// As [`schedule`](Self::schedule).
    pub fn build(&self, algorithm: Algorithm, problem: &Problem) -> Result<Schedule, ScheduleError> {
        let grid = problem.grid.with_levels(self.levels);
        schedule::build(algorithm, &Problem { grid, ..problem.clone() }, &self.params())
    }
}

/// The start of the names of algorithms in [`Plan::fields`].
const SCHEDULE: &str = "schedule of ";

/// A value of [`Plan::fields`] in the configuration's words, for people: an algorithm by its name. `None` is a setting that is not there.
pub fn field_text(name: &str, value: Option<u64>) -> String {
    let names_parts = name.starts_with(SCHEDULE) || name.starts_with("levels[");
    match value {
        None if name == CHANNEL_NUM => "the default (not set)".to_owned(),
        None => "none".to_owned(),
        Some(0) if names_parts => "none".to_owned(),
        Some(value) => {
            let algorithm = u8::try_from(value).ok().and_then(Algorithm::from_code);
            let named = algorithm.filter(|_| name.starts_with(SCHEDULE));
            named.map_or_else(|| value.to_string(), |algorithm| algorithm.name().to_owned())
        }
    }
}

/// The algorithms that were found for one plan and grid, kept for the next operation of about the same size.
#[derive(Debug, Default)]
pub struct Choices {
    found: HashMap<Shape, Algorithm>,
}

impl Choices {
    /// The choice of [`Plan::algorithm`] for the shape's size class, computed once.
    pub fn algorithm(&mut self, plan: &Plan, grid: &Grid, shape: &Shape) -> Algorithm {
        let class = Shape { count: cost::size_class(shape.count), ..*shape };
        *self.found.entry(class).or_insert_with(|| plan.algorithm(grid, &class))
    }
}

#[cfg(test)]
mod tests;
