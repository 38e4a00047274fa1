//! The cost model: how long a collective takes with an algorithm, without running it.
//!
//! There is no formula for an algorithm. The schedules that the ranks would run are evaluated (`simulate`): every step has a cost, a rank
//! does one step at a time, a message takes its way, a flag goes from core to core, and the last step of the slowest rank gives the time.
//! So an algorithm that has a schedule has a prediction. That is the model of Culler et al., "LogP: towards a realistic model of parallel
//! computation" (1993), with costs for each byte (Alexandrov et al., "LogGP", 1995) and for folding.
//!
//! Where all ranks' schedules are too many, some stand for the others (`cast`); where a tensor has many chunks, the time of a few
//! is extended by the time that one more takes. So a prediction takes a millisecond or a few, whatever the ranks and the bytes.
//!
//! All arithmetic is on integers. The same figures give the same prediction, and so the same choice, on every rank.
//!
//! The model leaves out ranks that share a core, caches (one rate for all sizes), links that several hosts share, and tensors on
//! accelerators or in memory that a host's ranks share.

mod bound;
mod cast;
mod simulate;

use crate::dtype::{DType, ReduceOp};
use crate::grid::{Grid, Rank};
use crate::header::{Collective, Shape};
use crate::schedule::{self, Algorithm, Params, Problem, ScheduleError};
use core::fmt;
use core::ops::RangeInclusive;
use core::time::Duration;

/// Costs of steps within a host. Rates are in MB/s, that is bytes a microsecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostCosts {
    /// An operation's start and end, in nanoseconds.
    pub call_ns: u32,
    /// A step's own overhead, in nanoseconds.
    pub step_ns: u32,
    /// From the store of a flag on one core to its sight on another, in nanoseconds.
    pub flag_ns: u32,
    /// Copying.
    pub copy_mb_s: u32,
    /// Folding: bytes of all sources.
    pub fold_mb_s: u32,
}

/// Costs of messages between two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkCosts {
    /// From the end of a send to the arrival of its last byte, in nanoseconds.
    pub latency_ns: u32,
    /// The cost of a message to its sender, and again to its receiver, whatever its length, in nanoseconds.
    pub message_ns: u32,
    /// The rate at which one side's core deals with a message's bytes: copies, checksums. Sends and receives share it.
    pub core_mb_s: u32,
    /// The rate of the wire in each direction.
    pub wire_mb_s: u32,
}

/// The parameters of the model: part of the plan, the same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Within a host.
    pub host: HostCosts,
    /// Between hosts.
    pub network: NetworkCosts,
}

impl Default for Costs {
    fn default() -> Self {
        Self::of_transport("rud")
    }
}

impl Costs {
    /// The range of times, in nanoseconds.
    pub const NANOSECONDS: RangeInclusive<u32> = 0..=1_000_000_000;
    /// The range of rates, in MB/s.
    pub const RATES: RangeInclusive<u32> = 10..=10_000_000;

    /// Figures to begin with, for the transport of this name between hosts. Those of `rud`, `tcp` and `kernel` were fitted to measurements on
    /// one machine (docs/benchmarks.md); those of `verbs` are what a NIC of 100 Gb/s is expected to reach. Names that are not known get those of `rud`.
    pub fn of_transport(name: &str) -> Self {
        let host = HostCosts { call_ns: 500, step_ns: 60, flag_ns: 200, copy_mb_s: 9_000, fold_mb_s: 16_000 };
        let network = match name {
            "verbs" => {
                NetworkCosts { latency_ns: 1_500, message_ns: 400, core_mb_s: 40_000, wire_mb_s: 12_000 }
            }
            "kernel" => {
                NetworkCosts { latency_ns: 6_000, message_ns: 2_500, core_mb_s: 3_600, wire_mb_s: 1_000_000 }
            }
            "tcp" => {
                NetworkCosts { latency_ns: 900, message_ns: 600, core_mb_s: 6_000, wire_mb_s: 1_000_000 }
            }
            _ => NetworkCosts { latency_ns: 500, message_ns: 350, core_mb_s: 9_000, wire_mb_s: 1_000_000 },
        };
        Self { host, network }
    }

    /// All of it by name.
    pub fn fields(&self) -> [(&'static str, u32); 9] {
        let mut costs = *self;
        costs.fields_mut().map(|(name, value)| (name, *value))
    }

    /// A field by its name.
    pub fn field_mut(&mut self, name: &str) -> Option<&mut u32> {
        self.fields_mut().into_iter().find(|(other, _)| *other == name).map(|(_, value)| value)
    }

    fn fields_mut(&mut self) -> [(&'static str, &mut u32); 9] {
        let HostCosts { call_ns, step_ns, flag_ns, copy_mb_s, fold_mb_s } = &mut self.host;
        let NetworkCosts { latency_ns, message_ns, core_mb_s, wire_mb_s } = &mut self.network;
        [
            ("call_ns", call_ns),
            ("step_ns", step_ns),
            ("flag_ns", flag_ns),
            ("copy_mb_s", copy_mb_s),
            ("fold_mb_s", fold_mb_s),
            ("latency_ns", latency_ns),
            ("message_ns", message_ns),
            ("core_mb_s", core_mb_s),
            ("wire_mb_s", wire_mb_s),
        ]
    }
}

/// A span of time in picoseconds: a byte takes tens of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Picoseconds(pub u64);

impl Picoseconds {
    fn of_ns(ns: u32) -> Self {
        Self(u64::from(ns) * 1_000)
    }

    /// How long `bytes` take at a rate in MB/s. A rate of 0 counts as 1.
    fn of_bytes(bytes: u64, mb_s: u32) -> Self {
        let time = u128::from(bytes) * 1_000_000 / u128::from(mb_s.max(1));
        Self(u64::try_from(time).unwrap_or(u64::MAX))
    }

    fn times(self, n: u64) -> Self {
        Self(self.0.saturating_mul(n))
    }

    /// In microseconds.
    pub fn as_micros(self) -> f64 {
        self.0 as f64 / 1e6
    }
}

impl core::ops::Add for Picoseconds {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl From<Picoseconds> for Duration {
    fn from(time: Picoseconds) -> Self {
        Self::from_nanos(time.0 / 1_000)
    }
}

impl fmt::Display for Picoseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.as_micros() {
            us if us < 10.0 => write!(f, "{us:.2} us"),
            us if us < 10_000.0 => write!(f, "{us:.0} us"),
            us if us < 10_000_000.0 => write!(f, "{:.1} ms", us / 1e3),
            us => write!(f, "{:.1} s", us / 1e6),
        }
    }
}

/// Numbers of chunks that are evaluated in full; the time of further chunks follows from the difference of these two.
const CHUNKS: [u64; 2] = [4, 8];

/// The model of one group.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    /// The costs of steps and messages.
    pub costs: Costs,
    /// How tensors are cut.
    pub params: Params,
    /// Up to this size of the whole tensor messages wait for no credit.
    pub eager_bytes: u64,
}

impl Model {
    /// How long a collective takes with an algorithm: from the call on all ranks at once to the return on the last. The root is rank 0.
    ///
    /// # Errors
    /// [`ScheduleError`] where the algorithm has no schedule for it.
    pub fn predict(
        &self,
        algorithm: Algorithm,
        grid: &Grid,
        shape: &Shape,
    ) -> Result<Picoseconds, ScheduleError> {
        let problem = Problem::new(*grid, Rank(0), shape, Rank(0));
        let chunk = schedule::chunk_elements(&problem, &self.params)?;
        let [few, more] = CHUNKS.map(|chunks| chunks.saturating_mul(chunk));
        if shape.count <= more {
            return self.evaluate(algorithm, &problem, problem.bytes());
        }
        let of = |count| {
            let shape = Shape { count, ..*shape };
            self.evaluate(algorithm, &Problem { shape, ..problem.clone() }, problem.bytes())
        };
        let (first, second) = (of(few)?, of(more)?);
        let (grown, rest) = (second.0.saturating_sub(first.0), shape.count - more);
        let beyond = u128::from(grown) * u128::from(rest) / u128::from(more - few);
        let extended = second + Picoseconds(u64::try_from(beyond).unwrap_or(u64::MAX));
        // The last chunks' end hides a part of what more chunks take.
        Ok(extended.max(self.lower_bound(grid, shape)).max(self.work(algorithm, grid, shape)?))
    }

    /// The same for as many elements as there are, as a part of an operation of so many bytes.
    fn evaluate(
        &self,
        algorithm: Algorithm,
        problem: &Problem,
        bytes: u64,
    ) -> Result<Picoseconds, ScheduleError> {
        let cast = cast::Cast::of(algorithm, problem, &self.params)?;
        let credit = bytes > self.eager_bytes;
        Ok(Picoseconds::of_ns(self.costs.host.call_ns) + simulate::run(&cast, &self.costs, credit))
    }

    /// How long an operation takes at least with an algorithm: the time for which it keeps rank 0's core. It takes much less
    /// time to find than a prediction does.
    ///
    /// # Errors
    /// The shape cannot be on that grid, as for [`build`](schedule::build).
    pub fn work(
        &self,
        algorithm: Algorithm,
        grid: &Grid,
        shape: &Shape,
    ) -> Result<Picoseconds, ScheduleError> {
        let problem = Problem::new(*grid, Rank(0), shape, Rank(0));
        let chunk = schedule::chunk_elements(&problem, &self.params)?.min(shape.count);
        let one = Problem { shape: Shape { count: chunk, ..*shape }, ..problem.clone() };
        let schedule = schedule::build(algorithm, &one, &self.params)?;
        let chunks = shape.count.checked_div(chunk).unwrap_or(1);
        Ok(simulate::work_of(&schedule, &self.costs).times(chunks))
    }

    /// The algorithm that is predicted to be the fastest for an operation, and the prediction; of those that take equally long, the first.
    /// `None` where none has a schedule.
    pub fn fastest(
        &self,
        algorithms: &[Algorithm],
        grid: &Grid,
        shape: &Shape,
    ) -> Option<(Algorithm, Picoseconds)> {
        let mut by_work: Vec<_> = (0..)
            .zip(algorithms)
            .filter_map(|(place, &algorithm)| {
                Some((self.work(algorithm, grid, shape).ok()?, place, algorithm))
            })
            .collect();
        by_work.sort_unstable_by_key(|&(work, place, _)| (work, place));
        let mut best: Option<(Picoseconds, usize, Algorithm)> = None;
        for (work, place, algorithm) in by_work {
            // An algorithm that keeps a core busy for longer than the best takes needs no prediction.
            if best.is_some_and(|(time, ..)| work > time) {
                break;
            }
            let Ok(time) = self.predict(algorithm, grid, shape) else { continue };
            if best.is_none_or(|(least, first, _)| (time, place) < (least, first)) {
                best = Some((time, place, algorithm));
            }
        }
        best.map(|(time, _, algorithm)| (algorithm, time))
    }

    /// How long an operation takes at least, whatever the algorithm.
    pub fn lower_bound(&self, grid: &Grid, shape: &Shape) -> Picoseconds {
        bound::lower_bound(&self.costs, &Problem::new(*grid, Rank(0), shape, Rank(0)))
    }

    /// How long an operation takes that goes through cells of the host's memory instead of a schedule: every rank writes what it gives,
    /// waits for the others, and copies or folds what it gets.
    pub fn in_cells(&self, grid: &Grid, shape: &Shape) -> Picoseconds {
        let HostCosts { flag_ns, copy_mb_s, fold_mb_s, .. } = self.costs.host;
        let problem = Problem::new(*grid, Rank(0), shape, Rank(0));
        let others = u64::from(grid.ranks() - 1);
        let rate = if shape.collective.reduces() { fold_mb_s } else { copy_mb_s };
        let taken = if shape.collective.reduces() {
            (others + 1) * problem.block_bytes()
        } else {
            problem.output_bytes()
        };
        Picoseconds::of_ns(flag_ns)
            // The others' lines are on their way at the same time, but not for nothing.
            + Picoseconds(Picoseconds::of_ns(flag_ns).0 / 4).times(others.saturating_sub(1))
            + Picoseconds::of_bytes(problem.published_bytes(), copy_mb_s)
            + Picoseconds::of_bytes(taken, rate)
    }
}

/// Whether the result is the same bits in whichever order and grouping the ranks' elements are folded.
pub fn is_free_of_order(shape: &Shape) -> bool {
    use DType::*;
    let whole = matches!(shape.dtype, I8 | I16 | I32 | I64 | U8 | U16 | U32 | U64 | Bool);
    !shape.collective.reduces() || whole || matches!(shape.op, ReduceOp::Min | ReduceOp::Max)
}

/// The count that stands for all counts near it, and is no larger: two in each power of two. Choices are made for it, so that they can
/// be kept.
pub fn size_class(count: u64) -> u64 {
    match count.checked_ilog2() {
        Some(bits) if bits > 0 => count >> (bits - 1) << (bits - 1),
        _ => count,
    }
}

/// The algorithms to choose from, by preference: the first of those that take equally long is taken.
pub fn candidates(shape: &Shape) -> impl Iterator<Item = Algorithm> + use<> {
    let free = is_free_of_order(shape);
    serving(shape.collective).filter(move |algorithm| free || algorithm.keeps_order())
}

/// The algorithms that serve a collective, by preference. Those not among them cannot be asked for.
pub fn serving(collective: Collective) -> impl Iterator<Item = Algorithm> + use<> {
    let preferred = [Algorithm::Direct, Algorithm::Hierarchical];
    let others = Algorithm::ALL.into_iter().filter(move |algorithm| !preferred.contains(algorithm));
    preferred.into_iter().chain(others).filter(move |algorithm| algorithm.applies_to(collective))
}

/// Whether the model rates the algorithms of a collective. It does not know how much blocks differ, and of a scan each host does something else.
pub fn is_modelled(collective: Collective) -> bool {
    !collective.has_counts() && !collective.is_scan()
}

#[cfg(test)]
mod tests;
