//! `shouter plan --measure`: the figures of the cost model, fitted to measurements of `shouter bench` on this machine.
//!
//! The first fit is within one host, the second between two emulated ones, with the host's figures.

use std::io;

use shouter::config::{CostTable, Environment, Levels};
use shouter::{Collective, DType, ReduceOp};
use shouter_reducer::cost::Costs;
use shouter_reducer::grid::Grid;
use shouter_reducer::schedule::Algorithm;

use super::compare::Job;
use super::figures::{self, Source};
use super::fit::{self, Point};
use super::{PlanArgs, shape};
use crate::failure::CommandError;
use crate::stdout;

/// A collective, its algorithm, and a few sizes of each kind, so that every figure of the model affects some of them.
type Series = (Collective, Algorithm, &'static [u64]);

const WITHIN: [Series; 5] = [
    (Collective::AllReduce, Algorithm::Direct, &[64, 4 << 10, 16 << 10, 64 << 10]),
    (Collective::AllReduce, Algorithm::Hierarchical, &[16 << 10, 64 << 10, 1 << 20, 4 << 20]),
    (Collective::Broadcast, BROADCAST, &[16 << 10, 64 << 10, 1 << 20, 4 << 20]),
    (Collective::AllGather, GATHER, &[16 << 10, 256 << 10, 1 << 20]),
    (Collective::Reduce, Algorithm::Hierarchical, &[16 << 10, 1 << 20]),
];
const BETWEEN: [Series; 4] = [
    (Collective::AllReduce, Algorithm::Direct, &[4, 4 << 10, 64 << 10]),
    (Collective::AllReduce, Algorithm::Hierarchical, &[4 << 10, 64 << 10, 1 << 20, 4 << 20]),
    (Collective::Broadcast, BROADCAST, &[4, 64 << 10, 1 << 20, 4 << 20]),
    (Collective::AllGather, GATHER, &[4, 64 << 10, 1 << 20]),
];
const BROADCAST: Algorithm = Algorithm::Direct;
const GATHER: Algorithm = Algorithm::Direct;

pub(super) fn main(args: &PlanArgs) -> Result<(), CommandError> {
    let path = figures::table_path(args, &Environment::of_process()).ok_or_else(|| {
        CommandError::Usage("neither HOME nor XDG_CACHE_HOME is known; name a file with --costs".into())
    })?;
    let mut table = match path.exists() {
        true => figures::table(&path)?,
        false => CostTable::default(),
    };
    let within = points(&WITHIN, 1, args)?;
    let (host, off) = fit::fit(Costs::of_transport("shm"), &fit::HOST, &within);
    table.set("shm", host);
    report("shm", &host, off, args)?;
    let between = points(&BETWEEN, 2, args)?;
    let begin = Costs { host: host.host, ..Costs::of_transport(&args.transport) };
    let (all, off) = fit::fit(begin, &fit::NETWORK, &between);
    table.set(&args.transport, all);
    report(&args.transport, &all, off, args)?;
    table.write(&path).map_err(|why| CommandError::Failed(format!("{}: {why}", path.display())))?;
    if !args.json {
        stdout::print(&format!("written to {}\n", path.display()))?;
    }
    Ok(())
}

/// Measures two ranks on `hosts` hosts.
fn points(what: &[Series], hosts: u32, args: &PlanArgs) -> Result<Vec<Point>, CommandError> {
    let grid = Grid::new(2, 2 / hosts).map_err(|why| CommandError::Usage(why.to_string()))?;
    let grid = grid.with_levels(Levels::default());
    let mut points = Vec::new();
    for &(collective, algorithm, sizes) in what {
        let job = Job {
            ranks: 2,
            hosts,
            transport: &args.transport,
            dtype: DType::F32.name(),
            levels: Levels::default(),
            seconds: args.seconds,
            algorithm: Some(algorithm),
            source: &Source::BuiltIn,
        };
        for (bytes, us) in job.run(collective, sizes)? {
            let shape = shape(collective, bytes, 2, (DType::F32, ReduceOp::Sum));
            points.push(Point { grid, shape, algorithm, us });
        }
    }
    Ok(points)
}

fn report(transport: &str, costs: &Costs, off: f64, args: &PlanArgs) -> io::Result<()> {
    if args.json {
        let fields: serde_json::Map<_, _> =
            costs.fields().into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
        return stdout::print_json(
            &serde_json::json!({ "transport": transport, "costs": fields, "largest_ratio": off }),
        );
    }
    let mut told = format!("{transport}: predictions of what was measured are off by {off:.2}x at most\n");
    for (name, value) in costs.fields() {
        told += &format!("  {name:<12}{value:>9}\n");
    }
    stdout::print(&told)
}
