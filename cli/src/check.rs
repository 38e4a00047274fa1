//! `shouter check`: measures, before a job, whether its hosts reach each other as they should.
//!
//! Every rank runs it under the job's launcher and joins the group as a trainer does. Then all pairs of ranks are
//! [measured](measure). Rank 0 [gathers](report) the figures, [judges](judge) them, and prints.

use std::io::{self, IsTerminal};
use std::path::Path;

use clap::Args;
use serde::Serialize;
use shouter::Config;
use shouter::config::{ConfigError, Hugepages};

use crate::bench::{seconds, sizes};
use crate::failure::CommandError;
use crate::info;
use crate::status::Status;
use crate::stdout;
use measure::Plan;
use report::{OfRank, Report, gather};

mod judge;
mod measure;
mod report;
mod text;

/// The largest messages that are sent, in bytes.
const LARGEST: u64 = 1 << 30;
/// The smallest, in bytes: smaller ones measure latency.
const SMALLEST: u64 = 4 << 10;

/// Measure what the ranks of a job have between them, before the job
#[derive(Debug, Args)]
#[command(
    long_about = "Measures what the ranks of a job have between them, before the job: each rank runs it, under the job's launcher and with its \
        configuration. Rank 0 prints which transport was chosen and why, the hosts, latency and bandwidth of every pair of ranks, how far the \
        clocks differ, and which pair, rank or host is slow.\n\n\
        Pairs are measured in rounds in which each rank has one partner: N ranks take N - 1 rounds of about --seconds. All pairs of a round \
        are measured at the same time, so ranks of one host share its network, as they do in a job. A pair is slow if its latency is more \
        than --factor times the median of its kind (ranks of one host, or of different hosts), or its bandwidth less than the median divided by \
        that. Where more than half of the pairs are slow, the median is, too: a slow one among three ranks or hosts is not found.",
    after_help = "Examples:\n  \
        shouter run -n 4 --hosts 2 -- shouter check\n  \
        torchrun --nproc-per-node 2 -m shouter check\n  \
        SHOUTER_KEY_FILE=job.key torchrun --nproc-per-node 2 --no-python shouter check\n  \
        mpirun -n 4 shouter check --json | jq .slow\n  \
        srun -n 4 shouter check --seconds 1 --factor 2\n\n\
        Under torchrun the Python package's `-m shouter check` gets a key through torch's store, as a trainer does; the program by itself\n\
        needs SHOUTER_KEY or SHOUTER_KEY_FILE, the same on every rank.\n\n\
        With --json rank 0 prints one object: ok, hosts, pairs (ranks, same_host, latency_us, gbytes there and back), clocks, medians,\n\
        slow (the worst first) and culprit. Where there are no figures, rank 0 (each rank, where its configuration cannot be used) prints\n\
        one with ok = false and error.\n\n\
        Exit status of rank 0: 0 all is well, 1 the ranks did not come together or one was lost, 2 a wrong command line, 3 something is\n\
        slow. Other ranks: 0 where it is 3."
)]
pub(crate) struct CheckArgs {
    /// About how long each pair is measured, in seconds
    #[arg(long, default_value_t = 0.2, value_parser = seconds)]
    seconds: f64,
    /// Bytes of the messages whose bandwidth is measured, from 4Ki to 1Gi
    #[arg(long, value_name = "BYTES", default_value = "4Mi", value_parser = message)]
    bandwidth_bytes: u64,
    /// How many times worse than the median of its kind a slow pair is
    #[arg(long, default_value_t = 3.0, value_parser = factor)]
    factor: f64,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// Runs one rank of the check and returns the exit status.
pub(crate) fn main(args: &CheckArgs) -> Status {
    let config = Config::from_env();
    let rank = config.as_ref().map(|config| config.rank).ok();
    let measured = config.map_err(|why| CommandError::Failed(unusable(&why)));
    let measured = measured.and_then(|config| check(args, config));
    let outcome = match measured {
        Ok((report, left)) => show(args, report).and_then(|status| left.map(|()| status).map_err(Into::into)),
        // Rank 0 speaks for the job, and who does not know its rank for itself.
        Err(why) if args.json && rank.unwrap_or(0) == 0 => {
            let failure = Failure { ok: false, error: why.to_string() };
            if let Err(lost) = stdout::print_json(&failure) {
                eprintln!("shouter check: {lost}");
            }
            Err(why)
        }
        Err(why) => Err(why),
    };
    let name = rank.map_or_else(|| "check".to_owned(), |rank| format!("check: rank {rank}"));
    Status::of(&name, outcome)
}

/// What --json prints where there is no report.
#[derive(Debug, Serialize)]
struct Failure {
    ok: bool,
    error: String,
}

/// Why a configuration cannot be used; where no job is described, how to start one.
fn unusable(why: &ConfigError) -> String {
    let lacks_a_job = matches!(why, ConfigError::Missing { keys, .. } if keys.iter().any(|key| key == "size" || key == "rank"));
    match lacks_a_job {
        true => format!(
            "{why}; start it under a launcher, such as: shouter run -n 2 -- shouter check, or torchrun -m shouter check"
        ),
        false => why.to_string(),
    }
}

/// Prints rank 0's report.
fn show(args: &CheckArgs, report: Option<Report>) -> Result<Status, CommandError> {
    let Some(report) = report else { return Ok(Status::OK) };
    match args.json {
        true => stdout::print_json(&report)?,
        false => stdout::print(&text::text(&report))?,
    }
    Ok(if report.ok { Status::OK } else { Status::SLOW })
}

/// Measures; rank 0 gets the report. Beside it, how this rank has left the group.
fn check(
    args: &CheckArgs,
    config: Config,
) -> Result<(Option<Report>, Result<(), shouter::Error>), CommandError> {
    let deadline = config.deadline;
    if args.seconds > deadline.as_secs_f64() / 2.0 {
        return Err(CommandError::Usage(format!(
            "--seconds {} is more than half of what an operation may take (deadline = {deadline:?}); use less, or raise that key",
            args.seconds
        )));
    }
    let memory = info::memory(Path::new("/"), config.hugepages == Hugepages::On);
    let group = shouter::init(config)?;
    let bytes = args.bandwidth_bytes as usize;
    let shows_progress = group.rank() == 0 && io::stderr().is_terminal();
    let seen = measure::run(&group, Plan { seconds: args.seconds, bytes }, |round, rounds| {
        if shows_progress {
            eprint!("\rround {} of {rounds}", round + 1);
        }
    });
    if shows_progress {
        eprint!("\r\x1b[K");
    }
    let all = gather(&group, OfRank::new(&group, memory, seen?), deadline)?;
    let left = group.finalize();
    let report = all.map(|all| Report::new(&all, bytes, args.factor)).transpose()?;
    Ok((report, left))
}

fn message(text: &str) -> Result<u64, String> {
    let bytes = sizes::one(text)?;
    match (SMALLEST..=LARGEST).contains(&bytes) {
        true => Ok(bytes),
        false => Err(format!("'{text}' is not from 4Ki to 1Gi")),
    }
}

fn factor(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| (1.0..=1e9).contains(number));
    number.ok_or_else(|| "a number from 1 to 1e9, such as 3".into())
}
