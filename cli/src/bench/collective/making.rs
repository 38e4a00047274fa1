//! `shouter bench group`: how long two ranks take to make a group of theirs.

use std::time::Instant;

use clap::Args;
use shouter::{Config, Group, ReduceOp};

use super::{JobArgs, Measured, check_job, measure, refuses, rounds};
use crate::bench::pin;
use crate::bench::report::{ReportLine, percentiles_us};
use crate::failure::CommandError;

/// Groups that warm up caches and connections; not measured.
const WARM_UP: u64 = 20;
/// Fewest measured groups.
const FEWEST: u64 = 21;
/// Most measured groups.
const MOST: u64 = 50_000;
/// The functions that make a group.
const FUNCTIONS: [&str; 3] = ["split", "group", "duplicate"];

/// Arguments of `shouter bench group`.
#[derive(Args, Clone, Debug)]
#[command(mut_args(refuses(&["ranks", "threads"])))]
pub(crate) struct GroupArgs {
    #[command(flatten)]
    job: JobArgs,
    /// The function that makes the group: of MPI's the peers call MPI_Comm_split, MPI_Comm_create_group or MPI_Comm_dup
    #[arg(long, default_value = "group", value_parser = FUNCTIONS)]
    how: String,
}

/// The arguments of a rank; started by the bench itself under the launcher.
#[derive(Args, Clone, Debug)]
pub(crate) struct GroupWorkerArgs {
    #[arg(long)]
    how: String,
    #[arg(long)]
    seconds: f64,
}

/// Runs our two ranks, then the peers.
pub(crate) fn main(args: &GroupArgs) -> Result<(), CommandError> {
    let GroupArgs { job, how } = args;
    check_job(job)?;
    if job.ranks != 2 || job.threads {
        return Err(CommandError::Usage(
            "groups are made by two processes; leave out -n and --threads".into(),
        ));
    }
    let what = Measured { name: how, worker: &["group-worker", "--how", how], kernel: None };
    measure(&what, job, &[], &[])
}

/// The body of one rank.
pub(crate) fn worker(args: &GroupWorkerArgs) -> Result<(), CommandError> {
    let config = Config::from_env().map_err(|why| CommandError::Usage(why.to_string()))?;
    pin(&config);
    let group = shouter::init(config)?;
    let begun = Instant::now();
    for _ in 0..WARM_UP {
        once(&group, &args.how)?;
    }
    let wanted = rounds(&group, (begun, WARM_UP), args.seconds, FEWEST..=MOST)?;
    let (mut made, mut used) = (vec![], vec![]);
    for _ in 0..wanted {
        let (until_made, until_used) = once(&group, &args.how)?;
        made.push(until_made);
        used.push(until_used);
    }
    // The slowest rank counts.
    group.all_reduce(&mut made, ReduceOp::Max)?;
    group.all_reduce(&mut used, ReduceOp::Max)?;
    if group.rank() == 0 {
        let (p50, p99) = percentiles_us(&mut made);
        let (used_p50, _) = percentiles_us(&mut used);
        let line = ReportLine {
            ranks: Some(group.size()),
            hosts: Some(group.nodes()),
            transport: Some(group.transport().channels.clone()),
            iterations: Some(made.len() as u64),
            p50_us: Some(p50),
            p99_us: Some(p99),
            used_us: Some(used_p50),
            ..ReportLine::of(&args.how, "shouter")
        };
        line.print()?;
    }
    group.finalize()?;
    Ok(())
}

/// Makes a group of all ranks, uses it once, and drops it; nanoseconds until it was made, and until it was used.
fn once(group: &Group, how: &str) -> Result<(u64, u64), CommandError> {
    let (rank, ranks) = (group.rank(), group.size());
    let members: Vec<u32> = (0..ranks).collect();
    group.barrier()?;
    let begin = Instant::now();
    let made = match how {
        "split" => group.split(Some(0), rank.into())?,
        "duplicate" => Some(group.duplicate()?),
        _ => Some(group.group(&members)?),
    };
    let until_made = begin.elapsed();
    let made = made.ok_or_else(|| CommandError::Failed("a rank with a color is in no group".into()))?;
    let mut sum = [u64::from(rank) + 1];
    made.all_reduce(&mut sum, ReduceOp::Sum)?;
    let until_used = begin.elapsed();
    let due = (1..=u64::from(ranks)).sum::<u64>();
    if (made.rank(), made.size(), sum[0]) != (rank, ranks, due) {
        return Err(CommandError::Failed(format!(
            "rank {rank} of {ranks} is rank {} of {} in the new group, whose sum is {} where {due} was due",
            made.rank(),
            made.size(),
            sum[0]
        )));
    }
    Ok((until_made.as_nanos() as u64, until_used.as_nanos() as u64))
}
