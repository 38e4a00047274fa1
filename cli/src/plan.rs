//! `shouter plan`: predictions of the cost model for a group of any size; and the measurement of its figures.

mod compare;
mod figures;
mod fit;
mod measure;
mod table;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use clap::Args;
use shouter::channel::CELL_BYTES;
use shouter::config::{Builder, ConfigError, Environment, Levels};
use shouter::{Collective, DType, ReduceOp};
use shouter_reducer::cost::{self, Model, Picoseconds};
use shouter_reducer::grid::{Grid, Rank};
use shouter_reducer::header::Shape;
use shouter_reducer::plan::{self, Plan};
use shouter_reducer::schedule::{Algorithm, Problem};

use crate::bench::sizes::Sizes;
use crate::bench::workload;
use crate::failure::CommandError;
use crate::hosts::Hosts;
use crate::status::Status;
use crate::stdout::{self, print_json};
use table::Row;

/// Predict how long collectives take, and which algorithm serves which size
#[derive(Debug, Args)]
#[command(
    long_about = "Prints which algorithm serves which size of a collective, how long it is predicted to take, how long any \
        algorithm takes at least, and what the others are predicted to take. Sums of floats depend on the order of the additions: a job takes those \
        algorithms for them that add in the order of ranks, and so have the same bits, also where others are faster (in JSON: `passed_over`). No rank is started. The figures of the cost model are those \
        of the file that `shouter plan --measure` has written, else those that a job with as many ranks on each host has measured while \
        it joined, else figures to begin with for the transport.",
    after_help = "Examples:\n  \
        shouter plan --ranks 64 --hosts 8 --collective all_gather --bytes 4..1Gi\n  \
        shouter plan --ranks 2 --hosts 2 --collective all_reduce,reduce --json\n  \
        shouter plan --hosts 4,2                      hosts of four ranks and of two\n  \
        shouter plan --ranks 256 --hosts 256 --levels 8,4   groups of 8 hosts, and groups of 4 of those\n  \
        shouter plan --measure                        measure this machine, and keep the figures\n  \
        shouter plan --ranks 2 --hosts 2 --collective all --bytes 4..16Mi --compare\n\n\
        Bytes count as in `shouter bench`. SHOUTER_SCHEDULE=all_reduce:ring gives a collective of a job one algorithm for all sizes. \
        SHOUTER_LEVELS=8,4 gives a job other levels, and `shouter plan`, too, where --levels does not.\n\n\
        Exit status: 0 done, 1 a measurement failed or a file cannot be read or written, 2 a wrong command line."
)]
pub(crate) struct PlanArgs {
    /// How many ranks [default: 2, or those that --hosts lists]
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u32).range(1..=65536))]
    ranks: Option<u32>,
    /// How many hosts they fill in blocks; or the ranks of each, such as 4,2
    #[arg(long, default_value = "1")]
    hosts: Hosts,
    /// Collectives, such as all_reduce,broadcast; or all
    #[arg(long, default_value = "all_reduce", value_name = "COLLECTIVES")]
    collective: Collectives,
    /// Sizes in bytes: 4..1Gi runs in powers of four; lists are separated by commas
    #[arg(long, default_value = "4..1Gi")]
    bytes: Sizes,
    /// How hosts are grouped: the sizes of groups, innermost first [default: the key `levels` of the environment or its file]
    #[arg(long, conflicts_with = "measure")]
    levels: Option<Levels>,
    /// The elements' type
    #[arg(long, default_value = "f32")]
    dtype: DType,
    /// How they are reduced
    #[arg(long, default_value = "sum")]
    op: ReduceOp,
    /// The transport between hosts
    #[arg(long, default_value = "rud", value_parser = ["rud", "tcp", "verbs", "kernel"])]
    transport: String,
    /// The file with measured figures, of --measure or of jobs [default: costs.toml, else measured.toml in ~/.cache/shouter]
    #[arg(long, value_name = "FILE")]
    costs: Option<PathBuf>,
    /// Measure this machine with `shouter bench`, on one host and on two emulated ones, and write the figures to the file
    #[arg(long, conflicts_with = "compare")]
    measure: bool,
    /// Run `shouter bench` for each size as well, and print what it measures and by how much the prediction is off
    #[arg(long)]
    compare: bool,
    /// Fail where a prediction is more than so many times too long or too short
    #[arg(long, value_name = "TIMES", requires = "compare", value_parser = times)]
    within: Option<f64>,
    /// About how long each size is measured, in seconds
    #[arg(long, default_value_t = 0.3, value_parser = crate::bench::seconds)]
    seconds: f64,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

/// A factor above 1.
fn times(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|times| (1.0..=1000.0).contains(times));
    number.ok_or_else(|| "a factor from 1 to 1000".into())
}

/// A list of collectives.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Collectives(Vec<Collective>);

impl std::str::FromStr for Collectives {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Self(Collective::ALL.into_iter().filter(|&one| cost::is_modelled(one)).collect()));
        }
        let one = |name: &str| {
            let found = plan::collective(name.trim()).map_err(|why| why.to_string())?;
            let no_model =
                || format!("the model does not predict {found}; blocks that differ and scans have one way");
            cost::is_modelled(found).then_some(found).ok_or_else(no_model)
        };
        text.split(',').map(one).collect::<Result<_, _>>().map(Self)
    }
}

/// Runs it and returns the exit status.
pub(crate) fn main(args: &PlanArgs) -> Status {
    let outcome = if args.measure { measure::main(args) } else { predict(args) };
    Status::of("plan", outcome.map(|()| Status::OK))
}

fn predict(args: &PlanArgs) -> Result<(), CommandError> {
    if args.collective.0.iter().any(|collective| collective.reduces()) {
        let refused = args.op.check(args.dtype);
        refused.map_err(|why| CommandError::Usage(format!("--op and --dtype: {why}")))?;
    }
    let environment = Environment::of_process();
    let levels = levels(args, &environment)?;
    let grid = grid(args, levels)?;
    let transport = if grid.nodes() > 1 { args.transport.as_str() } else { "shm" };
    let figures = figures::of(args, &grid, transport, &environment)?;
    let plan = Plan { levels, costs: figures.costs, ..Plan::default() };
    let mut off = Vec::new();
    for &collective in &args.collective.0 {
        let mut rows = rows(&plan, &grid, collective, args)?;
        if args.compare {
            compare::measure(&mut rows, collective, (&grid, levels), args, &figures.source)?;
            off.extend(compare::beyond(&rows, args.within));
        }
        if args.json {
            rows.iter().try_for_each(print_json)?;
        } else {
            let origin = figures.source.text();
            let elements =
                if collective.reduces() { format!(" of {} {}", args.dtype, args.op) } else { String::new() };
            let (ranks, hosts, groups) = (grid.ranks(), hosts(&grid), groups(&grid));
            let title = format!(
                "{collective}{elements}, {ranks} ranks on {hosts}{groups} over {transport}, {origin}\n"
            );
            stdout::print(&(title + &table::text(&rows)))?;
        }
    }
    match off.is_empty() {
        true => Ok(()),
        false => Err(CommandError::Failed(format!("predictions are too far off: {}", off.join("; ")))),
    }
}

/// The levels that are named, else those of a job that this process would start.
fn levels(args: &PlanArgs, environment: &Environment) -> Result<Levels, CommandError> {
    let configured = || Builder::from_environment(environment.clone())?.levels();
    args.levels.map_or_else(configured, Ok).map_err(|why: ConfigError| match why {
        ConfigError::Unreadable { .. } => CommandError::Failed(why.to_string()),
        _ => CommandError::Usage(why.to_string()),
    })
}

fn grid(args: &PlanArgs, levels: Levels) -> Result<Grid, CommandError> {
    let ranks = args.ranks.or(matches!(args.hosts, Hosts::Number(_)).then_some(2));
    let locals = args.hosts.fill(ranks).map_err(CommandError::Usage)?;
    let grid = Grid::of_hosts(&locals).map_err(|why| CommandError::Usage(why.to_string()))?;
    Ok(grid.with_levels(levels))
}

/// The hosts as text.
fn hosts(grid: &Grid) -> String {
    if !grid.is_even() {
        let locals: Vec<_> = (0..grid.nodes()).map(|node| grid.locals(node).to_string()).collect();
        return format!("hosts of {}", locals.join(", "));
    }
    if grid.nodes() == 1 { "1 host".into() } else { format!("{} hosts", grid.nodes()) }
}

/// The sizes of the hosts' groups as text, if there are any.
fn groups(grid: &Grid) -> String {
    let sizes: Vec<_> = grid.levels().iter().map(u32::to_string).collect();
    if sizes.is_empty() { String::new() } else { format!(", levels {},", sizes.join(",")) }
}

/// The shape of an operation of `bytes`, counted as in `shouter bench`; a barrier has none.
fn shape(collective: Collective, bytes: u64, ranks: u32, (dtype, op): (DType, ReduceOp)) -> Shape {
    let blocks = u64::from(workload::blocks_counted(collective, ranks));
    let count = if collective == Collective::Barrier { 0 } else { bytes / blocks / dtype.size() as u64 };
    Shape { collective, dtype, op, count }
}

fn rows(plan: &Plan, grid: &Grid, collective: Collective, args: &PlanArgs) -> Result<Vec<Row>, CommandError> {
    let whole = u64::from(workload::blocks_counted(collective, grid.ranks())) * args.dtype.size() as u64;
    let sizes = if collective == Collective::Barrier { &[0][..] } else { &args.bytes.0[..] };
    let fits = |bytes: &&u64| bytes.is_multiple_of(whole);
    let (fitting, rest): (Vec<u64>, Vec<u64>) = sizes.iter().copied().partition(|bytes| fits(&bytes));
    if fitting.is_empty() {
        return Err(CommandError::Usage(format!(
            "none of --bytes is a multiple of {whole}: {collective} of {} over {} ranks needs whole elements",
            args.dtype,
            grid.ranks()
        )));
    }
    if !rest.is_empty() {
        eprintln!(
            "shouter plan: {collective} has whole elements in multiples of {whole} bytes; {rest:?} left out"
        );
    }
    Ok(fitting.into_iter().map(|bytes| row(plan, grid, collective, bytes, args)).collect())
}

fn row(plan: &Plan, grid: &Grid, collective: Collective, bytes: u64, args: &PlanArgs) -> Row {
    let shape = shape(collective, bytes, grid.ranks(), (args.dtype, args.op));
    let (model, chosen) = (plan.model(), plan.algorithm(grid, &shape));
    let algorithms: Vec<_> = cost::serving(collective)
        .filter(|algorithm| algorithm.serves(collective, grid))
        .map(|algorithm| {
            let time = model.predict(algorithm, grid, &shape).map(Picoseconds::as_micros);
            (algorithm.name(), time.map_err(|why| why.to_string()))
        })
        .collect();
    let in_cells = in_cells(&model, grid, &shape).map(Picoseconds::as_micros);
    let candidates: Vec<_> = cost::candidates(&shape).map(Algorithm::name).collect();
    let passed_over =
        algorithms.iter().map(|(name, _)| *name).filter(|name| !candidates.contains(name)).collect();
    let of_chosen = algorithms.iter().find(|(name, _)| *name == chosen.name());
    Row {
        collective: plan::word(collective),
        bytes,
        ranks: grid.ranks(),
        hosts: grid.nodes(),
        levels: grid.levels().to_vec(),
        algorithm: if in_cells.is_some() { "cells" } else { chosen.name() },
        predicted_us: in_cells.or_else(|| of_chosen.and_then(|(_, time)| time.clone().ok())),
        bound_us: model.lower_bound(grid, &shape).as_micros(),
        algorithms,
        passed_over,
        measured_us: None,
    }
}

/// The prediction for this operation if it goes through cells, else `None`.
fn in_cells(model: &Model, grid: &Grid, shape: &Shape) -> Option<Picoseconds> {
    let published = Problem::new(*grid, Rank(0), shape, Rank(0)).published_bytes();
    let goes = grid.nodes() == 1 && grid.ranks() > 1 && published <= CELL_BYTES as u64;
    goes.then(|| model.in_cells(grid, shape))
}
