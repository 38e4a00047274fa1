//! The figures of the cost model in force: rank 0's, from a file, from an earlier job's measurement, measured at the join, or built in.
//!
//! Rank 0 decides which, and tells all ranks when ports are open ([`Offer`]). Where it measures, all are connected first. Then it does so with
//! the second rank of its host ([`within`]) and with the leader of another host ([`between`]), for [`BUDGET`] at most, and hands the
//! result to all ranks over the control connections. If something is not found in that time, cannot be, or varies while other programs use
//! the cores, the built-in figures stand; a rank that ends meanwhile is named as in any exchange of the join.

mod between;
mod samples;
mod within;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use shouter_reducer::cost::Costs;
use shouter_reducer::grid::{Grid, Rank};
use shouter_reducer::kernel::Kernels;
use shouter_reducer::plan::Plan;

use super::drive::Drive;
use crate::channel::shm::NodeSegment;
use crate::config::{Config, CostCache, MeasuredFor};
use crate::error::Error;
use crate::group::watch::Control;
use crate::runtime::{Clock, IdlePolicy, Instant};
use crate::wire;

/// After this nothing more is begun.
const BUDGET: Duration = Duration::from_millis(45);

/// Figures that a rank sends at most.
const MOST: usize = 64;

/// Where the figures of the cost model are from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum CostsFrom {
    /// A file that rank 0 has: that of the key `costs`, or the usual one.
    File,
    /// An earlier job has measured them, and rank 0 has kept them.
    Cache,
    /// They were measured at the join, which took so long.
    Measured(Duration),
    /// They come with the library, for this reason.
    BuiltIn(String),
}

impl fmt::Display for CostsFrom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File => f.write_str("from rank 0's file of figures"),
            Self::Cache => f.write_str("measured by an earlier job"),
            Self::Measured(took) => write!(f, "measured at the join in {:.1} ms", took.as_secs_f64() * 1e3),
            Self::BuiltIn(why) => write!(f, "built in: {why}"),
        }
    }
}

/// The figures by which a group chooses the algorithms of its operations: the same on all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CostFigures {
    costs: Costs,
    from: CostsFrom,
}

impl CostFigures {
    /// Where they are from.
    pub fn origin(&self) -> &CostsFrom {
        &self.from
    }

    /// All of them by name: those that end in `_ns` are nanoseconds, those in `_mb_s` bytes in a microsecond.
    pub fn values(&self) -> impl Iterator<Item = (&'static str, u32)> + use<> {
        self.costs.fields().into_iter()
    }

    fn built_in(costs: Costs, why: impl Into<String>) -> Self {
        Self { costs, from: CostsFrom::BuiltIn(why.into()) }
    }
}

impl Default for CostFigures {
    /// Of a rank that is alone.
    fn default() -> Self {
        Self::built_in(Costs::of_transport("shm"), "the group has one rank")
    }
}

impl fmt::Display for CostFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.from)?;
        let mut between = ": ";
        self.values().try_for_each(|(name, value)| {
            let before = std::mem::replace(&mut between, ", ");
            write!(f, "{before}{name} {value}")
        })
    }
}

/// Figures on their way between ranks: in the order of their fields.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Sent {
    #[serde(deserialize_with = "wire::at_most::<MOST, _, _>")]
    values: Vec<u32>,
    from: CostsFrom,
}

impl From<&CostFigures> for Sent {
    fn from(figures: &CostFigures) -> Self {
        Self { values: figures.values().map(|(_, value)| value).collect(), from: figures.from.clone() }
    }
}

impl TryFrom<Sent> for CostFigures {
    type Error = Error;

    fn try_from(Sent { values, from }: Sent) -> Result<Self, Error> {
        let mut costs = Costs::default();
        let names = costs.fields().map(|(name, _)| name);
        if values.len() != names.len() {
            return Err(Error::join_without(
                0,
                "rank 0 has sent other figures of costs than this release knows",
            ));
        }
        for (name, value) in names.into_iter().zip(values) {
            if let Some(field) = costs.field_mut(name) {
                *field = value;
            }
        }
        Ok(Self { costs, from })
    }
}

/// The link between rank 0's host and others.
pub(super) struct Link {
    /// The transport that is used first.
    pub(super) transport: &'static str,
    /// The kind of its ports, the MTU, connections: for people, and to tell networks apart.
    pub(super) details: String,
    /// The first leader that it reaches.
    pub(super) leader: Rank,
}

/// Rank 0's message to all before they are connected.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Offer {
    figures: Sent,
    /// They are to be measured.
    measures: Option<Partner>,
}

/// The leader of another host that rank 0 measures with, if there is another host.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Partner(Option<u32>);

/// The figures before all are connected, and what is to be done then.
#[derive(Default)]
pub(super) struct Offered {
    figures: CostFigures,
    measures: Option<Partner>,
    /// On rank 0, where a measurement is kept, and for what.
    kept: Option<(PathBuf, MeasuredFor)>,
}

/// Rank 0's decision; `link` where there are other hosts.
pub(super) fn offer(config: &Config, grid: &Grid, link: Option<&Link>) -> (Offer, Offered) {
    let transport = link.map_or("shm", |link| link.transport);
    let of = MeasuredFor::here(grid, transport, link.map_or("", |link| &link.details));
    let costs = config.costs.of(transport);
    let mut offered = Offered::default();
    if config.costs.has(transport) {
        offered.figures = CostFigures { costs, from: CostsFrom::File };
    } else if !config.measure_costs {
        offered.figures = CostFigures::built_in(costs, "measure_costs is off");
    } else if config.faults.any() {
        offered.figures = CostFigures::built_in(costs, "faults are injected");
    } else if let Some(costs) = config.costs_cache.as_deref().and_then(|path| kept_before(path, &of)) {
        offered.figures = CostFigures { costs, from: CostsFrom::Cache };
    } else {
        offered.figures = CostFigures::built_in(costs, "they are measured when all ranks are connected");
        offered.measures = Some(Partner(link.map(|link| link.leader.0)));
        offered.kept = config.costs_cache.clone().map(|path| (path, of));
    }
    (Offer { figures: (&offered.figures).into(), measures: offered.measures }, offered)
}

/// What an earlier job has measured.
fn kept_before(path: &Path, of: &MeasuredFor) -> Option<Costs> {
    let cache = CostCache::read(path).inspect_err(|error| {
        tracing::warn!(%error, "the figures of earlier jobs are not used; they are measured and written anew");
    });
    cache.ok()?.find(of)
}

impl Offer {
    /// Rank 0's decision, on another rank.
    pub(super) fn taken(self) -> Result<Offered, Error> {
        let Self { figures, measures } = self;
        Ok(Offered { figures: figures.try_into()?, measures, kept: None })
    }
}

/// What a rank has for its part.
pub(super) struct MeasurementContext<'a> {
    pub(super) rank: Rank,
    pub(super) grid: &'a Grid,
    pub(super) drive: &'a Drive,
    pub(super) node: Option<&'a NodeSegment>,
    pub(super) control: &'a Control,
    pub(super) kernels: Kernels,
    pub(super) idle: IdlePolicy,
    /// How long to wait for another rank.
    pub(super) patience: Duration,
}

impl Offered {
    /// Those that are in force until all are connected.
    pub(super) fn costs(&self) -> Costs {
        self.figures.costs
    }

    /// The figures in force from now on, which a group of one rank has at once. All ranks call it when all are connected, before any
    /// operation; `plan` is the one that they have.
    ///
    /// # Errors
    /// [`Error::Join`] with the rank that has ended, or has another plan.
    pub(super) fn settle(
        self,
        context: Option<&MeasurementContext<'_>>,
        plan: &mut Plan,
    ) -> Result<CostFigures, Error> {
        let (Some(partner), Some(context)) = (self.measures, context) else { return Ok(self.figures) };
        let costs = self.figures.costs;
        tracing::debug!(rank = context.rank.0, "the figures of the cost model are measured");
        let own = context
            .take_part(partner, costs)
            .map(|figures| wire::encode(&Sent::from(&figures)))
            .transpose()?;
        let all = context.control.all_gather(
            "figures of the cost model",
            &own.unwrap_or_default(),
            context.patience,
        )?;
        let sent: Sent = wire::decode(all.first().map(Vec::as_slice).unwrap_or_default())
            .map_err(|why| Error::join_without(0, format!("rank 0's figures of the cost model: {why}")))?;
        let figures = CostFigures::try_from(sent)?;
        plan.costs = figures.costs;
        let digest = plan.digest();
        let all = context.control.all_gather("plan", &digest, context.patience)?;
        if let Some((other, _)) = (0..).zip(&all).find(|(_, theirs)| theirs[..] != digest) {
            let why =
                "has another plan with the figures that rank 0 has measured; run the same build on all ranks";
            return Err(Error::join_without(other, format!("{} {why}", Rank(other))));
        }
        if let (Some((path, of)), CostsFrom::Measured(_)) = (self.kept, &figures.from) {
            keep(&path, of, figures.costs);
        }
        Ok(figures)
    }
}

/// Keeps a measurement for later jobs, beside others'.
fn keep(path: &Path, of: MeasuredFor, costs: Costs) {
    let mut cache = CostCache::read(path).unwrap_or_default();
    cache.put(of, costs);
    if let Err(error) = cache.write(path) {
        tracing::info!(?path, %error, "the measured figures of the cost model are not kept for later jobs");
    }
}

impl MeasurementContext<'_> {
    /// Does this rank's part of the measurement; on rank 0 there are figures then.
    fn take_part(&self, partner: Partner, built_in: Costs) -> Option<CostFigures> {
        let Partner(leader) = partner;
        let deadline = Clock.now() + self.patience;
        if self.rank == Rank(0) {
            return Some(self.measure(leader.map(Rank), built_in, deadline));
        }
        if let Some(node) = self.node
            && self.rank == Rank(1)
            && self.grid.locals(0) > 1
        {
            // What has ended shows in the exchange that follows.
            let is_over = || node.abort().is_some() || node.is_gone(0);
            within::serve(node, self.kernels, self.idle, deadline, is_over);
        }
        if leader == Some(self.rank.0)
            && let Err(why) = between::serve(self.drive, deadline)
        {
            tracing::debug!(why, "the measurement with rank 0 was given up");
        }
        None
    }

    /// Measures on rank 0.
    fn measure(&self, leader: Option<Rank>, built_in: Costs, deadline: Instant) -> CostFigures {
        let begin = Clock.now();
        let costs = self.found(leader, built_in, begin + BUDGET, deadline);
        let took = Clock.now().saturating_since(begin);
        match costs {
            Ok(costs) => CostFigures { costs, from: CostsFrom::Measured(took) },
            Err(why) => {
                tracing::info!(
                    why,
                    ?took,
                    "the built-in figures of the cost model stand: none were measured"
                );
                CostFigures::built_in(built_in, format!("nothing was measured: {why}"))
            }
        }
    }

    fn found(
        &self,
        leader: Option<Rank>,
        built_in: Costs,
        until: Instant,
        deadline: Instant,
    ) -> Result<Costs, String> {
        let mut costs = built_in;
        let node = self.node.filter(|_| self.grid.locals(0) > 1);
        // Both parts in any case: other ranks take part.
        let within = within::measure(node, self.kernels, self.idle, until);
        let between = leader.map(|leader| between::measure(self.drive, leader, until, deadline));
        let within = within?;
        costs.host.flag_ns = within.flag_ns.unwrap_or(built_in.host.flag_ns);
        (costs.host.copy_mb_s, costs.host.fold_mb_s) = (within.copy_mb_s, within.fold_mb_s);
        if let Some(between) = between {
            costs.network = between?.costs(&built_in.network)?;
        }
        Ok(costs)
    }
}

#[cfg(test)]
pub(super) mod tests;
